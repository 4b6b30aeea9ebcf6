"""What MkDocs has to be told of the pages in docs/, which are written to be read in the repository as well.

The first page is the README. The reference is made of what `import trivet` gives. Links to files that are no pages,
as a module, become plain text: the site stands alone.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[2]
CLIENT: Final = ROOT / "broker/public/client.py"
_LINK: Final = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_SECTIONS: Final = (
    ("Sending", ("producing.producer", "producing")),
    ("Consuming", ("consuming.consumer", "consuming.pull_consumer", "consuming.listening", "consuming")),
    ("Administration", ("admin", "transport.credentials")),
    ("Messages", ("message",)),
    ("Errors", ("errors",)),
)
"""Headings of the reference, and in which order the client's modules, or all of a room, stand below them."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the first page, the changes and the reference."""
    for name, page in (("README.md", "index.md"), ("CHANGELOG.md", "changelog.md")):
        text = (ROOT / name).read_text(encoding="utf-8")
        text = text.replace("](docs/", "](").replace("](CHANGELOG.md", "](changelog.md")
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "api.md", content=reference()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leaves of a link to a file that is no page its text."""
    folder = PurePosixPath(page.file.src_uri).parent

    def link(found: re.Match[str]) -> str:
        text, target, _ = found.groups()
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        path = _normal(folder / target)
        if path is not None and (files.get_file_from_path(path) or not (ROOT / "docs" / path).exists()):
            return found[0]  # a page, or a dead link, which fails the build
        outside = ROOT / "docs" / folder / target
        return text if outside.exists() else found[0]

    return _LINK.sub(link, markdown)


def _normal(path: PurePosixPath) -> str | None:
    """The path without `..`, or None if it leads out of docs/."""
    parts: list[str] = []
    for part in path.parts:
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
        else:
            return None
    return "/".join(parts)


def reference() -> str:
    """The page that mkdocstrings fills: every name of `trivet`, by where the client has it."""
    modules: dict[str, list[str]] = {}
    for node in ast.parse(CLIENT.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            modules.setdefault(node.module, []).extend(alias.name for alias in node.names)
    lines = [
        "# The client's names",
        "",
        "What `import trivet` gives; [the client](client.md) tells how it fits together.",
    ]
    for heading, rooms in _SECTIONS:
        lines += ["", f"## {heading}"]
        for room in rooms:
            path = f"broker.client.{room}"
            for module in [name for name in modules if name == path or name.startswith(f"{path}.")]:
                lines += [f"\n::: {module}.{name}" for name in modules.pop(module)]
    assert not modules, f"the reference has no place for {modules}"
    return "\n".join(lines) + "\n"

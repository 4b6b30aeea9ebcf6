"""A file that a text of this repository names is there: links, and modules and pages in comments and docstrings."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("raft", "log", "broker", "simulation", "spark_analysis", "benchmarks", "tests", "docs")
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"(?<![\w/.*<{-])((?:\.\./)*[\w-]+(?:/[\w.-]+)*\.(?:py|md))\b(?!\()")


def texts(ending: str) -> list[Path]:
    """The repository's files with that ending."""
    found = [path for room in ROOMS for path in (ROOT / room).rglob(f"*{ending}")] + list(
        ROOT.glob(f"*{ending}")
    )
    assert found
    return sorted(found)


ENDS = {
    "/".join(parts[-length:])
    for ending in (".py", ".md")
    for path in texts(ending)
    for parts in [path.relative_to(ROOT).parts]
    for length in range(1, len(parts))
}
"""The ends of all files' paths that are shorter than the path itself."""


def is_there(name: str, source: Path) -> bool:
    """Whether a name means a file: from the root, from where it is named, or as the end of some file's path."""
    return (ROOT / name).exists() or (source.parent / name).exists() or name.removeprefix("../") in ENDS


def may_name(text: str) -> bool:
    """Whether a file could be named in it: most of the text is neither read nor searched further."""
    return ".py" in text or ".md" in text


def told(path: Path) -> Iterator[tuple[int, str]]:
    """The comments and the docstrings of a module that may name a file, each with the line at which it begins."""
    text = path.read_text()
    if not may_name(text):
        return
    if any(may_name(line.partition("#")[2]) for line in text.splitlines()):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
            and may_name(node.value.value)
        ):
            yield node.lineno, node.value.value


@pytest.mark.parametrize("page", texts(".md"), ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    text = page.read_text()
    links = [link.partition("#")[0] for link in LINK.findall(text) if "://" not in link]
    lost = [link for link in links if link and not (page.parent / link).exists()]
    assert lost == []


@pytest.mark.parametrize("room", ROOMS)
def test_what_is_named_is_there(room: str) -> None:
    lost = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for line, text in told(path)
        for name in NAMED.findall(text)
        if not is_there(name, path)
    ]
    assert lost == []


@pytest.mark.parametrize("page", texts(".md"), ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    assert [name for name in NAMED.findall(page.read_text()) if not is_there(name, page)] == []

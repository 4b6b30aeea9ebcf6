"""Builds the wheel, in which all of Trivet has the one name ``trivet``: hatchling calls `OneName`.

In the repository each room is a top-level package, `broker` or `log`. Installed like that they would take names from
the user's own programs, and break in turn beside a module `log` of theirs. So the wheel has the rooms below
``trivet``, trivet.py as its ``__init__.py`` and the modules of `broker/public` beside it. `below_trivet` writes the
names of modules accordingly: those in imports, and those in strings of the form ``broker.tools.cli.topics:app``, as
entry points are written. No line is moved, nothing else is changed. Tests install the wheel and use it among hostile
names (`tests/wheel`).
"""

import ast
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOMS: Final = ("raft", "log", "broker", "simulation", "spark_analysis")
_ANOTHER_WHEEL: Final = Path("log/fast")
_OF_A_ROOM: Final = re.compile(rf"({'|'.join(ROOMS)})(\.\w+)*")
_PUBLIC: Final = "broker.public"
_ENTRY_POINT: Final = re.compile(rf"{_OF_A_ROOM.pattern}:\w+")


def place_in_wheel(place: Path) -> Path | None:
    """Return the place in the wheel of a file at this place in the repository; None if the wheel does not have it."""
    if place == Path("trivet.py"):
        return Path("trivet/__init__.py")
    if place in (Path("broker/tools/wheel.py"), Path("broker/public/__init__.py")):
        return None
    if _ANOTHER_WHEEL in place.parents:
        return None
    return Path(
        "trivet", place.relative_to("broker/public") if place.is_relative_to("broker/public") else place
    )


def _renamed(module: str) -> str:
    return "trivet" + module.removeprefix(_PUBLIC) if module.startswith(_PUBLIC) else f"trivet.{module}"


def below_trivet(source: str, name: str) -> str:
    """Return a module's text with the rooms' modules called as they are called in the wheel.

    Raises ValueError for an import that binds the name of a room while it names another module (``import log.store``):
    it has no equivalent. `name` is the file's, for that error.
    """
    lines = source.encode().splitlines(keepends=True)  # columns of syntax trees count bytes
    for line, column, old, new in sorted(_changes(ast.parse(source), name), reverse=True):
        text = lines[line - 1]
        begin = text.index(old.encode(), column)
        lines[line - 1] = text[:begin] + new.encode() + text[begin + len(old.encode()) :]
    return b"".join(lines).decode()


def _changes(tree: ast.Module, file: str) -> Iterator[tuple[int, int, str, str]]:
    """Yield what is to be replaced: its line, a column before it, the old name and the new one."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), level=0) if _OF_A_ROOM.fullmatch(module):
                yield node.lineno, node.col_offset + len("from "), module, _renamed(module)
            case ast.Import():
                for alias in node.names:
                    if not _OF_A_ROOM.fullmatch(alias.name):
                        continue
                    bound = alias.asname or alias.name
                    if "." in bound:
                        raise ValueError(f"{file}:{node.lineno}: say `import {bound} as` or `from`")
                    yield (
                        alias.lineno,
                        alias.col_offset,
                        alias.name,
                        _renamed(alias.name) + ("" if alias.asname else f" as {bound}"),
                    )
            case ast.Constant(value=str(text)) if _ENTRY_POINT.fullmatch(text):
                yield node.lineno, node.col_offset, text, _renamed(text)


class OneName(BuildHookInterface[Any]):
    """Puts the rooms below ``trivet`` into wheels; an editable installation has the checkout as it is."""

    _made: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the files of the wheel into a directory of its own, and tell hatchling to take that."""
        if version == "editable":
            return
        root = Path(self.root)
        self._made = Path(tempfile.mkdtemp(prefix="trivet-wheel-"))
        for file in [root / "trivet.py", *(file for room in ROOMS for file in (root / room).rglob("*.*"))]:
            place = file.relative_to(root)
            there = place_in_wheel(place)
            if there is None or "__pycache__" in place.parts:
                continue
            target = self._made / there
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.suffix == ".py":
                target.write_text(below_trivet(file.read_text("utf-8"), str(place)), "utf-8")
            else:
                shutil.copyfile(file, target)
        (self._made / "trivet" / "py.typed").touch()  # says that the types are for others, too
        build_data["force_include"][str(self._made / "trivet")] = "trivet"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove that directory."""
        if self._made is not None:
            shutil.rmtree(self._made)

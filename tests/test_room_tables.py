"""The tables of docs/architecture.md name each room, and say how large the rooms are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.import_map import ROOT, settings

ARCHITECTURE = ROOT / "docs/architecture.md"
IN_TABLES = ("broker", "broker/client", "log", "simulation", "spark_analysis")
"""The packages whose members are rooms of a table each, or named in one."""
APART_MAX = 0.02
"""By how much of itself a number of lines may differ: that a room grows is to be seen, not each commit."""


def members(package: Path) -> set[str]:
    """Returns the names of what lies directly in a package, as the tables write them."""
    packages = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    return packages | {path.name for path in package.glob("*.py") if not path.name.startswith("__")}


def named_in_tables(text: str) -> set[str]:
    """Returns all names in backticks that stand in rows of tables."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return {name for row in rows for name in re.findall(r"`([^` ]+)`", row)}


@pytest.mark.parametrize("package", IN_TABLES)
def test_each_room_is_in_a_table(package: str) -> None:
    # What every client imports, and what it is made of, stands in the package itself.
    plain = {"admin.py", "errors.py", "message.py"} if package == "broker/client" else set()
    assert members(ROOT / package) - plain - named_in_tables(ARCHITECTURE.read_text()) == set()


def test_a_room_has_about_as_many_lines_as_is_written() -> None:
    rooms = settings()["root_packages"]
    counted = {
        room: sum(len(path.read_text().splitlines()) for path in (ROOT / room).rglob("*.py"))
        for room in rooms
    }
    rows = re.findall(
        r"^\| (?:`(\w+)/`|(together)) \| .* \| ([\d.]+) \|$", ARCHITECTURE.read_text(), re.MULTILINE
    )
    written = {room or together: float(thousands) * 1000 for room, together, thousands in rows}
    assert written.keys() == {*rooms, "together"}
    counted["together"] = sum(counted.values())
    # Tenths of a thousand are written: half of one may be rounded away.
    apart = {
        room: (lines, counted[room])
        for room, lines in written.items()
        if abs(lines - counted[room]) > APART_MAX * counted[room] + 50
    }
    assert apart == {}

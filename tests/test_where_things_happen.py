"""The table of behaviours in docs/architecture.md names functions that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs/architecture.md"
SECTION = PAGE.read_text().partition("## Where things happen")[2].partition("\n## ")[0]
ROWS = [
    (file, function)
    for files, functions in re.findall(r"^\| [^|]+ \| (\[[^|]+) \| (`[^|]+) \|$", SECTION, re.MULTILINE)
    for file, function in zip(
        re.findall(r"\]\(([^)]+)\)", files), re.findall(r"`([^`]+)`", functions), strict=True
    )
]


def functions_of(path: Path) -> set[str]:
    """The functions of a module, methods as ``Class.method``."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{part.name}"
                for part in node.body
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return found


def test_the_table_is_read() -> None:
    assert len(ROWS) == SECTION.count("`") // 2, "each function that is named"


@pytest.mark.parametrize(("file", "function"), ROWS)
def test_the_function_is_there(file: str, function: str) -> None:
    assert function in functions_of(PAGE.parent / file)

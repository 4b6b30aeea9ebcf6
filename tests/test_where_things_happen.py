"""The page docs/where-things-happen.md names functions that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs/where-things-happen.md"
TEXT = PAGE.read_text()


def rows() -> list[tuple[str, str]]:
    """(file, function) of each function that the page names; one that has no link stands in the file before it."""
    found = []
    for cell in re.findall(r"^\| [^|]+ \| (\[[^|]+) \|$", TEXT, re.MULTILINE):
        file = ""
        for link, function in re.findall(r"\]\(([^)]+)\)|`([^`]+)`", cell):
            if link:
                file = link
            else:
                found.append((file, function))
    return found


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


def test_the_page_is_read() -> None:
    assert len(rows()) == TEXT.count("`") // 2, "each function that is named"
    assert len(rows()) > 100


@pytest.mark.parametrize(("file", "function"), rows())
def test_the_function_is_there(file: str, function: str) -> None:
    assert function in functions_of(PAGE.parent / file)

"""docs/compatibility.md against the code: every request that is handled has a row, and every row a test that exists.

Needs no client of another project: part of the normal suite.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from broker.name_server.server import NameServer
from broker.remoting.codes import RequestCode
from broker.settings import NameServerConfig
from tests.broker.harness import Group

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "compatibility.md"

LINK = re.compile(r"\[(\w+)\]\(\.\./(tests/\S+?\.py)\)")
ROW = re.compile(r"^\| (\d+) \| (\w+) \|")

TO_BROKER, TO_NAME_SERVER = "Requests to a broker", "Requests to a name server"
TO_CLIENTS, NOT_SUPPORTED = "Requests of a broker to clients", "Not supported"
TABLES = (TO_BROKER, TO_NAME_SERVER, TO_CLIENTS, NOT_SUPPORTED)


def rows(heading: str) -> list[str]:
    """The rows of the table under a heading, without its head."""
    _, _, after = PAGE.read_text().partition(f"\n## {heading}\n")
    assert after, f"no section {heading!r}"
    section = after.partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("|")][2:]


def codes(heading: str) -> dict[int, str]:
    """Request code -> name, of the rows that name one code."""
    found = [match for row in rows(heading) if (match := ROW.match(row))]
    table = {int(match[1]): match[2] for match in found}
    assert len(table) == len(found), f"a code has two rows under {heading!r}"
    return table


def names(numbers: set[int]) -> list[str]:
    return [f"{number} {RequestCode(number).name}" for number in sorted(numbers)]


def test_every_request_that_a_broker_handles_has_a_row() -> None:
    group = Group(1)
    group.elect()
    handled = set(group.node(group.leader)._routes)
    assert names(handled - codes(TO_BROKER).keys()) == []
    assert names(codes(TO_BROKER).keys() - handled) == []
    assert names(codes(NOT_SUPPORTED).keys() & handled) == []


def test_every_request_that_a_name_server_handles_has_a_row() -> None:
    handled = set(NameServer(NameServerConfig())._handlers)
    assert names(handled - codes(TO_NAME_SERVER).keys()) == []
    assert names(codes(TO_NAME_SERVER).keys() - handled) == []


def test_every_known_code_has_a_row_under_its_name() -> None:
    rows_of: dict[int, str] = {}
    for heading in TABLES:
        rows_of |= codes(heading)
    assert rows_of == {code.value: code.name for code in RequestCode}


@pytest.mark.parametrize("heading", ["Features", *TABLES])
def test_every_row_is_linked_to_tests_that_exist(heading: str) -> None:
    for row in rows(heading):
        linked = LINK.findall(row)
        assert linked, f"no test: {row}"
        for test, path in linked:
            assert test in names_in(path), f"{path} has no {test}"


@cache
def names_in(path: str) -> frozenset[str]:
    """Names of the tests in a module."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(
        node.name for node in tree.body if isinstance(node, functions) and node.name.startswith("test_")
    )

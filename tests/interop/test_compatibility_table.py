"""docs/compatibility.md against the code: every request that is handled has a row, every row a test that exists, and
every feature the clients with which its tests are run.

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
from broker.settings.tables import NameServerSettings
from tests.broker.harness import Group

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "compatibility.md"

LINK = re.compile(r"\[(\w+)\]\(\.\./(tests/\S+?\.py)\)")
ROW = re.compile(r"^\| (\d+) \| (\w+) \|")

TO_BROKER, TO_NAME_SERVER = "Requests to a broker", "Requests to a name server"
TO_CLIENTS, NOT_SUPPORTED = "Requests of a broker to clients", "Not supported"
CLIENTS = ("C++", "Java", "mqadmin")
TABLES = (TO_BROKER, TO_NAME_SERVER, TO_CLIENTS, NOT_SUPPORTED)


def rows(heading: str) -> list[str]:
    """The rows of the table under a heading, without its head."""
    _, _, after = PAGE.read_text().partition(f"\n## {heading}\n")
    assert after, f"no section {heading!r}"
    section = after.partition("\n## ")[0]
    found = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert found, f"an empty table under {heading!r}"
    return found


def codes(heading: str) -> dict[int, str]:
    """Request code -> name, of the rows that name one code."""
    found = [match for row in rows(heading) if (match := ROW.match(row))]
    table = {int(match[1]): match[2] for match in found}
    assert len(table) == len(found), f"a code has two rows under {heading!r}"
    return table


def names(numbers: set[int]) -> list[str]:
    return [f"{number} {RequestCode(number).name}" for number in sorted(numbers)]


def test_every_request_that_a_broker_handles_has_a_row() -> None:
    group = Group.elected(1)
    handled = {*group.node(group.leader)._routes, RequestCode.TRIVET_GREETING}
    assert names(handled - codes(TO_BROKER).keys()) == []
    assert names(codes(TO_BROKER).keys() - handled) == []
    assert names(codes(NOT_SUPPORTED).keys() & handled) == []


def test_every_request_that_a_name_server_handles_has_a_row() -> None:
    handled = {*NameServer(NameServerSettings())._handlers, RequestCode.TRIVET_GREETING}
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


def test_every_feature_names_the_clients_that_its_tests_run_with() -> None:
    for row in rows("Features"):
        feature, _, told, _ = (cell.strip() for cell in row.strip("|").split("|"))
        found: set[str] = set().union(*(clients_of(path)[test] for test, path in LINK.findall(row)))
        assert told == ", ".join(name for name in CLIENTS if name in found), feature


@cache
def names_in(path: str) -> frozenset[str]:
    """Names of the tests in a module."""
    return frozenset(test.name for test in functions_of(path))


@cache
def clients_of(path: str) -> dict[str, frozenset[str]]:
    """Name of each test in a module -> which of `CLIENTS` it is run with (conftest.py reads the same markers)."""
    if not path.startswith("tests/interop/"):
        return {test.name: frozenset() for test in functions_of(path)}
    tree = ast.parse((ROOT / path).read_text())
    everywhere = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            everywhere = markers_in(node.value)
    found = {}
    for test in functions_of(path):
        markers = everywhere.union(*(markers_in(decorator) for decorator in test.decorator_list))
        clients = {"java_only": {"Java"}, "cpp_only": {"C++"}}
        of = next((clients[marker] for marker in clients if marker in markers), {"C++", "Java"})
        text = ast.unparse(test)
        if "mqadmin" in text:
            of = of | {"mqadmin"}
        if "CPP," in text:  # a member of that client beside the one that the test is run with
            of = of | {"C++"}
        found[test.name] = frozenset(of)
    return found


def markers_in(expression: ast.expr) -> set[str]:
    """The last names of dotted ones: ``java_only`` of ``pytest.mark.java_only``."""
    return {node.attr for node in ast.walk(expression) if isinstance(node, ast.Attribute)}


@cache
def functions_of(path: str) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse((ROOT / path).read_text())
    return tuple(node for node in tree.body if isinstance(node, functions) and node.name.startswith("test_"))

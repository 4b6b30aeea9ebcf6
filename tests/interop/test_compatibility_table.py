"""docs/compatibility.md against the code: every request that is handled has a row, every row a test that exists
(docs/compatibility-tests.md), and every feature the clients with which its tests are run.

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
PAGE_OF_TESTS = ROOT / "docs" / "compatibility-tests.md"

LINK = re.compile(r"\[(\w+)\]\(\.\./(tests/\S+?\.py)\)")
REQUEST = re.compile(r"\b(\d+)(?: \| | )([A-Z][A-Z\d_]+)\b")

TO_BROKER, TO_NAME_SERVER = "Requests to a broker", "Requests to a name server"
TO_CLIENTS, NOT_SUPPORTED = "Requests of a broker to clients", "Not supported"
CLIENTS = ("C++", "Go", "Java", "mqadmin")
TABLES = (TO_BROKER, TO_NAME_SERVER, TO_CLIENTS, NOT_SUPPORTED)


def rows(heading: str, page: Path = PAGE) -> list[str]:
    """The rows of the tables under a heading, without the head of the first one."""
    _, _, after = page.read_text().partition(f"\n## {heading}\n")
    assert after, f"no section {heading!r}"
    section = after.partition("\n## ")[0]
    found = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert found, f"an empty table under {heading!r}"
    return found


def first_cell(row: str) -> str:
    """What a row is about: a feature, without the link that may follow it, or codes."""
    return row.strip("|").split("|")[0].partition(" ([")[0].strip()


def links_of(heading: str) -> dict[str, list[tuple[str, str]]]:
    """Feature or codes -> the tests that show it, each as its name and its file."""
    found = rows(heading, PAGE_OF_TESTS)
    table = {first_cell(row): LINK.findall(row) for row in found}
    assert len(table) == len(found), f"two rows are about the same under {heading!r}"
    return table


def codes(heading: str) -> dict[int, str]:
    """Request code -> name, of all requests that the tables under a heading name."""
    found = [match for row in rows(heading) for match in REQUEST.findall(row)]
    table = {int(code): name for code, name in found}
    assert len(table) == len(found), f"a code is named twice under {heading!r}"
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
    if heading in (TO_BROKER, TO_NAME_SERVER, TO_CLIENTS):
        subjects = {f"{code} {name}" for code, name in codes(heading).items()}
    else:
        subjects = {first_cell(row) for row in rows(heading)}
    assert subjects == links_of(heading).keys()
    for subject, linked in links_of(heading).items():
        assert linked, f"no test: {subject}"
        for test, path in linked:
            assert test in names_in(path), f"{path} has no {test}"


def test_every_feature_names_the_clients_that_its_tests_run_with() -> None:
    tests = links_of("Features")
    for row in rows("Features"):
        _, told = (cell.strip() for cell in row.strip("|").split("|"))
        found: set[str] = set().union(*(clients_of(path)[test] for test, path in tests[first_cell(row)]))
        assert told == ", ".join(name for name in CLIENTS if name in found), row


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
        clients = {"java_only": {"Java"}, "cpp_only": {"C++"}, "go_only": {"Go"}}
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

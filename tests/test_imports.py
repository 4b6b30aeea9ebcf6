"""The drawing of the imports in docs/ is that of the code."""

from __future__ import annotations

import grimp
import pytest

from tests.import_map import DRAWING, cycles, drawing, in_order, read_graph, room_edges, written_order


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return read_graph()


def test_the_drawing_is_of_this_code(graph: grimp.ImportGraph) -> None:
    assert DRAWING.read_text() == drawing(graph), "`make map` draws it anew"


def test_nothing_imports_in_a_circle(graph: grimp.ImportGraph) -> None:
    assert cycles(graph) == []


def test_no_test_or_benchmark_imports_itself_by_way_of_others() -> None:
    # Their packages have no order: a test of the benchmarks stands in `tests`, whose harness they use.
    assert cycles(read_graph("tests", "benchmarks"), of_packages=False) == []


def graph_of(*pairs: str) -> grimp.ImportGraph:
    """A graph of imports such as `a.b c`; packages are added with their modules."""
    made = grimp.ImportGraph()
    for pair in pairs:
        for module in pair.split():
            parts = module.split(".")
            for length in range(1, len(parts) + 1):
                made.add_module(".".join(parts[:length]))
        importer, imported = pair.split()
        made.add_import(importer=importer, imported=imported)
    return made


def test_cycles_are_found_at_each_level() -> None:
    assert cycles(graph_of("a.one b.one", "b.one c.one")) == []
    # no module imports in a circle, two rooms and two members of a package do
    assert [found.split(":")[0] for found in cycles(graph_of("a.x.one a.y.one", "a.y.two a.x.two"))] == [
        "rooms",
        "members of a",
    ]
    assert [found.split(":")[0] for found in cycles(graph_of("a.one b.one", "b.two a.two"))] == ["rooms"]
    # a package that imports its own module, which imports the package
    assert [found.split(":")[0] for found in cycles(graph_of("a.x a.x.one", "a.x.one a.x"))] == ["modules"]
    # the packages alone
    assert cycles(graph_of("a.one b.one", "b.two a.two"), of_packages=False) == []


def test_a_cycle_is_drawn_above_the_diagonal() -> None:
    clean, circle = graph_of("a.one b.one"), graph_of("a.one b.one", "b.two a.two")
    assert "#d73a49" not in drawing(clean)
    assert "#d73a49" in drawing(circle)


def test_the_order_puts_each_room_after_those_that_it_imports() -> None:
    graph = graph_of("a.one b.one", "b.one c.one", "d.one a.one")
    assert in_order("abcd", room_edges(graph)) == ["c", "b", "a", "d"]


def test_each_layer_of_the_contracts_is_in_the_written_order() -> None:
    order = written_order()
    assert order.index("broker.remoting") < order.index("broker.replica") < order.index("broker.tools")

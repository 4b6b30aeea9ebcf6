"""Draws which room imports which, and finds import cycles. `make map` writes the drawing into docs/imports.svg.

The imports are read by grimp, the library that import-linter stands on. Imports for type checking count as all others.

A room is what lies directly in one of the top-level packages: a package such as `broker/sending`, or a module such as
`broker/assembly.py`. A top-level package that is only modules is one room. The drawing is a square: a row and a column
for each room, in an order in which each room imports only rooms above it. So all numbers stand below the diagonal; a
number above it belongs to a cycle and is drawn in red.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import grimp

ROOT = Path(__file__).parent.parent
DRAWING = ROOT / "docs/imports.svg"

CELL = 22
LABELS = 190
"""Pixels: the side of a square, and the room for names."""

Edges = Counter[tuple[str, str]]
"""How many imports lead from one name to another."""


def settings() -> dict[str, Any]:
    """Returns import-linter's part of pyproject.toml."""
    written: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return written


def read_graph(*others: str) -> grimp.ImportGraph:
    """The imports of all packages that import-linter watches, too, and of `others`."""
    return grimp.build_graph(*settings()["root_packages"], *others, cache_dir=None)


def imports(graph: grimp.ImportGraph) -> list[tuple[str, str]]:
    """All pairs of importing and imported module."""
    return [
        (module, imported)
        for module in sorted(graph.modules)
        for imported in sorted(graph.find_modules_directly_imported_by(module))
    ]


def room_of(module: str, graph: grimp.ImportGraph) -> str:
    """The room in which a module lies."""
    top = module.partition(".")[0]
    has_rooms = any(graph.find_children(member) for member in graph.find_children(top))
    return ".".join(module.split(".")[:2]) if has_rooms else top


def edges_between(pairs: Iterable[tuple[str, str]]) -> Edges:
    """The pairs counted, without those that begin and end at the same name."""
    return Counter(pair for pair in pairs if pair[0] != pair[1])


def room_edges(graph: grimp.ImportGraph) -> Edges:
    """Counts the imports that lead from each room to each other room."""
    return edges_between(
        (room_of(module, graph), room_of(imported, graph)) for module, imported in imports(graph)
    )


def cycles(graph: grimp.ImportGraph, *, of_packages: bool = True) -> list[str]:
    """One cycle of each level that has any, as text: modules, and `of_packages` rooms and the members of each package.

    The top-level packages as such are no level: the command line in `broker/tools` starts simulator and analysis.
    """
    pairs = imports(graph)
    levels: dict[str, Edges] = {"modules": edges_between(pairs)}
    if of_packages:
        levels["rooms"] = room_edges(graph)
    for package in sorted(module for module in graph.modules if of_packages and graph.find_children(module)):
        depth = package.count(".") + 2
        below = package + "."
        levels[f"members of {package}"] = edges_between(
            (".".join(one.split(".")[:depth]), ".".join(other.split(".")[:depth]))
            for one, other in pairs
            if one.startswith(below) and other.startswith(below)
        )
    found = []
    for level, edges in levels.items():
        sorter: TopologicalSorter[str] = TopologicalSorter()
        for importer, imported in edges:
            sorter.add(importer, imported)
        try:
            sorter.prepare()
        except CycleError as error:
            found.append(f"{level}: {' <- '.join(error.args[1])}")
    return found


def written_order() -> list[str]:
    """The rooms as the contracts order them, the lowest first: among several that may come next, this decides."""
    layers = [contract for contract in settings()["contracts"] if contract["type"] == "layers"]
    rooms = [
        f"{container}.{layer}"
        for contract in layers
        for container in contract["containers"]
        for members in reversed(contract["layers"])
        for layer in members.split(" : ")
    ]
    return [
        room for top in settings()["root_packages"] for room in [*rooms, top] if room.split(".")[0] == top
    ]


def in_order(rooms: Iterable[str], edges: Edges) -> list[str]:
    """The rooms, each after those that it imports; where a cycle makes that impossible, with few before their time."""
    written = {room: place for place, room in enumerate(written_order())}
    order: list[str] = []
    left = sorted(rooms, key=lambda room: (written.get(room, len(written)), room))
    while left:
        chosen = min(left, key=lambda room: sum((room, other) in edges for other in left))
        order.append(chosen)
        left.remove(chosen)
    return order


def drawing(graph: grimp.ImportGraph) -> str:
    """The square of rooms as SVG."""
    edges = room_edges(graph)
    rooms = in_order({room for pair in edges for room in pair}, edges)
    side = LABELS + CELL * len(rooms) + 10
    size = f'viewBox="0 0 {side} {side}" width="{side}" height="{side}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">',
        "<title>Which room imports which</title>",
        f'<rect width="{side}" height="{side}" fill="#ffffff"/>',
        f'<text x="8" y="{LABELS - 28}" fill="#555555">a row imports</text>',
        f'<text x="8" y="{LABELS - 12}" fill="#555555">a column</text>',
    ]
    for row, importer in enumerate(rooms):
        begin = LABELS + CELL * row
        middle = begin + CELL // 2
        name = escape(importer.replace(".", "/"))
        lines.append(f'<text x="{LABELS - 6}" y="{middle + 4}" text-anchor="end">{name}</text>')
        lines.append(f'<text transform="translate({middle + 4} {LABELS - 6}) rotate(-90)">{name}</text>')
        lines.append(f'<rect x="{begin}" y="{begin}" width="{CELL}" height="{CELL}" fill="#dddddd"/>')
        for column, imported in enumerate(rooms):
            count = edges[importer, imported]
            if not count:
                continue
            x = LABELS + CELL * column
            colour = "#d73a49" if column > row else "#4078c0"
            opacity = min(0.2 + count / 20, 0.75)
            place = f'x="{x}" y="{begin}" width="{CELL}" height="{CELL}"'
            what = f"{name} imports {escape(imported.replace('.', '/'))}: {count}"
            lines += [
                f'<g><title>{what}</title><rect {place} fill="{colour}" fill-opacity="{opacity:.2f}"/>',
                f'<text x="{x + CELL // 2}" y="{middle + 4}" text-anchor="middle">{count}</text></g>',
            ]
    for line in range(len(rooms) + 1):
        at = LABELS + CELL * line
        lines.append(f'<path d="M{LABELS} {at}H{side - 10}M{at} {LABELS}V{side - 10}" stroke="#e4e4e4"/>')
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    DRAWING.write_text(drawing(read_graph()))

"""Output of commands: tables for people, JSON for scripts."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from broker.tools.cli.errors import FAILED

if TYPE_CHECKING:
    from broker.operations.asking import Missing


def print_json(value: object, missing: Iterable[Missing] | None = None) -> None:
    """Print one JSON document. ``missing``: the object gets a field of that name with these broker groups."""
    import msgspec

    document = msgspec.to_builtins(value)
    if missing is not None:
        document["missing"] = msgspec.to_builtins(tuple(missing))
    json.dump(document, sys.stdout, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False)
    sys.stdout.write("\n")


def tell_warnings() -> None:
    """Print the client's warnings on stderr, as lines like all others."""
    logging.basicConfig(format="trivet: %(message)s")


def tell_missing(missing: Iterable[Missing]) -> int:
    """Name on stderr the broker groups that did not answer; returns the exit code."""
    exit_code = 0
    for one in missing:
        print(f"trivet: group {one.group} is missing: {one.why}", file=sys.stderr)
        exit_code = FAILED
    return exit_code


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """A table on stdout; numbers stand on the right.

    On a terminal that is too narrow it goes without its frame, and on one that is narrower still each row is a list, so
    that no value is ever cut into pieces.
    """
    from rich.table import Table

    # A column is numeric only if all its values are.
    table = Table(title=title or None, title_justify="left", header_style="bold")
    kept = [list(row) for row in rows]
    for number, column in enumerate(columns):
        numeric = bool(kept) and all(
            isinstance(row[number], (int, float)) or row[number] is None for row in kept
        )
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in kept:
        table.add_row(*(_cell(value) for value in row))
    screen = console()
    without_bounds = screen.options.update(max_width=10_000)
    if screen.measure(table, options=without_bounds).maximum > screen.width:
        table.box, table.padding = None, (0, 1, 0, 0)
    if screen.measure(table, options=without_bounds).maximum <= screen.width:
        screen.print(table)
        return
    if title:
        print(title)
    width = max(map(len, columns))
    for row in kept:
        print(
            *(f"{column:>{width}}  {_cell(value)}" for column, value in zip(columns, row, strict=True)),
            "",
            sep="\n",
        )


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Names and what there is to say of each, line by line."""
    for name, text in facts:
        print(f"{name:>9}  {text}")


def console(*, stderr: bool = False) -> Any:
    """A rich console; without a terminal, wide enough that no value is cut or wrapped."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 200, highlight=False)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)

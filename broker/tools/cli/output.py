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

_ESCAPES = {code: repr(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0))}
_ESCAPES_IN_LINES = {code: text for code, text in _ESCAPES.items() if chr(code) not in "\n\t"}


def print_json(value: object, missing: Iterable[Missing] | None = None) -> None:
    """Print one JSON document. ``missing``: the object gets a field of that name with these broker groups."""
    import msgspec

    document = msgspec.to_builtins(value)
    if missing is not None:
        document["missing"] = msgspec.to_builtins(tuple(missing))
    json.dump(document, sys.stdout, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False)
    sys.stdout.write("\n")


def visible(text: str, *, lines: bool = False) -> str:
    """Return text that clients have written as it may stand on a terminal: control characters are escapes, as they
    could change what is shown, or what is typed next. With ``lines`` it may have several, and tabs."""
    return text.translate(_ESCAPES_IN_LINES if lines else _ESCAPES)


def tell_warnings() -> None:
    """Print the client's warnings on stderr, as lines like all others."""
    logging.basicConfig(format="trivet: %(message)s")


def tell_missing(missing: Iterable[Missing]) -> int:
    """Name on stderr the broker groups that did not answer; returns the exit code."""
    exit_code = 0
    for one in missing:
        print(visible(f"trivet: group {one.group} is missing: {one.why}"), file=sys.stderr)
        exit_code = FAILED
    return exit_code


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """A table on stdout, or "none" where it has no rows; numbers stand on the right.

    On a terminal that is too narrow it goes without its frame, and on one that is narrower still each row is a list, so
    that no value is ever cut into pieces.
    """
    from rich.table import Table

    # A column is numeric only if all its values are.
    table = Table(title=title or None, title_justify="left", header_style="bold")
    kept = [list(row) for row in rows]
    if not kept:
        print(f"{title}: none" if title else "none")
        return
    for number, column in enumerate(columns):
        numeric = all(isinstance(row[number], (int, float)) or row[number] is None for row in kept)
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
    """Print each name with its text, a line each."""
    told = [(visible(name), visible(text)) for name, text in facts]
    width = max((len(name) for name, _ in told), default=0)
    for name, text in told:
        print(f"{name:>{max(width, 9)}}  {text}")


def console() -> Any:
    """A rich console; without a terminal, wide enough that no value is cut or wrapped."""
    from rich.console import Console

    # Of what is printed nothing is markup, least of all what clients call themselves, and "[fd00::1]" is an address.
    width = None if sys.stdout.isatty() else 200
    return Console(width=width, highlight=False, markup=False, emoji=False)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else visible(str(value))

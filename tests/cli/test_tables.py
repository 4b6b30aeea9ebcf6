"""Tables on terminals of any width: no value is cut into pieces."""

from __future__ import annotations

import sys

import pytest
from rich.console import Console

from broker.tools.cli import output

COLUMNS = ("node", "address", "commit")
ROWS = (("n0", "127.0.0.1:10911", 123_456), ("n1", "127.0.0.1:10921", None))


@pytest.mark.parametrize(
    ("width", "lines", "first"),
    [
        (200, 6, "┏━━━━━━┳━━━━━━━━━━━━━━━━━┳━━━━━━━━━┓"),
        (30, 3, "node address          commit"),
        (20, 8, "   node  n0"),
    ],
)
def test_a_table_fits(
    width: int, lines: int, first: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "console", lambda: Console(file=sys.stdout, width=width, color_system=None))
    output.print_table(COLUMNS, ROWS)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == lines
    assert printed[0].rstrip() == first
    text = "\n".join(printed)
    assert all(value in text for value in ("127.0.0.1:10911", "127.0.0.1:10921", "123,456"))


def test_what_clients_call_themselves_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither markup nor pictures, and nothing that a terminal would obey."""
    row = ["[fd00:a::100:1]:10911", "[/x] [bold]", ":smile:", "\x1b[2J\x9b31m\nnext"]
    output.print_table(["[a]", "b", "c", "d"], [row], title="[t]")
    output.print_facts([("[name]", "a\x1b]0;title\x07")])
    printed = capsys.readouterr().out
    shown = ["[t]", "[a]", *row[:3], r"\x1b[2J\x9b31m\nnext", r"[name]  a\x1b]0;title\x07"]
    assert [text for text in shown if text not in printed] == []
    assert "\x1b" not in printed


def test_names_of_facts_stand_in_one_column(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_facts([("topic", "Orders"), ("offset_message_id", "7F00")])
    assert capsys.readouterr().out == "            topic  Orders\noffset_message_id  7F00\n"


def test_a_table_without_rows_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(COLUMNS, [])
    output.print_table(COLUMNS, [], title="Orders")
    assert capsys.readouterr().out == "none\nOrders: none\n"

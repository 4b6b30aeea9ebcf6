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

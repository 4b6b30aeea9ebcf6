"""Tables on terminals of any width: no value is cut into pieces."""

from __future__ import annotations

import sys
from typing import NoReturn

import pytest
from rich.console import Console

from broker.client.admin import AdminClient
from broker.client.errors import BrokerError
from broker.operations.asking import Missing
from broker.operations.figures import Figures, GroupRate, NodeFigures, TopicRate
from broker.remoting.route import ClusterInfo
from broker.tools.cli import output, top
from tests.cli.conftest import CommandLine

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


def test_nor_does_a_terminal_obey_what_servers_say_of_themselves(
    trivet: CommandLine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever may register a broker chooses the names that a name server tells, and what the broker refuses with."""
    odd = "b\x1b[2J"
    output.tell_missing([Missing(group=odd, why=odd)])
    node = NodeFigures(
        broker=odd,
        address=odd,
        node=odd,
        role=odd,
        term=1,
        put_per_s=0.0,
        got_per_s=0.0,
        disk_used_percent=None,
    )
    output.console().print(
        top._tables(
            Figures(
                nodes=(node,),
                topics=(TopicRate(topic=odd, stored_per_s=1.0),),
                groups=(GroupRate(group=odd, consumed_per_s=1.0, lag=0),),
                missing=(Missing(group=odd, why=odd),),
            )
        )
    )
    printed = capsys.readouterr()
    assert printed.out.count(r"b\x1b[2J") == 8
    assert printed.err.count(r"b\x1b[2J") == 2
    assert "\x1b" not in printed.out + printed.err

    async def refused(self: AdminClient) -> NoReturn:
        raise BrokerError(1, odd, "127.0.0.1:1")

    monkeypatch.setattr(AdminClient, "cluster_info", refused)
    assert trivet("topic", "list").complaint == r"trivet: 127.0.0.1:1 answered code 1: b\x1b[2J"

    async def clusters(self: AdminClient) -> ClusterInfo:
        return ClusterInfo({}, {})

    async def topics(self: AdminClient) -> list[str]:
        return [odd]

    monkeypatch.setattr(AdminClient, "cluster_info", clusters)
    monkeypatch.setattr(AdminClient, "topics", topics)
    assert trivet("topic", "list").out == "b\\x1b[2J\n"


def test_names_of_facts_stand_in_one_column(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_facts([("topic", "Orders"), ("offset_message_id", "7F00")])
    assert capsys.readouterr().out == "            topic  Orders\noffset_message_id  7F00\n"


def test_a_table_without_rows_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(COLUMNS, [])
    output.print_table(COLUMNS, [], title="Orders")
    assert capsys.readouterr().out == "none\nOrders: none\n"

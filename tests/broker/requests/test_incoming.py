"""Frames that are not whole: of all connections together they take a bounded memory."""

import contextlib
from pathlib import Path

import pytest
import structlog
import trio

from broker.requests.connection import Connection, Outgoing
from broker.requests.incoming import IncompleteFrames
from tests.broker.shell.servers import LIMIT_S, running

MIB = 1024 * 1024


def test_who_holds_most_is_closed_and_what_is_whole_counts_no_more() -> None:
    closed: list[str] = []
    incomplete = IncompleteFrames(lambda connection, _: closed.append(connection.name), bytes_max=10 * MIB)
    outgoing = Outgoing()
    first, second, third = (Connection(outgoing, name) for name in ("first", "second", "third"))
    for _ in range(20):  # frames that become whole
        incomplete.holds(first, 4 * MIB)
        incomplete.holds(first, 0)
    incomplete.holds(first, 3 * MIB)
    incomplete.holds(second, 5 * MIB)
    assert closed == []
    incomplete.holds(third, 4 * MIB)
    assert closed == ["second"]
    incomplete.holds(second, 0)  # its end
    incomplete.holds(first, 6 * MIB)
    assert closed == ["second"], "6 and 4 are not above 10"
    incomplete.holds(third, 0)
    incomplete.holds(second, 4 * MIB)
    assert closed == ["second"]


async def test_unfinished_frames_do_not_take_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.requests.incoming.INCOMPLETE_BYTES_MAX", 2 * MIB)
    async with running(tmp_path) as servers:
        for server in (servers.brokers["n0"], next(iter(servers.name_servers.values()))):
            host, _, port = server.address.partition(":")
            with trio.fail_after(LIMIT_S):
                strangers = [await trio.open_tcp_stream(host, int(port)) for _ in range(3)]
                for stranger in strangers[1:]:
                    await stranger.send_all((MIB // 2).to_bytes(4, "big") + bytes(1000))
                with structlog.testing.capture_logs() as logs, contextlib.suppress(trio.BrokenResourceError):
                    await strangers[0].send_all((4 * MIB).to_bytes(4, "big") + bytes(2 * MIB))
                    assert await strangers[0].receive_some() == b"", "nothing is answered"
                closed = [entry for entry in logs if entry["event"] == "connection closed"]
                own = "{}:{}".format(*strangers[0].socket.getsockname())
                assert [entry["client"] for entry in closed] == [own], (
                    "only the one that holds most is closed"
                )
                for stranger in strangers:
                    await stranger.aclose()

"""Frames that are not whole: of all connections together they take a bounded memory."""

import contextlib
from pathlib import Path

import pytest
import structlog
import trio

from broker.requests.connection import Connection, Outgoing
from broker.requests.deadline import Time
from broker.requests.incoming import IncompleteFrames
from tests.broker.shell.servers import LIMIT_S, running

MIB = 1024 * 1024


def test_who_holds_most_is_closed_and_what_is_whole_counts_no_more() -> None:
    closed: list[str] = []
    incomplete = IncompleteFrames(
        Time(0, 0), lambda connection, _: closed.append(connection.name), bytes_max=10 * MIB
    )
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


class Rig:
    """Frames that are not whole, of which 10 MiB are allowed."""

    def __init__(self) -> None:
        self.time = Time(0, 0)
        self.closed: list[str] = []
        self.incomplete = IncompleteFrames(
            self.time, lambda connection, _: self.closed.append(connection.name), bytes_max=10 * MIB
        )
        self._outgoing = Outgoing()

    def connect(self, name: str, *, is_proven: bool = False) -> Connection:
        connection = Connection(self._outgoing, name)
        connection.is_proven = is_proven
        return connection

    def hoard(self, address: str, count: int, each: int) -> list[Connection]:
        found = [self.connect(f"{address}:{number}") for number in range(count)]
        for connection in found:
            self.incomplete.holds(connection, each)
        return found

    def advance(self, seconds: float) -> None:
        self.time.now_ns += int(seconds * 1e9)


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.parametrize("address", ["hoarder", "sender"])
def test_who_sends_goes_on_beside_many_that_stand_still(address: str, rig: Rig) -> None:
    """A thousand that held a little each, and stayed, had every sender of 3 MB closed, for it held most."""
    rig.hoard("hoarder", 99, MIB // 10)
    rig.advance(2)
    sender = rig.connect(f"{address}:9999")
    for _ in range(5):
        for size in range(MIB // 4, 3 * MIB, MIB // 4):
            rig.incomplete.holds(sender, size)
            rig.advance(0.1)
        rig.incomplete.holds(sender, 0)
    assert sender.name not in rig.closed
    assert 20 < len(rig.closed) < 40


def test_many_addresses_of_one_network_hold_together(rig: Rig) -> None:
    """Each of them alone holds less than the one from elsewhere."""
    for number in range(6):
        rig.incomplete.holds(rig.connect(f"2001:db8:0:1::{number}:9999"), MIB)
    other = rig.connect("2001:db8:0:2::1:9999")
    rig.incomplete.holds(other, 4 * MIB)
    rig.incomplete.holds(rig.connect("2001:db8:0:1::6:9999"), MIB)
    assert rig.closed
    assert other.name not in rig.closed


def test_a_byte_now_and_then_is_no_progress(rig: Rig) -> None:
    drips = rig.hoard("h", 90, MIB // 10)
    for added in range(1, 8):
        rig.advance(0.5)
        for connection in drips:
            rig.incomplete.holds(connection, MIB // 10 + added)
    sender = rig.connect("h:9999")
    rig.incomplete.holds(sender, 3 * MIB)
    assert sender.name not in rig.closed
    assert len(rig.closed) >= 20


def test_strangers_go_before_accounts_and_accounts_may_stand_still_for_longer(rig: Rig) -> None:
    account = rig.connect("account:1", is_proven=True)
    rig.incomplete.holds(account, 4 * MIB)
    rig.advance(29)
    stranger = rig.connect("stranger:1")
    rig.incomplete.holds(stranger, 5 * MIB)
    rig.incomplete.holds(rig.connect("other:1"), 2 * MIB)
    assert rig.closed == ["stranger:1"], "though it goes on"
    rig.advance(1)
    rig.incomplete.holds(rig.connect("stranger:2"), 5 * MIB)
    assert rig.closed == ["stranger:1", "other:1", "account:1"], (
        "who stands still for half a minute goes first"
    )


def test_the_address_goes_whose_connections_hold_most_together(rig: Rig) -> None:
    rig.incomplete.holds(rig.connect("one:1"), 3 * MIB)
    rig.hoard("many", 6, MIB)
    rig.incomplete.holds(rig.connect("other:1"), 2 * MIB)
    assert rig.closed == ["many:0"]


def test_another_frame_of_a_connection_is_progress(rig: Rig) -> None:
    """Small frames that each reach into the next read leave it with something that is not whole, always."""
    sender = rig.connect("sender:1")
    for _ in range(5):
        rig.incomplete.holds(sender, 6 * MIB, anew=True)
        rig.advance(0.9)
    rig.incomplete.holds(rig.connect("other:1"), 3 * MIB)
    rig.advance(0.05)
    rig.incomplete.holds(rig.connect("third:1"), 2 * MIB)
    assert rig.closed == ["sender:1"], "nobody stands still, and it holds most"


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

"""Links follow the members of the group, and a node that fails of one has no further turn."""

from __future__ import annotations

import socket
import sys

import pytest
import trio

from broker.requests.connection import Connection
from broker.shell.peer_links import PeerLinks
from broker.shell.reading import Reading
from broker.shell.sockets import SocketConnection
from broker.shell.turns import Turns
from tests.broker.harness import Group


async def test_a_task_that_runs_on_after_its_peer_has_gone_ends(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Found by chaos: its sleep was over in the moment in which the peer was removed, and the node fell."""
    links = PeerLinks(Group(3).node("n0"), {}, lambda: None, lambda: None)
    with trio.fail_after(60):
        await links._keep_link("n7")


@pytest.mark.parametrize("address", ["nowhere", "a" * 64 + ".example:1", "zero\0:1", "two..dots:1"])
async def test_an_address_that_is_none_ends_no_node(
    autojump_clock: trio.testing.MockClock, address: str
) -> None:
    """Whoever dials says where it listens, and a member may be added with any name for its host."""
    node = Group(3).node("n0")
    node.replica.members.met("n7", address)
    node.replica.members.peers = {"n7": address}
    links = PeerLinks(node, {}, lambda: None, lambda: None)
    with trio.move_on_after(10) as passed:
        await links.run()
    assert passed.cancelled_caught


@pytest.mark.skipif(sys.platform != "linux", reason="it needs epoll")
async def test_no_turn_follows_when_the_node_fails_of_a_new_link(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(3)
    dialling, accepting = group.members["n0"], group.members["n1"]
    sockets: dict[Connection, SocketConnection] = {}
    failed = False

    def turn() -> int:
        assert not failed, "a turn after the failure"
        for connection in dialling.outgoing.take():
            if connection in sockets:
                sockets[connection].flush()
        return 1 << 62

    def fail(node: str) -> None:
        nonlocal failed
        failed = True
        turns.wake()
        raise AssertionError("broken")

    monkeypatch.setattr(dialling.alive, "peer_connected", fail)
    turns = Turns(turn, lambda: 0)
    reading = Reading.begin(turns)
    assert reading is not None
    dialled = PeerLinks(dialling.alive, sockets, lambda: None, turns.wake, reading)
    accepted = PeerLinks(accepting.alive, {}, lambda: None, lambda: None)
    one, other = socket.socketpair()
    with trio.fail_after(30), pytest.RaisesGroup(pytest.RaisesExc(AssertionError, match="broken")):
        async with trio.open_nursery() as nursery:
            for task in (turns.run, reading.run):
                nursery.start_soon(task)
            nursery.start_soon(accepted.serve_accepted, other, "n0")
            nursery.start_soon(dialled._serve_dialled, "n1", "127.0.0.1:1", one)

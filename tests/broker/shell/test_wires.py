"""Connections to others: whatever becomes of one is told, and a node that fails of one has no further turn."""

from __future__ import annotations

import socket
import sys

import pytest
import trio
import trio.testing

from broker.node.links import PROBED_NS
from broker.node.running import RunningNode
from broker.shell.node_wires import NodeWires
from broker.shell.socket_reading import Reading
from broker.shell.sockets import connect, listen
from broker.shell.turns import Turns
from tests.broker.harness import Group


@pytest.mark.parametrize(
    "address", ["nowhere", "a" * 64 + ".example:1", "zero\0:1", "two..dots:1", "127.0.0.1:1"]
)
async def test_an_address_that_is_none_ends_no_node(address: str) -> None:
    """Whoever dials says where it listens, and a member may be added with any name for its host."""
    node = Group(3).node("n0")
    node.replica.members.peers = {"n7": address}
    wires = NodeWires(node.outgoing, lambda: None, lambda: None)
    running = RunningNode(node, wires, address="127.0.0.1:1", nonce=bytes, begin_job=print)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            wires.tasks = nursery
            running.start()
            assert wires.open
            while wires.open:
                await trio.testing.wait_all_tasks_blocked(0.001)


async def test_an_attempt_that_is_given_up_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(address: str) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr("broker.shell.node_wires.connect", connect)
    node = Group(3).node("n0")
    wires = NodeWires(node.outgoing, lambda: None, lambda: None)
    running = RunningNode(node, wires, address="127.0.0.1:1", nonce=bytes, begin_job=print)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            wires.tasks = nursery
            running.start()
            await trio.testing.wait_all_tasks_blocked()
            assert len(wires.open) == 2
            node.replica.members.peers = {}
            running.links.follow_membership()
            wires.hand_out()
            await trio.testing.wait_all_tasks_blocked()
            assert wires.open == {}


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="the system asks only every two hours")
async def test_an_idle_link_whose_other_end_has_lost_its_power_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    dialled: list[socket.socket] = []

    async def noted(address: str) -> socket.socket:
        dialled.append(await connect(address))
        return dialled[0]

    monkeypatch.setattr("broker.shell.node_wires.connect", noted)
    node, listener = Group(3).node("n0"), listen("127.0.0.1:0")
    node.replica.members.peers = {"n1": f"127.0.0.1:{listener.getsockname()[1]}"}
    wires = NodeWires(node.outgoing, lambda: None, lambda: None)
    running = RunningNode(node, wires, address="127.0.0.1:1", nonce=bytes, begin_job=print)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            wires.tasks = nursery
            running.start()
            while not dialled:
                await trio.testing.wait_all_tasks_blocked(0.001)
            (sock,) = dialled
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle, interval, count, limit_ms = (
                sock.getsockopt(socket.IPPROTO_TCP, option)
                for option in (
                    socket.TCP_KEEPIDLE,
                    socket.TCP_KEEPINTVL,
                    socket.TCP_KEEPCNT,
                    socket.TCP_USER_TIMEOUT,
                )
            )
            assert idle == PROBED_NS // 1_000_000_000
            assert count > 1
            assert idle + count * interval <= limit_ms / 1000, (
                "Linux would end it at the first one that is lost"
            )
            nursery.cancel_scope.cancel()
    wires.close()
    listener.close()


@pytest.mark.skipif(sys.platform != "linux", reason="it needs epoll")
async def test_no_turn_follows_when_the_node_fails_of_a_new_link(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(3)
    dialling, accepting = group.node("n0"), group.node("n1")
    listener = listen("127.0.0.1:0")
    dialling.replica.members.peers = {"n1": f"127.0.0.1:{listener.getsockname()[1]}"}
    failed = False

    def turn() -> int:
        assert not failed, "a turn after the failure"
        near.hand_out()
        return 1 << 62

    def fail(node: str) -> None:
        nonlocal failed
        failed = True
        turns.wake()
        raise AssertionError("broken")

    monkeypatch.setattr(dialling, "peer_connected", fail)
    turns = Turns(turn, lambda: 0)
    reading = Reading.begin(turns, lambda: None)
    near = NodeWires(dialling.outgoing, lambda: None, turns.wake, reading)
    far = NodeWires(accepting.outgoing, lambda: None, lambda: None)
    far.wake = far.hand_out
    running = RunningNode(dialling, near, address="127.0.0.1:1", nonce=bytes, begin_job=print)
    other = RunningNode(accepting, far, address="127.0.0.1:2", nonce=bytes, begin_job=print)

    async def accept() -> None:
        await trio.lowlevel.wait_readable(listener)
        sock, _ = listener.accept()
        await far.serve_accepted(other.links, sock, "n0")

    with trio.fail_after(30), pytest.RaisesGroup(pytest.RaisesExc(AssertionError, match="broken")):
        async with trio.open_nursery() as nursery:
            near.tasks = nursery
            assert reading is not None
            for task in (turns.run, reading.run, accept):
                nursery.start_soon(task)
            running.start()
    listener.close()

"""Sockets that are read together: everything that has arrived before one turn, nobody left out, nobody in the way."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
from collections.abc import Callable

import pytest
import trio
import trio.testing

from broker.requests.connection import Connection
from broker.shell.socket_reading import PASS_S, SETS_OF_STRANGERS, STRANGERS_S
from broker.shell.sockets import RECEIVE_BYTES, RECEIVE_BYTES_LEAST, SocketConnection
from tests.broker.shell.read_together import serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it needs epoll")


class Clock:
    """Of the reads: what a request takes is what a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for module in ("socket_reading", "sockets"):
            monkeypatch.setattr(f"broker.shell.{module}.perf_counter", lambda: self.now)


async def test_all_that_has_arrived_is_read_before_one_turn(
    remotes: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)  # of a machine that is never too busy to read it all in one pass
    async with serving() as server:
        remotes += [server.connect(f"c{k}") for k in range(40)]
        await trio.testing.wait_all_tasks_blocked()
        for k, remote in enumerate(remotes):
            remote.send(b"%d" % k)
        await trio.testing.wait_all_tasks_blocked()
        assert [sorted(turn) for turn in server.turns] == [sorted((f"c{k}", b"%d" % k) for k in range(40))]


async def test_expensive_requests_hold_up_neither_the_turn_nor_those_that_are_ready_behind_them(
    remotes: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    async with serving() as server:
        order: list[str] = []

        def expensive(name: str) -> Callable[[bytes], None]:
            def received(data: bytes) -> None:
                order.append(name)
                clock.now += 1.5 * PASS_S
                server.wake()

            return received

        server.in_turn = lambda _: order.append("turn")
        remotes += [server.connect(name, expensive(name)) for name in "abc"]
        await trio.testing.wait_all_tasks_blocked()
        for remote in remotes:
            remote.send(b"x" * (RECEIVE_BYTES + 1))  # every one of them is ready again at once
        await trio.testing.wait_all_tasks_blocked()
        served = order[:-1:2]
        assert order[1::2] == ["turn"] * len(served), "one read, one turn"
        assert len(order) == 2 * len(served)
        assert sorted(served[:3]) == ["a", "b", "c"]
        assert served[3:6] == served[:3], "who was read waits until all others had theirs"


async def test_every_pass_begins_with_the_peers_however_many_others_were_left(
    remotes: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that the pass before had no time for wait a little longer: a leader that is not heard loses its term."""
    clock = Clock(monkeypatch)
    async with serving() as server:
        passes: list[list[str]] = [[]]

        def expensive(name: str) -> Callable[[bytes], None]:
            def received(data: bytes) -> None:
                passes[-1].append(name)
                clock.now += 1.5 * PASS_S
                server.wake()

            return received

        def peer_received(data: bytes) -> None:
            passes[-1].append(data.decode())
            server.wake()

        def in_turn(_: object) -> None:
            peer.send(b"p%d" % len(passes))  # as it does from time to time, come what may
            passes.append([])

        clients = [server.connect(f"c{k}", expensive("client")) for k in range(10)]
        peer = server.connect("peer", peer_received, is_peer=True)
        remotes += [*clients, peer]
        await trio.testing.wait_all_tasks_blocked()
        server.in_turn = in_turn
        for client in clients:
            client.send(b"x")
        peer.send(b"p0")
        while sum(found.count("client") for found in passes) < len(clients):
            await trio.lowlevel.checkpoint()
        server.in_turn = lambda _: None
        assert passes[: len(clients)] == [[f"p{k}", "client"] for k in range(len(clients))]


async def test_peers_that_take_long_take_turns_and_keep_neither_turn_nor_clients_waiting(
    remotes: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them were read before each turn, however long that took."""
    clock = Clock(monkeypatch)
    async with serving() as server:
        passes: list[list[str]] = [[]]

        def receiver(name: str, seconds: float) -> Callable[[bytes], None]:
            def received(data: bytes) -> None:
                passes[-1].append(name)
                clock.now += seconds
                if len(passes) <= 12:
                    named[name].send(data)  # it has always more
                server.wake()

            return received

        peers, clients = ["p0", "p1", "p2"], ["c0", "c1"]
        named = {name: server.connect(name, receiver(name, 1.5 * PASS_S), is_peer=True) for name in peers}
        named |= {name: server.connect(name, receiver(name, 0.1 * PASS_S)) for name in clients}
        remotes += named.values()
        await trio.testing.wait_all_tasks_blocked()
        server.in_turn = lambda _: passes.append([])
        for remote in remotes:
            remote.send(b"x")
        await trio.testing.wait_all_tasks_blocked()
        served = passes[:12]
        assert [(found[0] in peers, found[1] in clients, len(found)) for found in served] == [
            (True, True, 2)
        ] * 12
        for kind, place in ((peers, 0), (clients, 1)):
            names = [found[place] for found in served]
            assert sorted(names[: len(kind)]) == kind
            assert names[len(kind) :] == names[: -len(kind)], "each in its turn"


async def test_of_something_long_the_rest_comes_with_its_beginning(remotes: list[socket.socket]) -> None:
    """An append of a leader is one frame: its follower would have it a pass later, behind all clients."""
    async with serving() as server:
        got: list[int] = []
        left = 0

        def received(data: bytes) -> int:
            nonlocal left
            got.append(len(data))
            left = max(left - len(data), 0)
            server.wake()
            return left

        ours, theirs = socket.socketpair()
        remotes.append(theirs)
        theirs.setblocking(False)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        served = SocketConnection(
            ours, Connection(server.outgoing, "peer"), reading=server.reading, is_peer=True
        )
        server.nursery.start_soon(served.read, received, RECEIVE_BYTES_LEAST)
        await trio.testing.wait_all_tasks_blocked()
        left = 10 * RECEIVE_BYTES_LEAST
        theirs.send(bytes(left + 1))
        await trio.testing.wait_all_tasks_blocked()
        assert got == [RECEIVE_BYTES_LEAST, 9 * RECEIVE_BYTES_LEAST, 1]
        assert len(server.turns) == 2
        got.clear()
        left = 10 * RECEIVE_BYTES_LEAST
        for size in (RECEIVE_BYTES_LEAST, 5):  # the rest is on its way
            theirs.send(bytes(size))
            await trio.testing.wait_all_tasks_blocked()
        theirs.close()
        await trio.testing.wait_all_tasks_blocked()
        assert got == [RECEIVE_BYTES_LEAST, 5]
        assert served.closed


async def test_one_that_is_first_is_not_called_again_with_those_that_were_left(
    remotes: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was there to be read the second time: with `flush = "sync"` a node ended itself."""
    clock = Clock(monkeypatch)
    async with serving() as server:
        called: list[str] = []

        def expensive(data: bytes) -> None:
            called.append("client")
            clock.now += 1.5 * PASS_S
            server.wake()

        def flush_ended() -> None:
            os.eventfd_read(ended)
            called.append("first")

        clients = [server.connect(f"c{k}", expensive) for k in range(3)]
        remotes += clients
        ended = os.eventfd(0, os.EFD_NONBLOCK)
        await trio.testing.wait_all_tasks_blocked()
        server.reading.add(ended, flush_ended, first=True)
        for client in clients:
            client.send(b"x")
        os.eventfd_write(ended, 1)
        await trio.testing.wait_all_tasks_blocked()
        server.reading.remove(ended)
        os.close(ended)
        assert called == ["first", "client", "client", "client"]


async def test_a_peer_is_read_from_when_nobody_else_is_ready_and_can_be_closed(
    remotes: list[socket.socket],
) -> None:
    async with serving() as server:
        remotes += [server.connect("peer", is_peer=True), server.connect("other", is_peer=True)]
        await trio.testing.wait_all_tasks_blocked()
        remotes[0].send(b"x")
        await trio.testing.wait_all_tasks_blocked()
        assert server.turns == [[("peer", b"x")]]
        server.connections["peer"].close()
        remotes[1].send(b"y")
        await trio.testing.wait_all_tasks_blocked()
        assert server.turns[1:] == [[("other", b"y")]]
        assert server.failures == {"peer": None}


async def test_of_a_stranger_little_is_read_at_a_time_until_it_has_proved_an_account(
    remotes: list[socket.socket],
) -> None:
    async with serving() as server:
        remotes.append(server.connect("stranger", has_to_prove=True))
        await trio.testing.wait_all_tasks_blocked()
        connection = server.connections["stranger"].connection
        remotes[0].send(bytes(5 * RECEIVE_BYTES_LEAST))
        await trio.testing.wait_all_tasks_blocked()
        assert server.turns == [[("stranger", bytes(RECEIVE_BYTES_LEAST))]] * 5
        connection.is_proven = True
        server.turns.clear()
        remotes[0].send(bytes(5 * RECEIVE_BYTES_LEAST))
        await trio.testing.wait_all_tasks_blocked()
        assert server.turns == [[("stranger", bytes(5 * RECEIVE_BYTES_LEAST))]]


async def test_who_has_proved_an_account_and_cannot_be_watched_any_more_is_closed(
    remotes: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may have no room for one more socket in the set of all; it harms nobody else."""
    async with serving() as server:
        remotes += [server.connect("a", has_to_prove=True), server.connect("b")]
        await trio.testing.wait_all_tasks_blocked()

        def no_room(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(server.reading, "add", no_room)
        server.connections["a"].connection.is_proven = True
        remotes[0].send(b"1")
        await trio.testing.wait_all_tasks_blocked()
        assert server.connections["a"].closed
        remotes[1].send(b"2")
        await trio.testing.wait_all_tasks_blocked()
        assert server.turns[-1] == [("b", b"2")]


async def test_a_crowd_of_strangers_keeps_nobody_waiting_who_is_known(
    remotes: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    async with serving() as server:
        order: list[str] = []

        def receiver(name: str, seconds: float) -> Callable[[bytes], None]:
            def received(data: bytes) -> None:
                order.append(name)
                clock.now += seconds
                server.wake()

            return received

        strangers = [f"s{k}" for k in range(50)]
        remotes += [server.connect(name, receiver(name, PASS_S / 5), has_to_prove=True) for name in strangers]
        remotes += [server.connect(name, receiver(name, 0)) for name in ("known", "also known")]
        await trio.testing.wait_all_tasks_blocked()
        ends: list[int] = []
        server.in_turn = lambda _: ends.append(len(order))
        for remote in remotes:
            remote.send(bytes(2 * RECEIVE_BYTES_LEAST))
        await trio.testing.wait_all_tasks_blocked()
        assert {"known", "also known"} <= set(order[: ends[0]]), (
            "they wait for a few strangers, and not for all"
        )
        read = [name for name in order if name in strangers]
        assert sorted(read[:50]) == sorted(read[50:]) == sorted(strangers), "each stranger has his turn"


async def test_a_crowd_of_one_address_keeps_a_stranger_of_another_waiting_for_one_of_it(
    remotes: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All clients of a name server are strangers: one that waited for the whole crowd waited for seconds."""
    clock = Clock(monkeypatch)
    crowds = "10.0.0.1"
    others = next(host for host in (f"10.0.0.{k}" for k in range(2, 250)) if _set_of(host) != _set_of(crowds))
    async with serving() as server:
        order: list[str] = []

        def receiver(name: str) -> Callable[[bytes], None]:
            def received(data: bytes) -> None:
                order.append(name)
                clock.now += STRANGERS_S / 3

            return received

        names = [*(f"{crowds}:{port}" for port in range(1, 51)), f"{others}:1"]
        remotes += [server.connect(name, receiver(name), has_to_prove=True) for name in names]
        await trio.testing.wait_all_tasks_blocked()
        for remote in remotes:
            remote.send(b"x")
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(order) == sorted(names)
        assert order.index(names[-1]) <= 1


def _set_of(host: str) -> int:
    return hash(host) % SETS_OF_STRANGERS


async def test_those_who_ask_for_little_are_let_in_many_at_a_time(
    remotes: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the loss of a node, whose clients all come to another one, which is busy."""
    clock = Clock(monkeypatch)
    async with serving() as server:

        def prove(name: str) -> Callable[[bytes], None]:
            def received(data: bytes) -> None:
                clock.now += STRANGERS_S / 25
                server.connections[name].connection.is_proven = True
                server.wake()

            return received

        names = [f"s{k}" for k in range(100)]
        remotes += [server.connect(name, prove(name), has_to_prove=True) for name in names]
        await trio.testing.wait_all_tasks_blocked()
        for remote in remotes:
            remote.send(b"x")
        await trio.testing.wait_all_tasks_blocked()
        assert all(server.connections[name].connection.is_proven for name in names)
        assert len(server.turns) <= 5


async def test_a_crowd_that_sends_without_end_keeps_nobody_waiting_for_all_of_it(
    remotes: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    size, passes = 40, 20
    async with serving() as server:
        served: list[float] = []
        count, asked = 0, 0.0

        def receiver(number: int) -> Callable[[bytes], None]:
            def received(data: bytes) -> None:
                nonlocal count
                count += 1
                clock.now += PASS_S * len(data) / RECEIVE_BYTES
                if not served:
                    with contextlib.suppress(BlockingIOError):
                        remotes[number].send(data)
                server.wake()

            return received

        remotes += [server.connect(f"c{number}", receiver(number)) for number in range(size)]
        remotes.append(server.connect("late", lambda _: served.append(clock.now)))
        await trio.testing.wait_all_tasks_blocked()

        def in_turn(_: object) -> None:
            nonlocal asked
            if len(server.turns) == passes:
                asked = clock.now
                remotes[-1].send(b"a request")

        server.in_turn = in_turn
        for remote in remotes[:-1]:
            remote.send(bytes(RECEIVE_BYTES))
        await trio.testing.wait_all_tasks_blocked()
        assert count > size
        assert served[0] - asked < size * PASS_S / 8
        for _ in range(6):
            remotes[-1].send(b"another")
            await trio.testing.wait_all_tasks_blocked()
        assert server.reading.shares == 1, "all is as before when they are done"


async def test_of_a_connection_whose_requests_take_long_little_is_read_at_a_time(
    remotes: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    async with serving() as server:
        sizes: list[int] = []
        second_per_byte = PASS_S / (2 * RECEIVE_BYTES_LEAST)

        def received(data: bytes) -> None:
            sizes.append(len(data))
            clock.now += len(data) * second_per_byte

        remotes.append(server.connect("slow", received))
        await trio.testing.wait_all_tasks_blocked()
        sent = 0
        for _ in range(60):
            with contextlib.suppress(BlockingIOError):
                sent += remotes[0].send(b"x" * RECEIVE_BYTES)
            await trio.testing.wait_all_tasks_blocked()
        assert sum(sizes) == sent
        assert max(sizes[10:]) <= 4 * RECEIVE_BYTES_LEAST
        second_per_byte = 0.0
        for _ in range(10):
            remotes[0].send(b"x" * RECEIVE_BYTES)
            await trio.testing.wait_all_tasks_blocked()
        assert sizes[-1] > 4 * RECEIVE_BYTES_LEAST, "it is read as ever when that is over"


async def test_of_more_than_are_read_at_once_none_is_left_out(
    remotes: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)
    async with serving() as server:
        remotes += [server.connect(f"c{k}") for k in range(400)]
        await trio.testing.wait_all_tasks_blocked()
        for remote in remotes:
            remote.send(b"x")
        await trio.testing.wait_all_tasks_blocked()
        assert len(server.turns) == 2
        assert sorted(name for turn in server.turns for name, _ in turn) == sorted(server.connections)

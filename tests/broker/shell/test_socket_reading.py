"""Sockets that are read together: everything that has arrived before one turn, nobody left out, nobody in the way."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import trio
import trio.testing

from broker.requests.connection import Connection, Outgoing
from broker.shell.socket_reading import AWAY_S, PASS_S, STRANGERS_S, Reading
from broker.shell.sockets import RECEIVE_BYTES, RECEIVE_BYTES_LEAST, UNSENT_BYTES_HIGH, SocketConnection
from broker.shell.turns import Turns

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it needs epoll")

LIMIT_S = 30.0
FAR_NS = 1 << 62


class Server:
    """Connections that are read together; `turns` has what each turn found: (client, bytes) in order of the reads."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.outgoing = Outgoing()
        self.turns: list[list[tuple[str, bytes]]] = []
        self.in_turn: Callable[[list[tuple[str, bytes]]], None] = lambda _: None
        self.connections: dict[str, SocketConnection] = {}
        self.failures: dict[str, Exception | None] = {}
        self._arrived: list[tuple[str, bytes]] = []
        self.runner = Turns(self._turn, lambda: 0)
        self.wake = self.runner.wake
        reading = Reading.begin(self.runner, lambda: None)
        assert reading is not None
        self.reading = reading
        self.scope = trio.CancelScope()
        nursery.start_soon(self.runner.run)
        nursery.start_soon(self._read)

    async def _read(self) -> None:
        with self.scope:
            await self.reading.run()

    def _turn(self) -> int:
        arrived, self._arrived = self._arrived, []
        self.turns.append(arrived)
        self.in_turn(arrived)
        for connection in self.outgoing.take():
            self.connections[connection.name].flush()
        return FAR_NS

    def connect(
        self,
        name: str,
        received: Callable[[bytes], None] | None = None,
        *,
        is_peer: bool = False,
        has_to_prove: bool = False,
    ) -> socket.socket:
        """The remote end of a new connection."""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        served = SocketConnection(
            ours,
            Connection(self.outgoing, name),
            reading=self.reading,
            is_peer=is_peer,
            has_to_prove=has_to_prove,
        )
        self.connections[name] = served

        def arrived(data: bytes) -> None:
            self._arrived.append((name, data))
            self.wake()

        async def serve() -> None:
            failure: Exception | None = None
            try:
                await served.read_and_write(received or arrived)
            except Exception as error:
                failure = error
            self.failures[name] = failure

        self.nursery.start_soon(serve)
        return theirs


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            server = Server(nursery)
            await trio.testing.wait_all_tasks_blocked()
            server.turns.clear()  # the first, which every node begins with
            yield server
            nursery.cancel_scope.cancel()


@pytest.fixture
def remotes() -> Iterator[list[socket.socket]]:
    opened: list[socket.socket] = []
    yield opened
    for remote in opened:
        remote.close()


async def _receive(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        await trio.lowlevel.wait_readable(sock)
        data += sock.recv(65_536)
    return bytes(data)


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


class Pump:
    """Sends anew after every turn, so that a socket of the server has always something to read."""

    def __init__(self, server: Server, remote: socket.socket, turns_max: int) -> None:
        self.turns = 0
        self._remote = remote
        self._turns_max = turns_max
        self._then: dict[int, Callable[[], object]] = {}
        server.in_turn = self._in_turn
        remote.send(b"x")

    def after(self, turns: int, act: Callable[[], object]) -> None:
        """Calls `act` in that turn."""
        self._then[turns] = act

    def _in_turn(self, _: object) -> None:
        self.turns += 1
        self._then.pop(self.turns, int)()
        if self.turns < self._turns_max:
            self._remote.send(b"x")


async def test_a_task_that_a_turn_wakes_runs_before_the_sockets_are_waited_for_again(
    remotes: list[socket.socket],
) -> None:
    async with serving() as server:
        remotes.append(server.connect("a"))
        await trio.testing.wait_all_tasks_blocked()
        woken = trio.Event()
        pump = Pump(server, remotes[0], turns_max=200)
        pump.after(100, woken.set)
        await woken.wait()
        # In the next batch of tasks: the one that reads may have come before this one in it.
        assert pump.turns in (100, 101)


async def test_however_busy_the_sockets_timers_and_other_descriptors_have_their_time(
    remotes: list[socket.socket],
) -> None:
    async with serving() as server:
        remotes.append(server.connect("a"))
        await trio.testing.wait_all_tasks_blocked()
        turns_max = 200_000
        pump = Pump(server, remotes[0], turns_max)
        await trio.sleep(AWAY_S / 10)
        ours, theirs = socket.socketpair()
        remotes += [ours, theirs]
        pump.after(pump.turns + 100, lambda: theirs.send(b"x"))
        await trio.lowlevel.wait_readable(ours)
        assert pump.turns < turns_max, "they had to wait until nothing came any more"
        server.in_turn = lambda _: None


async def test_however_busy_the_sockets_a_turn_that_is_due_is_not_waited_for_away_from_trio(
    remotes: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that reads may stay away for ever here; what is due brings it back."""
    monkeypatch.setattr("broker.shell.socket_reading.AWAY_S", 2 * LIMIT_S)
    async with serving() as server:
        remotes.append(server.connect("a"))
        await trio.testing.wait_all_tasks_blocked()
        turns_max = 200_000
        pump = Pump(server, remotes[0], turns_max)
        is_due = [False]
        monkeypatch.setattr(server.runner, "is_due_within", lambda _: is_due[0])
        woken = trio.Event()

        def due() -> None:
            is_due[0] = True
            trio.lowlevel.current_trio_token().run_sync_soon(woken.set)

        pump.after(pump.turns + 1000, due)
        await woken.wait()
        assert 1000 <= pump.turns < turns_max
        server.in_turn = lambda _: None


async def test_a_task_that_waits_for_room_in_a_socket_is_not_kept_waiting(
    remotes: list[socket.socket],
) -> None:
    async with serving() as server:
        remote, other = server.connect("a"), server.connect("b")
        remotes += [remote, other]
        await trio.testing.wait_all_tasks_blocked()
        answer = bytes(UNSENT_BYTES_HIGH // 2)
        server.in_turn = lambda _: server.connections["a"].connection.send(answer)
        other.send(b"x")
        await trio.testing.wait_all_tasks_blocked()
        assert server.reading.waiting_writers == 1
        server.in_turn = lambda _: None
        assert len(await _receive(remote, len(answer))) == len(answer)
        await trio.testing.wait_all_tasks_blocked()
        assert server.reading.waiting_writers == 0


async def test_who_sends_much_is_read_from_once_a_turn_and_keeps_nobody_waiting(
    remotes: list[socket.socket],
) -> None:
    async with serving() as server:
        much, little = server.connect("much"), server.connect("little")
        remotes += [much, little]
        await trio.testing.wait_all_tasks_blocked()
        server.connections["much"].socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        much.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        size = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                size += much.send(bytes(4096))
        assert size > 2 * RECEIVE_BYTES, "more than one read takes"
        little.send(b"x")
        await trio.testing.wait_all_tasks_blocked()
        assert sum(len(data) for turn in server.turns for name, data in turn if name == "much") == size
        assert len(server.turns) > 2
        assert ("little", b"x") in server.turns[0]
        for turn in server.turns:
            assert [name for name, _ in turn].count("much") == 1


async def test_half_closed_means_read_to_the_end_then_closed(remotes: list[socket.socket]) -> None:
    async with serving() as server:
        remote, other = server.connect("half"), server.connect("other")
        remotes += [remote, other]
        await trio.testing.wait_all_tasks_blocked()
        remote.send(b"last words")
        remote.shutdown(socket.SHUT_WR)
        await trio.testing.wait_all_tasks_blocked()
        assert server.turns == [[("half", b"last words")]]
        assert server.failures == {"half": None}
        assert remote.recv(1) == b"", "closed on this side, too"
        other.send(b"still here")
        await trio.testing.wait_all_tasks_blocked()
        assert server.turns[1:] == [[("other", b"still here")]]


async def test_a_reset_ends_that_connection_only(remotes: list[socket.socket]) -> None:
    async with serving() as server:
        remote, other = server.connect("gone"), server.connect("other")
        remotes.append(other)
        await trio.testing.wait_all_tasks_blocked()
        server.connections["gone"].connection.send(b"unread")
        server.connections["gone"].flush()
        remote.close()  # with bytes unread: the other end sees a reset
        await trio.testing.wait_all_tasks_blocked()
        assert server.failures == {"gone": None}
        assert server.connections["gone"].closed
        other.send(b"x")
        await trio.testing.wait_all_tasks_blocked()
        assert server.turns == [[("other", b"x")]]


@pytest.mark.parametrize("together", [True, False])
async def test_a_file_that_cannot_be_written_is_no_connection_that_was_lost(
    remotes: list[socket.socket], together: bool
) -> None:
    """Such as a full disk's, when what was read is noted in a trace: an OSError, too, and never to be swallowed."""

    def fail(_: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with pytest.RaisesGroup(pytest.RaisesExc(OSError, match="no space left")):
        async with serving() as server:
            if together:
                remotes.append(server.connect("a", fail))
            else:
                ours, theirs = socket.socketpair()
                remotes.append(theirs)
                alone = SocketConnection(ours, Connection(server.outgoing, "a"))
                server.nursery.start_soon(alone.read, fail)
            await trio.testing.wait_all_tasks_blocked()
            remotes[0].send(b"x")
            await trio.sleep_forever()
    assert server.turns == []


@pytest.mark.parametrize("first", ["bad", "good"])
async def test_a_node_that_fails_while_it_reads_has_no_further_turn(
    remotes: list[socket.socket], first: str
) -> None:
    """It was in the middle of something: what a turn would send then may rest on a write that has failed."""

    def fail(_: bytes) -> None:
        server.wake()
        raise AssertionError("broken")

    with pytest.RaisesGroup(pytest.RaisesExc(AssertionError, match="broken")):
        async with serving() as server:
            for name in (first, "good" if first == "bad" else "bad"):
                remotes.append(server.connect(name, fail if name == "bad" else None))
                await trio.testing.wait_all_tasks_blocked()
            for remote in remotes:
                remote.send(b"x")
            await trio.sleep_forever()
    assert server.turns == []


async def test_a_turn_that_fails_is_the_last_one(remotes: list[socket.socket]) -> None:
    def fail(_: object) -> None:
        server.wake()
        raise AssertionError("broken")

    with pytest.RaisesGroup(pytest.RaisesExc(AssertionError, match="broken")):
        async with serving() as server:
            remotes.append(server.connect("a"))
            await trio.testing.wait_all_tasks_blocked()
            server.in_turn = fail
            remotes[0].send(b"x")
            await trio.sleep_forever()
    assert server.turns == [[("a", b"x")]]


async def test_a_node_that_fails_elsewhere_has_no_further_turn() -> None:
    async def fail() -> None:
        server.wake()
        raise AssertionError("broken")

    with pytest.RaisesGroup(pytest.RaisesExc(AssertionError, match="broken")):
        async with serving() as server:
            server.nursery.start_soon(fail)
            await trio.sleep_forever()
    assert server.turns == []


async def test_one_that_another_s_bytes_close_is_not_read_from(remotes: list[socket.socket]) -> None:
    """Both are ready, whichever is read first closes the other: as a peer that dials again replaces its link."""
    read: list[str] = []
    async with serving() as server:

        def close(name: str, other: str) -> Callable[[bytes], None]:
            def received(_: bytes) -> None:
                read.append(name)
                server.connections[other].close()

            return received

        remotes += [server.connect("a", close("a", "b")), server.connect("b", close("b", "a"))]
        await trio.testing.wait_all_tasks_blocked()
        for remote in remotes:
            remote.send(b"x")
        await trio.testing.wait_all_tasks_blocked()
        assert len(read) == 1
        assert [server.connections[name].closed for name in ("a", "b")].count(True) == 1


async def test_a_turn_may_close_what_was_just_read(remotes: list[socket.socket]) -> None:
    async with serving() as server:
        remotes += [server.connect("a"), server.connect("b")]
        await trio.testing.wait_all_tasks_blocked()

        def close(arrived: list[tuple[str, bytes]]) -> None:
            for name, _ in arrived:
                server.connections[name].connection.send(b"bye")
                server.connections[name].connection.close()

        server.in_turn = close
        remotes[0].send(b"x" * (2 * RECEIVE_BYTES))
        await trio.testing.wait_all_tasks_blocked()
        assert server.failures == {"a": None}
        assert len(server.turns) == 1, "what it sent beyond one read is nobody's any more"
        server.in_turn = lambda _: None
        remotes[1].send(b"x")
        await trio.testing.wait_all_tasks_blocked()
        assert server.turns[1:] == [[("b", b"x")]]


async def test_who_does_not_read_answers_is_not_read_from_until_it_does(remotes: list[socket.socket]) -> None:
    async with serving() as server:
        slow, fast = server.connect("slow"), server.connect("fast")
        remotes += [slow, fast]
        await trio.testing.wait_all_tasks_blocked()

        def answer(arrived: list[tuple[str, bytes]]) -> None:
            for name, _ in arrived:
                size = UNSENT_BYTES_HIGH + (1 << 20) if name == "slow" else 1
                server.connections[name].connection.send(bytes(size))

        server.in_turn = answer

        async def ask(sock: socket.socket, expected: list[tuple[str, bytes]]) -> None:
            server.turns.clear()
            sock.send(b"x")
            await trio.testing.wait_all_tasks_blocked()
            assert server.turns == [[item] for item in expected]

        await ask(slow, [("slow", b"x")])
        await ask(slow, [("slow", b"x")])  # the check comes behind a read: this one was the last
        await ask(slow, [])
        for _ in range(3):
            await ask(fast, [("fast", b"x")])
            assert len(await _receive(fast, 1)) == 1
        server.turns.clear()
        await _receive(slow, 3 * (UNSENT_BYTES_HIGH + (1 << 20)))
        assert server.turns == [[("slow", b"x")]], (
            "what it asked meanwhile is read when the answers have gone"
        )
        await trio.testing.wait_all_tasks_blocked()
        await ask(slow, [("slow", b"x")])


async def test_one_that_is_closed_while_it_is_not_read_from_stays_closed(
    remotes: list[socket.socket],
) -> None:
    async with serving() as server:
        slow = server.connect("slow")
        remotes.append(slow)
        await trio.testing.wait_all_tasks_blocked()
        server.in_turn = lambda arrived: server.connections["slow"].connection.send(
            bytes(2 * UNSENT_BYTES_HIGH)
        )
        for _ in range(3):
            slow.send(b"x")
            await trio.testing.wait_all_tasks_blocked()
        assert len(server.turns) == 2
        server.connections["slow"].close()
        await trio.testing.wait_all_tasks_blocked()
        assert server.failures == {"slow": None}
        assert len(server.turns) == 2


async def test_a_turn_that_a_turn_wants_follows_it(remotes: list[socket.socket]) -> None:
    async with serving() as server:
        remotes.append(server.connect("a"))
        await trio.testing.wait_all_tasks_blocked()

        def again(arrived: list[tuple[str, bytes]]) -> None:
            if arrived:
                server.wake()

        server.in_turn = again
        remotes[0].send(b"x")
        await trio.testing.wait_all_tasks_blocked()
        assert server.turns == [[("a", b"x")], []]
        server.wake()
        await trio.testing.wait_all_tasks_blocked()
        assert server.turns[2:] == [[]]


async def test_connections_outlive_the_reading_by_as_long_as_they_must(remotes: list[socket.socket]) -> None:
    async with serving() as server:
        remotes.append(server.connect("before"))
        await trio.testing.wait_all_tasks_blocked()
        server.scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        remotes.append(server.connect("after"))
        await trio.testing.wait_all_tasks_blocked()
        for served in server.connections.values():
            served.close()
        await trio.testing.wait_all_tasks_blocked()
        assert server.failures == {"before": None, "after": None}


async def test_a_socket_is_not_read_while_requests_that_came_on_it_wait(remotes: list[socket.socket]) -> None:
    async with serving() as server:
        got: list[bytes] = []

        def received(data: bytes) -> None:
            got.append(data)
            server.connections["a"].connection.has_unhandled = True
            server.wake()

        remote = server.connect("a", received)
        remotes.append(remote)
        remote.send(b"1")
        await trio.testing.wait_all_tasks_blocked()
        remote.send(b"2")
        await trio.testing.wait_all_tasks_blocked()
        server.wake()
        await trio.testing.wait_all_tasks_blocked()
        assert got == [b"1"]
        server.connections["a"].connection.go_on_reading()
        server.wake()
        await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked()
        assert got == [b"1", b"2"]

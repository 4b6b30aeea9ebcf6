"""Sockets that are read together, beside all else that a process does: tasks, timers, turns that are due."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable

import pytest
import trio
import trio.testing

from broker.shell.socket_reading import AWAY_S
from broker.shell.sockets import RECEIVE_BYTES, UNSENT_BYTES_HIGH
from tests.broker.shell.read_together import LIMIT_S, Server, receive, serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it needs epoll")


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
        assert len(await receive(remote, len(answer))) == len(answer)
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

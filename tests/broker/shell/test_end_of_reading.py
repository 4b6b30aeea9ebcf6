"""Sockets that are read together, when one ends or is not read from: none takes another with it."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Callable

import pytest
import trio
import trio.testing

from broker.requests.connection import Connection
from broker.shell.sockets import RECEIVE_BYTES, UNSENT_BYTES_HIGH, SocketConnection
from tests.broker.shell.read_together import receive, serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it needs epoll")


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
            assert len(await receive(fast, 1)) == 1
        server.turns.clear()
        await receive(slow, 3 * (UNSENT_BYTES_HIGH + (1 << 20)))
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

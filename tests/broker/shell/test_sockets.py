"""Sockets under Trio: whole messages in order whatever the socket takes at once, and nobody harmed by a slow reader."""

import errno
import os
import socket
import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import structlog.testing
import trio
import trio.testing

from broker.remoting.addresses import split_address
from broker.remoting.command import encode, request
from broker.requests.connection import Buffer, Connection, Outgoing
from broker.settings.tables import LimitSettings, NameServerSettings, Settings
from broker.shell.sockets import (
    UNSENT_BYTES_HIGH,
    SocketConnection,
    accept_forever,
    accept_rest,
    listen,
    packed_host,
)
from broker.shell.tls import TlsSession
from broker.statistics.events import Events
from tests.broker.shell.servers import LIMIT_S, running

IDLE_S = 1
SILENT_HOST = "127.0.0.2"
"""Where a silent client comes from, and nobody else: so the log tells of its end."""


def _pair() -> tuple[SocketConnection, socket.socket]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    return SocketConnection(ours, Connection(Outgoing(), "test")), theirs


async def _receive(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        await trio.lowlevel.wait_readable(sock)
        data += sock.recv(65_536)
    return bytes(data)


async def test_buffers_arrive_whole_and_in_order_when_the_socket_takes_only_parts() -> None:
    connection, remote = _pair()
    pieces = [struct.pack(">I", k) * (1 + k % 3000) for k in range(4000)]
    expected = b"".join(pieces)
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.write)
            for k in range(0, len(pieces), 1000):
                connection.connection.send(*(memoryview(piece) for piece in pieces[k : k + 1000]))
                connection.flush()
            assert await _receive(remote, len(expected)) == expected
            nursery.cancel_scope.cancel()
    remote.close()


async def test_a_reader_that_does_not_read_is_not_read_from() -> None:
    connection, remote = _pair()
    requests = 0

    def received(data: bytes) -> None:
        nonlocal requests
        requests += len(data)
        connection.connection.send(bytes(UNSENT_BYTES_HIGH))
        connection.flush()

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.write)
            nursery.start_soon(connection.read, received, 1)
            remote.send(b"ab")
            await trio.testing.wait_all_tasks_blocked()
            await trio.testing.wait_all_tasks_blocked()
            assert requests == 2, "the second request takes the unsent bytes over the limit"
            remote.send(b"c")
            await trio.testing.wait_all_tasks_blocked()
            assert requests == 2, "nothing is read while so much is unsent"
            await _receive(remote, 3 * UNSENT_BYTES_HIGH)
            assert requests == 3, "reading goes on when the answers are gone"
            nursery.cancel_scope.cancel()
    remote.close()


class _CountingSession(TlsSession):
    """No secret, and how much was encrypted."""

    def __init__(self) -> None:
        self.ended = False
        self.encrypted = 0

    def encrypt(self, buffers: Sequence[Buffer]) -> bytes:
        data = b"".join(buffers)
        self.encrypted += len(data)
        return data

    def farewell(self) -> bytes:
        return b""


async def test_what_a_slow_reader_asked_for_is_not_encrypted_before_it_reads() -> None:
    """Encrypted it is a copy: one connection could have asked for gigabytes in one read."""
    ours, remote = socket.socketpair()
    remote.setblocking(False)
    tls = _CountingSession()
    connection = SocketConnection(ours, Connection(Outgoing(), "test"), tls=tls)
    body = b"".join(struct.pack(">I", k) for k in range(1_000_000))
    for _ in range(4):
        connection.connection.send(b"head", memoryview(body))
    connection.flush()
    assert tls.encrypted < 1_000_000
    size = 4 * (4 + len(body))
    assert connection.connection.unsent_bytes > UNSENT_BYTES_HIGH
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.write)
            assert await _receive(remote, size) == 4 * (b"head" + body)
            nursery.cancel_scope.cancel()
    assert (tls.encrypted, connection.connection.unsent_bytes) == (size, 0)
    remote.close()


async def test_short_answers_that_wait_are_joined() -> None:
    """Apart, a refusal of 200 bytes that nobody read took four times as much."""
    connection, remote = _pair()
    answers: list[bytes] = [struct.pack(">I", k) * 50 for k in range(30_000)]
    long = bytes(10_000)
    tracemalloc.start()
    try:
        while answers:
            connection.connection.send(*answers[:500], long, b"")
            del answers[:500]
            connection.flush()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    unsent = connection.connection.unsent_bytes
    assert unsent > 5_000_000
    assert taken < unsent * 1.2
    expected = b"".join(
        b"".join(struct.pack(">I", k) * 50 for k in range(first, first + 500)) + long
        for first in range(0, 30_000, 500)
    )
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.write)
            assert await _receive(remote, len(expected)) == expected
            nursery.cancel_scope.cancel()
    remote.close()


async def test_close_requested_writes_what_is_queued_first() -> None:
    connection, remote = _pair()
    size = 1 << 20
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.write)
            connection.connection.send(bytes(size))
            connection.connection.close()
            connection.flush()
            assert len(await _receive(remote, size)) == size
            await trio.lowlevel.wait_readable(remote)
            assert remote.recv(1) == b""
    assert connection.closed
    remote.close()


async def test_a_remote_end_that_resets_ends_both_tasks() -> None:
    connection, remote = _pair()
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.write)
            nursery.start_soon(connection.read, lambda _: None)
            await trio.testing.wait_all_tasks_blocked()
            remote.close()
    assert connection.closed


async def test_what_has_come_and_was_not_received_is_known() -> None:
    """A request that arrives while its connection is closed would never be answered."""
    ours, theirs = _pair()
    assert not ours.has_unread()
    theirs.send(b"request")
    await trio.lowlevel.wait_readable(ours.socket)
    assert ours.has_unread()
    assert ours.socket.recv(100) == b"request", "it is left where it is"
    theirs.close()
    assert not ours.has_unread()
    ours.close()
    assert not ours.has_unread()


async def test_who_has_connected_is_accepted_before_others_are_refused() -> None:
    listener = listen("127.0.0.1:0")
    address = listener.getsockname()
    early = [socket.create_connection(address) for _ in range(3)]
    accepted: list[socket.socket] = []
    accept_rest(listener, lambda sock, _: accepted.append(sock))
    assert sorted(sock.getpeername() for sock in accepted) == sorted(one.getsockname() for one in early)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    for one in (*early, *accepted):
        one.close()


class _Troubled(socket.socket):
    """A listener of which the system first tells what befell connections that waited to be accepted (accept(2))."""

    troubles: list[int]

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        sock, address = super().accept()
        if self.troubles:
            sock.close()
            number = self.troubles.pop()
            raise OSError(number, os.strerror(number))
        return sock, address


def _troubled(*troubles: int) -> _Troubled:
    listener = _Troubled(fileno=listen("127.0.0.1:0").detach())
    listener.setblocking(False)
    listener.troubles = [*troubles]
    return listener


async def test_trouble_of_those_who_wait_to_be_accepted_ends_no_server() -> None:
    listener = _troubled(errno.EPROTO, errno.EPERM, errno.ENETUNREACH)
    accepted: list[socket.socket] = []
    is_accepted = trio.Event()

    def take(sock: socket.socket, _: tuple[str, int]) -> None:
        accepted.append(sock)
        is_accepted.set()

    remotes = [socket.create_connection(listener.getsockname()) for _ in range(4)]
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept_forever, listener, take, Events())
            await is_accepted.wait()
            nursery.cancel_scope.cancel()
    assert [sock.getpeername() for sock in accepted] == [remotes[3].getsockname()]
    for sock in (listener, *remotes, *accepted):
        sock.close()


async def test_trouble_of_those_who_wait_to_be_accepted_keeps_none_behind_them_out_of_a_stop() -> None:
    listener = _troubled(errno.ECONNABORTED, errno.EHOSTUNREACH)
    remotes = [socket.create_connection(listener.getsockname()) for _ in range(3)]
    accepted: list[socket.socket] = []
    accept_rest(listener, lambda sock, _: accepted.append(sock))
    assert [sock.getpeername() for sock in accepted] == [remotes[2].getsockname()]
    for sock in (*remotes, *accepted):
        sock.close()


def test_an_address_in_use_is_named() -> None:
    first = listen("127.0.0.1:0")
    port = first.getsockname()[1]
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
        listen(f"127.0.0.1:{port}")
    first.close()


def test_hosts_are_packed_as_records_hold_them() -> None:
    assert packed_host(("10.0.0.1", 1234)).hex() == "0a000001000004d2"
    assert packed_host(("::ffff:10.0.0.1", 1234)).hex() == "0a000001000004d2"
    assert len(packed_host(("fe80::1%eth0", 1))) == 20
    assert len(packed_host(("::ffff:0:a00:1", 1))) == 20, "translated, not mapped"


async def test_what_a_socket_has_taken_is_told_to_whoever_looks_for_idle_connections() -> None:
    link, remote = _pair()

    def takes(data: bytes) -> bool:
        link.connection.was_written = False
        link.connection.send(data)
        link.flush()
        return link.connection.was_written

    assert takes(b"notice")
    assert takes(bytes(1 << 24))
    assert not takes(b"behind what the remote end does not read")
    link.close()
    remote.close()


@pytest.mark.parametrize("server", ["broker", "name server"])
async def test_idle_connection_is_closed_and_one_in_use_is_not(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.requests.client_sessions.SWEEP_NS", 50_000_000)
    base = NameServerSettings(idle_seconds=IDLE_S)

    def short(settings: Settings) -> Settings:
        return msgspec.structs.replace(settings, limits=LimitSettings(idle_seconds=IDLE_S))

    with structlog.testing.capture_logs() as logs:
        async with running(tmp_path, name_server=base, change=short) as servers:
            await servers.wait_leader()
            address = servers.name_server if server == "name server" else servers.brokers["n0"].address
            while not await _outlives_a_silent_one(address):
                pass
    told = [(entry["event"], entry["reason"]) for entry in logs if entry.get("source") == SILENT_HOST]
    assert told, "the silent one was closed for no reason"
    assert set(told) == {("connection closed", "idle")}


async def _outlives_a_silent_one(address: str) -> bool:
    """A connection in use is open until one that says nothing is closed; False if the machine let both be idle."""
    host, port = split_address(address)
    silent = await trio.open_tcp_stream(host, port, local_address=SILENT_HOST)
    busy = await trio.open_tcp_stream(host, port)
    closed = trio.Event()

    async def wait_closed() -> None:
        assert await silent.receive_some(1) == b""
        closed.set()

    async with silent, busy, trio.open_nursery() as nursery:
        nursery.start_soon(wait_closed)
        last_use = trio.current_time()
        while not closed.is_set():
            asked = trio.current_time()
            try:
                await busy.send_all(encode(request(9999, opaque=1)))
                answer = await busy.receive_some(4096)
            except trio.BrokenResourceError:
                answer = b""
            if not answer:
                assert trio.current_time() - last_use > IDLE_S, "it is in use"
                nursery.cancel_scope.cancel()
                return False
            last_use = asked
            await trio.sleep(0.1)
    return True


async def test_nothing_is_read_while_requests_that_have_come_wait() -> None:
    connection, remote = _pair()
    got: list[bytes] = []

    def received(data: bytes) -> None:
        got.append(data)
        connection.connection.has_unhandled = True

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.write)
            nursery.start_soon(connection.read, received, 1)
            remote.send(b"ab")
            await trio.testing.wait_all_tasks_blocked()
            connection.flush()
            await trio.testing.wait_all_tasks_blocked()
            assert got == [b"a"]
            connection.connection.go_on_reading()
            connection.flush()
            await trio.testing.wait_all_tasks_blocked()
            assert got == [b"a", b"b"]
            nursery.cancel_scope.cancel()
    remote.close()


class _EndingSession(TlsSession):
    """No secret, and an end behind what has come."""

    def __init__(self) -> None:
        self.ended = False

    def decrypt(self, data: bytes) -> bytes:
        self.ended = bool(data)
        return data

    def pending(self) -> bytes:
        return b""

    def farewell(self) -> bytes:
        return b""


async def test_a_session_that_has_ended_is_closed_behind_the_requests_that_wait() -> None:
    """They were lost where the end came in the same read."""
    ours, theirs = socket.socketpair()
    connection = SocketConnection(ours, Connection(Outgoing(), "test"), tls=_EndingSession())

    def received(data: bytes) -> None:
        connection.connection.has_unhandled = bool(data)

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.write)
            nursery.start_soon(connection.read, received)
            theirs.send(b"requests")
            await trio.testing.wait_all_tasks_blocked()
            closed = [connection.closed]
            connection.connection.go_on_reading()
            connection.flush()
            closed.append(connection.closed)
    assert closed == [False, True]
    theirs.close()

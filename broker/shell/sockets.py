"""Sockets under Trio, for every server and link of a node.

Reading: a socket that is readable is received from once, and the bytes are handed on. One task reads the sockets of all
connections (broker/shell/socket_reading.py); where there is no epoll each has a task of its own. Writing: at the end
of a turn one non-blocking `sendmsg` writes what is queued for a connection. Only what the socket does not take at once
is left to a task that waits for it. So a request costs no task switch of its own. With TLS the bytes pass through a
session on the way in and out (broker/shell/tls.py), and all else is the same.

Memory stays bounded: a connection with more than `UNSENT_BYTES_HIGH` unsent bytes is not read from until they have
gone (`Connection.may_be_read`), and nobody else notices.
"""

import contextlib
import errno
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from time import monotonic_ns, perf_counter
from typing import Final

import trio

from broker.remoting.addresses import split_address
from broker.requests.connection import Buffer, Connection
from broker.shell.socket_reading import PASS_S, Reading
from broker.shell.tls import IdleTlsError, RefusedError, TlsSession
from broker.statistics.events import EventKind, Events
from log.formats.record import pack_host

RECEIVE_BYTES: Final = 120 * 1024
"""The most bytes that a connection brings into one turn.

It is below 128 KiB, from which the C library's allocator maps memory anew for each buffer. A burst of some tens of
messages of 1 KiB is one turn and not two.
"""

RECEIVE_BYTES_LEAST: Final = 4 * 1024
"""The fewest bytes that are received at once. The number is halved while they take longer to handle than a pass.

So much is also what a connection brings at once that has to prove an account and has not yet: some forty refused
requests, about a millisecond's work, and not the thousand that an account's connection may have answered.
"""

REST_BYTES_MAX: Final = 256 * 1024
"""The most bytes that are received beyond those, at once, of a long frame that is under way."""

UNSENT_BYTES_HIGH: Final = 4 * 1024 * 1024
"""Reading from a connection stops above this many unsent bytes."""

_ENCRYPTED_AT_ONCE: Final = 256 * 1024
"""The most bytes that are encrypted before they are written. The others wait as views of the log: encrypted bytes are
a copy."""

_JOINED_BYTES_MAX: Final = 4096
"""Buffers that are kept and are no longer than this are joined: apart, each takes some hundred bytes of its own."""

_BUFFERS_PER_CALL: Final = 512
"""Slices given to one `sendmsg`; the system's limit is 1024."""


Received = Callable[[bytes], int | None]
"""Takes bytes that have come. It may return how many are still to come of something long that is under way: of these
many are received right behind them, while there are any, and not with the next ones."""


class SocketConnection:
    """One TCP connection. It reads until either side closes it, and writes what its `Connection` queues."""

    def __init__(
        self,
        sock: socket.socket,
        connection: Connection,
        unsent_bytes_high: int = UNSENT_BYTES_HIGH,
        tls: TlsSession | None = None,
        reading: Reading | None = None,
        *,
        is_peer: bool = False,
        has_to_prove: bool = False,
    ) -> None:
        """`reading` reads the socket together with others, and a peer's before them; None for a task of its own.

        Who `has_to_prove` an account is read little of at a time until he has.
        """
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            # What a turn has for a connection is written in one call: nothing follows soon that its end could wait for.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = sock
        self.connection = connection
        self._tls = tls
        self._reading = reading
        self._is_peer = is_peer
        self._has_to_prove = has_to_prove
        """True until the client has proved an account, if it has to."""
        self._received: Received = _drop
        self._receive_bytes = self._receive_bytes_now = RECEIVE_BYTES
        """The most bytes that are received at once: by default, and now."""
        self._paused = False
        """The connection is not read from: too much is unsent, or requests that came on it wait."""
        self._read_to_end = trio.Event()
        self._refused: tuple[str, str] | None = None
        """The content of the `RefusedError` that `read` raises: the connection was closed here for what came on it."""
        self._unsent_bytes_high = unsent_bytes_high
        self.closed = False
        self._unsent: deque[memoryview] = deque()
        self._not_encrypted: deque[memoryview] = deque()
        """With TLS, the bytes that follow those of `_unsent`, in the clear. As long as `_unsent` is empty and the
        connection is open, `write` takes from here. `Connection.unsent_bytes` counts both."""
        self._has_unsent = trio.Event()
        self._sent = trio.Event()

    async def read(self, received: Received, receive_bytes: int = RECEIVE_BYTES) -> None:
        """Hands on what arrives until either side closes the connection.

        Raises RefusedError if it was closed here, for what came on it or because the system cannot watch it. What
        `received` raises is the failure of the node. It is raised by `Reading.run`, or here without `reading`.
        """
        try:
            if self._tls is not None:
                received = self._decrypting(self._tls, received)
                received(b"")  # what came with the end of the handshake
            if not self.closed:
                await self._read_to_its_end(received, receive_bytes)
        finally:
            self.close()
            self._received = (
                _drop  # it knows this connection: together they would wait for the garbage collector
            )
        if self._refused is not None:
            raise RefusedError(*self._refused)

    async def _read_to_its_end(self, received: Received, receive_bytes: int) -> None:
        if self._reading is None:
            await self._read_alone(received, receive_bytes)
            return
        self._received = received
        self._receive_bytes = self._receive_bytes_now = receive_bytes
        try:
            self._go_on_reading()
        except OSError as error:
            self._refused = f"the system watches no more sockets: {error}", "not watched"
            return
        await self._read_to_end.wait()

    async def _read_alone(self, received: Received, receive_bytes: int) -> None:
        sock = self.socket
        wait_readable = trio.lowlevel.wait_readable
        while not self.closed:
            try:
                await wait_readable(sock)
                data = sock.recv(RECEIVE_BYTES_LEAST if self._is_stranger() else receive_bytes)
            except (BlockingIOError, InterruptedError):
                continue
            except (OSError, trio.ClosedResourceError):
                return  # reset by the remote end, or closed here: the same to the caller
            if not data:
                return
            received(data)
            while not self.connection.may_be_read(self._unsent_bytes_high) and not self.closed:
                self._paused = True
                self._sent = trio.Event()
                await self._sent.wait()

    def _read_once(self) -> None:
        """Receives once from a socket that is readable, and closes the connection at its end."""
        assert self._reading is not None
        receive_bytes = self._receive_bytes_now
        if self._is_stranger():
            receive_bytes = RECEIVE_BYTES_LEAST
        elif not self._is_peer:
            # While passes have no time for all that are ready, each brings less at once. Peers do not: they are read
            # first.
            receive_bytes = max(receive_bytes // self._reading.shares, RECEIVE_BYTES_LEAST)
        try:
            data = self.socket.recv(receive_bytes)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""  # reset by the remote end: the same to the caller
        if data:
            self._reading.bytes_read += len(data)
            began = perf_counter()
            lacks = self._received(data)
            # The rest can be there only where as much came as was wanted.
            if lacks and len(data) == receive_bytes:
                self._receive_rest(min(lacks, REST_BYTES_MAX))
            took = perf_counter() - began
            # From the set of the strangers into that of all others.
            if self._has_to_prove and self.connection.is_proven and not self.closed:
                self._stop_reading()
                self._has_to_prove = False
                self._go_on_reading_or_close()
            # Requests that take long are taken in smaller portions, so that others wait no longer than for one.
            if took > PASS_S:
                self._receive_bytes_now = max(self._receive_bytes_now // 2, RECEIVE_BYTES_LEAST)
            elif took < PASS_S / 4 and self._receive_bytes_now < self._receive_bytes:
                self._receive_bytes_now = min(self._receive_bytes_now * 2, self._receive_bytes)
        if not data:
            self._stop_reading()
            self._read_to_end.set()
        elif not self.connection.may_be_read(self._unsent_bytes_high) and not self.closed:
            self._paused = True
            self._stop_reading()

    def _receive_rest(self, size: int) -> None:
        """Receives up to so many bytes more, of something long: they cost less than short frames would."""
        assert self._reading is not None
        # The first part may have closed the connection, or brought requests that have to wait: then no more is read.
        if self.closed or self.connection.has_unhandled:
            return
        try:
            rest = self.socket.recv(size)
        except OSError:
            return  # nothing is there yet; whatever else it is, the next receive meets it again
        if rest:
            self._reading.bytes_read += len(rest)
            self._received(rest)

    def _is_stranger(self) -> bool:
        return self._has_to_prove and not self.connection.is_proven

    def _go_on_reading(self) -> None:
        assert self._reading is not None
        self._reading.add(
            self.socket.fileno(),
            self._read_once,
            first=self._is_peer,
            stranger=self.connection.share if self._has_to_prove else None,
        )

    def _go_on_reading_or_close(self) -> None:
        try:
            self._go_on_reading()
        except OSError:  # the system watches no more sockets
            self.close()

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.remove(self.socket.fileno())

    def _look_whether_to_read(self) -> None:
        """Goes on reading, if that has only waited for what has happened now: bytes were sent, requests handled."""
        if not (self._paused and self.connection.may_be_read(self._unsent_bytes_high)):
            return
        if self._tls is not None and self._tls.ended:
            self.close()  # its end came with requests that had to wait
            return
        self._paused = False
        self._sent.set()
        if self._reading is not None:
            self._go_on_reading_or_close()

    async def read_and_write(self, received: Received) -> None:
        """Runs `read`, and `write` beside it for as long. What `received` raises is raised alone, not in a group."""
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.write)
            try:
                await self.read(received)
            except Exception as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            try:
                raise failure
            finally:
                del (
                    failure
                )  # its traceback has this call, and what it holds would stay until the collector comes

    def _decrypting(self, tls: TlsSession, received: Received) -> Received:
        def received_encrypted(data: bytes) -> int | None:
            try:
                plain = tls.decrypt(data)
            except ssl.SSLError as error:
                kind = "TLS without requests" if isinstance(error, IdleTlsError) else "broken TLS"
                self._refused = str(error.args[-1]), kind
                self.close()
                return None
            # OpenSSL may have an answer of its own, to a key update say, whether there were bytes for us or not.
            own = tls.pending()
            if own:
                try:
                    self._send([own])
                except OSError:  # reset by the remote end: the same to the caller
                    self.close()
                    return None
            lacks = received(plain) if plain else None
            # Requests that came before the end are answered first; `_look_whether_to_read` closes behind them.
            if tls.ended and not self.connection.has_unhandled:
                self.close()
            return lacks

        return received_encrypted

    def has_unread(self) -> bool:
        """Tells whether bytes have come that were not received yet."""
        return not self.closed and has_come(self.socket)

    def flush(self) -> None:
        """Writes what the connection has queued, as far as the socket takes it now, or closes if that was asked for."""
        # Also of a connection that is closed: nobody else would empty its outbox.
        buffers = self.connection.take()
        if self.closed:
            return
        if self.connection.aborted:
            self.close()
            return
        try:
            if self._tls is None:
                self._send(buffers)
            elif buffers:
                self._not_encrypted.extend(_to_keep(buffers))
                self.connection.unsent_bytes += sum(map(len, buffers))
                self._encrypt_and_send(self._tls)
        except OSError:
            self.close()
            return
        # What was answered before the end was asked for still goes out: `write` closes behind it.
        if self.connection.close_requested and not self._unsent:
            self.close()
        elif self._paused:
            self._look_whether_to_read()

    def _send(self, buffers: list[Buffer]) -> None:
        # What waits goes first.
        if self._unsent:
            self._keep(buffers)
        elif buffers:
            self._write(buffers)

    def _encrypt_and_send(self, tls: TlsSession) -> None:
        """Encrypts and sends until the socket takes no more: who does not read costs no copies of what it asked for."""
        waiting = self._not_encrypted
        while waiting and not self._unsent:
            size = 0
            pieces: list[Buffer] = []
            while waiting and size < _ENCRYPTED_AT_ONCE:
                piece = waiting.popleft()
                if size + len(piece) > _ENCRYPTED_AT_ONCE:
                    waiting.appendleft(piece[_ENCRYPTED_AT_ONCE - size :])
                    piece = piece[: _ENCRYPTED_AT_ONCE - size]
                pieces.append(piece)
                size += len(piece)
            # Until it was encrypted it counted as it was; what the socket does not take counts anew, as records.
            self.connection.unsent_bytes -= size
            self._send([tls.encrypt(pieces)])

    def _write(self, buffers: list[Buffer]) -> None:
        if len(buffers) == 1:
            total = len(buffers[0])
            sent = self._try(buffers)
        elif len(buffers) <= _BUFFERS_PER_CALL:
            total = sum(map(len, buffers))
            sent = self._try(buffers)
        else:
            # What does not go into one call waits for the next one, in `write`.
            sent, total = self._try(buffers[:_BUFFERS_PER_CALL]), sum(map(len, buffers))
        if sent == total:
            return
        first = 0
        while sent >= len(buffers[first]):
            sent -= len(buffers[first])
            first += 1
        rest: list[Buffer] = [memoryview(buffers[first])[sent:], *buffers[first + 1 :]]
        self._keep(rest)

    def _try(self, buffers: list[Buffer]) -> int:
        try:
            sent = self.socket.send(buffers[0]) if len(buffers) == 1 else self.socket.sendmsg(buffers)
        except (BlockingIOError, InterruptedError):
            return 0
        self.connection.was_written = True
        return sent

    def _keep(self, buffers: list[Buffer]) -> None:
        self._unsent.extend(_to_keep(buffers))
        self.connection.unsent_bytes += sum(map(len, buffers))
        self._has_unsent.set()

    async def write(self) -> None:
        """Writes what `flush` had to leave. It runs beside `read` for the life of the connection."""
        sock, unsent = self.socket, self._unsent
        try:
            while not self.closed:
                # What was encrypted has gone: the next piece is encrypted now, and not before anybody reads it.
                if self._tls is not None and not unsent:
                    self._encrypt_and_send(self._tls)
                if not unsent:
                    self._look_whether_to_read()
                    if self.connection.close_requested:
                        return
                    self._has_unsent = trio.Event()
                    await self._has_unsent.wait()
                    continue  # it may have been closed, or written, meanwhile
                await self._wait_writable(sock)
                sent = self._try([unsent[k] for k in range(min(len(unsent), 64))])
                self.connection.unsent_bytes -= sent
                assert self.connection.unsent_bytes >= 0, "what is sent was counted when it was queued"
                while unsent and sent >= len(unsent[0]):
                    sent -= len(unsent.popleft())
                if sent:
                    unsent[0] = unsent[0][sent:]
                self._look_whether_to_read()
        except (OSError, trio.ClosedResourceError):
            return
        finally:
            self.close()

    async def _wait_writable(self, sock: socket.socket) -> None:
        reading = self._reading
        if reading is None:
            await trio.lowlevel.wait_writable(sock)
            return
        # As long as somebody waits with Trio, the task that reads leaves it its pass (`Reading.run`).
        reading.waiting_writers += 1
        try:
            await trio.lowlevel.wait_writable(sock)
        finally:
            reading.waiting_writers -= 1

    def close(self) -> None:
        """Closes the socket, which ends `read` and `write`. It may be called more than once."""
        if self.closed:
            return
        self.closed = True
        if self._tls is not None and not self._unsent:  # else it would come in the midst of a record
            with contextlib.suppress(OSError):
                self.socket.send(self._tls.farewell())
        # Before the socket is closed: its number may be another one's right behind that.
        self._stop_reading()
        self._paused = False
        with contextlib.suppress(OSError):
            # The system does not tell those who wait for a socket that it was closed: Trio does.
            trio.lowlevel.notify_closing(self.socket)
        self.socket.close()
        self._unsent.clear()
        self._not_encrypted.clear()
        self._has_unsent.set()
        self._sent.set()
        self._read_to_end.set()


def _drop(_: bytes) -> None:
    """Stands in for `received` until `read` is called."""


def _to_keep(buffers: Iterable[Buffer]) -> Iterator[memoryview]:
    """Yields the bytes of buffers that wait, in order and in few pieces, none of them empty."""
    short: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) <= _JOINED_BYTES_MAX:
            short.append(buffer)
            continue
        if any(short):
            yield memoryview(b"".join(short))
        short = []
        yield memoryview(buffer)
    if any(short):
        yield memoryview(b"".join(short))


def packed_host(address: tuple[str, int]) -> bytes:
    """Packs a socket's address as records hold it. An IPv4 address mapped into IPv6 counts as IPv4."""
    # An IPv6 address may name its interface (fe80::1%eth0), which says nothing on another machine.
    host = address[0].partition("%")[0]
    mapped = host.removeprefix("::ffff:")
    return pack_host(host if ":" in mapped else mapped, address[1])


def listen(address: str, backlog: int = 1024) -> socket.socket:
    """Returns a listening socket. Raises `OSError`, which names the address."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A server that is started again need not wait until the system has forgotten the connections of the last one.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror or error}") from error
    return sock


ACCEPTED_AT_ONCE: Final = 16
"""Connections that are taken from the listener's queue in each pass of Trio's scheduler: a crowd in that queue whose
members make one other step in a pass, of a handshake say, does not keep those behind it there."""

_OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_OF_ONE_CONNECTION: Final = frozenset(
    getattr(errno, name)
    for name in (
        "ECONNABORTED",
        "ECONNRESET",
        "EHOSTDOWN",
        "EHOSTUNREACH",
        "ENETDOWN",
        "ENETUNREACH",
        "ENONET",
        "ENOPROTOOPT",
        "EOPNOTSUPP",
        "EPERM",
        "EPROTO",
        "ETIMEDOUT",
    )
    if hasattr(errno, name)
)
"""Linux tells by accept(2) what has befallen a connection while it waited, or that a firewall refuses it. That one is
gone; the listener is whole."""


def has_come(sock: socket.socket) -> bool:
    """Tells whether there are bytes to be received on a socket that does not block."""
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except OSError:
        return False


def accept_rest(listener: socket.socket, accepted: Callable[[socket.socket, tuple[str, int]], None]) -> None:
    """Accepts those who have connected, and closes the listener: others are refused from then on."""
    while True:
        try:
            sock, address = listener.accept()
        except OSError as error:
            if error.errno in _OF_ONE_CONNECTION:
                continue
            break  # nobody is there any more
        accepted(sock, (address[0], address[1]))
    trio.lowlevel.notify_closing(listener)
    listener.close()


async def accept_forever(
    listener: socket.socket,
    accepted: Callable[[socket.socket, tuple[str, int]], None],
    events: Events,
) -> None:
    """Accepts connections until cancelled, or until `accept_rest` closes the listener.

    What befell one that waited to be accepted ends that one. Running out of descriptors delays new connections and
    harms no open one; `events` hear of it each time. Raises any other OSError of the listener.
    """
    while listener.fileno() >= 0:
        try:
            await trio.lowlevel.wait_readable(listener)
            for _ in range(ACCEPTED_AT_ONCE):
                sock, address = listener.accept()
                accepted(sock, (address[0], address[1]))
        except (BlockingIOError, InterruptedError, trio.ClosedResourceError):
            continue
        except OSError as error:
            if error.errno in _OF_ONE_CONNECTION:
                continue
            if error.errno in _OUT_OF_DESCRIPTORS:
                events.warn(
                    EventKind.CONNECTION_REFUSED, "out of descriptors", monotonic_ns(), detail=str(error)
                )
                await trio.sleep(0.1)
            elif listener.fileno() >= 0:  # else it was closed when this task was about to run
                raise


async def connect(address: str) -> socket.socket:
    """Returns a connected, non-blocking socket. Raises `OSError`, whatever is wrong with the address or behind it."""
    try:
        stream = await trio.open_tcp_stream(*split_address(address))
    except OSError as error:
        if isinstance(error.__cause__, ExceptionGroup):  # one for each address of a host
            raise OSError(str(error.__cause__.exceptions[0])) from error
        raise
    except ValueError as error:
        # No host has such a name: one of more than 63 characters between two dots, say.
        raise OSError(f"cannot connect to {address!r}: {error}") from error
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    return sock

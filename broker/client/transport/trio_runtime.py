"""The client's runtime on Trio. Of the client only this file, `offset_file` (a worker thread) and the room `threaded`
know Trio.

Sockets are plain non-blocking ones, waited for through ``trio.lowlevel``: a write is tried at once and costs no trip
through the scheduler when the kernel takes it, and ``sendmsg`` sends a head and its body without joining them.
"""

import contextlib
import errno
import math
import os
import random
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager

import trio

from broker.client.transport.runtime import Buffer, ByteStream, Event, TaskGroup, drop_bytes
from broker.client.transport.tls_words import DistrustedError, tls_failure
from broker.remoting.addresses import split_address

RECEIVE_BYTES = 256 * 1024
"""The largest single read in bytes: a whole response to a pull fits, so most bodies come with one system call."""
_IOV_MAX = 512
"""Buffers handed to one sendmsg; Linux refuses more than 1024."""


class TrioByteStream:
    """A TCP connection on a non-blocking socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._closed = False
        self._is_drained = False
        """The last read left room: there was nothing more, and another one now would most likely find nothing."""

    def write_nowait(self, buffers: Sequence[Buffer]) -> int:
        """Hand the buffers to the kernel, as far as it takes them. Raises OSError."""
        self._check_open()
        try:
            return self._socket.sendmsg(buffers[:_IOV_MAX])
        except (BlockingIOError, InterruptedError):
            return 0

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        """Write everything, waiting for room as often as needed. Raises OSError."""
        pending = list(buffers)
        while pending:
            sent = self.write_nowait(pending)
            if sent == 0:
                await self._wait(trio.lowlevel.wait_writable)
                continue
            pending = drop_bytes(pending, sent)

    async def receive_some(self) -> bytes:
        """Read what is there, waiting for the first byte. Raises OSError."""
        if self._is_drained:
            await self._wait(trio.lowlevel.wait_readable)
        while True:
            self._check_open()
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except (BlockingIOError, InterruptedError):
                await self._wait(trio.lowlevel.wait_readable)
                continue
            self._is_drained = len(data) < RECEIVE_BYTES
            return data

    def close(self) -> None:
        """Close the socket and wake the tasks that wait for it."""
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    async def _wait(self, wait: Callable[[socket.socket], Awaitable[None]]) -> None:
        try:
            await wait(self._socket)
        except trio.ClosedResourceError as error:
            raise OSError(errno.EBADF, "connection was closed on this side") from error

    def _check_open(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "connection was closed on this side")


class TlsByteStream:
    """A TCP connection under TLS. Writes are left to `send_all`: what is encrypted must go out whole and in order."""

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self._stream = stream

    def write_nowait(self, buffers: Sequence[Buffer]) -> int:
        """Takes nothing; the caller goes on with `send_all`."""
        return 0

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        """Encrypt and write everything. Raises OSError."""
        try:
            await self._stream.send_all(b"".join(buffers))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise _lost(error) from error

    async def receive_some(self) -> bytes:
        """Read and decrypt what is there, waiting for the first byte. Raises OSError."""
        try:
            return bytes(await self._stream.receive_some(RECEIVE_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise _lost(error) from error

    def close(self) -> None:
        """Close the socket and wake the tasks that wait for it."""
        self._stream.transport_stream.socket.close()


def _lost(error: trio.BrokenResourceError | trio.ClosedResourceError) -> OSError:
    """Return the OSError beneath an error of Trio's, as users of a connection expect it."""
    cause = error.__cause__
    if isinstance(cause, OSError):
        reason = tls_failure(cause)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return DistrustedError(reason)
        return ConnectionError(reason) if reason else cause
    return ConnectionError(str(error) or "connection was closed on this side")


@trio.lowlevel.enable_ki_protection
async def _uninterrupted(function: Callable[..., Awaitable[None]], *arguments: object) -> None:
    await function(*arguments)


class _TrioTaskGroup:
    """A nursery in the form of `TaskGroup`.

    Tasks of the client's own, which are those in shielded groups and all that these start, are never interrupted by
    Ctrl-C between two steps of Python: that would leave a connection with a request half begun. Trio then raises
    KeyboardInterrupt in the program's main task, where it is at home.
    """

    def __init__(self, nursery: trio.Nursery, *, shielded: bool = False) -> None:
        self._nursery = nursery
        self._shielded = shielded

    def start_soon(self, function: Callable[..., Awaitable[None]], *arguments: object) -> None:
        if self._shielded or trio.lowlevel.currently_ki_protected():
            self._nursery.start_soon(_uninterrupted, function, *arguments)
        else:
            self._nursery.start_soon(function, *arguments)

    def cancel(self) -> None:
        self._nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def _task_group(shielded: bool) -> AsyncIterator[TaskGroup]:
    try:
        async with trio.open_nursery() as nursery:
            if shielded:
                # Shielding the nursery would shield the body too; so the tasks get a nursery of their own in a host.
                # Or a cancellation now would leave the host without an owner.
                with trio.CancelScope(shield=True):
                    hosted = await nursery.start(_host_shielded)
                yield _TrioTaskGroup(hosted, shielded=True)
            else:
                yield _TrioTaskGroup(nursery)
    except BaseExceptionGroup as group:
        # A user's `async with Producer(...)` must raise what its body raised, not a group around it.
        _raise_single(group)
        raise


async def _host_shielded(task_status: trio.TaskStatus[trio.Nursery]) -> None:
    try:
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                task_status.started(nursery)
                await trio.sleep_forever()
    except BaseExceptionGroup as group:
        _raise_single(group)
        raise


def _raise_single(group: BaseExceptionGroup[BaseException]) -> None:
    if len(group.exceptions) == 1:
        raise group.exceptions[0] from None


def _first_cause(error: OSError) -> OSError:
    """Return what the system said of the first address of a host, without Trio's words around it."""
    if isinstance(error.__cause__, ExceptionGroup) and isinstance(error.__cause__.exceptions[0], OSError):
        error = error.__cause__.exceptions[0]
    if error.errno is None or isinstance(error, socket.gaierror):
        return error
    return OSError(error.errno, os.strerror(error.errno))


async def _secure(stream: trio.SocketStream, tls: ssl.SSLContext, host: str) -> TlsByteStream:
    secure = trio.SSLStream(stream, tls, server_hostname=host, https_compatible=True)
    try:
        await secure.do_handshake()
    except BaseException as error:
        stream.socket.close()
        if isinstance(error, trio.BrokenResourceError):
            raise _lost(error) from error
        raise
    return TlsByteStream(secure)


class TrioRuntime:
    """Real time, real sockets, Trio's tasks.

    Its monotonic clock is the system's, which all processes of a machine share: times of traces are compared across
    them. With ``tls`` every connection is encrypted (broker.shell.tls_contexts.client_context).
    """

    def __init__(
        self,
        random_source: random.Random | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.random = random_source if random_source is not None else random.Random()
        self.now_ns: Callable[[], int] = time.monotonic_ns
        self._tls = tls

    def wall_ms(self) -> int:
        """Return the system's wall clock."""
        return time.time_ns() // 1_000_000

    def process_id(self) -> int:
        """Return the operating system's number of this process."""
        return os.getpid()

    def local_address(self) -> str:
        """Return the address that this machine would use towards others; the loopback address when it has none."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("192.0.2.1", 9))  # a documentation address: nothing is sent by connecting UDP
                return str(probe.getsockname()[0])
            except OSError:
                return "127.0.0.1"

    def event(self) -> Event:
        """Return a Trio event."""
        return trio.Event()

    async def sleep(self, seconds: float) -> None:
        """Sleep by Trio's clock."""
        await trio.sleep(seconds)

    def task_group(self, *, shielded: bool = False) -> AbstractAsyncContextManager[TaskGroup]:
        """Return a nursery as a task group."""
        return _task_group(shielded)

    def move_on_after(self, seconds: float, *, shield: bool = False) -> trio.CancelScope:
        """Return a Trio cancel scope with that deadline."""
        return trio.CancelScope(
            deadline=trio.current_time() + seconds if seconds != math.inf else math.inf, shield=shield
        )

    async def connect(self, address: str) -> ByteStream:
        """Connect by TCP to ``host:port`` or ``[v6]:port``; with TLS, shake hands. Raises OSError."""
        try:
            host, port = split_address(address)
        except ValueError as error:
            raise OSError(errno.EINVAL, f"address {address!r} is not host:port: {error}") from None
        try:
            stream = await trio.open_tcp_stream(host, port)
        except UnicodeError as error:
            raise OSError(errno.EINVAL, f"{host!r} is no name of a host: {error}") from error
        except OSError as error:
            raise _first_cause(error) from None
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            return await _secure(stream, self._tls, host)
        # Trio has tried all addresses of the host; from here on it is a plain socket.
        connection = socket.socket(fileno=stream.socket.detach())
        connection.setblocking(False)
        return TrioByteStream(connection)

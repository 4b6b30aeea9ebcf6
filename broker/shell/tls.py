"""TLS between a socket and its `SocketConnection`: bytes in, bytes out, and no socket of its own.

A `TlsSession` is OpenSSL over two memory buffers. So a connection with TLS is read and written as one without: the
same task receives, the same `sendmsg` sends, and only the bytes pass through the session on their way. A connection
without TLS pays for none of it.

What Trio wakes together runs in one pass of its scheduler, and nothing comes between. So a thousand strangers who
shake hands at the same moment are not left to it: one of them computes in each pass (`Handshakes`). How long a
handshake may take is not decided here, but by whoever waits for it: the session of a client, a link of a peer, a line
that was dialled.
"""

import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

import trio

from broker.requests.client_sessions import NOT_LET_IN
from broker.requests.connection import Buffer

_RECORD_BYTES: Final = 16 * 1024
"""The most that a record carries, and that is read at once: to read more makes room for more."""

_DECRYPTED_AT_ONCE: Final = 8 * 1024
"""The most bytes that are decrypted before a look at what they brought, and that a handshake receives at once."""
_IDLE_BYTES_MAX: Final = 20 * 1024
"""A record that is not whole yet has 16 KiB and a little, and one that carries a request more of it than of its own.
What has nothing but key updates costs OpenSSL 0.3 to 0.6 ms for each KiB: so much of it ends a connection."""


WaitReadable = Callable[[socket.socket], Awaitable[None]]
"""Returns when there is something to receive of a socket, or its other end is gone."""


class IdleTlsError(ssl.SSLError):
    """A connection carries next to nothing but TLS's own messages, such as key updates."""


class TlsSession:
    """One connection's TLS state. `server_hostname` is the name that a client wants to see in the certificate."""

    def __init__(
        self, context: ssl.SSLContext, *, server_side: bool, server_hostname: str | None = None
    ) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self._idle_bytes = 0
        """By how much the bytes that came lately exceed twice the bytes that they had in the clear."""
        self.ended = False
        """The remote end has said that it sends no more."""

    @property
    def has_certificate(self) -> bool:
        """Tells, behind the handshake, whether the remote end has shown a certificate that is believed here."""
        return bool(self._ssl.getpeercert(binary_form=True))

    async def handshake(
        self,
        sock: socket.socket,
        steps: AbstractAsyncContextManager[None],
        wait: WaitReadable = trio.lowlevel.wait_readable,
    ) -> None:
        """Agrees on keys over a non-blocking socket. Raises OSError, of which `ssl.SSLError` is one kind.

        It has `steps` whenever it computes, and never while it waits for the other end.
        """
        # The client speaks first.
        if not self._ssl.server_side:
            await self._step(sock, steps)
        done = False
        while not done:
            await wait(sock)
            try:
                data = sock.recv(_DECRYPTED_AT_ONCE)
            except (BlockingIOError, InterruptedError):
                continue
            if not data:
                raise ConnectionResetError("closed during the TLS handshake")
            self._incoming.write(data)
            done = await self._step(sock, steps)

    async def _step(self, sock: socket.socket, steps: AbstractAsyncContextManager[None]) -> bool:
        """Returns True when the handshake is done."""
        done = False
        try:
            async with steps:
                self._ssl.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            await _send(sock, self.pending())  # the alert that tells the other side why
            raise
        await _send(sock, self.pending())
        return done

    def decrypt(self, data: bytes) -> bytes:
        """Returns the bytes that `data` completes, in the clear; there may be none.

        Raises `ssl.SSLError` for what is no TLS, and `IdleTlsError`, which is one.
        """
        pieces: list[bytes] = []
        if len(data) <= _DECRYPTED_AT_ONCE:
            self._decrypt(data, pieces)
        else:
            view = memoryview(data)
            for begin in range(0, len(data), _DECRYPTED_AT_ONCE):
                self._decrypt(view[begin : begin + _DECRYPTED_AT_ONCE], pieces)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _decrypt(self, data: Buffer, pieces: list[bytes]) -> None:
        self._incoming.write(data)
        waiting = self._incoming.pending  # what came with the end of the handshake counts, too
        size = 0
        try:
            while piece := self._ssl.read(_RECORD_BYTES):
                pieces.append(piece)
                size += len(piece)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        taken = waiting - self._incoming.pending
        self._idle_bytes = max(0, self._idle_bytes + taken - 2 * size)
        if self._idle_bytes > _IDLE_BYTES_MAX:
            raise IdleTlsError(
                f"it sends TLS's own messages, such as key updates, and hardly any data: {self._idle_bytes} bytes "
                f"more than its data accounts for, and {_IDLE_BYTES_MAX} are allowed"
            )

    def encrypt(self, buffers: Sequence[Buffer]) -> bytes:
        """Returns the buffers as TLS records, to be sent in this order."""
        for buffer in buffers:
            view = memoryview(buffer)
            while view:
                view = view[self._ssl.write(view) :]
        return self._outgoing.read()

    def pending(self) -> bytes:
        """Returns what TLS itself has to send (handshakes, alerts, key updates); there may be nothing."""
        return self._outgoing.read()

    def farewell(self) -> bytes:
        """Returns the alert that ends the session in order."""
        try:
            self._ssl.unwrap()
        except ssl.SSLError:
            pass  # the other side has not said goodbye yet, and nobody waits for it to
        return self._outgoing.read()


async def _send(sock: socket.socket, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[sock.send(view) :]
        except (BlockingIOError, InterruptedError):
            await trio.lowlevel.wait_writable(sock)


class RefusedError(Exception):
    """A connection is not let in, or not kept. The text says why; `reason` is the kind of it, for metrics."""

    def __init__(self, text: str, reason: str = NOT_LET_IN) -> None:
        super().__init__(text)
        self.reason = reason


class Handshakes:
    """The handshakes of one port, of which one computes at a time, for one step of its handshake.

    A step takes OpenSSL a millisecond or so. Who has done his hands on to the next, who runs in the next pass of Trio's
    scheduler: so there is one step in each pass, and between two of them the node reads, has its turn and hears its
    timers, however many strangers want to shake hands. Addresses have their steps by turns: a crowd of one address
    keeps those of others waiting for one step, and not for all of its own.
    """

    def __init__(self, wait: WaitReadable = trio.lowlevel.wait_readable) -> None:
        """`wait` returns when a socket can be read. With Trio's, all handshakes whose bytes have come are woken in the
        same pass."""
        self._wait = wait
        self._is_computed = False
        self._waiting: dict[str, deque[trio.Event]] = {}
        """By share (`share_of`), the next share first: an event for each handshake that waits for a step. It is set
        when the step begins."""

    async def accept(self, sock: socket.socket, context: ssl.SSLContext, share: str) -> TlsSession:
        """Does the server's side of a handshake with somebody whose address counts as `share`. Raises RefusedError."""
        session = TlsSession(context, server_side=True)
        await _shake_hands(sock, session, _Steps(self, share), self._wait)
        return session

    async def begin_step(self, share: str) -> None:
        """Returns when it is this share's step; `end_step` must follow. Raises only what cancels the wait."""
        if not self._is_computed:
            self._is_computed = True
            await trio.lowlevel.cancel_shielded_checkpoint()  # another has computed in this pass, perhaps
            return
        begun = trio.Event()
        self._waiting.setdefault(share, deque()).append(begun)
        try:
            await begun.wait()
        except BaseException:
            # Its step had come when the wait was given up: it is the next one's.
            if begun.is_set():
                self.end_step()
            else:
                self._waiting[share].remove(begun)
                if not self._waiting[share]:
                    del self._waiting[share]
            raise

    def end_step(self) -> None:
        """Hands on to the next share."""
        share = next(iter(self._waiting), None)
        if share is None:
            self._is_computed = False
            return
        waiting = self._waiting.pop(share)
        waiting.popleft().set()
        if waiting:
            self._waiting[share] = waiting  # behind all others


class _Steps(AbstractAsyncContextManager[None]):
    """The steps of one handshake, each inside of an `async with`."""

    def __init__(self, handshakes: Handshakes, share: str) -> None:
        self._handshakes = handshakes
        self._share = share

    async def __aenter__(self) -> None:
        await self._handshakes.begin_step(self._share)

    async def __aexit__(self, *_error: object) -> None:
        self._handshakes.end_step()


async def dial_tls(sock: socket.socket, context: ssl.SSLContext, host: str) -> TlsSession:
    """Does the client's side of a handshake with `host`. Raises RefusedError."""
    session = TlsSession(context, server_side=False, server_hostname=host)
    # A lock of its own: a node dials few, and nobody can make it dial more.
    await _shake_hands(sock, session, trio.Lock())
    return session


async def _shake_hands(
    sock: socket.socket,
    session: TlsSession,
    steps: AbstractAsyncContextManager[None],
    wait: WaitReadable = trio.lowlevel.wait_readable,
) -> None:
    """Does a handshake. Raises RefusedError, which says in words what was wrong."""
    try:
        await session.handshake(sock, steps, wait)
    except ssl.SSLCertVerificationError as error:
        raise RefusedError(f"its certificate is not good: {error.verify_message}") from error
    except ssl.SSLError as error:
        raise RefusedError(f"TLS handshake failed: {(error.reason or str(error)).lower()}") from error
    except OSError as error:
        raise RefusedError(f"lost during the TLS handshake: {error}") from error

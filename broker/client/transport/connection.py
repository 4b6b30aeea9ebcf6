"""A TCP connection to a broker or name server, which all calls to that address share.

A call is an entry in a table, from its opaque to its waiter, and one event: no task, no cancel scope. Three tasks serve
all calls of a connection, whatever their number: one reads and wakes waiters, one writes, one watches deadlines.

- Writes are coalesced: a call that finds others in flight leaves its bytes to the writer. The writer runs after all
  tasks that the last read woke, and sends everything with one system call. A call that is alone writes at once.
- Deadlines are kept in the table only. The watcher sleeps until the earliest one that it saw; calls that were answered
  meanwhile cost it nothing, so under load it wakes once in a time limit and not once a call.
- A cancelled call leaves the table, and its response is dropped when it comes. Its frame is written to the end all the
  same: half a frame would spoil the connection for everybody.
- A time limit that passes while the peer says nothing at all closes the connection: the peer or the path is gone, and
  a new connection finds out sooner than TCP does. If the peer spoke meanwhile the connection stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from broker.client.errors import CallTimeout, ConnectFailed, ConnectionFailed, ConnectionLost
from broker.client.transport.credentials import Credentials, Signer
from broker.client.transport.runtime import Buffer, ByteStream, Event, Runtime
from broker.remoting.codes import FLAG_RESPONSE, RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, encode_head, request, response
from broker.remoting.errors import FrameError
from broker.remoting.frame import BrokenStreamError, FrameDecoder
from broker.requests.greeting import GreetingError

CALL_TIMEOUT_S = 3.0
"""Time limit of a call that names none, in seconds."""
BACKLOG_BYTES_MAX = 8 * 1024 * 1024
"""Unsent bytes above which a new call waits for room: a peer that does not read cannot grow this process."""
_GREETING_PATIENCE_S = 0.5
"""A greeting that is not answered for so long may be none that the server knows."""
_NEVER_NS = 1 << 62
_OPAQUE_MASK = 0x7FFFFFFF

Fields = Mapping[str, str] | msgspec.Struct | None
RequestHandler = Callable[["Connection", RemotingCommand], None]
"""Handles a request of the peer, and answers it with `Connection.respond` or not at all. It must not block."""


class PendingCall:
    """A request on its way. Whoever starts one must `wait` for its response or `abandon` it."""

    __slots__ = (
        "_connection",
        "_event",
        "deadline_ns",
        "error",
        "opaque",
        "response",
        "start_byte",
        "started_ns",
    )

    def __init__(
        self,
        connection: Connection,
        event: Event,
        opaque: int,
        started_ns: int,
        deadline_ns: int,
        start_byte: int,
    ) -> None:
        self._connection = connection
        self._event = event
        self.opaque = opaque
        self.started_ns = started_ns
        self.deadline_ns = deadline_ns
        self.start_byte = start_byte
        self.response: RemotingCommand | None = None
        self.error: ConnectionFailed | None = None

    async def wait(self) -> RemotingCommand:
        """Return the response, whatever its code.

        Raises CallTimeout or ConnectionLost; `request_left` says whether the peer may have acted.
        """
        try:
            await self._event.wait()
        except BaseException:
            self.abandon()
            raise
        if self.error is not None:
            raise self.error
        assert self.response is not None
        return self.response

    async def arrived(self) -> None:
        """Wait until there is a response or an error; the call goes on if this wait is cancelled."""
        await self._event.wait()

    def abandon(self) -> None:
        """Leave the table of calls, as nobody wants the response any more."""
        self._connection.calls.pop(self.opaque, None)

    def finish(self, response: RemotingCommand | None, error: ConnectionFailed | None) -> None:
        """Wake the waiter with a response or an error. The connection calls it, once."""
        self.response = response
        self.error = error
        self._event.set()


class Connection:
    """A multiplexed connection; `run` serves it until it ends or is closed.

    ``handlers`` says, by request code, who handles what the peer asks on this connection;
    other requests are answered with code 3. `introduce` has requests signed from then on.
    """

    def __init__(
        self,
        runtime: Runtime,
        address: str,
        stream: ByteStream,
        handlers: Mapping[int, RequestHandler],
    ) -> None:
        self.address = address
        self.calls: dict[int, PendingCall] = {}
        self.closed = False
        self.close_reason = "not closed"
        self._runtime = runtime
        self._stream = stream
        self._handlers = handlers
        self._signer: Signer | None = None
        self._last_opaque = 0
        self._backlog: list[Buffer] = []
        """Buffers that wait for the writer, of ``_backlog_bytes`` in all."""
        self._backlog_bytes = 0
        # Both only grow: bytes that calls have queued, and bytes of them that were handed to the stream. A call whose
        # first byte (`PendingCall.start_byte`) is below the second number may have reached the peer.
        self._queued_bytes = 0
        self._handed_bytes = 0
        self._writing = False
        self._writer_wake: Event | None = None
        self._room: Event | None = None
        self._watcher_wake: Event = runtime.event()
        self._watched_until_ns = _NEVER_NS
        """The watcher sleeps until then; no call in the table is due earlier."""
        self._received_ns = runtime.now_ns()
        """When the last bytes of the peer came."""

    async def introduce(self, credentials: Credentials) -> None:
        """Ask for a greeting, and sign all requests from now on. `run` must be running, and nothing else in flight.

        Raises CallTimeout or ConnectionLost, ConnectFailed for a server that does not greet now.
        """
        greeting = self.start_call(RequestCode.TRIVET_GREETING)
        try:
            with self._runtime.move_on_after(_GREETING_PATIENCE_S):
                await greeting.arrived()
            if greeting.response is None and greeting.error is None:
                # RocketMQ's name servers leave what they do not know without an answer. Trivet's servers answer in
                # order: once this question is answered, and the greeting is not, there will be none.
                await self.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
        finally:
            greeting.abandon()
        if greeting.error is not None:
            raise greeting.error
        try:
            self._signer = Signer(credentials, greeting.response)
        except GreetingError as error:
            self.close(str(error))
            raise ConnectFailed(self.address, str(error)) from error

    # Calls ---------------------------------------------------------------------------------------------------------

    async def call(
        self, code: int, fields: Fields = None, body: Buffer = b"", timeout_s: float = CALL_TIMEOUT_S
    ) -> RemotingCommand:
        """Send a request and wait up to ``timeout_s`` for its response, whatever its code.

        Raises CallTimeout, ConnectionLost.
        """
        if self._backlog_bytes > BACKLOG_BYTES_MAX:
            await self._wait_for_room(timeout_s)
        return await self.start_call(code, fields, body, timeout_s).wait()

    def start_call(
        self, code: int, fields: Fields = None, body: Buffer = b"", timeout_s: float = CALL_TIMEOUT_S
    ) -> PendingCall:
        """Send a request without waiting for anything; its response is due in ``timeout_s``.

        Raises ConnectionLost when the connection is closed.
        """
        if self.closed:
            raise ConnectionLost(self.address, self.close_reason, request_left=False)
        command = self._request(code, fields, body, one_way=False)
        opaque = command.opaque
        head = encode_head(command, len(body))
        now_ns = self._runtime.now_ns()
        deadline_ns = now_ns + int(timeout_s * 1e9)
        pending = PendingCall(self, self._runtime.event(), opaque, now_ns, deadline_ns, self._queued_bytes)
        alone = not self.calls
        self.calls[opaque] = pending
        if deadline_ns < self._watched_until_ns:
            self._watched_until_ns = deadline_ns
            self._watcher_wake.set()
        self._write(head, body, alone)
        return pending

    def send_one_way(self, code: int, fields: Fields = None, body: Buffer = b"") -> None:
        """Send a request that is never answered; nothing tells whether it arrives. Raises ConnectionLost."""
        if self.closed:
            raise ConnectionLost(self.address, self.close_reason, request_left=False)
        command = self._request(code, fields, body, one_way=True)
        self._write(encode_head(command, len(body)), body, alone=False)

    async def send_one_way_with_room(self, code: int, fields: Fields = None, body: Buffer = b"") -> None:
        """Do what `send_one_way` does, once the peer has taken enough of what was sent before.

        Raises ConnectionLost, and CallTimeout when the peer takes nothing for 3 s.
        """
        if self._backlog_bytes > BACKLOG_BYTES_MAX:
            await self._wait_for_room(CALL_TIMEOUT_S)
        self.send_one_way(code, fields, body)

    def _request(self, code: int, fields: Fields, body: Buffer, *, one_way: bool) -> RemotingCommand:
        """Return the next request, signed if need be.

        Raises ConnectionLost where a signed one would have a number twice: it would count as repeated.
        """
        opaque = self._last_opaque = (self._last_opaque + 1) & _OPAQUE_MASK
        view = memoryview(body) if isinstance(body, bytearray) else body
        command = request(code, fields, view, opaque=opaque, one_way=one_way, language="PYTHON")
        if self._signer is not None:
            if opaque == 0:
                self.close("all numbers of signed requests are used")
                raise ConnectionLost(self.address, self.close_reason, request_left=False)
            self._signer.sign(command)
        return command

    def respond(
        self,
        to: RemotingCommand,
        code: int,
        remark: str | None = None,
        fields: Fields = None,
    ) -> None:
        """Answer a request of the peer. Does nothing when the peer wants no response or is gone."""
        if to.is_one_way or self.closed:
            return
        self._write(encode_head(response(to, code, remark, fields), 0), b"", alone=False)

    async def _wait_for_room(self, timeout_s: float) -> None:
        with self._runtime.move_on_after(timeout_s):
            while self._backlog_bytes > BACKLOG_BYTES_MAX and not self.closed:
                if self._room is None:
                    self._room = self._runtime.event()
                await self._room.wait()
            return
        raise CallTimeout(self.address, f"the peer took nothing for {timeout_s} s", request_left=False)

    def _write(self, head: bytes, body: Buffer, alone: bool) -> None:
        buffers: list[Buffer] = [head, body] if len(body) else [head]
        size = len(head) + len(body)
        self._queued_bytes += size
        if alone and not self._backlog and not self._writing:
            # Nobody else's bytes can follow soon, so waiting for the writer would only cost a task switch.
            self._handed_bytes += size
            try:
                sent = self._stream.write_nowait(buffers)
            except OSError as error:
                self.close(f"connection lost: {error}")
                return
            if sent == size:
                return
            buffers = [memoryview(b"".join(buffers))[sent:]]
            size -= sent
            self._handed_bytes -= size
        self._backlog += buffers
        self._backlog_bytes += size
        if self._writer_wake is not None:
            self._writer_wake.set()

    # Tasks ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the connection until it ends; every call that waits then gets ConnectionLost."""
        try:
            async with self._runtime.task_group() as group:
                group.start_soon(self._write_loop)
                group.start_soon(self._watch_deadlines)
                try:
                    await self._read_loop()
                finally:
                    group.cancel()
        finally:
            self.close("the client was closed")

    async def _read_loop(self) -> None:
        decoder = FrameDecoder()
        calls = self.calls
        while not self.closed:
            try:
                data = await self._stream.receive_some()
            except OSError as error:
                self.close(f"connection lost: {error}")
                return
            if not data:
                self.close("the peer closed the connection")
                return
            self._received_ns = self._runtime.now_ns()
            damage: FrameError | None = None
            try:
                commands = decoder.feed(data)
            except BrokenStreamError as error:
                commands, damage = error.commands, error
            for command in commands:
                if command.flag & FLAG_RESPONSE:
                    if self._signer is not None:
                        self._signer.answered(command.code)
                    pending = calls.pop(command.opaque, None)
                    if pending is not None:
                        pending.finish(command, None)
                else:
                    self._handle_request(command)
            if damage is not None:
                self.close(f"the peer sent what is no frame: {damage}")

    def _handle_request(self, command: RemotingCommand) -> None:
        handler = self._handlers.get(command.code)
        if handler is None:
            unsupported = f" request type {command.code} not supported"
            self.respond(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, unsupported)
        else:
            handler(self, command)

    async def _write_loop(self) -> None:
        while not self.closed:
            if not self._backlog:
                self._writer_wake = self._runtime.event()
                await self._writer_wake.wait()
                self._writer_wake = None
                continue
            buffers, self._backlog = self._backlog, []
            size, self._backlog_bytes = self._backlog_bytes, 0
            self._handed_bytes += size
            self._writing = True
            try:
                await self._stream.send_all(buffers)
            except OSError as error:
                self.close(f"connection lost: {error}")
                return
            self._writing = False
            if self._room is not None:
                self._room.set()
                self._room = None

    async def _watch_deadlines(self) -> None:
        runtime = self._runtime
        while True:
            with runtime.move_on_after((self._watched_until_ns - runtime.now_ns()) / 1e9):
                await self._watcher_wake.wait()
                self._watcher_wake = runtime.event()
                continue  # an earlier deadline than the one slept for
            now_ns = runtime.now_ns()
            overdue = [pending for pending in self.calls.values() if pending.deadline_ns <= now_ns]
            # Nothing has come since one of them was sent: the peer or the path is gone (see the head of this module).
            silent = any(pending.started_ns >= self._received_ns for pending in overdue)
            for pending in overdue:
                del self.calls[pending.opaque]
                limit_s = (pending.deadline_ns - pending.started_ns) / 1e9
                detail = f"no response within {limit_s:.3g} s"
                pending.finish(None, CallTimeout(self.address, detail, self._has_left(pending)))
            if silent:
                self.close("closed after a time limit passed without a byte from the peer")
                return
            self._watched_until_ns = min(
                (pending.deadline_ns for pending in self.calls.values()), default=_NEVER_NS
            )

    def _has_left(self, pending: PendingCall) -> bool:
        """Tell whether a byte of the request was handed to the stream, so that the peer may act on it."""
        return self._handed_bytes > pending.start_byte

    def close(self, reason: str = "closed") -> None:
        """Close at once; every call that waits gets ConnectionLost. Does nothing the second time."""
        if self.closed:
            return
        self.closed = True
        self.close_reason = reason
        self._stream.close()
        calls, self.calls = self.calls, {}
        for pending in calls.values():
            pending.finish(None, ConnectionLost(self.address, reason, self._has_left(pending)))
        self._backlog.clear()
        for event in (self._writer_wake, self._room):
            if event is not None:
                event.set()

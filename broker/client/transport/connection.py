"""A TCP connection to a broker or name server, which all calls to that address share.

A call is an entry in a table, from its opaque to what is to be told of its end (calls.py): no task, no cancel scope.
Three tasks serve all calls of a connection, whatever their number: one reads and tells calls of their responses, one
writes, one watches deadlines.

- Writes are coalesced (write_queue.py): a call that finds others in flight leaves its bytes to the writer. The writer
  runs after all tasks that the last read woke, and sends everything with one system call. A call that is alone writes
  at once, and what the ends of calls begin anew is written when the whole read has been handled.
- Deadlines are kept in the table only. The watcher sleeps until the earliest one that it saw; calls that were answered
  meanwhile cost it nothing, so under load it wakes once in a time limit and not once a call.
- A cancelled call leaves the table, and its response is dropped when it comes. Its frame is written to the end all the
  same: half a frame would spoil the connection for everybody.
- A time limit that passes while the peer says nothing at all closes the connection: the peer or the path is gone, and
  a new connection finds out sooner than TCP does. If the peer spoke meanwhile the connection stays.
"""

from collections.abc import Callable, Mapping

import msgspec

from broker.client.errors import CallTimeout, ConnectFailed, ConnectionLost
from broker.client.transport.calls import Call, PendingCall
from broker.client.transport.credentials import Credentials, Signer
from broker.client.transport.runtime import Buffer, ByteStream, Event, Runtime
from broker.client.transport.write_queue import WriteQueue
from broker.remoting.codes import FLAG_RESPONSE, RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, encode_head, request, response
from broker.remoting.frame import BrokenStreamError, FrameDecoder
from broker.requests.greeting import PATIENCE_S, PROBE_CODE, PROBE_FIELDS, GreetingError

CALL_TIMEOUT_S = 3.0
"""Time limit of a call that names none, in seconds."""
_NEVER_NS = 1 << 62
_OPAQUE_MASK = 0x7FFFFFFF

Fields = Mapping[str, str] | msgspec.Struct | None
RequestHandler = Callable[["Connection", RemotingCommand], None]
"""Handles a request of the peer, and answers it with `Connection.respond` or not at all. It must not block."""


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
        self.calls: dict[int, Call] = {}
        self.closed = False
        self.close_reason = "not closed"
        self._runtime = runtime
        self._stream = stream
        self._handlers = handlers
        self._signer: Signer | None = None
        self._last_opaque = 0
        self._out = WriteQueue(runtime, stream)
        self._watcher_wake: Event = runtime.event()
        self._watched_until_ns = _NEVER_NS
        """The watcher sleeps until then; no call in the table is due earlier."""
        self._received_ns = runtime.now_ns()
        """The time at which the last bytes of the peer came."""

    async def introduce(self, credentials: Credentials) -> None:
        """Ask for a greeting, and sign all requests from now on. `run` must be running, and nothing else in flight.

        Raises CallTimeout or ConnectionLost, ConnectFailed for a server that does not greet now.
        """
        greeting = self.start_call(RequestCode.TRIVET_GREETING)
        try:
            with self._runtime.move_on_after(PATIENCE_S):
                await greeting.arrived()
            if greeting.response is None and greeting.error is None:
                # Once this is answered, and the greeting is not, there will be none.
                await self.call(PROBE_CODE, PROBE_FIELDS)
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
        await self.wait_room(timeout_s)
        return await self.start_call(code, fields, body, timeout_s).wait()

    def start_call(
        self, code: int, fields: Fields = None, body: Buffer = b"", timeout_s: float = CALL_TIMEOUT_S
    ) -> PendingCall:
        """Send a request without waiting for anything; its response is due in ``timeout_s``.

        Raises ConnectionLost when the connection is closed.
        """
        started_ns = self._runtime.now_ns()
        deadline_ns = started_ns + int(timeout_s * 1e9)
        pending = PendingCall(self.calls, self._runtime.event(), started_ns, deadline_ns)
        self.begin(pending, code, fields, body)
        return pending

    def begin(self, call: Call, code: int, fields: Fields, body: Buffer) -> None:
        """Send a request whose end the call is told of, due at its ``deadline_ns``.

        Raises ConnectionLost when the connection is closed.
        """
        command = self._request(code, fields, body, one_way=False)
        self.begin_encoded(call, command.opaque, encode_head(command, len(body)), body)

    def begin_encoded(self, call: Call, opaque: int, head: bytes, body: Buffer) -> None:
        """Do what `begin` does, with a head that was made for this connection, with the number of `next_opaque`.

        The connection must not sign its requests. Raises ConnectionLost when it is closed.
        """
        if self.closed:
            raise ConnectionLost(self.address, self.close_reason, request_left=False)
        calls = self.calls
        call.opaque = opaque
        call.start_byte = self._out.queued_bytes
        is_alone = not calls
        # Before its bytes leave: `close` ends what is in the table, and a write that fails closes.
        calls[opaque] = call
        if call.deadline_ns < self._watched_until_ns:
            self._watched_until_ns = call.deadline_ns
            self._watcher_wake.set()
        try:
            # Alone, nobody else's bytes can follow soon: waiting for the writer would only cost a task switch.
            self._out.put(head, body, is_alone=is_alone)
        except OSError as error:
            self.close(f"connection lost: {error}")

    def next_opaque(self) -> int:
        """Return the number of the next request."""
        opaque = self._last_opaque = (self._last_opaque + 1) & _OPAQUE_MASK
        return opaque

    @property
    def signs_requests(self) -> bool:
        """Tell whether requests need signatures, so that nobody else may encode them."""
        return self._signer is not None

    @property
    def is_full(self) -> bool:
        """Tell whether so much waits to be written that who has more should `wait_room` first."""
        return self._out.is_full

    async def wait_room(self, timeout_s: float) -> None:
        """Wait until the peer has taken enough of what was sent before, or the connection is closed.

        Raises CallTimeout.
        """
        await self._out.wait_room(self.address, timeout_s)

    def send_one_way(self, code: int, fields: Fields, body: Buffer = b"") -> None:
        """Send a request that is never answered; nothing tells whether it arrives. Raises ConnectionLost."""
        command = self._request(code, fields, body, one_way=True)
        self._out.put(encode_head(command, len(body)), body)

    async def send_one_way_with_room(self, code: int, fields: Fields, body: Buffer) -> None:
        """Do what `send_one_way` does, once the peer has taken enough of what was sent before.

        Raises ConnectionLost, and CallTimeout when the peer takes nothing for 3 s.
        """
        await self.wait_room(CALL_TIMEOUT_S)
        self.send_one_way(code, fields, body)

    def _request(self, code: int, fields: Fields, body: Buffer, *, one_way: bool) -> RemotingCommand:
        """Return the next request, signed if need be.

        Raises ConnectionLost when the connection is closed, as it is when a signed request would have a number twice:
        it would count as repeated.
        """
        if self.closed:
            raise ConnectionLost(self.address, self.close_reason, request_left=False)
        opaque = self.next_opaque()
        view = memoryview(body) if isinstance(body, bytearray) else body
        command = request(code, fields, view, opaque=opaque, one_way=one_way, language="PYTHON")
        if self._signer is not None:
            if opaque == 0:
                self.close("all numbers of signed requests are used")
                raise ConnectionLost(self.address, self.close_reason, request_left=False)
            self._signer.sign(command)
        return command

    def respond(self, to: RemotingCommand, code: int, remark: str | None = None, body: bytes = b"") -> None:
        """Answer a request of the peer. Does nothing when the peer wants no response or is gone."""
        if to.is_one_way or self.closed:
            return
        self._out.put(encode_head(response(to, code, remark), len(body)), body)

    def _write_now(self) -> None:
        try:
            self._out.write_now()
        except OSError as error:
            self.close(f"connection lost: {error}")

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
            damage: str | None = None
            try:
                commands = decoder.feed(data)
            except BrokenStreamError as error:
                # Responses that came whole before the damage are true, and end their calls.
                commands, damage = error.commands, str(error)
            # What the ends of these calls begin anew is written together, by `_write_now`.
            self._out.hold()
            for command in commands:
                if command.flag & FLAG_RESPONSE:
                    if self._signer is not None:
                        self._signer.answered(command.code)
                    call = calls.pop(command.opaque, None)
                    if call is not None:
                        call.finish(command, None)
                else:
                    self._handle_request(command)
            self._write_now()
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
        try:
            await self._out.run()
        except OSError as error:
            self.close(f"connection lost: {error}")

    async def _watch_deadlines(self) -> None:
        runtime = self._runtime
        while True:
            with runtime.move_on_after((self._watched_until_ns - runtime.now_ns()) / 1e9):
                await self._watcher_wake.wait()
                self._watcher_wake = runtime.event()
                continue  # an earlier deadline than the one slept for
            now_ns = runtime.now_ns()
            overdue = [call for call in self.calls.values() if call.deadline_ns <= now_ns]
            # Nothing has come since one of them was sent: the peer or the path is gone (see the head of this module).
            silent = any(call.started_ns >= self._received_ns for call in overdue)
            for call in overdue:
                del self.calls[call.opaque]
                limit_s = (call.deadline_ns - call.started_ns) / 1e9
                detail = f"no response within {limit_s:.3g} s"
                call.finish(None, CallTimeout(self.address, detail, self._has_left(call)))
            if silent:
                self.close("closed after a time limit passed without a byte from the peer")
                return
            self._watched_until_ns = min(
                (call.deadline_ns for call in self.calls.values()), default=_NEVER_NS
            )

    def _has_left(self, call: Call) -> bool:
        """Tell whether a byte of the request was handed to the stream, so that the peer may act on it."""
        return self._out.handed_bytes > call.start_byte

    def close(self, reason: str = "closed") -> None:
        """Close at once; every call that waits gets ConnectionLost. Does nothing the second time."""
        if self.closed:
            return
        self.closed = True
        self.close_reason = reason
        self._stream.close()
        self._out.close()
        # Closed and empty before they are told: what they begin anew has to go elsewhere.
        calls = list(self.calls.values())
        self.calls.clear()
        for call in calls:
            call.finish(None, ConnectionLost(self.address, reason, self._has_left(call)))

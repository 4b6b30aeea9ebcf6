"""The connections of the clients of one server, a broker or a name server: bytes in, requests out, until they go idle.

A connection that comes (`ClientSessions.accept`) takes one of the server's places (`connection_places.py`), or is
refused where none can be had. It may stay silent for `idle_ns`; if it begins a TLS handshake, it has `HANDSHAKE_NS` for
that; then it is let in. Until then the server does not know it, and until its first request its place may go to another
connection. The shell, or the simulator, says what becomes of it:

    state      its time limit   ends by
    arriving   as above         `let_in`; `refuse`, then `lost`; `lost`
    let in     `idle_ns`        `lost`, behind `refuse` or whatever closes it

A client that neither reads nor writes for `idle_ns` is closed, as RocketMQ's remoting server does it
(IdleStateHandler). One that sends a malformed frame, or a frame beyond a bound, is closed after the good requests
before it have been handled; where it is a bound, the sender is told which one.

One read may bring thousands of short requests. Some are handled at once (`WORK_AT_ONCE`); the rest waits in its order,
and some of it is handled in each turn that follows. Addresses take turns at that, and on each the connections do. A
connection with requests that wait is not read from (`Connection.has_unhandled`), so that what waits is no more than one
read of each.

All together hold no more of frames that are not whole than `broker.requests.incoming` allows, and strangers leave no
more unread than `broker.requests.strangers_unread` does.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import FrameErrorReason
from broker.remoting.frame import (
    CLIENT_FIELDS_MAX,
    CLIENT_HEADER_BYTES_MAX,
    BrokenStreamError,
    FrameDecoder,
)
from broker.requests.connection import LOOPBACK_HOST, Connection, Outgoing
from broker.requests.connection_places import ConnectionPlaces
from broker.requests.deadline import Time
from broker.requests.errors import RequestError
from broker.requests.greeting import greet
from broker.requests.in_turn import InTurn
from broker.requests.incoming import IncompleteFrames
from broker.requests.line import Surroundings
from broker.requests.responses import reply
from broker.requests.strangers_unread import StrangersUnread
from broker.requests.work import work_of
from broker.statistics.events import EventKind, Events

_GREETING: Final = int(RequestCode.TRIVET_GREETING)

SWEEP_NS: Final = 5_000_000_000
"""The time between two sweeps for idle clients, and for those who are not let in within their time."""

HANDSHAKE_NS: Final = 10_000_000_000
"""A TLS handshake that takes longer is given up, by the next sweep."""

WORK_AT_ONCE: Final = 256
"""The work that is done of one read, and then in each turn, in short requests: some milliseconds' work."""

_FEW: Final = 32
"""The number of requests that are handled at once without a look at what they cost."""

SENT_AWAY_AT_ONCE: Final = 64
"""The most connections that a sweep closes in one turn. Each costs up to 0.1 ms with what follows, and thousands that
came together are due together."""

NOT_LET_IN: Final = "not let in"
"""The reason by which those are counted that had a place, and were refused before any request could come."""

_TOLD_AT_ONCE: Final = 10
"""Connections of one address that are refused for various reasons, of which each is worth a line."""


class Server(Protocol):
    """The server that clients are connected to: a node of a group, or a name server."""

    @property
    def can_prove_clients(self) -> bool:
        """True where clients can show an account."""

    @property
    def has_strangers(self) -> bool:
        """True where clients that have shown no account are limited, also in what they leave unread."""

    def client_connected(self, connection: Connection) -> None:
        """Hears of a connection that is let in."""

    def received(self, connection: Connection, command: RemotingCommand) -> None:
        """Takes a request, any but a greeting."""

    def client_disconnected(self, connection: Connection) -> None:
        """Hears that a connection which was let in has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """The bounds on the sessions of one server."""

    connections_max: int
    """Connections at a time."""
    idle_ns: int
    """The time for which a client may neither read nor write."""
    work_at_once: int = WORK_AT_ONCE
    """The work that is done of one read, and then in each turn, in short requests."""


class _NoFrame(NamedTuple):
    """The facts of a `BrokenStreamError`. The error itself is not kept: its traceback would keep the bytes that were
    read."""

    reason: FrameErrorReason
    told: str
    request: RemotingCommand | None
    """The request in response to which the sender is told; None for whoever does not seem to speak the protocol."""


class ClientSession:
    """One connection of a client, from its arrival on."""

    __slots__ = (
        "_decoder",
        "_ends_with",
        "_sessions",
        "_stays",
        "_unhandled",
        "active_ns",
        "connection",
        "has_begun",
    )

    def __init__(self, sessions: "ClientSessions", connection: Connection) -> None:
        self.connection = connection
        self.active_ns = sessions.time.now_ns
        """The time at which something came last, or at which a sweep saw last that something had been written."""
        self.has_begun = False
        """True once the client has begun a TLS handshake, behind which a request may come."""
        self._sessions = sessions
        self._stays = False
        """True once its place cannot go to another connection any more."""
        self._decoder = FrameDecoder(header_bytes_max=CLIENT_HEADER_BYTES_MAX, fields_max=CLIENT_FIELDS_MAX)
        self._unhandled: deque[RemotingCommand] = deque()
        """Requests that wait for their turn; `connection.has_unhandled` says that there are some."""
        self._ends_with: _NoFrame | None = None
        """The reason why the bytes behind the last request are not a frame: the connection ends with it."""

    def shakes_hands(self) -> None:
        """Hears that the client has begun a TLS handshake."""
        sessions = self._sessions
        sessions.begin()
        self.has_begun = True
        until_ns = sessions.time.now_ns + HANDSHAKE_NS
        sessions.arriving[self] = until_ns, f"no TLS handshake within {HANDSHAKE_NS / 1e9:g} s"

    def let_in(self, *, is_encrypted: bool = False, is_certified: bool = False) -> None:
        """Hears that requests can come now, in the clear or encrypted."""
        sessions, connection = self._sessions, self.connection
        assert not connection.aborted, "who has lost its place is not let in"
        sessions.begin()
        del sessions.arriving[self]
        sessions.open[connection] = self
        connection.is_encrypted, connection.is_certified = is_encrypted, is_certified
        self.active_ns = sessions.time.now_ns
        sessions.server.client_connected(connection)
        if self.has_begun:  # else something has come, and is about to be received
            sessions.wake()

    def received(self, data: bytes) -> None:
        """Takes bytes that have come. They are ignored on a connection that is to be closed."""
        sessions, connection, decoder = self._sessions, self.connection, self._decoder
        if connection.close_requested:
            return
        sessions.begin()
        self.active_ns = sessions.time.now_ns
        # What was held before is told below, too: it may have become whole by these bytes, and counts no more.
        held = decoder.pending_size
        # Good requests before a malformed frame are handled: their client may have sent them long before.
        try:
            commands = decoder.feed(data)
        except BrokenStreamError as error:
            commands = error.commands
            # The first reason counts: requests before it may still wait, and whatever follows it is no frame either.
            if self._ends_with is None:
                self._ends_with = _NoFrame(error.reason, str(error), error.request)
        if self._unhandled:
            self._unhandled += commands  # in the order in which they came
        else:
            self._handle_some(commands)
            if self._ends_with is not None and not self._unhandled:
                self._end(self._ends_with)
        # Behind the requests: whether it shows an account is known when they are handled.
        if commands and not self._stays:
            self._stays = sessions.places.asked(connection)
        # The bytes of whole frames are not counted: they are handled, or stand among `_unhandled`.
        if held or decoder.pending_size:
            sessions.incomplete.holds(connection, decoder.pending_size, anew=bool(commands))
        if not connection.is_proven:
            self._look_at_unread()
        sessions.wake()

    def _look_at_unread(self) -> None:
        sessions, connection = self._sessions, self.connection
        if not connection.aborted and sessions.server.has_strangers:
            sessions.unread.close_if_too_much(connection)

    def _handle_some(self, commands: Sequence[RemotingCommand]) -> None:
        """Handles requests that have just come, or as many as may be handled at once; the rest has to wait."""
        sessions, connection = self._sessions, self.connection
        handle, left = sessions.handle, sessions.work_at_once
        is_counted = len(commands) > _FEW or left < _FEW
        for number, command in enumerate(commands):
            if is_counted:
                if left <= 0:
                    self._unhandled.extend(commands[number:])
                    connection.has_unhandled = True
                    sessions.unhandled.add(connection.share, self)
                    return
                left -= work_of(command)
            if command.code == _GREETING:
                self._greet(command)
            else:
                handle(connection, command)

    def go_on(self) -> int:
        """Handles one request that has waited, unless the connection is to be closed; returns what that has cost.

        `connection.has_unhandled` says whether more of them wait.
        """
        connection = self.connection
        if connection.close_requested:
            self._unhandled.clear()
            connection.has_unhandled = False
            return 0
        # A greeting is answered here also where it waited: behind it the client signs for the nonce that it is told.
        command = self._unhandled.popleft()
        if command.code == _GREETING:
            self._greet(command)
        else:
            self._sessions.handle(connection, command)
        # What was put off until all of one read is handled, as in `received`.
        if not self._unhandled:
            connection.go_on_reading()
            if self._ends_with is not None:
                self._end(self._ends_with)
            if not self._stays:
                self._stays = self._sessions.places.asked(connection)
            if not connection.is_proven:
                self._look_at_unread()
        return work_of(command)

    def _end(self, broken: _NoFrame) -> None:
        """Ends a connection on which malformed bytes came behind the last request, now that this one is handled."""
        sessions, connection = self._sessions, self.connection
        if connection.close_requested:
            return
        sessions.events.warn(
            EventKind.CONNECTION_CLOSED,
            broken.reason.value,  # by which bounds are told apart from what is no frame at all
            sessions.time.now_ns,
            source=connection.address,
            client=connection.name,
            detail=broken.told,
        )
        # Whoever does not seem to speak the protocol would not understand a response.
        if broken.request is not None:
            reply(connection, broken.request, ResponseCode.SYSTEM_ERROR, broken.told)
        connection.close()

    def _greet(self, command: RemotingCommand) -> None:
        """Answers a greeting, whoever sends it: it comes before anybody can prove who he is."""
        connection = self.connection
        if command.is_response:
            return
        try:
            reply(connection, command, ResponseCode.SUCCESS, fields=greet(connection, self._sessions.nonce))
        except RequestError as refused:
            # Once for each connection: then it cannot be made to keep responses that nobody reads.
            self._sessions.events.warn(
                EventKind.CONNECTION_CLOSED,
                "greeted again",
                self._sessions.time.now_ns,
                source=connection.address,
                client=connection.name,
                detail=refused.remark,
            )
            connection.close()

    def refuse(self, reason: str, detail: str) -> None:
        """Ends the connection, let in or not, for a reason that its owner knows, which is told and counted."""
        self._sessions.begin()
        self._sessions.must_go(reason, self.connection, detail)
        self._sessions.wake()

    def lost(self) -> None:
        """Hears that the connection is closed, let in or not. To be called once."""
        sessions = self._sessions
        # First, whether it was let in or not: it has had its place since it came.
        sessions.places.free(self.connection)
        # The server has never heard of it.
        if sessions.arriving.pop(self, None) is not None:
            sessions.wake()
            return
        self._decoder.forget()
        self._unhandled.clear()
        self.connection.has_unhandled = False
        sessions.incomplete.holds(self.connection, 0)
        sessions.unread.lost(self.connection)
        del sessions.open[self.connection]
        sessions.begin()
        sessions.server.client_disconnected(self.connection)
        sessions.wake()


class ClientSessions:
    """The sessions of the clients of `server`. `events` is told of what they do wrong. `nonce` returns the given number
    of random bytes.

    While `unhandled` is true, somebody's requests wait: the owner wants its next turn at once, and calls `go_on`."""

    def __init__(
        self,
        server: Server,
        limits: SessionLimits,
        surroundings: Surroundings,
        time: Time,
        outgoing: Outgoing,
        nonce: Callable[[int], bytes],
        events: Events,
    ) -> None:
        self.server = server
        self.handle: Callable[[Connection, RemotingCommand], None] = server.received
        """Takes a request. Looked up once, as each request goes this way; who wants to see them puts itself before it.
        """
        self.time = time
        self.events = events
        self.nonce = nonce
        self.begin = surroundings.begin
        self.wake = surroundings.wake
        self.arriving: dict[ClientSession, tuple[int, str]] = {}
        """Sessions that are not let in yet: by when each must be (ns), and why it is closed if it is not."""
        self.open: dict[Connection, ClientSession] = {}
        """Sessions that are let in."""
        self.places = ConnectionPlaces(
            limits.connections_max, time, events, lambda: server.can_prove_clients, self._send_away
        )
        self.work_at_once = limits.work_at_once
        self.unhandled: InTurn[ClientSession] = InTurn()
        self.incomplete = IncompleteFrames(time, lambda *who: self.must_go("holds memory", *who))
        self.unread = StrangersUnread(time, lambda *who: self.must_go("leaves responses unread", *who))
        self.sweep_due_ns = time.now_ns + SWEEP_NS
        """The time of the next `sweep`: now, while more are to be closed than one turn has time for."""
        self._outgoing = outgoing
        self._idle_ns = limits.idle_ns
        self._idle_s = f"{limits.idle_ns / 1e9:g} s"

    def accept(self, name: str, host: bytes = LOOPBACK_HOST) -> ClientSession | None:
        """Returns the session of a client that has connected. Another connection may be closed to make room for it.

        `name` is the address and port that it comes from, `host` the same as in a record. Returns None where all places
        are taken by connections that stay.
        """
        self.begin()
        connection = Connection(self._outgoing, name, host)
        if not self.places.take(connection):
            return None
        session = ClientSession(self, connection)
        self.arriving[session] = self.time.now_ns + self._idle_ns, f"nothing came within {self._idle_s}"
        return session

    def part_with_silent(self, has_come: Callable[[Connection], bool]) -> bool:
        """Closes the arriving connections on which nothing has come, as `has_come` tells.

        Returns True if no others are arriving: on these a request may come yet.
        """
        left = False
        for session in self.arriving:
            connection = session.connection
            if session.has_begun or has_come(connection):
                left = True
            elif not connection.aborted:
                connection.abort()
        return not left

    def _send_away(self, connection: Connection) -> None:
        """Ends a connection whose place another gets."""
        connection.abort()
        self.wake()

    def go_on(self) -> None:
        """Handles some of the requests that wait, one of each address and so on. The owner has set the time."""
        left, unhandled = self.work_at_once, self.unhandled
        while left > 0 and unhandled.by_share:
            session = unhandled.take()
            if session.connection.has_unhandled:  # else it was lost meanwhile
                left -= session.go_on()
                if session.connection.has_unhandled:
                    unhandled.add(session.connection.share, session)

    def must_go(self, reason: str, connection: Connection, detail: str) -> None:
        """Closes a connection, let in or not, and tells and counts why; does nothing where it is closed already."""
        if connection.aborted:
            return
        is_in = connection in self.open
        self.events.warn(
            EventKind.CONNECTION_CLOSED if is_in else EventKind.CONNECTION_REFUSED,
            reason,
            self.time.now_ns,
            source=connection.address,
            at_once=1 if is_in else _TOLD_AT_ONCE,
            client=connection.name,
            detail=detail,
        )
        connection.abort()

    def sweep(self) -> None:
        """Closes the connections that are idle or arrive too slowly, and has what was kept back of warnings told; to be
        called in the first turn at or after `sweep_due_ns`, which it sets anew.
        """
        now_ns = self.sweep_due_ns = self.time.now_ns
        self.events.sweep(now_ns)
        left = SENT_AWAY_AT_ONCE
        # `must_go` only asks for the end: nobody leaves the tables of `_overdue` before this turn's output is handed
        # out.
        for connection, reason, detail in self._overdue(now_ns):
            # `sweep_due_ns` is now: the next turn goes on.
            if not left:
                return
            self.must_go(reason, connection, detail)
            left -= 1
        self.sweep_due_ns += SWEEP_NS

    def _overdue(self, now_ns: int) -> Iterator[tuple[Connection, str, str]]:
        for session, (until_ns, otherwise) in self.arriving.items():
            if until_ns <= now_ns and not session.connection.aborted:
                yield session.connection, NOT_LET_IN, otherwise
        for connection, session in self.open.items():
            # Whoever takes something is not idle. A write notes no time: it counts as of the sweep that sees it.
            if connection.was_written:
                connection.was_written = False
                session.active_ns = now_ns
            elif session.active_ns < now_ns - self._idle_ns and not connection.aborted:
                yield connection, "idle", f"nothing came or went for {self._idle_s}"

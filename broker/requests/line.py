"""A connection that a node makes itself, and makes anew whenever it is lost: to a peer, or to a name server.

    state      its time limit            ends in
    RESTS      until the next attempt    CONNECTS
    CONNECTS   to be connected           AWAITS or UP; RESTS when that fails
    AWAITS     to be answered            UP; RESTS when the connection is lost or refused
    UP         as its user says          AWAITS when something is asked; RESTS as above
    ENDED      none                      nothing

ENDED follows every state, when nobody wants the line any more. A turn that is late for the limit of CONNECTS or AWAITS
gives it anew: the connection may be there by now, or the answer, and this node has not read it yet. No bytes and no
clock are touched here: whoever has them (the shell, the simulator, a test) is asked to `dial`, and reports `opened`,
`received` and `lost`. Bytes to send go into the connection's outbox, and so does the wish to close it: see
`broker.requests.connection`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from broker.requests.connection import Connection, Outgoing
from broker.requests.deadline import NEVER, Time


class LineState(Enum):
    RESTS = "rests"
    CONNECTS = "connects"
    AWAITS = "awaits"
    UP = "up"
    ENDED = "ended"


_RESTS, _CONNECTS, _AWAITS, _UP, _ENDED = LineState

TRANSITIONS: Final[Mapping[LineState, frozenset[LineState]]] = {
    _RESTS: frozenset({_CONNECTS, _ENDED}),
    _CONNECTS: frozenset({_AWAITS, _UP, _RESTS, _ENDED}),
    _AWAITS: frozenset({_UP, _RESTS, _ENDED}),
    _UP: frozenset({_UP, _AWAITS, _RESTS, _ENDED}),  # UP again: with another time limit
    _ENDED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Patience:
    """The time limits of a line, in nanoseconds."""

    connect_ns: int
    answer_ns: int
    rest_ns_min: int
    """After a connection that was up, and after the first failure; doubled with each failure that follows."""
    rest_ns_max: int
    refused_rest_ns: int = 0
    """The shortest rest after a connection that never was up, or that broke the rules."""


class Surroundings(Protocol):
    """The clock of a node and its turns, which whoever runs it has."""

    def begin(self) -> None:
        """Sets the node's `Time`; to be called before anything from outside is given to it."""

    def wake(self) -> None:
        """Asks for a turn of the node, soon."""


class LineUser(Protocol):
    """The user of a line says what is sent on it. The node's time is set when it is called."""

    def opened(self) -> None:
        """The connection is there. Calls `Line.awaits` or `Line.up`."""

    def received(self, data: bytes) -> None:
        """Bytes have come, while the line awaits something or is up."""

    def due(self) -> None:
        """The time limit that was given to `Line.up` is over."""

    def lost(self, was: LineState, reason: str) -> None:
        """The attempt or the connection, `Line.connection`, has failed; the line rests, or has ended."""


class Line:
    """One line. `dial` is called with it to make an attempt to connect `connection` with `address`."""

    def __init__(
        self,
        name: str,
        address: str,
        patience: Patience,
        user: LineUser,
        *,
        surroundings: Surroundings,
        time: Time,
        outgoing: Outgoing,
        dial: Callable[["Line"], None],
    ) -> None:
        """`name` is what connections are called in logs."""
        self.name = name
        self.address = address
        """The address for the next attempt."""
        self.state = LineState.RESTS
        self.connection = Connection(outgoing, name)
        """The present attempt's or, while the line rests or has ended, the last one's."""
        self._patience = patience
        self._user = user
        self._surroundings = surroundings
        self._outgoing = outgoing
        self._dial = dial
        self._time = time
        self._deadline = time.add_deadline(self._is_due)
        self._rest_ns = patience.rest_ns_min
        self.is_closed = True
        """True if the last connection has nothing left to be written, as far as the surroundings have said."""

    def start(self) -> None:
        """Makes the first attempt."""
        self._surroundings.begin()
        self._connect()

    def hurry(self) -> None:
        """Ends a rest: there is a sign that the other side can be reached again."""
        if self.state is LineState.RESTS:
            self._connect()

    # ------------------------------------------------------------------ for the surroundings

    def opened(self, connection: Connection) -> None:
        """Hears that the attempt has led to a connection. It is ignored if the attempt was given up meanwhile."""
        if connection is self.connection and self.state is LineState.CONNECTS:
            self._surroundings.begin()
            self._user.opened()
            assert self.state is not LineState.CONNECTS, "its user has said what the line waits for"

    def received(self, data: bytes) -> None:
        """Takes bytes that have come on the connection."""
        if self.state is LineState.AWAITS or self.state is LineState.UP:
            self._surroundings.begin()
            self._user.received(data)

    def lost(self, connection: Connection, reason: str) -> None:
        """Hears that the attempt has failed, or that the connection is closed."""
        # Of an attempt before: the line has another connection since.
        if connection is not self.connection:
            return
        self.is_closed = True
        if self.state is LineState.ENDED or self.state is LineState.RESTS:
            self._surroundings.wake()  # somebody may wait for the end
        else:
            self._surroundings.begin()
            self._rest(reason)

    # ------------------------------------------------------------------ for the user

    def awaits(self) -> None:
        """Waits for a response: the connection is given up if `up` is not called in time."""
        self._become(LineState.AWAITS, self._time.now_ns + self._patience.answer_ns)

    def up(self, due_ns: int = NEVER) -> None:
        """Notes that the other side has answered as it should.

        At `due_ns` `LineUser.due` is called, if nothing else happens before.
        """
        self._rest_ns = self._patience.rest_ns_min
        self._become(LineState.UP, due_ns)

    def refuse(self, reason: str) -> None:
        """Closes the connection, whose other side has broken the rules, and rests."""
        self.connection.abort()
        self._rest(reason, refused=True)

    def finish(self) -> None:
        """Ends the line in order: what was sent on it is still written, and `is_closed` when it has been."""
        if self.state is LineState.RESTS or self.state is LineState.CONNECTS:
            self.end("it was not connected")
        elif self.state is not LineState.ENDED:
            # Behind what was sent on it, unlike `end`.
            self.connection.close()
            self._end()

    def end(self, reason: str) -> None:
        """Ends the line at once."""
        if self.state is not LineState.ENDED:
            was = self.state
            self.connection.abort()
            self.is_closed = True
            self._end()
            self._user.lost(was, reason)

    # ------------------------------------------------------------------ inside

    def _connect(self) -> None:
        self._become(LineState.CONNECTS, self._time.now_ns + self._patience.connect_ns)
        # Each attempt has its own, so that what is still reported of an earlier one is not taken for this one's.
        self.connection = Connection(self._outgoing, self.name)
        self.is_closed = False
        self._dial(self)

    def _rest(self, reason: str, *, refused: bool = False) -> None:
        was = self.state
        rest_ns = self._rest_ns
        # Whoever does not believe this node, or says nothing, is not asked again as soon as one who was lost.
        if refused or was is LineState.AWAITS:
            rest_ns = max(rest_ns, self._patience.refused_rest_ns)
        # For the failure behind this one; `up` begins with the shortest again.
        self._rest_ns = min(2 * self._rest_ns, self._patience.rest_ns_max)
        self._become(LineState.RESTS, self._time.now_ns + rest_ns)
        self._user.lost(was, reason)

    def _is_due(self) -> None:
        if self.state is LineState.RESTS:
            self._connect()
        elif self.state is LineState.UP:
            self._user.due()
        else:
            connects = self.state is LineState.CONNECTS
            limit_ns = self._patience.connect_ns if connects else self._patience.answer_ns
            # This node is late: what it waits for may have come, and nobody has read it yet.
            if self._time.is_late(self._deadline.due_ns):
                self._deadline.due_ns = self._time.now_ns + limit_ns
                return
            self.connection.abort()
            self.is_closed = True
            self._rest(f"{'no connection' if connects else 'it said nothing'} within {limit_ns / 1e9:g} s")

    def _end(self) -> None:
        self._become(LineState.ENDED, NEVER)
        self._time.remove_deadline(self._deadline)

    def _become(self, state: LineState, due_ns: int) -> None:
        assert state in TRANSITIONS[self.state], f"{self.name}: {self.state.value} to {state.value}"
        self.state = state
        self._deadline.due_ns = due_ns
        self._surroundings.wake()

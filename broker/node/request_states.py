"""The life of a request that waits for a leader, as a table: its states, what happens to it, and where that leads.

A request that only the leader may handle waits on each node that does not handle it at once. The node of its client
holds it while there is no leader (HELD), or has sent it to the leader of one term (FORWARDED) and waits for the
response. A leader that does not serve yet holds what other nodes have forwarded to it (HELD, too).

When the leader of that term is lost, it depends on what the request asks for:

- Repeating it does no harm: the next leader is asked.
- It must be done once (`ONCE`): the former leader has a moment (`DOUBT_NS`) to send its response after all, or to give
  the request back (DOUBTED); another one while it goes through others, maybe thousands. A node that leads no more
  does one of the two for all that was forwarded to it, as long as the link is up. Without this moment some clients
  would hear "unknown" at each transfer of leadership although their send was not stored, or its response was on the
  way. If nothing is heard, the client is told that the outcome is unknown (code 1). It is never told that the request
  was refused: it would believe that a message is not in the log.

A forwarded request names a term, and only the leader of that term does it. Only the client's own node may ask another
leader. So a client gets one response.

A request whose state asks for an answer, or for another leader, may have to wait for a turn: thousands may come to that
at once. Until then its client can go, and what may be repeated can be answered here.

When a leader is found, what is held goes on: some in each turn, for it may be thousands. The requests of a connection
keep their order. What comes from a client meanwhile waits behind what is held of it; a request that a leader has given
back waits before that, or in its place among those of its client that go on in turns, and while a leader that was lost
meanwhile may give some back, nothing that is held goes on.
"""

import enum
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import PullMessageHeader
from broker.requests.connection import Connection
from broker.requests.late_requests import done_late, pull_header

DOUBT_NS: Final = 300_000_000
"""A node that leads no more has so long to say what became of a request. It may have been stopped, or be cut off."""

HELD_NS_MAX: Final = 2_500_000_000
"""A request waits so long for a leader; clients give up after 3 s."""

ONCE: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.TRIVET_CHANGE_GROUP,
    }
)
"""Requests that the broker must not repeat on its own account: done twice, they store twice, or take back what came in
between.

Questions may be repeated, and so may requests that do the same the second time: decisions of transactions, locks, a
transfer of leadership. An unlock does not: its client may hold the lock again. The offset that a pull brings is stored
once, too; `done_late` takes it out.
"""


class State(enum.Enum):
    """The state of a request on one node. The first three wait, the others are its end there."""

    HELD = "held"
    """Waits on this node until some node leads."""
    FORWARDED = "forwarded"
    """Was sent to the leader of a term and waits for the response."""
    DOUBTED = "doubted"
    """Waits for the response of a node that does not lead that term any more."""

    RESUMED = "resumed"
    """Goes on as a request that has just come: handled here, forwarded or held."""
    GIVEN_BACK = "given back"
    """Returned undone to the node that forwarded it, which asks the next leader."""
    TAKEN_BACK = "taken back"
    """Answered by this node, whatever the leader says."""
    ANSWERED = "answered"
    """The leader's response went to the client."""
    UNKNOWN = "unknown"
    """Answered with code 1: the leader was lost first, and nobody knows whether the request was done."""
    REFUSED = "refused"
    """Answered with a refusal: nothing was done."""
    FORGOTTEN = "forgotten"
    """Dropped, as its client is gone."""

    __hash__ = (
        object.__hash__
    )  # an enum's own is made in Python from the name: thousands are looked up at once


class RequestEvent(enum.Enum):
    """The events that can happen to a request that waits."""

    LEADER_FOUND = "leader found"
    """Another node leads and is reachable, or this node serves."""
    TIME_OVER = "time over"
    """`until_ns` has come."""
    RESPONSE = "response"
    """The node that was asked has sent its response."""
    NOT_DONE = "not done"
    """The node that was asked gives the request back: it has done nothing, and leads that term no more."""
    LEADER_CHANGED = "leader changed"
    """The node that was asked is not known to lead that term any more. It can still be heard."""
    LEADER_BACK = "leader back"
    """The node that was asked leads that term still: it was only not heard for a while."""
    LINK_LOST = "link lost"
    """The link to the node that was asked is gone: nothing more can be heard of it."""
    ANSWERED_HERE = "answered here"
    """This node has found out the response itself."""
    OUTSIDE = "outside"
    """This node is no member of its group any more."""
    CLIENT_GONE = "client gone"
    """The client has disconnected from this node."""
    CLIENT_UNKNOWN = "client unknown"
    """The client of another node is not known here any more: it is gone, or this node does not lead."""

    __hash__ = object.__hash__


Transitions = MappingProxyType[State, MappingProxyType[RequestEvent, State]]


def _table(rows: dict[State, dict[RequestEvent, State]]) -> Transitions:
    return MappingProxyType({state: MappingProxyType(row) for state, row in rows.items()})


_HELD: Final = {
    RequestEvent.LEADER_FOUND: State.RESUMED,
    RequestEvent.TIME_OVER: State.REFUSED,
    RequestEvent.ANSWERED_HERE: State.TAKEN_BACK,
    RequestEvent.OUTSIDE: State.REFUSED,
    RequestEvent.CLIENT_GONE: State.FORGOTTEN,
    RequestEvent.CLIENT_UNKNOWN: State.GIVEN_BACK,
}

_RESUMED: Final = {
    RequestEvent.ANSWERED_HERE: State.TAKEN_BACK,
    RequestEvent.CLIENT_GONE: State.FORGOTTEN,
}
"""Until what the state asks for is done."""

OF_REPEATABLE: Final = _table(
    {
        State.HELD: _HELD,
        State.FORWARDED: {
            RequestEvent.RESPONSE: State.ANSWERED,
            RequestEvent.NOT_DONE: State.RESUMED,
            RequestEvent.LEADER_BACK: State.FORWARDED,
            RequestEvent.LEADER_CHANGED: State.RESUMED,
            RequestEvent.LINK_LOST: State.RESUMED,
            RequestEvent.ANSWERED_HERE: State.TAKEN_BACK,
            RequestEvent.OUTSIDE: State.REFUSED,
            RequestEvent.CLIENT_GONE: State.FORGOTTEN,
        },
        State.RESUMED: _RESUMED,
        State.REFUSED: {RequestEvent.CLIENT_GONE: State.FORGOTTEN},
    }
)

OF_ONCE: Final = _table(
    {
        State.HELD: _HELD,
        State.FORWARDED: {
            RequestEvent.RESPONSE: State.ANSWERED,
            RequestEvent.NOT_DONE: State.RESUMED,
            RequestEvent.LEADER_BACK: State.FORWARDED,
            RequestEvent.LEADER_CHANGED: State.DOUBTED,
            RequestEvent.LINK_LOST: State.UNKNOWN,
            # The leader may have done the request, and still sends its response to this node. So it waits on.
            RequestEvent.OUTSIDE: State.FORWARDED,
            RequestEvent.CLIENT_GONE: State.FORGOTTEN,
        },
        State.DOUBTED: {
            RequestEvent.RESPONSE: State.ANSWERED,
            RequestEvent.NOT_DONE: State.RESUMED,
            RequestEvent.LEADER_BACK: State.FORWARDED,
            RequestEvent.LEADER_CHANGED: State.DOUBTED,
            RequestEvent.LINK_LOST: State.UNKNOWN,
            RequestEvent.TIME_OVER: State.UNKNOWN,
            RequestEvent.OUTSIDE: State.DOUBTED,
            RequestEvent.CLIENT_GONE: State.FORGOTTEN,
        },
        State.RESUMED: {RequestEvent.CLIENT_GONE: State.FORGOTTEN},
        State.UNKNOWN: {RequestEvent.CLIENT_GONE: State.FORGOTTEN},
    }
)

ASKED: Final = frozenset({State.FORWARDED, State.DOUBTED})
"""A leader may say what became of the request."""

OVER: Final = frozenset(state for state in State if state not in OF_REPEATABLE and state not in OF_ONCE)
"""The states in which nothing happens to a request any more."""


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """A request of a client, on a node where it waits.

    `leader` and `term` are whom it was forwarded to, "" and 0 while it is held. It came into HELD or FORWARDED at
    `since_ns`, and HELD or DOUBTED end at `until_ns` (monotonic). `number` is lower than those of requests that came
    to this node later, and it keeps it while it waits again and again.
    """

    connection: Connection
    command: RemotingCommand
    since_ns: int
    state: State
    number: int
    leader: str = ""
    term: int = 0
    until_ns: int = field(init=False)
    _table: MappingProxyType[State, MappingProxyType[RequestEvent, State]] = field(init=False)
    _pull: PullMessageHeader | None = field(init=False)

    def __post_init__(self) -> None:
        # Thousands are made in one turn where a leader is lost.
        self.until_ns, self._pull = self.since_ns + HELD_NS_MAX, None
        self._table = OF_ONCE if self.command.code in ONCE else OF_REPEATABLE

    def happens(self, event: RequestEvent) -> State:
        """Enters and returns the state that the event leads to. An event without a row in the table is a bug here."""
        row = self._table.get(self.state)
        assert row is not None, f"request {self.command.code} is {self.state.value} already: {event.value}"
        assert event in row, f"request {self.command.code} is {self.state.value}: {event.value} cannot happen"
        self.state = row[event]
        return self.state

    @property
    def pull(self) -> PullMessageHeader | None:
        """The header of a pull, read when it is first asked for; None of any other request. Not to be changed."""
        if self._pull is None:
            self._pull = pull_header(self.command)
        return self._pull

    def as_of(self, now_ns: int) -> RemotingCommand:
        """The request as it may be done now, after it has waited (`done_late`)."""
        return done_late(self.command, self.pull, now_ns - self.since_ns)

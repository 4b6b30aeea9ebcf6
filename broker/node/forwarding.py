"""What clients of this node ask of the leader, while that is another node.

A request is sent on as the frame that came, for the leader of one term, and waits here for the answer, by client and
opaque. When that leader is lost, the wait ends in one of three ways:

- repeating the request does no harm: the next leader is asked;
- it does (`_ONCE`), and the one that leads no more says that it has done nothing (`NotDone`): the next leader is asked;
- it does, and nothing can be heard of that: the client is told that the outcome is unknown (code 1), never that the
  request was refused, which would make it believe that a message is not in the log.

One that leads no more answers or gives back all that it was forwarded, as long as the link is up, and this node may
hear of the next leader first. So it is waited for a moment (`DOUBT_NS`): else each transfer of leadership would leave
the outcome of some sends unknown that were never stored, or whose answer was on its way.

So of two nodes that hold one request for a leader, only the client's own ever releases it to another, and a client
gets one answer. `relayed_clients.py` is the leader's side.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import structlog

from broker.node.client_calls import ClientCalls
from broker.peers.protocol import ClientGone, Forward, NotDone, PeerProtocolError, Relay, encode_frame
from broker.remoting.codes import FLAG_ONE_WAY, RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, encode_head, response
from broker.remoting.errors import FrameError
from broker.remoting.frame import FrameDecoder
from broker.replica.replica import Replica
from broker.requests.connection import Connection
from broker.requests.deadline import NEVER, Time
from broker.requests.late_requests import done_late
from broker.requests.processing import OUTCOME_UNKNOWN
from broker.requests.responses import reply

log = structlog.get_logger("trivet.node")

FORWARDED_MAX: Final = 20_000
FORWARDED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Forwarded requests that wait for the leader's answer, and how much may wait for the link to take it."""

DOUBT_NS: Final = 300_000_000
"""How long a node that leads no more has to say what became of a request. It may have been stopped, or be cut off."""

_ONCE: Final = frozenset(
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
"""What the broker must not repeat on its own account: done twice, it stores twice, or takes back what came in between.

Questions may be repeated, and so may what is the same the second time: decisions of transactions, locks, a transfer.
An unlock is not: its client may hold the lock again. Nor is the position that a pull brings: `done_late`.
"""


class _Forwarded(NamedTuple):
    """A request that waits for the answer of the leader of a term."""

    leader: str
    term: int
    command: RemotingCommand
    since_ns: int


class _Client:
    """A connection to this node, the leader that last heard of it, and by opaque what it waits for."""

    __slots__ = ("connection", "known_to", "number", "waiting")

    def __init__(self, number: int, connection: Connection) -> None:
        self.number = number
        self.connection = connection
        self.known_to: str | None = None
        self.waiting: dict[int, _Forwarded] = {}


class Resumer(Protocol):
    """The node around, which goes on with requests that another node has not answered."""

    def resumed(self, connection: Connection, command: RemotingCommand) -> None:
        """Goes on with a request, here or at another leader."""

    def forward(self, connection: Connection, command: RemotingCommand) -> None:
        """Asks the next leader, or holds a request until there is one."""

    def hold(self, connection: Connection, command: RemotingCommand) -> None:
        """Keeps a request until some node leads."""

    def refuse_outside(self, connection: Connection, command: RemotingCommand) -> None:
        """Answers that this node is no member of its group."""


class Forwarding:
    """The connections of a node's own clients, and their requests that other nodes answer."""

    def __init__(self, node: Resumer, replica: Replica, time: Time, calls: ClientCalls) -> None:
        """`calls` learns which other node asks something of a client here."""
        self._node = node
        self._replica = replica
        self._time = time
        self._calls = calls
        self._by_number: dict[int, _Client] = {}
        self._by_connection: dict[Connection, _Client] = {}
        self._next_number = 0
        self._waiting_count = 0
        self._doubted: dict[tuple[int, int], tuple[int, _Client, _Forwarded]] = {}
        """By client and opaque, until when a former leader has time to say what became of it; the next to end first."""
        self._doubt_ends = time.add_deadline(self._end_doubts)

    def __len__(self) -> int:
        return len(self._by_connection)

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._by_connection

    def client_connected(self, connection: Connection) -> None:
        """A connection that may forward; its number is never given to another."""
        client = _Client(self._next_number, connection)
        self._by_number[client.number] = self._by_connection[connection] = client
        self._next_number += 1

    def client_disconnected(self, connection: Connection) -> None:
        """What it waited for is forgotten here, and so is it at the leader."""
        client = self._by_connection.pop(connection)
        del self._by_number[client.number]
        self._waiting_count -= len(client.waiting)
        if client.known_to is not None:
            self._send_to(client.known_to, ClientGone(client.number))

    # ------------------------------------------------------------------ to the leader

    @property
    def is_leader_reachable(self) -> bool:
        """Whether another node leads, as far as this one knows, and there is a link to it."""
        leader = self._replica.leader
        return leader is not None and leader != self._replica.node_id and leader in self._replica.links

    def forward(self, connection: Connection, command: RemotingCommand) -> None:
        """Sends a client's request to the leader; only while that is reachable."""
        replica = self._replica
        leader = replica.leader
        assert leader is not None
        client = self._by_connection[connection]
        if command.opaque in client.waiting and not command.is_one_way:
            # Which of the two an answer is to, nobody could tell.
            reply(
                connection,
                command,
                ResponseCode.SYSTEM_BUSY,
                f"opaque {command.opaque} is that of a request which is not answered yet; nothing was done",
            )
            return
        full = self._waiting_count >= FORWARDED_MAX
        if full or replica.links[leader].unsent_bytes > FORWARDED_BYTES_MAX:
            reply(
                connection,
                command,
                ResponseCode.SYSTEM_BUSY,
                "[OVERLOAD]too many requests wait for the leader",
            )
            return
        try:
            self._send(leader, client, command)
        except ValueError as error:  # with every field written out it has become longer than a frame may be
            reply(connection, command, ResponseCode.MESSAGE_ILLEGAL, str(error))
            return
        if not command.is_one_way:
            self._waiting_count += 1
            client.waiting[command.opaque] = _Forwarded(leader, replica.term, command, self._time.now_ns)
        client.known_to = leader

    def forward_copy(self, connection: Connection, command: RemotingCommand) -> None:
        """Tells the leader, too, if it is another node, and expects no answer: this node answers the client."""
        leader = self._replica.leader
        client = self._by_connection.get(connection)
        if leader is None or leader == self._replica.node_id or client is None:
            return
        client.known_to = leader
        copy = RemotingCommand(
            command.code,
            command.flag | FLAG_ONE_WAY,
            command.language,
            command.opaque,
            command.version,
            command.remark,
            command.header,
            command.body,
            command.serialization,
        )
        self._send(leader, client, copy)

    def pass_answer_on(self, asking: str, connection: Connection, answer: RemotingCommand) -> None:
        """Sends a client's answer to the node that has asked it; one that is too long for that as a refusal."""
        client = self._by_connection[connection]
        try:
            self._send(asking, client, answer)
        except ValueError as error:
            self._send(asking, client, response(answer, ResponseCode.SYSTEM_ERROR, str(error)))

    def _send(self, leader: str, client: _Client, command: RemotingCommand) -> None:
        frame = b"".join((encode_head(command, len(command.body)), command.body))
        self._send_to(leader, Forward(client.number, client.connection.host, self._replica.term, frame))

    def _send_to(self, node: str, frame: Forward | ClientGone) -> None:
        link = self._replica.links.get(node)
        if link is not None:
            link.send(*encode_frame(frame))

    # ------------------------------------------------------------------ from the leader

    def relayed(self, source: str, frame: Relay) -> None:
        """What another node has for a client: an answer, or a request of its own."""
        client = self._by_number.get(frame.connection)
        if client is None:
            return
        connection = client.connection
        body = bytes(frame.body)
        try:
            commands = FrameDecoder().feed(body)
        except FrameError as error:
            raise PeerProtocolError(f"a relayed answer cannot be read: {error}") from error
        for command in commands:
            if command.is_response:
                asked = client.waiting.get(command.opaque)
                if asked is None or asked.leader != source:
                    return  # answered otherwise meanwhile, or another node was asked anew: a client gets one answer
                self._no_longer_waits(client, command.opaque)
            elif not command.is_one_way:
                self._calls.relayed(connection, command.opaque, source)
        if connection.leaves_much_unread():
            if not connection.aborted:
                log.warning("connection closed", client=connection.name, reason="its answers stay unread")
                connection.abort()
            return
        connection.send(body)

    def given_back(self, source: str, frame: NotDone) -> None:
        """The leader of a term has not done what it was forwarded, and leads no more: the next one is to be asked."""
        client = self._by_number.get(frame.connection)
        asked = None if client is None else client.waiting.get(frame.opaque)
        if client is None or asked is None or (asked.leader, asked.term) != (source, frame.term):
            return
        self._no_longer_waits(client, frame.opaque)
        late = done_late(asked.command, self._time.now_ns - asked.since_ns)
        if (self._replica.leader, self._replica.term) == (asked.leader, asked.term):
            self._node.hold(client.connection, late)  # this node has not heard of the next one yet
        else:
            self._node.resumed(client.connection, late)

    def leader_changed(self) -> None:
        """Whatever waits for another leader than today's, or for its earlier term: that one does it no more."""
        today = (self._replica.leader, self._replica.term)
        ends_ns = self._time.now_ns + DOUBT_NS
        for client, asked in self._all_waiting():
            key = (client.number, asked.command.opaque)
            if (asked.leader, asked.term) == today:
                self._doubted.pop(key, None)  # it was only not heard for a while
            elif self._may_hear_of(asked):
                before = self._doubted.get(key)
                if before is None or before[2] is not asked:
                    self._doubted.pop(key, None)
                    self._doubted[key] = (ends_ns, client, asked)
        self._plan_end_of_doubts()
        self._end_waiting(lambda asked: (asked.leader, asked.term) != today and not self._may_hear_of(asked))

    def leader_lost(self, node: str) -> None:
        """Nothing more can be heard of what `node` has not answered."""
        self._end_waiting(lambda asked: asked.leader == node)

    def _may_hear_of(self, asked: _Forwarded) -> bool:
        """Whether a former leader is waited for: to say what became of what must not be repeated."""
        return asked.command.code in _ONCE and asked.leader in self._replica.links

    def _end_waiting(self, is_in_vain: Callable[[_Forwarded], bool]) -> None:
        """Requests are repeated elsewhere where that does no harm, else their outcome is unknown."""
        for client, asked in self._take_if(is_in_vain):
            if asked.command.code in _ONCE:
                reply(client.connection, asked.command, ResponseCode.SYSTEM_ERROR, OUTCOME_UNKNOWN)
            else:
                late = done_late(asked.command, self._time.now_ns - asked.since_ns)
                self._node.forward(client.connection, late)

    def _end_doubts(self) -> None:
        now_ns = self._time.now_ns
        while (first := next(iter(self._doubted.items()), None)) is not None and first[1][0] <= now_ns:
            key, (_, client, asked) = first
            del self._doubted[key]
            if client.number in self._by_number and client.waiting.get(asked.command.opaque) is asked:
                self._no_longer_waits(client, asked.command.opaque)
                reply(client.connection, asked.command, ResponseCode.SYSTEM_ERROR, OUTCOME_UNKNOWN)
        self._plan_end_of_doubts()

    def _plan_end_of_doubts(self) -> None:
        first = next(iter(self._doubted.values()), None)
        self._doubt_ends.due_ns = NEVER if first is None else first[0]

    def take_back(
        self, connection: Connection, is_wanted: Callable[[RemotingCommand], bool]
    ) -> list[RemotingCommand]:
        """Requests of a client here that this node answers now: what the leader says to them is dropped."""
        client = self._by_connection.get(connection)
        if client is None:
            return []
        taken = [asked.command for asked in client.waiting.values() if is_wanted(asked.command)]
        for command in taken:
            self._no_longer_waits(client, command.opaque)
        return taken

    def withdraw(self) -> None:
        """Tells the leader that it has no clients here any more: whom it asked through this node could not answer.

        Their requests under way there are refused, but for those that are done once: the leader still answers these.
        """
        for client in self._by_number.values():
            if client.known_to is not None:
                self._send_to(client.known_to, ClientGone(client.number))
        for client, asked in self._take_if(lambda asked: asked.command.code not in _ONCE):
            self._node.refuse_outside(client.connection, asked.command)

    def _all_waiting(self) -> list[tuple[_Client, _Forwarded]]:
        clients = self._by_number.values()
        return [(client, asked) for client in clients for asked in client.waiting.values()]

    def _take_if(self, is_wanted: Callable[[_Forwarded], bool]) -> list[tuple[_Client, _Forwarded]]:
        taken = [(client, asked) for client, asked in self._all_waiting() if is_wanted(asked)]
        for client, asked in taken:
            self._no_longer_waits(client, asked.command.opaque)
        return taken

    def _no_longer_waits(self, client: _Client, opaque: int) -> None:
        del client.waiting[opaque]
        self._waiting_count -= 1
        self._doubted.pop((client.number, opaque), None)

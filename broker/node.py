"""A broker node as clients see it: requests in, answers out, on a leader, a follower or a node that knows no leader.

Any node takes any request (design, decision 8). What only the leader may do is forwarded to it over the peer link, as
the frame that the client sent; the leader answers through the same way, with the client's own opaque, so that a client
with an old route does not notice. While there is no leader that serves, such requests are held for a moment instead
of failing: most elections are over before a client's patience.

The outcome of a forwarded send whose leader was lost is unknown, and is answered as such (code 1): never as a refusal
that would make the client believe that the message is not in the log. The same holds for whatever else sets something
for good. Repeated here, it could take effect a second time after its client was answered, and undo what came later.

A request is forwarded to the leader of one term, and nobody else acts on it, however late it comes: a node that leads
another term, or none, says that it has done nothing (`NotDone`), and the client's own node asks the next leader. So of
two nodes that hold one request for a leader, only the client's own ever releases it to another.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import structlog

from broker.access.control import AccessControl
from broker.budget import Budget
from broker.client_calls import ClientCalls
from broker.client_registry import ClientRegistry
from broker.commands import Command, DeleteTopic, PutTopic, Several
from broker.connection import Buffer, Connection, Outgoing, RelayedConnection
from broker.deadline import NEVER, Deadline
from broker.held_requests import HeldRequests
from broker.late_positions import without_late_position
from broker.peer_protocol import (
    Challenge,
    ClientGone,
    Forward,
    Frame,
    Hello,
    NotAMember,
    NotDone,
    PeerProtocolError,
    Proof,
    RaftFrame,
    Relay,
    encode_frame,
)
from broker.processing import Handler, Place, Processor, RequestError
from broker.proposals import NotServingError, OverloadedError
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, encode_head, encode_response_head, response
from broker.remoting.errors import FrameError, RemotingError
from broker.remoting.frame import FrameDecoder
from broker.replica import Replica
from broker.settings import BrokerConfig
from broker.stats import Stats
from log.dispatch import Arrival
from log.errors import DiskError, DiskFullError

log = structlog.get_logger("trivet.node")

FORWARDED_MAX: Final = 20_000
FORWARDED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Forwarded requests that wait for the leader's answer, and how much may wait for the link to take it."""

RELAYED_BYTES_MAX: Final = 8 * 1024 * 1024
"""How much of what is relayed to clients of another node may wait for the link; then their pulls are refused."""

UNREAD_BYTES_MAX: Final = 32 * 1024 * 1024
"""A client that leaves so much of its relayed answers unread is disconnected.

Its node stops reading its requests long before; this much may still come for those that the leader has already.
"""

LARGE_ANSWER_BYTES: Final = 64 * 1024
"""A longer list is only given to who has read most of what it was given before: messages are views, this is memory."""

OUTCOME_UNKNOWN: Final = "the leader was lost before it answered: the outcome is unknown"

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
An unlock is not: its client may hold the lock again. Nor is the position that a pull brings: `without_late_position`.
"""

_ABOUT_THE_NODE: Final = frozenset(
    {RequestCode.TRIVET_NODE_STATUS, RequestCode.GET_BROKER_CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO}
)
"""What a node that is no member of its group still answers."""


class _Forwarded(NamedTuple):
    """A request that waits for the answer of the leader of a term."""

    leader: str
    term: int
    command: RemotingCommand


class Node:
    """The processors, and everything between a client's frame and the processor that answers it.

    `clients` are the local connections that may forward, `relayed` those of other nodes' clients, by (node, number).
    """

    def __init__(self, group: str, outgoing: Outgoing) -> None:
        self.group = group
        self.outgoing = outgoing
        self.now_ns = 0
        self.wall_ms = 0
        self.registry: ClientRegistry[Connection] = ClientRegistry()
        self.registration_version = 0
        """Rises whenever the name servers must be told something new."""
        self.is_outside = False
        """This node is no member of its group (not yet, or not any more) and answers only for itself."""
        self.replica: Replica
        self.stats: Stats
        self._routes: dict[int, tuple[Handler, Place]] = {}
        self._arrival_listeners: list[Callable[[Iterable[Arrival]], None]] = []
        self._role_listeners: list[Callable[[], None]] = []
        self._disconnect_listeners: list[Callable[[Connection], None]] = []
        self._leader_listeners: list[Callable[[], None]] = []
        self._deadlines: list[Deadline] = []
        self._clients: dict[int, Connection] = {}
        self._client_numbers: dict[Connection, int] = {}
        self._next_client = 0
        self._relayed: dict[tuple[str, int], RelayedConnection] = {}
        self._link_epochs: dict[str, int] = {}
        """How often a link with each peer broke."""
        self._held = HeldRequests()
        self._forwarded: dict[tuple[int, int], _Forwarded] = {}
        """By client and opaque."""
        self._forwarding: dict[int, str] = {}
        self._behind_barrier = Budget("a round of messages that confirms this leader")
        self.calls: ClientCalls
        self.config = BrokerConfig()
        """The settings in force."""
        self.access: AccessControl | None = None
        """Decides what clients of this node may do; None lets them do everything."""
        self._relayed_bytes: dict[str, int] = {}
        """By node, what was relayed to its clients since the last turn: the link does not count it as unsent yet."""

    def start(self, replica: Replica, processors: Iterable[Processor], stats: Stats) -> None:
        """Joins the parts; called once, before anything else."""
        self.replica = replica
        self.stats = stats
        answers_due = self.add_deadline(lambda: self.calls.expire(self.now_ns))
        self.calls = ClientCalls(int(replica.node_id[1:]), answers_due)
        self.on_disconnect(self.calls.disconnected)
        self.now_ns, self.wall_ms = replica.now_ns, replica.wall_ms
        for processor in processors:
            for route in processor.routes():
                assert route.code not in self._routes, f"two handlers for request {route.code}"
                self._routes[route.code] = (route.handler, route.place)
        self._look_at_membership()

    def configure(self, config: BrokerConfig) -> None:
        """Other settings are in force; name servers are told of topics as these allow."""
        self.config = config
        self.registration_version += 1

    @property
    def client_count(self) -> int:
        """Clients connected to this node."""
        return len(self._clients)

    @property
    def held_count(self) -> int:
        """Requests that wait for a leader."""
        return len(self._held)

    # ------------------------------------------------------------------ clients

    def client_connected(self, name: str, host: bytes) -> Connection:
        """A client (or another server) has connected from `host`, packed as in a record."""
        connection = Connection(self.outgoing, name, host)
        self._clients[self._next_client] = connection
        self._client_numbers[connection] = self._next_client
        self._next_client += 1
        return connection

    def client_disconnected(self, connection: Connection) -> None:
        """Its socket is closed: what it waited for is forgotten, its registrations end."""
        number = self._client_numbers.pop(connection)
        del self._clients[number]
        leader = self._forwarding.pop(number, None)
        if leader is not None:
            self._to_peer(leader, ClientGone(number))
            for key in [key for key in self._forwarded if key[0] == number]:
                del self._forwarded[key]
        self._forget(connection)

    def received(self, connection: Connection, command: RemotingCommand) -> None:
        """One command from a client. `begin` has set the time."""
        if command.flag & 1:
            asking = self.calls.answered(connection, command)
            if asking is not None and connection in self._client_numbers:
                self._pass_answer_on(asking, connection, command)
            return
        if self.access is not None and not self._is_allowed(self.access, connection, command):
            return
        route = self._routes.get(command.code)
        if route is None:
            self.reply(
                connection,
                command,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {command.code} not supported",
            )
            return
        handler, place = route
        if self.is_outside and command.code not in _ABOUT_THE_NODE:
            self._refuse_outside(connection, command)
        elif place is Place.ANY:
            self._handle(connection, command, handler)
        elif self.replica.serving:
            if place is Place.LEADER_READ:
                self.handle_after_barrier(connection, command, handler)
            else:
                self._handle(connection, command, handler)
        else:
            self.forward(connection, command)

    def _is_allowed(self, access: AccessControl, connection: Connection, command: RemotingCommand) -> bool:
        """Whether a request may go on; if not, it is answered. What a peer forwards was allowed there."""
        if isinstance(connection, RelayedConnection):
            return True
        try:
            access.check(connection.host, command)
        except RequestError as refused:
            self.reply(connection, command, refused.code, refused.remark)
        except RemotingError as error:
            self.reply(connection, command, ResponseCode.SYSTEM_ERROR, str(error))
        except Exception as error:
            # As in `_handle`: what nobody foresaw hurts this request only, and what cannot be judged is refused.
            log.exception("request not judged", code=command.code, client=connection.name)
            self.reply(connection, command, ResponseCode.NO_PERMISSION, f"{type(error).__name__}: {error}")
        else:
            return True
        return False

    def begin(self, now_ns: int, wall_ms: int) -> None:
        """Sets the time for the calls that follow: whatever brings something from outside calls this first."""
        self.now_ns = self.replica.now_ns = now_ns
        self.wall_ms = self.replica.wall_ms = wall_ms

    def _handle(self, connection: Connection, command: RemotingCommand, handler: Handler) -> None:
        try:
            handler(connection, command)
        except RequestError as error:
            self.reply(connection, command, error.code, error.remark)
        except RemotingError as error:
            self.reply(connection, command, ResponseCode.SYSTEM_ERROR, str(error))
        except NotServingError:
            self.forward(connection, command)
        except OverloadedError as error:
            self._refuse_overload(connection, command, error)
        except DiskFullError as error:
            self.reply(connection, command, ResponseCode.SERVICE_NOT_AVAILABLE, f"disk full: {error}")
        except (AssertionError, DiskError):
            raise  # a broken invariant or a failing disk: this node must not go on
        except Exception as error:
            # What a client can send and a handler did not foresee hurts this request only. Code 1 says that its
            # outcome is unknown, which is true wherever the handler was interrupted.
            log.exception("request failed", code=command.code, client=connection.name)
            self.reply(connection, command, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def _refuse_overload(
        self, connection: Connection, command: RemotingCommand, error: OverloadedError
    ) -> None:
        self.reply(
            connection,
            command,
            ResponseCode.SYSTEM_BUSY,
            f"[REJECTREQUEST]system busy, start flow control for a while: {error}",
        )

    def handle_after_barrier(
        self, connection: Connection, command: RemotingCommand, handler: Handler
    ) -> None:
        """Handles a request when what is applied here is as new as the call; leader only."""

        def end(go_on: Callable[[], None]) -> None:
            self._behind_barrier.give_back(command)
            go_on()

        try:
            self._behind_barrier.take(command)
        except OverloadedError as error:
            self._refuse_overload(connection, command, error)
            return
        try:
            self.replica.read_barrier(
                lambda: end(lambda: self._handle(connection, command, handler)),
                lambda: end(lambda: self.forward(connection, command)),
            )
        except NotServingError:
            self._behind_barrier.give_back(command)
            raise

    # ------------------------------------------------------------------ answers

    def reply(
        self,
        connection: Connection,
        command: RemotingCommand,
        code: int,
        remark: str | None = None,
        fields: dict[str, str] | None = None,
        body: Buffer = b"",
    ) -> None:
        """Answers a request, in the serialization that it came in; one-way requests are not answered.

        What cannot be carried (parts of it may be another client's words) becomes an answer that says so.
        """
        if command.flag & 2:
            return
        if len(body) > LARGE_ANSWER_BYTES and self._leaves_much_unread(connection):
            code, remark, fields, body = (
                ResponseCode.SYSTEM_BUSY,
                "[OVERLOAD]earlier answers are unread",
                None,
                b"",
            )
        try:
            head = encode_response_head(command, int(code), remark, fields, len(body))
        except ValueError as error:
            refusal = f"the answer cannot be sent: {error}"
            body = b""
            head = encode_response_head(command, int(ResponseCode.SYSTEM_ERROR), refusal)
        if body:
            connection.send(head, body)
        else:
            connection.send(head)

    def _leaves_much_unread(self, connection: Connection) -> bool:
        if isinstance(connection, RelayedConnection):
            return self.relays_too_much(connection)
        return connection.unsent_bytes + sum(map(len, connection.outbox)) > UNREAD_BYTES_MAX

    def after_command(
        self,
        connection: Connection,
        request: RemotingCommand,
        command: Command,
        done: Callable[[object], None],
    ) -> None:
        """Proposes a metadata command; `done` runs with its result once it is applied, else the client is told."""
        self.replica.propose_command(
            command,
            done,
            lambda: self.reply(connection, request, ResponseCode.SYSTEM_ERROR, OUTCOME_UNKNOWN),
        )

    # ------------------------------------------------------------------ forwarding and holding

    def forward(self, connection: Connection, command: RemotingCommand) -> None:
        """Hands a request to the leader, or holds it until there is one."""
        if self.is_outside:
            self._refuse_outside(connection, command)
            return
        leader = self.replica.leader
        number = self._client_numbers.get(connection)
        if number is None:
            if isinstance(connection, RelayedConnection):
                if leader == self.replica.node_id:
                    self._hold(connection, command)  # for this term, in which this node may yet serve
                else:
                    self._give_back(connection, command)
            return
        link = None if leader is None else self.replica.links.get(leader)
        if leader is None or leader == self.replica.node_id or link is None:
            self._hold(connection, command)
            return
        if len(self._forwarded) >= FORWARDED_MAX or link.unsent_bytes > FORWARDED_BYTES_MAX:
            self.reply(
                connection,
                command,
                ResponseCode.SYSTEM_BUSY,
                "[OVERLOAD]too many requests wait for the leader",
            )
            return
        try:
            self._send_forward(leader, number, connection, command)
        except ValueError as error:  # with every field written out it has become longer than a frame may be
            self.reply(connection, command, ResponseCode.MESSAGE_ILLEGAL, str(error))
            return
        if not command.flag & 2:
            self._forwarded[(number, command.opaque)] = _Forwarded(leader, self.replica.term, command)
        self._forwarding[number] = leader

    def forward_copy(self, connection: Connection, command: RemotingCommand) -> None:
        """Tells the leader, too, if it is another node, and expects no answer: this node answers the client."""
        leader = self.replica.leader
        number = self._client_numbers.get(connection)
        if leader is None or leader == self.replica.node_id or number is None:
            return
        self._forwarding[number] = leader
        copy = RemotingCommand(
            command.code,
            command.flag | 2,
            command.language,
            command.opaque,
            command.version,
            command.remark,
            command.header,
            command.body,
            command.serialization,
        )
        self._send_forward(leader, number, connection, copy)

    def _pass_answer_on(self, asking: str, connection: Connection, answer: RemotingCommand) -> None:
        """Sends a client's answer to the node that has asked it; one that is too long for that as a refusal."""
        number = self._client_numbers[connection]
        try:
            self._send_forward(asking, number, connection, answer)
        except ValueError as error:
            self._send_forward(
                asking, number, connection, response(answer, ResponseCode.SYSTEM_ERROR, str(error))
            )

    def _send_forward(
        self, leader: str, number: int, connection: Connection, command: RemotingCommand
    ) -> None:
        frame = b"".join((encode_head(command, len(command.body)), command.body))
        self._to_peer(leader, Forward(number, connection.host, self.replica.term, frame))

    def _to_peer(self, node: str, frame: Frame) -> None:
        link = self.replica.links.get(node)
        if link is not None:
            link.send(*encode_frame(frame))

    def _hold(self, connection: Connection, command: RemotingCommand) -> None:
        try:
            self._held.hold(connection, without_late_position(command), self.now_ns)
        except OverloadedError as error:
            self.reply(connection, command, ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]no leader: {error}")

    def _refuse_outside(self, connection: Connection, command: RemotingCommand) -> None:
        self.reply(
            connection,
            command,
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"{self.replica.node_id} is no member of group {self.group}; nothing was done, ask another node",
        )

    def _look_at_membership(self) -> None:
        """A node that is outside refuses what it holds, and all that comes; clients look for the others."""
        outside = not self.replica.is_member and not self.replica.serving
        if outside == self.is_outside:
            return
        self.is_outside = outside
        log.info("outside of the group" if outside else "member of the group", node=self.replica.node_id)
        if outside:
            for connection, command in self._held.take_all():
                self._refuse_outside(connection, command)
            self._withdraw_clients()

    def _withdraw_clients(self) -> None:
        """Tells the leader that it has no clients here any more: whom it asked through this node could not answer.

        Their requests under way there are refused, but for those that are done once: the leader still answers these.
        """
        for number, leader in self._forwarding.items():
            self._to_peer(leader, ClientGone(number))
        for key in [key for key, waiting in self._forwarded.items() if waiting.command.code not in _ONCE]:
            self._refuse_outside(self._clients[key[0]], self._forwarded.pop(key).command)

    def _release_held(self) -> None:
        """Tries held requests anew, now that something has changed; those that still find no leader stay held."""
        leader = self.replica.leader
        ready = self.replica.serving or (
            leader is not None and leader != self.replica.node_id and leader in self.replica.links
        )
        if not ready or not self._held:
            return
        for connection, command in self._held.take_all():
            if connection in self._client_numbers or isinstance(connection, RelayedConnection):
                self.received(connection, command)

    def _expire_held(self) -> None:
        for connection, command in self._held.take_expired(self.now_ns):
            self._refuse_held(connection, command)

    def _give_back_forgotten(self) -> None:
        """Gives back what is held for other nodes' clients that are forgotten.

        Kept, it would be done once this node leads again, when its client may long have been answered by another.
        """
        if not self._held:
            return
        known = frozenset(self._relayed.values())
        for connection, command in self._held.take_if(
            lambda holder: isinstance(holder, RelayedConnection) and holder not in known
        ):
            assert isinstance(connection, RelayedConnection)
            self._give_back(connection, command)

    def _give_back(self, connection: RelayedConnection, command: RemotingCommand) -> None:
        """Tells the node that has forwarded a request that nothing of it is done here: it asks the next leader."""
        if not command.is_one_way:
            self._to_node_of(connection, NotDone(connection.number, command.opaque, connection.term))

    def _refuse_held(self, connection: Connection, command: RemotingCommand) -> None:
        self.reply(
            connection,
            command,
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"group {self.group} has no leader that serves; nothing was stored, try again",
        )

    # ------------------------------------------------------------------ peers

    def peer_received(self, source: str, frame: Frame) -> None:
        """A frame from another node of the group; `begin` has set the time."""
        if isinstance(frame, RaftFrame):
            if frame.message.source != source or frame.message.target != self.replica.node_id:
                raise PeerProtocolError(f"a message from {frame.message.source} on the link of {source}")
            self.replica.peer_received(frame, self.now_ns, self.wall_ms)
        elif isinstance(frame, Forward):
            self._forward_received(source, frame)
        elif isinstance(frame, NotDone):
            self._given_back(source, frame)
        elif isinstance(frame, Relay):
            self._relay_received(source, frame)
        elif isinstance(frame, ClientGone):
            relayed = self._relayed.pop((source, frame.connection), None)
            if relayed is not None:
                self._forget(relayed)
                self._give_back_forgotten()
        elif isinstance(frame, NotAMember):
            self.replica.dismissed(frame.index)
        elif isinstance(frame, Hello | Challenge | Proof):
            raise PeerProtocolError("a second hello")

    def peer_lost(self, node: str) -> None:
        """A connection with `node` broke, either way: its clients are gone from here, and what it was to answer."""
        for key in [key for key in self._relayed if key[0] == node]:
            self._forget(self._relayed.pop(key))
        self._link_epochs[node] = self._link_epochs.get(node, 0) + 1
        self._give_back_forgotten()
        replica = self.replica
        replica.peer_disconnected(node, self.now_ns)
        if node in replica.links:
            # Only the link that the peer had dialled broke: this node still reaches it on its own.
            replica.peer_connected(node, self.now_ns)
        self._answer_forwarded(node)

    def peer_connected(self, node: str) -> None:
        """The link to `node` is up."""
        self.replica.peer_connected(node, self.now_ns)
        self._leader_may_hear()
        self._release_held()

    def _forward_received(self, source: str, frame: Forward) -> None:
        key = (source, frame.connection)
        relayed = self._relayed.get(key)
        if relayed is None:
            relayed = self._relayed[key] = self._relayed_client(source, frame)
        relayed.term = frame.term
        try:
            commands = FrameDecoder().feed(bytes(frame.body))
        except FrameError as error:
            raise PeerProtocolError(f"a forwarded request cannot be read: {error}") from error
        for command in commands:
            if frame.term == self.replica.term or command.is_response:
                self.received(relayed, command)
            else:
                self._give_back(relayed, command)

    def _relayed_client(self, source: str, frame: Forward) -> RelayedConnection:
        def deliver(buffers: tuple[Buffer, ...]) -> None:
            data = b"".join(buffers)
            self._relayed_bytes[source] = self._relayed_bytes.get(source, 0) + len(data)
            self._to_node_of(relayed, Relay(relayed.number, data))

        relayed = RelayedConnection(self.outgoing, source, frame.connection, frame.host, deliver)
        relayed.epoch = self._link_epochs.get(source, 0)
        return relayed

    def _to_node_of(self, connection: RelayedConnection, frame: Relay | NotDone) -> None:
        if self._link_epochs.get(connection.node, 0) == connection.epoch:
            self._to_peer(connection.node, frame)
        # Else the replica may have started again and numbered its clients anew: what answers a request that came over
        # an earlier link would be taken for the answer to another client's.

    def _given_back(self, source: str, frame: NotDone) -> None:
        """The leader of a term has not done what it was forwarded, and is none any more: the next one is to be asked.

        This node has not heard of that one yet, or it would have dealt with all that the old one left unanswered.
        """
        key = (frame.connection, frame.opaque)
        asked = self._forwarded.get(key)
        if asked is None or (asked.leader, asked.term) != (source, frame.term):
            return
        del self._forwarded[key]
        self._hold(self._clients[frame.connection], asked.command)

    def _relay_received(self, source: str, frame: Relay) -> None:
        connection = self._clients.get(frame.connection)
        if connection is None:
            return
        body = bytes(frame.body)
        try:
            commands = FrameDecoder().feed(body)
        except FrameError as error:
            raise PeerProtocolError(f"a relayed answer cannot be read: {error}") from error
        for command in commands:
            if command.flag & 1:
                key = (frame.connection, command.opaque)
                asked = self._forwarded.get(key)
                if asked is None or asked.leader != source:
                    return  # answered otherwise meanwhile, or another node was asked anew: a client gets one answer
                del self._forwarded[key]
            elif not command.is_one_way:
                self.calls.relayed(connection, command.opaque, source)
        if connection.unsent_bytes + sum(map(len, connection.outbox)) > UNREAD_BYTES_MAX:
            if not connection.aborted:
                log.warning("connection closed", client=connection.name, reason="its answers stay unread")
                connection.abort()
            return
        connection.send(body)

    def relays_too_much(self, connection: Connection) -> bool:
        """Whether answers to clients of the same node as this relayed one already fill the link to that node."""
        if not isinstance(connection, RelayedConnection):
            return False
        link = self.replica.links.get(connection.node)
        waiting = 0 if link is None else link.unsent_bytes
        return waiting + self._relayed_bytes.get(connection.node, 0) > RELAYED_BYTES_MAX

    def _answer_forwarded(self, node: str) -> None:
        """What `node` has not answered: repeated elsewhere where that does no harm, else of unknown outcome."""
        for key in [key for key, waiting in self._forwarded.items() if waiting.leader == node]:
            command = self._forwarded.pop(key).command
            connection = self._clients.get(key[0])
            if connection is None:
                continue
            if command.code in _ONCE:
                self.reply(connection, command, ResponseCode.SYSTEM_ERROR, OUTCOME_UNKNOWN)
            else:
                self.forward(connection, without_late_position(command))

    # ------------------------------------------------------------------ the replica's observer

    def role_changed(self) -> None:
        """Role, leader, readiness or members changed: name servers hear of it, a lost leader's clients are answered."""
        self.registration_version += 1
        self._look_at_membership()
        leader = self.replica.leader
        asked = {(waiting.leader, waiting.term) for waiting in self._forwarded.values()}
        for node in sorted({node for node, term in asked if (node, term) != (leader, self.replica.term)}):
            self._answer_forwarded(node)
        if leader != self.replica.node_id:
            # The other nodes tell the next leader about their clients; what this one knows of them grows old.
            relayed, self._relayed = self._relayed, {}
            for connection in relayed.values():
                self._forget(connection)
            self._give_back_forgotten()
        for listener in self._role_listeners:
            listener()
        self._leader_may_hear()
        self._release_held()

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        """Committed messages are in their queues."""
        for listener in self._arrival_listeners:
            listener(arrivals)

    def metadata_changed(self, command: Command) -> None:
        """A command was applied; topics are part of what name servers know."""
        commands = command.commands if isinstance(command, Several) else (command,)
        if any(isinstance(single, PutTopic | DeleteTopic) for single in commands):
            self.registration_version += 1

    # ------------------------------------------------------------------ time and turns

    def on_arrival(self, listener: Callable[[Iterable[Arrival]], None]) -> None:
        """Registers a processor that waits for messages."""
        self._arrival_listeners.append(listener)

    def on_role_change(self, listener: Callable[[], None]) -> None:
        """Registers a processor that must act when the leader changes."""
        self._role_listeners.append(listener)

    def on_leader_reachable(self, listener: Callable[[], None]) -> None:
        """Registers a processor that must tell a leader, which is another node, what only this node knows.

        Called for a new leader and after a new connection to it; several times for one leader does no harm.
        """
        self._leader_listeners.append(listener)

    def on_disconnect(self, listener: Callable[[Connection], None]) -> None:
        """Registers a processor that keeps something by connection."""
        self._disconnect_listeners.append(listener)

    def add_deadline(self, act: Callable[[], None], due_ns: int = NEVER) -> Deadline:
        """Registers a processor that must act at a time, which it sets in what this returns."""
        deadline = Deadline(act, due_ns)
        self._deadlines.append(deadline)
        return deadline

    def turn(self, now_ns: int, wall_ms: int) -> int:
        """Everything that has become possible; returns when the next turn is due at the latest (ns)."""
        self.now_ns, self.wall_ms = now_ns, wall_ms
        replica = self.replica
        replica.tick(now_ns, wall_ms)
        if self._held.waiting:
            if replica.serving and replica.raft.transferee is None:
                self._release_held()  # a transfer has come to nothing, and this node leads on
            self._expire_held()
        for entry in self._deadlines:
            if entry.due_ns <= now_ns:
                entry.act()
        replica.turn(now_ns, wall_ms)
        self._relayed_bytes.clear()
        deadline = replica.deadline_ns()
        if self._held.waiting:
            deadline = min(deadline, self._held.deadline_ns())
        for entry in self._deadlines:
            if entry.due_ns < deadline:
                deadline = entry.due_ns
        return deadline

    def _leader_may_hear(self) -> None:
        leader = self.replica.leader
        if self.is_outside:
            return  # it must not count on clients whose requests are refused here
        if leader is not None and leader != self.replica.node_id and leader in self.replica.links:
            for listener in self._leader_listeners:
                listener()

    def _forget(self, connection: Connection) -> None:
        for listener in self._disconnect_listeners:
            listener(connection)

"""Heartbeats, and what they make known: who consumes what (RocketMQ's `ClientManageProcessor`).

`ClientRegistry.heartbeat` (broker/node/client_registry.py) decides what a heartbeat changes in the table of clients.

A client's heartbeat is registered on the node that it reached, and the leader is told too, so that its table is the
group's: the list of a consumer group's members, from which each of them computes its share of the queues, must be one
list. Only the leader tells them that the list has changed (code 40), each once, on its own connection or through the
node that it is connected to.

A heartbeat of a consumer group that the brokers do not know is answered when it and its retry topic exist: the first
pull may follow at once, and would otherwise be refused. If a Java client sent it, the members are told a
second time a moment later: one that rebalances while it does not know the retry topic yet asks for its route then,
and takes its queue only when it rebalances again, which is every 20 s unless it is told to
(`RebalanceImpl.rebalanceByTopic`). RocketMQ's brokers tell it each for itself, as each hears of it, so that
several of them tell it several times.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from broker.node.client_registry import ClientRegistry
from broker.node.consumer_group import RegisteredClient
from broker.node.listeners import Listeners
from broker.node.ports import Requests, State
from broker.reading.subscriptions import parse_filter, parse_in_steps
from broker.remoting.bodies import CheckClientConfigBody, ConsumerListBody, HeartbeatData
from broker.remoting.codes import LanguageCode, RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, encode, request
from broker.remoting.headers import (
    GetConsumerListByGroupHeader,
    NotifyConsumerIdsChangedHeader,
    UnregisterClientHeader,
)
from broker.remoting.json_body import decode_request, encode_body
from broker.remoting.opaques import Opaques
from broker.remoting.rocketmq_signature import ACCESS_KEY
from broker.replica.proposals import ignore
from broker.requests.budget import Budget
from broker.requests.connection import Connection, RelayedConnection
from broker.requests.deadline import NEVER, Time
from broker.requests.errors import ReplicaError, RequestError, TooManyError
from broker.requests.processing import HandledOn, Route
from broker.requests.responses import reply, reply_json
from broker.settings.live import LiveSettings
from broker.state.commands import SingleCommand
from broker.state.topic_rules import CLIENT_ID_LENGTH_MAX, RETRY_PREFIX, check_group_name
from broker.statistics.events import EventKind, Events
from broker.topics.creation import Creations, missing_for_consumers
from log.errors import DiskFullError

_CHECKED_MAX: Final = 1000
"""Subscriptions that wait to be checked: some seconds' work at worst."""
GROUPS_PER_CLIENT_MAX: Final = 1_000
"""Producer and consumer groups that one connection announces."""
SUBSCRIPTIONS_PER_CLIENT_MAX: Final = 5_000
"""Topics that the consumer groups of one heartbeat subscribe to, all together: each takes a microsecond."""

TOLD_AGAIN_NS: Final = 2_000_000_000
"""From when a consumer group was made until its members are told again. 5.x Java clients rebalance once a second at
most, and by then the name servers have heard of the retry topic."""

CLIENTS_AT_ONCE: Final = 100
"""Clients of whom one turn tells a new leader, which takes in what all nodes tell it: some 3 ms, there 5."""
NOTICES_AT_ONCE: Final = 500
"""Members that are told of a change in one turn: each takes a system call."""

COMMANDS_AT_ONCE: Final = 64
"""Topics and consumer groups that one entry of the log creates for a heartbeat."""


class HeartbeatsProcessor:
    """HEART_BEAT 34, UNREGISTER_CLIENT 35, GET_CONSUMER_LIST_BY_GROUP 38, CHECK_CLIENT_CONFIG 46."""

    def __init__(
        self,
        state: State,
        requests: Requests,
        registry: ClientRegistry[Connection],
        creations: Creations,
        settings: LiveSettings,
        time: Time,
        listeners: Listeners,
        events: Events,
    ) -> None:
        self._state = state
        self._requests = requests
        self._registry = registry
        self._creations = creations
        self._settings = settings
        self._time = time
        self._events = events
        self._checked = Budget("the check of other subscriptions", _CHECKED_MAX)
        self._was_serving = False
        self._opaques = Opaques()
        self._changed: dict[str, None] = {}
        """Consumer groups whose members are to be told that there are others now."""
        self._to_be_told: deque[Connection] = deque()
        """Members of a changed consumer group that are still to be told so, by `_notice`."""
        self._notice = b""
        """The encoded request that all in `_to_be_told` are sent; they are of one consumer group at a time."""
        self._again: dict[str, int] = {}
        """Consumer groups that are new -> when their members are told again (monotonic ns), earliest first."""
        self._next_expiry = time.add_deadline(self._close_silent, judges_silence=True)
        self._notices = time.add_deadline(self._send_notices)
        self._next_again = time.add_deadline(self._notify_again)
        self._telling: Iterator[tuple[RegisteredClient[Connection], HeartbeatData]] = iter(())
        """The clients whose last heartbeats a leader is still to hear."""
        self._next_told = time.add_deadline(self._tell_some)
        listeners.disconnects.append(self._disconnected)
        listeners.role_changes.append(self._role_changed)
        listeners.leaders_reachable.append(self._tell_leader)

    def routes(self) -> Iterable[Route]:
        """Heartbeats go to any node; only the leader's list of consumers is complete."""
        return (
            Route(RequestCode.HEART_BEAT, self.heartbeat, HandledOn.ANY),
            Route(RequestCode.UNREGISTER_CLIENT, self.unregister, HandledOn.ANY),
            Route(RequestCode.CHECK_CLIENT_CONFIG, self.check_config, HandledOn.ANY),
            Route(RequestCode.GET_CONSUMER_LIST_BY_GROUP, self.consumer_list, HandledOn.LEADER),
        )

    # ------------------------------------------------------------------ requests

    def heartbeat(self, connection: Connection, command: RemotingCommand) -> Iterator[None] | None:
        """Registers the client in its groups, of producers and consumers, here and with the leader, which creates what
        they need.
        """
        # Register it here, whatever this node's role: a new leader is told by the nodes of the clients.
        data = decode_request(command.body, HeartbeatData)
        self._check(connection, data)
        # What the client may be asked or told later is judged by its account (`AccessControl.may_publish`).
        access_key = command.fields.get(ACCESS_KEY, "") if self._requests.access is not None else ""
        client = RegisteredClient(
            connection, data.client_id, command.language_code, command.version, access_key
        )
        changed = self._registry.heartbeat(client, data, self._time.now_ns)
        self._plan_expiry()

        # Its consumer groups may need settings and a retry topic, which only the leader creates.
        state = self._state
        consumers = data.consumer_data_set
        missing = self._missing({consumer.group_name: consumer.unit_mode for consumer in consumers})
        if state.serving:
            self._notify(changed)
            self._requests.forward_copy(connection, command)
            new = [
                consumer.group_name
                for consumer in consumers
                if RETRY_PREFIX + consumer.group_name not in state.metadata.topics
            ]

            def created(_: object) -> None:
                if client.language is LanguageCode.JAVA:
                    self._plan_again(new)
                reply(connection, command, ResponseCode.SUCCESS)

            if missing:  # answered when it is created
                place = self._requests.place_of(command)
                return self._create(
                    missing,
                    created,
                    lambda: self._requests.forward_late(connection, command, place),
                    lambda: reply(connection, command, ResponseCode.SUCCESS),
                )
        elif missing and not command.is_one_way:
            # The leader answers when it has created them. Others of its client may be held from before.
            self._requests.forward_late(connection, command, self._requests.place_of(command))
            return None
        else:
            self._requests.forward_copy(connection, command)
        reply(connection, command, ResponseCode.SUCCESS)
        return None

    def _missing(self, groups: dict[str, bool]) -> list[SingleCommand]:
        """Returns what creates the settings and retry topics that consumer groups lack; True of one with unitMode."""
        return missing_for_consumers(
            self._state.metadata,
            groups,
            self._settings.current.broker.auto_create_groups,
            self._time.group_ms,
            [name for name, is_unit in groups.items() if is_unit],
        )

    def _create(
        self,
        missing: Sequence[SingleCommand],
        done: Callable[[object], None] = ignore,
        lost: Callable[[], None] = ignore,
        no_room: Callable[[], None] = lambda: None,
    ) -> Iterator[None]:
        """Proposes what consumer groups lack, in steps. Where there is no room for it their pulls will be told so, as
        of any consumer group that may not be created by use.
        """
        for begin in range(0, len(missing), COMMANDS_AT_ONCE):
            if begin:
                yield
            end = begin + COMMANDS_AT_ONCE
            is_last = end >= len(missing)
            try:
                self._creations.propose(
                    missing[begin:end], done if is_last else ignore, lost if is_last else ignore
                )
            except TooManyError:
                no_room()
                return

    def _check(self, connection: Connection, data: HeartbeatData) -> None:
        """Raises `RequestError` before anything of a heartbeat is registered."""
        if not data.client_id or len(data.client_id) > CLIENT_ID_LENGTH_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the heartbeat's clientID has {len(data.client_id)} characters, allowed are 1 to "
                f"{CLIENT_ID_LENGTH_MAX}",
            )
        subscriptions = sum(len(consumer.subscription_data_set) for consumer in data.consumer_data_set)
        if subscriptions > SUBSCRIPTIONS_PER_CLIENT_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the heartbeat has {subscriptions} subscriptions, at most {SUBSCRIPTIONS_PER_CLIENT_MAX} are allowed",
            )
        for consumer in data.consumer_data_set:
            check_group_name(consumer.group_name)
        for producer in data.producer_data_set:
            check_group_name(producer.group_name)
        # What it would add to the tables is bounded by connection and for all: anybody may send heartbeats.
        named = len(data.consumer_data_set) + len(data.producer_data_set)
        count = max(named, self._registry.groups_with(connection, data))
        if count > GROUPS_PER_CLIENT_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the client would be in {count} groups, of consumers and producers; at most "
                f"{GROUPS_PER_CLIENT_MAX} are allowed",
            )
        most = self._settings.current.limits.max_groups
        for kind, there, new in self._registry.new_groups_of(data):
            if new and there + new > most:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR,
                    f"{there} {kind} groups have clients, {new} more would be too many: at most {most} are allowed "
                    "(limits.max_groups)",
                )

    def unregister(self, connection: Connection, command: RemotingCommand) -> None:
        """Takes the client of the connection out of its producer or consumer group, here and at the leader."""
        header = command.decode_fields(UnregisterClientHeader)
        # By the connection and not by the header's client id, which anybody could give to take out somebody else.
        changed = self._registry.unregister(connection, header.producer_group, header.consumer_group)
        self._plan_expiry()
        if self._state.serving:
            self._notify(changed)
        self._requests.forward_copy(connection, command)
        reply(connection, command, ResponseCode.SUCCESS)

    def check_config(self, connection: Connection, command: RemotingCommand) -> Iterator[None]:
        """Says whether a subscription's expression can be used on this broker, before the consumer starts.

        In turns of its own: to parse one takes milliseconds.
        """
        self._checked.take(connection, command)
        try:
            yield
            subscription = decode_request(command.body, CheckClientConfigBody).subscription_data
            for _ in parse_in_steps(subscription.expression_type, subscription.sub_string):
                yield
                if not self._requests.is_connected(connection):
                    return
        finally:
            self._checked.free(connection, command)
        parse_filter(
            subscription.expression_type,
            subscription.sub_string,
            sql_filters=self._settings.current.broker.sql_filters,
        )
        reply(connection, command, ResponseCode.SUCCESS)

    def consumer_list(self, connection: Connection, command: RemotingCommand) -> None:
        """Tells the members of a consumer group, each once. Raises `RequestError` if there are none."""
        group = command.decode_fields(GetConsumerListByGroupHeader).consumer_group
        members = self._registry.members(group)
        if not members:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        reply_json(connection, command, ConsumerListBody(members))

    # ------------------------------------------------------------------ changes

    def _notify(self, groups: Iterable[str]) -> None:
        """Has the members of changed consumer groups compute their shares anew; the leader's task.

        They are told in the next turns, and once: when a node dies, thousands leave a consumer group at a time, and
        each would be told of each.
        """
        if self._settings.current.broker.notify_consumers:
            self._changed.update(dict.fromkeys(groups))
            if self._changed:
                self._notices.due_ns = self._time.now_ns

    def _send_notices(self) -> None:
        """Tells some of the members; a consumer group that has changed once more meanwhile is told of that behind the
        others."""
        if not self._state.serving:
            self._changed.clear()
            self._to_be_told.clear()
        for _ in range(NOTICES_AT_ONCE):
            if self._to_be_told:
                connection = self._to_be_told.popleft()
                if self._requests.is_connected(connection):
                    connection.send(self._notice)
            elif self._changed:
                self._begin_notices()
            else:
                break
        is_over = not self._to_be_told and not self._changed
        self._notices.due_ns = NEVER if is_over else self._time.now_ns

    def _begin_notices(self) -> None:
        """Has the members of the next consumer group that has changed be told."""
        assert not self._to_be_told, (
            f"{len(self._to_be_told)} members would be told of another consumer group"
        )
        group = next(iter(self._changed))
        del self._changed[group]
        config = self._state.metadata.groups.get(group)
        if config is not None and not config.notify_consumer_ids_changed_enable:
            return
        self._to_be_told.extend(self._registry.connections_to_notify(group))
        notice = request(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
            NotifyConsumerIdsChangedHeader(group),
            opaque=self._opaques.next(),
            one_way=True,
        )
        self._notice = encode(notice)

    def _plan_again(self, groups: Iterable[str]) -> None:
        due_ns = self._time.now_ns + TOLD_AGAIN_NS
        for group in groups:
            # One that is there keeps its place, as the earliest stand first.
            self._again.setdefault(group, due_ns)
        self._next_again.due_ns = next(iter(self._again.values()), NEVER)

    def _notify_again(self) -> None:
        due = [group for group, due_ns in self._again.items() if due_ns <= self._time.now_ns]
        for group in due:
            del self._again[group]
        self._next_again.due_ns = next(iter(self._again.values()), NEVER)
        self._notify(due)

    def _disconnected(self, connection: Connection) -> None:
        changed = self._registry.connection_closed(connection)
        self._plan_expiry()
        if self._state.serving:
            self._notify(changed)

    def _plan_expiry(self) -> None:
        due_ns = self._registry.deadline_ns()
        self._next_expiry.due_ns = NEVER if due_ns is None else due_ns

    def _close_silent(self) -> None:
        expired = self._registry.drop_silent(self._time.now_ns)
        self._plan_expiry()
        for connection in expired.connections:
            # A relayed client's socket is another node's, which judges its silence itself.
            if not isinstance(connection, RelayedConnection):
                self._events.warn(
                    EventKind.CONNECTION_CLOSED,
                    "silent client",
                    self._time.now_ns,
                    source=connection.address,
                    client=connection.name,
                    detail="it sends no heartbeats any more",
                )
                connection.close()  # a client that still lives connects anew and says so
        if self._state.serving:
            self._notify(expired.changed_groups)

    # ------------------------------------------------------------------ leaders come and go

    def _role_changed(self) -> None:
        serving = self._state.serving
        if serving and not self._was_serving:
            self._begin_serving()
        self._was_serving = serving

    def _begin_serving(self) -> None:
        """Makes up for what was registered while nobody served: consumer groups are created now, members hear of each
        other."""
        groups = self._registry.consumer_groups()
        known = {name: self._registry.consumer_group(name) for name in groups}
        missing = self._missing(
            {name: group is not None and group.unit_mode for name, group in known.items()}
        )
        if missing:
            try:
                for _ in self._create(missing):
                    pass
            except (ReplicaError, DiskFullError):
                pass  # the clients' next heartbeats cause it again
        self._notify(groups)

    def _tell_leader(self) -> None:
        """Relays what this node's clients last said: a new leader has not heard it, one newly connected forgot it."""
        self._telling = self._registry.local_heartbeats()
        self._tell_some()

    def _tell_some(self) -> None:
        """Relays what some of the clients said; the others have their turn."""
        told = 0
        for client, data in islice(self._telling, CLIENTS_AT_ONCE):
            told += 1
            heartbeat = request(
                RequestCode.HEART_BEAT,
                {ACCESS_KEY: client.access_key} if client.access_key else None,
                encode_body(data),
                one_way=True,
                version=client.version,
            )
            # The leader is to note language and version of the client, not of this node.
            heartbeat.language = client.language.name
            self._requests.forward_copy(client.connection, heartbeat)
        self._next_told.due_ns = self._time.now_ns if told == CLIENTS_AT_ONCE else NEVER

"""Pulling: reads of committed messages, with filters and long polling (remoting.md 7.2, behaviour.md 5).

What is found goes from the log's mapping to the socket as slices; per message there is one unit of the ConsumeQueue to
look at and one slice to make. A pull that finds nothing and may wait is held, under its queue, until a message is
committed there or its time is over.

The leader answers everything; what it says of a queue's end (nothing there yet, an offset out of range) it says
behind a read barrier, since a leader that was stopped for a while may be one no longer. Another node answers only
what it can answer truly from its own committed part: messages that it holds, for a pull that commits no offset. All
else (the end of the queue, an offset out of range, a wait) is for the leader to judge, and is forwarded: a follower
that lags must not tell a consumer to go back.

Most Java consumers send no subscription with a pull: what counts is their group's, from heartbeats. But their client
looks at the tags of what comes once more, by the subscription that it had when it sent the pull, drops what does not
fit, and goes on behind it (`PullAPIWrapper.processPullResult`, `DefaultMQPushConsumerImpl.pullMessage`, in 4.9 and 5.x
alike). So a pull that has waited while its consumer subscribed to something else can be given nothing: neither what is
wanted now nor what is not. It is answered with PULL_NOT_FOUND and its own offset, at which the client pulls again, with
its new subscription. RocketMQ holds it: `PullRequestHoldService` looks at what comes with the old filter, and when the
pull is woken or its time is over it is run again with the group's new subscription, so that its client drops what it
is given.
"""

import heapq
from collections.abc import Iterable
from typing import Final

from broker.access.control import AccessControl
from broker.node.client_registry import ClientRegistry, FilterChange, filter_of
from broker.node.listeners import Listeners
from broker.node.ports import Requests
from broker.offsets.commits import OffsetCommits
from broker.offsets.resets import OffsetResets
from broker.reading.subscriptions import SQL92, Filter, SqlFilter, parse_filter
from broker.remoting.bodies import MessageModel
from broker.remoting.codes import Permission, RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, encode_response_head
from broker.remoting.headers import PullMessageHeader
from broker.replica.replica import Replica
from broker.requests.connection import Connection, RelayedConnection
from broker.requests.deadline import NEVER, Time
from broker.requests.errors import RequestError
from broker.requests.late_requests import SUSPEND_MS_MAX, done_late
from broker.requests.processing import Place, Route
from broker.requests.responses import reply
from broker.settings.live import LiveConfig
from broker.settings.tables import follower_broker_id
from broker.state.topic_rules import InvalidNameError, check_group_name
from broker.statistics.stats import Stats
from broker.topics.creation import Creations, TooManyError, missing_for_consumers
from log.consume_queue import ConsumeQueue
from log.dispatch import Arrival
from log.errors import OutOfRangeError
from log.record import peek

_ANY_FOLLOWER: Final = 1
"""The default of a group's whichBrokerWhenConsumeSlowly."""

COUNT_MAX: Final = 1024
BYTES_MAX: Final = 256 * 1024
"""One answer's messages, unless the request names another number of bytes (5.x maxMsgBytes)."""
BYTES_MAX_REQUESTED: Final = 4 * 1024 * 1024
SCANNED_UNITS_MIN: Final = 800
"""Units looked at for one answer: 16,000 bytes of them, or as many as messages are wanted if that is more."""
SHORT_POLL_MS: Final = 1_000
"""How long a pull waits where long polling is off: answered at once, it would come again at once, for ever."""

_ABOUT_THE_END: Final = frozenset((ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED))
"""Answers that say where a queue ends: a leader that has been deposed and does not know it must not give them."""

_RESET: Final = "OFFSET_RESET"

_CHANGED: Final = "SUBSCRIPTION_CHANGED"

_PULLS: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})

_LINK_IS_FULL: Final = "[OVERLOAD]too much waits for the link to this client's node"

_SPREAD_BYTES: Final = 1 << 30
"""Readers of different parts of the log are pointed at different followers."""


class _HeldPull:
    """A pull that waits: for messages in its queue, or to be sure of the queue's end."""

    __slots__ = (
        "access",
        "asked_offset",
        "command",
        "connection",
        "deadline_ns",
        "done",
        "filter",
        "header",
        "since_ns",
        "subscribed",
    )

    def __init__(
        self,
        connection: Connection,
        command: RemotingCommand,
        header: PullMessageHeader,
        wanted: Filter,
        subscribed: tuple[str, str] | None,
        access: AccessControl | None,
        since_ns: int,
        deadline_ns: int = NEVER,
    ) -> None:
        self.connection = connection
        self.command = command
        self.header = header
        self.asked_offset = header.queue_offset
        """Where the client is, while the header's offset moves on past messages that it does not want."""
        self.filter = wanted
        self.subscribed = subscribed
        """What its group subscribed to, as type and expression, if it rests on that."""
        self.access = access
        """The rules by which it was let in."""
        self.since_ns = since_ns
        self.deadline_ns = deadline_ns
        self.done = False


class _Answer:
    """What a read of a queue comes to: response code, status name, where to go on, and the records."""

    __slots__ = ("code", "max_offset", "min_offset", "next_offset", "position", "records", "size", "status")

    def __init__(self, code: int, status: str, next_offset: int, queue: ConsumeQueue | None) -> None:
        self.code = code
        self.status = status
        self.next_offset = next_offset
        self.min_offset = 0 if queue is None else queue.min_offset
        self.max_offset = 0 if queue is None else queue.max_offset
        self.records: list[memoryview] = []
        self.position = 0
        """Where the first record is in the log."""
        self.size = 0


class PullProcessor:
    """PULL_MESSAGE 11 and LITE_PULL_MESSAGE 361."""

    def __init__(
        self,
        replica: Replica,
        requests: Requests,
        registry: ClientRegistry[Connection],
        offsets: OffsetCommits,
        resets: OffsetResets,
        creations: Creations,
        stats: Stats,
        settings: LiveConfig,
        time: Time,
        listeners: Listeners,
    ) -> None:
        self._replica = replica
        self._requests = requests
        self._registry = registry
        self._offsets = offsets
        self._resets = resets
        self._creations = creations
        self._stats = stats
        self._settings = settings
        self._time = time
        self._held: dict[tuple[str, int], dict[_HeldPull, None]] = {}
        self._held_by: dict[Connection, dict[_HeldPull, None]] = {}
        """The same by connection: when a node dies, those of thousands end in one turn."""
        self._held_count = 0
        self._deadlines: list[tuple[int, int, _HeldPull]] = []
        self._sequence = 0
        listeners.arrivals.append(self._arrived)
        resets.on_order(self._ordered)
        listeners.role_changes.append(self._role_changed)
        listeners.disconnects.append(self._disconnected)
        registry.on_filter_change(self._filter_changed)
        self._deadline = time.add_deadline(self._expire)

    def routes(self) -> Iterable[Route]:
        """Every node tries; see the head of this module."""
        return (
            Route(RequestCode.PULL_MESSAGE, self.pull, Place.ANY),
            Route(RequestCode.LITE_PULL_MESSAGE, self.pull, Place.ANY),
        )

    def pull(self, connection: Connection, command: RemotingCommand) -> None:
        """Answers with messages, holds the request, or says why there are none."""
        if command.code == RequestCode.LITE_PULL_MESSAGE and not self._settings.config.broker.lite_pulls:
            raise RequestError(
                ResponseCode.NO_PERMISSION, "lite pulls are switched off here (litePullMessageEnable)"
            )
        header = command.decode_fields(PullMessageHeader)
        replica = self._replica
        if not replica.serving:
            self._pull_elsewhere(connection, command, header)
            return
        self._check_broker()  # before a group is created by its first pull
        if header.consumer_group not in replica.metadata.groups and self._create_group(
            connection, command, header.consumer_group
        ):
            return
        if connection.is_link_full():
            raise RequestError(ResponseCode.SYSTEM_BUSY, _LINK_IS_FULL)
        topic = self._check(header)
        wanted = self._filter(header)
        if (
            header.sys_flag & 1
            and header.commit_offset >= 0
            and not self._is_broadcast(header.consumer_group)
        ):
            self._offsets.stage(header.consumer_group, topic, header.queue_id, header.commit_offset)
        if replica.metadata.parked.by_group:
            self._resets.pulled(header.consumer_group, topic, header.queue_id, header.queue_offset)
        answer = self._read(header, wanted)
        if (
            answer.code == ResponseCode.PULL_NOT_FOUND
            and header.sys_flag & 2
            and header.suspend_timeout_ms > 0
            and self._held_count < self._settings.config.limits.max_held_pulls
        ):
            self._hold(connection, command, header, wanted)
        elif answer.code in _ABOUT_THE_END:
            self._answer_behind_barrier(
                _HeldPull(
                    connection,
                    command,
                    header,
                    wanted,
                    self._subscribed(header),
                    self._requests.access,
                    self._time.now_ns,
                )
            )
        else:
            self._answer(connection, command, answer)

    def _pull_elsewhere(
        self, connection: Connection, command: RemotingCommand, header: PullMessageHeader
    ) -> None:
        metadata = self._replica.metadata
        if (
            self._settings.config.broker.follower_reads
            and not header.sys_flag & 1
            and header.topic in metadata.topics
            and header.consumer_group in metadata.groups
            and not isinstance(connection, RelayedConnection)
        ):
            try:
                self._check(header)
                answer = self._read(header, self._filter(header))
            except RequestError:
                pass  # the leader may know the subscription, or another topic's configuration, that is not here yet
            else:
                if answer.code == ResponseCode.SUCCESS:
                    self._answer(connection, command, answer)
                    return
        self._requests.forward(connection, command)

    def _create_group(self, connection: Connection, command: RemotingCommand, group: str) -> bool:
        """Creates a group by its first pull, which is handled anew when it exists; False if that may not be."""
        try:
            check_group_name(group)
        except InvalidNameError:
            return False
        missing = missing_for_consumers(
            self._replica.metadata,
            (group,),
            self._settings.config.broker.auto_create_groups,
            self._time.wall_ms,
        )
        if not missing:
            return False
        try:
            self._creations.propose(
                missing,
                lambda _: self._requests.received(connection, command),
                lambda: self._requests.forward(connection, command),
            )
        except TooManyError as error:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group}] does not exist, and is not created: {error}",
            ) from error
        return True

    def _check_broker(self) -> None:
        if "read" not in self._settings.config.broker.permission:
            raise RequestError(ResponseCode.NO_PERMISSION, "the broker's permission does not include reading")

    def _check(self, header: PullMessageHeader) -> str:
        """The checks of behaviour.md 5.1, in order; the topic's name."""
        self._check_broker()
        metadata = self._replica.metadata
        group = metadata.groups.get(header.consumer_group)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumer_group}] does not exist",
            )
        if not group.consume_enable:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {header.consumer_group}"
            )
        topic = metadata.topics.get(header.topic)
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!"
            )
        if not topic.perm & Permission.READ:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] pulling message is forbidden"
            )
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}]",
            )
        return header.topic

    def _filter(self, header: PullMessageHeader) -> Filter:
        if header.topic.startswith("%RETRY%"):
            return None
        if header.sys_flag & 4:
            return parse_filter(
                header.expression_type,
                header.subscription or "*",
                sql_filters=self._settings.config.broker.sql_filters,
            )
        self._check_broadcast(header.consumer_group)
        subscription = self._registry.subscription(header.consumer_group, header.topic)
        if subscription is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription to {header.topic} does not exist",
            )
        if subscription.sub_version < header.subscription_version:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the consumer's subscription to {header.topic} is not the latest",
            )
        try:
            return parse_filter(
                subscription.expression_type,
                subscription.sub_string,
                sql_filters=self._settings.config.broker.sql_filters,
            )
        except RequestError as error:
            if subscription.expression_type != SQL92 or error.code != ResponseCode.SUBSCRIPTION_PARSE_FAILED:
                raise
            # The heartbeat that brought it was taken, as the client could do nothing about it there.
            raise RequestError(ResponseCode.FILTER_DATA_NOT_EXIST, error.remark) from error

    def _subscribed(self, header: PullMessageHeader) -> tuple[str, str] | None:
        """What the group subscribes to, for a pull that rests on that, and that no check has refused."""
        if not _rests_on_heartbeats(header):
            return None
        subscription = self._registry.subscription(header.consumer_group, header.topic)
        return None if subscription is None else filter_of(subscription)

    def _is_broadcast(self, group: str) -> bool:
        known = self._registry.consumer_group(group)
        return known is not None and known.message_model is MessageModel.BROADCASTING

    def _check_broadcast(self, group: str) -> None:
        config = self._replica.metadata.groups[group]
        if not config.consume_broadcast_enable and self._is_broadcast(group):
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"the consumer group[{group}] can not consume by broadcast way"
            )

    # ------------------------------------------------------------------ reading

    def _read(self, header: PullMessageHeader, wanted: Filter) -> _Answer:
        """The rules of behaviour.md 5.2."""
        queue = self._replica.store.queues.get(header.topic, header.queue_id)
        offset = header.queue_offset
        reset = self._resets.target(header.consumer_group, header.topic, header.queue_id)
        if reset is not None:
            return _Answer(ResponseCode.PULL_OFFSET_MOVED, _RESET, reset, queue)
        if queue is None:
            code = ResponseCode.PULL_NOT_FOUND if offset == 0 else ResponseCode.PULL_OFFSET_MOVED
            return _Answer(code, "NO_MATCHED_LOGIC_QUEUE", 0, None)
        end = queue.max_offset
        if end == 0:
            code = ResponseCode.PULL_NOT_FOUND if offset == 0 else ResponseCode.PULL_OFFSET_MOVED
            return _Answer(code, "NO_MESSAGE_IN_QUEUE", 0, queue)
        if offset < queue.min_offset:
            return _Answer(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", queue.min_offset, queue)
        if offset == end:
            return _Answer(ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", offset, queue)
        if offset > end:
            return _Answer(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", end, queue)
        return self._scan(queue, header, wanted)

    def _scan(self, queue: ConsumeQueue, header: PullMessageHeader, wanted: Filter) -> _Answer:
        count = max(1, min(header.max_message_count, COUNT_MAX))
        bytes_max = BYTES_MAX
        if header.max_message_bytes is not None and header.max_message_bytes > 0:
            bytes_max = min(header.max_message_bytes, BYTES_MAX_REQUESTED)
        record_at = self._replica.store.log.record_at
        answer = _Answer(ResponseCode.SUCCESS, "FOUND", header.queue_offset, queue)
        records = answer.records
        offset = header.queue_offset
        scanned = max(SCANNED_UNITS_MIN, count)
        if isinstance(wanted, SqlFilter):
            tags, matches, scanned = None, wanted.matches, min(scanned, wanted.records_max)
        else:
            tags, matches = wanted, None
        end = min(answer.max_offset, offset + scanned)
        size = 0
        removed = False
        while offset < end and len(records) < count:
            for physical_offset, length, tags_code in queue.units(offset, end - offset):
                if tags is not None and tags_code not in tags:
                    offset += 1
                    continue
                if records and size + length > bytes_max:
                    end = offset
                    break
                try:
                    record = record_at(physical_offset, length)
                    if matches is not None and not matches(_properties(record)):
                        offset += 1
                        continue
                    records.append(record)
                    if len(records) == 1:
                        answer.position = physical_offset
                except OutOfRangeError:
                    removed = True  # retention took it while the unit was still there
                    offset += 1
                    continue
                size += length
                offset += 1
                if len(records) == count:
                    break
        answer.size = size
        answer.next_offset = offset
        if not records:
            answer.code = ResponseCode.PULL_RETRY_IMMEDIATELY
            answer.status = "MESSAGE_WAS_REMOVING" if removed else "NO_MATCHED_MESSAGE"
        return answer

    def _answer(self, connection: Connection, command: RemotingCommand, answer: _Answer) -> None:
        if command.flag & 2:
            return
        replica = self._replica
        began_ns = self._time.now_ns
        if answer.records and not replica.loads.reads.is_hot(answer.position):
            replica.loads.when_loaded(
                answer.position, lambda: self._send(connection, command, answer, began_ns), began_ns
            )
        else:
            self._send(connection, command, answer, began_ns)

    def _send(self, connection: Connection, command: RemotingCommand, answer: _Answer, began_ns: int) -> None:
        if answer.records and connection.is_link_full():
            # Asked again here: one arrival, or one read from the disk, may answer thousands that waited.
            reply(connection, command, ResponseCode.SYSTEM_BUSY, _LINK_IS_FULL)
            return
        suggested = 0
        if answer.records:
            header = command.decode_fields(PullMessageHeader)
            suggested = self._suggested(answer, header.consumer_group)
            now_ns = self._time.now_ns
            self._stats.given(
                header.topic,
                header.consumer_group,
                len(answer.records),
                answer.size,
                now_ns - began_ns,
                now_ns,
            )
        else:
            self._stats.gets_missed += 1
            if answer.status == _RESET:
                header = command.decode_fields(PullMessageHeader)
                self._resets.told(header.consumer_group, header.topic, header.queue_id, by_pull=True)
        head = encode_response_head(
            command,
            int(answer.code),
            answer.status,
            {
                "suggestWhichBrokerId": str(suggested),
                "nextBeginOffset": str(answer.next_offset),
                "minOffset": str(answer.min_offset),
                "maxOffset": str(answer.max_offset),
            },
            answer.size,
        )
        connection.send(head, *answer.records)

    def _suggested(self, answer: _Answer, group_name: str) -> int:
        """The broker id to ask next: a follower's while what is read lies far behind the log's end (behaviour.md 5.2).

        So a long backlog is read from a disk that no producer waits for. The reader stays with its follower until it
        has caught up, and is spread over the followers by its position, unless its group names one
        (whichBrokerWhenConsumeSlowly; its default, 1, is taken for any) or, with 0, stays with the leader. Who is not
        far behind reads from the leader, or in the same way from whom the group's brokerId names.
        """
        replica = self._replica
        group = replica.metadata.groups.get(group_name)
        if not self._settings.config.broker.follower_reads or group is None:
            return 0
        is_near = replica.loads.reads.is_hot(answer.position)
        named = group.broker_id if is_near else group.which_broker_when_consume_slowly
        if not named:
            return 0
        if not replica.serving:
            own_id = follower_broker_id(replica.node_id)
            return own_id if not is_near or named in {_ANY_FOLLOWER, own_id} else 0
        followers = sorted(node for node in replica.raft.configuration.voters if node in replica.links)
        if named != _ANY_FOLLOWER and any(follower_broker_id(node) == named for node in followers):
            return named
        if not followers or (is_near and named != _ANY_FOLLOWER):
            return 0
        return follower_broker_id(followers[answer.position // _SPREAD_BYTES % len(followers)])

    def _answer_behind_barrier(self, held: _HeldPull) -> None:
        """Reads once it is sure that no other leader has taken messages since the request came."""

        def answer_now() -> None:
            answer = self._read_again(held)
            if answer is not None:
                self._answer(held.connection, held.command, answer)

        self._replica.read_barrier(
            answer_now,
            lambda: self._hand_on(held),
        )

    def _hand_on(self, held: _HeldPull) -> None:
        """Asks the next leader, which may hold it for what is left of its time."""
        self._requests.forward(held.connection, done_late(held.command, self._time.now_ns - held.since_ns))

    def _read_again(self, held: _HeldPull) -> _Answer | None:
        """Reads for a request that has waited. If it may not be answered so any more, it is refused, and there is None.

        It meets the checks again that it has passed when it came. If its group subscribes to something else now, its
        client has to pull anew: see the head of this module.
        """
        requests, header = self._requests, held.header
        try:
            if requests.access is not None and requests.access is not held.access:
                requests.access.check_again(held.connection.host, held.command)
                held.access = requests.access
            self._check(header)
            if not header.sys_flag & 4:  # it brought no subscription of its own
                held.filter = self._filter(header)
                if held.subscribed != self._subscribed(header):
                    return self._pull_anew(header, held.asked_offset)
        except RequestError as error:
            reply(held.connection, held.command, error.code, error.remark)
            return None
        return self._read(header, held.filter)

    # ------------------------------------------------------------------ long polling

    def _hold(
        self,
        connection: Connection,
        command: RemotingCommand,
        header: PullMessageHeader,
        wanted: Filter,
    ) -> None:
        suspend_ms = min(
            header.suspend_timeout_ms,
            SUSPEND_MS_MAX if self._settings.config.broker.long_polling else SHORT_POLL_MS,
        )
        self._stats.gets_missed += 1
        now_ns = self._time.now_ns
        deadline_ns = now_ns + suspend_ms * 1_000_000
        held = _HeldPull(
            connection,
            command,
            header,
            wanted,
            self._subscribed(header),
            self._requests.access,
            now_ns,
            deadline_ns,
        )
        self._held.setdefault((header.topic, header.queue_id), {})[held] = None
        self._held_by.setdefault(connection, {})[held] = None
        self._held_count += 1
        self._sequence += 1
        heapq.heappush(self._deadlines, (held.deadline_ns, self._sequence, held))
        self._deadline.due_ns = min(self._deadline.due_ns, held.deadline_ns)

    def _arrived(self, arrivals: Iterable[Arrival]) -> None:
        held_by_queue = self._held
        if not held_by_queue:
            return
        for arrival in arrivals:
            waiting = held_by_queue.pop((arrival.topic, arrival.queue_id), None)
            if waiting is None:
                continue
            still: dict[_HeldPull, None] = {}
            for held in waiting:
                if held.done:
                    continue
                answer = self._read_again(held)
                if answer is None:
                    self._finish(held)
                elif (
                    answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
                    and answer.next_offset >= answer.max_offset
                ):
                    # Nothing for this consumer among the new: go on waiting behind them.
                    held.header.queue_offset = answer.next_offset
                    still[held] = None
                elif answer.code == ResponseCode.PULL_NOT_FOUND and answer.status != _CHANGED:
                    still[held] = None
                else:
                    self._finish(held)
                    self._answer(held.connection, held.command, answer)
            if still:
                held_by_queue[(arrival.topic, arrival.queue_id)] = still

    def _ordered(self, keys: Iterable[tuple[str, str, int]]) -> None:
        """Groups are to go elsewhere: those of their members that wait are told at once."""
        for group, topic, queue_id in keys:
            for held in list(self._held.get((topic, queue_id), ())):
                if held.header.consumer_group == group:
                    self._take_out(held)
                    self._answer_behind_barrier(held)

    def _filter_changed(self, change: FilterChange[Connection]) -> None:
        """Pulls that rest on what heartbeats said are sent anew: of the group, and of who has changed its mind.

        A client may do so for itself alone: the members of a group change one after the other, and the first one's
        heartbeat changes the group's subscription. What this node's clients wait for elsewhere is ended here: another
        leader might be asked by then, who has heard of the new subscription before the old pull.
        """
        ended = [
            held
            for (topic, _), waiting in (self._held.items() if change.topics else ())
            if topic in change.topics
            for held in waiting
            if held.header.consumer_group == change.group and held.subscribed is not None
        ]
        connection = change.connection
        if connection is not None:
            ended += [
                held
                for held in self._held_by.get(connection, ())
                if held.header.consumer_group == change.group
                and held.subscribed is not None
                and held.header.topic not in change.topics
            ]
        for held in ended:
            self._take_out(held)
            self._answer(held.connection, held.command, self._pull_anew(held.header, held.asked_offset))
        if connection is not None:
            for command in self._requests.take_back(
                connection, lambda pull: _is_resting_pull(pull, change.group)
            ):
                header = command.decode_fields(PullMessageHeader)
                self._answer(connection, command, self._pull_anew(header, header.queue_offset))

    def _pull_anew(self, header: PullMessageHeader, offset: int) -> _Answer:
        """The answer to a pull of a subscription that is no more; `offset` is where its client is."""
        queue = self._replica.store.queues.get(header.topic, header.queue_id)
        return _Answer(ResponseCode.PULL_NOT_FOUND, _CHANGED, offset, queue)

    def _finish(self, held: _HeldPull) -> None:
        held.done = True
        self._held_count -= 1
        others = self._held_by[held.connection]
        del others[held]
        if not others:
            del self._held_by[held.connection]
        if held.deadline_ns <= self._deadline.due_ns:
            deadlines = self._deadlines
            while deadlines and deadlines[0][2].done:
                heapq.heappop(deadlines)
            self._deadline.due_ns = deadlines[0][0] if deadlines else NEVER

    def _expire(self) -> None:
        while self._deadline.due_ns <= self._time.now_ns:
            held = self._deadlines[0][2]
            self._take_out(held)
            self._answer_behind_barrier(held)

    def _take_out(self, held: _HeldPull) -> None:
        self._finish(held)
        key = (held.header.topic, held.header.queue_id)
        waiting = self._held[key]
        del waiting[held]
        if not waiting:
            del self._held[key]

    def _role_changed(self) -> None:
        """A node that no longer serves hands its own clients' pulls on; other nodes do so for theirs."""
        if self._replica.serving or not self._held:
            return
        held_by_queue, self._held = self._held, {}
        self._held_by.clear()
        self._held_count = 0
        self._deadlines.clear()
        self._deadline.due_ns = NEVER
        for waiting in held_by_queue.values():
            for held in waiting:
                if not held.done and not isinstance(held.connection, RelayedConnection):
                    self._hand_on(held)

    def _disconnected(self, connection: Connection) -> None:
        for held in list(self._held_by.get(connection, ())):
            self._take_out(held)


def _rests_on_heartbeats(header: PullMessageHeader) -> bool:
    """Whether its group's subscription says what a pull wants: it brings none, and is not for retries, all of them."""
    return not header.sys_flag & 4 and not header.topic.startswith("%RETRY%")


def _is_resting_pull(command: RemotingCommand, group: str) -> bool:
    if command.code not in _PULLS:
        return False
    header = command.decode_fields(PullMessageHeader)
    return header.consumer_group == group and _rests_on_heartbeats(header)


def _properties(record: memoryview) -> bytes:
    """The properties of a record that the log holds."""
    head = peek(record)
    return bytes(record[head.properties_begin : head.properties_end])

"""Consumer offsets, and the offsets that a queue has, as RocketMQ's `ConsumerManageProcessor` answers them.

All responses are the leader's after a read barrier: what a client is told was true at some moment between its question
and the response, across failovers too. An offset that consumers have reported and that is on its way into the log
counts: the question waits until it is there.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from broker.node.client_registry import ClientRegistry
from broker.node.long_responses import LongResponses
from broker.node.ports import Proposals, Requests
from broker.offsets.commits import NotStored, OffsetCommits, StoredOffset
from broker.offsets.resets import OffsetResets
from broker.remoting.admin_headers import CloneGroupOffsetHeader
from broker.remoting.bodies import TopicConfig
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import (
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from broker.remoting.json_body import encode_body
from broker.remoting.pieces import Pieces
from broker.requests.connection import Connection
from broker.requests.errors import NotServingError, OverloadedError, RequestError
from broker.requests.long_bodies import Body
from broker.requests.processing import HandledOn, Pace, Route
from broker.requests.responses import refuse, reply, reply_unknown
from broker.state.topic_rules import check_group_name, queues_of
from log.errors import DiskFullError
from log.queues.consume_queue import Boundary, ConsumeQueue

OFFSETS_AT_ONCE: Final = 5_000
"""A step of the response that tells all offsets has so many."""

_OFFSETS_A_TOPIC: Final = 6
"""To find and name the topic takes the time of so many of its offsets."""

YOUNG_QUEUE_BYTES: Final = 1 << 30
"""A queue whose first message is so near to the log's end is young: a new consumer group starts at its beginning.

RocketMQ asks whether the message is still in its page cache; a fixed amount is the same on every node.
"""


@dataclass(eq=False)
class OffsetsProcessor:
    """Requests 14, 15, 29, 30, 31, 32, 43 and 314."""

    _leadership: Proposals
    _requests: Requests
    _registry: ClientRegistry[Connection]
    _offsets: OffsetCommits
    _resets: OffsetResets
    _long_responses: LongResponses

    def routes(self) -> Iterable[Route]:
        """Reads take the barrier; a commit is itself an entry of the log."""
        return (
            Route(RequestCode.QUERY_CONSUMER_OFFSET, self.query, HandledOn.LEADER_READ),
            Route(RequestCode.UPDATE_CONSUMER_OFFSET, self.update, HandledOn.LEADER),
            Route(RequestCode.GET_MAX_OFFSET, self.max_offset, HandledOn.LEADER_READ),
            Route(RequestCode.GET_MIN_OFFSET, self.min_offset, HandledOn.LEADER_READ),
            Route(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, self.search, HandledOn.LEADER_READ),
            Route(RequestCode.GET_EARLIEST_MSG_STORETIME, self.earliest_store_time, HandledOn.LEADER_READ),
            Route(RequestCode.GET_ALL_CONSUMER_OFFSET, self.all_offsets, HandledOn.LEADER_READ),
            Route(RequestCode.CLONE_GROUP_OFFSET, self.clone, HandledOn.LEADER_READ),
        )

    # ------------------------------------------------------------------ a consumer group's offsets

    def query(self, connection: Connection, command: RemotingCommand) -> None:
        """Tells the consumer group's next offset in a queue, or what a consumer group without one should do."""
        header = command.decode_fields(QueryConsumerOffsetHeader)
        self._check_queue(header.topic, header.queue_id)
        place = self._requests.place_of(command)
        # What was reported before counts for this response, also where nobody has waited for it to be stored.
        waits = self._offsets.when_settled(
            header.consumer_group,
            header.topic,
            header.queue_id,
            lambda: self._answer_query(connection, command, header),
            lambda: self._requests.forward_late(connection, command, place),
        )
        if not waits:
            self._answer_query(connection, command, header)

    def _answer_query(
        self, connection: Connection, command: RemotingCommand, header: QueryConsumerOffsetHeader
    ) -> None:
        offsets = self._leadership.metadata.offsets.get((header.consumer_group, header.topic), {})
        offset = offsets.get(header.queue_id)
        # As `ConsumerManageProcessor.queryConsumerOffset`: a new consumer group misses nothing of a queue that is
        # young.
        if offset is None and header.set_zero_if_not_found is not False and self._is_young(header):
            offset = 0
        if offset is None:
            reply(
                connection,
                command,
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, maybe this group consumer boot first",
            )
            return
        self._resets.told(header.consumer_group, header.topic, header.queue_id, by_pull=False)
        self._answer(connection, command, offset)

    def _is_young(self, header: QueryConsumerOffsetHeader) -> bool:
        """Tells whether a new consumer group starts at offset 0: nothing is gone, and the first message is near."""
        queue = self._queue(header.topic, header.queue_id)
        if queue is None or queue.max_offset == 0:
            return True
        if queue.min_offset > 0:
            return False
        unit = queue.unit(0)
        assert unit is not None, "offset 0 is in the queue"
        return self._leadership.store.log.end_position - unit[0] <= YOUNG_QUEUE_BYTES

    def update(self, connection: Connection, command: RemotingCommand) -> None:
        """Stores a consumer group's offset; the response, if one is wanted, comes when it is committed.

        A remark says that it does not count: a reset stands, which the consumer group's consumers have yet to follow.
        Raises `RequestError`.
        """
        header = command.decode_fields(UpdateConsumerOffsetHeader)
        self._check_queue(header.topic, header.queue_id)
        check_group_name(header.consumer_group)
        if header.commit_offset < 0:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"commitOffset {header.commit_offset} is negative, no offset is"
            )
        key = (header.consumer_group, header.topic, header.queue_id)
        if command.is_one_way:
            self._offsets.stage(*key, header.commit_offset)
            return
        # An offset is small, and consumers that could store none would get all messages again at their next start.
        self._leadership.check_may_append(despite_full_disk=True)
        place = self._requests.place_of(command)
        self._offsets.commit(
            *key,
            header.commit_offset,
            lambda target: reply(connection, command, ResponseCode.SUCCESS, _why_it_does_not_count(target)),
            lambda reason: self._not_stored(connection, command, place, reason),
        )

    def _not_stored(
        self, connection: Connection, command: RemotingCommand, place: int, reason: NotStored | None
    ) -> None:
        match reason:
            case OverloadedError() | DiskFullError():
                refuse(connection, command, reason)
            case NotServingError():
                # It was staged, and nothing of it is in the log: the next leader may store it.
                self._requests.forward_late(connection, command, place)
            case _:
                reply_unknown(connection, command)

    def all_offsets(self, connection: Connection, command: RemotingCommand) -> Iterator[None]:
        """Tells all consumer groups' offsets that the client may see, in steps, as consumerOffset.json has them."""
        sight = self._requests.sight(connection, command)
        offsets = self._leadership.metadata.offsets

        def body() -> Body:
            told, separator, pace = Pieces(b'{"offsetTable":{'), b"", Pace(OFFSETS_AT_ONCE)
            for group, topic in offsets:
                queues = offsets.get((group, topic))
                if pace.spent(_OFFSETS_A_TOPIC):
                    yield
                if queues is None or not (sight.group(group) and sight.topic(topic)):
                    continue
                told.write(separator, encode_body(f"{topic}@{group}"), b":{")
                stored, separator = sorted(queues.items()), b""
                for begin in range(0, len(stored), OFFSETS_AT_ONCE):
                    some = stored[begin : begin + OFFSETS_AT_ONCE]
                    told.write(separator, b",".join([b"%d:%d" % item for item in some]))
                    separator = b","
                    if pace.spent(len(some)):
                        yield
                told.write(b"}")
                separator = b","
            told.write(b"}}")
            return told

        return self._long_responses.tell(connection, command, body())

    def clone(self, connection: Connection, command: RemotingCommand) -> Iterator[None]:
        """Sets a consumer group's offsets to another's, in one topic or in all that the other consumes, in steps.

        While the other has members, topics that none of them subscribes to any more are left out, unless `offline`.
        """
        header = command.decode_fields(CloneGroupOffsetHeader)
        check_group_name(header.destination_group)
        source, target = header.source_group, header.destination_group
        offsets = self._leadership.metadata.offsets.by_group.get(source, {})
        named = {header.topic} & offsets.keys() if header.topic else list(offsets)

        def topics() -> Iterator[str]:
            return (topic for topic in named if header.offline or self._registry.may_consume(source, topic))

        def parts() -> Iterator[list[tuple[str, int]]]:
            queues = (
                (topic, queue_id)
                for topic in topics()
                for queue_id in list(self._leadership.metadata.offsets.get((source, topic), ()))
            )
            while part := list(islice(queues, self._leadership.limits.queues_per_command)):
                yield part

        def offsets_of(part: list[tuple[str, int]]) -> list[StoredOffset]:
            # As they stand now, in whatever table: the topic may have been deleted and made anew, a snapshot have come.
            stored = self._leadership.metadata.offsets
            return [
                (target, topic, queue_id, offset)
                for topic, queue_id in part
                if (offset := stored.get((source, topic), {}).get(queue_id)) is not None
            ]

        # Which of them would be new is counted only if there is no room for all.
        if not self._offsets.has_room(sum(map(len, offsets.values()))):
            self._offsets.check_room(target, {topic: offsets[topic] for topic in topics()})
        yield from self._offsets.order_in_steps(
            parts(),
            offsets_of,
            lambda: reply(connection, command, ResponseCode.SUCCESS),
            lambda: reply_unknown(connection, command),
        )

    # ------------------------------------------------------------------ a queue's offsets

    def max_offset(self, connection: Connection, command: RemotingCommand) -> None:
        """Tells the offset one past the last committed message."""
        header = command.decode_fields(QueueHeader)
        self._check_queue(header.topic, header.queue_id)
        queue = self._queue(header.topic, header.queue_id)
        self._answer(connection, command, 0 if queue is None else queue.max_offset)

    def min_offset(self, connection: Connection, command: RemotingCommand) -> None:
        """Tells the offset of the first message that is still kept."""
        header = command.decode_fields(QueueHeader)
        self._check_queue(header.topic, header.queue_id)
        queue = self._queue(header.topic, header.queue_id)
        self._answer(connection, command, 0 if queue is None else queue.min_offset)

    def search(self, connection: Connection, command: RemotingCommand) -> None:
        """Tells the offset of the message stored at a time: the earliest not before it, or the latest not after it
        (UPPER).
        """
        header = command.decode_fields(SearchOffsetHeader)
        self._check_queue(header.topic, header.queue_id)
        queue = self._queue(header.topic, header.queue_id)
        offset = 0
        if queue is not None:
            upper = (header.boundary_type or "").upper() == "UPPER"
            boundary = Boundary.UPPER if upper else Boundary.LOWER
            store_time_of = self._leadership.store.store_time_of
            offset = queue.offset_at_time(header.timestamp, store_time_of, boundary)
        self._answer(connection, command, offset)

    def earliest_store_time(self, connection: Connection, command: RemotingCommand) -> None:
        """Tells when the first message that is still kept was stored; -1 without one."""
        header = command.decode_fields(QueueHeader)
        self._check_queue(header.topic, header.queue_id)
        queue = self._queue(header.topic, header.queue_id)
        unit = None if queue is None else queue.unit(queue.min_offset)
        timestamp = -1 if unit is None else self._leadership.store.store_time_of(unit[0], unit[1])
        reply(connection, command, ResponseCode.SUCCESS, fields={"timestamp": str(timestamp)})

    # ------------------------------------------------------------------ inside

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._leadership.store.queues.get(topic, queue_id)

    def _check_queue(self, topic: str, queue_id: int) -> None:
        config: TopicConfig | None = self._leadership.metadata.topics.get(topic)
        if config is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
        queues = queues_of(config)
        if not 0 <= queue_id < queues:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{queue_id}] is illegal, topic[{topic}] has queues 0 to {queues - 1}",
            )

    def _answer(self, connection: Connection, command: RemotingCommand, offset: int) -> None:
        reply(connection, command, ResponseCode.SUCCESS, fields={"offset": str(offset)})


def _why_it_does_not_count(target: int | None) -> str | None:
    return (
        None
        if target is None
        else f"not stored: the consumer group was sent to {target} and has yet to follow"
    )

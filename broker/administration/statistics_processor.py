"""Figures of topics, queues and consumer groups for administrators.

How much consumer groups read and sent back is counted where it happens, what topics took is summed up from their
queues' new units (broker/statistics/stored_bytes.py): to search the queues when somebody asks would take as long as
there are queues.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from broker.administration.queue_figures import QUEUES_AT_ONCE, QueueFigures, check_number_told, queue_ranges
from broker.node.client_registry import ClientRegistry
from broker.node.long_responses import LongResponses
from broker.node.ports import Requests, State
from broker.reading.subscriptions import TAG, parse_tag_filter
from broker.remoting.admin_bodies import QueueTimeSpan, consume_stats_body
from broker.remoting.admin_headers import (
    BrokerConsumeStatsHeader,
    ConsumeTimeSpanHeader,
    CorrectionOffsetHeader,
    QueryConsumeQueueHeader,
    ViewBrokerStatsHeader,
)
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.json_body import ObjectKeyed, encode_body
from broker.remoting.pieces import Pieces
from broker.requests.connection import Connection
from broker.requests.deadline import Time
from broker.requests.errors import RequestError
from broker.requests.long_bodies import Body, listed
from broker.requests.processing import HandledOn, Pace, Route
from broker.requests.responses import reply_json
from broker.statistics.stats import Stats
from broker.statistics.windows import DAY, HOUR, MINUTE, Total, Windows

UNITS_MAX: Final = 10_000
"""Units of a queue in one response to 321."""

OFFSETS_AT_ONCE: Final = 20_000
"""Offsets of consumer groups that are compared in a step of the response to 308."""

_NO_LIMIT: Final = (1 << 63) - 1
_SPANS: Final = (
    ("statsDay", DAY, 24 * 3600),
    ("statsHour", HOUR, 3600),
    ("statsMinute", MINUTE, 60),
)


class StatisticsProcessor:
    """Requests 303, 308, 315, 317 and 321. `address` is what clients are told to connect to."""

    def __init__(
        self,
        state: State,
        requests: Requests,
        registry: ClientRegistry[Connection],
        stats: Stats,
        time: Time,
        long_responses: LongResponses,
        *,
        broker_name: str,
        cluster: str,
        address: str,
    ) -> None:
        self._state = state
        self._requests = requests
        self._registry = registry
        self._stats = stats
        self._time = time
        self._figures = QueueFigures(state, broker_name)
        self._long_responses = long_responses
        self._cluster = cluster
        self._address = address

    def routes(self) -> Iterable[Route]:
        """The leader's, as what clients are told of offsets; but 315, which is about what this node did."""
        handlers = {
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.consume_time_span,
            RequestCode.QUERY_CORRECTION_OFFSET: self.correction_offsets,
            RequestCode.GET_BROKER_CONSUME_STATS: self.broker_consume_stats,
            RequestCode.QUERY_CONSUME_QUEUE: self.consume_queue,
        }
        return [
            Route(RequestCode.VIEW_BROKER_STATS_DATA, self.broker_stats, HandledOn.ANY),
            *(Route(code, handler, HandledOn.LEADER_READ) for code, handler in handlers.items()),
        ]

    def consume_time_span(self, connection: Connection, command: RemotingCommand) -> Iterator[None]:
        """Tells, for each queue, when its first, its last and its last consumed message were stored, in steps."""
        header = command.decode_fields(ConsumeTimeSpanHeader)
        config = self._figures.topic(header.topic)
        stored = self._state.metadata.offsets.get((header.group, header.topic), {})

        def span_of(queue_id: int) -> QueueTimeSpan:
            span = QueueTimeSpan(self._figures.name(header.topic, queue_id))
            queue = self._state.store.queues.get(header.topic, queue_id)
            if queue is not None and queue.max_offset > queue.min_offset:
                consumed = stored.get(
                    queue_id, -1
                )  # as `ConsumerOffsetManager` answers for a queue without an offset
                span.min_time_stamp = self._figures.store_time(queue, queue.min_offset)
                span.max_time_stamp = self._figures.store_time(queue, queue.max_offset - 1)
                span.consume_time_stamp = (
                    self._figures.store_time(queue, consumed - 1) if consumed > 0 else span.min_time_stamp
                )
                if consumed < queue.max_offset:
                    waits_since = self._figures.store_time(queue, max(consumed, queue.min_offset))
                    span.delay_time = max(0, self._time.group_ms - waits_since)
            return span

        def write(some: Sequence[int]) -> bytes:
            return encode_body([span_of(queue_id) for queue_id in some])

        body = listed(b'{"consumeTimeSpanSet":[', range(config.write_queue_nums), write)
        return self._long_responses.tell(connection, command, body)

    def correction_offsets(self, connection: Connection, command: RemotingCommand) -> Iterator[None]:
        """Tells the lowest offset of any consumer group in each queue of a topic; without limit where the compared
        consumer group is behind it, in steps.

        `filter_groups` are consumer groups that do not count, joined by commas.
        """
        header = command.decode_fields(CorrectionOffsetHeader)
        left_out = set((header.filter_groups or "").split(","))
        offsets = self._state.metadata.offsets

        def body() -> Body:
            lowest: dict[int, int] = {}
            pace = Pace(OFFSETS_AT_ONCE)
            groups = [
                group
                for group, topics in offsets.by_group.items()
                if header.topic in topics and group not in left_out
            ]
            for group in groups:
                stored = offsets.get((group, header.topic), {})
                for queue_id, offset in stored.items():
                    lowest[queue_id] = min(offset, lowest.get(queue_id, _NO_LIMIT))
                if pace.spent(len(stored)):
                    yield
            # Where others are ahead there is nothing to correct (`AdminBrokerProcessor.queryCorrectionOffset`).
            for queue_id, offset in offsets.get((header.compare_group, header.topic), {}).items():
                if lowest.get(queue_id, _NO_LIMIT) > offset:
                    lowest[queue_id] = _NO_LIMIT

            def write(some: Sequence[int]) -> bytes:
                return encode_body({str(queue_id): lowest[queue_id] for queue_id in some})

            return (yield from listed(b'{"correctionOffsets":{', sorted(lowest), write, b"}}"))

        return self._long_responses.tell(connection, command, body())

    def broker_consume_stats(self, connection: Connection, command: RemotingCommand) -> Iterator[None]:
        """Tells the progress of every consumer group in every topic that it consumes, as far as the client may see
        them; `is_order` leaves unordered topics out.

        What a consumer group with members has read once and does not subscribe to any more is left out, too. In steps.
        """
        only_ordered = command.decode_fields(BrokerConsumeStatsHeader).is_order
        metadata, sight = self._state.metadata, self._requests.sight(connection, command)

        def body() -> Body:
            told = Pieces(b'{"brokerAddr":%s,"consumeStatsList":[' % encode_body(self._address))
            separator, behind, queues, pace = b"", 0, 0, Pace(QUEUES_AT_ONCE)
            # By group, in the order of the groups' table; one without progress is left out.
            for group in dict.fromkeys((*metadata.groups, *metadata.offsets.by_group)):
                begin = b"%s{%s:[" % (separator, encode_body(group))
                for topic in list(metadata.offsets.by_group.get(group, ())):
                    if pace.spent(1):
                        yield
                    config = metadata.topics.get(topic)
                    if (
                        config is None
                        or (only_ordered and not config.order)
                        or not self._registry.may_consume(group, topic)
                        or not (sight.group(group) and sight.topic(topic))
                    ):
                        continue
                    queues += config.write_queue_nums
                    check_number_told(queues, "ask for one consumer group at a time (consumerProgress)")
                    offsets = ObjectKeyed()
                    for queue_ids in queue_ranges(config.write_queue_nums):
                        progress = self._figures.progress(group, topic, queue_ids)
                        offsets.add(progress)
                        behind += sum(one.broker_offset - one.consumer_offset for one in progress.values())
                        if pace.spent(len(queue_ids)):
                            yield
                    rate = self._stats.got_per_second(topic, group, self._time.now_ns)
                    told.write(begin, *consume_stats_body(offsets, rate).all())
                    begin, separator = b",", b","
                if begin == b",":
                    told.write(b"]}")
            told.write(b'],"totalDiff":%d,"totalInflightDiff":0}' % behind)
            return told

        return self._long_responses.tell(connection, command, body())

    def consume_queue(self, connection: Connection, command: RemotingCommand) -> Iterator[None]:
        """Tells units of a queue as they are stored (position, size, tags code), and whether a consumer group's tags
        let them by, in steps.

        Raises `RequestError` for a queue that does not exist.
        """
        header = command.decode_fields(QueryConsumeQueueHeader)
        queue = self._state.store.queues.get(header.topic, header.queue_id)
        if queue is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{header.queue_id}@{header.topic} is not exist!")
        count = min(max(header.count, 0), UNITS_MAX, max(0, queue.max_offset - header.index))
        begins = queue.min_offset <= header.index < queue.max_offset
        subscription = wanted = filter_data = None
        if header.consumer_group:
            subscription = self._registry.subscription(header.consumer_group, header.topic)
            if subscription is None:
                filter_data = f"{header.consumer_group}@{header.topic} is not online!"
            elif subscription.expression_type in {None, "", TAG}:
                wanted = parse_tag_filter(subscription.sub_string)
        # What the client of such a subscription would get: of an SQL92 one all, as units hold tags alone.
        units = list(queue.units(header.index, count)) if begins and count else []
        told: dict[str, object] = {
            "filterData": filter_data,
            "maxQueueIndex": queue.max_offset,
            "minQueueIndex": queue.min_offset,
            "subscriptionData": None if subscription is None else msgspec.to_builtins(subscription),
        }

        def write(some: Sequence[tuple[int, int, int]]) -> bytes:
            return encode_body(
                [
                    {
                        "bitMap": None,
                        "eval": subscription is not None and (wanted is None or tags_code in wanted),
                        "extendDataJson": None,
                        "msg": None,
                        "physicOffset": position,
                        "physicSize": size,
                        "tagsCode": tags_code,
                    }
                    for position, size, tags_code in some
                ]
            )

        remark = None if begins else f"Index {header.index} of {header.queue_id}@{header.topic} is not exist!"
        body = listed(encode_body(told)[:-1] + b',"queueData":[', units, write)
        return self._long_responses.tell(connection, command, body, remark)

    # ------------------------------------------------------------------ rates

    def broker_stats(self, connection: Connection, command: RemotingCommand) -> None:
        """Tells sums and rates of one figure over a minute, an hour and a day. Raises `RequestError` if it is
        unknown.
        """
        header = command.decode_fields(ViewBrokerStatsHeader)
        total = self._figure(header.stats_name, header.stats_key)
        if total is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            )
        body = {}
        for name, span, seconds in _SPANS:
            found = total(span, seconds)
            body[name] = {"avgpt": found.per_time, "sum": found.count, "tps": found.per_second}
        reply_json(connection, command, body)

    def _figure(self, name: str, key: str) -> Callable[[int, int], Total] | None:
        """Returns a function from a span and its seconds to what `name` counts of `key`; None where nothing is
        known.
        """
        stats = self._stats
        now_s = self._time.now_ns // 1_000_000_000
        windows: Windows | None = None
        match name:
            case "TOPIC_PUT_NUMS" if key in self._state.metadata.topics:
                stored = self._stored(key)
                return lambda span, seconds: _messages(stored.total(now_s, span), seconds)
            case "GROUP_GET_NUMS" if key in stats.got_by_group:
                windows = stats.got_by_group[key].messages
            case "TOPIC_PUT_SIZE" if key in self._state.metadata.topics:
                windows = self._stored(key)
            case "GROUP_GET_SIZE" if key in stats.got_by_group:
                windows = stats.got_by_group[key].record_bytes
            case "GROUP_GET_LATENCY" if key in stats.got_by_group:
                taken = stats.got_by_group[key].microseconds
                return lambda span, seconds: _milliseconds(taken.total(now_s, span))
            case "SNDBCK_PUT_NUMS":
                windows = stats.sent_back_by_group.get(key)
            case "BROKER_PUT_NUMS" if key == self._cluster:
                windows = stats.put_windows
            case "BROKER_GET_NUMS" if key == self._cluster:
                windows = stats.got_windows
        if windows is None:
            return None
        counted = windows
        return lambda span, seconds: counted.total(now_s, span)

    def _stored(self, topic: str) -> Windows:
        """Returns what of a topic was stored here: its bytes, in so many messages."""
        stored = self._stats.stored
        stored.count(self._state.store.queues, self._time.now_ns // 1_000_000_000)
        return stored.by_topic.get(topic) or Windows()


def _messages(stored: Total, seconds: int) -> Total:
    """The number of messages that something stored came in, each of which counts once."""
    count = stored.times
    return Total(count, count / seconds, count, 1.0 if count else 0.0)


def _milliseconds(microseconds: Total) -> Total:
    return Total(
        microseconds.count // 1000,
        microseconds.per_second / 1000,
        microseconds.times,
        microseconds.per_time / 1000,
    )

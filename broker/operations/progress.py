"""The progress of a consumer group in the queues that it reads.

A queue in which a consumer group has no offset yet counts from where its first pull would begin, as brokers and clients
have it: at the queue's first message as long as that is kept, whatever the members want; later where they want to begin
(CONSUME_FROM_LAST_OFFSET: at the end, so that there is no lag), and at the first message that is kept where nobody says
so. There is one exception: a member that wants to begin at the end is sent there even if the first message is kept,
when it lies more than a GiB of log behind. Brokers tell this only to members, so here it counts as lag.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from broker.operations.asking import Groups, as_json
from broker.remoting.admin_bodies import BrokerConsumeStats, ConsumerConnection, ConsumeStats, TopicStats
from broker.remoting.bodies import ConsumeFromWhere
from broker.remoting.codes import RequestCode, ResponseCode
from broker.state.topic_rules import RETRY_PREFIX


class ConsumedQueue(NamedTuple):
    """A consumer group in a queue of a broker group."""

    group: str
    topic: str
    queue: int


class Range(NamedTuple):
    """The messages that a queue keeps, from ``begin`` up to but not including ``end``."""

    begin: int
    end: int


class _Positions(msgspec.Struct, rename="camel"):
    """Response to GET_ALL_CONSUMER_OFFSET 43: by topic@group, the consumer offset by queue."""

    offset_table: dict[str, dict[int, int]]


async def ranges_of(groups: Groups, broker: str, topic: str) -> dict[int, Range]:
    """Return what each queue of a topic keeps at a broker group; nothing where it does not have the topic.

    Raises ClientError.
    """
    code, absent = RequestCode.GET_TOPIC_STATS_INFO, ResponseCode.TOPIC_NOT_EXIST
    found = await groups.body_if_there(broker, code, {"topic": topic}, TopicStats.decode, absent)
    offsets = {} if found is None else found.offsets
    return {queue.queue_id: Range(at.min_offset, at.max_offset) for queue, at in offsets.items()}


async def consume_stats(groups: Groups, broker: str, group: str, topic: str) -> ConsumeStats:
    """Return a consumer group's offsets in the queues of a topic at a broker group. Raises ClientError."""
    fields = {"consumerGroup": group, "topic": topic}
    return await groups.body(broker, RequestCode.GET_CONSUME_STATS, fields, ConsumeStats.decode)


async def broker_consume_stats(groups: Groups, broker: str) -> BrokerConsumeStats:
    """Return the offsets that all consumer groups have at a broker group, with the ends of their queues.

    Raises ClientError.
    """
    code, fields = RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}
    return await groups.body(broker, code, fields, BrokerConsumeStats.decode)


async def lags(
    groups: Groups,
    broker: str,
    offsets: Mapping[ConsumedQueue, int],
    ranges: Mapping[tuple[str, int], Range],
    connections: Mapping[str, ConsumerConnection | None],
) -> dict[ConsumedQueue, int]:
    """Return how many messages of each queue a consumer group has yet to read at a broker group.

    ``offsets`` are 0 where there is none, as brokers tell them; ``ranges`` are by topic and queue; ``connections``,
    by consumer group, say where its members want to begin. Raises ClientError.
    """
    found = {
        place: max(0, at.end - max(consumer_offset, at.begin))
        for place, consumer_offset in offsets.items()
        for at in [ranges.get((place.topic, place.queue), Range(0, 0))]
    }
    # An offset of 0 in a queue that begins later may be none: members that begin at the end would skip what is there.
    in_doubt = [
        place
        for place, lag in found.items()
        if lag and not offsets[place] and ranges[place.topic, place.queue].begin > 0
        if not place.topic.startswith(RETRY_PREFIX) and _begins_at_the_end(connections.get(place.group))
    ]
    for place in await _without_offset(groups, broker, in_doubt):
        found[place] = 0
    return found


def _begins_at_the_end(connection: ConsumerConnection | None) -> bool:
    """Tell where members begin that find no offset; RocketMQ's clients take all other words for the last offset."""
    elsewhere = (ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, ConsumeFromWhere.CONSUME_FROM_TIMESTAMP)
    return connection is not None and connection.consume_from_where not in elsewhere


async def _without_offset(
    groups: Groups, broker: str, places: Collection[ConsumedQueue]
) -> list[ConsumedQueue]:
    """Return those of these places where the consumer group has no offset, rather than the offset 0."""
    if not places:
        return []
    found = await groups.body(broker, RequestCode.GET_ALL_CONSUMER_OFFSET, {}, as_json(_Positions))
    table = found.offset_table
    return [place for place in places if place.queue not in table.get(f"{place.topic}@{place.group}", {})]

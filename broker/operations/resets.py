"""Sending a consumer group elsewhere: what that would skip or repeat is told first, and exactly that is ordered then.

An order is in the brokers' log before it is answered, and the members follow it at their next pull, or when they come
(broker/offsets/resets.py). Between preview and order nothing but the consumer group's own progress can change what is
skipped; where each queue goes stays as it was shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from broker.client.errors import BrokerError, NoRoute, UsageError
from broker.operations.asking import Groups, each
from broker.operations.errors import NotThere
from broker.operations.members import config_of
from broker.operations.progress import consume_stats, ranges_of
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.errors import RemotingError
from broker.remoting.headers import OffsetResponseHeader

_NOT_KNOWN = ResponseCode.CONSUMER_NOT_ONLINE
"""The response to a reset of a consumer group that a broker has neither settings nor members of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The place to go to. ``value`` is a time in ms since 1970, an offset, or by how many messages to go on (negative:
    back).

    An offset outside of what a queue keeps means its first or its end. With ``broker`` and ``queue`` the other queues
    stay where they are. Raises UsageError for a negative time or offset.
    """

    kind: Literal["earliest", "latest", "time", "offset", "by"]
    value: int = 0
    broker: str | None = None
    queue: int | None = None

    def __post_init__(self) -> None:
        if self.kind in ("time", "offset") and self.value < 0:
            raise UsageError(f"{self.kind} {self.value}: 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReset:
    """One queue of a reset: from the consumer group's offset to another. ``skipped`` messages will not be read, or
    ``repeated`` ones read again; at most one of both is not 0."""

    broker: str
    topic: str
    queue: int
    from_offset: int
    to_offset: int
    skipped: int
    repeated: int


async def preview_reset(groups: Groups, group: str, topic: str, target: Target) -> list[QueueReset]:
    """Return where each queue would go, sorted; nothing is changed. Queues of broker groups that are missing stay.

    Raises NotThere for a topic or queue that does not exist, and for a consumer group that no broker knows; NoRoute for
    an unknown broker group, and for a shift by messages while one is missing; ClientError.
    """
    if target.broker is not None:
        groups.addresses(target.broker)  # an unknown group is refused
    names = [name for name in groups.names if target.broker in (None, name)]
    found = await groups.ask(lambda name: _ranges(groups, name, group, topic), names)
    if target.kind == "by" and groups.missing:
        one = groups.missing[0]
        raise NoRoute(
            topic,
            f"{one.group} does not answer ({one.why}), and a shift by messages is not done in part, as its repetition"
            " would shift the others again: name one broker group at a time, or a place to go to",
        )
    places = [
        (name, queue, consumer_offset, begin, end)
        for name, queues in found.items()
        for queue, consumer_offset, begin, end in queues
        if target.queue in (None, queue)
    ]
    if not places:
        wanted = f" with a queue {target.queue}" if target.queue is not None else ""
        raise NotThere(f"there is no topic {topic!r}{wanted}{groups.in_doubt()}")
    # Offsets prove that the consumer group is there. One that has none yet, or only offsets 0, may have settings.
    if not any(consumer_offset for _, _, consumer_offset, _, _ in places) and not any(
        (await groups.ask(lambda name: config_of(groups, group, name))).values()
    ):
        raise NotThere(f"no broker knows the consumer group {group!r}{groups.in_doubt()}")

    async def planned(place: tuple[str, int, int, int, int]) -> QueueReset:
        name, queue, consumer_offset, begin, end = place
        match target.kind:
            case "earliest":
                to = begin
            case "latest":
                to = end
            case "offset":
                to = target.value
            # From the first message that is kept, if the group has not read what is gone: that it cannot read.
            case "by":
                to = max(consumer_offset, begin) + target.value
            case "time":
                to = await _at_time(groups, name, topic, queue, target.value)
        return planned_reset(name, topic, queue, consumer_offset, begin, end, to)

    by_broker = await groups.ask(
        lambda name: each(groups.admin, [place for place in places if place[0] == name], planned),
        sorted({place[0] for place in places}),
    )
    resets = [reset for found in by_broker.values() for reset in found]
    return sorted(resets, key=lambda reset: (reset.broker, reset.queue))


def planned_reset(
    broker: str, topic: str, queue: int, consumer_offset: int, begin: int, end: int, wanted: int
) -> QueueReset:
    """Return the reset of a queue that keeps ``begin`` to ``end`` to the offset that is wanted, or the nearest kept."""
    to = min(max(wanted, begin), end)
    here = min(max(consumer_offset, begin), end)
    return QueueReset(
        broker=broker,
        topic=topic,
        queue=queue,
        from_offset=consumer_offset,
        to_offset=to,
        skipped=max(0, to - here),
        repeated=max(0, here - to),
    )


async def reset(groups: Groups, group: str, resets: Sequence[QueueReset]) -> list[QueueReset]:
    """Have the consumer group go where a preview said, in all queues. Queues whose offset stays are ordered, too: their
    members may have read ahead of it.

    Returns the resets of the broker groups that have done all of theirs. In those that are missing afterwards some
    queues may have been sent there. Raises BrokerError for an offset that is not kept any more, ClientError.
    """

    async def order(one: QueueReset) -> None:
        fields = {
            "topic": one.topic,
            "group": group,
            "timestamp": "-1",
            "isForce": "true",
            "queueId": str(one.queue),
            "offset": str(one.to_offset),
        }
        code, accepted = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, (ResponseCode.SUCCESS, _NOT_KNOWN)
        response = await groups.read(one.broker, code, fields, accepted=accepted)
        if response.code == _NOT_KNOWN:
            # It has been at other broker groups only: there is nobody to be told, and an offset is all that it takes.
            fields = {
                "topic": one.topic,
                "consumerGroup": group,
                "queueId": str(one.queue),
                "commitOffset": str(one.to_offset),
            }
            await groups.order(one.broker, RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    done = await groups.ask(
        lambda name: each(groups.admin, [one for one in resets if one.broker == name], order),
        sorted({one.broker for one in resets}),
    )
    return [one for one in resets if one.broker in done]


async def _ranges(groups: Groups, name: str, group: str, topic: str) -> list[tuple[int, int, int, int]]:
    """Return (queue, the consumer group's offset, first offset, end) of a topic's queues at a broker group."""
    if not (ranges := await ranges_of(groups, name, topic)):
        return []
    stats = await consume_stats(groups, name, group, topic)
    progress = {queue.queue_id: at.consumer_offset for queue, at in stats.offsets.items()}
    return [(queue, progress.get(queue, 0), *kept) for queue, kept in ranges.items()]


async def _at_time(groups: Groups, name: str, topic: str, queue: int, time_ms: int) -> int:
    """Return the first message that was stored at that time or later, the queue's end if there is none."""
    fields = {"topic": topic, "queueId": str(queue), "timestamp": str(time_ms), "boundaryType": "LOWER"}
    response = await groups.read(name, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)
    try:
        return response.decode_fields(OffsetResponseHeader).offset
    except RemotingError as error:
        raise BrokerError(response.code, f"unreadable response: {error}", name) from error

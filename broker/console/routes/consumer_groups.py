"""Consumer groups: their lag and members; sent elsewhere, deleted."""

from typing import Annotated, Literal

import msgspec

from broker.console.asking import InPart, Order, Question, in_part
from broker.console.parameters import BrokerName, GroupName, Offset, Parameters, QueueId, TopicName
from broker.console.seats import Seat
from broker.operations.consumer_groups import (
    GroupDetail,
    GroupSummary,
    delete_group,
    describe_group,
    list_groups,
)
from broker.operations.resets import QueueReset, Target, preview_reset, reset


class GroupList(Parameters, frozen=True):
    """The consumer groups that are listed."""

    system: bool = False


class OneGroup(Parameters, frozen=True):
    """A consumer group by its name."""

    group: GroupName


class Elsewhere(OneGroup, frozen=True):
    """The place at which a consumer group is to go on in a topic: ``value`` is a time in ms since 1970, an offset, or
    by how many messages to go on (negative: back)."""

    topic: TopicName
    kind: Literal["earliest", "latest", "time", "offset", "by"]
    value: Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)] = 0
    broker: BrokerName | None = None
    queue: QueueId | None = None


class QueueOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The place at which one queue is to go on, as a preview said."""

    broker: BrokerName
    queue: QueueId
    from_offset: Offset
    to_offset: Offset


class Ordered(OneGroup, frozen=True):
    """A preview that somebody has seen and now wants carried out."""

    topic: TopicName
    queues: Annotated[tuple[QueueOrder, ...], msgspec.Meta(min_length=1, max_length=10_000)]


class DeletedGroup(OneGroup, frozen=True):
    """A consumer group to be deleted, even with members, with its dead letters if so wished."""

    while_in_use: bool = False
    dead_letters: bool = False


async def list_all(seat: Seat, parameters: GroupList) -> InPart[list[GroupSummary]]:
    """All consumer groups."""
    return await in_part(seat, lambda groups: list_groups(groups, system=parameters.system))


async def describe(seat: Seat, parameters: OneGroup) -> InPart[GroupDetail]:
    """One consumer group with its queues, members and conflicts."""
    return await in_part(seat, lambda groups: describe_group(groups, parameters.group))


async def preview(seat: Seat, parameters: Elsewhere) -> InPart[list[QueueReset]]:
    """Return what a reset would skip and repeat; nothing is changed. Raises ClientError."""
    target = Target(
        kind=parameters.kind, value=parameters.value, broker=parameters.broker, queue=parameters.queue
    )
    return await in_part(
        seat, lambda groups: preview_reset(groups, parameters.group, parameters.topic, target)
    )


async def order_reset(seat: Seat, parameters: Ordered) -> InPart[list[QueueReset]]:
    """Set the offsets that a preview showed, whatever the consumer group has consumed since."""
    resets = [
        QueueReset(
            broker=one.broker,
            topic=parameters.topic,
            queue=one.queue,
            from_offset=one.from_offset,
            to_offset=one.to_offset,
            skipped=max(0, one.to_offset - one.from_offset),
            repeated=max(0, one.from_offset - one.to_offset),
        )
        for one in parameters.queues
    ]
    return await in_part(seat, lambda groups: reset(groups, parameters.group, resets))


async def delete(seat: Seat, parameters: DeletedGroup) -> InPart[list[str]]:
    """Delete a consumer group with its offsets; returns the broker groups that have."""
    return await in_part(
        seat,
        lambda groups: delete_group(
            groups,
            parameters.group,
            while_in_use=parameters.while_in_use,
            dead_letters=parameters.dead_letters,
        ),
    )


ROUTES = (
    Question("/api/groups", GroupList, list_all),
    Question("/api/groups/{group}", OneGroup, describe),
    Question("/api/groups/{group}/reset", Elsewhere, preview),
    Order("/api/groups/{group}/reset", Ordered, order_reset, "reset positions"),
    Order("/api/groups/{group}/delete", DeletedGroup, delete, "delete consumer group"),
)

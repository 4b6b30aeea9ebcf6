"""The offsets that a batch or a micro-batch reads, as pure functions of the options and of what the brokers have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from broker.client.message import MessageQueue
from broker.spark_source.common_options import OptionError
from broker.spark_source.options import Point, Points

Offsets = dict[MessageQueue, int]
OffsetsJson = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The messages of one queue from ``start`` up to but not including ``stop``."""

    queue: MessageQueue
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Loss:
    """Messages that were to be read and are gone: from ``first`` up to but not including ``stop``, or all if that is
    None."""

    queue: MessageQueue
    first: int
    stop: int | None
    reason: str

    def __str__(self) -> str:
        until = "on" if self.stop is None else f"to {self.stop - 1}"
        place = f"{self.queue.topic}/{queue_name(self.queue)}"
        return f"{place}: messages from {self.first} {until} are lost: {self.reason}"


def queue_name(queue: MessageQueue) -> str:
    """Return the name that a queue has within its topic in a JSON of offsets: ``broker:number``."""
    return f"{queue.broker_name}:{queue.queue_id}"


def to_json(offsets: Mapping[MessageQueue, int]) -> OffsetsJson:
    """Return offsets in the form of a checkpoint, which the option `startingOffsets` takes, too."""
    found: OffsetsJson = {}
    for queue in sorted(offsets):
        found.setdefault(queue.topic, {})[queue_name(queue)] = offsets[queue]
    return found


def from_json(offsets: OffsetsJson) -> Offsets:
    """Return the offsets that `to_json` has put into this form."""
    found: Offsets = {}
    for topic, queues in offsets.items():
        for name, offset in queues.items():
            broker_name, _, number = name.rpartition(":")
            found[MessageQueue(topic, broker_name, int(number))] = offset
    return found


def points_of(points: Points, queues: Sequence[MessageQueue]) -> dict[MessageQueue, Point]:
    """Return the point of every queue.

    The user names a queue by its number, or by ``broker:number`` if several broker groups have the topic. Raises
    OptionError for queues that are named and do not exist, or exist and are not named.
    """
    if points.everywhere is not None:
        return dict.fromkeys(queues, points.everywhere)
    groups: dict[str, dict[str, None]] = {}
    for queue in queues:
        groups.setdefault(queue.topic, {})[queue.broker_name] = None
    left = {(topic, name): point for topic, named in points.by_queue.items() for name, point in named.items()}
    found: dict[MessageQueue, Point] = {}
    missing = []
    for queue in queues:
        point = left.pop((queue.topic, queue_name(queue)), None)
        if point is None and len(groups[queue.topic]) == 1:
            point = left.pop((queue.topic, str(queue.queue_id)), None)
        if point is None:
            missing.append(f"{queue.topic}/{queue_name(queue)}")
        else:
            found[queue] = point
    if left:
        unknown = ", ".join(f"{topic}/{name}" for topic, name in left)
        raise OptionError(f"option {points.option}: no such queue: {unknown}")
    if missing:
        raise OptionError(f"option {points.option} says nothing of {', '.join(missing)}: name every queue")
    return found


def new_losses(
    starts: Mapping[MessageQueue, int],
    earliest: Mapping[MessageQueue, int],
    latest: Mapping[MessageQueue, int],
) -> list[Loss]:
    """Return the messages that are gone between the offsets at which a read begins and the first kept ones.

    A queue that is gone, or ends before its start, was deleted; nobody can tell if it was made again.
    """
    losses = []
    for queue in sorted(starts):
        start = starts[queue]
        if queue not in latest:
            losses.append(Loss(queue, start, None, "the queue does not exist any more"))
        elif start > latest[queue]:
            losses.append(Loss(queue, latest[queue], start, f"the queue ends at {latest[queue]}"))
        elif start < earliest[queue]:
            reason = f"the queue begins at {earliest[queue]} now"
            losses.append(Loss(queue, start, earliest[queue], reason))
    return losses


def ranges(starts: Mapping[MessageQueue, int], stops: Mapping[MessageQueue, int]) -> list[QueueRange]:
    """Return the ranges that have messages, sorted. A queue without a start is new and read from its first message."""
    found = []
    for queue in sorted(stops):
        start = starts.get(queue, 0)
        if start < stops[queue]:
            found.append(QueueRange(queue, start, stops[queue]))
    return found


def split(whole: Sequence[QueueRange], minimum: int | None) -> list[QueueRange]:
    """Cut the ranges into at least ``minimum`` parts of about the same size, if they have so many messages."""
    if minimum is None or len(whole) >= minimum:
        return list(whole)
    total = sum(one.stop - one.start for one in whole)
    parts: list[QueueRange] = []
    for one in whole:
        size = one.stop - one.start
        count = min(size, max(1, -(-size * minimum // total)))
        edges = [one.start + size * number // count for number in range(count + 1)]
        parts += [QueueRange(one.queue, edges[n], edges[n + 1]) for n in range(count)]
    return parts


def limited(starts: Mapping[MessageQueue, int], latest: Mapping[MessageQueue, int], most: int) -> Offsets:
    """Return the offset up to which each queue is read when all together may give ``most`` messages.

    The shares are max-min fair: every queue may give an equal share, and what short queues leave is shared among the
    others. So neither a backlog starves the rest nor the rest a backlog. Single messages that cannot be shared go to
    queues in turn. A queue that ends before its start goes on at its end.
    """
    begin = {queue: min(starts.get(queue, 0), latest[queue]) for queue in sorted(latest)}
    lag = {queue: latest[queue] - begin[queue] for queue in begin}
    taken = dict.fromkeys(lag, 0)
    waiting = sorted((queue for queue in lag if lag[queue]), key=lambda queue: (lag[queue], queue))
    rest = most
    while waiting and rest >= len(waiting):
        share = min(rest // len(waiting), lag[waiting[0]] - taken[waiting[0]])
        for queue in waiting:
            taken[queue] += share
        rest -= share * len(waiting)
        waiting = [queue for queue in waiting if taken[queue] < lag[queue]]
    # The sum of the offsets grows with each message read, so the queue that is first changes from batch to batch.
    turn = sum(begin.values()) % len(waiting) if waiting else 0
    for queue in (sorted(waiting)[turn:] + sorted(waiting)[:turn])[:rest]:
        taken[queue] += 1
    return {queue: begin[queue] + count for queue, count in taken.items()}

"""The offsets that a batch or a micro-batch reads, as pure functions of the options and of what the brokers have."""

from bisect import bisect_right
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
        # The number alone names a queue of one broker group only; with several it would stand for two.
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
    """Cut the ranges into at least ``minimum`` parts of about the same size, or one for each message if there are
    fewer."""
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


def left_of(
    starts: Mapping[MessageQueue, int], latest: Mapping[MessageQueue, int]
) -> dict[MessageQueue, int]:
    """Return how many messages each queue has that were not read. A queue that ends before its start has none."""
    return {queue: max(0, end - starts.get(queue, 0)) for queue, end in sorted(latest.items())}


def limited(
    starts: Mapping[MessageQueue, int],
    latest: Mapping[MessageQueue, int],
    most: int | None,
    sizes: Mapping[MessageQueue, float] | None = None,
    most_bytes: int | None = None,
) -> Offsets:
    """Return the offset up to which each queue is read when all together may give ``most`` messages, and about
    ``most_bytes`` by the ``sizes`` of their messages; one message at least.

    The shares are max-min fair: every queue may give an equal share, and what short queues leave is shared among the
    others. So neither a backlog starves the rest nor the rest a backlog. Single messages that cannot be shared go to
    queues in turn. A queue that ends before its start goes on at its end.
    """
    lag = left_of(starts, latest)
    turn = sum(min(starts.get(queue, 0), latest[queue]) for queue in lag)
    count = sum(lag.values()) if most is None else min(most, sum(lag.values()))
    if most_bytes is not None:
        known = sizes or {}
        # The bytes grow with the count: the greatest one within the limit.
        count = max(
            1,
            bisect_right(
                range(1, count + 1),
                most_bytes,
                key=lambda one: int(
                    sum(known.get(queue, 0.0) * taken for queue, taken in _shares(lag, one, turn).items())
                ),
            ),
        )
    return {queue: latest[queue] - lag[queue] + taken for queue, taken in _shares(lag, count, turn).items()}


def _shares(lag: Mapping[MessageQueue, int], rest: int, turn: int) -> dict[MessageQueue, int]:
    """Returns the number of messages that each queue gives. ``turn`` grows with each message read, so that the queue
    that is first changes from batch to batch."""
    taken = dict.fromkeys(lag, 0)
    waiting = sorted((queue for queue in lag if lag[queue]), key=lambda queue: (lag[queue], queue))
    while waiting and rest >= len(waiting):
        share = min(rest // len(waiting), lag[waiting[0]] - taken[waiting[0]])
        for queue in waiting:
            taken[queue] += share
        rest -= share * len(waiting)
        waiting = [queue for queue in waiting if taken[queue] < lag[queue]]
    first = turn % len(waiting) if waiting else 0
    for queue in (sorted(waiting)[first:] + sorted(waiting)[:first])[:rest]:
        taken[queue] += 1
    return taken

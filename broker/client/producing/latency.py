"""Broker groups that a producer avoids for a while, because they answered late or not at all.

RocketMQ calls it latency fault tolerance (`MQFaultStrategy`); it is off there by default, and here. Each attempt to
send is timed. The class of its latency says for how long the other groups are preferred; a fast response ends that.
This concerns only messages whose queue nobody has chosen. When all groups are slow, the better half of them takes
turns.

It is for clusters of several broker groups. Within one group a Trivet producer needs none of it, as any member forwards
to the leader.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from broker.client.checks import check_kind, check_whole
from broker.client.errors import UsageError
from broker.client.message import MessageQueue


@dataclass(frozen=True, slots=True)
class LatencyClasses:
    """Classes of latency, and for how long each makes a producer avoid a broker group; all in milliseconds.

    ``avoided_ms`` has a pair for each class: its least latency, and the time for which the group is avoided. An attempt
    without a response counts as one of ``failure_ms``. The defaults are those of RocketMQ's 5.x clients; `CLASSES_OF_4`
    has those of 4.x. Raises UsageError for latencies that do not grow and for negative numbers.
    """

    avoided_ms: tuple[tuple[int, int], ...] = (
        (550, 2_000),
        (1_800, 5_000),
        (3_000, 6_000),
        (5_000, 10_000),
        (15_000, 30_000),
    )
    failure_ms: int = 10_000

    def __post_init__(self) -> None:
        check_whole(failure_ms=self.failure_ms)
        check_kind(tuple, avoided_ms=self.avoided_ms)
        for pair in self.avoided_ms:
            if not isinstance(pair, tuple) or [type(number) for number in pair] != [int, int]:
                raise UsageError(f"avoided_ms: {pair!r} is no pair of whole numbers")
        latencies = [latency for latency, _ in self.avoided_ms]
        if latencies != sorted(set(latencies)):
            raise UsageError(
                f"avoided_ms: the latencies {latencies} must grow, each be larger than the one before it"
            )
        for pair in self.avoided_ms:
            if min(pair) < 0:
                raise UsageError(f"avoided_ms: {pair} has a negative number; both must be at least 0")

    def avoided_for_ms(self, latency_ms: float) -> int:
        """Return for how many milliseconds a group is avoided after an attempt of this latency."""
        avoided = 0
        for least, avoided_ms in self.avoided_ms:
            if latency_ms < least:
                break
            avoided = avoided_ms
        return avoided


CLASSES_OF_4 = LatencyClasses(
    ((550, 30_000), (1_000, 60_000), (2_000, 120_000), (3_000, 180_000), (15_000, 600_000)), 30_000
)
"""The classes of RocketMQ's 4.x clients, which have them when `sendLatencyFaultEnable` is set."""


@dataclass(slots=True)
class _Group:
    """The last latency of a broker group, and the time until which it is avoided."""

    latency_ms: float
    avoided_until_ns: int


@dataclass(eq=False)
class SlowGroups:
    """Remembers, for each broker group that a producer has sent to, the last latency and until when to avoid the
    group."""

    _classes: LatencyClasses
    _now_ns: Callable[[], int]
    _groups: dict[str, _Group] = field(default_factory=dict)
    """By broker name; a group that was not sent to has no entry."""

    def answered(self, broker_name: str, began_ns: int) -> None:
        """Note that an attempt, begun at ``began_ns``, has just been answered."""
        self._report(broker_name, (self._now_ns() - began_ns) / 1e6)

    def failed(self, broker_name: str) -> None:
        """Note that an attempt was not answered, or was refused by a broker that cannot serve now."""
        self._report(broker_name, self._classes.failure_ms)

    def _report(self, broker_name: str, latency_ms: float) -> None:
        avoided_ms = self._classes.avoided_for_ms(latency_ms)
        self._groups[broker_name] = _Group(latency_ms, self._now_ns() + avoided_ms * 1_000_000)

    def is_avoided(self, broker_name: str) -> bool:
        """Tell whether other groups are to be preferred now."""
        group = self._groups.get(broker_name)
        return group is not None and self._now_ns() < group.avoided_until_ns

    def choose(self, queues: Sequence[MessageQueue], turn: int) -> MessageQueue:
        """Return the queue whose turn it is, or the next one whose group is not avoided."""
        count = len(queues)
        for step in range(count):
            queue = queues[(turn + step) % count]
            if not self.is_avoided(queue.broker_name):
                return queue
        # All are avoided, so each has an entry.
        by_badness = sorted(
            dict.fromkeys(queue.broker_name for queue in queues),
            key=lambda name: (self._groups[name].latency_ms, self._groups[name].avoided_until_ns),
        )
        better = by_badness[: max(1, len(by_badness) // 2)]
        chosen = [queue for queue in queues if queue.broker_name in better]
        return chosen[turn % len(chosen)]

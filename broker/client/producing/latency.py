"""Which broker groups a producer leaves alone for a while, because they answered late or not at all.

The reference calls it latency fault tolerance (MQFaultStrategy); it is off there by default, and here. Each attempt to
send tells how long it took; its class says for how long other groups are to be preferred, a fast answer ends that. It
concerns messages whose queue nobody has chosen, and it prefers only: when all groups are slow, the better half of them
takes turns.

It is for clusters of several broker groups. Within one group a Trivet producer needs none of it, as any member forwards
to the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.client.errors import UsageError
from broker.client.message import MessageQueue


@dataclass(frozen=True, slots=True)
class LatencyClasses:
    """For how long a group is avoided; both in milliseconds.

    ``avoided_ms`` maps the least latency of a class to the time, ``failure_ms`` is the latency that an attempt without
    an answer counts as. The defaults are those of RocketMQ's 5.x clients; `CLASSES_OF_4` has those of 4.x.
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
        latencies = [latency for latency, _ in self.avoided_ms]
        if latencies != sorted(set(latencies)) or any(
            least < 0 or avoided < 0 for least, avoided in self.avoided_ms
        ):
            raise UsageError(
                f"latency classes {self.avoided_ms}: latencies must grow, and nothing be negative"
            )

    def avoided_for_ms(self, latency_ms: float) -> int:
        """For how long a group is avoided after an attempt that took so long."""
        avoided = 0
        for least, avoided_ms in self.avoided_ms:
            if latency_ms < least:
                break
            avoided = avoided_ms
        return avoided


CLASSES_OF_4 = LatencyClasses(
    ((550, 30_000), (1_000, 60_000), (2_000, 120_000), (3_000, 180_000), (15_000, 600_000)), 30_000
)
"""What RocketMQ's 4.x clients do when `sendLatencyFaultEnable` is set."""


@dataclass(slots=True)
class _Group:
    latency_ms: float
    avoided_until_ns: int


class SlowGroups:
    """What a producer knows of the broker groups that it has sent to."""

    def __init__(self, classes: LatencyClasses, now_ns: Callable[[], int]) -> None:
        self._classes = classes
        self._now_ns = now_ns
        self._groups: dict[str, _Group] = {}
        """Those that a latency is known of, by broker name."""

    def answered(self, broker_name: str, began_ns: int) -> None:
        """An attempt that began then has just been answered."""
        self._report(broker_name, (self._now_ns() - began_ns) / 1e6)

    def failed(self, broker_name: str) -> None:
        """An attempt was not answered, or refused by a broker that cannot serve now."""
        self._report(broker_name, self._classes.failure_ms)

    def _report(self, broker_name: str, latency_ms: float) -> None:
        avoided_ms = self._classes.avoided_for_ms(latency_ms)
        self._groups[broker_name] = _Group(latency_ms, self._now_ns() + avoided_ms * 1_000_000)

    def is_avoided(self, broker_name: str) -> bool:
        """Whether others are to be preferred now."""
        group = self._groups.get(broker_name)
        return group is not None and self._now_ns() < group.avoided_until_ns

    def choose(self, queues: Sequence[MessageQueue], turn: int) -> MessageQueue:
        """The queue whose turn it is, or the next one whose group is not avoided."""
        count = len(queues)
        for step in range(count):
            queue = queues[(turn + step) % count]
            if not self.is_avoided(queue.broker_name):
                return queue
        by_badness = sorted(
            dict.fromkeys(queue.broker_name for queue in queues),
            key=lambda name: (self._groups[name].latency_ms, self._groups[name].avoided_until_ns),
        )
        better = by_badness[: max(1, len(by_badness) // 2)]
        chosen = [queue for queue in queues if queue.broker_name in better]
        return chosen[turn % len(chosen)]

"""Counts of what a node has done, and rates from them.

The hot path pays one addition a request for its count; rates come from samples of the counts that a timer takes every
ten seconds, of which ten minutes are kept.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field
from typing import Any, Final, TypeVar

from broker.statistics.put_times import PutTimes
from broker.statistics.stored_bytes import StoredBytes
from broker.statistics.timings import Timings
from broker.statistics.totals import Totals
from broker.statistics.windows import MINUTE, Windows
from log.queues.consume_queues import ConsumeQueues

Counted = TypeVar("Counted")

SAMPLE_NS: Final = 10_000_000_000
_SAMPLES_KEPT: Final = 61

GROUPS_COUNTED_MAX: Final = 10_000
"""Pairs of topic and consumer group whose messages are counted; of more, those that came first are forgotten."""


@dataclass(slots=True, eq=False)
class Given:
    """The messages that a consumer group was given of a topic, and the time that the responses took."""

    messages: Windows = field(default_factory=Windows)
    record_bytes: Windows = field(default_factory=Windows)
    microseconds: Windows = field(default_factory=Windows)


@dataclass(slots=True, eq=False)
class Stats:
    """Messages put and got on this node since it started; `sample` is due every `SAMPLE_NS`."""

    started_ns: int
    started_wall_ms: int
    timings: Timings = field(default_factory=Timings)
    series_max: InitVar[int] = field(default=1000, kw_only=True)
    """Bounds the topics, and the pairs of topic and consumer group, that have totals of their own."""
    put: int = 0
    """Messages that were appended to the log for clients."""
    puts_failed: int = 0
    """Sends that were refused by the store, or lost."""
    put_times: PutTimes = field(init=False)
    got: int = 0
    """Messages that clients were given."""
    gets_found: int = 0
    gets_missed: int = 0
    """Reads for clients that found messages, and those that found none."""
    get_ms_longest: int = 0
    pulls_held: Callable[[], int] = lambda: 0
    """Tells how many pulls wait now. Who holds them sets it."""
    stored: StoredBytes = field(init=False)
    given_totals: Totals = field(init=False)
    """By topic and consumer group, since the start."""
    timed_delivered: Windows = field(default_factory=Windows)
    """Messages for a time of their own that this node delivered."""
    put_windows: Windows = field(default_factory=Windows)
    got_windows: Windows = field(default_factory=Windows)
    got_by_group: dict[str, Given] = field(default_factory=dict)
    """The messages that consumer groups were given, by ``topic@group``, RocketMQ's key."""
    sent_back_by_group: dict[str, Windows] = field(default_factory=dict)
    """Messages that consumer groups sent back, by the same key."""
    next_sample_ns: int = field(init=False)
    _leader: str | None = None
    """The leader that was known last."""
    leader_changes: int = 0
    mornings: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    """Messages put and got up to the beginning of yesterday, and of today."""
    _hour: int = 0
    _samples: deque[tuple[int, int, int, int, int]] = field(init=False)

    def __post_init__(self, series_max: int) -> None:
        self.put_times = PutTimes(self.timings.send)
        self.stored = StoredBytes(series_max)
        self.given_totals = Totals(series_max)
        self.next_sample_ns = self.started_ns + SAMPLE_NS
        self._samples = deque([(self.started_ns, 0, 0, 0, 0)], maxlen=_SAMPLES_KEPT)

    def sample(self, now_ns: int, hour: int, queues: ConsumeQueues) -> None:
        """Notes the counts of this moment, which is in that hour of the day."""
        # RocketMQ's runtime table has counts since midnight; a sample every ten seconds meets it well enough.
        if hour == 0 < self._hour:
            self.mornings = (self.mornings[1], (self.put, self.got))
        self._hour = hour
        now_s = now_ns // 1_000_000_000
        _, put_before, got_before, _, _ = self._samples[-1]
        self.put_windows.add(now_s, self.put - put_before, 0)
        self.got_windows.add(now_s, self.got - got_before, 0)
        self.stored.count(queues, now_s)
        self._samples.append((now_ns, self.put, self.got, self.gets_found, self.gets_missed))
        self.next_sample_ns = now_ns + SAMPLE_NS

    def given(self, topic: str, group: str, count: int, record_bytes: int, took_ns: int, now_ns: int) -> None:
        """Counts a response to a consumer group: `count` messages of a topic, whose records have `record_bytes` in all,
        given after `took_ns`.
        """
        self.got += count
        self.gets_found += 1
        self.get_ms_longest = max(self.get_ms_longest, took_ns // 1_000_000)
        self.timings.pull.observe(took_ns)
        self.given_totals.add((topic, group), count, record_bytes)
        given = _counted(self.got_by_group, f"{topic}@{group}", Given)
        now_s = now_ns // 1_000_000_000
        given.messages.add(now_s, count)
        given.record_bytes.add(now_s, record_bytes)
        given.microseconds.add(now_s, took_ns // 1000)

    def sent_back(self, topic: str, group: str, now_ns: int) -> None:
        """Counts a message of a topic that a consumer group sent back, for a retry or as a dead letter."""
        _counted(self.sent_back_by_group, f"{topic}@{group}", Windows).add(now_ns // 1_000_000_000, 1)

    def leader_known(self, leader: str | None) -> None:
        """Counts a change of leaders: a leader other than the last one known. To lose the leader is no change yet."""
        if leader is not None and leader != self._leader:
            self._leader = leader
            self.leader_changes += 1

    def forget_topic(self, topic: str) -> None:
        """Forgets a deleted topic: its totals make room for others, and a new topic of that name begins at 0."""
        self.stored.by_topic.pop(topic, None)
        self.stored.led.forget(lambda labels: labels[0] == topic)
        self._forget_given(0, topic)

    def forget_group(self, group: str) -> None:
        """The consumer group was deleted."""
        self._forget_given(1, group)

    def _forget_given(self, place: int, name: str) -> None:
        """Forgets what was given and sent back of the topic, or the consumer group, that stands at this place."""
        self.given_totals.forget(lambda labels: labels[place] == name)
        tables: tuple[dict[str, Any], ...] = (self.got_by_group, self.sent_back_by_group)
        for table in tables:
            for key in [key for key in table if key.split("@")[place] == name]:
                del table[key]

    def got_per_second(self, topic: str, group: str, now_ns: int) -> float:
        """Returns how many messages of a topic a consumer group was given per second in the last minute."""
        given = self.got_by_group.get(f"{topic}@{group}")
        return 0.0 if given is None else given.messages.total(now_ns // 1_000_000_000, MINUTE).per_second

    def rates(self, now_ns: int) -> Iterator[tuple[float, ...]]:
        """Yields how many messages a second were put, and got, how many reads found messages, and how many none; each
        over the last 10, 60 and 600 seconds.
        """
        counts = (self.put, self.got, self.gets_found, self.gets_missed)
        over_spans = []
        for seconds in (10, 60, 600):
            # The newest sample that is at least so old, or else the oldest one.
            old = [sample for sample in self._samples if sample[0] <= now_ns - seconds * 1_000_000_000]
            began_ns, *before = old[-1] if old else self._samples[0]
            elapsed_ns = max(1, now_ns - began_ns)
            over_spans.append(
                [(now - then) * 1e9 / elapsed_ns for now, then in zip(counts, before, strict=True)]
            )
        return zip(*over_spans, strict=True)


def _counted(table: dict[str, Counted], key: str, made: Callable[[], Counted]) -> Counted:
    """Returns what is counted under a key, begun anew if it is not there; the table is bounded by forgetting."""
    counted = table.get(key)
    if counted is None:
        # Names come from clients: without a bound they would fill the memory.
        if len(table) >= GROUPS_COUNTED_MAX:
            del table[next(iter(table))]
        counted = table[key] = made()
    return counted

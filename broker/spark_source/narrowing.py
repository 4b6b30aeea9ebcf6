"""The part of a read that the filters of a query leave, as Spark's ``pushFilters`` tells them.

Spark gives its filters as a conjunction. Those that are applied here exactly need not be looked at again; of the others
(times, tags) Spark looks at what was read once more, so that reading a little too much does no harm.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from broker.client.message import MessageQueue
from broker.spark_source.offsets import QueueRange

SLACK_MS: Final = 60_000
"""Store times never fall along a queue, except in a store that was taken over from elsewhere; brokers search them as if
they never did. So a read by time begins and ends a minute beyond."""
_NEVER_NULL: Final = ("topic", "broker", "queue", "offset", "timestamp")
_COMPARISONS: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


@dataclass
class Narrowing:
    """The part of the topics that a query wants.

    Offsets from ``first`` up to but not including ``stop``, messages stored from ``first_ms`` on and before
    ``stop_ms`` (milliseconds since 1970), and with one of ``tags``; None is no bound.
    """

    first: int = 0
    stop: int | None = None
    first_ms: int | None = None
    stop_ms: int | None = None
    tags: frozenset[str] | None = None
    _queues: list[tuple[str, Callable[[Any, Any], bool], Any]] = field(default_factory=list)

    def add(self, one: Filter) -> bool:
        """Take one filter into account; True if Spark need not apply it any more."""
        column = ".".join(getattr(one, "attribute", ()))
        if isinstance(one, IsNotNull):
            return column in _NEVER_NULL
        wanted = getattr(one, "value", None)
        if column in ("topic", "broker", "queue"):
            return self._add_queues(column, one, wanted)
        if column == "tags":
            self._add_tags(one, wanted)
        elif column == "offset":
            return self._add_offsets(one, wanted)
        elif column == "timestamp" and isinstance(wanted, datetime):
            self._add_times(one, int(wanted.timestamp() * 1000))
        return False

    def takes(self, queue: MessageQueue) -> bool:
        """Tell whether a queue may have messages that are wanted."""
        columns = {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id}
        return all(holds(columns[name], value) for name, holds, value in self._queues)

    def within(self, part: QueueRange) -> QueueRange:
        """Return what the bounds on offsets leave of a range; it may be empty."""
        stop = part.stop if self.stop is None else min(part.stop, self.stop)
        return QueueRange(part.queue, max(part.start, self.first), stop)

    def _add_queues(self, column: str, one: Filter, wanted: Any) -> bool:
        comparison = _is_in if isinstance(one, In) else _COMPARISONS.get(type(one))
        if comparison is not None:
            self._queues.append((column, comparison, wanted))
        return comparison is not None

    def _add_tags(self, one: Filter, wanted: Any) -> None:
        chosen = [wanted] if isinstance(one, EqualTo) else list(wanted) if isinstance(one, In) else []
        # What a subscription cannot name is left to Spark.
        if chosen and all(isinstance(tag, str) and _can_be_subscribed(tag) for tag in chosen):
            self.tags = frozenset(chosen) if self.tags is None else self.tags & frozenset(chosen)

    def _add_offsets(self, one: Filter, wanted: Any) -> bool:
        first, stop = _bounds(one, wanted)
        self.first = max(self.first, self.first if first is None else first)
        self.stop = _least(self.stop, stop)
        return type(one) in _COMPARISONS

    def _add_times(self, one: Filter, wanted_ms: int) -> None:
        first, stop = _bounds(one, wanted_ms)
        if first is not None:
            self.first_ms = max(self.first_ms or 0, first - SLACK_MS)
        if stop is not None:
            self.stop_ms = _least(self.stop_ms, max(0, stop + SLACK_MS))


def _is_in(one: Any, listed: Sequence[Any]) -> bool:
    return one in listed


def _can_be_subscribed(tag: str) -> bool:
    return bool(tag) and tag == tag.strip() and "|" not in tag and tag != "*"


def _bounds(one: Filter, wanted: int) -> tuple[int | None, int | None]:
    """The first number that passes a filter, and the one behind the last, as far as it has such bounds."""
    match one:
        case EqualTo():
            return wanted, wanted + 1
        case GreaterThan():
            return wanted + 1, None
        case GreaterThanOrEqual():
            return wanted, None
        case LessThan():
            return None, wanted
        case LessThanOrEqual():
            return None, wanted + 1
    return None, None


def _least(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)

"""The options of the source. All are checked here: a misspelt option must not read another range."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from broker.client.consuming.subscription import Subscription
from broker.client.errors import UsageError
from broker.spark_source.common_options import (
    SECURITY_NAMES,
    OptionError,
    Security,
    known_options,
    name_servers_of,
    number_of,
    positive,
    security_of,
    timeout_s_of,
)

DEFAULT_GROUP: Final = "TRIVET_SPARK"
EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
"""These numbers stand for the first and the last offset in a JSON of offsets, as in Kafka's source."""

Kind = Literal["earliest", "latest", "offset", "time"]


@dataclass(frozen=True, slots=True)
class Point:
    """A place in a queue. ``value`` is the offset, or the time in milliseconds since 1970."""

    kind: Kind
    value: int = 0


EARLIEST: Final = Point("earliest")
LATEST: Final = Point("latest")


@dataclass(frozen=True, slots=True)
class Points:
    """The places to begin or to end at: one point ``everywhere``, or points ``by_queue``, by topic and the queue's
    name."""

    option: str
    everywhere: Point | None = None
    by_queue: Mapping[str, Mapping[str, Point]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a micro-batch: the most messages, about the most bytes, and the fewest messages, for which it
    waits until the micro-batch before was ``longest_wait_s`` ago. None is no limit."""

    most_messages: int | None = None
    most_bytes: int | None = None
    least_messages: int | None = None
    longest_wait_s: float = 900.0


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The checked options. Exactly one of ``topics`` and ``pattern`` is given."""

    name_servers: str
    topics: tuple[str, ...]
    pattern: str | None
    starting: Points
    ending: Points
    limits: Limits
    min_partitions: int | None
    fail_on_data_loss: bool
    group: str
    commit_offsets: bool
    """Store the consumer group's offsets when micro-batches end, for tools that tell lags."""
    timeout_s: float
    push_filters: bool = True
    """Whether a batch reads only what the filters of its query ask for."""
    tags: frozenset[str] = frozenset()
    """Only messages with one of these; all if there are none."""
    security: Security = field(default_factory=Security)


_NAMES: Final = (
    *("nameServers", "subscribe", "subscribePattern"),
    *("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp"),
    *("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"),
    *("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelayMs", "tags"),
    "pushFilters",
    *("minPartitions", "failOnDataLoss", "group", "commitOffsets", "timeoutMs"),
    *SECURITY_NAMES,
)
_STREAM_ONLY: Final = (
    *("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelayMs"),
    "commitOffsets",
)
_BATCH_ONLY: Final = ("pushFilters", "endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")


def parse_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Check and return the options of a batch or a stream; the case of their names does not matter.

    Raises OptionError.
    """
    options = _known(given, streaming)
    name_servers = name_servers_of(options)
    topics, pattern = _topics(options)
    starting = _points(options, "starting", LATEST if streaming else EARLIEST)
    if not streaming:
        _forbid(starting, "latest", "a batch would read nothing")
    ending = _points(options, "ending", LATEST)
    _forbid(ending, "earliest", "a batch would read nothing")
    commit_offsets = _is_true(options, "commitOffsets", "false")
    if commit_offsets and "group" not in options:
        raise OptionError(
            "option commitOffsets stores the offsets of a consumer group: name it by the option group"
        )
    return SourceOptions(
        name_servers,
        topics,
        pattern,
        starting,
        ending,
        _limits(options),
        positive(options, "minPartitions"),
        _is_true(options, "failOnDataLoss", "true"),
        options.get("group", DEFAULT_GROUP),
        commit_offsets,
        timeout_s_of(options),
        _is_true(options, "pushFilters", "true"),
        _tags(options),
        security_of(options),
    )


def _limits(options: Mapping[str, str]) -> Limits:
    most, least = positive(options, "maxOffsetsPerTrigger"), positive(options, "minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise OptionError("option minOffsetsPerTrigger is more than maxOffsetsPerTrigger")
    wait_ms = positive(options, "maxTriggerDelayMs")
    if wait_ms is not None and least is None:
        raise OptionError("option maxTriggerDelayMs is how long minOffsetsPerTrigger waits: give that, too")
    most_bytes = positive(options, "maxBytesPerTrigger")
    return Limits(most, most_bytes, least, *([] if wait_ms is None else [wait_ms / 1000]))


def _tags(options: Mapping[str, str]) -> frozenset[str]:
    try:
        return Subscription.parse("", options.get("tags", "*"), 0).tags
    except UsageError:
        raise OptionError(f"option tags is {options['tags']!r}: tags joined by ||") from None


def _is_true(options: Mapping[str, str], name: str, default: str) -> bool:
    value = options.get(name, default).strip().lower()
    if value not in ("true", "false"):
        raise OptionError(f"option {name} is {value!r}: true or false")
    return value == "true"


def _known(given: Mapping[str, str], streaming: bool) -> dict[str, str]:
    """Return the options under their documented names. Raises OptionError for unknown ones."""
    options = known_options(given, _NAMES)
    for name in options:
        if name in (_BATCH_ONLY if streaming else _STREAM_ONLY):
            raise OptionError(f"option {name} has no meaning in a {'stream' if streaming else 'batch'}")
    return options


def _topics(options: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    listed, pattern = options.get("subscribe"), options.get("subscribePattern")
    if (listed is None) == (pattern is None):
        raise OptionError("give one of the options subscribe (topics joined by commas) and subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(f"option subscribePattern is {pattern!r}: {error}") from None
        return (), pattern
    assert listed is not None
    topics = tuple(dict.fromkeys(topic.strip() for topic in listed.split(",") if topic.strip()))
    if not topics:
        raise OptionError("option subscribe names no topic")
    return topics, None


def _points(options: Mapping[str, str], which: Literal["starting", "ending"], default: Point) -> Points:
    given = [
        name
        for name in (f"{which}Timestamp", f"{which}OffsetsByTimestamp", f"{which}Offsets")
        if name in options
    ]
    if len(given) > 1:
        raise OptionError(f"the options {' and '.join(given)} exclude each other")
    if not given:
        return Points(f"{which}Offsets", default)
    name, value = given[0], options[given[0]].strip()
    if name.endswith("OffsetsByTimestamp"):
        return Points(name, by_queue=_by_queue(name, value, lambda time_ms: Point("time", time_ms)))
    if name.endswith("Timestamp"):
        return Points(name, Point("time", number_of(name, value)))
    if value.lower() in ("earliest", "latest"):
        return Points(name, EARLIEST if value.lower() == "earliest" else LATEST)
    return Points(name, by_queue=_by_queue(name, value, _at_offset))


def _at_offset(offset: int) -> Point:
    if offset == EARLIEST_OFFSET:
        return EARLIEST
    return LATEST if offset == LATEST_OFFSET else Point("offset", offset)


def _by_queue(name: str, text: str, point: Any) -> dict[str, dict[str, Point]]:
    wrong = f'option {name} is {text!r:.200}: "earliest", "latest", or JSON such as {{"topic": {{"0": 23, "1": -2}}}}'
    try:
        topics = json.loads(text)
    except (ValueError, RecursionError):
        raise OptionError(wrong) from None
    if not isinstance(topics, dict):
        raise OptionError(wrong)
    found: dict[str, dict[str, Point]] = {}
    for topic, queues in topics.items():
        if not isinstance(queues, dict):
            raise OptionError(f"{wrong}; topic {topic!r} has no map of queues")
        for queue, value in queues.items():
            least = EARLIEST_OFFSET if name.endswith("Offsets") else 0
            if type(value) is not int or not least <= value < 1 << 63:
                raise OptionError(f"option {name}: queue {queue!r} of topic {topic!r} is at {value!r}")
            found.setdefault(topic, {})[queue] = point(value)
    return found


def _forbid(points: Points, kind: Kind, reason: str) -> None:
    every = [points.everywhere, *(point for queues in points.by_queue.values() for point in queues.values())]
    if any(point is not None and point.kind == kind for point in every):
        raise OptionError(f"option {points.option}: {kind} is not possible here, {reason}")

"""The options of the data source. All are checked here: a misspelt option must not read another range."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from broker.client.errors import UsageError
from broker.client.transport.credentials import Credentials
from broker.client.transport.routes import parse_name_servers
from broker.settings.tables import ImpossibleSettingError

DEFAULT_GROUP: Final = "TRIVET_SPARK"
DEFAULT_TIMEOUT_MS: Final = 60_000
EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
"""These numbers stand for the first and the last offset in a JSON of offsets, as in Kafka's source."""

Kind = Literal["earliest", "latest", "offset", "time"]


class OptionError(ValueError):
    """An option is wrong; the message names it and says what is allowed."""


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
class Security:
    """Who asks, and how connections are encrypted. Files are read where a connection is made: on every executor."""

    tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)

    def credentials(self) -> Credentials | None:
        """The account that signs requests, None without one."""
        return Credentials(self.access_key, self.secret_key) if self.access_key else None

    def tls_context(self) -> ssl.SSLContext | None:
        """The context of encrypted connections, None for connections in the clear. Raises OptionError."""
        if not self.tls:
            return None
        from broker.shell.tls_contexts import client_context

        try:
            return client_context(self.tls_ca, self.tls_cert, self.tls_key)
        except ImpossibleSettingError as error:
            name = {"tls_ca": "tlsCa", "tls_certificate": "tlsCert"}.get(error.setting, "tlsKey")
            raise OptionError(f"option {name}: {error.reason}") from None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The checked options. Exactly one of ``topics`` and ``pattern`` is given."""

    name_servers: str
    topics: tuple[str, ...]
    pattern: str | None
    starting: Points
    ending: Points
    max_offsets_per_trigger: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    group: str
    timeout_s: float
    security: Security = Security()


_NAMES: Final = (
    *("nameServers", "subscribe", "subscribePattern"),
    *("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp"),
    *("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"),
    *("maxOffsetsPerTrigger", "minPartitions", "failOnDataLoss", "group", "timeoutMs"),
    *("tls", "tlsCa", "tlsCert", "tlsKey", "accessKey", "secretKey"),
)
_STREAM_ONLY: Final = ("maxOffsetsPerTrigger",)
_BATCH_ONLY: Final = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")


def parse_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Check and return the options of a batch or a stream; the case of their names does not matter.

    Raises OptionError.
    """
    options = _known(given, streaming)
    name_servers = options.get("nameServers", "")
    try:
        parse_name_servers(name_servers)
    except UsageError as error:
        raise OptionError(f"option nameServers: {error}; give host:port, several joined by commas") from None
    topics, pattern = _topics(options)
    starting = _points(options, "starting", LATEST if streaming else EARLIEST)
    if not streaming:
        _forbid(starting, "latest", "a batch would read nothing")
    ending = _points(options, "ending", LATEST)
    _forbid(ending, "earliest", "a batch would read nothing")
    loss = options.get("failOnDataLoss", "true").strip().lower()
    if loss not in ("true", "false"):
        raise OptionError(f"option failOnDataLoss is {loss!r}: true or false")
    timeout_ms = _positive(options, "timeoutMs")
    return SourceOptions(
        name_servers,
        topics,
        pattern,
        starting,
        ending,
        _positive(options, "maxOffsetsPerTrigger"),
        _positive(options, "minPartitions"),
        loss == "true",
        options.get("group", DEFAULT_GROUP),
        (DEFAULT_TIMEOUT_MS if timeout_ms is None else timeout_ms) / 1000,
        _security(options),
    )


def _security(options: Mapping[str, str]) -> Security:
    tls = options.get("tls", "").strip().lower()
    if tls not in ("", "true", "false"):
        raise OptionError(f"option tls is {tls!r}: true or false")
    ca, cert, key = (options.get(name, "") for name in ("tlsCa", "tlsCert", "tlsKey"))
    if tls == "false" and (ca or cert or key):
        raise OptionError("option tls is false, although a certificate or a key is given")
    if bool(cert) != bool(key):
        raise OptionError("the options tlsCert and tlsKey go together")
    account, secret = options.get("accessKey", ""), options.get("secretKey", "")
    if bool(account) != bool(secret):
        raise OptionError("the options accessKey and secretKey go together")
    return Security(tls == "true" or bool(ca or cert), ca, cert, key, account, secret)


def _known(given: Mapping[str, str], streaming: bool) -> dict[str, str]:
    """Return the options under their documented names. Raises OptionError for unknown ones."""
    names = {name.lower(): name for name in _NAMES}
    options: dict[str, str] = {}
    for written, value in given.items():
        name = names.get(written.lower())
        if name is None:
            hint = "; topics are named by the option subscribe" if written.lower() == "path" else ""
            raise OptionError(f"option {written}: unknown; known are {', '.join(_NAMES)}{hint}")
        if name in (_BATCH_ONLY if streaming else _STREAM_ONLY):
            raise OptionError(f"option {name} has no meaning in a {'stream' if streaming else 'batch'}")
        options[name] = value
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
        return Points(name, Point("time", _number(name, value)))
    if value.lower() in ("earliest", "latest"):
        return Points(name, EARLIEST if value.lower() == "earliest" else LATEST)
    return Points(name, by_queue=_by_queue(name, value, _at_offset))


def _at_offset(offset: int) -> Point:
    if offset == EARLIEST_OFFSET:
        return EARLIEST
    return LATEST if offset == LATEST_OFFSET else Point("offset", offset)


def _by_queue(name: str, text: str, point: Any) -> dict[str, dict[str, Point]]:
    wrong = (
        f'option {name} is {text!r}: "earliest", "latest", or JSON such as {{"topic": {{"0": 23, "1": -2}}}}'
    )
    try:
        topics = json.loads(text)
    except ValueError:
        raise OptionError(wrong) from None
    if not isinstance(topics, dict):
        raise OptionError(wrong)
    found: dict[str, dict[str, Point]] = {}
    for topic, queues in topics.items():
        if not isinstance(queues, dict):
            raise OptionError(f"{wrong}; topic {topic!r} has no map of queues")
        for queue, value in queues.items():
            least = EARLIEST_OFFSET if name.endswith("Offsets") else 0
            if type(value) is not int or value < least:
                raise OptionError(f"option {name}: queue {queue!r} of topic {topic!r} is at {value!r}")
            found.setdefault(topic, {})[queue] = point(value)
    return found


def _forbid(points: Points, kind: Kind, reason: str) -> None:
    every = [points.everywhere, *(point for queues in points.by_queue.values() for point in queues.values())]
    if any(point is not None and point.kind == kind for point in every):
        raise OptionError(f"option {points.option}: {kind} is not possible here, {reason}")


def _positive(options: Mapping[str, str], name: str) -> int | None:
    if name not in options:
        return None
    number = _number(name, options[name])
    if number == 0:
        raise OptionError(f"option {name} is 0: at least 1")
    return number


def _number(name: str, text: str) -> int:
    if not text.strip().isdecimal():
        raise OptionError(f"option {name} is {text!r}: a whole number, not negative")
    return int(text)

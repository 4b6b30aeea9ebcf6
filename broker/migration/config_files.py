"""What RocketMQ keeps beside its log, in JSON files below `config/` (`ConfigManager`) and in small ones of the store.

A file that is missing or empty is read from its `.bak`, as RocketMQ does. All of it is what the broker wrote last: a
broker that was killed wrote positions up to 5 s, and delays up to 10 s, before.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from broker.migration.errors import DamagedSourceError, MigrationError
from broker.remoting.bodies import (
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from broker.remoting.errors import BodyError
from broker.remoting.json_body import BodyType, decode_body

_FILE_BYTES_MAX: Final = 256 << 20
_TIMER_CHECKPOINT: Final = struct.Struct(">qqq")

_Offset = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class _OffsetTable(msgspec.Struct, rename="camel"):
    """consumerOffset.json: by ``topic@group``, queue id -> next offset."""

    offset_table: dict[str, dict[int, _Offset]] = {}


class _DelayTable(msgspec.Struct, rename="camel"):
    """delayOffset.json: by level, the next offset in its queue."""

    offset_table: dict[int, _Offset] = {}


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """How far the timer wheel of 5.x is: units before `queue_offset` that were due before `read_ms` are delivered."""

    read_ms: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class ConfigFiles:
    """All tables, as they were found; `missing` names the files that are not there."""

    topics: dict[str, TopicConfig]
    groups: dict[str, SubscriptionGroupConfig]
    offsets: dict[tuple[str, str], dict[int, int]]
    """By (consumer group, topic), queue id -> next offset."""
    delays: dict[int, int]
    """By delay level."""
    timers: TimerCheckpoint | None = None
    missing: tuple[str, ...] = field(default=())


def read_config(root: Path) -> ConfigFiles:
    """Reads all files of a store. Raises MigrationError, DamagedSourceError, OSError."""
    config = root / "config"
    missing: list[str] = []
    topics = _read(config / "topics.json", TopicConfigTable, missing)
    if topics is None:
        if any((config / name).is_dir() for name in ("topics", "metadata")):
            raise MigrationError(
                f"{config} keeps its tables in RocksDB, which is not read: have the broker write them as JSON "
                "(rocksDBConfigToJson of mqadmin)"
            )
        raise MigrationError(f"{config / 'topics.json'} is missing: {root} is no store of a RocketMQ broker")
    groups = _read(config / "subscriptionGroup.json", SubscriptionGroupTable, missing)
    offsets = _read(config / "consumerOffset.json", _OffsetTable, missing)
    delays = _read(config / "delayOffset.json", _DelayTable, missing)
    return ConfigFiles(
        topics.topic_config_table,
        {} if groups is None else groups.subscription_group_table,
        {} if offsets is None else _by_group(offsets, config / "consumerOffset.json"),
        {} if delays is None else delays.offset_table,
        _read_timers(config / "timercheck"),
        tuple(missing),
    )


def _read(path: Path, table: type[BodyType], missing: list[str]) -> BodyType | None:
    for file in (path, path.with_name(path.name + ".bak")):
        if not file.is_file() or not file.stat().st_size:
            continue
        if file.stat().st_size > _FILE_BYTES_MAX:
            raise DamagedSourceError(file, 0, f"it has {file.stat().st_size:,} bytes, which no broker's has")
        try:
            return decode_body(file.read_bytes(), table)
        except BodyError as error:
            raise DamagedSourceError(file, 0, str(error)) from error
    missing.append(path.name)
    return None


def _by_group(table: _OffsetTable, path: Path) -> dict[tuple[str, str], dict[int, int]]:
    found = {}
    for key, queues in table.offset_table.items():
        topic, separator, group = key.partition("@")
        if not separator or not topic or not group:
            raise DamagedSourceError(path, 0, f"{key[:80]!r} is not topic@group")
        found[group, topic] = queues
    return found


def _read_timers(path: Path) -> TimerCheckpoint | None:
    """Reads the first fields of `TimerCheckpoint`: read time in ms, position in the timer log, offset in the queue."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        raw = file.read(_TIMER_CHECKPOINT.size)
    if len(raw) < _TIMER_CHECKPOINT.size:
        raise DamagedSourceError(path, len(raw), "it is cut off")
    read_ms, _, queue_offset = _TIMER_CHECKPOINT.unpack(raw)
    if read_ms < 0 or queue_offset < 0:
        raise DamagedSourceError(path, 0, f"time {read_ms} and offset {queue_offset} are impossible")
    return TimerCheckpoint(read_ms, queue_offset)

"""The tables of a store: JSON files below `config/` (`ConfigManager`), and small files of other kinds.

A file that is missing or empty is read from its `.bak`, as RocketMQ does. All of it is what the broker wrote last: a
broker that was killed wrote consumer offsets up to 5 s, and delays up to 10 s, before.
"""

from pathlib import Path
from typing import Final

from broker.migration.errors import DamagedSourceError, MigrationError
from broker.migration.tables import (
    TIMER_CHECKPOINT_BYTES,
    DelayTable,
    OffsetTable,
    Tables,
    TimerCheckpoint,
    timer_checkpoint,
)
from broker.remoting.bodies import SubscriptionGroupTable, TopicConfigTable
from broker.remoting.errors import BodyError
from broker.remoting.json_body import BodyType, decode_body

_FILE_BYTES_MAX: Final = 256 << 20


def read_config(root: Path) -> Tables:
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
    offsets = _read(config / "consumerOffset.json", OffsetTable, missing)
    delays = _read(config / "delayOffset.json", DelayTable, missing)
    return Tables(
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
            raise DamagedSourceError(
                file, 0, f"it has {file.stat().st_size:,} bytes, more than any broker writes"
            )
        try:
            return decode_body(file.read_bytes(), table)
        except BodyError as error:
            raise DamagedSourceError(file, 0, str(error)) from error
    missing.append(path.name)
    return None


def _by_group(table: OffsetTable, path: Path) -> dict[tuple[str, str], dict[int, int]]:
    try:
        return table.by_group()
    except BodyError as error:
        raise DamagedSourceError(path, 0, str(error)) from error


def _read_timers(path: Path) -> TimerCheckpoint | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        raw = file.read(TIMER_CHECKPOINT_BYTES)
    try:
        return timer_checkpoint(raw)
    except BodyError as error:
        raise DamagedSourceError(path, len(raw), str(error)) from error

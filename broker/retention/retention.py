"""The deletion of the log's head, and the refusal of sends while the disk is full (docs/operations.md).

This module says when a node looks and what it does; `files_to_delete` (log/expired_files.py) says which files may go.

Each node deletes by itself, whatever its role: what is gone from the log is in the metadata snapshot as far as the
group needs it, and a node that lacks entries which its leader deleted starts over from the leader's snapshot.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog

from broker.replica.replica import Replica
from broker.requests.deadline import Time
from broker.retention.waited_for import first_waiting_position
from broker.settings.live import LiveSettings
from broker.settings.tables import RetentionSettings
from log.disk import Disk
from log.entry_reads import file_beginnings
from log.errors import DamagedLogError, DiskFullError
from log.expired_files import RetentionPolicy

log = structlog.get_logger("trivet.retention")

_MS = 1_000_000
_FOR_EVER_MS: Final = 1 << 62

_ROOM: Final = "the disk has room again"
_FILLS: Final = "the disk fills: what is expired is deleted at any hour"
_NEARLY_FULL: Final = "the disk is nearly full: the oldest messages are deleted whatever their age"
_FULL: Final = "the disk is full: sends are refused"


def delete_or_snapshot(
    replica: Replica, policy: RetentionPolicy, *, is_delete_hour: bool, needed_from_index: int | None = None
) -> int | None:
    """Deletes the data files at the log's head that may go (log/expired_files.py), but nothing from `needed_from_index`
    on.

    While this node does not know the group's time, no age counts: its own clock may be a year ahead. Returns how many;
    None where the snapshot covers none, and a newer one has been begun. Raises `DiskFullError`.
    """
    store, entry_log = replica.store, replica.store.log
    if len(entry_log.file_starts()) < 2:
        return 0

    if not replica.clock.is_agreed:
        policy = replace(policy, reserved_ms=_FOR_EVER_MS)

    waiting_from: int | None = None

    def find_waiting() -> int | None:
        nonlocal waiting_from
        waiting_from = first_waiting_position(store, replica.metadata)
        return waiting_from

    first_index = entry_log.first_index
    try:
        removed = store.delete_head(
            policy,
            wall_ms=replica.time.wall_ms,
            is_delete_hour=is_delete_hour,
            needed_from_index=needed_from_index,
            find_waiting=find_waiting,
        )
        _, second = next(file_beginnings(entry_log), (0, 0))
        if not removed and second > store.snapshot.applied_index + 1:
            # Nothing goes that the snapshot does not cover: whether the first file may go shows behind a new one.
            replica.applied.save()
            return None
        return removed
    finally:
        # A full disk may keep files, but they are none of the log any more once it begins behind them.
        if entry_log.first_index > first_index:
            replica.head_deleted()
            if waiting_from is not None and waiting_from < entry_log.first_position:
                log.error("messages that still waited went with the head of the log: the disk is nearly full")


class Retention:
    """Looks at age and disk every `retention.interval_ms`."""

    def __init__(
        self,
        replica: Replica,
        settings: LiveSettings,
        disk: Disk,
        time: Time,
        hour_of_day: Callable[[int], int],
        needed_from_index: Callable[[], int | None],
    ) -> None:
        """`hour_of_day` tells the hour at a time in milliseconds.

        `needed_from_index` tells the first entry that a backup under way may still read, None if there is none: it and
        what follows stay, even on a disk that is nearly full.
        """
        self._needed_from_index = needed_from_index
        self._replica = replica
        self._settings = settings
        self._disk = disk
        self._time = time
        self._hour_of_day = hour_of_day
        self._watermark = _ROOM
        self._complaint = ""
        self._at_any_hour = False
        """Ordered so; it holds until a look finds a snapshot that covers what may go."""
        interval_ns = settings.current.retention.interval_ms * _MS
        self._deadline = time.add_deadline(self.look, time.now_ns + interval_ns)

    def look(self, *, at_any_hour: bool = False) -> None:
        """Looks once: refuses sends or takes them again, then deletes what may go."""
        settings = self._settings.current.retention
        policy = _policy(settings, self._replica.limits.hour_ms)
        self._deadline.due_ns = self._time.now_ns + settings.interval_ms * _MS
        self._refuse_sends_if_full(settings.disk_full_percent / 100, policy)
        self._at_any_hour |= at_any_hour
        hour = self._hour_of_day(self._time.wall_ms)
        removed: int | None = 0
        try:
            removed = delete_or_snapshot(
                self._replica,
                policy,
                is_delete_hour=self._at_any_hour or hour in settings.delete_hours,
                needed_from_index=self._needed_from_index(),
            )
            self._at_any_hour &= removed is None
            self._complaint = ""
        except DiskFullError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.warning("no space even to note what is deleted: free some", error=str(error))
        except DamagedLogError as error:
            log.warning("nothing is deleted until the log is repaired", error=str(error))
        if removed:
            log.info("data files deleted", count=removed, first_index=self._replica.store.log.first_index)

    def _refuse_sends_if_full(self, full_ratio: float, policy: RetentionPolicy) -> None:
        """Decides by the used part of the disk. Warns of each watermark that is passed, up or down: the first one gives
        an operator the time to act.
        """
        usage = self._disk.usage()
        used = 1 - usage.free_bytes / max(usage.total_bytes, 1)
        self._replica.disk_space.refuses_sends = used > full_ratio
        before = self._watermark
        if used > full_ratio:
            self._watermark = _FULL
        elif used > policy.force_ratio:
            self._watermark = _NEARLY_FULL
        else:
            self._watermark = _FILLS if used > policy.delete_ratio else _ROOM
        if self._watermark != before:
            tell = log.info if self._watermark == _ROOM else log.warning
            tell(self._watermark, disk_used=round(used, 3))


def _policy(settings: RetentionSettings, hour_ms: int) -> RetentionPolicy:
    return RetentionPolicy(
        reserved_ms=settings.reserved_hours * hour_ms,
        delete_ratio=settings.disk_clean_percent / 100,
        force_ratio=settings.disk_force_percent / 100 if settings.force_clean else 1.0,
    )

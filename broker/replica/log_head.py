"""The head of one replica's log: its oldest data files, deleted where a snapshot covers them.

Which of them may go says log/expired_files.py, and when a node looks broker/retention/retention.py.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog

from broker.replica.applied import AppliedState
from broker.replica.group_clock import GroupClock
from broker.replica.members import Members
from broker.requests.deadline import Time
from log.entry_reads import file_beginnings
from log.expired_files import RetentionPolicy
from log.store import Store
from raft.core import Raft

log = structlog.get_logger("trivet.retention")

_FOR_EVER_MS: Final = 1 << 62


class LogHead:
    """The beginning of the log, which raft and the file of the members know, too."""

    def __init__(
        self,
        store: Store,
        raft: Raft,
        members: Members,
        applied: AppliedState,
        clock: GroupClock,
        time: Time,
    ) -> None:
        self._store = store
        self._raft = raft
        self._members = members
        self._applied = applied
        self._clock = clock
        self._time = time

    def delete_or_snapshot(
        self,
        policy: RetentionPolicy,
        first_waiting_position: Callable[[], int | None],
        *,
        is_delete_hour: bool,
        needed_from_index: int | None = None,
    ) -> int | None:
        """Deletes the data files that may go, but nothing from `needed_from_index` on.

        While this node does not know the group's time, no age counts: its own clock may be a year ahead.
        `first_waiting_position` returns where the first message is that nobody could get yet, None if there is none.
        Returns how many went; None where the snapshot covers none, and a newer one has been begun. Raises
        `DiskFullError`.
        """
        store, entry_log = self._store, self._store.log
        if len(entry_log.file_starts()) < 2:
            return 0

        if not self._clock.is_agreed:
            policy = replace(policy, reserved_ms=_FOR_EVER_MS)

        waiting_from: int | None = None

        def find_waiting() -> int | None:
            nonlocal waiting_from
            waiting_from = first_waiting_position()
            return waiting_from

        first_index = entry_log.first_index
        try:
            removed = store.delete_head(
                policy,
                wall_ms=self._time.wall_ms,
                is_delete_hour=is_delete_hour,
                needed_from_index=needed_from_index,
                find_waiting=find_waiting,
            )
            _, second = next(file_beginnings(entry_log), (0, 0))
            if not removed and second > store.snapshot.applied_index + 1:
                # Nothing goes that the snapshot does not cover: whether the first file may go shows behind a new one.
                self._applied.save()
                return None
            return removed
        finally:
            # A full disk may keep files, but they are none of the log any more once it begins behind them.
            if entry_log.first_index > first_index:
                self.deleted()
                if waiting_from is not None and waiting_from < entry_log.first_position:
                    log.error(
                        "messages that still waited went with the head of the log: the disk is nearly full"
                    )

    def deleted(self) -> None:
        """The log begins later than before."""
        self._raft.drop_before(self._store.log.first_index)
        self._members.save()

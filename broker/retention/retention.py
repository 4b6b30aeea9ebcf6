"""The deletion of the log's head, and the refusal of sends while the disk is full (docs/operations.md).

This module says when a node looks and what it does; `files_to_delete` (log/entries/expired_files.py) says which files
may go, and `LogHead` (broker/replica/log_head.py) has them go.

The leader says what goes (`LogHead`), and each node deletes it by itself: what is gone from the log is in the metadata
snapshot as far as the group needs it, and a node that lacks entries which its leader deleted starts over from the
leader's snapshot.
"""

from collections.abc import Callable
from typing import Final

import structlog

from broker.node.listeners import Listeners
from broker.node.machine import Machine
from broker.node.ports import State
from broker.replica.disk_space import DiskSpace
from broker.replica.log_head import LogHead
from broker.requests.deadline import MS, Time
from broker.retention.waited_for import first_waiting_position
from broker.settings.live import LiveSettings
from broker.settings.tables import RetentionSettings
from broker.state.commands import Command, RaiseFormat, RaiseHead
from log.entries.expired_files import HeadLook, RetentionPolicy
from log.errors import DamagedLogError, DiskFullError

log = structlog.get_logger("trivet.retention")

_ROOM: Final = "the disk has room again"
_FILLS: Final = "the disk fills: what is expired is deleted at any hour"
_NEARLY_FULL: Final = "the disk is nearly full: the oldest messages are deleted whatever their age"
_FULL: Final = "the disk is full: sends are refused"


class Retention:
    """Looks at age and disk every `retention.interval_ms`."""

    def __init__(
        self,
        state: State,
        head: LogHead,
        disk_space: DiskSpace,
        settings: LiveSettings,
        machine: Machine,
        time: Time,
        needed_from_index: Callable[[], int | None],
        make_way: Callable[[], object],
        listeners: Listeners,
    ) -> None:
        """`make_way` is called while sends are refused: another member may have room, and lead.

        `needed_from_index` tells the first entry that a backup under way may still read, None if there is none: it
        and what follows stay, even on a disk that is nearly full.
        """
        self.needed_from_index = needed_from_index
        self._make_way = make_way
        self._state = state
        self._head = head
        self._disk_space = disk_space
        self._settings = settings
        self._machine = machine
        self._time = time
        self._watermark = _ROOM
        """The last one that was told."""
        self._complaint = ""
        """The reason for which the last look deleted nothing, as it was logged; "" behind one that met none."""
        self._at_any_hour = False
        """Ordered so; it holds until a look finds a snapshot that covers what may go."""
        interval_ns = settings.current.retention.interval_ms * MS
        self._deadline = time.add_deadline(self.look, time.now_ns + interval_ns)
        listeners.commands.append(self._applied)

    def _applied(self, command: Command) -> None:
        if isinstance(command, RaiseFormat | RaiseHead) and self._state.serving:
            # What is before the head that it has raised the leader deletes at once; at the next look it goes on. From
            # a format on the group may agree on its head: that of a leader which has deleted by itself is said at once.
            self._deadline.due_ns = self._time.now_ns

    @property
    def decides(self) -> bool:
        """True if this node says what has expired of its log."""
        return self._state.serving or not self._head.is_agreed_upon

    def look(self, *, at_any_hour: bool = False) -> None:
        """Looks once: refuses sends or takes them again, then has what may go deleted, if need be in later turns.

        `files_to_delete` (log/entries/expired_files.py) says what may go, and `Store.delete_head` deletes it.
        """
        settings = self._settings.current.retention
        policy = _policy(settings, self._state.limits.hour_ms)
        self._at_any_hour |= at_any_hour
        self._deadline.due_ns = self._time.now_ns
        # Queues are still being told where they begin since the last deletion: the next one waits for them.
        if self._head.is_under_way():
            return
        self._deadline.due_ns += settings.interval_ms * MS
        self._refuse_sends_if_full(settings.disk_full_percent / 100, policy)
        hour = self._machine.hour_of_day(self._time.group_ms)
        # None: a snapshot must come first. An order to delete at any hour holds until files could go.
        removed: int | None = 0
        entry_log, needed_from_index = self._state.store.log, self.needed_from_index()
        began_at = entry_log.first_index
        try:
            removed = self._head.look(
                HeadLook(
                    policy,
                    self._time.group_ms,
                    self._at_any_hour or hour in settings.delete_hours,
                    needed_from_index,
                    lambda: first_waiting_position(self._state.store, self._state.metadata),
                )
            )
            if self._head.is_under_way() and not removed:
                self._deadline.due_ns = self._time.now_ns
            else:
                self._at_any_hour &= removed is None
            self._complaint = ""
        except DiskFullError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.warning("no space even to note what is deleted: free some", error=str(error))
        except DamagedLogError as error:
            log.warning("nothing is deleted until the log is repaired", error=str(error))
        # What is gone cannot be read again.
        assert needed_from_index is None or entry_log.first_index <= max(began_at, needed_from_index), (
            f"the log begins at {entry_log.first_index}, and a backup reads from {needed_from_index} on"
        )
        if removed:
            log.info("data files deleted", count=removed, first_index=entry_log.first_index)

    def _refuse_sends_if_full(self, full_ratio: float, policy: RetentionPolicy) -> None:
        """Decides by the used part of the disk: a leader that refuses them makes way for one that need not.

        Warns of each watermark that is passed, up or down: the first one gives an operator the time to act.
        """
        usage = self._machine.disk.usage()
        used = 1 - usage.free_bytes / max(usage.total_bytes, 1)
        self._disk_space.refuses_sends = used > full_ratio
        before = self._watermark
        if used > full_ratio:
            self._make_way()
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

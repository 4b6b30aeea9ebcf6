"""The head of one replica's log: its oldest data files, deleted where a snapshot covers them.

Which of them may go says log/entries/expired_files.py, and when a node looks broker/retention/retention.py.

What is gone is gone for all, whoever leads: clients never learn of a lower first offset than they knew. So the group
has a head of its own, `Metadata.head_position`, which entries raise (`RaiseHead`), and a queue begins with its first
message behind it, on each node, whatever of the log that one still has.

- The leader alone decides what has expired, and for which messages the disk is too full. It raises the head first, and
  deletes when that is applied.
- A follower deletes what is before the head. Where its disk is nearly full it deletes more, of its own; so does a
  leader that has no room for the entry, once it has given up its leadership.
- A leader serves only while its log begins at the head or before it: one that had deleted more raises the head before
  it serves (`Leadership.start_serving`), and as a leader it deletes no more than the head allows.

Hence a leader that serves tells of the head as it has applied it; what it has applied is committed, so each later
leader has applied it, too, before it serves; and `Metadata.head_position` never falls.

Before the group's format is the one of `RaiseHead`, each node deletes by itself, and tells where its own log begins.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog

from broker.replica.applied import AppliedState
from broker.replica.basis import Basis
from broker.replica.leadership import Leadership
from broker.replica.members import Members
from broker.requests.errors import ReplicaError
from broker.state.commands import FORMAT_OF_COMMANDS, RaiseHead
from log.entries.entry_reads import file_beginnings
from log.entries.expired_files import HeadLook, RetentionPolicy
from log.errors import DiskFullError

log = structlog.get_logger("trivet.retention")

_FOR_EVER_MS: Final = 1 << 62

_NOTHING: Final = RetentionPolicy(reserved_ms=_FOR_EVER_MS, force_ratio=1.0)
"""The policy of a leader that deletes up to the group's head: behind it nothing expires."""


class LogHead:
    """Deletes the log's oldest files, and lets raft and the file of the members know where the log begins."""

    def __init__(
        self,
        basis: Basis,
        applied: AppliedState,
        members: Members,
        leadership: Leadership,
        resign: Callable[[], None],
    ) -> None:
        """`resign` ends the leadership of this node, which has no room for an entry."""
        self._store = basis.store
        self._raft = basis.raft
        self._applied = applied
        self._members = members
        self._leadership = leadership
        self._clock = basis.clock
        self._time = basis.time
        self._resign = resign

    def is_under_way(self) -> bool:
        """Returns True while turns find out, or note, for each queue where it begins: a look is of no use meanwhile."""
        return self._store.head_steps is not None

    def look(self, look: HeadLook) -> int | None:
        """Deletes the data files that may go; a leader that would delete more raises the group's head, and deletes that
        much when it looks again.

        While this node does not know the group's time, no age counts: its own clock may be a year ahead. Returns how
        many went; None where the snapshot covers none, and a newer one has been begun. With very many queues nothing
        has gone yet while `is_under_way`. Raises `DiskFullError`.
        """
        store, leadership = self._store, self._leadership
        waiting = _FirstWaiting(look.find_waiting)
        look = replace(look, find_waiting=waiting.find)
        whatever_its_age = replace(look, policy=replace(look.policy, reserved_ms=_FOR_EVER_MS))
        if not self._clock.is_agreed:
            look = whatever_its_age
        if self.is_agreed_upon:
            if leadership.serving and (position := store.head_wanted(look)) > store.head_position:
                if self._is_said(position):
                    waiting.goes(position)
                elif store.head_wanted(whatever_its_age) > store.log.first_position:
                    self._resign()  # only what goes makes room, and a follower deletes of its own
            elif leadership.owes_head:
                self._resign()  # where its log begins it cannot say: another may have room, or a follower makes some
            # Behind the group's head a leader deletes nothing, and others do for want of room only.
            look = whatever_its_age
            if leadership.serving_from is not None:
                look = replace(look, policy=_NOTHING)
        return self._delete(look, waiting)

    def _is_said(self, position: int) -> bool:
        """Proposes that the group's head is raised; if that is impossible now, the next look does. Returns False where
        there is no room for the entry."""
        try:
            self._leadership.propose_command(RaiseHead(position))
        except ReplicaError:
            pass  # leadership is handed over, or too much is under way: the next look says it
        except DiskFullError as error:
            log.warning("there is no room even to say what is to be deleted", error=str(error))
            return False
        return True

    def _delete(self, look: HeadLook, waiting: "_FirstWaiting") -> int | None:
        store, entry_log = self._store, self._store.log
        # The file that is appended to stays.
        if len(entry_log.file_starts()) < 2:
            return 0
        first_index = entry_log.first_index
        try:
            removed = store.delete_head(look)
            _, second = next(file_beginnings(entry_log), (0, 0))
            if not removed and not self.is_under_way() and second > store.snapshot.applied_index + 1:
                # Nothing goes that the snapshot does not cover: whether the first file may go shows behind a new one.
                self._applied.save()
                return None
            return removed
        finally:
            # A full disk may keep files, but they are not the log's any more once it begins behind them.
            if entry_log.first_index > first_index:
                self.deleted()
                waiting.goes(entry_log.first_position)

    @property
    def is_agreed_upon(self) -> bool:
        """True if the group agrees on its head by entries: all its members read them."""
        return self._applied.metadata.format >= FORMAT_OF_COMMANDS[RaiseHead]

    def deleted(self) -> None:
        """Tells raft, and notes with the members, that the log begins later than before. Raises as `Members.save`."""
        self._raft.drop_before(self._store.log.first_index)
        self._members.save()


class _FirstWaiting:
    """The place of the first message that nobody could get yet, as it was when it was last looked for."""

    def __init__(self, find: Callable[[], int | None]) -> None:
        self._find = find
        self._position: int | None = None

    def find(self) -> int | None:
        """Returns its position, None if there is none."""
        self._position = self._find()
        return self._position

    def goes(self, begin: int) -> None:
        """Logs an error if that message is among the records before `begin`, which are about to be deleted."""
        if self._position is not None and self._position < begin:
            log.error("messages that still waited went with the head of the log: the disk is nearly full")

"""A replica whose disk is full: it stays, says so, and goes on when there is room.

Raft believes that what it asks for is written, and a failed write of it stops the node. So a replica finds out first:

- For entries it makes room before raft hears of them. Without room raft takes none (raft/follower.py).
- What makes raft write something small (a term, a vote, a configuration, a snapshot that replaces the log) or cut the
  log is not heard while less than `ROOM_BYTES` are free, and no election begins: a node that cannot write its vote
  must not vote, and one that cannot write a no-op must not lead. Others see a node that is silent. Nor does it ask
  others while it recovers: the round of asking that is due begins with the first look that finds room, and brings the
  answers that were not heard.
- Queues and indices of committed entries wait for room; they are made from the log at any time.

It looks again every `LOOK_NS`, which is also how often a leader may send entries in vain.

A leader that refuses sends hands over, if it can, to a member that has room for them (`hand_over_to_room`,
group_changes.py). Each follower says with its answers whether it would refuse sends (`to_peers.py`), so that no one
is asked that would, nor a preferred leader before it has room again.

`is_full` is what status, readiness and metrics tell of the disk: whatever found no room, and that retention has sends
refused because more of the disk is used than the settings allow.
"""

from dataclasses import dataclass
from typing import Final

from broker.statistics.events import EventKind, Events
from log.errors import DiskFullError
from log.store import Store
from raft.core import Raft

LOOK_NS: Final = 1_000_000_000

UPKEEP_PAUSE_NS: Final = 10_000_000_000
"""The time after which a checkpoint or an own snapshot that found no space is tried again; retention looks as often."""

TRIED_WITHIN_NS: Final = 2 * LOOK_NS
"""A write that found no room counts as lacking it for so long: a leader sends entries again within that time."""

ROOM_BYTES: Final = 1 << 20
"""More than all that raft writes beside entries in a second: notes of some hundred bytes, a configuration, a no-op."""


@dataclass(slots=True, eq=False)
class DiskSpace:
    """The room on one replica's disk, as far as raft depends on it."""

    _store: Store
    _raft: Raft
    _events: Events
    lacks: bool = False
    """The last write found no room. Then, and only then, `due_ns` is the time to look again. It is true while
    `Raft.lacks_room` is: nothing else lets raft take entries again."""
    due_ns: int = 0
    dispatch_due_ns: int = 0
    """Until then committed entries wait to be dispatched: there was no room for their queues or keys, or the next one
    is damaged."""
    refuses_sends: bool = False
    """Set by retention: no message is taken until less of the disk is used."""
    _full_until_ns: int = 0
    """The disk counts as full until what found no room has been tried again."""

    def is_full(self, now_ns: int) -> bool:
        """Returns True while sends are refused, or if what was tried last found no room."""
        return self.refuses_sends or self.lacks or now_ns < self._full_until_ns

    def for_entries(self, error: DiskFullError, now_ns: int) -> None:
        """Notes that there is no room for the entries that have come."""
        self._raft.lacks_room = True
        self._lacks("entries", now_ns, str(error))

    def for_dispatch(self, error: DiskFullError, now_ns: int) -> None:
        """Notes that there is no room for what dispatch makes."""
        self.dispatch_due_ns = now_ns + LOOK_NS
        self._lacks("queues and index", now_ns, str(error))

    def for_upkeep(self, what: str, error: DiskFullError, now_ns: int) -> None:
        """Notes that there is no room for what raft does not depend on; it is tried again after `UPKEEP_PAUSE_NS`."""
        self._tell(what, now_ns, UPKEEP_PAUSE_NS, str(error))

    def for_incoming(self, error: DiskFullError, now_ns: int) -> None:
        """Notes that there is no room for a leader's snapshot; one is tried again after `LOOK_NS`."""
        self._tell("snapshot of the leader", now_ns, LOOK_NS, str(error))

    def for_notes_of_stop(self, error: DiskFullError, now_ns: int) -> None:
        """Notes that there is no room for what makes the next start short."""
        self._lacks("notes of the stop", now_ns, str(error))

    def is_there(self, now_ns: int) -> bool:
        """Returns True if there is room for what raft may write beside entries."""
        # What begins a term is an entry, for which the log makes pages ready by the step.
        wanted = ROOM_BYTES + self._store.options.prepare_step_bytes
        if self._store.free_bytes() >= wanted:
            return True
        self._lacks("term, vote and members", now_ns, f"less than {wanted} bytes are free")
        return False

    def before_recovery_ends(self, now_ns: int) -> None:
        """Tells raft if there is no room. To be called before raft hears of anything that may end its recovering mode:
        the end is written down, and is put off without room."""
        if self._raft.recovery is not None:
            self.before_an_entry(now_ns)

    def before_an_entry(self, now_ns: int) -> None:
        """Tells raft if there is no room. To be called before raft hears a peer's question for which a leader appends
        an entry: without room it does not, and the peer asks again."""
        if not self._raft.lacks_room and not self.is_there(now_ns):
            self._raft.lacks_room = True
        assert self.lacks or not self._raft.lacks_room, "nobody would look whether there is room again"

    def look(self, now_ns: int) -> None:
        """Tries again what found no room, if it is time for that; to be called at the beginning of a turn while
        something `lacks` room."""
        if now_ns >= self.due_ns:
            # Whether there is room now what comes next has to show: entries, a vote.
            self.lacks = False
            self._raft.lacks_room = False

    def _lacks(self, what: str, now_ns: int, error: str) -> None:
        self.lacks = True
        self.due_ns = now_ns + LOOK_NS
        self._tell(what, now_ns, LOOK_NS, error)

    def _tell(self, what: str, now_ns: int, again_ns: int, error: str) -> None:
        self._full_until_ns = max(self._full_until_ns, now_ns + again_ns + TRIED_WITHIN_NS)
        self._events.warn(EventKind.DISK_FULL, what, now_ns, error=error)

"""The messages of peers for raft: checked, then stepped, then written.

Raft never sees bytes, and believes what a message says of them. So they are checked before it hears of the message, and
kept here until its effects are carried out: one of them may be that they are written.

Raft hears of a snapshot when it was read and written (`incoming_snapshots.py`).
"""

from collections.abc import Callable

import structlog

from broker.peers.protocol import BrokenPeerError, RaftFrame
from broker.replica.basis import Basis
from broker.replica.incoming_snapshots import IncomingSnapshots, ReadSnapshot
from broker.replica.members import Members
from broker.statistics.events import EventKind
from log.entries.entry_room import make_room_for_range
from log.errors import DamagedRangeError, DiskFullError, MisplacedRangeError
from log.formats.entry_range import EntryRange
from raft.effects import AcceptEntries
from raft.errors import ImpossibleMessage
from raft.messages import AppendRequest, AppendResponse, RecoveryRequest, SnapshotRequest, VoteResponse

log = structlog.get_logger("trivet.replica")


class FromPeers:
    """The messages that come to one replica."""

    def __init__(
        self,
        basis: Basis,
        snapshots: IncomingSnapshots,
        members: Members,
        carry_out: Callable[[], None],
    ) -> None:
        """`carry_out` carries out raft's effects."""
        self._log = basis.store.log
        self._raft = basis.raft
        self._disk_space = basis.disk_space
        self.snapshots = snapshots
        """Those that are on their way in."""
        snapshots.arrived = self._snapshot_arrived
        self._members = members
        self._clock = basis.clock
        self._events = basis.events
        self._time = basis.time
        self._timings = basis.timings
        self._carry_out = carry_out
        self._entries: EntryRange | None = None
        """The checked entries of the message that is being stepped; None at any other time."""
        self._snapshot: ReadSnapshot | None = None
        """The snapshot of the message that is being stepped; None at any other time."""
        self._heard_of_full_disks = False
        """A peer has said that it has no room: from then on each answer is looked at for whether one has."""

    def received(self, frame: RaftFrame, now_ns: int, group_ms: int) -> bool:
        """Takes a Raft message. Bytes that fail their checks are dropped, as if lost on the way.

        Returns False when no turn is wanted: the message is an acknowledgement that commits nothing and makes room for
        nothing, as every second one in a group of three. Raises `BrokenPeerError` for what no correct node sends.
        """
        self._time.now_ns, self._time.group_ms = now_ns, group_ms
        message = frame.message
        entries: EntryRange | None = None
        snapshot: ReadSnapshot | None = None
        if self.snapshots.broken is not None:
            self.snapshots.raise_if_broken(message.source)
        if isinstance(message, AppendRequest) and (message.spans or message.configurations):
            entries = self._checked_entries(frame, message)
            if entries is None:
                return False
        elif isinstance(message, SnapshotRequest) and self._has_use_for(message):
            # Raft does not hear of it yet: it comes here once more when it is on the disk (`_snapshot_arrived`).
            snapshot = self.snapshots.written
            if snapshot is None or snapshot.frame is not frame:
                return self.snapshots.begin(frame, message)
        elif (frame.position or self._heard_of_full_disks) and isinstance(message, AppendResponse):
            self._heard_of_full_disks = True
            if message.term == self._raft.term:
                self._raft.peer_lacks_room(message.source, bool(frame.position))
        raft, disk_space = self._raft, self._disk_space
        # A write that raft asks for must not fail: a node without room for it does not hear of the message.
        if raft.may_note(message) and not disk_space.is_there(now_ns):
            return False
        if raft.recovery is not None:
            disk_space.before_recovery_ends(now_ns)
        elif isinstance(message, RecoveryRequest) and message.lost_votes:
            disk_space.before_an_entry(now_ns)
        # Entries that leave a gap behind the log are refused, and need no room.
        if entries is not None and entries.first_index <= self._log.last_index + 1 and not raft.lacks_room:
            try:
                make_room_for_range(self._log, entries)
            except DiskFullError as error:
                disk_space.for_entries(error, now_ns)
        if frame.time_ms >= 0 and isinstance(message, VoteResponse):
            # Before raft hears of it: this may be the vote by which this node leads.
            self._clock.told(message.source, frame.time_ms, now_ns, is_agreed=True)
        self._entries, self._snapshot = entries, snapshot
        try:
            raft.step(message, now_ns)
        except ImpossibleMessage as error:
            self._entries = self._snapshot = None
            raise BrokenPeerError(str(error)) from error
        if raft.pending:
            self._carry_out()
            wants_turn = True
        else:
            wants_turn = raft.wants_replicate or not isinstance(message, AppendResponse)
        self._entries = self._snapshot = None
        # Behind the step: only now it is known whether its sender is the leader that this node follows.
        if frame.time_ms >= 0 and message.term == raft.term and message.source == raft.leader:
            self._clock.heard(frame.time_ms, now_ns)
        return wants_turn

    def _checked_entries(self, frame: RaftFrame, message: AppendRequest) -> EntryRange | None:
        """Returns the entries of an append, None for bytes that are dropped. Raises `BrokenPeerError`."""
        if message.contradiction:
            raise BrokenPeerError(f"{message.contradiction}: {message}")
        try:
            entries = self._log.check_range(frame.body, message.prev_index + 1, frame.position)
            if not entries.has_terms(message.spans):
                # The sender's log was truncated and written anew between queueing and sending: not these entries.
                log.warning(
                    "append refused", source=message.source, error="bytes of other terms than announced"
                )
                return None
            # Raft accepts what follows the log's end. (Where it cuts entries off first, the place of those that
            # come instead shows when they are written.)
            if message.prev_index == self._log.last_index and message.prev_term == self._log.last_term:
                self._log.check_place(entries, entries.first_index)
        except MisplacedRangeError as error:
            # Nothing more can be taken from a leader like that: without links to it the others elect another.
            raise BrokenPeerError(str(error)) from error
        except DamagedRangeError as error:
            self._events.warn(
                EventKind.DAMAGED_FRAME, "append", self._time.now_ns, source=message.source, error=str(error)
            )
            return None
        return entries

    def _has_use_for(self, message: SnapshotRequest) -> bool:
        """Tells whether a snapshot is to be read. Raises `BrokenPeerError`."""
        if message.contradiction:
            raise BrokenPeerError(f"{message.contradiction}: {message}")
        # Raft refuses one of an earlier term, whatever is in it, and has no use for what it holds: behind a swap.
        return message.term >= self._raft.term and message.first_index - 1 > self._raft.commit_index

    def _snapshot_arrived(self, frame: RaftFrame) -> None:
        self.received(frame, self._time.now_ns, self._time.group_ms)

    def write_entries(self, effect: AcceptEntries) -> None:
        """Writes the entries that raft has accepted. Raises `log.errors.DiskError`, MisplacedRangeError."""
        entries = self._entries
        assert entries is not None, "entries are accepted from an append only"
        configurations = effect.message.configurations
        if configurations:
            # Before the entries are written: a start may know of more members than the log has, never of fewer
            # (members_file.py).
            self._members.learn(
                entries, [index for index, _ in configurations if index >= effect.first_index]
            )
        began_ns = self._timings.stopwatch()
        self._log.append_range(entries, effect.skip)
        self._timings.append.observe(self._timings.stopwatch() - began_ns)

    @property
    def snapshot(self) -> ReadSnapshot:
        """The snapshot that raft has just accepted."""
        assert self._snapshot is not None, "a log is reset by a snapshot only"
        return self._snapshot

"""The messages of peers for raft: checked, then stepped, then written.

Raft never sees bytes, and believes what a message says of them. So they are checked before it hears of the message, and
kept here until its effects are carried out: one of them may be that they are written.

A snapshot may have a hundred thousand rows. It is read in steps, one a turn, and its state and its queues are made
beside those that are there; then a worker writes the files that it brings (log/incoming.py). Raft hears of it when they
are durable, and it replaces all at once. If the node ends before that, it was as if lost on the way.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import structlog

from broker.peers.protocol import BrokenPeerError, RaftFrame
from broker.replica.disk_space import DiskSpace
from broker.replica.group_clock import GroupClock
from broker.replica.members import Members
from broker.replica.members_file import MembersFile
from broker.replica.state_writing import StateWriting
from broker.replica.upkeep import Upkeep
from broker.requests.deadline import Time
from broker.requests.processing import Pace
from broker.state.snapshot import StateSnapshot, state_read
from broker.state.snapshot_reading import Read
from broker.state.writing import slices
from broker.statistics.events import EventKind, Events
from broker.statistics.timings import Timings
from log.consume_queues import EmptyQueues
from log.entry_range import EntryRange
from log.entry_room import make_room_for_range
from log.errors import DamagedRangeError, DiskFullError
from log.incoming import Incoming
from log.snapshot import Snapshot
from log.store import Store
from raft.core import Raft
from raft.effects import AcceptEntries
from raft.errors import ImpossibleMessage
from raft.messages import AppendRequest, AppendResponse, SnapshotRequest, VoteResponse

log = structlog.get_logger("trivet.replica")


_ROWS_A_QUEUE: Final = 4
"""A queue takes the time of so many rows that are read."""


class ReadSnapshot(NamedTuple):
    """A snapshot that a leader has sent, with all that was made of it."""

    frame: RaftFrame
    state: StateSnapshot
    incoming: Incoming


class FromPeers:
    """The messages that come to one replica."""

    def __init__(
        self,
        store: Store,
        raft: Raft,
        disk_space: DiskSpace,
        upkeep: Upkeep,
        reading: StateWriting,
        membership: MembersFile,
        members: Members,
        clock: GroupClock,
        events: Events,
        time: Time,
        timings: Timings,
        carry_out: Callable[[], None],
        rows_at_once: int,
    ) -> None:
        """`carry_out` carries out raft's effects. Snapshots are read by steps of `reading`, of so many rows."""
        self._store = store
        self._log = store.log
        self._reading = reading
        self._rows_at_once = rows_at_once
        self._raft = raft
        self._disk_space = disk_space
        self._upkeep = upkeep
        self._membership = membership
        self._members = members
        self._clock = clock
        self._events = events
        self._time = time
        self._timings = timings
        self._carry_out = carry_out
        self._entries: EntryRange | None = None
        """The checked entries of the message that is being stepped; None at any other time."""
        self._snapshot: ReadSnapshot | None = None
        """The snapshot of the message that is being stepped; None at any other time."""
        self._being_read: tuple[str, int, Callable[[], None]] | None = None
        """The sender of the snapshot that is being read, its term, and what gives it up."""
        self._written: ReadSnapshot | None = None
        """The snapshot that is whole, and on the disk, while the message that brought it is taken."""
        self._heard_of_full_disks = False
        """A peer has said that it has no room: from then on each answer is looked at for whether one has."""
        self._broken: tuple[str, BrokenPeerError] | None = None
        """The sender of a snapshot that was read in later turns, and what is wrong with it: he hears of it with his
        next message."""

    def received(self, frame: RaftFrame, now_ns: int, wall_ms: int) -> bool:
        """Takes a Raft message. Bytes that fail their checks are dropped, as if lost on the way.

        Returns False when no turn is wanted: the message is an acknowledgement that commits nothing and makes room for
        nothing, as every second one in a group of three. Raises `BrokenPeerError` for what no correct node sends.
        """
        self._time.now_ns, self._time.wall_ms = now_ns, wall_ms
        message = frame.message
        entries: EntryRange | None = None
        snapshot: ReadSnapshot | None = None
        if self._broken is not None:
            self._raise_if_broken(message.source)
        if isinstance(message, AppendRequest) and (message.spans or message.configurations):
            if message.contradicts_itself:
                raise BrokenPeerError(f"it contradicts itself: {message}")
            try:
                entries = self._log.check_range(frame.body, message.prev_index + 1, frame.position)
            except DamagedRangeError as error:
                self._events.warn(
                    EventKind.DAMAGED_FRAME, "append", now_ns, source=message.source, error=str(error)
                )
                return False
            if not entries.has_terms(message.spans):
                # The sender's log was truncated and written anew between queueing and sending: not these entries.
                log.warning(
                    "append refused", source=message.source, error="bytes of other terms than announced"
                )
                return False
        elif isinstance(message, SnapshotRequest):
            if message.contradicts_itself:
                raise BrokenPeerError(f"it contradicts itself: {message}")
            # Raft refuses one of an earlier term, whatever is in it, and has no use for what it holds: behind a swap.
            if message.term >= self._raft.term and message.first_index - 1 > self._raft.commit_index:
                if self._written is None or self._written.frame is not frame:
                    return self._begin_to_read(frame, message)
                snapshot = self._written
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
        if frame.time_ms >= 0 and message.term == raft.term and message.source == raft.leader:
            self._clock.heard(frame.time_ms, now_ns)
        return wants_turn

    def _begin_to_read(self, frame: RaftFrame, message: SnapshotRequest) -> bool:
        """Reads a snapshot, in this turn and those that follow, has it written, and takes the message then; returns as
        `received`."""
        if self._upkeep.writes_snapshot:
            return False  # one is on its way to the disk, and is not called back; as if lost, this one comes again
        if self._being_read is not None:
            source, term, give_up = self._being_read
            if (source, term) == (message.source, message.term):
                return False  # its leader has lost patience
            give_up()
        self._being_read = None
        give_up_reading = self._reading.begin(
            self._reading_of(frame, message.first_index), lambda read, _: self._was_read(message, read)
        )
        if give_up_reading is not None:
            self._being_read = message.source, message.term, give_up_reading
        self._raise_if_broken(message.source)
        return True

    def _raise_if_broken(self, source: str) -> None:
        if self._broken is not None and self._broken[0] == source:
            _, error = self._broken
            self._broken = None
            raise error

    def _reading_of(self, frame: RaftFrame, first_index: int) -> Read[ReadSnapshot | BrokenPeerError]:
        try:
            state = yield from state_read(memoryview(frame.body), self._rows_at_once)
            queues = yield from self._empty_queues(state.queue_ends)
        except Exception as error:  # whatever its parts raise for bytes that are none of this state
            return BrokenPeerError(f"a snapshot that cannot be read: {type(error).__name__}: {error}")
        snapshot = Snapshot(frame.applied_index, memoryview(frame.body))
        return ReadSnapshot(frame, state, self._store.incoming(first_index, queues, snapshot))

    def _empty_queues(self, ends: dict[tuple[str, int], int]) -> Read[EmptyQueues]:
        """Makes the queues of a snapshot, which begin where those of the leader end."""
        queues, pace = self._store.queues.empty(), Pace(self._rows_at_once)
        for some in slices(ends.items(), max(1, self._rows_at_once // _ROWS_A_QUEUE)):
            queues.add(some)
            if pace.spent(len(some) * _ROWS_A_QUEUE):
                yield
        return queues

    def _was_read(self, message: SnapshotRequest, read: ReadSnapshot | BrokenPeerError) -> None:
        self._being_read = None
        if isinstance(read, BrokenPeerError):
            self._broken = message.source, read
        else:
            self._upkeep.write_incoming(read.incoming, partial(self._was_written, read))

    def _was_written(self, read: ReadSnapshot) -> None:
        self._written = read
        try:
            self.received(read.frame, self._time.now_ns, self._time.wall_ms)
        except BrokenPeerError as error:
            self._broken = read.frame.message.source, error
        finally:
            self._written = None

    def write_entries(self, effect: AcceptEntries) -> None:
        """Writes the entries that raft has accepted. Raises `log.errors.DiskError`."""
        entries = self._entries
        assert entries is not None, "entries are accepted from an append only"
        configurations = effect.message.configurations
        if configurations:
            self._membership.learn(
                entries, [index for index, _ in configurations if index >= effect.first_index]
            )
            self._members.save()
        began_ns = self._timings.stopwatch()
        self._log.append_range(entries, effect.skip)
        self._timings.append.observe(self._timings.stopwatch() - began_ns)

    @property
    def snapshot(self) -> ReadSnapshot:
        """The snapshot that raft has just accepted."""
        assert self._snapshot is not None, "a log is reset by a snapshot only"
        return self._snapshot

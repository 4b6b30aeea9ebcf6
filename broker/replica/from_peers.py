"""What peers send to a replica for raft: checked, then stepped, then written.

Raft never sees bytes, and believes what a message says of them. So they are checked before it hears of the message, and
kept here until its effects are carried out: one of them may be that they are written.
"""

from collections.abc import Callable

import structlog

from broker.peers.protocol import BrokenPeerError, RaftFrame
from broker.replica.group_clock import GroupClock
from broker.replica.members import Members
from broker.replica.membership import Membership
from broker.replica.room import Room
from broker.replica.upkeep import Upkeep
from broker.requests.deadline import Time
from broker.state.snapshot import StateSnapshot, decode_state
from broker.statistics.events import Event, Events
from broker.statistics.timings import Timings
from log.entry_log import EntryLog
from log.entry_range import EntryRange
from log.entry_room import make_room_for_range
from log.errors import DamagedRangeError, DiskFullError
from log.layout import HEADER_BYTES
from log.record import SMALLEST_RECORD_BYTES, stored_at
from raft.core import Raft
from raft.effects import AcceptEntries
from raft.errors import ImpossibleMessage
from raft.messages import AppendRequest, AppendResponse, SnapshotRequest

log = structlog.get_logger("trivet.replica")


class FromPeers:
    """The messages that come to one replica."""

    def __init__(
        self,
        entry_log: EntryLog,
        raft: Raft,
        room: Room,
        upkeep: Upkeep,
        membership: Membership,
        members: Members,
        clock: GroupClock,
        events: Events,
        time: Time,
        timings: Timings,
        carry_out: Callable[[], None],
    ) -> None:
        """`carry_out` carries out raft's effects."""
        self._log = entry_log
        self._raft = raft
        self._room = room
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
        self._snapshot: tuple[RaftFrame, StateSnapshot] | None = None
        """The same for a snapshot that has come, and what it says."""

    def received(self, frame: RaftFrame, now_ns: int, wall_ms: int) -> bool:
        """Takes a Raft message. Bytes that fail their checks are dropped, as if lost on the way.

        Returns False when no turn is wanted: the message is an acknowledgement that commits nothing and makes room for
        nothing, as every second one in a group of three. Raises `BrokenPeerError` for what no correct node sends.
        """
        self._time.now_ns, self._time.wall_ms = now_ns, wall_ms
        message = frame.message
        entries: EntryRange | None = None
        snapshot: tuple[RaftFrame, StateSnapshot] | None = None
        if isinstance(message, AppendRequest) and (message.spans or message.configurations):
            if message.contradicts_itself:
                raise BrokenPeerError(f"it contradicts itself: {message}")
            try:
                entries = self._log.check_range(frame.body, message.prev_index + 1, frame.position)
            except DamagedRangeError as error:
                self._events.warn(
                    Event.DAMAGED_FRAME, "append", now_ns, source=message.source, error=str(error)
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
            if self._upkeep.snapshot_is_out:
                return False  # this node's own would replace it on the disk; as if lost, it comes again
            snapshot = frame, _readable_state(frame)
        raft, room = self._raft, self._room
        # A write that raft asks for must not fail: a node without room for it does not hear of the message.
        if raft.may_note(message) and not room.is_there(now_ns):
            return False
        if raft.recovery is not None:
            room.before_recovery_ends(now_ns)
        if entries is not None and entries.first_index <= self._log.last_index + 1 and not raft.lacks_room:
            try:
                make_room_for_range(self._log, entries)
            except DiskFullError as error:
                room.for_entries(error, now_ns)
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
        return wants_turn

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
        if entries.term_spans[-1][1] == self._raft.term:
            # An entry of an earlier term may be of a time in which the group's clock was another.
            at = entries.position_of(entries.last_index) - entries.position + HEADER_BYTES
            if len(entries.data) - at >= SMALLEST_RECORD_BYTES:
                self._clock.heard(stored_at(entries.data, at), self._time.now_ns)

    @property
    def snapshot(self) -> tuple[RaftFrame, StateSnapshot]:
        """The snapshot that raft has just accepted: its frame, and the state in it."""
        assert self._snapshot is not None, "a log is reset by a snapshot only"
        return self._snapshot


def _readable_state(frame: RaftFrame) -> StateSnapshot:
    """Returns the state in a snapshot's frame. Raises `BrokenPeerError`."""
    try:
        return decode_state(bytes(frame.body))
    except Exception as error:  # whatever its parts raise for bytes that are none of this state
        raise BrokenPeerError(f"a snapshot that cannot be read: {type(error).__name__}: {error}") from error

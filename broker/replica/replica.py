"""One replica of a broker group: Raft, the log and the replicated metadata put together, without any I/O of its own.

Read this file first. It follows a message in order: 1 propose (a send processor appends a record to the leader's log),
2 replicate (Raft sends ranges of the log to the peers; a peer checks and appends them), 3 commit (a majority holds
them, and their senders get a response), 4 dispatch (ConsumeQueue and IndexFile are built, metadata commands applied),
5 answer (other requests, held pulls). `turn` does all that has become possible since the last turn. So everything that
arrived meanwhile shares one append to each peer, one dispatch and one flush.

Everything that happens to a replica is a method call with the time as an argument, and everything it wants done is
left in the outboxes of its links or is a job for a worker thread. What is not on a message's path has modules of its
own, in whose hands it is: `applied` (what is committed, as state), `durability` (flushes, and what raft hears of them),
`upkeep` (files made ready, checkpoints, snapshots), `members` (links, changes, who is outside), `loads` (cold reads),
`scrubbing` and `repairs` (damage on the disk).

The order that safety asks for holds by construction:

- the hard state is on disk (`HardStateFile.write` returns after the fsync) before any message of the same list of
  effects is queued, because effects are carried out in the order in which raft gave them;
- entries are in the mapping before the acknowledgement is queued, and with ``flush = "sync"`` on disk, because raft is
  told `persisted` only then;
- nothing queued in an outbox leaves the process before the turn sends it: by then it has written what that rests on.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from broker.peers import protocol as peer_protocol
from broker.peers.protocol import RaftFrame
from broker.remoting.pieces import Pieces
from broker.replica.applied import AppliedState
from broker.replica.batch_appends import BatchAppends
from broker.replica.durability import Durability
from broker.replica.group_clock import GroupClock
from broker.replica.inner_limits import InnerLimits
from broker.replica.internal_records import (
    COMMAND,
    CONFIGURATION,
    INTERNAL_TOPIC_BYTES,
    NO_OP,
    append_internal,
)
from broker.replica.loads import Loads
from broker.replica.members import Members
from broker.replica.membership import Membership
from broker.replica.proposals import CallbackWaiter, NewMessage, Observer, Waiter, ignore
from broker.replica.read_barriers import ReadBarriers
from broker.replica.recovering import RecoveringFile
from broker.replica.repairs import Repairs
from broker.replica.room import Room
from broker.replica.scrubbing import Scrubbing
from broker.replica.slowness import Slowness
from broker.replica.start import start_from_disk
from broker.replica.trace import ReplicaTrace
from broker.replica.uncommitted import Uncommitted
from broker.replica.upkeep import Upkeep
from broker.requests.connection import Connection
from broker.requests.errors import BatchUnderWayError, NotServingError, OverloadedError
from broker.state.commands import (
    Command,
    RaiseFormat,
    deleted_topics,
    encode_command,
    format_of,
)
from broker.state.metadata import Metadata
from broker.state.release import THIS_RELEASE, Release
from broker.state.snapshot import StateSnapshot, decode_state
from broker.statistics.events import Event, Events
from broker.statistics.timings import Timings
from broker.trace import TraceWriter
from log import cuts
from log.cold_reads import ColdReads
from log.entry_log import FlushJob, Run
from log.entry_range import EntryRange
from log.errors import DamagedEntryError, DamagedRangeError, DiskFullError
from log.hard_state import HardState as StoredHardState
from log.layout import HEADER_BYTES
from log.record import (
    RECORD_BYTES_WITHOUT_VARIABLE_PARTS,
    SHORT_TOPIC_BYTES_MAX,
    SMALLEST_RECORD_BYTES,
    stored_at,
)
from log.snapshot import Snapshot
from log.store import RecoveryReport, Store
from raft import effects as fx
from raft.config import HardState, RaftConfig
from raft.core import Raft
from raft.errors import ImpossibleMessage, LeadershipTransferring, NotLeader, ProposalLimit
from raft.messages import AppendRequest, AppendResponse, SnapshotRequest
from raft.state import RandomSource
from raft.terms import LogTerms

log = structlog.get_logger("trivet.replica")

SNAPSHOT_NS_PER_BYTE: Final = 50
"""The time that a snapshot may take on its way to a peer and there, by its size: 20 MB/s."""

FOLLOWER_RESTS_NS: Final = 10_000_000
"""A follower that has dispatched does so again after this time at the earliest, unless much is waiting. What it learns
of commits is late in any case, and a pass over a hundred entries costs little more than one over ten."""

FOLLOWER_RESTS_ENTRIES_MAX: Final = 1000
"""So many committed entries a follower leaves for later, at most: a new leader dispatches them before it serves."""


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """The settings that a replica begins with and keeps."""

    node_id: str
    raft: RaftConfig
    sync_flush: bool
    """An entry counts as held here when it is on the disk, not when it is in the page cache."""
    flush_interval_ns: int
    """The time that bytes which are only in the page cache may wait for their flush."""
    uncommitted_bytes_max: int
    """A leader whose entries without a majority have more bytes together takes nothing new."""
    store_host: bytes
    """This node's address, packed as in a record."""
    release: Release = THIS_RELEASE
    """The release that runs; another one only where two of them are tried together."""
    limits: InnerLimits = field(default_factory=InnerLimits)


class Replica:
    """The state of one node of a group. Calls do not block except for the rare fsync of term and vote.

    `links` are the outgoing connections to the other nodes, which the shell keeps connected; what is sent to a node
    without a connection is dropped there, as any network may.
    """

    def __init__(
        self,
        options: ReplicaOptions,
        store: Store,
        recovery: RecoveryReport,
        membership: Membership,
        recovering: RecoveringFile,
        *,
        random: RandomSource,
        now_ns: int,
        wall_ms: int,
        observer: Observer,
        events: Events,
        trace: TraceWriter | None,
        timings: Timings,
    ) -> None:
        """Begins over what `Store.open` found, of which `recovery` tells. Raises as `start_from_disk`."""
        node_id, limits = options.node_id, options.limits
        start = start_from_disk(node_id, store, recovery, membership, recovering)
        entry_log = store.log
        self.node_id = node_id
        self.release = options.release
        self.limits = limits
        self.membership = membership
        self.store = store
        self.now_ns = now_ns
        self.wall_ms = wall_ms
        """The group's time, as `clock` has it at `now_ns`."""
        self.timings = timings
        self.clock = GroupClock(now_ns, wall_ms, events)
        self.links: dict[str, Connection] = {}
        self.link_versions: dict[str, int] = {}
        """The version of the protocol of peers that each link has agreed on, or had."""
        self.loads = Loads(ColdReads(entry_log, store.options.hot_bytes))
        self._log = entry_log
        self._encode_record = store.options.loops.encode_record
        self._uncommitted_bytes_max = options.uncommitted_bytes_max
        self._store_host = options.store_host
        self._observer = observer
        self._events = events
        self._trace = ReplicaTrace(trace, entry_log, now_ns, start.hard_state.term, recovery.committed_index)

        self.raft = Raft(
            options.raft,
            node_id,
            HardState(start.hard_state.term, start.hard_state.vote or None),
            LogTerms(entry_log.first_index, entry_log.last_index, entry_log.term_runs(), entry_log.base_term),
            start.commit_index,
            start.configurations,
            random,
            now_ns,
            self._clip,
            start.loss,
        )
        self._frame: RaftFrame | None = None
        """The frame whose effects are being carried out, and the entries in it; both None at any other time."""
        self._entry_range: EntryRange | None = None
        self._snapshot_state: StateSnapshot | None = None
        """What the snapshot that came last says: it is read before Raft hears of it."""

        self._uncommitted = Uncommitted(store.queue_end)
        self.batches = BatchAppends(
            self, entry_log, self.raft, self._uncommitted, options.store_host, store.options.batch_messages
        )
        self.others_first = False
        """Messages wait that came before those which come now; set by the node, which brings them in order."""
        self._has_timed_append = False
        """An append was timed since the last turn: one of each turn is, for two clocks a message would be felt."""
        self._reads = ReadBarriers()
        self._serving_from: int | None = None
        self.serving = False
        """True when this node leads and all committed before its term is applied: it may answer for the group."""

        self._committed_index = self.raft.commit_index
        """Always applied index <= committed index <= last index."""
        self._rests_until_ns = 0
        """A follower dispatches from then on, or if much is waiting."""

        self.durability = Durability(
            entry_log,
            self.raft,
            recovering,
            sync=options.sync_flush,
            interval_ns=options.flush_interval_ns,
            now_ns=now_ns,
        )
        self.slow = Slowness(self.raft, events)
        self.room = Room(store, self.raft, events)
        self.upkeep = Upkeep(store, self.raft, self.room, now_ns, self.release, timings)
        self.upkeep.note_format(start.metadata.format, now_ns)
        self.applied = AppliedState(
            store,
            start.metadata,
            start.metadata_index,
            self.upkeep,
            self.room,
            self.release,
            timings,
            limits.state_rows_at_once,
        )
        self.repairs = Repairs(
            entry_log, self.links, self.link_versions, self.loads, events, lambda: self._committed_index
        )
        self.scrubbing = Scrubbing(
            store, self.repairs, lambda: self._committed_index, self.save_snapshot, now_ns
        )
        self._snapshots_for: dict[str, Callable[[], None]] = {}
        """By peer, gives up the snapshot that is being written for it."""
        self.members = Members(
            node_id, self.raft, membership, self.links, observer, options.release.newest_format
        )
        self._handlers: dict[type, Callable[[Any], None]] = {
            fx.Send: self._on_send,
            fx.Committed: self._on_committed,
            fx.AcceptEntries: self._on_accept_entries,
            fx.AppendNoop: self._on_append_noop,
            fx.AppendConfiguration: self._on_append_configuration,
            fx.TruncateLog: self._on_truncate,
            fx.SaveHardState: self._on_save_hard_state,
            fx.RoleChanged: self._on_role_changed,
            fx.ReadReady: self._reads.confirmed,
            fx.ReadLost: self._reads.lost,
            fx.SnapshotNeeded: self._on_snapshot_needed,
            fx.ResetLog: self._on_reset_log,
            fx.ConfigurationChanged: self.members.changed,
            fx.RecoveryChanged: self.durability.recovery_changed,
            fx.PeerSlow: self._on_peer_slow,
        }
        self.carry_out()

    # ------------------------------------------------------------------ 1 propose

    @property
    def term(self) -> int:
        """The current term."""
        return self.raft.term

    @property
    def leader(self) -> str | None:
        """The node that this one follows; itself when it leads; None when unknown."""
        return self.raft.leader

    @property
    def applied_index(self) -> int:
        """The last entry that is dispatched and applied."""
        return self.applied.index

    @property
    def metadata(self) -> Metadata:
        """The replicated state, as of `applied_index`."""
        return self.applied.metadata

    def queue_end(self, topic: str, queue_id: int) -> int:
        """The queue offset that the leader gives to the next message, uncommitted ones counted."""
        return self._uncommitted.queue_end((topic, queue_id))

    @property
    def owes_answers(self) -> bool:
        """Tells whether somebody waits for what this node has appended as the leader."""
        return self._uncommitted.has_waiting

    def check_may_append(self, count: int = 1, *, despite_full_disk: bool = False) -> None:
        """Raises `NotServingError`, `OverloadedError` or `DiskFullError` when `count` entries cannot be appended now.

        `BatchUnderWayError`, an `OverloadedError`, keeps messages away while a batch is under way.
        `Room.refuses_sends` is for messages. What is small, and lets consumers go on, is taken `despite_full_disk`
        until nothing is left: positions, order locks, topics and groups, members.
        """
        if not self.serving:
            raise NotServingError(self.raft.leader)
        if self.room.refuses_sends and not despite_full_disk:
            raise DiskFullError("the store", "writing", "more of the disk is used than the settings allow")
        if not despite_full_disk and (self.batches.under_way is not None or self.others_first):
            raise BatchUnderWayError("a long batch is being stored")
        if self._uncommitted.bytes > self._uncommitted_bytes_max:
            raise OverloadedError(f"{self._uncommitted.bytes} bytes of the log wait for a majority")
        self.check_proposal(count)

    def check_proposal(self, count: int) -> None:
        """Raises as `check_may_append` where raft does not take `count` entries now."""
        try:
            self.raft.check_proposal(count)
        except (LeadershipTransferring, NotLeader) as error:
            # It leads no more when its removal is committed, and is told so after those who wait for the members.
            raise NotServingError(None) from error
        except ProposalLimit as error:
            raise OverloadedError(str(error)) from error

    def append_message(
        self, message: NewMessage, waiter: Waiter | None, *, told_at_commit: bool = False
    ) -> tuple[int, int]:
        """Appends one message to the leader's log; returns (physical offset of its record, queue offset).

        Call `check_may_append` first. `waiter` is told when the entry is committed. With `told_at_commit` it may be
        told before the entry is dispatched, in the same turn. Raises `log.errors.EntryTooLargeError`, `DiskFullError`,
        `RecordError`, with nothing appended.
        """
        topic_bytes = message.topic.encode()
        assert self.batches.under_way is None, "nothing comes between the messages of a batch"
        assert topic_bytes != INTERNAL_TOPIC_BYTES, "every replica would apply it as a command"
        entry_log, store_host = self._log, self._store_host
        born_host, body, properties = message.born_host, message.body, message.properties
        # The record holds its own offset, which depends on its size: an entry that does not fit begins the next file.
        size = (
            RECORD_BYTES_WITHOUT_VARIABLE_PARTS
            + len(born_host)
            + len(store_host)
            + len(body)
            + len(topic_bytes)
            + len(properties)
        )
        if len(topic_bytes) > SHORT_TOPIC_BYTES_MAX:
            size += 1  # the topic's length takes two bytes
        physical_offset = entry_log.next_position(size) + HEADER_BYTES
        key = (message.topic, message.queue_id)
        queue_offset = self._uncommitted.queue_end(key)
        record = self._encode_record(
            topic_bytes,
            message.queue_id,
            message.flag,
            queue_offset,
            physical_offset,
            message.sys_flag,
            message.born_timestamp,
            born_host,
            self.wall_ms,
            store_host,
            message.reconsume_times,
            message.prepared_transaction_offset,
            body,
            properties,
        )
        assert len(record) == size, "the record is where its own offset says"
        # The entry first: its write may fail, and raft must not count what is not there.
        if self._has_timed_append:
            index = entry_log.append(self.raft.term, record)
        else:
            began_ns = self.timings.stopwatch()
            index = entry_log.append(self.raft.term, record)
            self.timings.append.observe(self.timings.stopwatch() - began_ns)
            self._has_timed_append = True
        self.raft.propose(1, self.now_ns)
        self._uncommitted.add_messages(
            key, queue_offset + 1, index, size, waiter, told_at_commit=told_at_commit
        )
        return physical_offset, queue_offset

    def propose_command(
        self, command: Command, done: Callable[[Any], None] = ignore, lost: Callable[[], None] = ignore
    ) -> None:
        """Appends a metadata command; `done` gets what `Metadata.apply` returned, once committed.

        Raises as `check_may_append`.
        """
        assert isinstance(command, RaiseFormat) or format_of(command) <= self.metadata.format, (
            "no member may meet a command that it cannot read"
        )
        self.check_may_append(despite_full_disk=True)
        gone = deleted_topics(command)
        if gone and self.batches.under_way is not None:
            raise BatchUnderWayError("a long batch is being stored, and may be for the topic that goes")
        waiter = CallbackWaiter(done, lost)
        index = self._append_internal(COMMAND, encode_command(command))
        for topic in gone:
            # Wherever it is applied, the queues are gone then: what comes behind it in the log begins them anew.
            self._uncommitted.forget_queues(topic)
        self.raft.propose(1, self.now_ns)
        self._uncommitted.wait_for_command(index, waiter)

    def when_applied(self, waiter: Waiter) -> None:
        """Tells `waiter` when all entries that this leader's log has now are applied, or that it stopped leading first.

        A batch that is under way counts as if all of it were in the log. Leader only. The waiter may be told before
        this returns.
        """
        if self.batches.under_way is not None:
            self.batches.under_way.waiting.append(waiter)
            return
        last_index = self._log.last_index
        if last_index <= self.applied.index:
            waiter.committed()
        else:
            self._uncommitted.wait_for_apply(last_index, waiter)

    def read_barrier(self, ready: Callable[[], None], lost: Callable[[], None]) -> None:
        """Calls `ready` when this node's applied state is as new as the call (dissertation 6.4); leader only.

        All barriers of a turn share one round of messages. Raises `NotServingError`.
        """
        if not self.serving:
            raise NotServingError(self.raft.leader)
        self._reads.add((ready, lost))

    def _append_internal(self, tag: bytes, body: bytes) -> int:
        index, size = append_internal(self._log, self.raft.term, tag, body, self._store_host, self.wall_ms)
        self._uncommitted.add(index, size)
        return index

    # ------------------------------------------------------------------ 2 replicate

    def peer_connected(self, node: str, now_ns: int) -> None:
        """The link to `node` is up."""
        self.members.linked(node)
        self.repairs.linked(node, now_ns)
        self.now_ns = now_ns
        self.raft.peer_connected(node, now_ns)
        self.carry_out()

    def peer_disconnected(self, node: str, now_ns: int) -> None:
        """A connection with `node`, in either direction, was lost: there is no stronger sign of its death."""
        self.now_ns = now_ns
        self.raft.peer_disconnected(node, now_ns)
        self.carry_out()

    def peer_received(self, frame: RaftFrame, now_ns: int, wall_ms: int) -> bool:
        """Takes a Raft message. Bytes that fail their checks are dropped, as if lost on the way.

        Returns False when no turn is wanted: the message is an acknowledgement that commits nothing and makes room for
        nothing, as every second one in a group of three. Raises `BrokenPeerError` for what no correct node sends.
        """
        self.now_ns, self.wall_ms = now_ns, wall_ms
        message = frame.message
        # Raft never sees bytes, and believes what the message says of them: they are checked before it hears of it.
        if isinstance(message, AppendRequest) and (message.spans or message.configurations):
            if message.contradicts_itself:
                raise peer_protocol.BrokenPeerError(f"it contradicts itself: {message}")
            try:
                entry_range = self._log.check_range(frame.body, message.prev_index + 1, frame.position)
            except DamagedRangeError as error:
                self._events.warn(
                    Event.DAMAGED_FRAME, "append", now_ns, source=message.source, error=str(error)
                )
                return False
            if not entry_range.has_terms(message.spans):
                # The sender's log was truncated and written anew between queueing and sending: not these entries.
                log.warning(
                    "append refused", source=message.source, error="bytes of other terms than announced"
                )
                return False
            self._entry_range = entry_range
        elif isinstance(message, SnapshotRequest):
            if message.contradicts_itself:
                raise peer_protocol.BrokenPeerError(f"it contradicts itself: {message}")
            self._snapshot_state = _readable_state(frame)
        raft, room = self.raft, self.room
        if raft.may_note(message) and not room.is_there(now_ns):
            self._entry_range = None
            return False
        if raft.recovery is not None:
            room.before_recovery_ends(now_ns)
        entries = self._entry_range
        if entries is not None and entries.first_index <= self._log.last_index + 1 and not raft.lacks_room:
            try:
                self._log.make_room_for_range(entries)
            except DiskFullError as error:
                room.for_entries(error, now_ns)
        try:
            raft.step(message, now_ns)
        except ImpossibleMessage as error:
            self._entry_range = None
            raise peer_protocol.BrokenPeerError(str(error)) from error
        if raft.pending:
            self._frame = frame
            self.carry_out()
            self._frame = None
            wants_turn = True
        else:
            wants_turn = raft.wants_replicate or not isinstance(message, AppendResponse)
        self._entry_range = None
        return wants_turn

    def tick(self, now_ns: int, wall_ms: int) -> None:
        """Lets time pass; to be called at `deadline_ns` at the latest."""
        self.now_ns, self.wall_ms = now_ns, wall_ms
        raft, room = self.raft, self.room
        if room.lacks:
            room.look(now_ns)
        if raft.recovery is not None:
            room.before_recovery_ends(now_ns)
        if self.repairs.due_ns <= now_ns:
            self.repairs.look(now_ns)
        deadline = raft.deadline()
        if deadline is not None and deadline <= now_ns:
            if raft.role is not fx.Role.LEADER and not room.is_there(now_ns):
                return  # it could write no vote
            raft.tick(now_ns)
            self.carry_out()

    def flushed(self, job: FlushJob, now_ns: int) -> None:
        """A job of `durability` has run without an error."""
        self.now_ns = now_ns
        self.room.before_recovery_ends(now_ns)
        self.durability.flushed(job, now_ns)
        if self.upkeep.waiting_snapshot is not None:
            self.upkeep.write_snapshot(now_ns)
        if self.durability.sync:
            self.carry_out()

    def deadline_ns(self) -> int:
        """Returns the time at which `tick` and `turn` must run at the latest; NEVER while nothing is due.

        When jobs become due says `Jobs.due_ns`.
        """
        if self.applied.writing.is_under_way:
            return self.now_ns
        deadline: int | None = self.raft.deadline()
        due = self.repairs.due_ns
        if deadline is not None and deadline < due:
            due = deadline
        room = self.room
        if room.lacks:
            due = room.due_ns if self.raft.role is not fx.Role.LEADER else min(due, room.due_ns)
        if self.applied.index < self._committed_index:
            due = min(due, self._dispatch_due_ns)
        return due

    @property
    def _dispatch_due_ns(self) -> int:
        """The time from which on more of what is committed may be dispatched."""
        due_ns = self.room.dispatch_due_ns
        if (
            self._serving_from is None
            and due_ns < self._rests_until_ns
            and self._committed_index - self.applied.index <= FOLLOWER_RESTS_ENTRIES_MAX
        ):
            return self._rests_until_ns
        return due_ns

    @property
    def is_behind(self) -> bool:
        """More is committed than one turn has applied, and it need not wait: the next turn is wanted at once."""
        return self.applied.index < self._committed_index and self.now_ns >= self._dispatch_due_ns

    def carry_out(self) -> None:
        """Carries out raft's effects, in order (see raft/effects.py for what that order promises)."""
        raft, handlers, durability = self.raft, self._handlers, self.durability
        while raft.pending:
            for effect in raft.take_effects():
                handlers[type(effect)](effect)
            if not durability.sync and durability.written_index != self._log.last_index:
                durability.acknowledge_written(self.now_ns)

    def _clip(self, first_index: int, last_index: int) -> Run:
        """Returns the entries of one append, for raft: as many as fit, from `first_index` to `last_index` at most.

        They end before an entry whose header is damaged. If that is the first one the run has no bytes.
        """
        entries = self._log
        while True:
            try:
                return entries.run(first_index, last_index, self.limits.append_bytes_max)
            except DamagedEntryError as error:
                damaged = entries.index_of(error.position)
                if damaged is None or damaged <= first_index:
                    return Run(first_index, error.position, memoryview(b""))
                last_index = damaged - 1

    def _on_send(self, effect: fx.Send) -> None:
        link = self.links.get(effect.message.target)
        if link is None:
            return
        run = effect.run
        if run is None:
            frame = RaftFrame(effect.message)
        else:
            assert isinstance(run, Run), "clipped by this replica's own log"
            assert isinstance(effect.message, AppendRequest), "only appends carry entries"
            # Damage is as if lost on the way: raft sends it again, and `repairs` has it put back.
            if not run.body:
                return
            try:
                self._log.check_run(effect.message.prev_index + 1, run)
            except DamagedEntryError:
                return
            frame = RaftFrame(effect.message, run.position, body=run.body)
        link.send(*peer_protocol.encode_frame(frame))

    def _on_committed(self, effect: fx.Committed) -> None:
        self._committed_index = effect.index

    def _on_accept_entries(self, effect: fx.AcceptEntries) -> None:
        entries = self._entry_range
        assert entries is not None, "entries are accepted from an append only"
        configurations = effect.message.configurations
        if configurations:
            self.membership.learn(
                entries, [index for index, _ in configurations if index >= effect.first_index]
            )
            self.members.save()
        began_ns = self.timings.stopwatch()
        self._log.append_range(entries, effect.skip)
        self.timings.append.observe(self.timings.stopwatch() - began_ns)
        if entries.term_spans[-1][1] == self.raft.term:
            # An entry of an earlier term may be of a time in which the group's clock was another.
            at = entries.position_of(entries.last_index) - entries.position + HEADER_BYTES
            if len(entries.data) - at >= SMALLEST_RECORD_BYTES:
                self.clock.heard(stored_at(entries.data, at), self.now_ns)

    def _on_append_noop(self, effect: fx.AppendNoop) -> None:
        index = self._append_internal(NO_OP, b"")
        assert index == effect.index, f"no-op written at {index}, raft has {effect.index}"
        self._serving_from = index

    def _on_append_configuration(self, effect: fx.AppendConfiguration) -> None:
        self.members.save()
        index = self._append_internal(CONFIGURATION, self.membership.encode(effect.configuration))
        assert index == effect.index, f"configuration written at {index}, raft has {effect.index}"

    def _on_truncate(self, effect: fx.TruncateLog) -> None:
        assert effect.last_index >= self.applied.index, "an applied entry would be truncated"
        self._trace.appended(self.now_ns)
        cuts.truncate(self._log, effect.last_index)
        self.durability.cut()
        self._trace.truncated(self.now_ns, effect.last_index)

    def _on_save_hard_state(self, effect: fx.SaveHardState) -> None:
        began_ns = self.timings.stopwatch()
        self.store.hard_state.write(StoredHardState(effect.term, effect.vote or ""))
        self.slow.noted(self.timings.stopwatch() - began_ns, self.now_ns)

    def _on_role_changed(self, effect: fx.RoleChanged) -> None:
        if effect.role is fx.Role.LEADER:
            self.wall_ms = self.clock.lead(self.now_ns)
        else:
            self.clock.follow(self.now_ns)
            self._stop_leading()
        self._trace.role(self.now_ns, effect)
        self._tell_of_role(effect)
        self._observer.role_changed()

    def _tell_of_role(self, effect: fx.RoleChanged) -> None:
        """Says why the role has changed; apart from that, why a leader steps down or is not followed any more."""
        cause = effect.cause
        reason = cause.reason.value
        facts: dict[str, object] = {"term": effect.term}
        if cause.peer is not None:
            facts["peer"] = cause.peer
        if cause.after_ns:
            facts["after_ms"] = cause.after_ns // 1_000_000
        self._events.note(Event.ROLE_CHANGED, reason, role=effect.role.value, leader=effect.leader, **facts)
        if effect.before is fx.Role.LEADER:
            self._events.note(Event.STEPPED_DOWN, reason, **facts)
        elif effect.lost_leader is not None:
            self._events.note(Event.LEADER_LOST, reason, leader=effect.lost_leader, **facts)

    def _on_peer_slow(self, effect: fx.PeerSlow) -> None:
        self._events.warn(
            Event.SLOW_PEER,
            "behind or silent",
            self.now_ns,
            source=effect.node,
            for_ms=effect.since_ns // 1_000_000,
            lacks=effect.lag,
        )

    def _on_snapshot_needed(self, effect: fx.SnapshotNeeded) -> None:
        message = effect.message
        link = self.links.get(message.target)
        if link is None:
            self.raft.snapshot_failed(message.target, self.now_ns)
            return
        frame = RaftFrame(message, self._log.first_position, self.applied.reflected_index)
        if (give_up := self._snapshots_for.pop(message.target, None)) is not None:
            give_up()
        give_up = self.applied.writing.begin(
            self.applied.written(self.membership.addresses),
            lambda state, _: self._send_snapshot(frame, state),
        )
        if give_up is not None:
            self._snapshots_for[message.target] = give_up

    def _send_snapshot(self, frame: RaftFrame, state: Pieces) -> None:
        """Sends a snapshot that was wanted some turns ago, if it is of use still."""
        message = frame.message
        assert isinstance(message, SnapshotRequest), "snapshots are sent by such a message"
        self._snapshots_for.pop(message.target, None)
        link = self.links.get(message.target)
        leads = self.raft.role is fx.Role.LEADER and self.raft.term == message.term
        if link is None or not leads or message.first_index != self._log.first_index:
            self.raft.snapshot_failed(message.target, self.now_ns)
            return
        try:
            buffers = peer_protocol.encode_snapshot(frame, state)
        except peer_protocol.PeerProtocolError as error:
            log.warning("snapshot not sent", target=message.target, reason=str(error))
            self.raft.snapshot_failed(message.target, self.now_ns)
            return
        link.send(*buffers)
        # A long one is on its way for a while, and is not to be sent again meanwhile.
        length = sum(map(len, buffers))
        self.raft.snapshot_sent(message.target, self.now_ns + length * SNAPSHOT_NS_PER_BYTE)

    def _on_reset_log(self, effect: fx.ResetLog) -> None:
        frame = self._frame
        assert frame is not None, "a log is reset by a snapshot only"
        snapshot = Snapshot(frame.applied_index, bytes(frame.body))
        state, self._snapshot_state = self._snapshot_state, None
        assert state is not None, "it was read when it came"
        self.membership.merge(state.addresses)
        # The snapshot's members are saved before the reset, so that a crash in between cannot leave the new log with
        # the members of long ago. Their index is -1: the old log may be shorter than their entry's index, or be cut.
        self.membership.save([(-1, effect.configuration)])
        self.upkeep.waiting_snapshot = None
        self.store.reset(effect.first_index, frame.position, effect.base_term, state.queue_ends, snapshot)
        self.durability.cut()
        self.applied.reset(state, snapshot.applied_index, effect.first_index, self.now_ns)
        self._committed_index = effect.first_index - 1
        self.members.save()
        self._trace.reset(self.now_ns, effect.first_index)
        log.info("log begins anew from the leader's", first_index=effect.first_index)

    # ------------------------------------------------------------------ 3 to 5: the turn

    def turn(self, now_ns: int, wall_ms: int, send: Callable[[], None]) -> bool:
        """Does all that has become possible: replicates, answers sends, dispatches and applies what is committed.

        Returns True if the next turn is wanted at once: it `is_behind`, or writes its state.

        `send` is called before the dispatch: acknowledgements and responses to sends need not wait for it, and what
        is asked because of them comes after this turn. Afterwards `durability`, `upkeep` and `loads` say what a worker
        thread should do, and the outboxes of the links and of the clients' connections hold what is to be written.
        """
        self.now_ns, self.wall_ms = now_ns, wall_ms
        applied = self.applied
        assert applied.index <= self._committed_index, "only what is committed is applied"
        self._has_timed_append = False
        writing = applied.writing
        if writing.is_under_way:
            writing.step()
        raft = self.raft
        reads, trace = self._reads, self._trace
        durability = self.durability
        is_first = True
        # One slice in a turn: between two of them heartbeats are answered, and whatever else is small.
        slice_end = applied.index + self.store.options.dispatch_entries
        while True:
            if reads.wanted:
                reads.begin_round(raft, now_ns)
            last_index = self._log.last_index
            if not durability.sync and durability.written_index != last_index:
                durability.acknowledge_written(now_ns)
            if trace.is_kept and trace.appended_index != last_index:
                trace.appended(now_ns)
            if is_first or raft.wants_replicate:
                is_first = False
                raft.replicate(now_ns)
            if raft.pending:
                self.carry_out()
            upto = applied.index
            if self._committed_index > upto and now_ns >= self._dispatch_due_ns:
                upto = min(self._committed_index, slice_end)
            elif self._committed_index > upto:
                # Senders need not wait for queues.
                self._tell_committed()
            if upto > applied.index:
                self._tell_committed()
                send()
                self._apply_committed(upto)
                if applied.index < upto:
                    slice_end = applied.index
            elif not reads.wanted:
                confirmed = reads.confirmed_at
                if not confirmed or confirmed[0][0] > applied.index:
                    break
            # A read that passes its barrier may propose something. It leaves in this turn: the next one may be far.
            reads.applied(applied.index)
        return writing.is_under_way or (applied.index < self._committed_index and self.is_behind)

    def _tell_committed(self) -> None:
        """Tells the trace, and then those who wait for no more, what is committed: a checker compares the two."""
        if self._trace.is_kept:
            self._trace.committed(self.now_ns, self._committed_index, self.raft.term)
        self._uncommitted.committed(self._committed_index)

    def catch_up(self) -> None:
        """Applies what a follower knows as committed and has left for later: whoever asks it finds that."""
        if self._serving_from is None and self.now_ns >= self.room.dispatch_due_ns:
            self._rests_until_ns = 0
            upto = min(self._committed_index, self.applied.index + self.store.options.dispatch_entries)
            if upto > self.applied.index:
                if self._trace.is_kept:
                    self._trace.committed(self.now_ns, self._committed_index, self.raft.term)
                self._apply_committed(upto)

    def _apply_committed(self, upto: int) -> None:
        """Dispatches (4), then answers (5): all who are answered in this turn can read what they wrote."""
        arrivals = self.applied.apply(upto, self.now_ns, self.wall_ms, self._command_applied)
        upto = self.applied.index
        # It rests when all is applied: a slice is not to be the most of ten milliseconds.
        self._rests_until_ns = self.now_ns + FOLLOWER_RESTS_NS if upto >= self._committed_index else 0
        if self._trace.is_kept:
            self._trace.dispatched(self.now_ns, upto)
        serving_from = self._serving_from
        if serving_from is not None and not self.serving and upto >= serving_from:
            # What earlier leaders took arrives while this one does not serve yet: it is not counted as its own.
            if arrivals:
                self._observer.arrived(arrivals)
                arrivals = []
            self._start_serving()
        self._uncommitted.applied(upto)
        if arrivals:
            self._observer.arrived(arrivals)
        if upto - self.store.snapshot_index > self.limits.snapshot_interval_entries:
            self.save_snapshot()

    def _command_applied(self, index: int, command: Command, result: Any) -> None:
        self._uncommitted.command_applied(index, result)
        self._observer.metadata_changed(command)

    def _start_serving(self) -> None:
        """Begins to answer for the group: all before this term is applied, and so the queues' ends are known."""
        self._uncommitted.queue_ends = self.store.queue_ends_behind_dispatch()
        self.serving = True
        log.info("serving", term=self.raft.term, index=self._serving_from)
        self._observer.role_changed()

    def _stop_leading(self) -> None:
        """Forgets all that only a leader has, and tells those who wait that the outcome is unknown."""
        self._serving_from = None
        self.serving = False
        waiting = self.batches.abandon()
        self._uncommitted.abandon()
        for waiter in waiting:
            waiter.lost()
        self.members.give_up_change()
        self._reads.abandon_wanted()

    # ------------------------------------------------------------------ the state kept apart from the log

    def save_snapshot(self) -> None:
        """Begins to write the applied state, durably once the log is durable so far. Raises `log.errors.DiskError`."""
        self.applied.save(self.membership.addresses, self.now_ns)

    def head_deleted(self) -> None:
        """The log begins later than before (broker/retention/retention.py)."""
        self.raft.drop_before(self._log.first_index)
        self.members.save()

    def close(self, now_ns: int) -> None:
        """Stops in order: flushes everything and writes the checkpoint. No call may follow.

        Raises `log.errors.DiskError`.
        """
        self._trace.stopped(now_ns)
        try:
            self.store.flush()
            self.upkeep.stopping()
            self.applied.save_at_once(self.membership.addresses, now_ns)
        except BaseException:
            self.store.abandon()
            raise
        try:
            self.store.close(self._committed_index)
        except DiskFullError as error:
            # The log is flushed. What is not noted the next start finds out, as after any other stop.
            self.room.for_notes_of_stop(error, now_ns)


def _readable_state(frame: RaftFrame) -> StateSnapshot:
    """Returns the state in a snapshot's frame. Raises `BrokenPeerError`."""
    try:
        return decode_state(bytes(frame.body))
    except Exception as error:  # whatever its parts raise for bytes that are none of this state
        raise peer_protocol.BrokenPeerError(
            f"a snapshot that cannot be read: {type(error).__name__}: {error}"
        ) from error

"""One replica of a broker group: Raft, the log and the replicated metadata put together, without any I/O of its own.

Read this file first, from `Replica.turn` on. A message goes through five steps:

1 propose      a send processor appends a record to the leader's log            leadership.py
2 replicate    Raft sends ranges of the log to the peers; a peer checks and     to_peers.py, from_peers.py,
               writes them, and acknowledges what it holds                      durability.py
3 commit       a majority holds them, and their senders get a response          committed_entries.py
4 dispatch     ConsumeQueue and IndexFile are built, metadata commands applied  applied.py
5 answer       other requests, reads behind a barrier, held pulls               leadership.py, broker/node/listeners.py

`turn` does all that has become possible since the last turn. So everything that arrived meanwhile shares one append to
each peer, one dispatch and one flush.

Everything that happens to a replica is a method call with the time as an argument, and everything it wants done is
left in the outboxes of its links or is a job for a worker thread. What is not on a message's path has modules of its
own, too: `members` (links, changes, who is outside), `upkeep` (checkpoints, snapshots), `disk_space` (a full
disk), `loads` (cold reads), `scrubbing` and `repairs` (damage on the disk).

The order that safety asks for holds by construction:

- the hard state is on disk (`HardStateFile.write` returns after the fsync) before any message of the same list of
  effects is queued, because effects are carried out in the order in which raft gave them;
- entries are in the mapping before the acknowledgement is queued, and with ``flush = "sync"`` on disk, because raft is
  told `persisted` only then;
- nothing queued in an outbox leaves the process before the turn sends it: by then it has written what that rests on.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from broker.replica.applied import AppliedState
from broker.replica.basis import Basis
from broker.replica.committed_entries import CommittedEntries
from broker.replica.disk_space import DiskSpace
from broker.replica.durability import Durability
from broker.replica.from_peers import FromPeers
from broker.replica.group_changes import GroupChanges
from broker.replica.group_clock import GroupClock
from broker.replica.incoming_snapshots import IncomingSnapshots
from broker.replica.internal_records import CONFIGURATION
from broker.replica.leadership import Leadership
from broker.replica.linked_peers import LinkedPeers
from broker.replica.loads import Loads
from broker.replica.log_head import LogHead
from broker.replica.members import Members
from broker.replica.options import ReplicaOptions, ReplicaSurroundings
from broker.replica.raft_events import tell_of_role, tell_of_slow_peer
from broker.replica.repairs import Repairs
from broker.replica.scrubbing import Scrubbing
from broker.replica.slowness import Slowness
from broker.replica.start import OnDisk, ReplicaStart, start_from_disk
from broker.replica.to_peers import ToPeers, clip
from broker.replica.trace import ReplicaTrace
from broker.replica.upkeep import Upkeep
from broker.requests.connection import Connection
from broker.requests.deadline import Time
from broker.state.metadata import Metadata
from broker.state.snapshot_reading import let_go
from log.entries import cuts
from log.entries.cold_reads import ColdReads
from log.entries.entry_log import EntryLog
from log.entries.flushes import FlushJob
from log.errors import DiskFullError
from log.notes.hard_state import StoredHardState
from raft import effects as fx
from raft.core import Raft
from raft.messages import Message
from raft.reasons import Reason
from raft.state import HardState, InitialState
from raft.terms import LogTerms

log = structlog.get_logger("trivet.replica")


class Replica:
    """The state of one node of a group. Calls do not block except for the rare fsync of term and vote.

    `links` are the outgoing connections to the other nodes, which the shell keeps connected; what is sent to a node
    without a connection is dropped there, as any network may.
    """

    def __init__(self, options: ReplicaOptions, found: OnDisk, around: ReplicaSurroundings) -> None:
        """Begins over what is `found` on the disk. Raises as `start_from_disk`."""
        start = start_from_disk(options.node_id, found)
        store, limits, now_ns = found.store, options.limits, around.now_ns
        observer, events = around.observer, around.events
        self.node_id = options.node_id
        self.release = options.release
        self.limits = limits
        self.membership = found.membership
        self.store = store
        self._log = store.log
        self.time = Time(now_ns, around.wall_ms)
        """The time of the call under way. When this node begins to lead, the group's time may step within a call."""
        self.clock = GroupClock(now_ns, around.wall_ms, events)
        self.timings = around.timings
        self.links: dict[str, Connection] = {}
        self.link_versions: dict[str, int] = {}
        """The version of the protocol of peers that each of the `links` has agreed on; those that are gone had theirs.
        """
        self._observer = observer
        self._events = events
        self._trace = ReplicaTrace(
            around.trace, store.log, now_ns, start.hard_state.term, found.recovery.committed_index
        )
        self.raft = raft = _raft(options, start, store.log, around)
        self.disk_space = DiskSpace(store, raft, events)
        basis = Basis(store, raft, self.disk_space, self.clock, self.time, observer, events, around.timings)

        # What is on the disk, and the state that is made of what is committed there.
        self.durability = Durability(
            store.log,
            raft,
            found.recovering,
            sync=options.sync_flush,
            interval_ns=options.flush_interval_ns,
            now_ns=now_ns,
        )
        self.slow = Slowness(raft, events)
        self.upkeep = Upkeep(store, raft, self.disk_space, now_ns, self.release)
        self.upkeep.note_format(start.metadata.format, now_ns)
        self.applied = AppliedState(
            basis,
            start.metadata,
            start.metadata_index,
            self.membership.addresses,
            self.upkeep,
            self.release,
            limits.state_rows_at_once,
        )

        # The steps of a message's path.
        self.members = Members(
            self.node_id, raft, self.membership, self.links, observer, self.release.newest_format
        )
        self.linked_peers = LinkedPeers(
            self.links, self.link_versions, self.members, self.clock, self.applied, self.release
        )
        self.leadership = Leadership(basis, self.applied, self.members, options)
        self._to_peers = ToPeers(basis, self.links, self.link_versions, self.applied)
        self.from_peers = FromPeers(
            basis,
            IncomingSnapshots(store, self.upkeep, self.applied.writing, limits.state_rows_at_once),
            self.members,
            self.carry_out,
        )
        self.committed = CommittedEntries(
            basis, self.applied, self.leadership, self._trace, limits.snapshot_interval_entries
        )

        # What lies on the disk for long: it is brought into memory again, and held against its checksums.
        self.loads = Loads(ColdReads(store.log, store.options.hot_bytes))
        self.repairs = Repairs(store.log, self.links, self.link_versions, self.loads, events, self.committed)
        self.scrubbing = Scrubbing(store, self.repairs, self.committed, self.applied, now_ns)

        # What is neither: the log's oldest files go, and the group changes.
        self.head = LogHead(basis, self.applied, self.members, self.leadership, self._resign)
        self.group_changes = GroupChanges(basis, self.members, self.leadership, self.carry_out)
        self._handlers = self._handlers_of_effects()
        # Of a single voter the recovering mode may be over already, which has to be noted.
        self.carry_out()

    # ------------------------------------------------------------------ what others ask of it

    @property
    def term(self) -> int:
        """The current term."""
        return self.raft.term

    @property
    def leader(self) -> str | None:
        """The node that this one follows; itself when it leads; None when unknown."""
        return self.raft.leader

    @property
    def serving(self) -> bool:
        """True when this node may answer for the group."""
        return self.leadership.serving

    @property
    def hands_over(self) -> bool:
        """True while this node leads, and leadership is going to another one."""
        return self.raft.transferee is not None

    @property
    def has_untold(self) -> bool:
        """True while some who waited here when this node stopped leading are still to be told so, in the next turns."""
        return bool(self.leadership.untold or self.leadership.reads.lost_reads)

    def hears(self, node: str) -> bool:
        """True while the link that another node sends on to this one is up."""
        return self.members.hears(node)

    @property
    def is_member(self) -> bool:
        """True if this node belongs to its group, as far as it knows (`Members.is_member`)."""
        return self.members.is_member

    @property
    def applied_index(self) -> int:
        """The last entry that is dispatched and applied."""
        return self.applied.index

    @property
    def metadata(self) -> Metadata:
        """The replicated state, as of `applied_index`."""
        return self.applied.metadata

    # ------------------------------------------------------------------ the turn

    def turn(self, now_ns: int, group_ms: int, send: Callable[[], None]) -> bool:
        """Does all that has become possible: replicates, answers sends, dispatches and applies what is committed.

        Returns True if the next turn is wanted at once: it is behind, or does what takes several turns.

        `send` is called before the dispatch: acknowledgements and responses to sends need not wait for it, and what
        is asked because of them comes after this turn. Afterwards `durability`, `upkeep` and `loads` say what a worker
        thread should do, and the outboxes of the links and of the clients' connections hold what is to be written.
        """
        self.time.now_ns, self.time.group_ms = now_ns, group_ms
        raft, entry_log, trace, durability = self.raft, self._log, self._trace, self.durability
        applied, committed, leadership = self.applied, self.committed, self.leadership
        reads = leadership.reads
        assert applied.index <= committed.index, "only what is committed is applied"
        self._go_on_with_what_was_left()
        # At most one slice of entries is applied in a turn, however often the loop goes round: between two slices
        # heartbeats are answered, and whatever else is small.
        slice_end = applied.index + self.store.options.dispatch_entries
        is_first = True
        while True:
            # Replicate. What is in the log counts as held here, and is in the trace, before anybody hears of it.
            if reads.wanted:
                reads.begin_round(raft)
            last_index = entry_log.last_index
            if not durability.sync and durability.written_index != last_index:
                durability.acknowledge_written(now_ns)
            if trace.is_kept and trace.appended_index != last_index:
                trace.appended(now_ns)
            if is_first or raft.wants_replicate:
                is_first = False
                raft.replicate(now_ns)
            if raft.pending:
                self.carry_out()
            # Commit. Senders are told, and need not wait for queues.
            upto = applied.index
            if committed.index > upto:
                if now_ns >= committed.due_ns:
                    upto = min(committed.index, slice_end)
                else:
                    committed.tell_committed()
            # Dispatch and answer, once what was queued so far has left.
            if upto > applied.index:
                committed.tell_committed()
                send()
                committed.apply_and_answer(upto)
                if applied.index < upto:
                    # It stopped short (a full disk, damage): no more of it in this turn.
                    slice_end = applied.index
            elif not (
                reads.wanted or ((reads.confirmed_at or reads.may_pass) and reads.go_on(applied.index))
            ):
                # Over, unless a read may pass its barrier now: the first that is confirmed needs no entry that is not
                # applied, and this turn has not yet let through as many as it may.
                break
            # A read that passes its barrier may propose something. It leaves in this turn: the next one may be far.
            reads.applied(applied.index)
        return (
            bool(applied.writing.under_way)
            or (bool(reads.confirmed_at or reads.may_pass) and reads.wait(applied.index))
            or bool(
                leadership.untold
                or reads.lost_reads
                or leadership.uncommitted.is_behind
                or self.store.head_steps is not None
            )
            or (applied.index < committed.index and committed.is_behind)
        )

    def _go_on_with_what_was_left(self) -> None:
        """Does the next step of all that an earlier turn has left for this one, as its result said."""
        leadership, store, writing = self.leadership, self.store, self.applied.writing
        reads, uncommitted = leadership.reads, leadership.uncommitted
        leadership.has_timed_append = False
        reads.begin_turn()
        if leadership.untold:
            leadership.tell_untold()
        if reads.lost_reads:
            reads.tell_lost()
        # `begin_turn` clears it. Who was left out by the last turn is told before those of whom this one hears.
        was_behind = uncommitted.is_behind
        uncommitted.begin_turn()
        if was_behind:
            self.committed.tell_more()
        if store.head_steps is not None:
            store.step_at_head()
        # Behind that step: it may have been the last one that serving waits for.
        if leadership.owes_head:
            leadership.start_serving()
        if writing.under_way:
            writing.step()

    def deadline_ns(self) -> int:
        """Returns the time at which `tick` and `turn` must run at the latest; NEVER while nothing is due.

        It does not know of what `turn` has returned True for. When jobs become due says `Jobs.due_ns`.
        """
        deadline: int | None = self.raft.deadline()
        due = self.repairs.due_ns
        if deadline is not None and deadline < due:
            due = deadline
        disk_space = self.disk_space
        if disk_space.lacks:
            # Without room nobody stands for election (`tick`): raft's own deadline may be past, and would bring turn
            # after turn. A leader goes on with its heartbeats.
            due = disk_space.due_ns if self.raft.role is not fx.Role.LEADER else min(due, disk_space.due_ns)
        if self.applied.index < self.committed.index:
            due = min(due, self.committed.due_ns)
        return due

    # ------------------------------------------------------------------ what happens to it

    def peer_connected(self, node: str, now_ns: int) -> None:
        """Tells raft, and all who have something for `node`, that the link to it is up."""
        self.members.linked(node)
        self.repairs.linked(node, now_ns)
        self.time.now_ns = now_ns
        self.raft.peer_connected(node)
        self.carry_out()

    def peer_disconnected(self, node: str, now_ns: int) -> None:
        """Tells raft that a connection with `node`, in either direction, was lost: there is no stronger sign of its
        death."""
        self.time.now_ns = now_ns
        self.raft.peer_disconnected(node, now_ns)
        self.carry_out()

    def tick(self, now_ns: int, group_ms: int) -> None:
        """Lets time pass; to be called at `deadline_ns` at the latest."""
        self.time.now_ns, self.time.group_ms = now_ns, group_ms
        raft, disk_space = self.raft, self.disk_space
        if disk_space.lacks:
            disk_space.look(now_ns)
        if raft.recovery is not None:
            disk_space.before_recovery_ends(now_ns)
        if self.repairs.due_ns <= now_ns:
            self.repairs.look(now_ns)
        deadline = raft.deadline()
        if deadline is not None and deadline <= now_ns:
            if raft.role is not fx.Role.LEADER and not disk_space.is_there(now_ns):
                return  # it could write no vote
            raft.tick(now_ns)
            self.carry_out()

    def flushed(self, job: FlushJob, now_ns: int) -> None:
        """Takes back a job of `durability` that has run without an error."""
        self.time.now_ns = now_ns
        self.disk_space.before_recovery_ends(now_ns)
        self.durability.flushed(job, now_ns)
        if self.durability.sync:
            self.carry_out()

    # ------------------------------------------------------------------ raft's effects

    def _handlers_of_effects(self) -> dict[type, Callable[[Any], None]]:
        return {
            fx.SaveHardState: self._save_term_and_vote,
            fx.Send: self._to_peers.send,
            fx.SnapshotNeeded: self._to_peers.begin_snapshot,
            fx.AcceptEntries: self.from_peers.write_entries,
            fx.TruncateLog: self._truncate_log,
            fx.ResetLog: self._reset_log,
            fx.Committed: self.committed.committed,
            fx.RoleChanged: self._change_role,
            fx.AppendNoop: self.leadership.append_noop,
            fx.AppendConfiguration: self._append_configuration,
            fx.ConfigurationChanged: self.members.changed,
            fx.ReadReady: self.leadership.reads.confirmed,
            fx.ReadLost: self.leadership.reads.lost,
            fx.RecoveryChanged: self._recovery_changed,
            fx.PeerSlow: lambda slow: tell_of_slow_peer(self._events, slow, self.time.now_ns),
        }

    def watch_words(self, observer: Callable[[Message], None]) -> None:
        """Has `observer` hear each of Raft's messages before it is sent, from now on."""
        send = self._handlers[fx.Send]

        def sends(effect: fx.Send) -> None:
            observer(effect.message)
            send(effect)

        self._handlers[fx.Send] = sends

    def carry_out(self) -> None:
        """Carries out raft's effects, in order (see raft/effects.py for what that order promises)."""
        raft, handlers, durability = self.raft, self._handlers, self.durability
        while raft.pending:
            for effect in raft.take_effects():
                handlers[type(effect)](effect)
            # What was written counts as held now, and on a leader may be committed by that: one more effect.
            if not durability.sync and durability.written_index != self._log.last_index:
                durability.acknowledge_written(self.time.now_ns)

    def _save_term_and_vote(self, effect: fx.SaveHardState) -> None:
        # The node itself waits here: if that takes long, what follows is not to be put down to its peers (slowness.py).
        began_ns = self.timings.stopwatch()
        self.store.hard_state.write(StoredHardState(effect.term, effect.vote or ""))
        self.slow.noted(self.timings.stopwatch() - began_ns, self.time.now_ns)

    def _truncate_log(self, effect: fx.TruncateLog) -> None:
        assert effect.last_index >= self.committed.index, (
            f"truncation to {effect.last_index}, committed is up to {self.committed.index}"
        )
        # What this turn has appended is in the trace before it goes, as it was in the log.
        self._trace.appended(self.time.now_ns)
        cuts.truncate(self._log, effect.last_index)
        self.durability.cut()
        self._trace.truncated(self.time.now_ns, effect.last_index)

    def _change_role(self, effect: fx.RoleChanged) -> None:
        if effect.role is fx.Role.LEADER:
            self.time.group_ms = self.clock.lead(self.time.now_ns)
        else:
            self.clock.follow(self.time.now_ns)
            self.leadership.stop()
        self._trace.role(self.time.now_ns, effect)
        tell_of_role(self._events, effect)
        # Last: what hears of the new role asks the leadership and the clock, which have it by now.
        self._observer.role_changed()

    def _resign(self) -> None:
        self.raft.resign(Reason.DISK_FULL, self.time.now_ns)
        self.carry_out()

    def _append_configuration(self, effect: fx.AppendConfiguration) -> None:
        # Before the entry: after a crash the file may know of more than the log, never of less (members_file.py).
        self.members.save()
        body = self.membership.encode(effect.configuration)
        index = self.leadership.append_internal(CONFIGURATION, body)
        assert index == effect.index, f"configuration written at {index}, raft has {effect.index}"

    def _recovery_changed(self, effect: fx.RecoveryChanged) -> None:
        self.durability.recovery_changed(effect)
        self.members.save()  # those with whom it committed what it lacked need not be known any more

    def _reset_log(self, effect: fx.ResetLog) -> None:
        """Has the log and the state begin anew from the leader's."""
        frame, state, incoming = self.from_peers.snapshot
        # Below, both are replaced: who holds the last reference to a hundred thousand objects frees them all at once.
        gone = [*self.applied.metadata.parts(), *self.store.queues.parts()]
        self.membership.merge(state.addresses)
        # The snapshot's members are saved before the reset, so that a crash in between cannot leave the new log with
        # the members of long ago. Their index is -1: the old log may be shorter than their entry's index, or be cut.
        self.membership.save([(-1, effect.configuration)], self.raft.lost_voters)
        # One that this node has made reflects less than the leader's, and would take its place.
        assert not self.upkeep.writes_snapshot, "a snapshot of the log that goes is on its way to the disk"
        self.upkeep.waiting_snapshot = None
        assert incoming.first_index == effect.first_index, "raft begins anew where the message says"
        self.store.swap(incoming, frame.position, effect.base_term)
        self.durability.cut()
        self.applied.reset(state, incoming.snapshot.applied_index, effect.first_index, self.time.now_ns)
        self.committed.index = effect.first_index - 1
        # With the index of their entry from here on, as the log is the new one.
        self.members.save()
        self._trace.reset(self.time.now_ns, effect.first_index)
        self.applied.writing.begin(let_go(gone, self.limits.state_rows_at_once), lambda *_: None)
        log.info("log begins anew from the leader's", first_index=effect.first_index)

    # ------------------------------------------------------------------ the end

    def abandon(self) -> None:
        """Ends as a crash of the process would: nothing is flushed or noted. No call may follow."""
        self.store.abandon()

    def close(self, now_ns: int) -> None:
        """Stops in order: flushes everything and writes the checkpoint. No call may follow.

        Raises `log.errors.DiskError`.
        """
        self._trace.stopped(now_ns)
        try:
            # The log first: a snapshot of the state is written only when all that it reflects is durable (upkeep.py).
            self.store.flush()
            self.upkeep.stopping()
            self.applied.save_at_once(now_ns)
        except BaseException:
            self.abandon()
            raise
        try:
            self.store.close(self.committed.index)
        except DiskFullError as error:
            # The log is flushed. What is not noted the next start finds out, as after any other stop.
            self.disk_space.for_notes_of_stop(error, now_ns)


def _raft(
    options: ReplicaOptions, start: ReplicaStart, entry_log: EntryLog, around: ReplicaSurroundings
) -> Raft:
    return Raft(
        options.raft,
        options.node_id,
        InitialState(
            hard_state=HardState(start.hard_state.term, start.hard_state.vote or None),
            log=LogTerms(
                entry_log.first_index, entry_log.last_index, entry_log.term_starts(), entry_log.base_term
            ),
            commit_index=start.commit_index,
            configurations=start.configurations,
            loss=start.loss,
            lost_voters=start.lost_voters,
        ),
        around.random,
        around.now_ns,
        partial(clip, entry_log, options.limits.append_bytes_max),
    )

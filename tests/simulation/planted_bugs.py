"""Mistakes known from the history of Raft, DLedger and brokers, each put into the real code by a patch.

`PLANTED` maps a name to the patch. `hunt` looks for the first seed that finds it; run this file to fill the table of
docs/simulation.md:

    python -m tests.simulation.planted_bugs [NAME ...]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest

import broker.forwarding
import log.entry_range
import log.entry_recovery
from broker.client.errors import ConnectionFailed
from broker.commands import CommitOffsets
from broker.connection import Connection
from broker.durability import Durability
from broker.metadata import Metadata
from broker.node import Node
from broker.offset_commits import OffsetCommits
from broker.once import Header as SendHeader
from broker.once import OnceSends
from broker.remoting.command import RemotingCommand
from broker.replica import Replica
from log.checkpoint import ABORT
from log.consume_queue import ConsumeQueue
from log.dispatch import Dispatch, Dispatcher
from log.entry_log import EntryLog, FlushJob
from log.errors import FlushError
from log.hard_state import HardState, HardStateFile
from log.index_file import IndexFiles, IndexNote
from log.store import Store
from raft import effects as fx
from raft.configuration import Change
from raft.core import Raft
from raft.election import Election
from raft.follower import Follower
from raft.leader import Clip, Leader
from raft.messages import AppendRequest, Message, VoteRequest
from raft.state import NodeState
from raft.terms import LogTerms
from simulation.plan import Plan, draw_plan, faults_of_actor
from simulation.world import Result, run_plan
from tests.simulation import (
    planted_name_servers,
    planted_one_way,
    planted_orders,
    planted_reads,
    planted_requests,
    planted_resets,
    planted_retries,
    planted_timers,
    planted_transactions,
)

_SEEDS_MAX = 60

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Planted:
    """A mistake, the flush mode that its plans need (None: either), and an actor that they must have."""

    patch: Patch
    history: str
    flush: Literal["sync", "async"] | None = None
    actor: str | None = None


def plan_of(bug: Planted, seed: int) -> Plan:
    """The seed's plan, in the flush mode that the mistake needs."""
    plan = draw_plan(seed, seconds=40)
    if bug.flush is not None and plan.flush != bug.flush:
        plan = replace(plan, flush=bug.flush)
    if bug.actor is not None and bug.actor not in plan.actors:
        faults = [*plan.faults, *faults_of_actor(seed, bug.actor, plan.calm_ns)]
        faults.sort(key=lambda fault: fault.time_ns)
        plan = replace(plan, actors=(*plan.actors, bug.actor), faults=tuple(faults))
    return plan


def run_with(bug: Planted, seed: int) -> Result:
    """Runs a seed with the mistake in the code."""
    with pytest.MonkeyPatch.context() as patch:
        bug.patch(patch)
        return run_plan(plan_of(bug, seed))


def hunt(bug: Planted, seeds: Sequence[int]) -> Result | None:
    """The first seed's result that finds the mistake."""
    for seed in seeds:
        result = run_with(bug, seed)
        if result.violation is not None:
            return result
    return None


# ---- elections -----------------------------------------------------------------------------------------


def vote_not_persisted(patch: pytest.MonkeyPatch) -> None:
    original = HardStateFile.write

    def write(self: HardStateFile, state: HardState) -> None:
        original(self, replace(state, vote=""))

    patch.setattr(HardStateFile, "write", write)


def term_and_vote_not_saved(patch: pytest.MonkeyPatch) -> None:
    def save(self: Replica, effect: fx.SaveHardState) -> None:
        pass

    patch.setattr(Replica, "_on_save_hard_state", save)


def double_vote(patch: pytest.MonkeyPatch) -> None:
    original = Election._may_grant

    def may_grant(self: Election, request: VoteRequest, now: int) -> bool:
        vote, self._state.vote = self._state.vote, None
        try:
            return original(self, request, now)
        finally:
            self._state.vote = vote

    patch.setattr(Election, "_may_grant", may_grant)


def vote_without_looking_at_the_log(patch: pytest.MonkeyPatch) -> None:
    original = Election._may_grant

    def may_grant(self: Election, request: VoteRequest, now: int) -> bool:
        return original(self, replace(request, last_index=1 << 40, last_term=1 << 40), now)

    patch.setattr(Election, "_may_grant", may_grant)


def votes_counted_without_majority(patch: pytest.MonkeyPatch) -> None:
    def begin(self: Election, now: int, *, pre_vote: bool, leadership_transfer: bool) -> bool:
        original(self, now, pre_vote=pre_vote, leadership_transfer=leadership_transfer)
        return True

    original = Election._begin
    patch.setattr(Election, "_begin", begin)


def no_check_quorum(patch: pytest.MonkeyPatch) -> None:
    """Not a mistake by itself: a leader without a majority goes on, and what else is wrong with it shows."""
    original = Leader.tick
    patch.setattr(Leader, "tick", lambda self, now: original(self, now) or True)


def lost_noop(patch: pytest.MonkeyPatch) -> None:
    """A new leader appends nothing, and serves at once: it does not know what is committed."""
    original = Leader.__init__

    def init(self: Leader, state: NodeState, clip: Clip, now: int) -> None:
        original(self, state, clip, now)
        state.log.truncate(state.log.last_index - 1)
        state.log_effects_pending = False
        assert isinstance(state.effects.pop(), fx.AppendNoop)
        self._term_begin_index = 0

    def on_role_changed(self: Replica, effect: fx.RoleChanged) -> None:
        original_change(self, effect)
        if effect.role is fx.Role.LEADER:
            self._start_serving()

    original_change = Replica._on_role_changed
    patch.setattr(Leader, "__init__", init)
    patch.setattr(Replica, "_on_role_changed", on_role_changed)


def membership_change_before_commit(patch: pytest.MonkeyPatch) -> None:
    """A change is begun while the one before is not committed, or before anything of the term is."""
    original = Leader.propose_configuration

    def propose(self: Leader, change: Change, now: int) -> int:
        state = self._state
        index, begin = state.configurations.current_index, self._term_begin_index
        state.configurations.current_index, self._term_begin_index = -1, -1
        try:
            return original(self, change, now)
        finally:
            self._term_begin_index = begin
            if state.configurations.current_index == -1:
                state.configurations.current_index = index

    patch.setattr(Leader, "propose_configuration", propose)


def old_terms_are_heard(patch: pytest.MonkeyPatch) -> None:
    original = Raft._enter_term_of

    def enter_term_of(self: Raft, message: Message, now: int) -> bool:
        if isinstance(message, AppendRequest) and message.term < self.term and self._leader is None:
            return True
        return original(self, message, now)

    patch.setattr(Raft, "_enter_term_of", enter_term_of)


# ---- replication ---------------------------------------------------------------------------------------


def commit_by_counting_an_older_term(patch: pytest.MonkeyPatch) -> None:
    original = Leader.update_commit

    def update_commit(self: Leader) -> None:
        begin, self._term_begin_index = self._term_begin_index, 0
        try:
            original(self)
        finally:
            self._term_begin_index = begin

    patch.setattr(Leader, "update_commit", update_commit)


def commit_by_one_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("raft.leader.agreed", max)


def commit_beyond_what_is_agreed(patch: pytest.MonkeyPatch) -> None:
    original = Follower.append

    def append(self: Follower, request: AppendRequest) -> None:
        original(self, request)
        state = self._state
        index = min(request.commit_index, state.log.last_index)
        if index > state.commit_index:
            state.advance_commit(index)

    patch.setattr(Follower, "append", append)


def truncation_by_a_stale_append(patch: pytest.MonkeyPatch) -> None:
    original = Follower._accept

    def accept(self: Follower, request: AppendRequest, last_index: int) -> None:
        original(self, request, last_index)
        if self._state.commit_index <= last_index < self._state.log.last_index:
            self._state.truncate(last_index)

    patch.setattr(Follower, "_accept", accept)


def truncation_below_commit(patch: pytest.MonkeyPatch) -> None:
    original = Follower.append

    def append(self: Follower, request: AppendRequest) -> None:
        log = self._state.log
        if (
            request.spans
            and request.prev_index < self._state.commit_index
            and request.prev_index >= log.first_index
        ):
            self._state.effects.append(fx.TruncateLog(request.prev_index))
        original(self, request)

    patch.setattr(Follower, "append", append)


def appended_without_looking_at_the_previous_entry(patch: pytest.MonkeyPatch) -> None:
    def matches(self: LogTerms, index: int, term: int) -> bool:
        return index <= self.last_index

    patch.setattr(LogTerms, "matches", matches)


def conflicting_entries_kept(patch: pytest.MonkeyPatch) -> None:
    def first_difference(self: LogTerms, prev_index: int, spans: Any) -> int:
        return max(prev_index + 1, self.last_index + 1)

    patch.setattr(LogTerms, "first_difference", first_difference)


def follower_acknowledges_before_its_flush(patch: pytest.MonkeyPatch) -> None:
    original = Follower.acknowledge

    def acknowledge(self: Follower) -> None:
        persisted = self._state.persisted
        index, persisted.index = persisted.index, self._state.log.last_index
        try:
            self._answer_due = self._answer_due or self._agreed_index > self._acknowledged_index
            original(self)
        finally:
            persisted.index = index

    patch.setattr(Follower, "acknowledge", acknowledge)


def everybody_acknowledges_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    original = Replica.turn

    def turn(self: Replica, now_ns: int, wall_ms: int, send: Callable[[], None]) -> None:
        self.durability.sync = False
        original(self, now_ns, wall_ms, send)

    patch.setattr(Replica, "turn", turn)


def failed_flush_passed_over(patch: pytest.MonkeyPatch) -> None:
    original = FlushJob.run

    def run(self: FlushJob) -> None:
        try:
            original(self)
        except FlushError:
            pass

    patch.setattr(FlushJob, "run", run)


def peer_forgotten_after_its_link_broke(patch: pytest.MonkeyPatch) -> None:
    def peer_lost(self: Node, node: str) -> None:
        self._relayed.link_lost(node)
        self.replica.peer_disconnected(node, self.now_ns)
        self._forwarding.leader_lost(node)

    patch.setattr(Node, "peer_lost", peer_lost)


# ---- reads and answers ---------------------------------------------------------------------------------


def stale_read_from_a_deposed_leader(patch: pytest.MonkeyPatch) -> None:
    def handle_after_barrier(self: Node, connection: Any, command: Any, handler: Any) -> None:
        self._handle(connection, command, handler)

    patch.setattr(Node, "handle_after_barrier", handle_after_barrier)


def read_index_without_a_round(patch: pytest.MonkeyPatch) -> None:
    def read_index(self: Leader, token: object) -> None:
        self._state.effects.append(fx.ReadReady(token, self._state.commit_index))

    patch.setattr(Leader, "read_index", read_index)


def serving_before_the_noop_is_committed(patch: pytest.MonkeyPatch) -> None:
    def on_append_noop(self: Replica, effect: fx.AppendNoop) -> None:
        original(self, effect)
        self._start_serving()

    original = Replica._on_append_noop
    patch.setattr(Replica, "_on_append_noop", on_append_noop)


def acknowledged_before_commit(patch: pytest.MonkeyPatch) -> None:
    def check_may_append(self: Replica, count: int = 1) -> None:
        original_check(self, count)
        self._committed_index = self._log.last_index

    original_check = Replica.check_may_append
    patch.setattr(Replica, "check_may_append", check_may_append)


def arrivals_told_twice(patch: pytest.MonkeyPatch) -> None:
    original = Dispatcher.run

    def run(self: Dispatcher, *arguments: Any, **options: Any) -> Dispatch:
        done = original(self, *arguments, **options)
        again = [one._replace(first_offset=max(0, one.first_offset - 1)) for one in done.arrivals]
        return done._replace(arrivals=again)

    patch.setattr(Dispatcher, "run", run)


def queues_built_before_commit(patch: pytest.MonkeyPatch) -> None:
    original = Replica._apply_committed

    def turn(self: Replica, now_ns: int, wall_ms: int, send: Callable[[], None]) -> None:
        if self.applied_index < self._log.last_index:
            committed, self._committed_index = self._committed_index, self._log.last_index
            original(self)
            self._committed_index = max(committed, self._committed_index)
        original_turn(self, now_ns, wall_ms, send)

    original_turn = Replica.turn
    patch.setattr(Replica, "turn", turn)


def unit_at_the_wrong_place(patch: pytest.MonkeyPatch) -> None:
    original = ConsumeQueue.append

    def append(self: ConsumeQueue, offset: int, physical_offset: int, size: int, tags_code: int) -> bool:
        return original(self, offset, physical_offset + (48 if offset == 37 else 0), size, tags_code)

    patch.setattr(ConsumeQueue, "append", append)


def queue_ends_of_an_earlier_term(patch: pytest.MonkeyPatch) -> None:
    """A leader that leads again goes on where the queues ended when it led last."""
    kept: dict[Replica, dict[tuple[str, int], int]] = {}
    start_serving, stop_leading = Replica._start_serving, Replica._stop_leading

    def patched_start(self: Replica) -> None:
        start_serving(self)
        self._queue_ends = kept.get(self) or self._queue_ends

    def patched_stop(self: Replica) -> None:
        kept[self] = self._queue_ends or kept.get(self, {})
        stop_leading(self)

    patch.setattr(Replica, "_start_serving", patched_start)
    patch.setattr(Replica, "_stop_leading", patched_stop)


def repeated_by_the_broker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(broker.forwarding, "_ONCE", frozenset())


def repeated_by_the_client(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ConnectionFailed,
        "request_left",
        property(lambda self: False, lambda self, value: None),
        raising=False,
    )


def repeated_send_not_looked_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OnceSends, "_find", lambda self, decision: None)


def late_first_attempt_not_looked_up(patch: pytest.MonkeyPatch) -> None:
    decided = OnceSends.may_append

    def may_append(
        self: OnceSends, connection: Connection, command: RemotingCommand, header: SendHeader
    ) -> bool:
        return not header.again or decided(self, connection, command, header)

    patch.setattr(OnceSends, "may_append", may_append)


def repeated_send_looked_up_in_what_is_applied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "when_applied", lambda self, waiter: waiter.committed())


# ---- replicated state ----------------------------------------------------------------------------------


def offsets_acknowledged_from_memory(patch: pytest.MonkeyPatch) -> None:
    def commit(
        self: OffsetCommits, group: str, topic: str, queue_id: int, offset: int, done: Any, lost: Any
    ) -> None:
        self.stage(group, topic, queue_id, offset)
        done(None)

    patch.setattr(OffsetCommits, "commit", commit)


def offsets_applied_by_the_leader_only(patch: pytest.MonkeyPatch) -> None:
    original = Replica._apply_internal

    def apply_internal(self: Replica, index: int, record: memoryview) -> None:
        offsets = self.metadata.offsets
        if not self.serving:
            self.metadata.offsets = {}
        original(self, index, record)
        self.metadata.offsets = offsets

    patch.setattr(Replica, "_apply_internal", apply_internal)


def offsets_rewound(patch: pytest.MonkeyPatch) -> None:
    original = Metadata.apply

    def apply(self: Metadata, command: Any) -> Any:
        if isinstance(command, CommitOffsets):
            rewound = tuple((g, t, q, max(0, offset - 5)) for g, t, q, offset in command.offsets)
            command = CommitOffsets(rewound)
        return original(self, command)

    patch.setattr(Metadata, "apply", apply)


# ---- disk ----------------------------------------------------------------------------------------------


def crc_unchecked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log.entry_range, "crc32", lambda body: _Anything())


def torn_tail_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log.entry_recovery, "crc32", lambda body: _Anything(), raising=True)


class _Anything(int):
    """Equal to every checksum."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def truncation_not_flushed(patch: pytest.MonkeyPatch) -> None:
    original = EntryLog.truncate

    def truncate(self: EntryLog, last_index: int) -> None:
        mapped = self._tail.mapped
        flush = type(mapped).flush
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(type(mapped), "flush", lambda *_: None)
            original(self, last_index)
        assert type(mapped).flush is flush

    patch.setattr(EntryLog, "truncate", truncate)


def queue_damage_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumeQueue, "is_sound", lambda self, begin, end, checksum: True)


def index_files_not_complete(patch: pytest.MonkeyPatch) -> None:
    original = IndexFiles.put

    def put(self: IndexFiles, keys: Any, offsets: Any, times: Any, wall_ms: int) -> None:
        original(self, keys[:-1], offsets[:-1], times[:-1], wall_ms)

    patch.setattr(IndexFiles, "put", put)


def index_file_not_rebuilt(patch: pytest.MonkeyPatch) -> None:
    original = IndexFiles.recover

    def recover(self: IndexFiles, notes: list[IndexNote] | None, *, clean_stop: bool) -> int | None:
        original(self, notes, clean_stop=clean_stop)
        return None

    patch.setattr(IndexFiles, "recover", recover)


def never_flushed_at_the_interval(patch: pytest.MonkeyPatch) -> None:
    original = Durability.flush_job

    def flush_job(self: Durability, now_ns: int) -> FlushJob | None:
        return original(self, now_ns) if self.sync else None

    patch.setattr(Durability, "flush_job", flush_job)


def page_cache_taken_for_the_disk(patch: pytest.MonkeyPatch) -> None:
    def run(self: FlushJob) -> None:
        pass

    patch.setattr(FlushJob, "run", run)


def failed_flush_of_a_stop_passed_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EntryLog, "flush_is_out", False)


def orderly_stop_without_the_last_flush(patch: pytest.MonkeyPatch) -> None:
    def close(self: Store, commit_index: int) -> None:
        self._disk.remove(ABORT)
        self._disk.sync_directory(".")
        self.abandon()

    patch.setattr(Store, "flush", lambda self: None)
    patch.setattr(Store, "close", close)


def part_of_the_flush_left_out(patch: pytest.MonkeyPatch) -> None:
    original = EntryLog.flush_job

    def flush_job(self: EntryLog) -> FlushJob | None:
        job = original(self)
        if job is not None:
            job._ranges.pop(0)  # the beginning of what it says it covers is left out
        return job

    patch.setattr(EntryLog, "flush_job", flush_job)


PLANTED: dict[str, Planted] = {
    "vote not persisted": Planted(
        vote_not_persisted, "DLedger MemberState: a failed vote write is logged and passed over"
    ),
    "term and vote not saved": Planted(term_and_vote_not_saved, "dledger.md 9: term and vote without fsync"),
    "double vote": Planted(double_vote, "Raft 5.2: first come, first served"),
    "vote without looking at the log": Planted(vote_without_looking_at_the_log, "Raft 5.4.1"),
    "votes not counted": Planted(votes_counted_without_majority, "Raft 5.2: a majority of votes"),
    "old terms are heard": Planted(old_terms_are_heard, "Raft 5.1: stale terms are rejected"),
    "commit by counting an older term": Planted(commit_by_counting_an_older_term, "Raft 5.4.2; dledger.md 9"),
    "commit by one disk": Planted(commit_by_one_disk, "Raft 5.3: a majority"),
    "commit beyond what is agreed": Planted(
        commit_beyond_what_is_agreed, "Raft figure 2: min(leaderCommit, last new)"
    ),
    "truncation by a stale append": Planted(
        truncation_by_a_stale_append, "Raft 5.3: only conflicting entries go"
    ),
    "truncation below commit": Planted(truncation_below_commit, "DLedger #316"),
    "previous entry not looked at": Planted(
        appended_without_looking_at_the_previous_entry, "Raft 5.3: consistency check"
    ),
    "conflicting entries kept": Planted(
        conflicting_entries_kept, "Raft 5.3: conflicting entries are deleted"
    ),
    "follower acknowledges before its flush": Planted(
        follower_acknowledges_before_its_flush, "dledger.md 9: quorum of page caches", "sync"
    ),
    "acknowledged before the flush": Planted(
        everybody_acknowledges_before_the_flush, "storage.md 7: SYNC_FLUSH has no effect", "sync"
    ),
    "failed flush passed over": Planted(failed_flush_passed_over, "RocketMQ #5235", "sync"),
    "part of the flush left out": Planted(part_of_the_flush_left_out, "durable means all of it", "sync"),
    "async: never flushed at the interval": Planted(
        never_flushed_at_the_interval, "docs/configuration.md: flush_interval_ms", "async"
    ),
    "async: page cache taken for the disk": Planted(
        page_cache_taken_for_the_disk, "what is said to be flushed stays", "async"
    ),
    "peer forgotten after its link broke": Planted(
        peer_forgotten_after_its_link_broke, "found here, seeds 28 and 45"
    ),
    "stale read from a deposed leader": Planted(stale_read_from_a_deposed_leader, "dissertation 6.4"),
    "read index without a round": Planted(read_index_without_a_round, "dissertation 6.4"),
    "lost no-op": Planted(lost_noop, "Raft 5.4.2, 8: DLedger appends none at the start of a term"),
    "membership change before commit": Planted(
        membership_change_before_commit, "dissertation 4.1; the bug in single-server changes of 2015"
    ),
    "serving before the no-op is committed": Planted(
        serving_before_the_noop_is_committed, "dissertation 6.4, step 1"
    ),
    "acknowledged before commit": Planted(acknowledged_before_commit, "ack without a majority"),
    "queues built before commit": Planted(queues_built_before_commit, "dispatch up to the log's end"),
    "arrivals told twice": Planted(arrivals_told_twice, "exactly once and in order"),
    "unit at the wrong place": Planted(unit_at_the_wrong_place, "queue and log disagree"),
    "queue ends of an earlier term": Planted(
        queue_ends_of_an_earlier_term, "DLedger: offsets are the leader's"
    ),
    "send repeated by the broker": Planted(repeated_by_the_broker, "a forwarded send of unknown outcome"),
    "duplicate on retry where none is promised": Planted(
        repeated_by_the_client, "the client takes a lost answer for a refusal"
    ),
    "repeated send not looked up": Planted(repeated_send_not_looked_up, "at least once, as the reference"),
    "late first attempt not looked up": Planted(
        late_first_attempt_not_looked_up, "it comes after the repeated one was stored"
    ),
    "repeated send looked up in what is applied": Planted(
        repeated_send_looked_up_in_what_is_applied, "the first attempt is in the log, not yet committed"
    ),
    "transaction: decision under way not known": Planted(
        planted_transactions.decision_under_way_not_known, "repeated END_TRANSACTION", actor="transactor"
    ),
    "transaction: only operation messages decide": Planted(
        planted_transactions.only_operation_messages_decide,
        "behaviour.md 7: message and operation are two entries",
        actor="transactor",
    ),
    "transaction: half message in its own topic": Planted(
        planted_transactions.half_message_in_its_own_topic,
        "behaviour.md 7: nobody sees it before it is committed",
        actor="transactor",
    ),
    "transaction: questions not counted": Planted(
        planted_transactions.questions_not_counted,
        "a check count that a failover forgets",
        actor="transactor",
    ),
    "transaction: finished ones not in the snapshot": Planted(
        planted_transactions.finished_ones_not_in_the_snapshot,
        "the log's head is gone, its decisions must not be",
        actor="transactor",
    ),
    "transaction: given up stays open": Planted(
        planted_transactions.given_up_stays_open,
        "a late answer decides again",
        actor="transactor",
    ),
    "transaction: given up after two questions": Planted(
        planted_transactions.given_up_after_two_questions,
        "transactionCheckMax",
        actor="transactor",
    ),
    "transaction: asked about by their leader only": Planted(
        planted_transactions.asked_about_by_their_leader_only,
        "open ones in a broker's memory",
        actor="transactor",
    ),
    "transaction: operations owed forgotten": Planted(
        planted_transactions.operations_owed_forgotten,
        "what is owed in a broker's memory",
        actor="transactor",
    ),
    "transaction: acknowledged before it is committed": Planted(
        planted_transactions.acknowledged_before_it_is_committed,
        "an answer from the leader's log",
        actor="transactor",
    ),
    "transaction: unknown taken for rollback": Planted(
        planted_transactions.unknown_taken_for_rollback,
        "behaviour.md 7: the broker asks again",
        actor="transactor",
    ),
    "timer: nothing counted at takeover": Planted(
        planted_timers.nothing_counted_at_takeover, "timer progress saved now and then", actor="scheduler"
    ),
    "timer: announced taken for delivered": Planted(
        planted_timers.announced_taken_for_delivered, "progress saved before delivery", actor="scheduler"
    ),
    "timer: due by a clock ahead": Planted(
        planted_timers.due_by_a_clock_ahead, "precision of a second, downwards", actor="scheduler"
    ),
    "order: every lock is granted": Planted(
        planted_orders.every_lock_is_granted, "one holder a queue", actor="clerk"
    ),
    "order: locks forgotten with their leader": Planted(
        planted_orders.locks_forgotten_with_their_leader,
        "behaviour.md 8.5: locks in a broker's memory",
        actor="clerk",
    ),
    "order: locks judged by the wall clock": Planted(
        planted_orders.locks_judged_by_the_wall_clock, "found here", actor="clerk"
    ),
    "order: lock counted on for ever": Planted(
        planted_orders.lock_counted_on_for_ever, "a holder that cannot renew its lock", actor="clerk"
    ),
    "order: given back before the handler has ended": Planted(
        planted_orders.given_back_before_the_handler_has_ended,
        "a queue that moves while its message is in hand",
        actor="clerk",
    ),
    "order: position read before the lock": Planted(
        planted_orders.position_read_before_the_lock,
        "where another member was, not where it is",
        actor="clerk",
    ),
    "order: done with before it is handled": Planted(
        planted_orders.finished_before_it_is_handled, "at most once", actor="clerk"
    ),
    "filter: unknown negated is true": Planted(
        planted_orders.unknown_negated_is_true, "three-valued logic of SQL92", actor="picker"
    ),
    "retry: delay dropped": Planted(
        planted_retries.delay_dropped, "what is given back is in the retry topic at once", actor="courier"
    ),
    "retry: delays do not grow": Planted(
        planted_retries.delays_that_do_not_grow, "behaviour.md 8.4: level 3 + retries", actor="courier"
    ),
    "retry: due at once": Planted(planted_retries.due_at_once, "a level without its time", actor="courier"),
    "retry: held up by a clock that was ahead": Planted(
        planted_retries.held_up_by_a_clock_that_was_ahead, "found here", actor="courier"
    ),
    "retry: not counted": Planted(
        planted_retries.retries_not_counted, "a message that comes for ever", actor="courier"
    ),
    "retry: without end": Planted(
        planted_retries.retries_without_end, "one more than the group allows", actor="courier"
    ),
    "retry: the last one dropped": Planted(
        planted_retries.last_retry_dropped, "no dead letter", actor="courier"
    ),
    "retry: confirmed before it is committed": Planted(
        planted_retries.confirmed_before_it_is_committed, "an answer from the leader's log", actor="courier"
    ),
    "retry: flag of a compressed body lost": Planted(
        planted_retries.body_lost, "a body that nobody can read", actor="courier"
    ),
    "retry: property lost": Planted(
        planted_retries.property_lost, "keys that do not come again", actor="courier"
    ),
    "retry: repeated by the broker": Planted(
        planted_retries.repeated_by_the_broker, "a forwarded request of unknown outcome", actor="courier"
    ),
    "retry: done with before it is confirmed": Planted(
        planted_retries.done_with_before_it_is_confirmed, "a failed request to take it back", actor="courier"
    ),
    "retry: nothing counted at takeover": Planted(
        planted_retries.nothing_counted_at_takeover,
        "behaviour.md 6: progress saved now and then",
        actor="courier",
    ),
    "retry: announced taken for delivered": Planted(
        planted_retries.announced_taken_for_delivered, "progress saved before delivery", actor="courier"
    ),
    "pull: older position stored again": Planted(
        planted_reads.older_position_stored_again, "a report that is repeated late", actor="puller"
    ),
    "pull: fetched counts as polled": Planted(
        planted_reads.fetched_counts_as_polled, "at most once instead of at least once", actor="puller"
    ),
    "pull: fetched stays after a seek": Planted(
        planted_reads.fetched_stays_after_a_seek, "what was read ahead is another place's", actor="puller"
    ),
    "pull: forward of another term acted on": Planted(
        planted_reads.forward_of_another_term_acted_on, "found here, seeds 108 and 306", actor="puller"
    ),
    "broadcast: positions at the brokers": Planted(
        planted_reads.broadcast_positions_at_the_brokers,
        "behaviour.md 8.3: they live in the client",
        actor="receiver",
    ),
    "broadcast: positions not read": Planted(
        planted_reads.broadcast_positions_not_read, "a member that begins anew each time", actor="receiver"
    ),
    "broadcast: position behind what is fetched": Planted(
        planted_reads.broadcast_position_behind_what_is_fetched,
        "a crash leaves out what was fetched",
        actor="receiver",
    ),
    "broadcast: members told to rebalance": Planted(
        planted_reads.broadcast_members_told_to_rebalance,
        "behaviour.md 8.1: not for broadcast groups",
        actor="receiver",
    ),
    "search: passes the first of a time": Planted(
        planted_reads.search_passes_the_first_of_a_time, "off by one at the boundary", actor="inquirer"
    ),
    "search: upper before the last of a time": Planted(
        planted_reads.search_upper_before_the_last_of_a_time, "off by one at the boundary", actor="inquirer"
    ),
    "begin of another queue": Planted(
        planted_reads.begin_of_another_queue, "queues lose their heads one by one", actor="inquirer"
    ),
    "begin remembered": Planted(planted_reads.begin_remembered, "stale after retention", actor="inquirer"),
    "earliest time of the end": Planted(
        planted_reads.earliest_time_of_the_end, "another message's time", actor="inquirer"
    ),
    "index: only the first key": Planted(
        planted_reads.only_the_first_key_indexed, "KEYS holds several", actor="inquirer"
    ),
    "index: second file not looked at": Planted(
        planted_reads.second_index_file_not_looked_at, "the newest file only", actor="inquirer"
    ),
    "request: answer pushed to another client": Planted(
        planted_requests.pushed_to_another_client, "whoever asked", actor="correspondent"
    ),
    "request: answer pushed under another name": Planted(
        planted_requests.pushed_under_another_name, "an answer without its question", actor="correspondent"
    ),
    "request: confirmed before it is pushed": Planted(
        planted_requests.confirmed_before_it_is_pushed,
        "behaviour.md 9: the replier hears whether it arrived",
        actor="correspondent",
    ),
    "request: answer repeated by the broker": Planted(
        planted_requests.repeated_by_the_broker,
        "a forwarded request of unknown outcome",
        actor="correspondent",
    ),
    "request: answer given to whoever waits": Planted(
        planted_requests.given_to_whoever_waits, "one waiter a client", actor="correspondent"
    ),
    "request: waited for without a limit": Planted(
        planted_requests.waited_for_without_a_limit, "a call that never ends", actor="correspondent"
    ),
    "one way: sent twice": Planted(
        planted_one_way.sent_twice, "nothing tells that it arrived", actor="poster"
    ),
    "outbox: failures forgotten": Planted(
        planted_one_way.failures_forgotten, "a block left as if all were stored", actor="poster"
    ),
    "outbox: last come, first sent": Planted(
        planted_one_way.last_come_first_sent, "a queue that is a pile", actor="poster"
    ),
    "reset: forgotten by the next leader": Planted(
        planted_resets.forgotten_by_the_next_leader, "orders in the memory of one broker", actor="resetter"
    ),
    "reset: old report counts": Planted(
        planted_resets.old_report_counts, "a late report takes the group back", actor="resetter"
    ),
    "reset: kept after it was followed": Planted(
        planted_resets.kept_after_it_was_followed, "members are told for ever", actor="resetter"
    ),
    "reset: done with when it is told": Planted(
        planted_resets.done_with_when_it_is_told, "5.x: forgotten with the first answer", actor="resetter"
    ),
    "reset: applied by the leader only": Planted(
        planted_resets.applied_by_the_leader_only, "metadata outside the log", actor="resetter"
    ),
    "reset: acknowledged before it is committed": Planted(
        planted_resets.acknowledged_before_it_is_committed,
        "an answer from the leader's log",
        actor="resetter",
    ),
    "reset: repeated by the broker": Planted(
        planted_resets.repeated_by_the_broker, "a forwarded request of unknown outcome", actor="resetter"
    ),
    "reset: force ignored": Planted(
        planted_resets.force_ignored, "nobody is ever sent forward", actor="resetter"
    ),
    "reset: forward without force": Planted(
        planted_resets.forward_without_force, "past what was not read", actor="resetter"
    ),
    "reset: of one queue for all": Planted(
        planted_resets.of_one_queue_for_all, "4.9 knows no queue id here", actor="resetter"
    ),
    "reset: what was fetched comes all the same": Planted(
        planted_resets.fetched_comes_all_the_same, "behaviour.md 5.2: it is dropped", actor="resetter"
    ),
    "reset: failed report repeated": Planted(
        planted_resets.failed_report_repeated, "found here", actor="resetter"
    ),
    "names: changed before it is saved": Planted(
        planted_name_servers.changed_before_it_is_saved, "what was refused is in force", actor="configurer"
    ),
    "names: deleted in memory only": Planted(
        planted_name_servers.deleted_in_memory_only, "a restart brings it back", actor="configurer"
    ),
    "names: only the changed namespace saved": Planted(
        planted_name_servers.only_the_changed_namespace_saved,
        "a restart forgets a part",
        actor="configurer",
    ),
    "names: wiped until the next registration": Planted(
        planted_name_servers.wiped_until_the_next_registration,
        "behaviour.md 1: until the next changed one",
        actor="configurer",
    ),
    "names: wiped for good": Planted(
        planted_name_servers.wiped_for_good, "behaviour.md 1: until the next changed one", actor="configurer"
    ),
    "names: wiped only at registered topics": Planted(
        planted_name_servers.wiped_only_at_registered_topics,
        "behaviour.md 1: on all topics of the broker",
        actor="configurer",
    ),
    "names: deleted topics stay away": Planted(
        planted_name_servers.topics_deleted_for_good, "4.9: until something changes", actor="configurer"
    ),
    "names: wiped queues are written": Planted(
        planted_name_servers.wiped_queues_are_written, "remoting.md 6: writable perm", actor="configurer"
    ),
    "names: wiped queues are not read": Planted(
        planted_name_servers.wiped_queues_are_not_read, "remoting.md 6: readable perm", actor="configurer"
    ),
    "names: wiped route is kept": Planted(
        planted_name_servers.wiped_route_is_kept, "found here", actor="configurer"
    ),
    "names: waits until it may write": Planted(
        planted_name_servers.waits_until_it_may_write, "a send that never ends", actor="configurer"
    ),
    "names: answers remembered": Planted(
        planted_name_servers.remembered_answers, "a value that was once there", actor="configurer"
    ),
    "offset rewind after failover": Planted(
        offsets_acknowledged_from_memory, "RocketMQ #3210, #1934: offsets acknowledged from memory"
    ),
    "offsets applied by the leader only": Planted(
        offsets_applied_by_the_leader_only, "metadata outside the log"
    ),
    "offsets rewound": Planted(offsets_rewound, "what is stored is not what was asked"),
    "CRC unchecked": Planted(crc_unchecked, "storage.md 3.4: a follower takes whatever bytes come"),
    "torn tail accepted": Planted(torn_tail_accepted, "storage.md 3.4: body bytes are not checked", "sync"),
    "truncation not flushed": Planted(
        truncation_not_flushed, "old entries come back behind new ones", "sync"
    ),
    "queue damage not looked for": Planted(queue_damage_not_looked_for, "ConsumeQueue trusted after a crash"),
    "index file not rebuilt": Planted(index_file_not_rebuilt, "what a crash left is taken for whole"),
    "failed flush of a stop passed over": Planted(
        failed_flush_of_a_stop_passed_over, "found here, by writing down what the shell does", "sync"
    ),
    "orderly stop without the last flush": Planted(
        orderly_stop_without_the_last_flush, "the file abort goes before everything is flushed", "async"
    ),
    "index files not complete": Planted(index_files_not_complete, "a key of each batch is left out"),
}


def main() -> None:
    """Hunts the named mistakes, or all, and prints the table's rows."""
    from tests.simulation.aimed_plans import AIMED, AIMED_SEEDS, hunt_aimed

    for name in sys.argv[1:] or list(PLANTED):
        drawn = hunt(PLANTED[name], range(_SEEDS_MAX))
        aimed = hunt_aimed(name) if name in AIMED else None
        result = drawn or aimed
        cells = (
            name,
            PLANTED[name].history,
            _seeds(drawn, _SEEDS_MAX),
            _seeds(aimed, AIMED_SEEDS) if name in AIMED else "",
            result.violation.invariant if result is not None and result.violation is not None else "",
        )
        print(f"| {' | '.join(cells)} |", flush=True)


def _seeds(result: Result | None, seeds_max: int) -> str:
    return f"not in {seeds_max}" if result is None else str(result.plan.seed + 1)


if __name__ == "__main__":
    main()

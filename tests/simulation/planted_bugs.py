"""Mistakes known from the history of Raft, DLedger and brokers, each put into the real code by a patch.

The patches stand by subject in the modules beside this one. `PLANTED` maps a name to the patch. `hunt` looks for the
first seed that finds it; run this file to fill the table of docs/simulation.md:

    python -m tests.simulation.planted_bugs [NAME ...]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pytest

from simulation.plans.draw import draw_plan, faults_of_actor
from simulation.plans.plan import Plan
from simulation.world.running import Result, run_plan
from tests.simulation import (
    planted_answers,
    planted_disks,
    planted_elections,
    planted_name_servers,
    planted_offsets,
    planted_one_way,
    planted_orders,
    planted_reads,
    planted_replication,
    planted_requests,
    planted_resets,
    planted_retries,
    planted_settings,
    planted_timers,
    planted_transactions,
)

_SEEDS_MAX = 60
_MISFITS = ("TypeError:", "AttributeError:", "NameError:", "ImportError:")
"""Errors of a patch whose function, or what it uses, has changed."""

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
        return run_planted(plan_of(bug, seed))


def run_planted(plan: Plan) -> Result:
    """Runs a plan while a mistake is in the code.

    Raises AssertionError if the run failed because the patch does not fit the code that it patches: no mistake was
    planted then, and the failure would be taken for its finding.
    """
    result = run_plan(plan)
    if result.violation is not None:
        failure = result.violation.detail.rstrip().rpartition("\n")[2]
        assert not failure.startswith(_MISFITS), f"the patch does not fit: {failure}"
    return result


def hunt(bug: Planted, seeds: Sequence[int]) -> Result | None:
    """The first seed's result that finds the mistake."""
    for seed in seeds:
        result = run_with(bug, seed)
        if result.violation is not None:
            return result
    return None


PLANTED: dict[str, Planted] = {
    "release: format raised when a majority reads it": Planted(
        planted_elections.format_raised_for_a_majority,
        "a feature gate that looks at the nodes it hears from (CockroachDB, etcd's cluster version: all members)",
    ),
    "vote not persisted": Planted(
        planted_elections.vote_not_persisted,
        "DLedger MemberState: a failed vote write is logged and passed over",
    ),
    "term and vote not saved": Planted(
        planted_elections.term_and_vote_not_saved, "DLedger: term and vote without fsync"
    ),
    "double vote": Planted(planted_elections.double_vote, "Raft 5.2: first come, first served"),
    "vote without looking at the log": Planted(
        planted_elections.vote_without_looking_at_the_log, "Raft 5.4.1"
    ),
    "votes not counted": Planted(
        planted_elections.votes_counted_without_majority, "Raft 5.2: a majority of votes"
    ),
    "old terms are heard": Planted(
        planted_elections.old_terms_are_heard, "Raft 5.1: stale terms are rejected"
    ),
    "commit by counting an older term": Planted(
        planted_replication.commit_by_counting_an_older_term, "Raft 5.4.2; DLedger"
    ),
    "commit by one disk": Planted(planted_replication.commit_by_one_disk, "Raft 5.3: a majority"),
    "commit beyond what is agreed": Planted(
        planted_replication.commit_beyond_what_is_agreed, "Raft figure 2: min(leaderCommit, last new)"
    ),
    "truncation by a stale append": Planted(
        planted_replication.truncation_by_a_stale_append, "Raft 5.3: only conflicting entries go"
    ),
    "truncation below commit": Planted(planted_replication.truncation_below_commit, "DLedger #316"),
    "previous entry not looked at": Planted(
        planted_replication.appended_without_looking_at_the_previous_entry, "Raft 5.3: consistency check"
    ),
    "conflicting entries kept": Planted(
        planted_replication.conflicting_entries_kept, "Raft 5.3: conflicting entries are deleted"
    ),
    "follower acknowledges before its flush": Planted(
        planted_replication.follower_acknowledges_before_its_flush,
        "DLedger: quorum of page caches",
        "sync",
    ),
    "acknowledged before the flush": Planted(
        planted_replication.everybody_acknowledges_before_the_flush,
        "RocketMQ: SYNC_FLUSH has no effect",
        "sync",
    ),
    "failed flush passed over": Planted(
        planted_replication.failed_flush_passed_over, "RocketMQ #5235", "sync"
    ),
    "part of the flush left out": Planted(
        planted_disks.part_of_the_flush_left_out, "durable means all of it", "sync"
    ),
    "async: never flushed at the interval": Planted(
        planted_disks.never_flushed_at_the_interval, "docs/configuration.md: flush_interval_ms", "async"
    ),
    "async: page cache taken for the disk": Planted(
        planted_disks.page_cache_taken_for_the_disk, "what is said to be flushed stays", "async"
    ),
    "peer forgotten after its link broke": Planted(
        planted_replication.peer_forgotten_after_its_link_broke, "found here, seeds 28 and 45"
    ),
    "stale read from a deposed leader": Planted(
        planted_answers.stale_read_from_a_deposed_leader, "dissertation 6.4"
    ),
    "read index without a round": Planted(planted_answers.read_index_without_a_round, "dissertation 6.4"),
    "lost no-op": Planted(
        planted_elections.lost_noop, "Raft 5.4.2, 8: DLedger appends none at the start of a term"
    ),
    "membership change before commit": Planted(
        planted_elections.membership_change_before_commit,
        "dissertation 4.1; the bug in single-server changes of 2015",
    ),
    "serving before the no-op is committed": Planted(
        planted_answers.serving_before_the_noop_is_committed, "dissertation 6.4, step 1"
    ),
    "acknowledged before commit": Planted(
        planted_answers.acknowledged_before_commit, "ack without a majority"
    ),
    "queues built before commit": Planted(
        planted_answers.queues_built_before_commit, "dispatch up to the log's end"
    ),
    "arrivals told twice": Planted(planted_answers.arrivals_told_twice, "exactly once and in order"),
    "unit at the wrong place": Planted(planted_answers.unit_at_the_wrong_place, "queue and log disagree"),
    "queue ends of an earlier term": Planted(
        planted_answers.queue_ends_of_an_earlier_term, "DLedger: offsets are the leader's"
    ),
    "send repeated by the broker": Planted(
        planted_answers.repeated_by_the_broker, "a forwarded send of unknown outcome"
    ),
    "duplicate on retry where none is promised": Planted(
        planted_answers.repeated_by_the_client, "the client takes a lost answer for a refusal"
    ),
    "repeated send not looked up": Planted(
        planted_answers.repeated_send_not_looked_up, "at least once, as the reference"
    ),
    "late first attempt not looked up": Planted(
        planted_answers.late_first_attempt_not_looked_up, "it comes after the repeated one was stored"
    ),
    "repeated send looked up in what is applied": Planted(
        planted_answers.repeated_send_looked_up_in_what_is_applied,
        "the first attempt is in the log, not yet committed",
    ),
    "transaction: decision under way not known": Planted(
        planted_transactions.decision_under_way_not_known, "repeated END_TRANSACTION", actor="transactor"
    ),
    "transaction: only operation messages decide": Planted(
        planted_transactions.only_operation_messages_decide,
        "TransactionalMessageServiceImpl: message and operation are two entries",
        actor="transactor",
    ),
    "transaction: half message in its own topic": Planted(
        planted_transactions.half_message_in_its_own_topic,
        "TransactionalMessageServiceImpl: nobody sees it before it is committed",
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
        "TransactionalMessageServiceImpl: the broker asks again",
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
    "timer: judged by the leader's wall clock": Planted(
        planted_timers.judged_by_the_leaders_wall_clock,
        "found here: a clock two hours ahead",
        actor="scheduler",
    ),
    "order: every lock is granted": Planted(
        planted_orders.every_lock_is_granted, "one holder a queue", actor="clerk"
    ),
    "order: locks forgotten with their leader": Planted(
        planted_orders.locks_forgotten_with_their_leader,
        "RebalanceLockManager: locks in a broker's memory",
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
        planted_retries.delays_that_do_not_grow,
        "AbstractSendMessageProcessor: level 3 + retries",
        actor="courier",
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
        "ScheduleMessageService: progress saved now and then",
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
        "LocalFileOffsetStore: they live in the client",
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
        "ConsumerManager: not for broadcast groups",
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
        "ReplyMessageProcessor: the replier hears whether it arrived",
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
        planted_resets.fetched_comes_all_the_same, "PullMessageProcessor: it is dropped", actor="resetter"
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
        "RouteInfoManager: until the next changed one",
        actor="configurer",
    ),
    "names: wiped for good": Planted(
        planted_name_servers.wiped_for_good,
        "RouteInfoManager: until the next changed one",
        actor="configurer",
    ),
    "names: wiped only at registered topics": Planted(
        planted_name_servers.wiped_only_at_registered_topics,
        "RouteInfoManager: on all topics of the broker",
        actor="configurer",
    ),
    "names: deleted topics stay away": Planted(
        planted_name_servers.topics_deleted_for_good, "4.9: until something changes", actor="configurer"
    ),
    "names: wiped queues are written": Planted(
        planted_name_servers.wiped_queues_are_written, "QueueData: writable perm", actor="configurer"
    ),
    "names: wiped queues are not read": Planted(
        planted_name_servers.wiped_queues_are_not_read, "QueueData: readable perm", actor="configurer"
    ),
    "names: wiped route is kept": Planted(
        planted_name_servers.wiped_route_is_kept, "found here", actor="configurer"
    ),
    "names: waits until it may write": Planted(
        planted_name_servers.waits_until_it_may_write, "a send that never ends", actor="configurer"
    ),
    "names: strangers are let in": Planted(
        planted_name_servers.strangers_are_let_in, "RocketMQ's name servers", actor="configurer"
    ),
    "names: answers remembered": Planted(
        planted_name_servers.remembered_answers, "a value that was once there", actor="configurer"
    ),
    "settings: acknowledged before it is committed": Planted(
        planted_settings.acknowledged_before_it_is_committed,
        "an answer from the leader's log",
        actor="warden",
    ),
    "settings: applied by the leader only": Planted(
        planted_settings.applied_by_the_leader_only, "metadata outside the log", actor="warden"
    ),
    "settings: asked without a round": Planted(
        planted_settings.asked_without_a_round, "what one node knows", actor="warden"
    ),
    "settings: group's switch not looked at": Planted(
        planted_settings.switch_of_the_group_not_looked_at,
        "PullMessageProcessor: consumeEnable",
        actor="warden",
    ),
    "settings: topic's permission not looked at": Planted(
        planted_settings.permission_of_the_topic_not_looked_at,
        "PullMessageProcessor: readable",
        actor="warden",
    ),
    "settings: refused for good": Planted(
        planted_settings.refused_for_good, "a switch that only switches off", actor="warden"
    ),
    "settings: repeated by the broker": Planted(
        planted_settings.repeated_by_the_broker, "a forwarded request of unknown outcome", actor="warden"
    ),
    "offset rewind after failover": Planted(
        planted_offsets.offsets_acknowledged_from_memory,
        "RocketMQ #3210, #1934: offsets acknowledged from memory",
    ),
    "offsets applied by the leader only": Planted(
        planted_offsets.offsets_applied_by_the_leader_only, "metadata outside the log"
    ),
    "offsets rewound": Planted(planted_offsets.offsets_rewound, "what is stored is not what was asked"),
    "CRC unchecked": Planted(
        planted_disks.crc_unchecked, "DLedgerMmapFileStore: a follower takes whatever bytes come"
    ),
    "torn tail accepted": Planted(
        planted_disks.torn_tail_accepted, "DLedgerMmapFileStore: body bytes are not checked", "sync"
    ),
    "truncation not flushed": Planted(
        planted_disks.truncation_not_flushed, "old entries come back behind new ones", "sync"
    ),
    "queue damage not looked for": Planted(
        planted_disks.queue_damage_not_looked_for, "ConsumeQueue trusted after a crash"
    ),
    "index file not rebuilt": Planted(
        planted_disks.index_file_not_rebuilt, "what a crash left is taken for whole"
    ),
    "failed flush of a stop passed over": Planted(
        planted_disks.failed_flush_of_a_stop_passed_over,
        "found here, by writing down what the shell does",
        "sync",
    ),
    "orderly stop without the last flush": Planted(
        planted_disks.orderly_stop_without_the_last_flush,
        "the file abort goes before everything is flushed",
        "async",
    ),
    "index files not complete": Planted(
        planted_disks.index_files_not_complete, "a key of each batch is left out"
    ),
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

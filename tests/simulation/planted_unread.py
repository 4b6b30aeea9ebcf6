"""A third ten of other systems' trackers, fixed before anybody of those who chose them had read a judge, a workload or
a plan.

docs/planted-mistakes.md tells of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from broker.delayed.delays import DelayService
from broker.reading.held_pulls import HeldPull, HeldPulls
from broker.reading.queue_reads import PullResult
from broker.remoting.codes import ResponseCode
from broker.remoting.pieces import Pieces
from broker.replica.proposals import NewMessage
from broker.replica.start import OnDisk, ReplicaStart
from broker.replica.start import start_from_disk as original_start
from broker.replica.upkeep import Upkeep
from broker.requests.errors import OverloadedError
from broker.transactions.checks import TransactionChecks
from log.entries import cuts
from log.entries.expired_files import DataFile, HeadLook, files_to_delete
from log.errors import DamagedLogError, DiskFullError, EntryTooLargeError, OutOfRangeError, RecordError
from log.formats.layout import HEADER_BYTES
from log.formats.record import Record
from log.queues.timer_index import Step, _Run
from log.store import Store
from raft.election import Election
from raft.leader import Leader
from raft.messages import VoteRequest
from raft.progress import Progress
from tests.simulation.planting import planted


@planted("a start keeps only what it knows to be committed", "KAFKA-1211, KIP-101", part="consensus")
def start_keeps_only_what_it_knows_committed(patch: pytest.MonkeyPatch) -> None:
    """And gives up what else it has acknowledged, as the others have it."""

    def start_from_disk(node_id: str, found: OnDisk) -> ReplicaStart:
        start, log = original_start(node_id, found), found.store.log
        index, newest = start.commit_index, start.configurations[-1][1]
        if newest.voters == (node_id,) or index == log.last_index:
            return start
        cuts.truncate(log, index)
        known = [known for known in start.configurations if known[0] <= index]
        return start._replace(configurations=known or [(-1, newest)])

    patch.setattr("broker.replica.replica.start_from_disk", start_from_disk)


@planted(
    "who has voted refuses other PreVotes until the term ends",
    "openraft #1796, etcd #10355",
    part="consensus",
)
def who_has_voted_refuses_other_prevotes(patch: pytest.MonkeyPatch) -> None:
    """However long the candidate that has its vote is silent."""
    original = Election._prefers_another

    def prefers_another(self: Election, request: VoteRequest, now: int) -> bool:
        has_voted = self._voted_at is not None and self._state.vote != request.source
        return has_voted or original(self, request, now)

    patch.setattr(Election, "_prefers_another", prefers_another)


@planted(
    "a preferred leader without room is asked to lead",
    "tarantool/cartridge #2234, dledger #39",
    part="consensus",
)
def preferred_leader_without_room_is_asked(patch: pytest.MonkeyPatch) -> None:
    """It has just handed over for that, and does so again."""
    original = Leader._hand_over_to_preferred

    def hand_over_to_preferred(self: Leader, now: int) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Progress, "lacks_room", False)
            original(self, now)

    patch.setattr(Leader, "_hand_over_to_preferred", hand_over_to_preferred)


@planted("a snapshot is named by where its writing ends", "etcd #13766", part="storage")
def snapshot_is_named_by_where_its_writing_ends(patch: pytest.MonkeyPatch) -> None:
    """A start passes over the commands that were applied while it was written."""
    original = Upkeep.keep_snapshot

    def keep_snapshot(self: Upkeep, _: int, state: Pieces, took_ns: int) -> None:
        original(self, self._store.dispatched_index, state, took_ns)

    patch.setattr(Upkeep, "keep_snapshot", keep_snapshot)


@planted(
    "timers of one time are one",
    "kafka-connect-jdbc #1093: rows of the timestamp at which a batch ended",
    part="storage",
)
def timers_of_one_time_are_one(patch: pytest.MonkeyPatch) -> None:
    """A batch that ends among messages of one time passes over the others."""

    def after(self: _Run, step: Step) -> int:
        return int(np.searchsorted(self.dues, step.due_ms, "right"))

    patch.setattr(_Run, "after", after)


@planted("a file is as old as its first message", "KIP-33, KAFKA-3163", part="storage")
def file_is_as_old_as_its_first_message(patch: pytest.MonkeyPatch) -> None:
    original = Store._files_to_delete

    def files_by_first_message(self: Store, look: HeadLook) -> list[DataFile]:
        def stored_ms(begin: int) -> int:
            try:
                return self.store_time_of(begin + HEADER_BYTES)
            except (RecordError, OutOfRangeError, DamagedLogError):
                return look.now_ms

        def choose(files: Sequence[DataFile], *arguments: Any, **options: Any) -> int:
            begins = [self.log.first_position, *(file.next_position for file in files)]
            older = [
                replace(file, newest_ms=stored_ms(begin)) for begin, file in zip(begins, files, strict=False)
            ]
            return files_to_delete(older, *arguments, **options)

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr("log.store.files_to_delete", choose)
            return original(self, look)

    patch.setattr(Store, "_files_to_delete", files_by_first_message)


@planted("a delayed message that is refused is passed over", "RocketMQ #9249, #10117", part="broker")
def delayed_message_that_is_refused_is_passed_over(patch: pytest.MonkeyPatch) -> None:
    """The one at which a batch breaks off for want of room."""
    original = DelayService._deliver

    def deliver(self: DelayService, level: int, offset: int, deliveries: list[NewMessage]) -> None:
        try:
            original(self, level, offset, deliveries)
        except (OverloadedError, DiskFullError) as error:
            # It has broken off, unless nothing was announced. Behind one that is too long it goes on rightly.
            if level in self._unsettled and not isinstance(error.__context__, EntryTooLargeError):
                self._unsettled[level] = self._next[level] = self._next[level] + 1
            raise

    patch.setattr(DelayService, "_deliver", deliver)


@planted("a filtered pull rests in the middle of its queue", "RocketMQ #8472", part="broker")
def filtered_pull_rests_in_the_middle(patch: pytest.MonkeyPatch) -> None:
    """It waits on behind what one look goes through, though more is there."""
    original, read_again = HeldPulls._answer_or_wait_on, HeldPulls._read_again

    def read_to_the_end(self: HeldPulls, held: HeldPull) -> PullResult | None:
        result = read_again(self, held)
        if result is not None and result.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            result.max_offset = result.next_offset
        return result

    def answer_or_wait_on(self: HeldPulls, held: HeldPull) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(HeldPulls, "_read_again", read_to_the_end)
            original(self, held)

    patch.setattr(HeldPulls, "_answer_or_wait_on", answer_or_wait_on)


@planted("transaction: questions that nobody hears are counted", "RocketMQ #615, #8311", part="broker")
def questions_that_nobody_hears_are_counted(patch: pytest.MonkeyPatch) -> None:
    """Transactions of an application that is down are given up unasked."""
    original = TransactionChecks._ask_or_give_up

    def ask_or_give_up(self: TransactionChecks, half_offset: int) -> Record | None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(TransactionChecks, "producer_of", lambda *_: True)
            return original(self, half_offset)

    patch.setattr(TransactionChecks, "_ask_or_give_up", ask_or_give_up)


@planted("a waiting pull keeps its subscription", "ROCKETMQ-175; PullRequestHoldService", part="broker")
def waiting_pull_keeps_its_subscription(patch: pytest.MonkeyPatch) -> None:
    """Whatever its consumer group subscribes to since it came."""
    original = HeldPulls._read_again

    def read_again(self: HeldPulls, held: HeldPull) -> PullResult | None:
        held.subscribed = self._checks.subscribed(held.header)
        return original(self, held)

    patch.setattr(HeldPulls, "_filter_changed", lambda *_: None)
    patch.setattr(HeldPulls, "_read_again", read_again)

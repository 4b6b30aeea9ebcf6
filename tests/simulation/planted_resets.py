"""Mistakes about groups that are sent elsewhere, each put into the real code by a patch; `planted_bugs` lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

import broker.node.request_states as request_states
import broker.offsets.resets_processor as resets_module
from broker.client.consuming.intake import QueueReader
from broker.client.consuming.rebalance import Assignment
from broker.client.message import MessageQueue
from broker.offsets.commits import OffsetCommits, StoredOffset
from broker.offsets.resets import OffsetResets
from broker.offsets.resets_processor import ResetsProcessor
from broker.reading.held_pulls import HeldPulls
from broker.remoting.admin_headers import ResetOffsetHeader
from broker.remoting.bodies import TopicConfig
from broker.remoting.codes import RequestCode
from broker.replica.committed_entries import CommittedEntries
from broker.state.commands import Command, CommitOffsets
from broker.state.metadata import Metadata
from broker.state.parked_offsets import ParkedOffsets
from tests.simulation.planting import planted


@planted("reset: forgotten by the next leader", "orders in the memory of one broker", actor="resetter")
def forgotten_by_the_next_leader(patch: pytest.MonkeyPatch) -> None:
    """An order is in the memory of one broker, as with 5.x."""
    original = OffsetResets._role_changed

    def role_changed(self: OffsetResets) -> None:
        original(self)
        self._leadership.metadata.parked = ParkedOffsets()

    patch.setattr(OffsetResets, "_role_changed", role_changed)


@planted("reset: old report counts", "a late report takes the group back", actor="resetter")
def old_report_counts(patch: pytest.MonkeyPatch) -> None:
    """A report counts while an order stands and takes the group back, as a client's late report does with 4.9."""
    original = Metadata.apply

    def apply(self: Metadata, command: Command) -> object:
        parked = self.parked
        if isinstance(command, CommitOffsets):
            self.parked = ParkedOffsets()
        try:
            return original(self, command)
        finally:
            self.parked = parked

    patch.setattr(Metadata, "apply", apply)


@planted("reset: kept after it was followed", "members are told for ever", actor="resetter")
def kept_after_it_was_followed(patch: pytest.MonkeyPatch) -> None:
    """Members are told for ever."""
    patch.setattr(OffsetResets, "pulled", lambda *_: None)


@planted("reset: done with when it is told", "5.x: forgotten with the first answer", actor="resetter")
def done_with_when_it_is_told(patch: pytest.MonkeyPatch) -> None:
    """The order is gone with the first answer that tells of it, whether that arrives or not, as with 5.x."""
    original = OffsetResets.told

    def told(self: OffsetResets, group: str, topic: str, queue_id: int, *, by_pull: bool) -> None:
        original(self, group, topic, queue_id, by_pull=by_pull)
        target = self.target(group, topic, queue_id)
        if target is not None:
            self.pulled(group, topic, queue_id, target)

    patch.setattr(OffsetResets, "told", told)


@planted("reset: applied by the leader only", "metadata outside the log", actor="resetter")
def applied_by_the_leader_only(patch: pytest.MonkeyPatch) -> None:
    """Orders are in the log, and no part of what a follower derives from it."""
    original = CommittedEntries.apply_and_answer

    def apply_and_answer(self: CommittedEntries, upto: int) -> None:
        metadata = self._applied.metadata
        parked = metadata.parked
        if not self._leadership.serving:
            metadata.parked = ParkedOffsets()
        original(self, upto)
        metadata.parked = parked

    patch.setattr(CommittedEntries, "apply_and_answer", apply_and_answer)


@planted("reset: acknowledged before it is committed", "an answer from the leader's log", actor="resetter")
def acknowledged_before_it_is_committed(patch: pytest.MonkeyPatch) -> None:
    """An answer from the leader's log."""
    original = OffsetCommits.commit_all

    def commit_all(
        self: OffsetCommits,
        offsets: Sequence[StoredOffset],
        done: Callable[[object], None],
        lost: Callable[[], None],
        **options: bool,
    ) -> None:
        original(self, offsets, lambda _: None, lambda: None, **options)
        done(None)

    patch.setattr(OffsetCommits, "commit_all", commit_all)


@planted("reset: repeated by the broker", "a forwarded request of unknown outcome", actor="resetter")
def repeated_by_the_broker(patch: pytest.MonkeyPatch) -> None:
    """A node that loses its leader has the next one do what the last one may have done."""
    once = request_states.ONCE - {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET}
    patch.setattr(request_states, "ONCE", once)


def _with_force(patch: pytest.MonkeyPatch, force: bool) -> None:
    original = ResetsProcessor._targets

    def targets(self: ResetsProcessor, header: ResetOffsetHeader, queue_ids: Iterable[int]) -> dict[int, int]:
        header.is_force = force
        return original(self, header, queue_ids)

    patch.setattr(ResetsProcessor, "_targets", targets)


@planted("reset: force ignored", "nobody is ever sent forward", actor="resetter")
def force_ignored(patch: pytest.MonkeyPatch) -> None:
    """No group is ever sent forward."""
    _with_force(patch, False)


@planted("reset: forward without force", "past what was not read", actor="resetter")
def forward_without_force(patch: pytest.MonkeyPatch) -> None:
    """A group is sent past what it has not read, although nobody wanted that."""
    _with_force(patch, True)


@planted("reset: of one queue for all", "4.9 knows no queue id here", actor="resetter")
def of_one_queue_for_all(patch: pytest.MonkeyPatch) -> None:
    """A 4.9 broker knows no queue id in this request."""
    original: Callable[..., Sequence[int]] = resets_module._queues_to_reset

    def queues_to_reset(header: ResetOffsetHeader, config: TopicConfig) -> Sequence[int]:
        original(header, config)
        return range(config.read_queue_nums)

    patch.setattr(resets_module, "_queues_to_reset", queues_to_reset)


@planted(
    "reset: what was fetched comes all the same", "PullMessageProcessor: it is dropped", actor="resetter"
)
def fetched_comes_all_the_same(patch: pytest.MonkeyPatch) -> None:
    """A member that is sent elsewhere goes on there only after it has handed out what it has fetched."""

    def begin_anew(self: Assignment, queue: MessageQueue, offset: int) -> None:
        reader = self._intake.readers.get(queue)
        if reader is not None:
            reader._next_offset = offset

    patch.setattr(Assignment, "begin_anew", begin_anew)


@planted(
    "reset: held pulls are not told", "a pull that waits hears of it when its time is over", actor="resetter"
)
def held_pulls_are_not_told(patch: pytest.MonkeyPatch) -> None:
    """A member that waits for messages hears of an order with its next pull only."""
    patch.setattr(HeldPulls, "_ordered", lambda *_: None)


@planted("reset: failed report repeated", "found here", actor="resetter")
def failed_report_repeated(patch: pytest.MonkeyPatch) -> None:
    """Found here: a report that was refused is sent again although its member has been sent elsewhere since."""

    def abandon(self: Any) -> None:
        self.drop()

    patch.setattr(QueueReader, "abandon", abandon)

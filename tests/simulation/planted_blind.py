"""Mistakes thought of without a look at judges, workloads and plans, to measure these: ten of other systems' trackers,
and of a later measurement those that nothing found.

docs/planted-mistakes.md tells what `trivet simulate` found of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from broker.offsets.commits import OffsetCommits
from broker.reading.held_pulls import HeldPulls
from broker.reading.pull_checks import COMMITS_OFFSET
from broker.reading.pull_processor import PullProcessor
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import PullMessageHeader
from broker.replica.uncommitted import Uncommitted
from broker.requests.connection import Connection, RelayedConnection
from broker.requests.deadline import NEVER
from broker.requests.errors import RequestError
from broker.sending.repeated_sends import RepeatedSends
from broker.state.commands import Command, DeleteTopic
from broker.state.metadata import Metadata
from log.index.index_files import IndexFiles
from log.notes.checkpoint import CheckpointJob, Checkpoints
from log.notes.snapshot import SnapshotFile, SnapshotJob
from raft.core import Raft
from raft.follower import Follower
from raft.leader import Leader
from raft.messages import AppendRequest, Message, SnapshotRequest
from raft.succession import Succession, Transfer
from tests.simulation.planting import planted

_NEVER = 1 << 62


@planted("a hand-over that was asked for is not given up", "openraft #2088", part="consensus")
def hand_over_is_not_given_up(patch: pytest.MonkeyPatch) -> None:
    """Once its target was asked to stand the leader takes nothing, whatever becomes of that."""
    original = Succession.ask_target

    def ask_target(self: Succession, transfer: Transfer) -> None:
        original(self, transfer)
        if transfer.is_sent:
            transfer.deadline = _NEVER

    patch.setattr(Succession, "ask_target", ask_target)


@planted("who leads an earlier term is not told of the later one", "etcd #8501", part="consensus")
def leader_of_an_earlier_term_is_not_told(patch: pytest.MonkeyPatch) -> None:
    """A node that has entered a term in vain hears its leader no more."""
    original = Raft._enter_term_of

    def enter_term_of(self: Raft, message: Message, now: int) -> bool:
        is_mute = self.recovery is not None and self.recovery.is_mute
        if isinstance(message, AppendRequest | SnapshotRequest) and message.term < self.term and not is_mute:
            return False
        return original(self, message, now)

    patch.setattr(Raft, "_enter_term_of", enter_term_of)


@planted("a snapshot without an answer is not offered again", "etcd #10225", part="consensus")
def snapshot_is_not_offered_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "snapshot_sent", lambda *_: None)


@planted("a checkpoint notes the log's end as committed", "KAFKA-16452", part="storage")
def checkpoint_notes_the_end_as_committed(patch: pytest.MonkeyPatch) -> None:
    original = Checkpoints._draw_up

    def draw_up(self: Checkpoints, commit_index: int) -> CheckpointJob:
        return original(self, self._log.last_index)

    patch.setattr(Checkpoints, "_draw_up", draw_up)


@planted("a snapshot forgets what is being delivered", "NATS #1748", part="storage", actor="courier")
def snapshot_forgets_what_is_being_delivered(patch: pytest.MonkeyPatch) -> None:
    original = Metadata.tables

    def tables(self: Metadata, rows_at_once: int) -> dict[str, Any]:
        delays = [(level, progress.offset, 0, -1) for level, progress in self.delays.items()]
        return original(self, rows_at_once) | {"delays": delays}

    patch.setattr(Metadata, "tables", tables)


@planted("a snapshot counts before it is on the disk", "compaction ahead of the snapshot", part="storage")
def snapshot_counts_before_it_is_on_the_disk(patch: pytest.MonkeyPatch) -> None:
    original = SnapshotFile.job

    def job(self: SnapshotFile, applied_index: int, data: Sequence[bytes | memoryview]) -> SnapshotJob:
        self.applied_index = applied_index
        return original(self, applied_index, data)

    patch.setattr(SnapshotFile, "job", job)


@planted("an index file goes with its first record", "redpanda #2140", part="storage")
def index_file_goes_with_its_first_record(patch: pytest.MonkeyPatch) -> None:
    def delete_before(self: IndexFiles, physical_begin: int) -> int:
        removed = 0
        while len(self._files) > 1 and self._files[0].begin_offset < physical_begin:
            self._remove(self._files.pop(0).name)
            removed += 1
        return removed

    patch.setattr(IndexFiles, "delete_before", delete_before)


@planted("a batch that is stored in part counts as stored", "RocketMQ #501", part="broker")
def batch_in_part_counts_as_stored(patch: pytest.MonkeyPatch) -> None:
    original = RepeatedSends._offsets_behind

    def offsets_behind(self: RepeatedSends, index: int, topic: str, keys: Any) -> tuple[list[int], int]:
        found, index = original(self, index, topic, keys)
        return [*found, *[0] * (len(keys) - len(found))], index

    patch.setattr(RepeatedSends, "_offsets_behind", offsets_behind)


@planted("an order outlives its topic", "RocketMQ #9704", part="broker", actor="tenant")
def order_outlives_its_topic(patch: pytest.MonkeyPatch) -> None:
    """Whoever reads the topic that is made again is sent to where the old one's readers were."""
    original = Metadata.apply

    def apply(self: Metadata, command: Command) -> Any:
        orders: list[tuple[str, str, int, int]] = []
        if isinstance(command, DeleteTopic):
            orders = [
                (group, topic, queue_id, offset)
                for (group, topic), queues in self.parked.offsets.items()
                if topic == command.topic
                for queue_id, offset in queues.items()
            ]
        result = original(self, command)
        for order in orders:
            self.parked.offsets.put(*order)
        return result

    patch.setattr(Metadata, "apply", apply)


@planted("who waits for what is applied outlives the leadership", "RabbitMQ #1782", part="broker")
def who_waits_outlives_the_leadership(patch: pytest.MonkeyPatch) -> None:
    original = Uncommitted.abandon

    def abandon(self: Uncommitted) -> None:
        self._wait_for_apply.clear()
        original(self)

    patch.setattr(Uncommitted, "abandon", abandon)


@planted("a follower says that an offset is out of range", "KAFKA-8365", part="broker")
def follower_says_that_an_offset_is_out_of_range(patch: pytest.MonkeyPatch) -> None:
    original = PullProcessor._follower_answers_or_forwards

    def follower_answers(
        self: PullProcessor, connection: Connection, command: RemotingCommand, header: PullMessageHeader
    ) -> None:
        metadata = self._leadership.metadata
        if (
            self._settings.current.broker.follower_reads
            and not header.sys_flag & COMMITS_OFFSET
            and header.topic in metadata.topics
            and header.consumer_group in metadata.groups
            and not isinstance(connection, RelayedConnection)
        ):
            try:
                self._checks.check(header)
                result = self._reads.read(header, self._checks.filter_for(header))
            except RequestError:
                pass
            else:
                if result.status in {"OFFSET_TOO_SMALL", "OFFSET_OVERFLOW_BADLY"}:
                    self._responses.respond(connection, command, header, result)
                    return
        original(self, connection, command, header)

    patch.setattr(PullProcessor, "_follower_answers_or_forwards", follower_answers)


@planted("a report like the stored offset is nothing new", "RocketMQ #3210", part="broker", actor="reporter")
def report_like_the_stored_offset_is_nothing_new(patch: pytest.MonkeyPatch) -> None:
    """Though the group has gone on meanwhile, and that is on its way."""
    original = OffsetCommits.stage

    def stage(self: OffsetCommits, group: str, topic: str, queue_id: int, offset: int) -> None:
        if self._leadership.metadata.offsets.get((group, topic), {}).get(queue_id) != offset:
            original(self, group, topic, queue_id, offset)

    patch.setattr(OffsetCommits, "stage", stage)


@planted(
    "held pulls are forgotten with the leadership",
    "PullRequestHoldService: what a broker holds",
    part="broker",
)
def held_pulls_are_forgotten_with_the_leadership(patch: pytest.MonkeyPatch) -> None:
    original = HeldPulls._role_changed

    def role_changed(self: HeldPulls) -> None:
        original(self)
        for waiting in self.leaving.values():
            for held in waiting:
                self._leave_places(held)
        self.leaving.clear()
        self._leave_at.due_ns = NEVER

    patch.setattr(HeldPulls, "_role_changed", role_changed)


@planted("a snapshot takes the log behind it", "Raft figure 13, step 6", part="consensus")
def snapshot_takes_the_log_behind_it(patch: pytest.MonkeyPatch) -> None:
    original = Follower.install_snapshot

    def install_snapshot(self: Follower, request: SnapshotRequest) -> None:
        state = self._state
        if request.first_index - 1 > state.commit_index:
            state.reset_log(
                request.first_index, request.prev_term, request.configuration_index, request.configuration
            )
        original(self, request)

    patch.setattr(Follower, "install_snapshot", install_snapshot)

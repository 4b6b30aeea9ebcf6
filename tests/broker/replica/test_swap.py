"""A leader's snapshot takes the place of all that a node has, in one turn that is short: a worker has written it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.longest_turns import ENTRANCES
from broker.peers.protocol import Frame, RaftFrame
from broker.replica.jobs import Job
from broker.replica.replica import Replica
from broker.replica.upkeep import REMOVAL_FAILED_NS, REMOVAL_PAUSE_NS, REMOVED_FILES
from broker.state.snapshot import decode_state
from log.entries.expired_files import HeadLook, RetentionPolicy
from log.errors import DiskError
from raft.messages import AppendResponse, SnapshotRequest
from tests.broker.harness import SMALL_STORE, Group
from tests.broker.retention.test_retention import fill, group_with, pass_time
from tests.log.memory_disk import MemoryDisk

STEPS_MAX = 60
BYTES_MAX = 4096
"""What is written within a turn: notes of some hundred bytes, and a file of RocketMQ's that has always so many."""
STEPS = (
    "open",
    "list",
    "exists",
    "size",
    "read",
    "write_durably",
    "flush_file",
    "remove",
    "rename",
    "discard",
)


def behind(topics: int, messages: int) -> tuple[Group, str]:
    """A group whose log begins behind the end of a node that is away, and has so many queues and 100 KB messages."""
    group = group_with()
    client = group.connect()
    for number in range(topics):
        client.create_topic(f"T{number}")
        client.send(f"T{number}", b"x")
    fill(group, messages)
    away = group.follower
    group.kill(away)
    fill(group, 20)
    pass_time(group, 1.1)
    assert group.node(group.leader).replica.store.log.first_index > messages + topics
    return group, away


class Swap:
    """What the call did that replaced the log of one node."""

    def __init__(self, patch: pytest.MonkeyPatch, disk: MemoryDisk, replica: Replica) -> None:
        self.steps: list[str] = []
        self.bytes = 0
        self._now: list[str] = []
        self._bytes_now = 0
        self._is_inside = False
        for name in (name for name in STEPS if hasattr(MemoryDisk, name)):
            patch.setattr(disk, name, self._noted(name, getattr(disk, name)))
        for kind, name in ENTRANCES:
            patch.setattr(kind, name, self._watched(replica, getattr(kind, name)))

    def _noted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: str, *arguments: Any, **options: Any) -> Any:
            if self._is_inside:
                return original(path, *arguments, **options)
            self._now.append(f"{name} {path}")
            if name == "write_durably":
                self._bytes_now = max(self._bytes_now, sum(map(len, arguments)))
            self._is_inside = True
            try:
                return original(path, *arguments, **options)
            finally:
                self._is_inside = False

        return call

    def _watched(self, replica: Replica, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self._now, self._bytes_now = [], 0
            before = replica.store.log.epoch
            result = original(*arguments)
            if replica.store.log.epoch != before:
                self.steps, self.bytes = self._now, self._bytes_now
            return result

        return call


def swap_of(group: Group, away: str) -> Swap:
    group.restart(away)
    replica = group.node(away).replica
    assert replica.store.log.first_index == 0
    with pytest.MonkeyPatch.context() as patch:
        swap = Swap(patch, group.members[away].disk, replica)
        group.run_until(lambda: replica.store.log.first_index > 0, "the snapshot")
    group.converge()
    assert replica.metadata == group.node(group.leader).replica.metadata
    return swap


def test_the_turn_takes_few_steps_of_the_disk_however_much_is_replaced() -> None:
    small, large = swap_of(*behind(2, 10)), swap_of(*behind(150, 60))
    assert 0 < len(small.steps) <= STEPS_MAX, small.steps
    assert len(large.steps) == len(small.steps), large.steps
    assert large.bytes <= BYTES_MAX


def test_commands_that_the_state_reflects_are_not_carried_out_again() -> None:
    """They are behind the beginning of the log, which is sent from there on."""
    group, away = behind(2, 10)
    client = group.connect()
    for number in range(3):
        client.create_topic(f"late-{number}")
    swap_of(group, away)


def is_out(job: Job) -> bool:
    return job.what == "snapshot of the leader"


def on_its_way() -> tuple[Group, str]:
    """A group with a node for which the worker is to write its leader's snapshot, and has not come to it yet."""
    group, away = behind(3, 10)
    group.restart(away)
    group.slow_disks.add(away)
    member = group.members[away]
    group.run_until(lambda: any(map(is_out, member.jobs)), "a snapshot from the leader")
    assert group.node(away).replica.store.log.first_index == 0
    return group, away


def has_all(group: Group, node: str) -> bool:
    group.slow_disks.clear()
    group.converge()
    replica = group.node(node).replica
    assert replica.store.log.first_index > 0
    assert not group.members[node].disk.list("incoming")
    return replica.metadata == group.node(group.leader).replica.metadata


def test_a_node_goes_on_while_its_leader_s_snapshot_is_on_its_way_to_a_slow_disk() -> None:
    group, away = on_its_way()
    replica, leader = group.node(away).replica, group.leader
    group.advance(10)
    assert replica.store.log.first_index == 0, "raft hears of it when it is durable"
    assert (group.leader, replica.leader) == (leader, leader)
    assert sum(map(is_out, group.members[away].jobs)) == 1, (
        "the leader has lost patience, and is not listened to"
    )
    replica.applied.save()
    group.advance(1)
    assert not any(job.what == "snapshot" for job in group.members[away].jobs), "its own would be the last"
    assert has_all(group, away)


def test_another_leader_s_snapshot_comes_behind_it() -> None:
    group, away = on_its_way()
    group.transfer_leadership(next(node for node in group.members if node not in {group.leader, away}))
    group.connect().send("T", b"of the next term")
    group.advance(3)
    assert sum(map(is_out, group.members[away].jobs)) == 1
    assert has_all(group, away)


@pytest.mark.parametrize("is_written", [False, True])
def test_a_node_that_dies_before_it_is_taken_is_as_it_was(is_written: bool) -> None:
    group, away = on_its_way()
    member = group.members[away]
    if is_written:
        next(filter(is_out, member.jobs)).run()
        assert member.disk.list("incoming")
    group.kill(away)
    group.slow_disks.clear()
    group.restart(away)
    replica = group.node(away).replica
    assert replica.store.log.first_index == 0
    assert not replica.raft.recovering
    assert not member.disk.list("incoming")
    assert has_all(group, away)


def test_one_that_raft_has_no_use_for_is_given_up() -> None:
    group, away = on_its_way()
    node, member = group.node(away), group.members[away]
    replica = node.replica
    # Meanwhile it hears of a later term, in which nobody has sent it a snapshot yet.
    later = AppendResponse(group.leader, away, replica.raft.term + 1, False, -1, -1, 0)
    node.begin(group.now_ns, group.wall_ms)
    node.peer_received(group.leader, RaftFrame(later))
    next_job = next(filter(is_out, member.jobs))
    member.jobs.remove(next_job)
    next_job.run()
    member.process.job_done(next_job)
    assert replica.store.log.first_index == 0
    assert not member.disk.list("incoming")
    assert member.disk.discarded
    assert has_all(group, away)


def test_without_space_it_is_given_up_and_comes_again() -> None:
    group, away = on_its_way()
    replica, disk = group.node(away).replica, group.members[away].disk
    disk.free_pages = 0
    group.slow_disks.clear()
    group.advance(5)
    assert replica.store.log.first_index == 0
    assert replica.disk_space.is_full(group.now_ns)
    assert not disk.list("incoming")
    disk.free_pages = None
    assert has_all(group, away)


def test_the_space_of_what_was_replaced_is_freed_afterwards() -> None:
    group, away = behind(3, 10)
    group.restart(away)
    assert has_all(group, away)
    group.advance(5)
    assert not group.members[away].disk.discarded


def test_space_is_freed_a_part_at_a_time_and_later_where_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group.elected(1)
    disk = group.members["n0"].disk
    remove, runs_ns = disk.remove_discarded, list[int]()

    def removes(files_max: int, bytes_max: int) -> None:
        runs_ns.append(group.now_ns)
        if len(runs_ns) == 2:
            raise DiskError("removed", "removal", "input/output error")
        remove(files_max, bytes_max)

    monkeypatch.setattr(disk, "remove_discarded", removes)
    disk.discarded_files = 2 * REMOVED_FILES + 1
    group.run_until(lambda: not disk.discarded, "all of it is freed", limit_s=70)
    pauses_ns = [later - earlier for earlier, later in pairwise(runs_ns)]
    # Longer where nothing else wants a turn.
    for pause_ns, least_ns in zip(
        pauses_ns, (REMOVAL_PAUSE_NS, REMOVAL_FAILED_NS, REMOVAL_PAUSE_NS), strict=True
    ):
        assert pause_ns >= least_ns, pauses_ns


def test_one_that_comes_again_behind_the_swap_is_not_written_again() -> None:
    """Its leader had lost patience: all of it was read, made into files beside the log, and given up."""
    group, away = behind(1, 50)
    seen: list[tuple[str, RaftFrame]] = []

    def see(source: str, target: str, frame: Frame) -> bool:
        if target == away and isinstance(frame, RaftFrame) and isinstance(frame.message, SnapshotRequest):
            seen.append((source, frame))
        return False

    group.lose = see
    group.restart(away)
    group.converge()
    node = group.node(away)
    source, frame = seen[-1]
    assert node.replica.store.log.first_index == frame.message.first_index  # type: ignore[union-attr]
    node.begin(group.now_ns, group.wall_ms)
    node.peer_received(source, frame)
    assert node.replica.from_peers.snapshots.source is None
    assert not node.replica.upkeep.writes_snapshot
    group.advance(1)
    group.converge()


def with_snapshots_newer_than_notes(group: Group, *, away: str | None = None) -> list[int]:
    """Kills the group when it has deleted a part of its log, `away` before that; the places of topic T's messages."""
    client = group.connect()
    client.create_topic("T")
    places = []
    for _ in range(2):
        group.advance(5)  # what is noted is older than the second half
        for _ in range(15):
            places.append(int(client.send("T", bytes(100_000)).message_id[16:], 16))
        group.converge()
        if away is not None and group.members[away].node is not None:
            group.kill(away)
    group.advance(1)
    for member in group.alive():
        replica = member.alive.replica
        replica.applied.save()
        replica.upkeep.write_waiting_snapshot(group.now_ns)
        for _ in range(2 if away is not None else 1):
            policy = RetentionPolicy(reserved_ms=0, files_per_pass=1)
            replica.store.delete_head(HeadLook(policy, now_ms=group.wall_ms, is_delete_hour=True))
            replica.head.deleted()
        assert replica.store.checkpoints.noted_index < replica.store.snapshot.applied_index
    for member in group.alive():
        group.kill(member.id)
    return places


def test_a_snapshot_for_a_peer_says_of_queues_what_they_were_at_its_place() -> None:
    """Its leader has just started: its state is that of its snapshot, its queues are still those of older notes."""
    group = Group.elected(3, options=replace(SMALL_STORE, dispatch_entries=1))
    places = with_snapshots_newer_than_notes(group)
    group.replace_disk("n2")
    sent: list[tuple[int, int]] = []

    def see(source: str, target: str, frame: Frame) -> bool:
        if isinstance(frame, RaftFrame) and isinstance(frame.message, SnapshotRequest):
            sent.append((frame.applied_index, decode_state(bytes(frame.body)).queue_ends["T", 0]))
        return False

    group.lose = see
    for node in group.members:
        group.start(node)
    group.elect()
    group.converge()
    entries = group.node(group.leader).replica.store.log
    assert sent
    for applied_index, end in sent:
        assert end == sum(place < entries.end_of(applied_index) for place in places)


def test_a_leader_that_has_just_started_brings_back_the_only_peer_with_a_snapshot() -> None:
    """It can commit nothing before, and what its own snapshot reflects is committed."""
    group = Group.elected(3)
    keeper, away = group.leader, group.follower
    with_snapshots_newer_than_notes(group, away=away)
    group.start(keeper)
    group.start(away)
    assert (
        group.node(away).replica.store.log.last_index + 1 < group.node(keeper).replica.store.log.first_index
    )
    group.elect()
    group.converge()

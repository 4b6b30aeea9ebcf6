"""A snapshot is written by a worker: a slow disk keeps nobody, and what fails there is never passed over."""

from __future__ import annotations

import pytest

from broker.replica.disk_space import LOOK_NS, UPKEEP_PAUSE_NS
from log.errors import DiskFullError, FlushError
from tests.broker.harness import SECOND, Group
from tests.broker.replica.test_state_writing import fill_and_delete_one_file
from tests.broker.retention.test_retention import group_with


def begun(group: Group) -> int:
    """Lets the only node write its state, all of which is durable; returns what the last snapshot reflects by then."""
    client = group.connect()
    client.create_topic("T")
    client.send("T", b"x")
    group.advance(2)
    before = group.node("n0").replica.store.snapshot.applied_index
    group.node("n0").replica.applied.save()
    group.members["n0"].due_ns = group.now_ns
    return before


def test_a_node_serves_while_its_snapshot_is_on_its_way_to_a_slow_disk() -> None:
    group = Group.elected(1, flush="async")
    before = begun(group)
    member, replica = group.members["n0"], group.node("n0").replica
    index = replica.applied_index
    group.slow_disks.add("n0")
    group.advance(0.01)
    assert len(member.jobs) == 1
    client = group.connect()
    for body in (b"y", b"z"):
        client.send("T", body)
        replica.applied.save()
    assert replica.store.snapshot.applied_index == before
    assert replica.upkeep.snapshot_is_out
    group.slow_disks.clear()
    group.advance(1)
    assert replica.store.snapshot.applied_index == index, "one at a time, of the place at which it was begun"
    snapshot = replica.store.snapshot.read()
    assert snapshot is not None
    assert snapshot.applied_index == index


def test_a_snapshot_is_written_when_all_that_it_reflects_is_durable() -> None:
    """A power failure could take the rest, and others put other entries in its place: those would count as applied."""
    group = Group.elected(1, flush="async", storage={"flush_interval_ms": 500})
    client = group.connect()
    client.create_topic("T")
    replica = group.node("n0").replica
    log = replica.store.log
    group.run_until(lambda: log.durable_index == log.last_index, "a flush")
    client.send("T", b"x")
    index = replica.applied_index
    replica.applied.save()
    group.members["n0"].due_ns = group.now_ns
    group.advance(0.1)
    assert replica.upkeep.waiting_snapshot is not None
    assert replica.store.snapshot.applied_index <= log.durable_index < index
    group.run_until(lambda: log.durable_index == index, "the next flush")
    group.advance(0.1)
    assert replica.store.snapshot.applied_index == index


def test_a_snapshot_that_cannot_be_flushed_stops_the_node() -> None:
    group = Group.elected(1, flush="async")
    begun(group)
    group.members["n0"].disk.flush_fails = True
    with pytest.raises(FlushError):
        group.advance(0.01)


def test_a_snapshot_for_which_there_is_no_space_is_written_when_there_is_some() -> None:
    group = Group.elected(1, flush="async")
    before = begun(group)
    replica, disk = group.node("n0").replica, group.members["n0"].disk
    disk.free_pages = 0
    group.advance(0.01)
    assert replica.store.snapshot.applied_index == before
    disk.free_pages = None
    group.advance(2 * UPKEEP_PAUSE_NS / SECOND)
    assert replica.store.snapshot.applied_index == replica.applied_index


def test_the_leader_s_snapshot_is_not_replaced_by_a_node_s_own_that_is_late() -> None:
    group = group_with()
    away = group.follower
    group.kill(away)
    fill_and_delete_one_file(group)
    began = group.node(group.leader).replica.store.log.first_index
    group.start(away)
    member, replica = group.members[away], group.node(away).replica
    replica.applied.save()
    group.slow_disks.add(away)
    member.jobs += member.process.jobs.others()
    assert replica.upkeep.snapshot_is_out
    group.advance(2)
    assert replica.store.log.first_index < began, "it waits for its own"
    group.slow_disks.clear()
    group.converge()
    assert replica.store.log.first_index == began
    assert group.node(away).replica.metadata == group.node(group.leader).replica.metadata
    snapshot = replica.store.snapshot.read()
    assert snapshot is not None
    assert snapshot.applied_index >= began - 1


def test_a_leader_s_snapshot_is_written_as_soon_as_there_is_space() -> None:
    """Seed 9500238: it waited as long as a checkpoint does that finds none, and the node took no entries until then."""
    group = group_with()
    away = group.follower
    group.kill(away)
    fill_and_delete_one_file(group)
    group.start(away)
    replica, disk = group.node(away).replica, group.members[away].disk
    disk.free_pages = 0
    replica.upkeep._lacks_space(
        "checkpoint", DiskFullError("checkpoint", "writing", "no space left"), group.now_ns
    )
    group.advance(3)
    behind = replica.store.log.first_index
    disk.free_pages = None
    group.advance(3 * LOOK_NS / SECOND)
    assert replica.store.log.first_index > behind
    assert replica.applied_index == group.node(group.leader).replica.applied_index

"""A node whose disk is full stays, says so, takes nothing, and goes on when there is room."""

from random import Random

import pytest
from structlog.testing import capture_logs

from broker.peers.protocol import Frame, RaftFrame
from broker.replica.members_file import MembersFile
from broker.statistics.events import EventKind
from log.errors import DiskFullError
from raft.configuration import Configuration
from simulation.machines.simulated_disk import SimulatedDisk
from tests.broker.harness import Group


def fill(group: Group, node: str) -> None:
    disk = group.members[node].disk
    disk.free_pages, disk.free_bytes = 0, 0


def empty(group: Group, node: str) -> None:
    disk = group.members[node].disk
    disk.free_pages, disk.free_bytes = None, disk.total_bytes


@pytest.fixture
def group() -> Group:
    group = Group.elected(3)
    group.connect().create_topic("T")
    group.converge()
    return group


def test_a_follower_takes_no_entries_while_its_disk_is_full_and_all_when_there_is_room(group: Group) -> None:
    client = group.connect(group.leader)
    node = group.follower
    replica = group.node(node).replica
    fill(group, node)
    with capture_logs() as lines:
        for _ in range(40):
            client.send("T", bytes(100_000))
        group.advance(5)
    leader = group.node(group.leader).replica
    held = replica.store.log.last_index
    assert held < leader.store.log.last_index
    (peer,) = [peer for peer in leader.raft.status(leader.time.now_ns).peers if peer.node == node]
    assert peer.match_index <= held, "it acknowledges nothing that it has not"
    assert peer.silence_ns < 500_000_000, "it is heard all the while"
    assert replica.disk_space.lacks
    assert group.node(node).events.count(EventKind.DISK_FULL) >= 1
    assert sum(line["event"] == "disk full" for line in lines) <= 2
    empty(group, node)
    group.converge()
    assert replica.store.log.last_index == leader.store.log.last_index
    assert not replica.disk_space.lacks


def test_a_follower_without_room_does_not_cost_the_leader_its_bandwidth(group: Group) -> None:
    client = group.connect(group.leader)
    node = group.follower
    fill(group, node)
    for _ in range(40):
        client.send("T", bytes(100_000))
    group.advance(2)
    sent = 0

    def counted(source: str, target: str, frame: Frame) -> bool:
        nonlocal sent
        if target == node and isinstance(frame, RaftFrame):
            sent += len(frame.body)
        return False

    group.lose = counted
    group.advance(10)
    backlog = 40 * 100_000
    assert backlog < sent < 11 * backlog, "what it lacks is offered once a second, not with every heartbeat"


def test_it_neither_votes_nor_stands_for_election(group: Group) -> None:
    old, node = group.leader, group.follower
    term = group.node(node).replica.term
    fill(group, node)
    group.kill(old)
    group.advance(10)
    assert group.node(node).replica.term == term
    assert not any(member.alive.replica.serving for member in group.alive())
    empty(group, node)
    group.elect()
    assert group.node(node).replica.term > term


def test_what_is_committed_is_dispatched_when_there_is_room(group: Group) -> None:
    client = group.connect(group.leader)
    client.create_topic("new")
    group.converge()
    node = group.follower
    fill(group, node)
    client.send("new", b"x")
    group.advance(3)
    replica = group.node(node).replica
    assert replica.applied_index < group.node(group.leader).replica.applied_index
    empty(group, node)
    group.converge()
    queue = replica.store.queues.get("new", 0)
    assert queue is not None
    assert queue.max_offset == 1


def test_a_stop_on_a_full_disk_is_in_order_and_loses_nothing(group: Group) -> None:
    client = group.connect(group.leader)
    client.send("T", b"x")
    group.converge()
    node = group.follower
    replica = group.node(node).replica
    last_index = replica.store.log.last_index
    fill(group, node)
    replica.close(group.now_ns)
    assert group.node(node).events.counts[EventKind.DISK_FULL, "notes of the stop"] == 1
    empty(group, node)
    group.kill(node)
    group.restart(node)
    assert group.node(node).replica.store.log.last_index >= last_index


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_node_that_has_recovered_notes_it_when_there_is_room(flush: str) -> None:
    """The flush that makes it hold all that it ever promised comes back when the disk is full."""
    group = Group.elected(3, flush=flush)
    client = group.connect(group.leader)
    client.create_topic("T")
    client.send("T", b"before")
    node = group.follower
    group.kill(node)
    group.replace_disk(node)
    group.slow_disks.add(node)
    group.restart(node)
    raft = group.node(node).replica.raft
    group.run_until(lambda: raft.log_terms.last_index > 0 or raft.recovering is None, "its entries")
    fill(group, node)
    group.slow_disks.clear()
    client.send("T", b"while it is full")
    group.advance(3)
    empty(group, node)
    group.converge()
    group.advance(2)
    assert raft.recovering is None


def test_a_node_that_recovers_by_a_message_notes_it_when_there_is_room() -> None:
    """Its log's pages are ready, so that the entries which it lacked find room, and the note of its recovery none."""
    group = Group.elected(3)
    client = group.connect(group.leader)
    client.create_topic("T")
    client.send("T", b"before")
    node = group.follower
    group.kill(node)
    group.replace_disk(node)
    group.lose = lambda source, target, frame: (
        target == node and isinstance(frame, RaftFrame) and bool(getattr(frame.message, "spans", ()))
    )
    group.restart(node)
    group.advance(0.5)
    raft = group.node(node).replica.raft
    assert raft.recovering is not None
    fill(group, node)
    group.lose = lambda source, target, frame: False
    group.advance(3)
    assert raft.recovering is not None
    empty(group, node)
    group.converge()
    group.advance(2)
    assert raft.recovering is None


def test_the_commit_of_members_writes_nothing() -> None:
    """Seed 120397: a leader whose disk was full stopped when a change of members was acknowledged."""
    disk = SimulatedDisk(Random(1))
    membership = MembersFile(disk, {"n0": "a:1", "n1": "a:2", "n2": "a:3"})
    members = [(-1, Configuration(("n0", "n1", "n2"))), (7, Configuration(("n0", "n1", "n2"), ("n3",)))]
    membership.save(members)
    disk.full = True
    membership.save(members)
    with pytest.raises(DiskFullError):
        membership.save(members[:1])
    disk.full = False
    membership.save(members[:1])
    assert MembersFile(disk, membership.addresses).load(9) == members[:1]

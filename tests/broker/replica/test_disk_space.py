"""A node whose disk is full stays, says so, takes nothing, and goes on when there is room."""

from random import Random
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from broker.peers.protocol import Frame, RaftFrame
from broker.remoting.codes import ResponseCode
from broker.replica.members_file import MembersFile
from broker.statistics.events import EventKind
from log.dispatching.dispatch import Dispatcher
from log.errors import DiskFullError
from raft.configuration import Configuration
from simulation.machines.simulated_disk import SimulatedDisk
from tests.broker.group_changes import add, change
from tests.broker.harness import Group, Pulled, peer_address


def fill(group: Group, node: str) -> None:
    disk = group.members[node].disk
    disk.free_pages, disk.free_bytes = 0, 0


def nearly_fill(group: Group, node: str) -> None:
    """There is room for a vote, and none for messages."""
    disk = group.members[node].disk
    disk.free_bytes = disk.total_bytes // 20


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
    membership.note_committed(7, members, ())  # a hint, for which there is no room
    with pytest.raises(DiskFullError):
        membership.save(members[:1])
    disk.full = False
    membership.save(members[:1])
    assert MembersFile(disk, membership.addresses).load(9, 9) == members[:1]


def test_a_leader_without_room_refuses_another_member_and_leads_on(group: Group) -> None:
    """Its log's pages are ready, so that the entry would find room, and the file of the members none."""
    client = group.connect(group.leader)
    leader = group.node(group.leader).replica
    group.join("n3")
    fill(group, group.leader)
    answer = change(client, "add", "n3", peer_address("n3"))
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, answer.remark
    assert leader.serving
    assert leader.raft.configuration.members == ("n0", "n1", "n2")
    empty(group, group.leader)
    add(client, "n3")


def stepped_down(group: Group, node: str) -> dict[str, int]:
    counts = group.node(node).events.counts
    return {reason: count for (event, reason), count in counts.items() if event is EventKind.STEPPED_DOWN}


def test_a_leader_without_room_hands_over_to_one_that_has_some() -> None:
    """Seed 9150004 of 40 s: it refused sends, and went on to lead."""
    group = Group.elected(5)
    old = group.leader
    full, *others = sorted(set(group.members) - {old})
    client = group.connect(others[0])
    client.create_topic("T")
    group.converge()
    nearly_fill(group, full)
    group.advance(20)
    nearly_fill(group, old)
    group.run_until(lambda: any(group.node(node).replica.serving for node in others), "another leader")
    new = group.leader
    assert stepped_down(group, old) == {"disk full": 1}
    client.send("T", b"x")
    group.advance(60)
    assert group.leader == new, "it stays"


def test_a_leader_without_room_leads_on_while_nobody_has_any() -> None:
    group = Group.elected(3)
    leader = group.leader
    term = group.node(leader).replica.term
    for node in sorted(group.members, key=lambda node: node == leader):
        fill(group, node)
    group.advance(60)
    assert group.leader == leader
    assert group.node(leader).replica.term == term
    one, other = sorted(set(group.members) - {leader})
    empty(group, one)
    group.advance(60)
    assert group.leader == leader, "no majority could keep its votes"
    assert group.node(leader).replica.term == term
    empty(group, other)
    group.run_until(lambda: not group.node(leader).replica.serving, "the end of its leadership")
    group.elect()


def test_a_preferred_leader_leads_again_when_it_has_room() -> None:
    group = Group(3, start=False)
    for member in group.members.values():
        raft = msgspec.structs.replace(member.config.raft, preferred_leaders=("n0",))
        member.config = msgspec.structs.replace(member.config, raft=raft)
        group.start(member.id)
    group.elect()
    group.run_until(lambda: group.node("n0").replica.serving, "the preferred leader")
    nearly_fill(group, "n0")
    group.run_until(lambda: not group.node("n0").replica.serving, "the end of its leadership")
    group.advance(60)
    assert group.leader != "n0", "it has no room"
    empty(group, "n0")
    group.run_until(lambda: group.node("n0").replica.serving, "the preferred leader")


def test_who_waits_for_messages_hears_of_those_whose_dispatch_found_no_room_at_first(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their units were written before there was no room for the keys, and are left alone when it is tried again."""
    client = group.connect()
    client.heartbeat("g")
    pull = client.start_pull("T", "g", 0, suspend_ms=20_000)
    group.settle()
    put, failed = Dispatcher._pass, list[int]()

    def no_room(dispatcher: Dispatcher, *of_pass: Any) -> int:
        index = put(dispatcher, *of_pass)
        if dispatcher._touched and not failed:
            failed.append(index)
            raise DiskFullError("the index", "writing", "no space left")
        return index

    with monkeypatch.context() as patch:
        patch.setattr(Dispatcher, "_pass", no_room)
        client.send("T", b"x")
        group.advance(2)
    assert failed
    assert Pulled.of(client.wait(pull, 1)).bodies == [b"x"]

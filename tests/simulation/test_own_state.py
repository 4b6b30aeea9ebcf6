"""What a node takes its own log, disk and members for is held to what is so: each breach is seen by its own check."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from broker.state.topic_rules import INTERNAL_TOPIC
from log.entries import cuts
from log.entries.entry_log import EntryLog
from log.formats.layout import HEADER_BYTES
from log.notes.hard_state import HardStateFile, StoredHardState
from log.notes.snapshot import SnapshotFile
from log.options import StoreOptions
from raft.configuration import Configuration
from raft.effects import Role
from raft.messages import AppendResponse, SnapshotResponse
from raft.reasons import Reason
from raft.succession import Transfer
from simulation.journal import Violation
from simulation.judges.own_state import AGREED, FLUSHED, MEMBERS, PREFERRED, SAVED, SNAPSHOT, OwnState
from simulation.machines.data_files import data_file
from simulation.machines.simulated_disk import SimulatedDisk
from tests.log.messages import make_record
from tests.simulation import stand_ins


class Node(stand_ins.RaftState):
    """A node with a log and a disk of its own, and its Raft state."""

    def __init__(self, name: str) -> None:
        options = StoreOptions(data_file_bytes=1 << 16, index_file_units=256)
        self.disk = SimulatedDisk(Random(1))
        log, _ = EntryLog.open(self.disk, options.dledger_directory, options)
        self.snapshot = SnapshotFile(self.disk)
        self.host = stand_ins.host(name, disk=self.disk, options=options)
        super().__init__(configuration=Configuration(("n0", "n1")))
        self.log: EntryLog = log
        self.enters(1)

    def enters(self, term: int, vote: str | None = None, *, saves: bool = True) -> None:
        """Its term and vote are these."""
        self.term, self.vote = term, vote
        if saves:
            path = f"{self.host.options.dledger_directory}/currterm"
            HardStateFile(self.disk, path).write(StoredHardState(term, vote or ""))

    def appends(self, *terms: int, topic: str = "T", properties: bytes = b"") -> None:
        """Entries of these terms join its log."""
        for term in terms:
            sample = make_record(0, topic=topic, properties=properties)
            position = self.log.next_position(len(sample)) + HEADER_BYTES
            self.log.append(term, make_record(position, topic=topic, properties=properties))

    def changes_members(self, term: int, *voters: str) -> None:
        """An entry that makes these the voters joins its log."""
        self.appends(term, topic=INTERNAL_TOPIC, properties=b"TAGS\x01configuration\x02")
        self.configuration, self.configuration_index = Configuration(voters), self.log.last_index

    def flushes(self) -> None:
        """All of its log is on its disk, and it knows that."""
        job = self.log.flushes.job()
        if job is not None:
            job.run()
            self.log.flushes.done(job)
        self.persisted_index = self.log.last_index


class Group:
    """Two nodes that are watched."""

    def __init__(self) -> None:
        self.nodes = {name: Node(name) for name in ("n0", "n1")}
        rafts: Any = self.nodes
        self.own_state = OwnState(rafts, sync_flush=True)
        for name in self.nodes:
            self.own_state.started(name)

    def looks_at(self, node: Node) -> None:
        """A turn of the node is over."""
        raft: Any = node
        self.own_state.turned(node.host, raft, node.log, node.snapshot.applied_index)


@pytest.fixture
def group() -> Group:
    return Group()


def _follow(group: Group, leaders: tuple[int, ...], own: tuple[int, ...]) -> Node:
    """n0 leads the term of its last entry, n1 follows it; their logs have entries of these terms."""
    leader, follower = group.nodes["n0"], group.nodes["n1"]
    leader.appends(*leaders)
    follower.appends(*own)
    follower.enters(leaders[-1])
    follower.leader = "n0"
    group.own_state.elected("n0", leaders[-1])
    return follower


def test_a_follower_agrees_to_what_is_its_leaders(group: Group) -> None:
    follower = _follow(group, (1, 1, 3), (1, 1, 3, 3))
    for index in (-1, 0, 1, 2, 3):
        follower.agreed_index = index
        group.looks_at(follower)


def test_a_follower_tells_of_no_more_than_it_has_of_its_leader(group: Group) -> None:
    """Whatever it believes again when its turn is over."""
    _follow(group, (1, 1, 3), (1, 1, 2))
    for index in (-1, 0, 1):
        group.own_state.says("n1", AppendResponse("n1", "n0", 3, True, -1, index, 1))
        group.own_state.says("n1", SnapshotResponse("n1", "n0", 3, index))
    group.own_state.says("n1", AppendResponse("n1", "n0", 3, False, -1, 2, 1))
    group.own_state.says("n1", AppendResponse("n1", "n0", 2, True, -1, 2, 1))  # of another leader's log
    with pytest.raises(Violation, match=AGREED):
        group.own_state.says("n1", AppendResponse("n1", "n0", 3, True, 1, 2, 1))
    with pytest.raises(Violation, match=AGREED):
        group.own_state.says("n1", SnapshotResponse("n1", "n0", 3, 2))


@pytest.mark.parametrize("index", [1, 2, 4])
def test_a_follower_agrees_to_nothing_else(group: Group, index: int) -> None:
    """An entry of another term, one of another leader's in the place of its own, and one that it does not have."""
    follower = _follow(group, (1, 1, 3), (1, 2, 2, 2))
    follower.agreed_index = 0
    group.looks_at(follower)
    follower.agreed_index = index
    with pytest.raises(Violation, match=AGREED):
        group.looks_at(follower)


def test_what_is_taken_for_flushed_is_on_the_disk(group: Group) -> None:
    node = group.nodes["n0"]
    node.appends(1, 1)
    node.flushes()
    group.looks_at(node)
    node.appends(1)
    node.persisted_index = 2
    with pytest.raises(Violation, match=FLUSHED):
        group.looks_at(node)


def test_a_disk_that_has_failed_is_no_excuse(group: Group) -> None:
    node = group.nodes["n0"]
    node.host.disk_faulty = True
    node.appends(1)
    node.persisted_index = 0
    with pytest.raises(Violation, match=FLUSHED):
        group.looks_at(node)


def test_behind_a_truncation_that_is_looked_at_anew(group: Group) -> None:
    node = group.nodes["n0"]
    node.appends(1, 1)
    node.flushes()
    group.looks_at(node)
    path = data_file(node.host.options, 0)
    node.disk._durable_names[path].durable[:] = bytes(1 << 16)
    node.log_generation = 1
    with pytest.raises(Violation, match=FLUSHED):
        group.looks_at(node)


@pytest.mark.parametrize(("term", "vote"), [(2, None), (1, "n1")])
def test_term_and_vote_are_saved(group: Group, term: int, vote: str | None) -> None:
    node = group.nodes["n0"]
    group.looks_at(node)
    node.enters(term, vote, saves=False)
    with pytest.raises(Violation, match=SAVED):
        group.looks_at(node)
    node.enters(term, vote)
    group.looks_at(node)


@pytest.mark.parametrize(("term", "vote"), [(2, None), (2, "n0"), (1, None)])
def test_a_vote_and_a_term_are_not_taken_back(group: Group, term: int, vote: str | None) -> None:
    node = group.nodes["n0"]
    node.enters(2, "n1")
    group.looks_at(node)
    node.enters(term, vote)
    with pytest.raises(Violation, match="one vote a term"):
        group.looks_at(node)


def test_what_is_taken_for_the_snapshot_is_on_the_disk(group: Group) -> None:
    node = group.nodes["n0"]
    node.snapshot.write(3, b"the state")
    group.looks_at(node)
    job = node.snapshot.job(7, [b"a later one"])
    group.looks_at(node)
    node.snapshot.replaced(7)
    with pytest.raises(Violation, match=SNAPSHOT):
        group.looks_at(node)
    job.run()
    group.looks_at(node)


def test_the_newest_configuration_of_the_log_is_in_force(group: Group) -> None:
    leader, follower = group.nodes["n0"], group.nodes["n1"]
    for node in (leader, follower):
        node.appends(1)
        node.changes_members(1, "n0")
        group.looks_at(node)
    follower.configuration, follower.configuration_index = Configuration(("n0", "n1")), -1
    follower.agreed_index = 1
    group.own_state.started("n1")
    with pytest.raises(Violation, match=MEMBERS):
        group.looks_at(follower)


def test_one_is_not_whose_entry_is_gone(group: Group) -> None:
    node = group.nodes["n0"]
    node.appends(1)
    node.changes_members(1, "n0")
    group.looks_at(node)
    cuts.truncate(node.log, 0)
    node.log_generation = 1
    with pytest.raises(Violation, match=MEMBERS):
        group.looks_at(node)
    node.appends(2)
    node.log_generation = 2
    with pytest.raises(Violation, match=MEMBERS):
        group.looks_at(node)
    node.configuration, node.configuration_index = Configuration(("n0", "n1")), -1
    node.log_generation = 3
    group.looks_at(node)


@pytest.mark.parametrize(
    ("lacks", "said"), [("recovering", "may lack entries"), ("lacks_room", "has no room")]
)
def test_a_preferred_leader_could_lead_at_once(group: Group, lacks: str, said: str) -> None:
    leader = group.nodes["n0"]
    leader.role = Role.LEADER

    def hands_over(reason: Reason, **what_is_wrong: bool) -> None:
        """It begins a new hand-over to n1, which has told it what is wrong there."""
        told = {"recovering": False, "lacks_room": False} | what_is_wrong
        leader.peers = {"n1": stand_ins.peer("n1", **told)}
        leader.transferee = "n1"
        leader.transfer = Transfer("n1", 0, reason)
        group.looks_at(leader)

    hands_over(Reason.PREFERRED)
    leader.peers["n1"].lacks_room = True
    group.looks_at(leader)  # told when it was under way
    hands_over(Reason.TRANSFER, **{lacks: True})  # as an operator has asked for it
    with pytest.raises(Violation, match=said) as found:
        hands_over(Reason.PREFERRED, **{lacks: True})
    assert found.value.invariant == PREFERRED

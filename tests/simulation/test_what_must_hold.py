"""Each invariant of nodes is seen when it is broken, and by the check that is named for it.

Planted mistakes break most of them (`planted_bugs`); some are seen by another check first, or by the code's own
assertion, and would not be missed there if theirs saw nothing. So here the monitor is told of each breach by itself.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from log.dispatching.dispatch import Arrival
from log.entries import cuts
from log.entries.entry_log import EntryLog
from log.formats.layout import HEADER_BYTES
from log.notes.hard_state import HardStateFile, StoredHardState
from log.options import StoreOptions
from raft.configuration import Configuration
from raft.messages import VoteResponse
from simulation.journal import Violation
from simulation.judges.monitor import Monitor
from simulation.machines.simulated_disk import SimulatedDisk
from tests.log.messages import make_record
from tests.simulation import stand_ins
from tests.simulation.journals import empty_journal


class Machine:
    """A node as far as the monitor looks at it: a log of one-message entries, what is committed and applied."""

    def __init__(self, name: str) -> None:
        options = StoreOptions(data_file_bytes=1 << 16, index_file_units=256)
        disk = SimulatedDisk(Random(1))
        self.log, _ = EntryLog.open(disk, options.dledger_directory, options)
        HardStateFile(disk, f"{options.dledger_directory}/currterm").write(StoredHardState(1))
        self.host = stand_ins.host(name, disk=disk, options=options)
        self.messages = 0

    def append(self, term: int, body: bytes = b"body") -> None:
        """Appends an entry, at the next offset of the one queue."""
        sample = make_record(0, body=body)
        position = self.log.next_position(len(sample)) + HEADER_BYTES
        self.log.append(term, make_record(position, queue_offset=self.messages, body=body))
        self.messages += 1

    def node(self, *, applied: int, commit: int = -1) -> Any:
        """Its replica in that state, as a follower."""
        replica = stand_ins.replica(
            self.host.name,
            raft=stand_ins.raft(
                log=self.log,
                persisted_index=self.log.last_index,
                commit_index=commit,
                configuration=Configuration(("n0", "n1")),
            ),
            applied=stand_ins.applied(applied),
            store=stand_ins.store(log=self.log),
        )
        return stand_ins.node(replica=replica)


class Group:
    """Two machines that a monitor watches; the first leads term 1 and has written two entries, both have them."""

    def __init__(self) -> None:
        self.monitor = Monitor(lambda: 0, empty_journal(), sync_flush=False, random=Random(1))
        self.first, self.second = Machine("n0"), Machine("n1")
        for machine in (self.first, self.second):
            self.monitor.started(machine.host, machine.node(applied=-1))
        self.elect(self.first, 1)
        for machine in (self.first, self.second):
            machine.append(1)
            machine.append(1)
            self.monitor.appended(machine.host, 0, 1, 1)

    def elect(self, machine: Machine, term: int) -> None:
        """All vote for the machine in that term, which it leads."""
        name = machine.host.name
        for voter in ("n0", "n1"):
            self.monitor.heard(VoteResponse(voter, name, term, term, granted=True))
        self.monitor.role(machine.host, "leader", term, name)

    def commit(self, machine: Machine, index: int) -> None:
        """The machine says that it has committed up to there, in term 1."""
        self.monitor.committed(machine.host, index, 1)

    def arrive(self, machine: Machine, *arrivals: tuple[int, int]) -> None:
        """Messages [begin, end) of the queue come to be seen on the machine, one run after the other."""
        watched = self.monitor._watched[machine.host.name]
        self.monitor._arrived(watched, [Arrival("T", 0, begin, end) for begin, end in arrivals])


@pytest.fixture
def group() -> Group:
    return Group()


def broken(invariant: str) -> Any:
    return pytest.raises(Violation, match=rf"^{invariant} \(")


def test_what_is_right_breaks_nothing(group: Group) -> None:
    group.commit(group.first, 0)
    group.commit(group.second, 1)
    group.commit(group.first, 1)
    group.arrive(group.first, (0, 1), (1, 2))
    group.monitor.turned(group.first.host, group.first.node(applied=1))
    group.monitor.truncated(group.first.host, 1)
    group.elect(group.second, 2)
    group.monitor.started(group.first.host, group.first.node(applied=1, commit=1))


def test_two_leaders_of_a_term(group: Group) -> None:
    with broken("election safety"):
        group.elect(group.second, 1)


def test_a_leader_without_what_was_committed(group: Group) -> None:
    group.commit(group.first, 1)
    cuts.truncate(group.second.log, 0)
    with broken("leader completeness"):
        group.elect(group.second, 2)


def test_a_leader_with_other_bytes_than_those_committed(group: Group) -> None:
    group.commit(group.first, 1)
    other = Machine("n1")
    other.append(1)
    other.append(1, b"that")
    group.monitor._watched["n1"].log = other.log
    with broken("leader completeness"):
        group.monitor.role(other.host, "leader", 2, "n1")


@pytest.mark.parametrize(("term", "body"), [(1, b"that"), (2, b"body")])
def test_an_entry_that_its_leader_did_not_write(group: Group, term: int, body: bytes) -> None:
    other = Machine("n1")
    other.append(term, body)
    group.monitor._watched["n1"].log = other.log
    with broken("log matching"):
        group.monitor.appended(other.host, 0, 0, term)


def test_an_entry_that_follows_another_one_than_at_its_leader(group: Group) -> None:
    group.elect(group.first, 2)
    group.first.append(2)
    group.monitor.appended(group.first.host, 2, 2, 2)
    other = Machine("n1")
    for term in (1, 2, 2):
        other.append(term)
    group.monitor._watched["n1"].log = other.log
    with broken("log matching"):
        group.monitor.appended(other.host, 2, 2, 2)


def test_two_nodes_that_commit_different_bytes(group: Group) -> None:
    group.commit(group.first, 0)
    other = Machine("n1")
    other.append(1, b"that")
    group.monitor._watched["n1"].log = other.log
    with broken("state machine safety"):
        group.commit(other, 0)


@pytest.mark.parametrize("knows", [True, False])
def test_a_truncation_of_what_is_committed(group: Group, knows: bool) -> None:
    group.commit(group.first, 1)
    with broken("committed entries stay"):
        group.monitor.truncated((group.first if knows else group.second).host, 0)


@pytest.mark.parametrize("knows", [True, False])
def test_a_log_that_begins_anew_before_what_is_committed(group: Group, knows: bool) -> None:
    group.commit(group.first, 1)
    with broken("committed entries stay"):
        group.monitor.reset((group.first if knows else group.second).host, 1)


@pytest.mark.parametrize("goes", ["truncated", "reset"])
def test_what_goes_may_be_another_entry_than_the_committed_one(group: Group, goes: str) -> None:
    """The first node goes on in term 1 alone; the second leads, and commits another entry in its place."""
    group.commit(group.second, 1)
    group.first.append(1)
    group.monitor.appended(group.first.host, 2, 2, 1)
    group.elect(group.second, 2)
    group.second.append(2)
    group.monitor.appended(group.second.host, 2, 2, 2)
    group.monitor.committed(group.second.host, 2, 2)
    if goes == "truncated":
        group.monitor.truncated(group.first.host, 1)
    else:
        group.monitor.reset(group.first.host, 2)


def test_a_log_that_begins_anew_behind_what_is_committed(group: Group) -> None:
    with broken("state machine safety"):
        group.monitor.reset(group.first.host, 1)


def test_a_commit_index_that_falls(group: Group) -> None:
    group.commit(group.first, 1)
    with broken("commit index rises"):
        group.commit(group.first, 0)


@pytest.mark.parametrize("again", [(0, 1), (0, 2)])
def test_a_message_that_is_dispatched_twice(group: Group, again: tuple[int, int]) -> None:
    group.commit(group.first, 1)
    with broken("dispatch in order"):
        group.arrive(group.first, (0, 1), again)


def test_a_message_that_is_left_out(group: Group) -> None:
    group.commit(group.first, 1)
    group.first.append(1)
    group.monitor.appended(group.first.host, 2, 2, 1)
    group.commit(group.first, 2)
    with broken("dispatch in order"):
        group.arrive(group.first, (0, 1), (2, 3))


def test_an_applied_index_that_falls(group: Group) -> None:
    group.commit(group.first, 1)
    group.monitor.turned(group.first.host, group.first.node(applied=1))
    with broken("dispatch in order"):
        group.monitor.turned(group.first.host, group.first.node(applied=0))


def test_a_message_that_is_seen_before_it_is_committed(group: Group) -> None:
    group.commit(group.first, 0)
    with broken("dispatch after commit"):
        group.arrive(group.first, (0, 2))


def test_an_entry_that_is_applied_before_it_is_committed(group: Group) -> None:
    group.commit(group.first, 0)
    with broken("dispatch after commit"):
        group.monitor.turned(group.first.host, group.first.node(applied=1))


def test_a_start_that_takes_for_committed_what_is_not(group: Group) -> None:
    group.commit(group.first, 0)
    with broken("recovery"):
        group.monitor.started(group.first.host, group.first.node(applied=0, commit=1))

"""The monitor holds a node whose disk was replaced to all that it does with each, and to no more."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from log.entries.entry_log import EntryLog
from log.formats.layout import HEADER_BYTES
from log.notes.hard_state import HardStateFile, StoredHardState
from log.options import StoreOptions
from raft.configuration import Configuration
from raft.messages import Message, VoteResponse
from simulation.journal import Violation
from simulation.judges.monitor import Monitor, _Watched
from simulation.machines.simulated_disk import SimulatedDisk
from tests.log.messages import make_record
from tests.simulation import stand_ins
from tests.simulation.journals import empty_journal


class Voter:
    """A host that votes, its disk, and the monitor that watches."""

    def __init__(self) -> None:
        self.monitor = Monitor(
            lambda: 0,
            empty_journal(),
            sync_flush=True,
            random=Random(1),
        )
        host = self.host = stand_ins.host(disk=SimulatedDisk(Random(1)))
        self.monitor._watched["n0"] = _Watched(host)

    def vote(self, term: int, candidate: str, *, saved: bool = True) -> None:
        """It votes, and has saved that before or not."""
        if saved:
            path = f"{self.host.options.dledger_directory}/currterm"
            HardStateFile(self.host.disk, path).write(StoredHardState(term, candidate))
        self.monitor.voted("n0", term, candidate)

    def get_new_disk(self) -> None:
        """The old one is gone."""
        self.host.disk.wipe()
        self.monitor.wiped(self.host)


def test_a_node_votes_once_a_term() -> None:
    voter = Voter()
    voter.vote(1, "n1")
    voter.vote(1, "n1")
    with pytest.raises(Violation, match="one vote a term"):
        voter.vote(1, "n2")


def test_a_new_disk_excuses_the_votes_before_it_and_none_after() -> None:
    voter = Voter()
    voter.vote(1, "n1")
    voter.get_new_disk()
    voter.vote(1, "n2")
    with pytest.raises(Violation, match="one vote a term"):
        voter.vote(1, "n1")
    with pytest.raises(Violation, match="votes are durable"):
        voter.vote(2, "n1", saved=False)


def test_a_harmed_disk_has_the_votes_that_it_had() -> None:
    voter = Voter()
    voter.vote(1, "n1")
    voter.monitor.harmed(voter.host)
    with pytest.raises(Violation, match="one vote a term"):
        voter.vote(1, "n2")


@pytest.mark.parametrize("saved", [True, False])
def test_a_vote_is_held_to_the_disk_of_the_time_at_which_it_is_given(saved: bool) -> None:
    voter = Voter()
    if saved:
        voter.vote(1, "n1")
    observers: list[Callable[[Message], None]] = []
    voter.monitor._watch_words("n0", stand_ins.replica(watch_words=observers.append))
    (says,) = observers
    vote = VoteResponse("n0", "n1", 1, 1, granted=True)
    if not saved:
        with pytest.raises(Violation, match="votes are durable"):
            says(vote)
        return
    says(vote)
    voter.get_new_disk()
    voter.monitor.heard(vote)


class Group:
    """Machines with logs, of which `holders` have flushed the one entry that their leader commits."""

    def __init__(self, holders: set[str]) -> None:
        self.monitor = Monitor(
            lambda: 0,
            empty_journal(),
            sync_flush=True,
            random=Random(1),
        )
        options = StoreOptions(data_file_bytes=4096, index_file_units=256)
        for number in range(4):
            name = f"n{number}"
            disk = SimulatedDisk(Random(1))
            log, _ = EntryLog.open(disk, options.dledger_directory, options)
            log.append(1, make_record(HEADER_BYTES))
            job = log.flushes.job()
            assert job is not None
            if name in holders:
                job.run()
            if number == 0:
                model = self.monitor.model
                model.image[:] = log.run(0, 0, options.data_file_bytes)[2]
                model.positions, model.last_index, model.end_position = [0], 0, log.end_position
            self.monitor._watched[name] = _Watched(stand_ins.host(name, disk=disk, options=options))

    def look(self, *configurations: tuple[int, tuple[str, ...]]) -> None:
        """At the commit of entry 0, while the leader knows these configurations, (index, voters)."""
        known = [(index, Configuration(voters)) for index, voters in configurations]
        raft = stand_ins.raft(configurations=known, configuration_index=known[-1][0])
        self.monitor._is_durable(0, 0, raft)


_THREE = (-1, ("n0", "n1", "n2"))


def test_a_commit_is_counted_among_the_voters_that_decided_it() -> None:
    """Seed 268: the leader committed, and began a membership change in the same turn."""
    group = Group({"n0", "n1"})
    group.look(_THREE)
    group.look(_THREE, (1, ("n0", "n1", "n2", "n3")))
    with pytest.raises(Violation, match="committed on 2 of 4 disks"):
        group.look(_THREE, (0, ("n0", "n1", "n2", "n3")))


def test_what_was_acknowledged_was_on_the_disk_of_that_time() -> None:
    """Its leader counts on it until it hears of the new disk; behind the end of its recovery nobody does."""
    group = Group({"n0", "n1"})
    replaced = group.monitor._watched["n1"]
    replaced.host.disk.wipe()
    group.monitor.wiped(replaced.host)
    with pytest.raises(Violation, match="committed on 1 of 3 disks"):
        group.look(_THREE)
    group.monitor._beliefs.counted_on["n1"] = 0
    group.look(_THREE)
    replaced.has_new_disk = False
    with pytest.raises(Violation, match="committed on 1 of 3 disks"):
        group.look(_THREE)


def test_one_disk_of_three_is_no_majority_before_or_after_a_change() -> None:
    group = Group({"n0"})
    with pytest.raises(Violation, match="committed on 1 of 3 disks"):
        group.look(_THREE)
    with pytest.raises(Violation, match="committed on 1 of 3 disks"):
        group.look(_THREE, (1, ("n0", "n1", "n2", "n3")))

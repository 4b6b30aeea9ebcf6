"""What the monitor holds a node to whose disk was replaced: all that it does with the new one."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from log.hard_state import HardState, HardStateFile
from log.options import StoreOptions
from simulation.disk import SimulatedDisk
from simulation.group_model import Violation
from simulation.monitor import Monitor


class Voter:
    """A host that votes, its disk, and the monitor that watches."""

    def __init__(self) -> None:
        self.monitor = Monitor(lambda: 0, lambda node, text: None, sync_flush=True, random=Random(1))
        self.host: Any = SimpleNamespace(name="n0", disk=SimulatedDisk(Random(1)), options=StoreOptions())

    def vote(self, term: int, candidate: str, *, saved: bool = True) -> None:
        """It votes, and has saved that before or not."""
        if saved:
            path = f"{self.host.options.dledger_directory}/currterm"
            HardStateFile(self.host.disk, path).write(HardState(term, candidate))
        self.monitor.voted(self.host, term, candidate)

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

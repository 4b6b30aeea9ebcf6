"""A leader is held to what it knows when it takes something in hand: a send that may be stored is looked for."""

from __future__ import annotations

import pytest

from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand
from broker.sending.send_processor import SendProcessor
from raft.effects import Role
from simulation.journal import Violation
from simulation.judges.in_hand import LOOKED_FOR, watch_what_is_in_hand
from tests.simulation import stand_ins

_BEGIN = 1000


class Leader:
    """A node that is watched, and leads term 2 from position 1000 of its log on."""

    def __init__(self) -> None:
        self.raft = stand_ins.raft()
        log = stand_ins.stand_in(end_position=_BEGIN)
        self.node = stand_ins.node(replica=stand_ins.replica(raft=self.raft, store=stand_ins.store(log=log)))
        self.sends: SendProcessor = self.node.part(SendProcessor)
        watch_what_is_in_hand("n0", self.node)
        self.leads(2, _BEGIN)

    def leads(self, term: int, end: int) -> None:
        replica = self.node.replica
        self.raft.role, replica.term, replica.store.log.end_position = Role.LEADER, term, end
        self.node.listeners.role_changes[-1]()

    def stores(self, floor: int | None, *, again: bool = False, decided: bool = False) -> None:
        command = RemotingCommand(RequestCode.SEND_MESSAGE)
        self.sends.once._decided = command if decided else None
        assert self.sends.observer is not None, "it is watched"
        self.sends.observer(command, stand_ins.stand_in(once=floor, again=again))


def test_what_was_sent_in_its_term_is_stored_at_once_and_what_was_looked_for() -> None:
    leader = Leader()
    leader.stores(_BEGIN + 1)
    leader.stores(None)
    leader.stores(_BEGIN, decided=True)
    leader.stores(_BEGIN + 1, again=True, decided=True)


@pytest.mark.parametrize(("floor", "again"), [(_BEGIN, False), (0, False), (_BEGIN + 1, True)])
def test_what_may_be_stored_already_is_not(floor: int, again: bool) -> None:
    leader = Leader()
    with pytest.raises(Violation, match=LOOKED_FOR):
        leader.stores(floor, again=again)


def test_its_next_term_begins_where_its_log_ends_then() -> None:
    leader = Leader()
    leader.leads(2, _BEGIN + 9)
    leader.stores(_BEGIN + 1)
    leader.leads(3, _BEGIN + 9)
    with pytest.raises(Violation, match=LOOKED_FOR):
        leader.stores(_BEGIN + 9)

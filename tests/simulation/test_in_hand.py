"""A leader is held to what it knows when it takes something in hand: a send that may be stored is looked for."""

from __future__ import annotations

from typing import Any

import pytest

from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand
from broker.sending.repeated_sends import RepeatedSends
from raft.effects import Role
from simulation.journal import Violation
from simulation.judges.in_hand import LOOKED_FOR, watch_what_is_in_hand
from simulation.judges.waits import part_of
from tests.simulation import stand_ins

_BEGIN = 1000


class Leader:
    """A node that is watched, and leads term 2 from position 1000 of its log on."""

    def __init__(self) -> None:
        self.raft = stand_ins.raft()
        log = stand_ins.stand_in(end_position=_BEGIN)
        self.node = stand_ins.node(replica=stand_ins.replica(raft=self.raft, store=stand_ins.store(log=log)))
        self.sends: Any = self.node._routes[RequestCode.SEND_MESSAGE][0].__self__
        self.stored: list[int | None] = []
        self.once = part_of(self.node, RepeatedSends)
        self.sends._append = self.sends._batches.append = lambda *given: self.stored.append(given[2].once)
        watch_what_is_in_hand("n0", self.node)
        self.leads(2, _BEGIN)

    def leads(self, term: int, end: int) -> None:
        replica = self.node.replica
        self.raft.role, replica.term, replica.store.log.end_position = Role.LEADER, term, end
        self.node.listeners.role_changes[-1]()

    def stores(
        self, floor: int | None, *, again: bool = False, decided: bool = False, batch: bool = False
    ) -> None:
        command = RemotingCommand(RequestCode.SEND_MESSAGE)
        self.once._decided = command if decided else None
        store = self.sends._batches.append if batch else self.sends._append
        store(None, command, stand_ins.stand_in(once=floor, again=again))


@pytest.mark.parametrize("batch", [False, True])
def test_what_was_sent_in_its_term_is_stored_at_once_and_what_was_looked_for(batch: bool) -> None:
    leader = Leader()
    leader.stores(_BEGIN + 1, batch=batch)
    leader.stores(None, batch=batch)
    leader.stores(_BEGIN, decided=True, batch=batch)
    leader.stores(_BEGIN + 1, again=True, decided=True, batch=batch)
    assert leader.stored == [_BEGIN + 1, None, _BEGIN, _BEGIN + 1]


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(("floor", "again"), [(_BEGIN, False), (0, False), (_BEGIN + 1, True)])
def test_what_may_be_stored_already_is_not(floor: int, again: bool, batch: bool) -> None:
    leader = Leader()
    with pytest.raises(Violation, match=LOOKED_FOR):
        leader.stores(floor, again=again, batch=batch)
    assert not leader.stored


def test_its_next_term_begins_where_its_log_ends_then() -> None:
    leader = Leader()
    leader.leads(2, _BEGIN + 9)
    leader.stores(_BEGIN + 1)
    leader.leads(3, _BEGIN + 9)
    with pytest.raises(Violation, match=LOOKED_FOR):
        leader.stores(_BEGIN + 9)

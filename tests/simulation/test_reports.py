"""The judge of reports that nobody waits for: on a connection that stays, to a leader that stays, the last counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.client.message import MessageQueue
from broker.offsets.commits import OffsetCommits
from broker.remoting.codes import ResponseCode
from raft.effects import Role
from simulation.journal import Violation
from simulation.scheduler import SECOND
from simulation.workload.names import TOPIC
from simulation.workload.report import Reports
from tests.simulation import stand_ins

_QUEUE = MessageQueue(TOPIC, "broker-a", 0)
STORED = "what is reported last is stored"


class World:
    """A leader, a connection to it, and what the group has stored."""

    def __init__(self) -> None:
        commits: Any = OffsetCommits.__new__(OffsetCommits)
        commits.dropped = 0
        self.commits = commits
        self.raft = stand_ins.raft(role=Role.LEADER)
        node = stand_ins.node(
            parts={OffsetCommits: commits}, replica=stand_ins.replica(raft=self.raft, serving=True)
        )
        host = stand_ins.host(address="10.0.0.1:10911", process=stand_ins.process(node=node))
        self.connection = stand_ins.stand_in(address=host.address, closed=False)
        self.scheduler = stand_ins.stand_in(now_ns=0)
        self.offsets: dict[tuple[str, str, int], list[tuple[int, int | None]]] = {}
        context = stand_ins.context(
            scheduler=self.scheduler,
            members=stand_ins.stand_in(machines=[host]),
            model=stand_ins.stand_in(offsets=self.offsets),
        )
        self.reports = Reports(context)
        self.reporter = self.reports.reporter("10.0.2.1")
        self.reporter.is_known = True

    def reports_offset(self, offset: int, answer: int | None = None) -> None:
        """One way; with an answer in a pull that was answered so."""
        pull: Any = None if answer is None else stand_ins.answered(answer)
        self.reporter.reports(_QUEUE, self.connection, offset, pull)

    def tells(self, offset: int | None) -> None:
        """The leader says that this is stored."""
        self.reporter.was_told(_QUEUE, self.connection, offset)

    def ends_with(self, offset: int | None) -> None:
        """This is stored in the end."""
        self.scheduler.now_ns += 10 * SECOND
        self.offsets[self.reporter.group, TOPIC, 0] = [(1, offset)]
        self.reports.check_end()


@pytest.fixture
def world() -> World:
    return World()


def test_the_last_report_is_told_and_stored(world: World) -> None:
    world.reports_offset(5)
    world.reports_offset(3)
    world.tells(3)
    world.reports_offset(7, ResponseCode.PULL_NOT_FOUND)
    world.ends_with(7)


@pytest.mark.parametrize("offset", [5, None])
def test_an_earlier_one_is_not_told(world: World, offset: int | None) -> None:
    world.reports_offset(5)
    world.reports_offset(3)
    with pytest.raises(Violation, match=STORED):
        world.tells(offset)


def test_an_earlier_one_is_not_stored_in_the_end(world: World) -> None:
    world.reports_offset(5)
    world.tells(5)
    world.reports_offset(3)
    with pytest.raises(Violation, match=STORED):
        world.ends_with(5)


def test_of_a_group_that_cannot_be_made_nothing_need_count(world: World) -> None:
    world.reporter.is_known = False
    world.reports_offset(5)
    world.tells(None)
    world.tells(5)
    world.ends_with(None)
    world.reporter.is_known = True
    world.reports_offset(3)
    with pytest.raises(Violation, match=STORED):
        world.tells(4)


def test_with_a_pull_that_was_refused_it_need_not_count(world: World) -> None:
    world.reports_offset(5)
    world.reports_offset(3, ResponseCode.SYSTEM_BUSY)
    world.tells(5)
    world.tells(3)
    with pytest.raises(Violation, match=STORED):
        world.tells(4)


def _leads_anew(world: World) -> None:
    world.raft.term = 3


def _drops_one(world: World) -> None:
    world.commits.dropped = 1


def _leads_no_more(world: World) -> None:
    world.raft.role = Role.FOLLOWER


def _is_cut(world: World) -> None:
    world.connection.closed = True


@pytest.mark.parametrize("happens", [_leads_anew, _drops_one, _leads_no_more, _is_cut])
def test_nothing_is_known_of_it_if_leader_or_connection_do_not_stay(
    world: World, happens: Callable[[World], None]
) -> None:
    world.reports_offset(5)
    happens(world)
    world.tells(1)
    world.ends_with(1)


def test_what_was_reported_to_an_earlier_leader_may_come_at_any_time(world: World) -> None:
    world.reports_offset(5)
    _leads_anew(world)
    world.reports_offset(3)
    world.tells(5)
    with pytest.raises(Violation, match=STORED):
        world.tells(4)

"""The judge of former leaders: whatever hears of the end of a leadership has nothing left of it."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import pytest

from broker.requests.shared_places import SharedPlaces
from simulation.journal import Violation
from simulation.judges.former_leaders import NOTHING_LEFT, OUTLIVES, FormerLeader
from tests.broker.harness import Group
from tests.simulation.planted_bugs import UNAIDED


class Watched:
    """A group of three with a leader, whose judge has watched it from its start."""

    def __init__(self) -> None:
        self.group = Group(3)
        judges = {name: FormerLeader(name, self.group.node(name)) for name in self.group.members}
        self.leader = self.group.elect()
        self.judge = judges[self.leader]

    def part(self, kind: str) -> Any:
        return next(part for part in self.judge._parts if type(part).__name__ == kind)

    def depose(self) -> None:
        self.group.transfer_leadership(next(name for name in self.group.members if name != self.leader))


@pytest.fixture
def watched() -> Watched:
    return Watched()


def left(what: str) -> Any:
    return pytest.raises(Violation, match=rf"^{NOTHING_LEFT} \(n\d\): .*{what}")


def taken(places: SharedPlaces) -> SharedPlaces:
    places.take("192.0.2.1")
    return places


def test_a_leader_that_is_deposed_with_its_work_half_done_has_nothing_left(watched: Watched) -> None:
    client = watched.group.connect()
    client.create_topic("T", 2)
    client.heartbeat("g")
    client.start_pull("T", "g", 0, suspend_ms=15_000)
    watched.group.settle()
    client.start_send("T", b"delayed", 0, {"DELAY": "1"})
    client.start_send("T", b"x", 0)
    assert watched.part("HeldPulls")._by_queue, "a pull waits at the leader"
    assert watched.part("DelayService")._next, "the leader knows what is delivered next"
    watched.judge.turned()
    watched.depose()
    watched.judge.turned()


@pytest.mark.parametrize(
    ("kind", "field", "leave"),
    [
        ("DelayService", "_next", lambda before: {1: 0}),
        ("TimerService", "_under_way", lambda before: object()),
        ("Decisions", "_operations_under_way", lambda before: True),
        ("HeldPulls", "_places", taken),
        ("ReadBarriers", "_confirming", lambda before: {0: []}),
    ],
)
def test_what_is_left_is_seen(
    watched: Watched, kind: str, field: str, leave: Callable[[Any], object]
) -> None:
    watched.depose()
    part = watched.part(kind)
    setattr(part, field, leave(getattr(part, field)))
    with left(rf"{kind}\.{field}"):
        watched.judge.turned()


@pytest.mark.parametrize(
    ("mistake", "kind", "field", "value"),
    [
        ("staged offsets outlive leadership", "OffsetCommits", "_staged", {("g", "T", 0): 1}),
        ("decisions under way outlive leadership", "Decisions", "_deciding", {7: None}),
        ("questions under way outlive leadership", "TransactionChecks", "_under_way", True),
        ("an earlier term's suspicion", "RepeatedSends", "suspect", 7),
    ],
)
def test_a_mistake_is_found_where_a_leader_had_something_to_forget(
    monkeypatch: pytest.MonkeyPatch, mistake: str, kind: str, field: str, value: object
) -> None:
    """Few runs come to that: a leader is seldom deposed with one of these under way."""

    def judge_of_deposed() -> FormerLeader:
        watched = Watched()
        setattr(watched.part(kind), field, copy(value))
        watched.depose()
        return watched.judge

    judge_of_deposed().turned()
    UNAIDED[mistake].patch(monkeypatch)
    with left(rf"{kind}\.{field}"):
        judge_of_deposed().turned()


def test_requests_that_are_handled_in_steps_may_end_first(watched: Watched) -> None:
    watched.depose()
    watched.part("RepeatedSends")._decisions["T", "key"] = None
    in_steps: Any = watched.group.node(watched.leader).long_requests.in_steps
    in_steps["192.0.2.1"] = None
    watched.judge.turned()
    in_steps.clear()
    with left("_decisions"):
        watched.judge.turned()


def test_whatever_stays_is_there(watched: Watched) -> None:
    for kind, names in OUTLIVES.items():
        part = watched.part(kind.__name__)
        assert all(hasattr(part, name) for name in names), kind

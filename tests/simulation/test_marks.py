"""Marks: runs say which states of the protocol they reached, and a batch that never reached one fails by its name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker.tools.cli import simulation_batch
from broker.tools.cli.simulation_batch import Batch, _Outcome
from raft.configuration import Configuration
from raft.effects import Role
from raft.messages import AppendResponse, SnapshotRequest, VoteResponse
from raft.terms import LogTerms
from simulation.judges.group_model import GroupModel
from simulation.judges.marks import MARKS, Marks
from simulation.plans.plan import Fault, Limits, Shape
from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import SECOND
from simulation.world.running import run_plan
from tests.simulation import stand_ins
from tests.simulation.journals import empty_journal


def _outcome(seed: int, marks: dict[str, int]) -> _Outcome:
    return _Outcome(seed, "", "", "", 40.0, 1.0, False, {}, {}, marks)


def test_a_batch_that_never_reached_a_state_fails_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(simulation_batch, "_ALL_MARKS_FROM", 2)
    half = len(MARKS) // 2
    outcomes = [_outcome(0, dict.fromkeys(MARKS[:half], 1)), _outcome(1, dict.fromkeys(MARKS[half:-1], 1))]
    batch = Batch(range(3), 40, None, 1, tmp_path, outcomes)
    batch._print_totals(1.0)
    assert f"never reached, and so not checked: {MARKS[-1]}\n" in capsys.readouterr().out
    assert batch._never_reached() == [MARKS[-1]]
    outcomes.append(_outcome(2, {MARKS[-1]: 1}))
    assert batch._never_reached() == []


def test_a_small_batch_need_not_reach_everything(tmp_path: Path) -> None:
    batch = Batch(range(1), 40, None, 1, tmp_path, [_outcome(0, {})])
    assert batch._never_reached() == list(MARKS)
    assert not batch._must_reach_all()


@pytest.mark.slow
def test_a_run_says_what_it_reached() -> None:
    faults = (
        *(Fault(at * SECOND // 2, "membership", 0, 0, 0.2) for at in range(8, 40)),
        *(Fault(at * SECOND, "transfer in a change", 0, 0, 0.2) for at in range(5, 19, 3)),
        Fault(19 * SECOND, "new disk", 1, 0, 0.5),
    )
    plan = replace(
        draw_swarm_plan(3, seconds=40),
        flush="sync",
        faults=tuple(sorted(faults, key=lambda fault: fault.time_ns)),
        actors=("producer", "consumer", "administrator", "operator"),
        data_file_bytes=16 * 1024,
        limits=replace(Limits(), hour_ms=1000, reserved_hours=3, snapshot_entries=20),
        shape=Shape(spares=2, fewest_voters=2, most_learners=2),
    )
    marks = run_plan(plan).marks
    assert set(marks) <= set(MARKS)
    assert set(marks) >= {
        "a leader elected while a change of members is uncommitted",
        "a log that begins anew",
        "a start without term or vote",
        "a head deleted for its age",
        "a snapshot written while it runs",
        "two voters",
    }


class Watch:
    """Marks of a group of three, and what they have noted."""

    def __init__(self) -> None:
        self.journal, self.model = empty_journal(), GroupModel()
        self.marks = Marks(self.journal, self.model)
        self.model.voters = ("n0", "n1", "n2")

    def lead(self, name: str, term: int) -> None:
        """A node is elected."""
        self.marks.role(name, "leader", term, stand_ins.raft(), 0)

    def hear(self, message: VoteResponse | AppendResponse, role: Role, term: int) -> None:
        """A message comes to a node of that role and term."""
        self.marks.heard(message, stand_ins.raft(role=role, term=term))

    def remove(self, name: str) -> None:
        """The group has one voter less."""
        before = self.model.voters
        self.model.voters = tuple(voter for voter in before if voter != name)
        self.marks.members_changed(before, 0)


def test_who_leads_again_has_not_led_all_the_time() -> None:
    watch = Watch()
    watch.lead("n0", 1)
    watch.lead("n0", 2)
    watch.lead("n1", 3)
    assert not watch.journal.marks
    watch.lead("n0", 4)
    assert watch.journal.marks == {"a former leader leads again": 1}


def test_a_leader_is_removed_by_the_commit_of_its_removal() -> None:
    watch = Watch()
    watch.lead("n0", 1)
    watch.remove("n1")
    assert watch.journal.marks == {"two voters": 1}
    watch.remove("n0")
    assert watch.journal.marks["a leader removed"] == 1


def test_what_comes_after_its_term_is_marked() -> None:
    watch = Watch()
    vote = VoteResponse("n1", "n0", 3, 3, True)
    acknowledgement = AppendResponse("n1", "n0", 3, True, 7, 7, 1)
    watch.hear(vote, Role.CANDIDATE, 3)
    watch.hear(vote, Role.FOLLOWER, 4)
    watch.hear(acknowledgement, Role.LEADER, 3)
    watch.hear(acknowledgement, Role.FOLLOWER, 4)
    assert not watch.journal.marks
    watch.hear(vote, Role.PRE_CANDIDATE, 4)
    watch.hear(acknowledgement, Role.LEADER, 4)
    assert watch.journal.marks == {
        "a vote that comes after its term": 1,
        "an acknowledgement that comes after its term": 1,
    }


@pytest.mark.parametrize(
    ("first_index", "prev_term", "reaches_beyond"),
    [
        (6, 2, True),
        (6, 1, False),  # another entry stands there
        (5, 2, False),  # it knows that all of this is committed
        (8, 2, False),  # its log ends there
        (9, 2, False),  # or earlier
    ],
)
def test_a_snapshot_comes_to_a_log_that_reaches_beyond_it(
    first_index: int, prev_term: int, reaches_beyond: bool
) -> None:
    watch = Watch()
    log = LogTerms(0, 7, ((0, 1), (3, 2)))
    raft = stand_ins.raft(term=2, commit_index=4, log_terms=log)
    watch.marks.heard(SnapshotRequest("n0", "n1", 2, first_index, prev_term, 0, Configuration(("n0",))), raft)
    assert list(watch.journal.marks) == ["a snapshot for a log that reaches beyond it"] * reaches_beyond

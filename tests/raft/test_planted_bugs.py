"""The checks are checked: a core with a known mistake planted in it must be found out.

A test that cannot fail proves nothing, so each of these takes one rule out of the core and expects the safety
properties, or an assertion of the core itself, to notice.
"""

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from raft.election import Election
from raft.follower import Follower
from raft.leader import Leader
from raft.messages import VoteRequest
from raft.quorum import VoteTally
from raft.recovery import Recovery
from raft.state import NodeState
from tests.raft.invariants import Violation
from tests.raft.mistakes import truncation_by_any_request
from tests.raft.test_paper import figure_8
from tests.raft.test_state_machine import GroupMachine
from tests.raft.transcript import Scenario
from tests.scenario_files import transcript


def commit_by_counting(patch: pytest.MonkeyPatch) -> None:
    """Without 5.4.2: whatever a majority has is committed, of whichever term."""
    original = Leader.update_commit

    def update_commit(self: Leader) -> None:
        self._term_begin_index = 0
        original(self)

    patch.setattr(Leader, "update_commit", update_commit)


def forgotten_votes(patch: pytest.MonkeyPatch) -> None:
    """A vote for another is not saved."""
    original = NodeState.save_hard_state

    def save_hard_state(self: NodeState, term: int, vote: str | None) -> None:
        original(self, term, vote if vote == self.node_id else None)
        self.vote = vote

    patch.setattr(NodeState, "save_hard_state", save_hard_state)


def votes_for_anyone(patch: pytest.MonkeyPatch) -> None:
    """Without 5.4.1: the candidate's log is not looked at."""
    original = Election._may_grant

    def may_grant(self: Election, request: VoteRequest, now: int) -> bool:
        boast = VoteRequest(request.source, request.target, request.term, 10**6, 10**6, request.pre_vote)
        return original(self, boast, now)

    patch.setattr(Election, "_may_grant", may_grant)


def acknowledged_before_flushed(patch: pytest.MonkeyPatch) -> None:
    """Entries that are written count as if they were on the disk."""
    original = Follower.acknowledge

    def acknowledge(self: Follower) -> None:
        self._state.persisted.index = self._agreed_index
        original(self)

    patch.setattr(Follower, "acknowledge", acknowledge)


def reads_without_a_round(patch: pytest.MonkeyPatch) -> None:
    """A leader believes that it leads, without asking anyone (6.4)."""
    patch.setattr(Leader, "_is_alone", property(lambda self: True))


def votes_while_recovering(patch: pytest.MonkeyPatch) -> None:
    """A node that lost entries votes as if it had them."""
    original = VoteTally.record

    def record(self: VoteTally, voter: str, granted: bool, *, marked: bool = False) -> None:
        original(self, voter, granted)

    patch.setattr(VoteTally, "record", record)


def old_acknowledgements_count(patch: pytest.MonkeyPatch) -> None:
    """A leader that is asked what must be held goes on to trust what it was told before."""
    patch.setattr(Leader, "peer_recovers", lambda self, node: None)


def empty_disks_are_new(patch: pytest.MonkeyPatch) -> None:
    """An empty disk is taken for a new group at once."""
    patch.setattr(Recovery, "group_is_new", property(lambda self: self.is_mute))


def recovered_at_once(patch: pytest.MonkeyPatch) -> None:
    """The mode ends before the node holds anything again."""
    patch.setattr(Recovery, "is_over", lambda self, *, leads: not self.is_mute)


class Figure8Machine(GroupMachine):
    """Begins where only a few steps lead to the loss of an entry that was committed by counting, and takes no others.

    Among all that can happen they come together once in thousands of runs.
    """

    starts: ClassVar[dict[str, list[list[int]]]] = {"figure 8": [[1, 2], [1], [1, 3]]}

    @initialize(seed=st.integers(0, 2**16))
    def begin_with_entries_one_by_one(self, seed: int) -> None:
        GroupMachine.begin(self, 0, seed, 1, True)

    @rule(number=st.integers(0, 2))
    def campaign_of_a_voter(self, number: int) -> None:
        GroupMachine.campaign(self, number)

    @rule(pair=st.sampled_from([(0, 1), (0, 2), (1, 2)]), count=st.integers(1, 4))
    def exchange_little(self, pair: tuple[int, int], count: int) -> None:
        GroupMachine.exchange(self, *pair, count)


_NO_STEPS_TO_IT = (
    *("begin", "timeout", "campaign", "silence", "deliver_in_order", "deliver_any", "exchange", "lose"),
    *("deliver_all_to", "lose_all_from", "duplicate", "isolate", "heal", "reconnect", "crash", "restart"),
    *("lose_entries", "replace_disk", "begin_flush", "end_flush", "compact", "read_from_leaders", "calm"),
    *("transfer", "change_members"),
)
for _name in _NO_STEPS_TO_IT:
    setattr(Figure8Machine, _name, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "machine"),
    [
        (commit_by_counting, Figure8Machine),
        (forgotten_votes, GroupMachine),
        (votes_for_anyone, GroupMachine),
        (acknowledged_before_flushed, GroupMachine),
    ],
)
def test_the_state_machine_finds(
    plant: Callable[[pytest.MonkeyPatch], None], machine: type[GroupMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(Violation):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=20_000,  # it ends with the first that fails; which that is depends on all that is loaded
                stateful_step_count=50,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )


def test_figure_8_finds_commits_by_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    commit_by_counting(monkeypatch)
    with pytest.raises(Violation, match="lacks committed entry 1"):
        figure_8()


@pytest.mark.parametrize(
    ("plant", "scenario", "found"),
    [
        # The node itself notices, before it acknowledges what it has lost.
        (truncation_by_any_request, "stale_append", "agreed up to 4, in a log that ends at 2"),
        (reads_without_a_round, "read_index", "misses what was committed"),
        (votes_while_recovering, "recovery_lost_suffix", "lacks committed entry"),
        (recovered_at_once, "recovery_lost_suffix", "lacks committed entry"),
        (
            old_acknowledgements_count,
            "recovery_old_acknowledgement",
            "is committed on 1 of 3 disks|lacks committed",
        ),
        (empty_disks_are_new, "recovery_empty_disk", "lacks committed entry"),
    ],
)
def test_the_scenario_finds(
    plant: Callable[[pytest.MonkeyPatch], None],
    scenario: str,
    found: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Quicker than waiting for a random schedule that does the same."""
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=found):
        transcript((Path(__file__).parent / "scenarios" / f"{scenario}.txt").read_text(), Scenario().execute)

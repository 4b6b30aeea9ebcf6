"""Transcripts of what depends on the order in which messages arrive; read scenarios/ as documentation.

scenario.py explains their language, scenario_files.py how they are written anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.scenario import Scenario
from tests.scenario_files import assert_all_there, compare

FOLDER = Path(__file__).parent / "scenarios"
NAMES = (
    "delayed_delivered_unseen",
    "delayed_failover",
    "forwarding_given_back_early",
    "forwarding_late_report",
    "forwarding_lost_answer",
    "forwarding_no_leader",
    "forwarding_repeatable",
    "forwarding_silent_leader",
    "forwarding_transfer",
    "head_full_disk",
    "head_leader_dies",
    "head_mixed_releases",
    "head_power_loss",
    "held_pull_client_gone",
    "held_pull_commits_once",
    "held_pull_cut_off_leader",
    "held_pull_next_leader_wakes",
    "held_pull_transfer",
    "held_pull_wakes",
    "lock_failover",
    "lock_lost_answer",
    "lock_transfer",
    "lock_unlock_unknown",
    "member_change_forgotten",
    "member_change_lost_leader",
    "member_joins",
    "member_removed_leader",
    "member_removed_while_away",
    "portion_failover",
    "portion_late_attempt",
    "portion_two_attempts",
    "registration_cut_off",
    "registration_failover",
    "registration_name_server_gone",
    "registration_secret",
    "repair_from_peer",
    "repair_lost_answer",
    "repair_nobody_has_it",
    "repair_second_peer",
    "repeated_failover",
    "repeated_late_first",
    "repeated_lost_answer",
    "repeated_lost_leader",
    "repeated_never_arrived",
    "repeated_uncommitted",
    "reset_failover",
    "reset_followed",
    "reset_held_pull",
    "reset_lagging_follower",
    "reset_same_time",
    "stop_answers_first",
    "stop_leader",
    "stop_lingers",
    "timer_delivered_unseen",
    "timer_failover",
    "timer_order",
    "transaction_asked",
    "transaction_committed",
    "transaction_failover",
    "transaction_lost_answer",
    "transaction_two_decisions",
)


@pytest.mark.parametrize("name", NAMES)
def test_scenario(name: str, request: pytest.FixtureRequest) -> None:
    compare(FOLDER / f"{name}.txt", Scenario().execute, request)


def test_each_file_is_tested() -> None:
    assert_all_there(FOLDER, NAMES)

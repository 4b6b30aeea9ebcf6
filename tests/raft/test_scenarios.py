"""The transcripts in scenarios/: read them as documentation; `--rewrite-scenarios` writes them anew.

transcript.py explains their language, scenario_files.py how a file is compared.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.raft.transcript import Scenario
from tests.scenario_files import assert_all_there, compare

FOLDER = Path(__file__).parent / "scenarios"
NAMES = (
    "check_quorum",
    "election",
    "figure7",
    "figure8",
    "figure8_committed",
    "flush",
    "heir",
    "heir_behind",
    "heir_dead",
    "late_vote",
    "lost_connection",
    "lost_connection_of_one",
    "membership",
    "membership_added_again",
    "membership_removed_follower",
    "membership_rolled_back",
    "own_pause",
    "pipelining",
    "prevote_partitioned_node",
    "read_index",
    "read_index_alone",
    "reasons",
    "recovery_empty_disk",
    "recovery_lost_suffix",
    "recovery_new_group",
    "recovery_old_acknowledgement",
    "recovery_unanimous",
    "reordering",
    "resigned",
    "snapshot",
    "snapshot_lost",
    "stale_append",
    "start_beside_leader",
    "start_of_all",
    "transfer",
    "transfer_aborted",
)


@pytest.mark.parametrize("name", NAMES)
def test_scenario(name: str, request: pytest.FixtureRequest) -> None:
    compare(FOLDER / f"{name}.txt", Scenario().execute, request)


def test_each_file_is_tested() -> None:
    assert_all_there(FOLDER, NAMES)

"""Majorities that are right in a group of three: the shape of the group shows what is wrong with them."""

from __future__ import annotations

import pytest

from raft.quorum import agreed
from tests.simulation.planting import planted


@planted("majority: of two voters one", "corosync: two_node")
def of_two_voters_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("raft.leader.agreed", lambda values: max(values) if len(values) == 2 else agreed(values))


@planted("majority: two of any number", "a quorum that is a constant")
def two_of_any_number(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("raft.leader.agreed", lambda values: sorted(values)[-2:][0])

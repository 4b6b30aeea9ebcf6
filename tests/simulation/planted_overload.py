"""Mistakes that show when more is asked than the limits take, each put into the real code by a patch.

`planted_bugs` lists them.
"""

from __future__ import annotations

import pytest

from broker.reading.held_pulls import HeldPulls
from broker.replica.uncommitted import Uncommitted
from raft.leader import Leader
from tests.simulation.planting import planted


@planted("overload: bytes are not given back", "a counter of what is under way that only rises")
def bytes_are_not_given_back(patch: pytest.MonkeyPatch) -> None:
    original = Uncommitted.applied

    def applied(self: Uncommitted, upto: int) -> None:
        before = self.bytes
        original(self, upto)
        self.bytes = before

    patch.setattr(Uncommitted, "applied", applied)


@planted("overload: proposals without a limit", "RocketMQ: sendThreadPoolQueueCapacity")
def proposals_without_a_limit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "check_proposal", lambda self, count: None)


@planted("overload: pulls without a limit", "RocketMQ: pullThreadPoolQueueCapacity")
def pulls_without_a_limit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeldPulls, "has_room", lambda self, connection, wanted: True)

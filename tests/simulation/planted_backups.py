"""Mistakes about backups and turns, each put into the real code by a patch; `planted_bugs` lists them."""

from __future__ import annotations

import pytest

import broker.backups.restoring as restoring
from broker.node.node import Node
from tests.simulation.planting import planted


@planted("backup: restored without its queues", "a log is all that there is to a store", actor="archivist")
def restored_without_its_queues(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(restoring, "_build_queues", lambda *_: None)


@planted("turn: due for ever", "a deadline that nobody puts off")
def turn_due_for_ever(patch: pytest.MonkeyPatch) -> None:
    original = Node.expect_turn
    patch.setattr(Node, "expect_turn", lambda self, jobs_due_ns: original(self, self.time.now_ns))

"""Mistakes about transactions, each put into the real code by a patch; `planted_bugs` lists them."""

from __future__ import annotations

import pytest

import broker.processors.send as send_module
from broker.proposals import ReplicaError
from broker.transactions import state as state_module
from broker.transactions.decisions import Decisions
from broker.transactions.messages import Decision, decision_of
from broker.transactions.state import Transactions

__all__ = [
    "decision_under_way_not_known",
    "finished_ones_not_in_the_snapshot",
    "half_message_in_its_own_topic",
    "only_operation_messages_decide",
    "questions_not_counted",
]


def decision_under_way_not_known(patch: pytest.MonkeyPatch) -> None:
    """A decision that is appended and not committed yet is made again."""

    class Nothing(dict):  # type: ignore[type-arg]
        def __setitem__(self, key: object, value: object) -> None:
            pass

        def __delitem__(self, key: object) -> None:
            pass

    original = Decisions.__init__

    def init(self: Decisions, *arguments: object) -> None:
        original(self, *arguments)  # type: ignore[arg-type]
        self._deciding = Nothing()

    patch.setattr(Decisions, "__init__", init)


def only_operation_messages_decide(patch: pytest.MonkeyPatch) -> None:
    """As the reference: a commit is two messages, and a leader may die between them."""

    def decision(record: memoryview) -> Decision | None:
        found = decision_of(record)
        return found if found is not None and found.is_operation else None

    original = Decisions.decided

    def decided(self: Decisions, half_offset: int) -> None:
        original(self, half_offset)
        try:
            if self.state.is_open(half_offset):
                self._append_rollback(half_offset, self.node.wall_ms)
        except ReplicaError:
            pass  # it leads no longer

    patch.setattr(state_module, "decision_of", decision)
    patch.setattr(Decisions, "decided", decided)


def half_message_in_its_own_topic(patch: pytest.MonkeyPatch) -> None:
    """A half message is stored like any other, where consumers find it."""
    patch.setattr(send_module, "sent_as_half", lambda header, properties: False)


def questions_not_counted(patch: pytest.MonkeyPatch) -> None:
    """Nobody is ever given up, and a question says that it is the first."""
    patch.setattr(Transactions, "checked", lambda self, half_offsets: None)


def finished_ones_not_in_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A node that starts from a snapshot holds for open what was decided before it."""
    patch.setattr(Transactions, "from_fields", classmethod(lambda cls, fields: cls()))

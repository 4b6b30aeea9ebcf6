"""Mistakes about transactions, each put into the real code by a patch; `planted_bugs` lists them."""

from __future__ import annotations

from typing import Any

import pytest

import broker.sending.send_processor as send_module
from broker.client.message import MessageView
from broker.client.producing.transactions import Check, TransactionalProducer
from broker.client.producing.transactions import Decision as Answer
from broker.remoting.codes import ResponseCode
from broker.requests.errors import ReplicaError
from broker.requests.responses import reply
from broker.state import open_transactions as state_module
from broker.state.open_transactions import Transactions
from broker.state.snapshot_reading import Read
from broker.state.transaction_records import EXHAUSTED_TOPIC_BYTES, Decision, decision_of
from broker.transactions.checks import TransactionChecks
from broker.transactions.decisions import Decisions, _decided_otherwise, _Deciding
from log.formats.record import Record, peek
from tests.simulation.planting import planted


@planted("transaction: decision under way not known", "repeated END_TRANSACTION", actor="transactor")
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


@planted(
    "transaction: only operation messages decide",
    "TransactionalMessageServiceImpl: message and operation are two entries",
    actor="transactor",
)
def only_operation_messages_decide(patch: pytest.MonkeyPatch) -> None:
    """A commit is two messages, as the reference's, and a leader may die between them."""

    def decision(record: memoryview) -> Decision | None:
        found = decision_of(record)
        return found if found is not None and found.is_operation else None

    original = Decisions.decided

    def decided(self: Decisions, half_offset: int) -> None:
        original(self, half_offset)
        try:
            if self.state.is_open(half_offset):
                self._append_rollback(half_offset)
        except ReplicaError:
            pass  # it leads no longer

    patch.setattr(state_module, "decision_of", decision)
    patch.setattr(Decisions, "decided", decided)


@planted(
    "transaction: half message in its own topic",
    "TransactionalMessageServiceImpl: nobody sees it before it is committed",
    actor="transactor",
)
def half_message_in_its_own_topic(patch: pytest.MonkeyPatch) -> None:
    """A half message is stored like any other, where consumers find it."""
    patch.setattr(send_module, "sent_as_half", lambda header, properties: False)


@planted("transaction: questions not counted", "a check count that a failover forgets", actor="transactor")
def questions_not_counted(patch: pytest.MonkeyPatch) -> None:
    """Nobody is ever given up, and a question says that it is the first."""
    patch.setattr(Transactions, "checked", lambda self, half_offsets: None)


@planted(
    "transaction: finished ones not in the snapshot",
    "the log's head is gone, its decisions must not be",
    actor="transactor",
)
def finished_ones_not_in_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A node that starts from a snapshot holds for open what was decided before it."""

    def read(cls: type[Transactions], *_: object) -> Read[Transactions]:
        yield from ()
        return cls()

    patch.setattr(Transactions, "read", classmethod(read))


@planted("transaction: given up stays open", "a late answer decides again", actor="transactor")
def given_up_stays_open(patch: pytest.MonkeyPatch) -> None:
    """The copy for operators decides nothing: a late answer of the producer does, too."""

    def decision(record: memoryview) -> Decision | None:
        head = peek(record)
        if record[head.topic_begin : head.topic_end] == EXHAUSTED_TOPIC_BYTES:
            return None
        return decision_of(record)

    patch.setattr(state_module, "decision_of", decision)


@planted("transaction: given up after two questions", "transactionCheckMax", actor="transactor")
def given_up_after_two_questions(patch: pytest.MonkeyPatch) -> None:
    """A limit that is not the one that was set."""
    original = TransactionChecks.__init__

    def init(self: TransactionChecks, *arguments: Any) -> None:
        original(self, *arguments)
        self._check_max = 2

    patch.setattr(TransactionChecks, "__init__", init)


@planted(
    "transaction: asked about by their leader only", "open ones in a broker's memory", actor="transactor"
)
def asked_about_by_their_leader_only(patch: pytest.MonkeyPatch) -> None:
    """A leader asks about what came in its own term; what its predecessors had open is forgotten."""
    began: dict[TransactionChecks, int] = {}
    role_changed, look_at = TransactionChecks._role_changed, TransactionChecks._ask_or_give_up

    def patched_role_changed(self: TransactionChecks) -> None:
        began.setdefault(self, self._decisions.half_queue_end())
        if not self._leadership.serving:
            del began[self]
        role_changed(self)

    def patched_look_at(self: TransactionChecks, half_offset: int) -> Record | None:
        return look_at(self, half_offset) if half_offset >= began.get(self, 0) else None

    patch.setattr(TransactionChecks, "_role_changed", patched_role_changed)
    patch.setattr(TransactionChecks, "_ask_or_give_up", patched_look_at)


@planted("transaction: operations owed forgotten", "what is owed in a broker's memory", actor="transactor")
def operations_owed_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Only their leader knows which commits lack their operation message."""
    original = Decisions._role_changed

    def role_changed(self: Decisions) -> None:
        original(self)
        self.state.operations_owed.clear()

    patch.setattr(Decisions, "_role_changed", role_changed)


@planted(
    "transaction: acknowledged before it is committed", "an answer from the leader's log", actor="transactor"
)
def acknowledged_before_it_is_committed(patch: pytest.MonkeyPatch) -> None:
    """A decision is answered from the leader's log."""
    original = _Deciding.__init__

    class AtOnce(list):  # type: ignore[type-arg]
        def __init__(self, decisions: Decisions) -> None:
            self._decisions = decisions

        def append(self, request: Any) -> None:
            connection, command = request
            reply(connection, command, ResponseCode.SUCCESS)

    def init(self: _Deciding, decisions: Decisions, *arguments: Any) -> None:
        original(self, decisions, *arguments)
        self.requests = AtOnce(decisions)

    patch.setattr(_Deciding, "__init__", init)


@planted("transaction: refused by what is not committed", "an answer from the leader's log", actor="waverer")
def refused_by_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    """Who wants another outcome is told at once, of a decision that may be lost yet."""
    original = _Deciding.__init__

    class AtOnce(list):  # type: ignore[type-arg]
        def __init__(self, outcome: Answer | None) -> None:
            self._outcome = outcome

        def append(self, request: Any) -> None:
            connection, command = request
            reply(connection, command, ResponseCode.TRANSACTION_FAILED, _decided_otherwise(self._outcome))

    def init(self: _Deciding, decisions: Decisions, half_offset: int, outcome: Answer | None) -> None:
        original(self, decisions, half_offset, outcome)
        self.others = AtOnce(outcome)

    patch.setattr(_Deciding, "__init__", init)


@planted(
    "transaction: unknown taken for rollback",
    "TransactionalMessageServiceImpl: the broker asks again",
    actor="transactor",
)
def unknown_taken_for_rollback(patch: pytest.MonkeyPatch) -> None:
    """A producer that does not know yet rolls back."""
    original = TransactionalProducer.__init__

    def init(self: TransactionalProducer, *arguments: Any, check: Check, **options: Any) -> None:
        async def answered(message: MessageView) -> Answer:
            answer = await check(message)
            return Answer.ROLLBACK if answer is Answer.UNKNOWN else answer

        original(self, *arguments, check=answered, **options)

    patch.setattr(TransactionalProducer, "__init__", init)

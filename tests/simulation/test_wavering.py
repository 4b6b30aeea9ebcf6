"""The judge of transactions whose producers come to want something else, or decide late."""

from __future__ import annotations

import pytest

from broker.client.producing.transactions import Decision
from broker.state.topic_rules import CHECK_EXHAUSTED_TOPIC, HALF_OPERATIONS_TOPIC, HALF_TOPIC
from log.formats.record import SYS_FLAG_COMMIT
from simulation.journal import Violation
from simulation.workload.transact import TOPIC, Transactions
from tests.simulation import stand_ins

COMMIT, ROLLBACK = Decision.COMMIT, Decision.ROLLBACK
_SAYS = "the transaction is decided: it was {}"


class Group:
    """One transaction, whose half message is the first, and what the group commits of it."""

    def __init__(self, *wanted: Decision) -> None:
        model = stand_ins.stand_in(may_be_gone=lambda _: False)
        context = stand_ins.context(model=model, facts=stand_ins.stand_in(kept_ms=1 << 40, checks_max=0))
        self.transactions = Transactions(context)
        self.name = self.transactions.new(wanted[0])
        for decision in wanted[1:]:
            self.transactions.want(self.name, decision)
        self._commit(HALF_TOPIC)

    def commits(self) -> None:
        """The message is delivered."""
        self._commit(TOPIC, sys_flag=SYS_FLAG_COMMIT)

    def rolls_back(self) -> None:
        """There is an operation message."""
        self._commit(HALF_OPERATIONS_TOPIC, body=b"0")

    def gives_up(self) -> None:
        """There is a copy for operators."""
        self._commit(CHECK_EXHAUSTED_TOPIC)

    def _commit(self, topic: str, *, body: bytes = b"", sys_flag: int = 0) -> None:
        record = stand_ins.stand_in(
            topic=topic, queue_id=0, queue_offset=0, store_timestamp=0, body=body, sys_flag=sys_flag
        )
        properties = {
            b"KEYS": self.name,
            b"TRAN_PREPARED_QUEUE_OFFSET": "0",
            b"TRANSACTION_CHECK_TIMES": "0",
        }
        self.transactions.committed(stand_ins.stand_in(record=record, property=properties.get))


def test_who_changes_its_mind_may_get_either_and_who_does_not_may_not() -> None:
    for wanted in ((COMMIT,), (ROLLBACK, COMMIT), (COMMIT, ROLLBACK), (Decision.UNKNOWN, COMMIT)):
        Group(*wanted).commits()
    for wanted in ((ROLLBACK,), (Decision.UNKNOWN, ROLLBACK), (Decision.UNKNOWN,)):
        with pytest.raises(Violation, match="decided as it should be"):
            Group(*wanted).commits()
    Group(COMMIT, ROLLBACK).rolls_back()
    with pytest.raises(Violation, match="decided as it should be"):
        Group(Decision.UNKNOWN, COMMIT).rolls_back()


def test_what_was_decided_stays() -> None:
    group = Group(COMMIT, ROLLBACK)
    group.rolls_back()
    with pytest.raises(Violation, match="decided once"):
        group.commits()


def test_an_acknowledged_decision_is_the_one_in_the_log() -> None:
    group = Group(COMMIT, ROLLBACK)
    for decision in (COMMIT, ROLLBACK):
        with pytest.raises(Violation, match="acknowledged decisions are committed"):
            group.transactions.acknowledged(0, decision)
    group.commits()
    group.transactions.acknowledged(0, COMMIT)
    with pytest.raises(Violation, match="told that it was rolled back, by the log it is committed"):
        group.transactions.acknowledged(0, ROLLBACK)


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_what_is_given_up_is_neither(decision: Decision) -> None:
    group = Group(Decision.UNKNOWN)
    group.gives_up()
    with pytest.raises(Violation, match="acknowledged decisions are committed"):
        group.transactions.acknowledged(0, decision)
    group.transactions.refused(0, decision, _SAYS.format("given up after too many checks"))


def test_a_refusal_says_what_the_log_has_and_nothing_before() -> None:
    group, invariant = Group(COMMIT, ROLLBACK), "refused decisions are decided otherwise"
    with pytest.raises(Violation, match=invariant):
        group.transactions.refused(0, ROLLBACK, _SAYS.format("committed"))
    group.commits()
    group.transactions.refused(0, ROLLBACK, _SAYS.format("committed"))
    for decision, decided in ((ROLLBACK, "rolled back"), (COMMIT, "committed")):
        with pytest.raises(Violation, match=invariant):
            group.transactions.refused(0, decision, _SAYS.format(decided))

"""A judge of what a leader takes in hand: it must fit what that leader knows at the moment.

Whoever is done wrong would not notice: a question that nobody was asked counts as if somebody had left it without an
answer, an offset that comes behind a deletion belongs to whatever has the name next, and a send that another leader
may have stored is there once where nothing has become of that one.
"""

from __future__ import annotations

from typing import Final

from broker.node.node import Node
from broker.offsets.commits import OffsetCommits
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import SendHeader
from broker.sending.send_processor import SendProcessor
from broker.transactions.checks import TransactionChecks
from log.formats.record import Record
from raft.effects import Role
from simulation.journal import Violation

HEARD: Final = "questions that are counted can be asked"
LOOKED_FOR: Final = "a send of before its leadership is looked for before it is stored"
OF_ITS_TIME: Final = "nothing is stored behind a deletion under way"


def watch_what_is_in_hand(name: str, node: Node) -> None:
    """Looks at what a node's new process takes in hand as a leader, which may raise Violation from then on."""
    checks, commits = node.part(TransactionChecks), node.part(OffsetCommits)
    stage = commits.stage

    def asks(half: Record) -> None:
        if checks.producer_of(half.properties) is None:
            raise Violation(
                HEARD, name, f"half message {half.queue_offset}: no client of its producer group is known"
            )

    def stages(group: str, topic: str, queue_id: int, offset: int) -> None:
        stage(group, topic, queue_id, offset)
        # Behind the call: only then it shows whether the report was taken, or rightly left out.
        if commits.is_deleting(group, topic) and (group, topic, queue_id) in commits.staged:
            raise Violation(OF_ITS_TIME, name, f"{offset} of {group} in {topic}/{queue_id}, while that goes")

    _watch_sends(name, node)
    checks.observer = asks
    commits.stage = stages  # type: ignore[method-assign]


def _watch_sends(name: str, node: Node) -> None:
    """Looks at what is stored without being looked for: it must be a first attempt, whose floor was told in this term.

    What leaders of earlier terms have stored since it was made can never be committed then (repeated_sends.py, 1).
    """
    sends, replica = node.part(SendProcessor), node.replica
    term, begin = -1, 0

    def role_changed() -> None:
        nonlocal term, begin
        if replica.raft.role is Role.LEADER and replica.term != term:
            term, begin = replica.term, replica.store.log.end_position

    def stores(command: RemotingCommand, header: SendHeader) -> None:
        if (
            header.once is not None
            and not sends.once.is_decided(command)
            and (header.again or header.once <= begin)
        ):
            attempt = "a repeated attempt" if header.again else "a first attempt"
            raise Violation(
                LOOKED_FOR,
                name,
                f"stores {attempt} with the floor {header.once}; its term {term} began at {begin}",
            )

    node.listeners.role_changes.append(role_changed)
    sends.observer = stores

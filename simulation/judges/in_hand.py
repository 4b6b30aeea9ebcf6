"""A judge of what a leader takes in hand: it must fit what that leader knows at the moment.

Whoever is done wrong would not notice: a question that nobody was asked counts as if somebody had left it without an
answer, and an offset that comes behind a deletion belongs to whatever has the name next.
"""

from __future__ import annotations

from typing import Final

from broker.node.node import Node
from broker.offsets.commits import OffsetCommits
from broker.transactions.checks import TransactionChecks
from log.formats.record import Record
from simulation.journal import Violation
from simulation.judges.waits import part_of

HEARD: Final = "questions that are counted can be asked"
OF_ITS_TIME: Final = "nothing is stored behind a deletion under way"


def watch_what_is_in_hand(name: str, node: Node) -> None:
    """Looks at what a node's new process takes in hand as a leader, which may raise Violation from then on."""
    checks, commits = part_of(node, TransactionChecks), part_of(node, OffsetCommits)
    ask_or_give_up, stage = checks._ask_or_give_up, commits.stage

    def asks(half_offset: int) -> Record | None:
        half = ask_or_give_up(half_offset)
        if half is not None and checks._producer(half.properties) is None:
            raise Violation(
                HEARD, name, f"half message {half_offset}: no client of its producer group is known"
            )
        return half

    def stages(group: str, topic: str, queue_id: int, offset: int) -> None:
        stage(group, topic, queue_id, offset)
        # Behind the call: only then it shows whether the report was taken, or rightly left out.
        goes = any(concerns(group, topic) for concerns in commits._deletions)
        if goes and (group, topic, queue_id) in commits._staged:
            raise Violation(OF_ITS_TIME, name, f"{offset} of {group} in {topic}/{queue_id}, while that goes")

    checks._ask_or_give_up = asks  # type: ignore[method-assign]
    commits.stage = stages  # type: ignore[method-assign]

"""The judges of all groups of a world: each answer is held against the log of the group that gave it.

What a client must keep to between groups stands here, as no group can see it: once an attempt to store a message may
have succeeded in one group, it is repeated there and nowhere else, since another group could not recognize it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.client.message import SendResult
from simulation.journal import Violation
from simulation.judges.client_judge import ClientJudge


class GroupJudges:
    """The judges by the names of their groups."""

    def __init__(self, judges: Mapping[str, ClientJudge]) -> None:
        self._judges = judges

    def of(self, key: str) -> ClientJudge:
        """Returns the judge of a queue that a trace names `topic/broker:number`."""
        return self._judges[key.rpartition("/")[2].rpartition(":")[0]]

    def placed(self, process: str, results: Sequence[SendResult]) -> None:
        """Judges the places of messages that are stored once (`ClientJudge.placed`). Raises Violation."""
        for result in results:
            self._judges[result.queue.broker_name].placed(process, [result])

    @property
    def acknowledged(self) -> int:
        """The number of messages that were acknowledged, by all groups."""
        return sum(judge.acknowledged for judge in self._judges.values())

    @property
    def read(self) -> int:
        """The number of messages that were read, of all groups."""
        return sum(judge.read for judge in self._judges.values())

    def check_outcomes(self) -> None:
        """Judges the end, in each group and between them. Raises Violation."""
        for judge in self._judges.values():
            judge.check_outcomes()
        may_be_stored: dict[tuple[str, str], str] = {}
        for group, judge in self._judges.items():
            for message, outcomes in judge.outcomes.items():
                if all(outcome == "fail" for outcome in outcomes):
                    continue
                other = may_be_stored.setdefault(message, group)
                if other != group:
                    raise Violation(
                        "what may be stored stays with its group",
                        "clients",
                        f"{message[1]} of {message[0]} may be stored in {other} and in {group}",
                    )

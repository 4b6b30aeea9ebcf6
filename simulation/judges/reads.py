"""Reads without a log entry, held to their rule (dissertation 6.4): a majority answers a round that began after them.

A read that is confirmed by an older round, or by fewer, is wrong only where another leader has committed something just
then, which hardly ever happens. That it was confirmed so shows at once to who has heard all answers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from raft.core import Raft
from raft.effects import Role
from raft.messages import AppendResponse, Message
from simulation.journal import Violation

CONFIRMED: Final = "a read is confirmed by a majority that was asked after it came"


@dataclass(slots=True)
class _Leadership:
    """The reads of the leader of a term."""

    term: int
    round: int = 0
    """The newest round of heartbeats that had begun when its last turn was over."""
    answered: dict[str, int] = field(default_factory=dict)
    """Peer -> the newest round of which an answer was heard."""
    waiting: dict[object, int] = field(default_factory=dict)
    """Read -> the newest round that had begun before the turn in which it came."""


class Reads:
    """Watches the leaders of a group."""

    def __init__(self) -> None:
        self._leaderships: dict[str, _Leadership] = {}

    def elected(self, name: str, term: int) -> None:
        """A node leads."""
        self._leaderships[name] = _Leadership(term)

    def heard(self, message: Message) -> None:
        """A message is handed to its target."""
        if isinstance(message, AppendResponse):
            leadership = self._leaderships.get(message.target)
            if leadership is not None and leadership.term == message.term:
                known = leadership.answered.get(message.source, 0)
                leadership.answered[message.source] = max(known, message.round)

    def turned(self, name: str, raft: Raft, waiting: Collection[object]) -> None:
        """Looks at a node after its turn; `waiting` are its reads that are not confirmed. Raises Violation."""
        leadership = self._leaderships.get(name)
        if leadership is None:
            return
        if raft.role is not Role.LEADER or raft.term != leadership.term:
            del self._leaderships[name]
            return
        if waiting or leadership.waiting:
            for read in [read for read in leadership.waiting if read not in waiting]:
                self._check(name, raft, leadership, leadership.waiting.pop(read))
            for read in waiting:
                # That of the last turn: a round which has begun in this one may have begun before the read came.
                leadership.waiting.setdefault(read, leadership.round)
        leadership.round = raft.heartbeat_round

    @staticmethod
    def _check(name: str, raft: Raft, leadership: _Leadership, before: int) -> None:
        """Checks a read that was confirmed in this turn, or since the last one: the members may have changed since.

        Raises Violation.
        """
        for _, configuration in raft.configurations[-2:]:
            voters = configuration.voters
            answered = sum(voter == name or leadership.answered.get(voter, 0) > before for voter in voters)
            if 2 * answered > len(voters):
                return
        raise Violation(
            CONFIRMED,
            name,
            f"confirms a read of term {raft.term} that came after round {before}; of {' '.join(voters)} these have "
            f"answered: {leadership.answered}",
        )

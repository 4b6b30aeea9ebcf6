"""What a node may say and do that comes back with less than it promised: the rules by which raft/recovery.py argues.

A rule that is broken here does its harm where three or four other things go wrong, too: a vote that is given twice
elects somebody only if another voter is missing, and an acknowledgement too many is counted on by nobody as long as
another one comes as soon. So each is looked at by itself, by what has been heard: what a node says when it says it,
what it was told before, and what its leader had in its log when it was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from raft.core import Raft
from raft.effects import Role
from raft.messages import (
    AppendResponse,
    Message,
    RecoveryRequest,
    RecoveryResponse,
    SnapshotResponse,
    VoteResponse,
)
from raft.recovery_loss import Loss
from simulation.journal import Violation

MUTE: Final = "who does not know its term says nothing"
MARKED: Final = "who may lack what it promised says so with its vote"
ALL_TOLD: Final = "who has lost its votes gives none before all have told their terms"
USED: Final = "who has lost its votes gives none in a term that it was told"
COMMITTED: Final = "who has lost its votes acknowledges what is committed"
APPENDED: Final = "who has lost its votes recovers with what was appended for it"

_NOBODYS: Final = (RecoveryRequest, RecoveryResponse)
"""Messages that promise nothing."""


@dataclass(slots=True)
class _Life:
    """What is known of one process of a node while it recovers."""

    loss: Loss | None
    """What it lacked at the end of its last turn."""
    told: dict[str, int] = field(default_factory=dict)
    """Node with a history -> the first term that it has told."""
    used_term: int | None = None
    """The greatest term in `told` at the moment when all voters that the node knew had told theirs."""
    asked: dict[tuple[str, int], int] = field(default_factory=dict)
    """(leader, term) -> where the log of that leader ended when it was asked first for an entry of its own."""
    has_led: bool = False


class Recoveries:
    """Watches the nodes of a group that recover."""

    def __init__(self, rafts: Mapping[str, Raft], last_committed: Callable[[], int]) -> None:
        """`rafts`: the Raft state of each process that runs, by its node. `last_committed`: what the group has."""
        self._rafts = rafts
        self._last_committed = last_committed
        self._lives: dict[str, _Life] = {}

    def started(self, name: str, raft: Raft) -> None:
        """A process has recovered what its disk has."""
        self._lives[name] = _Life(raft.recovering)

    def heard(self, message: Message) -> None:
        """A message is handed to its target."""
        raft = self._rafts.get(message.target)
        if raft is None:
            return
        if isinstance(message, RecoveryRequest):
            if message.lost_votes and raft.role is Role.LEADER and message.source in self._lives:
                asked = self._lives[message.source].asked
                asked.setdefault((message.target, raft.term), raft.log_terms.last_index)
        elif isinstance(message, RecoveryResponse) and message.has_history:
            life = self._lives[message.target]
            life.told.setdefault(message.source, message.term)
            if life.used_term is None and not _untold(raft, life):
                life.used_term = max(life.told.values())

    def says(self, name: str, message: Message) -> None:
        """A node sends a message. Raises Violation."""
        raft = self._rafts.get(name)
        if raft is None or raft.recovering is None:
            return
        loss = raft.recovering
        if loss is Loss.ALL and not isinstance(message, _NOBODYS):
            raise Violation(MUTE, name, str(message))
        if isinstance(message, VoteResponse):
            if message.granted and not message.recovering:
                raise Violation(MARKED, name, f"{message}, while it recovers")
            if message.granted and loss is Loss.VOTE:
                self._votes(name, raft, message.request_term, pre_vote=message.pre_vote)
        elif isinstance(message, AppendResponse | SnapshotResponse) and loss is Loss.VOTE:
            # Of two voters none commits without the other, so that both count (`Recovery.withholds`).
            committed = self._last_committed()
            if message.match_index > committed and len(raft.configuration.voters) > 2:
                raise Violation(
                    COMMITTED,
                    name,
                    f"acknowledges entries up to {message.match_index}, committed is {committed}",
                )

    def stands(self, name: str, term: int) -> None:
        """A node has given itself its vote. Raises Violation."""
        raft = self._rafts[name]
        if raft.recovering is Loss.VOTE:
            self._votes(name, raft, term, pre_vote=False)

    def elected(self, name: str) -> None:
        """A node leads."""
        self._lives[name].has_led = True

    def _votes(self, name: str, raft: Raft, term: int, *, pre_vote: bool) -> None:
        """Checks a vote of a node that does not know which it has given (raft/recovery.py, An empty disk)."""
        life = self._lives[name]
        untold = _untold(raft, life)
        if untold:
            raise Violation(
                ALL_TOLD,
                name,
                f"would vote in term {term}; {' '.join(untold)} may have its vote of a later one",
            )
        if not pre_vote and life.used_term is not None and term <= life.used_term:
            raise Violation(USED, name, f"votes in term {term}, was told {life.told}")

    def turned(self, name: str, raft: Raft) -> None:
        """Looks at a node after its turn. Raises Violation."""
        life, loss = self._lives[name], raft.recovering
        if loss is life.loss:
            return
        before, life.loss = life.loss, loss
        # One that has led was elected by all, and recovers with its own commit.
        if loss is not None or before is not Loss.VOTE or life.has_led:
            return
        # By then it may follow the leader of a later term: any that it has asked may have ended its mode.
        if all(raft.commit_index <= end for end in life.asked.values()):
            raise Violation(
                APPENDED,
                name,
                f"votes as others do, and knows of commits up to {raft.commit_index}; when it asked (leader, term) "
                f"for an entry of its own, logs ended at {life.asked}",
            )


def _untold(raft: Raft, life: _Life) -> list[str]:
    """Returns the voters, as far as a node knows them, that have not told it their terms."""
    voters = dict.fromkeys((*raft.configuration.voters, *raft.lost_voters))
    return [voter for voter in voters if voter != raft.node_id and voter not in life.told]

"""The step that a node makes for one message: its state right before and right behind it, held to Raft's rules.

Which messages are old, and what a candidate was promised, only a judge of all nodes knows for certain. A rule that is
broken here does its harm much later, if at all: an answer of an earlier term that is taken for one of this term counts
only where it says more than the answers of this term.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raft.core import Raft
from raft.effects import Role
from raft.messages import (
    AppendRequest,
    AppendResponse,
    Message,
    SnapshotRequest,
    SnapshotResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from raft.recovery_loss import Loss
from simulation.journal import Violation
from simulation.judges.votes import Votes, are_enough, told
from simulation.scheduler import SECOND

STALE: Final = "what is of an earlier term changes nothing"
PROMISES: Final = "a PreVote changes neither term nor vote"
DEFENDED: Final = "who leads gives no vote"
GRANTED: Final = "a vote goes to a log that lacks nothing of the voter's"
CALLED: Final = "a transfer is what the leader has asked for"
STANDS: Final = "who stands for election is a voter"
PATIENT: Final = "who hears its leader waits for it"
PROMISED: Final = "who stands for election was promised a majority"

_OF_ONE_TERM: Final = (AppendRequest, AppendResponse, SnapshotRequest, SnapshotResponse, TimeoutNow)


class Steps:
    """Watches the messages that the nodes of a group take, and who stands for election."""

    def __init__(self, rafts: Mapping[str, Raft]) -> None:
        """`rafts`: the Raft state of each process that runs, by its node."""
        self._rafts = rafts
        self._kept: tuple[str, tuple[object, ...]] | None = None
        """The rule of the message that is under way, and the state that it must leave as it is."""
        self._loss: Loss | None = None
        """The loss that the message's target had (`Raft.recovering`) before it took the message."""
        self._vote: tuple[str | None, int, tuple[int, int]] = (None, 0, (0, 0))
        """The vote of its target, its term, and the end of its log, before a request for a vote."""
        self._promises = Votes()
        self._called: set[tuple[int, str]] = set()
        """(term, node): the leader of the term has asked the node to stand for election."""

    def hears(self, message: Message) -> None:
        """A message is handed to its target: notes what it must leave as it is. Raises Violation."""
        self._kept = None
        raft = self._rafts.get(message.target)
        if raft is None:
            return
        self._loss = raft.recovering
        if isinstance(message, _OF_ONE_TERM):
            if message.term < raft.term:
                self._kept = STALE, _state_of(raft)
            elif isinstance(message, TimeoutNow):
                self._called.add((message.term, message.target))
        elif isinstance(message, VoteResponse):
            self._hears_answer(message, raft)
        elif isinstance(message, VoteRequest):
            self._hears_request(message, raft)

    def _hears_answer(self, message: VoteResponse, raft: Raft) -> None:
        asked = raft.term + 1 if message.pre_vote else raft.term
        if message.term <= raft.term and message.request_term != asked:
            self._kept = STALE, _state_of(raft)
        if message.pre_vote and message.granted:
            self._promises.heard(message)

    def _hears_request(self, message: VoteRequest, raft: Raft) -> None:
        if message.pre_vote:
            self._kept = PROMISES, (raft.term, raft.vote)
        elif message.leadership_transfer and (message.term - 1, message.source) not in self._called:
            detail = (
                f"asks {message.target} for its vote of term {message.term} as if its leader had wanted it"
            )
            raise Violation(CALLED, message.source, detail)
        elif message.term < raft.term:
            self._kept = STALE, _state_of(raft)
        elif raft.role is Role.LEADER and not message.leadership_transfer:
            self._kept = DEFENDED, (raft.term, raft.vote)
        log = raft.log_terms
        self._vote = raft.vote, raft.term, (log.last_term, log.last_index)

    def heard(self, message: Message) -> None:
        """Its target has taken the message. Raises Violation."""
        if self._kept is None and not isinstance(message, VoteRequest):
            return
        raft = self._rafts.get(message.target)
        if raft is None:
            return
        if self._kept is not None:
            rule, before = self._kept
            after = _state_of(raft) if rule is STALE else (raft.term, raft.vote)
            if self._loss is Loss.VOTE and before[1] is None and raft.vote in (message.target, raft.leader):
                # Not by the message: its disk has room again, and it takes the vote that it had lost for used.
                before = before[0], raft.vote, *before[2:]
            if after != before:
                raise Violation(rule, message.target, f"{message}; {_difference(before, after)}")
        if isinstance(message, VoteRequest) and not message.pre_vote:
            self._check_vote(message, raft)

    def _check_vote(self, message: VoteRequest, raft: Raft) -> None:
        """Checks that a vote goes to whose log is at least as up to date (5.4.1). Raises Violation."""
        vote, term, end = self._vote
        is_new = (raft.vote, raft.term) == (message.source, message.term) != (vote, term)
        if is_new and (message.last_term, message.last_index) < end:
            raise Violation(
                GRANTED,
                message.target,
                f"votes for {message.source} in term {message.term}, whose log ends at {message.last_index} in term "
                f"{message.last_term}, its own at {end[1]} in term {end[0]}",
            )

    def stands(self, name: str, term: int) -> None:
        """Checks a node that has entered a term as its candidate. Raises Violation.

        It is a voter, or the one whose removal is not committed (dissertation 4.2.2). A majority has promised its votes
        for that very term (9.6), or the leader of the term before has asked for the election (3.10). Promises of nodes
        that may lack what they acknowledged count if all promise, and who was with them (raft/recovery.py, Unanimity).
        """
        raft = self._rafts[name]
        voters = raft.configuration.voters
        leaves = raft.configuration_index > raft.commit_index and len(raft.configurations) > 1
        if name not in voters and not (leaves and name in raft.configurations[-2][1].voters):
            raise Violation(STANDS, name, f"stands in term {term}; {' '.join(voters)} are its group's voters")
        if (term - 1, name) in self._called:
            return  # a leader that hands over has seen to it that its heir may win (3.10)
        promises = self._promises.with_its_own(term, name, raft)
        if not are_enough(voters, promises):
            detail = f"stands in term {term} of {' '.join(voters)}; as it has heard, {told(voters, promises)}"
            raise Violation(PROMISED, name, detail)


def watch_patience(name: str, raft: Raft, election_timeout_min_ns: int) -> None:
    """Looks at what a node's new process makes of what its leader says, be it refused: it waits for an election timeout
    from then on (5.2), as its settings have it. From then on `step` raises Violation.
    """
    step = raft.step

    def steps(message: Message, now: int) -> None:
        step(message, now)
        if not isinstance(message, AppendRequest | SnapshotRequest) or raft.leader != message.source:
            return
        # While it recovers that is the time of its next question, and of a learner there is none.
        deadline = None if raft.recovering is not None else raft.deadline()
        if message.term == raft.term and deadline is not None and deadline < now + election_timeout_min_ns:
            raise Violation(
                PATIENT,
                name,
                f"hears {message.source}, which leads term {raft.term}, and would wait for "
                f"{(deadline - now) / SECOND:.3f} s",
            )

    raft.step = steps  # type: ignore[method-assign]


def _state_of(raft: Raft) -> tuple[object, ...]:
    """All that a message may change but timers: what a leader hears of its peers, and when, included.

    Not the commit index of a leader: the caller counts what it has written itself whenever it carries out effects.
    """
    log = raft.log_terms
    return (
        *(raft.term, raft.vote, raft.role, raft.leader, raft.counted_votes),
        *(log.last_index, log.last_term, raft.configuration_index),
        -1 if raft.role is Role.LEADER else raft.commit_index,
        *(
            (
                peer.node,
                peer.match_index,
                peer.next_index,
                peer.state,
                peer.acknowledged_round,
                peer.last_contact,
            )
            for peer in raft.peers.values()
        ),
    )


def _difference(before: tuple[object, ...], after: tuple[object, ...]) -> str:
    changed = [(old, new) for old, new in zip(before, after, strict=False) if old != new]
    return "; ".join(f"{old} becomes {new}" for old, new in changed) or "it leads no more"

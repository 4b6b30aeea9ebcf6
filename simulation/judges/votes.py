"""Votes, and promises of votes, as those have heard them who stand for election, and whether they are enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from raft.core import Raft
from raft.messages import VoteResponse


@dataclass(frozen=True, slots=True)
class Vote:
    """A voter's word that it votes for a candidate in a term, or would."""

    is_conditional: bool
    """It counts only if all vote so: the voter may lack what it promised (raft/recovery.py, Unanimity)."""
    named: tuple[str, ...]
    """Who must agree then, too, as the voter has told it last."""


class Votes:
    """The votes that candidates have heard."""

    def __init__(self) -> None:
        self._heard: dict[tuple[int, str], dict[str, Vote]] = {}
        """(term, candidate) -> the votes by their voters."""

    def heard(self, message: VoteResponse) -> None:
        """A candidate hears that it is granted a vote."""
        votes = self._heard.setdefault((message.request_term, message.target), {})
        before = votes.get(message.source)
        # A vote that was given once without that condition stays one.
        is_conditional = message.recovering and (before is None or before.is_conditional)
        votes[message.source] = Vote(is_conditional, message.lost_voters)

    def of(self, term: int, candidate: str) -> Mapping[str, Vote]:
        """Returns the votes that a candidate has heard, by their voters."""
        return self._heard.get((term, candidate), {})

    def with_its_own(self, term: int, candidate: str, raft: Raft) -> Mapping[str, Vote]:
        """Returns these and the candidate's own, whose Raft state is `raft`."""
        own = Vote(raft.recovering is not None, raft.lost_voters)
        return {**self.of(term, candidate), candidate: own}


def are_enough(voters: Sequence[str], votes: Mapping[str, Vote]) -> bool:
    """True if these votes are a majority's whose votes count like any others, or those of all voters.

    All are also those whom a voter has named whose vote counts only so (raft/recovery.py, Unanimity).
    """
    cast = [votes[voter] for voter in voters if voter in votes]
    if 2 * sum(not vote.is_conditional for vote in cast) > len(voters):
        return True
    others = [other for vote in cast if vote.is_conditional for other in vote.named]
    return all(voter in votes for voter in (*voters, *others))


def told(voters: Iterable[str], votes: Mapping[str, Vote]) -> str:
    """Names, for a finding, which of these voters have voted for a candidate, and how."""
    cast = [voter for voter in voters if voter in votes]
    plain = [voter for voter in cast if not votes[voter].is_conditional]
    named = {voter: vote.named for voter, vote in votes.items()}
    return (
        f"for it are {' '.join(cast)}, of these {' '.join(plain) or 'nobody'} with all that they had promised; "
        f"named are {named}"
    )

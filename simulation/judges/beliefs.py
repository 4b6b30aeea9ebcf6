"""The beliefs of nodes about each other and themselves, held to what is so: the judge sees all of them at once.

A broken rule of consensus does its damage when two or three other things have gone wrong, in a certain order, and most
runs end before that. The rule itself is broken much earlier, where nobody but a judge of all nodes can see it: a leader
counts what its peer never said, and a node that lacks a committed entry could win the next election, whether or not
somebody calls one. So these are looked at after every turn.

`heard` is told of each message right before its node steps it. What was heard is all that a node may believe: nothing
here is taken from a promise that was made and did not arrive.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from raft.core import Raft
from raft.effects import Role
from raft.messages import AppendResponse, Message, RecoveryRequest, SnapshotResponse, VoteResponse
from raft.recovery_loss import Loss
from simulation.journal import Violation
from simulation.judges.group_model import GroupModel

VOTED_FOR: Final = "a leader has the votes of its term"
ACKNOWLEDGED: Final = "a match index was acknowledged"
ANSWERED: Final = "a round counts where it was answered"
HELD: Final = "what is committed a majority has acknowledged"
PROMOTED: Final = "who is promoted can vote"
ELECTABLE: Final = "who could be elected holds what is committed"
COUNTED_ON: Final = "who votes holds what was counted on"


@dataclass(slots=True)
class _Leadership:
    """The answers that the leader of a term has heard in it."""

    term: int
    voters: tuple[str, ...]
    members: tuple[str, ...]
    acknowledged: dict[str, int] = field(default_factory=dict)
    """Member -> the last entry that it has acknowledged as durable, since it was added and last came back with less."""
    has_news: bool = True
    """True if something was heard, or the members have changed, since what it believes was looked at."""
    round: int = 0
    """The newest heartbeat round that an answer has named."""
    rounds: dict[str, int] = field(default_factory=dict)
    """Member -> the newest round that its answers have named."""
    commit_index: int = -1
    """Up to there it has committed as far as it was looked at."""
    trusted_rounds: dict[str, int] = field(default_factory=dict)
    """Member that came back with less -> the first round of which an answer can be of its present life."""

    def answered(self, message: AppendResponse | SnapshotResponse) -> None:
        """A member has answered in this term."""
        self.has_news = True
        if isinstance(message, AppendResponse):
            self.round = max(self.round, message.round)
            self.rounds[message.source] = max(self.rounds.get(message.source, 0), message.round)
            if not message.success or message.round < self.trusted_rounds.get(message.source, 0):
                return
        known = self.acknowledged.get(message.source, -1)
        self.acknowledged[message.source] = max(known, message.match_index)

    def came_back(self, member: str) -> None:
        """A member has come back with less than it had: what it has acknowledged until now does not count any more."""
        self.acknowledged.pop(member, None)
        self.trusted_rounds[member] = self.round + 1
        self.has_news = True


class Beliefs:
    """Watches the Raft state of all nodes of a group."""

    def __init__(self, model: GroupModel) -> None:
        self._model = model
        self.rafts: dict[str, Raft] = {}
        """The Raft state of each process that runs, by its node."""
        self._votes: dict[tuple[int, str], dict[str, bool]] = {}
        """(term, candidate) -> the voters whose votes it has heard, and whether as votes that count only if all do."""
        self._leaderships: dict[str, _Leadership] = {}
        self._whole: dict[str, None] = {}
        """Nodes that have, or once had, all that they promised with the disk that they have."""
        self.counted_on: dict[str, int] = {}
        """Node -> the last entry that was committed because this node, among others, had it on its disk."""
        self._seen: dict[str, tuple[object, ...]] = {}
        self._known_term = (-1, 0)
        """The index of the committed entry that was looked at last, and its term."""

    # ---- the life of a node --------------------------------------------------------------------------

    def started(self, name: str, raft: Raft) -> None:
        """A process has recovered. Raises Violation."""
        self.rafts[name] = raft
        self._leaderships.pop(name, None)
        self._check_counted_on(name, raft)
        self._check_electable()

    def stopped(self, name: str) -> None:
        """The process has ended."""
        self.rafts.pop(name, None)

    def wiped(self, name: str) -> None:
        """A node's disk is empty now, or harmed: it is not known to hold all that it acknowledged."""
        self._whole.pop(name, None)

    # ---- what nodes hear -----------------------------------------------------------------------------

    def heard(self, message: Message) -> None:
        """Notes what its target is told by a message. Raises Violation."""
        match message:
            case AppendResponse() | SnapshotResponse():
                leadership = self._leaderships.get(message.target)
                # What is committed by now rests on what was heard before: so that is judged first, and then the answer
                # counts.
                if leadership is not None and leadership.term == message.term:
                    self._check_commit(message.target, leadership)
                    leadership.answered(message)
            case VoteResponse(granted=True, pre_vote=False):
                votes = self._votes.setdefault((message.request_term, message.target), {})
                # A vote that was given once without that condition stays one.
                votes[message.source] = votes.get(message.source, True) and message.recovering
            case RecoveryRequest():
                leadership = self._leaderships.get(message.target)
                if leadership is not None:
                    self._check_commit(message.target, leadership)
                    leadership.came_back(message.source)

    def elected(self, name: str, term: int) -> None:
        """Checks that a new leader has a majority's votes, each given to it in its term (5.2).

        Votes of nodes that may lack what they promised count if all voters vote so (raft/recovery.py, Unanimity).
        Raises Violation.
        """
        raft = self.rafts[name]
        voters = raft.configuration.voters
        votes = {**self._votes.get((term, name), {}), name: raft.recovering is not None}
        granted = [voter for voter in voters if voter in votes]
        plain = [voter for voter in granted if not votes[voter]]
        if 2 * len(plain) <= len(voters) and len(granted) < len(voters):
            raise Violation(
                VOTED_FOR,
                name,
                f"leads term {term} of {' '.join(voters)}; {' '.join(granted)} voted for it, of these "
                f"{' '.join(plain) or 'nobody'} with all that they had promised",
            )
        leadership = _Leadership(term, voters, raft.configuration.members, commit_index=raft.commit_index)
        self._leaderships[name] = leadership

    def committed(self, name: str, index: int) -> None:
        """Notes whom a leader has counted on that commits entries up to `index` first."""
        leadership, raft = self._leaderships[name], self.rafts[name]
        for voter in leadership.voters:
            held = _own_index(raft) if voter == name else leadership.acknowledged.get(voter, -1)
            if held >= index:
                self.counted_on[voter] = index

    # ---- after a turn --------------------------------------------------------------------------------

    def turned(self, name: str, raft: Raft, catch_up_entries: int) -> None:
        """Looks at a node after its turn. Raises Violation."""
        recovering, role = raft.recovering, raft.role
        if recovering is None:
            self._whole[name] = None
        if role is not Role.FOLLOWER:
            self._check_votes(name, raft)
        leadership = self._leaderships.get(name)
        if leadership is not None:
            self._check_commit(name, leadership)
        if role is Role.LEADER:
            assert leadership is not None, "it was elected"
            configuration = raft.configuration
            if configuration.members != leadership.members or configuration.voters != leadership.voters:
                self._check_change(name, leadership, raft, catch_up_entries)
            if leadership.has_news:
                leadership.has_news = False
                self._check_matches(name, leadership, raft)
        # Checks of all nodes against each other are dear: done where something has changed on which they depend.
        log = raft.log_terms
        seen = (
            log.last_index,
            log.last_term,
            recovering,
            raft.configuration_index,
            raft.counted_votes,
            self._model.last_index,
        )
        if seen != self._seen.get(name):
            self._seen[name] = seen
            self._check_counted_on(name, raft)
            self._check_electable()

    def _check_votes(self, name: str, raft: Raft) -> None:
        """Checks that a candidate counts no vote that it was not given in its term (5.2), long before one is elected.

        Raises Violation.
        """
        heard = self._votes.get((raft.term, name), {})
        for voter in raft.counted_votes:
            if voter != name and voter not in heard:
                raise Violation(
                    VOTED_FOR, name, f"counts a vote of {voter}, which has given it none in term {raft.term}"
                )

    def _check_change(self, name: str, leadership: _Leadership, raft: Raft, catch_up_entries: int) -> None:
        """Checks that a learner is promoted only when it has caught up (dissertation 4.2.1) and can vote.

        One that never had all that it promised has votes that count only if all vote so (raft/recovery.py, Members).
        Raises Violation.
        """
        configuration, index = raft.configuration, raft.configuration_index
        for voter in configuration.voters:
            if voter in leadership.voters:
                continue
            raft_of_voter = self.rafts.get(voter)
            is_whole = raft_of_voter is not None and raft_of_voter.recovering is None
            lacks = index - 1 - leadership.acknowledged.get(voter, -1)
            if not (is_whole or voter in self._whole) or lacks > catch_up_entries:
                raise Violation(
                    PROMOTED,
                    name,
                    f"entry {index} makes a voter of {voter}, which lacks {lacks} entries and has "
                    f"{'all' if is_whole else 'not all'} that it promised",
                )
        for member in configuration.members:
            if member not in leadership.members:
                leadership.came_back(member)  # it may have left before, and have another log now
        leadership.has_news = True
        leadership.voters, leadership.members = configuration.voters, configuration.members

    def _check_matches(self, name: str, leadership: _Leadership, raft: Raft) -> None:
        """Checks that a leader takes nothing for durable on a peer that the peer has not told it in its term (5.3).

        Nor what it told before it left, or before it came back with less (raft/recovery.py). The same of the rounds of
        heartbeats by which it confirms that it still leads (dissertation 6.4). Raises Violation.
        """
        for peer in raft.peers.values():
            answered = leadership.rounds.get(peer.node, 0)
            if peer.acknowledged_round > answered:
                raise Violation(
                    ANSWERED,
                    name,
                    f"counts round {peer.acknowledged_round} as answered by {peer.node}, which has answered {answered}",
                )
            acknowledged = leadership.acknowledged.get(peer.node, -1)
            if peer.match_index > acknowledged:
                raise Violation(
                    ACKNOWLEDGED,
                    name,
                    f"takes entries up to {peer.match_index} for durable on {peer.node}, which in term {raft.term} "
                    f"has acknowledged those up to {acknowledged}",
                )

    def _check_commit(self, name: str, leadership: _Leadership) -> None:
        """Checks that a leader commits what a majority of its voters has acknowledged in its term (5.3, 5.4).

        Its own disk counts like another. Before the commit of a change that has begun since, the majority may be one of
        those before it. Raises Violation.
        """
        raft = self.rafts.get(name)
        if raft is None or raft.term != leadership.term or raft.commit_index == leadership.commit_index:
            return  # one that has stepped down commits nothing more in its term, but by that which ended it
        index = leadership.commit_index = raft.commit_index
        under_way = raft.configuration_index > index
        for _, configuration in raft.configurations[-2:] if under_way else raft.configurations[-1:]:
            voters = configuration.voters
            held = [
                _own_index(raft) if voter == name else leadership.acknowledged.get(voter, -1)
                for voter in voters
            ]
            if 2 * sum(one >= index for one in held) > len(voters):
                return
        raise Violation(
            HELD,
            name,
            f"commits entry {index} in term {raft.term}; of {' '.join(voters)} these have acknowledged up to {held}",
        )

    def _check_counted_on(self, name: str, raft: Raft) -> None:
        """Checks that a node whose vote counts like any other holds what was committed by its acknowledgement.

        Elections rest on that (5.4.3): who may have lost some of it recovers first (raft/recovery.py, Entries). Raises
        Violation.
        """
        index = self.counted_on.get(name, -1)
        if raft.recovering is None and not self._holds(raft, index):
            raise Violation(
                COUNTED_ON,
                name,
                f"entry {index} is committed, among others because it was on its disk; it votes, and its log ends at "
                f"{raft.log_terms.last_index}",
            )

    def _check_electable(self) -> None:
        """Checks that no node which lacks a committed entry has a majority that would elect it (5.4.1, 5.4.3).

        Whoever may have lost what it promised is in no such majority: that is what the recovering mode is for. But the
        vote that a candidate was given stands, even if its voter has another disk now and knows nothing of it: what is
        committed in earlier terms than the candidate's must do without that voter (raft/recovery.py, An empty disk).
        Raises Violation.
        """
        last_index = self._model.last_index
        for name, raft in self.rafts.items():
            voters = raft.configuration.voters
            if self._holds(raft, last_index) or name not in voters:
                continue
            log = raft.log_terms
            standing = (log.last_term, log.last_index)
            given = self._votes_in_vain(name, raft)  # those stand, whatever their voters hold by now
            electors = [voter for voter in voters if voter in given or self._would_elect(voter, standing)]
            if 2 * len(electors) > len(voters):
                raise Violation(
                    ELECTABLE,
                    name,
                    f"its log ends at {log.last_index} in term {log.last_term}, committed is {last_index}; "
                    f"{' '.join(electors)} of {' '.join(voters)} would elect it",
                )

    def _votes_in_vain(self, name: str, raft: Raft) -> list[str]:
        """Returns whose votes a node has that lacks what is committed in earlier terms, so that it must not win.

        Not those whose votes count only if all do.
        """
        if not raft.counted_votes or self._holds(raft, self._model.committed_before(raft.term)):
            return []
        heard = self._votes.get((raft.term, name), {})
        return [voter for voter in raft.counted_votes if heard.get(voter) is False]

    def _would_elect(self, voter: str, standing: tuple[int, int]) -> bool:
        raft = self.rafts.get(voter)
        if raft is None or raft.recovering is not None:
            return False
        log = raft.log_terms
        return (log.last_term, log.last_index) <= standing

    def _holds(self, raft: Raft, index: int) -> bool:
        """True if the node's log has, or begins behind, the committed entry of that index, and so all before it."""
        log = raft.log_terms
        if index < log.first_index:
            return True  # a log begins behind committed entries only
        return log.last_index >= index and log.term_at(index) == self._committed_term(index)

    def _committed_term(self, index: int) -> int:
        if self._known_term[0] != index:
            self._known_term = (index, self._model.term_of(index))
        return self._known_term[1]


def counts_for_commits(raft: Raft, voters: int) -> bool:
    """True unless the node has lost its votes, and is one of more than two voters (raft/recovery.py, An empty disk)."""
    return voters <= 2 or raft.recovering not in (Loss.VOTE, Loss.ALL)


def _own_index(raft: Raft) -> int:
    """The entry up to which a leader's own disk counts for a commit."""
    return raft.persisted_index if counts_for_commits(raft, len(raft.configuration.voters)) else -1

"""The beliefs of nodes about each other and themselves, held to what is so: the judge sees all of them at once.

A broken rule of consensus does its damage when two or three other things have gone wrong, in a certain order, and most
runs end before that. The rule itself is broken much earlier, where nobody but a judge of all nodes can see it: a leader
counts what its peer never said, and a node that lacks a committed entry could win the next election, whether or not
somebody calls one. So these are looked at after every turn.

`heard` is told of each message right before its node steps it. What was heard is all that a node may believe: nothing
here is taken from a promise that was made and did not arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from raft.core import Raft
from raft.effects import Role
from raft.messages import AppendResponse, Message, RecoveryRequest, SnapshotResponse, VoteResponse
from raft.recovery_loss import Loss
from simulation.journal import Violation
from simulation.judges.group_model import GroupModel
from simulation.judges.votes import Votes, are_enough, told
from simulation.scheduler import MILLISECOND

VOTED_FOR: Final = "a leader has the votes of its term"
ACKNOWLEDGED: Final = "a match index was acknowledged"
ANSWERED: Final = "a round counts where it was answered"
HELD: Final = "what is committed a majority has acknowledged"
PROMOTED: Final = "who is promoted can vote"
LEFT: Final = "who is removed leaves enough who can vote"
ELECTABLE: Final = "who could be elected holds what is committed"
COUNTED_ON: Final = "who votes holds what was counted on"


_JUST_NOW_NS: Final = 400 * MILLISECOND
"""Whoever has answered within that time is heard, for any leader (`Leader._is_heard`)."""


@dataclass(frozen=True, slots=True)
class _Word:
    """What a leader has last heard of a member about its recovery."""

    recovers: bool
    time_ns: int
    log_end: int
    """The last entry of the leader's log at that moment."""


@dataclass(slots=True)
class _Leadership:
    """The answers that the leader of a term has heard in it."""

    term: int
    voters: tuple[str, ...]
    members: tuple[str, ...]
    acknowledged: dict[str, int] = field(default_factory=dict)
    """Member -> the last entry that it has acknowledged as durable, since it was added and last came back with less."""
    has_news: bool = True
    """True if something was heard, or the members have changed, since the last look at what it believes."""
    round: int = 0
    """The newest heartbeat round that an answer has named."""
    rounds: dict[str, int] = field(default_factory=dict)
    """Member -> the newest round that its answers have named."""
    commit_index: int = -1
    """Up to where it had committed when it was looked at last."""
    trusted_rounds: dict[str, int] = field(default_factory=dict)
    """Member that came back with less -> the first round of which an answer can be of its present life."""
    words: dict[str, _Word] = field(default_factory=dict)

    def answered(self, message: AppendResponse | SnapshotResponse, now_ns: int, log_end: int) -> None:
        """A member has answered in this term."""
        self.has_news = True
        if isinstance(message, AppendResponse):
            self.round = max(self.round, message.round)
            self.rounds[message.source] = max(self.rounds.get(message.source, 0), message.round)
            if message.round < self.trusted_rounds.get(message.source, 0):
                return
            self.words[message.source] = _Word(message.recovering, now_ns, log_end)
            if not message.success:
                return
        known = self.acknowledged.get(message.source, -1)
        self.acknowledged[message.source] = max(known, message.match_index)

    def came_back(self, member: str, now_ns: int, log_end: int) -> None:
        """A member has come back with less than it had: what it has acknowledged until now does not count any more."""
        self.words[member] = _Word(True, now_ns, log_end)
        self.acknowledged.pop(member, None)
        self.trusted_rounds[member] = self.round + 1
        self.has_news = True


class Beliefs:
    """Watches the Raft state of all nodes of a group."""

    def __init__(self, model: GroupModel, now_ns: Callable[[], int]) -> None:
        self._model = model
        self._now_ns = now_ns
        self.rafts: dict[str, Raft] = {}
        """The Raft state of each process that runs, by its node."""
        self._votes = Votes()
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
                    leadership.answered(message, self._now_ns(), self._log_end(message.target))
            case VoteResponse(granted=True, pre_vote=False):
                self._votes.heard(message)
            case RecoveryRequest():
                leadership = self._leaderships.get(message.target)
                if leadership is not None:
                    self._check_commit(message.target, leadership)
                    leadership.came_back(message.source, self._now_ns(), self._log_end(message.target))

    def elected(self, name: str, term: int) -> None:
        """Checks that a new leader has a majority's votes, each given to it in its term (5.2).

        Votes of nodes that may lack what they promised count if all voters vote so, and all with whom these nodes may
        have committed what they lack (raft/recovery.py, Unanimity). Raises Violation.
        """
        raft = self.rafts[name]
        voters = raft.configuration.voters
        votes = self._votes.with_its_own(term, name, raft)
        if not are_enough(voters, votes):
            raise Violation(
                VOTED_FOR, name, f"leads term {term} of {' '.join(voters)}; {told(voters, votes)}"
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
                self._check_removal(name, leadership, raft)
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
        heard = self._votes.of(raft.term, name)
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
                leadership.came_back(
                    member, self._now_ns(), index
                )  # it may have left before, and have another log now
        leadership.has_news = True
        leadership.voters, leadership.members = configuration.voters, configuration.members

    def _check_removal(self, name: str, leadership: _Leadership, raft: Raft) -> None:
        """Checks that no voter goes while of those that stay too many recover, as they have told the leader: nobody of
        them could be elected (raft/recovery.py, Members).

        Of two that stay one may recover if the one that goes is no help: it recovers itself, or is not heard. Raises
        Violation.
        """
        index, voters = raft.configuration_index, raft.configuration.voters
        for gone in leadership.voters:
            if gone in voters:
                continue
            # What came behind the change in the same turn was not known when it was asked for.
            words = {member: word for member, word in leadership.words.items() if word.log_end < index}
            recover = [voter for voter in voters if voter in words and words[voter].recovers]
            if not recover or 2 * (len(voters) - len(recover)) > len(voters):
                continue
            if len(voters) > 2 or gone == name or self._is_heard(gone, words.get(gone), raft):
                raise Violation(
                    LEFT,
                    name,
                    f"entry {index} removes {gone}; of {' '.join(voters)}, who stay, {' '.join(recover)} recover",
                )

    def _is_heard(self, member: str, word: _Word | None, raft: Raft) -> bool:
        """True if a member has just told the leader that it does not recover."""
        return (
            word is not None
            and not word.recovers
            and self._now_ns() - word.time_ns <= _JUST_NOW_NS
            and member in raft.peers
            and not raft.peers[member].recovering  # a connection that breaks takes that back
        )

    def _log_end(self, leader: str) -> int:
        raft = self.rafts.get(leader)
        return -1 if raft is None else raft.log_terms.last_index

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
        those before it; and where the change is not on the leader's own disk, it must be one of those, too
        (raft/recovery.py, Unanimity). Raises Violation.
        """
        raft = self.rafts.get(name)
        if raft is None or raft.term != leadership.term or raft.commit_index == leadership.commit_index:
            return  # one that has stepped down commits nothing more in its term, but by that which ended it
        index = leadership.commit_index = raft.commit_index
        known = [configuration.voters for _, configuration in raft.configurations[-2:]]
        have = [voters for voters in known if self._majority_has(name, voters, index, leadership)]
        under_way = raft.configuration_index > index
        may_be_lost = raft.persisted_index < raft.configuration_index and {*known[0]} <= {name, *raft.peers}
        if (have if under_way else known[-1] in have) and (not may_be_lost or known[0] in have):
            return
        held = {voter: self._held(name, voter, leadership) for voters in known for voter in voters}
        raise Violation(
            HELD,
            name,
            f"commits entry {index} in term {raft.term}; voters are, and were, {known[::-1]}; "
            f"on its own disk up to {raft.persisted_index}; these have acknowledged up to {held}",
        )

    def _majority_has(
        self, leader: str, voters: tuple[str, ...], index: int, leadership: _Leadership
    ) -> bool:
        return 2 * sum(self._held(leader, voter, leadership) >= index for voter in voters) > len(voters)

    def _held(self, leader: str, voter: str, leadership: _Leadership) -> int:
        """Returns up to where a leader may count on a voter's disk."""
        return _own_index(self.rafts[leader]) if voter == leader else leadership.acknowledged.get(voter, -1)

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
        heard = self._votes.of(raft.term, name)
        return [voter for voter in raft.counted_votes if voter in heard and not heard[voter].is_conditional]

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

"""Elections: when to call one, whom to vote for, and how to count (5.2, 5.4.1, dissertation 4.2.3 and 9.6).

A real election raises terms and so deposes a leader; hence it is preceded by a PreVote, in which nothing changes
but the asker's role, and voters that hear a leader refuse both. Five rules cut the wait short where the paper only
knows silence:

- **A lost connection** to the leader (its process is gone, or the path to it) lets a voter ask without waiting for
  silence, and lets it stop defending that leader.
- **Voters stand in line**, so that no two meet and split the vote. The line follows from what all of them know: the
  preferred leaders, then the voters behind the lost leader in the configuration, round in a circle. The first in line,
  the leader's heir, asks at once; each other one waits a round for every voter before it that it can reach, and a bit,
  drawn at random. No leader has to name an heir: a name in its messages would be another one here and there whenever
  it changes. An heir whose log is too short for a voter's vote gives its place to that voter.
- **A round without a result is repeated** soon, as long as it takes twice as long each time; who cannot be reached is
  not waited for, and is asked when it can be. That is a PreVote again, so that impatience burns no terms. The votes of
  the term that the node is in go on to count meanwhile: a voter whose disk is slow may take longer than a round.
- **Who has just started** has no leader to be loyal to, and asks when none has told it of itself (`started`).
- **A pause of this node itself is no silence** (`stood_still`): what others sent meanwhile has yet to be read.

The place in line only says when to ask. Who is voted for, and what wins, is the paper's.

Whom we consider a voter is the candidate's business, not the voter's: a node answers a candidate that its own, maybe
older, configuration does not know (dissertation 4.1), and a candidate asks and counts only the voters of its own; but
all agree only if some others do, too (recovery.py).
"""

from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field

from raft.effects import Role
from raft.messages import VoteRequest, VoteResponse
from raft.quorum import VoteTally
from raft.reasons import Cause, Reason
from raft.state import NodeState

# Rounds are no longer than the shortest election timeout: from here on nothing would change but the size of the number.
_DOUBLINGS_MAX = 32

_VOTE_ROUNDS = 4
"""The votes of a term are waited for as long as so many rounds: they are flushed, and who refuses one says so."""

_ROUNDS_IN_FRONT = 3
"""A node that asks refuses those behind it in line for so many rounds; if they are in vain, it may not be heard by
anybody."""


@dataclass(slots=True, eq=False)
class Election:
    """The election timer of a node, its view of the leader's liveness, and its campaign if it has one."""

    _state: NodeState
    now: InitVar[int]
    # The time at which the leader of the current term was last heard; None also when the connection to it is lost.
    _leader_contact: int | None = None
    # The leader that was followed last, or this node, if it led: the line of successors begins behind it.
    _former_leader: str | None = None
    # The deadline is this node's turn in line, not the end of a silence.
    _in_line: bool = False
    # The votes of the PreVote under way; None for whoever is no pre-candidate, or lets another one go first.
    _pre_votes: VoteTally | None = None
    # The votes of the current term while this node is its candidate, or asks anew after it was: it has voted for
    # itself, and the term has no leader. Both are None once it has one.
    _votes: VoteTally | None = None
    # The old leader asked for the campaign whose votes are counted.
    _is_transfer: bool = False
    # The time at which another node got our vote in the current term; None if no other one has it.
    _voted_at: int | None = None
    # Rounds without a result since a leader was last heard.
    _attempts: int = 0
    _timeout: int = field(init=False)
    deadline: int = field(init=False)

    def __post_init__(self, now: int) -> None:
        self.restart_timer(now)

    # Timer ---------------------------------------------------------------------------------------------------

    def restart_timer(self, now: int) -> None:
        """Waits a newly drawn election timeout from now on."""
        options = self._state.options
        self._timeout = self._state.random.randrange(
            options.election_timeout_min_ns, options.election_timeout_max_ns
        )
        self._in_line = False
        self.deadline = now + self._timeout

    def started(self, now: int) -> None:
        """This node of a group with a history has just started, and so knows of no leader.

        One that is there tells it of itself as soon as their connection is made. Who hears of none within the time of
        two heartbeats asks in its turn: nodes that all start need not wait for a silence, and voters that hear a leader
        refuse a PreVote.
        """
        self.ask_soon(now + 2 * self._state.options.heartbeat_interval_ns)

    def heard_leader(self, now: int) -> None:
        """Defends the leader of the current term, which was heard, and begins the timeout anew (5.2)."""
        self._leader_contact = now
        self._attempts = 0
        self._in_line = False
        self.deadline = now + self._timeout

    def forget_leader(self) -> None:
        """Defends no leader and counts no votes any more: the term or the role has changed."""
        self._leader_contact = self._voted_at = None
        self._pre_votes = self._votes = None

    def led_by(self, leader: str) -> None:
        """Counts no votes any more: the term has a leader, this node or another one."""
        self.forget_leader()
        self._former_leader = leader

    def stood_still(self, duration: int, now: int) -> None:
        """Takes note that this node did nothing for `duration` nanoseconds until `now`: a leader that it did not hear
        in that time may have spoken all the same, and is not suspected for it.

        The node may have stood still for longer, as it notices from the first missed deadline on only. So messages that
        have come and are not read yet get the time of a heartbeat interval before an election begins.
        """
        contact = self._leader_contact
        if contact is not None:
            options = self._state.options
            grace = options.heartbeat_interval_ns
            contact = max(contact + duration, now - options.election_timeout_min_ns + grace)
            self._leader_contact = min(contact, now)
            self.deadline = max(self._leader_contact + self._timeout, now + grace)

    def lost_peer(self, peer: str, now: int) -> None:
        """Takes note that the connection to `peer` is gone: its process, or the path to it."""
        state = self._state
        # Whom we have voted for is about to lead.
        if peer == state.leader or (state.leader is None and peer == state.vote):
            self._leader_contact = self._voted_at = None
            self.ask_soon(now)
        elif self._in_line:
            self.ask_soon(now)  # it may have stood before us
        for tally in (self._pre_votes, self._votes):
            if tally is not None:
                tally.record(peer, False)
        self._give_up_if_lost(now)

    def ask_soon(self, now: int) -> None:
        """Asks for votes when it is this node's turn, as there is no leader to wait for."""
        rank = self._rank()
        wait = 0
        # The first in line asks at once, as nobody else does then. Two may meet behind a round without a result, and
        # where this node has followed nobody: the others may have, and see another line.
        if rank or self._attempts or self._former_leader is None:
            span = self._round()
            wait = rank * span + self._state.random.randrange(0, max(span // 2, 1))
        self._in_line = True
        self.deadline = min(self.deadline, now + wait)

    def _round(self, rounds: int = 1) -> int:
        """Returns how long so many rounds may take: twice as long after each one without a result."""
        options = self._state.options
        longer = rounds * options.campaign_round_ns << min(self._attempts, _DOUBLINGS_MAX)
        return min(longer, options.election_timeout_min_ns)

    def _before_us(self) -> list[str]:
        """Returns the voters that stand in line before this node."""
        state, former = self._state, self._former_leader
        voters = state.configurations.current.voters
        begin = voters.index(former) + 1 if former in voters else 0
        preferred = state.options.preferred_leaders
        line = [node for node in preferred if node in voters]
        line += [node for node in (*voters[begin:], *voters[:begin]) if node not in preferred]
        # Whoever is being removed comes last, and whoever recovers: its vote does not count as others do.
        is_last = state.node_id not in line or state.recovering
        return line if is_last else line[: line.index(state.node_id)]

    def _stands_before(self, node: str) -> bool:
        """True if this node stands in line before another one."""
        return node not in self._before_us()

    def _rank(self) -> int:
        """Returns the number of voters that are to ask before this node, as far as it can reach them."""
        no_more = {self._state.node_id, self._former_leader, *self._state.unreachable}
        return sum(node not in no_more for node in self._before_us())

    def defends_leader(self, asker: str, now: int) -> bool:
        """True while this node leads or hears a leader: it then refuses its vote (dissertation 4.2.3).

        Not if that leader is the asker itself: whoever asks for votes leads no more.
        """
        if self._state.role is Role.LEADER:
            return True
        contact = self._leader_contact
        if contact is None or asker == self._state.leader:
            return False
        return now - contact < self._state.options.election_timeout_min_ns

    # Voter ---------------------------------------------------------------------------------------------------

    def answer(self, request: VoteRequest, now: int, *, may_vote: bool, forgets_votes: bool) -> None:
        """Answers a vote request: grants or refuses (5.2). `Raft` has entered the term of a real request before.

        A node that `forgets_votes` may have voted in this term before, for somebody of whom it does not know. So it
        notes that it has no vote left, not whose it was: a marked one is not repeated when it has recovered.
        """
        state = self._state
        if request.source == state.leader and request.pre_vote and request.term > state.term:
            self._leader_contact = None  # it leads no more
            self.ask_soon(now)
        granted = may_vote and self._may_grant(request, now)
        if granted and request.pre_vote:
            # The asker goes first, so that two candidates seldom meet and split the vote.
            self.deadline = max(self.deadline, now + self._round())
            if not self._stands_before(request.source):
                self._pre_votes = None
        elif granted:
            if state.vote is None:
                state.save_hard_state(state.term, state.node_id if forgets_votes else request.source)
            # 5.2: whoever grants a vote begins its election timeout anew.
            self.restart_timer(now)
            # Whoever has given its vote makes way for that campaign: it asks nobody itself, for some rounds
            # (`_prefers_another`).
            self._voted_at = now
            self._pre_votes = None
        elif self._in_line and request.pre_vote and self._has_more_than(request):
            self.deadline = min(self.deadline, now)  # who asks cannot have our vote: it is our turn
        state.send(
            VoteResponse(
                state.node_id,
                request.source,
                state.term,
                request.term,
                granted,
                request.pre_vote,
                state.recovering,
                state.lost_voters,
            )
        )

    def _may_grant(self, request: VoteRequest, now: int) -> bool:
        state = self._state
        if request.term < state.term:
            return False
        if not request.leadership_transfer and self.defends_leader(request.source, now):
            return False
        # 5.2: one vote in a term. In a term that has a leader any other vote is useless.
        if request.term > state.term:
            assert request.pre_vote, "the term of a vote request is entered before it is answered"
            if self._prefers_another(request, now):
                return False
        elif state.vote not in (None, request.source) or state.leader is not None:
            return False
        # 5.4.1: the candidate's log must be at least as up to date as ours, by last term, then by length.
        return not self._has_more_than(request)

    def _prefers_another(self, request: VoteRequest, now: int) -> bool:
        """True while a campaign is under way that the asker would only disturb; never for longer than a few rounds.

        It is the campaign of the candidate that has our vote, or our own if we could have the asker's vote.
        """
        state = self._state
        if self._voted_at is not None and state.vote != request.source:
            return now - self._voted_at < self._round(_VOTE_ROUNDS)
        # The asker has more: it could not vote for this node.
        if (state.log.last_term, state.log.last_index) < (request.last_term, request.last_index):
            return False
        if state.role is Role.CANDIDATE:
            return True
        if self._pre_votes is None or self._attempts >= _ROUNDS_IN_FRONT:
            return False
        return self._stands_before(request.source)

    def _has_more_than(self, candidate: VoteRequest) -> bool:
        """True when this log is more up to date than the candidate's (5.4.1)."""
        log = self._state.log
        return (log.last_term, log.last_index) > (candidate.last_term, candidate.last_index)

    # Candidate -----------------------------------------------------------------------------------------------

    def begin_pre_vote(self, now: int) -> bool:
        """Asks the voters if they would vote for us (dissertation 9.6); returns True when our own vote is enough.

        Votes of the current term that are still under way go on to count.
        """
        state = self._state
        if state.role is not Role.FOLLOWER:
            self._attempts += 1  # the last round came to no result
        state.set_role(Role.PRE_CANDIDATE, None, self._cause(now))  # before what tells the cause is forgotten
        self._leader_contact = None
        self._pre_votes = self._ask_all(now, self._round())
        return self._pre_votes.won

    def _cause(self, now: int) -> Cause:
        """Returns why this node asks for votes: what it knows of the leader that it has followed."""
        state, contact = self._state, self._leader_contact
        if state.configurations.current.voters == (state.node_id,):
            return Cause(Reason.ONLY_VOTER)
        if state.leader is None:
            return Cause(Reason.NO_LEADER)
        # Where the connection was lost the contact is forgotten at once, the leader not yet (`lost_peer`).
        if contact is None:
            return Cause(Reason.CONNECTION_LOST, state.leader)
        return Cause(Reason.NO_HEARTBEAT, state.leader, now - contact)

    def begin_vote(self, now: int, cause: Cause) -> bool:
        """Enters the next term and asks for votes in it (5.2); returns True when our own vote is enough."""
        state = self._state
        state.save_hard_state(state.term + 1, state.node_id)
        state.set_role(Role.CANDIDATE, None, cause, term_changed=True)
        self.forget_leader()
        self._is_transfer = cause.reason is Reason.TRANSFER
        self._votes = self._ask_all(now, self._round(_VOTE_ROUNDS))
        return self._votes.won

    def _ask_all(self, now: int, span: int) -> VoteTally:
        """Begins a round of that length, and a bit: asks all voters that can be reached."""
        state = self._state
        tally = VoteTally(state.configurations.current.voters, state.lost_voters)
        tally.record(state.node_id, True, marked=state.recovering)
        self._ask_or_count_out([node for node in tally.asked if node != state.node_id], tally)
        self._in_line = False
        self.deadline = now + span + state.random.randrange(0, max(span // 2, 1))
        return tally

    def _ask_or_count_out(self, voters: Iterable[str], tally: VoteTally) -> None:
        for voter in voters:
            if voter in self._state.unreachable:
                tally.record(voter, False)  # it is asked when it can be (`reached_peer`)
            # Where the own vote is enough nobody is asked.
            elif not tally.won:
                self._ask(voter)

    def _ask(self, voter: str) -> None:
        """Sends one voter this round's request: for its vote, or in a PreVote whether it would give it."""
        state = self._state
        pre_vote = state.role is Role.PRE_CANDIDATE
        state.send(
            VoteRequest(
                state.node_id,
                voter,
                state.term + 1 if pre_vote else state.term,
                state.log.last_index,
                state.log.last_term,
                pre_vote,
                # Dissertation 3.10: voters need not defend the leader that asked for it.
                self._is_transfer and not pre_vote,
            )
        )

    def count(self, response: VoteResponse, now: int) -> bool:
        """Counts a vote of a round under way; returns True when we have won by it what it was asked for."""
        state = self._state
        tally = self._pre_votes if response.pre_vote else self._votes
        # An answer to a campaign that is over: no vote is for another term than the one that was asked for (5.2).
        if tally is None or response.request_term != (state.term + 1 if response.pre_vote else state.term):
            return False
        tally.record(response.source, response.granted, marked=response.recovering)
        asked = tally.needs(response.lost_voters)
        tally.record(state.node_id, True, marked=state.recovering)  # who is being removed may be one of them
        self._ask_or_count_out([node for node in asked if node != state.node_id], tally)
        # A marked yes can end a round, too: it is no part of a majority (`VoteTally.lost`). Where this one has won, the
        # other tally may be lost: giving up would drop both.
        if not tally.won and (not response.granted or response.recovering):
            self._give_up_if_lost(now)
        return tally.won

    @property
    def counted(self) -> tuple[str, ...]:
        """The voters whose votes of the current term this node counts for itself."""
        return () if self._votes is None else self._votes.granted

    def reached_peer(self, peer: str) -> None:
        """Asks `peer`, to which there is a connection now, what it could not hear, or could not answer, until then."""
        if any(tally is not None and peer in tally.asked for tally in (self._pre_votes, self._votes)):
            self._ask(peer)

    def _give_up_if_lost(self, now: int) -> None:
        """Ends the round if no majority can come together: follows nobody, and asks again before long.

        Not where too few can be reached, and those agree: the round goes on until others can be, or it is repeated.
        """
        lost_term = self._votes is not None and self._votes.lost
        if lost_term:
            self._votes = None
        # While a PreVote is under way the round goes on without the votes of the term.
        if self._pre_votes.lost if self._pre_votes is not None else lost_term:
            self._pre_votes = self._votes = None
            self._attempts += 1
            self.ask_soon(now)
            self._state.set_role(Role.FOLLOWER, None, Cause(Reason.VOTES_REFUSED))

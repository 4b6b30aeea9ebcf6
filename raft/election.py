"""Elections: when to call one, whom to vote for, and how to count (5.2, 5.4.1, dissertation 4.2.3 and 9.6).

A real election raises terms and so deposes a leader; hence it is preceded by a PreVote, in which nothing changes
but the asker's role, and voters that hear a leader refuse both. Two things cut the wait short where the paper only
knows silence: a lost connection to the leader (its process is gone, or the path to it) lets a voter ask at once and
lets it stop defending that leader, and a round that visibly cannot be won is repeated soon. Both draw a short random
wait, and a voter that grants a PreVote lets the asker go first, so that two candidates seldom meet.

Whom we consider a voter is the candidate's business, not the voter's: a node answers a candidate that its own, maybe
older, configuration does not know (dissertation 4.1), and a candidate asks and counts only the voters of its own.
"""

from raft.effects import Role
from raft.messages import VoteRequest, VoteResponse
from raft.quorum import VoteTally
from raft.reasons import Cause, Reason
from raft.state import NodeState

_DOUBLINGS_MAX = 32


class Election:
    """The election timer of a node, its view of the leader's liveness, and its campaign if it has one."""

    __slots__ = ("_attempts", "_leader_contact", "_state", "_tally", "_timeout", "deadline")

    def __init__(self, state: NodeState, now: int) -> None:
        self._state = state
        # The time at which the leader of the current term was last heard; None also when the connection to it is lost.
        self._leader_contact: int | None = None
        # The votes of the campaign under way; None for whoever is neither pre-candidate nor candidate.
        self._tally: VoteTally | None = None
        # Campaigns that were lost since a leader was last heard.
        self._attempts = 0
        self.restart_timer(now)

    # Timer ---------------------------------------------------------------------------------------------------

    def restart_timer(self, now: int) -> None:
        """Waits a newly drawn election timeout from now on."""
        config = self._state.config
        self._timeout = self._state.random.randrange(
            config.election_timeout_min_ns, config.election_timeout_max_ns
        )
        self.deadline = now + self._timeout

    def heard_leader(self, now: int) -> None:
        """The leader of the current term was heard: it is defended, and the timeout begins anew (5.2)."""
        self._leader_contact = now
        self._attempts = 0
        self.deadline = now + self._timeout

    def forget_leader(self) -> None:
        """Defends no leader and counts no votes any more: the term or the role has changed."""
        self._leader_contact = None
        self._tally = None

    def lost_connection_to_leader(self, now: int) -> None:
        """Stops to defend the leader, and asks for votes soon: its process or the path to it is gone."""
        self._leader_contact = None
        self.ask_soon(now)

    def ask_soon(self, now: int) -> None:
        """Asks for votes after a short random wait, as there is no leader to wait for."""
        config = self._state.config
        # The range doubles with every campaign that was lost since a leader was heard.
        doubled = config.campaign_jitter_ns << min(self._attempts, _DOUBLINGS_MAX)
        wait = self._state.random.randrange(0, min(doubled, config.election_timeout_max_ns))
        self.deadline = min(self.deadline, now + wait)

    def defends_leader(self, now: int) -> bool:
        """True while this node leads or hears a leader: it then refuses its vote (dissertation 4.2.3)."""
        if self._state.role is Role.LEADER:
            return True
        contact = self._leader_contact
        return contact is not None and now - contact < self._state.config.election_timeout_min_ns

    # Voter ---------------------------------------------------------------------------------------------------

    def answer(self, request: VoteRequest, now: int, *, may_vote: bool = True) -> None:
        """Answers a vote request: grants or refuses (5.2). `Raft` has entered the term of a real request before."""
        state = self._state
        granted = may_vote and self._may_grant(request, now)
        if granted and request.pre_vote:
            # The asker goes first, so that two candidates seldom meet and split the vote.
            self.deadline = max(self.deadline, now + state.config.campaign_jitter_ns)
        elif granted:
            if state.vote is None:
                state.save_hard_state(state.term, request.source)
            # 5.2: whoever grants a vote begins its election timeout anew.
            self.restart_timer(now)
        state.send(
            VoteResponse(
                state.node_id,
                request.source,
                state.term,
                request.term,
                granted,
                request.pre_vote,
                state.recovering,
            )
        )

    def _may_grant(self, request: VoteRequest, now: int) -> bool:
        state = self._state
        if request.term < state.term:
            return False
        if not request.leadership_transfer and self.defends_leader(now):
            return False
        # 5.2: one vote in a term. In a term that has a leader any other vote is useless.
        if request.term > state.term:
            assert request.pre_vote, "the term of a vote request is entered before it is answered"
        elif state.vote not in (None, request.source) or state.leader is not None:
            return False
        # 5.4.1: the candidate's log must be at least as up to date as ours, by last term, then by length.
        return (request.last_term, request.last_index) >= (state.log.last_term, state.log.last_index)

    # Candidate -----------------------------------------------------------------------------------------------

    def begin_pre_vote(self, now: int) -> bool:
        """Asks the voters if they would vote for us (dissertation 9.6); returns True when our own vote is enough."""
        self._state.set_role(Role.PRE_CANDIDATE, None, self._cause(now))
        return self._begin(now, pre_vote=True, leadership_transfer=False)

    def _cause(self, now: int) -> Cause:
        """Returns why this node asks for votes: what it knows of the leader that it has followed."""
        state, contact = self._state, self._leader_contact
        if state.configurations.current.voters == (state.node_id,):
            return Cause(Reason.ONLY_VOTER)
        if state.leader is None:
            return Cause(Reason.NO_LEADER)
        if contact is None:
            return Cause(Reason.CONNECTION_LOST, state.leader)
        return state.after_silence(Cause(Reason.NO_HEARTBEAT, state.leader, now - contact), now)

    def begin_vote(self, now: int, cause: Cause) -> bool:
        """Enters the next term and asks for votes in it (5.2); returns True when our own vote is enough."""
        state = self._state
        state.save_hard_state(state.term + 1, state.node_id)
        state.set_role(Role.CANDIDATE, None, cause, term_changed=True)
        # Dissertation 3.10: voters need not defend the leader that asked for it.
        return self._begin(now, pre_vote=False, leadership_transfer=cause.reason is Reason.TRANSFER)

    def _begin(self, now: int, *, pre_vote: bool, leadership_transfer: bool) -> bool:
        state = self._state
        self.forget_leader()
        self.restart_timer(now)
        voters = state.configurations.current.voters
        self._tally = VoteTally(voters)
        self._tally.record(state.node_id, True, marked=state.recovering)
        if self._tally.won:
            return True
        term = state.term + 1 if pre_vote else state.term
        for voter in voters:
            if voter != state.node_id:
                state.send(
                    VoteRequest(
                        state.node_id,
                        voter,
                        term,
                        state.log.last_index,
                        state.log.last_term,
                        pre_vote,
                        leadership_transfer,
                    )
                )
        return False

    def count(self, response: VoteResponse, now: int) -> bool:
        """Counts a vote of the campaign under way; returns True when we have won by now."""
        state = self._state
        expected = Role.PRE_CANDIDATE if response.pre_vote else Role.CANDIDATE
        request_term = state.term + 1 if response.pre_vote else state.term
        if state.role is not expected or response.request_term != request_term or self._tally is None:
            return False
        self._tally.record(response.source, response.granted, marked=response.recovering)
        self._give_up_if_lost(now)
        return self._tally is not None and self._tally.won

    def lost_peer(self, peer: str, now: int) -> None:
        """A peer will not answer the campaign under way."""
        if self._tally is not None:
            self._tally.record(peer, False)
            self._give_up_if_lost(now)

    def _give_up_if_lost(self, now: int) -> None:
        """No majority can come together: follows nobody, and asks again before long."""
        if self._tally is not None and self._tally.lost:
            self._tally = None
            self._attempts += 1
            self.ask_soon(now)
            self._state.set_role(Role.FOLLOWER, None, Cause(Reason.VOTES_REFUSED))

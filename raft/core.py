"""The consensus state machine of one node: messages and the passing of time in, effects out.

    role            on                                               becomes
    any             a message of a greater term ¹                    follower of that term
    follower        silence for an election timeout                  pre-candidate, same term
    follower        the connection to its leader lost                pre-candidate, same term
    follower        just started, and no leader heard of yet         pre-candidate, same term
    follower        TimeoutNow                                       candidate, next term
    pre-candidate   a majority would vote for it                     candidate, next term
    pre-candidate   a majority votes for it, late                    leader, same term
    pre-candidate   the leader heard; no majority possible           follower, same term
    candidate       a majority votes for it                          leader, same term
    candidate       another leader of its term; no majority possible follower, same term
    candidate       a round without a result                         pre-candidate, same term
    leader          no majority heard for an election timeout        follower, same term
    leader          its own removal committed                        follower, same term
    leader          the caller wants it so                           follower, same term

    ¹ but not of a PreVote request, nor of a vote request while it hears a leader, unless that leader transfers

A node that comes back with less than it had acknowledged is `recovering` beside its role; see recovery.py.

Each transition names its cause (reasons.py), which the effect `RoleChanged` tells.

Nothing here reads a clock, draws a random number of its own, or touches a log's bytes. `Raft` is the whole interface
and makes the transitions; what happens within a role is in follower.py, election.py and leader.py.

A caller's turn: for each message, `step`, and carry out `take_effects`; the same for `tick` when `deadline` has
passed, for `persisted` and for connections gained and lost; `propose`, and write; at the end `replicate`, and carry
out its effects: appends and acknowledgements are sent there, once for all that the turn brought. `persisted` may be
called at once after a write where acknowledgements need not survive a power failure. The bytes that came with an
append must have been checked before `step`.

Sources: Ongaro, Ousterhout, In Search of an Understandable Consensus Algorithm (extended version), by section
number; Ongaro's dissertation Consensus: Bridging Theory and Practice, by chapter and section where it is named.
"""

from collections.abc import Mapping

from raft.configuration import Change, Configuration
from raft.effects import Effect, RecoveryChanged, Role
from raft.election import Election
from raft.errors import ImpossibleMessage, NotLeader
from raft.follower import Follower
from raft.leader import Clip, Leader
from raft.messages import (
    AppendRequest,
    AppendResponse,
    Message,
    RecoveryRequest,
    RecoveryResponse,
    SnapshotRequest,
    SnapshotResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from raft.options import RaftOptions
from raft.progress import Progress
from raft.reasons import Cause, Pause, Reason
from raft.recovery import Recovery
from raft.recovery_loss import Loss
from raft.state import InitialState, NodeState, RandomSource
from raft.status import PeerStatus, Status
from raft.succession import Transfer
from raft.terms import LogTerms

_RECOVERY_MESSAGES = (RecoveryRequest, RecoveryResponse)


class Raft:
    """One member of a group. Times are monotonic nanoseconds and never fall from call to call."""

    def __init__(
        self,
        options: RaftOptions,
        node_id: str,
        initial: InitialState,
        random: RandomSource,
        now: int,
        clip: Clip,
    ) -> None:
        """Begins as a follower.

        `random` is an object like `random.Random`. `clip` bounds a request: given a first and a last index it returns
        the run of entries that starts with the first and that one append carries (`Send.run`).
        """
        hard_state, loss = initial.hard_state, initial.loss
        self._state = NodeState(options, node_id, initial, random)
        self.pending = self._state.effects
        """The effects that `take_effects` would return; to look at only."""
        self._clip = clip
        self._election = Election(self._state, now)
        # `_leader` is there exactly while the role is LEADER; `_follower` is of the current term in every role.
        self._follower = Follower(self._state)
        self._leader: Leader | None = None
        self.recovery: Recovery | None = None
        """The recovering mode while it lasts; to look at only."""
        self._founding_term = hard_state.term if loss is Loss.ALL else 0
        """The term of a log from a backup, in which this node has promised nothing; else 0."""
        if loss is not None:
            assert hard_state.term > 0 or loss is Loss.ALL, f"a node without a term has lost all, not {loss}"
            self.recovery = Recovery(self._state, loss, now)
            self._state.recovering = True
            self._conclude_recovery(now)
        if self._state.configurations.current.voters == (node_id,):
            self._election.deadline = now  # nobody else could lead: it need not wait for one
        elif self.has_history and self._may_campaign:
            self._election.started(now)

    # What the node is ------------------------------------------------------------------------------------------

    @property
    def node_id(self) -> str:
        return self._state.node_id

    @property
    def role(self) -> Role:
        return self._state.role

    @property
    def term(self) -> int:
        return self._state.term

    @property
    def has_history(self) -> bool:
        """False until this node has entered a term: it has promised nothing to anybody."""
        return self._state.term > self._founding_term

    @property
    def vote(self) -> str | None:
        return self._state.vote

    @property
    def counted_votes(self) -> tuple[str, ...]:
        """The voters whose votes of the current term this node counts for itself while it is no leader yet."""
        return self._election.counted

    @property
    def leader(self) -> str | None:
        """The leader of the current term as far as this node knows one."""
        return self._state.leader

    @property
    def agreed_index(self) -> int:
        """The entry up to which this node knows its log to be that of the leader that it follows."""
        return self._follower.agreed_index

    @property
    def peers(self) -> Mapping[str, Progress]:
        """The progress of the others as this leader knows it, by node; to look at only. Empty in every other role."""
        return {} if self._leader is None else self._leader.peers

    @property
    def heartbeat_round(self) -> int:
        """The newest round of heartbeats that this leader has begun; 0 in every other role."""
        return 0 if self._leader is None else self._leader.round

    @property
    def transfer(self) -> Transfer | None:
        """The hand-over of this leader that is under way; to look at only."""
        return None if self._leader is None else self._leader.succession.transfer

    @property
    def transferee(self) -> str | None:
        """The voter that this leader hands over to; nothing may be proposed meanwhile."""
        return None if self._leader is None else self._leader.succession.target

    @property
    def transfer_deadline(self) -> int | None:
        """The time at which this leader gives up to hand over, and takes proposals again."""
        transfer = self.transfer
        return None if transfer is None else transfer.deadline

    @property
    def commit_index(self) -> int:
        return self._state.commit_index

    @property
    def log_terms(self) -> LogTerms:
        """The state machine's own view, for reading only."""
        return self._state.log

    @property
    def log_generation(self) -> int:
        """The generation of the log: noted when a flush begins, and given to `persisted` when that is done."""
        return self._state.persisted.generation

    @property
    def persisted_index(self) -> int:
        return self._state.persisted.index

    @property
    def configuration(self) -> Configuration:
        return self._state.configurations.current

    @property
    def configurations(self) -> tuple[tuple[int, Configuration], ...]:
        """(index, configuration) as the constructor takes them; the first one belongs into a snapshot."""
        return self._state.configurations.kept()

    @property
    def configuration_index(self) -> int:
        """The index of the entry of `configuration`."""
        return self._state.configurations.current_index

    def deadline(self) -> int | None:
        """The time at which to call `tick` and `replicate` next; None while only a message can change anything."""
        if self._leader is not None:
            return self._leader.deadline()
        recovery = self.recovery
        if recovery is None:
            return self._election.deadline if self._state.may_campaign else None
        if self._may_campaign and self._election.deadline < recovery.deadline:
            return self._election.deadline
        return recovery.deadline

    @property
    def recovering(self) -> Loss | None:
        """The part of its promises that this node may have lost; None when it has kept them all."""
        return None if self.recovery is None else self.recovery.loss

    @property
    def lost_voters(self) -> tuple[str, ...]:
        """The voters with whom this node may have committed entries that it has lost (`InitialState.lost_voters`);
        empty once it has recovered."""
        return self._state.lost_voters

    @property
    def _may_campaign(self) -> bool:
        return self._state.may_campaign and (self.recovery is None or self.recovery.may_vote)

    @property
    def lacks_room(self) -> bool:
        """True while the caller has no room for entries: a follower takes none then, and follows its leader otherwise.
        A recovering mode goes on, as its end would have to be noted.

        The caller sets it before it steps the append, and takes it back when there may be room: entries come again.
        """
        return self._state.lacks_room

    @lacks_room.setter
    def lacks_room(self, lacks: bool) -> None:
        self._state.lacks_room = lacks

    def may_note(self, message: Message) -> bool:
        """Returns True if `step` with this message may have the caller write a term, a vote, a configuration, a
        snapshot or the no-op that begins a term, or cut the log. Entries that only go behind the log's end do not
        count.

        A caller without room on its disk leaves such a message alone, as if it were lost on the way.
        """
        term = self._state.term
        match message:
            # The entry that a leader may append for the first of these it does not append while `lacks_room`.
            case RecoveryRequest() | VoteRequest(pre_vote=True):
                return False
            case AppendRequest():
                return message.term > term or (
                    message.term == term
                    and (bool(message.configurations) or self._follower.contradicts(message))
                )
            case AppendResponse() | SnapshotResponse():
                return message.term > term
        return True

    @property
    def wants_replicate(self) -> bool:
        """True when `replicate` may have something to do now; it is never False when there is something."""
        if self._leader is not None:
            return self._leader.wants_replicate
        return self._follower.owes_answer

    def take_effects(self) -> list[Effect]:
        """Returns the effects that are to be carried out now, in order, and forgets them; see effects.py."""
        state = self._state
        # The list itself stays: it is `pending`.
        effects = state.effects[:]
        state.effects.clear()
        state.log_effects_pending = False
        return effects

    # Messages and time -----------------------------------------------------------------------------------------

    def step(self, message: Message, now: int) -> None:
        """Takes a message from another member. Raises `ImpossibleMessage`."""
        state = self._state
        assert message.target == state.node_id, f"{message.target}'s message came to {state.node_id}"
        recovery = self.recovery
        if recovery is not None and recovery.is_mute and not isinstance(message, _RECOVERY_MESSAGES):
            return  # our own term is unknown, so the message cannot be told from one of an earlier term
        if message.term != state.term and not self._enter_term_of(message, now):
            return
        # From here on the message is of our term, a vote's request or response, or about recovery.
        match message:
            case AppendResponse():
                if self._leader is not None:
                    # There is one for every append: only what a commit may change is looked at, and only where there
                    # was one.
                    committed = state.commit_index
                    self._leader.append_response(message, now)
                    if state.commit_index > committed:
                        self._step_down_if_removed(now)
            case AppendRequest():
                self._follow(message.source, now)
                self._follower.append(message)
            case VoteRequest():
                may_vote = recovery is None or recovery.may_vote
                forgets = recovery is not None and recovery.forgets_votes
                self._election.answer(message, now, may_vote=may_vote, forgets_votes=forgets)
            case VoteResponse():
                if self._election.count(message, now):
                    self._campaign_won(now, pre_vote=message.pre_vote)
            case SnapshotRequest():
                self._follow(message.source, now)
                self._follower.install_snapshot(message)
            case SnapshotResponse():
                if self._leader is not None:
                    self._leader.snapshot_response(message, now)
                    self._step_down_if_removed(now)
            case TimeoutNow():
                # Dissertation 3.10: an election at once, without a PreVote, since the old leader asked for it.
                # Nor does one stand that recovers: with its marked vote it would need those of all (recovery.py).
                if state.may_campaign and self._leader is None and recovery is None:
                    self._begin_vote(now, Cause(Reason.TRANSFER, message.source))
            case RecoveryRequest():
                self._answer_recovery(message)
            case RecoveryResponse():
                if recovery is not None and recovery.is_current(message):
                    recovery.count(message)
                    self._learn_from_recovery(now)
        if recovery is not None:
            self._conclude_recovery(now)

    def _enter_term_of(self, message: Message, now: int) -> bool:
        """Compares terms and enters a greater one (5.1). Returns False when the message asks for nothing more."""
        state = self._state
        if isinstance(message, RecoveryRequest) or (self.recovery is not None and self.recovery.is_mute):
            # A question changes no term; a node without a term enters one when it has heard enough.
            return True
        if message.term > state.term:
            # A request for a vote is answered whether it raises our term or not: a no may end a round that is in vain.
            if not isinstance(message, VoteRequest) or self._request_raises_term(message, now):
                self._become_follower(message.term, now, self._cause_of_term(message, now))
            return True
        if isinstance(message, VoteRequest | VoteResponse):
            return True  # the first is refused; the second may still say no to a campaign of ours
        if isinstance(message, RecoveryResponse):
            return True  # of a node that has yet to hear of our term
        if isinstance(message, AppendRequest | SnapshotRequest):
            # Whoever sends this was deposed: our term tells it so.
            state.send(AppendResponse(state.node_id, message.source, state.term, False, -1, -1, 0))
        return False

    def _request_raises_term(self, request: VoteRequest, now: int) -> bool:
        """Returns True when a request for a vote of a greater term makes this node enter that term.

        A PreVote must not raise terms (dissertation 9.6); nor may a server that a living leader has removed or cut off
        (4.2.3), unless that leader asked for the election itself (3.10).
        """
        if request.pre_vote:
            return False
        return request.leadership_transfer or not self._election.defends_leader(request.source, now)

    def tick(self, now: int) -> None:
        """Lets time pass; does nothing before `deadline`."""
        if self._leader is not None:
            silence_ns = self._leader.tick(now)
            if silence_ns is not None:
                cause = Cause(Reason.MAJORITY_LOST, after_ns=silence_ns)
                self._become_follower(self._state.term, now, cause)
                # Nobody leads, so that there is no silence to be waited for. The line begins behind the former leader:
                # unless it is a preferred one, this node stands last in it.
                self._election.ask_soon(now)
            return
        if self.recovery is not None:
            self.recovery.tick(now)
        if self._may_campaign and now >= self._election.deadline and self._election.begin_pre_vote(now):
            self._campaign_won(now, pre_vote=True)

    def paused(self, reason: Reason, duration_ns: int, now: int) -> None:
        """Takes note that this node did nothing for so long until now: its event loop stalled, or it waited for its
        disk.

        To be told before the next `step` or `tick`: whom it could not hear meanwhile was not silent.
        """
        assert reason in (Reason.LOOP_STALLED, Reason.SLOW_FLUSH), f"{reason.value} is no pause"
        self._state.pause = Pause(reason, now - duration_ns, now)
        if self._leader is not None:
            self._leader.stood_still(duration_ns, now)
        else:
            self._election.stood_still(duration_ns, now)

    # Transitions -----------------------------------------------------------------------------------------------

    def _cause_of_term(self, message: Message, now: int) -> Cause:
        """Returns why this node is to enter the term of `message`, by what it was until now."""
        state, source = self._state, message.source
        if self._leader is not None:
            transfer = self._leader.succession.reason_given_to(source)
            if transfer is not None:
                return Cause(transfer, source)
            # Its peers elect another leader when they have not heard it for an election timeout.
            pause, patience = state.pause, state.options.election_timeout_min_ns
            if pause is not None and pause.end_ns - pause.begin_ns >= patience > now - pause.end_ns:
                return Cause(pause.reason, source, pause.end_ns - pause.begin_ns)
        elif isinstance(message, VoteRequest) and message.leadership_transfer:
            return Cause(Reason.TRANSFER, source)
        return Cause(Reason.HIGHER_TERM, source)

    def _become_follower(self, term: int, now: int, cause: Cause) -> None:
        """Makes this node a follower without a leader: in a greater term, or in this one after having led it."""
        state = self._state
        if self._leader is not None:
            self._leader.step_down()
            self._leader = None
            self._election.restart_timer(now)  # it has run out while this node led
        term_changed = term > state.term
        if term_changed:
            state.save_hard_state(term, None)
        self._election.forget_leader()
        self._follower = Follower(state)
        state.set_role(Role.FOLLOWER, None, cause, term_changed=term_changed)

    def _follow(self, leader: str, now: int) -> None:
        """Follows `leader`, which has sent a leader's message of the current term.

        Raises `ImpossibleMessage` if another node leads it.
        """
        state = self._state
        # Election safety (5.2): at most one leader in a term. Another one would be a bug of ours or of that node.
        if state.leader != leader:
            if state.leader is not None:
                raise ImpossibleMessage(f"{leader} and {state.leader} both lead term {state.term}")
            self._election.led_by(leader)
            state.set_role(Role.FOLLOWER, leader, Cause(Reason.LEADER_HEARD, leader))
            if self.recovery is not None:
                # The mode ends by the answer of this leader: the next round of asking may be half an election timeout
                # away.
                self.recovery.ask(leader)
        self._election.heard_leader(now)

    def _campaign_won(self, now: int, *, pre_vote: bool) -> None:
        """Makes whoever has won a PreVote a candidate, and whoever has won its term's votes the leader."""
        if pre_vote:
            self._begin_vote(now, Cause(Reason.PRE_VOTE_WON))
        else:
            self._become_leader(now)

    def _begin_vote(self, now: int, cause: Cause) -> None:
        """Enters the next term as a candidate; as its leader when no other vote is needed."""
        won = self._election.begin_vote(now, cause)
        self._follower = Follower(self._state)  # what was agreed on with a leader of an earlier term is void
        if won:
            self._become_leader(now)

    def _become_leader(self, now: int) -> None:
        state = self._state
        assert state.vote == state.node_id, f"a leader that voted for {state.vote} in its term"
        assert state.leader is None, f"{state.leader} leads this term"
        self._election.led_by(state.node_id)
        alone = state.configurations.current.voters == (state.node_id,)
        state.set_role(Role.LEADER, state.node_id, Cause(Reason.ONLY_VOTER if alone else Reason.ELECTED))
        self._leader = Leader(state, self._clip, now)

    def _step_down_if_removed(self, now: int) -> None:
        """Ends the leadership once our own removal is committed; until then it goes on (dissertation 4.2.2)."""
        state = self._state
        # Asked after each commit and flush of a leader: `votes_itself` ends it nearly always, and costs no search.
        if (
            self._leader is not None
            and not self._leader.votes_itself
            and not state.is_member
            and state.configurations.current_index <= state.commit_index
        ):
            self._leader.leave()
            self._become_follower(state.term, now, Cause(Reason.REMOVED))

    # Recovery (see recovery.py) --------------------------------------------------------------------------------

    def _answer_recovery(self, request: RecoveryRequest) -> None:
        """Answers a node that may have lost what it acknowledged; a leader forgets its acknowledgements first."""
        state = self._state
        leader, held = self._leader, None
        if leader is not None:
            # Before the answer: its commit index must not rise later by what that node has lost (recovery.py).
            leader.peer_recovers(request.source)
            # With the index of the configuration, as peers before version 11 do not say that they have lost votes.
            held = max(state.commit_index, state.configurations.current_index)
            if request.lost_votes:
                held = leader.append_for(request.source)  # if nothing may be appended now the node asks again
        state.send(
            RecoveryResponse(
                state.node_id,
                request.source,
                state.term if self.has_history else 0,
                request.nonce,
                self.has_history,
                held is not None,
                -1 if held is None else held,
                self._voters_since_commit(),
            )
        )
        if self.recovery is not None:
            self.recovery.asked_by(request.source)

    def _voters_since_commit(self) -> tuple[tuple[int, tuple[str, ...]], ...]:
        """Returns the voters of each configuration that may be in force, as far as the log of this node shows it."""
        state = self._state
        if self.recovery is not None or not self.has_history:
            return ()  # a log that may have lost its last configurations, or that is a backup, shows those of before
        kept = state.configurations.since(state.commit_index)
        return tuple((index, configuration.voters) for index, configuration in kept)

    def _learn_from_recovery(self, now: int) -> None:
        """Enters the group's term once enough voters have told theirs to this node without a term."""
        recovery = self.recovery
        assert recovery is not None
        term = recovery.term_learned()
        if term is None:
            return
        recovery.learned(now)
        # Noted before the term is: a crash between the two would leave a node with a term that does not know of its
        # former votes, and votes again.
        self._state.effects.append(RecoveryChanged(Loss.VOTE))
        if term <= self._state.term:
            # A log from a backup is of that term; from now on the node itself is, and may acknowledge entries in it.
            self._state.save_hard_state(self._state.term, None)
            self._founding_term = 0
        self._become_follower(term, now, Cause(Reason.TERM_LEARNED))

    def _conclude_recovery(self, now: int) -> None:
        """Ends the recovering mode when this node holds what it promised, or when the group turns out to be new."""
        recovery, state = self.recovery, self._state
        if recovery is None:
            return
        state.withholds = recovery.withholds
        if state.lacks_room:
            return  # what follows is written to the disk, where there is no room for it now
        is_over = recovery.is_over(leads=self._leader is not None)
        if recovery.group_is_new:
            self._election.ask_soon(now)
        elif (is_over or recovery.votes_are_known) and not recovery.vote_is_used:
            # Our vote in this term, if there was one, is forgotten, so that nobody else may get it.
            recovery.vote_is_used = True
            if state.vote is None:
                state.save_hard_state(state.term, state.leader or state.node_id)
        # Behind the vote in the list of effects, too: a crash between the two must not leave a node that votes as
        # others do, and has its vote of this term still.
        if recovery.group_is_new or is_over:
            self.recovery = None
            state.recovering = state.withholds = False
            state.lost_voters = ()
            state.effects.append(RecoveryChanged(None))

    # The own log -----------------------------------------------------------------------------------------------

    def persisted(self, index: int, generation: int, now: int) -> None:
        """Takes note that the disk of this node holds the log up to `index`, as it was when `log_generation` was
        `generation`."""
        state = self._state
        assert generation != state.persisted.generation or index <= state.log.last_index, (
            f"{index} is on the disk, of a log that ends at {state.log.last_index}"
        )
        if not state.persisted.flushed(index, generation):
            return
        if self._leader is None:
            self._follower.persisted()
        else:
            # A change of members that this disk lacked may be committed now, its own removal too
            # (`Leader.update_commit`).
            self._leader.update_commit()
            self._step_down_if_removed(now)
        if self.recovery is not None:
            self._conclude_recovery(now)

    def drop_before(self, first_index: int) -> None:
        """Forgets the entries before `first_index`, which retention removed, all of them committed; the log must stay
        restartable.

        The configuration in force before `first_index`, `configurations[0]` from now on, must be kept with the log.
        """
        state = self._state
        assert first_index <= state.commit_index + 1, (
            f"retention before {first_index}, where entries are committed up to {state.commit_index}"
        )
        state.log.drop_before(first_index)
        state.configurations.drop_before(state.log.first_index)

    # The leader ------------------------------------------------------------------------------------------------

    def _leading(self) -> Leader:
        """Returns the leader's part of this node. Raises NotLeader."""
        if self._leader is None:
            raise NotLeader(self._state.leader)
        return self._leader

    def check_proposal(self, count: int) -> None:
        """Raises as `propose` would, and changes nothing: for a caller whose own write may fail and must come first.

        Raises NotLeader, LeadershipTransferring, ProposalLimit.
        """
        if self._leader is None:
            raise NotLeader(self._state.leader)
        self._leader.check_proposal(count)

    def grant(self, count: int) -> None:
        """Allows `count` entries to be proposed in parts, others between them; ends with the last, or `end_grant`.

        A transfer that begins meanwhile waits for all of them. Raises as `check_proposal`.
        """
        self._leading().grant(count)

    def end_grant(self) -> None:
        """Takes note that nothing more of what was granted is proposed. Does nothing where all of it was, or the
        leadership is over."""
        if self._leader is not None:
            self._leader.succession.end_grant()

    def propose(self, count: int, *, granted: bool = False) -> int:
        """Adds `count` entries of the current term to the log and returns the first one's index.

        The caller writes them; `replicate` sends them. What was `granted` is not refused any more. Raises NotLeader,
        LeadershipTransferring, ProposalLimit.
        """
        if self._leader is None:
            raise NotLeader(self._state.leader)
        return self._leader.propose(count, granted=granted)

    def replicate(self, now: int) -> None:
        """Ends a turn, in every role: a leader sends what its peers lack, a follower what it acknowledges."""
        if self._leader is not None:
            self._leader.replicate(now)
        else:
            self._follower.acknowledge()

    def read_index(self, token: object) -> None:
        """Asks for an index at which a read is linearizable; the effect ReadReady or ReadLost answers.

        Raises NotLeader.
        """
        self._leading().read_index(token)

    def transfer_leadership(self, target: str, now: int, reason: Reason = Reason.TRANSFER) -> None:
        """Begins to hand the leadership over to `target`; the attempt is given up after an election timeout.

        `reason` is the one that this node gives when it has stepped down.

        Raises NotLeader, LeadershipTransferring, UnknownMember.
        """
        self._leading().succession.begin(target, now, reason)

    def resign(self, reason: Reason, now: int) -> None:
        """Ends this node's leadership; whoever is first to miss a leader, this node too, may be the next one.

        Raises NotLeader.
        """
        self._leading()
        self._become_follower(self._state.term, now, Cause(reason))

    def propose_configuration(self, change: Change, now: int) -> int:
        """Begins a membership change and returns the index of its entry, which an effect asks the caller to write.

        Raises NotLeader, LeadershipTransferring and the kinds of ConfigurationError.
        """
        return self._leading().propose_configuration(change, now)

    def snapshot_sent(self, target: str, now: int) -> None:
        """Takes note that the snapshot of a SnapshotNeeded is on its way; it is offered anew if no answer comes."""
        if self._leader is not None:
            self._leader.snapshot_sent(target, now)

    def snapshot_failed(self, target: str) -> None:
        """Takes note that the snapshot of a SnapshotNeeded could not be made or sent."""
        if self._leader is not None:
            self._leader.snapshot_failed(target)

    # Connections -----------------------------------------------------------------------------------------------

    def peer_connected(self, peer: str) -> None:
        """Takes note that messages can be sent to `peer`; that is assumed of everyone until the contrary is told."""
        self._state.unreachable.discard(peer)
        if self._leader is not None:
            self._leader.peer_connected(peer)
            return
        if self.recovery is not None:
            self.recovery.ask(peer)
        self._election.reached_peer(peer)

    def peer_disconnected(self, peer: str, now: int) -> None:
        """Takes note that the connection to `peer` is gone, with all that was under way on it."""
        self._state.unreachable.add(peer)
        if self._leader is not None:
            self._leader.peer_disconnected(peer)
        else:
            self._election.lost_peer(peer, now)

    def peer_lacks_room(self, node: str, lacks: bool) -> None:
        """Takes note whether the disk of a peer has room for messages, as it has said; a leader hands over to none
        without, unasked."""
        if self._leader is not None and (peer := self._leader.peers.get(node)) is not None:
            peer.lacks_room = lacks

    def status(self, now: int) -> Status:
        """Returns the node's state for a status command."""
        state = self._state
        leader = self._leader
        peers: tuple[PeerStatus, ...] = ()
        if leader is not None:  # nobody else hears how far the others are (5.3)
            peers = tuple(
                PeerStatus(
                    node=peer.node,
                    state=peer.state.value,
                    voter=peer.node in state.configurations.current.voters,
                    connected=peer.connected,
                    match_index=peer.match_index,
                    next_index=peer.next_index,
                    inflight_appends=len(peer.inflight),
                    silence_ns=now - peer.last_contact,
                    recovering=peer.recovering,
                    lacks_room=peer.lacks_room,
                )
                for peer in leader.peers.values()
            )
        return Status(
            node=state.node_id,
            role=state.role.value,
            term=state.term,
            vote=state.vote,
            leader=state.leader,
            first_index=state.log.first_index,
            last_index=state.log.last_index,
            commit_index=state.commit_index,
            persisted_index=state.persisted.index,
            configuration_index=state.configurations.current_index,
            configuration=state.configurations.current,
            transferee=self.transferee,
            recovering=None if self.recovery is None else self.recovery.loss.value,
            peers=peers,
        )

"""The leader's part: it replicates, commits, confirms reads, hands over and changes the membership.

A `Leader` lives for one term. Proposals and acknowledgements only change numbers; messages arise in `replicate`, once
per turn of the caller, from the difference between what the log has and what each peer was sent. So everything that
arrived in one turn travels in one request per peer, and nothing is sent twice.

A commit index travels with the next append. When there is none for `commit_notice_delay_ns` and a peer has nothing
left to answer, it is told in an empty request that wants no answer: at most one for each time a peer falls idle.
"""

from collections.abc import Callable

from raft.configuration import AddLearner, Change, Configuration, PromoteLearner, RemoveMember
from raft.effects import AppendConfiguration, AppendNoop, PeerSlow, ReadReady, Run, Send, SnapshotNeeded
from raft.errors import (
    ConfigurationPending,
    ImpossibleMessage,
    LeadershipTransferring,
    LearnerBehind,
    LearnerRecovering,
    ProposalLimit,
    VotersRecovering,
)
from raft.messages import AppendRequest, AppendResponse, SnapshotRequest, SnapshotResponse, TimeoutNow
from raft.progress import PeerState, Progress
from raft.quorum import agreed
from raft.read_index import ReadQueue
from raft.reasons import Reason
from raft.state import NodeState
from raft.succession import Succession

Clip = Callable[[int, int], Run]
"""(first index, last index) -> the run of one request: it begins at the first and has one entry at least."""

_Extract = tuple[int, Run, int, tuple[tuple[int, int], ...], tuple[tuple[int, Configuration], ...]]
"""(first index, run, term before it, terms of its entries, configurations among them)"""


class Leader:
    """The leader of one term, from its election until it steps down."""

    __slots__ = (
        "_clip",
        "_commit_notice_due",
        "_extract",
        "_heartbeat_due",
        "_leaving",
        "_preferred_check_due",
        "_reads",
        "_round",
        "_round_due",
        "_state",
        "_term_begin_index",
        "_voting_peers",
        "peers",
        "succession",
        "votes_itself",
    )

    def __init__(self, state: NodeState, clip: Clip, now: int) -> None:
        self._state = state
        self._clip = clip
        # What the last request of this round of `replicate` said of its entries: peers are mostly at the same place.
        self._extract: _Extract | None = None
        # Heartbeat rounds of this term, numbered from 1: an answer that names one was given after that round began.
        self._round = 0
        self._round_due = True  # the first append is everybody's notice of the new leader (5.2)
        self._reads = ReadQueue()
        self._heartbeat_due = now + state.options.heartbeat_interval_ns
        self._preferred_check_due = now + state.options.preferred_check_interval_ns
        # None while no peer waits to be told a commit index alone.
        self._commit_notice_due: int | None = None
        # `peers` has all members of the current configuration but this node, and those that have yet to hear that they
        # are removed, `_leaving`. That list, `_voting_peers` and `votes_itself` follow from both (`_update_peers`).
        self._leaving: list[str] = []
        self.peers: dict[str, Progress] = {}
        self.succession = Succession(state, self.peers)
        # No entry before this one may be committed by counting (5.4.2, figure 8).
        self._term_begin_index = state.log.last_index + 1
        self._update_peers(now)
        # The no-op of section 8: older entries commit with it, however long nothing is proposed.
        self._append_noop()

    def _update_peers(self, now: int) -> None:
        """Follows the current configuration; members that it removes stay until they know."""
        state = self._state
        configuration = state.configurations.current
        for node in configuration.members:
            if node != state.node_id and node not in self.peers:
                # Figure 2: the first guess is that it holds all that this log has; a refusal corrects it.
                peer = self.peers[node] = Progress(node, state.log.last_index + 1, now)
                peer.connected = node not in state.unreachable
                # It may have been a member before, in this term, and come back with less (recovery.py).
                peer.trusted_round = self._round + 1
                self._round_due = True
        for node, peer in self.peers.items():
            if node in configuration.members:
                peer.leaving_index = None
            elif peer.leaving_index is None:
                peer.leaving_index = state.configurations.current_index
        self._leaving = [node for node, peer in self.peers.items() if peer.leaving_index is not None]
        # A learner's log counts for no commit, and its answers for no read (dissertation 4.2.1).
        self._voting_peers = [self.peers[node] for node in configuration.voters if node != state.node_id]
        self.votes_itself = state.node_id in configuration.voters

    @property
    def round(self) -> int:
        """The newest round of heartbeats that has begun; 0 before the first."""
        return self._round

    # Proposals -----------------------------------------------------------------------------------------------

    def check_proposal(self, count: int) -> None:
        """Raises LeadershipTransferring, ProposalLimit if `count` entries may not be proposed now."""
        state, transfer = self._state, self.succession.transfer
        if transfer is not None:
            raise LeadershipTransferring(transfer.target)
        uncommitted = state.log.last_index - state.commit_index
        # With nothing under way any number is taken: a batch of more than the limit would be refused each time.
        if uncommitted + count > state.options.max_uncommitted_entries and uncommitted:
            raise ProposalLimit(uncommitted, state.options.max_uncommitted_entries)

    def grant(self, count: int) -> None:
        """Allows a proposal in parts, see `Raft.grant`. Raises LeadershipTransferring, ProposalLimit."""
        assert not self.succession.granted, f"{self.succession.granted} entries of another are to come"
        self.check_proposal(count)
        self.succession.granted = count

    def propose(self, count: int, *, granted: bool = False) -> int:
        """Adds entries to the log and returns the first one's index. Raises LeadershipTransferring, ProposalLimit."""
        state = self._state
        log = state.log
        assert count > 0, "a proposal of no entries"
        assert not state.log_effects_pending, "effects that write to the log must be carried out first"
        if granted:
            assert count <= self.succession.granted, f"{count} entries, of {self.succession.granted} allowed"
            self.succession.granted -= count
        else:
            self.check_proposal(count)
        first_index = log.last_index + 1
        log.append(state.term, count)
        return first_index

    def append_for(self, node: str) -> int | None:
        """Adds an entry that means nothing for a member that has lost its votes (recovery.py), and returns its index.

        Returns None while it may not: a transfer is under way, there is no room, or the node is no member.
        """
        state = self._state
        is_member = node in state.configurations.current.members
        if self.succession.transfer is not None or state.lacks_room or not is_member:
            return None
        return self._append_noop()

    def _append_noop(self) -> int:
        state = self._state
        index = state.log.last_index + 1
        state.log.append(state.term, 1)
        state.change_log(AppendNoop(index, state.term))
        return index

    def propose_configuration(self, change: Change, now: int) -> int:
        """Appends the changed configuration and returns its index. Raises as `Raft.propose_configuration` says."""
        state, transfer = self._state, self.succession.transfer
        if transfer is not None:
            raise LeadershipTransferring(transfer.target)
        # Without this a leader of an older term could still commit a change that this one has never seen: majorities
        # of two changes need not overlap (Ongaro's correction of 4.1, raft-dev, July 2015).
        if not self._has_committed_in_term:
            raise ConfigurationPending("the leader has committed nothing in its term yet")
        # Dissertation 4.1: one change at a time, so that the majorities before and after it overlap.
        if state.configurations.current_index > state.commit_index:
            raise ConfigurationPending("another membership change is under way")
        configuration = change.applied_to(state.configurations.current)
        if isinstance(change, PromoteLearner):
            peer = self.peers[change.node]
            if not self._is_caught_up(peer, now):
                raise LearnerBehind(change.node, state.log.last_index - peer.match_index)
            if peer.recovering:
                raise LearnerRecovering(change.node)
        if isinstance(change, RemoveMember) and change.node in state.configurations.current.voters:
            self._check_votes_without(change.node, configuration, now)
        index = state.log.last_index + 1
        if isinstance(change, AddLearner):
            self.peers.pop(change.node, None)  # what it said before it left does not count any more
        state.log.append(state.term, 1)
        state.change_log(AppendConfiguration(index, state.term, configuration))
        state.append_configuration(index, configuration)
        self._update_peers(now)
        if self._is_alone:
            self._confirm_reads()  # nobody is left whose answer they could wait for
        return index

    def _check_votes_without(self, node: str, configuration: Configuration, now: int) -> None:
        """Raises VotersRecovering if the group without `node` could elect nobody for now; see recovery.py.

        A voter that is recovering itself, or is not heard any more, leaves with no vote that counts, so that it may go
        as long as the others can commit without those who said last that they recover. That too few of the others are
        heard is alone no reason: whoever asks for the change knows whom nobody can reach.
        """
        voters = configuration.voters
        others = [self.peers[voter] for voter in voters if voter != self._state.node_id]
        peer = self.peers.get(node)
        if peer is not None and (peer.recovering or not self._is_heard(peer, now)):
            # Of two voters each is needed in any case, and neither withholds what it has (`Recovery.withholds`).
            recovering = [peer.node for peer in others if peer.said_recovering] if len(voters) > 2 else []
            lost = len(recovering)
        else:
            recovering = [peer.node for peer in others if peer.recovering]
            lost = sum(peer.recovering or not self._is_heard(peer, now) for peer in others)
        if recovering and 2 * (len(voters) - lost) <= len(voters):
            raise VotersRecovering(node, tuple(recovering))

    def _is_heard(self, peer: Progress, now: int) -> bool:
        """True when the peer has answered within the shortest election timeout."""
        return now - peer.last_contact <= self._state.options.election_timeout_min_ns

    def _is_caught_up(self, peer: Progress, now: int) -> bool:
        """True when the peer is near enough to our log's end to be promoted or to take over (dissertation 4.2.1)."""
        options = self._state.options
        # In a young log no place is far behind: whoever is not known to have anything is not caught up all the same.
        return (
            peer.state is PeerState.REPLICATE
            and peer.match_index >= 0
            and self._state.log.last_index - peer.match_index <= options.catch_up_lag_entries
            and self._is_heard(peer, now)
        )

    # Replication ---------------------------------------------------------------------------------------------

    def replicate(self, now: int) -> None:
        """Sends every peer what it lacks, as far as its window allows."""
        state = self._state
        assert not state.log_effects_pending, "effects that write to the log must be carried out first"
        last_index, commit_index = state.log.last_index, state.commit_index
        window = state.options.max_inflight_appends
        # Reads that wait begin a round of their own; before this term's first commit no index is safe for them (6.4).
        reads = self._reads
        beat = self._round_due or (bool(reads.waiting) and reads.wants_round and self._has_committed_in_term)
        if beat:
            self._begin_round()
        notice_due = self._commit_notice_due is not None and now >= self._commit_notice_due
        notice_delay = state.options.commit_notice_delay_ns
        notice_wanted = False
        self._extract = None
        for peer in self.peers.values():
            if not peer.connected:
                continue
            if peer.state is not PeerState.REPLICATE:
                self._send_to_paused(peer, beat, now)
                continue
            # Pipelining: several requests may be on their way, up to the window (dissertation 10.2.2).
            sent = False
            while peer.next_index <= last_index and len(peer.inflight) < window:
                if not self._send_entries(peer):
                    break
                sent = True
            if sent:
                continue  # those requests carry the round and the commit index
            if beat:
                self._send_empty(peer, peer.next_index - 1, self._round)
            # A peer that has yet to answer is told behind its answer, or with the next entries.
            elif peer.sent_commit_index < commit_index and not peer.inflight:
                if notice_due or not notice_delay:
                    self._send_empty(peer, peer.next_index - 1, 0)
                else:
                    notice_wanted = True
        # One delay runs for all idle peers; it ends when it is over or when nobody is left to be told.
        if notice_due or not notice_wanted:
            self._commit_notice_due = None
        if notice_wanted and self._commit_notice_due is None:
            self._commit_notice_due = now + notice_delay
        self._extract = None
        if self._leaving:
            self._dismiss_removed_peers()

    @property
    def wants_replicate(self) -> bool:
        """True when `replicate` may send a peer something, or may begin the delay before a commit notice."""
        if self._round_due or self._leaving or (self._reads.waiting and self._reads.wants_round):
            return True
        last_index, commit_index = self._state.log.last_index, self._state.commit_index
        notice_is_planned = self._commit_notice_due is not None
        for peer in self.peers.values():
            if not peer.connected:
                continue
            # If a probe or a snapshot is due `_send_to_paused` finds out.
            if peer.state is not PeerState.REPLICATE or peer.next_index <= last_index:
                return True
            if peer.sent_commit_index < commit_index and not peer.inflight and not notice_is_planned:
                return True
        return False

    def _begin_round(self) -> None:
        """Numbers a new heartbeat round, which also confirms the reads that have arrived by now."""
        self._round_due = False
        self._round += 1
        # Before an entry of its own term is committed a leader may not know of all that is (dissertation 6.4, step 1).
        if self._has_committed_in_term:
            self._reads.begin_round(self._round, self._state.commit_index)
            self._confirm_reads()

    def _send_entries(self, peer: Progress) -> bool:
        """Sends one request with entries; returns False when they are gone from the log and a snapshot is offered."""
        state = self._state
        first_index = peer.next_index
        if self._is_deleted(first_index):
            self._offer_snapshot(peer)
            return False
        assert first_index > peer.match_index, (
            f"{peer.node} holds up to {peer.match_index}, not {first_index}"
        )
        # Followers that keep up lack the same entries: what was clipped and looked up for one is sent to the others of
        # this call, too.
        extract = self._extract
        if extract is None or extract[0] != first_index:
            extract = self._extract = self._extract_from(first_index)
        _, run, prev_term, spans, configurations = extract
        peer.sent_commit_index = state.commit_index
        peer.sent_entries(run.last_index)
        state.effects.append(
            Send(
                AppendRequest(
                    state.node_id,
                    peer.node,
                    state.term,
                    first_index - 1,
                    prev_term,
                    spans,
                    state.commit_index,
                    self._round,
                    configurations,
                ),
                run,
            )
        )
        return True

    def _extract_from(self, first_index: int) -> _Extract:
        """Returns what a request says of the entries from `first_index` on."""
        log = self._state.log
        run = self._clip(first_index, log.last_index)
        last_index = run.last_index
        assert first_index <= last_index <= log.last_index, (
            f"clip gave {first_index}..{last_index} of a log that ends at {log.last_index}"
        )
        return (
            first_index,
            run,
            log.term_at(first_index - 1),
            log.spans(first_index, last_index),
            self._state.configurations.between(first_index, last_index),
        )

    def _send_empty(self, peer: Progress, prev_index: int, round_number: int) -> None:
        """Sends a request without entries: a heartbeat, or with round 0 a commit index that asks for no answer."""
        state = self._state
        # A heartbeat, too, names the entry before what the peer needs, and that is not in the log any more.
        if self._is_deleted(prev_index + 1):
            self._offer_snapshot(peer)
            return
        peer.sent_commit_index = state.commit_index
        prev_term = state.log.term_at(prev_index)
        state.send(
            AppendRequest(
                state.node_id,
                peer.node,
                state.term,
                prev_index,
                prev_term,
                (),
                state.commit_index,
                round_number,
            )
        )

    def _send_to_paused(self, peer: Progress, beat: bool, now: int) -> None:
        """A probe carries entries once; while it is open, and during a snapshot, heartbeats go without any."""
        log = self._state.log
        if peer.state is PeerState.SNAPSHOT:
            if peer.snapshot_deadline is not None and now >= peer.snapshot_deadline:
                self._offer_snapshot(peer)
            elif beat:
                # At the place before our log, where every log that reaches so far agrees. So the peer hears its leader,
                # and its answer says if it has begun anew, also where its answer to the snapshot was lost.
                self._send_empty(peer, log.first_index - 1, self._round)
        elif not peer.probe_sent:
            if peer.next_index <= log.last_index:
                self._send_entries(peer)
            else:
                peer.probe_sent = True
                self._send_empty(peer, peer.next_index - 1, self._round)
        elif beat:
            self._send_empty(peer, peer.next_index - 1, self._round)

    def _is_deleted(self, next_index: int) -> bool:
        """True if retention has taken the entry that a peer needs next: it gets a snapshot instead (section 7)."""
        return next_index < self._state.log.first_index

    def _offer_snapshot(self, peer: Progress) -> None:
        """Asks the caller to send a snapshot to a peer whose next entry is deleted, or whose last one was lost."""
        state = self._state
        first_index, prev_term = state.log.first_index, state.log.base_term
        # The members as of that place in the log: those of today come with the entries behind it.
        index, configuration = state.configurations.at(first_index - 1)
        peer.become_snapshot()
        state.effects.append(
            SnapshotNeeded(
                SnapshotRequest(
                    state.node_id, peer.node, state.term, first_index, prev_term, index, configuration
                )
            )
        )

    def snapshot_sent(self, target: str, now: int) -> None:
        """Takes note that a snapshot is on its way: it is offered again if the shortest election timeout brings no
        answer."""
        peer = self.peers.get(target)
        # It takes turns to write a snapshot: by now the peer may be found to need none, or be gone.
        if peer is not None and peer.state is PeerState.SNAPSHOT:
            peer.snapshot_deadline = now + self._state.options.election_timeout_min_ns

    def snapshot_failed(self, target: str) -> None:
        """Takes note that no snapshot was sent: the next heartbeat finds out anew where the peer's log ends."""
        peer = self.peers.get(target)
        if peer is not None and peer.state is PeerState.SNAPSHOT:
            peer.become_probe(self._state.log.first_index)
            # As if the probe was out: a heartbeat goes in its place. Else the next turn would probe, be refused and
            # offer a snapshot again, as fast as messages go.
            peer.probe_sent = True

    def _dismiss_removed_peers(self) -> None:
        """Tells removed peers once that their removal is committed, if they can be reached, and forgets them."""
        for node in self._leaving:
            peer = self.peers[node]
            assert peer.leaving_index is not None
            if peer.leaving_index > self._state.commit_index:
                continue
            # Whoever cannot be told now hears of it from any member that it meets again (broker/replica/members.py).
            if (
                peer.connected
                and peer.state is PeerState.REPLICATE
                and peer.sent_commit_index < self._state.commit_index
            ):
                self._send_empty(peer, peer.next_index - 1, 0)
            del self.peers[node]
        self._leaving = [node for node in self._leaving if node in self.peers]

    # Answers -------------------------------------------------------------------------------------------------

    def append_response(self, response: AppendResponse, now: int) -> None:
        """Takes a follower's acknowledgement or refusal of this term.

        Raises `ImpossibleMessage` for an answer to a round that was never sent, or about entries that the log lacks.
        """
        peer = self.peers.get(response.source)
        # It was removed, and answers late.
        if peer is None:
            return
        state = self._state
        if response.round > self._round or (
            response.success and not response.match_index <= response.log_index <= state.log.last_index
        ):
            raise ImpossibleMessage(
                f"an answer to round {response.round} that reaches to {response.match_index} and {response.log_index}; "
                f"the last round is {self._round}, the log ends with {state.log.last_index}"
            )
        peer.last_contact = now
        if response.round > peer.acknowledged_round:
            peer.acknowledged_round = response.round
            if self._reads.open_round is not None:
                self._confirm_reads()
        # A peer that recovers may have lost what an older acknowledgement promised (recovery.py).
        if response.round >= peer.trusted_round:
            peer.recovering = peer.said_recovering = response.recovering
        # A refusal of that life counts: it only takes back, and that does no harm (progress.py).
        elif response.success:
            return
        if not response.success:
            peer.refuse(response.log_index, response.hint_index, response.hint_term, state.log)
        elif peer.acknowledge(response.match_index, response.log_index, state.log.first_index):
            self._acknowledged(peer)

    def snapshot_response(self, response: SnapshotResponse, now: int) -> None:
        """Takes a follower's answer to a snapshot: it holds everything before our log."""
        peer = self.peers.get(response.source)
        if peer is None:
            return
        peer.last_contact = now
        # What is committed needs no acknowledgement, so that one of a former life of the peer does no harm here.
        match_index = min(response.match_index, self._state.commit_index)
        if peer.acknowledge(match_index, match_index, self._state.log.first_index):
            self._acknowledged(peer)

    def _acknowledged(self, peer: Progress) -> None:
        """Commits what it may, as more of the log is durable on the peer, and hands over if the peer waits for that."""
        self.update_commit()
        transfer = self.succession.transfer
        if transfer is not None and peer.node == transfer.target:
            self.succession.ask_target(transfer)

    def update_commit(self) -> None:
        """Commits what a majority has on its disks, once that includes an entry of this term (5.3, 5.4.2).

        Entries of older terms are never committed by counting alone: figure 8 shows how they could be lost again.
        """
        state = self._state
        matches = [peer.match_index for peer in self._voting_peers]
        if self.votes_itself:
            # The leader counts its own disk like any other: replication may be ahead of it (dissertation 10.2.1).
            matches.append(state.counted_index)
        index = agreed(matches)
        history = state.configurations
        if history.current_index > state.persisted.index:
            # If this disk loses the configuration before it is flushed, the one before it is in force here again. Whom
            # the change has removed may be missing; then the new majority lies within the old voters.
            before = {peer: progress.match_index for peer, progress in self.peers.items()}
            before[state.node_id] = state.counted_index
            index = min(
                index, agreed([before[voter] for voter in history.previous.voters if voter in before])
            )
        if index > state.commit_index and index >= self._term_begin_index:
            first_of_term = state.commit_index < self._term_begin_index
            state.advance_commit(index)
            if first_of_term and self._is_alone:
                # The only voter needs nobody's answer for the reads that waited for this commit.
                self._reads.begin_round(self._round, index)
                self._confirm_reads()

    @property
    def _has_committed_in_term(self) -> bool:
        return self._state.commit_index >= self._term_begin_index

    # Reads ---------------------------------------------------------------------------------------------------

    def read_index(self, token: object) -> None:
        """Answers the read at once if this is the only voter, else with a round of heartbeats (6.4)."""
        if self._is_alone and self._has_committed_in_term:
            self._state.effects.append(ReadReady(token, self._state.commit_index))
        else:
            self._reads.add(token)

    @property
    def _is_alone(self) -> bool:
        return self.votes_itself and not self._voting_peers

    def _confirm_reads(self) -> None:
        """Answers the reads of the open round if a majority has seen that round or a later one (6.4)."""
        open_round = self._reads.open_round
        if open_round is None:
            return
        rounds = [peer.acknowledged_round for peer in self._voting_peers]
        if self.votes_itself:
            # Its own answer is there as soon as the round begins.
            rounds.append(self._round)
        if agreed(rounds) >= open_round:
            self._state.effects += self._reads.confirm()

    # Time ----------------------------------------------------------------------------------------------------

    def deadline(self) -> int | None:
        """Returns the next time at which `tick` or `replicate` has something to do."""
        due = self._heartbeat_due if self.peers else None
        if self._commit_notice_due is not None and (due is None or self._commit_notice_due < due):
            due = self._commit_notice_due
        transfer = self.succession.transfer
        if transfer is not None and (due is None or transfer.deadline < due):
            due = transfer.deadline
        return due

    def tick(self, now: int) -> int | None:
        """Begins heartbeats and ends a transfer that took too long.

        Returns how long no majority has answered (ns) once that is too long, else None: a leader without a majority
        for an election timeout steps down (dissertation 6.2). It is the longest one, for until then one that was only
        kept from answering may not have given it up.
        """
        self.succession.end_overdue(now)
        if now < self._heartbeat_due or not self.peers:
            return None
        # From now, not from when it was due: a leader that is late does not send the missed ones one after another.
        self._heartbeat_due = now + self._state.options.heartbeat_interval_ns
        self._round_due = True
        self._tell_of_slow_peers(now)
        contacts = [peer.last_contact for peer in self._voting_peers]
        if self.votes_itself:
            contacts.append(now)
        silence = now - agreed(contacts)
        # First: a leader without a majority has nothing to hand over.
        if silence > self._state.options.election_timeout_max_ns:
            return silence
        if now >= self._preferred_check_due:
            self._preferred_check_due = now + self._state.options.preferred_check_interval_ns
            self._hand_over_to_preferred(now)
        return None

    def _tell_of_slow_peers(self, now: int) -> None:
        state = self._state
        last_index = state.log.last_index
        for peer in self.peers.values():
            slow = peer.becomes_slow(last_index, state.options.election_timeout_min_ns, now)
            if slow is not None:
                state.effects.append(PeerSlow(peer.node, slow, last_index - peer.match_index))

    # Leadership transfer -------------------------------------------------------------------------------------

    def _hand_over_to_preferred(self, now: int) -> None:
        """Begins to hand over to the best of the preferred leaders that could lead at once, if there is one."""
        preferred = self._state.options.preferred_leaders
        if not preferred or self._state.node_id in preferred or self.succession.transfer is not None:
            return
        # Before it has committed in its term it does not know what is committed (8), and a member that is just being
        # added or removed may change who can lead.
        if (
            not self._has_committed_in_term
            or self._state.configurations.current_index > self._state.commit_index
        ):
            return
        ready = [
            peer
            for peer in self._voting_peers
            if peer.node in preferred
            and peer.connected
            and not peer.recovering
            and not peer.lacks_room
            and self._is_caught_up(peer, now)
        ]
        if ready:
            # Who lacks least can lead soonest: proposals wait until the heir has all of the log.
            best = max(ready, key=lambda peer: (peer.match_index, -preferred.index(peer.node)))
            self.succession.begin(best.node, now, Reason.PREFERRED)

    def step_down(self) -> None:
        """Ends this leadership, whatever the reason: its reads are lost."""
        self._state.effects += self._reads.abandon()

    def leave(self) -> None:
        """Our own removal is committed: tells the others, and asks the most complete voter to succeed us.

        Dissertation 4.2.2 lets such a leader just step down; TimeoutNow (3.10) spares the group the silence.
        """
        for peer in self.peers.values():
            if peer.connected and peer.state is PeerState.REPLICATE:
                self._send_empty(peer, peer.next_index - 1, 0)
        if self._voting_peers:
            # It has all that is committed, as the removal was, without this disk: it can win (5.4.1).
            best = max(self._voting_peers, key=lambda peer: peer.match_index)
            self._state.send(TimeoutNow(self._state.node_id, best.node, self._state.term))

    def stood_still(self, duration: int, now: int) -> None:
        """Takes note that this node did nothing for so long until now: what its peers sent meanwhile has yet to be
        read."""
        for peer in self.peers.values():
            peer.stood_still(duration, now)

    # Connections ---------------------------------------------------------------------------------------------

    def peer_recovers(self, node: str) -> None:
        """Forgets what the peer has acknowledged, which it may have lost: nothing that it said until now counts; see
        recovery.py."""
        peer = self.peers.get(node)
        if peer is not None:
            peer.forget()
            peer.said_recovering = True
            peer.trusted_round = self._round + 1
            self._round_due = True

    def peer_connected(self, node: str) -> None:
        peer = self.peers.get(node)
        if peer is not None:
            peer.connected = True

    def peer_disconnected(self, node: str) -> None:
        peer = self.peers.get(node)
        if peer is not None:
            peer.disconnected()

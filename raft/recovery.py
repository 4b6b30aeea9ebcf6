"""A node that comes back with less than it had acknowledged must not endanger what is committed.

Raft assumes that what a node promised survives on its disk: the votes it gave (5.2) and the entries it acknowledged
(5.3). Damage, a power failure before an asynchronous flush, or a new disk take that away. If such a node voted by
its shortened log it could elect a leader that lacks committed entries. So it begins in a `recovering` mode that ends
when it holds again whatever anyone may have counted on. What is lost decides what it may do meanwhile (`Loss`):

    ENTRIES   the end of the log, or all of it; term and vote are intact
    VOTE      a new disk whose node has learned the term of its group; its former votes are unknown
    ALL       an empty disk: a new group, or a new disk in an old one; which, is not known yet

**Entries.** The node follows, and what it acknowledges from now on counts. It neither campaigns on its own strength
nor votes as others do; see *Unanimity*. Let N be the node, T its term, L the leader of T. Any entry that counted an
acknowledgement which N gave in its former life, in a term U <= T, is either

- committed by a leader of a term before T: then L has it before its own first entry. The proof of leader
  completeness (5.4.3) holds for L, because the node that it finds in both majorities is not N: N has not voted for L
  since it lost anything; or
- committed by L itself. An acknowledgement of N's former life may still be under way, so N asks L (`RecoveryRequest`),
  and L from then on trusts only acknowledgements that have seen a heartbeat round begun later. Rounds of a leader only
  rise, and the former N cannot have seen one of the future, so nothing of its former life counts any more, however
  long the network keeps it. L answers with its commit index, below which is everything that it ever committed with
  their help (or with the index of its configuration if that is greater).

Hence the mode ends when N durably holds everything up to a commit index of L that is at least the one in L's answer,
and whose entry is of L's own term, so that it lies behind L's first. That is the condition in `is_over`, and it needs
no knowledge of what was lost. A restart in the middle begins the mode again: the caller keeps `RecoveryChanged`.

**Unanimity.** If all machines of a group lose power at once, all are recovering, and nobody could ever vote again. So
such a node does vote, but marks its vote, and marked votes count only if *all* voters grant theirs (`VoteTally`).
A node that is elected so has the longest log that any voter still has; what it lacks exists nowhere. A majority of
unmarked votes elects as ever.

*All voters* are more than those of the candidate's configuration. Each node that marks its vote, the candidate too,
names those with whom it may have committed what it lacks (`lost_voters`): the voters of the last configuration that its
disk knows to be committed, and of all later ones that it had; with a new disk, of the one that it was given. Otherwise

- a leader a of {a, b, c} that is cut off could append to its log alone that c leaves. c leads the next term and commits
  with b, which then loses that part of its log: the voters of {a, b} agree on a, and only c has what is committed;
- a could add b and c to a group of one, and lose that part of its log, or all of it: it would be its only voter again;
- b of {a, b} could add c, which a has not heard of, commit with c, and lose that: a and b would agree on a.

With majorities of unmarked votes that cannot be: any two share a node (4.1), and it remembers.

A crash before a flush is no loss: the node had promised nothing, its vote is unmarked, and it names nobody. So a leader
must not need that: while its newest configuration is not on its own disk, it commits only what a majority of the
configuration before it holds, too.

**An empty disk.** The term is unknown too, and so is who has the node's vote in it and in later ones. A vote is two
promises: to give no other in its term, and to acknowledge nothing in a term before it. So the node, N, first finds out
whether its group is new. It says nothing until

- a majority of the group, itself included, is as empty as itself, within one round of asking, and nobody has named a
  committed change of its members: this is a new group. Who has been removed since, and has an empty disk, would else be
  taken for one of that majority. Or
- more than half of the voters, itself not counted, have told it their term: it is an old one. N enters the greatest
  term told, and follows. Or
- some of the voters that it was given have been removed, and the rest has told it so. Who does not recover names with
  its term the voters of the last configuration that it knows to be committed, and of each later one in its log. Of the
  newest of the committed ones, and of each later one that is named, more than half, N not counted, have named theirs;
  and all who are named are among the voters that N was given. Then, too, it enters the greatest term told.

It follows, but acknowledges only what is committed, until it holds an entry E that its leader L, of term T, has
appended after N asked for one (`lost_votes`), and that is committed. That is the end of the mode. For let C be a
candidate of a later term U that has N's vote, or that has led N. It asked for votes before N lost its disk, so that its
log had not got E then.

- Let D be the first committed entry that C's log lacks, E at the latest. It was committed by a majority of the voters
  in force then, in a term before U. C's newest configuration is the same, or one change apart (whoever appends one has
  committed an entry of its own term before). C needs a majority of that one, and the two majorities share a node. It
  acknowledged D, and so more than C has, before it entered term U: it refuses its vote, and C is not elected. (If it
  has lost D since, its vote is marked, and all must agree, of whom others have D.)
- Unless that node is N. But N is not one of those by whom D was committed. Had it had D when it gave its vote, then C's
  log, which was no older than its own, would have had D, too. From its vote, or from when C led it, to its loss it
  acknowledged nothing in a term before U, and since its loss it acknowledges what is committed already.
- Nor is it another node that has lost a vote for C. Of all these let N be the first whose mode ends. At E, none of them
  counted: each still knew its vote, or acknowledged only what was committed.

So nobody is elected by what N has forgotten, and it is free of both promises. The same holds if N leads by a unanimous
election: as long as its mode lasts, its own disk does not count for a commit. Nor does it help a deposed leader to
confirm a read (6.4): the greatest term told is at least the last one in which N acknowledged something, as that leader
was elected by a majority, and one of these, not N, is among those who told theirs; or a change of members that it lacks
was committed in a later term.

Meanwhile it may vote, but not as others do, since all may recover at once. Once all other voters have told their terms,
those of the configuration that it was given and those of its log's, it takes its vote in the greatest of these terms
for used, and gives marked votes. There may be one more voter, x, that neither its settings nor its log have shown it
yet, or that is being removed, and x may lead by its former vote. Then N may give a second vote in that term. But
whoever else elected x is a voter of the other candidate, too, remembers, and refuses: not all agree. So that such a
vote is never repeated unmarked, it notes that it has voted, and not for whom.

**A log from a backup** is an empty disk that knows the beginning of the log. Its node has the term of the last entry,
and has promised nothing in it. A majority of such nodes, whose logs are the same, is a new group that begins with these
entries; among nodes that have a history it follows, as one with a new disk does. It says that it has no history until
it enters a greater term, as a node that has never had one.

**Members.** A learner that has lost its votes, as one with an empty disk has to assume, is not promoted before its mode
is over (`LearnerRecovering`): as a voter it would raise the majority that elections need and vote in none, and two of
them among four voters would leave nobody who could end their mode. For the same reason a voter that votes is not
removed while too few of those that stay do (`VotersRecovering`); nor one that nobody hears, as it may come back. A
learner that has lost nothing may be promoted at any time: where more than half of the voters vote, more than half do
with it.

**What is claimed.** No committed entry is lost and no term has two leaders as long as at most a minority of the voters
is recovering, empty or never started at one time, and none of them loses its disk again before its mode is over. The
voters are those of the last committed configuration, and of each later one that is in any log. The configuration that a
node with an empty disk is given must be that of the group, up to one membership change, until the node knows its term;
if it is another one, that change must be committed. A vote given before the loss must not reach another process of its
candidate than the one that asked for it (connections see to that). In a group with nodes that speak a protocol before
11 a node with a new disk recovers only once its leader speaks 11.

Only safety is claimed. A node never learns its term if, beside itself, no more than half of the voters that it was
given are there, and those that are missing have not been removed, or others have joined (one of two, say). It never
ends its mode while its leader reaches too few to commit without all those that have lost their votes. Nobody can lead
while a learner alone has the newest entries and a voter recovers whose vote would be needed. Whoever leads by a
unanimous election ends its mode with the first commit in its term.

Schedules that each of these rules is for are in tests/raft/test_recovery_and_members.py; `python -m tests.raft.walk
0-20000` looks for others at random.

Compare Alagappan et al., Protocol-Aware Recovery for Consensus-Based Storage (FAST 2018), which tells damaged entries
from torn ones in the same way, and Ongaro's dissertation 11.7.3 on Viewstamped Replication's recovery, which has
the same majorities but no disk.
"""

from collections.abc import Collection
from dataclasses import InitVar, dataclass, field

from raft.messages import RecoveryRequest, RecoveryResponse
from raft.recovery_loss import Loss
from raft.state import NodeState

_NONCES = 1 << 60


def _are_most(nodes: Collection[str], voters: Collection[str]) -> bool:
    """True if more than half of the voters are among the nodes."""
    return 2 * sum(voter in nodes for voter in voters) > len(voters)


@dataclass(slots=True, eq=False)
class Recovery:
    """The recovering mode of one node, from its start until it holds what it may have acknowledged."""

    _state: NodeState
    loss: Loss
    now: InitVar[int]
    # Numbers the rounds of asking; begins at random, so that answers to a former life are told apart.
    _first_nonce: int = field(init=False)
    _nonce: int = field(init=False)
    # Voters with a history, by the greatest term they told; an answer stays true, as terms only rise.
    _heard: dict[str, int] = field(default_factory=dict)
    # What those who do not recover name as the voters of the configurations that may be in force.
    _named: dict[str, tuple[tuple[int, tuple[str, ...]], ...]] = field(default_factory=dict)
    # Voters that were empty in this round of asking.
    _empty: dict[str, None] = field(default_factory=dict)
    # (term, commit index) of the newest leader that has answered.
    _leader_answer: tuple[int, int] = (-1, -1)
    # The first round of asking in which leaders were told what is lost.
    _leader_nonce: int = field(init=False)
    deadline: int = field(init=False)
    """The time of the next round of asking."""
    vote_is_used: bool = field(init=False)
    """True once this node has no vote left in the terms in which it may have voted before."""

    def __post_init__(self, now: int) -> None:
        self._first_nonce = self._nonce = self._state.random.randrange(0, _NONCES)
        self._leader_nonce = self._nonce
        self.deadline = now
        self.vote_is_used = self.loss is Loss.ENTRIES

    @property
    def is_mute(self) -> bool:
        """True while the node's term is unknown: until then it takes part in nothing."""
        return self.loss is Loss.ALL

    @property
    def may_vote(self) -> bool:
        """True if the node may give marked votes: it cannot give one a second time, as far as it knows the voters."""
        return self.vote_is_used and self.votes_are_known

    @property
    def forgets_votes(self) -> bool:
        """True if the node may have given the vote that it is asked for to another candidate before."""
        return self.loss is not Loss.ENTRIES

    @property
    def withholds(self) -> bool:
        """True if what the node has counts only as far as it is committed."""
        if self.loss is Loss.ENTRIES:
            return False
        # Of two voters none commits without the other: nothing is claimed for them, but they would never end.
        return len(self._state.configurations.current.voters) > 2 or not self.votes_are_known

    @property
    def votes_are_known(self) -> bool:
        """True if this node cannot have voted in a term beyond its own, as far as it knows the voters: it remembers its
        votes, or all have told their terms who may have had one."""
        if self.loss is not Loss.VOTE:
            return self.loss is Loss.ENTRIES
        return all(node in self._heard for node in self._others)

    @property
    def _others(self) -> list[str]:
        state = self._state
        voters = dict.fromkeys((*state.configurations.current.voters, *state.lost_voters))
        return [node for node in voters if node != state.node_id]

    # Asking --------------------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Begins a round of asking if one is due: answers may have been lost, or nobody may have been there."""
        if now < self.deadline:
            return
        self.deadline = now + self._state.options.election_timeout_min_ns // 2
        self._nonce += 1
        # Who was empty in an earlier round may have a history by now: that a group is new is found in a single one.
        self._empty.clear()
        for node in self._others:
            if self._needs(node):
                self.ask(node)

    def _needs(self, node: str) -> bool:
        """True if the node's answer is still needed: its term, or what it has committed as our leader."""
        state = self._state
        if self.is_mute:
            return True  # once more if it was heard: it may know by now that a configuration is overtaken
        if self.loss is Loss.VOTE and node not in self._heard:
            return True
        return node == state.leader and self._leader_answer[0] != state.term

    def ask(self, node: str) -> None:
        """Asks one node now: it has connected, or turned out to lead."""
        state = self._state
        lost_votes = self.loss is Loss.VOTE
        state.send(RecoveryRequest(state.node_id, node, state.term, self._nonce, lost_votes))

    def asked_by(self, node: str) -> None:
        """Asks a node back that has asked us: two that start together need not wait for the next round."""
        if self.is_mute and node in self._others and node not in self._heard and node not in self._empty:
            self.ask(node)

    # Answers -------------------------------------------------------------------------------------------------

    def is_current(self, response: RecoveryResponse) -> bool:
        """True if the response answers a question of this run of the node, not of an earlier one."""
        return self._first_nonce <= response.nonce <= self._nonce

    def count(self, response: RecoveryResponse) -> None:
        """Notes an answer for which `is_current` holds."""
        node = response.source
        if response.has_history:
            self._heard[node] = max(response.term, self._heard.get(node, 0))
            self._named[node] = response.voters
            self._empty.pop(node, None)
        elif response.nonce == self._nonce and node not in self._heard:
            self._empty[node] = None
        # Before protocol 11 leaders know of no loss, and name nobody. Nor does one that recovers itself, for a moment.
        knows_loss = self.loss is Loss.ENTRIES or (
            self.loss is Loss.VOTE and response.nonce >= self._leader_nonce and response.voters != ()
        )
        if response.leads and knows_loss and response.term > self._leader_answer[0]:
            self._leader_answer = (response.term, response.commit_index)

    @property
    def group_is_new(self) -> bool:
        """True if a majority of the voters is as empty as this node, and nobody knows of a change of members."""
        if not self.is_mute:
            return False
        # A change of members that is committed is newer than what this node was given: then the group has a history,
        # whoever is empty. Who was removed may be.
        given = self._state.configurations
        if any(named and named[0][0] > given.current_index for named in self._named.values()):
            return False
        return _are_most((*self._empty, self._state.node_id), given.current.voters)

    def term_learned(self) -> int | None:
        """Returns the term to enter when the group turns out to have one; None while too few have told theirs."""
        given = self._state.configurations.current.voters
        if not self.is_mute or not (_are_most(self._heard, given) or self._is_overtaken(given)):
            return None
        return max(self._heard.values())  # a greater one, of a node that is no voter, does no harm

    def learned(self, now: int) -> None:
        """The node enters the group's term: the leader, and those who have not told their term, are asked anew."""
        self.loss = Loss.VOTE
        self._nonce += 1
        self._leader_nonce = self._nonce
        self.deadline = now

    def _is_overtaken(self, given: Collection[str]) -> bool:
        """True if voters of the given configuration were removed, and enough of those that are left have answered."""
        naming = {node: named for node, named in self._named.items() if named}
        if not naming:
            return False
        # In force may be the newest configuration that anybody knows to be committed, and each later one in any log.
        committed = max(named[0][0] for named in naming.values())
        in_force = [voters for named in naming.values() for index, voters in named if index >= committed]
        return all(_are_most(naming, voters) and set(voters) <= set(given) for voters in in_force)

    # The end -------------------------------------------------------------------------------------------------

    def is_over(self, *, leads: bool) -> bool:
        """True if the node holds all that was ever committed with its help; the module says why this is enough.

        `leads` says that it leads its term: a unanimous election made it the leader.
        """
        state = self._state
        # Both conditions of the module: it has on its disk what is committed, and the last of that is an entry of its
        # leader's own term, so that it lies behind that leader's first.
        if self.is_mute or state.persisted.index < state.commit_index:
            return False
        if state.log.term_at(state.commit_index) != state.term:
            return False
        if leads:
            return True
        term, commit_index = self._leader_answer
        return term == state.term and state.commit_index >= commit_index

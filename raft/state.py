"""The state that a node has in every role, and the few ways in which it may change.

Election, follower and leader work on one `NodeState`; whatever the outside has to do about a change becomes an effect
here, in the same breath, so that neither can be forgotten. Which transitions follow from what is decided in core.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from raft.configuration import Configuration, ConfigurationHistory
from raft.durability import PersistedIndex
from raft.effects import (
    AcceptEntries,
    AppendConfiguration,
    AppendNoop,
    Committed,
    ConfigurationChanged,
    Effect,
    ResetLog,
    Role,
    RoleChanged,
    SaveHardState,
    Send,
    TruncateLog,
)
from raft.messages import Message
from raft.options import RaftOptions
from raft.reasons import Cause, Pause
from raft.recovery_loss import Loss
from raft.terms import LogTerms


class RandomSource(Protocol):
    """The part of `random.Random` that an election needs."""

    def randrange(self, start: int, stop: int) -> int: ...


@dataclass(frozen=True, slots=True)
class HardState:
    """The term of a node and its vote in that term. Both must be durable before anyone hears of them (figure 2)."""

    term: int = 0
    vote: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialState:
    """The state that a node found on its disk, with which it begins as a follower."""

    hard_state: HardState
    log: LogTerms
    """Everything in it is durable already. It belongs to raft from then on."""
    commit_index: int
    """The index of anything that was committed, at least `log.first_index` - 1."""
    configurations: Iterable[tuple[int, Configuration]]
    """The configurations of the entries in the log, each with its index, preceded by the one in force before it:
    (-1, the first configuration) when the log begins at 0."""
    loss: Loss | None = None
    """The part of what this node may have acknowledged or promised that it does not have any more, `Loss.ALL` if it
    never had a hard state: then, as long as it lasts, the node protects the group from itself (recovery.py)."""
    lost_voters: tuple[str, ...] = ()
    """With a loss: the voters with whom it may have committed what it lacks. Those are the voters of the configuration
    that was in force there, and of all later ones; or, on a new disk, of the configuration that it was given."""


class NodeState:
    """The state of one node (figure 2), without what only a candidate or only a leader has."""

    __slots__ = (
        "commit_index",
        "configurations",
        "effects",
        "lacks_room",
        "leader",
        "log",
        "log_effects_pending",
        "lost_voters",
        "node_id",
        "options",
        "pause",
        "persisted",
        "random",
        "recovering",
        "role",
        "term",
        "unreachable",
        "vote",
        "withholds",
    )

    def __init__(
        self,
        options: RaftOptions,
        node_id: str,
        initial: InitialState,
        random: RandomSource,
    ) -> None:
        hard_state, log, commit_index = initial.hard_state, initial.log, initial.commit_index
        assert log.first_index - 1 <= commit_index <= log.last_index, (
            f"the commit index {commit_index} lies outside of the log {log.first_index}..{log.last_index}"
        )
        assert log.last_term <= hard_state.term, (
            f"the log has an entry of term {log.last_term}, and the newest term saved is {hard_state.term}"
        )
        self.options = options
        self.node_id = node_id
        self.random = random
        # The term rises only, and the vote changes once in a term (5.1, 5.2). Both are durable before any message that
        # rests on them: SaveHardState goes before.
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.log = log
        self.configurations = ConfigurationHistory(initial.configurations)
        # Rises only. What it covers is never truncated. Always first_index - 1 <= commit_index <= last_index, and
        # log.last_term <= term. It may be beyond what this node has on its own disk: a majority without it is one, too.
        self.commit_index = commit_index
        self.persisted = PersistedIndex(log.last_index)
        # The next three are those of `Raft.recovery`, for whoever acts in a role: they end with it.
        # This node may lack what it acknowledged, so that its votes are marked; see recovery.py.
        self.recovering = False
        # The voters with whom it may have committed what it lacks. None unless recovering.
        self.lost_voters = initial.lost_voters if initial.loss is not None else ()
        # It may have voted in a term beyond its own: what it has counts only as far as it is committed (recovery.py).
        self.withholds = False
        # `leader` is this node while it leads, another one or none while it follows, and none while it asks for votes.
        self.role = Role.FOLLOWER
        self.leader: str | None = None
        # The peers that no message can be sent to, as far as the caller has told.
        self.unreachable: set[str] = set()
        # The caller has no room for entries: none are taken (follower.py).
        self.lacks_room = False
        # The last pause that the caller told of.
        self.pause: Pause | None = None
        self.effects: list[Effect] = []
        # True while effects wait that must be in the log before anyone reads it (`change_log`).
        self.log_effects_pending = False

    @property
    def counted_index(self) -> int:
        """The last entry for whose commit this node's disk counts."""
        return min(self.persisted.index, self.commit_index) if self.withholds else self.persisted.index

    @property
    def may_campaign(self) -> bool:
        """True if this node is a voter, or was one until a removal that is not committed yet.

        A node that is being removed may be the only one that has the entry which removes it. It then refuses its vote
        to all others, who lack it, so that it alone can lead (dissertation 4.2.2). Its own vote does not count.
        """
        history = self.configurations
        if self.node_id in history.current.voters:
            return True
        return history.current_index > self.commit_index and self.node_id in history.previous.voters

    @property
    def is_member(self) -> bool:
        return self.node_id in self.configurations.current.members

    def send(self, message: Message) -> None:
        """Adds the effect that sends a message without entries."""
        self.effects.append(Send(message))

    def change_log(
        self, effect: TruncateLog | AcceptEntries | ResetLog | AppendNoop | AppendConfiguration
    ) -> None:
        """Adds the effect that writes to the log what its terms say already."""
        self.effects.append(effect)
        self.log_effects_pending = True

    def save_hard_state(self, term: int, vote: str | None) -> None:
        """Enters a greater term, or gives the one vote of the current term (5.1, 5.2)."""
        assert term > self.term or (term == self.term and self.vote is None), (
            f"term {self.term} with the vote for {self.vote} would become {term} with that for {vote}"
        )
        self.term = term
        self.vote = vote
        # A term that was entered in order to vote in it is saved with the vote: one flush, not two. That is allowed
        # as long as nothing was sent in between.
        for position in range(len(self.effects) - 1, -1, -1):
            effect = self.effects[position]
            if isinstance(effect, SaveHardState):
                self.effects[position] = SaveHardState(term, vote)
                return
            if isinstance(effect, Send):
                break
        self.effects.append(SaveHardState(term, vote))

    def set_role(self, role: Role, leader: str | None, cause: Cause, *, term_changed: bool = False) -> None:
        """Sets role and leader; adds the effect that tells of it if either, or the term, has changed."""
        # The table in core.py. Whoever led on under another role would count votes and acknowledgements at once.
        assert role is not Role.LEADER or self.role is not Role.FOLLOWER, (
            "a follower leads without an election"
        )
        assert self.role is not Role.LEADER or role in (Role.LEADER, Role.FOLLOWER), (
            f"the leader of term {self.term} becomes {role.value} without having stepped down"
        )
        assert (leader == self.node_id) == (role is Role.LEADER), f"a {role.value} has {leader} as its leader"
        assert leader is None or role in (Role.LEADER, Role.FOLLOWER), f"a {role.value} follows {leader}"
        if role is not self.role or leader != self.leader or term_changed:
            before, followed = self.role, self.leader
            self.role = role
            self.leader = leader
            lost_leader = followed if followed not in (leader, self.node_id) else None
            self.effects.append(RoleChanged(role, self.term, leader, cause, before, lost_leader))

    def append_configuration(self, index: int, configuration: Configuration) -> None:
        """Puts a configuration in force whose entry, at `index`, is in the log now (dissertation 4.1)."""
        assert self.commit_index < index <= self.log.last_index, (
            f"a configuration at {index}, behind {self.commit_index} and up to {self.log.last_index} there may be one"
        )
        self.configurations.append(index, configuration)
        self.effects.append(ConfigurationChanged(index, configuration, committed=False))

    def truncate(self, last_index: int) -> None:
        """Removes all entries after `last_index`, which are in conflict with the leader's (5.3)."""
        assert last_index >= self.commit_index, (
            f"truncation to {last_index} would remove committed entries up to {self.commit_index}"
        )
        self.log.truncate(last_index)
        self.persisted.cut(last_index)
        self.change_log(TruncateLog(last_index))
        # A configuration is in force as long as its entry is in the log (dissertation 4.1).
        if self.configurations.truncate(last_index):
            current, index = self.configurations.current, self.configurations.current_index
            committed = index <= self.commit_index
            self.effects.append(ConfigurationChanged(index, current, committed))

    def reset_log(
        self, first_index: int, base_term: int, configuration_index: int, configuration: Configuration
    ) -> None:
        """Replaces the log by an empty one that begins at `first_index`: a snapshot covers all before (section 7)."""
        assert first_index - 1 > self.commit_index, (
            f"a snapshot up to {first_index - 1} would take back what is committed up to {self.commit_index}"
        )
        self.log.reset(first_index, base_term)
        self.persisted.cut(first_index - 1)
        self.persisted.index = first_index - 1  # the snapshot itself: ResetLog is durable when it is done
        self.configurations.reset(configuration_index, configuration)
        # First in the list of effects: what follows tells of members and of a commit in the new log.
        self.change_log(ResetLog(first_index, base_term, configuration_index, configuration))
        self.commit_index = first_index - 1
        self.effects.append(ConfigurationChanged(configuration_index, configuration, committed=True))
        self.effects.append(Committed(first_index - 1))

    def advance_commit(self, index: int) -> None:
        """Raises the commit index, and tells of configurations that are committed by that."""
        assert self.commit_index < index <= self.log.last_index, (
            f"commit of {index} after {self.commit_index}, in a log that ends at {self.log.last_index}"
        )
        before = self.commit_index
        self.commit_index = index
        self.effects.append(Committed(index))
        # Hardly any commit has one among its entries.
        if self.configurations.current_index > before:
            for entry_index, configuration in self.configurations.between(before + 1, index):
                self.effects.append(ConfigurationChanged(entry_index, configuration, committed=True))

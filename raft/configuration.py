"""The members of the group, and the changes of membership.

A configuration takes effect when its entry is appended, not when it is committed (dissertation 4.1), so a node needs
the configurations of its log's uncommitted part to fall back when entries are truncated, and the one in force at the
log's head to hand to a node that starts from there. `ConfigurationHistory` keeps exactly those.

Only one server is added or removed at a time, so that any majority of the old and any of the new configuration share
a server and no joint phase is needed (dissertation 4.1). A new server begins as a learner: it receives the log but
neither votes nor counts, until it has caught up and is promoted (4.2.1).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from raft.errors import AlreadyMember, LastVoter, UnknownMember


@dataclass(frozen=True, slots=True)
class Configuration:
    """The members by node id, in the order in which they joined; no node is both voter and learner.

    Raises ValueError for a node that is named twice.
    """

    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.members)) != len(self.members):
            raise ValueError(f"a member is named twice: {self.members}")

    @property
    def members(self) -> tuple[str, ...]:
        return self.voters + self.learners


@dataclass(frozen=True, slots=True)
class AddLearner:
    """Adds a node that receives the log without a vote."""

    node: str

    def applied_to(self, configuration: Configuration) -> Configuration:
        """Returns the configuration with the node as a learner. Raises AlreadyMember."""
        if self.node in configuration.members:
            raise AlreadyMember(self.node)
        return Configuration(configuration.voters, (*configuration.learners, self.node))


@dataclass(frozen=True, slots=True)
class PromoteLearner:
    """Gives a learner its vote."""

    node: str

    def applied_to(self, configuration: Configuration) -> Configuration:
        """Returns the configuration with the node as a voter. Raises AlreadyMember, UnknownMember."""
        if self.node in configuration.voters:
            raise AlreadyMember(self.node)
        if self.node not in configuration.learners:
            raise UnknownMember(self.node, "a learner")
        learners = tuple(node for node in configuration.learners if node != self.node)
        return Configuration((*configuration.voters, self.node), learners)


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """Removes a voter or a learner; a leader may remove itself."""

    node: str

    def applied_to(self, configuration: Configuration) -> Configuration:
        """Returns the configuration without the node. Raises UnknownMember, LastVoter."""
        if self.node not in configuration.members:
            raise UnknownMember(self.node, "a member")
        # Nobody would be left whose disk could commit the removal.
        if configuration.voters == (self.node,):
            raise LastVoter(self.node)
        return Configuration(
            tuple(node for node in configuration.voters if node != self.node),
            tuple(node for node in configuration.learners if node != self.node),
        )


Change = AddLearner | PromoteLearner | RemoveMember


class ConfigurationHistory:
    """The configurations of a log: the one in force at its head and those of the entries after it.

    `entries` are (index, configuration), rising by index; the first may lie before the log's first entry, and a
    group's first configuration, which no entry carries, has index -1. Raises ValueError if there are none, or if
    their indices do not rise.
    """

    __slots__ = ("_entries", "current", "current_index")

    def __init__(self, entries: Iterable[tuple[int, Configuration]]) -> None:
        # Never empty; `current_index` and `current` are always those of its last pair.
        self._entries = list(entries)
        if not self._entries:
            raise ValueError("a node needs the configuration it starts from")
        if any(
            later[0] <= earlier[0] for earlier, later in zip(self._entries, self._entries[1:], strict=False)
        ):
            raise ValueError("configurations must rise by index")
        self._refresh()

    def _refresh(self) -> None:
        self.current_index, self.current = self._entries[-1]

    @property
    def previous(self) -> Configuration:
        """The configuration before the current one; the current one when no other is known."""
        return self._entries[max(0, len(self._entries) - 2)][1]

    def append(self, index: int, configuration: Configuration) -> None:
        """Makes the configuration of the entry at `index`, which was appended, the current one."""
        assert index > self.current_index, f"configuration at {index} follows one at {self.current_index}"
        self._entries.append((index, configuration))
        self._refresh()

    def truncate(self, last_index: int) -> bool:
        """Forgets configurations after `last_index`; returns True when the current one changed by it."""
        before = self.current_index
        # The first one is in force where the log begins, so that it never goes with the log's end.
        while len(self._entries) > 1 and self._entries[-1][0] > last_index:
            self._entries.pop()
        assert self._entries[-1][0] <= last_index, "the configuration at the log's head was truncated"
        self._refresh()
        return self.current_index != before

    def drop_before(self, first_index: int) -> None:
        """Forgets all configurations before the one that is in force where the log begins, at `first_index`."""
        # One goes only when the next lies before the log, too: the last of these is in force at the log's beginning.
        while len(self._entries) > 1 and self._entries[1][0] < first_index:
            self._entries.pop(0)

    def reset(self, index: int, configuration: Configuration) -> None:
        """Forgets all but the configuration of a snapshot, which has replaced the log."""
        self._entries = [(index, configuration)]
        self._refresh()

    def at(self, index: int) -> tuple[int, Configuration]:
        """The (index, configuration) in force at `index`.

        Raises AssertionError if `index` lies before the oldest one that is kept.
        """
        for entry in reversed(self._entries):
            if entry[0] <= index:
                return entry
        raise AssertionError(f"the configuration in force at {index} is no longer known")

    def since(self, index: int) -> list[tuple[int, Configuration]]:
        """The (index, configuration) in force at `index`, or the oldest that is known, and all later ones."""
        later = sum(entry[0] > index for entry in self._entries)
        # One more than the later ones. If none is as old as `index` the slice begins before the list, and is all of it.
        return self._entries[-later - 1 :]

    def between(self, first_index: int, last_index: int) -> tuple[tuple[int, Configuration], ...]:
        """The (index, configuration) pairs of the entries first_index..last_index."""
        if self.current_index < first_index:  # nearly always: an append rarely carries a configuration
            return ()
        return tuple(entry for entry in self._entries if first_index <= entry[0] <= last_index)

    def kept(self) -> tuple[tuple[int, Configuration], ...]:
        """All (index, configuration) pairs that are known, oldest first."""
        return tuple(self._entries)

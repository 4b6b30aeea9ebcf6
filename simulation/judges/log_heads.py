"""The heads of a group's logs: where that of each node begins, and what the group has agreed on.

What a client is told of a queue's begin never falls, whoever leads. Once all members read the entries that raise the
group's head (`RaiseHead`), it is what these say, at a moment between question and answer, and nothing else: so a leader
that tells of its own log is found by the first question, and not only by two that contradict each other. Until then
each node deletes by itself, and the begin is that of any leader of that time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from broker.state.commands import FORMAT_OF_COMMANDS, Command, RaiseFormat, RaiseHead
from simulation.journal import Violation

SERVES: Final = "a leader that serves has all that the group keeps"
_AGREED_FORMAT: Final = FORMAT_OF_COMMANDS[RaiseHead]
_NAME_IN_ENTRY: Final = RaiseHead.__struct_config__.tag.encode()  # type: ignore[union-attr]


class LogHeads:
    """Positions in the log of one group; times are true ones."""

    def __init__(self) -> None:
        self.kept_from = 0
        """All nodes keep what is there and behind it, but for one that lacks the room; readers may be sent there."""
        self.spares_what_waits: Callable[[str, int], None] = lambda node, position: None
        """Raises Violation if a message before a position still waits, and is not gone yet: age alone takes none."""
        self._agreed: list[tuple[int, int]] = []
        """(time, position) since the group agrees on its head by entries, and tells of nothing else."""
        self._agreed_from_index = 0
        """The entry with which that begins."""
        self._forced: dict[tuple[int, int], None] = {}
        """(index, term) of entries whose leader's disk was nearly full when it wrote them."""
        self._elections: list[tuple[int, str]] = []
        self._begins: dict[str, list[tuple[int, int]]] = {}
        """Node -> (time, first position of its log), as it changed."""
        self.was_forced = False
        """The group's head was raised last because a disk was nearly full."""

    @property
    def is_agreed(self) -> bool:
        """True since the group tells of a head that entries have raised, and of nothing else."""
        return bool(self._agreed)

    @property
    def agreed_position(self) -> int:
        """The head that the group has agreed on, 0 before it has."""
        return self._agreed[-1][1] if self._agreed else 0

    def elected(self, node: str, now_ns: int) -> None:
        """A node leads."""
        self._elections.append((now_ns, node))

    def begins_at(self, node: str, position: int, now_ns: int) -> None:
        """A node's log begins there now."""
        self.kept_from = max(self.kept_from, position)
        self._begins.setdefault(node, []).append((now_ns, position))

    def written(self, entries: bytes | memoryview, first_index: int, last_index: int, term: int) -> None:
        """A leader whose disk is nearly full has written these entries."""
        # By the command's name, as to decode each entry would be dear. Where the name stands in another entry nothing
        # comes of it: `applied` looks up only those that raise the head.
        if _NAME_IN_ENTRY in bytes(entries):
            self._forced |= dict.fromkeys((index, term) for index in range(first_index, last_index + 1))

    def applied(self, node: str, index: int, term: int, command: Command, now_ns: int) -> None:
        """A command is committed, as `node` tells first. Raises Violation."""
        match command:
            case RaiseFormat(version):
                # Where a node has deleted before that, the first entry says from where on the group agrees.
                if version >= _AGREED_FORMAT and not self.kept_from and not self._agreed:
                    self._agrees(index, 0, now_ns)
            case RaiseHead(position):
                self.was_forced = (index, term) in self._forced
                if not self.was_forced:
                    self.spares_what_waits(node, position)
                self.kept_from = max(self.kept_from, position)
                self._agrees(index, max(self.agreed_position, position), now_ns)

    def _agrees(self, index: int, position: int, now_ns: int) -> None:
        if not self._agreed:
            self._agreed_from_index = index
        self._agreed.append((now_ns, position))

    def serves(self, node: str, position: int, applied_index: int, applied_position: int) -> None:
        """Checks a serving leader: its log (from `position`) begins no later than the group's head that it has applied.

        Nothing is checked before it has applied the first entry by which the group agrees on a head: until then it may
        have deleted by itself, which that entry takes up. Raises Violation.
        """
        if self._agreed and applied_index >= self._agreed_from_index and position > applied_position:
            raise Violation(
                SERVES, node, f"its log begins at {position}, the group's head is {applied_position}"
            )

    def begins_since(self, time_ns: int) -> list[int]:
        """Returns where the group's log may have begun since then, as a leader tells."""
        at = bisect_right(self._agreed, time_ns, key=lambda agreed: agreed[0]) - 1
        found = dict.fromkeys(position for _, position in self._agreed[max(at, 0) :])
        if at < 0:
            found |= dict.fromkeys(self._leaders_begins_since(time_ns))
        return sorted(found)

    def _leaders_begins_since(self, time_ns: int) -> list[int]:
        """Returns where the logs of the leader then, and of later ones, have begun since then."""
        newest_before = bisect_right(self._elections, time_ns, key=lambda election: election[0]) - 1
        found: list[int] = []
        for _, node in self._elections[max(newest_before, 0) :]:
            begins = self._begins[node]
            at = bisect_right(begins, time_ns, key=lambda begin: begin[0]) - 1
            found += [position for _, position in begins[max(at, 0) :]]
        return found

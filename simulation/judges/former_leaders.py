"""A node that does not lead has nothing of what only a leader has: it is as it was before it ever led.

What is left of a leadership does its harm in the next one of the same node, if at all: somebody waits for what nobody
does any more, or is told of what another leader has undone. So whatever hears of changes of the role is looked at after
the turn in which a leadership has ended, and held to what it had at its start. Nothing has to be named for that, and so
nothing is forgotten; what is meant to stay is named instead.

A request that is handled in steps learns in its next one that the leadership is over. So a node with such requests is
looked at once they have ended, and one that has yet to tell those who wait for its log, or to hand requests on, once it
has done so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

from broker.administration.group_changes_processor import GroupChangesProcessor
from broker.administration.status_processor import StatusProcessor
from broker.consumer_groups.heartbeats_processor import HeartbeatsProcessor
from broker.consumer_groups.locks_processor import LocksProcessor
from broker.node.node import Node
from broker.offsets.commits import OffsetCommits
from broker.reading.held_pulls import HeldPulls
from broker.replica.leadership import Leadership
from broker.replica.members import Members
from broker.replica.read_barriers import ReadBarriers
from broker.replica.uncommitted import Uncommitted
from broker.requests.budget import Budget
from broker.requests.shared_places import SharedPlaces
from broker.topics.first_messages import NewTopics
from broker.transactions.checks import TransactionChecks
from raft.effects import Role
from simulation.journal import Violation

NOTHING_LEFT: Final = "nothing is left of a leadership"

_OF_ALL_ROLES: Final = (Node, StatusProcessor, HeartbeatsProcessor, GroupChangesProcessor)
"""Parts that hear of changes of the role, but whose state is of clients, peers and operators, whoever leads."""
OUTLIVES: Final[Mapping[type, tuple[str, ...]]] = {
    # Numbers that only rise, and whose turn it is to be asked.
    HeldPulls: ("_sequence",),
    OffsetCommits: ("dropped",),
    TransactionChecks: ("_asked",),
    # Times of the last leadership, which the next one sets anew or which have passed by then.
    LocksProcessor: ("_term", "_began_ms", "_began_ns"),
    # What a majority has confirmed is right whoever leads: these reads wait for nothing but what is applied here.
    # What could not be confirmed is handed on in turns.
    ReadBarriers: ("confirmed_at", "lost_reads", "may_pass", "_next_token", "_left"),
    # Of a turn, these two; and what is committed stays so.
    Uncommitted: ("_answers_left", "_applied_left", "_committed_upto"),
    NewTopics: ("_left", "_left_ns"),
    # Of a turn, of requests that wait at the node, of those who are told in turns, and of members.
    Leadership: ("has_timed_append", "untold", "others_first"),
    Members: ("peers", "_links", "_formats", "_dismissed_index"),
}
"""The fields that stay when a leadership ends."""

_Field = tuple[int, str, str]
"""The number of the part, its class, and the field's name."""


class FormerLeader:
    """Compares the parts of one process that serve leaders only, once it leads no more, with how they had started."""

    def __init__(self, name: str, node: Node) -> None:
        """To be made when the process has just started: what its parts hold now is what they are held to later."""
        self._name = name
        self._node = node
        leadership, listeners = node.replica.leadership, node.listeners.role_changes
        hearing = [getattr(listener, "__self__", None) for listener in listeners]
        self._parts: list[object] = [part for part in hearing if not isinstance(part, _OF_ALL_ROLES)]
        self._parts += (
            leadership,
            leadership.uncommitted,
            leadership.batches,
            leadership.reads,
            node.replica.members,
        )
        self._leaving: list[Any] = [part for part in self._parts if hasattr(part, "leaving")]
        """The parts that hand requests on in turns."""
        self._at_start = dict(self._fields())
        self._has_led = False
        """The node has led since it was looked at last."""
        listeners.append(self._role_changed)

    def _role_changed(self) -> None:
        if self._node.replica.raft.role is Role.LEADER:
            self._has_led = True

    def turned(self) -> None:
        """To be called after each turn. Raises Violation."""
        node = self._node
        if not self._has_led or node.replica.raft.role is Role.LEADER:
            return
        is_at_it = node.long_requests.in_steps or node.replica.leadership.untold
        if not is_at_it and not any(part.leaving for part in self._leaving):
            self._has_led = False
            self._look()

    def _look(self) -> None:
        for field, value in self._fields():
            # What the part did not have then has nothing to be held to.
            before = self._at_start.get(field, value)
            if value != before:
                _, part, name = field
                raise Violation(
                    NOTHING_LEFT,
                    self._name,
                    f"it does not lead; {part}.{name}, {before!r} at its start, is {value!r:.200}",
                )

    def _fields(self) -> Iterator[tuple[_Field, object]]:
        """Yields what the parts hold."""
        for number, part in enumerate(self._parts):
            kind = type(part)
            stays = OUTLIVES.get(kind, ())
            for name in (*getattr(kind, "__slots__", ()), *getattr(part, "__dict__", ())):
                if name not in stays:
                    yield (number, kind.__name__, name), _held(getattr(part, name, None))


def _held(value: Any) -> object:
    """A number as it is; of what contains others, how many there are; of any other object its class."""
    if value is None or isinstance(value, int | tuple):
        return value
    if isinstance(value, dict | list | set | deque):
        return len(value)
    if isinstance(value, SharedPlaces):
        return value.taken
    if isinstance(value, Budget):
        return value.places.taken
    return type(value)

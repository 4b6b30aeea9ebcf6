"""The state that nodes make of their log, beside queues and index files: the same on all of them, and nothing of the
dead.

Behind the same entry all nodes have the same state, whether they applied the whole log, began with a snapshot of their
own or took a leader's. A table that a snapshot leaves out, or a command that is not a function of the state, shows as
soon as two nodes have applied the same, long before somebody asks for what is wrong.

What is kept of a topic goes with it. A topic that is made again has nothing but its name of the one before: what is
left of that does its harm only then, when a group begins where it was in the old topic, or is sent there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Final

from broker.replica.applied import AppliedState
from broker.state.metadata import Metadata
from simulation.journal import Violation
from simulation.scheduler import SECOND

SAME: Final = "nodes make the same of the same log"
OF_TOPICS: Final = "what is kept of a topic goes with it"
ORDERS: Final = "an order is an offset, too"

_COMPARED_EVERY_NS: Final = SECOND // 4


class ReplicatedState:
    """Watches the state that the nodes of a group have applied."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._applied: dict[str, AppliedState] = {}
        """The state of each process that runs, by its node."""
        self._tables: dict[str, tuple[int, ...]] = {}
        """By node, what tells that a table with topics in it has changed."""
        self._due_ns: dict[str, int] = {}
        """By node, when it is compared again."""

    def started(self, name: str, applied: AppliedState) -> None:
        """A process has recovered, with what its snapshot has."""
        self._applied[name] = applied
        self._tables.pop(name, None)
        self._due_ns[name] = 0

    def stopped(self, name: str) -> None:
        """A process has ended."""
        self._applied.pop(name, None)

    def turned(self, name: str) -> None:
        """Looks at a node after its turn. Raises Violation."""
        applied, now_ns = self._applied[name], self._now_ns()
        self._check_topics(name, applied.metadata)
        if now_ns >= self._due_ns[name] and applied.is_of_one_place(0):
            self._due_ns[name] = now_ns + _COMPARED_EVERY_NS
            for other, state in self._applied.items():
                if state is not applied and state.index == applied.index and state.is_of_one_place(0):
                    self._compare(name, applied.metadata, other, state.metadata, applied.index)
                    break

    @staticmethod
    def _compare(name: str, own: Metadata, other: str, others: Metadata, index: int) -> None:
        for field in fields(Metadata):
            here, there = getattr(own, field.name), getattr(others, field.name)
            if here != there:
                raise Violation(
                    SAME,
                    name,
                    f"behind entry {index} it has the {field.name} {here!r:.300}, and {other} has {there!r:.300}",
                )

    def _check_topics(self, name: str, metadata: Metadata) -> None:
        topics, offsets, parked = metadata.topics, metadata.offsets, metadata.parked.offsets
        writers = metadata.writers.portions
        # Whatever could break this changes one of these counts; to look through all tables in each turn would take too
        # long.
        tables = (metadata.topics_version.counter, len(topics), offsets.count, parked.count, len(writers))
        if tables == self._tables.get(name):
            return
        self._tables[name] = tables
        for what, kept in (("an offset", offsets), ("an order", parked)):
            for group, topic in kept:
                if topic not in topics:
                    raise Violation(OF_TOPICS, name, f"there is no {topic}; group {group} has {what} in it")
        for topic, writer in writers:
            if topic not in topics:
                raise Violation(OF_TOPICS, name, f"there is no {topic}; writer {writer} has a portion in it")
        for (group, topic), queues in parked.items():
            if lacking := queues.keys() - offsets.get((group, topic), {}).keys():
                raise Violation(
                    ORDERS,
                    name,
                    f"group {group} is sent elsewhere in {topic}/{min(lacking)}, without an offset",
                )

"""Consumer offsets by consumer group, topic and queue: a table that can be lent as it is.

There may be a million of them, and a snapshot is written while others go on changing them. So a view shares all inner
dicts with the table, and the table copies one of them before it changes it, as long as there is a view. A consumer
group, with offsets in however many topics, is forgotten by taking one item away.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar, overload

from broker.state.writing import Rows

OffsetFields = list[tuple[str, str, dict[int, int]]]
"""Consumer group, topic, and queue id -> offset, as a snapshot holds them: a consumer group's topics follow each
other."""

_Key = tuple[str, str]
_Default = TypeVar("_Default")


@dataclass(slots=True, eq=False)
class _Copied:
    """The parts that the table has copied since it was lent last: the topics of consumer groups, and the queues of
    (consumer group, topic)."""

    groups: set[str] = field(default_factory=set)
    queues: set[_Key] = field(default_factory=set)


class StoredOffsets(Mapping[_Key, dict[int, int]]):
    """By (consumer group, topic), queue id -> offset. No dict in it is empty; only `put` and its kin change any."""

    __slots__ = ("__weakref__", "_copied", "_views", "by_group", "count")

    def __init__(self, fields: Iterable[tuple[str, str, dict[int, int]]] = ()) -> None:
        """Begins with what a snapshot has."""
        self.by_group: dict[str, dict[str, dict[int, int]]] = {}
        self.count = 0
        """The number of offsets."""
        self._copied: _Copied | None = None
        """None while all dicts are this table's own: if and only if there is no view."""
        self._views = 0
        """The number of views that somebody has."""
        self.take(fields)

    # ------------------------------------------------------------------ as a mapping

    def __getitem__(self, key: _Key) -> dict[int, int]:
        return self.by_group[key[0]][key[1]]

    @overload
    def get(self, key: _Key, /) -> dict[int, int] | None: ...

    @overload
    def get(self, key: _Key, default: dict[int, int] | _Default, /) -> dict[int, int] | _Default: ...

    def get(self, key: _Key, default: object = None, /) -> object:
        """The offsets of a consumer group in a topic, which are not to be changed."""
        topics = self.by_group.get(key[0])
        return default if topics is None else topics.get(key[1], default)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, tuple) and key[1] in self.by_group.get(key[0], ())

    def __iter__(self) -> Iterator[_Key]:
        """Yields (consumer group, topic) of all offsets; they may change meanwhile, for who goes through them in steps.

        A list of a million of these pairs would take a third of a second.
        """
        for group in list(self.by_group):
            for topic in list(self.by_group.get(group, ())):
                yield group, topic

    def __len__(self) -> int:
        return sum(map(len, self.by_group.values()))

    def __bool__(self) -> bool:
        return bool(self.by_group)

    # ------------------------------------------------------------------ changes

    def take(self, fields: Iterable[tuple[str, str, dict[int, int]]]) -> None:
        """Adds what a snapshot has, or the next part of it."""
        for group, topic, queues in fields:
            self.by_group.setdefault(group, {})[topic] = queues
            self.count += len(queues)

    def put(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Stores an offset; it takes the place of an earlier one."""
        queues = self._queues_to_change(group, topic)
        self.count += queue_id not in queues
        queues[queue_id] = offset

    def remove(self, group: str, topic: str, queue_id: int) -> None:
        """Removes an offset, which is there."""
        queues = self._queues_to_change(group, topic)
        del queues[queue_id]
        self.count -= 1
        if not queues:
            self._remove_queues(group, topic)

    def forget_group(self, group: str) -> list[dict[int, int]]:
        """Removes all offsets of a consumer group, and returns them, to be let go in steps."""
        # None of its dicts is changed, so that views keep theirs.
        gone = [*self.by_group.pop(group, {}).values()]
        self.count -= sum(map(len, gone))
        return gone

    def forget_topic(self, topic: str) -> list[str]:
        """Removes the offsets of all consumer groups in a topic. Returns those consumer groups."""
        # Listed first: what follows changes the table.
        groups = [group for group, topics in self.by_group.items() if topic in topics]
        for group in groups:
            self.count -= len(self.by_group[group][topic])
            self._remove_queues(group, topic)
        return groups

    def _remove_queues(self, group: str, topic: str) -> None:
        topics = self._topics_to_change(group)
        del topics[topic]
        if not topics:
            del self.by_group[group]

    def _topics_to_change(self, group: str) -> dict[str, dict[int, int]]:
        topics, copied = self.by_group.get(group), self._copied
        # A view may have the same dict: before its first change since then it is copied, once.
        if topics is None or (copied is not None and group not in copied.groups):
            topics = self.by_group[group] = {} if topics is None else topics.copy()
            if copied is not None:
                copied.groups.add(group)
        return topics

    def _queues_to_change(self, group: str, topic: str) -> dict[int, int]:
        topics, copied = self._topics_to_change(group), self._copied
        queues = topics.get(topic)
        # As above, for the dict of one topic.
        if queues is None or (copied is not None and (group, topic) not in copied.queues):
            queues = topics[topic] = {} if queues is None else queues.copy()
            if copied is not None:
                copied.queues.add((group, topic))
        return queues

    # ------------------------------------------------------------------ views and snapshots

    def view(self) -> StoredOffsets:
        """Returns the offsets as they are now, whatever changes from here on: in a step for each consumer group."""
        view = StoredOffsets()
        view.by_group, view.count = self.by_group.copy(), self.count
        assert (self._copied is None) == (not self._views), (
            f"{self._views} views, of dicts that may be changed"
        )
        # Anew, also with other views: what was copied for them this one shares.
        self._copied = _Copied()
        self._views += 1
        # Nobody frees a view: it ends with the last who has it. At the end of the process nothing is left to
        # count.
        weakref.finalize(view, self._view_freed).atexit = False
        return view

    def _view_freed(self) -> None:
        """A view is gone; without one all dicts are this table's own again."""
        self._views -= 1
        if not self._views:
            self._copied = None

    def rows(self, at_once: int) -> Rows:
        """The form in a snapshot (`OffsetFields`): slices of rows that have some `at_once` offsets together."""
        return Rows(len(self), self._slices(at_once), lambda rows: sum(len(row[2]) for row in rows))

    def _slices(self, at_once: int) -> Iterator[list[tuple[str, str, dict[int, int]]]]:
        some, count, total = [], 0, 0
        for group, topics in self.by_group.items():
            for topic, queues in topics.items():
                some.append((group, topic, queues))
                count += len(queues)
                # A row is a topic of a consumer group, however many queues it has: so a slice is a little longer, or
                # much.
                if count >= at_once:
                    yield some
                    total += count
                    some, count = [], 0
        if some:
            yield some
        assert self.count == total + count, "the count moves with the offsets"

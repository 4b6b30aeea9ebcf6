"""Positions that an administrator's reset has set and that no consumer has followed yet (behaviour.md 5.2 and 8.3).

A reset is an order to a group's consumers, who keep their position in memory and report it as they go. So the position
is not only stored but parked: until a consumer reads from there (broker/offsets/resets.py), what the group reports for
the queue does not count. This is the replicated part, a pure function of the commands that are applied.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

ParkedFields = list[tuple[str, str, dict[int, int]]]
"""Group, topic, and queue id -> offset, as a snapshot holds them."""


@dataclass(slots=True)
class ParkedOffsets:
    """Queue id -> offset, by (group, topic). Each is a stored position, too, so that they are no more than those."""

    by_group: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where the group is to go in a queue, if it is told to and has not gone yet."""
        queues = self.by_group.get((group, topic))
        return None if queues is None else queues.get(queue_id)

    def park(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """An order; it takes the place of an earlier one."""
        self.by_group.setdefault((group, topic), {})[queue_id] = offset

    def end(self, group: str, topic: str, queue_id: int, offset: int | None = None) -> None:
        """The group has followed, or a later order overrules it; with `offset` only if that is still where it is."""
        queues = self.by_group.get((group, topic), {})
        if queue_id in queues and offset in {None, queues[queue_id]}:
            del queues[queue_id]
            if not queues:
                del self.by_group[group, topic]

    def forget(self, concerns: Callable[[str, str], bool]) -> None:
        """The topics or groups that `concerns(group, topic)` says yes to are gone."""
        for key in [key for key in self.by_group if concerns(*key)]:
            del self.by_group[key]

    def to_fields(self) -> ParkedFields:
        """For a snapshot."""
        return [(group, topic, dict(queues)) for (group, topic), queues in self.by_group.items()]

    @classmethod
    def from_fields(cls, fields: Iterable[tuple[str, str, dict[int, int]]]) -> "ParkedOffsets":
        """The inverse of `to_fields`."""
        return cls({(group, topic): dict(queues) for group, topic, queues in fields})

"""Consumer offsets that an administrator's reset has set and that no consumer has followed yet.

A reset is an order to the consumers of a consumer group, who keep their offsets in memory and report them as they go.
So the offset is not only stored but parked (as in `ConsumerOffsetManager` of RocketMQ 5): until a consumer reads from
there (broker/offsets/resets.py), what the consumer group reports for the queue does not count. This is the replicated
part, a pure function of the commands that are applied.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

ParkedFields = list[tuple[str, str, dict[int, int]]]
"""Consumer group, topic, and queue id -> offset, as a snapshot holds them."""


@dataclass(slots=True)
class ParkedOffsets:
    """The parked offsets. Each is a stored consumer offset, too, so that they are no more than those."""

    by_group: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    """By (consumer group, topic), queue id -> offset; no inner dict is empty."""

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset to which the consumer group is to go in a queue; None if it is not told to, or has gone there."""
        queues = self.by_group.get((group, topic))
        return None if queues is None else queues.get(queue_id)

    def park(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Parks an offset; it takes the place of an earlier one."""
        self.by_group.setdefault((group, topic), {})[queue_id] = offset

    def end(self, group: str, topic: str, queue_id: int, offset: int | None = None) -> None:
        """Ends an order that was followed or overruled; with `offset` only if that is still the parked one."""
        queues = self.by_group.get((group, topic), {})
        if queue_id in queues and offset in {None, queues[queue_id]}:
            del queues[queue_id]
            if not queues:
                del self.by_group[group, topic]

    def forget(self, concerns: Callable[[str, str], bool]) -> None:
        """Forgets the offsets for which `concerns(consumer group, topic)` is true: the one or the other is gone."""
        for key in [key for key in self.by_group if concerns(*key)]:
            del self.by_group[key]

    def to_fields(self) -> ParkedFields:
        """The form in a snapshot."""
        return [(group, topic, dict(queues)) for (group, topic), queues in self.by_group.items()]

    @classmethod
    def from_fields(cls, fields: Iterable[tuple[str, str, dict[int, int]]]) -> "ParkedOffsets":
        """The inverse of `to_fields`."""
        return cls({(group, topic): dict(queues) for group, topic, queues in fields})

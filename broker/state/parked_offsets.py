"""Consumer offsets that an administrator's reset has set and that no consumer has followed yet.

A reset is an order to the consumers of a consumer group, who keep their offsets in memory and report them as they go.
So the offset is not only stored but parked (as in `ConsumerOffsetManager` of RocketMQ 5): until a consumer reads from
there (broker/offsets/resets.py), what the consumer group reports for the queue does not count. This is the replicated
part, a pure function of the commands that are applied.
"""

from dataclasses import dataclass, field

from broker.state.stored_offsets import StoredOffsets


@dataclass(slots=True)
class ParkedOffsets:
    """The parked offsets. Each is a stored consumer offset, too, so that they are no more than those."""

    offsets: StoredOffsets = field(default_factory=StoredOffsets)

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset to which the consumer group is to go in a queue; None if it is not told to, or has gone there."""
        queues = self.offsets.get((group, topic))
        return None if queues is None else queues.get(queue_id)

    def end(self, group: str, topic: str, queue_id: int, offset: int | None = None) -> None:
        """Ends an order that was followed or overruled; with `offset` only if that is still the parked one."""
        parked = self.get(group, topic, queue_id)
        if parked is not None and offset in {None, parked}:
            self.offsets.remove(group, topic, queue_id)

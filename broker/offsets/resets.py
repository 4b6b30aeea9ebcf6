"""Resets of a consumer group's offsets by an administrator, which consumers follow when they pull.

RocketMQ 4.9 tells the consumer group's live clients where to go (request 220) and stores nothing: a client that dies
before it has reported its new offset loses the reset, and a consumer group without clients cannot be reset at all. 5.x
stores the offset and parks it: the next pull of the consumer group in that queue is answered with 21, and its consumer
drops what it holds and begins anew. RocketMQ forgets the order with that response, though, in the memory of one broker;
a consumer's late report, or its death, or a failover undo it.

Here the order is in the log (`ResetOffsets`), and stands until a consumer has followed it: until a pull begins at the
parked offset after the consumer group was told, by a response 21 or by the response to the question where it stands
(14). Until then each pull from elsewhere gets 21, and reported offsets do not count, whichever node leads. A consumer
that goes on elsewhere all the same, as one that keeps offsets of its own may, is let go after `TOLD_MAX` responses.
"""

from collections.abc import Callable, Iterable
from typing import Final

from broker.node.listeners import Listeners
from broker.node.ports import Proposals
from broker.offsets.commits import OffsetCommits
from broker.requests.errors import ReplicaError
from log.errors import DiskFullError

TOLD_MAX: Final = 16
"""One order is told to at most so many pulls of a consumer group."""

_Key = tuple[str, str, int]
"""Consumer group, topic, queue id."""


class OffsetResets:
    """The leader's memory of the orders that stand: who was told. The orders themselves are in `Metadata.parked`."""

    def __init__(self, leadership: Proposals, offsets: OffsetCommits, listeners: Listeners) -> None:
        self._leadership = leadership
        self._offsets = offsets
        self._told: dict[_Key, tuple[int, int]] = {}
        """The offset to go to, and how often the consumer group's pulls were answered so."""
        self._ending: dict[_Key, None] = {}
        """Orders that were followed; that is on its way into the log."""
        self._listeners: list[Callable[[Iterable[_Key]], None]] = []
        listeners.role_changes.append(self._role_changed)

    def on_order(self, listener: Callable[[Iterable[_Key]], None]) -> None:
        """Registers a part that must hear at once which consumer groups are to go elsewhere, in which queues."""
        self._listeners.append(listener)

    def forget_ended(self) -> None:
        """Forgets who was told of orders that others have ended: nothing need be known of these any more."""
        parked = self._leadership.metadata.parked
        self._told = {key: told for key, told in self._told.items() if parked.get(*key) == told[0]}

    def ordered(self, keys: Iterable[_Key]) -> None:
        """Tells the listeners of orders that have been applied."""
        keys = list(keys)
        for listener in self._listeners:
            listener(keys)

    def target(self, group: str, topic: str, queue_id: int) -> int | None:
        """Returns the offset that a consumer which pulls is to go to, None if it may go on."""
        parked = self._leadership.metadata.parked
        if not parked.offsets or (group, topic, queue_id) in self._ending:
            return None
        return parked.get(group, topic, queue_id)

    def told(self, group: str, topic: str, queue_id: int, *, by_pull: bool) -> None:
        """Notes that a consumer was told the order that stands, if one does: it had pulled, or asked for its offset.

        A read that was confirmed before this node lost its leadership may be answered behind that: the next leader does
        not know of it, nor is this node to when it leads again.
        """
        target = self.target(group, topic, queue_id)
        if target is not None and self._leadership.serving:
            key = (group, topic, queue_id)
            # Counted for each order by itself: another one has another target, and begins at 0.
            before, times = self._told.get(key, (target, 0))
            self._told[key] = (target, (times if before == target else 0) + by_pull)

    def pulled(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Notes that a consumer pulls: it has followed the order if it was told and begins there. Leader only."""
        target = self.target(group, topic, queue_id)
        if target is None:
            return
        key = (group, topic, queue_id)
        told_target, times = self._told.get(key, (None, 0))
        # Who begins there has followed it; who was told so often in vain is let go.
        if told_target != target or (offset != target and times < TOLD_MAX):
            return
        if self._offsets.has_order_under_way(key):
            return  # it may lead to the same place, and is to be followed, too: an end names no more than that

        def ended() -> None:
            del self._ending[key]

        try:
            # When the leadership ends nothing is ending any more. Who waited may be told so late, in a later term.
            self._offsets.end_order(key, target, ended)
        except (ReplicaError, DiskFullError):
            return  # the order stands, and is told again
        self._ending[key] = None
        self._told.pop(key, None)

    def _role_changed(self) -> None:
        if not self._leadership.serving:
            self._told.clear()
            self._ending.clear()

"""The right to consume a queue in order: the replicated table of locks, and the rule by which one is granted.

`broker/consumer_groups/locks_processor.py` asks for locks, with a time of which it tells, and a limit.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from broker.state.commands import LockQueues, UnlockQueues
from broker.state.writing import Rows, slices

LockFields = list[tuple[str, str, int, str, int]]
"""(consumer group, topic, queue id, client, time of the last renewal in ms) of each lock."""


@dataclass(slots=True)
class OrderLock:
    """The right of one client to consume a queue in order."""

    client: str
    refreshed_ms: int
    """By the time of which broker/consumer_groups/locks_processor.py tells."""


class LockTable(dict[tuple[str, str, int], OrderLock]):
    """By (consumer group, topic, queue id); the lock that was refreshed last stands last."""

    __slots__ = ()

    def judge(self, asked: LockQueues) -> tuple[tuple[str, int], ...]:
        """Grants or renews what is free, the client's own, or expired; returns (topic, queue id) of what it has now."""
        granted = []
        expired_ms = asked.time_ms - asked.ttl_ms
        for topic, queue_id in asked.queues:
            key = (asked.group, topic, queue_id)
            lock = self.get(key)
            # As RocketMQ's RebalanceLockManager grants it, which keeps locks in the memory of one broker.
            if lock is None or lock.client == asked.client or lock.refreshed_ms < expired_ms:
                self.pop(key, None)  # so that it stands last
                self[key] = OrderLock(asked.client, asked.time_ms)
                granted.append((topic, queue_id))
        # The oldest come first, and for each lock that is granted two that expired are forgotten: the table does not
        # keep what nobody renews.
        for key in list(islice(self, 2 * len(granted))):
            if self[key].refreshed_ms >= expired_ms:
                break
            del self[key]
        return tuple(granted)

    def release(self, asked: UnlockQueues) -> None:
        """Takes back those of the locks that the client holds."""
        for topic, queue_id in asked.queues:
            lock = self.get((asked.group, topic, queue_id))
            if lock is not None and lock.client == asked.client:
                del self[asked.group, topic, queue_id]

    def forget_topic(self, topic: str) -> None:
        """Forgets the locks of a topic that is deleted."""
        self._drop([key for key in self if key[1] == topic])

    def without_group(self, group: str) -> "LockTable":
        """Returns the table that is left when a consumer group is deleted: this one, if the consumer group has no
        locks.

        Else this one is not used any more, and may be let go in steps: all its locks may be the consumer group's.
        """
        if not any(key[0] == group for key in self):
            return self
        return LockTable({key: lock for key, lock in self.items() if key[0] != group})

    def _drop(self, keys: Iterable[tuple[str, str, int]]) -> None:
        # The loop runs in C: there may be tens of thousands of keys.
        deque(map(self.pop, keys), maxlen=0)

    def rows(self, rows_at_once: int) -> Rows:
        """Returns what a snapshot has of them, as `LockFields`."""
        rows = ((*key, lock.client, lock.refreshed_ms) for key, lock in self.items())
        return Rows(len(self), slices(rows, rows_at_once))

    def take(self, fields: LockFields) -> None:
        """Adds the locks of a snapshot, or the next part of them."""
        self.update(
            ((group, topic, queue_id), OrderLock(client, refreshed_ms))
            for group, topic, queue_id, client, refreshed_ms in fields
        )

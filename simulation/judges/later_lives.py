"""Queues of topics that were made again: they hold the units of this life, and none of an earlier one.

A queue that was built wrong is gone with the next deletion of its topic, so at the end of a run it is too late to look.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from log.queues.consume_queue import UNIT, UNIT_BYTES, ConsumeQueue
from log.store import Store
from simulation.journal import Violation
from simulation.judges.group_model import CommittedQueue, GroupModel
from simulation.machines.broker_host import BrokerHost
from simulation.scheduler import SECOND

AGREES: Final = "queue agrees with log"
_LOOKED_AT_EVERY_NS: Final = SECOND // 4


class LaterLives:
    """Watches the queues of the nodes of a group."""

    def __init__(self, model: GroupModel, now_ns: Callable[[], int]) -> None:
        self._model = model
        self._now_ns = now_ns
        self._due_ns: dict[str, int] = {}
        """By node, when it is looked at again."""

    def started(self, name: str) -> None:
        """A process has recovered: what it has built is looked at as soon as it has all that is committed."""
        self._due_ns[name] = 0

    def turned(self, host: BrokerHost, store: Store) -> None:
        """Looks at a node after its turn, if its queues are made of all that is committed. Raises Violation."""
        model, now_ns = self._model, self._now_ns()
        if (
            not model.deleted_topics
            or store.dispatched_index != model.last_index
            or now_ns < self._due_ns[host.name]
            or host.is_damaged
        ):
            return
        self._due_ns[host.name] = now_ns + _LOOKED_AT_EVERY_NS
        first = max(store.log.first_position, model.heads.agreed_position)
        for (topic, queue_id), known in model.queues.items():
            if topic in model.deleted_topics:
                self._check(host, store.queues.get(topic, queue_id), f"{topic}/{queue_id}", known, first)

    @staticmethod
    def _check(
        host: BrokerHost, queue: ConsumeQueue | None, name: str, known: CommittedQueue, first: int
    ) -> None:
        begin, end = bisect_left(known.positions, first), len(known.positions)
        if begin == end:
            return
        if queue is None or queue.max_offset != end:
            held = "not there" if queue is None else f"at its end with {queue.max_offset}"
            raise Violation(AGREES, host.name, f"made again, {name} is {held}, not with {end}")
        # Read from the files: the node's own reads map them, and may be made to fail.
        file_units = host.options.consume_queue_file_units
        start, units = -1, b""
        for offset in range(begin, end):
            at = offset % file_units
            if offset - at != start:
                start = offset - at
                units = host.disk.cached_bytes(f"{queue.directory}/{start * UNIT_BYTES:020d}")
            position, size, _ = UNIT.unpack_from(units, at * UNIT_BYTES)
            if (position, size) != (known.positions[offset], known.sizes[offset]):
                detail = f"made again, {name} has {(position, size)} as unit {offset}, not {known.positions[offset]}"
                raise Violation(AGREES, host.name, detail)

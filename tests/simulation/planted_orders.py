"""Mistakes about ordered queues and filters, each put into the real code by a patch; `planted_bugs` lists them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from broker.client.consuming.order_locks import OrderLocks
from broker.client.consuming.ordered_listening import _OrderlyListener
from broker.client.consuming.rebalance import Assignment
from broker.client.message import MessageQueue, MessageView
from broker.consumer_groups.locks_processor import LocksProcessor
from broker.reading import sql92, sql92_conditions
from broker.replica.group_clock import GroupClock
from broker.state.order_locks import LockTable, OrderLock
from tests.simulation.planting import let_leadership_know_the_clock, planted


@planted("order: every lock is granted", "one holder a queue", actor="clerk")
def every_lock_is_granted(patch: pytest.MonkeyPatch) -> None:
    """A broker that looks at nobody's lock but the asker's."""

    def judge(self: LockTable, asked: Any) -> tuple[tuple[str, int], ...]:
        for topic, queue_id in asked.queues:
            self[(asked.group, topic, queue_id)] = OrderLock(asked.client, asked.time_ms)
        return tuple(asked.queues)

    patch.setattr(LockTable, "judge", judge)


@planted("order: locks judged by the wall clock", "found here", actor="clerk")
def locks_judged_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """Found here: a leader whose wall clock is ahead of its predecessor's takes locks for expired."""

    def time_ms(self: LocksProcessor) -> int:
        clock: GroupClock = self._leadership.clock  # type: ignore[attr-defined]
        return clock._wall_offset_ms + self._time.now_ns // 1_000_000

    let_leadership_know_the_clock(patch)
    patch.setattr(LocksProcessor, "_time_ms", time_ms)


@planted(
    "order: locks forgotten with their leader",
    "RebalanceLockManager: locks in a broker's memory",
    actor="clerk",
)
def locks_forgotten_with_their_leader(patch: pytest.MonkeyPatch) -> None:
    """RebalanceLockManager: locks in a broker's memory, so that after a failover everybody can lock at once."""
    original = LocksProcessor._role_changed

    def role_changed(self: LocksProcessor) -> None:
        term = self._term
        original(self)
        if self._term != term:
            self._began_ms += 3_600_000

    patch.setattr(LocksProcessor, "_role_changed", role_changed)


@planted("order: lock counted on for ever", "a holder that cannot renew its lock", actor="clerk")
def lock_counted_on_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A holder that believes in its lock until the broker denies it."""
    original = OrderLocks.__init__

    def init(self: OrderLocks, calls: Any, group: str, times: Any) -> None:
        original(self, calls, group, type(times)(times.renew_s, 3600.0))

    patch.setattr(OrderLocks, "__init__", init)


@planted(
    "order: given back before the handler has ended",
    "a queue that moves while its message is in hand",
    actor="clerk",
)
def given_back_before_the_handler_has_ended(patch: pytest.MonkeyPatch) -> None:
    """A queue that moves is unlocked at once, while its handler is at work."""

    async def hand_over(self: OrderLocks, queue: MessageQueue, store: Callable[[], Awaitable[None]]) -> None:
        lock = self._locks.get(queue)
        if lock is None or lock.leaving:
            return
        lock.leaving = True
        await store()
        lock.scope = None  # or the client would notice itself
        await self._release([lock])

    patch.setattr(OrderLocks, "hand_over", hand_over)


@planted("order: offset read before the lock", "where another member was, not where it is", actor="clerk")
def offset_read_before_the_lock(patch: pytest.MonkeyPatch) -> None:
    """A member looks where the group is, and then waits for its lock while another one goes on."""
    original = Assignment._start_reader

    def start_reader(self: Assignment, queue: MessageQueue, fixed_start: int | None = None) -> None:
        original(self, queue, fixed_start)
        reader, locks = self._intake.readers[queue], self._locks
        if locks is None:
            return

        async def find_start() -> int:
            stored = await self._calls.committed_offset(queue)
            await locks.acquire(queue)
            return 0 if stored is None else stored

        reader._find_start = find_start

    patch.setattr(Assignment, "_start_reader", start_reader)


@planted("order: done with before it is handled", "at most once", actor="clerk")
def finished_before_it_is_handled(patch: pytest.MonkeyPatch) -> None:
    """A message counts as done with when its handler gets it: at most once, when the process ends."""
    original = _OrderlyListener._handle

    async def handle(self: _OrderlyListener, message: MessageView) -> bool:
        reader = self._intake.readers.get(message.queue)
        if reader is not None:
            reader.finished(message)
        return await original(self, message)

    patch.setattr(_OrderlyListener, "_handle", handle)


@planted("filter: unknown negated is true", "three-valued logic of SQL92", actor="picker")
def unknown_negated_is_true(patch: pytest.MonkeyPatch) -> None:
    """A condition about a property that a message does not have is unknown, and so is its negation."""

    def negated(node: Any) -> Any:
        inner = node.evaluate
        return replace(node, evaluate=lambda properties: not inner(properties))

    patch.setattr(sql92_conditions, "_negated", negated)
    patch.setattr(sql92, "compile_sql", sql92._compiled)  # nothing of it is to stay

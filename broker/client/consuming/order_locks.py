"""Order locks: what makes one member of a group, and no other, the one who handles a queue now.

A lock lives at the broker for a minute after it was last renewed, as all members must be able to take over from one
that died. So a member may only count on a lock for a shorter time than that, and everything here serves one promise:
*while this client counts on a lock, the broker gives it to nobody else.*

- The time for which a lock is good is counted from before the request was sent that renewed it, by the monotonic clock.
  When it is over the lock is lost, whatever became of the renewals: the handler at work is cancelled at that moment.
- A lock is given back when the handler has ended and the queue's position is stored, and not before.
- A request that may still be under way is the enemy: an unlock that arrives late would take away the lock of a later
  time. So locks are held under a name that changes with every unlock: what is on its way speaks for a holder that has
  been. To the broker it is as if another client asked; where an unlock got lost, the lock runs out by itself.

Locks of one broker are asked for together. A queue whose lock another member holds is asked for again soon at first and
less and less often.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from broker.client.errors import BrokerError, ClientError
from broker.client.message import MessageQueue
from broker.client.transport.patient_calls import PatientCalls
from broker.client.transport.runtime import CancelScope, Event
from broker.remoting.bodies import LockBatchBody, LockBatchResponseBody
from broker.remoting.bodies import MessageQueue as WireQueue
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.errors import RemotingError
from broker.remoting.json_body import decode_body, encode_body

logger = logging.getLogger("trivet.client")

_ASK_FIRST_S = 0.2
_ASK_MAX_S = 5.0
_UNLOCK_TIMEOUT_S = 1.0
_NEVER_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class LockTimes:
    """When locks are renewed and given up; all in seconds.

    ``good_s`` must be well below the 60 s for which a broker keeps a lock that is not renewed: clocks differ, and a
    position that was stored last may arrive late.
    """

    renew_s: float = 20.0
    good_s: float = 30.0


class _Lock:
    """One queue's."""

    __slots__ = (
        "answered",
        "ask_at_ns",
        "good_until_ns",
        "granted",
        "holder",
        "idle",
        "leaving",
        "may_be_ours",
        "pause_s",
        "queue",
        "released",
        "scope",
    )

    def __init__(
        self, queue: MessageQueue, holder: str, ask_at_ns: int, granted: Event, released: Event
    ) -> None:
        self.queue = queue
        self.holder = holder
        """The name under which it is asked for."""
        self.ask_at_ns = ask_at_ns
        self.pause_s = _ASK_FIRST_S
        self.good_until_ns = 0
        """Held before that time; 0 when it is not held."""
        self.granted = granted
        self.released = released
        self.answered: Event | None = None
        """Set when the request that is under way has ended."""
        self.scope: CancelScope | None = None
        """Of the handler at work."""
        self.idle: Event | None = None
        """Somebody waits for the handler's end."""
        self.leaving = False
        self.may_be_ours = False
        """Whether the broker may hold it for this client."""


class OrderLocks:
    """The locks of one consumer. ``on_lost`` is told of each that was held and is not any more."""

    def __init__(
        self,
        calls: PatientCalls,
        group: str,
        times: LockTimes,
        on_lost: Callable[[MessageQueue], None],
    ) -> None:
        self._core = calls.core
        self._calls = calls
        self._group = group
        self._times = times
        self._on_lost = on_lost
        self._runtime = calls.core.runtime
        self._locks: dict[MessageQueue, _Lock] = {}
        self._unlocks = 0
        self._changed: Event = self._runtime.event()
        self._closed = False

    # For readers and listeners ----------------------------------------------------------------------------------------

    async def acquire(self, queue: MessageQueue) -> None:
        """Return once the queue's lock is held and nobody in this client handles the queue."""
        while True:
            lock = self._locks.get(queue)
            if lock is None:
                runtime = self._runtime
                holder = self._core.client_id + (f"!{self._unlocks}" if self._unlocks else "")
                self._locks[queue] = _Lock(queue, holder, runtime.now_ns(), runtime.event(), runtime.event())
                self._changed.set()
            elif lock.leaving:
                await lock.released.wait()
            elif lock.scope is not None:
                await self._wait_idle(lock)
            elif self.is_held(queue):
                return
            else:
                await lock.granted.wait()

    def is_held(self, queue: MessageQueue) -> bool:
        """Whether nobody else can have the lock now."""
        lock = self._locks.get(queue)
        return lock is not None and self._runtime.now_ns() < lock.good_until_ns

    def is_free(self, queue: MessageQueue) -> bool:
        """Whether the lock is held, not to be given back, and nobody handles the queue."""
        return self.is_held(queue) and not self._locks[queue].leaving and self._locks[queue].scope is None

    @contextlib.contextmanager
    def using(self, queue: MessageQueue) -> Iterator[CancelScope]:
        """Handle the queue, which `is_free`, in a scope that is cancelled when the lock is lost."""
        assert self.is_free(queue), f"{queue} is not free to be handled"
        lock = self._locks[queue]
        lock.scope = self._runtime.move_on_after(math.inf)
        try:
            with lock.scope as scope:
                yield scope
        finally:
            lock.scope = None
            if lock.idle is not None:
                lock.idle.set()
                lock.idle = None

    async def hand_over(self, queue: MessageQueue, store: Callable[[], Awaitable[None]]) -> None:
        """Have the handler finish what it has in hand, ``store`` its position, and let others have the lock.

        ``store`` is not called when the lock has been lost: the position is somebody else's then.
        """
        lock = self._locks.get(queue)
        if lock is None or lock.leaving:
            return
        lock.leaving = True
        await self._wait_idle(lock)
        if self.is_held(queue):
            await store()
        await self._release([lock])

    async def close(self, store: Callable[[], Awaitable[None]]) -> None:
        """Cancel what is being handled, ``store`` all positions, and give back all locks."""
        self._closed = True
        locks = [self._locks[queue] for queue in sorted(self._locks)]
        leaving = [lock for lock in locks if lock.leaving]
        staying = [lock for lock in locks if not lock.leaving]
        for lock in locks:
            if lock.scope is not None:
                lock.scope.cancel()
        for lock in staying:
            lock.leaving = True
            await self._wait_idle(lock)
        await store()
        await self._release(staying)
        for lock in leaving:
            await lock.released.wait()

    # The task ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Ask for locks and renew them, and notice when one is lost; for ever."""
        runtime = self._runtime
        while True:
            now_ns = runtime.now_ns()
            next_ns = now_ns + int(self._times.renew_s * 1e9)
            soon_ns = now_ns + int(self._times.renew_s * 1e9 / 4)  # goes with what is due now
            asking: dict[tuple[str, str], list[_Lock]] = {}
            due: dict[tuple[str, str], None] = {}
            for queue in sorted(self._locks):
                lock = self._locks[queue]
                if 0 < lock.good_until_ns <= now_ns:
                    self._lose(lock, "it could not be renewed in time")
                if lock.answered is None and not self._closed:
                    together = (queue.broker_name, lock.holder)
                    if lock.ask_at_ns <= now_ns:
                        due[together] = None
                    else:
                        next_ns = min(next_ns, lock.ask_at_ns)
                    if lock.ask_at_ns <= soon_ns:
                        asking.setdefault(together, []).append(lock)
                if lock.good_until_ns:
                    next_ns = min(next_ns, lock.good_until_ns)
            for together in due:
                locks = asking[together]
                answered = runtime.event()
                for lock in locks:
                    lock.answered = answered
                    lock.may_be_ours = True
                self._core.tasks.start_soon(self._ask, locks, answered)
            with runtime.move_on_after((next_ns - now_ns) / 1e9):
                await self._changed.wait()
            self._changed = runtime.event()

    async def _ask(self, locks: Sequence[_Lock], answered: Event) -> None:
        """Ask one broker for locks of one holder, held or not."""
        runtime = self._runtime
        asked_ns = runtime.now_ns()
        granted: frozenset[MessageQueue] | None = None
        try:
            granted = await self._granted(locks)
        except ClientError as error:
            logger.info("group %s: no response about order locks: %s", self._group, error)
        finally:
            for lock in locks:
                lock.answered = None
            answered.set()
        now_ns = runtime.now_ns()
        good_until_ns = asked_ns + int(self._times.good_s * 1e9)
        for lock in locks:
            if granted is not None and lock.queue in granted:
                lock.pause_s = _ASK_FIRST_S
                lock.ask_at_ns = asked_ns + int(self._times.renew_s * 1e9)
                if now_ns < good_until_ns:
                    lock.good_until_ns = good_until_ns
                    lock.granted.set()
                continue
            lock.ask_at_ns = now_ns + int(lock.pause_s * (0.5 + runtime.random.random()) * 1e9)
            lock.pause_s = min(lock.pause_s * 1.5, _ASK_MAX_S)
            if granted is not None:
                lock.may_be_ours = False
                if lock.good_until_ns:
                    self._lose(lock, "the broker gives it to somebody else")
        self._changed.set()

    async def _granted(self, locks: Sequence[_Lock]) -> frozenset[MessageQueue]:
        response = await self._calls.ask(
            locks[0].queue, RequestCode.LOCK_BATCH_MQ, None, body=self._body(locks)
        )
        try:
            held = decode_body(response.body, LockBatchResponseBody).queues
        except RemotingError as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"unreadable locks: {error}", "broker") from error
        return frozenset(MessageQueue(queue.topic, queue.broker_name, queue.queue_id) for queue in held)

    def _lose(self, lock: _Lock, why: str) -> None:
        logger.warning("group %s: the order lock of %s is lost: %s", self._group, lock.queue, why)
        lock.good_until_ns = 0
        lock.granted = self._runtime.event()
        lock.ask_at_ns = min(lock.ask_at_ns, self._runtime.now_ns() + int(_ASK_FIRST_S * 1e9))
        if lock.scope is not None:
            lock.scope.cancel()
        if not lock.leaving:
            self._on_lost(lock.queue)

    # Giving back ---------------------------------------------------------------------------------------------------

    async def _wait_idle(self, lock: _Lock) -> None:
        while lock.scope is not None:
            if lock.idle is None:
                lock.idle = self._runtime.event()
            await lock.idle.wait()

    async def _release(self, locks: Sequence[_Lock]) -> None:
        """Unlock at the brokers, and forget the locks; those that certainly are not held are only forgotten."""
        unlocked: dict[tuple[str, str], list[_Lock]] = {}
        for lock in locks:
            if lock.answered is not None:
                await lock.answered.wait()
            lock.ask_at_ns = _NEVER_NS
            lock.good_until_ns = 0
            if lock.may_be_ours:
                unlocked.setdefault((lock.queue.broker_name, lock.holder), []).append(lock)
        for together in unlocked.values():
            await self._unlock(together)
        for lock in locks:
            del self._locks[lock.queue]
            lock.released.set()
            lock.granted.set()

    async def _unlock(self, locks: Sequence[_Lock]) -> None:
        self._unlocks += 1
        try:
            await self._calls.ask_once(
                locks[0].queue, RequestCode.UNLOCK_BATCH_MQ, None, self._body(locks), _UNLOCK_TIMEOUT_S
            )
        except ClientError as error:
            logger.warning("group %s: order locks run out by themselves: %s", self._group, error)

    def _body(self, locks: Sequence[_Lock]) -> bytes:
        wanted = [WireQueue(lock.queue.broker_name, lock.queue.queue_id, lock.queue.topic) for lock in locks]
        body = LockBatchBody(client_id=locks[0].holder, consumer_group=self._group, queues=wanted)
        return encode_body(body)

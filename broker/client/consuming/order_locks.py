"""Order locks: at most one member of a consumer group handles a queue at a time.

A lock lives at the broker for a minute after it was last renewed, so that another member can take over from one that
died. A member counts on a lock for a shorter time than that. Everything here serves one promise: *while this client
counts on a lock, the broker gives it to nobody else.*

- The time for which a lock is good begins before the request that renews it is sent, by the monotonic clock. When it is
  over the lock is lost, whatever became of the renewals, and the handler at work is cancelled at that moment.
- A lock is released when the handler has ended and the queue's consumer offset is stored, and not before.
- An unlock that arrives late must not take away a lock that was acquired again meanwhile. So locks are held under a
  name that changes with every unlock, and a late unlock has the name of before. To the broker it is as if another
  client asked. When an unlock gets lost, the lock runs out by itself.

Locks of one broker are asked for together. A queue whose lock another member holds is asked for again soon at first and
less and less often.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from broker.client.checks import check_seconds
from broker.client.errors import BrokerError, ClientError, UsageError
from broker.client.message import MessageQueue
from broker.client.transport.core import broker_error
from broker.client.transport.patient_calls import PatientCalls, address_of
from broker.client.transport.pauses import Pauses
from broker.client.transport.runtime import CancelScope, Event
from broker.remoting.bodies import LockBatchBody, LockBatchResponseBody
from broker.remoting.bodies import MessageQueue as WireQueue
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.errors import RemotingError
from broker.remoting.json_body import decode_body, encode_body

logger = logging.getLogger("trivet.client")

# Pauses between requests for a lock that another member holds.
_ASK_FIRST_S = 0.2
_ASK_MAX_S = 5.0
_UNLOCK_TIMEOUT_S = 1.0
_NEVER_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class LockTimes:
    """The times of order locks, in seconds: each is renewed every ``renew_s``, and good for ``good_s`` after that.

    ``good_s`` must be well below the 60 s for which a broker keeps a lock that is not renewed: clocks differ, and a
    consumer offset that was stored last may arrive late. Raises UsageError for locks that are not good until they are
    renewed.
    """

    renew_s: float = 20.0
    good_s: float = 30.0

    def __post_init__(self) -> None:
        check_seconds(renew_s=self.renew_s, good_s=self.good_s)
        if not 0 < self.renew_s < self.good_s:
            raise UsageError(f"{self}: a lock must be good for longer than until it is renewed")


@dataclass(slots=True, eq=False)
class _Lock:
    """The lock of one queue, held or wanted."""

    queue: MessageQueue
    holder: str
    """The name under which the broker is asked for it."""
    ask_at_ns: int
    pauses: Pauses
    """Between requests that were not granted."""
    granted: Event
    released: Event
    good_until_ns: int = 0
    """The lock is held before that time; 0 when it is not held. ``granted`` is set while it is held."""
    answered: Event | None = None
    """Set when the request under way has ended; None while none is under way."""
    scope: CancelScope | None = None
    """The scope of the handler at work, None while nobody handles the queue."""
    idle: Event | None = None
    """Set at the handler's end, if a task waits for it."""
    leaving: bool = False
    """True from the beginning of the release; ``released`` is set at its end."""
    may_be_ours: bool = False
    """True if the broker may have it under this client's name, so that it must be unlocked."""


class OrderLocks:
    """The locks of one consumer."""

    def __init__(self, calls: PatientCalls, group: str, times: LockTimes) -> None:
        self._core = calls.core
        self._calls = calls
        self._group = group
        self._times = times
        self.on_lost: Callable[[MessageQueue], None]
        """Called with the queue of each lock that is lost; set by whoever reads the queues."""
        self._runtime = calls.core.runtime
        self._locks: dict[MessageQueue, _Lock] = {}
        self._unlocks = 0
        """Number of unlocks that were sent: a part of the name under which new locks are asked for."""
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
                pauses = Pauses(runtime.random, _ASK_FIRST_S, _ASK_MAX_S, growth=1.5)
                self._locks[queue] = _Lock(
                    queue, holder, runtime.now_ns(), pauses, runtime.event(), runtime.event()
                )
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
        """Tell whether this client holds the lock, so that nobody else can have it now."""
        lock = self._locks.get(queue)
        return lock is not None and self._runtime.now_ns() < lock.good_until_ns

    def is_free(self, queue: MessageQueue) -> bool:
        """Tell whether the lock is held, is not being released, and nobody handles the queue."""
        return self.is_held(queue) and not self._locks[queue].leaving and self._locks[queue].scope is None

    @contextlib.contextmanager
    def using(self, queue: MessageQueue) -> Iterator[CancelScope]:
        """Return a block in which a queue is handled that was just now `is_free`. It is cancelled when the lock is
        lost.
        """
        lock = self._locks[queue]
        # Held it need not be any more: its time may be over since the caller has looked.
        assert lock.scope is None, f"{queue} is handled by somebody else"
        assert not lock.leaving, f"{queue} is being released"
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
        """Wait for the handler to finish what it has in hand, ``store`` the consumer offset, and release the lock.

        ``store`` is not called when the lock was lost: the consumer offset is another member's then.
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
        """Cancel all handlers at work, ``store`` all consumer offsets, and release all locks."""
        self._closed = True
        locks = [self._locks[queue] for queue in sorted(self._locks)]
        leaving = [lock for lock in locks if lock.leaving]
        staying = [lock for lock in locks if not lock.leaving]
        for lock in locks:
            if lock.scope is not None:
                lock.scope.cancel()
        # Only when all are cancelled each is waited for: they end at the same time.
        for lock in staying:
            lock.leaving = True
            await self._wait_idle(lock)
        await store()
        await self._release(staying)
        for lock in leaving:
            await lock.released.wait()

    # The task ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Ask for locks, renew them, and notice when one is lost, until cancelled."""
        runtime = self._runtime
        while True:
            now_ns = runtime.now_ns()
            next_ns = now_ns + int(self._times.renew_s * 1e9)
            soon_ns = now_ns + int(self._times.renew_s * 1e9 / 4)  # goes with what is due now
            # One request for each broker and holder: to those that are due, with all locks that are due soon.
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
                    # Before the request leaves: if its response gets lost, the broker may have given the lock all the
                    # same.
                    lock.may_be_ours = True
                self._core.tasks.start_soon(self._ask, locks, answered)
            with runtime.move_on_after((next_ns - now_ns) / 1e9):
                await self._changed.wait()
            self._changed = runtime.event()

    async def _ask(self, locks: Sequence[_Lock], answered: Event) -> None:
        """Ask a broker for locks of one holder, some of which may be held already."""
        runtime = self._runtime
        asked_ns = runtime.now_ns()
        granted: frozenset[MessageQueue] | None = None
        try:
            granted = await self._granted(locks)
        except ClientError as error:
            logger.info("consumer group %s: no response about order locks: %s", self._group, error)
        finally:
            for lock in locks:
                lock.answered = None
            answered.set()
        now_ns = runtime.now_ns()
        good_until_ns = asked_ns + int(self._times.good_s * 1e9)
        for lock in locks:
            if granted is not None and lock.queue in granted:
                lock.pauses.reset()
                # Counted from the same moment as the time for which the lock is good.
                lock.ask_at_ns = asked_ns + int(self._times.renew_s * 1e9)
                # A response that comes too late proves nothing: the time counts from when the request was sent.
                if now_ns < good_until_ns:
                    lock.good_until_ns = good_until_ns
                    lock.granted.set()
                continue
            lock.ask_at_ns = now_ns + int(lock.pauses.next_s() * 1e9)
            if granted is not None:
                # A response that leaves the lock out says that the broker has not given it to this holder.
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
        logger.warning("consumer group %s: the order lock of %s is lost: %s", self._group, lock.queue, why)
        lock.good_until_ns = 0
        lock.granted = self._runtime.event()
        lock.ask_at_ns = min(lock.ask_at_ns, self._runtime.now_ns() + int(_ASK_FIRST_S * 1e9))
        if lock.scope is not None:
            lock.scope.cancel()
        if not lock.leaving:
            self.on_lost(lock.queue)

    # Release -------------------------------------------------------------------------------------------------------

    async def _wait_idle(self, lock: _Lock) -> None:
        while lock.scope is not None:
            if lock.idle is None:
                lock.idle = self._runtime.event()
            await lock.idle.wait()

    async def _release(self, locks: Sequence[_Lock]) -> None:
        """Unlock at the brokers, and forget the locks; those that no broker can have are only forgotten."""
        unlocked: dict[tuple[str, str], list[_Lock]] = {}
        for lock in locks:
            if lock.answered is not None:  # a request under way could take the lock again behind the unlock
                await lock.answered.wait()
            lock.ask_at_ns = _NEVER_NS
            lock.good_until_ns = 0
            if lock.may_be_ours:
                unlocked.setdefault((lock.queue.broker_name, lock.holder), []).append(lock)
        for together in unlocked.values():
            await self._unlock(together)
        for lock in locks:
            assert lock.scope is None, "a lock is released after its handler has ended"
            del self._locks[lock.queue]
            lock.released.set()
            lock.granted.set()

    async def _unlock(self, locks: Sequence[_Lock]) -> None:
        # Locks that are asked for from now on have another name than this unlock, which may arrive late.
        self._unlocks += 1
        queue, core = locks[0].queue, self._core
        try:
            # In one attempt: a lock that is not released runs out, and whoever hands over is waited for.
            address = address_of(await core.routes.get(queue.topic), queue)
            code = RequestCode.UNLOCK_BATCH_MQ
            response = await core.pool.call(address, code, None, self._body(locks), _UNLOCK_TIMEOUT_S)
            if response.code != ResponseCode.SUCCESS:
                raise broker_error(response, address)
        except ClientError as error:
            logger.warning("consumer group %s: order locks run out by themselves: %s", self._group, error)

    def _body(self, locks: Sequence[_Lock]) -> bytes:
        wanted = [WireQueue(lock.queue.broker_name, lock.queue.queue_id, lock.queue.topic) for lock in locks]
        body = LockBatchBody(client_id=locks[0].holder, consumer_group=self._group, queues=wanted)
        return encode_body(body)

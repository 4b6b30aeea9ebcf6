"""Queues handled in order: members that come and go, and never two at work on one queue at the same true time."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from broker.client.consuming.consumer import Consumer
from broker.client.consuming.listening import Handled
from broker.client.consuming.order_locks import LockTimes
from broker.client.consuming.ordered_listening import listen_orderly
from broker.client.message import Message, MessageQueue, MessageView
from broker.client.transport.runtime import Runtime
from broker.state.commands import Command, CommitOffsets, LockQueues, Several, UnlockQueues
from broker.state.metadata import Metadata
from broker.trace import TraceWriter
from simulation.journal import Violation
from simulation.judges.group_model import CommittedMessage
from simulation.machines.tasks import TaskProcess
from simulation.scheduler import SECOND
from simulation.workload.context import Context, Invariant
from simulation.workload.sending import send_now_and_then

TOPIC: Final = "orders"
GROUP: Final = "clerks"
LOCK_TTL_MS: Final = 8_000
"""The setting of the simulated brokers: short, so that a run sees locks run out."""
_LOCK_TIMES: Final = LockTimes(renew_s=2.0, good_s=4.0)

_LONG_S: Final = 9.0
"""The longest time that a handler takes: longer than a lock lives that nobody renews."""
_OUTLIVES_NS: Final = 3 * SECOND
"""The lock of a member that stands still for longer may run out before the member knows. It is a little less than the
time for which a lock lives beyond that for which its holder counts on it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """A member at work on a queue. `stood_still_ns`: how long its process had stood still in all when it began."""

    member: str
    process: TaskProcess
    stood_still_ns: int

    @property
    def may_be_late(self) -> bool:
        """True if its process has stood still for so long meanwhile that its lock may have run out unnoticed."""
        return self.process.stood_still_ns - self.stood_still_ns > _OUTLIVES_NS


class Orders(Invariant):
    """A queue has one holder; each message follows the one before it; a member begins where the consumer group is.

    What the group has granted follows from the committed commands alone, so `Metadata` tells it here, too.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._work: dict[int, _Work] = {}
        """Queue id -> who is at work on it now."""
        self._committed: dict[int, int] = {}
        """Queue id -> number of messages."""
        self._handled: dict[int, int] = {}
        """Queue id -> one past the last message that any member has handled."""
        self._last: dict[int, tuple[str, int]] = {}
        """Queue id -> who handled a message of it last, and its offset."""
        self._stored: dict[int, list[int]] = {}
        """Queue id -> the consumer group's offsets since then, and since the lock has its holder."""
        self._granted = Metadata()

    def committed(self, message: CommittedMessage) -> None:
        """Counts what is to be handled."""
        if message.record.topic == TOPIC:
            self._committed[message.record.queue_id] = message.record.queue_offset + 1

    def applied(self, command: Command, now_ns: int) -> None:
        """Follows the locks; checks that an offset is stored for what has been handled, and no more.

        Raises Violation.
        """
        for single in command.commands if isinstance(command, Several) else (command,):
            if isinstance(single, LockQueues | UnlockQueues):
                self._lock(single)
            if not isinstance(single, CommitOffsets):
                continue
            for group, topic, queue_id, offset in single.offsets:
                if group != GROUP or topic != TOPIC:
                    continue
                # It may be lower than the last one: a member that has lost its lock reports late.
                self._stored.setdefault(queue_id, [0]).append(offset)
                handled = self._handled.get(queue_id, 0)
                if offset > handled and not self._may_pass(queue_id, handled, offset):
                    raise Violation(
                        "offsets follow handling",
                        "group",
                        f"{topic}/{queue_id}: {offset} is stored, handled up to {handled}",
                    )

    def _lock(self, command: LockQueues | UnlockQueues) -> None:
        if isinstance(command, LockQueues):
            # Else the lock of a consumer that has died lives for as long as earlier leaders have served.
            renewed_ms = max((lock.refreshed_ms for lock in self._granted.locks.values()), default=0)
            if command.time_ms < renewed_ms:
                raise Violation(
                    "the time of order locks goes on from leader to leader",
                    "group",
                    f"{command.client} asks at {command.time_ms}, and one was renewed at {renewed_ms} already",
                )
        before = {key: lock.client for key, lock in self._granted.locks.items()}
        self._granted.apply(command)
        for key, lock in self._granted.locks.items():
            if key[:2] == (GROUP, TOPIC) and before.get(key) != lock.client:
                self._stored[key[2]] = self._stored.setdefault(key[2], [0])[-1:]

    @contextmanager
    def handling(self, runtime: Runtime, member: str, queue: MessageQueue, offset: int) -> Iterator[None]:
        """Checks that a member may handle a message, which it does until the block ends, or its process.

        A member whose process stands still for longer than its lock lives counts as at work no more: another one may
        begin before it hears of that. Raises Violation.
        """
        assert isinstance(runtime, TaskProcess), "a simulated one"
        queue_id = queue.queue_id
        other = self._work.get(queue_id)
        place = f"{queue.topic}/{queue_id} at {offset}"
        if other is not None and not other.may_be_late:
            raise Violation(
                "one holder of an ordered queue", member, f"{place}: {other.member} is at work on it"
            )
        lock = self._granted.locks.get((GROUP, TOPIC, queue_id))
        # Behind its id a client names the number of its unlocks (`OrderLocks.acquire`).
        if lock is None or lock.client.partition("!")[0] != member:
            raise Violation("handled under its own lock", member, f"{place}: {lock}")
        # The holder before may have handled more than it has stored: another member begins at a stored offset. The same
        # member, if it has kept its lock, knows where it was, and may also handle the last message once more.
        last_member, last_offset = self._last.get(queue_id, ("", 0))
        stored = self._stored.setdefault(queue_id, [0])
        begins = (*stored, last_offset, last_offset + 1) if member == last_member else stored
        if not any(self._may_pass(queue_id, begin, offset) for begin in begins):
            raise Violation(
                "order without gaps or steps back",
                member,
                f"{place}: {last_member} had {last_offset}, stored since then {stored}",
            )
        work = self._work[queue_id] = _Work(member, runtime, runtime.stood_still_ns)
        try:
            yield
        finally:
            # While this one stood still, another may have begun, and what it does counts from then on.
            if self._work.get(queue_id) is work:
                del self._work[queue_id]
                self._last[queue_id] = (member, offset)
                self._stored[queue_id] = self._stored[queue_id][-1:]

    def done(self, queue: MessageQueue, offset: int) -> None:
        """Notes that a message has been handled to its end."""
        self._handled[queue.queue_id] = max(self._handled.get(queue.queue_id, 0), offset + 1)

    def check_end(self) -> None:
        """Checks that everything has been handled but what retention took before. Raises Violation."""
        for queue_id, count in self._committed.items():
            handled = self._handled.get(queue_id, 0)
            if handled != count and not self._may_pass(queue_id, handled, count):
                raise Violation(
                    "liveness", "clerks", f"{TOPIC}/{queue_id}: handled up to {handled} of {count}"
                )

    def _may_pass(self, queue_id: int, begin: int, end: int) -> bool:
        return self.context.model.may_pass(TOPIC, queue_id, begin, end)


async def handle_in_order(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Sends, and handles what is sent as a member that stays for a while and comes again."""
    invariant = context.invariant(Orders)
    random = runtime.random

    async def handle(message: MessageView) -> Handled:
        member = consumer.core.client_id
        try:
            with invariant.handling(runtime, member, message.queue, message.queue_offset):
                chance = random.random()
                # In the calm a backlog must be gone by the end, though a lock may have to run out first.
                longest_s = _LONG_S if chance < 0.03 and not context.is_calm() else 0.01
                await runtime.sleep(random.random() * longest_s)
                if chance > 0.97:
                    return Handled.RETRY
                invariant.done(message.queue, message.queue_offset)
        except Violation as violation:
            context.journal.found(violation)  # the client takes it for the application's mistake, and goes on
        context.journal.did("ordered message handled")
        return Handled.DONE

    def order() -> Message:
        return Message(TOPIC, random.randbytes(random.choice((10, 300))))

    async with runtime.task_group() as group:
        group.start_soon(send_now_and_then, context, runtime, "customers", 0.5, order)
        while True:
            async with Consumer(
                context.name_servers,
                group=GROUP,
                topics=TOPIC,
                start="first",
                orderly=True,
                lock_times=_LOCK_TIMES,
                runtime=runtime,
            ) as consumer:
                with runtime.move_on_after(context.stay_s(random, 15)):
                    await listen_orderly(consumer, handle, suspend_s=0.2)
            await runtime.sleep(random.random())

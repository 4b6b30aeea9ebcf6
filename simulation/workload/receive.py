"""Members of a broadcast consumer group: each gets everything, and keeps its offsets on its own machine."""

import errno
from collections.abc import Mapping
from typing import Final

from broker.client.consuming.consumer import Consumer
from broker.client.consuming.first_offsets import Start
from broker.client.consuming.intake import FetchLimits
from broker.client.errors import ClientError
from broker.client.message import MessageQueue, MessageView
from broker.client.transport.runtime import Runtime
from broker.remoting.codes import RequestCode
from broker.state.commands import Command, CommitOffsets
from broker.trace import TraceWriter
from simulation.journal import Violation
from simulation.randomness import stream
from simulation.workload.context import Context, Invariant
from simulation.workload.names import TOPIC

GROUP: Final = "receivers"

_LIMITS: Final = FetchLimits(suspend_s=5.0)
"""A short wait: while it lasts, a member does not notice that its broker's machine goes dark."""
_LOOKS_S: Final = 4.0
_STORES_S: Final = 0.05
_FAILS: Final = 0.05
"""The longest time that storing takes, and the share of storings that fail."""


class _Machine:
    """A machine with one member: what it has stored outlives the processes."""

    def __init__(self, context: Context, name: str) -> None:
        self._context = context
        self._model = context.model
        self._name = name
        # Most begin with everything: a member that begins at the end can tell less of what it got.
        self.start: Start = "first" if stream(f"start {context.seed} {name}").random() < 0.7 else "last"
        self.stored: dict[MessageQueue, int] = {}
        self._at: dict[int, int] = {}
        """Queue id -> one past the last message that this process has got, or where it began."""
        self._ends: dict[int, int] = {}
        """Queue id -> the queue's end when this process began."""

    def begins(self) -> None:
        """Notes that a process begins, which knows what is stored."""
        self._at = {}
        queues = self._model.queues
        self._ends = {number: len(queue.keys) for (topic, number), queue in queues.items() if topic == TOPIC}

    def received(self, message: MessageView) -> None:
        """Judges a message: the next of its queue, or one behind the stored offset once more. Raises Violation."""
        queue_id, offset = message.queue.queue_id, message.queue_offset
        self._check_place(message.queue, offset, "received")
        if not self._model.has_record(TOPIC, queue_id, offset, message.record_bytes()):
            raise self._violation(
                "messages are read as they were committed", f"{TOPIC}/{queue_id} at {offset}"
            )
        self._at[queue_id] = offset + 1
        self._context.journal.did("broadcast message received")

    def offsets_are(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Judges where the member says it is: behind what it got, or what retention took then. Raises Violation."""
        for queue, offset in offsets.items():
            if offset > self._at.get(queue.queue_id, -1):
                self._check_place(queue, offset, "offset")
                self._at.setdefault(queue.queue_id, offset)

    def check_end(self) -> None:
        """Checks that it got everything. Raises Violation."""
        for (topic, queue_id), queue in self._model.queues.items():
            begin = self._at.get(queue_id, 0 if self.start == "first" else len(queue.keys))
            if topic == TOPIC and not self._model.may_pass(TOPIC, queue_id, begin, len(queue.keys)):
                raise self._violation(
                    "liveness", f"{TOPIC}/{queue_id}: received up to {begin} of {len(queue.keys)}"
                )

    def _check_place(self, queue: MessageQueue, offset: int, what: str) -> None:
        queue_id = queue.queue_id
        begins = [begin for begin in (self._at.get(queue_id), self.stored.get(queue)) if begin is not None]
        if not begins and self.start == "first":
            begins.append(0)
        if any(self._model.may_pass(TOPIC, queue_id, begin, offset) for begin in begins):
            return
        if not begins and self._ends.get(queue_id, 0) <= offset:
            return
        raise self._violation(
            "each member gets every message",
            f"{TOPIC}/{queue_id}: {what} {offset}, was at {begins}, {self._ends}",
        )

    def _violation(self, invariant: str, detail: str) -> Violation:
        return Violation(invariant, self._name, detail)


class _Shelf:
    """`LocalOffsets` on a machine of the world: what `store` wrote outlives a crash, and nothing else does."""

    def __init__(self, machine: _Machine, runtime: Runtime) -> None:
        self._machine = machine
        self._runtime = runtime

    async def load(self) -> dict[MessageQueue, int]:
        """Returns what was stored last."""
        self._machine.begins()
        return dict(self._machine.stored)

    async def store(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Stores the offsets after a moment in which the process may die.

        Raises Violation; OSError now and then, as a full disk does.
        """
        self._machine.offsets_are(offsets)
        await self._runtime.sleep(_STORES_S * self._runtime.random.random())
        if self._runtime.random.random() < _FAILS:
            raise OSError(errno.ENOSPC, "no space left on device")
        self._machine.stored = dict(offsets)

    def close(self) -> None:
        """Does nothing: nothing is open."""


class Broadcasts(Invariant):
    """Every member gets every message of every queue, and the brokers know no offset of the consumer group."""

    asks_readers = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._machines: dict[str, _Machine] = {}

    def machine(self, address: str) -> _Machine:
        """Returns the machine with that address."""
        return self._machines.setdefault(address, _Machine(self.context, f"receiver {address}"))

    def applied(self, command: Command, now_ns: int) -> None:
        """Checks that no offset of the consumer group is committed: its members are each somewhere else. Raises
        Violation."""
        if isinstance(command, CommitOffsets) and any(offset[0] == GROUP for offset in command.offsets):
            raise Violation(
                "offsets of a broadcast group stay with its members", "group", str(command.offsets)
            )

    def check_end(self) -> None:
        """Checks that all members are at the end."""
        for machine in self._machines.values():
            machine.check_end()


async def receive(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """A member that stays for a while and comes again."""
    invariant = context.invariant(Broadcasts)
    machine = invariant.machine(runtime.local_address())
    random = runtime.random

    def disturbed(*_: object) -> None:
        context.journal.found(
            Violation("nobody rebalances a broadcast group", "receivers", "its members were told to")
        )

    async def look(consumer: Consumer) -> None:
        while True:
            await runtime.sleep(_LOOKS_S)
            machine.offsets_are(consumer.positions())

    async def read(consumer: Consumer) -> None:
        async for message in consumer:
            machine.received(message)
            if random.random() < 0.02:
                try:
                    await consumer.commit()
                except ClientError:
                    pass

    while True:
        consumer = Consumer(
            context.name_servers,
            group=GROUP,
            topics=TOPIC,
            start=machine.start,
            broadcast=True,
            offsets=_Shelf(machine, runtime),
            limits=_LIMITS,
            runtime=runtime,
        )
        consumer.core.on_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, disturbed)
        async with consumer, runtime.task_group() as group:
            group.start_soon(look, consumer)
            with runtime.move_on_after(random.expovariate(1 / 20)):
                await read(consumer)
            if context.load_stopped:
                await read(consumer)  # to the end
            group.cancel()
        await runtime.sleep(random.random())

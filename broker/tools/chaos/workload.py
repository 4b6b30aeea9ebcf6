"""The clients of a run: the simulator's actors, on real sockets and real time.

Producers send singly and in batches; one has its repetitions recognized by the broker, one repeats what stayed unknown
so that it may be there twice, one never repeats. The second sends no batches: of a batch that is there twice nobody can
tell from outside which of its attempts is where (docs/checker.md). Group consumers read, rebalance and store offsets;
auditors ask for the ends of queues and for stored offsets. All of it is recorded, and judged from the records.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import msgspec
import trio

from broker.client.message import MessageQueue, SendResult
from broker.client.transport.runtime import Runtime
from broker.client.transport.trio_runtime import TrioRuntime
from broker.tools.cluster.recording import Recording
from broker.trace import TraceWriter
from simulation.randomness import Random, branch
from simulation.workload.audit import audit
from simulation.workload.consume import consume
from simulation.workload.context import Load
from simulation.workload.produce import produce

QUEUES: Final = 4

_ACTORS: Final[dict[str, Callable[[Load, Runtime, TraceWriter], Awaitable[None]]]] = {
    "producer": partial(produce, retry_unknown=True, exactly_once=True),
    "repeater": partial(produce, retry_unknown=True, exactly_once=False, batches=False),
    "careful": partial(produce, retry_unknown=False, exactly_once=False),
    "consumer-0": consume,
    "consumer-1": consume,
    "auditor-0": audit,
    "auditor-1": audit,
    "auditor-2": audit,
}
"""The actors, by the names of their traces."""
AT_MOST_ONCE: Final = frozenset({"producer", "careful"})
"""Actors whose messages are stored once at most."""


class Counters(msgspec.Struct):
    """Counts of what the clients have seen."""

    acknowledged: int = 0
    unknown: int = 0
    read: int = 0
    questions: int = 0


class Workload:
    """The clients of one run, and what they tell (`simulation.workload.context.Load`)."""

    think_ms = 50

    def __init__(self, name_server: str, recording: Recording, random: Random, counters: Counters) -> None:
        self._counters = counters
        self.name_servers: Sequence[str] = [name_server]
        self.load_stopped = False
        """Set to end all sending."""
        self._recording = recording
        self._random = random
        self._unread: dict[tuple[MessageQueue, int], None] = {}
        """Queue and offset of each message that is acknowledged and was not read yet."""
        self._read: dict[tuple[MessageQueue, int], None] = {}
        self._everything_read = trio.Event()
        self._acknowledged = trio.Event()

    async def run(self) -> None:
        """Sends, reads and asks until cancelled; sends no more once `load_stopped` is set."""
        async with trio.open_nursery() as nursery:
            for name, main in _ACTORS.items():
                runtime = TrioRuntime(branch(self._random))
                nursery.start_soon(main, self, runtime, self._recording.writer(name))

    async def wait_acknowledged(self) -> None:
        """Returns once one more send has succeeded."""
        self._acknowledged = trio.Event()
        await self._acknowledged.wait()

    async def wait_all_read(self) -> None:
        """Returns once the consumers have read all that was acknowledged."""
        while self._unread:
            self._everything_read = trio.Event()
            await self._everything_read.wait()

    @property
    def unread(self) -> int:
        """Acknowledged messages that no consumer has got yet."""
        return len(self._unread)

    # ---- what actors tell ----------------------------------------------------------------------------

    def sent(self, sender: str, results: Sequence[SendResult], *, once: bool) -> None:
        """Messages are acknowledged."""
        self._counters.acknowledged += len(results)
        for result in results:
            place = (result.queue, result.queue_offset)
            if place not in self._read:
                self._unread[place] = None
        self._acknowledged.set()

    def unknown(self, messages: int) -> None:
        """Counts messages that may be stored or not."""
        self._counters.unknown += messages

    def consumed(self, queue: MessageQueue, offset: int) -> None:
        """A consumer's application got a message."""
        place = (queue, offset)
        self._read[place] = None
        self._unread.pop(place, None)
        self._counters.read += 1
        if not self._unread:
            self._everything_read.set()

    def answered(self) -> None:
        """A question about a queue or a consumer group's offset has its answer."""
        self._counters.questions += 1

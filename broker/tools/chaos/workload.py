"""What the clients of a run do: the simulator's load, with the same client, against real processes.

Producers send singly and in batches; one has its repetitions recognized by the broker, one repeats what stayed unknown
so that it may be there twice, one never repeats. The second sends no batches: of a batch that is there twice nobody can
tell from outside which of its attempts is where (docs/checker.md). Group consumers read, rebalance and store offsets;
an auditor asks for the ends of queues and for stored offsets. All of it is recorded, and judged from the records.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import trio

from broker.client.consuming.consumer import Consumer
from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.errors import ClientError, SendOutcomeUnknown
from broker.client.message import Message, SendResult
from broker.client.producing.producer import Producer
from broker.tools.cluster.recording import Recording

TOPIC = "Chaos"
GROUP = "ChaosReaders"
QUEUES = 4
CONSUMERS = 2
_LANES = 3
_AUDIT_LANES = 3
_THINK_S = 0.05
_QUESTION_PAUSE_S = 0.5
_STAY_S = 20.0


@dataclass(slots=True)
class Counters:
    """What the clients have seen."""

    acknowledged: int = 0
    unknown: int = 0
    refused: int = 0
    read: int = 0
    questions: int = 0


class Workload:
    """The clients of one run."""

    def __init__(self, name_server: str, recording: Recording, random: Random) -> None:
        self.counters = Counters()
        self._name_server = name_server
        self._recording = recording
        self._random = random
        self._unread: dict[tuple[int, int], None] = {}
        """Queue and offset of what is acknowledged and was not read yet."""
        self._read: dict[tuple[int, int], None] = {}
        self._sending = trio.CancelScope()
        self._everything_read = trio.Event()
        self._acknowledged = trio.Event()

    async def run(self) -> None:
        """Sends, reads and asks until cancelled; after `stop_sending` without the first."""
        async with trio.open_nursery() as nursery:
            for number in range(CONSUMERS):
                nursery.start_soon(self._consume, number, self._drawn())
            nursery.start_soon(self._audit, self._drawn())
            nursery.start_soon(self._produce_all)

    def stop_sending(self) -> None:
        """No more messages."""
        self._sending.cancel()

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

    def _drawn(self) -> Random:
        return Random(self._random.getrandbits(64))

    async def _produce_all(self) -> None:
        with self._sending:
            async with trio.open_nursery() as nursery:
                for name, retry_unknown, exactly_once in (
                    ("producer", True, True),
                    ("repeater", True, False),
                    ("careful", False, False),
                ):
                    nursery.start_soon(self._produce, name, retry_unknown, exactly_once)

    async def _produce(self, name: str, retry_unknown: bool, exactly_once: bool) -> None:
        async with (
            Producer(
                self._name_server,
                group="ChaosSenders",
                attempt_timeout_s=1.0,
                retry_unknown=retry_unknown,
                exactly_once=exactly_once,
                trace=self._recording.writer(name),
            ) as producer,
            trio.open_nursery() as lanes,
        ):
            for _ in range(_LANES):
                batches = exactly_once or not retry_unknown
                lanes.start_soon(self._send, producer, self._drawn(), batches)

    async def _send(self, producer: Producer, random: Random, batches: bool) -> None:
        counters = self.counters
        while True:
            await trio.sleep(random.expovariate(1 / _THINK_S))
            queue = f"key{random.randrange(5)}" if random.random() < 0.3 else None
            count = random.randrange(2, 6) if batches and random.random() < 0.15 else 1
            messages = [
                Message(
                    TOPIC, random.randbytes(random.choice((10, 100, 700))), tags=f"t{random.randrange(3)}"
                )
                for _ in range(count)
            ]
            try:
                if count == 1:
                    results = [await producer.send(messages[0], queue=queue)]
                else:
                    results = await producer.send_batch(messages, queue=queue)
            except SendOutcomeUnknown:
                counters.unknown += count
            except ClientError:
                counters.refused += count
            else:
                counters.acknowledged += count
                self._stored(results)
                self._acknowledged.set()

    def _stored(self, results: list[SendResult]) -> None:
        for result in results:
            place = (result.queue.queue_id, result.queue_offset)
            if place not in self._read:
                self._unread[place] = None

    async def _consume(self, number: int, random: Random) -> None:
        """A member of the group that leaves and comes back now and then."""
        for life in range(1 << 20):
            with trio.move_on_after(_STAY_S / 4 + random.expovariate(1 / _STAY_S)):
                await self._consume_once(f"consumer-{number}.{life}", random)
            await trio.sleep(random.random())

    async def _consume_once(self, process: str, random: Random) -> None:
        async with Consumer(
            self._name_server,
            group=GROUP,
            topics=TOPIC,
            start="first",
            trace=self._recording.writer(process),
        ) as consumer:
            async for message in consumer:
                place = (message.queue.queue_id, message.queue_offset)
                self._read[place] = None
                self._unread.pop(place, None)
                self.counters.read += 1
                if not self._unread:
                    self._everything_read.set()
                if random.random() < 0.02:
                    try:
                        await consumer.commit()
                    except ClientError:
                        pass

    async def _audit(self, random: Random) -> None:
        async with (
            PullConsumer(self._name_server, group=GROUP, trace=self._recording.writer("auditor")) as consumer,
            trio.open_nursery() as lanes,
        ):
            for _ in range(_AUDIT_LANES):
                lanes.start_soon(self._ask, consumer, Random(random.getrandbits(64)))

    async def _ask(self, consumer: PullConsumer, random: Random) -> None:
        while True:
            await trio.sleep(random.expovariate(1 / _QUESTION_PAUSE_S))
            try:
                queue = random.choice(await consumer.queues(TOPIC))
                if random.random() < 0.7:
                    await consumer.max_offset(queue)
                else:
                    await consumer.committed(queue)
            except ClientError:
                continue
            self.counters.questions += 1

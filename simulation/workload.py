"""What the clients of a world do all day, through the client that users have.

Producers send singly and in batches, some of them repeating attempts of unknown outcome and some never; group
consumers read, rebalance and store offsets; an auditor asks for the ends of queues and for stored offsets; an
administrator makes and deletes topics. None of them checks anything: `client_judge` reads their traces.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING

from broker.client.admin import AdminClient
from broker.client.consumer import Consumer
from broker.client.errors import ClientError
from broker.client.message import Message
from broker.client.producer import Producer
from broker.client.pull_consumer import PullConsumer
from broker.trace import TraceWriter
from simulation.client_judge import ClientWriter
from simulation.client_runtime import ClientRuntime
from simulation.clock import HostClock

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["GROUP", "TOPIC", "ClientHost", "administer", "audit", "consume", "produce"]

TOPIC = "events"
GROUP = "readers"
_LANES = 3
_AUDIT_LANES = 6
_QUESTION_PAUSE_S = 1.5

Main = Callable[["World", ClientRuntime, TraceWriter], Awaitable[None]]


class ClientHost:
    """A machine with one client process, which can be killed and started again."""

    def __init__(
        self,
        world: World,
        name: str,
        ip: str,
        clock: HostClock,
        random: Random,
        main: Main,
        *,
        single_shot: bool,
    ) -> None:
        self.world = world
        self.name = name
        self.ip = ip
        self.clock = clock
        self._random = random
        self._main = main
        self._single_shot = single_shot
        self._runtime: ClientRuntime | None = None
        self._failed: ClientRuntime | None = None
        self._incarnation = 0
        self._writer: ClientWriter | None = None

    def start(self) -> None:
        """Starts the process; does nothing while it runs."""
        if self._runtime is not None:
            return
        world = self.world
        self._incarnation += 1
        number = self._incarnation * 100 + int(self.ip.rpartition(".")[2])
        writer = self._writer = world.client_writer(
            f"{self.name}.{self._incarnation}", single_shot=self._single_shot
        )
        runtime = self._runtime = ClientRuntime(
            world.scheduler,
            world.network,
            self.clock,
            Random(self._random.getrandbits(64)),
            self.name,
            self.ip,
            number,
            self._ended,
        )

        async def main() -> None:
            await self._main(world, runtime, writer)

        runtime.run(main())

    def kill(self) -> None:
        """Ends the process; what it was waiting for it will never know."""
        runtime, self._runtime = self._runtime, None
        if runtime is None:
            runtime, self._failed = self._failed, None  # what its other tasks were doing ends here
        if runtime is not None:
            for endpoint in self.world.network.endpoints_of(self.name):
                endpoint.close()
            runtime.kill()
            self.flush()

    def flush(self) -> None:
        """Hands on what the trace holds."""
        if self._writer is not None:
            self._writer.flush()

    def _ended(self, error: BaseException | None) -> None:
        runtime, self._runtime = self._runtime, None
        if error is not None:
            self._failed = runtime
            self.world.client_failed(self.name, error)


async def produce(world: World, runtime: ClientRuntime, writer: TraceWriter, *, retry_unknown: bool) -> None:
    """Sends for ever, from several lanes at once."""
    async with Producer(
        world.name_server_addresses,
        group="senders",
        retry_unknown=retry_unknown,
        trace=writer,
        runtime=runtime,
    ) as producer:

        async def lane() -> None:
            random = runtime.random
            while True:
                await runtime.sleep(random.expovariate(1000 / world.plan.think_ms))
                if world.load_stopped:
                    continue
                queue = f"key{random.randrange(5)}" if random.random() < 0.3 else None
                count = random.randrange(2, 6) if random.random() < 0.15 else 1
                messages = [
                    Message(
                        TOPIC, random.randbytes(random.choice((10, 100, 700))), tags=f"t{random.randrange(3)}"
                    )
                    for _ in range(count)
                ]
                try:
                    if count == 1:
                        await producer.send(messages[0], queue=queue)
                    else:
                        await producer.send_batch(messages, queue=queue)
                except ClientError:
                    await runtime.sleep(0.05)

        async with runtime.task_group() as group:
            for _ in range(_LANES):
                group.start_soon(lane)


async def consume(world: World, runtime: ClientRuntime, writer: TraceWriter) -> None:
    """Reads as a member of the group, and stores what it has read now and then."""
    random = runtime.random
    while True:
        async with Consumer(
            world.name_server_addresses,
            group=GROUP,
            topics=TOPIC,
            start="first",
            trace=writer,
            runtime=runtime,
        ) as consumer:
            stay_s = random.expovariate(1 / 20)
            with runtime.move_on_after(stay_s):
                async for message in consumer:
                    world.consumed(message.queue.queue_id, message.queue_offset)
                    if random.random() < 0.02:
                        try:
                            await consumer.commit()
                        except ClientError:
                            pass
        await runtime.sleep(random.random())


async def audit(world: World, runtime: ClientRuntime, writer: TraceWriter) -> None:
    """Asks for the ends of queues and for the group's stored offsets.

    From several lanes that mostly wait: a question put while a leader that does not know yet that it is none stands
    still is the one that finds a stale answer.
    """
    async with PullConsumer(
        world.name_server_addresses, group=GROUP, trace=writer, runtime=runtime
    ) as consumer:

        async def lane() -> None:
            random = runtime.random
            while True:
                await runtime.sleep(random.expovariate(1 / _QUESTION_PAUSE_S))
                try:
                    queue = random.choice(await consumer.queues(TOPIC))
                    if random.random() < 0.7:
                        await consumer.max_offset(queue)
                    else:
                        await consumer.committed(queue)
                except ClientError:
                    pass

        async with runtime.task_group() as group:
            for _ in range(_AUDIT_LANES):
                group.start_soon(lane)


async def administer(world: World, runtime: ClientRuntime, writer: TraceWriter) -> None:
    """Makes the topic, and others that it deletes again and makes again."""
    random = runtime.random
    async with AdminClient(world.name_server_addresses, runtime=runtime) as admin:
        while True:
            try:
                await admin.create_topic(TOPIC, queues=world.plan.queues)
                break
            except ClientError:
                await runtime.sleep(0.1)
        while True:
            await runtime.sleep(0.5)
            if not world.topic_changes_wanted:
                continue
            world.topic_changes_wanted -= 1
            topic = f"other{random.randrange(3)}"
            try:
                if random.random() < 0.6:
                    await admin.create_topic(topic, queues=random.randrange(1, 4))
                else:
                    await admin.delete_topic(topic)
            except ClientError:
                continue

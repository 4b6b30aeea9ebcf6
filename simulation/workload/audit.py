"""Asks for what must be linearizable: the ends of queues and stored offsets."""

from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.errors import ClientError
from broker.client.transport.runtime import Runtime
from broker.trace import TraceWriter
from simulation.workload.context import Load
from simulation.workload.names import GROUP, TOPIC

_LANES = 3
_QUESTION_PAUSE_S = 1.5


async def audit(load: Load, runtime: Runtime, writer: TraceWriter) -> None:
    """Asks for the ends of queues and for the consumer group's stored offsets.

    From several lanes that mostly wait. A stale answer is found by a question to a deposed leader that does not know of
    it yet and stands still: some lane should have one out then.
    """
    async with PullConsumer(load.name_servers, group=GROUP, trace=writer, runtime=runtime) as consumer:

        async def lane() -> None:
            random = runtime.random
            while True:
                await runtime.sleep(random.expovariate(1 / _QUESTION_PAUSE_S))
                try:
                    queue = random.choice(await consumer.queues(TOPIC))
                    # The trace has question and answer, and its judge knows what was true in between.
                    if random.random() < 0.7:
                        await consumer.max_offset(queue)
                    else:
                        await consumer.committed(queue)
                except ClientError:
                    continue
                load.answered()

        async with runtime.task_group() as group:
            for _ in range(_LANES):
                group.start_soon(lane)

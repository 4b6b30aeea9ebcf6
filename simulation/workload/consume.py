"""Consumer group members that read, rebalance and store offsets."""

from broker.client.consuming.consumer import Consumer
from broker.client.errors import ClientError
from broker.client.transport.runtime import Runtime
from broker.trace import TraceWriter
from simulation.workload.context import Load
from simulation.workload.names import GROUP, TOPIC


async def consume(load: Load, runtime: Runtime, writer: TraceWriter) -> None:
    """Reads as a member of the consumer group, and stores what it has read now and then."""
    random = runtime.random
    while True:
        async with Consumer(
            load.name_servers,
            group=GROUP,
            topics=TOPIC,
            start="first",
            trace=writer,
            runtime=runtime,
        ) as consumer:
            # Members come and go, so that the others share out the queues anew.
            stay_s = random.expovariate(1 / 20)
            with runtime.move_on_after(stay_s):
                async for message in consumer:
                    load.consumed(message.queue, message.queue_offset)
                    if random.random() < 0.02:
                        try:
                            await consumer.commit()
                        except ClientError:
                            pass
        await runtime.sleep(random.random())

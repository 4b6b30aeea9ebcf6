"""Sends singly and in batches, some of it to a queue chosen by a key; goes on with some of what stayed unknown."""

from broker.client.errors import ClientError, SendOutcomeUnknown
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.client.transport.runtime import Runtime
from broker.trace import TraceWriter
from simulation.workload.context import Load
from simulation.workload.names import TOPIC

_LANES = 3
_RESUME_AFTER_S = 5.0


async def produce(
    load: Load,
    runtime: Runtime,
    writer: TraceWriter,
    *,
    retry_unknown: bool,
    exactly_once: bool,
    batches: bool = True,
) -> None:
    """Sends for ever, from several lanes at once; with `batches` some messages together."""
    async with Producer(
        load.name_servers,
        group="senders",
        retry_unknown=retry_unknown,
        exactly_once=exactly_once,
        trace=writer,
        runtime=runtime,
    ) as producer:

        async def lane() -> None:
            random = runtime.random
            while True:
                await runtime.sleep(random.expovariate(1000 / load.think_ms))
                if load.load_stopped:
                    continue
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
                except SendOutcomeUnknown as error:
                    load.unknown(count)
                    # Only what brokers recognize may be sent on later; and some users never ask what became of it.
                    if not exactly_once or random.random() < 0.5:
                        continue
                    await runtime.sleep(random.expovariate(1 / _RESUME_AFTER_S))
                    try:
                        results = await producer.resume(error)
                    except ClientError:
                        continue
                except ClientError:
                    await runtime.sleep(0.05)
                    continue
                load.sent(producer.core.client_id, results, once=exactly_once)

        async with runtime.task_group() as group:
            for _ in range(_LANES):
                group.start_soon(lane)

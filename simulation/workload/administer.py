"""Makes the topic of all others; deletes and makes topics that nobody else uses."""

import math

from broker.client.admin import AdminClient
from broker.client.errors import ClientError
from broker.client.transport.runtime import Runtime
from broker.trace import TraceWriter
from simulation.workload.context import Context
from simulation.workload.names import TOPIC


async def administer(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Makes the topic of all, and others that it deletes and makes again."""
    random = runtime.random
    async with AdminClient(context.name_servers, runtime=runtime) as admin:
        while True:
            try:
                await admin.create_topic(TOPIC, queues=context.facts.queues, groups=context.groups)
                break
            except ClientError:
                await runtime.sleep(0.1)
        if "topics" not in context.wishes.expected:
            await runtime.sleep(math.inf)  # nobody will ask
        while True:
            await runtime.sleep(0.5)
            if not context.wishes.topic_changes:
                continue
            context.wishes.topic_changes -= 1
            topic = f"other{random.randrange(3)}"
            try:
                if random.random() < 0.6:
                    await admin.create_topic(topic, queues=random.randrange(1, 4))
                else:
                    await admin.delete_topic(topic)
                context.journal.fired("topics")
            except ClientError:
                continue

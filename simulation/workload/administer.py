"""Makes the topic of all others; deletes and makes topics that nobody else uses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from broker.client.admin import AdminClient
from broker.client.errors import ClientError
from broker.trace import TraceWriter
from simulation.client_runtime import ClientRuntime
from simulation.workload.names import TOPIC

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["administer"]


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
        if not any(fault.kind == "topics" for fault in world.plan.faults):
            await runtime.sleep(math.inf)  # nobody will ask
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
                world.fired("topics")
            except ClientError:
                continue

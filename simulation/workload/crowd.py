"""A crowd: many who send at once while the plan says so, and try again at once what is refused or fails."""

from typing import Final

from broker.client.errors import ClientError
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.client.transport.runtime import Runtime
from broker.trace import TraceWriter
from simulation.workload.context import Context
from simulation.workload.names import TOPIC

_LANES: Final = 16
_BODY_BYTES: Final = 3000
_LOOK_S: Final = 0.1


async def crowd(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Sends from all lanes without a pause while `Wishes.is_crowded`, and nothing otherwise."""

    async def lane() -> None:
        while True:
            if not context.wishes.is_crowded:
                await runtime.sleep(_LOOK_S)
                continue
            try:
                await producer.send(Message(TOPIC, runtime.random.randbytes(_BODY_BYTES)))
                context.journal.did("message of a crowd acknowledged")
            except ClientError:
                context.journal.did("message of a crowd in vain")

    async with (
        Producer(context.name_servers, group="crowd", trace=writer, runtime=runtime) as producer,
        runtime.task_group() as group,
    ):
        for _ in range(_LANES):
            group.start_soon(lane)

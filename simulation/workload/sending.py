"""The sends of actors whose work is about what becomes of their messages, not about the sending."""

from collections.abc import Callable
from typing import Final

from broker.client.errors import ClientError
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.client.transport.runtime import Runtime
from broker.trace import TraceWriter
from simulation.workload.context import Context

_AFTER_FAILURE_S: Final = 0.05


async def send_now_and_then(
    context: Context,
    runtime: Runtime,
    group: str,
    pause_s: float,
    message: Callable[[], Message | list[Message]],
    *,
    lanes: int = 1,
    compress_above: int | None = None,
    trace: TraceWriter | None = None,
) -> None:
    """Sends for ever as a producer of `group`; the options are those of `Producer`.

    Each lane sends a new message every `pause_s` seconds on average, or several together. A send that fails is given
    up.
    """

    async def lane() -> None:
        while True:
            await context.pause(runtime, pause_s)
            made = message()
            try:
                await (producer.send_many(made) if isinstance(made, list) else producer.send(made))
            except ClientError:
                # A send may fail at once, and the next pause be short: nobody is to spin.
                await runtime.sleep(_AFTER_FAILURE_S)

    async with Producer(
        context.name_servers, group=group, compress_above=compress_above, trace=trace, runtime=runtime
    ) as producer:
        if lanes == 1:
            await lane()
        else:
            async with runtime.task_group() as tasks:
                for _ in range(lanes):
                    tasks.start_soon(lane)

"""The sends of actors whose work is about what becomes of their messages, not about the sending."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.client.errors import ClientError
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.client.transport.runtime import Runtime
from simulation.workload.context import Context

_AFTER_FAILURE_S: Final = 0.05


async def send_now_and_then(
    context: Context, runtime: Runtime, producer: Producer, pause_s: float, message: Callable[[], Message]
) -> None:
    """Sends for ever, a new message every `pause_s` seconds on average; a send that fails is given up."""
    while True:
        await runtime.sleep(runtime.random.expovariate(1 / pause_s))
        if context.load_stopped:
            continue
        made = message()
        try:
            await producer.send(made)
        except ClientError:
            await runtime.sleep(_AFTER_FAILURE_S)

"""Sends numbered messages with Trivet's own client, one after the other, as the other clients' drivers do.

    python -m tests.interop.trivet_sender --namesrv HOST:PORT --topic T --group G [--prefix P] [--pause-ms N]

Ends with its standard input.
"""

from __future__ import annotations

import argparse
import sys

import trio

from broker.client.errors import ClientError
from broker.client.message import Message
from broker.client.producing.producer import Producer
from tests.interop.trivet_member import emit

SEND_TIMEOUT_S = 120.0
"""Machines that run such tests stand still for seconds; what is counted is not how long a send takes."""
ATTEMPT_TIMEOUT_S = 1.0


async def run(name_server: str, topic: str, group: str, prefix: str, pause_ms: int) -> None:
    """Send until standard input ends."""
    index = 0

    async def send_on(producer: Producer) -> None:
        nonlocal index
        while not ended:
            try:
                result = await producer.send(Message(topic, f"{prefix}{index}".encode()))
            except ClientError as error:
                emit("failed", index=index, error=f"{type(error).__name__}: {error}")
            else:
                emit("sent", index=index, status="OK", offset=result.queue_offset)
            index += 1
            await trio.sleep(pause_ms / 1000)

    ended = False
    async with (
        Producer(
            name_server, group=group, send_timeout_s=SEND_TIMEOUT_S, attempt_timeout_s=ATTEMPT_TIMEOUT_S
        ) as producer,
        trio.open_nursery() as nursery,
    ):
        emit("started")
        nursery.start_soon(send_on, producer)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        ended = True
    emit("stopped")


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--namesrv", "--topic", "--group"):
        parser.add_argument(name, required=True)
    parser.add_argument("--prefix", default="m-")
    parser.add_argument("--pause-ms", type=int, default=0)
    options = parser.parse_args()
    trio.run(run, options.namesrv, options.topic, options.group, options.prefix, options.pause_ms)


if __name__ == "__main__":
    main()

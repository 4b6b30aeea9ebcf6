"""A member of a group with Trivet's own client, as a driver process that reports what the Java drivers report.

    python -m tests.interop.trivet_member --namesrv HOST:PORT --topic T --group G [--orderly] [--hold-ms N]

Ends with its standard input.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import trio

from broker.client.consuming.consumer import Consumer
from broker.client.consuming.listening import listen
from broker.client.consuming.ordered_listening import listen_orderly
from broker.client.message import MessageView


def emit(event: str, **fields: object) -> None:
    """One JSON line."""
    print(json.dumps({"event": event, "at_ms": time.time_ns() // 1_000_000, **fields}), flush=True)


def report(event: str, message: MessageView) -> None:
    """A message, as the Java drivers describe it."""
    emit(event, body=message.body.decode(), queue=message.queue.queue_id, offset=message.queue_offset)


async def run(name_server: str, topic: str, group: str, orderly: bool, hold_ms: int) -> None:
    """Handle messages until standard input ends."""

    async def handle(message: MessageView) -> None:
        report("begin", message)
        await trio.sleep(hold_ms / 1000)
        report("message", message)

    async with (
        Consumer(name_server, group=group, topics=topic, orderly=orderly) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(listen_orderly if orderly else listen, consumer, handle)
        emit("started", client_id=consumer.core.client_id)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()
    emit("stopped")


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--namesrv", "--topic", "--group"):
        parser.add_argument(name, required=True)
    parser.add_argument("--orderly", action="store_true")
    parser.add_argument("--hold-ms", type=int, default=0)
    options = parser.parse_args()
    trio.run(run, options.namesrv, options.topic, options.group, options.orderly, options.hold_ms)


if __name__ == "__main__":
    main()

"""Sends numbered messages with the C++ client: body ``<prefix><index>``, one event for each.

A send that the client gives up with "No route info" is made again while its time lasts, as an application would. The
client says so after five attempts in a row, whatever stood in their way. Often it is itself: ten milliseconds after its
start a thread of its own connects to the brokers, and whoever wants the same connection meanwhile, or the lock of the
table of connections (``try_lock_for`` three seconds fails at once in the published library), gets none. All five are
over within a millisecond, and nothing has left the process; a large first message, which is compressed before, comes
just then, one time in twenty. A group that elects is the other reason. Should one of them have been stored all the
same, the message is there twice, and fails whoever counts what is stored.
"""

from __future__ import annotations

import functools
import queue
import sys
import threading
import time
from collections.abc import Callable

from rocketmq.client import Message, Producer, SendResult

from tests.interop.cpp_client.common import connect, emit, options, wait_for_end_of_input

NO_ROUTE = "No route info"
AGAIN_S = 0.1


def main() -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--mode", choices=["sync", "async", "orderly", "oneway", "oneway-orderly", "batch"], default="sync"
    )
    parser.add_argument("--count", type=int, default=1, help="0: until standard input ends")
    parser.add_argument("--prefix", default="m-")
    parser.add_argument("--tags", default="", help="separated by commas, taken in turn")
    parser.add_argument("--shards", type=int, default=4, help="orderly: index modulo this selects the queue")
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--delay-level", type=int, default=0, help="-1: each message another level")
    parser.add_argument("--size", type=int, default=0, help="pads bodies to this many bytes")
    parser.add_argument("--timeout-ms", type=int, default=3000)
    parser.add_argument("--pause-ms", type=int, default=0, help="between two sends")
    parser.add_argument("--properties", default="", help="k=v separated by commas; a value of % is the index")
    args = parser.parse_args()

    producer = Producer(args.group, timeout=args.timeout_ms, max_message_size=4 << 20)
    connect(producer, args)
    producer.start()
    emit("started")
    ended = InputWatch() if args.count == 0 else None
    tags = args.tags.split(",") if args.tags else []

    def build(index: int) -> Message:
        message = Message(args.topic)
        message.set_keys(f"key-{args.prefix}{index}")
        message.set_body(f"{args.prefix}{index}".ljust(args.size, "."))
        if tags:
            message.set_tags(tags[index % len(tags)])
        if args.delay_level:
            message.set_delay_time_level(args.delay_level if args.delay_level > 0 else index + 1)
        for pair in filter(None, args.properties.split(",")):
            key, _, value = pair.partition("=")
            message.set_property(key, str(index) if value == "%" else value)
        return message

    def send(index: int) -> SendResult | None:
        if args.mode == "sync":
            return producer.send_sync(build(index))
        if args.mode == "async":
            return asynchronously(producer, build(index), args.timeout_ms)
        if args.mode == "orderly":
            return producer.send_orderly(build(index), index % args.shards)
        if args.mode == "oneway":
            return producer.send_oneway(build(index))
        if args.mode == "oneway-orderly":
            return producer.send_oneway_orderly(build(index), index % args.shards)
        return producer.send_batch([build(index + i) for i in range(args.batch)])

    if args.mode.startswith("oneway"):
        # Without a connection a message that nobody answers is lost without a word.
        while_there_is_no_route(-1, args.timeout_ms, lambda: producer.send_sync(build(-1)))
    index = 0
    while index < args.count or (ended is not None and not ended.seen()):
        time.sleep(args.pause_ms / 1e3)
        begin = time.monotonic()
        try:
            result = while_there_is_no_route(index, args.timeout_ms, functools.partial(send, index))
        except Exception as error:  # whatever the library raises is the result
            emit("failed", index=index, error=f"{type(error).__name__}: {error}")
        else:
            answer = (
                {"status": result.status.name, "offset": result.offset, "msg_id": result.msg_id}
                if result
                else {}
            )
            emit("sent", index=index, ms=(time.monotonic() - begin) * 1e3, **answer)
        index += args.batch if args.mode == "batch" else 1
    emit("done")
    if args.mode.startswith("oneway"):
        wait_for_end_of_input()  # whoever counts the messages says when they have left
    producer.shutdown()
    emit("stopped")


def asynchronously(producer: Producer, message: Message, limit_ms: int) -> SendResult:
    """One send whose outcome is told to a callback, in a thread of the library."""
    told: queue.Queue[SendResult | Exception] = queue.Queue()
    producer.send_async(message, told.put, told.put)
    outcome = told.get(timeout=limit_ms / 1e3)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def while_there_is_no_route(
    index: int, limit_ms: int, send: Callable[[], SendResult | None]
) -> SendResult | None:
    """Makes a send until it ends otherwise than for want of a route; the last attempt begins within the limit."""
    begin = time.monotonic()
    while True:
        try:
            return send()
        except Exception as error:
            if NO_ROUTE not in str(error) or time.monotonic() - begin >= limit_ms / 1e3:
                raise
            emit("again", index=index, error=f"{type(error).__name__}: {error}")
        time.sleep(AGAIN_S)


class InputWatch:
    """Notices the end of standard input without blocking on it."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def seen(self) -> bool:
        return self._ended.is_set()

    def _watch(self) -> None:
        sys.stdin.buffer.read()
        self._ended.set()


if __name__ == "__main__":
    main()

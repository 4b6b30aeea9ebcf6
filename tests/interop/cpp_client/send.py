"""Sends numbered messages with the C++ client: body ``<prefix><index>``, one event for each."""

from __future__ import annotations

import sys
import threading
import time

from rocketmq.client import Message, Producer

from tests.interop.cpp_client.common import emit, options, wait_for_end_of_input


def main() -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--mode", choices=["sync", "orderly", "oneway", "oneway-orderly", "batch"], default="sync"
    )
    parser.add_argument("--count", type=int, default=1, help="0: until standard input ends")
    parser.add_argument("--prefix", default="m-")
    parser.add_argument("--tags", default="", help="separated by commas, taken in turn")
    parser.add_argument("--shards", type=int, default=4, help="orderly: index modulo this selects the queue")
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--delay-level", type=int, default=0)
    parser.add_argument("--size", type=int, default=0, help="pads bodies to this many bytes")
    parser.add_argument("--timeout-ms", type=int, default=3000)
    parser.add_argument("--properties", default="", help="k=v separated by commas; a value of % is the index")
    args = parser.parse_args()

    producer = Producer(args.group, timeout=args.timeout_ms, max_message_size=4 << 20)
    producer.set_namesrv_addr(args.namesrv)
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
            message.set_delay_time_level(args.delay_level)
        for pair in filter(None, args.properties.split(",")):
            key, _, value = pair.partition("=")
            message.set_property(key, str(index) if value == "%" else value)
        return message

    index = 0
    while index < args.count or (ended is not None and not ended.seen()):
        begin = time.monotonic()
        step = 1
        try:
            if args.mode == "sync":
                result = producer.send_sync(build(index))
            elif args.mode == "orderly":
                result = producer.send_orderly(build(index), index % args.shards)
            elif args.mode == "oneway":
                result = producer.send_oneway(build(index))
            elif args.mode == "oneway-orderly":
                result = producer.send_oneway_orderly(build(index), index % args.shards)
            else:
                step = args.batch
                result = producer.send_batch([build(index + i) for i in range(step)])
        except Exception as error:  # whatever the library raises is the result
            emit("failed", index=index, error=f"{type(error).__name__}: {error}")
        else:
            answer = (
                {"status": result.status.name, "offset": result.offset, "msg_id": result.msg_id}
                if result
                else {}
            )
            emit("sent", index=index, ms=(time.monotonic() - begin) * 1e3, **answer)
        index += step
    emit("done")
    if args.mode.startswith("oneway"):
        wait_for_end_of_input()  # whoever counts the messages says when they have left
    producer.shutdown()
    emit("stopped")


class InputWatch:
    """Whether standard input has ended, without blocking on it."""

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

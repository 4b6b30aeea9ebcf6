"""``trivet produce`` and ``trivet consume``: messages from and to the terminal, files and scripts."""

from __future__ import annotations

import datetime
import json as json_text
import math
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

from cyclopts import Parameter

from broker.tools.cli.errors import USAGE, CommandError
from broker.tools.cli.options import (
    DEFAULT_SERVERS,
    AsJsonLines,
    Servers,
    StopCount,
    StopTimeout,
    check_stops,
)
from broker.tools.cli.output import tell_warnings

if TYPE_CHECKING:
    from broker.client.message import Message, MessageView, SendResult

PRODUCER_GROUP = "TRIVET_CLI"


class _When(TypedDict, total=False):
    """The arguments of `Message` that say when it is delivered."""

    delay_level: int
    delay_ms: int
    deliver_at_ms: int


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class _Delivery:
    """The time at which messages are delivered: at once, or later by one of three options."""

    delay_level: Annotated[int, Parameter(help="Delay level, 1 to 18; 0 delivers at once.")] = 0
    delay_s: Annotated[
        float | None, Parameter(name="--delay", help="Deliver after this many seconds, such as 0.5.")
    ] = None
    deliver_at: Annotated[
        datetime.datetime | None,
        Parameter(help="Deliver at this time: 2030-01-31T12:00:00, local if without a zone."),
    ] = None

    def of_message(self) -> _When:
        """The arguments of each message for it. Raises CommandError."""
        delay_level, delay_s, deliver_at = self.delay_level, self.delay_s, self.deliver_at
        if not 0 <= delay_level <= 18:
            raise CommandError(f"--delay-level {delay_level}: from 0 to 18", USAGE)
        if bool(delay_level) + (delay_s is not None) + (deliver_at is not None) > 1:
            raise CommandError("give one of --delay-level, --delay and --deliver-at", USAGE)
        if delay_s is not None:
            if not 0 <= delay_s < math.inf:
                raise CommandError(f"--delay {delay_s}: at least 0", USAGE)
            return {"delay_ms": round(delay_s * 1000)}
        if deliver_at is not None:
            return {"deliver_at_ms": _moment_ms(deliver_at)}
        return {"delay_level": delay_level}


_AT_ONCE = _Delivery()


async def produce(
    topic: Annotated[str, Parameter(help="Topic to send to.")],
    /,
    *messages: Annotated[
        str, Parameter(help="Bodies; without any, every line of --file or standard input that is not empty.")
    ],
    file: Annotated[Path | None, Parameter(help="Send every line of this file.")] = None,
    tag: Annotated[str | None, Parameter(help="Tag of the messages.")] = None,
    key: Annotated[
        list[str] | None, Parameter(help="Key to find the messages by; may be repeated.", negative="")
    ] = None,
    order_by: Annotated[str | None, Parameter(help="Send to the one queue that this text hashes to.")] = None,
    delivery: _Delivery = _AT_ONCE,
    in_flight: Annotated[int, Parameter(help="Sends that may be under way at once; 1 keeps the order.")] = 1,
    timeout_s: Annotated[
        float, Parameter(name="--timeout", help="Seconds that a send may take, retries included.")
    ] = 10.0,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJsonLines = False,
) -> int:
    """Send messages, and wait until each is stored.

    The number of those that are stored is told in the end; with --json each is one line instead, with its id, topic,
    broker, queue and offset. The exit code is 1 if a message was not stored or its outcome is unknown; nothing more is
    sent then, and those that are stored are told all the same.
    """
    import trio

    from broker.client.message import Message
    from broker.client.producing.producer import Producer

    if messages and file is not None:
        raise CommandError("give messages or --file, not both", USAGE)
    if file is not None and (file.is_dir() or not file.exists()):
        raise CommandError(f"--file {file}: no such file", USAGE)
    if in_flight < 1:
        raise CommandError(f"--in-flight {in_flight}: at least 1", USAGE)
    if not 0 < timeout_s < math.inf:
        raise CommandError(f"--timeout {timeout_s:g}: seconds, more than 0", USAGE)
    when = delivery.of_message()
    stored = 0

    def report(result: SendResult) -> None:
        nonlocal stored
        stored += 1
        if json:
            print(json_text.dumps(_result_fields(result)), flush=in_flight == 1)

    is_whole = False
    try:
        async with Producer(
            servers.addresses(), group=PRODUCER_GROUP, send_timeout_s=timeout_s, **servers.identity()
        ) as producer:
            bodies = _bodies(messages, file)
            # The next body is read only when a send may begin: input of any length is never held in memory.
            room = trio.Semaphore(in_flight)

            async def send(message: Message) -> None:
                try:
                    report(await producer.send(message, queue=order_by))
                finally:
                    room.release()

            async with trio.open_nursery() as nursery:
                async for body in bodies:
                    message = Message(topic, body, tags=tag, keys=key or (), **when)
                    await room.acquire()
                    nursery.start_soon(send, message)
        is_whole = True
    finally:
        # Behind a failure, too: whoever sends the rest has to know where it begins.
        if not json and (stored or is_whole):
            print(f"{stored:,} message{'s' if stored != 1 else ''} stored in {topic}")
    return 0


async def consume(
    topic: Annotated[str, Parameter(help="Topic to read.")],
    /,
    *,
    group: Annotated[str, Parameter(help="Consumer group, whose offsets are stored.")] = "TRIVET_CLI",
    tags: Annotated[str, Parameter(help='Tags wanted, such as "a || b".')] = "*",
    start: Annotated[
        Literal["first", "last"], Parameter(help="Where a consumer group begins that has no stored offset.")
    ] = "first",
    broadcast: Annotated[bool, Parameter(help="Read every queue, and store no offset.", negative="")] = False,
    count: StopCount = None,
    timeout_s: StopTimeout = math.inf,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJsonLines = False,
) -> int:
    """Read messages of a topic until Ctrl-C, --count or --timeout; prints each body on a line.

    With --json each message is one line: topic, broker, queue, offset, id, tags, keys, times in ms, properties, and the
    body as "body", or as "body_base64" if it is not UTF-8, or "damaged" with the reason if it cannot be read; of a
    message that is damaged as a whole only that, topic, broker and queue. Without, such ones are reported on stderr and
    passed over. The exit code is 1 if fewer than --count came in time.
    """
    import trio

    from broker.client.consuming.consumer import Consumer
    from broker.tools.cli.signals import stop_signals, until

    check_stops(count, timeout_s)
    tell_warnings()  # such as that the topic does not exist: the reader waits for it, and a person may have mistyped it
    consumed = 0
    with stop_signals() as stopped:
        async with (
            Consumer(
                servers.addresses(),
                group=group,
                topics={topic: tags},
                start=start,
                broadcast=broadcast,
                **servers.identity(),
            ) as consumer,
            until(stopped),
        ):
            with trio.move_on_after(timeout_s) as silence:
                async for message in consumer:
                    silence.deadline = math.inf
                    _print_message(message, json)
                    consumed += 1
                    if count is not None and consumed >= count:
                        break
                    silence.deadline = trio.current_time() + timeout_s
                await consumer.commit()
    if count is not None and consumed < count:
        raise CommandError(f"only {consumed} of {count} messages came")
    return 0


async def _bodies(messages: tuple[str, ...], file: Path | None) -> AsyncIterator[bytes]:
    if messages:
        for message in messages:
            yield message.encode()
        return
    if file is None:
        async for line in _lines_of_standard_input():
            if body := line.rstrip(b"\r"):
                yield body
        return
    with file.open("rb") as source:
        for line in source:
            if body := line.rstrip(b"\r\n"):
                yield body


async def _lines_of_standard_input() -> AsyncIterator[bytes]:
    """Yield lines without their ends, as they come.

    Not through Python's own buffer: a thread that waits in it for a terminal holds its lock, and an interpreter that is
    to end meanwhile (Ctrl-C) aborts over that.
    """
    import trio

    begun = b""
    while data := await trio.to_thread.run_sync(os.read, sys.stdin.fileno(), 1 << 16, abandon_on_cancel=True):
        *lines, begun = (begun + data).split(b"\n")
        for line in lines:
            yield line
    yield begun


def _moment_ms(moment: datetime.datetime) -> int:
    """The moment in milliseconds since 1970. Raises CommandError for one that no clock shows."""
    try:
        milliseconds = round(moment.timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        milliseconds = -1
    if milliseconds < 0:
        raise CommandError(f"--deliver-at {moment.isoformat()}: a time since 1970", USAGE)
    return milliseconds


def _result_fields(result: SendResult) -> dict[str, object]:
    return {
        "message_id": result.message_id,
        "offset_message_id": result.offset_message_id,
        "topic": result.queue.topic,
        "broker": result.queue.broker_name,
        "queue": result.queue.queue_id,
        "offset": result.queue_offset,
        "status": result.status.name,
    }


def _print_message(message: MessageView, as_json: bool) -> None:
    from broker.client.errors import DamagedMessage
    from broker.tools.cli.message_output import body_fields

    body, damage = None, None
    try:
        body = message.body
    except DamagedMessage as error:
        damage = str(error)  # its producer's fault, and no reason to keep all behind it from the reader
    if not as_json:
        if body is None:
            print(f"trivet: passed over: {damage}", file=sys.stderr, flush=True)
            return
        sys.stdout.buffer.write(body + b"\n")
        sys.stdout.buffer.flush()
        return
    try:
        fields = _fields(message)
    except DamagedMessage:  # even of its head: only its queue is known
        queue = message.queue
        fields = {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id}
    print(json_text.dumps(fields | body_fields(body, damage), ensure_ascii=False), flush=True)


def _fields(message: MessageView) -> dict[str, object]:
    """Return a message as --json prints it, without its body. Raises DamagedMessage."""
    return {
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "message_id": message.message_id,
        "tags": message.tags,
        "keys": message.keys,
        "born_ms": message.born_timestamp_ms,
        "stored_ms": message.store_timestamp_ms,
        "reconsume_times": message.reconsume_times,
        "properties": message.properties,
    }

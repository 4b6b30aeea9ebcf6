"""Shared parts of the C++ client's drivers: options and JSON lines.

The drivers run as processes of their own, because the library keeps global state, may take the process down with it,
and calls back from its own threads. Their options and events are the same as those of the Java program
(``java/src/trivet/interop/Interop.java``), so that one test runs with every client:

    {"event": "started"}                                        client started, will work
    {"event": "sent", "index", "status", "offset", "msg_id", "ms"}
    {"event": "again", "index", "error"}                        a send that found no route, and is made again
    {"event": "failed", "index", "error"}                       a send that was not acknowledged
    {"event": "message", "body", "topic", "queue", "offset", "tags", "keys", "reconsume", "delay_ms", ...}
    {"event": "done"}                                           all work finished
    {"event": "stopped"}                                        clean shutdown after the end of standard input

Each has "at_ms", when it was written (Unix time).
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from typing import Any

CHANNEL = "ALIYUN"
"""What the client names itself by default, in ``OnsChannel``, which it signs with the rest."""

_output = threading.Lock()


def emit(event: str, **fields: object) -> None:
    """One JSON line; callable from the library's threads."""
    line = json.dumps({"event": event, "at_ms": time.time_ns() // 1_000_000, **fields})
    with _output:
        print(line, flush=True)


def text(value: bytes | str | None) -> str:
    """The library gives bytes or nothing; messages of these tests are UTF-8."""
    return value.decode() if isinstance(value, bytes) else value or ""


def options(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--access-key", default="", help="of an account, whose requests are then signed")
    parser.add_argument("--secret-key", default="")
    return parser


def connect(client: Any, args: argparse.Namespace) -> None:
    """Tells a producer or consumer where its name servers are, and who it is."""
    client.set_namesrv_addr(args.namesrv)
    if args.access_key:
        client.set_session_credentials(args.access_key, args.secret_key, CHANNEL)


def wait_for_end_of_input() -> None:
    """Drivers run until their standard input ends."""
    sys.stdin.buffer.read()


def message_fields(message: Any) -> dict[str, object]:
    """Returns all that a test may ask about a received message."""
    return {
        "topic": message.topic,
        "body": text(message.body),
        "tags": text(message.tags),
        "keys": text(message.keys),
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "commit_log_offset": message.commit_log_offset,
        "msg_id": text(message.id),
        "reconsume": message.reconsume_times,
        "born_ms": message.born_timestamp,
        "store_ms": message.store_timestamp,
    }

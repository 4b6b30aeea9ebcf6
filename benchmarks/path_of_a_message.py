"""Through which modules one send and one pull go on the leader of three nodes, and how many Python calls that is.

    .venv/bin/python -m benchmarks.path_of_a_message [--calls] [--json]

Counted is what the leader does from the request's bytes to the response's, with all its turns and the acknowledgements
of its followers. Messages were sent before, so that nothing is made for the first time. Not counted are sockets, the
other nodes, the client, and functions that are written in C. `--calls` lists the modules with their functions, both in
the order of their first call.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import isfunction
from pathlib import Path
from types import FrameType
from typing import Any

import structlog

from broker.node.links import AcceptedLink
from broker.node.running import RunningNode
from broker.remoting.codes import RequestCode
from broker.requests.client_sessions import ClientSession
from tests.broker.harness import Client, Group

ROOT = Path(__file__).parent.parent
ROOMS = tuple(str(ROOT / room) for room in ("raft", "log", "broker"))
ENTRANCES: tuple[tuple[type, str], ...] = (
    (ClientSession, "received"),
    (AcceptedLink, "received"),
    (RunningNode, "turn"),
    (RunningNode, "job_done"),
)
"""What the surroundings of a node call while messages travel."""

KEYED = "KEYS\x01order-1\x02TAGS\x01paid\x02UNIQ_KEY\x01AC11000100002A9F0000000000000001\x02WAIT\x01true\x02"
"""What RocketMQ's own producer says of a message with a key and a tag."""


class MessagePath:
    """Counts the calls on the leader while it is at work."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        """By module and function, in the order of their first call."""

    def _see(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOMS):
            self.calls[str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname] += 1

    @contextmanager
    def counted(self, counts: bool = True) -> Iterator[None]:
        """Counts the calls made inside, or does not, in the midst of others that are."""
        before = sys.getprofile()
        sys.setprofile(self._see if counts else None)
        try:
            yield
        finally:
            sys.setprofile(before)

    @property
    def modules(self) -> list[str]:
        """The modules in which a function was called, in the order of the first calls."""
        return list(dict.fromkeys(module for module, _ in self.calls))


def follow(group: Group, client: Client, code: int, fields: dict[str, str], body: bytes = b"") -> MessagePath:
    """One request's path on the leader; its response must come without time passing."""
    path = MessagePath()
    leader = group.members[group.leader].process
    ours = {leader, *leader.clients.open.values(), *leader.links.accepted.values()}
    originals = {(kind, name): getattr(kind, name) for kind, name in ENTRANCES}

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(entered: object, *arguments: Any) -> Any:
            if entered not in ours:
                return original(entered, *arguments)
            # a turn is given what writes to the sockets, which is the harness's and not the node's
            inner = [outside(argument) if isfunction(argument) else argument for argument in arguments]
            with path.counted():
                return original(entered, *inner)

        return call

    def outside(write: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            with path.counted(False):
                write()

        return call

    try:
        for (kind, name), original in originals.items():
            setattr(kind, name, watched(original))
        opaque = client.start_call(code, fields, body)
        group.settle()
    finally:
        for (kind, name), original in originals.items():
            setattr(kind, name, original)
    answer = client.answers.pop(opaque)
    assert answer.code == 0, answer.remark
    return path


def paths() -> dict[str, MessagePath]:
    """The path of a send and that of a pull that finds the message."""
    group = Group.elected(3)
    client = group.connect()
    client.create_topic("T")
    for _ in range(3):
        client.send("T", b"before")
    client.pull("T", "G", 0)
    group.advance(1)
    send = {
        "producerGroup": "PG",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": str(group.wall_ms),
        "flag": "0",
        "properties": KEYED,
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    }
    pull = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "3",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subVersion": "0",
        "subscription": "*",
    }
    return {
        "send": follow(group, client, RequestCode.SEND_MESSAGE, send, b"x" * 1024),
        "pull": follow(group, client, RequestCode.PULL_MESSAGE, pull),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    found = paths()
    if arguments.json:
        print(
            json.dumps(
                {
                    name: {"calls": path.calls.total(), "modules": len(path.modules)}
                    for name, path in found.items()
                }
            )
        )
        return
    for name, path in found.items():
        print(f"a {name}: {path.calls.total()} calls in {len(path.modules)} modules")
        if arguments.calls:
            for module in path.modules:
                functions = [
                    f"{what} {n}" if n > 1 else what
                    for (where, what), n in path.calls.items()
                    if where == module
                ]
                print(f"  {module}: {', '.join(functions)}")


if __name__ == "__main__":
    main()

"""Microseconds of CPU that a message of a batch costs each node of a group of three, by stage.

    .venv/bin/python -m benchmarks.batch_cost [--body BYTES] [--batch MESSAGES] [--batches N] [--json]

No sockets, no other processes, files in memory (the tests' harness): so this is the code's own work, without system
calls and without fresh pages. Batches come from Trivet's own client, two at a time. A stage that is indented is a part
of the one above it.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import structlog

from broker.client.message import Message
from broker.client.producing.outgoing import Preparer
from broker.client.transport.trio_runtime import TrioRuntime
from broker.node.links import AcceptedLink
from broker.node.running import RunningNode
from broker.replica.batch_appends import BatchAppends
from broker.requests.client_sessions import ClientSession
from broker.sending.batch_properties import BatchProperties
from log.dispatching.dispatch import Dispatcher
from log.entries.entry_log import EntryLog
from log.formats.loops import INSTALLED
from log.options import StoreOptions
from tests.broker.harness import Client, Group

OUTER: Final[tuple[tuple[type, str, str], ...]] = (
    (ClientSession, "received", "receipt"),
    (AcceptedLink, "received", "from peers"),
    (RunningNode, "turn", "turn"),
    (RunningNode, "job_done", "jobs"),
)
"""What the surroundings of a node call; together they are all that it does."""
INNER: Final[tuple[tuple[type, str, str], ...]] = (
    (BatchProperties, "complete", "receipt: properties"),
    (BatchAppends, "_append_slice", "receipt: records and entries"),
    (EntryLog, "check_range", "from peers: check"),
    (EntryLog, "append_range", "from peers: copy"),
    (Dispatcher, "run", "turn: dispatch"),
)
STORE: Final = StoreOptions(data_file_bytes=64 << 20, prepare_ahead_bytes=8 << 20, loops=INSTALLED)


class Stages:
    """CPU nanoseconds by node and stage."""

    def __init__(self, group: Group) -> None:
        self.ns: dict[tuple[str, str], int] = defaultdict(int)
        self._group = group
        self._node = ""

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measures what is called inside."""
        originals = {(kind, name): getattr(kind, name) for kind, name, _ in (*OUTER, *INNER)}
        for kind, name, stage in OUTER:
            setattr(kind, name, self._outer(originals[kind, name], stage))
        for kind, name, stage in INNER:
            setattr(kind, name, self._inner(originals[kind, name], stage))
        try:
            yield
        finally:
            for (kind, name), original in originals.items():
                setattr(kind, name, original)

    def _outer(self, original: Callable[..., Any], stage: str) -> Callable[..., Any]:
        nodes: dict[object, str] = {}
        for member in self._group.alive():
            process = member.process
            entered = (process, *process.clients.open.values(), *process.links.accepted.values())
            nodes |= dict.fromkeys(entered, member.id)

        def call(entered: object, *arguments: Any) -> Any:
            self._node = nodes[entered]
            began = time.thread_time_ns()
            try:
                return original(entered, *arguments)
            finally:
                self.ns[nodes[entered], stage] += time.thread_time_ns() - began

        return call

    def _inner(self, original: Callable[..., Any], stage: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            began = time.thread_time_ns()
            try:
                return original(*arguments, **named)
            finally:
                self.ns[self._node, stage] += time.thread_time_ns() - began

        return call


def measure(body_bytes: int, batch: int, count: int) -> dict[str, float]:
    """Microseconds of CPU per message, by node and stage."""
    group = Group(3, options=STORE, max_message_bytes=4 << 20)
    group.elect()
    client = group.connect()
    client.create_topic("T", queues=1)
    preparer = Preparer(TrioRuntime(), None)
    messages = [Message("T", bytes(body_bytes), tags="TagA") for _ in range(batch)]
    send(group, client, preparer, messages, 20)
    group.advance(1)
    gc.collect()
    gc.freeze()  # as a broker does when it has started (broker/shell/broker_server.py)
    stages = Stages(group)
    with stages.measured():
        client_ns = send(group, client, preparer, messages, count)
        group.settle()
    each = 1e-3 / (count * batch)
    leader, follower = group.leader, group.follower
    found = {"client: encode": client_ns * each}
    for who, node in (("leader", leader), ("follower", follower)):
        for (at, stage), ns in sorted(stages.ns.items()):
            if at == node:
                found[f"{who}: {stage}"] = ns * each
    outer = {stage for _, _, stage in OUTER}
    found["three nodes"] = sum(ns for (_, stage), ns in stages.ns.items() if stage in outer) * each
    return found


def send(group: Group, client: Client, preparer: Preparer, messages: list[Message], count: int) -> int:
    """Sends so many batches, two at a time; returns the CPU time of making them, in nanoseconds."""
    spent = 0
    for number in range(0, count, 2):
        opaques = []
        for _ in range(min(2, count - number)):
            began = time.thread_time_ns()
            outgoing = preparer.batch(messages)
            spent += time.thread_time_ns() - began
            fields = {"a": "PG", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": group.wall_ms, "h": 0}
            fields |= {"i": outgoing.properties, "m": True}
            opaques.append(client.start_call(outgoing.code, fields, bytes(outgoing.body)))
        for opaque in opaques:
            answer = client.wait(opaque)
            assert answer.code == 0, answer.remark
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--body", type=int, nargs="*", default=[1024, 100], help="bytes of each body")
    parser.add_argument("--batch", type=int, default=256, help="messages of each batch")
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    gc.set_threshold(50_000, 20, 50)
    for body_bytes in arguments.body:
        found = measure(body_bytes, arguments.batch, arguments.batches)
        if arguments.json:
            print(json.dumps({"body": body_bytes, **{name: round(us, 3) for name, us in found.items()}}))
            continue
        print(f"{arguments.batches} batches of {arguments.batch} x {body_bytes} B, us a message:")
        for name, us in found.items():
            print(f"  {'  ' * (name.count(':') - 1)}{name:40} {us:7.2f}")


if __name__ == "__main__":
    main()

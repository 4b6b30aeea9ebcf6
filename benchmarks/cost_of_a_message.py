"""What a message costs on three nodes, stage by stage: CPU time, and Python calls.

    .venv/bin/python -m benchmarks.cost_of_a_message [--in-flight N] [--body BYTES] [--rounds N] [--json]

All three nodes run in this process over files in memory, without sockets, as in the tests. A client has `--in-flight`
sends under way, whose frames arrive in one read, as they do where a busy client shares the machine. So what is left
out is the kernel, Trio, and the copies into and out of sockets. A stage is what the surroundings of a node call: bytes
of a client, bytes of a peer, a turn and its end; the time in which bytes are handed out is the harness's, and belongs
to none. Figures are microseconds of CPU time for each message: the least of `--rounds` measurements, since whatever
else the machine does makes them greater, never less.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from time import thread_time_ns
from types import FrameType
from typing import Any

import structlog

from benchmarks.path_of_a_message import KEYED, ROOMS
from broker.node.links import AcceptedLink
from broker.node.running import RunningNode
from broker.remoting.codes import RequestCode
from broker.remoting.command import encode, request
from broker.requests.client_sessions import ClientSession
from broker.tools.bench.results import this_machine
from log.formats.loops import INSTALLED
from tests.broker.harness import SMALL_STORE, Group

STAGES: tuple[tuple[type, str, str], ...] = (
    (ClientSession, "received", "requests of clients"),
    (AcceptedLink, "received", "bytes of peers"),
    (RunningNode, "turn", "turn"),
    (RunningNode, "end_turn", "end of the turn"),
)
"""What the surroundings of a node call while messages travel."""

TOGETHER = 20
"""Rounds that are looked at together: followers put work off by some milliseconds."""


class Stages:
    """Time, or Python calls, by role and stage."""

    def __init__(self, group: Group, *, counts_calls: bool = False) -> None:
        self._group = group
        self._counts_calls = counts_calls
        self.spent: Counter[tuple[str, str]] = Counter()
        self.calls = 0
        self._outside_ns = 0

    def _role(self, entered: Any) -> str:
        leader = self._group.members[self._group.leader].process
        ours = entered is leader or entered in leader.clients.open.values()
        return "leader" if ours or entered in leader.links.accepted.values() else "followers"

    def _see(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ROOMS):
            self.calls += 1

    def __enter__(self) -> Stages:
        self._originals = [(kind, name, getattr(kind, name)) for kind, name, _ in STAGES]
        self._hand_out = self._group.hand_out
        for kind, name, stage in STAGES:
            setattr(kind, name, self._watched(getattr(kind, name), stage))
        self._group.hand_out = self._outside  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        self._group.hand_out = self._hand_out  # type: ignore[method-assign]
        for kind, name, original in self._originals:
            setattr(kind, name, original)

    def _outside(self, member: Any) -> None:
        began_ns = thread_time_ns()
        seen = sys.getprofile()
        sys.setprofile(None)
        self._hand_out(member)
        sys.setprofile(seen)
        self._outside_ns += thread_time_ns() - began_ns

    def _watched(self, original: Callable[..., Any], stage: str) -> Callable[..., Any]:
        def call(entered: object, *arguments: Any) -> Any:
            key = (self._role(entered), stage)
            if self._counts_calls:
                before = self.calls
                sys.setprofile(self._see)
                try:
                    return original(entered, *arguments)
                finally:
                    sys.setprofile(None)
                    self.spent[key] += self.calls - before
            self._outside_ns = 0
            began_ns = thread_time_ns()
            try:
                return original(entered, *arguments)
            finally:
                self.spent[key] += thread_time_ns() - began_ns - self._outside_ns

        return call


class Load:
    """A client of the leader that has some sends under way."""

    def __init__(self, in_flight: int, body_bytes: int, *, keyed: bool) -> None:
        self.group = Group(
            3,
            options=replace(
                SMALL_STORE,
                data_file_bytes=1 << 26,
                index_file_units=1 << 20,
                prepare_ahead_bytes=1 << 24,
                prepare_step_bytes=1 << 22,
                consume_queue_file_units=1 << 16,
                index_slots=1 << 16,
                index_entries=1 << 18,
                loops=INSTALLED,
            ),
        )
        self.group.elect()
        creator = self.group.connect()
        creator.create_topic("T", queues=4)
        self._in_flight = in_flight
        self._body = bytes(range(256)) * (body_bytes // 256 + 1)
        self._body = self._body[:body_bytes]
        self._properties = KEYED if keyed else "TAGS\x01paid\x02UNIQ_KEY\x01%032X\x02WAIT\x01true\x02"
        self._opaque = 0
        self.answered = 0
        self._session = self.group.accept(self.group.leader, self, "127.0.0.1", 50_000)

    def receive(self, data: bytes) -> None:
        """Answers of the leader."""
        assert b"remark" not in data, data
        self.answered += data.count(b'"code":0')

    def close(self) -> None:
        raise AssertionError("the leader closes the connection")

    def lost(self) -> None:
        raise AssertionError("the leader is gone")

    def round(self) -> None:
        """One read of requests, and all that follows from it."""
        frames = []
        for _ in range(self._in_flight):
            self._opaque += 1
            fields = {
                "a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": str(self._opaque & 3), "f": "0",
                "g": str(self.group.wall_ms), "h": "0",
                "i": self._properties % self._opaque if "%" in self._properties else self._properties,
                "j": "0", "k": "false", "m": "false",
            }  # fmt: skip
            frames.append(
                encode(request(RequestCode.SEND_MESSAGE_V2, fields, self._body, opaque=self._opaque))
            )
        before = self.answered
        self._session.received(b"".join(frames))
        self.group.members[self.group.leader].due_ns = self.group.now_ns
        self.group.settle()
        assert self.answered - before == self._in_flight, "each send is answered at once"


def measure(in_flight: int, body_bytes: int, rounds: int, *, keyed: bool) -> list[dict[str, Any]]:
    """A row for each stage, and one for all: microseconds and calls for each message."""
    load = Load(in_flight, body_bytes, keyed=keyed)
    for _ in range(5):
        load.round()
        load.group.advance(0.001)
    with Stages(load.group, counts_calls=True) as calls:
        for _ in range(TOGETHER):
            load.round()
            load.group.advance(0.001)
    times: list[Counter[tuple[str, str]]] = []
    for _ in range(rounds):
        with Stages(load.group) as stages:
            for _ in range(TOGETHER):
                load.round()
                load.group.advance(0.001)  # what a node puts off counts, too
        times.append(stages.spent)
    rows = []
    for key in sorted({key for one in times for key in one}, key=str, reverse=True):
        role, stage = key
        spent_us = min(one[key] for one in times) / 1e3 / TOGETHER / in_flight
        rows.append(
            {"role": role, "stage": stage, "us": spent_us, "calls": calls.spent[key] / TOGETHER / in_flight}
        )
    whole_us = min(one.total() for one in times) / 1e3 / TOGETHER / in_flight
    rows.append(
        {"role": "all", "stage": "all", "us": whole_us, "calls": calls.spent.total() / TOGETHER / in_flight}
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=30, help=f"each is {TOGETHER} reads")
    parser.add_argument(
        "--keyed", action="store_true", help="messages with keys: one more entry of the index"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    rows = measure(arguments.in_flight, arguments.body, arguments.rounds, keyed=arguments.keyed)
    if arguments.json:
        print(json.dumps(rows))
        return
    build = this_machine().python_build
    print(
        f"{arguments.in_flight} in flight, {arguments.body} B, "
        f"an interpreter {build.words}, "
        f"loops in {INSTALLED.name}"
    )
    for row in rows:
        print(f"{row['role']:10} {row['stage']:22} {row['us']:6.2f} us {row['calls']:6.1f} calls")


if __name__ == "__main__":
    main()

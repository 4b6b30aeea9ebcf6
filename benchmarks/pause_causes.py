"""What brokers did while somebody waited: their own histograms and counters, looked at several times a second.

A histogram says how often something took so long, and not when. Two looks at it say what was new between them. So a
pause of a client is put beside whatever took a good part of it, on any node, between the last look before it and the
first look behind it. So is the time for which a process was ready to run and the machine ran others
(/proc/PID/schedstat).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from broker.remoting.addresses import split_address
from broker.tools.cluster.local import LocalCluster

LOOK_EVERY_S: Final = 0.2
CLIENT: Final = "client"

WORK: Final[dict[str, str]] = {
    "trivet_turn_duration_seconds": "turn",
    "trivet_loop_lag_seconds": "turn begun late by",
    "trivet_disk_wal_fsync_duration_seconds": "flush",
    "trivet_disk_wal_write_duration_seconds": "append",
    "trivet_checkpoint_duration_seconds": "checkpoint",
    "trivet_prepare_duration_seconds": "files made ready",
    "trivet_cold_read_duration_seconds": "cold read",
    "trivet_disk_backend_snapshot_duration_seconds": "snapshot",
}
"""Histograms that tell of pauses, in words."""

_LINE: Final = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_BOUND: Final = re.compile(r'le="([^"]+)"')
_EVENT: Final = re.compile(r'event="([^"]+)"')


@dataclass
class Look:
    """What one node said at `at` (seconds by time.monotonic)."""

    at: float
    node: str
    counts: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By histogram, (upper bound in seconds, how often it took no longer), bounds rising."""
    events: dict[str, float] = field(default_factory=dict)
    leads: bool = False
    term: int = 0
    waited_s: float = 0.0
    """How long it has waited for a core since its start."""


def read_look(at: float, node: str, text: str) -> Look:
    """Reads what a node tells Prometheus."""
    look = Look(at, node)
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        name, labels, value = found[1], found[2] or "", float(found[3])
        if name == "trivet_server_is_leader":
            look.leads = value == 1
        elif name == "trivet_server_term":
            look.term = int(value)
        elif name == "trivet_events_total" and (event := _EVENT.search(labels)):
            look.events[event[1]] = value
        elif name.removesuffix("_bucket") in WORK and (bound := _BOUND.search(labels)):
            counts = look.counts.setdefault(name.removesuffix("_bucket"), [])
            counts.append((float(bound[1]), value))
    return look


def longest_new(before: Look | None, after: Look, histogram: str) -> float:
    """Returns a bound in seconds that nothing new between two looks was above; 0 where there was nothing new."""
    known = dict(before.counts.get(histogram, ())) if before is not None else {}
    longest = below = 0.0
    for bound, count in after.counts.get(histogram, ()):
        new = count - known.get(bound, 0.0)
        if new > below:
            longest = bound
        below = new
    return longest


def waited_for_a_core_s(pid: int) -> float:
    """Returns how long the main thread of a process has been ready to run without running. Raises OSError."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


class Looks:
    """The looks at all nodes of a cluster during one scenario."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._looks: dict[str, list[Look]] = {}

    async def run(self) -> None:
        """Looks at every node until cancelled; one that does not answer is passed over."""
        while True:
            async with trio.open_nursery() as nursery:
                for node in self._cluster.nodes.values():
                    if node.child is not None and node.running:
                        nursery.start_soon(self._look, node.id, node.child.pid, node.settings.observe.metrics)
            self._looks.setdefault(CLIENT, []).append(
                Look(time.monotonic(), CLIENT, waited_s=waited_for_a_core_s(os.getpid()))
            )
            await trio.sleep(LOOK_EVERY_S)

    async def _look(self, node: str, pid: int, address: str) -> None:
        received = b""
        try:
            with trio.move_on_after(1.0):
                async with await trio.open_tcp_stream(*split_address(address)) as stream:
                    await stream.send_all(
                        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                    )
                    async for piece in stream:
                        received += piece
            waited_s = waited_for_a_core_s(pid)
        except OSError:
            return
        if received.startswith(b"HTTP/1.1 200"):
            looks = self._looks.setdefault(node, [])
            looks.append(read_look(time.monotonic(), node, received.decode()))
            looks[-1].waited_s = waited_s

    def causes(self, begin: float, end: float, at_least_s: float) -> list[str]:
        """Returns what took that long between two times, on any node, the longest first; then what else happened."""
        took: list[tuple[float, str]] = []
        happened: list[str] = []
        for node, looks in self._looks.items():
            before, after = _around(looks, begin, end)
            if after is None:
                happened.append(f"{node} was not there")
                continue
            for histogram, word in WORK.items():
                longest = longest_new(before, after, histogram)
                if longest >= at_least_s:
                    took.append((longest, f"{node}: {word} {longest * 1e3:.3g} ms at most"))
            if before is None:
                continue
            waited_s = after.waited_s - before.waited_s
            if waited_s >= at_least_s:
                took.append((waited_s, f"{node}: waited {waited_s * 1e3:.3g} ms for a core"))
            if after.term != before.term or after.leads != before.leads:
                role = "leads" if after.leads else "does not lead"
                happened.append(f"{node} {role} in term {after.term}, before in {before.term}")
            for event, count in after.events.items():
                if count > before.events.get(event, 0.0):
                    happened.append(f"{node}: {event.replace('_', ' ')}")
        return [word for _, word in sorted(took, reverse=True)] + _each_once(happened)


def _around(looks: list[Look], begin: float, end: float) -> tuple[Look | None, Look | None]:
    before = [look for look in looks if look.at <= begin]
    after = [look for look in looks if look.at >= end]
    return (before[-1] if before else None), (after[0] if after else None)


def _each_once(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(words))

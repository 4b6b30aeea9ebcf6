"""Where the time of one message goes: on the client, the leader and its followers, from the send to its answer.

    python -m benchmarks.time_line [--flush sync] [--sends 2000] [--output docs/time-line.svg]

Messages of 1 KiB, one in flight, on a group of three real processes. What their shells do is kept as spans of the one
monotonic clock (benchmarks/timing_points.py). Printed are the medians of the stages between the hops, of all sends;
what each process did meanwhile, and its system calls for a message, counted behind that by the kernel's own tracing, as
strace slows brokers until they behave otherwise (root only: `mount -t tracefs nodev /sys/kernel/tracing`). Drawn is one
send, the one whose stages are nearest to all medians.

The first follower is the one whose acknowledgement came first. On a machine that others use, stages contain their time:
the least that was seen of each stage is told, too. Linux only.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import re
import statistics
import sys
import tempfile
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from time import monotonic_ns
from typing import Final

import trio

from benchmarks.timing_points import (
    FLUSH,
    PEER,
    READS,
    REQUEST,
    SEND,
    SPANS_DIRECTORY,
    TRIO_WAITS,
    TURN,
    WAITS,
    WRITE,
    Points,
    Span,
    TrioWaits,
    load,
)
from broker.client.admin import AdminClient
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.client.transport.trio_runtime import TrioByteStream
from broker.settings.tables import StorageSettings
from broker.tools.bench.results import this_machine
from broker.tools.cluster.child import Child
from broker.tools.cluster.layout import LocalClusterOptions
from broker.tools.cluster.local import LocalCluster

TOPIC: Final = "TimeLine"
BODY_BYTES: Final = 1024
WARM: Final = 300
COUNTED: Final = 2000
"""Sends during which system calls are counted."""
TRACING: Final = Path("/sys/kernel/tracing")
CALLS: Final = ("epoll_wait", "epoll_ctl", "recvfrom", "sendto", "sendmsg", "futex", "fdatasync")

STAGES: Final = (
    "client: from the call until it writes",
    "hop: its write, until the leader has read it",
    "leader: request taken, turn, until it writes entries to its peers",
    "hop: that write, until a follower has read it",
    "follower: entries checked and stored, turn, until it writes the acknowledgement",
    "hop: that write, until the leader has read it",
    "leader: committed, turn, until it writes the answer",
    "hop: that write, until the client's call returns",
)
"""What lies between the marks of a send. A hop has two system calls and a wake-up in it."""

COLORS: Final = {
    SEND: "#dadaeb",
    TRIO_WAITS: "#f7f7f7",
    WAITS: "#eeeeee",
    READS: "#c6dbef",
    REQUEST: "#1f77b4",
    PEER: "#2ca02c",
    TURN: "#ff7f0e",
    WRITE: "#d62728",
    FLUSH: "#9467bd",
}


@dataclass(frozen=True)
class Trip:
    """One send: its marks, one more than stages, in nanoseconds; and the follower that was first."""

    marks: tuple[int, ...]
    follower: str

    @property
    def stages(self) -> list[int]:
        return [later - earlier for earlier, later in itertools.pairwise(self.marks)]


class Lane:
    """The spans of one process, by kind, in the order of their beginnings."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = spans
        self._kinds: dict[str, list[Span]] = defaultdict(list)
        for span in spans:
            self._kinds[span[2]].append(span)

    def first(self, kind: str, after: int, before: int) -> Span | None:
        """The first span of a kind that begins between two times."""
        spans = self._kinds[kind]
        at = bisect_left(spans, (after, 0, ""))
        return spans[at] if at < len(spans) and spans[at][0] < before else None

    def between(self, begin: int, end: int) -> Iterator[Span]:
        """All spans that begin between two times."""
        at = bisect_left(self.spans, (begin, 0, ""))
        while at < len(self.spans) and self.spans[at][0] < end:
            yield self.spans[at]
            at += 1


def trip_of(send: Span, lanes: dict[str, Lane], leader: str) -> Trip | None:
    """Finds the marks of a send; None where something else came between them."""
    begin, end, _ = send
    followers = [name for name in lanes if name not in (leader, "client")]

    def step(name: str, kind: str, after: int) -> Span | None:
        return lanes[name].first(kind, after, end)

    out = step("client", WRITE, begin)
    came = step(leader, REQUEST, begin)
    if out is None or came is None:
        return None
    sent = step(leader, WRITE, came[1])
    if sent is None:
        return None
    acknowledged: list[tuple[int, int, str]] = []
    for name in followers:
        taken = step(name, PEER, sent[0])
        answered = None if taken is None else step(name, WRITE, taken[1])
        if taken is not None and answered is not None:
            acknowledged.append((answered[0], taken[0], name))
    if not acknowledged:
        return None
    answered_at, taken_at, follower = min(acknowledged)
    heard = step(leader, PEER, answered_at)
    answer = None if heard is None else step(leader, WRITE, heard[0])
    if heard is None or answer is None:
        return None
    marks = (begin, out[0], came[0], sent[0], taken_at, answered_at, heard[0], answer[0], end)
    return Trip(marks, follower) if all(a <= b for a, b in itertools.pairwise(marks)) else None


class TimedChild(Child):
    """A server whose spans are kept."""

    program = ("-m", "benchmarks.timing_points")


class TimedCluster(LocalCluster):
    """A cluster of such servers."""

    def _launch(self, name: str, arguments: list[str], log_path: Path) -> Child:
        assert self._tasks is not None, "the cluster is not entered"
        child = TimedChild(name, arguments, log_path)
        self._tasks.start_soon(self._watch, child)
        return child


async def send_all(producer: Producer, count: int, points: Points) -> None:
    """Sends one message after the other."""
    message = Message(TOPIC, os.urandom(BODY_BYTES))
    for _ in range(count):
        began = monotonic_ns()
        await producer.send(message)
        points.spans.append((began, monotonic_ns(), SEND))


async def run(
    directory: Path, flush: str, sends: int
) -> tuple[dict[str, Lane], str, dict[str, Counter[str]]]:
    """Returns the spans of all processes, the leader's name, and the system calls of brokers."""
    os.environ[SPANS_DIRECTORY] = str(directory)
    points = Points()
    points.wrap(TrioByteStream, "write_nowait", WRITE)
    storage = StorageSettings(data_file_bytes=64 << 20, flush=flush)  # type: ignore[arg-type]
    async with TimedCluster(LocalClusterOptions(directory / "cluster", storage=storage)) as cluster:
        await cluster.wait_ready()
        async with AdminClient(cluster.name_server_address) as admin:
            await admin.create_topic(TOPIC, queues=1)
        async with Producer(cluster.name_server_address, group="TimeLine") as producer:
            leader = (await cluster.leader()).id
            await send_all(producer, WARM, Points())
            waits = TrioWaits(points)
            trio.lowlevel.add_instrument(waits)
            await send_all(producer, sends, points)
            trio.lowlevel.remove_instrument(waits)
            pids = {node.id: node.child.pid for node in cluster.nodes.values() if node.child is not None}
            calls = await counted_calls(pids, producer)
    lanes = {name: Lane(load(directory / f"{name}.json")) for name in cluster.nodes}
    lanes["client"] = Lane(sorted(points.spans))
    return lanes, leader, calls


def threads_of(pid: int) -> list[str]:
    """The ids of its threads."""
    return [path.name for path in Path(f"/proc/{pid}/task").iterdir()]


async def counted_calls(pids: dict[str, int], producer: Producer) -> dict[str, Counter[str]]:
    """System calls of each broker; none where the kernel's tracing cannot be had."""
    tracing = TRACING / "instances" / "trivet-time-line"
    try:
        tracing.mkdir()
    except OSError:
        return {}
    threads = {thread: name for name, pid in pids.items() for thread in threads_of(pid)}
    try:
        (tracing / "buffer_size_kb").write_text("16384")
        (tracing / "set_event_pid").write_text(" ".join(threads))
        for call in CALLS:
            (tracing / "events" / "syscalls" / f"sys_enter_{call}" / "enable").write_text("1")
        await send_all(producer, COUNTED, Points())
        (tracing / "tracing_on").write_text("0")
        seen = re.findall(r"-(\d+) .*: sys_(\w+)\(", (tracing / "trace").read_text())
    finally:
        tracing.rmdir()
    counts: dict[str, Counter[str]] = {name: Counter() for name in pids}
    for thread, call in seen:
        counts[threads[thread]][call] += 1
    return counts


# ---------------------------------------------------------------------- what is told


def stages_table(trips: Sequence[Trip]) -> str:
    """Medians and least times of the stages, in Markdown."""
    lines = ["| stage | median, us | least, us |", "|---|---|---|"]
    for number, stage in enumerate(STAGES):
        times = [trip.stages[number] / 1e3 for trip in trips]
        lines.append(f"| {stage} | {statistics.median(times):.0f} | {min(times):.0f} |")
    whole = [(trip.marks[-1] - trip.marks[0]) / 1e3 for trip in trips]
    lines.append(f"| the whole | {statistics.median(whole):.0f} | {min(whole):.0f} |")
    return "\n".join(lines)


def work_table(lanes: dict[str, Lane], sends: Sequence[Span], leader: str) -> str:
    """What each process does for a message, in Markdown: number and time of spans."""
    kinds = (REQUEST, PEER, TURN, WRITE, FLUSH, WAITS, TRIO_WAITS)
    begin, end = sends[0][0], sends[-1][1]
    lines = [f"| a message, number; us | {' | '.join(kinds)} |", f"|{'---|' * (len(kinds) + 1)}"]
    for name, lane in lanes.items():
        spent: Counter[str] = Counter()
        number: Counter[str] = Counter()
        for from_ns, to_ns, kind in lane.between(begin, end):
            number[kind] += 1
            spent[kind] += to_ns - from_ns
        cells = (f"{number[kind] / len(sends):.1f}; {spent[kind] / len(sends) / 1e3:.0f}" for kind in kinds)
        lines.append(f"| {_role(name, leader)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def calls_table(calls: dict[str, Counter[str]], leader: str) -> str:
    """System calls for a message, in Markdown."""
    lines = [f"| system calls a message | {' | '.join(CALLS)} |", f"|{'---|' * (len(CALLS) + 1)}"]
    for node, counts in calls.items():
        cells = (f"{counts[name] / COUNTED:.2f}" for name in CALLS)
        lines.append(f"| {_role(node, leader)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _role(name: str, leader: str) -> str:
    return {"client": "client", leader: "leader"}.get(name, f"follower {name}")


def typical(trips: Sequence[Trip]) -> Trip:
    """The trip whose stages are nearest to the medians of all."""
    medians = [statistics.median(trip.stages[number] for trip in trips) for number in range(len(STAGES))]

    def distance(trip: Trip) -> float:
        return sum(abs(stage - median) for stage, median in zip(trip.stages, medians, strict=True))

    return min(trips, key=distance)


def drawn(trip: Trip, lanes: dict[str, Lane], leader: str, title: str) -> str:
    """One send as SVG: a lane for each process, flushes below it."""
    followers = sorted(
        (name for name in lanes if name not in ("client", leader)), key=lambda name: name != trip.follower
    )
    order = ["client", leader, *followers]
    begin, last = trip.marks[0], trip.marks[-1]
    before, behind = (last - begin) // 12, (last - begin) // 5
    width, left, lane_height, top = 1100, 90, 58, 40
    scale = (width - left - 20) / (last - begin + before + behind)

    def x(at: int) -> float:
        return left + (min(max(at, begin - before), last + behind) - begin + before) * scale

    height = top + lane_height * len(order) + 70
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'font-family="sans-serif" font-size="11" viewBox="0 0 {width} {height}">'
        ),
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{width / 2}" y="18" text-anchor="middle" font-weight="bold">{escape(title)}</text>',
    ]
    for place, name in enumerate(order):
        y = top + place * lane_height
        parts.append(f'<text x="6" y="{y + 24}">{escape(_role(name, leader))}</text>')
        parts.append(f'<line x1="{left}" x2="{width - 20}" y1="{y + 48}" y2="{y + 48}" stroke="#ddd"/>')
        # What lies within another is drawn later, over it, and lower.
        spans = list(lanes[name].between(begin - before - 2_000_000, last + behind))
        for from_ns, to_ns, kind in sorted(spans, key=lambda span: list(COLORS).index(span[2])):
            if to_ns < begin - before:
                continue
            is_inner = kind in (REQUEST, PEER, TURN, WRITE)
            high = {WRITE: 12, FLUSH: 8}.get(kind, 22 if is_inner else 34)
            at_y = y + 40 if kind == FLUSH else y + 40 - high
            wide = max(x(to_ns) - x(from_ns), 1.0)
            parts.append(
                f'<rect x="{x(from_ns):.1f}" y="{at_y}" width="{wide:.1f}" height="{high}" '
                f'fill="{COLORS[kind]}"><title>{escape(kind)}, {(to_ns - from_ns) / 1e3:.0f} us</title></rect>'
            )
    for mark in trip.marks:
        bottom = top + lane_height * len(order)
        parts.append(
            f'<line x1="{x(mark):.1f}" x2="{x(mark):.1f}" y1="{top - 8}" y2="{bottom}" stroke="#999" '
            f'stroke-dasharray="2,3"/><text x="{x(mark):.1f}" y="{top - 10}" text-anchor="middle" '
            f'font-size="9" fill="#666">{(mark - begin) / 1e3:.0f}</text>'
        )
    y = top + lane_height * len(order) + 24
    at_x = left
    for kind in COLORS:
        parts.append(f'<rect x="{at_x}" y="{y}" width="12" height="12" fill="{COLORS[kind]}" stroke="#aaa"/>')
        parts.append(f'<text x="{at_x + 16}" y="{y + 10}">{escape(kind)}</text>')
        at_x += 34 + 6 * len(kind)
    words = (
        "microseconds from the call; dashed are the marks between the stages. "
        "Behind the answer: the rest of the turn, and followers that hear of the commit."
    )
    parts.append(f'<text x="{left}" y="{y + 32}" fill="#666">{words}</text></svg>')
    return "\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sends", type=int, default=2000)
    parser.add_argument("--flush", choices=("async", "sync"), default="async")
    parser.add_argument("--dir", type=Path, help="where the stores go; a temporary directory by default")
    parser.add_argument("--output", type=Path, help="draw one send as SVG in this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trivet-time-line-", dir=options.dir) as scratch:
        lanes, leader, calls = trio.run(functools.partial(run, Path(scratch), options.flush, options.sends))
    sends = [span for span in lanes["client"].spans if span[2] == SEND]
    trips = [trip for send in sends if (trip := trip_of(send, lanes, leader)) is not None]
    build = this_machine().python_build.words
    print(
        f"{len(trips)} of {len(sends)} sends, flush {options.flush}, {build}, load {os.getloadavg()[0]:.0f}\n"
    )
    for text in (stages_table(trips), work_table(lanes, sends, leader), calls_table(calls, leader)):
        print(text, end="\n\n")
    if options.output is not None:
        one = typical(trips)
        title = f"one send of 1 KiB, one in flight, flush {options.flush}, {sum(one.stages) / 1e3:.0f} us"
        options.output.write_text(drawn(one, lanes, leader, title))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How long one waits for the checker: for the verdict on a short history, and for the alarm about a running cluster.

    python -m benchmarks.checker_delays short SCRATCH
    python -m benchmarks.checker_delays objects
    python -m benchmarks.checker_delays alarm SCRATCH
    python -m benchmarks.checker_delays stream SCRATCH

``short``: traces of 10^3 to 10^5 operations, good and with four violations (``benchmarks/checker_histories.py``),
judged by the command's process, and by Spark (``--spark``) beside it. CPU seconds are those of whole processes.

``objects``: CPU seconds of decisions alone, on the histories of the tests of other models: 100,000 overlapping
operations on a queue, a priority queue and a stack, a hundred of unknown outcome, whose values do not repeat; a
stack that is filled with 50,000 values and emptied; cas-registers whose values do, a tenth to a third unknown.

``alarm``: ``trivet analyze --follow`` beside three recorders, which write down every quarter of a second what they
hold, as those of ``trivet chaos`` do; together they record so many operations a second. After some seconds one answer
is wrong, of each kind in turn; the alarm's seconds are those from that answer until standard error says so, what the
recorder held it back included. CPU is that of the follower, from its start to its verdict.

``stream``: the same alarms by a query of Spark's with ``StreamJudge``, that runs before they are due; and before that,
how many operations a second the query, and the follower alone, judge of a recording that is there, and what a batch of
it costs with a state on the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from benchmarks.checker_scaling import History, prepared
from benchmarks.measured_process import Bounds, end_in_order, measure
from broker.trace import TraceHeader, TraceWriter
from spark_analysis.checking.models import MODELS
from spark_analysis.checking.search import SearchResult, search
from spark_analysis.follow import Follower, Pace
from spark_analysis.importing.calls import Call
from spark_analysis.session import start_session
from spark_analysis.streaming import StreamJudge
from tests.spark_analysis.checking.test_frontier import history as register_history
from tests.spark_analysis.checking.test_unambiguous import CONTAINERS, long_history

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

SIZES: Final = (1_000, 10_000, 100_000)
_BATCH_BYTES: Final = 500_000
BOUNDS: Final = Bounds(600.0, 8_000_000_000)
CODES: Final = {"linearizable": 0, "violated": 1}
RECORDERS: Final = 3
FLUSH_S: Final = 0.25
LEAD_S: Final = (4.0, 7.0)  # of a good recording; the follower has begun to read within it
LIMIT_S: Final = 120.0
QUEUE: Final = "followed/0"


def short(scratch: Path, sizes: list[int]) -> None:
    for operations in sizes:
        for planted in (False, True):
            history = History(operations, 1, operations // 10_000, planted, "trace")
            path = prepared(scratch, history)
            for options in ([], ["--spark", "--master", "local[2]"]):
                command = [sys.executable, "-m", "trivet", "analyze", "--json", *options, str(path)]
                run = measure(command, BOUNDS, {"PYTHONPATH": str(Path(__file__).parents[1])})
                assert run.exit_code == CODES[history.verdict], run.errors
                (judged,) = json.loads(run.output.splitlines()[-1])["histories"]
                told = {"history": history.name, "judged_by": judged["judged_by"]}
                told |= {name: getattr(run, name) for name in ("cpu_seconds", "seconds", "peak_bytes")}
                print(json.dumps(told | {"others_cores": run.others_cores, "load": run.load}), flush=True)


def objects() -> None:
    histories: list[tuple[str, str, list[Call]]] = [
        (kind, "100,000 operations, up to some hundred values inside", long_history(kind, 100_000, 0.001))
        for kind in CONTAINERS
    ]
    deep = [Call(op, "push", op, None, op, op) for op in range(50_000)]
    deep += [Call(50_000 + op, "pop", None, 49_999 - op, 50_000 + op, 50_000 + op) for op in range(50_000)]
    histories.append(("stack", "filled with 50,000 values and emptied", deep))
    for kind, what, calls in histories:
        seconds, found = _timed(partial(MODELS[kind].decide, calls))
        print(json.dumps({"model": kind, "history": what, "verdict": found.verdict, "cpu_seconds": seconds}))
    register = MODELS["cas-register"]
    decided: list[tuple[float, str]] = []
    by_depth: list[tuple[float, str]] = []
    for seed, size, values, unknown in product(range(3), (400, 1_500, 5_000), (5, 40), (0.1, 0.3)):
        calls = register_history(seed, size, 5, values, unknown, 0.0)
        seconds, found = _timed(partial(register.decide, calls))
        decided.append((seconds, found.verdict))
        searched = partial(
            search,
            *(calls, register.step, register.initial),
            is_read=register.is_read,
            reaches=register.reaches,
            maximum_configurations=20_000,
        )
        seconds, found = _timed(searched)
        by_depth.append((seconds, found.verdict))
    told = {"model": "cas-register", "histories": len(decided), "operations": "400 to 5,000"}
    told |= {
        "verdicts": Counter(verdict for _, verdict in decided),
        "cpu_seconds": [min(decided)[0], max(decided)[0]],
    }
    told |= {"by_depth_after_20000": Counter(verdict for _, verdict in by_depth)}
    print(json.dumps(told | {"load": round(os.getloadavg()[0], 2)}))


def _timed(call: Callable[[], SearchResult]) -> tuple[float, SearchResult]:
    begin = time.process_time()
    found = call()
    return round(time.process_time() - begin, 2), found


@dataclass
class Recording:
    """A queue's clients, each with its file, and the wrong answers that they can be given.

    ``log`` has what the queue holds. An operation takes a tenth of a millisecond."""

    directory: Path
    rng: random.Random
    log: list[str] = field(default_factory=list)
    _count: int = 0
    _files: list[BinaryIO] = field(default_factory=list)
    _writers: list[TraceWriter] = field(default_factory=list)
    _flushed_s: float = 0.0
    _paced: int = 0

    def __post_init__(self) -> None:
        for number in range(RECORDERS):
            file = (self.directory / f"client-{number}.trace").open("wb", buffering=0)
            zero_wall_ns = time.time_ns() - time.monotonic_ns()
            header = TraceHeader(
                "client", f"client-{number}", clock="this machine", zero_wall_ns=zero_wall_ns
            )
            self._files.append(file)
            self._writers.append(TraceWriter(file.write, header))

    def flush(self) -> None:
        """Write down what is held, if it is time."""
        if time.monotonic() - self._flushed_s >= FLUSH_S:
            self._flushed_s = time.monotonic()
            for writer in self._writers:
                writer.flush()

    def keep_pace(self, rate: float, begin_s: float) -> None:
        """Do what is due by now of ``rate`` operations a second since ``begin_s``, and rest for a moment."""
        while self._paced < rate * (time.monotonic() - begin_s):
            self.right()
            self._paced += 1
        self.flush()
        time.sleep(0.002)

    def close(self) -> None:
        for writer, file in zip(self._writers, self._files, strict=True):
            writer.flush()
            file.close()

    def right(self) -> None:
        """One operation that is answered as it should be."""
        what = self.rng.random()
        if what < 0.5:
            self._append(len(self.log))
        elif what < 0.9:
            first = self.rng.randrange(max(1, len(self.log) - 3))
            self._read(first, self.log[first : first + 4])
        else:
            self._tail(len(self.log))

    def stale_tail(self) -> None:
        """The queue's end as it was before ten messages that all have been answered for long."""
        self._tail(len(self.log) - 10)

    def duplicate_offset(self) -> None:
        """A message gets the place of another."""
        self._append(len(self.log) - 10)

    def phantom_value(self) -> None:
        """A message is read that nobody has sent."""
        self.log.append("from nowhere")
        self._read(len(self.log) - 1, self.log[-1:])

    def _begin(self) -> tuple[TraceWriter, int, str]:
        writer = self.rng.choice(self._writers)
        return writer, time.monotonic_ns(), f"client-{self._writers.index(writer)}"

    def _append(self, offset: int) -> None:
        writer, now_ns, client = self._begin()
        self._count += 1
        value = f"{self._count:016X}"
        operation = writer.invoke_append(now_ns, client, QUEUE, (value,))
        writer.ok_append(now_ns + 100_000, operation, offset)
        if offset == len(self.log):
            self.log.append(value)

    def _read(self, first: int, values: list[str]) -> None:
        writer, now_ns, client = self._begin()
        operation = writer.invoke_read(now_ns, client, QUEUE, first)
        writer.ok_read(now_ns + 100_000, operation, first + len(values), first, values)

    def _tail(self, offset: int) -> None:
        writer, now_ns, client = self._begin()
        operation = writer.invoke_tail(now_ns, client, QUEUE)
        writer.ok_tail(now_ns + 100_000, operation, offset)


KINDS: Final[dict[str, Callable[[Recording], None]]] = {
    "stale-tail": Recording.stale_tail,
    "duplicate-offset": Recording.duplicate_offset,
    "unexplained-value": Recording.phantom_value,
}


@dataclass(frozen=True, slots=True)
class Alarm:
    """One wrong answer that was told. ``followed_s`` is how long the follower ran."""

    told: str
    alarm_s: float
    followed_s: float
    cpu_seconds: float


def alarm_of(scratch: Path, kind: str, seed: int, rate: float) -> Alarm:
    """Follow one recording, and give one wrong answer in it."""
    rng = random.Random(seed)
    told: list[tuple[float, str]] = []
    with tempfile.TemporaryDirectory(prefix="followed-", dir=scratch) as name:
        recording = Recording(Path(name), rng)
        begin = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "trivet", "analyze", "--follow", "--json", name],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
            text=True,
        )

        def listen() -> None:
            assert process.stderr is not None
            told.extend((time.monotonic(), line) for line in process.stderr)

        listener = threading.Thread(target=listen)
        listener.start()
        wrong_at = begin + rng.uniform(*LEAD_S)
        is_wrong = False
        while listener.is_alive() and time.monotonic() - begin < LIMIT_S:
            if not is_wrong and time.monotonic() >= wrong_at:
                KINDS[kind](recording)
                wrong_at, is_wrong = time.monotonic(), True
            recording.keep_pace(rate, begin)
        recording.close()
        if listener.is_alive():
            process.terminate()
        _, _, usage = os.wait4(process.pid, 0)
        listener.join()
    alarms = [(at, line) for at, line in told if line.startswith("trivet: violated: ")]
    assert alarms, told
    at, line = alarms[0]
    cpu_seconds = round(usage.ru_utime + usage.ru_stime, 2)
    return Alarm(
        line.split(": ")[3].split()[0],
        round(at - wrong_at, 2),
        round(time.monotonic() - begin, 1),
        cpu_seconds,
    )


def alarm(scratch: Path, times: int, rate: float) -> None:
    scratch.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        alarms = [alarm_of(scratch, kind, seed, rate) for seed in range(times)]
        seconds = sorted(one.alarm_s for one in alarms)
        told: dict[str, Any] = {
            "kind": kind,
            "told": sorted({one.told for one in alarms}),
            "operations_a_second": rate,
        }
        told |= {"alarm_s_median": median(seconds), "alarm_s_longest": seconds[-1], "alarms": len(seconds)}
        told |= {
            "cpu_s": sum(one.cpu_seconds for one in alarms),
            "followed_s": sum(one.followed_s for one in alarms),
        }
        print(json.dumps(told | {"load": round(os.getloadavg()[0], 2)}), flush=True)
        print(json.dumps([asdict(one) for one in alarms]), file=sys.stderr, flush=True)


def stream(scratch: Path, operations: int, times: int, rate: float) -> None:
    scratch.mkdir(parents=True, exist_ok=True)
    session = start_session(small=True)

    def query(
        directory: Path, judge: Callable[[DataFrame, int], None], most_bytes: int = 16 << 20, **trigger: Any
    ) -> StreamingQuery:
        reader = session.readStream.format("trivet_trace").option("maxBytesPerTrigger", most_bytes)
        traces = reader.load(str(directory))
        return traces.writeStream.trigger(**trigger).foreachBatch(judge).start()

    with tempfile.TemporaryDirectory(prefix="streamed-", dir=scratch) as name:
        for count in (1_000, operations):  # a first query takes seconds for itself
            directory = Path(name, str(count))
            directory.mkdir()
            recording = Recording(directory, random.Random(1))
            for _ in range(count):
                recording.right()
            recording.close()
            begin = time.monotonic()
            judge = StreamJudge()
            query(directory, judge, availableNow=True).awaitTermination()
            streamed_s = time.monotonic() - begin
            assert judge.finish(is_over=True).is_linearizable
        begin = time.monotonic()
        with closing(Follower(directory, Pace())) as follower:
            found = follower.look(0)
            while follower.is_behind:
                found += follower.look(0)
        followed_s = time.monotonic() - begin
        assert not found
        told: dict[str, Any] = {"operations": operations}
        told |= _cost_of_state(directory, Path(name), query, times)
        told |= {"streamed_a_second": round(operations / streamed_s)}
        told |= {"followed_a_second": round(operations / followed_s), "load": round(os.getloadavg()[0], 2)}
        print(json.dumps(told), flush=True)
        for number, (kind, do) in enumerate((kind, do) for kind, do in KINDS.items() for _ in range(times)):
            directory = Path(name, f"alarm-{number}")
            directory.mkdir()
            _stream_alarm(
                Recording(directory, random.Random(number)), kind, do, partial(query, directory), rate
            )


def _cost_of_state(
    directory: Path, scratch: Path, query: Callable[..., StreamingQuery], times: int
) -> dict[str, Any]:
    """The milliseconds of a batch without and with a state, by queries in turns."""
    spent: dict[bool, list[float]] = {False: [], True: []}
    for number, has_state in product(range(times), spent):
        state = scratch / f"state-{number}" if has_state else None
        judge = StreamJudge(state=state)

        def timed(
            batch: DataFrame, batch_id: int, judge: StreamJudge = judge, has_state: bool = has_state
        ) -> None:
            begin = time.monotonic()
            judge(batch, batch_id)
            spent[has_state].append(time.monotonic() - begin)

        query(directory, timed, _BATCH_BYTES, availableNow=True).awaitTermination()
        assert judge.finish(is_over=True).is_linearizable
        if state is not None:
            state_bytes = sum(one.stat().st_size for one in state.iterdir())
    without, with_it = (1000 * median(one) for one in spent.values())
    return {
        "batches": len(spent[True]) // times,
        "batch_ms": round(without, 1),
        "batch_with_state_ms": round(with_it, 1),
        "state_bytes": state_bytes,
    }


def _stream_alarm(
    recording: Recording,
    kind: str,
    do: Callable[[Recording], None],
    query: Callable[..., StreamingQuery],
    rate: float,
) -> None:
    told: list[tuple[float, str]] = []
    judge = StreamJudge(lambda one: told.append((time.monotonic(), one.kind)))
    running = query(judge, processingTime="0 seconds")
    begin, wrong_at, read_to_ns = time.monotonic(), None, None
    while not told and time.monotonic() - begin < LIMIT_S:
        read_to_ns = read_to_ns or judge.read_to_ns
        if wrong_at is None and read_to_ns is not None and judge.read_to_ns > read_to_ns:  # type: ignore[operator]
            do(recording)
            wrong_at = time.monotonic()
        recording.keep_pace(rate, begin)
    running.stop()
    recording.close()
    assert told
    assert wrong_at is not None
    ((at, found), *_) = told
    line = {
        "kind": kind,
        "told": found,
        "alarm_s": round(at - wrong_at, 2),
        "load": round(os.getloadavg()[0], 2),
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    shorter = commands.add_parser("short")
    shorter.add_argument("--sizes", default=",".join(map(str, SIZES)), help="joined by commas")
    commands.add_parser("objects")
    alarmer = commands.add_parser("alarm")
    alarmer.add_argument("--times", type=int, default=10, help="wrong answers of each kind")
    alarmer.add_argument("--rate", type=float, default=500.0, help="operations a second")
    streamer = commands.add_parser("stream")
    streamer.add_argument("--operations", type=int, default=200_000, help="in the recording that is there")
    streamer.add_argument("--times", type=int, default=3, help="wrong answers of each kind")
    streamer.add_argument("--rate", type=float, default=200.0, help="operations a second")
    for command in (shorter, alarmer, streamer):
        command.add_argument("scratch", type=Path)
    chosen = parser.parse_args()
    end_in_order()
    if chosen.command == "short":
        short(chosen.scratch, [int(float(size)) for size in chosen.sizes.split(",")])
    elif chosen.command == "objects":
        objects()
    elif chosen.command == "stream":
        stream(chosen.scratch, chosen.operations, chosen.times, chosen.rate)
    else:
        alarm(chosen.scratch, chosen.times, chosen.rate)


if __name__ == "__main__":
    main()

"""What a judge of a stream knows outlives its process: killed anywhere, another one says the same."""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from broker.public.analysis import HistoryError, StateError, StreamJudge
from spark_analysis import streaming
from spark_analysis.checking.verdict import VIOLATED, Anomaly
from spark_analysis.judge_state import FILE, JudgeState
from tests.examples import examples
from tests.spark_analysis.test_follow import SECOND
from tests.spark_analysis.test_streaming import Clock, Growing, Query, Row, grow, operation, recorded, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Killed(BaseException):
    """The process is gone: nobody handles this."""


class Rows(list[Row]):
    """Rows of a batch, of which a process sees so many before it is killed."""

    seen: int | None = None

    def __iter__(self) -> Iterator[Row]:
        for number, row in enumerate(list.__iter__(self)):
            if number == self.seen:
                raise Killed
            yield row


class DyingFile:
    """The database of a process that is killed before or behind one of its statements."""

    def __init__(self, file: sqlite3.Connection, statement: int, *, is_done: bool) -> None:
        self._file, self._left, self._is_done = file, statement, is_done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        self._left -= 1
        if self._left == 0 and not self._is_done:
            raise Killed
        done = self._file.execute(*arguments)
        if self._left == 0:
            raise Killed
        return done


def batch_of(rows: list[Row], query: str = "one") -> Any:
    """As much of a DataFrame as a judge looks at."""
    context = SimpleNamespace(getLocalProperty=lambda name: query)
    return SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context), columns=["record"], rows=rows)


@pytest.fixture(autouse=True)
def _without_spark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "spark" not in request.fixturenames:
        monkeypatch.setattr(streaming, "_to_judge", InMemory)


class InMemory:
    """What a judge asks Spark for."""

    def __init__(self, batch: Any) -> None:
        self._rows = batch.rows

    def toArrow(self) -> InMemory:  # noqa: N802 - Spark's name
        return self

    def to_batches(self) -> list[InMemory]:
        return [self]

    def to_pylist(self) -> list[Row]:
        return self._rows  # type: ignore[no-any-return]


def batches_of(seed: int, mutation: str | None, directory: Path, clock: Clock) -> list[Rows]:
    recorders, written = recorded(seed, mutation)
    directory.mkdir()
    query, found = Query(directory, maxBytesPerTrigger="4000"), list[Rows]()
    grow(random.Random(seed), directory, recorders, written, clock, lambda: found.append(Rows(query.batch())))
    for _ in range(3):
        clock.now_ns += SECOND
        found.append(Rows(query.batch()))
    return found


class Processes:
    """A query whose process is killed at random, and goes on in another one from what is on the disk then."""

    def __init__(self, rng: random.Random, directory: Path) -> None:
        self.rng, self._directory, self._lives = rng, directory, 0
        self.told: list[Anomaly] = []
        self._dies_telling = False
        self.kills: dict[str, int] = {}
        self.judge = StreamJudge(self.tell, state=directory / "0")

    def tell(self, one: Anomaly) -> None:
        if self._dies_telling and self.rng.random() < 0.5:
            raise Killed
        self.told.append(one)

    def another(self) -> None:
        before, self._lives = self._directory / str(self._lives), self._lives + 1
        shutil.copytree(before, self._directory / str(self._lives))
        self._dies_telling = False
        self.judge = StreamJudge(self.tell, state=self._directory / str(self._lives))

    def give(self, rows: Rows, number: int) -> None:
        """Until Spark notes that the batch is done."""
        while True:
            point = self.rng.choice(["", "", "before", "rows", "statement", "telling", "behind", "noted"])
            rows.seen, self._dies_telling = None, point == "telling"
            state = self.judge._state
            assert state is not None
            if point == "rows":
                rows.seen = self.rng.randrange(len(rows) + 1)
            elif point == "statement":
                dying = DyingFile(state._file, self.rng.randrange(1, 8), is_done=self.rng.random() < 0.5)
                state._file = dying  # type: ignore[assignment]
            try:
                if point == "before":
                    raise Killed
                self.judge(batch_of(rows), number)
                if point == "behind":
                    raise Killed
            except Killed:
                self.kills[point] = self.kills.get(point, 0) + 1
                self.another()
                continue
            if point in ("statement", "noted"):
                self.another()
            return


@pytest.mark.parametrize("mutation", [None, "stale_read", "lost_write", "phantom_value", "append_order"])
def test_killed_anywhere_a_judge_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutation: str | None
) -> None:
    clock = Clock(monkeypatch)
    for seed in range(examples(3)):
        batches = batches_of(seed, mutation, tmp_path / f"traces-{seed}", clock)
        alone = StreamJudge()
        for number, rows in enumerate(batches):
            alone(batch_of(rows), number)
        killed = Processes(random.Random(seed), tmp_path / f"lives-{seed}")
        for number, rows in enumerate(batches):
            killed.give(rows, number)
        assert killed.kills.keys() >= {"before", "rows", "statement", "behind"}
        # What was told when a process died is told again; nothing is left out.
        assert {*killed.told} == {*alone.findings}
        assert killed.judge.findings == alone.findings
        is_over = bool(seed % 2)
        assert killed.judge.finish(is_over=is_over) == alone.finish(is_over=is_over)


def test_settled_offsets_are_known_to_the_next_process(tmp_path: Path) -> None:
    """Whatever their number, and also to those behind it."""
    count = 3000
    rows = [
        operation("append", 10 * at, 10 * at + 5, first_offset=at, values=[f"m{at}"]) for at in range(count)
    ]
    judge = StreamJudge(delay_s=1e-6, state=tmp_path)
    judge(batch_of(rows), 0)
    judge.finish()
    for number, (at, value, wrong) in enumerate(
        [(7, "m7", []), (2500, "m2500", []), (300, "x", ["inconsistent-offset"]), (300, "m300", [])], 1
    ):
        judge = StreamJudge(delay_s=1e-6, state=tmp_path)
        known = len(judge.findings)
        late = 10 * count + 100 * number
        read = operation(
            "read", late, late + 5, offset=at, first_offset=at, values=[value], next_offset=at + 1
        )
        judge(batch_of([read]), number)
        assert [one.kind for one in judge.findings[known:]] == wrong
        assert judge.finish().verdict.operations == count + number


def test_times_and_numbers_of_any_size_are_kept(tmp_path: Path) -> None:
    big = (1 << 62) - 9
    judge = StreamJudge(delay_s=1, state=tmp_path)
    rows = [
        operation("append", -big, -big + 1, first_offset=big, values=["a"]),
        operation("append", big - 1, None, values=["b", "c"]),
        operation("head", big - 2, big, offset=3),
    ]
    judge(batch_of(rows), 0)
    known = judge._known()
    assert judge._state is not None
    judge._state.close()
    other = StreamJudge(delay_s=1, state=tmp_path)
    # It cannot know what of this was told before its process ended.
    assert replace(other._known(), untold=[]) == known
    other.finish()


def test_a_batch_that_could_not_be_written_is_written_when_it_is_repeated(tmp_path: Path) -> None:
    told: list[Anomaly] = []
    judge = StreamJudge(told.append, delay_s=1, state=tmp_path)
    state = judge._state
    assert state is not None
    wrong = [operation("append", 0, 1, first_offset=0, values=[one]) for one in "ab"]
    state._file.execute("PRAGMA query_only = ON")
    for _ in range(2):
        with pytest.raises(StateError, match="cannot be used: attempt to write a readonly database"):
            judge(batch_of(wrong), 0)
    assert told == []
    state._file.execute("PRAGMA query_only = OFF")
    judge(batch_of(wrong), 0)
    assert {one.kind for one in told} == {"duplicate-offset", "inconsistent-offset"}
    found = judge.finish()
    assert StreamJudge(delay_s=1, state=tmp_path).finish() == found


def test_what_was_told_is_not_told_again_once_spark_has_gone_on(tmp_path: Path) -> None:
    told: list[Anomaly] = []
    wrong = [operation("append", 0, 1, first_offset=0, values=["a"]) for _ in range(2)]
    judge = StreamJudge(told.append, delay_s=1, state=tmp_path)
    judge(batch_of(wrong), 0)
    judge.finish()
    judge = StreamJudge(told.append, delay_s=1, state=tmp_path)
    judge(batch_of([]), 1)
    judge.finish()
    assert len(told) == 1


def test_a_state_that_is_not_this_judges_is_refused(tmp_path: Path) -> None:
    judge = StreamJudge(delay_s=1, state=tmp_path)
    with pytest.raises(StateError, match="a judge has it open"):
        StreamJudge(delay_s=1, state=tmp_path)
    judge(batch_of([]), 0)
    judge(batch_of([]), 1)
    judge.finish()
    with pytest.raises(StateError, match=r"'delay_s': 1.*, and this one has .*'delay_s': 2"):
        StreamJudge(delay_s=2, state=tmp_path)
    judge = StreamJudge(delay_s=1, state=tmp_path)
    with pytest.raises(HistoryError, match="batches of query one: two needs another one"):
        judge(batch_of([], "two"), 2)
    with pytest.raises(HistoryError, match="batch 0 of its checkpoint, and this judge knows those up to 1"):
        judge(batch_of([]), 0)
    with pytest.raises(HistoryError, match=r"batch 3 .* knows 2 .* a new checkpoint and an empty directory"):
        judge(batch_of([]), 3)
    judge.finish()
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot be used"):
        StreamJudge(delay_s=1, state=tmp_path / "file")


def changed(directory: Path, *statements: str) -> None:
    file = sqlite3.connect(directory / FILE, isolation_level=None)
    for statement in statements:
        file.execute(statement)
    file.close()


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("PRAGMA user_version = 7", "has format 7, and this release reads 1"),
        ("PRAGMA application_id = 7", "is no state of a judge"),
        ("UPDATE state SET body = substr(body, 1, 99)", "damaged .*checksum of the state"),
        ("UPDATE state SET crc = crc + 1", "damaged .*checksum of the state"),
        ("UPDATE state SET crc = 2745614147, body = CAST('{}' AS BLOB)", "damaged .*missing required field"),
        ("DROP TABLE state", "damaged .*no such table"),
        ("DROP TABLE words", "damaged .*no such table"),
    ],
)
def test_a_state_that_cannot_be_read_is_said_to_be_so(tmp_path: Path, statement: str, complaint: str) -> None:
    judge = StreamJudge(delay_s=1, state=tmp_path)
    judge(batch_of([]), 0)
    judge.finish()
    changed(tmp_path, statement)
    with pytest.raises(StateError, match=complaint):
        StreamJudge(delay_s=1, state=tmp_path)(batch_of([operation("tail", 0, 1, offset=0)]), 1)


def test_damaged_bytes_are_told_or_change_nothing(tmp_path: Path) -> None:
    """Anywhere in the file, a bit, or its end that is missing."""
    rows = [
        operation("append", 10 * at, 10 * at + 5, first_offset=at, values=[f"m{at}"]) for at in range(2000)
    ]
    judge = StreamJudge(delay_s=1e-6, state=tmp_path / "good")
    judge(batch_of(rows), 0)
    judge.finish()
    reads = [
        operation("read", 30_000, 30_010, offset=at, first_offset=at, values=[f"m{at}"], next_offset=at + 1)
        for at in range(0, 2000, 100)
    ]
    content = (tmp_path / "good" / FILE).read_bytes()
    rng = random.Random(1)
    refused = 0
    for number in range(examples(60)):
        damaged = bytearray(content)
        if number % 4:
            damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        else:
            del damaged[rng.randrange(len(content)) :]
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / FILE).write_bytes(damaged)
        try:
            judge = StreamJudge(delay_s=1e-6, state=directory)
            judge(batch_of(reads), 1)
        except HistoryError:
            refused += 1
            continue
        assert judge.findings == ()
        assert judge.finish().verdict.operations == 2020
    assert refused > examples(60) // 6


def test_words_are_on_disk_with_the_state_behind_them(tmp_path: Path) -> None:
    state = JudgeState(tmp_path)
    state.write(3, 1 << 40, (1 << 64) - 1)
    assert state.read(3, 1 << 40) == (1 << 64) - 1
    state.close()
    state = JudgeState(tmp_path)
    assert state.read(3, 1 << 40) == 0
    state.write(3, 1 << 40, 77)
    state.save({"a": 1})
    state.close()
    state = JudgeState(tmp_path)
    assert (state.read(3, 1 << 40), state.read(3, (1 << 40) + 1), state.read(2, 1 << 40)) == (77, 0, 0)
    assert state.load(dict[str, int]) == {"a": 1}
    state.close()


# ---- with Spark ----------------------------------------------------------------------------------------------------

_QUERY = """
import sys
from spark_analysis.session import start_session
from spark_analysis.source import TraceDataSource
from spark_analysis.streaming import StreamJudge
traces, checkpoint, state = sys.argv[1:]
with start_session(small=True) as spark:
    spark.dataSource.register(TraceDataSource)
    judge = StreamJudge(lambda one: print("told", one.kind, flush=True), state=state)
    rows = spark.readStream.format("trivet_trace").option("settleSeconds", "0.2").load(traces)
    query = rows.writeStream.option("checkpointLocation", checkpoint).foreachBatch(judge)
    query = query.trigger(processingTime="200 milliseconds").start()
    while query.isActive:
        query.awaitTermination(0.1)
        print("known", judge._operations, flush=True)
"""


@pytest.mark.slow
@pytest.mark.in_turn
def test_a_query_whose_process_was_killed_goes_on_in_another_one(spark: SparkSession, tmp_path: Path) -> None:
    traces, checkpoint, state = (tmp_path / name for name in ("traces", "checkpoint", "state"))
    traces.mkdir()
    trace = Growing(traces / "a.trace")
    arguments = [sys.executable, "-c", _QUERY, str(traces), str(checkpoint), str(state)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                trace.add()
                if line.startswith("known") and int(line.split()[1]) > 20:
                    break
        finally:
            process.kill()
        assert process.wait() == -signal.SIGKILL
    told: list[str] = []
    judge = StreamJudge(lambda one: told.append(one.kind), state=state)
    assert judge._operations > 20
    assert judge.findings == ()
    for _ in range(20):
        trace.add()
    trace.add(tail=1)
    rows = spark.readStream.format("trivet_trace").option("settleSeconds", "0.2").load(str(traces))
    query = rows.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(judge)
    started = query.trigger(processingTime="200 milliseconds").start()
    try:
        until(started, lambda: bool(told))
    finally:
        started.stop()
    assert told == ["stale-tail"]
    verdict = judge.finish(is_over=True).verdict
    assert (verdict.verdict, verdict.counts, verdict.operations) == (
        *(VIOLATED, {"stale-tail": 1}),
        2 * trace.end,
    )

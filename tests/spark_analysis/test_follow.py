"""Traces that are judged while they are written: what is read of growing files, and the command."""

from __future__ import annotations

import os
import random
import re
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from broker.trace import TraceHeader, TraceTail, TraceWriter, read_items
from spark_analysis.checking.plain import check_traces
from spark_analysis.checking.queues.knowledge import Operation
from spark_analysis.checking.verdict import LINEARIZABLE, VIOLATED
from spark_analysis.follow import Follower, Pace, follow
from spark_analysis.importing.history import load_trace
from spark_analysis.importing.history_rows import trace_rows
from spark_analysis.importing.tails import FollowedTraces
from spark_analysis.light import judge_log
from spark_analysis.main import WRONG_USAGE, Asked, analyze
from tests.examples import examples
from tests.spark_analysis import log_mutations

SECOND = 10**9


class Recorder:
    """One client's trace, in memory."""

    def __init__(self, name: str) -> None:
        self.content = bytearray()
        self.writer = TraceWriter(self.content.extend, TraceHeader("client", name, "one", 1), sync_bytes=2000)


def record(
    rng: random.Random, history: list[Operation], recorders: list[Recorder]
) -> list[tuple[int, Recorder, int]]:
    """Record the operations as they begin and end, milliseconds apart; returns (time, recorder, bytes by then)."""
    events: list[tuple[int, int, Operation]] = []
    for one in history:
        begin = one.invoke_ns * 1_000_000
        end = begin + rng.randrange(1, SECOND) if one.complete_ns is None else one.complete_ns * 1_000_000
        events += [(begin, 0, one), (end, 1, one)]
    owner = {id(one): rng.choice(recorders) for one in history}
    numbers: dict[int, int] = {}
    written = []
    for time_ns, is_end, one in sorted(events, key=lambda event: event[:2]):
        writer = owner[id(one)].writer
        if not is_end:
            if one.function == "append":
                numbers[id(one)] = writer.invoke_append(time_ns, one.client, "t/0", one.values)
            elif one.function == "tail":
                numbers[id(one)] = writer.invoke_tail(time_ns, one.client, "t/0")
            else:
                numbers[id(one)] = writer.invoke_read(time_ns, one.client, "t/0", one.offset or 0)
        elif one.outcome == "fail":
            writer.fail(time_ns, numbers[id(one)], "refused")
        elif one.outcome == "info":
            writer.info(time_ns, numbers[id(one)], "timeout")
        elif one.function == "append":
            assert one.first_offset is not None
            writer.ok_append(time_ns, numbers[id(one)], one.first_offset)
        elif one.function == "tail":
            assert one.offset is not None
            writer.ok_tail(time_ns, numbers[id(one)], one.offset)
        else:
            first = one.offset if one.first_offset is None else one.first_offset
            assert first is not None
            assert one.next_offset is not None
            writer.ok_read(time_ns, numbers[id(one)], one.next_offset, one.offsets or first, one.values)
        writer.flush()
        written.append((time_ns, owner[id(one)], len(owner[id(one)].content)))
    return written


def recordable(history: list[Operation]) -> list[Operation]:
    """What a trace can hold: no polls, of a transaction each message by itself; the latest moments somewhat earlier."""
    given: list[Operation] = []
    for one in history:
        if one.function == "poll":
            continue
        late = log_mutations.LATE - 20_000 if one.invoke_ns >= log_mutations.LATE else 0
        end = None if one.complete_ns is None else one.complete_ns - late
        one = replace(one, invoke_ns=one.invoke_ns - late, complete_ns=end)
        if one.offsets is None or one.function == "read":
            given.append(one)
        else:
            given += [
                replace(one, first_offset=at, values=(value,), offsets=None) for at, value in one.pairs()
            ]
    return given


def grow(
    rng: random.Random, directory: Path, recorders: list[Recorder], written: list[tuple[int, Recorder, int]]
) -> list[str]:
    """Let the files grow as recorders write them, late by up to a second and cut anywhere; returns what was told."""
    told: list[str] = []
    follower = Follower(directory, Pace(settle_s=1.0))
    due = {id(one): [(at, size) for at, who, size in written if who is one] for one in recorders}
    last = written[-1][0]
    now = written[0][0] - SECOND
    sizes = dict.fromkeys(due, 0)
    while now < last + 3 * SECOND:
        now += rng.randrange(SECOND // 2)
        for number, one in enumerate(recorders):
            must = max((size for at, size in due[id(one)] if at <= now - SECOND * 9 // 10), default=0)
            may = max((size for at, size in due[id(one)] if at <= now), default=0)
            size = max(rng.randrange(must, max(must, may) + 1), sizes[id(one)])
            sizes[id(one)] = size
            (directory / f"{number}.trace").write_bytes(one.content[:size])
        told += (found.kind for _, found in follower.look(now))
    assert not follower.is_behind
    follower.close()
    return told


@pytest.mark.parametrize("mutation", [None, "stale_read", "lost_write", "phantom_value", "append_order"])
def test_files_that_grow_are_judged_as_they_come(tmp_path: Path, mutation: str | None) -> None:
    for seed in range(examples(8)):
        rng = random.Random(seed)
        history = log_mutations.good_history(rng, 150)
        if mutation is not None:
            getattr(log_mutations, mutation)(rng, history)
        history = recordable(history)
        recorders = [Recorder("a"), Recorder("b"), Recorder("c")]
        directory = tmp_path / str(seed)
        directory.mkdir()
        told = grow(rng, directory, recorders, record(rng, history, recorders))
        whole = check_traces({str(number): bytes(one.content) for number, one in enumerate(recorders)})
        assert whole.verdict == (LINEARIZABLE if mutation is None else VIOLATED)
        assert bool(told) == (mutation is not None), (seed, told, whole.counts)


def test_a_tail_reads_what_a_reader_reads_however_the_file_grows() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        recorder = Recorder("a")
        record(rng, recordable(log_mutations.good_history(rng, 150)), [recorder])
        content = recorder.content
        for _ in range(rng.randrange(3)):
            content[rng.randrange(200, len(content))] ^= 0xFF
        expected = [(at, str(item)) for at, item in read_items(BytesIO(bytes(content)))]
        assert len(expected) > 10
        if expected and "cut inside a record" in expected[-1][1] and "skipped" not in expected[-1][1]:
            expected.pop()  # its rest may be still to come
        tail = TraceTail("<trace>", piece_bytes=rng.choice([10, 300, 1 << 20]))
        got: list[tuple[int, str]] = []
        size = 0
        while size < len(content):
            size = min(len(content), size + rng.randrange(1, 4000))
            piece = BytesIO(bytes(content[:size]))
            while True:
                before = len(got)
                got += ((at, str(item)) for at, item in tail.read(piece))
                if len(got) == before:
                    break
        # How far the damage goes, or that nothing follows it, is known only to who reads the whole file at once.
        assert without_headers(got) == without_headers(expected), seed


def without_headers(items: list[tuple[int, str]]) -> list[tuple[int, str]]:
    return [
        (at, re.split(r"; skipped to|; nothing behind it was read| \(", text)[0])
        for at, text in items
        if not text.startswith("TraceHeader")
    ]


def write(path: Path, *, is_wrong: bool = False) -> None:
    recorder = Recorder("a")
    writer = recorder.writer
    number = writer.invoke_append(1 * SECOND, "a", "t/0", ("m",))
    writer.ok_append(2 * SECOND, number, 0)
    number = writer.invoke_tail(3 * SECOND, "a", "t/0")
    writer.ok_tail(4 * SECOND, number, 0 if is_wrong else 1)
    writer.flush()
    path.write_bytes(recorder.content)


@pytest.mark.parametrize("is_wrong", [False, True])
def test_the_command_ends_with_the_verdict_of_the_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_wrong: bool
) -> None:
    write(tmp_path / "a.trace", is_wrong=is_wrong)
    code = follow(Asked([tmp_path], report=tmp_path), Pace(settle_s=0.1, quiet_s=0.2))
    told = capsys.readouterr()
    assert code == int(is_wrong)
    assert ("violated: t/0: stale-tail at 0" in told.err) is is_wrong
    assert ("Violated" if is_wrong else "Linearizable").lower() in told.out.lower()
    assert list(tmp_path.glob("*.html"))


def test_only_what_had_happened_by_then_is_judged(tmp_path: Path) -> None:
    """What was not answered by then may have happened; what had not begun has not."""
    write(tmp_path / "a.trace", is_wrong=True)
    for until_s, verdict, operations in ((1.5, "undecided", 1), (3.5, LINEARIZABLE, 2), (4, VIOLATED, 2)):
        judged = judge_log(tmp_path, "trace", until_ns=int(until_s * SECOND))
        assert judged is not None
        assert (judged[0].verdict, judged[0].operations) == (verdict, operations)


@pytest.mark.parametrize("spark_wanted", [False, pytest.param(True, marks=pytest.mark.spark)])
def test_a_verdict_about_a_part_says_so(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    spark_wanted: bool,
) -> None:
    """Ctrl-C ended with LINEARIZABLE and exit code 0 over a third of a recording, without a word about the rest."""
    if spark_wanted:
        request.getfixturevalue("spark")
    write(tmp_path / "a.trace", is_wrong=True)
    asked = Asked([tmp_path], until_ns=int(2.5 * SECOND), spark_wanted=spark_wanted, report=tmp_path)
    said = (
        "Judged is what had happened up to 1.500000 s after the first operation, 1 of 2 operations that were recorded: "
        "the other 1 began later."
    )
    assert analyze(asked) == 0
    assert said in capsys.readouterr().out
    assert said in next(tmp_path.glob("*.html")).read_text()
    analyze(replace(asked, until_ns=SECOND // 2))
    nothing = "all of the 2 operations that were recorded began behind what had been read of every trace"
    assert nothing in capsys.readouterr().out
    analyze(replace(asked, until_ns=9 * SECOND))
    assert "Judged is" not in capsys.readouterr().out


def test_spark_judges_the_same_part(tmp_path: Path, spark: SparkSession) -> None:
    rng = random.Random(3)
    recorder = Recorder("a")
    record(rng, recordable(log_mutations.good_history(rng, 100)), [recorder])
    (tmp_path / "a.trace").write_bytes(recorder.content)
    until_ns = 5 * SECOND
    rows = trace_rows(str(tmp_path))
    assert rows is not None
    mine = {one["op"]: one for one in rows.until(until_ns).operations}
    history = load_trace(spark, str(tmp_path), tmp_path / "parquet").until(until_ns)
    theirs = {one["op"]: one.asDict() for one in history.operations.collect()}
    assert mine.keys() == theirs.keys()
    assert len(mine) < len(rows.operations)
    for op, one in theirs.items():
        assert one == {name: mine[op][name] for name in one}


def read_of_nothing(path: Path, header: TraceHeader) -> int:
    """Record a read of a message that nobody sent; returns how much of the file comes before it."""
    with path.open("wb") as stream:
        writer = TraceWriter(stream.write, header)
        number = writer.invoke_tail(SECOND, "a", "t/0")
        writer.ok_tail(SECOND + 1, number, 0)
        writer.flush()
        before = stream.tell()
        number = writer.invoke_read(2 * SECOND, "a", "t/0", 0)
        writer.ok_read(2 * SECOND + 1, number, 1, 0, ("m",))
        writer.flush()
    return before


@pytest.mark.parametrize("is_damaged", [False, True])
def test_what_could_not_be_read_takes_no_false_alarm_with_it(tmp_path: Path, is_damaged: bool) -> None:
    read_of_nothing(tmp_path / "a.trace", TraceHeader("client", "a", "one", 1))
    if is_damaged:
        before = read_of_nothing(tmp_path / "b.trace", TraceHeader("client", "b", "one", 1))
        content = bytearray((tmp_path / "b.trace").read_bytes())
        content[before] = 0xFF
        (tmp_path / "b.trace").write_bytes(content)
    follower = Follower(tmp_path, Pace(settle_s=1.0))
    told = follower.look(0) + follower.look(2 * SECOND)
    follower.close()
    assert [found.kind for _, found in told] == ([] if is_damaged else ["unexplained-value"])


def test_a_file_that_is_none_takes_no_false_alarm_with_it(tmp_path: Path) -> None:
    read_of_nothing(tmp_path / "a.trace", TraceHeader("client", "a", "one", 1))
    content = (tmp_path / "a.trace").read_bytes()
    for name, beginning in (("letter", b"Dear reader"), ("begun", content[:5])):
        (tmp_path / "b.trace").write_bytes(beginning)
        follower = Follower(tmp_path, Pace(settle_s=1.0))
        assert follower.look(0) + follower.look(2 * SECOND) == [], name
        assert follower.read_to_ns is not None
        follower.close()


def test_a_time_that_is_too_late_does_not_stand_for_what_follows(tmp_path: Path) -> None:
    """A bit of it was damaged, which nothing else shows."""
    one, other = Recorder("a"), Recorder("b")
    number = one.writer.invoke_tail(SECOND, "a", "t/1")
    one.writer.flush()
    (tmp_path / "a.trace").write_bytes(one.content)
    one.writer.ok_tail(SECOND + (1 << 38), number, 0)
    number = one.writer.invoke_tail(2 * SECOND, "a", "t/1")
    one.writer.flush()
    before = len(one.content)
    number = one.writer.invoke_append(3 * SECOND, "a", "t/0", ("m",))
    one.writer.ok_append(4 * SECOND, number, 0)
    one.writer.flush()
    number = other.writer.invoke_read(4 * SECOND, "b", "t/0", 0)
    other.writer.ok_read(5 * SECOND, number, 1, 0, ("m",))
    other.writer.flush()
    (tmp_path / "b.trace").write_bytes(other.content)
    follower = Follower(tmp_path, Pace(settle_s=1.0))
    assert follower.look(0) == []
    (tmp_path / "a.trace").write_bytes(one.content[:before])
    assert follower.look(3 * SECOND) == []
    (tmp_path / "a.trace").write_bytes(one.content)
    assert follower.look(4 * SECOND) == []
    follower.close()


def test_who_follows_waits_for_no_record_that_does_not_end(tmp_path: Path) -> None:
    read_of_nothing(tmp_path / "a.trace", TraceHeader("client", "a", "one", 1))
    content = (tmp_path / "a.trace").read_bytes()
    (tmp_path / "a.trace").write_bytes(content[:-3])
    traces = FollowedTraces(str(tmp_path), SECOND, 1)
    found: list[dict[str, object]] = []
    for moment in range(5):
        found += traces.read(moment * SECOND)
    assert not traces.is_behind
    assert [row["kind"] for row in found if row["record"] == "damage"] == ["cut"]
    (tmp_path / "a.trace").write_bytes(content)
    assert [row["function"] for row in traces.read(5 * SECOND) if row["record"] == "operation"] == ["read"]


def test_a_clock_stays_where_it_was_whatever_file_comes_later(tmp_path: Path) -> None:
    """Recorders of one clock state its zero differently, and the first file's clock stays the history's."""
    traces = FollowedTraces(str(tmp_path), SECOND)
    begun = []
    for name, clock, zero_s in (("m", "one", 10), ("n", "two", 13), ("a", "two", 11), ("b", "three", 10)):
        read_of_nothing(tmp_path / f"{name}.trace", TraceHeader("client", name, clock, zero_s * SECOND))
        begun += [row["invoke_ns"] // SECOND for row in traces.read(0)]
    assert begun == [1, 2, 4, 5, 4, 5, 1, 2]


def test_a_file_that_lost_what_was_read_of_it_is_an_error(tmp_path: Path) -> None:
    before = read_of_nothing(tmp_path / "a.trace", TraceHeader("client", "a", "one", 1))
    traces = FollowedTraces(str(tmp_path), SECOND)
    assert len(list(traces.read(0))) == 2
    (tmp_path / "a.trace").write_bytes((tmp_path / "a.trace").read_bytes()[:before])
    with pytest.raises(OSError, match=rf"a\.trace has shrunk to {before} bytes"):
        list(traces.read(SECOND))


def test_a_pipe_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.trace"
    os.mkfifo(path)
    assert follow(Asked([path]), Pace()) == WRONG_USAGE
    assert f"{path}: is neither a file nor a directory" in capsys.readouterr().err

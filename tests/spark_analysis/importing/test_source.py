"""``format("trivet_trace")`` reads files, directories, globs, in parts, whole or cut; and its documentation."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.trace import TraceHeader, TraceWriter
from broker.trace.format import FAIL, FAULT, INFO, INVOKE, OK, ROLE
from spark_analysis.checking.queues.log_model import LONGEST_NS
from spark_analysis.importing import schema
from spark_analysis.importing.arrow import arrow_table
from spark_analysis.importing.halves import Halves, _answers
from spark_analysis.importing.history import doubtful_completions, join_halves
from spark_analysis.importing.moments import Period
from spark_analysis.importing.trace_reader import TraceReader, trace_files
from spark_analysis.importing.trace_rows import (
    TraceSplit,
    _complaint,
    _is_plain_answer,
    _is_plain_invocation,
    read_rows,
)
from tests.examples import examples

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RECORD, _FILE, _POSITION, _OP = range(4)


def test_files_directories_and_globs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/n1.trace", "a/n0.trace", "a/notes.txt", "b/n0.trace"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    monkeypatch.chdir(tmp_path)

    def found(path: str) -> list[str]:
        return [str(Path(file).relative_to(tmp_path.resolve())) for file in trace_files(path)]

    assert found("a") == ["a/n0.trace", "a/n1.trace"]
    assert found("a/notes.txt") == ["a/notes.txt"]
    assert found("*/n0.trace") == ["a/n0.trace", "b/n0.trace"]
    assert found("[ab]") == ["a/n0.trace", "a/n1.trace", "b/n0.trace"]
    for path in ("c", "*.trace"):
        with pytest.raises(FileNotFoundError, match="no trace file"):
            trace_files(path)


def rows_of(path: Path, split_bytes: int) -> list[list[tuple[object, ...]]]:
    """The rows of each part of the trace."""
    parts = TraceReader({"path": str(path), "splitBytes": str(split_bytes)}).partitions()
    assert all(isinstance(part, TraceSplit) for part in parts)
    return [list(read_rows(part)) for part in parts if isinstance(part, TraceSplit)]


def whole_and_halves(rows: list[tuple[object, ...]]) -> tuple[int, set[object], set[object]]:
    """Returns the number of whole operations, and the identities of the two kinds of halves."""
    by_record = {
        kind: [row[_OP] for row in rows if row[_RECORD] == kind]
        for kind in ("operation", "invocation", "completion")
    }
    return len(by_record["operation"]), set(by_record["invocation"]), set(by_record["completion"])


def test_parts_have_every_record_once(tmp_path: Path) -> None:
    """Split anywhere, the parts together hold what the whole holds; operations across a border come as halves."""
    # One file with headers between its records, as a writer makes of a long history.
    path = tmp_path / "long.trace"
    with path.open("wb") as stream:
        header = TraceHeader("client", "c", "clock", 0)
        writer = TraceWriter(stream.write, header, buffered_events=7, sync_bytes=500)
        for number in range(300):
            first = writer.invoke_append(10 * number, "p", "t/0", [f"a{number}"])
            second = writer.invoke_append(10 * number + 1, "q", "t/1", [f"b{number}"])
            writer.ok_append(10 * number + 5, first, number)
            if number % 50:
                writer.ok_append(10 * number + 6, second, number)
        writer.flush()
    (alone,) = rows_of(path, 1 << 30)
    assert whole_and_halves(alone) == (594, {(50 * n) * 2 + 1 for n in range(6)}, set())
    parts = rows_of(path, 700)
    assert len(parts) > 10
    together = [row for part in parts for row in part]
    whole, begun, ended = whole_and_halves(together)
    assert ended < begun
    assert whole + len(ended) == 594
    assert len(begun) - len(ended) == 6
    assert not [row for row in together if row[_RECORD] == "damage"]


def test_a_cut_and_a_bad_record_are_located(tmp_path: Path) -> None:
    path = tmp_path / "cut.trace"
    with path.open("wb") as stream:
        writer = TraceWriter(stream.write, TraceHeader("client", "c", "clock", 0))
        operation = writer.invoke_append(1, "p", "t/0", ["a"])
        writer.flush()
        bad_at = stream.tell()
        stream.write(b"\x83\x02\x20\x00")  # a completion before time began
        writer.ok_append(5, operation, 0)
        writer.flush()
        end = stream.tell()
    path.write_bytes(path.read_bytes()[: end - 1])
    (rows,) = rows_of(path, 1 << 30)
    damages = [row for row in rows if row[_RECORD] == "damage"]
    kinds = [row[len(row) - len(schema.EVENT_COLUMNS) + 1] for row in damages]
    assert kinds == ["bad", "cut"]
    assert damages[0][_POSITION] == bad_at
    assert damages[1][_POSITION] == bad_at + 4
    assert whole_and_halves(rows) == (0, {0}, set())


HALVES = 60


def in_halves(path: Path) -> list[tuple[object, ...]]:
    """Rows of appends, all in halves. Of three of them one completes before it began, and one with a read's answer."""
    with path.open("wb") as stream:
        writer = TraceWriter(stream.write, HEADER, buffered_events=1, sync_bytes=1)
        begun = [writer.invoke_append(100 + number, "p", "t/0", [f"a{number}"]) for number in range(HALVES)]
        for number, operation in enumerate(begun):
            if number % 3 == 2:
                writer.ok_read(500 + number, operation, 7, [6], ["b"])
            else:
                writer.ok_append(50 if number % 3 else 500 + number, operation, number)
        writer.flush()
    rows = [row for part in rows_of(path, 700) for row in part]
    assert whole_and_halves(rows)[0] == 0
    return rows


def expected_of_halves(number: int) -> tuple[str, int | None, int | None]:
    """(outcome, complete_ns, first_offset) of the operation."""
    return ("info", None, None) if number % 3 else ("ok", 500 + number, number)


def doubt_of(number: int) -> str:
    return (
        f"append completes at time 50, before its invocation at {100 + number}"
        if number % 3 == 1
        else f"operation {number} completes with what is no answer to append"
    )


def test_halves_that_come_in_order_are_joined(tmp_path: Path) -> None:
    halves = Halves()
    told = [one for row in in_halves(tmp_path / "long.trace") for one in halves.take(named(row))]
    joined = [one for one in told if one["record"] == "operation"]
    assert [(one["outcome"], one["complete_ns"], one["first_offset"]) for one in joined] == [
        expected_of_halves(number) for number in range(HALVES)
    ]
    assert len(told) - len(joined) == 2 * HALVES // 3


ANSWERS = {
    "append": ["number"],
    "tail": ["number"],
    "head": ["number"],
    "read": ["next"],
    "poll": ["nothing", "next"],
    "commit_offset": ["nothing"],
    "fetch_offset": ["number", "nothing"],
    "assign": ["nothing"],
    "subscribe": ["nothing"],
    "seek": ["nothing"],
}
TOLD: dict[str, dict[str, int | None]] = {
    "number": {"offset": 3, "next_offset": None},
    "nothing": {"offset": None, "next_offset": None},
    "next": {"offset": None, "next_offset": 4},
}


def test_a_completion_answers_its_function() -> None:
    assert {*ANSWERS} == {*schema.FUNCTIONS}
    for function, answers in ANSWERS.items():
        assert [name for name, told in TOLD.items() if _answers(function, told)] == answers, function


@pytest.mark.spark
@pytest.mark.slow
def test_halves_of_every_function_are_joined(spark: SparkSession) -> None:
    """By either way, whatever they answer; an assignment keeps its keys."""
    halves: list[dict[str, Any]] = []
    for number, (function, told) in enumerate(itertools.product(ANSWERS, TOLD.values())):
        empty = dict.fromkeys(name for name, _, _ in schema.RECORD_COLUMNS)
        values = ["q/0"] if function in ("append", "assign", "subscribe", "seek") else None
        begun = {"function": function, "key": "q/0", "invoke_ns": 1, "values": values}
        for record, said in (
            ("invocation", begun),
            ("completion", told | {"outcome": "ok", "complete_ns": 2}),
        ):
            halves.append(
                empty | {"record": record, "file": "a", "position": len(halves), "op": number} | said
            )
    one_by_one = Halves()
    expected = [one for half in halves for one in one_by_one.take(half)]
    frame = spark.createDataFrame([tuple(half.values()) for half in halves], schema.RECORDS)
    joined = {row["op"]: row for row in join_halves(frame, no_damage(spark)).collect()}
    operations = [one for one in expected if one["record"] == "operation"]
    assert len(joined) == len(operations) == len(ANSWERS) * len(TOLD)
    for one in operations:
        assert joined[one["op"]].asDict() == {name: one[name] for name in schema.OPERATION_NAMES}
        assert one["values"] == ["q/0"] or one["function"] not in ("append", "assign", "subscribe", "seek")
    doubts = {row["position"] for row in doubtful_completions(frame, no_damage(spark)).collect()}
    assert doubts == {one["position"] for one in expected if one["record"] == "damage"}
    assert len(operations) - len(doubts) == sum(map(len, ANSWERS.values()))


@pytest.mark.spark
@pytest.mark.slow
def test_halves_are_joined(spark: SparkSession, tmp_path: Path) -> None:
    """What cannot be a completion is none, wherever it is met."""
    path = tmp_path / "long.trace"
    rows, count = in_halves(path), HALVES
    halves = spark.createDataFrame(rows, schema.RECORDS).where("record <> 'damage'")
    whole = no_damage(spark)
    joined = {row["values"][0]: row for row in join_halves(halves, whole).collect()}
    assert len(joined) == count
    for number in range(count):
        row = joined[f"a{number}"]
        assert (row["outcome"], row["complete_ns"], row["first_offset"]) == expected_of_halves(number)
    places = {row[_OP]: row[_POSITION] for row in rows if row[_RECORD] == "completion"}
    damage = {
        (row["file"], row["position"], row["reason"]) for row in doubtful_completions(halves, whole).collect()
    }
    assert damage == {(str(path), places[number], doubt_of(number)) for number in range(count) if number % 3}


def no_damage(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], "file STRING, position BIGINT, kind STRING, reason STRING")


@pytest.mark.spark
@pytest.mark.slow
def test_a_completion_behind_a_part_that_could_not_be_read_is_in_doubt(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The recorder began anew there, and its first operation has the number of one that is open."""
    path = tmp_path / "long.trace"
    header = HEADER.encode()
    begun = [cbor2.dumps([INVOKE, 10 + n, n, "p", 1, "t/0", [f"a{n}"], None]) for n in range(2)]
    lost = cbor2.dumps([INVOKE, 60, 0, "p", 1, "t/0", ["b"], None])
    ended = [cbor2.dumps([OK, 90 + n, n, n, None]) for n in range(2)]
    filling = cbor2.dumps([1 << 20, "x" * 700])  # a record of somebody else
    content = b"".join(
        [header, begun[0], filling, header, begun[1], lost, filling, header, ended[0], ended[1]]
    )
    place = content.index(lost)
    path.write_bytes(content[:place] + b"\xff" * len(lost) + content[place + len(lost) :])
    rows = spark.createDataFrame([row for part in rows_of(path, 600) for row in part], schema.RECORDS)
    halves = rows.where("record <> 'damage'")
    damage = rows.where("record = 'damage'").select("file", "position", "kind", "reason")
    # Of the operation in the damaged part its reader knows already that nobody can say what became of it.
    (joined,) = join_halves(halves, damage).collect()
    assert (joined["values"], joined["outcome"]) == (["a0"], "info")
    (doubt,) = doubtful_completions(halves, damage).collect()
    assert doubt["position"] == path.read_bytes().index(ended[0])
    assert doubt["reason"].startswith("operation 0 completes, or another one")


@pytest.mark.parametrize(
    ("other", "is_read"),
    [
        (TraceHeader("client", "producer0", "another boot", 7), False),
        (TraceHeader("client", "producer1", "clock", 0), False),
        # Begun anew: the wall clock was set meanwhile.
        (
            TraceHeader("client", "producer0", "clock", 9),
            True,
        ),
    ],
)
def test_records_behind_the_header_of_somebody_else(
    tmp_path: Path, other: TraceHeader, is_read: bool
) -> None:
    """Two files that were joined: what is another clock's must not be taken for this one's."""
    path = tmp_path / "joined.trace"
    tails = [
        cbor2.dumps([INVOKE, 100 * n, n, "p", 3, "t/0", None, None])
        + cbor2.dumps([OK, 100 * n + 5, n, n, None])
        for n in range(3)
    ]
    parts = [HEADER.encode(), tails[0], other.encode(), tails[1], HEADER.encode(), tails[2]]
    path.write_bytes(b"".join(parts))
    rows = read(path)
    found = [row["offset"] for row in rows if row["record"] == "operation"]
    assert found == ([0, 1, 2] if is_read else [0, 2])
    (damage,) = [row for row in rows if row["record"] == "damage"]
    assert damage["position"] == len(parts[0]) + len(parts[1])
    assert ("another recorder" in damage["detail"]) is not is_read


# ---- what cannot be true -------------------------------------------------------------------------------------------

HEADER = TraceHeader("client", "producer0", "clock", 0)
YEAR_NS = 31_556_952 * 10**9
INVOKED = [INVOKE, 50, 9, "p", 1, "t/0", ["a"], None]


def written(
    path: Path, *records: list[Any], header: TraceHeader = HEADER, ordinary: bool = True
) -> list[int]:
    """A trace of a few ordinary operations and then ``records``; returns where each of these begins."""
    places = []
    with path.open("wb") as stream:
        stream.write(header.encode())
        for number in range(5 if ordinary else 0):
            stream.write(cbor2.dumps([INVOKE, 10 * number, number, "p", 3, "t/0", None, None]))
            stream.write(cbor2.dumps([OK, 10 * number + 5, number, 0, None]))
        for record in records:
            places.append(stream.tell())
            stream.write(cbor2.dumps(record))
    return places


def named(row: tuple[object, ...]) -> dict[str, Any]:
    return dict(zip((name for name, _, _ in schema.RECORD_COLUMNS), row, strict=True))


def read(path: Path) -> list[dict[str, Any]]:
    return [named(row) for part in rows_of(path, 1 << 30) for row in part]


@pytest.mark.parametrize(
    ("end", "complaint"),
    [
        ([OK, 60, 9, 0, None], None),
        ([OK, 50, 9, 0, None], None),
        ([OK, 49, 9, 0, None], "operation 9 completes at time 49, before its invocation at 50"),
        ([FAIL, 49, 9, None], "operation 9 completes at time 49, before its invocation at 50"),
        ([OK, -60, 9, 0, None], "before its invocation"),
        ([OK, 56 * YEAR_NS, 9, 0, None], "56 years after most others; allowed are -5764607523034"),
        ([INFO, -30 * YEAR_NS, 9, None], "30 years before most others"),
        (
            [OK, (1 << 62) + 1, 9, 0, None],
            f"element 1 is {(1 << 62) + 1}; allowed are {-(1 << 62)} to {1 << 62}",
        ),
        ([OK, 1 << 64, 9, 0, None], "element 1 is 18446744073709551616; allowed are"),
        ([OK, 1 << 60_000, 9, 0, None], "element 1 is a huge int; allowed are"),
        ([OK, 60.5, 9, 0, None], "element 1 is 60.5"),
        ([OK, 60, 9, (1 << 62) + 1, None], "element 3 is"),
        ([OK, 60, 9, None, None], "append completes with the result None"),
        ([OK, 60, 9, 0, "t/"], "append completes without saying in which queue"),
        ([OK, 60, 9, [0, 0, [], None], None], "append completes with the result [0, 0, [], None]"),
    ],
)
def test_a_completion_that_cannot_be_true_is_left_out(
    tmp_path: Path, end: list[Any], complaint: str | None
) -> None:
    """With its place; and its operation has an unknown outcome."""
    path = tmp_path / "c.trace"
    _, at = written(path, INVOKED, end)
    rows = read(path)
    damages = [row for row in rows if row["record"] == "damage"]
    append = next(row for row in rows if row["function"] == "append")
    if complaint is None:
        assert not damages
        assert (append["outcome"], append["complete_ns"]) == ("ok", end[1])
        return
    (damage,) = damages
    assert (damage["file"], damage["position"], damage["kind"]) == (str(path), at, "bad")
    assert complaint in damage["detail"]
    assert (append["outcome"], append["complete_ns"]) == (
        ("info", None) if append["record"] == "operation" else (None, None)
    )
    assert (append["values"], append["client"], append["node"]) == (["a"], "p", "producer0")


@pytest.mark.parametrize("time_ns", [-30 * YEAR_NS, 30 * YEAR_NS, 1 << 70, None])
def test_an_invocation_without_a_time_is_left_out(tmp_path: Path, time_ns: int | None) -> None:
    path = tmp_path / "c.trace"
    at, _ = written(path, [INVOKE, time_ns, *INVOKED[2:]], [OK, 60, 9, 0, None])
    rows = read(path)
    assert [row["position"] for row in rows if row["record"] == "damage"] == [at]
    assert not [row for row in rows if row["function"] == "append"]
    assert len([row for row in rows if row["record"] == "operation"]) == 5


def test_a_number_that_is_used_twice(tmp_path: Path) -> None:
    """A recorder that begins anew in its old file: what was open is of unknown outcome, and nothing is forgotten."""
    path = tmp_path / "c.trace"
    again = [INVOKE, 70, 9, "p", 1, "t/0", ["b"], None]
    _, at, _ = written(path, INVOKED, again, [OK, 80, 9, 0, None])
    rows = read(path)
    appends = [
        (row["values"], row["outcome"], row["complete_ns"]) for row in rows if row["function"] == "append"
    ]
    assert appends == [(["a"], "info", None), (["b"], "ok", 80)]
    assert [row["position"] for row in rows if row["record"] == "damage"] == [at]


def append(number: int, time_ns: int, value: str) -> list[Any]:
    return [INVOKE, time_ns, number, "p", 1, "t/0", [value], None]


def appends_of(path: Path) -> list[tuple[str, str | None, int | None]]:
    """(value, outcome, base offset) of the appends that are whole."""
    return [
        (row["values"][0], row["outcome"], row["first_offset"])
        for row in read(path)
        if row["record"] == "operation" and row["function"] == "append"
    ]


def test_a_recorder_that_counts_from_0_again(tmp_path: Path) -> None:
    """Operations with one number are two: nothing of one may be taken for the other's, neither value nor identity."""
    path = tmp_path / "c.trace"
    lives = [append(9, 50, "a"), [OK, 60, 9, 0, None], append(9, 70, "b"), [OK, 80, 9, 1, None]]
    written(path, *lives)
    assert appends_of(path) == [("a", "ok", 0), ("b", "ok", 1)]
    ops = [row["op"] for row in read(path) if row["record"] == "operation"]
    assert len(set(ops)) == len(ops)
    # An invocation that could not be read, but says its number, ends what was open under it.
    written(path, append(9, 50, "a"), append(9, 30 * YEAR_NS, "b"), [OK, 80, 9, 1, None])
    assert appends_of(path) == [("a", "info", None)]


@pytest.mark.parametrize(
    ("between", "is_sure"),
    [
        (b"", True),
        (b"\x00", False),  # bytes that are no record may have been several
        (cbor2.dumps([INVOKE, 70, "9"]), True),  # one record that nobody can read is not two
        (cbor2.dumps([OK, 60, None]) + cbor2.dumps([INVOKE, 70, None]), False),
        (cbor2.dumps([OK, None, 9]) + cbor2.dumps([OK, None, 8]), True),  # whose they are is known
        (b"\xff" + HEADER.encode(), False),  # skipped to the next header
    ],
)
def test_a_completion_behind_what_could_not_be_read(tmp_path: Path, between: bytes, is_sure: bool) -> None:
    """The first answer and a second invocation under its number may have been there: "a" must not get "b"'s offset."""
    path = tmp_path / "c.trace"
    written(path, append(9, 50, "a"))
    with path.open("ab") as stream:
        stream.write(between + cbor2.dumps([OK, 80, 9, 1, None]) + cbor2.dumps(append(10, 90, "c")))
        stream.write(cbor2.dumps([OK, 95, 10, 2, None]))
    assert appends_of(path) == [("a", "ok", 1) if is_sure else ("a", "info", None), ("c", "ok", 2)]
    # Where a part of the file ends between them, at most one half is handed on.
    for before, behind in ((between, b""), (b"", between)):
        written(path, append(9, 50, "a"))
        with path.open("ab") as stream:
            stream.write(before)
            border = stream.tell()
            stream.write(HEADER.encode() + behind + cbor2.dumps([OK, 80, 9, 1, None]))
        halves = [row["record"] for part in rows_of(path, border) for row in map(named, part)]
        assert ({"invocation", "completion"} <= set(halves)) == is_sure


@pytest.mark.spark
@pytest.mark.slow
def test_halves_of_operations_with_one_number(spark: SparkSession, tmp_path: Path) -> None:
    """In parts of a file, too: a completion is that of the latest invocation before it."""
    path = tmp_path / "long.trace"
    count = 40
    with path.open("wb") as stream:
        for life in range(3):
            begun = [append(number, 1000 * life + number, f"{life}:{number}") for number in range(count)]
            # Some of each life are never answered.
            ended = [
                [OK, 1000 * life + 500 + number, number, 100 * life + number, None]
                for number in range(life, count)
            ]
            stream.write(b"".join(HEADER.encode() + cbor2.dumps(record) for record in (*begun, *ended)))
    rows = [row for part in rows_of(path, 700) for row in part]
    assert whole_and_halves(rows)[0] == 0
    halves = spark.createDataFrame(rows, schema.RECORDS).where("record <> 'damage'")
    joined = join_halves(halves, no_damage(spark)).collect()
    assert {row["values"][0]: row["first_offset"] for row in joined} == {
        f"{life}:{number}": 100 * life + number if number >= life else None
        for life in range(3)
        for number in range(count)
    }
    assert len(joined) == len({row["op"] for row in joined}) == 3 * count


def test_an_answer_must_say_which_queue_was_picked(tmp_path: Path) -> None:
    path = tmp_path / "c.trace"
    asked = [INVOKE, 50, 9, "p", 1, "t/", ["a"], None]
    for key, outcome in ((None, "info"), ("t/3", "ok")):
        written(path, asked, [OK, 60, 9, 0, key])
        rows = read(path)
        assert [row["outcome"] for row in rows if row["function"] == "append"] == [outcome]
        reasons = [row["detail"] for row in rows if row["record"] == "damage"]
        assert reasons == ([] if key else ["append completes without saying in which queue of t/"])


def test_any_record_may_be_the_wrong_one(tmp_path: Path) -> None:
    """The first as well: what most records say counts."""
    path = tmp_path / "c.trace"
    invoked = [[INVOKE, 70 + number, 10 + number, "p", 3, "t/0", None, None] for number in range(5)]
    at, *_ = written(path, [INVOKE, 56 * YEAR_NS, *INVOKED[2:]], *invoked, ordinary=False)
    assert [row["position"] for row in read(path) if row["record"] == "damage"] == [at]


def test_an_event_counts_by_its_place(tmp_path: Path) -> None:
    """A replica's events say in which order things happened, whatever their times: none is left out for one."""
    path = tmp_path / "n0.trace"
    role = ["leader", 1, "n0", -1, 0]
    first, _, far = written(
        path, [ROLE, 1 << 61, *role], [ROLE, 60, *role], [FAULT, -(1 << 61), "kill", ["n0"], ""]
    )
    rows = read(path)
    assert [row["position"] for row in rows if row["record"] == "damage"] == [first, far]
    middle_ns, at, same = (row["time_ns"] for row in rows if row["record"] == "event")
    assert (at, same) == (60, 60)
    assert 0 <= middle_ns <= 60


def test_files_of_clocks_that_are_decades_apart(tmp_path: Path) -> None:
    """One file among three whose header has a wrong wall clock costs that file, and says so once."""
    now = 1_700_000_000 * 10**9
    for name, clock, zero in (("a", "one", now), ("b", "two", now + 10**9), ("c", "three", 0)):
        header = TraceHeader("client", name, clock, zero, clock_error_ns=3)
        written(tmp_path / f"{name}.trace", [OK, 1 << 61, 0, 0, None], header=header)
    rows = read(tmp_path)
    damages = [(Path(row["file"]).name, row["detail"]) for row in rows if row["record"] == "damage"]
    assert [name for name, _ in damages] == ["a.trace", "b.trace", "c.trace"]
    assert "time 2305843009213693952 is 73 years after most others" in damages[0][1]
    assert "nothing of this file was read" in damages[2][1]
    shifted = [row for row in rows if row["record"] == "operation" and row["file"].endswith("b.trace")]
    assert [row["invoke_ns"] for row in shifted] == [10**9 - 3 + 10 * number for number in range(5)]


def test_a_header_beyond_all_clocks_is_refused(tmp_path: Path) -> None:
    for zero, error in ((1 << 63, 0), (0, 1 << 63), (-(1 << 70), 0)):
        path = tmp_path / "c.trace"
        written(path, header=TraceHeader("client", "c", "clock", zero, clock_error_ns=error))
        (row,) = read(path)
        assert (row["record"], row["position"]) == ("damage", 0)
        assert "missing or wrong fields" in row["detail"]


_NUMBERS = st.sampled_from(
    [-(1 << 80), -(1 << 62), -1, 0, 1, 5, 40, 1 << 59, 1 << 62, (1 << 63) - 1, 1 << 80]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | _NUMBERS | st.sampled_from(["", "t/0", "leader"]) | st.floats(),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=6,
)
_RECORDS = (
    st.lists(_VALUES, max_size=8)
    | st.tuples(
        st.sampled_from([*range(1, 5), *range(16, 25), 32, 33, 70]), st.lists(_VALUES, max_size=8)
    ).map(lambda one: [one[0], *one[1]])
    | st.tuples(st.integers(0, 9) | _NUMBERS, st.integers(0, 2), st.integers(1, 6)).map(
        lambda one: [
            INVOKE,
            one[0],
            one[1],
            "p",
            one[2],
            "t/0",
            {1: ["a"], 2: [3, False], 5: 7}.get(one[2]),
            None,
        ]
    )
    | st.tuples(st.integers(0, 9) | _NUMBERS, st.integers(0, 2), _NUMBERS | st.just([4, 3, ["a"], None])).map(
        lambda one: [OK, *one, None]
    )
)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(records=st.lists(_RECORDS, max_size=8), zero=_NUMBERS)
def test_any_records_become_rows_or_are_located(
    tmp_path_factory: pytest.TempPathFactory, records: list[list[Any]], zero: int
) -> None:
    """Nothing that a file holds ends the analysis: what is kept fits the table, what is not has its place."""
    directory = tmp_path_factory.getbasetemp() / "any"
    directory.mkdir(exist_ok=True)
    written(directory / "a.trace")
    written(directory / "b.trace", *records, header=TraceHeader("client", "b", "other", zero), ordinary=False)
    rows = [row for part in rows_of(directory, 1 << 30) for row in part]
    assert arrow_table(rows, schema.RECORDS).num_rows == len(rows)
    times = []
    for row in map(named, rows):
        if row["record"] == "operation" and row["complete_ns"] is not None:
            assert row["invoke_ns"] <= row["complete_ns"]
        times += [row[name] for name in ("invoke_ns", "complete_ns") if row[name] is not None]
        assert row["record"] != "damage" or row["detail"]
    assert max(times, default=0) - min(times, default=0) < LONGEST_NS


_PLAIN: list[list[Any]] = [
    [INVOKE, 5, 0, "c", 1, "t/0", ["v"], None],
    [INVOKE, 5, 0, "c", 2, "t/0", [3, False], None],
    [INVOKE, 5, 0, "c", 3, "t/0", None, None],
    [OK, 6, 0, 4, None],
    [OK, 6, 0, [4, 3, ["v"], None], None],
]
_ODD: tuple[Any, ...] = (True, -1, 2**62 + 1, 2**62, 1.0, "", None, [], [0], ["v", 1], 1 << 40)


def test_what_gets_the_cheap_check_alone_has_nothing_wrong() -> None:
    def is_plain(record: list[Any]) -> bool:
        check = _is_plain_invocation if record[0] == INVOKE else _is_plain_answer
        return check(record, Period(0, 100))

    bent = 0
    for record in _PLAIN:
        assert is_plain(record)
        lists = [record, *(part for part in record if type(part) is list)]
        for listed in lists:
            for place in range(listed is record, len(listed)):
                kept = listed[place]
                for odd in _ODD:
                    listed[place] = odd
                    assert not is_plain(record) or _complaint(record, Period(0, 100)) is None, record
                    bent += not is_plain(record)
                listed[place] = kept
            listed.append(None)
            assert not is_plain(record)
            listed.pop()
    assert bent > 200


def test_the_documentation_has_the_schema() -> None:
    page = (Path(__file__).parents[3] / "docs" / "trace-schema.md").read_text(encoding="utf-8")
    for name, kind, meaning in schema.RECORD_COLUMNS:
        assert f"| `{name}` | `{kind.lower()}` | {meaning} |" in page

"""Histories as JSON lines: what each function means, what is refused, clocks, files in parts."""

from __future__ import annotations

import io
import json
import random
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from spark_analysis.checking.check import check
from spark_analysis.checking.verdict import (
    LINEARIZABLE,
    UNDECIDED,
)
from spark_analysis.importing.arrow import arrow_table
from spark_analysis.importing.formats import parse
from spark_analysis.importing.history import History, no_events
from spark_analysis.importing.json_lines import (
    PARTS,
    join_process,
    load_json_lines,
    read_part,
)
from spark_analysis.importing.lines import BadLine
from spark_analysis.importing.moments import Period
from spark_analysis.importing.schema import OPERATION_NAMES
from spark_analysis.light import judge_log
from spark_analysis.telling.console import print_verdicts
from spark_analysis.telling.report.page import render
from spark_analysis.telling.report.tables import ReportData
from tests.examples import examples
from tests.spark_analysis.notation import log_operations

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def json_history(rng: random.Random, processes: int, steps: int) -> list[str]:
    """Lines as four kinds of processes may write them: finished, open at the end, wrong, and no JSON at all."""
    lines, opened, offset = [], dict[str, str](), 0
    for time_ns in range(steps):
        process = f"p{rng.randrange(processes)}"
        line = {"time": time_ns, "process": process, "key": "t/0"}
        if rng.random() < 0.03:
            lines.append("{not JSON\n")
        function = opened.pop(process, None)
        if function is None or rng.random() < 0.02:
            function = rng.choice(["append", "read"])
            opened[process] = function
            line |= {"type": "invoke", "f": function, "value": f"v{time_ns}" if function == "append" else 0}
        elif function == "append":
            line |= {"type": rng.choice(["ok", "ok", "info"]), "f": function, "value": offset}
            offset += 1
        else:
            line |= {"type": "ok", "f": rng.choice(["read"] * 9 + ["tail"]), "value": [[0, "v0"]]}
        if rng.random() < 0.02:
            line["time"] = time_ns - 50  # a clock that was set back
        lines.append(json.dumps(line) + "\n")
    return lines


def judged_whole(lines: list[str]) -> tuple[list[str], list[tuple[int, str]]]:
    """The operations but for their numbers, and the bad lines, of a file that is read in one piece."""
    whole = list(log_operations(parse("jsonl", lines)))
    kept = [repr(row[1:]) for row in whole if not isinstance(row, BadLine)]
    return sorted(kept), sorted((row.number, row.reason) for row in whole if isinstance(row, BadLine))


def test_a_line_that_is_not_utf8_is_a_bad_one(tmp_path: Path) -> None:
    """Two values that differ there alone are not one."""
    path = tmp_path / "history.jsonl"
    lines = (
        b'{"time": 1, "process": 0, "type": "invoke", "f": "append", "key": "t/0", "value": "a\xff"}',
        b'{"time": 2, "process": 0, "type": "ok", "f": "append", "key": "t/0", "value": 0}',
        b'{"time": 3, "process": 1, "type": "invoke", "f": "read", "key": "t/0", "value": 0}',
        b'{"time": 4, "process": 1, "type": "ok", "f": "read", "key": "t/0", "value": [[0, "a\xfe"]]}',
    )
    path.write_bytes(b"\n".join(lines) + b"\n")
    judged = judge_log(path, "jsonl")
    assert judged is not None
    assert judged[0].verdict == UNDECIDED
    assert [one.partition(": ")[2] for one in judged[0].damage] == [
        "line 1: not JSON: not UTF-8",
        "line 2: process 0 completes append, which it has not invoked",
        "line 4: not JSON: not UTF-8",
    ]


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 5), st.integers(40, 4000))
def test_parts_of_a_file_are_the_same_history(
    tmp_path_factory: pytest.TempPathFactory, seed: int, processes: int, part_bytes: int
) -> None:
    """Operations whose lines are parts apart, lines cut by a part's edge, and line numbers of what is wrong."""
    lines = json_history(random.Random(seed), processes, 120)
    path = tmp_path_factory.getbasetemp() / "parts.jsonl"
    path.write_text("".join(lines))
    size = path.stat().st_size
    names = arrow_table([], PARTS).column_names
    rows = [
        (dict(zip(names, row, strict=True)), row)
        for part, start in enumerate(range(0, size, part_bytes))
        for row in read_part(str(path), part, start, min(size, start + part_bytes), Period())
    ]
    halves: dict[str, list[Any]] = defaultdict(list)
    for named, row in rows:
        if named["half"] in ("begun", "ended", "first"):
            halves[named["process"]].append(row)
    lost = {named["part"]: int(named["text"]) for named, _ in rows if named["half"] == "lines"}
    joined = [one for of in halves.values() for one in join_process(arrow_table(of, PARTS), lost).to_pylist()]
    together = [named for named, _ in rows if named["half"] is None] + joined
    counts = {named["part"]: named["number"] for named, _ in rows if named["half"] == "lines"}
    before = {part: sum(count for other, count in counts.items() if other < part) for part in counts}
    kept = [one for one in together if one["bad"] is None]
    bad = [(one["number"] + before[one["part"]], one["bad"]) for one in together if one["bad"] is not None]
    expected = judged_whole(lines)
    assert sorted(repr(tuple(one[name] for name in OPERATION_NAMES[1:])) for one in kept) == expected[0]
    assert sorted(bad) == expected[1]
    assert len({one["op"] for one in kept}) == len(kept)


@pytest.mark.spark
@pytest.mark.slow
def test_parts_of_a_file_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    lines = json_history(random.Random(7), 4, 200)
    path = tmp_path / "history.jsonl"
    path.write_text("".join(lines))
    operations, damage = load_json_lines(spark, str(path), tmp_path.as_uri(), part_bytes=6000)
    kept, bad = judged_whole(lines)
    rows = operations.select(*OPERATION_NAMES[1:]).collect()
    assert sorted(repr(tuple(row)) for row in rows) == kept
    assert sorted((row["position"], row["reason"]) for row in damage.collect()) == bad
    assert len(bad) > 5


def test_polls_and_assignments() -> None:
    lines = [
        '{"time": 1, "process": "c", "type": "invoke", "f": "subscribe", "value": ["t/0", "t/1"]}',
        '{"time": 2, "process": "c", "type": "ok", "f": "subscribe", "value": ["t/0", "t/1"]}',
        '{"time": 3, "process": "c", "type": "invoke", "f": "poll", "value": null}',
        '{"time": 4, "process": "c", "type": "ok", "f": "poll", "value": {"t/0": [[4, "a"], [6, "b"]], "t/1": []}}',
    ]
    rows = [dict(zip(OPERATION_NAMES, row, strict=True)) for row in log_operations(parse("jsonl", lines))]  # type: ignore[arg-type]
    assert [(row["function"], row["key"], row["values"], row["offsets"]) for row in rows] == [
        ("subscribe", "", ["t/0", "t/1"], None),
        ("poll", "t/0", ["a", "b"], [4, 6]),
        ("poll", "t/1", [], None),
    ]


def test_what_is_wrong_with_a_line_is_told_with_the_place_in_it() -> None:
    (bad,) = parse("jsonl", ['{"time": 1, process}\n'])
    assert isinstance(bad, BadLine)
    assert bad.reason == "not JSON: Expecting property name enclosed in double quotes (column 13)"


PAGE = Path(__file__).parents[3] / "docs" / "importing.md"


def page_lines() -> list[str]:
    """The JSON lines that docs/importing.md shows for the log model."""
    return [line.strip() for line in PAGE.read_text().splitlines() if line.startswith('    {"time"')]


def test_the_page_shows_every_function() -> None:
    """Each row of the table has its example, each example is understood, and together they are one history."""
    functions = {
        name
        for line in PAGE.read_text().splitlines()
        if line.startswith("| `") and line.count("|") == 5
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    shown = {json.loads(line)["f"] for line in page_lines()}
    assert functions == shown
    rows = list(log_operations(parse("jsonl", page_lines())))
    assert not [row for row in rows if isinstance(row, BadLine)]
    given = Counter(row[OPERATION_NAMES.index("function")] for row in rows if not isinstance(row, BadLine))
    assert given == {
        "append": 4,
        "read": 1,
        "poll": 2,
        "tail": 1,
        "head": 1,
        "commit_offset": 1,
        "fetch_offset": 1,
        "assign": 1,
        "subscribe": 1,
        "seek": 1,
    }


def test_what_the_page_shows_may_be_copied(tmp_path: Path) -> None:
    path = tmp_path / "page.jsonl"
    path.write_text("".join(f"{line}\n" for line in page_lines()))
    judged = judge_log(path, "jsonl")
    assert judged is not None
    assert (judged[0].verdict, judged[0].counts) == (LINEARIZABLE, {})


@pytest.mark.spark
@pytest.mark.slow
def test_the_page_is_a_good_history(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "page.jsonl"
    # The last line has a wall clock's time: it is left out, and its tail was never answered.
    absurd = [
        {"time": at, "process": "late", "type": kind, "f": "tail", "key": "orders/2", "value": value}
        for at, kind, value in ((4000, "invoke", None), (1_763_000_000 * 10**9, "ok", 0))
    ]
    lines = [*page_lines(), *map(json.dumps, absurd)]
    path.write_text("".join(f"{line}\n" for line in lines))
    operations, damage = load_json_lines(spark, str(path), tmp_path.as_uri())
    verdict = check(History(str(path), operations, no_events(spark), damage))
    assert (verdict.verdict, verdict.counts) == (LINEARIZABLE, {})
    (bad,) = verdict.damage
    assert bad.startswith(
        f"{path}: line {len(lines)}: time 1763000000000000000 is 56 years after most others"
    )
    assert verdict.facts["functions"]["tail"] == {"ok": 1, "info": 1}
    assert verdict.facts["transactions"] == 1
    assert verdict.by_name == verdict.facts["functions"] | NAMED | {"tail": {"ok": 1, "info": 1}}


NAMED = {"append": {"ok": 1}, "poll": {"ok": 1}, "txn": {"ok": 1}, "send": {"info": 1}}


def test_operations_are_counted_by_the_names_that_their_history_gives_them(tmp_path: Path) -> None:
    """A transaction was told as appends and polls, one for each queue, and so was what had failed."""
    path = tmp_path / "page.jsonl"
    failed = [line.replace('"p"', '"last"') for line in completed(SEND_AND_POLL, TOLD, kind="fail")]
    path.write_text("".join(f"{line}\n" for line in [*page_lines(), *failed]))
    judged = judge_log(path, "jsonl")
    assert judged is not None
    verdict = judged[0]
    assert verdict.by_name == verdict.facts["functions"] | NAMED | {
        "txn": {"fail": 1, "ok": 1},
        "read": {"ok": 1},
    }
    out = io.StringIO()
    print_verdicts([verdict], Console(file=out, width=1000))
    assert verdict.named_operations == 13
    assert "13 operations in" in out.getvalue()
    assert "1 send" in out.getvalue()
    assert "2 txn" in out.getvalue()
    assert "<td>txn</td>" in render(verdict, ReportData())


def completed(asked: str, told: str, *, function: str = "txn", kind: str = "ok", more: str = "") -> list[str]:
    return [
        f'{{"time": 1, "process": "p", "type": "invoke", "f": "{function}", "value": {asked}}}',
        f'{{"time": 2, "process": "p", "type": "{kind}", "f": "{function}", "value": {told}{more}}}',
    ]


SEND_AND_POLL = '[["send", "t/0", "a"], ["send", "t/0", "b"], ["poll"], ["poll"]]'
TOLD = (
    '[["send", "t/0", [3, "a"]], ["send", "t/0", [null, "b"]], ["poll", {"t/1": [[0, "x"], [1, "y"]]}], '
    '["poll", {"t/1": [[1, "y"]], "t/0": []}]]'
)


def brief(lines: list[str]) -> list[tuple[Any, ...]]:
    rows = [dict(zip(OPERATION_NAMES, row, strict=True)) for row in log_operations(parse("jsonl", lines))]  # type: ignore[arg-type]
    return [tuple(row[name] for name in ("function", "outcome", "key", "values", "offsets")) for row in rows]


@pytest.mark.parametrize(
    ("kind", "told", "more", "expected"),
    [
        ("ok", TOLD, "", [
            ("append", "ok", "t/0", ["a"], [3]), ("append", "info", "t/0", ["b"], None),
            ("poll", "ok", "t/1", ["x", "y", "y"], [0, 1, 1]), ("poll", "ok", "t/0", [], None)]),
        # A rebalance excuses what a poll skips or repeats, and no other evidence.
        ("ok", TOLD, ', "rebalanced": ["t/1"]', [
            ("append", "ok", "t/0", ["a"], [3]), ("append", "info", "t/0", ["b"], None),
            ("read", "ok", "t/1", ["x", "y"], None), ("read", "ok", "t/1", ["y"], None),
            ("poll", "ok", "t/0", [], None)]),
        ("info", TOLD, "", [
            ("append", "info", "t/0", ["a"], None), ("append", "info", "t/0", ["b"], None),
            ("read", "ok", "t/1", ["x", "y"], None), ("read", "ok", "t/1", ["y"], None)]),
        ("info", "null", "", [("append", "info", "t/0", ["a"], None), ("append", "info", "t/0", ["b"], None)]),
        ("fail", "null", "", [("append", "fail", "t/0", ["a"], None), ("append", "fail", "t/0", ["b"], None)]),
    ],
)  # fmt: skip
def test_micro_operations(kind: str, told: str, more: str, expected: list[tuple[Any, ...]]) -> None:
    assert brief(completed(SEND_AND_POLL, told, kind=kind, more=more)) == expected


@pytest.mark.parametrize(
    ("function", "asked", "told", "complaint"),
    [
        ("txn", '[["send", "t/0", "a"]]', '[["poll", {}]]', "other micro-operations"),
        ("txn", '[["send", "t/0", "a"], ["poll"]]', '[["send", "t/0", [0, "a"]]]', "other micro-operations"),
        ("txn", '[["append", "t/0", "a"]]', '[["append", "t/0", "a"]]', "micro-operation 0, .* no send"),
        ("txn", '{"send": 1}', "null", "other micro-operations|no send"),
        ("send", '[["send", "t/0", "a"]]', '[["send", "t/0", [-1, "a"]]]', "-1 is no offset"),
        ("poll", '[["poll"]]', '[["poll", {"t/0": [[0]]}]]', "no list of .offset, text."),
        ("poll", "null", '{"t/0": [["a", 0]]}', "'a' is no offset"),
        ("produce", '"a"', "0", "no such function; the log model has append, read"),
        ("append", '"a"', "0", "no key"),
        ("assign", '"t/0"', "null", "not a list of keys"),
    ],
)
def test_what_is_not_accepted_is_explained(function: str, asked: str, told: str, complaint: str) -> None:
    bad, *rows = log_operations(parse("jsonl", completed(asked, told, function=function)))
    assert isinstance(bad, BadLine)
    assert re.search(complaint, bad.reason), bad.reason
    # Where the invocation alone can be understood, the completion is the bad line.
    alone = parse("jsonl", completed(asked, told, function=function)[:1])
    assert rows == [row for row in log_operations(alone) if not isinstance(row, BadLine)]
    assert bad.number == (2 if rows else 1)


def test_a_file_that_was_cut_is_told() -> None:
    """In the middle of the last line: that is no bad line like others, and its operation is of unknown outcome."""
    lines = completed('[["send", "t/0", "a"]]', '[["send", "t/0", [0, "a"]]]')
    for length in range(1, len(lines[1]) - 1):
        *rows, bad = reversed(list(log_operations(parse("jsonl", [lines[0], lines[1][:length]]))))
        assert isinstance(bad, BadLine)
        assert bad.number == 2
        assert bad.is_cut
        (row,) = rows
        assert not isinstance(row, BadLine)
        assert row[OPERATION_NAMES.index("outcome")] == "info"


def test_a_clock_that_goes_back_makes_the_outcome_unknown() -> None:
    lines = [
        '{"time": 9, "process": "p", "type": "invoke", "f": "append", "key": "t/0", "value": "a"}\n',
        '{"time": 8, "process": "p", "type": "ok", "f": "append", "key": "t/0", "value": 0}\n',
    ]
    bad, row = log_operations(parse("jsonl", lines))
    assert isinstance(bad, BadLine)
    assert (bad.number, bad.reason) == (2, "process p completes append at time 8, before its invocation at 9")
    assert not isinstance(row, BadLine)
    assert row[OPERATION_NAMES.index("outcome")] == "info"


FAR = 1 << 59
NEAR = Period(-FAR, FAR - 1)


@pytest.mark.parametrize(
    ("begin", "end", "bad_line", "complaint", "kept"),
    [
        # A clock's zero is arbitrary: only distances count.
        (-5, 3, None, "", (-5, 3)),
        (-5, -9, 2, "completes append at time -9, before its invocation at -5", (-5, None)),
        (7, 7, None, "", (7, 7)),
        (7, FAR - 1, None, "", (7, FAR - 1)),
        (7, FAR, 2, f"18 years after most others; allowed are {-FAR} to {FAR - 1}", (7, None)),
        (-FAR - 1, 7, 1, "18 years before most others", None),
        (7, 1_763_000_000 * 10**9, 2, "56 years after most others", (7, None)),
        (7, 1 << 62, 2, "146 years after", (7, None)),
        (7, (1 << 62) + 1, 2, f"allowed are nanoseconds from {-(1 << 62)} to {1 << 62}", (7, None)),
        (7, -(1 << 80), 2, "allowed are nanoseconds from", (7, None)),
        (7, 8.5, 2, "'time' is 8.5, no integer", (7, None)),
        (7, None, 2, "'time' is None, no integer", (7, None)),
        (7, True, 2, "'time' is True, no integer", (7, None)),
    ],
)
def test_an_absurd_time_costs_its_line(
    begin: Any, end: Any, bad_line: int | None, complaint: str, kept: tuple[int, int | None] | None
) -> None:
    lines = [
        json.dumps({"time": at, "process": "p", "type": kind, "f": "append", "key": "t/0", "value": value})
        for at, kind, value in ((begin, "invoke", "a"), (end, "ok", 0))
    ]
    found = list(log_operations(parse("jsonl", lines), NEAR))
    bad = [row for row in found if isinstance(row, BadLine)]
    rows = [row for row in found if not isinstance(row, BadLine)]
    if bad_line is None:
        assert not bad
    else:
        assert bad[0].number == bad_line
        assert complaint in bad[0].reason
    places = [OPERATION_NAMES.index(name) for name in ("invoke_ns", "complete_ns")]
    assert [tuple(row[place] for place in places) for row in rows] == ([] if kept is None else [kept])
    assert all(
        row[OPERATION_NAMES.index("outcome")] == ("ok" if row[places[1]] is not None else "info")
        for row in rows
    )


def test_lines_with_and_without_a_time_are_not_mixed() -> None:
    """Where the first operation has a time, the place of a line without one is not known; and the reverse."""
    timed, untimed = "{:process 0, :type :invoke, :f :read, :time 5}", "{:process 0, :type :ok, :f :read}"
    for lines, complaint in (([timed, untimed], ":time is missing"), ([untimed, timed], ":time is given")):
        (bad,) = [line for line in parse("knossos", lines) if isinstance(line, BadLine)]
        assert bad.number == 2
        assert bad.reason.startswith(complaint)

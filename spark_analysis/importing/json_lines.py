"""JSON lines of the log model: any system's appends, reads, tails and polls, for the exact checker (docs/importing.md).

A file is read in parts, each by a task of its own. An operation whose two lines are in one part leaves it finished;
what a process left open at a part's end, or completes at its beginning, travels as halves, at most two for each process
and part, which are put together process by process.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_analysis.importing import schema
from spark_analysis.importing.arrow import Row, arrow_batches, arrow_table
from spark_analysis.importing.formats import parse
from spark_analysis.importing.json_rows import log_rows
from spark_analysis.importing.lines import (
    CUT,
    CUT_LINE,
    KEEP_WHAT_IS_NO_UTF8,
    LINE,
    LOST_BETWEEN,
    OVERLAPPING,
    OVERLAPPING_LINE,
    STRAY,
    STRAY_LINE,
    BadLine,
    Line,
    Open,
    Orphan,
    doubtful_completion,
    early_completion,
    matched,
    second_invocation,
)
from spark_analysis.importing.moments import SAMPLE, Period, middle, period_around
from spark_analysis.importing.storage import pattern_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PART_BYTES: Final = 32 << 20
# Operation ids count lines; the part's number in the upper bits makes them unique in the file.
PART_SHIFT: Final = 40
_NO_OPERATION: Final = (None,) * len(schema.OPERATION_NAMES)
# ``half``: begun, ended, or first (the first invocation of a process in its part); lines: how many the part has. Of a
# whole operation ``text`` is what it is called, where its rows do not say it.
PARTS: Final = (
    f"{schema.OPERATIONS}, bad STRING, number BIGINT, part INT, half STRING, process STRING, text STRING"
)
_JOINED: Final = f"{schema.OPERATIONS}, bad STRING, number BIGINT, part INT, text STRING"


def load_json_lines(
    spark: SparkSession, path: str, directory: Path | str, *, part_bytes: int = PART_BYTES
) -> tuple[DataFrame, DataFrame]:
    """Read a JSON lines history for the log model; returns its operations and its damage, kept as Parquet.

    The operations have the columns of schema.OPERATIONS and ``called``: "txn ok", say, where the history has another
    name or outcome for an operation than its rows; else null."""
    from pyspark.sql import functions as sf

    size, period = Path(path).stat().st_size, period_of(path)
    starts = range(0, max(1, size), part_bytes)
    parts = spark.createDataFrame(
        [
            (path, part, start, min(size, start + part_bytes), period.low_ns, period.high_ns)
            for part, start in enumerate(starts)
        ],
        "path STRING, part INT, start BIGINT, stop BIGINT, low_ns BIGINT, high_ns BIGINT",
    ).repartition(len(starts), "part")
    # Each part is read once and kept: its lines are counted, its halves joined and its rows used.
    parts.mapInArrow(_read_parts, PARTS).write.mode("overwrite").parquet(f"{directory}/parts")
    rows = spark.read.schema(PARTS).parquet(pattern_of(f"{directory}/parts"))
    # Lines are numbered within their part; what all parts before have makes numbers of the file of them.
    counted = rows.where("half = 'lines'").select("part", "number", "text").orderBy("part").collect()
    lost = {row["part"]: int(row["text"]) for row in counted if row["text"] != "0"}
    rows.where("half IN ('begun', 'ended', 'first')").groupBy("process").applyInArrow(
        lambda table: join_process(table, lost), _JOINED
    ).write.mode("overwrite").parquet(f"{directory}/joined")
    joined = spark.read.schema(_JOINED).parquet(pattern_of(f"{directory}/joined"))
    whole = rows.where("half IS NULL").select(*joined.columns).unionByName(joined)
    before = accumulate((row["number"] for row in counted), initial=0)
    lines = spark.createDataFrame(
        [(row["part"], earlier) for row, earlier in zip(counted, before, strict=False)],
        "part INT, before BIGINT",
    )
    damage = (
        whole.where("bad IS NOT NULL")
        .join(sf.broadcast(lines), "part")
        .select(
            sf.lit(path).alias("file"),
            (sf.col("number") + sf.col("before")).alias("position"),
            sf.when(sf.col("bad") == CUT, sf.lit(CUT_LINE))
            .when(sf.endswith("bad", sf.lit(OVERLAPPING)), sf.lit(OVERLAPPING_LINE))
            .when(sf.endswith("bad", sf.lit(STRAY)), sf.lit(STRAY_LINE))
            .otherwise(sf.lit(LINE))
            .alias("kind"),
            sf.col("bad").alias("reason"),
        )
    )
    operations = whole.where("bad IS NULL").withColumnRenamed("text", "called")
    return operations.select(*schema.OPERATION_NAMES, "called"), damage


def _read_parts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for part in batch.to_pylist():
            period = Period(part["low_ns"], part["high_ns"])
            rows = read_part(part["path"], part["part"], part["start"], part["stop"], period)
            yield from arrow_batches(rows, PARTS)


def period_of(path: str) -> Period:
    """The times that can be true, judged by the beginning of the file."""
    with Path(path).open(encoding="utf-8", errors=KEEP_WHAT_IS_NO_UTF8) as text:
        lines = parse("jsonl", islice(text, SAMPLE))
        return period_around(middle(line.time_ns for line in lines if isinstance(line, Line)))


def credible(lines: Iterable[Line | BadLine], period: Period) -> Iterator[Line | BadLine]:
    """``lines`` without those whose time cannot be true."""
    for line in lines:
        problem = period.complaint(line.time_ns) if isinstance(line, Line) else None
        yield line if problem is None else BadLine(line.number, problem)


def read_part(path: str, part: int, start: int, stop: int, period: Period) -> Iterator[Row]:
    """Rows of ``PARTS`` from the lines that begin in the bytes from ``start`` to before ``stop``."""
    count = 0

    def lines() -> Iterator[str]:
        nonlocal count
        with Path(path).open("rb") as stream:
            if start:
                stream.seek(start - 1)
                stream.readline()  # the part before has the line that this byte belongs to
            place = stream.tell()
            while place < stop:
                line = stream.readline()
                if not line:
                    return
                place += len(line)
                count += 1
                yield line.decode(errors=KEEP_WHAT_IS_NO_UTF8)

    first_invocations: dict[str, Line] = {}
    lost = 0

    def watched(parsed: Iterator[Line | BadLine]) -> Iterator[Line | BadLine]:
        nonlocal lost
        for line in parsed:
            if isinstance(line, BadLine):
                lost += line.records
            elif line.kind == "invoke":
                first_invocations.setdefault(line.process, line)
            yield line

    for one in matched(watched(credible(parse("jsonl", lines()), period))):
        if isinstance(one, Open):
            yield _half(part, "begun", one.line, one.lost)
        elif isinstance(one, Orphan):
            yield _half(part, "ended", one.line, one.lost)
        else:
            yield from _rows(part, one)
    if part:
        for line in first_invocations.values():
            yield _half(part, "first", line)
    yield (*_NO_OPERATION, None, count, part, "lines", None, str(lost))


def _half(part: int, half: str, line: Line, lost: int = 0) -> Row:
    text = json.dumps(
        [line.time_ns, line.kind, line.function, line.key, line.value, line.group, line.rebalanced, lost]
    )
    return (*_NO_OPERATION, None, line.number, part, half, line.process, text)


def _rows(
    part: int, one: tuple[Line, Line | None] | BadLine, completed_in: int | None = None
) -> Iterator[Row]:
    """``completed_in``: the part with the completion, if it is another one."""
    if isinstance(one, BadLine):
        yield (*_NO_OPERATION, one.reason, one.number, part, None, None, None)
        return
    rows = list(log_rows((part << PART_SHIFT) + one[0].number, *one))
    called = _called(one[0], one[1], rows)
    for row in rows:
        if isinstance(row, BadLine):
            place = completed_in if row.completes and completed_in is not None else part
            yield (*_NO_OPERATION, row.reason, row.number, place, None, None, None)
        else:
            yield (*row, None, None, part, None, None, called)


_FUNCTION: Final = schema.OPERATION_NAMES.index("function")
_OUTCOME: Final = schema.OPERATION_NAMES.index("outcome")


def _called(begun: Line, ended: Line | None, rows: Iterable[Row | BadLine]) -> str | None:
    """The name and outcome that the history has for an operation; None if its rows say the same."""
    is_understood = ended is not None and not any(isinstance(row, BadLine) for row in rows)
    outcome = ended.kind if ended is not None and is_understood else "info"
    said = {(row[_FUNCTION], row[_OUTCOME]) for row in rows if not isinstance(row, BadLine)}
    return None if said == {(begun.function, outcome)} else f"{begun.function} {outcome}"


def join_process(table: pa.Table, lost_in: Mapping[int, int]) -> pa.Table:
    """Join the halves of one process in the order of the file: an invocation that is open meets the completion in a
    later part.

    ``table``: rows of :func:`read_part`, as a table; the result has the columns of ``_JOINED``.
    ``lost_in``: for each part, how many records in it could not be read; a part that is not mentioned lost none.
    """
    rows: list[Row] = []
    opened: tuple[int, Line, int] | None = None

    def close(ended: Line | None, part: int | None = None) -> None:
        nonlocal opened
        if opened is not None:
            told = _rows(opened[0], (opened[1], ended), part)
            rows.extend((*row[: len(_NO_OPERATION) + 3], row[-1]) for row in told)
        opened = None

    def bad(part: int, line: BadLine) -> None:
        rows.append((*_NO_OPERATION, line.reason, line.number, part, None))

    # What completes an invocation of an earlier part stands before all that a part begins; what it leaves open is last.
    order = {"ended": 0, "first": 1, "begun": 2}
    for row in sorted(table.to_pylist(), key=lambda row: (row["part"], order[row["half"]], row["number"])):
        time_ns, kind, function, key, value, group, rebalanced, lost = json.loads(row["text"])
        line = Line(
            *(row["number"], time_ns, row["process"], kind, function, key, value, group, tuple(rebalanced))
        )
        match row["half"]:
            case "ended" if opened is not None and opened[1].function == function:
                between = sum(count for part, count in lost_in.items() if opened[0] < part < row["part"])
                if line.time_ns < opened[1].time_ns:
                    bad(row["part"], early_completion(opened[1], line))
                    close(None)
                elif opened[2] + between + lost >= LOST_BETWEEN:
                    bad(row["part"], doubtful_completion(line))
                    close(None)
                close(line, row["part"])
            case "ended":
                bad(row["part"], Orphan(line).bad_line())
            case "first":
                if opened is not None:
                    bad(row["part"], second_invocation(line))
                close(None)
            case _:
                close(None)
                opened = row["part"], line, lost
    close(None)
    return arrow_table(rows, _JOINED)

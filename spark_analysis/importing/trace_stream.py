"""``spark.readStream.format("trivet_trace")``: the rows of traces that grow, each once.

An offset says how far each file was read, always to the end of a record, and up to which moment everything has been
read (the *cut* of :mod:`spark_analysis.importing.tails`), which a row of the kind ``read_to`` tells. Planning goes over
new bytes to find both; rows are made by tasks, a range of a file each. What a file is called and how its times are
moved stands in the offset, too: so a range gives the same rows whenever it is read.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from broker.trace import Damage, TraceTail
from spark_analysis.importing import schema
from spark_analysis.importing.arrow import Row, arrow_batches
from spark_analysis.importing.tails import FollowedTraces, axis_of, damage_of
from spark_analysis.importing.trace_reader import trace_files
from spark_analysis.importing.trace_rows import RowMaker, TraceSplit, read_rows

MOST_BYTES: Final = 16 << 20
SETTLE_S: Final = 2.0
_NOTHING_READ: Final = {"bytes": 0, "damage": None, "is_cut": False}
Offset = dict[str, Any]


class TraceRange(InputPartition):
    """The share of one task, which makes rows of it: a range of a file, without the damage at its end, or the moment
    that was reached.

    ``after`` is the damage that the range begins with: its first record stands behind a header.
    """

    def __init__(
        self,
        split: TraceSplit | None,
        after: Damage | None = None,
        damage: Damage | None = None,
        read_to_ns: int | None = None,
    ) -> None:
        super().__init__(None)
        self.split, self.after, self.damage, self.read_to_ns = split, after, damage, read_to_ns


class TraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Options: ``path``, ``maxBytesPerTrigger``, and ``settleSeconds``: recorders hold no record back for longer."""

    def __init__(self, options: Any) -> None:
        self._path: str = options["path"]
        self._settle_ns = int(float(options.get("settleSeconds", SETTLE_S)) * 1e9)
        self._most_bytes = int(options.get("maxBytesPerTrigger", MOST_BYTES))
        self._told: Offset = {}
        self._traces = FollowedTraces(self._path, self._settle_ns)
        self._sizes: dict[str, int] | None = None
        self._at_ns: int | None = None

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's names
        return {"files": {}, "read_to_ns": None}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self._most_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        try:
            self._sizes = {name: Path(name).stat().st_size for name in trace_files(self._path)}
        except FileNotFoundError:
            self._sizes = {}
        # What was not read yet must not be taken for something that does not exist.
        self._at_ns = monotonic_ns()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        now_ns = self._at_ns or monotonic_ns()
        if start != self._told:
            self._traces = FollowedTraces(self._path, self._settle_ns)
            self._traces.go_on(start["files"], now_ns)
        self._traces.most_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else 1 << 62
        self._traces.pass_over(now_ns, self._sizes)
        if self._sizes is not None and self._traces.place == start["files"]:
            # All that is available was read. An unfinished record or header at the end is reported as damage, without
            # waiting for the rest.
            self._traces.pass_over(now_ns + 2 * self._settle_ns + 1, self._sizes)
        reached = (start["read_to_ns"], self._traces.cut_ns(now_ns))
        read_to_ns = max((one for one in reached if one is not None), default=None)
        self._told = {"files": self._traces.place, "read_to_ns": read_to_ns}
        return self._told

    def partitions(self, start: Offset, end: Offset) -> Sequence[TraceRange]:
        found = []
        for name, told in end["files"].items():
            before = start["files"].get(name, _NOTHING_READ)
            if name in start["files"] and all(told[one] == before[one] for one in _NOTHING_READ):
                continue
            split = TraceSplit(
                *(name, told["number"], before["bytes"], told["bytes"]),
                *(axis_of(told["axis"]), told["problem"]),
            )
            (after, _), (damage, cut) = damage_of(name, before), damage_of(name, told)
            found.append(TraceRange(split, after, damage or cut))
        if end["read_to_ns"] != start["read_to_ns"]:
            found.append(TraceRange(None, read_to_ns=end["read_to_ns"]))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TraceRange):  # else it stands for a plan without partitions
            yield from arrow_batches(rows_of(partition), schema.RECORDS)


def rows_of(part: TraceRange) -> Iterator[Row]:
    """The rows of one range, in the order of schema.RECORDS. Raises OSError if the file does not have it any more."""
    split = part.split
    if split is None:
        told: dict[str, Any] = {"record": "read_to", "time_ns": part.read_to_ns}
        yield tuple(told.get(name) for name, _, _ in schema.RECORD_COLUMNS)
    elif split.problem is not None:
        yield from read_rows(split)
    else:
        rows = RowMaker(split)
        tail = TraceTail(split.file, piece_bytes=split.stop, position=split.start, damage=part.after)
        with Path(split.file).open("rb") as stream:
            for position, item in tail.read(stream, split.stop):
                yield from rows.of(position, item)
        if tail.position != split.stop:
            raise OSError(f"{split.file} has changed: its bytes to {split.stop} are not what they were")
        if part.damage is not None:
            yield from rows.of(split.stop, part.damage)
        yield from rows.open_halves()

"""``spark.read.format("trivet_trace")``: CBOR traces as one wide table (schema.RECORDS), decoded once, in
parallel.

Large files are split at their repeated headers. An operation whose invocation and completion fall into the
same split, that is nearly every one, leaves the reader as one finished row; the few others come as halves of
record type ``invocation`` and ``completion``, which :mod:`spark_analysis.importing.history` joins. Times are brought to
one axis here: files of another clock than the first file's are shifted by their wall clocks and their
operations widened by the stated error.

What cannot be true is left out here, as damage with its place: a record of a wrong shape, one whose time is decades
away from the others (:mod:`spark_analysis.importing.moments`), a completion that does not fit its invocation. An
operation whose completion is left out has an unknown outcome.
"""

import errno
import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from broker.trace import TraceFormatError, TraceHeader, read_items
from broker.trace.events import MAX_INTEGER, MIN_TIME_NS
from broker.trace.format import FIRST_FOREIGN_KIND, TRACE_SUFFIX
from spark_analysis.importing import schema
from spark_analysis.importing.arrow import arrow_batches
from spark_analysis.importing.moments import SAMPLE, Period, middle, period_around
from spark_analysis.importing.trace_rows import Axis, TraceSplit, read_rows

SPLIT_BYTES: Final = 32 << 20


def trace_files(path: str) -> list[str]:
    """The files of one history, absolute: a file itself, each ``*.trace`` of a directory, or of what a glob matches.

    Sorted. Absolute, because executors run in directories of their own. Raises FileNotFoundError if there is none.
    """
    matches = [path] if Path(path).exists() else sorted(glob.glob(path))  # noqa: PTH207 - a user's pattern
    places = [Path(match) for match in matches]
    found: list[str] = []
    for place in places:
        inside = sorted(file for file in place.glob(f"*{TRACE_SUFFIX}") if file.is_file())
        files = inside if place.is_dir() else [place]
        found += [str(file.resolve()) for file in files]
    if not found:
        raise FileNotFoundError(
            errno.ENOENT, f"no trace file, and no directory or glob with *{TRACE_SUFFIX}", path
        )
    return list(dict.fromkeys(found))


class TraceReader(DataSourceReader):
    """Plans splits from file sizes and headers on the driver; decodes on the executors."""

    def __init__(self, options: Any) -> None:
        self._path: str = options["path"]
        self._split_bytes = int(options.get("splitBytes", SPLIT_BYTES))

    def partitions(self) -> list[TraceSplit]:
        files = [beginning_of(name) for name in trace_files(self._path)]
        splits: list[TraceSplit] = []
        for number, (file, axis) in enumerate(zip(files, axes_of(files), strict=True)):
            size = max(1, Path(file.name).stat().st_size)
            if isinstance(axis, str):
                splits.append(TraceSplit(file.name, number, 0, size, Axis(), axis))
                continue
            for start in range(0, size, self._split_bytes):
                stop = min(size, start + self._split_bytes)
                splits.append(TraceSplit(file.name, number, start, stop, axis))
        return splits

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TraceSplit)
        yield from read_batches(partition)


def read_batches(split: TraceSplit) -> Iterator[pa.RecordBatch]:
    """The rows of one split in batches, with the columns of schema.RECORDS."""
    return arrow_batches(read_rows(split), schema.RECORDS)


@dataclass(frozen=True, slots=True)
class _File:
    """The knowledge about a trace from its beginning: its header (None if it has none) and where most of its times
    are."""

    name: str
    header: TraceHeader | None
    middle_ns: int | None


def beginning_of(name: str) -> _File:
    header: TraceHeader | None = None
    times: list[int] = []
    with Path(name).open("rb") as stream:
        try:
            for _, item in islice(read_items(stream, name), SAMPLE):
                if isinstance(item, TraceHeader):
                    header = item
                elif isinstance(item, list) and item[0] < FIRST_FOREIGN_KIND and len(item) > 1:
                    time_ns = item[1]
                    if type(time_ns) is int and MIN_TIME_NS <= time_ns <= MAX_INTEGER:
                        times.append(time_ns)
        except TraceFormatError:
            pass  # its reader reports it as damage
    return _File(name, header, middle(times))


def axes_of(files: Sequence[_File]) -> list[Axis | str]:
    """Find the way from each file's times to the history's, or the reason why a file cannot be used: it is decades away
    from the others.

    The first file's clock is the history's.
    """
    zero_wall_ns: dict[str, int] = {}
    for file in files:
        if file.header is not None:
            known = zero_wall_ns.get(file.header.clock, file.header.zero_wall_ns)
            zero_wall_ns[file.header.clock] = min(known, file.header.zero_wall_ns)
    reference = next(iter(zero_wall_ns), "")

    def shift_and_error(header: TraceHeader | None) -> tuple[int, int]:
        if header is None or header.clock == reference:
            return 0, 0
        return zero_wall_ns[header.clock] - zero_wall_ns[reference], header.clock_error_ns

    # Times of all files on the history's axis: their median tells which file is far from the others.
    moved = [(file, *shift_and_error(file.header)) for file in files]
    whole = period_around(
        middle(file.middle_ns + shift for file, shift, _ in moved if file.middle_ns is not None)
    )
    axes: list[Axis | str] = []
    for file, shift_ns, widen_ns in moved:
        period = Period(whole.low_ns + widen_ns - shift_ns, whole.high_ns - widen_ns - shift_ns)
        problem = None if file.middle_ns is None else period.complaint(file.middle_ns)
        axes.append(
            Axis(shift_ns, widen_ns, period)
            if problem is None
            else f"nothing of this file was read: by the clock of its header its {problem}"
        )
    return axes

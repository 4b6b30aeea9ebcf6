"""A short history as rows of this process, for an analysis that starts no Spark.

The files are read by the same functions as in Spark's tasks, in one part each. A file that Spark would read in several
parts is not read here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from spark_analysis.importing import schema
from spark_analysis.importing.arrow import arrow_table
from spark_analysis.importing.json_lines import PART_BYTES, PARTS, join_process, period_of, read_part
from spark_analysis.importing.lines import CUT, kind_of_damage
from spark_analysis.importing.trace_reader import TraceReader
from spark_analysis.importing.trace_rows import FILE_SHIFT, read_rows

Row = dict[str, Any]
_NAMES: Final = tuple(name for name, _, _ in schema.RECORD_COLUMNS)
_OF_OPERATIONS: Final = _NAMES[: _NAMES.index(schema.OPERATION_NAMES[-1]) + 1]
_NODE: Final = _NAMES.index("node")


@dataclass(frozen=True, slots=True)
class HistoryRows:
    """One history. ``operations`` and ``events`` have the columns of schema.RECORDS that are theirs, operations of JSON
    lines also ``called`` (:func:`~spark_analysis.importing.json_lines.load_json_lines`), ``damage`` has
    file, position, kind and reason; ``recorders`` are (client, recorder, invoke_ns) as in a ``History``."""

    path: str
    operations: list[Row]
    events: list[Row]
    damage: list[Row]
    recorders: list[tuple[str, str | None, int]] | None = None

    @property
    def values(self) -> int:
        """The number of values that the operations state in all."""
        return sum(len(one["values"] or ()) for one in self.operations)

    def records(self) -> Iterator[Row]:
        """All rows, told apart by ``record``."""
        yield from self.operations
        yield from self.events
        yield from self.damage

    def until(self, moment_ns: int) -> Self:
        """The history up to a moment: what began later is left out, and what ended later has an unknown outcome."""
        operations = [
            one
            if one["complete_ns"] is None or one["complete_ns"] <= moment_ns
            else one | schema.unanswered(one["function"])
            for one in self.operations
            if one["invoke_ns"] <= moment_ns
        ]
        return replace(self, operations=operations)


def trace_rows(path: str) -> HistoryRows | None:
    """Read the traces at ``path``; None if one of the files is too long for one part."""
    parts = TraceReader({"path": path}).partitions()
    if len({part.file for part in parts}) < len(parts):
        return None
    history = HistoryRows(path, [], [], [], [])
    assert history.recorders is not None
    for part in parts:
        for values in read_rows(part):
            record = values[0]
            if record in ("operation", "invocation"):
                row = dict(zip(_OF_OPERATIONS, values, strict=False))
                history.recorders.append((row["client"], values[_NODE], row["invoke_ns"]))
                if record == "invocation":
                    # The file is whole, so a half is an operation that nobody ever answered.
                    op = row["op"] >> FILE_SHIFT << FILE_SHIFT
                    row |= {"record": "operation", "op": op + row["position"], "outcome": "info"}
                history.operations.append(row)
                continue
            row = dict(zip(_NAMES, values, strict=True))
            if record == "damage":
                history.damage.append(row | {"reason": row["detail"]})
            elif record == "event":
                history.events.append(row)
    return history


def json_line_rows(path: str) -> HistoryRows | None:
    """Read JSON lines of the log model; None if the file is too long for one part."""
    size = Path(path).stat().st_size
    if size > PART_BYTES:
        return None
    rows = list(read_part(path, 0, 0, max(1, size), period_of(path)))
    width = len(schema.OPERATION_NAMES)
    halves = [row for row in rows if row[width + 3] in ("begun", "ended", "first")]
    whole = [(*row[: width + 3], row[-1]) for row in rows if row[width + 3] is None]
    processes: dict[str, list[Any]] = {}
    for row in halves:
        processes.setdefault(row[width + 4], []).append(row)
    for listed in processes.values():
        joined = join_process(arrow_table(listed, PARTS), {})
        whole += (tuple(row.values()) for row in joined.to_pylist())
    history = HistoryRows(path, [], [], [])
    for row in whole:
        bad, number = row[width], row[width + 1]
        if bad is None:
            operation = dict(zip(schema.OPERATION_NAMES, row, strict=False))
            history.operations.append(operation | {"record": "operation", "called": row[width + 3]})
        else:
            kind = kind_of_damage(bad, is_cut=bad == CUT)
            damage = {"file": path, "position": number, "kind": kind, "reason": bad}
            history.damage.append(damage | {"record": "damage"})
    return history

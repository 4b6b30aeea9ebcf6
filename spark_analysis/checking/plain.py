"""The check of a small history without Spark: traces as bytes in, a verdict out, by the rules in plain Python.

The simulator's runs are judged by it, and tests use it where starting Spark would take longer than the question.
"""

from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from typing import Any, Final

from spark_analysis.checking.small import check_rows
from spark_analysis.checking.verdict import Verdict
from spark_analysis.importing import schema
from spark_analysis.importing.trace_rows import FILE_SHIFT, Axis, TraceSplit, rows_in

_NAMES: Final = tuple(name for name, _, _ in schema.RECORD_COLUMNS)


def check_traces(
    traces: Mapping[str, bytes], *, is_judged: Callable[[str], bool] = lambda key: True
) -> Verdict:
    """Judge the clients' operations in ``traces`` (name -> content), which must share one clock.

    ``is_judged`` chooses the keys (``topic/broker:queue``). What cannot be read is the verdict's ``damage``.
    """
    rows: list[dict[str, Any]] = []
    for number, (name, content) in enumerate(traces.items()):
        rows += (row for row in _rows(number, name, content) if row["key"] is None or is_judged(row["key"]))
    return check_rows("", rows)


def _rows(number: int, name: str, content: bytes) -> Iterator[dict[str, Any]]:
    """The operations and the damage of one trace, as :func:`check_rows` takes them."""
    for values in rows_in(BytesIO(content), TraceSplit(name, number, 0, max(1, len(content)), Axis())):
        row = dict(zip(_NAMES, values, strict=True))
        if row["record"] == "invocation":
            # The trace is whole, so a half is an operation that nobody ever answered.
            row |= {"record": "operation", "op": number << FILE_SHIFT | row["position"], "outcome": "info"}
        if row["record"] == "damage":
            row["reason"] = row["detail"]
        if row["record"] in ("operation", "damage"):
            yield row

"""Sweeps over long sequences on many machines: running minima, maxima and sums, without one task for one sequence.

A window that is partitioned by a sequence's key alone puts the sequence on one task. Here every sequence is cut into
buckets, ranges of what it is ordered by: a window inside each bucket, one row for each bucket with what the bucket
hands on (the boundary rows), a window over those few, and both are put together. A sequence of 10**8 rows in buckets
of 65,536 has 1,526 boundary rows. Sums, minima and maxima are associative, so the result is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.sql import Window
from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ROWS_OF_A_BUCKET: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Running:
    """The ``aggregate`` of ``column`` over the rows before each row, or behind it if ``backwards``.

    ``inclusive``: and over the row itself. Rows where the column is null do not count.
    """

    aggregate: Literal["min", "max", "sum"]
    column: str
    backwards: bool = False
    inclusive: bool = False


def running(
    rows: DataFrame, keys: Sequence[str], bucket: Sequence[str], order: Sequence[str], **wanted: Running
) -> DataFrame:
    """``rows`` with one more column for each of ``wanted``; null where nothing came before (0 for a sum).

    ``order`` sorts the rows of one key, ``bucket`` the buckets: rows that are earlier by ``order`` must not be in a
    later bucket. None of the columns of ``keys`` and ``bucket`` may be null.
    """
    inside = Window.partitionBy(*keys, *bucket)
    along = Window.partitionBy(*keys)
    boundaries = (
        rows.groupBy(*keys, *bucket)
        .agg(*(_aggregate(one, one.column).alias(name) for name, one in wanted.items()))
        .select(
            *keys,
            *bucket,
            *(
                _aggregate(one, name)
                .over(_ordered(along, bucket, one).rowsBetween(Window.unboundedPreceding, -1))
                .alias(_outside(name))
                for name, one in wanted.items()
            ),
        )
    )
    local = {
        _inside(name): _aggregate(one, one.column).over(
            _ordered(inside, order, one).rowsBetween(Window.unboundedPreceding, 0 if one.inclusive else -1)
        )
        for name, one in wanted.items()
    }
    # The rows lie by bucket, in order, and stay where they are. A join that broadcasts the smaller side could choose
    # them, and bring them to the task that has all boundaries of their sequence.
    return (
        rows.withColumns(local)
        .join(boundaries.hint("merge"), [*keys, *bucket])
        .select(*rows.columns, *(_together(one, name).alias(name) for name, one in wanted.items()))
    )


def _inside(name: str) -> str:
    return f"{name} inside"


def _outside(name: str) -> str:
    return f"{name} outside"


def _aggregate(one: Running, column: str) -> Column:
    functions = {"min": sf.min, "max": sf.max, "sum": sf.sum}
    return functions[one.aggregate](column)


def _ordered(window: Any, columns: Sequence[str], one: Running) -> Any:
    return window.orderBy(*(sf.desc(column) if one.backwards else sf.asc(column) for column in columns))


def _together(one: Running, name: str) -> Column:
    inside, outside = sf.col(f"`{_inside(name)}`"), sf.col(f"`{_outside(name)}`")
    if one.aggregate == "min":
        return sf.least(inside, outside)
    if one.aggregate == "max":
        return sf.greatest(inside, outside)
    return sf.coalesce(inside, sf.lit(0)) + sf.coalesce(outside, sf.lit(0))


def by_quantiles(rows: DataFrame, column: str, count: int) -> Column:
    """A bucket number for ``column`` such that buckets have about :data:`ROWS_OF_A_BUCKET` of the ``count`` rows.

    For what is ordered by time, whose density nobody knows: the boundaries are quantiles, one row on the driver.
    """
    buckets = count // ROWS_OF_A_BUCKET
    if buckets < 2:
        return sf.lit(0)
    shares = [number / buckets for number in range(1, buckets)]
    boundaries = rows.agg(sf.percentile_approx(column, shares, 10_000)).collect()[0][0] or []
    literal = sf.array(*(sf.lit(boundary) for boundary in sorted(set(boundaries))))
    return sf.size(sf.filter(literal, lambda boundary: boundary <= sf.col(column)))

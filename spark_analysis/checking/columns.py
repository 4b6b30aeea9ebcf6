"""Findings on DataFrames: (key, kind, position, lower, upper), as every rule states them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def nothing() -> Column:
    """A null of the type BIGINT."""
    return sf.lit(None).cast("bigint")


def found_in(
    rows: DataFrame,
    kind: Column | str,
    position: Column | str = "position",
    lower: Column | None = None,
    upper: Column | None = None,
    **more: Column,
) -> DataFrame:
    """A finding for each of ``rows``, which have a ``key``, with ``more`` columns behind it.

    ``kind`` is a name, or a column of names. ``lower`` is when an operation began that had to be earlier, and ``upper``
    when one ended that had to be later: together they name the operations that prove a finding about an order.
    """
    return rows.select(
        "key",
        (sf.lit(kind) if isinstance(kind, str) else kind).alias("kind"),
        (sf.col(position) if isinstance(position, str) else position).alias("position"),
        (nothing() if lower is None else lower).alias("lower"),
        (nothing() if upper is None else upper).alias("upper"),
        *(column.alias(name) for name, column in more.items()),
    )


def together(frames: Iterable[DataFrame]) -> DataFrame:
    """All rows of frames, of which there is at least one, with the same columns in any order."""
    return reduce(lambda one, other: one.unionByName(other), frames)

"""Rows that later queries ask for again and again, kept once.

``persist`` keeps rows, but every query over them is analysed, optimised and described with all that led to them: with
persisted frames made of persisted frames, planning and describing a query (Spark writes each plan down, and again after
each of its stages) costs far more than running it. What is kept here is a new beginning: a query over it knows nothing
of how it came about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import StorageLevel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def kept(rows: DataFrame) -> DataFrame:
    """Return the same rows; the first query that asks for them computes them and keeps them on the executors' disks.

    Meant for tables that are small against the history: rows are kept one by one, where ``persist`` packs columns.
    Spark removes them when nothing refers to the frame any more. They are lost with an executor, and with them the
    analysis.
    """
    return rows.localCheckpoint(eager=False, storageLevel=StorageLevel.DISK_ONLY)

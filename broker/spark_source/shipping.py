"""Brings the reader's code to executors that are processes of their own.

Third-party packages have to be there: PySpark, PyArrow and what the client needs (docs/spark.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.trace.archive import package_archive, ship

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ROOMS: Final = ("broker", "log", "raft")
"""All rooms that the client imports from, whole: half a MiB, and no list of modules that somebody has to keep."""


def ship_rooms(spark: SparkSession) -> None:
    """Send the rooms that the reader imports from to the session's executors, unless they are in this process."""
    ship(spark.sparkContext, rooms_archive)


def rooms_archive() -> Path:
    """Return a zip of those rooms that lives as long as this process, or the zip that this code was imported from."""
    return package_archive("trivet_spark_source.zip", "*.py", *ROOMS)

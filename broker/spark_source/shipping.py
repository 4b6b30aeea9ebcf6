"""Brings the reader's code to executors that are processes of their own.

Third-party packages have to be there: PySpark, PyArrow and what the client needs (docs/spark.md).
"""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOMS: Final = ("broker", "log", "raft")
"""All rooms that the client imports from, whole: half a MiB, and no list of modules that somebody has to keep."""


def ship(spark: SparkSession) -> None:
    """Send the rooms that the reader imports from to the session's executors, unless they are in this process."""
    if not re.fullmatch(r"local(\[.*\])?", str(spark.sparkContext.master)):
        spark.sparkContext.addPyFile(str(package_archive()))


def package_archive() -> Path:
    """Return a zip of those rooms that lives as long as this process, or the zip that this code was imported from."""
    root = Path(__file__).resolve().parents[__name__.count(".")]
    if root.is_file():
        return root
    directory = tempfile.mkdtemp(prefix="trivet-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    target = Path(directory, "trivet_spark_source.zip")
    # The same folder in a checkout, where rooms are no part of a package.
    trivet = root.joinpath(*__name__.split(".")[:-3])
    files = [*trivet.glob("__init__.py"), *(file for room in ROOMS for file in (trivet / room).rglob("*.py"))]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(files):
            archive.write(file, file.relative_to(root))
    return target

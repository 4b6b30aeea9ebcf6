"""The reader's code on its way to executors that are processes of their own.

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

_PARTS: Final = (
    *("broker/__init__.py", "broker/topics.py"),
    *("broker/client", "broker/remoting", "broker/spark_source", "broker/trace", "log"),
)


def ship(spark: SparkSession) -> None:
    """Send the packages that the reader imports to the session's executors, unless they are in this process."""
    if not re.fullmatch(r"local(\[.*\])?", str(spark.sparkContext.master)):
        spark.sparkContext.addPyFile(str(package_archive()))


def package_archive() -> Path:
    """A zip of those packages that lives as long as this process; the zip that this code came in, if it did."""
    root = Path(__file__).resolve().parents[2]
    if root.is_file():
        return root
    directory = tempfile.mkdtemp(prefix="trivet-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    target = Path(directory, "trivet_spark_source.zip")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for part in _PARTS:
            place = root / part
            for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
                archive.write(path, path.relative_to(root))
    return target

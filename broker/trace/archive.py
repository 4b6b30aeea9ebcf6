"""A zip of folders of this project, for the Python path of processes that have nothing of it: Spark's executors.

It stands in this room since both that ship code import from here: the reader of topics (`broker.spark_source`), and the
analysis, which imports nothing else of the broker.
"""

import atexit
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def ship(context: Any, archive: Callable[[], Path]) -> None:
    """Send an archive to the executors of a Spark context, unless they are in this process."""
    if not re.fullmatch(r"local(\[.*\])?", str(context.master)):
        context.addPyFile(str(archive()))


def package_archive(name: str, pattern: str, *folders: str) -> Path:
    """Returns a zip of the files that match in these folders, of what a checkout has at its top; it is called `name`.

    It lives as long as this process. Where this code was itself imported from a zip (a driver that runs inside the
    cluster), it is that one. Raises OSError.
    """
    root = Path(__file__).resolve().parents[__name__.count(".")]
    if root.is_file():
        return root
    # The same folder in a checkout, where rooms are no part of a package.
    trivet = root.joinpath(*__name__.split(".")[:-3])
    files: set[Path] = set()
    for folder in map(trivet.joinpath, folders):
        files.update(file for file in folder.rglob(pattern) if "__pycache__" not in file.parts)
        above = [parent for parent in folder.parents if parent.is_relative_to(trivet)]
        files.update(file for parent in above for file in parent.glob("__init__.py"))
    directory = tempfile.mkdtemp(prefix="trivet-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    target = Path(directory, name)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(files):
            archive.write(file, file.relative_to(root))
    return target

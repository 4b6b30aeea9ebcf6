"""The order of a node's files. Its events are in the order in which they stand in a file, and a node may have several.

All processes of a node append to one file until their machine is started anew; then the next one is begun, with a
number before its suffix: n0.trace, n0.1.trace, n0.2.trace (broker/shell/trace_file.py). Their names sort in another
order, and their times are those of different clocks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column

_NAME: Final = r"(?s)^(.*?)(?:\.([0-9]{1,9}))?\.trace$"


def place_of_file(file: str) -> tuple[str, int]:
    """A key by which the files of a node sort: the name of the first one, and the number."""
    found = re.fullmatch(_NAME, file)
    return (found[1], int(found[2] or 0)) if found is not None else (file, 0)


def file_columns() -> dict[str, Column]:
    """The two parts of :func:`place_of_file` of the column ``file``, as the columns ``stem`` and ``number``."""
    from pyspark.sql import functions as sf

    number = sf.nullif(sf.regexp_extract("file", _NAME, 2), sf.lit("")).cast("int")
    stem = sf.when(sf.rlike("file", sf.lit(_NAME)), sf.regexp_extract("file", _NAME, 1)).otherwise(
        sf.col("file")
    )
    return {"stem": stem, "number": sf.coalesce(number, sf.lit(0))}

"""Names of places for Spark's file systems, whatever characters a user's paths have.

Hadoop takes a path as text, not as a URL: of ``Path.as_uri()`` the ``%20`` would become a directory of that name. And
what Spark reads is a pattern, in which brackets, braces and stars mean something; what it writes is not.
"""

import re
from pathlib import Path


def place_of(path: Path) -> str:
    """The place of a local path, to be written."""
    return f"file://{path.resolve()}"


def pattern_of(place: str) -> str:
    """The pattern that only ``place`` matches, to be read."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", place)

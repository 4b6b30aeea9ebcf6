"""Names of registers: the position of a consumer group in a queue is called "queue group".

Queues and consumer groups of other systems may have spaces in their names, and two registers must not be taken for one.
So a space in a queue's name is written with a backslash before it, as for a shell; the first space without one
separates.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column


def register_name(queue: str, group: str | None) -> str:
    """The name of the register; of a queue alone if there is no consumer group."""
    escaped = queue.replace("\\", "\\\\").replace(" ", "\\ ")
    return escaped if group is None else f"{escaped} {group}"


def register_column() -> Column:
    """:func:`register_name` of the columns ``key`` and ``group``."""
    from pyspark.sql import functions as sf

    escaped = sf.replace(sf.replace("key", sf.lit("\\"), sf.lit("\\\\")), sf.lit(" "), sf.lit("\\ "))
    return sf.concat_ws(" ", escaped, "group")


def queue_and_group(register: str) -> tuple[str, str]:
    """Take a register's name apart into queue and consumer group; the consumer group is "" if :func:`register_name` was
    given none."""
    found = re.fullmatch(r"((?:[^\\ ]|\\.)*) ?(.*)", register, re.DOTALL)
    assert found is not None
    return re.sub(r"\\(.)", r"\1", found[1]), found[2]

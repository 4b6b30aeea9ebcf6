"""Random logs of several files, and what they consist of, for tests that damage them."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from log.entries.entry_log import EntryLog
from log.formats.layout import MARKER_BYTES
from log.options import StoreOptions
from tests.log.memory_disk import MemoryDisk

FILE = 512
OPTIONS = StoreOptions(
    data_file_bytes=FILE,
    index_file_units=5,
    prepare_ahead_bytes=300,
    prepare_step_bytes=100,
    data_mappings=2,
)


@dataclass(frozen=True)
class Thing:
    """An entry, or the end marker before entry `index`: bytes [begin, end) of the log."""

    index: int
    begin: int
    end: int
    is_marker: bool


@st.composite
def logs(draw: Any, disk: MemoryDisk) -> EntryLog:
    """A log of up to some ten files with entries of several terms."""
    log, _ = EntryLog.open(disk, "d", OPTIONS)
    term = 1
    for _ in range(draw(st.integers(2, 40))):
        term += draw(st.sampled_from([0, 0, 0, 1, 3]))
        log.append(term, draw(st.binary(min_size=1, max_size=200)))
    return log


def things_of(log: EntryLog) -> list[Thing]:
    """All that a log consists of, in its order."""
    things: list[Thing] = []
    for index in range(log.first_index, log.last_index + 1):
        begin = log.position_of(index)
        if things and things[-1].end != begin:
            things.append(Thing(index, things[-1].end, things[-1].end + MARKER_BYTES, is_marker=True))
        things.append(Thing(index, begin, log.end_of(index), is_marker=False))
    return things


def data_files(disk: MemoryDisk) -> dict[int, Any]:
    """The data files by where they begin in the log."""
    return {int(path[-20:]): file for path, file in disk.files.items() if "/data/" in path}

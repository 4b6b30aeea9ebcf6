"""The data files of a node's log on its simulated disk, by name and with what a process sees in them."""

from log.entries.entry_log import EntryLog
from log.formats.layout import ENTRY_MAGIC, HEADER, HEADER_BYTES, file_name
from log.options import StoreOptions
from simulation.machines.simulated_disk import SimulatedDisk


def data_file(options: StoreOptions, start: int) -> str:
    """Returns the path of the data file that begins at that position of the log."""
    return f"{options.dledger_directory}/data/{file_name(start)}"


def cached_files(disk: SimulatedDisk, options: StoreOptions, log: EntryLog) -> dict[int, bytes]:
    """Returns the log's data files as they are in the page cache, by the position where each begins."""
    file_bytes = options.data_file_bytes
    first = log.first_position - log.first_position % file_bytes
    return {
        start: disk.cached_bytes(data_file(options, start))
        for start in range(first, log.end_position, file_bytes)
    }


def first_entry(disk: SimulatedDisk, options: StoreOptions, start: int) -> tuple[int, bytes] | None:
    """Returns (index, record) of the entry with which the data file of that position begins, as it is in the page
    cache; None if no entry is there.

    The node notices nothing of it. Its own reads would map files for which there may be no descriptor later on.
    """
    data = disk.cached_bytes(data_file(options, start))
    if len(data) < HEADER_BYTES:
        return None
    magic, size, index, _, position, *_ = HEADER.unpack_from(data)
    return (index, data[HEADER_BYTES:size]) if (magic, position) == (ENTRY_MAGIC, start) else None

"""Sizes and limits of a store, in one frozen struct.

The defaults are RocketMQ's file sizes (docs/storage.md), so that its tools read a store; tests use files of a
few kilobytes, so that every roll happens many times. A store must always be opened with the file sizes it
was made with: positions in the log depend on them, on every replica alike.
"""

from dataclasses import dataclass

from log.formats.loops import PURE, Loops
from log.formats.own_topics import DEFAULT_DELAY_LEVELS_MS


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """All sizes in bytes unless the name says otherwise."""

    dledger_directory: str = "dledger-n0"
    """`dledger-<selfId>`: data/, index/, currterm and checkpoint of the entry log."""

    data_file_bytes: int = 1 << 30
    index_file_units: int = 5 * 1024 * 1024
    data_mappings: int = 16
    """Data files mapped at once; older ones are mapped again when a reader asks for them."""

    prepare_ahead_bytes: int = 16 << 20
    """The bytes of the data files that are allocated and touched ahead of the writer."""
    prepare_step_bytes: int = 2 << 20
    """Preparation starts when this much of what was prepared is used up. Touched pages are dirty: every one
    is written once more by the next flush, so steps are small beside what a flush may take."""

    write_buffer: bool = False
    """New data files are written in memory of the process's own and handed to the kernel once a turn, as with
    RocketMQ's transient store pool. This takes up to two data files of memory."""
    hot_bytes: int = 1 << 30
    """The bytes at the log's end that are taken to be in memory; older ones are loaded before they are read."""

    unclean_scan_files: int = 3
    """The number of data files at the end that are checked after an unclean stop, and never less than what was
    written after the last checkpoint."""
    zero_gap_bytes: int = 16 << 20
    """Zeros for so long behind the last entry mean that nothing more follows in that file."""

    consume_queue_file_units: int = 300_000
    consume_queue_mappings: int = 256
    """ConsumeQueue files mapped at once, of all queues together. Each takes two descriptors."""

    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    """Per IndexFile; entry 0 is never used."""
    index_mappings: int = 8

    timer_run_units: int = 4096
    """Timed messages that may wait in memory before they become a sorted run."""

    dispatch_entries: int = 4096
    """Entries that are dispatched at once: some 8 ms, in which a node does nothing else."""

    dispatch_files: int = 32
    """ConsumeQueue files that one dispatch maps, and makes where they are missing: 0.1 to 0.3 ms each, and a client may
    send to as many queues as it likes."""

    dispatch_keys: int = 16_384
    """Keys that one dispatch puts into index files: some 6 ms. A message may have a thousand."""

    batch_messages: int = 1000
    """Messages of a batch that are checked, or appended, at once: some 3 to 5 ms."""

    delay_levels_ms: tuple[int, ...] = DEFAULT_DELAY_LEVELS_MS

    loops: Loops = PURE
    """The code that goes over the bytes. Both leave the same."""

    def __post_init__(self) -> None:
        assert self.data_file_bytes >= 256, "a data file holds at least one small entry"
        assert self.index_file_units >= 1, "an index file holds at least one unit"
        assert self.consume_queue_file_units >= 1, "a ConsumeQueue file holds at least one unit"
        assert self.index_slots >= 1, "an IndexFile has at least one slot"
        assert self.dispatch_entries >= 1, "each dispatch has an entry"
        assert self.timer_run_units >= 2, "half of the units of a run are one at least"
        assert self.dispatch_files >= 1, "each dispatch has a file"
        assert self.dispatch_keys >= 1, "each dispatch has a key"
        assert self.batch_messages >= 1, "each slice of a batch has a message"
        assert self.index_entries >= 2, "an IndexFile holds at least one entry beside the unused one"
        assert min(self.data_mappings, self.consume_queue_mappings, self.index_mappings) >= 2

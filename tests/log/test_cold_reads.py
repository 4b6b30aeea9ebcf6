"""Cold reads: what is near the log's end is never loaded, what lies before is, once for a while."""

import pytest

from log.entries.cold_reads import KEPT_NS, WINDOWS_MAX, ColdReads
from log.entries.entry_log import EntryLog
from log.options import StoreOptions
from tests.log.memory_disk import MemoryDisk, MemoryMapped

WINDOW = 1 << 12
FILE = 1 << 14


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("log.entries.cold_reads.WINDOW_BYTES", WINDOW)


def log_of(size: int) -> EntryLog:
    options = StoreOptions(data_file_bytes=FILE, index_file_units=4096, prepare_ahead_bytes=FILE)
    log, _ = EntryLog.open(MemoryDisk(), "d", options)
    while log.end_position < size:
        log.append(1, bytes(1000))
    return log


def test_the_end_of_the_log_is_taken_to_be_in_memory() -> None:
    log = log_of(3 * FILE)
    cold = ColdReads(log, hot_bytes=FILE)
    assert cold.missing(log.end_position - FILE, 0) is None
    assert cold.missing(log.end_position - FILE - 1, 0) is not None
    assert cold.is_hot(log.end_position - FILE)
    assert not cold.is_hot(log.end_position - FILE - 1)


def test_a_window_is_loaded_once_for_a_while() -> None:
    log = log_of(3 * FILE)
    cold = ColdReads(log, hot_bytes=FILE)
    job = cold.missing(WINDOW + 5, 0)
    assert job is not None
    job.run()
    mapped, _ = log.file_of(0)
    assert isinstance(mapped, MemoryMapped)
    assert mapped.loads[-1] == (WINDOW, 2 * WINDOW)
    cold.loaded(job, 0)
    assert cold.missing(2 * WINDOW - 1, KEPT_NS - 1) is None
    assert cold.missing(WINDOW, KEPT_NS) is None, "every use keeps it for longer"
    assert cold.missing(WINDOW, 3 * KEPT_NS) is not None, "the kernel may have taken it back"


def test_what_the_reader_has_passed_goes_first() -> None:
    log = log_of(3 * FILE)
    cold = ColdReads(log, hot_bytes=FILE)
    mapped, _ = log.file_of(0)
    assert isinstance(mapped, MemoryMapped)
    for window in range(3):
        job = cold.missing(window * WINDOW, 0)
        assert job is not None
        job.run()
    assert mapped.cooled == [(0, WINDOW)], "the window before the one that is being read is not taken yet"


def test_few_windows_count_as_loaded() -> None:
    log = log_of((WINDOWS_MAX + 8) * WINDOW)
    cold = ColdReads(log, hot_bytes=0)
    for window in range(WINDOWS_MAX + 1):
        job = cold.missing(window * WINDOW, 0)
        assert job is not None
        cold.loaded(job, 0)
    assert cold.missing(0, 0) is not None
    assert cold.missing(WINDOWS_MAX * WINDOW, 0) is None

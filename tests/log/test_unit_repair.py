"""Damaged index units are made from the entries when they are read, a few pages at a time in a node that runs."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from log.entries.entry_log import EntryLog
from log.entries.entry_reads import index_at
from log.entries.unit_repair import PIECES_AT_ONCE
from log.errors import DamagedEntryError
from log.formats.layout import UNIT_BYTES
from log.options import StoreOptions
from tests.log.damaged_logs import OPTIONS, logs, things_of
from tests.log.memory_disk import PAGE, MemoryDisk

MADE_AT_ONCE = PIECES_AT_ONCE * PAGE // UNIT_BYTES


def reopened(disk: MemoryDisk, log: EntryLog, options: StoreOptions) -> tuple[MemoryDisk, EntryLog]:
    """The log after an orderly stop: only the units of the last data file are looked at."""
    after = disk.kill()
    again, _ = EntryLog.open(after, "d", options, clean_stop=True, checkpoint_index=log.last_index)
    return after, again


@given(st.data())
def test_whatever_is_damaged_each_unit_leads_to_its_entry(data: st.DataObject) -> None:
    disk = MemoryDisk()
    log = data.draw(logs(disk))
    indices = range(log.first_index, log.last_index + 1)
    wanted = [(log.position_of(index), log.end_of(index), log.term_of(index)) for index in indices]
    after, again = reopened(disk, log, OPTIONS)
    looked_at = index_at(again, again.file_starts()[-1])
    for index in data.draw(st.sets(st.integers(0, looked_at - 1))) if looked_at else ():
        damage(after, index, data.draw)
    if data.draw(st.booleans()):
        again.damage.tell = lambda: None
    for index in data.draw(st.permutations(indices)):
        assert (again.position_of(index), again.end_of(index), again.term_of(index)) == wanted[index]
    assert not again.damage.entries


def damage(disk: MemoryDisk, index: int, draw: Any) -> None:
    start, at = divmod(index * UNIT_BYTES, OPTIONS.index_file_units * UNIT_BYTES)
    seen = disk.files[f"d/index/{start * OPTIONS.index_file_units * UNIT_BYTES:020d}"].seen
    if draw(st.booleans()):
        seen[at : at + UNIT_BYTES] = bytes(UNIT_BYTES)
    else:
        seen[at + draw(st.integers(0, UNIT_BYTES - 1))] ^= 1 << draw(st.integers(0, 7))


@pytest.fixture
def without_units() -> tuple[EntryLog, list[int], bytearray, bytes]:
    """A log whose units are gone; the positions of its entries, the units, and what they were."""
    options = StoreOptions(data_file_bytes=1 << 18, index_file_units=1 << 13)
    disk = MemoryDisk()
    log, _ = EntryLog.open(disk, "d", options)
    for _ in range(3 * MADE_AT_ONCE):
        log.append(1, b"body")
    positions = [log.position_of(index) for index in range(log.last_index + 1)]
    after, again = reopened(disk, log, options)
    last_file_begins = positions.index(log.file_starts()[-1])
    assert last_file_begins > 2 * MADE_AT_ONCE
    seen = after.files[f"d/index/{0:020d}"].seen
    units = bytes(seen)
    seen[: last_file_begins * UNIT_BYTES] = bytes(last_file_begins * UNIT_BYTES)
    return again, positions[:last_file_begins], seen, units


def test_a_node_that_runs_makes_a_few_pages_of_them_for_each_reader(
    without_units: tuple[EntryLog, list[int], bytearray, bytes],
) -> None:
    log, positions, seen, units = without_units
    told: list[str] = []
    log.damage.tell = lambda: told.append("")
    last = len(positions) - 1
    for tries in range(1, 3):
        with pytest.raises(DamagedEntryError) as caught:
            log.position_of(last)
        made = tries * MADE_AT_ONCE
        assert caught.value.position == positions[made - 1] + positions[1]
        assert seen[: made * UNIT_BYTES] == units[: made * UNIT_BYTES]
        assert not any(seen[made * UNIT_BYTES : (last + 1) * UNIT_BYTES])
        assert len(told) == tries
    assert log.position_of(last) == positions[last]
    assert seen == units


def test_a_start_makes_all_of_them(without_units: tuple[EntryLog, list[int], bytearray, bytes]) -> None:
    log, positions, seen, units = without_units
    assert log.position_of(len(positions) - 1) == positions[-1]
    assert seen == units


@given(st.data())
def test_a_start_knows_the_terms_of_entries_that_are_damaged(data: st.DataObject) -> None:
    """Seed 8840559: a run of old entries was overwritten, and the next start refused to go on."""
    disk = MemoryDisk()
    log = data.draw(logs(disk))
    terms = [log.term_of(index) for index in range(log.last_index + 1)]
    things = things_of(log)
    last_file = log.file_starts()[-1]
    old = [thing for thing in things if thing.end <= last_file and not thing.is_marker]
    if not old:
        return
    first = data.draw(st.integers(0, len(old) - 1))
    # The first entry of a file is where a start begins to read.
    hit = [
        one
        for one in old[first : first + data.draw(st.integers(1, 12))]
        if one.begin % OPTIONS.data_file_bytes
    ]
    for thing in hit:
        start, at = divmod(thing.begin, OPTIONS.data_file_bytes)
        seen = disk.files[f"d/data/{start * OPTIONS.data_file_bytes:020d}"].seen
        seen[at : at + thing.end - thing.begin] = bytes(thing.end - thing.begin)
    _, again = reopened(disk, log, OPTIONS)
    assert [again.term_of(index) for index in range(again.last_index + 1)] == terms
    for thing in hit:
        with pytest.raises(DamagedEntryError):
            again.position_of(thing.index)


def test_a_start_does_not_guess_a_term() -> None:
    """The damaged entry stands between those of two terms, and its unit is gone."""
    disk = MemoryDisk()
    log, _ = EntryLog.open(disk, "d", OPTIONS)
    for term in (1, 1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3):
        log.append(term, bytes(100))
    position, unit = log.position_of(2), 2 * UNIT_BYTES
    assert log.end_of(2) < log.file_starts()[-1]
    start, at = divmod(position, OPTIONS.data_file_bytes)
    disk.files[f"d/data/{start * OPTIONS.data_file_bytes:020d}"].seen[at : at + 100] = bytes(100)
    units = disk.files[f"d/index/{0:020d}"].seen
    units[unit : unit + UNIT_BYTES] = bytes(UNIT_BYTES)
    with pytest.raises(DamagedEntryError):
        reopened(disk, log, OPTIONS)

"""The scrub of entries: it names what is damaged in a log, and nothing else."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from log.entries.entry_log import EntryLog
from log.entries.entry_scrub import EntryScrub
from log.formats.layout import MARKER_BYTES, UNIT_BYTES
from tests.log.damaged_logs import FILE, OPTIONS, Thing, data_files, logs, things_of
from tests.log.memory_disk import MemoryDisk


def scrub_of(log: EntryLog, index: int, position: int, slice_bytes: int) -> EntryScrub:
    mapped, start = log.file_of(position)
    scrub = EntryScrub(
        mapped,
        start,
        index,
        position,
        log.last_index,
        slice_bytes,
        log.term_starts(),
        log.end_position,
    )
    scrub.run()
    return scrub


def damaged_things(log: EntryLog, things: list[Thing], draw: Any) -> list[Thing]:
    """Returns what scrubs in slices of any size find, which go on behind each damaged thing."""
    found = []
    index, position = log.first_index, log.first_position
    while index <= log.last_index:
        scrub = scrub_of(log, index, position, draw(st.integers(1, 2 * FILE)))
        index, position = scrub.next_index, scrub.next_position
        if scrub.problem:
            # Of an entry that begins a file the marker before it may be damaged, or the entry itself.
            number = max(n for n, thing in enumerate(things) if thing.index == index)
            if number and things[number - 1].is_marker and things[number - 1].begin == position:
                number -= 1
            found.append(things[number])
            behind = things[number + 1 : number + 2]
            index, position = (behind[0].index, behind[0].begin) if behind else (log.last_index + 1, 0)
    return found


@given(st.data())
def test_a_log_without_damage_is_whole_from_wherever_and_in_whatever_slices(data: st.DataObject) -> None:
    disk = MemoryDisk()
    log = data.draw(logs(disk))
    units = b"".join(bytes(file.seen) for path, file in sorted(disk.files.items()) if "/index/" in path)
    index = data.draw(st.integers(log.first_index, log.last_index))
    position = log.position_of(index)
    while index <= log.last_index:
        scrub = scrub_of(log, index, position, data.draw(st.integers(1, 2 * FILE)))
        assert not scrub.problem
        assert b"".join(scrub.units) == units[index * UNIT_BYTES : scrub.next_index * UNIT_BYTES]
        assert (scrub.next_index, scrub.next_position) > (index, position)
        index, position = scrub.next_index, scrub.next_position
    assert position == log.end_position


@given(st.data())
def test_a_bit_that_flipped_anywhere_is_found_and_named(data: st.DataObject) -> None:
    disk = MemoryDisk()
    log = data.draw(logs(disk))
    things = things_of(log)
    thing = data.draw(st.sampled_from(things))
    at = data.draw(st.integers(thing.begin, thing.end - 1))
    data_files(disk)[at - at % FILE].seen[at % FILE] ^= 1 << data.draw(st.integers(0, 7))
    assert damaged_things(log, things, data.draw) == [thing]


@given(st.data())
def test_a_page_that_holds_the_bytes_of_another_place_is_found(data: st.DataObject) -> None:
    disk = MemoryDisk()
    log = data.draw(logs(disk))
    things = things_of(log)
    files = data_files(disk)
    page = data.draw(st.sampled_from([MARKER_BYTES, 32, 128]))
    places = st.integers(0, len(files) * FILE // page - 1).map(lambda number: number * page)
    to, source = data.draw(places), data.draw(places)
    before = b"".join(bytes(files[start].seen) for start in sorted(files))
    files[to - to % FILE].seen[to % FILE : to % FILE + page] = before[source : source + page]
    after = b"".join(bytes(files[start].seen) for start in sorted(files))
    changed = [thing for thing in things if before[thing.begin : thing.end] != after[thing.begin : thing.end]]
    assert damaged_things(log, things, data.draw) == changed


@pytest.mark.parametrize("behind", [0, 1])
def test_an_end_marker_of_another_file_hides_no_entry(behind: int) -> None:
    disk = MemoryDisk()
    log, _ = EntryLog.open(disk, "d", OPTIONS)
    for size in (100, 100, 100, 100, 100, 100, 4) + (100,) * behind:
        log.append(1, bytes(size))
    marker, entry = log.end_of(2), log.position_of(6)
    assert entry - marker == FILE
    files = data_files(disk)
    files[FILE].seen[marker : marker + MARKER_BYTES] = files[0].seen[marker : marker + MARKER_BYTES]
    scrub = scrub_of(log, 3, FILE, 2 * FILE)
    if behind:
        scrub = scrub_of(log, scrub.next_index, scrub.next_position, 2 * FILE)
    assert (bool(scrub.problem), scrub.next_index) == (True, 6)

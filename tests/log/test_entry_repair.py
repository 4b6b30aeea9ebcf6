"""Repair from a peer: what it has writes this log's own bytes back, and anything else is refused."""

from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from log.entries.entry_log import EntryLog
from log.entries.entry_repair import correct_marker, put_back, whole_again
from log.errors import DamagedRangeError
from log.formats.layout import ENTRY_MAGIC, HEADER, HEADER_BYTES, UNIT, UNIT_BYTES
from tests.log.damaged_logs import FILE, data_files, logs, things_of
from tests.log.memory_disk import MemoryDisk


def contents(disk: MemoryDisk) -> dict[str, bytes]:
    return {path: bytes(file.seen) for path, file in disk.files.items()}


def run_of(log: EntryLog, draw: Any) -> tuple[int, int, int, bytes]:
    """Entries as a peer lends them: first and last index, position, bytes."""
    first = draw(st.integers(log.first_index, log.last_index))
    run = log.run(first, draw(st.integers(first, log.last_index)))
    return first, run.last_index, run.position, bytes(run.body)


@given(st.data())
def test_damaged_entries_and_units_are_put_back_to_the_byte_and_durably(data: st.DataObject) -> None:
    disk = MemoryDisk()
    log = data.draw(logs(disk))
    before = contents(disk)
    first, last, position, lent = run_of(log, data.draw)
    hit = data.draw(st.lists(st.integers(first, last), unique=True))
    for index in hit:
        begin = log.position_of(index)
        at = data.draw(st.integers(begin, log.end_of(index) - 1))
        data_files(disk)[at - at % FILE].seen[at % FILE] ^= 1 << data.draw(st.integers(0, 7))
    # The place of the first one is told by its unit, or by the unit before.
    for index in data.draw(st.lists(st.sampled_from([*range(first, last + 1)]), unique=True)):
        start, at = divmod(index * UNIT_BYTES, 5 * UNIT_BYTES)
        at += data.draw(st.integers(0, UNIT_BYTES - 1))
        disk.files[f"d/index/{start * 5 * UNIT_BYTES:020d}"].seen[at] ^= 1 << data.draw(st.integers(0, 7))
    differing, flush = put_back(log, log.check_range(lent, first, position))
    assert differing == len(hit)
    assert contents(disk) == before
    flush.run()
    for place in (position, position + len(lent) - 1):
        file = data_files(disk)[place - place % FILE]
        assert file.durable[place % FILE] == file.seen[place % FILE]


@given(st.data())
def test_an_entry_is_put_back_whose_unit_names_another_place_of_the_log(data: st.DataObject) -> None:
    disk = MemoryDisk()
    log = data.draw(logs(disk))
    before = contents(disk)
    first = data.draw(st.integers(1, log.last_index))
    run = log.run(first, data.draw(st.integers(first, log.last_index)))
    lent = bytes(run.body)
    elsewhere = data.draw(
        st.integers(0, log.end_position - HEADER_BYTES - 1).filter(lambda place: place != run.position)
    )
    UNIT.pack_into(
        log.index.tail.segments.mapping(first // 5 * 5 * UNIT_BYTES).buffer,
        first % 5 * UNIT_BYTES,
        *(ENTRY_MAGIC, elsewhere, HEADER_BYTES + 1, first, log.term_of(first)),
    )
    data_files(disk)[run.position - run.position % FILE].seen[run.position % FILE + 3] ^= 1
    put_back(log, log.check_range(lent, first, run.position))
    assert contents(disk) == before


@given(st.data(), st.sampled_from(["index", "term", "position", "checksum", "body", "end"]))
def test_other_entries_are_refused_and_change_nothing(data: st.DataObject, lie: str) -> None:
    disk = MemoryDisk()
    log = data.draw(logs(disk))
    first, last, position, lent = run_of(log, data.draw)
    forged = bytearray(lent)
    _, size, index, term, begin, _, _, checksum, body_size = HEADER.unpack_from(forged, 0)
    by = data.draw(st.integers(1, 200))
    match lie:
        case "index":
            index += by
        case "term":
            term += by
        case "position":
            begin = position = position + by
        case "checksum":
            checksum ^= 1 << by % 32
        case "body":
            forged[HEADER_BYTES + by % body_size] ^= 1
        case "end":  # the last entry of the log, with another size
            last = first = log.last_index
            body = bytes(body_size + by)
            position = begin = log.position_of(last)
            index, term, size, body_size = last, log.term_of(last), HEADER_BYTES + len(body), len(body)
            checksum = crc32(body)
            forged = bytearray(HEADER_BYTES) + body
            if position % FILE + size > FILE - 8 or begin + size == log.end_position:
                return
    HEADER.pack_into(forged, 0, ENTRY_MAGIC, size, index, term, begin, 0, 0, checksum, body_size)
    log_before = contents(disk)
    with pytest.raises(DamagedRangeError):
        put_back(log, log.check_range(forged, first, position))
    assert contents(disk) == log_before


@given(st.data())
def test_units_are_written_where_they_differ_and_only_there(data: st.DataObject) -> None:
    disk = MemoryDisk()
    log = data.draw(logs(disk))
    before = contents(disk)
    first, last, position, lent = run_of(log, data.draw)
    index = data.draw(st.integers(first, last))
    bit = data.draw(st.integers(0, 8 * UNIT_BYTES - 1))
    start = index // 5 * 5 * UNIT_BYTES
    path = f"d/index/{start:020d}"
    units = log.check_range(lent, first, position).units
    assert log.index.correct(first, units) == []
    disk.files[path].seen[index * UNIT_BYTES - start + bit // 8] ^= 1 << bit % 8
    ((mapped, begin, end),) = log.index.correct(first, units)
    assert mapped.path == path
    assert begin <= index * UNIT_BYTES - start < end
    assert contents(disk) == before


@given(st.data())
def test_an_end_marker_is_written_where_one_belongs_and_nowhere_else(data: st.DataObject) -> None:
    disk = MemoryDisk()
    log = data.draw(logs(disk))
    before = contents(disk)
    thing = data.draw(st.sampled_from(things_of(log)))
    file = data_files(disk)[thing.begin - thing.begin % FILE]
    at = data.draw(st.integers(thing.begin, thing.end - 1)) % FILE
    file.seen[at] ^= 1 << data.draw(st.integers(0, 7))
    damaged = contents(disk)
    flush = correct_marker(log, thing.index, thing.begin)
    assert (flush is not None) == thing.is_marker
    assert contents(disk) == (before if thing.is_marker else damaged)


@given(st.data())
def test_the_log_is_whole_again_behind_what_is_damaged(data: st.DataObject) -> None:
    disk = MemoryDisk()
    log = data.draw(logs(disk))
    things = [thing for thing in things_of(log) if not thing.is_marker]
    first = data.draw(st.integers(log.first_index, log.last_index))
    last = data.draw(st.integers(first, log.last_index))
    for thing in things[first : last + 1]:
        data_files(disk)[thing.begin - thing.begin % FILE].seen[thing.begin % FILE + 15] ^= 1  # the index
    behind = things[last + 1 : last + 2]
    assert whole_again(log, first) == ((behind[0].index, behind[0].begin) if behind else None)

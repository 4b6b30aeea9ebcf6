"""The scrub of index files: the damaged one is named, and is filled anew with the keys that go by."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from log.errors import DamagedLogError, DiskFullError
from log.formats.layout import HEADER_BYTES as ENTRY_HEADER_BYTES
from log.index.index_file import ENTRY, ENTRY_BYTES, HEADER_BYTES, IndexFile, key_hash
from log.index.index_files import IndexFiles
from log.index.index_scrub import IndexScrubber
from log.options import StoreOptions
from tests.log.memory_disk import MemoryDisk, MemoryMapped
from tests.log.messages import NOW

OPTIONS = StoreOptions(index_slots=7, index_entries=16, index_mappings=2)
ENTRIES_AT = HEADER_BYTES + 4 * OPTIONS.index_slots + ENTRY_BYTES  # entry 0 is none


@st.composite
def keys_of_entries(draw: Any) -> list[list[bytes]]:
    """The keys of each record of a log."""
    key = st.sampled_from([b"T#a", b"T#b", b"T#c", b"U#a"])
    return [draw(st.lists(key, max_size=3)) for _ in range(draw(st.integers(20, 60)))]


def position_of(number: int) -> int:
    return 100 * number


def columns(entries: list[list[bytes]], first: int, last: int) -> tuple[list[bytes], list[int], list[int]]:
    rows = [
        (key, position_of(number) + ENTRY_HEADER_BYTES, NOW + 700 * number)
        for number in range(first, last)
        for key in entries[number]
    ]
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


def filled(disk: MemoryDisk, entries: list[list[bytes]], draw: Any) -> IndexFiles:
    """Index files with the keys of all records, which a checkpoint has summed up."""
    index = IndexFiles(disk, OPTIONS)
    for number in range(len(entries)):
        keys, offsets, times = columns(entries, number, number + 1)
        if keys:
            index.put(keys, offsets, times, NOW)
        if draw(st.booleans()):
            index.write()
    index.write()
    index.notes()
    return index


def found_by(scrubber: IndexScrubber) -> list[DamagedLogError]:
    """What a pass over all files finds."""
    found = []
    scrubber.begin()
    while (job := scrubber.job()) is not None:
        job.run()
        damage = scrubber.done(job)
        found += [] if damage is None else [damage]
    return found


def go_by(scrubber: IndexScrubber, entries: list[list[bytes]], draw: Any, first: int = 0) -> None:
    """All records of a log that begins at `first` go by, in slices of any size."""
    first_position = position_of(first)
    while first < len(entries):
        last = draw(st.integers(first + 1, len(entries)))
        scrubber.put(*columns(entries, first, last), NOW)
        first = last
    scrubber.passed(first_position, is_whole=True)


def keys_in(disk: MemoryDisk, index: IndexFiles, first: int) -> list[tuple[int, int]]:
    """The hash and the record of each key in the files, of records from `first` on."""
    entries = (
        ENTRY.unpack_from(disk.files[f"index/{file.name}"].seen, file.place_of(number))
        for file in index
        for number in range(1, file.count)
    )
    numbers = ((hashed, (offset - ENTRY_HEADER_BYTES) // 100) for hashed, offset, _, _ in entries)
    return [one for one in numbers if one[1] >= first]


def contents(disk: MemoryDisk) -> dict[str, bytes]:
    return {path: bytes(file.seen) for path, file in disk.files.items()}


@given(st.data())
def test_files_without_damage_are_left_alone(data: st.DataObject) -> None:
    disk = MemoryDisk()
    entries = data.draw(keys_of_entries())
    scrubber = IndexScrubber(filled(disk, entries, data.draw))
    before = contents(disk)
    for _ in range(2):
        assert found_by(scrubber) == []
        go_by(scrubber, entries, data.draw)
    assert (scrubber.corrected, scrubber.given_up) == ([], [])
    assert contents(disk) == before


@given(st.data(), st.booleans())
def test_a_damaged_file_is_named_and_made_anew_to_the_byte(data: st.DataObject, is_page: bool) -> None:
    disk = MemoryDisk()
    entries = data.draw(keys_of_entries())
    index = filled(disk, entries, data.draw)
    scrubber = IndexScrubber(index)
    before = contents(disk)
    names = index.full_files()
    if not names:
        return
    name = data.draw(st.sampled_from(names))
    file = index.named(name)
    assert file is not None
    seen = disk.files[f"index/{name}"].seen
    at = data.draw(st.integers(0, file.place_of(file.count) - 1))
    if ENTRIES_AT - ENTRY_BYTES <= at < ENTRIES_AT:
        return
    if is_page:
        other = data.draw(st.sampled_from(sorted(before)))
        end = file.place_of(file.count)
        seen[at:end] = before[other][at:end]
        if bytes(seen) == before[f"index/{name}"]:
            return
    else:
        seen[at] ^= 1 << data.draw(st.integers(0, 7))
    assert [damage.file for damage in found_by(scrubber)] == [f"index/{name}"]
    go_by(scrubber, entries, data.draw)
    assert [mapped.path for mapped, _, _ in scrubber.corrected] == [f"index/{name}"]
    assert scrubber.given_up == []
    assert contents(disk) == before
    assert found_by(scrubber) == []


@given(st.data())
def test_a_file_that_has_lost_its_first_records_is_made_anew_of_those_that_are_left(
    data: st.DataObject,
) -> None:
    """Seed 9971022 of 40 s: keys of its last record were put into it that the next file has."""
    disk = MemoryDisk()
    entries = data.draw(keys_of_entries())
    index = filled(disk, entries, data.draw)
    scrubber = IndexScrubber(index)
    if not index.full_files():
        return
    file = next(iter(index))
    gone, last = ((offset - ENTRY_HEADER_BYTES) // 100 for offset in (file.begin_offset, file.end_offset))
    if gone == last:
        return  # no record of it is left
    first = data.draw(st.integers(gone + 1, last))
    at = data.draw(st.integers(ENTRIES_AT, file.place_of(file.count) - 1))
    disk.files[f"index/{file.name}"].seen[at] ^= 1 << data.draw(st.integers(0, 7))
    assert len(found_by(scrubber)) == 1
    go_by(scrubber, entries, data.draw, first)
    assert (len(scrubber.corrected), scrubber.given_up) == (1, [])
    assert keys_in(disk, index, first) == [
        (key_hash(key), number) for number in range(first, len(entries)) for key in entries[number]
    ]
    index.notes()
    assert found_by(scrubber) == []


@given(st.data())
def test_a_file_is_made_anew_by_the_pass_that_comes_to_the_end(data: st.DataObject) -> None:
    disk = MemoryDisk()
    entries = [[b"T#%d" % number] for number in range(40)]
    index = filled(disk, entries, data.draw)
    scrubber = IndexScrubber(index)
    before = contents(disk)
    disk.files[f"index/{index.full_files()[1]}"].seen[ENTRIES_AT] ^= 1
    assert len(found_by(scrubber)) == 1
    scrubber.begin()
    scrubber.put(*columns(entries, 0, data.draw(st.integers(0, 40))), NOW)
    scrubber.begin()
    go_by(scrubber, entries, data.draw)
    assert (len(scrubber.corrected), scrubber.given_up) == (1, [])
    assert contents(disk) == before


def with_a_file_beyond_repair() -> tuple[MemoryDisk, IndexFiles, IndexScrubber, Callable[[], None]]:
    """Index files of 40 records; the first one is damaged, and a record of it is, too, so that it was given up.

    Returns a pass of the log's entries with them.
    """
    disk = MemoryDisk()
    entries = [[b"T#%d" % number] for number in range(40)]
    index = filled(disk, entries, lambda _: False)
    scrubber = IndexScrubber(index)
    name = index.full_files()[0]
    disk.files[f"index/{name}"].seen[ENTRIES_AT] ^= 1

    def go_by_without_one() -> None:
        scrubber.put(*columns(entries, 0, 5), NOW)
        scrubber.put(*columns(entries, 6, 40), NOW)
        scrubber.passed(0, is_whole=False)

    assert len(found_by(scrubber)) == 1
    go_by_without_one()
    assert scrubber.given_up == [f"index/{name}"]
    assert found_by(scrubber) == [], "it was told"
    return disk, index, scrubber, go_by_without_one


def test_a_file_beyond_repair_finds_what_is_left_between_passes() -> None:
    _, index, _, _ = with_a_file_beyond_repair()
    found = [index.query("T", str(number), 1, 0, NOW * 2) for number in range(40)]
    assert [number for number, offsets in enumerate(found) if not offsets] == [5]


def test_a_file_beyond_repair_keeps_no_other_one_from_it() -> None:
    disk, index, scrubber, go_by_without_one = with_a_file_beyond_repair()
    scrubber.given_up.clear()
    other = f"index/{index.full_files()[1]}"
    disk.files[other].seen[ENTRIES_AT] ^= 1
    go_by_without_one()
    assert [damage.file for damage in found_by(scrubber)] == [other]
    go_by_without_one()
    assert [mapped.path for mapped, _, _ in scrubber.corrected] == [other]
    assert scrubber.given_up == []


def test_of_files_beyond_repair_each_is_tried_again() -> None:
    disk, index, scrubber, go_by_without_one = with_a_file_beyond_repair()
    first, other = (f"index/{name}" for name in index.full_files()[:2])
    disk.files[other].seen[ENTRIES_AT] ^= 1
    go_by_without_one()
    assert [damage.file for damage in found_by(scrubber)] == [other]
    scrubber.passed(0, is_whole=False)  # none of its records is whole
    assert scrubber.given_up == [first, other]
    for _ in range(2):
        assert found_by(scrubber) == [], "they were told"
        go_by_without_one()
    assert [mapped.path for mapped, _, _ in scrubber.corrected] == [other]


@pytest.mark.parametrize("put_before", [0, 10])
def test_a_damaged_file_that_retention_deletes_is_not_looked_for(put_before: int) -> None:
    disk = MemoryDisk()
    entries = [[b"T#%d" % number] for number in range(40)]
    index = filled(disk, entries, lambda _: False)
    scrubber = IndexScrubber(index)
    name = index.full_files()[0]
    disk.files[f"index/{name}"].seen[ENTRIES_AT] ^= 1
    assert len(found_by(scrubber)) == 1
    scrubber.put(*columns(entries, 0, put_before), NOW)
    assert index.delete_before(position_of(20)) == 1
    scrubber.put(*columns(entries, 20, 40), NOW)
    scrubber.passed(position_of(20), is_whole=True)
    assert (scrubber.corrected, scrubber.given_up) == ([], [])
    assert found_by(scrubber) == []


def test_a_full_disk_leaves_damaged_slots_to_a_later_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 8120010 of 40 s: the node ended."""
    disk = MemoryDisk()
    index = filled(disk, [[b"T#%d" % number] for number in range(40)], lambda _: False)
    scrubber = IndexScrubber(index)
    before = contents(disk)
    name = index.full_files()[0]
    disk.files[f"index/{name}"].seen[HEADER_BYTES] ^= 1

    def full(*_: object, **__: object) -> None:
        raise DiskFullError(name, "allocation", "no space left on the device")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryMapped, "prepare", full)
        assert len(found_by(scrubber)) == 1
        assert found_by(scrubber) == [], "it is told once"
        assert scrubber.corrected == []
    assert found_by(scrubber) == []
    assert len(scrubber.corrected) == 1
    assert contents(disk) == before


def test_a_full_disk_leaves_a_damaged_file_to_a_later_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 9400002 of 40 s: the node ended."""
    disk = MemoryDisk()
    entries = [[b"T#%d" % number] for number in range(40)]
    index = filled(disk, entries, lambda _: False)
    scrubber = IndexScrubber(index)
    before = contents(disk)
    name = index.full_files()[0]
    disk.files[f"index/{name}"].seen[ENTRIES_AT] ^= 1

    def full(*_: object) -> None:
        raise DiskFullError(name, "allocation", "no space left on the device")

    def none_at_all(*_: object, **__: object) -> None:
        full()

    damaged = contents(disk)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryMapped, "prepare", none_at_all)
        assert len(found_by(scrubber)) == 1
        scrubber.put(*columns(entries, 0, 40), NOW)
        scrubber.passed(0, is_whole=True)
    assert contents(disk) == damaged, "not even its slots are emptied where that may take room"
    assert found_by(scrubber) == [], "it was told"
    with monkeypatch.context() as patch:
        patch.setattr(IndexFile, "_prepare", full)
        scrubber.put(*columns(entries, 0, 40), NOW)
        scrubber.passed(0, is_whole=True)
    assert (scrubber.corrected, scrubber.given_up) == ([], [])
    assert found_by(scrubber) == [], "it was told"
    scrubber.put(*columns(entries, 0, 40), NOW)
    scrubber.passed(0, is_whole=True)
    assert [mapped.path for mapped, _, _ in scrubber.corrected] == [f"index/{name}"]
    assert contents(disk) == before

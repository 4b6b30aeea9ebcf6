"""IndexFiles against the plain reader and a list, and their recovery."""

import random
import struct
from pathlib import Path

import pytest

from log.errors import DiskFullError
from log.files.disk import Disk
from log.files.mmap_disk import MmapDisk
from log.formats.layout import HEADER_BYTES
from log.index.index_file import StepBudget, key_hash
from log.index.index_files import IndexFiles
from log.options import StoreOptions
from tests.log.memory_disk import MemoryDisk
from tests.log.plain_reader import query_index

OPTIONS = StoreOptions(index_slots=7, index_entries=16, index_mappings=2)
LARGE = StoreOptions(index_slots=50, index_entries=1000)
NOW = 1_700_000_000_000


def fill(index: IndexFiles, batches: list[int], *, first: int = 0) -> list[tuple[str, int, int]]:
    """(key, offset, time) of everything put; `batches` are numbers of keys."""
    everything = []
    offset = first
    for size in batches:
        batch = []
        for _ in range(size):
            key = f"k{offset % 5}"
            batch.append((key, HEADER_BYTES + 100 * offset, NOW + 700 * offset))
            offset += 1
        index.put(
            [f"T#{key}".encode() for key, _, _ in batch],
            [place for _, place, _ in batch],
            [time for _, _, time in batch],
            NOW,
        )
        index.write()
        everything += batch
    return everything


def expected(everything: list[tuple[str, int, int]], key: str) -> list[int]:
    return [offset for found, offset, _ in reversed(everything) if found == key]


@pytest.fixture
def index(disk: MemoryDisk) -> IndexFiles:
    return IndexFiles(disk, OPTIONS)


def test_golden_file(tmp_path: Path) -> None:
    disk = MmapDisk(tmp_path)
    index = IndexFiles(disk, OPTIONS)
    index.put([b"T1#key1", b"T1#key2"], [48, 248], [NOW, NOW + 2500], NOW)
    assert len(index) == 0, "keys wait for others"
    index.write()
    (path,) = (tmp_path / "index").iterdir()
    assert path.name == "20231114221320000"
    raw = path.read_bytes()
    assert len(raw) == 40 + 4 * 7 + 20 * 16
    assert raw[:40] == struct.pack(">qqqqii", NOW, NOW + 2500, 48, 248, 2, 3)
    hashes = (1320661992, abs(-1320661992 + 1))  # the last character is one more
    assert key_hash(b"T1#key1") == hashes[0]
    entries = 40 + 4 * 7 + 20
    assert raw[entries : entries + 40] == struct.pack(">iqii", hashes[0], 48, 0, 0) + struct.pack(
        ">iqii", hashes[1], 248, 2, 0
    )
    assert struct.unpack_from(">i", raw, 40 + 4 * (hashes[0] % 7)) == (1,)
    assert struct.unpack_from(">i", raw, 40 + 4 * (hashes[1] % 7)) == (2,)


@pytest.mark.parametrize("batches", [[1] * 40, [3] * 20, [40], [11, 12, 13, 50, 1]])
@pytest.mark.parametrize("options", [OPTIONS, LARGE])
def test_queries_find_the_newest_first(tmp_path: Path, options: StoreOptions, batches: list[int]) -> None:
    index = IndexFiles(MmapDisk(tmp_path), options)
    everything = fill(index, batches)
    for key in ("k0", "k1", "k2", "k3", "k4", "absent"):
        wanted = expected(everything, key)
        assert index.query("T", key, 64, 0, 1 << 60) == wanted
        assert index.query("T", key, 2, 0, 1 << 60) == wanted[:2]
        assert query_index(tmp_path, options.index_slots, "T", key) == wanted
        assert index.query("U", key, 64, 0, 1 << 60) == []


def test_queries_are_bounded_in_time_and_number() -> None:
    index = IndexFiles(MemoryDisk(), LARGE)
    everything = fill(index, [400])
    assert len(index.query("T", "k0", 1000, 0, 1 << 60)) == 64
    for begin, end in (
        (NOW, NOW + 20_000),
        (NOW + 20_000, NOW + 40_000),
        (0, NOW - 1),
        (NOW + 10**6, 1 << 60),
    ):
        found = index.query("T", "k1", 64, begin, end)
        wanted = [place for key, place, time in everything if key == "k1" and begin <= time <= end]
        assert set(wanted) <= set(found)
        for place in set(found) - set(wanted):  # whole seconds: up to one second early
            assert begin - 1000 < NOW + 7 * (place - HEADER_BYTES) < end + 1000


def test_a_query_looks_at_no_more_entries_than_it_may() -> None:
    """A thousand messages with one key in two files: the oldest lie behind all the others."""
    index = IndexFiles(MemoryDisk(), StoreOptions(index_slots=7, index_entries=801))
    count = 1000
    for number in range(count):
        index.put([b"T#k"], [HEADER_BYTES + 100 * number], [NOW + 1000 * number], NOW)

    def oldest(steps: int, *, end: int = NOW + 9_000, limit: int = 64) -> tuple[list[int], StepBudget]:
        budget = StepBudget(steps)
        return index.query("T", "k", limit, NOW, end, budget=budget), budget

    wanted = [HEADER_BYTES + 100 * number for number in reversed(range(10))]
    assert oldest(801) == (wanted, StepBudget(1)), "the newer file lies outside of the time and costs nothing"
    assert oldest(800) == (wanted, StepBudget(0))
    assert oldest(799) == (wanted[:-1], StepBudget(0, exhausted=True))
    assert oldest(100) == ([], StepBudget(0, exhausted=True))
    everything = 1 << 60
    assert oldest(300, end=everything, limit=64)[1] == StepBudget(300 - 64), "ended by what it found"
    assert oldest(1000, end=NOW + 9_000 + 850_000)[1] == StepBudget(1000 - 140 - 64, exhausted=False)


def test_a_replayed_batch_is_not_indexed_twice() -> None:
    index = IndexFiles(MemoryDisk(), OPTIONS)
    everything = fill(index, [5, 5])
    fill(index, [5, 5])
    assert index.query("T", "k0", 64, 0, 1 << 60) == expected(everything, "k0")


def test_old_files_go_with_the_log() -> None:
    index = IndexFiles(MemoryDisk(), OPTIONS)
    everything = fill(index, [60])
    files = len(index)
    assert index.delete_before(HEADER_BYTES + 100 * 30) == 2
    assert len(index) == files - 2
    assert index.query("T", "k0", 64, 0, 1 << 60) == [
        place for place in expected(everything, "k0") if place >= HEADER_BYTES + 100 * 30
    ]
    index.delete_before(1 << 60)
    assert len(index) == 1


def test_clocks_that_go_back_do_not_disorder_files(disk: MemoryDisk, index: IndexFiles) -> None:
    for number in range(60):
        index.put([b"T#k"], [HEADER_BYTES + number], [NOW], NOW - 1000 * number)
        index.write()
    names = disk.list("index")
    assert len(names) == len(index) == 4
    assert index.query("T", "k", 64, 0, 1 << 60) == [HEADER_BYTES + number for number in reversed(range(60))]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_after_a_power_failure_the_last_checkpoint_is_restored(share: float, seed: int) -> None:
    rng = random.Random(seed)
    options = StoreOptions(index_slots=3000, index_entries=2000)
    disk = MemoryDisk()
    index = IndexFiles(disk, options)
    everything = fill(index, [rng.randrange(1, 400) for _ in range(4)])
    notes, files = index.notes()
    for path in files:
        disk.flush_file(path)
    disk.sync_directory("index")
    fill(index, [rng.randrange(1, 900) for _ in range(3)], first=len(everything))
    after = disk.crash(lambda path, page: rng.random() < share)
    again = IndexFiles(after, options)
    assert again.recover(notes, clean_stop=False) is None
    assert again.end_offset == everything[-1][1]
    everything += fill(again, [300], first=len(everything))
    for key in ("k0", "k3"):
        assert again.query("T", key, 64, 0, 1 << 60) == expected(everything, key)[:64]


def _damage(disk: MemoryDisk, name: str, kind: str) -> None:
    file = disk.files[f"index/{name}"]
    if kind == "missing":
        disk.remove(f"index/{name}")
    elif kind == "short":
        file.seen = file.seen[:60]
    else:
        file.seen[40 + 4 * 7 + 20 * 3 + 5] ^= 1  # an offset


@pytest.mark.parametrize("kind", ["missing", "short", "flipped"])
@pytest.mark.parametrize("number", [0, 1, 3])
def test_damaged_files_are_dropped_and_what_to_index_again_is_told(
    kind: str, number: int, disk: MemoryDisk, index: IndexFiles
) -> None:
    everything = fill(index, [50])  # 15 to a file
    notes, _ = index.notes()
    _damage(disk, notes[number].name, kind)
    again = IndexFiles(disk, OPTIONS)
    rebuild_from = again.recover(notes, clean_stop=False)
    assert rebuild_from == (HEADER_BYTES + 100 * 15 * number if number else 0)
    assert len(again) == number == len(disk.list("index"))
    fill(again, [50])
    assert again.query("T", "k2", 64, 0, 1 << 60) == expected(everything, "k2")


@pytest.mark.parametrize("keys", [3, 6, 40])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_keys_of_a_record_that_were_in_a_damaged_file_come_back(
    keys: int, number: int, disk: MemoryDisk, index: IndexFiles
) -> None:
    """Found by the simulator, seed 9950122: those of one record begin in a file that is whole, 15 to a file."""

    def put(index: IndexFiles) -> None:
        for offset in range(100, 3000, 100):
            index.put(
                [f"T#{offset} {key}".encode() for key in range(keys)], [offset] * keys, [NOW] * keys, NOW
            )
            index.put([b"T#alone"], [offset + 50], [NOW], NOW)

    put(index)
    notes, _ = index.notes()
    whole = [bytes(index.map(file).buffer) for file in index]
    _damage(disk, notes[number].name, "flipped")
    again = IndexFiles(disk, OPTIONS)
    assert again.recover(notes, clean_stop=False) is not None
    put(again)
    put(again)
    again.write()
    assert [bytes(again.map(file).buffer) for file in again] == whole


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_damaged_slot_is_put_right_in_full_files_too(
    number: int, disk: MemoryDisk, index: IndexFiles
) -> None:
    """Found by the simulator, seed 200: a bit in the table of an old file hid keys, after each start again."""
    everything = fill(index, [50])  # 15 to a file
    notes, _ = index.notes()
    slot = key_hash(b"T#k2") % 7
    disk.files[f"index/{notes[number].name}"].seen[40 + 4 * slot + 3] = 0
    again = IndexFiles(disk, OPTIONS)
    assert again.recover(notes, clean_stop=False) is None
    assert again.query("T", "k2", 64, 0, 1 << 60) == expected(everything, "k2")


def test_without_notes_all_is_built_again(disk: MemoryDisk) -> None:
    fill(IndexFiles(disk, OPTIONS), [50])
    again = IndexFiles(disk, OPTIONS)
    assert again.recover(None, clean_stop=False) == 0
    assert disk.list("index") == []


def test_a_full_disk_can_be_tried_again(disk: MemoryDisk, index: IndexFiles) -> None:
    everything = fill(index, [10])
    disk.free_pages = 0
    with pytest.raises(DiskFullError):
        fill(index, [10], first=10)
    disk.free_pages = 10
    everything += fill(index, [10], first=10)
    for key in ("k0", "k1"):
        assert index.query("T", key, 64, 0, 1 << 60) == expected(everything, key)


@pytest.mark.parametrize("before", [0, 15], ids=["the first file", "a file behind a full one"])
def test_a_file_that_cannot_be_made_can_be_tried_again(
    disk: MemoryDisk, index: IndexFiles, before: int
) -> None:
    """Found on a full ext4: the next call ended the node, or wrote into the full file before."""
    everything = fill(index, [before])
    disk.has_no_names_left = True
    with pytest.raises(DiskFullError):
        fill(index, [10], first=before)
    with pytest.raises(DiskFullError):
        index.write()
    disk.has_no_names_left = False
    everything += [(f"k{n % 5}", HEADER_BYTES + 100 * n, NOW + 700 * n) for n in range(before, before + 10)]
    for key in ("k0", "k1"):
        assert index.query("T", key, 64, 0, 1 << 60) == expected(everything, key)


def test_keys_that_find_no_room_are_found_where_they_wait(disk: MemoryDisk, index: IndexFiles) -> None:
    """A query that raised here ended a leader in seed 5027: a repeated send is looked up in the middle of a turn."""
    everything = fill(index, [10])
    disk.free_pages = 0
    with pytest.raises(DiskFullError):
        everything += fill(index, [10], first=10)
    everything += [
        (f"k{number % 5}", HEADER_BYTES + 100 * number, NOW + 700 * number) for number in range(10, 20)
    ]
    for key in ("k0", "k1"):
        places = expected(everything, key)
        assert index.query("T", key, 64, 0, 1 << 60) == places
        assert index.query("T", key, 3, 0, 1 << 60) == places[:3]
        assert index.query("T", key, 64, NOW + 700 * 5, NOW + 700 * 14) == [
            place for place in places if 5 <= place // 100 <= 14
        ]
        assert index.query("T", key, 64, 0, 1 << 60, least_offset=1000) == [p for p in places if p >= 1000]


def test_pending_keys_are_found_and_written_when_enough_are_together(
    disk: MemoryDisk, index: IndexFiles
) -> None:
    index.put([b"T#k"], [48], [NOW], NOW)
    assert disk.list("index") == []
    assert index.query("T", "k", 64, 0, 1 << 60) == [48]
    index.put([b"T#k"] * 300, list(range(100, 400)), [NOW] * 300, NOW)
    assert sum(note.header[36:40] != b"\0\0\0\1" for note in index.notes()[0]) == len(index)
    index.put([b"T#k"], [48], [NOW], NOW)
    assert index.query("T", "k", 64, 0, 1 << 60) == list(range(399, 335, -1)), (
        "a repeated key is not put again"
    )


def test_mappings_stay_bounded() -> None:
    disk: Disk = MemoryDisk()
    index = IndexFiles(disk, OPTIONS)
    everything = fill(index, [200])
    for key in ("k0", "k4"):
        assert index.query("T", key, 64, 0, 1 << 60) == expected(everything, key)
        assert len(index._mapped) <= 2

"""Batches that are cut and encoded as columns are the same as those that are taken item by item."""

import random

import numpy as np
import pytest

from log.entries.entry_room import make_room_for_all
from log.errors import RecordError
from log.formats import batch
from log.formats.batch import BatchColumns, BatchItem, batch_columns, batch_items, encode_batch
from log.formats.batch_entries import Shared, encode_each, encode_entries
from log.formats.record import MAX_PROPERTIES_BYTES, SYS_FLAG_BORN_HOST_V6, pack_host
from log.store import Store
from tests.log.memory_disk import MemoryDisk
from tests.log.messages import HOST, NOW, TINY

SIZES = (0, 1, 7, 60)


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "RUN_FROM", 16)


def some_items(rng: random.Random) -> list[BatchItem]:
    """Runs of items as long as each other, and others between them."""
    items: list[BatchItem] = []
    for _ in range(rng.randrange(1, 8)):
        body, properties = rng.choice(SIZES), rng.choice(SIZES)
        items += [
            BatchItem(rng.choice([0, 0, -1, 2**31 - 1]), rng.randbytes(body), rng.randbytes(properties))
            for _ in range(rng.choice([1, 3, 40]))
        ]
    return items


def taken(raw: bytes, items_max: int) -> list[BatchItem] | str:
    try:
        parts = list(batch_columns(raw, items_max))
    except RecordError as error:
        return str(error)
    assert all(0 < len(part.flags) <= items_max for part in parts)
    return [BatchItem(*item) for part in parts for item in zip(*part, strict=True)]


def one_by_one(raw: bytes) -> list[BatchItem] | str:
    try:
        return list(batch_items(raw))
    except RecordError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(20))
def test_items_come_alike_from_sound_and_damaged_batches(seed: int) -> None:
    rng = random.Random(seed)
    items = some_items(rng)
    raw = encode_batch(items)
    for items_max in (1, 17, 1000):
        assert taken(raw, items_max) == items
    assert taken(b"", 5) == one_by_one(b"")
    for _ in range(100):
        damaged = bytearray(raw)
        if rng.random() < 0.3:
            del damaged[rng.randrange(len(raw)) :]
        else:
            damaged[rng.randrange(len(raw))] = rng.choice([0, 1, 22, 0x7F, 0xFF])
        assert taken(bytes(damaged), 1000) == one_by_one(bytes(damaged))


@pytest.mark.parametrize("seed", range(20))
def test_entries_are_the_same_bytes_as_records_appended_alone(seed: int) -> None:
    """Also where they go on in the next data file, and the one after it."""
    rng = random.Random(seed)
    shared = Shared(b"T", 3, SYS_FLAG_BORN_HOST_V6 | 1, 5, HOST, NOW, HOST, 2)
    assert shared.fits
    disks = [MemoryDisk(), MemoryDisk()]
    logs = [Store.open(disk, TINY, NOW)[0].log for disk in disks]
    for first_offset in (0, 77):
        items = BatchColumns.of(some_items(rng))
        sizes = np.array(
            [92 + len(body) + len(properties) for _, body, properties in zip(*items, strict=True)], np.int64
        )
        for log, as_columns in zip(logs, (True, False), strict=True):
            positions = make_room_for_all(log, sizes)
            if as_columns:
                index = log.last_index + 1
                for entries in encode_entries(
                    shared, items, sizes, positions, log.file_bytes, 4, index, first_offset
                ):
                    assert entries == log.check_range(entries.data, entries.first_index, entries.position)
                    log.append_range(entries)
            else:
                for record in encode_each(shared, items, positions, first_offset):
                    log.append(4, record)
    assert logs[0].last_index == logs[1].last_index
    first, second = ({path: bytes(file.seen) for path, file in disk.files.items()} for disk in disks)
    assert first == second


def test_what_is_not_for_columns_is_told() -> None:
    shared = Shared(b"T", 0, 0, 0, HOST, 0, HOST, 0)
    assert not shared._replace(born_host=pack_host("::1", 1)).fits
    assert not shared._replace(topic=b"x" * 128).fits
    items = BatchColumns([0], [b""], [bytes(MAX_PROPERTIES_BYTES + 1)])
    sizes = np.array([92 + MAX_PROPERTIES_BYTES + 1])
    with pytest.raises(RecordError):
        encode_entries(shared, items, sizes, np.array([0]), 1 << 20, 1, 0, 0)

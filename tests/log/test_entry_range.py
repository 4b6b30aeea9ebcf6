"""A run of entries from a peer is checked as columns, and what is wrong is found one by one: the two agree."""

import random
from zlib import crc32

import pytest

from log.errors import DamagedRangeError
from log.formats import entry_range
from log.formats.entry_range import EntryRange, _checked_each, checked_run
from log.formats.layout import ENTRY_MAGIC, HEADER, HEADER_BYTES

FIRST, POSITION = 1000, 77_000
RUN_FROM = 16


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_range, "RUN_FROM", RUN_FROM)


def a_range(rng: random.Random) -> bytearray:
    parts: list[bytes] = []
    position, term, size = POSITION, 3, rng.randrange(200)
    varies = rng.random() < 0.5
    for index in range(FIRST, FIRST + rng.randrange(RUN_FROM, 80)):
        size = rng.randrange(200) if varies or rng.random() < 0.05 else size
        term += rng.random() < 0.05
        body = rng.randbytes(size)
        whole = HEADER_BYTES + size
        parts += (HEADER.pack(ENTRY_MAGIC, whole, index, term, position, 0, 0, crc32(body), size), body)
        position += whole
    return bytearray(b"".join(parts))


def outcome(raw: bytearray) -> EntryRange | None:
    try:
        return _checked_each(memoryview(raw), FIRST, POSITION)
    except DamagedRangeError:
        return None


@pytest.mark.parametrize("seed", range(20))
def test_both_ways_give_the_same(seed: int) -> None:
    rng = random.Random(seed)
    raw = a_range(rng)
    expected = outcome(raw)
    assert expected is not None
    assert checked_run(memoryview(raw), FIRST, POSITION) == expected
    for _ in range(200):
        damaged = bytearray(raw)
        kind = rng.randrange(4)
        if kind == 0:
            damaged[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del damaged[rng.randrange(len(raw)) :]
        elif kind == 2:
            # A header that is sound but for one field, as a hostile peer might make it.
            index = rng.randrange(expected.last_index - FIRST + 1)
            at = expected.position_of(FIRST + index) - POSITION
            fields = list(HEADER.unpack_from(raw, at))
            fields[rng.choice([0, 1, 2, 3, 4, 5, 6, 8])] = rng.choice([-1, 0, 1, 47, 48, 2**31 - 1])
            HEADER.pack_into(damaged, at, *fields)
        else:
            damaged = bytearray(rng.randbytes(len(raw)))
        found, wanted = checked_run(memoryview(damaged), FIRST, POSITION), outcome(damaged)
        is_short = wanted is not None and wanted.last_index - FIRST + 1 < RUN_FROM
        assert found == (None if is_short else wanted)

"""A second reader of a store, which shares no code with log/.

It follows RocketMQ's layouts: `MessageDecoder`, `DLedgerEntryCoder`, `ConsumeQueue`, `IndexFile`.

It reads whole files and believes only what the format says, as RocketMQ's own tools would.
"""

import zlib
from dataclasses import dataclass
from pathlib import Path

ENTRY_HEADER_BYTES = 48


def number(raw: bytes, at: int, size: int, *, signed: bool = True) -> int:
    return int.from_bytes(raw[at : at + size], "big", signed=signed)


@dataclass(frozen=True)
class PlainEntry:
    index: int
    term: int
    position: int
    body: bytes


@dataclass(frozen=True)
class PlainRecord:
    size: int
    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    store_time: int
    body: bytes
    topic: str
    properties: dict[str, str]


def read_entries(dledger: Path) -> list[PlainEntry]:
    """All entries of data/, each compared with its unit in index/."""
    files = sorted((dledger / "data").iterdir())
    units = {int(path.name): path.read_bytes() for path in sorted((dledger / "index").iterdir())}
    unit_bytes = len(next(iter(units.values())))
    entries = []
    for path in files:
        raw = path.read_bytes()
        start = int(path.name)
        at = 0
        while at + 8 <= len(raw):
            magic = number(raw, at, 4)
            if magic == -1:
                assert number(raw, at + 4, 4) == len(raw) - at
                break
            if magic == 0:
                break
            assert magic == 1
            size, length = number(raw, at + 4, 4), number(raw, at + 44, 4)
            assert size == ENTRY_HEADER_BYTES + length
            entry = PlainEntry(
                number(raw, at + 8, 8),
                number(raw, at + 16, 8),
                number(raw, at + 24, 8),
                raw[at + ENTRY_HEADER_BYTES : at + size],
            )
            assert entry.position == start + at
            assert number(raw, at + 32, 4) == 0
            assert number(raw, at + 36, 4) == 0
            assert number(raw, at + 40, 4, signed=False) == zlib.crc32(entry.body)
            unit_at = entry.index * 32
            unit_file = units[unit_at // unit_bytes * unit_bytes]
            unit = unit_file[unit_at % unit_bytes : unit_at % unit_bytes + 32]
            assert number(unit, 0, 4) == 1
            assert number(unit, 4, 8) == entry.position
            assert number(unit, 12, 4) == size
            assert number(unit, 16, 8) == entry.index
            assert number(unit, 24, 8) == entry.term
            entries.append(entry)
            at += size
    return entries


def read_record(raw: bytes) -> PlainRecord:
    magic = number(raw, 4, 4, signed=False)
    assert magic in (0xDAA320A7, 0xDAA320AB)
    flag = number(raw, 36, 4)
    born = 20 if flag & 0x10 else 8
    store = 20 if flag & 0x20 else 8
    at = 48 + born + 8 + store + 4 + 8
    length = number(raw, at, 4)
    body = raw[at + 4 : at + 4 + length]
    assert number(raw, 8, 4) == zlib.crc32(body) & 0x7FFFFFFF
    at += 4 + length
    prefix = 1 if magic == 0xDAA320A7 else 2
    topic_length = number(raw, at, prefix)
    at += prefix
    topic = raw[at : at + topic_length].decode()
    at += topic_length
    properties = raw[at + 2 : at + 2 + number(raw, at, 2)].decode()
    assert at + 2 + len(properties.encode()) == number(raw, 0, 4) == len(raw)
    pairs = [item.split("\x01") for item in properties.split("\x02") if item]
    return PlainRecord(
        len(raw),
        number(raw, 12, 4),
        number(raw, 20, 8),
        number(raw, 28, 8),
        flag,
        number(raw, 48 + born, 8),
        body,
        topic,
        dict(pair for pair in pairs if len(pair) == 2),
    )


def read_queue(root: Path, topic: str, queue_id: int) -> list[tuple[int, int, int, int]]:
    """(unit number, offset, size, tags code) of all units but fillers."""
    units = []
    for path in sorted((root / "consumequeue" / topic / str(queue_id)).iterdir()):
        raw = path.read_bytes()
        for at in range(0, len(raw), 20):
            offset, size = number(raw, at, 8), number(raw, at + 8, 4)
            if size > 0 and (offset, size) != (0, 0x7FFFFFFF):
                units.append(((int(path.name) + at) // 20, offset, size, number(raw, at + 12, 8)))
    return units


def plain_hash(text: str) -> int:
    """Java's hashCode, the slow way."""
    value = 0
    raw = text.encode("utf-16-be")
    for at in range(0, len(raw), 2):
        value = (31 * value + number(raw, at, 2, signed=False)) % 2**32
    return value - 2**32 if value >= 2**31 else value


def query_index(root: Path, slots: int, topic: str, key: str) -> list[int]:
    """Offsets of a key from all index files, newest first."""
    wanted = abs(plain_hash(f"{topic}#{key}"))
    found = []
    for path in sorted((root / "index").iterdir(), reverse=True):
        raw = path.read_bytes()
        entry = number(raw, 40 + 4 * (wanted % slots), 4)
        while entry:
            at = 40 + 4 * slots + 20 * entry
            if number(raw, at, 4) == wanted:
                found.append(number(raw, at + 4, 8))
            entry = number(raw, at + 16, 4)
    return found

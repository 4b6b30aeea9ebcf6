"""The few loops over bytes that cost most, behind one seam: in pure Python, or in C where `trivet-fast` is installed.

The pure functions are the reference. The C (log/fast/trivet_fast.c) does what is plain and returns None for everything
else, and that goes to the pure ones: so there is one place that says what is wrong, and both leave the same bytes.

Which of them a store uses is said where its options are made (`StoreOptions.loops`). Those of a broker's process have
`INSTALLED`; whoever says nothing has `PURE`, as the simulator does, whatever is installed.
"""

import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from log.formats import entry_range, layout, record
from log.formats.entry_range import EntryRange
from log.formats.record import Buffer

PlainMessages = tuple[int, tuple[tuple[bytes, int, int, bytes], ...], bytes]
"""(number of messages; for each queue its topic, its id, its first queue offset and the units from there on; keys)."""

KEY_TYPE = np.dtype({"names": ["offset", "time", "hash"], "formats": ["i8", "i8", "i4"], "itemsize": 24})
"""A key in `PlainMessages`: the physical offset and store time of its record, and its Java hash."""


class Loops(NamedTuple):
    """Functions on bytes. `name` is for those who measure."""

    name: str
    checked_run: Callable[[memoryview, int, int], EntryRange | None]
    """`log.formats.entry_range.checked_run`"""
    encode_record: Callable[..., bytes]
    """`log.formats.record.encode_record`"""
    store_entry: Callable[[memoryview, int, memoryview, int, int, int, int, Buffer], object]
    """`log.formats.layout.store_entry`"""
    plain_messages: Callable[[memoryview, int, int, int, frozenset[bytes]], PlainMessages | None] | None = (
        None
    )
    """(data file, its start, the place of an entry, number of entries, topics that are not plain): makes ConsumeQueue
    units and keys of the plain messages with which the entries begin. None if the first is none. Where there is no such
    function, `log.dispatching.dispatch` walks all entries."""


PURE = Loops("pure Python", entry_range.checked_run, record.encode_record, layout.store_entry)


def _installed() -> Loops:
    """Returns the loops of `trivet-fast`; the pure ones where it is not installed or TRIVET_PURE is set."""
    if os.environ.get("TRIVET_PURE"):
        return PURE
    try:
        import trivet_fast
    except ImportError:
        return PURE
    return loops_in(trivet_fast)


def loops_in(compiled: object) -> Loops:
    """Returns the loops of a compiled module, which goes to the pure ones for all that is not plain."""
    check, encode, store, plain = [
        getattr(compiled, name)
        for name in ("check_entries", "encode_record", "store_entry", "plain_messages")
    ]
    pure_encode, pure_store = PURE.encode_record, PURE.store_entry

    def checked_run(view: memoryview, first_index: int, position: int) -> EntryRange | None:
        found = check(view, first_index, position)
        if found is None:
            return None
        count, units, spans = found
        return EntryRange(
            view, first_index, first_index + count - 1, position, position + len(view), units, spans
        )

    def encode_record(*fields: object) -> bytes:
        return encode(*fields) or pure_encode(*fields)

    def store_entry(*arguments: object) -> None:
        if store(*arguments) is None:
            pure_store(*arguments)  # type: ignore[arg-type]

    return Loops("C", checked_run, encode_record, store_entry, plain)


INSTALLED = _installed()

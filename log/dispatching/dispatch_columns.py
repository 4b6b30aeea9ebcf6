"""Dispatch of long runs: messages that follow each other in one queue get their units and keys as columns.

A run is what a batch, or a producer that sends much of one kind, leaves in the log: one topic and queue, consecutive
queue offsets, properties of the same names and lengths. What differs between its messages is then in the same columns
of all their bytes. Whatever does not fit into that is left to the walk of `log.dispatching.dispatch`, which says what
is right for every record; a run is what gives the same.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from log.entries.entry_log import EntryLog
from log.formats.columns import Places, gather, leading
from log.formats.java_hash import TABLED_CHARACTERS, java_hash_columns
from log.formats.layout import ENTRY_MAGIC, HEADER_BYTES
from log.formats.properties import KEYS, TAGS, UNIQ_KEY
from log.formats.property_columns import value_places
from log.formats.record import (
    MAGIC_V1,
    SHORT_TOPIC_BYTES_MAX,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
    SYS_FLAG_TRANSACTION_MASK,
)

RUN_FROM = 64
"""Shorter runs are walked, which costs some 3 us a message; the calls of numpy cost some 100 us a run."""

# Entry and record with IPv4 hosts, as `log.formats.layout.HEADER` and `log.formats.record` have them.
_HEADS_BYTES = 136
_HEADS = np.dtype(
    {
        "names": ["magic", "total", "version", "queue", "offset", "physical", "flags", "time", "body"],
        "formats": [">i4", ">i4", ">u4", ">i4", ">i8", ">i8", ">i4", ">i8", ">i4"],
        "offsets": [0, 48, 52, 60, 68, 76, 84, 104, 132],
        "itemsize": _HEADS_BYTES,
    }
)
_NOT_PLAIN = SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6 | SYS_FLAG_TRANSACTION_MASK
_BYTES = np.dtype(np.uint8)
_LARGEST_SEPARATOR = 2
_SPACE = 0x20
_NOT_ASCII = 0x80
_LEAST_TAIL = 3
"""The lengths of topic and properties."""
_LARGEST_TAIL = 1024
"""Longer properties are walked: those of thousands of messages would be copied at once."""


class PlainMessages(NamedTuple):
    """Messages that may be one run, by what stands before their bodies; their topics and properties are not seen yet.

    The columns have one element for each message; `tails` are the places of topic and properties in `buffer`.
    """

    buffer: memoryview
    last_index: int
    queue_id: int
    first_offset: int
    physical_offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    times: NDArray[np.int64]
    tails: Places
    tail_bytes: int

    def behind(self, count: int) -> "PlainMessages":
        """Returns what is left behind the first `count` messages."""
        return self._replace(
            first_offset=self.first_offset + count,
            physical_offsets=self.physical_offsets[count:],
            sizes=self.sizes[count:],
            times=self.times[count:],
            tails=self.tails[count:],
        )


class Kind(NamedTuple):
    """The common properties of the messages of a run, and how many, from its first on, have them."""

    messages: int
    topic: bytes
    tag: bytes | None
    keys: tuple[NDArray[np.uint8], ...]
    """The values of UNIQ_KEY and KEYS, as far as they have them: ASCII, one key in each."""


def runs_of(log: EntryLog, first: int, last: int) -> list[tuple[int, PlainMessages | None]]:
    """Divides the entries from `first` to `last`, or to their file's end, into runs of plain messages and the rest.

    Each element is (the index of its last entry, the run); where it is no run but None, its entries must be walked one
    by one. There is at least one element.
    """
    buffer, start, places, sizes = log.places(first, last)
    places = places[: leading(places <= len(buffer) - _HEADS_BYTES)]
    count = len(places)
    if count < RUN_FROM:
        return [(last, None)]
    sizes = sizes[:count]
    heads = gather(buffer, places, _HEADS_BYTES, _HEADS)
    bodies = heads["body"].astype(np.int64)
    rests = sizes - _HEADS_BYTES - bodies  # topic and properties with their lengths
    physical_offsets = heads["physical"].astype(np.int64)
    offsets = heads["offset"].astype(np.int64)
    # Whatever a record may be besides, damaged included, is walked: the walk knows all kinds, and says what is wrong.
    plain = (
        (heads["magic"] == ENTRY_MAGIC)
        & (heads["version"] == MAGIC_V1)
        & (heads["flags"] & _NOT_PLAIN == 0)
        & (heads["total"] == sizes - HEADER_BYTES)
        & (physical_offsets == places + (start + HEADER_BYTES))
        & (bodies >= 0)
        & (rests >= _LEAST_TAIL)
        & (rests <= _LARGEST_TAIL)
    )
    queue_ids = heads["queue"]
    # With equal rests, topics and properties can be read as columns as well.
    goes_on = (
        plain[1:]
        & plain[:-1]
        & (queue_ids[1:] == queue_ids[:-1])
        & (np.diff(offsets) == 1)
        & (rests[1:] == rests[:-1])
    )
    ends = np.append(np.flatnonzero(~goes_on) + 1, count)
    begins = np.append(0, ends[:-1])
    long = (ends - begins >= RUN_FROM) & plain[begins]
    found: list[tuple[int, PlainMessages | None]] = []
    walked_from = 0
    for begin, end in zip(begins[long].tolist(), ends[long].tolist(), strict=True):
        part = slice(begin, end)
        run = PlainMessages(
            buffer,
            first + end - 1,
            int(queue_ids[begin]),
            int(offsets[begin]),
            physical_offsets[part],
            sizes[part] - HEADER_BYTES,
            heads["time"][part].astype(np.int64),
            places[part] + bodies[part] + _HEADS_BYTES,
            int(rests[begin]),
        )
        if begin > walked_from:
            found.append((first + begin - 1, None))
        found.append((first + end - 1, run))
        walked_from = end
    if walked_from < count:
        found.append((first + count - 1, None))
    return found


def kind_of(run: PlainMessages) -> Kind | None:
    """Returns what the first messages of a run have in common; None if the first is of no kind that is taken so."""
    tails = gather(run.buffer, run.tails, run.tail_bytes, _BYTES)
    first = tails[0].tobytes()
    properties_at = first[0] + _LEAST_TAIL
    if first[0] > SHORT_TOPIC_BYTES_MAX or properties_at > len(first):
        return None
    values = value_places(first, properties_at)
    if values is None:
        return None
    # Only in values other than the tag may one message be another than the first, and only by what is no separator.
    free = np.zeros(len(first), np.bool_)
    for name, columns in values.items():
        free[columns] = name != TAGS
    differing = (tails != tails[0]).any(axis=0)
    count = len(tails)
    fixed = np.flatnonzero(differing & ~free)
    if len(fixed):
        count = leading(~(tails[:, fixed] != tails[0, fixed]).any(axis=1))
    changing = tails[:count, np.flatnonzero(differing & free)]
    count = leading(changing > _LARGEST_SEPARATOR)
    keys = []
    for name in (UNIQ_KEY, KEYS):
        if name in values:
            key = tails[:count, values[name]]
            if key.shape[1] >= TABLED_CHARACTERS:
                return None
            is_one = key < _NOT_ASCII if name == UNIQ_KEY else (key < _NOT_ASCII) & (key != _SPACE)
            count = leading(is_one)
            keys.append(key)
    tag = first[values[TAGS]] if TAGS in values else None
    return Kind(count, first[1 : first[0] + 1], tag, tuple(key[:count] for key in keys))


def hashes_of(prefix: bytes, keys: tuple[NDArray[np.uint8], ...]) -> NDArray[np.int32]:
    """Returns the Java hashes of `prefix` and each key, message by message."""
    return np.stack([java_hash_columns(prefix, key) for key in keys], axis=1).ravel()

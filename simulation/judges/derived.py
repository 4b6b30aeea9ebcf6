"""A judge of what a node makes of its log for others to ask: units of queues, index files, timers in their order,
stored offsets.

Each is a function of the committed bytes and of the store's settings. It is made here a second time, record by record,
from what the formats say (docs/storage.md), and with nothing of what made the node's: so a number is judged that no
reader in a run asks for, or that comes out right as long as nothing has to be built again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Final

from broker.replica.replica import Replica
from broker.state.topic_rules import INTERNAL_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from log.errors import DiskFullError
from log.formats.layout import HEADER, HEADER_BYTES
from log.formats.record import Record, decode_record
from log.options import StoreOptions
from simulation.journal import Violation
from simulation.judges.group_model import GroupModel

QUEUES: Final = "queue agrees with log"
INDEX: Final = "index agrees with log"
TIMERS: Final = "timers agree with log"
OFFSETS: Final = "stored offsets agree with log"

_INDEX_HEADER: Final = Struct(">qqqqii")
_SLOT: Final = Struct(">i")
_INDEX_ENTRY: Final = Struct(">iqii")
_HASH_MAX: Final = (1 << 31) - 1
_FOR_EVER: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of a record, of which an index file is to tell."""

    hash: int
    position: int
    stored_ms: int


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of an index file, which has whole seconds behind its first record; none before it."""

    hash: int
    position: int
    seconds: int
    begin_ms: int

    def is_of(self, key: _Key) -> bool:
        """Tells if it is what a file is to have of the key."""
        seconds = max(key.stored_ms - self.begin_ms, 0) // 1000
        return (self.hash, self.position, self.seconds) == (key.hash, key.position, seconds)


class Derived:
    """Holds the nodes of one group to what follows from its log."""

    def __init__(self, model: GroupModel) -> None:
        self._model = model
        self._read_index = -1
        """The entries up to here have been read."""
        self._codes: dict[int, int] = {}
        """By a record's position: the third number of its unit, the hash of its tag or the time at which it is due."""
        self._keys: list[_Key] = []
        """Of all records, in the order of the log."""

    def check(self, name: str, replica: Replica, options: StoreOptions, first: int) -> None:
        """Checks a node that has applied all, and which has the log from a position on. Raises Violation."""
        self._read(options)
        self._check_queues(name, replica, first)
        self._check_index(name, replica, options, first)
        self._check_timers(name, replica, first)
        self._check_offsets(name, replica)

    # ---- what follows from the log -------------------------------------------------------------------

    def _read(self, options: StoreOptions) -> None:
        """Derives what has not been derived before."""
        model = self._model
        while self._read_index < model.last_index:
            self._read_index += 1
            position = model.positions[self._read_index]
            _, size, *_ = HEADER.unpack_from(model.image, position)
            record = decode_record(bytes(model.image[position + HEADER_BYTES : position + size]))
            if record.topic == INTERNAL_TOPIC:
                continue
            properties = _properties(record)
            self._codes[record.physical_offset] = _code(record, properties, options.delay_levels_ms)
            for key in (properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")):
                if key:
                    hashed = abs(java_hash(f"{record.topic}#{key}"))
                    # Of -2**31 Java's absolute value is itself, and RocketMQ takes 0 for what is negative still.
                    hashed = hashed if hashed <= _HASH_MAX else 0
                    self._keys.append(_Key(hashed, record.physical_offset, record.store_timestamp))

    # ---- queues --------------------------------------------------------------------------------------

    def _check_queues(self, name: str, replica: Replica, first: int) -> None:
        """Checks the third number of each unit, and that no queue is left of what the group has deleted.

        Where units lead `Monitor.check_store` has seen. Raises Violation.
        """
        for queue in replica.store.queues:
            if (
                queue.max_offset > queue.min_offset
                and (queue.topic, queue.queue_id) not in self._model.queues
            ):
                raise Violation(
                    QUEUES, name, f"{queue.topic}/{queue.queue_id} has {queue.max_offset} units of no log"
                )
        for (topic, queue_id), known in self._model.queues.items():
            begin, held = bisect_left(known.positions, first), replica.store.queues.get(topic, queue_id)
            for offset in range(begin, len(known.positions)):
                unit = held.unit(offset) if held is not None else None
                code = self._codes[known.positions[offset]]
                if unit is None or unit[2] != code:
                    raise Violation(
                        QUEUES, name, f"{topic}/{queue_id} unit {offset} is {unit}, not for {code}"
                    )

    # ---- index files ---------------------------------------------------------------------------------

    def _check_index(self, name: str, replica: Replica, options: StoreOptions, first: int) -> None:
        """Checks that the files together hold the keys from `first` on, each once, in the order of the log.

        Before that some may be left of files whose beginning is older. Raises Violation.
        """
        index = replica.store.index
        try:
            index.write()
        except DiskFullError:
            return  # what waits for room is in no file, so where the last one ends is not known
        begin = bisect_left(self._keys, first, key=lambda key: key.position)
        wanted, kept_from = iter(self._keys[:begin]), begin
        for file in index:
            for held in _keys_of_file(name, file.name, index.map(file).buffer, options.index_slots):
                if held.position < first:
                    there = next((key for key in wanted if held.is_of(key)), None)
                else:
                    there = self._keys[kept_from] if kept_from < len(self._keys) else None
                    kept_from += 1
                if there is None or not held.is_of(there):
                    raise Violation(INDEX, name, f"{held} of {file.name} is in the place of {there}")
        if kept_from < len(self._keys):
            raise Violation(INDEX, name, f"{self._keys[kept_from]} and what follows are in no file")

    # ---- timers --------------------------------------------------------------------------------------

    def _check_timers(self, name: str, replica: Replica, first: int) -> None:
        """Checks that the order by time has what is not done, all of it and nothing else, each with its own time.

        Raises Violation.
        """
        queue = self._model.queues.get((TIMER_TOPIC, 0))
        if queue is None:
            return
        timers, progress = replica.store.timers, replica.metadata.timers
        # Each step takes a unit at least, unless one cannot be read.
        if not any(timers.catch_up(progress.floor, progress.steps) for _ in range(len(queue.positions) + 2)):
            raise Violation(TIMERS, name, f"not all of {len(queue.positions)} units can be put in order")
        kept_from = bisect_left(queue.positions, first)
        waiting = [
            one
            for one in self._not_done(queue.positions, progress.steps)
            if one[1] >= max(kept_from, progress.floor)
        ]
        found = [one for one in timers.due(progress.steps, _FOR_EVER, 1 << 20) if one[1] >= kept_from]
        # A node may know some before the floor that were passed over elsewhere, where a full disk had taken them.
        if found != sorted(found) or [one for one in found if one[1] >= progress.floor] != waiting:
            raise Violation(TIMERS, name, f"(due, offset) {found} are known, by the log {waiting} wait")

    def _not_done(
        self, positions: list[int], steps: tuple[tuple[int, int, int], ...]
    ) -> list[tuple[int, int]]:
        """Returns (due time, offset) of what no step covers, in order."""
        return sorted(
            (due, offset)
            for offset, due in enumerate(self._codes[position] for position in positions)
            if not any(offset < limit and (due, offset) <= (to_ms, to) for to_ms, to, limit in steps)
        )

    # ---- offsets -------------------------------------------------------------------------------------

    def _check_offsets(self, name: str, replica: Replica) -> None:
        """Checks that each consumer group has the offset that it has stored last, and no other. Raises Violation."""
        wanted = {key: history[-1][1] for key, history in self._model.offsets.items()}
        held = {
            (group, topic, queue_id): offset
            for (group, topic), queues in replica.metadata.offsets.items()
            for queue_id, offset in queues.items()
        }
        for key in dict.fromkeys((*wanted, *held)):
            if wanted.get(key) != held.get(key):
                raise Violation(
                    OFFSETS, name, f"{key} is at {held.get(key)}, by the log at {wanted.get(key)}"
                )


def java_hash(text: str) -> int:
    """Returns what `text.hashCode()` is in Java."""
    hashed, units = 0, text.encode("utf-16-be")
    for at in range(0, len(units), 2):
        hashed = (31 * hashed + (units[at] << 8 | units[at + 1])) & 0xFFFF_FFFF
    return hashed - (1 << 32) if hashed >> 31 else hashed


def _properties(record: Record) -> Mapping[str, str]:
    return dict(one.split("\x01", 1) for one in record.properties.decode().split("\x02") if one)


def _code(record: Record, properties: Mapping[str, str], delays_ms: tuple[int, ...]) -> int:
    """Returns the third number of a record's unit."""
    if record.topic == SCHEDULE_TOPIC:
        return record.store_timestamp + delays_ms[record.queue_id]
    if record.topic == TIMER_TOPIC:
        return int(properties["TIMER_OUT_MS"])
    return java_hash(properties.get("TAGS", ""))


def _keys_of_file(name: str, file: str, buffer: memoryview, slots: int) -> Iterator[_Entry]:
    """Yields the entries of an index file. Raises Violation where it contradicts itself."""
    begin_ms, _, begin, end, used, count = _INDEX_HEADER.unpack_from(buffer)
    entries_at, newest, last = _INDEX_HEADER.size + _SLOT.size * slots, dict[int, int](), begin
    for number in range(1, count):
        hashed, position, seconds, previous = _INDEX_ENTRY.unpack_from(
            buffer, entries_at + _INDEX_ENTRY.size * number
        )
        slot = hashed % slots
        if previous != newest.get(slot, 0):
            raise Violation(
                INDEX, name, f"entry {number} of {file} follows {previous}, not {newest.get(slot)}"
            )
        if number == 1 and position != begin:
            raise Violation(INDEX, name, f"{file} begins at {position}, its header says {begin}")
        newest[slot], last = number, position
        yield _Entry(hashed, position, seconds, begin_ms)
    if count > 1 and (last, len(newest)) != (end, used):
        raise Violation(INDEX, name, f"{file} ends at {last} with {len(newest)} slots, not {end} and {used}")
    for slot, number in newest.items():
        if _SLOT.unpack_from(buffer, _INDEX_HEADER.size + _SLOT.size * slot) != (number,):
            raise Violation(INDEX, name, f"slot {slot} of {file} does not lead to entry {number}")

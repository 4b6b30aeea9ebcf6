"""Finding the end of the entry log after a stop, clean or not, and telling a torn tail from damage.

Entries are scanned from the beginning of a data file near the end (how near: `StoreOptions`, and never
behind the last checkpoint): every header must continue the chain of positions, indices and terms, and every
checksum must match. Index units are compared with what the scan finds and rewritten where they differ.

Where the chain breaks, the question is whether that is the end. An entry header names its own position, so
entries behind the break can be recognised without a chain. If there is one, or if the chain broke before an
index that is noted as durable, by a checkpoint or behind a flush (`log.entries.durable_note`), the log is DAMAGED:
nothing is changed on disk, the caller decides (a group cuts the suffix and gets it again from its leader, a single node
keeps it for its operator). Otherwise it was an unfinished write and is cut off: TORN_TAIL. Zeros are the normal end:
CLEAN.

After a power failure in asynchronous flush mode unfinished writes may look like damage, because pages reach
the disk in any order. That errs on the safe side: nothing is cut that could have been acknowledged.
"""

from dataclasses import dataclass
from enum import Enum

from log.entries.durable_note import DurableNote
from log.entries.entry_scrub import NO_HEADER, problem_of_entry
from log.entries.segments import Segments
from log.errors import DiskError
from log.files.disk import Disk, MappedFile
from log.files.small_files import integer, read_values, write_values
from log.formats.layout import (
    END_MAGIC,
    END_MARKER,
    ENTRY_MAGIC,
    HEADER,
    HEADER_BYTES,
    MARKER_BYTES,
    UNIT,
    UNIT_BYTES,
)
from log.options import StoreOptions

_SEARCH_PIECE_BYTES = 1 << 16
_MAGIC_BYTES = ENTRY_MAGIC.to_bytes(4, "big")
_UNITS_PER_PIECE = 2048
_NO_BYTES = memoryview(b"")


class RecoveryKind(Enum):
    CLEAN = "clean"
    TORN_TAIL = "torn tail"
    DAMAGED = "damaged"
    RESET_PENDING = "reset pending"


@dataclass(frozen=True, slots=True)
class LogBegin:
    """The beginning of the log, as the file `begin` has it; `pending` while a reset is under way.

    It is on the disk before anything goes that was before it. `index` and `position`, of one entry, rise but for a
    reset; `epoch` always rises, with every reset and `cut_damage`. While `pending` there are no entries.
    """

    index: int = 0
    position: int = 0
    base_term: int = 0
    epoch: int = 0
    pending: bool = False


@dataclass(frozen=True, slots=True)
class LogRecovery:
    """The result of recovery. The log holds `begin.index`..`last_good_index` and ends at `end_position`.

    `damaged_file` and `damaged_at` (offset in that file) say where the chain broke, None after a CLEAN stop;
    `later_index` is a valid entry found behind it. `scanned_entries` were checked with their checksums.
    """

    kind: RecoveryKind
    begin: LogBegin
    last_good_index: int
    end_position: int
    damaged_file: str | None = None
    damaged_at: int | None = None
    reason: str = ""
    later_index: int | None = None
    scanned_entries: int = 0
    rebuilt_units: int = 0


def read_begin(disk: Disk, path: str) -> LogBegin | None:
    """Returns the log's beginning, None if it was never written. Raises DamagedStateError, DiskError."""
    values = read_values(disk, path, ("beginIndex", "beginPosition", "baseTerm", "epoch", "pending"))
    if values is None:
        return None
    return LogBegin(
        integer(values, "beginIndex", path),
        integer(values, "beginPosition", path),
        integer(values, "baseTerm", path),
        integer(values, "epoch", path),
        values["pending"] == "true",
    )


def write_begin(disk: Disk, path: str, begin: LogBegin) -> None:
    """Writes the log's beginning, durably. Raises DiskError, FlushError."""
    write_values(
        disk,
        path,
        {
            "beginIndex": begin.index,
            "beginPosition": begin.position,
            "baseTerm": begin.base_term,
            "epoch": begin.epoch,
            "pending": "true" if begin.pending else "false",
        },
    )


def recover(
    disk: Disk,
    directory: str,
    data: Segments,
    units: Segments,
    options: StoreOptions,
    *,
    clean_stop: bool,
    checkpoint_index: int | None,
    note: DurableNote,
) -> LogRecovery:
    """Finds the log's extent, repairs its index and cuts a torn tail. Raises DiskError, DamagedStateError."""
    # The first file would seem to go on where it ends, and what is behind it to be lost. Units are just made anew.
    if data.of_other_size:
        reason = f"no file of {data.file_bytes} bytes begins there: was this store made with another size?"
        raise DiskError(data.of_other_size[0], "opening", reason)
    begin_path = f"{directory}/begin"
    begin = read_begin(disk, begin_path)
    if begin is None:
        begin = _begin_of_first_file(data)
        write_begin(disk, begin_path, begin)
    if begin.pending:
        # A reset was begun: what is left of the old log belongs to no state any more.
        data.remove_from(0)
        units.remove_from(0)
        return LogRecovery(
            RecoveryKind.RESET_PENDING,
            begin,
            last_good_index=begin.index - 1,
            end_position=begin.position,
            damaged_file=begin_path,
            damaged_at=0,
            reason="the log was being replaced by a snapshot",
        )
    # Retention notes the new beginning before it removes files; a crash may have come in between.
    data.remove_before(begin.position)
    units.remove_before(begin.index * UNIT_BYTES)
    wanted = 1 if clean_stop else options.unclean_scan_files
    anchors = _anchors(data, begin)
    # The scan begins early enough for three things: the files that an unclean stop may have torn, index units that
    # need rebuilding, and the entries that no checkpoint has noted.
    at = max(0, min(len(anchors) - wanted, _trusted_files(anchors, data, units, begin)))
    limit = -1 if checkpoint_index is None else checkpoint_index
    while at > 0 and anchors[at][0] > limit:
        at -= 1
    scan = _Scan(data, units, begin, *anchors[at], noted_index=limit)
    scan.run()
    for start in data.starts:
        if start >= data.start_of(anchors[at][1]):
            # Entries found in the page cache count as durable from now on. What no checkpoint vouches for is stored
            # again, since the last run may have ended by a flush that failed.
            unsure = max(scan.noted_end - start, 0)
            found = min(scan.end - start, data.file_bytes)
            if unsure < found and not clean_stop:
                data.mapping(start).rewrite(unsure, found)
            disk.flush_file(data.path(start))
    recovery = _judge(scan, data, begin, options, checkpoint_index, note.read(begin.epoch))
    if recovery.kind is not RecoveryKind.DAMAGED:
        erase_units_behind(units, scan.last_index)
    return recovery


def erase_units_behind(units: Segments, last_index: int) -> None:
    """Zeroes the units of all entries behind `last_index`, durably. Raises DiskError.

    A power failure may have taken an entry and left its unit. If another entry were written in its place, and its unit
    lost in turn, the old one would speak against it.
    """
    erase_behind(units, (last_index + 1) * UNIT_BYTES)


def erase_behind(data: Segments, end_position: int) -> None:
    """Gives up all bytes from `end_position` on, durably. Raises DiskError."""
    start = data.start_of(end_position)
    data.remove_from(start + data.file_bytes)
    if start in data.starts:
        data.mapping(start).erase(end_position - start)


def _begin_of_first_file(data: Segments) -> LogBegin:
    """Returns the beginning of a log without a `begin` file: of a new one, or of DLedger's first file."""
    if data.starts and data.starts[0]:
        start = data.starts[0]
        header = HEADER.unpack_from(data.mapping(start).buffer, 0)
        if header[0] == ENTRY_MAGIC and header[4] == start:
            return LogBegin(header[2], start, header[3])
    return LogBegin()


def _anchors(data: Segments, begin: LogBegin) -> list[tuple[int, int]]:
    """Returns (index, position) of the first entry of each data file, up to the first that is missing or not sound."""
    anchors = [(begin.index, begin.position)]
    # Looked at before anything is mapped: mapping a file brings it back to its full size.
    whole = {start for start in data.starts if data.disk.size(data.path(start)) == data.file_bytes}
    start = data.start_of(begin.position)
    if start not in whole:
        return anchors
    while (start := start + data.file_bytes) in whole:
        mapped = data.mapping(start)
        buffer = mapped.buffer
        if not any(mapped.read(0, HEADER_BYTES)) or isinstance(problem_of_entry(buffer, 0, start), str):
            break
        anchors.append((HEADER.unpack_from(buffer, 0)[2], start))
    return anchors


def _trusted_files(anchors: list[tuple[int, int]], data: Segments, units: Segments, begin: LogBegin) -> int:
    """Returns the number of data files, from the first, whose index units need no rebuilding, judged by samples."""
    trusted = len(anchors)
    first_start = units.start_of(begin.index * UNIT_BYTES)
    whole = {start for start in units.starts if units.disk.size(units.path(start)) == units.file_bytes}
    missing = first_start
    while missing in whole:
        missing += units.file_bytes
    units.remove_from(missing)  # what lies behind a missing or cut off file is rebuilt with it
    for number, (index, position) in enumerate(anchors):
        start = units.start_of(index * UNIT_BYTES)
        if start >= missing:
            return max(
                0, number - 1
            )  # the units of the last entries of the data file before are missing, too
        file_start = data.start_of(position)
        at = position - file_start
        if file_start not in data.starts or at + HEADER_BYTES > data.file_bytes:
            continue
        magic, size, found, term, *_ = HEADER.unpack(data.mapping(file_start).read(at, at + HEADER_BYTES))
        unit_at = index * UNIT_BYTES - start
        unit = UNIT.unpack(units.mapping(start).read(unit_at, unit_at + UNIT_BYTES))
        if magic == ENTRY_MAGIC and unit != (ENTRY_MAGIC, position, size, found, term):
            return max(0, number - 1)  # and of the data file before nobody knows
    return trusted


class _Scan:
    """Follows the chain of entries from an anchor, and brings the index units in line."""

    def __init__(
        self, data: Segments, units: Segments, begin: LogBegin, index: int, position: int, *, noted_index: int
    ) -> None:
        """Begins with entry `index` at `position`; a checkpoint says that entries up to `noted_index` are durable."""
        self.data = data
        self.units = units
        self.last_index = index - 1
        self.end = position
        """End of the last good entry."""
        self.noted_end = position
        """End of the last entry that is durable for certain."""
        self._noted_index = noted_index
        self.broken_at = position
        """The place at which the next entry was looked for: `end`, or the beginning of the next file."""
        self.reason = ""
        self.entries = 0
        self.rebuilt = 0
        self._term = begin.base_term if index == begin.index else 0
        self._packed: list[bytes] = []
        self._unit_start = -1
        self._unit_buffer = _NO_BYTES

    def run(self) -> None:
        """Follows the chain to where it breaks, which `reason` explains. Raises DiskError."""
        file_bytes = self.data.file_bytes
        known = set(self.data.starts)
        while True:
            start = self.data.start_of(self.broken_at)
            if start not in known:
                self.reason = "the data file is missing"
                break
            self._scan_file(start, self.data.mapping(start))
            if self.reason:
                break
            self.broken_at = start + file_bytes
        self._write_units()

    def _scan_file(self, start: int, mapped: MappedFile) -> None:
        """Follows the chain through one file; sets `reason` if it breaks, and leaves it empty at the end marker."""
        file_bytes, buffer = self.data.file_bytes, mapped.buffer
        unpack, pack = HEADER.unpack_from, UNIT.pack
        at = stored_until = self.broken_at - start
        while True:
            left = file_bytes - at
            if at + HEADER_BYTES > stored_until:  # asked once or twice a file
                stored_until = mapped.stored_until(at)
                if at + HEADER_BYTES > stored_until and not any(mapped.read(at, at + HEADER_BYTES)):
                    self.reason = NO_HEADER
                    self.broken_at = start + at
                    return
            if left >= MARKER_BYTES and END_MARKER.unpack_from(buffer, at) == (END_MAGIC, left):
                return
            found = problem_of_entry(buffer, at, start + at)
            self.reason = found if isinstance(found, str) else ""
            # The entry alone is sound: now it must follow the one before it. Terms never fall (Raft 5.3).
            if not self.reason:
                _, size, index, term, position, _, _, _, _ = unpack(buffer, at)
                if index != self.last_index + 1:
                    self.reason = f"entry {index} follows entry {self.last_index}"
                elif term < self._term:
                    self.reason = f"term {term} follows term {self._term}"
                elif self._unit_disagrees(position, size, index, term):
                    self.reason = f"term {term} is not the one in the index unit of entry {index}"
            if self.reason:
                self.broken_at = start + at
                return
            self._packed.append(pack(ENTRY_MAGIC, position, size, index, term))
            at += size
            self.last_index = index
            self._term = term
            self.end = self.broken_at = start + at
            if index <= self._noted_index:
                self.noted_end = start + at
            self.entries += 1
            if len(self._packed) >= _UNITS_PER_PIECE:
                self._write_units()

    def _unit_disagrees(self, position: int, size: int, index: int, term: int) -> bool:
        """True if the entry's unit is the same but for the term, which no checksum covers.

        Truncation and recovery make zeroed units durable, so that a unit never outlives its entry for long.
        """
        byte = index * UNIT_BYTES
        start = self.units.start_of(byte)
        if start != self._unit_start:
            self._unit_start = start
            known = start in self.units.starts
            self._unit_buffer = self.units.mapping(start).buffer if known else _NO_BYTES
        if not self._unit_buffer:
            return False
        unit = UNIT.unpack_from(self._unit_buffer, byte - start)
        return unit[:4] == (ENTRY_MAGIC, position, size, index) and unit[4] != term

    def _write_units(self) -> None:
        """Compares the units of the entries found since the last call with the index, and corrects it.

        The next checkpoint is to flush them all, although a flush of the last run may have failed.
        """
        packed = b"".join(self._packed)
        byte = (self.last_index + 1) * UNIT_BYTES - len(packed)
        self._packed.clear()
        while packed:
            start = self.units.start_of(byte)
            mapped = self.units.obtain(start)
            size = min(len(packed), start + self.units.file_bytes - byte)
            at = byte - start
            old = mapped.read(at, at + size)
            # Units that are right in memory may not be so on the disk: after a flush that failed their pages count as
            # clean. Stored again they are flushed again.
            if old != packed[:size]:
                mapped.prepare(at, at + size, touch=False)
                mapped.buffer[at : at + size] = packed[:size]
                self.rebuilt += sum(
                    old[unit : unit + UNIT_BYTES] != packed[unit : unit + UNIT_BYTES]
                    for unit in range(0, size, UNIT_BYTES)
                )
            else:
                mapped.rewrite(at, at + size)
            packed = packed[size:]
            byte += size


def _judge(
    scan: _Scan,
    data: Segments,
    begin: LogBegin,
    options: StoreOptions,
    checkpoint_index: int | None,
    durable_index: int | None,
) -> LogRecovery:
    """Decides what the break of the chain is, and cuts a torn tail off. Raises DiskError."""
    later, any_bytes = _search_behind(data, scan, options.zero_gap_bytes)
    reason = scan.reason
    # An unfinished write has nothing behind it, and nobody has acknowledged it: only such a one is cut.
    if later is not None:
        kind = RecoveryKind.DAMAGED
        reason += f", but entry {later} follows"
    elif checkpoint_index is not None and scan.last_index < checkpoint_index:
        kind = RecoveryKind.DAMAGED
        reason += f", but entries up to {checkpoint_index} were on disk at the last checkpoint"
    elif durable_index is not None and scan.last_index < durable_index:
        kind = RecoveryKind.DAMAGED
        reason += f", but a flush has covered entries up to {durable_index}"
    elif any_bytes:
        kind = RecoveryKind.TORN_TAIL
        erase_behind(data, scan.end)
    else:
        kind = RecoveryKind.CLEAN
        # A file that was made ahead, and is empty: the writer's is the last one (`Tail.move_to`).
        data.remove_from(data.start_of(scan.end) + data.file_bytes)
    broken_start = data.start_of(scan.broken_at)
    broken = kind is not RecoveryKind.CLEAN
    return LogRecovery(
        kind,
        begin,
        last_good_index=scan.last_index,
        end_position=scan.end,
        damaged_file=data.path(broken_start) if broken else None,
        damaged_at=scan.broken_at - broken_start if broken else None,
        reason=reason if broken else "",
        later_index=later,
        scanned_entries=scan.entries,
        rebuilt_units=scan.rebuilt,
    )


def _search_behind(data: Segments, scan: _Scan, zero_gap_bytes: int) -> tuple[int | None, bool]:
    """Returns (index of a valid entry behind the break or None, True if there are any bytes but zeros)."""
    any_bytes = False
    for start in data.starts:
        if start + data.file_bytes <= scan.end:
            continue
        begin = max(scan.end, start) - start
        found, has_bytes = _search_file(data, start, begin, scan, zero_gap_bytes)
        any_bytes |= has_bytes
        if found is not None:
            return found, True
    return None, any_bytes


def _search_file(
    data: Segments, start: int, begin: int, scan: _Scan, zero_gap_bytes: int
) -> tuple[int | None, bool]:
    """Returns as `_search_behind`, for one file from its byte `begin` on."""
    end, after_index = scan.end, scan.last_index
    mapped = data.mapping(start)
    any_bytes = False
    zeros = 0
    for at in range(begin, data.file_bytes, _SEARCH_PIECE_BYTES):
        # A little more than the piece, so that no magic number is missed between two of them.
        piece = mapped.read(at, min(data.file_bytes, at + _SEARCH_PIECE_BYTES + len(_MAGIC_BYTES) - 1))
        if piece.count(0) == len(piece):
            zeros += len(piece)
            if zeros >= zero_gap_bytes:
                break
            continue
        zeros = 0
        any_bytes = True
        found = -1
        while (found := piece.find(_MAGIC_BYTES, found + 1)) >= 0:
            candidate = at + found
            if not isinstance(problem_of_entry(mapped.buffer, candidate, start + candidate), str):
                # The index is covered by no checksum; no more entries can be in between than fit there. The very next
                # one, in the next file, is no later one: the end marker that is missing here is part of its write.
                index = HEADER.unpack_from(mapped.buffer, candidate)[2]
                between = (start + candidate - end) // HEADER_BYTES
                if 1 < index - after_index <= between + 1:
                    return index, True
    return None, any_bytes

"""The cuts of an entry log: its tail (Raft truncates it), its head (retention), all behind damage, or everything.

This module alone takes entries away from an `EntryLog`. Every cut is durable when it returns, and says on the disk what
it is about to do before it removes anything: a crash in the middle leaves a log that recovery finishes cutting or
reports (`log.entries.entry_recovery`), never one with a hole.

All of them raise DiskError, and FlushError where something was flushed: the node must stop then, because its files may
hold neither what was there before nor what was meant to be.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from log.entries.entry_log import EntryLog
from log.entries.entry_reads import file_beginnings
from log.entries.entry_recovery import LogBegin, erase_behind, erase_units_behind, write_begin
from log.formats.layout import MARKER_BYTES, UNIT_BYTES


def truncate(log: EntryLog, last_index: int) -> None:
    """Cuts off all entries behind `last_index`; `first_index` - 1 empties the log.

    What is cut off is zeroed and flushed. Otherwise a crash could bring back entries of an older term behind new ones,
    because pages reach the disk in any order; that would break log matching (Raft figure 3). The caller, who alone
    knows which entries are committed, asserts that none of them goes.
    """
    assert log.first_index - 1 <= last_index <= log.last_index, (
        f"truncation to entry {last_index} of {log.first_index}..{log.last_index}"
    )
    if last_index == log.last_index:
        return
    old_end, old_last = log.end_position, log.last_index
    new_end = log.end_of(last_index)
    start = log.data.start_of(new_end)
    file_end = start + log.file_bytes
    log.flushes.lower_note(last_index)
    # Whole files first: behind a crash here the log is one that was truncated less far.
    log.data.remove_from(file_end)
    tail = log.tail
    tail.move_to(new_end)
    # No end marker stands behind the old end: one is written with the entry that begins the next file, and goes here.
    zero_end = min(old_end, file_end)
    np.frombuffer(tail.buffer, np.uint8)[new_end - start : zero_end - start] = 0
    tail.mapped.write_back(new_end - start, zero_end - start)
    tail.mapped.flush(new_end - start, zero_end - start)
    tail.set_prepared(zero_end)
    log.index.drop(last_index + 1, old_last)
    # Every field that reaches behind the new end is drawn back to it, a flush that is under way included.
    log.terms.cut_behind(last_index)
    log.last_index = last_index
    log.sound_position = min(log.sound_position, new_end)
    log.end_position = new_end
    log.flushes.truncated()
    _check(log)


def reset(
    log: EntryLog,
    first_index: int,
    position: int,
    base_term: int,
    install: Callable[[], None] | None = None,
) -> None:
    """Empties the log, which will go on with entry `first_index` at `position`: a snapshot covers all before it.

    `base_term` is the term of entry `first_index` - 1. `install` makes the rest of the node's state durable; a crash
    before it is done leaves a log that recovery reports as RESET_PENDING, empty, to be reset again. It takes a few
    steps of the disk however long the log is: a node does it in a turn.
    """
    assert position % log.file_bytes <= log.file_bytes - MARKER_BYTES, (
        f"no log ends at {position}: what is left of the file has no room for an end marker"
    )
    log.epoch += 1
    begin = LogBegin(first_index, position, base_term, log.epoch)
    # Pending is on the disk before anything goes, and is taken back when all that belongs to the new log is there.
    _write_begin(log, replace(begin, pending=True))
    log.data.remove_all()
    log.index.segments.remove_all()
    log.data.disk.sync_directory(log.directory)
    log.damaged = log.reset_pending = False
    log.first_index = log.index.sound_from = first_index
    log.last_index = first_index - 1
    log.first_position = log.end_position = log.sound_position = position
    log.damage.entries.clear()
    log.terms.empty(base_term)
    log.start_writing()
    log.flushes.truncated()
    _check(log)
    if install is not None:
        install()
    _write_begin(log, begin)


def delete_before(log: EntryLog, index: int) -> int:
    """Deletes the data files all of whose entries come before `index`, never the last file; returns their number.

    A file whose first entry is damaged goes with the next one whose first entry is whole.

    `first_index` and `first_position` move up to the first file that stays, and have done so even where this raises
    `DiskFullError` because a directory cannot be written: the next deletion removes what is left.
    """
    keep, keep_index = log.first_position, log.first_index
    for start, first in file_beginnings(log):
        if first > index:
            break
        keep, keep_index = start, first
    if keep_index == log.first_index:
        return 0
    # The new beginning is on the disk before a file goes: recovery would take a missing first file for a lost one.
    _write_begin(log, LogBegin(keep_index, keep, log.term_of(keep_index - 1), log.epoch))
    # From here on the log begins there: files that cannot be removed now are none of its any more.
    log.flushes.begins_at(keep)
    log.terms.cut_before(keep_index)
    log.first_index = keep_index
    log.first_position = keep
    _check(log)
    removed = log.data.remove_before(keep)
    log.index.segments.remove_before(keep_index * UNIT_BYTES)
    return removed


def cut_damage(log: EntryLog) -> None:
    """Gives up everything behind the damaged place, so that the group can send it again; nothing if there is none."""
    assert not log.reset_pending, "a reset that was begun is repeated, not cut"
    if not log.damaged:
        return
    log.epoch += 1
    _write_begin(log, LogBegin(log.first_index, log.first_position, log.base_term, log.epoch))
    erase_behind(log.data, log.end_position)
    erase_units_behind(log.index.segments, log.last_index)
    log.damaged = False
    log.start_writing()
    _check(log)


def _write_begin(log: EntryLog, begin: LogBegin) -> None:
    write_begin(log.data.disk, f"{log.directory}/begin", begin)


def _check(log: EntryLog) -> None:
    """Asserts what `EntryLog` says of its fields: what is wrong with one would be appended behind, or acknowledged."""
    first, last, end, runs = log.first_index, log.last_index, log.end_position, log.terms.starts
    assert first - 1 <= last, f"entries {first}..{last}"
    assert log.first_position <= end, f"bytes {log.first_position}..{end}"
    assert bool(runs) == (first <= last), f"terms {runs} of entries {first}..{last}"
    assert not runs or runs[0][0] == first, f"terms {runs} of entries from {first} on"
    assert not runs or runs[-1][0] <= last, f"terms {runs} of entries up to {last}"
    assert log.terms.newest == (runs[-1][1] if runs else 0), f"{log.terms.newest} ends the terms {runs}"
    assert log.flushes.durable_index <= last, f"{log.flushes.durable_index} is durable, of a log up to {last}"

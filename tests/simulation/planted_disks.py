"""Mistakes about what the disk holds and what of it is believed, each put into the code by a patch.

`planted_bugs` lists them.
"""

from __future__ import annotations

from typing import Any

import pytest

import log.entries.entry_scrub
import log.formats.entry_range
from broker.replica.durability import Durability
from log.entries import cuts
from log.entries.entry_log import EntryLog
from log.entries.flushes import Flushes, FlushJob
from log.index.index_files import IndexFiles, IndexNote
from log.notes.checkpoint import ABORT
from log.queues.consume_queue import ConsumeQueue
from log.store import Store
from tests.simulation.planting import planted


@planted("CRC unchecked", "DLedgerMmapFileStore: a follower takes whatever bytes come")
def crc_unchecked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log.formats.entry_range, "crc32", lambda body: _Anything())


@planted("torn tail accepted", "DLedgerMmapFileStore: body bytes are not checked", flush="sync")
def torn_tail_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log.entries.entry_scrub, "crc32", lambda body: _Anything())


class _Anything(int):
    """Equal to every checksum."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


@planted("truncation not flushed", "old entries come back behind new ones", flush="sync")
def truncation_not_flushed(patch: pytest.MonkeyPatch) -> None:
    original = cuts.truncate

    def truncate(log: EntryLog, last_index: int) -> None:
        mapped = log.tail.mapped
        flush = type(mapped).flush
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(type(mapped), "flush", lambda *_: None)
            original(log, last_index)
        assert type(mapped).flush is flush

    patch.setattr(cuts, "truncate", truncate)


@planted("queue damage not looked for", "ConsumeQueue trusted after a crash")
def queue_damage_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumeQueue, "is_sound", lambda self, begin, end, checksum: True)


@planted("index files not complete", "a key of each batch is left out")
def index_files_not_complete(patch: pytest.MonkeyPatch) -> None:
    original = IndexFiles.put

    def put(self: IndexFiles, keys: Any, offsets: Any, times: Any, now_ms: int) -> None:
        original(self, keys[:-1], offsets[:-1], times[:-1], now_ms)

    patch.setattr(IndexFiles, "put", put)


@planted("index file not rebuilt", "what a crash left is taken for whole")
def index_file_not_rebuilt(patch: pytest.MonkeyPatch) -> None:
    original = IndexFiles.recover

    def recover(self: IndexFiles, notes: list[IndexNote] | None, *, clean_stop: bool) -> int | None:
        original(self, notes, clean_stop=clean_stop)
        return None

    patch.setattr(IndexFiles, "recover", recover)


@planted("async: never flushed at the interval", "docs/configuration.md: flush_interval_ms", flush="async")
def never_flushed_at_the_interval(patch: pytest.MonkeyPatch) -> None:
    original = Durability.flush_job

    def flush_job(self: Durability, now_ns: int) -> FlushJob | None:
        return original(self, now_ns) if self.sync else None

    patch.setattr(Durability, "flush_job", flush_job)


@planted("async: page cache taken for the disk", "what is said to be flushed stays", flush="async")
def page_cache_taken_for_the_disk(patch: pytest.MonkeyPatch) -> None:
    def run(self: FlushJob) -> None:
        pass

    patch.setattr(FlushJob, "run", run)


@planted(
    "failed flush of a stop passed over", "found here, by writing down what the shell does", flush="sync"
)
def failed_flush_of_a_stop_passed_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Flushes, "is_out", False)


@planted(
    "orderly stop without the last flush", "the file abort goes before everything is flushed", flush="async"
)
def orderly_stop_without_the_last_flush(patch: pytest.MonkeyPatch) -> None:
    def close(self: Store, commit_index: int) -> None:
        self._disk.remove(ABORT)
        self._disk.sync_directory(".")
        self.abandon()

    patch.setattr(Store, "flush", lambda self: None)
    patch.setattr(Store, "close", close)


@planted("part of the flush left out", "durable means all of it", flush="sync")
def part_of_the_flush_left_out(patch: pytest.MonkeyPatch) -> None:
    original = Flushes.job

    def flush_job(self: Flushes) -> FlushJob | None:
        job = original(self)
        if job is not None:
            job._ranges.pop(0)  # the beginning of what it says it covers is left out
        return job

    patch.setattr(Flushes, "job", flush_job)

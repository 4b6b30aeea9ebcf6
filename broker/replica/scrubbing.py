"""The scrubber: everything old is read now and then, so that damage is found while others still hold what is damaged.

A pass goes over all committed entries, slice by slice in a worker thread (`log.entries.entry_scrub`), and holds against
them what was made from them: the units of the log's index (here) and of the ConsumeQueues
(`log.dispatching.queue_scrub`). Index files (`log.index.index_scrub`) and the snapshot are held against their checksums
at the end. What is damaged among the entries goes to `Repairs`, which has it from a peer; all else is made anew here.

It begins a pass every `storage.scrub_interval_s` and spreads it over half of that time, so that an idle node pays
next to nothing, at `storage.scrub_bytes_per_second` at most. Whoever meets damage whose place in the log nobody knows
makes it go over everything at once (`hurry`), one slice after the other.
"""

from typing import Final

import structlog

from broker.replica.applied import AppliedState
from broker.replica.committed_entries import CommittedEntries
from broker.replica.repairs import Repairs
from broker.requests.deadline import NEVER
from log.dispatching.queue_scrub import QueueScrub
from log.entries.entry_repair import correct_marker, whole_again
from log.entries.entry_scrub import EntryScrub
from log.entries.flushes import FlushJob
from log.errors import DamagedEntryError, DamagedLogError
from log.index.index_scrub import IndexScrub, IndexScrubber
from log.notes.snapshot import SnapshotScrub
from log.store import Store

log = structlog.get_logger("trivet.scrub")

SLICE_BYTES: Final = 64 * 1024
"""The bytes that are read at a time: what a turn has to do with them afterwards takes a millisecond."""

FIRST_REST_NS: Final = 60_000_000_000
"""The first pass begins so long after the start at the latest."""

HURRY_NS: Final = 5_000_000
"""The rest between slices in a hurry."""

HURRIES_EVERY_NS: Final = 60_000_000_000
"""The time from one hurried pass to the next, at least."""

SNAPSHOT_AGAIN_NS: Final = 1_000_000_000
"""A snapshot that was damaged is read again after this time, until it is whole."""

Scrub = EntryScrub | IndexScrub | SnapshotScrub


class Scrubbing:
    """The scrubber of one node."""

    def __init__(
        self,
        store: Store,
        repairs: Repairs,
        committed: CommittedEntries,
        applied: AppliedState,
        now_ns: int,
    ) -> None:
        self._store = store
        self._repairs = repairs
        self._committed = committed
        self._applied = applied
        self._index = IndexScrubber(store.index)
        self._queues = QueueScrub(store.log, store.queues, self._index, store.options)
        self._rate = 0
        self._interval_ns = 0
        self._spread_ns = 0
        """The time over which a pass is spread; the rate may make it longer."""
        self._pass_bytes = 1
        """The bytes that the log held when the pass began."""
        self._job: Scrub | None = None
        self._next: tuple[int, int] | None = None
        """The entry to go on with, and its position; None between passes."""
        # This and the next two say something within a pass only.
        self._epoch = -1
        """The log's when the pass began: in a log that was cut or begun anew since, `_next` is another entry."""
        self._has_met_damage = False
        """This pass has met entries that are damaged."""
        self._is_past_entries = False
        """All entries of this pass were gone over: files made of them are next."""
        self._misses_snapshot = False
        """The snapshot is damaged, and was not read back whole yet."""
        self._pass_began_ns = now_ns
        self._is_hurried = False
        self._hurried_ns: int | None = None
        """The time at which the last hurried pass began."""
        self.due_ns = NEVER
        self.bytes = 0
        """Bytes read since the start."""
        self.passes = 0
        self.last_pass_ms = 0
        """The group's time at the end of the last whole pass, 0 if there was none."""
        repairs.suspect = self.hurry

    def pace(self, bytes_per_second: int, interval_s: int, now_ns: int) -> None:
        """Sets the settings in force; with a rate of 0 only hurried passes are made."""
        self._rate = bytes_per_second
        self._interval_ns = interval_s * 1_000_000_000
        # With one second passes follow each other as the rate allows.
        self._spread_ns = interval_s // 2 * 1_000_000_000
        if self._next is None:
            rest_ns = self._interval_ns if self.passes else min(self._interval_ns, FIRST_REST_NS)
            self.due_ns = self._pass_began_ns + rest_ns
        else:
            self.due_ns = now_ns
        if not self._rate and not self._is_hurried:
            self.due_ns = NEVER

    def hurry(self, now_ns: int) -> None:
        """Goes over everything from the beginning, as fast as it may; does nothing if it has just done so."""
        # Where no pass finds what is wrong, each reader that meets it would have another one made.
        if self._hurried_ns is None or now_ns >= self._hurried_ns + HURRIES_EVERY_NS:
            self._hurried_ns = now_ns
            self._is_hurried = True
            self._next = None
            self.due_ns = now_ns

    @property
    def wakes_ns(self) -> int:
        """The time (ns) at which `job` must be asked at the latest; NEVER while one is out: `done` sets it anew."""
        return NEVER if self._job is not None or self._store.log.damaged else self.due_ns

    # ------------------------------------------------------------------ jobs

    def job(self, now_ns: int) -> Scrub | None:
        """Returns what to read now; None if nothing is due or a job is out. A worker runs it, `done` takes it back."""
        entries = self._store.log
        if now_ns < self.due_ns or self._job is not None or entries.damaged:
            return None
        # A pass begins; also where the log was begun anew meanwhile, of which nothing was read yet. Else it goes on,
        # past what retention has deleted.
        if self._next is None or self._epoch != entries.epoch:
            self._pass_began_ns = now_ns
            self._epoch = entries.epoch
            self._pass_bytes = max(entries.end_position - entries.first_position, 1)
            self._next = (entries.first_index, entries.first_position)
            self._is_past_entries = self._has_met_damage = False
            self._queues.begin()
            self._index.begin()
        elif self._next[0] < entries.first_index:
            self._next = (entries.first_index, entries.first_position)
        if self._next[0] > self._last_index or self._is_past_entries:
            # Index files come behind the entries: one that is filled anew is complete when all of these have gone by.
            if not self._is_past_entries:
                self._is_past_entries = True
                self._queues.ended()
                self._index.passed(entries.first_position, is_whole=not self._has_met_damage)
            # The snapshot comes last: with it the pass ends (`done`).
            self._job = self._index.job() or self._store.snapshot.scrub()
        else:
            self._job = self._slice(*self._next, SLICE_BYTES)
        return self._job

    @property
    def _last_index(self) -> int:
        """The last entry that must be as it is on every node, and on the disk."""
        return min(self._committed.index, self._store.log.durable_index)

    def _slice(self, index: int, position: int, size: int) -> EntryScrub:
        entries = self._store.log
        mapped, start = entries.file_of(position)
        # As they are now: the worker must not ask a log that goes on meanwhile.
        terms, end = entries.term_starts(), entries.end_position
        return EntryScrub(mapped, start, index, position, self._last_index, size, terms, end)

    def done(self, job: Scrub, now_ns: int, group_ms: int) -> None:
        """Takes what a job has read: damage is put right or handed on, and the time of the next job is set."""
        assert job is self._job, "the job that is out comes back, once"
        self._job = None
        self._take(job, now_ns, group_ms)
        # Scrubbing may have been turned off while the worker read (`pace`).
        if not self._rate and not self._is_hurried:
            self.due_ns = NEVER

    def _take(self, job: Scrub, now_ns: int, group_ms: int) -> None:
        """Takes what a job has read, as if scrubbing went on."""
        # A hurried pass was asked for while the worker read, or the log was cut: what was read is of no use.
        if self._next is None or self._epoch != self._store.log.epoch:
            self.due_ns = now_ns  # to begin anew
            return
        if isinstance(job, SnapshotScrub):
            read = job.bytes
            if self._is_whole(job, now_ns):
                self._end(now_ns, group_ms)
            else:
                self.due_ns = now_ns + SNAPSHOT_AGAIN_NS
        elif isinstance(job, IndexScrub):
            read = job.end - job.begin
            damage = self._index.done(job)
            if damage is not None:
                self._repairs.note_found("index file", damage, now_ns)
            self._flush_units(now_ns)
            self.due_ns = now_ns + self._rest_ns(read)
        else:
            read = job.next_position - job.position
            # Unless retention has deleted them while the worker read.
            if job.index >= self._store.log.first_index:
                self._take_entries(job, now_ns)
            self.due_ns = now_ns + self._rest_ns(read)
        self.bytes += read

    def _rest_ns(self, read: int) -> int:
        # Units that are known to be damaged are put right where the pass comes to the entries that they are made from.
        if self._is_hurried or self._queues.misses or not self._rate:
            return HURRY_NS
        return max(read * 1_000_000_000 // self._rate, read * self._spread_ns // self._pass_bytes)

    def _end(self, now_ns: int, group_ms: int) -> None:
        """Ends a pass, and sets the time of the next one."""
        self._flush_units(now_ns)
        self._next = None
        # A damaged index file is filled anew in a pass that goes over all entries: that one follows at once.
        self._is_hurried = self._index.is_in_haste
        self.passes += 1
        self.last_pass_ms = group_ms
        self.pace(self._rate, self._interval_ns // 1_000_000_000, now_ns)
        self.due_ns = now_ns + HURRY_NS if self._is_hurried else max(self.due_ns, now_ns + HURRY_NS)
        log.info("scrubbed", entries=self._last_index, found=self._repairs.found, left=self._repairs.left)

    # ------------------------------------------------------------------ what was found

    def _take_entries(self, job: EntryScrub, now_ns: int) -> None:
        entries = self._store.log
        if job.units:
            changed = entries.index.correct(job.index, b"".join(job.units))
            for mapped, begin, _ in changed:
                error = DamagedLogError(mapped.path, begin, "it does not say where the entries are")
                self._repairs.note_found("index units", error, now_ns)
            if changed:
                self._repairs.to_flush(FlushJob(changed, job.next_index - 1), "index units", len(changed))
            # Of entries that are not dispatched yet queues have no units.
            self._queues.check(job.index, min(job.next_index - 1, self._store.dispatched_index))
            self._flush_units(now_ns)
        self._next = (job.next_index, job.next_position)
        if job.problem:
            self._next = self._behind_damage(job.next_index, job.next_position, now_ns)

    def _flush_units(self, now_ns: int) -> None:
        """Has units of queues and index files flushed that were put right."""
        index = self._index
        if index.corrected:
            self._repairs.to_flush(FlushJob(index.corrected, -1), "index file", len(index.corrected))
            index.corrected = []
        for path in index.given_up:
            self._repairs.note_left("a part of its records is gone", now_ns, source=path)
        index.given_up.clear()
        corrected = self._queues.corrected
        if corrected:
            self._queues.corrected = []
            for mapped, begin, _ in corrected:
                error = DamagedLogError(mapped.path, begin, "the unit does not lead to its message")
                self._repairs.note_found("queue units", error, now_ns)
            self._repairs.to_flush(FlushJob(corrected, -1), "queue units", len(corrected))

    def _behind_damage(self, index: int, position: int, now_ns: int) -> tuple[int, int]:
        """Takes up damage that begins at an entry; returns the entry to go on with, and its position."""
        entries, repairs = self._store.log, self._repairs
        # Alone and in this thread: it may have been repaired while the worker read.
        again = self._slice(index, position, 1)
        again.run()
        if not again.problem:
            return again.next_index, again.next_position
        path, offset = again.mapped.path, position - again.start
        marker = correct_marker(entries, index, position)
        if marker is not None:
            repairs.note_found("end marker", DamagedLogError(path, offset, again.problem), now_ns)
            repairs.to_flush(marker, "end marker", 1)
            # An end marker is the last thing in its file: the same entry is looked for where the next file begins.
            return index, again.start + entries.file_bytes
        self._has_met_damage = True
        self._queues.met_damage()
        whole = whole_again(entries, index) or (self._last_index + 1, entries.end_position)
        error = DamagedEntryError(path, offset, again.problem, position)
        repairs.damaged(index, whole[0] - 1, error, now_ns)
        return whole

    def _is_whole(self, job: SnapshotScrub, now_ns: int) -> bool:
        """Tells whether the snapshot on the disk is whole; if not it is made anew, which may have to wait for room."""
        # A newer one may have taken its place while the worker read it.
        if job.problem is None or job.applied_index != self._store.snapshot.applied_index:
            if self._misses_snapshot:
                self._misses_snapshot = False
                self._repairs.note_repaired("snapshot", 1)
            return True
        if not self._misses_snapshot:
            self._misses_snapshot = True
            self._repairs.note_found("snapshot", job.problem, now_ns)
        self._applied.save()
        return False

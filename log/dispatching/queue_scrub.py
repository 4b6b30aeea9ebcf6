"""Units of ConsumeQueues are held against the log, and written anew where they were damaged.

Entries are dispatched once more, into queues that compare instead of adding. A unit that differs and leads to no record
that claims its place is damaged. It is not put right at once: a topic that was deleted and made again has records of an
earlier life in the log, which claim the same offsets. In the order of the log the later life comes last, and within a
life offsets and positions rise together. So what was missed is written when a later record of the queue is met whose
unit is right, or when the log's end is reached. A unit that leads to a later record says that what was missed is of an
earlier life; one that leads to an earlier record is damaged, whatever that record claims.

Of entries that are damaged themselves nobody knows which life they begin: a unit that leads to one is left alone, and
what was missed before them waits for the next pass.

A pass over the whole log also knows where a queue begins: with the first record of its last life. Units before it are
of records that are gone, and were damaged when retention looked at them: nothing else would end what waits for them.
"""

from dataclasses import replace
from typing import cast

from log.dispatching.dispatch import Dispatcher
from log.entries.entry_log import EntryLog
from log.entries.entry_reads import record_at
from log.errors import DamagedEntryError, OutOfRangeError, RecordError
from log.files.disk import MappedFile
from log.formats.loops import PURE
from log.formats.record import is_message_at
from log.index.index_files import IndexFiles
from log.index.index_scrub import IndexScrubber
from log.options import StoreOptions
from log.queues.consume_queue import NO_RECORD_BYTES, ConsumeQueue
from log.queues.consume_queues import ConsumeQueues

Range = tuple[MappedFile, int, int]
"""A file, and where in it something begins and ends."""


class _Compared:
    """A queue of the dispatcher that compares. It stands for `queue`, None if there is none of that name now."""

    tail_start = 0
    max_offset = -1
    """No unit without a record is ever added."""

    def __init__(self, scrub: "QueueScrub", topic: str, queue_id: int) -> None:
        self._scrub = scrub
        self._topic = topic
        self._queue_id = queue_id
        self._queue: ConsumeQueue | None = None
        self._missed: dict[int, tuple[int, int, int]] = {}
        """The units that should be at these offsets, and are not."""
        self._first: tuple[int, tuple[int, int, int]] | None = None
        """The offset and the unit of the first record of the life that was met last."""
        self._last = -1, -1
        """The offset and the place of the record that was met last."""

    def takes_run(self, offset: int, physical_offset: int) -> bool:
        """False: each unit is looked at by itself."""
        return False

    def append(self, offset: int, physical_offset: int, size: int, tags_code: int) -> bool:
        """Compares a unit. Returns False: nothing was added."""
        queue = self._scrub.queues.get(self._topic, self._queue_id)
        if queue is not self._queue:
            self._queue = queue
            self._first = None
            self.forget()
        if queue is None:
            return False
        found = queue.unit(offset)
        wanted = (physical_offset, size, tags_code)
        # In the order of the log, an offset that does not grow begins another life of the queue: its topic was deleted
        # and made again.
        if physical_offset > self._last[1]:
            if self._first is None or offset <= self._last[0]:
                self._first = offset, wanted
            self._last = offset, physical_offset
        if found is None:
            return False  # deleted by retention, or of an earlier life that was longer
        if found == wanted:
            if self._missed:
                self._write(before=offset)
        elif found[0] > physical_offset and self._may_be_of_later_life(found, offset):
            self.forget()
        else:
            self._missed[offset] = wanted
            self._scrub.missing[self] = None
        return False

    def _may_be_of_later_life(self, unit: tuple[int, int, int], offset: int) -> bool:
        if unit[1] == NO_RECORD_BYTES:
            return True  # a place that a half message took
        try:
            record = record_at(self._scrub.log, unit[0])
            return is_message_at(record, self._topic, self._queue_id, offset)
        except DamagedEntryError:
            return True  # when it is repaired it is looked at again
        except (OutOfRangeError, RecordError):
            return False

    def _write(self, before: int) -> None:
        """Writes what was missed before an offset; what was missed behind it was of an earlier life."""
        queue, missed = self._queue, self._missed.copy()
        self.forget()
        if queue is None:
            return
        for offset, unit in missed.items():
            if offset < before:
                changed = queue.correct(offset, unit)
                if changed is not None:
                    self._scrub.corrected.append(changed)

    def forget(self) -> None:
        """Forgets what was missed."""
        self._missed.clear()
        self._scrub.missing.pop(self, None)

    def ended(self) -> None:
        """The end of the log is reached: what was missed belongs to the life of now."""
        if self._scrub.queues.get(self._topic, self._queue_id) is self._queue:
            self._write(before=1 << 62)

    def begins(self) -> None:
        """The whole log was gone over: the queue begins with the first record that is there."""
        queue = self._scrub.queues.get(self._topic, self._queue_id)
        if queue is not None and queue is self._queue and self._first is not None:
            offset, unit = self._first
            # A queue that began a new life meanwhile has another unit there.
            if queue.min_offset < offset and queue.unit(offset) == unit:
                queue.begin_at(offset)


class _Pool:
    opened = 0


class QueueScrub:
    """Compares the queues of one store with its log, entry by entry."""

    def __init__(
        self, log: EntryLog, queues: ConsumeQueues, index: IndexScrubber, options: StoreOptions
    ) -> None:
        """The keys of all entries go to `index`."""
        self.log = log
        self.queues = queues
        self.pool = _Pool()
        self.corrected: list[Range] = []
        """Ranges in which units were written and that are to be flushed: the caller takes them out."""
        self._compared: dict[tuple[str, int], _Compared] = {}
        self.missing: dict[_Compared, None] = {}
        """The queues of which a unit is damaged, and was not put right yet."""
        self._is_whole = True
        """This pass has left out no entry that the log still has."""
        self._next_index = -1
        """The entry behind the last one that was compared; -1 when a pass begins."""
        # Nothing else is used of what both stand for; C would add units by itself.
        self._dispatcher = Dispatcher(
            log, cast(ConsumeQueues, self), cast(IndexFiles, index), replace(options, loops=PURE)
        )

    def make(self, topic: str, queue_id: int) -> _Compared:
        """The queue of that name, as the dispatcher wants it."""
        key = (topic, queue_id)
        compared = self._compared.get(key)
        if compared is None:
            compared = self._compared[key] = _Compared(self, topic, queue_id)
        return compared

    def check(self, first_index: int, last_index: int) -> None:
        """Compares the units of entries that were just found whole. Raises DiskError."""
        if first_index not in (self._next_index, self.log.first_index):
            self._is_whole = False
        self._next_index = max(first_index, last_index + 1)
        if first_index <= last_index:
            self._dispatcher.run(first_index, last_index, 0)

    @property
    def misses(self) -> bool:
        """Units are known to be damaged: the pass should come to where they can be put right."""
        return bool(self.missing)

    def met_damage(self) -> None:
        """The pass leaves out entries that are damaged: later lives of the queues may have begun there."""
        for compared in tuple(self.missing):
            compared.forget()

    def ended(self) -> None:
        """The pass has come to the end of the log."""
        for compared in tuple(self.missing):
            compared.ended()
        if self._is_whole:
            for compared in self._compared.values():
                compared.begins()
        self.begin()

    def begin(self) -> None:
        """A pass begins."""
        self._is_whole = True
        self._next_index = -1
        self._compared.clear()
        self.missing.clear()
        self._dispatcher.forget_topics()

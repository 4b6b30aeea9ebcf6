"""All ConsumeQueues of a store, by topic and queue id.

At start only the table is built (from the checkpoint's notes and the directory listing); files are mapped
when they are used. What the notes say about a queue is believed only as far as a checksum over its last
file agrees; a queue that is missing, shorter or different is built again from the log.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from log.files.disk import Disk
from log.files.mapping_pool import MappingPool
from log.options import StoreOptions
from log.queues.consume_queue import ConsumeQueue

DIRECTORY = "consumequeue"
_NOTES_AT_ONCE = 1_000
_NO_END = 1 << 62
"""A physical offset behind all records."""


class QueueNote(NamedTuple):
    """A checkpoint's note of a queue; `checksum` covers units [checksum_begin, max_offset), those of the last file.

    Always 0 <= min_offset <= max_offset, and all units between are durable. An empty queue has `checksum_begin` at its
    end.

    A tuple, as each checkpoint makes one for every queue there is, in a turn.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    checksum_begin: int
    checksum: int


def encode_queue_notes(notes: Sequence[QueueNote]) -> Iterator[bytes]:
    """Yields the notes as JSON, members of a list without its brackets, some of them at once: whoever writes all of
    tens of thousands in one call of the encoder keeps every other thread waiting."""
    for begin in range(0, len(notes), _NOTES_AT_ONCE):
        yield json.dumps(notes[begin : begin + _NOTES_AT_ONCE]).encode()[1:-1]


def is_storable_topic(topic: str) -> bool:
    """True if a topic can name a directory. Senders check more; this is the last line of defence."""
    return (
        0 < len(topic.encode("utf-8", "surrogatepass")) <= 255
        and topic not in (".", "..")
        and "/" not in topic
        and topic.isprintable()
    )


@dataclass(slots=True, eq=False)
class EmptyQueues:
    """Queues without a message that take the place of those of a store; made beside them, and noted beforehand."""

    _disk: Disk
    _options: StoreOptions
    _pool: MappingPool
    table: dict[tuple[str, int], ConsumeQueue] = field(default_factory=dict)
    notes: list[bytes] = field(default_factory=list)
    """The notes of all queues in a checkpoint, encoded (`encode_queue_notes`)."""

    def add(self, ends: Iterable[tuple[tuple[str, int], int]]) -> None:
        """Adds queues, by topic and queue id, each with the offset where it begins and ends."""
        notes = []
        for (topic, queue_id), offset in ends:
            assert is_storable_topic(topic), f"a topic that names no directory: {topic!r}"
            queue = ConsumeQueue(
                self._disk, DIRECTORY, topic, queue_id, self._options, self._pool, has_files=False
            )
            queue.start_at(offset)
            self.table[topic, queue_id] = queue
            notes.append(QueueNote(topic, queue_id, offset, offset, *queue.checksum()))
        self.notes += encode_queue_notes(notes)


class ConsumeQueues:
    """The queues that exist (`get`), and those that a record needs (`make`)."""

    __slots__ = ("_built_before", "_disk", "_options", "_table", "pool")

    def __init__(self, disk: Disk, options: StoreOptions) -> None:
        self._disk = disk
        self._options = options
        self.pool = MappingPool(options.consume_queue_mappings)
        """The files of all queues that are mapped."""
        self._table: dict[tuple[str, int], ConsumeQueue] = {}
        self._built_before = 0
        """As that of each queue, for those that are made."""

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._table.values())

    def __len__(self) -> int:
        return len(self._table)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._table.get((topic, queue_id))

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Returns the queue, made empty if it does not exist. Nothing is written until its first unit."""
        queue = self._table.get((topic, queue_id))
        if queue is None:
            assert is_storable_topic(topic), f"a topic that names no directory: {topic!r}"
            queue = ConsumeQueue(self._disk, DIRECTORY, topic, queue_id, self._options, self.pool)
            queue.built_before = self._built_before
            self._table[topic, queue_id] = queue
        return queue

    def are_built_before(self, position: int) -> None:
        """All units of records before a position of the log are here: those that come again are ignored. A queue that
        is not here by now has none of them."""
        self._built_before = position
        for queue in self:
            queue.is_built_before(position)

    def remove(self, topic: str) -> None:
        """Removes all queues of a topic, durably. Raises DiskError, FlushError.

        A topic of that name may be made again. Files that come back with a power failure, beside those of the new
        queues, would be taken for what a checkpoint noted, of which it has summed up the last one only.
        """
        self._disk.discard(f"{DIRECTORY}/{topic}")
        self._disk.sync_directory(DIRECTORY)
        for key in [key for key in self._table if key[0] == topic]:
            self._table.pop(key).forget()

    def discard_empty(self, topic: str) -> None:
        """Removes the queues of a topic that never had a message. Raises DiskError."""
        for queue in [queue for queue in self if queue.topic == topic and not queue.max_offset]:
            self.discard(queue)

    def discard(self, queue: ConsumeQueue) -> None:
        """Removes one queue. Raises DiskError."""
        del self._table[queue.topic, queue.queue_id]
        queue.remove()

    def empty(self) -> "EmptyQueues":
        """Returns what `replace` takes, to be filled."""
        return EmptyQueues(self._disk, self._options, self.pool)

    def parts(self) -> list[object]:
        """Returns all that the table holds: whoever removes tens of thousands of queues lets them go in steps."""
        return [*self._table, *self._table.values()]

    def remove_all(self) -> None:
        """Removes every queue: the log was reset. Raises DiskError."""
        self.pool.clear()
        self._table = {}
        self._built_before = 0
        self._disk.discard(DIRECTORY)

    def replace(self, queues: "EmptyQueues") -> None:
        """Has other queues, behind `remove_all`."""
        assert not self._table, "those that were here are removed"
        self._table = queues.table

    def recover(
        self,
        notes: list[QueueNote] | None,
        physical_begin: int,
        physical_end: int,
        *,
        clean_stop: bool,
        is_whole: bool,
        files_count: bool = True,
        before_removal: Callable[[], object] = lambda: None,
    ) -> list[tuple[str, int]]:
        """Opens all queues. The records that are known to be dispatched end at `physical_end`; with `is_whole` these
        are all that the notes tell of. Without `files_count` the notes are not about the files that are there.

        `before_removal` is called, maybe several times, before files go that the notes tell of.
        Returns the queues that must be built again from the log's beginning; they are empty now. Without
        notes these are all (the list names those that have files). Raises DiskError.
        """
        found = [
            (topic, int(name))
            for topic in self._disk.list(DIRECTORY)
            for name in self._disk.list(f"{DIRECTORY}/{topic}")
            if name.isdigit()
        ]
        # Nothing tells which units are right, so all are made again from the log. Of a queue whose records are all gone
        # from it the log cannot tell where it ended; the files may.
        if notes is None:
            for topic, queue_id in found:
                queue = self.make(topic, queue_id)
                queue.recover(physical_begin, _NO_END)
                end = queue.max_offset
                queue.remove()
                queue.start_at(end)
            return found
        rebuild: list[tuple[str, int]] = []

        def build_again(queue: ConsumeQueue, note: QueueNote) -> None:
            before_removal()
            queue.remove()
            # Should the log hold none of its records: retention has deleted them, or they were lost with the log's end.
            queue.start_at(note.max_offset if is_whole else note.min_offset)
            rebuild.append((note.topic, note.queue_id))

        for note in notes:
            queue = self.make(note.topic, note.queue_id)
            if note.min_offset == note.max_offset:
                queue.remove()
                queue.start_at(note.max_offset)
                # Its messages are before the group's head, or of an earlier life: they stay away if others are built.
                queue.is_built_before(physical_end)
            # Units of its last file are not those that were noted. Older files are left to the running node's scrub.
            elif not (files_count and queue.is_sound(note.checksum_begin, note.max_offset, note.checksum)):
                build_again(queue, note)
            else:
                # Retention removes the first files, up to one with a record that is gone from the log. So one that is
                # missing was lost, be it the first or one behind others, if all records of what is left are there.
                # (Or retention ended right between two files, behind the checkpoint: then it is built for nothing.)
                is_whole_run = queue.restore(note.min_offset, note.max_offset, before_removal)
                if not (is_whole_run and queue.min_offset == note.min_offset) and queue.begins_in(
                    physical_begin
                ):
                    build_again(queue, note)
                    continue
                # The log may have lost, with its unflushed end, records that the notes tell of.
                if not clean_stop:
                    queue.truncate_to(physical_end)
                    if is_whole and queue.max_offset != note.max_offset:
                        build_again(queue, note)  # an older file is not the one that was noted
                        continue
                # Retention may have deleted files of the log since the checkpoint.
                if not queue.begins_in(physical_begin):
                    queue.correct_min(physical_begin)
                queue.is_built_before(physical_end)
        noted = {(note.topic, note.queue_id) for note in notes}
        for topic, queue_id in found:
            if (topic, queue_id) not in noted:
                self.make(topic, queue_id).remove()  # made after the checkpoint: dispatch makes it again
                del self._table[topic, queue_id]
        return rebuild

    def flush(self, names: Iterable[tuple[str, int]]) -> None:
        """Makes the queues of these names durable that are there. Raises FlushError."""
        for queue in [self._table[name] for name in names if name in self._table]:
            for path in queue.dirty_files():
                self._disk.flush_file(path)
            self._disk.sync_directory(queue.directory)

    def notes(self) -> tuple[list[QueueNote], list[str], list[str]]:
        """Returns (what a checkpoint must note, files to flush first, directories to flush first)."""
        notes, files, directories = [], [], []
        for queue in self._table.values():
            begin, checksum = queue.checksum()
            notes.append(
                QueueNote(queue.topic, queue.queue_id, queue.min_offset, queue.max_offset, begin, checksum)
            )
            if queue.flushed_end != queue.max_offset:
                files += queue.dirty_files()
            if queue.new_files:
                queue.new_files = False
                directories.append(queue.directory)
        return notes, files, directories

    def close(self) -> None:
        self.pool.clear()

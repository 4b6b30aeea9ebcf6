"""Dispatch makes ConsumeQueue and IndexFile units of committed entries: the one pass over every message of every node.

The pass walks over records without making objects of them (log/entries/record_walk.py); hashes of all keys are
computed by numpy at the end. Long runs of messages of one kind are taken as columns instead
(log/dispatching/dispatch_columns.py), or all plain messages by C where it is installed (log/formats/loops.py). A pass
may be repeated from any earlier entry: units and keys that exist are left alone.

Rules of RocketMQ's `CommitLogDispatcher`s: prepared and rolled back transaction records get no unit, rolled back
ones no keys either; delayed and timed messages carry their deliver time instead of a tags code; records of the internal
topic get neither and are handed to the caller, whose state machine they are for. Records that decide a
transaction are messages like others and are handed over too (broker/transactions).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from log.dispatching.dispatch_columns import RUN_FROM, PlainMessages, hashes_of, kind_of, runs_of
from log.entries.entry_log import EntryLog
from log.entries.record_walk import walk_records
from log.formats.java_hash import java_hash_utf8
from log.formats.loops import KEY_TYPE
from log.formats.own_topics import DECIDING_TOPICS, INTERNAL_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from log.formats.properties import KEYS, TAGS, TIMER_OUT_MS, UNIQ_KEY, get_property
from log.formats.record import (
    SYS_FLAG_COMMIT,
    SYS_FLAG_PREPARED,
    SYS_FLAG_ROLLBACK,
    SYS_FLAG_TRANSACTION_MASK,
)
from log.index.index_files import IndexFiles
from log.options import StoreOptions
from log.queues.consume_queue import NO_RECORD_BYTES, UNIT, ConsumeQueue
from log.queues.consume_queues import ConsumeQueues, is_storable_topic

_TAGS_REMEMBERED = 4096
_APART = frozenset((INTERNAL_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, *DECIDING_TOPICS))
"""Topics whose messages are not plain: they are for the caller as well, or their units hold times."""
_PLAIN_FROM = 4
"""Shorter runs are walked, even where there is C: what surrounds it costs some 10 us a run."""
_NO_END = 1 << 62
_WALKED_BETWEEN = 8
"""The number of entries that are walked before C is asked again whether what follows is plain."""


class Arrival(NamedTuple):
    """New units `first_offset`..`end_offset` - 1 of one queue."""

    topic: str
    queue_id: int
    first_offset: int
    end_offset: int


class Dispatch(NamedTuple):
    """The outcome of a dispatch, whose last entry is `last_index`.

    `internal` has (index, record) of what the state machine applies, in log order, as views of the log: the group's own
    records, and messages that decide transactions.
    """

    last_index: int
    arrivals: list[Arrival]
    internal: list[tuple[int, memoryview]]


@dataclass(slots=True)
class Allowance:
    """The work that is left for dispatches before the node does something else: files of queues to map, keys to index.

    A dispatch ends behind the entry with which one of the two is used up.
    """

    files: int
    keys: int

    @property
    def is_used_up(self) -> bool:
        """True if one of the two is used up: the rest is for another turn."""
        return self.files <= 0 or self.keys <= 0


class _Topic:
    """The facts that dispatch needs of a topic, found by the bytes of its name."""

    __slots__ = (
        "is_for_caller",
        "is_internal",
        "key_prefix",
        "name",
        "queues",
        "scheduled",
        "storable",
        "waits",
    )

    def __init__(self, raw: bytes) -> None:
        self.name = raw.decode("utf-8", "replace")
        self.queues: dict[int, ConsumeQueue] = {}
        self.key_prefix = raw + b"#"
        self.scheduled = raw == SCHEDULE_TOPIC
        self.waits = self.scheduled or raw == TIMER_TOPIC
        self.is_internal = raw == INTERNAL_TOPIC
        self.is_for_caller = self.is_internal or raw in DECIDING_TOPICS
        """The caller applies its records to the state; those that decide transactions are messages like others, too."""
        self.storable = is_storable_topic(self.name) and self.name.encode() == raw


class _Topics(dict[bytes, _Topic]):
    """The topics that were met, by the bytes of their names; one that is asked for is made."""

    def __missing__(self, raw: bytes) -> _Topic:
        made = self[raw] = _Topic(raw)
        return made


class _TagsCodes(dict[bytes | None, int]):
    """The tags codes of the tags that were met last: a tag's Java hash, 0 for none."""

    def __missing__(self, tag: bytes | None) -> int:
        if len(self) >= _TAGS_REMEMBERED:
            self.clear()
        code = self[tag] = java_hash_utf8(tag) if tag else 0
        return code


class Dispatcher:
    """Builds the queues and index files of one store from its log."""

    __slots__ = (
        "_delays",
        "_entries_per_pass",
        "_files_until",
        "_index",
        "_keys_left",
        "_log",
        "_plain_messages",
        "_queues",
        "_tags",
        "_topics",
        "_touched",
        "_walked",
        "built_index",
    )

    def __init__(
        self, log: EntryLog, queues: ConsumeQueues, index: IndexFiles, options: StoreOptions
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._delays = options.delay_levels_ms
        self._entries_per_pass = options.dispatch_entries
        self._files_until = _NO_END
        """The count of mapped files (`MappingPool.opened`) at which this dispatch is long enough."""
        self._keys_left = _NO_END
        """The number of keys after which it is long enough, too."""
        self._plain_messages = options.loops.plain_messages
        self._topics = _Topics()
        self._tags = _TagsCodes()
        # Kept from a call that failed to the next, so that no arrival is forgotten.
        self._touched: dict[ConsumeQueue, int] = {}
        self._walked = range(0)
        """Entries that were seen to be in no run, for calls that end before the last of them. They may be others by
        now, as a log can begin anew: the walk is right for all."""
        self.built_index = log.first_index - 1
        """Up to this entry queues and index files are built."""

    def forget_topics(self) -> None:
        """Forgets all that it remembers of topics, because queues were removed.

        No arrival is lost by that: it is called behind a `run` that has told of all, or when all queues go.
        """
        self._topics.clear()
        self._touched.clear()

    def run(
        self,
        first_index: int,
        to_index: int,
        now_ms: int,
        *,
        stop_at_internal: bool = False,
        allowance: Allowance | None = None,
    ) -> Dispatch:
        """Dispatches entries `first_index`..`to_index`, or up to the first internal one if so wished, or until the
        allowance is used up.

        They are taken in passes of `StoreOptions.dispatch_entries`.

        Raises DiskError, QueueOrderError; repeat the call from the same `first_index` then. Raises DamagedLogError
        where no entry begins at the place of one.
        """
        internal: list[tuple[int, memoryview]] = []
        index = first_index
        # Files are counted by what the pool has opened since: whichever step of a pass opens one.
        pool = self._queues.pool
        opened = pool.opened
        self._files_until = _NO_END if allowance is None else opened + allowance.files
        self._keys_left = _NO_END if allowance is None else allowance.keys
        while index <= to_index and not (stop_at_internal and internal) and not self._has_used_allowance():
            index = self._pass(
                index, min(to_index, index + self._entries_per_pass - 1), now_ms, internal, stop_at_internal
            )
        arrivals = [
            Arrival(queue.topic, queue.queue_id, first, queue.max_offset)
            for queue, first in self._touched.items()
        ]
        self._touched.clear()
        self.built_index = max(self.built_index, index - 1)
        if allowance is not None:
            allowance.files -= pool.opened - opened
            allowance.keys = self._keys_left
        return Dispatch(index - 1, arrivals, internal)

    def _has_used_allowance(self) -> bool:
        """True if this dispatch has opened as many files, or put as many keys into index files, as it may."""
        return self._queues.pool.opened >= self._files_until or self._keys_left <= 0

    def _pass(
        self,
        index: int,
        to_index: int,
        now_ms: int,
        internal: list[tuple[int, memoryview]],
        stop_at_internal: bool,
    ) -> int:
        """Dispatches entries `index`..`to_index`, or fewer as `run` does; returns the next index.

        Long runs of one kind are taken as columns, everything else is walked.
        """
        stopped = False
        # With C: it takes what is plain, and a few entries are walked where it ended, before it is asked again.
        while self._plain_messages is not None and index <= to_index and not stopped:
            count = self._plain(index, to_index, now_ms) if to_index - index >= _PLAIN_FROM - 1 else 0
            index += max(count, 0)
            stopped = self._keys_left <= 0
            if index <= to_index and not stopped:
                last = to_index if count < 0 else min(to_index, index + _WALKED_BETWEEN - 1)
                index, stopped = self._walk(index, last, now_ms, internal, stop_at_internal)
        # Without: runs of one kind are found by numpy for the rest of the pass at once, and walked if they are short.
        while index <= to_index and not stopped:
            if to_index - index < RUN_FROM - 1:
                index, stopped = self._walk(index, to_index, now_ms, internal, stop_at_internal)
                continue
            if index in self._walked:
                # They were divided by an earlier call, which had to end before it came here.
                last = min(to_index, self._walked[-1])
                index, stopped = self._walk(index, last, now_ms, internal, stop_at_internal)
                continue
            for last, run in runs_of(self._log, index, to_index):
                if run is None:
                    self._walked = range(index, last + 1)
                # A run is of one queue and one shape; its first messages are of one kind, and what is behind these may
                # be of another one.
                while run is not None and len(run.sizes) >= RUN_FROM and (count := self._run(run, now_ms)):
                    index += count
                    run = run.behind(count)
                stopped = self._has_used_allowance()
                if index <= last and not stopped:
                    index, stopped = self._walk(index, last, now_ms, internal, stop_at_internal)
                if stopped:
                    break
        return index

    def _plain(self, index: int, to_index: int, now_ms: int) -> int:
        """Dispatches the plain messages from entry `index` on by C; returns how many, 0 if they are to be walked.

        Returns -1 if they belong to so many queues that walking is to find where this dispatch ends.
        """
        assert self._plain_messages is not None, "it is called where there is such a function"
        position = self._log.position_of(index)
        mapped, start = self._log.file_of(position)
        found = self._plain_messages(mapped.buffer, start, position - start, to_index - index + 1, _APART)
        if found is None:
            return 0
        count, groups, raw_keys = found
        # All is judged before anything is added: what is walked instead must find the queues as they were.
        runs = []
        for raw_topic, queue_id, first_offset, units in groups:
            topic = self._topics[raw_topic]
            queue = topic.queues.get(queue_id) or self._queue(topic, queue_id)
            if queue is None or not queue.takes_run(first_offset, int(UNIT.unpack_from(units)[0])):
                return 0  # a replay, a new life, or a hole
            runs.append((queue, first_offset, units))
        files_left = self._files_until - self._queues.pool.opened
        if len(runs) > files_left and sum(queue.tail_start < 0 for queue, _, _ in runs) > files_left:
            return -1
        keys = np.frombuffer(raw_keys, KEY_TYPE)
        if len(keys) and int(keys["offset"][0]) <= self._index.end_offset:
            return 0  # they are there already
        for queue, first_offset, units in runs:
            self._touched.setdefault(queue, first_offset)
            queue.append_units(first_offset, units)
        if len(keys):
            self._index.put_hashes(keys["hash"], keys["offset"], keys["time"], now_ms)
            self._keys_left -= len(keys)
        return count

    def _run(self, run: PlainMessages, now_ms: int) -> int:
        """Dispatches the first messages of a run; returns how many, 0 if they are to be walked."""
        kind = kind_of(run)
        if kind is None or kind.messages < RUN_FROM:
            return 0
        topic = self._topics[kind.topic]
        if topic.is_for_caller or topic.waits:
            return 0
        queue = topic.queues.get(run.queue_id) or self._queue(topic, run.queue_id)
        count = kind.messages
        physical_offsets, times = run.physical_offsets[:count], run.times[:count]
        if queue is None or not queue.takes_run(run.first_offset, int(physical_offsets[0])):
            return 0  # a replay, a new life, or a hole
        if kind.keys and int(physical_offsets[0]) <= self._index.end_offset:
            return 0  # its keys are there already
        self._touched.setdefault(queue, run.first_offset)
        queue.append_run(run.first_offset, physical_offsets, run.sizes[:count], self._tags[kind.tag])
        if kind.keys:
            each = len(kind.keys)
            self._index.put_hashes(
                hashes_of(topic.key_prefix, kind.keys),
                physical_offsets.repeat(each),
                times.repeat(each),
                now_ms,
            )
            self._keys_left -= each * count
        return count

    def _walk(
        self,
        first: int,
        last: int,
        now_ms: int,
        internal: list[tuple[int, memoryview]],
        stop_at_internal: bool,
    ) -> tuple[int, bool]:
        """Dispatches entries `first`..`last` one by one; returns the next index, and whether it stopped early.

        The loop is what every message costs on every node where messages come one at a time. So a plain message takes
        the straight way through it, and whatever few messages need stands in a method of its own.
        """
        topics, tags, touched = self._topics, self._tags, self._touched
        pool, files_until, keys_left = self._queues.pool, self._files_until, self._keys_left
        keys: list[bytes] = []
        key_offsets: list[int] = []
        key_times: list[int] = []
        stopped = True
        walk = walk_records(self._log, first, last)
        for index, physical_offset, size, flags, queue_id, queue_offset, time, raw_topic, properties in walk:
            topic = topics[raw_topic]
            # A committed message decides its transaction, wherever it goes.
            transaction = flags & SYS_FLAG_TRANSACTION_MASK
            if topic.is_for_caller or transaction == SYS_FLAG_COMMIT:
                internal.append((index, self._log.bytes_at(physical_offset, size)))
                if topic.is_internal:
                    if stop_at_internal:
                        break
                    continue

            # ConsumeQueue (`CommitLogDispatcherBuildConsumeQueue`): plain and committed messages only.
            if transaction != SYS_FLAG_PREPARED and transaction != SYS_FLAG_ROLLBACK:
                queue = topic.queues.get(queue_id) or self._queue(topic, queue_id)
                if queue is not None:  # else its topic cannot name a directory
                    if topic.waits:
                        code = time + self._delay(queue_id) if topic.scheduled else _due_ms(properties)
                    else:
                        code = tags[get_property(properties, TAGS)]
                    if queue.append(queue_offset, physical_offset, size, code) and queue not in touched:
                        touched[queue] = queue_offset
            elif queue_offset:
                self._leave_no_hole(topic, queue_id, queue_offset, physical_offset)
            # IndexFile (`IndexService.buildIndex`): half messages are found by their keys, too.
            if transaction != SYS_FLAG_ROLLBACK:
                unique = get_property(properties, UNIQ_KEY)
                several = get_property(properties, KEYS)
                for key in [unique, *several.split(b" ")] if several else [unique]:
                    if key:
                        keys.append(topic.key_prefix + key)
                        key_offsets.append(physical_offset)
                        key_times.append(time)
            if len(keys) >= keys_left or pool.opened >= files_until:
                break
        else:
            index, stopped = last, False
        if keys:
            self._index.put(keys, key_offsets, key_times, now_ms)
            self._keys_left -= len(keys)
        return index + 1, stopped

    def _leave_no_hole(self, topic: _Topic, queue_id: int, queue_offset: int, physical_offset: int) -> None:
        """Adds a unit without a record for a half or rolled back message that took a place in its queue.

        RocketMQ gives such records no place (offset 0). If one has a place all the same, the messages behind it need
        that unit: units have no holes.
        """
        queue = topic.queues.get(queue_id) or self._queue(topic, queue_id)
        if queue is not None and queue.max_offset == queue_offset:
            queue.append(queue_offset, physical_offset, NO_RECORD_BYTES, 0)

    def _queue(self, topic: _Topic, queue_id: int) -> ConsumeQueue | None:
        """Returns the queue, made if it is new; None where no directory can have that name."""
        if not topic.storable or queue_id < 0:
            return None
        queue = topic.queues[queue_id] = self._queues.make(topic.name, queue_id)
        return queue

    def _delay(self, queue_id: int) -> int:
        """Returns the delay in ms of a queue of the schedule topic: queue n holds delay level n + 1."""
        return self._delays[min(queue_id, len(self._delays) - 1)] if self._delays else 0


def _due_ms(properties: bytes) -> int:
    """Returns the time at which a timed message is due, in ms since 1970; 0, which is at once, if it names none."""
    value = get_property(properties, TIMER_OUT_MS)
    return int(value) if value is not None and value.isdigit() and len(value) <= 18 else 0


def queue_ends_of_entries(log: EntryLog, first_index: int, to_index: int) -> dict[tuple[str, int], int]:
    """Returns, by queue, the offset behind the last record of a run of entries that are not dispatched yet.

    A new leader assigns offsets from these where they are beyond the queue's end. Internal records, and
    transaction records that get no unit, do not count.
    """
    ends: dict[tuple[str, int], int] = {}
    for _, _, _, flags, queue_id, queue_offset, _, raw_topic, _ in walk_records(log, first_index, to_index):
        transaction = flags & SYS_FLAG_TRANSACTION_MASK
        if raw_topic != INTERNAL_TOPIC and transaction not in (SYS_FLAG_PREPARED, SYS_FLAG_ROLLBACK):
            ends[raw_topic.decode("utf-8", "replace"), queue_id] = queue_offset + 1
    return ends

"""Timed messages in the order in which they are due: an index over the queue in which they wait.

Messages for a given time are records of one topic (`TIMER_TOPIC`, queue 0); their ConsumeQueue, in log order, holds the
due time in place of a tags code. What is missing is their order by time: for millions, without memory per message and
without looking at those that are not due. It is kept as a log-structured merge tree has it, as sorted runs. New units
collect in a tail of some thousands; a full tail is sorted and becomes a run, a file of due times and offsets; eight
neighbouring runs of a size become one of the next. What is due next is at the head of each run, so that finding it
costs a binary search per run, and a delivery reads neighbours.

RocketMQ chains units in a wheel of one-second slots instead. Then a slot must be walked link by link, each in another
page, and sorted in memory before its first message goes out, which stalls a leader for seconds where a million messages
are due at one time; the wheel's span is a limit, beyond which messages are written again; and each message costs every
replica two random writes. Runs need none of that, and order to the millisecond comes by itself.

Everything here follows from the queue, whose files have checksums and are rebuilt from the log. So runs are never
flushed and never trusted: a start removes them and makes them again, from the first unit that is not done, by numpy at
some ten million units a second.

All replicas know from the log which units are done (`Step`). That is no part of the index: units that are done are
passed over where they are met, and left out when runs are merged.
"""

from collections.abc import Iterator
from itertools import takewhile
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from log.errors import DiskFullError
from log.files.disk import Disk, MappedFile
from log.formats.own_topics import TIMER_TOPIC
from log.queues.consume_queue import UNIT_BYTES, ConsumeQueue
from log.queues.consume_queues import ConsumeQueues

DIRECTORY: Final = "timer"
_TOPIC: Final = TIMER_TOPIC.decode()
RUNS_MERGED: Final = 8
CATCH_UP_UNITS: Final = 1 << 18
"""The number of units that one call of `catch_up` takes, some 20 ms of work."""

_LARGEST: Final = 2
"""Runs of this level, 4 MiB and four a million messages by default, stay as they are."""
_LATEST: Final = (1 << 63) - 1
_CHUNK: Final = 1024
_UNIT_TYPE: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("due", ">i8")])
_RUN_TYPE: Final = np.dtype("<i8")
_Integers = NDArray[np.int64]

assert _UNIT_TYPE.itemsize == UNIT_BYTES


class Step(NamedTuple):
    """A delivery: all units before `limit` whose (due time, offset) is at most (`due_ms`, `offset`) are done."""

    due_ms: int
    offset: int
    limit: int


Steps = tuple[Step, ...]
"""The deliveries that no later one covers: from step to step `limit` grows, and (due time, offset) falls.

A delivery that reaches further in time than the one before covers it, and one step is left. One that reaches less far,
because a clock was set back or a new leader's is behind, covers more units but not their late ones: both steps stay,
until a delivery gets to the time of the first.
"""


def add_step(steps: Steps, step: Step) -> Steps:
    """Adds a delivery to the steps, without those that it covers; its limit is at least that of each of them."""
    assert not steps or step.limit >= steps[-1].limit, "a delivery knows all that earlier ones knew"
    return (*takewhile(lambda earlier: earlier[:2] > step[:2], steps), step)


def _are_done(steps: Steps, dues: _Integers, offsets: _Integers) -> NDArray[np.bool_]:
    done = np.zeros(len(dues), np.bool_)
    for step in steps:
        key = (dues < step.due_ms) | ((dues == step.due_ms) & (offsets <= step.offset))
        done |= key & (offsets < step.limit)
    return done


class _Run:
    """Units sorted by due time, and among equals by offset. No two runs overlap in the queue."""

    __slots__ = ("_mapped", "dues", "last_due_ms", "last_offset", "name", "offsets")

    def __init__(self, name: str, mapped: MappedFile, dues: _Integers, offsets: _Integers) -> None:
        """Fills a file of `16 * len(dues)` bytes with sorted units."""
        count = len(dues)
        values = np.frombuffer(mapped.buffer, _RUN_TYPE, 2 * count)
        values[:count] = dues
        values[count:] = offsets
        self._mapped = mapped
        self.name = name
        self.dues = values[:count]
        self.offsets = values[count:]
        self.last_due_ms = int(dues[-1])
        self.last_offset = int(offsets.max())

    def __len__(self) -> int:
        return len(self.dues)

    def after(self, step: Step) -> int:
        """Returns the number of the first unit that is later than the step's time and offset."""
        begin, end = (
            int(np.searchsorted(self.dues, step.due_ms, "left")),
            int(np.searchsorted(self.dues, step.due_ms, "right")),
        )
        return begin + int(np.searchsorted(self.offsets[begin:end], step.offset, "right"))


class TimerIndex:
    """The units of a store's timer queue by due time; `end` is the first that it does not hold yet.

    A unit before `end` is in one run, in the tail, or done. Runs and the tail, whose columns are equally long, follow
    each other in the queue: a unit that was in two of them would be delivered twice.
    """

    __slots__ = (
        "_disk",
        "_next_file",
        "_queues",
        "_runs",
        "_tail_dues",
        "_tail_limit",
        "_tail_offsets",
        "end",
        "run_units",
    )

    def __init__(self, disk: Disk, queues: ConsumeQueues, run_units: int) -> None:
        """`run_units` units may wait in memory before they become a run. Removes the runs of an earlier process.

        Raises DiskError.
        """
        self.run_units = run_units
        self._disk = disk
        self._queues = queues
        self._next_file = 0
        self.clear()

    def clear(self) -> None:
        """Forgets all, for the queue was emptied. Raises DiskError."""
        self._runs: list[_Run] = []
        self._tail_dues: _Integers = np.empty(0, np.int64)
        self._tail_offsets: _Integers = np.empty(0, np.int64)
        self._tail_limit = self.run_units
        self.end = 0
        self._disk.discard(DIRECTORY)

    @property
    def queue(self) -> ConsumeQueue | None:
        """The queue of timed messages; None before the first."""
        return self._queues.get(_TOPIC, 0)

    @property
    def behind(self) -> int:
        """The number of units of the queue that are not in the index yet."""
        queue = self.queue
        return 0 if queue is None else max(0, queue.max_offset - max(self.end, queue.min_offset))

    # ---- building ------------------------------------------------------------------------------------

    def catch_up(self, floor: int, steps: Steps) -> bool:
        """Takes in up to `CATCH_UP_UNITS` new units, without those that are done; returns True if it has them all now.

        All units before `floor` are done. Raises DiskError.
        """
        queue = self.queue
        if queue is None or queue.min_offset == queue.max_offset:
            # Where an empty queue begins may be a guess of the store's until its units are dispatched again.
            return True
        self.end = max(self.end, floor, queue.min_offset)
        if self.end >= queue.max_offset:
            return True
        for offset, dues in _dues(queue, self.end, self.end + CATCH_UP_UNITS):
            offsets = np.arange(offset, offset + len(dues), dtype=np.int64)
            pending = ~_are_done(steps, dues, offsets)
            self._tail_dues = np.concatenate((self._tail_dues, dues[pending]))
            self._tail_offsets = np.concatenate((self._tail_offsets, offsets[pending]))
            self.end = offset + len(dues)
            if len(self._tail_dues) >= self._tail_limit:
                self._end_tail(steps)
        return self.end >= queue.max_offset

    def _end_tail(self, steps: Steps) -> None:
        """Makes the tail a run, unless half of it is done by now."""
        pending = ~_are_done(steps, self._tail_dues, self._tail_offsets)
        self._tail_dues, self._tail_offsets = self._tail_dues[pending], self._tail_offsets[pending]
        self._runs = [run for run in self._runs if self._is_needed(run, steps)]
        if len(self._tail_dues) < self.run_units // 2:
            return
        self._tail_limit = len(self._tail_dues) + self.run_units
        first, before = int(self._tail_offsets[0]), self._runs[-1].last_offset if self._runs else -1
        assert before < first, f"a run from unit {first} on, and one before it up to {before}"
        try:
            self._runs.append(self._make_run(self._tail_dues, self._tail_offsets))
            self._tail_dues, self._tail_offsets = self._tail_dues[:0], self._tail_offsets[:0]
            self._tail_limit = self.run_units
            self._merge(steps)
        except DiskFullError:
            pass  # tried again with more; the tail does not grow for long, as a full disk takes no messages

    def _merge(self, steps: Steps) -> None:
        while len(self._runs) >= RUNS_MERGED:
            last = self._runs[-RUNS_MERGED:]
            level = self._level(last[0])
            # Only neighbours of one level: larger ones would be written again for the sake of a few units.
            if level == _LARGEST or any(self._level(run) != level for run in last):
                return
            dues = np.concatenate([run.dues for run in last])
            offsets = np.concatenate([run.offsets for run in last])
            pending = ~_are_done(steps, dues, offsets)
            merged = [self._make_run(dues[pending], offsets[pending])] if pending.any() else []
            # The merged run is whole by now: if the disk was full, all eight are still here.
            for run in last:
                self._disk.remove(run.name)
            self._runs[-RUNS_MERGED:] = merged

    def _level(self, run: _Run) -> int:
        """Returns the level of a run by its size, from 0; runs of one level are merged."""
        return sum(len(run) >= RUNS_MERGED**level * self.run_units for level in (1, _LARGEST))

    def _make_run(self, dues: _Integers, offsets: _Integers) -> _Run:
        # Units of equal times are in the order of their offsets already, and a stable sort leaves them so.
        order = np.argsort(dues, kind="stable")
        name = f"{DIRECTORY}/{self._next_file:020d}"
        self._next_file += 1
        size = 2 * _RUN_TYPE.itemsize * len(dues)
        mapped = self._disk.open(name, size, create=True)
        try:
            mapped.prepare(0, size)
        except DiskFullError:
            self._disk.remove(name)
            raise
        return _Run(name, mapped, dues[order], offsets[order])

    def _is_needed(self, run: _Run, steps: Steps) -> bool:
        """Returns False for a run of which all is done, and removes its file."""
        if not any(
            run.last_offset < step.limit and (run.last_due_ms, run.last_offset) <= step[:2] for step in steps
        ):
            return True
        self._disk.remove(run.name)
        return False

    # ---- asking --------------------------------------------------------------------------------------

    def due(self, steps: Steps, until_ms: int, count: int) -> list[tuple[int, int]]:
        """Returns (due time, offset) of the first `count` units, in order, that are due by `until_ms` and not done."""
        if not self._runs and not len(self._tail_dues):
            return []
        found = [self._first_of(run, steps, until_ms, count) for run in self._runs]
        pending = ~_are_done(steps, self._tail_dues, self._tail_offsets) & (self._tail_dues <= until_ms)
        found.append((self._tail_dues[pending], self._tail_offsets[pending]))
        dues = np.concatenate([part[0] for part in found])
        offsets = np.concatenate([part[1] for part in found])
        order = np.lexsort((offsets, dues))[:count]
        return list(zip(dues[order].tolist(), offsets[order].tolist(), strict=True))

    def waiting(self, steps: Steps) -> int:
        """Returns the number of units that are not done."""
        count = self.behind + int(np.count_nonzero(~_are_done(steps, self._tail_dues, self._tail_offsets)))
        for run in self._runs:
            known = bool(steps) and run.last_offset < steps[-1].limit
            begin = run.after(steps[-1]) if known else 0
            # One step that knew all units of a run cuts it in two. Of several the first may have reached further.
            if known and len(steps) == 1:
                count += len(run) - begin
            else:
                pending = ~_are_done(steps, run.dues[begin:], run.offsets[begin:])
                count += int(np.count_nonzero(pending))
        return count

    def next_due_ms(self, steps: Steps) -> int | None:
        """Returns the time (ms) at which the first unit is due that is not done; None if there is none."""
        first = self.due(steps, _LATEST, 1)
        return first[0][0] if first else None

    def first_pending(self, floor: int, steps: Steps) -> int:
        """Returns the first offset from `floor` on that is not done, or the one up to which a call may look for it.

        Raises DiskError.
        """
        queue = self.queue
        if queue is None:
            return floor
        floor = max(floor, queue.min_offset)
        end = floor + CATCH_UP_UNITS  # millions may be done behind one that waits for days
        while floor < end:
            for offset, dues in _dues(queue, floor, floor + self.run_units):
                offsets = np.arange(offset, offset + len(dues), dtype=np.int64)
                pending = ~_are_done(steps, dues, offsets)
                if pending.any():
                    return offset + int(pending.argmax())
                floor = offset + len(dues)
            if floor >= queue.max_offset:
                break
        return floor

    def _first_of(self, run: _Run, steps: Steps, until_ms: int, count: int) -> tuple[_Integers, _Integers]:
        # Of units that the last step knew it alone decides, as its time is the earliest.
        begin = run.after(steps[-1]) if steps and run.last_offset < steps[-1].limit else 0
        dues, offsets = run.dues[begin:begin], run.offsets[begin:begin]
        while begin < len(run) and run.dues[begin] <= until_ms and len(dues) < count:
            some_dues, some_offsets = run.dues[begin : begin + _CHUNK], run.offsets[begin : begin + _CHUNK]
            pending = ~_are_done(steps, some_dues, some_offsets) & (some_dues <= until_ms)
            dues = np.concatenate((dues, some_dues[pending]))
            offsets = np.concatenate((offsets, some_offsets[pending]))
            begin += _CHUNK
        return dues[:count], offsets[:count]


def _dues(queue: ConsumeQueue, begin: int, end: int) -> Iterator[tuple[int, _Integers]]:
    """Yields (first offset, due times) of the units from `begin` up to `end`, file by file."""
    while begin < end:
        units = np.frombuffer(queue.unit_bytes(begin, end - begin), _UNIT_TYPE)
        if not len(units):
            return
        yield begin, units["due"].astype(np.int64)
        begin += len(units)

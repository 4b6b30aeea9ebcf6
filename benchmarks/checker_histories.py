"""Large histories for measuring the checker: the workload of ``tests.spark_analysis.generator``, made column by column.

Ten million operations take seconds here, and minutes one by one. Every operation takes effect at a moment of its own,
in the order of its number; its interval encloses the moment by up to 20 microseconds on both sides, so that about
twenty operations overlap. The follower of a queue takes up to four values at a time; where it stands after k reads is
p(k) = min(length(k - 1), p(k - 1) + 4), which is 4k plus a running minimum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from broker.trace import TraceHeader, TraceWriter
from spark_analysis.importing import schema
from spark_analysis.importing.arrow import ARROW_TYPES

APPEND, READ, TAIL, COMMIT, FETCH = range(5)
NAMES: Final = ("append", "read", "tail", "commit_offset", "fetch_offset")
OK, FAIL, INFO = range(3)
OUTCOMES: Final = ("ok", "fail", "info")
READ_VALUES: Final = 4
ROWS_OF_A_FILE: Final = 500_000
OPERATIONS_OF_A_PART: Final = 5_000_000
CLIENTS: Final = 16
TIMEOUT_NS: Final = 1_000_000

Integers = NDArray[np.int64]


@dataclass(slots=True)
class Columns:
    """One entry for each operation; -1 where an operation has none. ``flat``: the values of all, named by number."""

    queue: Integers
    kind: Integers
    outcome: Integers
    invoke_ns: Integers
    complete_ns: Integers
    offset: Integers
    first_offset: Integers
    next_offset: Integers
    counts: Integers
    flat: Integers

    def starts(self) -> Integers:
        """The place in ``flat`` at which each operation's values begin."""
        return np.cumsum(self.counts) - self.counts

    def log_only(self) -> Columns:
        """The part that porcupine's model here knows: without registers, and without appends that certainly failed."""
        kept = (self.kind <= TAIL) & (self.outcome != FAIL)
        what = (self.queue, self.kind, self.outcome, self.invoke_ns, self.complete_ns)
        places = (self.offset, self.first_offset, self.next_offset, self.counts)
        flat = self.flat[np.repeat(kept, self.counts)]
        return Columns(*[*(column[kept] for column in (*what, *places)), flat])


def good_history(operations: int, queues: int, unknown: int, seed: int = 0) -> Columns:
    """A linearizable history; ``unknown`` of its appends have no answer, half of those took effect."""
    rng = np.random.default_rng(seed)
    moment = 1_000_000 + np.cumsum(rng.integers(1, 2_000, operations))
    invoke_ns = moment - rng.integers(0, 20_000, operations)
    complete_ns = moment + rng.integers(0, 20_000, operations)
    queue = rng.integers(0, queues, operations)
    kind = np.searchsorted([0.5, 0.9, 0.96, 0.98], rng.random(operations), side="right").astype(np.int64)
    outcome = np.zeros(operations, np.int64)
    appends = np.flatnonzero(kind == APPEND)
    outcome[rng.choice(appends, len(appends) // 1_000, replace=False)] = FAIL
    unanswered = rng.choice(appends, unknown, replace=False)
    outcome[unanswered] = INFO
    complete_ns[unanswered] = -1
    happened = (kind == APPEND) & (outcome == OK)
    happened[unanswered[: unknown // 2]] = True
    offset, first_offset, next_offset = (np.full(operations, -1, np.int64) for _ in range(3))
    counts = np.where(kind == APPEND, 1, 0)
    logs: list[Integers] = []
    by_queue = np.split(
        np.argsort(queue, kind="stable"), np.cumsum(np.bincount(queue, minlength=queues))[:-1]
    )
    for mine in by_queue:
        length = np.cumsum(happened[mine]) - happened[mine]
        logs.append(mine[happened[mine]])
        acknowledged = (kind[mine] == APPEND) & (outcome[mine] == OK)
        first_offset[mine[acknowledged]] = length[acknowledged]
        reads = kind[mine] == READ
        seen_by_read = length[reads]
        number = np.arange(len(seen_by_read) + 1)
        limits = np.concatenate([[0], seen_by_read - READ_VALUES * number[1:]])
        position = np.minimum.accumulate(limits) + READ_VALUES * number
        taken = np.diff(position)
        offset[mine[reads]] = position[:-1]
        first_offset[mine[reads]] = np.where(taken > 0, position[:-1], -1)
        next_offset[mine[reads]] = position[1:]
        counts[mine[reads]] = taken
        tails = kind[mine] == TAIL
        offset[mine[tails]] = length[tails]
        stands = position[np.cumsum(reads) - reads]
        # A position is committed once; an attempt to commit it again becomes a question.
        commits = np.flatnonzero(kind[mine] == COMMIT)
        again = np.diff(stands[commits], prepend=0) == 0
        kind[mine[commits[again]]] = FETCH
        commits = commits[~again]
        offset[mine[commits]] = stands[commits]
        fetches = np.flatnonzero(kind[mine] == FETCH)
        stored = np.concatenate([[-1], stands[commits]])
        offset[mine[fetches]] = stored[np.searchsorted(commits, fetches)]
    starts = np.cumsum(counts) - counts
    flat = np.zeros(int(counts.sum()), np.int64)
    flat[starts[kind == APPEND]] = np.flatnonzero(kind == APPEND)
    reads = np.flatnonzero((kind == READ) & (counts > 0))
    within = np.arange(int(counts[reads].sum())) - np.repeat(
        np.cumsum(counts[reads]) - counts[reads], counts[reads]
    )
    bases = np.cumsum([0, *(len(log) for log in logs)])[queue[reads]]
    whole = np.concatenate(logs)
    flat[np.repeat(starts[reads], counts[reads]) + within] = whole[
        np.repeat(bases + first_offset[reads], counts[reads]) + within
    ]
    return Columns(
        queue, kind, outcome, invoke_ns, complete_ns, offset, first_offset, next_offset, counts, flat
    )


def parts_of_one_queue(operations: int, unknown: int) -> Iterator[Columns]:
    """A linearizable history of one queue in parts of five million operations, so that memory does not grow with it.

    Each part is a :func:`good_history` that goes on behind the one before: its moments are later, its offsets and
    values are counted on. Its reader begins at the end of what the parts before have appended.
    """
    first, length, committed, start_ns = 0, 0, -1, 0
    parts = -(-operations // OPERATIONS_OF_A_PART)
    for number in range(parts):
        count = min(OPERATIONS_OF_A_PART, operations - first)
        part = good_history(count, 1, unknown * (number + 1) // parts - unknown * number // parts, number)
        happened = int(np.sum((part.kind == APPEND) & (part.first_offset >= 0)))
        happened += int(np.sum((part.kind == APPEND) & (part.outcome == INFO))) // 2
        part.invoke_ns += start_ns
        part.complete_ns[part.complete_ns >= 0] += start_ns
        # The next part's moments begin 1 ms later, behind all that takes effect in this one.
        start_ns = int(part.invoke_ns.max())
        for column in (part.offset, part.first_offset, part.next_offset):
            column[column >= 0] += length
        # Nothing was committed yet in this part: the position of the part before is still the one that is stored.
        part.offset[(part.kind == FETCH) & (part.offset < 0)] = committed
        commits = part.offset[part.kind == COMMIT]
        committed = int(commits[-1]) if len(commits) else committed
        part.flat += first
        yield part
        first, length = first + count, length + happened


def spoil(history: Columns) -> None:
    """Plant a stale tail, a stale read, a duplicate offset and a value that nobody wrote, late in the history."""
    late = np.arange(len(history.kind)) >= len(history.kind) * 3 // 4
    tail = np.flatnonzero(late & (history.kind == TAIL))[0]
    history.offset[tail] //= 2
    empty = np.flatnonzero(late & (history.kind == READ) & (history.counts == 0))[0]
    history.offset[empty] //= 2
    history.next_offset[empty] = history.offset[empty]
    append = np.flatnonzero(late & (history.kind == APPEND) & (history.outcome == OK))[0]
    history.first_offset[append] //= 2
    read = np.flatnonzero(late & (history.kind == READ) & (history.counts > 0))[-1]
    history.flat[history.starts()[read]] = len(history.kind) + 1


def write_parquet(history: Columns, directory: Path, before: int = 0) -> None:
    """The history as ``trivet analyze --to-parquet`` would keep it: files of schema.RECORDS, operations only.

    ``before``: how many operations are in the directory already, of earlier parts of the same history.
    """
    target = directory / "records" / "record=operation"
    target.mkdir(parents=True, exist_ok=True)
    starts = history.starts()
    for first in range(0, len(history.kind), ROWS_OF_A_FILE):
        rows = np.arange(first, min(first + ROWS_OF_A_FILE, len(history.kind)))
        flat = history.flat[starts[rows[0]] : starts[rows[-1]] + history.counts[rows[-1]]]
        has_values = history.kind[rows] <= READ
        kinds = history.kind[rows]
        table = {
            "file": _dictionary(np.zeros(len(rows), np.int64), ["generated"]),
            "position": pa.array(rows + before),
            "op": pa.array(rows + before),
            "client": _dictionary(rows * 7919 % CLIENTS, [f"client-{number}" for number in range(CLIENTS)]),
            "function": _dictionary(kinds, NAMES),
            "key": _dictionary(
                history.queue[rows],
                [f"generated/{number}" for number in range(int(history.queue.max()) + 1)],
            ),
            "group": pa.array(np.where(kinds >= COMMIT, "group", ""), mask=kinds < COMMIT),
            "outcome": _dictionary(history.outcome[rows], OUTCOMES),
            "invoke_ns": pa.array(history.invoke_ns[rows]),
            "complete_ns": _known(history.complete_ns[rows]),
            "offset": _known(history.offset[rows]),
            "filtered": pa.array(np.zeros(len(rows), bool)),
            "first_offset": _known(history.first_offset[rows]),
            "values": pa.ListArray.from_arrays(
                pa.array(np.concatenate([starts[rows] - starts[rows[0]], [len(flat)]]), pa.int32()),
                _texts(flat),
                mask=pa.array(~has_values),
            ),
            "next_offset": _known(history.next_offset[rows]),
        }
        for name, kind, _ in schema.RECORD_COLUMNS[1:]:  # "record" is the directory's name
            table.setdefault(name, pa.nulls(len(rows), ARROW_TYPES[kind]))
        file = target / f"part-{(before + first) // ROWS_OF_A_FILE:05d}.parquet"
        # Numbers and values hardly repeat: dictionaries of them would be begun, and given up.
        pq.write_table(pa.table(table), file, use_dictionary=["file", "client", "function", "key", "outcome"])


def write_trace(history: Columns, path: Path) -> None:
    """The history as its clients would have recorded it, in the order of time (docs/trace-format.md)."""
    starts, values = history.starts().tolist(), [f"{value:016X}" for value in history.flat.tolist()]
    count = len(history.kind)
    ends_ns = np.where(history.complete_ns < 0, history.invoke_ns + TIMEOUT_NS, history.complete_ns)
    events = np.argsort(np.concatenate([history.invoke_ns, ends_ns]), kind="stable")
    keys = [f"generated/{number}" for number in range(int(history.queue.max()) + 1)]
    queue, kind, outcome, offset = (
        column.tolist() for column in (history.queue, history.kind, history.outcome, history.offset)
    )
    first_offset, next_offset, counts = (
        column.tolist() for column in (history.first_offset, history.next_offset, history.counts)
    )
    invoke_ns, end_ns = history.invoke_ns.tolist(), ends_ns.tolist()
    names = [0] * count
    with path.open("wb") as stream:
        writer = TraceWriter(stream.write, TraceHeader("client", "generator", "generated", 0, 0))
        for event in events.tolist():
            number = event % count
            time_ns, what, key = invoke_ns[number], kind[number], keys[queue[number]]
            if event < count:
                client = f"client-{number * 7919 % CLIENTS}"
                if what == APPEND:
                    name = writer.invoke_append(time_ns, client, key, (values[starts[number]],))
                elif what == READ:
                    name = writer.invoke_read(time_ns, client, key, offset[number])
                elif what == TAIL:
                    name = writer.invoke_tail(time_ns, client, key)
                elif what == COMMIT:
                    name = writer.invoke_commit_offset(time_ns, client, key, "group", offset[number])
                else:
                    name = writer.invoke_fetch_offset(time_ns, client, key, "group")
                names[number] = name
                continue
            time_ns, name = end_ns[number], names[number]
            if outcome[number] == INFO:
                writer.info(time_ns, name, "timeout")
            elif outcome[number] == FAIL:
                writer.fail(time_ns, name, "refused")
            elif what == APPEND:
                writer.ok_append(time_ns, name, first_offset[number])
            elif what == READ:
                first = starts[number]
                seen = values[first : first + counts[number]]
                writer.ok_read(time_ns, name, next_offset[number], max(0, first_offset[number]), seen)
            elif what == TAIL:
                writer.ok_tail(time_ns, name, offset[number])
            elif what == COMMIT:
                writer.ok_commit_offset(time_ns, name)
            else:
                writer.ok_fetch_offset(time_ns, name, None if offset[number] < 0 else offset[number])
        writer.flush()


def write_words(history: Columns, path: Path) -> None:
    """A history of :meth:`Columns.log_only` in the words of benchmarks/porcupine/main.go."""
    starts = history.starts()
    letters = {APPEND: "a", READ: "r", TAIL: "t"}
    with path.open("w") as lines:
        for number, kind in enumerate(history.kind.tolist()):
            values = history.flat[starts[number] : starts[number] + history.counts[number]]
            words = (
                *(
                    number * 7919 % CLIENTS,
                    history.invoke_ns[number],
                    history.complete_ns[number],
                    letters[kind],
                ),
                *((history.first_offset if kind == APPEND else history.offset)[number], *values),
            )
            lines.write(" ".join(map(str, words)) + "\n")


def _dictionary(places: Integers, names: list[str] | tuple[str, ...]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), pa.array(names)).cast(pa.string())


def _known(numbers: Integers) -> pa.Array:
    return pa.array(numbers, mask=numbers < 0)


def _texts(numbers: Integers) -> pa.Array:
    """Each number as sixteen hexadecimal digits, the length of the broker's own message ids' distinct part."""
    shifts = np.arange(60, -4, -4)
    digits = np.frombuffer(b"0123456789ABCDEF", np.uint8)[(numbers[:, None] >> shifts) & 15]
    ends = pa.py_buffer(np.arange(len(numbers) + 1, dtype=np.int32) * 16)
    return pa.StringArray.from_buffers(len(numbers), ends, pa.py_buffer(np.ascontiguousarray(digits)))

"""Good histories of one queue with unknown outcomes, and ways to make each of them certainly wrong.

``python -m tests.spark_analysis.mutations 1000`` prints the table of docs/checker.md.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace

from spark_analysis.reference import LINEARIZABLE, VIOLATED, Operation, check_queue

History = list[Operation]
LATE: int = 10**9


def good_history(rng: random.Random, size: int) -> History:
    """Half appends (some unanswered, some refused), reads by followers of the queue, tails; many overlap."""
    log: list[str] = []
    operations: History = []
    position = 0
    for op in range(size):
        moment = 100 * op + rng.randrange(100)
        begin, end = moment - rng.randrange(1000), moment + rng.randrange(1000)
        choice = rng.random()
        if choice < 0.5:
            values = tuple(f"v{op}.{index}" for index in range(rng.choice([1, 1, 1, 3])))
            outcome = rng.choices(["ok", "info", "fail"], [90, 8, 2])[0]
            first = len(log) if outcome == "ok" else None
            complete = None if outcome == "info" else end
            # An unanswered batch counts as one value here: half of them took effect.
            values = values if outcome == "ok" else values[:1]
            operations.append(
                Operation(op, "append", outcome, begin, complete, first_offset=first, values=values)
            )
            if outcome == "ok" or (outcome == "info" and rng.random() < 0.5):
                log += values
        elif choice < 0.9:
            seen = tuple(log[position : position + rng.randrange(1, 5)])
            first = position if seen else None
            after = position + len(seen)
            operations.append(
                Operation(
                    op,
                    "read",
                    "ok",
                    begin,
                    end,
                    offset=position,
                    first_offset=first,
                    values=seen,
                    next_offset=after,
                )
            )
            position = after if rng.random() < 0.95 else 0
        else:
            operations.append(Operation(op, "tail", "ok", begin, end, offset=len(log)))
    return operations


def _acknowledged(rng: random.Random, history: History) -> Operation:
    return rng.choice([one for one in history if one.function == "append" and one.outcome == "ok"])


def _read(history: History, begin: int, offset: int, *values: str) -> Operation:
    first = offset if values else None
    after = offset + len(values)
    return Operation(
        len(history),
        "read",
        "ok",
        begin,
        begin + 5,
        offset=offset,
        first_offset=first,
        values=values,
        next_offset=after,
    )


def _length(history: History) -> int:
    """An offset beyond everything that is known, and beyond what all attempts could have added."""
    return 10 * len(history)


def stale_read(rng: random.Random, history: History) -> None:
    """A read after the acknowledgement finds nothing at its offset."""
    one = _acknowledged(rng, history)
    assert one.first_offset is not None
    assert one.complete_ns is not None
    history.append(_read(history, one.complete_ns + 1, one.first_offset))


def stale_tail(rng: random.Random, history: History) -> None:
    """The end is stated before an acknowledged value."""
    one = _acknowledged(rng, history)
    assert one.complete_ns is not None
    history.append(
        Operation(
            len(history), "tail", "ok", one.complete_ns + 1, one.complete_ns + 5, offset=one.first_offset
        )
    )


def lost_write(rng: random.Random, history: History) -> None:
    """Another value stands at the offset that was acknowledged."""
    one = _acknowledged(rng, history)
    assert one.first_offset is not None
    history.append(
        Operation(len(history), "append", "info", LATE, None, values=("usurper",)),
    )
    history.append(_read(history, LATE + 1, one.first_offset, "usurper"))


def duplicate_offset(rng: random.Random, history: History) -> None:
    """Two acknowledgements of one offset."""
    one = _acknowledged(rng, history)
    history.append(replace(one, op=len(history), values=tuple(f"again {value}" for value in one.values)))


def duplicate_value(rng: random.Random, history: History) -> None:
    """An acknowledged value stands at a second offset."""
    one = _acknowledged(rng, history)
    history.append(_read(history, LATE, _length(history), one.values[0]))


def phantom_value(_rng: random.Random, history: History) -> None:
    """A value that nobody appended."""
    history.append(_read(history, LATE, _length(history), "from nowhere"))


def aborted_read(_rng: random.Random, history: History) -> None:
    """The value of a refused append is read."""
    history.append(Operation(len(history), "append", "fail", LATE, LATE + 1, values=("refused",)))
    history.append(_read(history, LATE + 2, _length(history), "refused"))


def append_order(rng: random.Random, history: History) -> None:
    """An append begins after one with a higher offset had ended."""
    first, second = sorted(
        rng.sample([one for one in history if one.function == "append" and one.outcome == "ok"], 2),
        key=lambda one: one.first_offset or 0,
    )
    assert second.complete_ns is not None
    late = second.complete_ns + 1
    history[history.index(first)] = replace(first, invoke_ns=late, complete_ns=late + 10)


def premature_read(rng: random.Random, history: History) -> None:
    """A value is read before its append begins."""
    one = _acknowledged(rng, history)
    assert one.first_offset is not None
    history.append(_read(history, one.invoke_ns - 10, one.first_offset, one.values[0]))


def torn_read(rng: random.Random, history: History) -> None:
    """A read leaves out a value in the middle of its answer."""
    one = _acknowledged(rng, history)
    assert one.first_offset is not None
    start = one.first_offset
    history.append(
        replace(
            _read(history, LATE, start, one.values[0], "later"),
            offsets=(start, start + 2),
            next_offset=start + 3,
        )
    )


def unexplained_offset(_rng: random.Random, history: History) -> None:
    """The queue is longer than everything that was ever tried."""
    history.append(Operation(len(history), "tail", "ok", LATE, LATE + 1, offset=_length(history)))


MUTATIONS: tuple[Callable[[random.Random, History], None], ...] = (
    *(stale_read, stale_tail, lost_write, duplicate_offset, duplicate_value, phantom_value, aborted_read),
    *(append_order, premature_read, torn_read, unexplained_offset),
)


def score(histories: int, size: int = 200) -> dict[str, int]:
    """How many histories each mutation was caught in; "none" counts good histories called linearizable."""
    caught = {"none": 0} | {mutation.__name__: 0 for mutation in MUTATIONS}
    for seed in range(histories):
        rng = random.Random(seed)
        history = good_history(rng, size)
        caught["none"] += check_queue(history)[0] == LINEARIZABLE
        for mutation in MUTATIONS:
            bent = list(history)
            mutation(rng, bent)
            caught[mutation.__name__] += check_queue(bent)[0] == VIOLATED
    return caught


if __name__ == "__main__":
    total = int(sys.argv[1])
    for name, count in score(total).items():
        print(f"| {name.replace('_', ' ')} | {count:,} of {total:,} |")

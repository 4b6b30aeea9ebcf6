"""Small histories of one queue for Hypothesis:

valid ones run on a model, then bent a little, so that both verdicts come.
"""

from __future__ import annotations

import random
from dataclasses import replace

from spark_analysis.checking.queues.knowledge import Operation


def random_history(
    rng: random.Random, *, size: int = 7, values: int = 0, batches: bool = True, rich: bool = False
) -> list[Operation]:
    """Operations with random intervals around effects on one list; unknown outcomes; sometimes one thing made wrong.

    ``values`` > 0 draws the values from so few that retries (several attempts of one value) are frequent. ``rich``:
    also polls, filtered reads, readers sent forward, a first offset that moves, and transactions of several messages.
    """
    head = 0
    state: list[str] = []
    operations: list[Operation] = []
    time_ns = 10
    for op in range(rng.randrange(1, size + 1)):
        time_ns += rng.randrange(0, 4)
        begin, end = time_ns - rng.randrange(0, 8), time_ns + rng.randrange(0, 8)
        kind = rng.random()
        if rich and rng.random() < 0.4:
            one, head = _rich_operation(rng, op, begin, end, state, head)
            operations.append(one)
        elif kind < 0.5:
            count = rng.choice([1, 1, 1, 2, 3]) if batches else 1
            names = tuple(
                f"v{rng.randrange(values)}" if values else f"v{op}.{index}" for index in range(count)
            )
            if len(set(names)) < len(names):
                names = names[:1]
            outcome = rng.choice(["ok", "ok", "info", "fail"])
            if outcome == "ok":
                operations.append(
                    Operation(op, "append", "ok", begin, end, first_offset=len(state), values=names)
                )
                state += names
            else:
                if outcome == "info":
                    state += names[: rng.randrange(len(names) + 1)]
                operations.append(
                    Operation(op, "append", outcome, begin, end if outcome == "fail" else None, values=names)
                )
        elif kind < 0.85:
            offset = rng.randrange(0, len(state) + 2)
            taken = tuple(state[offset : offset + rng.randrange(1, 4)])
            ending = len(state) if rng.random() < 0.2 else None
            operations.append(
                Operation(
                    op,
                    "read",
                    "ok",
                    begin,
                    end,
                    offset=offset,
                    first_offset=offset if taken else None,
                    values=taken,
                    next_offset=offset + len(taken),
                    end_offset=ending,
                )
            )
        else:
            operations.append(Operation(op, "tail", "ok", begin, end, offset=len(state)))
    for _ in range(rng.choice([0, 1, 2, 3, 4])):
        if operations:
            _bend(rng, operations)
    return operations


def _rich_operation(
    rng: random.Random, op: int, begin: int, end: int, state: list[str], head: int
) -> tuple[Operation, int]:
    """One operation beyond appends, reads and tails, and the first offset kept after it; appends to ``state``."""
    kind = rng.randrange(5)
    if kind == 0:
        head = rng.randrange(head, len(state) + 1)
        return Operation(op, "head", "ok", begin, end, offset=head), head
    if kind == 1:  # offset 0 is no longer kept, or everything up to the end is filtered out
        offset = rng.randrange(len(state) + 1)
        return Operation(op, "read", "ok", begin, end, offset=offset, next_offset=offset + 1), head
    if kind == 2:
        names = tuple(f"t{op}.{index}" for index in range(2))
        places = (len(state), len(state) + rng.choice([1, 1, 2]))
        state += [names[0], *(f"between{op}" for _ in range(places[1] - places[0] - 1)), names[1]]
        return Operation(op, "append", "ok", begin, end, None, places[0], names, places), head
    offset = rng.randrange(len(state) + 1)
    taken = [(place, state[place]) for place in range(offset, len(state)) if rng.random() < 0.6][:3]
    offsets, texts = tuple(place for place, _ in taken), tuple(text for _, text in taken)
    first, after = (offsets[0], offsets[-1] + 1) if taken else (None, len(state))
    told = {"first_offset": first, "values": texts, "offsets": offsets or None}
    if kind == 3:
        return Operation(op, "poll", "ok", begin, end, **told), head  # type: ignore[arg-type]
    return Operation(
        *(op, "read", "ok", begin, end, offset),
        next_offset=after,
        filtered=True,
        **told,  # type: ignore[arg-type]
    ), head


def _bend(rng: random.Random, operations: list[Operation]) -> None:
    """Change one operation in one way; often, not always, that makes the history wrong."""
    index = rng.randrange(len(operations))
    one = operations[index]
    shift = rng.choice([-12, -6, -3, 3, 6, 12])
    change = rng.randrange(4)
    if change == 0:
        complete = None if one.complete_ns is None else one.complete_ns + shift
        operations[index] = replace(one, invoke_ns=one.invoke_ns + shift, complete_ns=complete)
    elif change == 1 and one.function in ("tail", "head"):
        assert one.offset is not None
        operations[index] = replace(one, offset=max(0, one.offset + rng.choice([-1, 1])))
    elif change == 1 and one.function in ("read", "poll") and one.values:
        values = list(one.values)
        values[rng.randrange(len(values))] = f"v{rng.randrange(8)}"
        operations[index] = replace(one, values=tuple(values))
    elif change == 1 and one.function == "append" and one.first_offset is not None:
        first = max(0, one.first_offset + rng.choice([-1, 1]))
        moved = tuple(offset + first - one.first_offset for offset in one.offsets or ())
        operations[index] = replace(one, first_offset=first, offsets=moved or None)
    elif change == 2 and one.function == "read" and one.values:
        operations[index] = replace(one, values=(), first_offset=None, offsets=None, next_offset=one.offset)
    elif change == 3:
        del operations[index]


def with_a_choice(rng: random.Random) -> dict[str, list[Operation]]:
    """Two queues of few values; whoever has appended some of them did not say to which queue."""
    queues: dict[str, list[Operation]] = {"t/": []}
    for number in range(2):
        listed = random_history(rng, size=4, values=3, batches=rng.random() < 0.3)
        listed = [replace(one, op=one.op + 100 * number) for one in listed]
        homeless = [one for one in listed if one.outcome == "info" and rng.random() < 0.8]
        queues["t/"] += homeless
        queues[f"t/{number}"] = [one for one in listed if one not in homeless]
    return queues


def without_acknowledgements(rng: random.Random) -> dict[str, list[Operation]]:
    """Two queues of which only observers tell; what was appended, and mostly to which of them, nobody knows."""
    queues: dict[str, list[Operation]] = {"t/": [], "t/0": [], "t/1": []}
    for op in range(rng.randrange(1, 4)):
        values = tuple(rng.sample("vwx", rng.choice([1, 1, 2])))
        key = rng.choice(["t/", "t/", "t/0", "t/1"])
        queues[key].append(Operation(op, "append", "info", rng.randrange(20), None, values=values))
    for op in range(10, 10 + rng.randrange(2, 5)):
        key, begin, offset = f"t/{op % 2}", rng.randrange(10, 20), rng.randrange(2)
        end = begin + rng.randrange(8)
        if rng.random() < 0.3:
            one = Operation(op, "tail", "ok", begin, end, rng.randrange(1, 4))
        else:
            taken = tuple(rng.sample("vwx", rng.choice([1, 1, 2])))
            one = Operation(
                op, "read", "ok", begin, end, offset, offset, taken, next_offset=offset + len(taken)
            )
        queues[key].append(one)
    return queues

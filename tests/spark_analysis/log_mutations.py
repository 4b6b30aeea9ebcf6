"""Good histories of one queue with unknown outcomes, and ways to make each of them certainly wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from spark_analysis.checking.queues.knowledge import Operation

History = list[Operation]
LATE: int = 10**9


def good_history(rng: random.Random, size: int, *, drained: bool = False) -> History:
    """Half appends (some unanswered, refused, or transactions), reads and polls by followers, tails; many overlap.

    ``drained``: in the end a reader gets everything that stands in the queue.
    """
    log: list[str] = []
    operations: History = []
    position = 0
    stands = dict.fromkeys(("consumer-0", "consumer-1"), 0)
    free_at = dict.fromkeys(stands, -LATE)
    for op in range(size):
        moment = 100 * op + rng.randrange(100)
        begin, end = moment - rng.randrange(1000), moment + rng.randrange(1000)
        choice = rng.random()
        consumer = rng.choice(list(stands))
        if choice < 0.04:
            # A transaction of two messages, and another client's between them.
            place, values = len(log), tuple(f"v{op}.{index}" for index in range(3))
            places, producer = (place, place + 2), f"producer-{rng.randrange(4)}"
            outer = (values[0], values[2])
            operations += [
                Operation(op, "append", "ok", begin, end, None, place, outer, places, client=producer),
                Operation(size + op, "append", "ok", begin, end, None, place + 1, values[1:2]),
            ]
            log += values
        elif choice < 0.5:
            values = tuple(f"v{op}.{index}" for index in range(rng.choice([1, 1, 1, 3])))
            outcome = rng.choices(["ok", "info", "fail"], [90, 8, 2])[0]
            first = len(log) if outcome == "ok" else None
            complete = None if outcome == "info" else end
            # An unanswered batch counts as one value here: half of them took effect.
            values = values if outcome == "ok" else values[:1]
            operations.append(
                Operation(
                    *(op, "append", outcome, begin, complete),
                    first_offset=first,
                    values=values,
                    client=f"producer-{rng.randrange(4)}",
                )
            )
            if outcome == "ok" or (outcome == "info" and rng.random() < 0.5):
                log += values
        elif choice < 0.7:
            seen = tuple(log[position : position + rng.randrange(1, 5)])
            operations.append(_read_between(op, begin, end, position, seen))
            position = position + len(seen) if rng.random() < 0.95 else 0
        elif choice < 0.9 and free_at[consumer] < moment:
            # One poll after the other, each from where the one before has ended.
            begin, first = max(begin, free_at[consumer] + 1), stands[consumer]
            seen = tuple(log[first : first + rng.randrange(1, 5)])
            operations.append(_poll(op, begin, end, consumer, list(enumerate(seen, first))))
            free_at[consumer], stands[consumer] = end, first + len(seen)
        else:
            operations.append(Operation(op, "tail", "ok", begin, end, offset=len(log)))
    if drained:
        operations.append(_read_between(2 * size, LATE - 20, LATE - 10, 0, tuple(log)))
        operations.append(Operation(2 * size + 1, "tail", "ok", LATE - 20, LATE - 10, offset=len(log)))
    return operations


def _read_between(op: int, begin: int, end: int, offset: int, values: tuple[str, ...]) -> Operation:
    first, after = offset if values else None, offset + len(values)
    return Operation(op, "read", "ok", begin, end, offset, first, values, next_offset=after)


def _poll(op: int, begin: int, end: int, client: str, pairs: list[tuple[int, str]]) -> Operation:
    offsets = tuple(offset for offset, _ in pairs)
    values = tuple(value for _, value in pairs)
    return Operation(
        op,
        "poll",
        "ok",
        begin,
        end,
        None,
        offsets[0] if pairs else None,
        values,
        offsets or None,
        client=client,
    )


def _acknowledged(rng: random.Random, history: History) -> Operation:
    return rng.choice([one for one in history if one.function == "append" and one.outcome == "ok"])


def _read(history: History, begin: int, offset: int, *values: str) -> Operation:
    return _read_between(len(history), begin, begin + 5, offset, values)


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


def _three(rng: random.Random, history: History) -> list[tuple[int, str]]:
    """Three known neighbours, the middle one acknowledged."""
    known = dict(pair for one in history if one.outcome == "ok" for pair in one.pairs())
    places = [
        one.first_offset
        for one in history
        if one.function == "append"
        and one.first_offset is not None
        and {one.first_offset - 1, one.first_offset + 1} <= known.keys()
    ]
    place = rng.choice(places)
    return [(near, known[near]) for near in (place - 1, place, place + 1)]


def _polls(history: History, *polls: tuple[str, list[tuple[int, str]]]) -> None:
    for client, pairs in polls:
        history.append(
            _poll(len(history), LATE + 10 * len(history), LATE + 10 * len(history) + 5, client, pairs)
        )


def poll_skip(rng: random.Random, history: History) -> None:
    """A consumer's next poll begins one message too far."""
    one, _, three = _three(rng, history)
    _polls(history, ("m", [one]), ("m", [three]))


def nonmonotonic_poll(rng: random.Random, history: History) -> None:
    """A consumer's next poll begins where the one before had ended, or earlier."""
    one, two, three = _three(rng, history)
    _polls(history, ("m", [one, two]), ("m", [rng.choice([one, two]), three]))


def int_poll_skip(rng: random.Random, history: History) -> None:
    """One poll leaves out a message."""
    one, _, three = _three(rng, history)
    _polls(history, ("m", [one, three]))


def int_nonmonotonic_poll(rng: random.Random, history: History) -> None:
    """One poll goes back, or repeats a message."""
    one, two, _ = _three(rng, history)
    _polls(history, ("m", rng.choice([[two, one], [one, one]])))


def unpolled(rng: random.Random, history: History) -> None:
    """Nobody gets an acknowledged message, although consumers get those around it."""
    one, two, three = _three(rng, history)
    history[:] = [
        other for other in history if other.function == "append" or two[0] not in dict(other.pairs())
    ]
    _polls(history, ("m", [one]), ("n", [three]))


def overwritten(rng: random.Random, history: History) -> None:
    """Another value stands at the offset that was acknowledged, and nobody ever returned the first one."""
    lost_write(rng, history)
    place = history[-1].first_offset
    history[:-1] = [
        other for other in history[:-1] if other.function == "append" or place not in dict(other.pairs())
    ]


def nonmonotonic_send(rng: random.Random, history: History) -> None:
    """A client's append that begins after its own had ended gets a lower offset."""
    append_order(rng, history)
    history[:] = [replace(one, client="p") if one.function == "append" else one for one in history]


def late_send(_rng: random.Random, history: History) -> None:
    """A client's unanswered append stands before one that the same client had finished when it began."""
    end = _length(history)
    first = Operation(len(history), "append", "ok", LATE, LATE + 5, None, end + 1, ("early",), client="p")
    history += [
        first,
        Operation(len(history) + 1, "append", "info", LATE + 10, None, values=("late",), client="p"),
    ]
    history.append(_read(history, LATE + 20, end, "late"))


def _transaction(history: History, places: tuple[int, ...]) -> None:
    """Sends, as one operation, to offsets of which each is told."""
    values = tuple(f"t{place}" for place in places)
    history.append(
        Operation(len(history), "append", "ok", LATE, LATE + 5, None, places[0], values, places, client="t")
    )


def int_nonmonotonic_send(rng: random.Random, history: History) -> None:
    """One transaction's messages stand in another order than it sent them."""
    end = _length(history)
    _transaction(history, rng.choice([(end + 1, end), (end, end + 2, end + 1)]))


def int_send_skip(rng: random.Random, history: History) -> None:
    """Another's message stands between two of a transaction."""
    end = _length(history)
    _transaction(history, rng.choice([(end, end + 2), (end, end + 1, end + 3)]))
    places = history[-1].offsets or ()
    other = Operation(len(history), "append", "ok", LATE, LATE + 5, None, places[-1] - 1, ("other",))
    history.append(other)


def precommitted_read(_rng: random.Random, history: History) -> None:
    """A transaction polls what it sends."""
    end = _length(history)
    _transaction(history, (end, end + 1))
    history.append(_poll(len(history) - 1, LATE, LATE + 5, "t", [(end, f"t{end}")]))


def unseen(_rng: random.Random, history: History) -> None:
    """After all readers have drained the queue, a message is acknowledged."""
    end = history[-1].offset
    history.append(
        Operation(len(history), "append", "ok", LATE, LATE + 5, first_offset=end, values=("last",))
    )


LOG_MUTATIONS: tuple[Callable[[random.Random, History], None], ...] = (
    *(stale_read, stale_tail, lost_write, duplicate_offset, duplicate_value, phantom_value, aborted_read),
    *(append_order, premature_read, torn_read, unexplained_offset),
)
# Each must be found under the name given here.
CATALOGUE_MUTATIONS: dict[Callable[[random.Random, History], None], str] = {
    poll_skip: "poll-skip",
    nonmonotonic_poll: "nonmonotonic-poll",
    int_poll_skip: "int-poll-skip",
    int_nonmonotonic_poll: "int-nonmonotonic-poll",
    unpolled: "lost-write",
    overwritten: "lost-write",
    nonmonotonic_send: "nonmonotonic-send",
    late_send: "nonmonotonic-send",
    int_nonmonotonic_send: "int-nonmonotonic-send",
    int_send_skip: "int-send-skip",
    precommitted_read: "precommitted-read",
}


def unseen_values(history: History) -> set[str]:
    """Acknowledged values that no reader returned."""
    told = [one for one in history if one.outcome == "ok"]
    seen = {value for one in told if one.function in ("read", "poll") for value in one.values}
    return {value for one in told if one.function == "append" for value in one.values} - seen

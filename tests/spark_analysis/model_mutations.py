"""Good histories of the searched models and of committed offsets, and ways to make each of them certainly wrong.

A run is a list of steps in the order in which they take effect; intervals around them make most of them overlap, some
have an unknown outcome. A mutation is a block of steps, one after the other, of which one has an answer that no state
can give: its values stand nowhere else, so that no operation of unknown outcome can make it right. The run goes on from
the state that a correct system would have had.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from spark_analysis.checking.models import MODELS
from spark_analysis.checking.registers import INITIAL, Access
from spark_analysis.importing.calls import Call

# (function, argument, result of an ok)
Step = tuple[str, Any, Any]
Choose = Callable[[random.Random, Any, int], Step]
Block = Callable[[int], list[Step]]
OFFSETS = "committed offset"
WRONG = "wrong"
"""Marks the argument of the step of a block whose answer is wrong: it has no effect on a correct system."""


def _register(rng: random.Random, state: Any, op: int) -> Step:
    return ("write", op, None) if rng.random() < 0.5 else ("read", None, state)


def _cas_register(rng: random.Random, state: Any, op: int) -> Step:
    if rng.random() < 0.6:
        return _register(rng, state, op)
    expected = rng.choice([state, op - 1])
    return "cas", (expected, op), expected == state


def _multi_register(rng: random.Random, state: Any, op: int) -> Step:
    values = dict(state)
    keys = rng.sample("xyz", 2)
    if rng.random() < 0.5:
        written = tuple(("w", key, op) for key in keys)
        return "txn", written, written
    asked = tuple(("r", key, None) for key in keys)
    return "txn", asked, tuple(("r", key, values.get(key)) for key in keys)


def _mutex(_rng: random.Random, state: Any, _op: int) -> Step:
    return ("release" if state else "acquire", None, None)


def _key_value(rng: random.Random, state: Any, op: int) -> Step:
    choice = rng.random()
    if choice < 0.4:
        return "append", f"{op}.", None
    return ("put", f"{op}.", None) if choice < 0.45 else ("get", None, state)


def _set(rng: random.Random, state: Any, op: int) -> Step:
    choice = rng.random()
    if choice < 0.5:
        return "add", op, None
    if choice < 0.6 and state:
        return "remove", rng.choice(sorted(state)), None
    return "read", None, tuple(sorted(state))


def _fifo(rng: random.Random, state: Any, op: int) -> Step:
    return ("enqueue", op, None) if rng.random() < 0.5 else ("dequeue", None, state[0] if state else None)


def _stack(rng: random.Random, state: Any, op: int) -> Step:
    return ("push", op, None) if rng.random() < 0.5 else ("pop", None, state[-1] if state else None)


def _offset(rng: random.Random, state: Any, op: int) -> Step:
    return ("write", op + 1, None) if rng.random() < 0.5 else ("read", None, state)


CHOICES: dict[str, Choose] = {
    "register": _register,
    "cas-register": _cas_register,
    "multi-register": _multi_register,
    "mutex": _mutex,
    "key-value": _key_value,
    "set": _set,
    "fifo-queue": _fifo,
    "priority-queue": _fifo,
    "stack": _stack,
    OFFSETS: _offset,
}


def _both(value: int) -> tuple[tuple[str, str, int], ...]:
    return ("w", "x", value), ("w", "y", value)


def _read(*pairs: tuple[str, int]) -> tuple[tuple[str, str, int], ...]:
    return tuple(("r", key, value) for key, value in pairs)


# Each block is given a number that no other step of the history uses, nor the one after it.
BLOCKS: dict[str, dict[str, Block]] = {
    "register": {
        "stale read": lambda new: [
            *(("write", new, None), ("write", new + 1, None), ("read", WRONG, new)),
        ],
        "phantom value": lambda new: [("read", WRONG, new)],
    },
    "cas-register": {
        "lost swap": lambda new: [
            *(("write", new, None), ("write", new + 1, None), ("cas", (new, new), True)),
        ],
        "stale read": lambda new: [
            *(("write", new, None), ("write", new + 1, None), ("read", WRONG, new)),
        ],
    },
    "multi-register": {
        "fractured read": lambda new: [
            *(("txn", _both(new), _both(new)), ("txn", _both(new + 1), _both(new + 1))),
            ("txn", WRONG, _read(("x", new), ("y", new + 1))),
        ],
        "stale read": lambda new: [
            *(("txn", _both(new), _both(new)), ("txn", _both(new + 1), _both(new + 1))),
            ("txn", WRONG, _read(("x", new), ("y", new))),
        ],
    },
    "mutex": {"several holders": lambda new: [("acquire", WRONG, None)] * new},
    "key-value": {
        "lost append": lambda new: [
            *(("append", f"{new}.", None), ("append", f"{new + 1}.", None), ("get", WRONG, f"{new}.")),
        ],
        "order of appends": lambda new: [
            *(("append", f"{new}.", None), ("append", f"{new + 1}.", None)),
            ("get", WRONG, f"{new + 1}.{new}."),
        ],
    },
    "set": {
        "lost element": lambda new: [("add", new, None), ("read", WRONG, ())],
        "revived element": lambda new: [
            *(("add", new, None), ("remove", new, None), ("read", WRONG, (new,))),
        ],
    },
    "fifo-queue": {
        "order": lambda new: [
            *(("enqueue", new, None), ("enqueue", new + 1, None)),
            *(("dequeue", WRONG, new + 1), ("dequeue", WRONG, new)),
        ],
        "twice": lambda new: [
            *(("enqueue", new, None), ("dequeue", WRONG, new), ("dequeue", WRONG, new)),
        ],
    },
    "stack": {
        "order": lambda new: [
            *(("push", new, None), ("push", new + 1, None)),
            *(("pop", WRONG, new), ("pop", WRONG, new + 1)),
        ],
        "twice": lambda new: [*(("push", new, None), ("pop", WRONG, new), ("pop", WRONG, new))],
    },
    "priority-queue": {
        "order": lambda new: [
            *(("enqueue", new, None), ("enqueue", new + 1, None)),
            *(("dequeue", WRONG, new + 1), ("dequeue", WRONG, new)),
        ],
        "twice": lambda new: [
            *(("enqueue", new, None), ("dequeue", WRONG, new), ("dequeue", WRONG, new)),
        ],
    },
    OFFSETS: {
        "stale read": lambda new: [
            *(("write", new, None), ("write", new + 1, None), ("read", WRONG, new)),
        ],
        "rewound": lambda new: [
            *(("write", new, None), ("write", new + 1, None), ("read", None, new + 1), ("read", WRONG, new)),
        ],
        "rewound to nothing": lambda new: [("write", new, None), ("read", WRONG, INITIAL)],
        "premature read": lambda new: [("read", WRONG, new), ("write", new, None)],
        "phantom offset": lambda new: [("read", WRONG, new)],
    },
}
READS = frozenset({"read", "get"})


def history(model_name: str, rng: random.Random, size: int, block: Block | None = None) -> list[Call]:
    """``size`` steps of a run with intervals; ``block`` stands somewhere in the second half of it."""
    model = MODELS["register" if model_name == OFFSETS else model_name]
    choose = CHOICES[model_name]
    state: Any = INITIAL if model_name == OFFSETS else model.initial
    calls: list[Call] = []
    place = rng.randrange(size // 2, size) if block is not None else -1
    time_ns = 0
    for op in range(size):
        if op == place:
            assert block is not None
            # A mutex can be freed by every release of unknown outcome before one more holder is too many.
            unknown = sum(call.complete_ns is None for call in calls)
            for step in block(unknown + 2 if model_name == "mutex" else 10**6):
                time_ns += 100
                function, argument, result = step
                is_wrong = argument == WRONG or function == "cas"
                argument = _asked(function, result) if argument == WRONG else argument
                calls.append(Call(10**6 + len(calls), function, argument, result, time_ns - 1, time_ns))
                if not is_wrong:
                    (state,) = model.step(state, function, argument, result, True)
            time_ns += 100
            if model_name == "mutex":
                state = True
            continue
        function, argument, result = choose(rng, state, op)
        time_ns += 10
        begin, end = time_ns - rng.randrange(25), time_ns + rng.randrange(25)
        is_unknown = function not in READS and rng.random() < 0.06
        if not is_unknown or rng.random() < 0.5:
            (state,) = model.step(state, function, argument, result, True)
        if is_unknown:
            calls.append(Call(op, function, argument, None, begin, None))
        else:
            calls.append(Call(op, function, argument, result, begin, end))
    return calls


def _asked(function: str, result: Any) -> Any:
    return tuple((action, key, None) for action, key, _ in result) if function == "txn" else None


def accesses(calls: list[Call]) -> list[Access]:
    """The same as writes and reads of a committed offset."""
    return [
        Access(
            call.op,
            call.function == "write",
            call.argument if call.function == "write" else call.result,
            call.invoke_ns,
            call.complete_ns,
        )
        for call in calls
    ]

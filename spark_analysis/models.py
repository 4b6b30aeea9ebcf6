"""Sequential models as pure functions, for :mod:`spark_analysis.search`.

Each ``step`` maps (state, function, argument, result, completed) to the states that may follow: none if the operation
cannot have had this result here. ``completed`` False: the outcome is unknown, the result means nothing. States are
hashable; lists in arguments and results arrive as tuples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark_analysis.search import State, Step

IMPOSSIBLE: Final[tuple[Any, ...]] = ()


@dataclass(frozen=True, slots=True)
class Model:
    """``by_key``: operations on different keys are independent and judged apart."""

    name: str
    step: Step
    initial: State
    by_key: bool
    functions: tuple[str, ...]


def _register(state: Any, function: str, argument: Any, result: Any, completed: bool) -> Sequence[Any]:
    """read -> value, write value, cas (from, to) -> True or False."""
    if function == "write":
        return (argument,)
    if function == "cas":
        expected, new = argument
        if not completed:
            return (new,) if state == expected else (state,)
        if result:
            return (new,) if state == expected else IMPOSSIBLE
        return (state,) if state != expected else IMPOSSIBLE
    return (state,) if not completed or state == result else IMPOSSIBLE


def _multi_register(state: Any, _function: str, argument: Any, result: Any, completed: bool) -> Sequence[Any]:
    """A transaction ((read, key, value), (write, key, value), ...) on several registers;

    the state is sorted pairs.
    """
    values = dict(state)
    for place, (action, key, value) in enumerate(argument):
        if action in ("write", "w"):
            values[key] = value
        elif completed:
            seen = result[place][2] if result is not None else value
            if seen is not None and values.get(key) != seen:
                return IMPOSSIBLE
    return (tuple(sorted(values.items(), key=repr)),)


def _mutex(state: Any, function: str, _argument: Any, _result: Any, _completed: bool) -> Sequence[Any]:
    if function == "acquire":
        return IMPOSSIBLE if state else (True,)
    return (False,) if state else IMPOSSIBLE


def _key_value(state: Any, function: str, argument: Any, result: Any, completed: bool) -> Sequence[Any]:
    """get -> text ("" if absent), put text, append text."""
    if function == "put":
        return (argument,)
    if function == "append":
        return (state + argument,)
    return (state,) if not completed or state == (result or "") else IMPOSSIBLE


def _set(state: Any, function: str, argument: Any, result: Any, completed: bool) -> Sequence[Any]:
    """add element, remove element, read -> the elements in any order."""
    if function == "add":
        return (state | {argument},)
    if function == "remove":
        return (state - {argument},)
    return (state,) if not completed or state == frozenset(result) else IMPOSSIBLE


def _fifo(state: Any, function: str, argument: Any, result: Any, completed: bool) -> Sequence[Any]:
    """enqueue element, dequeue -> the oldest, or nothing from an empty queue."""
    if function == "enqueue":
        return ((*state, argument),)
    if not completed:
        return (state[1:],) if state else (state,)
    if result is None:
        return IMPOSSIBLE if state else (state,)
    return (state[1:],) if state and state[0] == result else IMPOSSIBLE


MODELS: Final = {
    model.name: model
    for model in (
        Model("register", _register, None, True, ("read", "write")),
        Model("cas-register", _register, None, True, ("read", "write", "cas")),
        Model("multi-register", _multi_register, (), False, ("txn",)),
        Model("mutex", _mutex, False, True, ("acquire", "release")),
        Model("key-value", _key_value, "", True, ("get", "put", "append")),
        Model("set", _set, frozenset(), True, ("add", "remove", "read")),
        Model("fifo-queue", _fifo, (), True, ("enqueue", "dequeue")),
    )
}

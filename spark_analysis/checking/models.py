"""Sequential models as pure functions, for :mod:`spark_analysis.checking.search`.

Each ``step`` maps (state, function, argument, result, completed) to the states that may follow: none if the operation
cannot have had this result here. ``completed`` False: the outcome is unknown, the result means nothing. States are
hashable; lists in arguments and results arrive as tuples.

What a model knows beyond that makes the search fast and changes no verdict: which calls never change a state, whether
a read can still have its result, and a decision without a search for histories whose values do not repeat
(:mod:`spark_analysis.checking.unambiguous`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from spark_analysis.checking.frontier import search_register
from spark_analysis.checking.search import (
    MAXIMUM_BYTES,
    MAXIMUM_CONFIGURATIONS,
    Reaches,
    SearchResult,
    State,
    Step,
    search,
)
from spark_analysis.checking.unambiguous.elements import decide_set
from spark_analysis.checking.unambiguous.fifo import decide_fifo
from spark_analysis.checking.unambiguous.priority import decide_priority_queue
from spark_analysis.checking.unambiguous.register import decide_register
from spark_analysis.checking.unambiguous.stack import decide_stack
from spark_analysis.checking.verdict import UNDECIDED
from spark_analysis.importing.calls import Call
from spark_analysis.importing.frozen import order

_FEW_CONFIGURATIONS: Final = 1_000
IMPOSSIBLE: Final[tuple[Any, ...]] = ()


@dataclass(frozen=True, slots=True)
class Model:
    """A sequential model, and what makes its search fast.

    ``by_key``: operations on different keys are independent and judged apart. ``is_read`` and ``reaches`` are those of
    :func:`spark_analysis.checking.search.search`. ``without_search`` decides what it can, and returns None for the
    rest. ``is_register``: :mod:`spark_analysis.checking.frontier` knows it, too.
    """

    name: str
    step: Step
    initial: State
    by_key: bool
    functions: tuple[str, ...]
    is_read: Callable[[Call], bool]
    reaches: Reaches
    without_search: Callable[[Sequence[Call]], SearchResult | None] = lambda calls: None
    is_register: bool = False

    def decide(
        self,
        calls: Sequence[Call],
        *,
        maximum_configurations: int = MAXIMUM_CONFIGURATIONS,
        maximum_bytes: int = MAXIMUM_BYTES,
        is_over: Callable[[], bool] = lambda: False,
    ) -> SearchResult:
        """Find a linearization of the calls of one key, or that there is none; the bounds are those of
        :func:`spark_analysis.checking.search.search`, where it takes a search."""
        found = self.without_search(calls)
        if found is not None:
            return found
        by_depth = partial(
            search,
            *(calls, self.step, self.initial),
            is_read=self.is_read,
            reaches=self.reaches,
            maximum_bytes=maximum_bytes,
            is_over=is_over,
        )
        if self.is_register:
            # Most histories take few configurations by depth. On a graph, unknown outcomes cost little; by depth, many
            # operations at once.
            found = by_depth(maximum_configurations=min(maximum_configurations, _FEW_CONFIGURATIONS))
            if found.bound == "configurations":
                found = search_register(
                    *(calls, self.initial),
                    maximum_configurations=maximum_configurations,
                    maximum_bytes=maximum_bytes,
                    is_over=is_over,
                )
            if found.verdict != UNDECIDED or is_over():
                return found
        return by_depth(maximum_configurations=maximum_configurations)


def _never(_call: Call) -> bool:
    return False


def _in_doubt(_state: Any, _read: Call, _before: Sequence[Call]) -> bool:
    return True


def _reads_only(call: Call) -> bool:
    return call.function in ("read", "get", "contains")


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


def _register_is_read(call: Call) -> bool:
    """True for reads, and for comparisons that failed."""
    return call.function == "read" or (call.function == "cas" and not call.result)


def _register_reaches(state: Any, read: Call, before: Sequence[Call]) -> bool:
    if read.function == "cas" or state == read.result:
        return True
    return any(
        (call.argument if call.function == "write" else call.argument[1]) == read.result
        for call in before
        if call.function in ("write", "cas")
    )


def _multi_register(state: Any, _function: str, argument: Any, result: Any, completed: bool) -> Sequence[Any]:
    """A transaction ((read, key, value), (write, key, value), ...) on several registers. The state is sorted pairs.

    Raises TypeError or ValueError for anything else, wherever in the transaction it is."""
    values, is_possible = dict(state), True
    for (action, key, value), (_, _, seen) in zip(
        argument, argument if result is None else result, strict=True
    ):
        if action in ("write", "w"):
            values[key] = value
        elif action not in ("read", "r"):
            raise ValueError(f"{action!r:.60} is no read and no write")
        elif completed and seen is not None and values.get(key) != seen:
            is_possible = False
    return (tuple(sorted(values.items(), key=repr)),) if is_possible else IMPOSSIBLE


def _multi_register_is_read(call: Call) -> bool:
    return all(action in ("read", "r") for action, _, _ in call.argument)


def _multi_register_reaches(state: Any, read: Call, before: Sequence[Call]) -> bool:
    possible = set(state)
    for call in before:
        possible.update((key, value) for action, key, value in call.argument if action in ("write", "w"))
    answer = read.argument if read.result is None else read.result
    return all(value is None or (key, value) in possible for _, key, value in answer)


def _mutex(state: Any, function: str, _argument: Any, _result: Any, _completed: bool) -> Sequence[Any]:
    if function == "acquire":
        return IMPOSSIBLE if state else (True,)
    return (False,) if state else IMPOSSIBLE


def _key_value(state: Any, function: str, argument: Any, result: Any, completed: bool) -> Sequence[Any]:
    """get -> text ("" if absent), put text, append text. Raises TypeError for a value that is no text."""
    if function == "put":
        return ("" + argument,)
    if function == "append":
        return (state + argument,)
    return (state,) if not completed or state == "" + ("" if result is None else result) else IMPOSSIBLE


def _key_value_reaches(state: Any, read: Call, before: Sequence[Call]) -> bool:
    """True if the text read begins with the state, or with a text that was put: appends only make it longer."""
    result: str = read.result or ""
    starts: list[str] = [state, *(call.argument for call in before if call.function == "put")]
    return result.startswith(tuple(starts))


def _set(state: Any, function: str, argument: Any, result: Any, completed: bool) -> Sequence[Any]:
    """add element, remove element, contains element -> True or False, read -> the elements in any order."""
    if function == "add":
        return (state | {argument},)
    if function == "remove":
        return (state - {argument},)
    if function == "contains":
        return (state,) if not completed or (argument in state) == bool(result) else IMPOSSIBLE
    return (state,) if not completed or state == frozenset(result) else IMPOSSIBLE


def _set_reaches(state: Any, read: Call, before: Sequence[Call]) -> bool:
    if read.function == "contains":
        wanted = "add" if read.result else "remove"
        return (read.argument in state) == bool(read.result) or any(
            call.function == wanted and call.argument == read.argument for call in before
        )
    seen = frozenset(read.result)
    # The read needs additions of all that it saw, and removals of all that it did not see.
    missing, left_over = seen - state, state - seen
    added = {call.argument for call in before if call.function == "add"}
    removed = {call.argument for call in before if call.function == "remove"}
    return bool(missing <= added and left_over <= removed)


def _fifo(state: Any, function: str, argument: Any, result: Any, completed: bool) -> Sequence[Any]:
    """enqueue element, dequeue -> the oldest, or nothing from an empty queue."""
    if function == "enqueue":
        return ((*state, argument),)
    if not completed:
        return (state[1:],) if state else (state,)
    if result is None:
        return IMPOSSIBLE if state else (state,)
    return (state[1:],) if state and state[0] == result else IMPOSSIBLE


def _found_empty(call: Call) -> bool:
    return call.function == "dequeue" and call.result is None


def _fifo_reaches(state: Any, _read: Call, before: Sequence[Call]) -> bool:
    # A dequeue that found nothing needs all that is in the queue to go first.
    return len(state) <= sum(1 for call in before if call.function == "dequeue")


def _stack(state: Any, function: str, argument: Any, result: Any, completed: bool) -> Sequence[Any]:
    """push element, pop -> the youngest, or nothing from an empty stack."""
    if function == "push":
        return ((*state, argument),)
    if not completed:
        return (state[:-1],) if state else (state,)
    if result is None:
        return IMPOSSIBLE if state else (state,)
    return (state[:-1],) if state and state[-1] == result else IMPOSSIBLE


def _popped_nothing(call: Call) -> bool:
    return call.function == "pop" and call.result is None


def _stack_reaches(state: Any, _read: Call, before: Sequence[Call]) -> bool:
    # As for a queue that was found empty.
    return len(state) <= sum(1 for call in before if call.function == "pop")


def _priority_queue(state: Any, function: str, argument: Any, result: Any, completed: bool) -> Sequence[Any]:
    """enqueue element, dequeue -> the smallest, or nothing from an empty queue. The state is sorted."""
    if function == "enqueue":
        return (tuple(sorted((*state, argument), key=order)),)
    return _fifo(state, function, argument, result, completed)


def _register_without_search(calls: Sequence[Call]) -> SearchResult | None:
    return decide_register(calls, None, "write", "read")


def _key_value_without_search(calls: Sequence[Call]) -> SearchResult | None:
    told = [replace(one, result=one.result or "") if one.function == "get" else one for one in calls]
    return decide_register(told, "", "put", "get")


MODELS: Final = {
    model.name: model
    for model in (
        Model(
            *("register", _register, None, True, ("read", "write")),
            *(_register_is_read, _register_reaches, _register_without_search, True),
        ),
        Model(
            *("cas-register", _register, None, True, ("read", "write", "cas")),
            *(_register_is_read, _register_reaches, _register_without_search, True),
        ),
        Model(
            *("multi-register", _multi_register, (), False, ("txn",)),
            *(_multi_register_is_read, _multi_register_reaches),
        ),
        Model("mutex", _mutex, False, True, ("acquire", "release"), _never, _in_doubt),
        Model(
            *("key-value", _key_value, "", True, ("get", "put", "append")),
            *(_reads_only, _key_value_reaches, _key_value_without_search),
        ),
        Model(
            *("set", _set, frozenset(), True, ("add", "remove", "contains", "read")),
            *(_reads_only, _set_reaches, decide_set),
        ),
        Model(
            *("fifo-queue", _fifo, (), True, ("enqueue", "dequeue")),
            *(_found_empty, _fifo_reaches, decide_fifo),
        ),
        Model(
            *("stack", _stack, (), True, ("push", "pop")),
            *(_popped_nothing, _stack_reaches, decide_stack),
        ),
        Model(
            *("priority-queue", _priority_queue, (), True, ("enqueue", "dequeue")),
            *(_found_empty, _fifo_reaches, decide_priority_queue),
        ),
    )
}

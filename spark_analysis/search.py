"""Linearizability by search: Wing and Gong's algorithm with Lowe's memory of visited configurations.

For models that have no shortcut. A model is a pure step function; the search walks the operations in order of time,
tries every operation that no completed one precedes, and remembers (operations done, state) so that no configuration
is tried twice. It is exponential at worst, so it has a budget of configurations and a clock given by the caller;
beyond either the answer is "undecided". Unknown outcomes stay open to the end and need not happen at all.

Sources: Wing and Gong, "Testing and Verifying Concurrent Objects" (1993); Lowe, "Testing for Linearizability" (2017).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark_analysis.verdict import LINEARIZABLE, UNDECIDED, VIOLATED, VerdictName

State = Hashable
# The states after an operation: empty if it cannot happen in this state. ``completed`` is False for unknown outcomes,
# whose result says nothing.
Step = Callable[[Any, str, Any, Any, bool], Sequence[Any]]

MAXIMUM_CONFIGURATIONS: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class Call:
    """One operation of a model: ``complete_ns`` None if its outcome is unknown."""

    op: int
    function: str
    argument: Any
    result: Any
    invoke_ns: int
    complete_ns: int | None


@dataclass(frozen=True, slots=True)
class SearchResult:
    """``prefix``: operation ids of the longest linearization found; ``stuck``: those that could not follow it."""

    verdict: VerdictName
    configurations: int
    prefix: tuple[int, ...] = ()
    stuck: tuple[int, ...] = ()


def search(
    calls: Sequence[Call],
    step: Step,
    initial: State,
    *,
    maximum_configurations: int = MAXIMUM_CONFIGURATIONS,
    is_over: Callable[[], bool] = lambda: False,
) -> SearchResult:
    """Whether some order of ``calls`` that respects real time is one that the model allows.

    An operation precedes another in real time if it completed strictly before the other was invoked. ``is_over`` is
    asked now and then and ends the search as undecided (a time budget: this module has no clock).
    """
    # Numbered by invocation, so that what is done is mostly a run from 0. Entries in order of time: an invocation,
    # and a completion for every call that has one. Links skip what is linearized, so the calls that may come next are
    # the invocations before the first completion.
    calls = sorted(calls, key=lambda call: call.invoke_ns)
    order: list[tuple[int, int, int]] = []
    for number, call in enumerate(calls):
        order.append((call.invoke_ns, 0, number))
        if call.complete_ns is not None:
            order.append((call.complete_ns, 1, number))
    order.sort()
    head = 0
    size = len(order) + 1
    after = [*range(1, size), 0]
    before = [size - 1, *range(size - 1)]
    invoked_at = [0] * len(calls)
    completed_at = [0] * len(calls)
    entries = [-1] * size
    for place, (_, is_completion, number) in enumerate(order, 1):
        entries[place] = number
        (completed_at if is_completion else invoked_at)[number] = place
    required = sum(1 for call in calls if call.complete_ns is not None)

    def lift(number: int) -> None:
        for place in (invoked_at[number], completed_at[number]):
            if place:
                after[before[place]] = after[place]
                before[after[place]] = before[place]

    def put_back(number: int) -> None:
        for place in (completed_at[number], invoked_at[number]):
            if place:
                after[before[place]] = place
                before[after[place]] = place

    state: Any = initial
    done = 0
    finished = 0
    visited: set[tuple[int, int, Any]] = {(0, 0, initial)}
    path: list[tuple[int, Any, int, list[Any]]] = []
    best: tuple[int, ...] = ()
    stuck: tuple[int, ...] = ()
    place = after[head]
    pending: list[Any] = []
    while finished < required:
        number = entries[place] if place != head else -1
        is_invocation = place != head and invoked_at[number] == place
        if is_invocation:
            if not pending:
                call = calls[number]
                states = step(state, call.function, call.argument, call.result, call.complete_ns is not None)
                mark = done | 1 << number
                settled = _trailing_ones(mark)
                rest = mark >> settled
                pending = [one for one in states if (settled, rest, one) not in visited]
            if pending:
                following = pending.pop()
                mark = done | 1 << number
                settled = _trailing_ones(mark)
                visited.add((settled, mark >> settled, following))
                if len(visited) > maximum_configurations or (len(visited) % 4096 == 0 and is_over()):
                    return SearchResult(UNDECIDED, len(visited), best, stuck)
                path.append((number, state, place, pending))
                state, done, pending = following, done | 1 << number, []
                finished += completed_at[number] > 0
                lift(number)
                if len(path) > len(best):
                    best = tuple(calls[one[0]].op for one in path)
                    stuck = ()
                place = after[head]
                continue
            place = after[place]
            continue
        # A completion whose call is not linearized, or the end: nothing further may come first. Go back.
        if len(path) == len(best) and not stuck:
            stuck = tuple(calls[one].op for one in _candidates(after, head, entries, invoked_at))
        if not path:
            return SearchResult(VIOLATED, len(visited), best, stuck)
        number, state, place, pending = path.pop()
        put_back(number)
        done &= ~(1 << number)
        finished -= completed_at[number] > 0
        if not pending:
            place = after[place]
    return SearchResult(LINEARIZABLE, len(visited), tuple(calls[one[0]].op for one in path))


def _trailing_ones(mark: int) -> int:
    """How many operations from the first are all done:

    the memory of a configuration keeps only what is after them.
    """
    return (~mark & (mark + 1)).bit_length() - 1


def _candidates(after: list[int], head: int, entries: list[int], invoked_at: list[int]) -> list[int]:
    found: list[int] = []
    place = after[head]
    while place != head and invoked_at[entries[place]] == place:
        found.append(entries[place])
        place = after[place]
    return found

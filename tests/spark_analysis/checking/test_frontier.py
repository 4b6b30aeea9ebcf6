"""The search for a way through the graph: it agrees with trying every order and with the search by depth, and unknown
outcomes cost it little."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from spark_analysis.checking import frontier
from spark_analysis.checking.frontier import search_register
from spark_analysis.checking.models import MODELS
from spark_analysis.checking.search import search
from spark_analysis.checking.verdict import LINEARIZABLE, UNDECIDED, VIOLATED
from spark_analysis.importing.calls import Call
from tests.spark_analysis.checking.test_unambiguous import assert_is_an_order

MODEL = MODELS["cas-register"]


def history(seed: int, size: int, clients: int, values: int, unknown: float, wrong: float) -> list[Call]:
    """Clients that write, read and compare a few values, one operation at a time; some get no answer, whose operations
    may have effect much later; a few reads return something else."""
    rng = random.Random(seed)
    tells_failures = rng.random() < 0.5
    free = [0] * clients
    steps = []
    for op in range(size):
        client = min(range(clients), key=free.__getitem__)
        begin = free[client] + rng.randrange(1, 10)
        free[client] = end = begin + rng.randrange(1, 40)
        function = rng.choice(["read", "write", "cas"])
        is_unknown = function != "read" and rng.random() < unknown
        at = begin + rng.randrange(400) if is_unknown else rng.randrange(begin, end + 1)
        steps.append((at, op, function, rng.randrange(values), rng.randrange(values), begin, end, is_unknown))
    state, calls = None, []
    for _, op, function, one, other, begin, end, is_unknown in sorted(steps):
        has_effect = not is_unknown or rng.random() < 0.5
        complete = None if is_unknown else end
        if function == "read":
            result = state if rng.random() >= wrong else rng.randrange(values)
            calls.append(Call(op, function, None, result, begin, complete))
        elif function == "write":
            state = one if has_effect else state
            calls.append(Call(op, function, one, None, begin, complete))
        else:
            held = state == one
            state = other if held and has_effect else state
            if held or is_unknown or tells_failures:
                calls.append(Call(op, function, (one, other), None if is_unknown else held, begin, complete))
    return calls


def crowded(seed: int, size: int, *, scarce: bool, changed: int = 0) -> list[Call]:
    """A register of 9 values, some eight operations open at once, a quarter of them without an answer.

    ``scarce``: few of them write, comparisons mostly hold, and what was not answered had effect, so that hardly any of
    these is left over to explain something else. ``changed`` reads return another value.
    """
    rng = random.Random(seed)
    writes, right, effect = (0.1, 0.8, 1) if scarce else (0.33, 0.5, 0.5)
    steps = []
    for op in range(size):
        begin, length, choice = op * 10 + rng.randrange(10), rng.randrange(1, 160), rng.random()
        function = "read" if choice < 0.34 else "write" if choice < 0.34 + writes else "cas"
        is_unknown = rng.random() < 0.25
        at = begin + rng.randrange(length + 1)
        values = rng.randrange(9), rng.randrange(9)
        chances = rng.random() < effect, rng.random() < right
        steps.append((at, op, function, *values, begin, None if is_unknown else begin + length, *chances))
    state, calls = None, []
    for _, op, function, one, other, begin, complete, has_effect, is_right in sorted(
        steps, key=lambda step: step[:2]
    ):
        has_effect = has_effect or complete is not None
        if function == "read":
            calls.append(Call(op, function, None, None if complete is None else state, begin, complete))
        elif function == "write":
            state = one if has_effect else state
            calls.append(Call(op, function, one, None, begin, complete))
        else:
            one = state if is_right and state is not None else one
            held = state == one
            state = other if held and has_effect else state
            calls.append(
                Call(op, function, (one, other), None if complete is None else held, begin, complete)
            )
    reads = [
        place for place, one in enumerate(calls) if one.function == "read" and one.complete_ns is not None
    ]
    for place in rng.sample(reads, min(changed, len(reads))):
        others = [value for value in range(9) if value != calls[place].result]
        calls[place] = replace(calls[place], result=rng.choice(others))
    return sorted(calls, key=lambda one: one.op)


def small(rng: random.Random) -> list[Call]:
    """Up to 8 operations with any answers, many at the same moments."""
    values, longest = rng.randrange(2, 4), rng.choice((3, 10))
    calls = []
    for op in range(rng.randrange(1, 9)):
        begin = rng.randrange(15)
        end = None if rng.random() < 0.35 else begin + rng.randrange(longest)
        function = rng.choice(["read", "write", "cas", "cas"])
        one, other = rng.randrange(values), rng.randrange(values)
        if function == "read":
            calls.append(Call(op, function, None, rng.choice([None, one]), begin, end))
        elif function == "write":
            calls.append(Call(op, function, one, None, begin, end))
        else:
            result = None if end is None else rng.random() < 0.75
            calls.append(Call(op, function, (one, other), result, begin, end))
    return calls


def by_every_order(calls: list[Call]) -> bool:
    """Whether any order of the answered and some other operations is one of a register, in real time."""

    @cache
    def goes_on(left: frozenset[int], state: Any) -> bool:
        answered = [calls[place] for place in left if calls[place].complete_ns is not None]
        if not answered:
            return True
        end = min(one.complete_ns or 0 for one in answered)
        for place in left:
            one = calls[place]
            if one.invoke_ns <= end:
                completed = one.complete_ns is not None
                following = MODEL.step(state, one.function, one.argument, one.result, completed)
                if any(goes_on(left - {place}, after) for after in following):
                    return True
        return False

    return goes_on(frozenset(range(len(calls))), None)


def test_it_agrees_with_every_order() -> None:
    found: Counter[str] = Counter()
    for seed in range(4000):
        calls = small(random.Random(seed))
        result = search_register(calls, None)
        assert result.verdict == (LINEARIZABLE if by_every_order(calls) else VIOLATED), seed
        found[result.verdict] += 1
        if result.verdict == LINEARIZABLE:
            assert_is_an_order(calls, MODEL, result.prefix)
        else:
            # What is said to come first is an order of its own, and what is stuck is not in it.
            assert set(result.stuck).isdisjoint(result.prefix)
            end = next(one.complete_ns for one in calls if one.op in result.stuck)
            assert end is not None
            before = [one for one in calls if one.complete_ns is not None and one.complete_ns < end]
            assert {one.op for one in before} <= set(result.prefix)
    assert min(found[LINEARIZABLE], found[VIOLATED]) >= 800


@pytest.mark.parametrize("scarce", [False, True])
def test_it_agrees_with_every_order_of_the_beginning_of_crowded_histories(scarce: bool) -> None:
    found: Counter[str] = Counter()
    for seed in range(150):
        calls = crowded(seed, 14, scarce=scarce, changed=seed % 3)
        result = search_register(calls, None)
        assert result.verdict == (LINEARIZABLE if by_every_order(calls) else VIOLATED), seed
        found[result.verdict] += 1
        if result.verdict == LINEARIZABLE:
            assert_is_an_order(calls, MODEL, result.prefix)
    assert min(found[LINEARIZABLE], found[VIOLATED]) >= 20


def test_it_agrees_with_the_search_by_depth() -> None:
    found: Counter[str] = Counter()
    for seed in range(1500):
        calls = history(seed, 4 + seed % 14, 2 + seed % 4, 2 + seed % 3, (0.3, 0.6, 0.8)[seed % 3], 0.1)
        by_width = search_register(calls, None)
        by_depth = search(
            *(calls, MODEL.step, MODEL.initial),
            is_read=MODEL.is_read,
            reaches=MODEL.reaches,
            maximum_configurations=20_000,
        )
        assert by_depth.verdict in (by_width.verdict, UNDECIDED), seed
        found[by_width.verdict] += 1
        if by_width.verdict == LINEARIZABLE:
            assert_is_an_order(calls, MODEL, by_width.prefix)
    assert min(found[LINEARIZABLE], found[VIOLATED]) >= 200


# Histories that the search by depth gives up after 6,000 configurations and more.
@pytest.mark.parametrize(
    ("seed", "size", "values", "unknown"), [(1, 400, 20, 0.3), (1, 1500, 5, 0.3), (2, 3000, 5, 0.1)]
)
def test_hundreds_of_unknown_outcomes_are_decided(seed: int, size: int, values: int, unknown: float) -> None:
    good = history(seed, size, 5, values, unknown, 0.005)
    assert sum(one.complete_ns is None for one in good) > 50
    found = MODEL.decide(good)
    assert found.verdict == LINEARIZABLE
    assert found.configurations < 200_000
    assert_is_an_order(good, MODEL, found.prefix)
    # At the end nothing is read, which nobody has written.
    end = max(one.complete_ns or 0 for one in good)
    assert MODEL.decide([*good, Call(size, "read", None, None, end + 1, end + 2)]).verdict == VIOLATED


def test_what_is_scarce_is_counted() -> None:
    """One write of unknown outcome explains one read of its value, not a second one behind another write."""
    unknown = Call(0, "write", 7, None, 0, None)
    seen = [
        Call(1, "read", None, 7, 10, 11),
        Call(2, "write", 1, None, 20, 21),
        Call(3, "read", None, 7, 30, 31),
    ]
    assert search_register([unknown, *seen[:2]], None).verdict == LINEARIZABLE
    assert search_register([unknown, *seen], None) == search_register([unknown, *seen], None)
    found = search_register([unknown, *seen], None)
    assert (found.verdict, found.stuck) == (VIOLATED, (3,))
    again = Call(4, "cas", (1, 7), None, 25, None)
    assert search_register([unknown, *seen, again], None).verdict == LINEARIZABLE


def test_its_bounds_are_told() -> None:
    calls = history(1, 200, 5, 5, 0.3, 0.0)
    found = search_register(calls, None, maximum_configurations=100)
    assert (found.verdict, found.bound) == (UNDECIDED, "configurations")
    assert search_register(calls, None, is_over=lambda: True).bound == "time"
    assert search_register(calls, None, maximum_bytes=800).bound == "memory"


def test_what_is_scarce_is_priced_and_what_was_tried_in_vain_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of each of five values there are three scarce kinds of unknown operation, and each is read four times."""
    unknown: list[tuple[str, Any]] = [("write", value) for value in range(5)]
    unknown += [("cas", (other, value)) for value in range(5) for other in (8, 9)]
    unknown += [("write", other) for other in (8, 9)] * 10
    calls = [Call(op, function, argument, None, 0, None) for op, (function, argument) in enumerate(unknown)]
    for at in range(100, 500, 20):
        calls.append(Call(at, "read", None, at // 20 % 5, at, at + 1))
        calls.append(Call(at + 10, "write", None, None, at + 10, at + 11))
    assert search_register(calls[:-10], None).verdict == LINEARIZABLE
    # Prices prove it: without them the search has far more to try.
    monkeypatch.setattr(frontier, "_FAILURES_OF_A_ROUND", 20)
    priced = search_register(calls, None, maximum_bytes=500_000)
    monkeypatch.setattr(frontier, "_FAILURES_OF_A_ROUND", 1_000_000)
    unpriced = search_register(calls, None)
    assert (priced.verdict, unpriced.verdict) == (VIOLATED, VIOLATED)
    assert unpriced.configurations > 2 * priced.configurations
    # The graph takes less, what is remembered of all that was tried takes more.
    assert search_register(calls, None, maximum_bytes=500_000).bound == "memory"
    # The clock is looked at by what was compared, whether or not it was kept.
    looks = 0

    def is_over() -> bool:
        nonlocal looks
        looks += 1
        return looks > 2

    found = search_register(calls, None, is_over=is_over)
    assert (found.bound, looks) == ("time", 3)
    assert found.configurations < unpriced.configurations


# Of these the search by width that this one replaced decided none in 30 CPU seconds.
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_where_little_is_left_over_hundreds_of_unknown_outcomes_are_decided_too(seed: int) -> None:
    good = crowded(seed, 500, scarce=True)
    found = search_register(good, None)
    assert found.verdict == LINEARIZABLE
    assert found.configurations < 100_000
    assert_is_an_order(good, MODEL, found.prefix)
    # Each of the last reads needs a write of its own, and there are not so many.
    end, value = max(one.complete_ns or 0 for one in good), good[-1].op % 9
    reads = [
        Call(
            500 + place,
            "read" if place % 2 else "write",
            None if place % 2 else 10,
            value if place % 2 else None,
            *2 * (end + place + 1,),
        )
        for place in range(60)
    ]
    found = search_register([*good, *reads], None)
    assert (found.verdict, found.configurations < 200_000) == (VIOLATED, True)

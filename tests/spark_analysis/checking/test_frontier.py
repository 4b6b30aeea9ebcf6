"""The search by width: it agrees with the search by depth, and unknown outcomes cost it little."""

from __future__ import annotations

import random
from collections import Counter
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


def test_configurations_that_differ_in_what_they_used_alone_are_bounded_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of each value there are three scarce kinds of unknown operation, none of which is less than another one."""
    unknown: list[tuple[str, Any]] = [("write", value) for value in range(3)]
    unknown += [("cas", (other, value)) for value in range(3) for other in (8, 9)]
    unknown += [("write", other) for other in (8, 9)] * 6
    calls = [Call(op, function, argument, None, 0, None) for op, (function, argument) in enumerate(unknown)]
    for at in range(100, 280, 20):
        calls.append(Call(at, "read", None, at // 20 % 3, at, at + 1))
        calls.append(Call(at + 10, "write", None, None, at + 10, at + 11))
    assert search_register(calls, None).verdict == LINEARIZABLE
    most = 0
    count = frontier._Bounds.count

    def counted(bounds: frontier._Bounds, at_once: int) -> None:
        nonlocal most
        most = max(most, at_once)
        count(bounds, at_once)

    monkeypatch.setattr(frontier._Bounds, "count", counted)
    assert search_register(calls, None, maximum_bytes=100 * 400).bound == "memory"
    assert 90 < most <= 101
    search_register(calls, None)
    assert most > 150
    # The clock is looked at by what was compared, whether or not it was kept.
    looks = 0

    def is_over() -> bool:
        nonlocal looks
        looks += 1
        return looks > 20

    found = search_register(calls, None, is_over=is_over)
    assert (found.bound, looks) == ("time", 21)
    assert found.configurations < 20 * 256

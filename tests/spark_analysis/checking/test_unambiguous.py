"""Decisions without a search: they agree with the search, their orders are orders, and long histories are quick."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from spark_analysis.checking.models import MODELS, Model
from spark_analysis.checking.search import search
from spark_analysis.checking.unambiguous.cover import Cover
from spark_analysis.checking.unambiguous.depths import Depths
from spark_analysis.checking.verdict import LINEARIZABLE, UNDECIDED, VIOLATED
from spark_analysis.importing.calls import Call

CONTAINERS = {
    "fifo-queue": ("enqueue", "dequeue"),
    "stack": ("push", "pop"),
    "priority-queue": ("enqueue", "dequeue"),
}
REGISTERS = {"register": ("write", "read"), "cas-register": ("write", "read"), "key-value": ("put", "get")}
SETS = ("growing set", "elements of a set")


def model_of(kind: str) -> Model:
    return MODELS["set" if kind in SETS else kind]


def step_of(kind: str, rng: random.Random, state: Any, before: Sequence[Call], new: int, right: float) -> Any:
    """A function with its argument and its result, which is the state's with the probability ``right``."""
    is_right = rng.random() < right
    if kind in CONTAINERS:
        put, take = CONTAINERS[kind]
        if rng.random() < 0.55:
            return put, new, None
        if is_right:
            return take, None, state[-1 if kind == "stack" else 0] if state else None
        return take, None, rng.choice([None, *(one.argument for one in before if one.function == put)])
    if kind == "growing set":
        if rng.random() < 0.5:
            return "add", new, None
        return "read", None, tuple(one for one in sorted(state) if is_right or rng.random() < 0.7)
    if kind == "elements of a set":
        element = rng.randrange(3)
        function = rng.choice(["add", "remove", "contains", "contains"])
        if function == "add" and any(one.function == "add" and one.argument == element for one in before):
            function = "contains"
        result = (element in state) == is_right if function == "contains" else None
        return function, element, result
    write, read = REGISTERS[kind]
    value = str(new) if kind == "key-value" else new
    written = [model_of(kind).initial, *(one.argument for one in before if one.function == write)]
    choice = rng.random()
    if choice < 0.35:
        return write, value, None
    if choice < 0.55 and kind == "cas-register":
        return "cas", (state if is_right else rng.choice(written), value), True
    return read, None, state if is_right else rng.choice(written)


def history(kind: str, seed: int, size: int) -> list[Call]:
    """A run of a correct object with intervals around its steps, some answers replaced and some of them lost."""
    rng = random.Random(seed)
    right, unknown, spread = rng.choice([1, 0.9, 0.6]), rng.choice([0, 0.1, 0.4]), rng.choice([1, 2, 4, 9])
    model = model_of(kind)
    state, calls, moment = model.initial, list[Call](), 0
    new = rng.sample(range(100, 100 + size), size)
    for op in range(size):
        moment += rng.randrange(4)
        function, argument, result = step_of(kind, rng, state, calls, new[op], right)
        is_unknown = rng.random() < unknown
        if not is_unknown or rng.random() < 0.6:
            state = next(iter(model.step(state, function, argument, result, not is_unknown)), state)
        begin, end = moment - rng.randrange(spread), moment + rng.randrange(spread)
        told = (None, None) if is_unknown else (result, end)
        calls.append(Call(op, function, argument, told[0], begin, told[1]))
    rng.shuffle(calls)
    return calls


def assert_is_an_order(calls: Sequence[Call], model: Model, order: Sequence[int]) -> None:
    """The order has every operation that was answered, respects real time, and the model allows it."""
    by_op = {one.op: one for one in calls}
    assert len(set(order)) == len(order)
    assert {one.op for one in calls if one.complete_ns is not None} <= set(order)
    states, latest = {model.initial}, -(1 << 62)
    for op in order:
        one = by_op[op]
        assert one.complete_ns is None or one.complete_ns >= latest
        latest = max(latest, one.invoke_ns)
        states = {
            following
            for state in states
            for following in model.step(
                state, one.function, one.argument, one.result, one.complete_ns is not None
            )
        }
        assert states, op


@pytest.mark.parametrize("kind", [*CONTAINERS, *REGISTERS, *SETS])
def test_every_decision_agrees_with_the_search(kind: str) -> None:
    model, found = model_of(kind), Counter[str]()
    for seed in range(1200):
        calls = history(kind, seed, 4 + seed % 8)
        decided = model.without_search(calls)
        if decided is None:
            found["none"] += 1
            continue
        searched = search(
            *(calls, model.step, model.initial),
            is_read=model.is_read,
            reaches=model.reaches,
            maximum_configurations=5_000,
        )
        assert searched.verdict in (decided.verdict, UNDECIDED), (kind, seed)
        found[decided.verdict] += 1
        if decided.verdict == LINEARIZABLE:
            assert_is_an_order(calls, model, decided.prefix)
        else:
            assert decided.because
            assert set(decided.stuck) <= {one.op for one in calls}
    assert found["none"] <= 12
    assert min(found[LINEARIZABLE], found[VIOLATED]) >= 100


@pytest.mark.parametrize("kind", [*CONTAINERS, "register", "growing set"])
def test_a_proof_is_a_violation_by_itself(kind: str) -> None:
    """What is named as the reason excludes every order without the rest of the history: but for values that nobody
    took, whose takes the proof lacks, it is judged like any other history."""
    model, judged = model_of(kind), 0
    for seed in range(300):
        calls = history(kind, seed, 10)
        decided = model.without_search(calls)
        if decided is not None and decided.verdict == VIOLATED:
            named = [one for one in calls if one.op in decided.stuck or one.complete_ns is None]
            again = model.without_search(named)
            assert again is None or again.verdict == VIOLATED, (kind, seed)
            judged += 1
    assert judged > 30


def long_history(kind: str, size: int, unknown: float) -> list[Call]:
    """Operations that overlap, on a container that grows to some hundred values."""
    rng, model = random.Random(1), model_of(kind)
    put, take = CONTAINERS[kind]
    inside: list[int] = []
    calls = []
    new = rng.sample(range(size), size)
    for op in range(size):
        begin, end = 10 * op - rng.randrange(40), 10 * op + rng.randrange(40)
        is_unknown = rng.random() < unknown
        has_effect = not is_unknown or rng.random() < 0.5
        if rng.random() < (0.5 if len(inside) < 300 else 0.4):
            if has_effect:
                inside.append(new[op])
            calls.append(Call(op, put, new[op], None, begin, None if is_unknown else end))
            continue
        result = None
        if inside and has_effect:
            place = len(inside) - 1 if kind == "stack" else 0
            place = inside.index(min(inside)) if kind == "priority-queue" else place
            result = inside.pop(place)
        calls.append(Call(op, take, None, None if is_unknown else result, begin, None if is_unknown else end))
    assert model.functions == (put, take)
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("unknown", [0, 0.002])
def test_long_histories_take_seconds(kind: str, unknown: float) -> None:
    calls = long_history(kind, 40_000, unknown)
    began = time.process_time()
    good = MODELS[kind].decide(calls)
    # The answers of two takes are exchanged, of values that had both been put in before.
    takes = [place for place, one in enumerate(calls) if one.result is not None]
    put_until = {one.argument: one.complete_ns for one in calls if one.argument is not None}
    one, other = next(
        (takes[place], takes[place + 20])
        for place in range(len(takes) // 2, len(takes))
        if (put_until[calls[takes[place + 20]].result] or 1 << 62) < calls[takes[place]].invoke_ns
    )
    bent = list(calls)
    for place, result in ((one, calls[other].result), (other, calls[one].result)):
        told = calls[place]
        bent[place] = Call(told.op, told.function, None, result, told.invoke_ns, told.complete_ns)
    bad = MODELS[kind].decide(bent)
    assert time.process_time() - began < 20
    assert (good.verdict, bad.verdict) == (LINEARIZABLE, VIOLATED)


def test_a_deep_stack_is_quick() -> None:
    size = 10_000
    calls = [Call(number, "push", number, None, number, number) for number in range(size)]
    calls += [
        Call(size + number, "pop", None, size - 1 - number, size + number, size + number)
        for number in range(size)
    ]
    began = time.process_time()
    assert MODELS["stack"].decide(calls).verdict == LINEARIZABLE
    assert time.process_time() - began < 10


def test_a_value_put_in_twice_is_left_to_the_search() -> None:
    calls = [
        *(Call(0, "enqueue", 1, None, 0, 1), Call(1, "enqueue", 1, None, 2, 3)),
        *(Call(2, "enqueue", 2, None, 4, 5), Call(3, "dequeue", None, 1, 6, 7)),
    ]
    assert MODELS["fifo-queue"].without_search(calls) is None
    assert MODELS["fifo-queue"].decide(calls).verdict == LINEARIZABLE
    # Unless nobody took it: then it does not matter which was which.
    assert MODELS["fifo-queue"].without_search(calls[:-1]) is not None


def test_attempts_for_one_element_do_not_stand_for_another() -> None:
    """Three attempts to add 0 are as many as the elements that were read; nobody had added the other two."""
    calls = [Call(op, "add", 0, None, 0, None) for op in range(3)] + [Call(3, "read", None, (0, 1, 2), 0, 0)]
    result = MODELS["set"].decide(calls)
    assert (result.verdict, result.because) == (VIOLATED, "1 was read, which nobody had added")


def test_two_unknown_changes_to_one_value_are_left_to_the_search() -> None:
    calls = [Call(0, "write", 2, None, 0, None), Call(1, "cas", (0, 2), None, 0, None)]
    calls.append(Call(2, "cas", (2, 1), True, 0, 0))
    assert MODELS["cas-register"].without_search(calls) is None
    assert MODELS["cas-register"].decide(calls).verdict == LINEARIZABLE


def test_open_intervals_that_touch_leave_the_moment_between_them_free() -> None:
    cover = Cover([(5, 8), (1, 3), (3, 5), (7, 9)])
    assert [cover.first_free(moment) for moment in (0, 1, 2, 3, 4, 6, 9)] == [0, 1, 3, 3, 5, 9, 9]
    cover.add(2, 6)
    assert [cover.first_free(moment) for moment in (1, 2, 5, 9)] == [1, 9, 9, 9]


def test_depths_are_those_of_the_intervals_left() -> None:
    rng = random.Random(3)
    for size in (1, 2, 5, 17):
        intervals = [tuple(sorted(rng.choices(range(size), k=2))) for _ in range(12)]
        depths = Depths(size, [(begin, end) for begin, end in intervals])
        while intervals:
            free = [at for at in range(1, size - 1) if not any(one[0] < at < one[1] for one in intervals)]
            assert depths.free_between(0, size - 1) == free
            begin, end = intervals.pop()
            depths.remove(begin, end)

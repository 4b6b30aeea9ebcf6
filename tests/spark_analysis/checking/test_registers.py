"""Zones agree with the search, the search with trying every order; committed offsets as registers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import permutations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_analysis.checking.register_names import queue_and_group, register_name
from spark_analysis.checking.registers import INITIAL, Access, check_register
from spark_analysis.checking.search import search
from spark_analysis.checking.verdict import LINEARIZABLE, UNDECIDED, VIOLATED
from spark_analysis.importing.calls import Call
from tests.examples import examples


def random_accesses(rng: random.Random, size: int, values: int | None) -> list[Access]:
    accesses: list[Access] = []
    written = [INITIAL]
    for op in range(rng.randrange(1, size + 1)):
        begin = rng.randrange(30)
        end: int | None = begin + rng.randrange(10)
        if rng.random() < 0.5:
            value = op + 1 if values is None else rng.randrange(values)
            written.append(value)
            if rng.random() < 0.2:
                end = None
            accesses.append(Access(op, True, value, begin, end))
        else:
            accesses.append(Access(op, False, rng.choice(written), begin, end))
    return accesses


def by_permutation(accesses: list[Access]) -> bool:
    """Returns whether some order of all known and some unknown operations is legal; it tries every one."""
    known = [one for one in accesses if one.complete_ns is not None]
    unknown = [one for one in accesses if one.complete_ns is None]
    for chosen in range(1 << len(unknown)):
        taken = known + [one for place, one in enumerate(unknown) if chosen >> place & 1]
        for order in permutations(taken):
            ends = [one.complete_ns for one in order]
            if any(
                later_end is not None and later_end < one.invoke_ns
                for place, one in enumerate(order)
                for later_end in ends[place + 1 :]
            ):
                continue
            state = INITIAL
            for one in order:
                if one.is_write:
                    state = one.value
                elif one.value != state:
                    break
            else:
                return True
    return False


def register_step(state: int, function: str, argument: Any, _result: Any, _completed: bool) -> Sequence[int]:
    """Writes set the state, reads need it."""
    if function == "write":
        return (argument,)
    return (state,) if state == argument else ()


def by_search(accesses: list[Access]) -> str:
    calls = [
        Call(one.op, "write" if one.is_write else "read", one.value, None, one.invoke_ns, one.complete_ns)
        for one in accesses
    ]
    return search(calls, register_step, INITIAL).verdict


@settings(max_examples=examples(400), deadline=None)
@given(st.integers(0, 2**40))
def test_the_search_agrees_with_every_permutation(seed: int) -> None:
    accesses = random_accesses(random.Random(seed), 6, 3)
    assert (by_search(accesses) == LINEARIZABLE) == by_permutation(accesses)


@settings(max_examples=examples(1500), deadline=None)
@given(st.integers(0, 2**40))
def test_zones_agree_with_the_search(seed: int) -> None:
    accesses = random_accesses(random.Random(seed), 9, None)
    findings, unsure = check_register(accesses)
    assert unsure == []
    assert bool(findings) == (by_search(accesses) == VIOLATED)


@settings(max_examples=examples(500), deadline=None)
@given(st.integers(0, 2**40))
def test_rewritten_values_are_decided_by_search(seed: int) -> None:
    accesses = random_accesses(random.Random(seed), 9, 4)
    findings, unsure = check_register(accesses)
    assert unsure == []
    assert bool(findings) == (by_search(accesses) == VIOLATED)


def test_both_verdicts_are_frequent() -> None:
    verdicts = [by_search(random_accesses(random.Random(seed), 9, None)) for seed in range(300)]
    assert min(verdicts.count(LINEARIZABLE), verdicts.count(VIOLATED)) > 50


def test_a_search_beyond_its_budget_is_undecided() -> None:
    calls = [Call(op, "write", op, None, 0, 100) for op in range(12)] + [Call(99, "read", -1, None, 200, 201)]
    assert search(calls, register_step, INITIAL, maximum_configurations=500).verdict == UNDECIDED
    assert search(calls, register_step, INITIAL, is_over=lambda: True).verdict == UNDECIDED
    assert search(calls, register_step, INITIAL).verdict == VIOLATED


def test_many_commits_of_few_positions_without_an_answer_are_decided() -> None:
    """By width, in milliseconds; by depth 20,000 configurations are not enough."""
    rng = random.Random(0)
    accesses, value, now = list[Access](), INITIAL, 0
    for op in range(300):
        now += rng.randrange(1, 6)
        begin, end = now - rng.randrange(60), now + rng.randrange(60)
        if rng.random() < 0.5:
            wanted, is_lost = rng.randrange(8), rng.random() < 0.5
            value = value if is_lost and rng.random() < 0.5 else wanted
            accesses.append(Access(op, True, wanted, begin, None if is_lost else end))
        else:
            accesses.append(Access(op, False, value, begin, end))
    assert check_register(accesses) == ([], [])
    calls = [
        Call(one.op, "write" if one.is_write else "read", one.value, None, one.invoke_ns, one.complete_ns)
        for one in accesses
    ]
    assert search(calls, register_step, INITIAL, maximum_configurations=20_000).verdict == UNDECIDED


@given(*[st.text(alphabet="ab/ \\") for _ in range(4)])
def test_no_two_registers_have_one_name(queue: str, group: str, other_queue: str, other_group: str) -> None:
    """Whatever spaces are in the names: "a b" of group "c" is not "a" of group "b c"."""
    assert queue_and_group(register_name(queue, group)) == (queue, group)
    is_same = (queue, group) == (other_queue, other_group)
    assert (register_name(queue, group) == register_name(other_queue, other_group)) is is_same
    assert register_name("orders/2", "billing") == "orders/2 billing"

"""The sweep agrees with trying everything, on as many small histories as there is time for."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_analysis.checking.queues.attempts import Attempt, Hole, Seen
from spark_analysis.checking.queues.covering import cover
from spark_analysis.checking.queues.knowledge import Operation
from spark_analysis.checking.queues.reference import check_queue, check_queues
from spark_analysis.checking.queues.unknown_appends import settle
from spark_analysis.checking.queues.witness import queue_steps
from spark_analysis.checking.verdict import LINEARIZABLE, UNDECIDED, VIOLATED
from tests.examples import examples
from tests.spark_analysis.brute_force import is_linearizable
from tests.spark_analysis.histories import random_history, with_a_choice, without_acknowledgements


def agree(seed: int, *, sparse: bool = False, **options: object) -> str:
    history = random_history(random.Random(seed), **options)  # type: ignore[arg-type]
    verdict, findings = check_queue(history, sparse=sparse)
    truth = is_linearizable(history, sparse=sparse)
    if verdict != UNDECIDED:
        assert (verdict == LINEARIZABLE) == truth, (seed, truth, verdict, findings, history)
    assert bool(findings) == (verdict != LINEARIZABLE)
    return verdict


@settings(max_examples=examples(1500), deadline=None)
@given(st.integers(0, 2**40))
def test_single_values_are_decided_exactly(seed: int) -> None:
    assert agree(seed, batches=False) != UNDECIDED


@pytest.mark.slow
@settings(max_examples=examples(1500), deadline=None)
@given(st.integers(0, 2**40))
def test_retries_of_single_values_are_decided_exactly(seed: int) -> None:
    assert agree(seed, batches=False, values=3) != UNDECIDED


@pytest.mark.slow
@settings(max_examples=examples(1500), deadline=None)
@given(st.integers(0, 2**40))
def test_batches_are_decided_exactly(seed: int) -> None:
    assert agree(seed) != UNDECIDED


@pytest.mark.slow
@settings(max_examples=examples(1500), deadline=None)
@given(st.integers(0, 2**40))
def test_retried_batches_are_decided_exactly(seed: int) -> None:
    assert agree(seed, values=4) != UNDECIDED


@pytest.mark.parametrize("first", [True, False])
def test_of_equal_batches_the_first_that_may_explain_what_was_seen_is_enough(first: bool) -> None:
    """Tried again after the first attempt had effect, of which nobody heard: as a producer with exactly_once does."""
    values = ("a", "b", "c")
    again = [
        Operation(op, "append", "info", invoke_ns, None, values=values)
        for op, invoke_ns in ((2, 40), (3, 50))
    ]
    history = [
        *([Operation(1, "append", "info", 10, None, values=values)] if first else []),
        *again,
        Operation(4, "append", "ok", 20, 30, first_offset=3, values=("d",)),
        Operation(5, "read", "ok", 60, 70, offset=0, first_offset=0, values=(*values, "d"), next_offset=4),
    ]
    verdict, _ = check_queue(history)
    assert verdict == (LINEARIZABLE if first else VIOLATED)
    assert is_linearizable(history) is first


@pytest.mark.parametrize(
    "history",
    [
        [  # the single attempt fills the hole, although it could explain what the batch does
            Operation(0, "append", "info", 0, None, values=("a",)),
            Operation(1, "append", "info", 10, None, values=("a", "b")),
            Operation(2, "tail", "ok", 3, 5, offset=1),
            Operation(3, "poll", "ok", 15, 20, first_offset=1, values=("a", "b")),
        ],
        [  # of the batches with y the first need not have had effect; if it had, it would take the place of b
            Operation(0, "append", "info", 0, None, values=("x", "m", "y")),
            Operation(1, "append", "info", 1, None, values=("y", "k")),
            Operation(2, "append", "info", 2, None, values=("b", "c")),
            Operation(3, "poll", "ok", 15, 20, first_offset=1, values=("c", "y")),
        ],
    ],
)
def test_values_of_several_attempts_are_not_said_to_be_of_one(history: list[Operation]) -> None:
    assert is_linearizable(history)
    assert check_queue(history)[0] == LINEARIZABLE


@pytest.mark.parametrize(("deadline", "kinds"), [(4, ["unexplained-value"]), (5, [])])
def test_a_batch_of_equal_values_that_began_too_late_explains_none_of_them(
    deadline: int, kinds: list[str]
) -> None:
    """Which of its values was seen is open; that it began too late for any is not, whoever else may fill the hole."""
    late = [Attempt(0, index, 3, "b", 5) for index in range(3)]
    history = [
        Operation(0, "append", "info", 5, None, values=("b",) * 3),
        Operation(1, "poll", "ok", 1, deadline, first_offset=1, values=("b",)),
    ]
    assert is_linearizable(history) is (not kinds)
    verdict, findings = check_queue(history)
    assert (verdict, [one.kind for one in findings]) == (VIOLATED if kinds else LINEARIZABLE, kinds)
    # The same where another append may fill the offset before it: only an unsure answer was given.
    findings, unsure = settle(late, [Seen(1, "b", deadline)], [Hole(0, 0, deadline)], [0])
    assert [one.kind for one in findings] == kinds
    assert not kinds or unsure == []


def test_a_covering_that_takes_too_long_is_left_undecided() -> None:
    """Batches of 3 and 5 must fill runs of 7: each takes two, so one more is wanted than there are."""
    sizes = [3, 5] * 12
    tried = [
        Attempt(op, index, size, f"{op}.{index}", 0) for op, size in enumerate(sizes) for index in range(size)
    ]
    runs = [Hole(10 * number, 10 * number + 6, 100.0) for number in range(13)]
    assert isinstance(cover(tried, [], runs[:12]), dict)
    assert cover(tried, [], runs) is False
    assert cover(tried, [], runs, most_states=20) is None


@settings(max_examples=examples(1000), deadline=None)
@given(st.integers(0, 2**40))
def test_polls_filters_transactions_and_retention(seed: int) -> None:
    assert agree(seed, batches=False, rich=True) != UNDECIDED
    agree(seed, values=4, rich=True)


@settings(max_examples=examples(1000), deadline=None)
@given(st.integers(0, 2**40))
def test_queues_with_gaps_are_decided_exactly(seed: int) -> None:
    assert agree(seed, batches=False, rich=True, sparse=True, size=5) != UNDECIDED
    assert agree(seed, values=3, sparse=True, size=5) != UNDECIDED


def some_choice_is_linearizable(queues: dict[str, list[Operation]]) -> bool:
    homeless = queues["t/"]
    return any(
        all(
            is_linearizable(
                [*queues[key], *(one for one, home in zip(homeless, homes, strict=True) if home == key)]
            )
            for key in ("t/0", "t/1")
        )
        for homes in product(("t/0", "t/1"), repeat=len(homeless))
    )


def verdict_on(queues: dict[str, list[Operation]]) -> str:
    judged = check_queues(queues).values()
    is_violated, is_unsure = any(one.findings for one in judged), any(one.unsure for one in judged)
    return VIOLATED if is_violated else UNDECIDED if is_unsure else LINEARIZABLE


@settings(max_examples=examples(600), deadline=None)
@given(st.integers(0, 2**40))
def test_an_append_that_leaves_the_queue_to_the_broker_stands_in_one(seed: int) -> None:
    queues = with_a_choice(random.Random(seed))
    verdict = verdict_on(queues)
    if verdict != UNDECIDED:
        assert (verdict == LINEARIZABLE) == some_choice_is_linearizable(queues), (verdict, queues)


@settings(max_examples=examples(1000), deadline=None)
@given(st.integers(0, 2**40))
@example(621079)
def test_an_append_of_unknown_queue_explains_one_queue_alone(seed: int) -> None:
    queues = without_acknowledgements(random.Random(seed))
    verdict = verdict_on(queues)
    if verdict != UNDECIDED:
        assert (verdict == LINEARIZABLE) == some_choice_is_linearizable(queues), (verdict, queues)


@pytest.mark.parametrize(
    ("made", "linearizable", "undecided"), [(with_a_choice, 150, 6), (without_acknowledgements, 2, 20)]
)
def test_most_histories_with_appends_of_unknown_queue_are_decided(
    made: Callable[[random.Random], dict[str, list[Operation]]], linearizable: int, undecided: int
) -> None:
    """Of the others the two tests above ask nothing."""
    verdicts = [verdict_on(made(random.Random(seed))) for seed in range(300)]
    assert verdicts.count(UNDECIDED) < undecided
    assert verdicts.count(LINEARIZABLE) >= linearizable
    assert verdicts.count(VIOLATED) > 40


@pytest.mark.parametrize(
    ("begins", "verdict"),
    [((0,), UNDECIDED), ((0, 4), LINEARIZABLE), ((4, 4), VIOLATED), ((0, 4, 1), LINEARIZABLE)],
)
def test_appends_of_unknown_queue_fill_offsets_that_nobody_saw(begins: tuple[int, ...], verdict: str) -> None:
    """One queue grew past an offset by 3, another by 5; whatever was sent to one of them by then may stand there."""
    queues = {
        "t/": [Operation(op, "append", "info", at, None, values=(f"v{op}",)) for op, at in enumerate(begins)],
        "t/0": [Operation(8, "tail", "ok", 2, 3, offset=1)],
        "t/1": [Operation(9, "tail", "ok", 2, 5, offset=1)],
    }
    assert verdict_on(queues) == verdict
    assert some_choice_is_linearizable(queues) == (verdict == LINEARIZABLE)
    steps = queue_steps(queues) if verdict == LINEARIZABLE else []
    assert steps is not None
    assert [len(one) for one in steps if one] == [2] * (2 if steps else 0)


def test_a_queue_takes_its_own_appends_before_those_of_unknown_queue() -> None:
    """The one that names no queue began in time for the first offset of the one queue, and for that of the other."""
    queues = {
        "t/": [Operation(0, "append", "info", 1, None, values=("a",))],
        "t/0": [
            Operation(1, "append", "info", 0, None, values=("b",)),
            Operation(2, "tail", "ok", 2, 3, offset=1),
        ],
        "t/1": [Operation(3, "tail", "ok", 0, 2, offset=1)],
    }
    assert verdict_on(queues) == LINEARIZABLE
    assert some_choice_is_linearizable(queues)


@pytest.mark.parametrize(("attempts", "verdict"), [(1, VIOLATED), (2, LINEARIZABLE)])
def test_a_value_in_two_queues_takes_two_attempts(attempts: int, verdict: str) -> None:
    tried = [Operation(op, "append", "info", 0, None, values=("a",)) for op in range(attempts)]
    seen = Operation(9, "read", "ok", 2, 3, offset=0, first_offset=0, values=("a",), next_offset=1)
    queues = {"t/": tried, "t/0": [seen], "t/1": [replace(seen, op=10)]}
    assert verdict_on(queues) == verdict
    assert some_choice_is_linearizable(queues) == (verdict == LINEARIZABLE)


@pytest.mark.parametrize(("attempts", "verdict"), [(1, VIOLATED), (2, UNDECIDED)])
def test_the_same_values_of_one_append_stand_in_one_queue(attempts: int, verdict: str) -> None:
    """It has enough of them for both queues, and cannot be in both."""
    tried = [Operation(op, "append", "info", 0, None, values=("a", "a", "a")) for op in range(attempts)]
    seen = Operation(9, "read", "ok", 2, 3, offset=0, first_offset=0, values=("a",), next_offset=1)
    queues = {"t/": tried, "t/0": [seen], "t/1": [replace(seen, op=10)]}
    assert verdict_on(queues) == verdict
    assert some_choice_is_linearizable(queues) == (verdict != VIOLATED)


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({"batches": False}, 60),
        ({}, 60),
        ({"rich": True}, 40),
        ({"rich": True, "sparse": True, "size": 5}, 20),  # gaps explain nearly everything
    ],
)
def test_the_generator_gives_both_verdicts(options: dict[str, Any], least: int) -> None:
    verdicts = [agree(seed, **options) for seed in range(300)]
    assert verdicts.count(LINEARIZABLE) > 60
    assert verdicts.count(VIOLATED) > least
    assert verdicts.count(UNDECIDED) == 0

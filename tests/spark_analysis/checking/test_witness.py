"""A witness is replayed by models that know nothing of how it was found: each answer comes out, in real time."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.public.analysis import check
from spark_analysis.checking.queues.knowledge import Operation
from spark_analysis.checking.queues.reference import check_queues
from spark_analysis.checking.queues.witness import Step, queue_steps
from spark_analysis.importing import schema
from tests.examples import examples
from tests.spark_analysis.brute_force import is_linearizable
from tests.spark_analysis.histories import random_history, with_a_choice, without_acknowledgements


class Replay:
    """One queue: a list of values (None: what no client sees), and the first offset kept."""

    def __init__(self) -> None:
        self.log: list[str | None] = []
        self.head = 0

    def take(self, step: Step, one: Operation | None) -> None:
        if one is None:
            assert step.offset is not None
            assert step.offset > len(self.log)
            self.log += [None] * (step.offset - len(self.log))
        elif one.function == "append":
            assert step.offset == len(self.log), step
            self.log.append(step.value)
        elif one.function == "tail":
            assert one.offset == len(self.log), step
        elif one.function == "head":
            assert one.offset is not None
            assert self.head <= one.offset <= len(self.log), step
            self.head = one.offset
        else:
            for offset, value in one.pairs():
                assert self.log[offset] == value, step
            if one.function == "read" and one.end_offset is not None:
                assert one.end_offset == len(self.log), step
            if one.function == "read" and not one.values and one.next_offset == one.offset:
                assert one.offset is not None
                assert len(self.log) <= one.offset, step


def check_steps(
    steps: Sequence[Step], queues: Mapping[str, Iterable[Operation]], *, sparse: bool = False
) -> None:
    """Replay the steps; each answered operation takes all of its own, of the others a prefix."""
    operations = {(one.op, key): one for key, listed in queues.items() for one in listed}
    homeless = {one.op: one for key, listed in queues.items() if key.endswith("/") for one in listed}
    replays: dict[str, Replay] = defaultdict(Replay)
    values: dict[int, list[str | None]] = defaultdict(list)
    latest: dict[str, int] = {}
    ended_before = -(1 << 62)
    placed_in: dict[int, str] = {}
    for step in steps:
        one = None
        if step.op is not None:
            one = operations.get((step.op, step.key)) or homeless[step.op]
            assert one.outcome != "fail"
            assert one.invoke_ns <= step.moment_ns
            assert one.complete_ns is None or one.outcome == "info" or step.moment_ns <= one.complete_ns
            values[step.op].append(step.value)
            if step.op in homeless:
                assert placed_in.setdefault(step.op, step.key) == step.key
        else:
            assert sparse
        assert step.moment_ns >= ended_before
        ended_before = step.moment_ns
        # Between two values of one append stands no other's.
        if one is not None and one.function == "append" and one.offsets is None and not sparse:
            if len(values[one.op]) > 1:
                assert latest[step.key] == one.op
            latest[step.key] = one.op
        replays[step.key].take(step, one)
    for (op, _), one in operations.items():
        if one.outcome == "ok":
            told = list(one.values) if one.function == "append" else [None]
            assert values[op] == told, (one, values[op])
        elif one.outcome == "info" and one.function == "append":
            if sparse:
                assert not set(values[op]) - set(one.values)
            else:
                assert tuple(values[op]) == one.values[: len(values[op])]
        else:
            assert op not in values


def replayed(seed: int, *, sparse: bool = False, **options: Any) -> bool:
    """Replays the witness of a history; False if there is none, as it is violated or undecided."""
    rng = random.Random(seed)
    history = random_history(rng, **options)
    queues = {"q/0": history}
    judged = check_queues(queues, sparse=sparse)["q/0"]
    if judged.findings or judged.unsure:
        return False
    steps = queue_steps(queues, sparse=sparse)
    assert steps is not None
    check_steps(steps[0], queues, sparse=sparse)
    return True


@pytest.mark.parametrize(
    "options",
    [
        {"batches": False, "size": 10},
        {"size": 10},
        {"batches": False, "values": 3, "size": 10},
        {"values": 4, "size": 12},
        {"rich": True, "size": 12},
        {"values": 4, "rich": True},
        {"rich": True, "sparse": True, "size": 8},
    ],
)
def test_many_of_the_histories_have_a_witness(options: dict[str, Any]) -> None:
    """The tests below replay nothing of the others."""
    assert sum(replayed(seed, **options) for seed in range(100)) > 10


@settings(max_examples=examples(800), deadline=None)
@given(st.integers(0, 2**40))
def test_single_values_and_batches(seed: int) -> None:
    replayed(seed, batches=False, size=10)
    replayed(seed, size=10)


@settings(max_examples=examples(800), deadline=None)
@given(st.integers(0, 2**40))
def test_values_that_are_tried_again(seed: int) -> None:
    replayed(seed, batches=False, values=3, size=10)
    replayed(seed, values=4, size=12)


@settings(max_examples=examples(800), deadline=None)
@given(st.integers(0, 2**40))
def test_polls_filters_transactions_and_retention(seed: int) -> None:
    replayed(seed, rich=True, size=12)
    replayed(seed, values=4, rich=True)


@settings(max_examples=examples(800), deadline=None)
@given(st.integers(0, 2**40))
def test_queues_with_gaps(seed: int) -> None:
    replayed(seed, rich=True, sparse=True, size=8)


def as_row(one: Operation, key: str) -> dict[str, Any]:
    row = dict.fromkeys(schema.OPERATION_NAMES) | asdict(one) | {"key": key}
    if one.outcome == "fail":
        row["complete_ns"] = None
    return row | {"values": list(one.values), "offsets": one.offsets and list(one.offsets)}


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 2**40))
def test_of_a_minimal_violation_no_answer_can_be_missed(seed: int) -> None:
    history = random_history(random.Random(seed), values=seed % 5, rich=seed % 2 == 0, size=9)
    rows = [as_row(one, "q/0") for one in history]
    judgement = check(rows, minimal=True)
    if judgement.minimal is None:
        # What else is wrong is in the order of one client's polls or sends.
        assert not judgement.is_violated or is_linearizable(history)
        return
    assert judgement.is_violated
    by_op = {one.op: one for one in history}

    def truth(kept: Iterable[int]) -> bool:
        """By trying every order: whether the answers of ``kept`` alone are possible."""
        part = [
            one
            if one.op in kept
            else replace(one, outcome="info", complete_ns=None, first_offset=None, offsets=None)
            for one in history
            if one.op in kept or (one.function == "append" and one.outcome != "fail")
        ]
        return is_linearizable(part)

    assert judgement.minimal
    assert set(judgement.minimal) <= by_op.keys()
    assert not truth(judgement.minimal)
    for missed in judgement.minimal:
        assert truth(set(judgement.minimal) - {missed}), (judgement.minimal, missed)


@settings(max_examples=examples(1000), deadline=None)
@given(st.integers(0, 2**40))
def test_appends_that_several_queues_may_have(seed: int) -> None:
    rng = random.Random(seed)
    queues = without_acknowledgements(rng) if seed % 2 else with_a_choice(rng)
    if any(one.findings or one.unsure for one in check_queues(queues).values()):
        return
    steps = queue_steps(queues)
    assert steps is not None
    in_order = sorted((step for listed in steps for step in listed), key=lambda step: step.moment_ns)
    check_steps(in_order, queues)


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 2**40))
@example(1_496_890_723)
def test_consumer_offsets_and_several_queues_in_one_order(seed: int) -> None:
    """Appends that leave the queue to the broker among them: each is in one queue, if anywhere."""
    rng = random.Random(seed)
    rows, queues = [], defaultdict[str, list[Operation]](list)
    state: dict[str, list[str]] = {"t/0": [], "t/1": []}
    stored = [0, 0]
    for op in range(rng.randrange(4, 16)):
        begin, end = 4 * op - rng.randrange(8), 4 * op + rng.randrange(8)
        number = rng.randrange(2)
        key = f"t/{number}"
        log = state[key]
        kind = rng.randrange(6)
        if kind < 2:
            value = f"v{rng.randrange(3)}"
            log.append(value)
            one = Operation(op, "append", "ok", begin, end, None, len(log) - 1, (value,))
        elif kind == 2:
            value = f"v{rng.randrange(3)}"
            if rng.random() < 0.7:
                log.append(value)
            one = Operation(op, "append", "info", begin, None, values=(value,))
            key = rng.choice([key, "t/"])
        elif kind == 3 and log:
            one = Operation(op, "read", "ok", begin, end, 0, 0, tuple(log), next_offset=len(log))
        elif kind == 4:
            stored[number] = rng.randrange(3)
            rows.append(
                as_row(Operation(op, "commit_offset", "ok", begin, end, stored[number]), key) | {"group": "g"}
            )
            continue
        else:
            rows.append(
                as_row(Operation(op, "fetch_offset", "ok", begin, end, stored[number]), key) | {"group": "g"}
            )
            continue
        queues[key].append(one)
        rows.append(as_row(one, key))
    judgement = check(rows, order=True)
    if not judgement.is_linearizable:
        assert judgement.steps is None
        return
    assert judgement.steps is not None
    assert judgement.order == tuple(one.op for one in judgement.steps)
    registers = {f"t/{number} g" for number in range(2)}
    check_steps([one for one in judgement.steps if one.key not in registers], queues)
    positions = dict.fromkeys(registers, 0)
    told = {row["op"]: row for row in rows if row["group"]}
    assert len(told) == sum(one.key in registers for one in judgement.steps)
    moments = [one.moment_ns for one in judgement.steps]
    assert moments == sorted(moments)
    for step in judgement.steps:
        if step.key in registers:
            assert step.op is not None
            row = told[step.op]
            assert row["invoke_ns"] <= step.moment_ns <= row["complete_ns"]
            if row["function"] == "commit_offset":
                positions[step.key] = row["offset"]
            assert positions[step.key] == row["offset"]

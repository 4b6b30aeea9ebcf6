"""Cycles of transactions: against trying every order of their commits, and Spark's rows against the plain ones."""

from __future__ import annotations

import random
from itertools import permutations
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_analysis.checking.kafka.transactions import Span, cycles
from spark_analysis.checking.queues.knowledge import Operation
from tests.examples import examples

if TYPE_CHECKING:
    pass

Edges = list[tuple[int, int]]


def random_transactions(rng: random.Random) -> tuple[dict[int, Span], Edges]:
    count = rng.randrange(1, 7)
    spans = {}
    for op in range(count):
        begin = rng.randrange(20)
        spans[op] = Span(begin, op, begin + rng.randrange(12), op)
    pairs = [(one, other) for one in spans for other in spans if one != other]
    return spans, rng.sample(pairs, min(len(pairs), rng.randrange(7)))


def can_commit(spans: dict[int, Span], edges: Edges) -> bool:
    """Returns whether the transactions can commit in some order, each in its span, after all that it polled from."""
    for order in permutations(spans):
        place = {op: number for number, op in enumerate(order)}
        if all(place[sender] < place[poller] for sender, poller in edges) and all(
            spans[one].lower_ns <= spans[other].upper_ns
            for number, one in enumerate(order)
            for other in order[number:]
        ):
            return True
    return False


@settings(max_examples=examples(500), deadline=None)
@given(st.integers(0, 2**40))
def test_a_cycle_is_found_if_no_order_of_commits_is_possible(seed: int) -> None:
    spans, edges = random_transactions(random.Random(seed))
    found = cycles(spans, edges)
    assert bool(found) != can_commit(spans, edges)
    for one in found:
        assert set(zip(one.ops, one.ops[1:], strict=False)) <= set(edges)
        if one.kind == "G1c":
            assert (one.ops[-1], one.ops[0]) in edges
        else:
            assert spans[one.ops[0]].lower_ns > spans[one.ops[-1]].upper_ns


def test_both_kinds_are_frequent() -> None:
    kinds = [one.kind for seed in range(300) for one in cycles(*random_transactions(random.Random(seed)))]
    assert min(kinds.count("G1c"), kinds.count("G1c-realtime")) > 30


def test_a_bound_from_outside_is_part_of_the_chain() -> None:
    """Operation 8 only sent what 1 polled, operation 9 only polled what 2 sent."""
    spans = {1: Span(50, 8, 90, 1), 2: Span(0, 2, 40, 9)}
    (found,) = cycles(spans, [(1, 2)])
    assert (found.kind, found.ops) == ("G1c-realtime", (8, 1, 2, 9))


def random_queues(rng: random.Random, size: int) -> dict[str, list[Operation]]:
    """Operations of two queues: some transactions send and poll, others do one of both, some were not answered."""
    queues: dict[str, list[Operation]] = {"x/0": [], "y/0": []}
    for op in range(size):
        begin = rng.randrange(40)
        end = begin + rng.randrange(15)
        sent, polled = rng.sample(list(queues), 2)
        role = rng.choice(["mixed", "mixed", "send", "poll", "unknown", "single"])
        if role != "poll":
            is_known = role != "unknown"
            queues[sent].append(
                Operation(
                    *(op, "append", "ok" if is_known else "info", begin, end if is_known else None, None),
                    first_offset=op if is_known else None,
                    values=(f"v{op % (size - 1)}",),
                    offsets=(op,) if is_known and role != "single" else None,
                )
            )
        if role in ("mixed", "poll", "unknown"):
            places = rng.sample(range(size), rng.randrange(3))
            values = tuple(f"v{place % (size - 1)}" for place in places)
            function = "poll" if role != "unknown" else "read"
            first = places[0] if places else None
            queues[polled].append(
                Operation(op, function, "ok", begin, end, first, first, values, tuple(places) or None)
            )
    return queues

"""Reads behind the barrier: addresses take turns, and neither heavy reads nor light ones keep the others waiting."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replica.read_barriers import LIGHT, WEIGHT_A_TURN, ReadBarriers
from raft.effects import ReadReady


def confirmed(
    reads: list[tuple[str, int]], index: int = 5
) -> tuple[ReadBarriers, list[tuple[str, int, int]]]:
    """Barriers of (whose, weight), each confirmed; and what passes, as (whose, weight, which)."""
    barriers, passed = ReadBarriers(), list[tuple[str, int, int]]()
    for number, (share, weight) in enumerate(reads):

        def ready(read: tuple[str, int, int] = (share, weight, number)) -> None:
            passed.append(read)

        barriers.add((ready, lambda: pytest.fail("it leads on"), weight, share))
    raft: Any = SimpleNamespace(read_index=lambda token: barriers.confirmed(ReadReady(token, index)))
    barriers.begin_round(raft)
    return barriers, passed


def turn(barriers: ReadBarriers) -> None:
    barriers.begin_turn()
    while barriers.go_on(5):
        barriers.applied(5)


def test_the_reads_of_one_address_keep_another_waiting_for_one_at_a_time() -> None:
    """They were let through as they came: a thousand of one address before the first of the next one."""
    barriers, passed = confirmed([("a", 1)] * 1000 + [("b", 1)] * 3)
    turn(barriers)
    assert [share for share, _, _ in passed[:7]] == ["a", "b", "a", "b", "a", "b", "a"]
    assert len(passed) == WEIGHT_A_TURN
    assert barriers.wait(5)


def test_heavy_reads_keep_no_light_one_waiting_and_light_ones_no_heavy_one() -> None:
    """A light one waited for a turn for each of the heavy ones before it."""
    barriers, passed = confirmed([("a", WEIGHT_A_TURN)] * 20 + [("b", 1)] * 2000)
    turn(barriers)
    assert [share for share, _, _ in passed].count("b") == 3 * WEIGHT_A_TURN // 4
    assert passed[-1][0] == "a"
    for _ in range(9):
        turn(barriers)
    assert [share for share, _, _ in passed].count("a") == 10


def test_what_is_not_applied_yet_does_not_pass() -> None:
    barriers, passed = confirmed([("a", 1)], index=6)
    turn(barriers)
    assert not passed
    barriers.applied(6)
    assert len(passed) == 1


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([1, LIGHT, 64, WEIGHT_A_TURN])), max_size=60)
)
def test_each_passes_once_and_none_overtakes_its_equals(reads: list[tuple[str, int]]) -> None:
    barriers, passed = confirmed(reads)
    turns = 0
    while barriers.wait(5) or not turns:
        turn(barriers)
        turns += 1
    assert sorted(number for _, _, number in passed) == list(range(len(reads)))
    assert not barriers.may_pass
    assert turns <= 1 + sum(weight for _, weight in reads) // (WEIGHT_A_TURN // 4)
    for share in "abc":
        for is_light in (True, False):
            of_one = [
                number for of, weight, number in passed if of == share and (weight <= LIGHT) is is_light
            ]
            assert of_one == sorted(of_one)

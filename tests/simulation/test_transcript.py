"""The last events of a run as text: what repeats itself is folded, what a reader looks for is marked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.findings.transcript import folded, last_events
from simulation.plans.plan import LEADER, Fault
from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import SECOND
from simulation.world.running import run_plan


def _line(at_s: float, host: str, text: str) -> str:
    return f"{at_s:11.6f}  {host:<8} {text}"


def test_lines_that_repeat_themselves_are_folded_into_the_first_a_count_and_the_last() -> None:
    repeated = [_line(number, "n0", f"commits up to {number} in term 3") for number in range(5, 17)]
    before, behind = _line(4, "n0", "leader of term 3"), _line(20, "n1", "commits up to 16 in term 3")
    assert folded([before, *repeated, behind]) == [
        before,
        repeated[0],
        "  16.000000  ...      12 times; the last time:",
        repeated[-1],
        behind,
    ]


def test_lines_that_come_in_turn_are_folded_together() -> None:
    lines = [
        _line(at_s, host, f"{what} of term {at_s}")
        for at_s in range(5, 9)
        for host, what in (("n0", "candidate"), ("n1", "follower"), ("n2", "follower"))
    ]
    assert folded(lines) == [
        *lines[:3],
        "   8.000000  ...      these 3 lines 4 times; the last time:",
        *lines[-3:],
    ]


def test_other_hosts_and_other_words_are_not_the_same() -> None:
    lines = [_line(5, f"n{number}", "FAULT kill") for number in range(6)]
    assert folded(lines) == lines
    lines = [_line(5, "n0", f"follower of term 2, leader n{number}") for number in range(6)]
    assert folded(lines) == lines


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), max_size=40))
def test_nothing_is_lost_but_repetitions(said: list[tuple[str, int]]) -> None:
    lines = [_line(at, "n0", f"{text} {number}") for at, (text, number) in enumerate(said)]
    shown = folded(lines)
    assert [line for line in shown if " ... " not in line] == [line for line in lines if line in shown]
    assert {line.split()[2] for line in lines} == {line.split()[2] for line in shown if " ... " not in line}
    assert len(shown) <= len(lines)
    assert shown[-1:] == lines[-1:]


def test_what_repeats_itself_leaves_room_for_what_came_before() -> None:
    notes = [_line(1, "n0", "starts"), *(_line(2 + at, "client", "no leader") for at in range(300))]
    assert last_events(notes, {})[0] == notes[0]


@pytest.mark.slow
def test_a_start_with_less_than_the_node_had_is_marked() -> None:
    """With async flush a page cache may hold more than a disk."""
    plan = replace(draw_swarm_plan(1, seconds=30), flush="async", groups=1, actors=("producer",), think_ms=50)
    power = tuple(Fault(at * SECOND, "power", LEADER, SECOND // 4, 0.5) for at in (5, 7, 9))
    result = run_plan(replace(plan, faults=power))
    assert result.violation is None
    lesser = [line for line in result.transcript if "(LESS: it had up to " in line]
    assert lesser
    for line in lesser:
        time, host = line.split()[:2]
        assert host in ("*n0", "*n1", "*n2")
        held = int(line.partition("it had up to ")[2].partition(")")[0])
        assert int(line.partition("..")[2].partition(" ")[0]) < held
        assert float(time) > 5

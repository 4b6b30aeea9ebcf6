"""The index of timed messages against a sorted list, whatever happens between."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import log.queues.timer_index as timer_index
from log.options import StoreOptions
from log.queues.consume_queue import UNIT
from log.queues.consume_queues import ConsumeQueues
from log.queues.timer_index import DIRECTORY, Step, Steps, TimerIndex, add_step
from tests.examples import examples
from tests.log.memory_disk import MemoryDisk

OPTIONS = StoreOptions(consume_queue_file_units=64)
TOPIC = "rmq_sys_wheel_timer"
FOREVER = 1 << 60


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every structure of the index comes about after some tens of units."""
    monkeypatch.setattr(Waiting, "run_units", 8)
    monkeypatch.setattr(timer_index, "RUNS_MERGED", 2)
    monkeypatch.setattr(timer_index, "CATCH_UP_UNITS", 100)
    monkeypatch.setattr(timer_index, "_CHUNK", 4)


class Waiting:
    """A timer queue with its index, and what a plain list says of it."""

    run_units = OPTIONS.timer_run_units

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.queues = ConsumeQueues(self.disk, OPTIONS)
        self.index = TimerIndex(self.disk, self.queues, self.run_units)
        self.dues: list[int] = []
        self.steps: Steps = ()
        self.delivered: list[int] = []

    def add(self, *dues: int) -> None:
        queue = self.queues.make(TOPIC, 0)
        for due in dues:
            queue.append(len(self.dues), 1000 * (len(self.dues) + 1), 100, due)
            self.dues.append(due)

    def catch_up(self) -> None:
        while not self.index.catch_up(0, self.steps):
            pass

    def expected(self, until: int, count: int) -> list[tuple[int, int]]:
        pending = [(due, n) for n, due in enumerate(self.dues) if n not in self.delivered and due <= until]
        return sorted(pending)[:count]

    def deliver(self, until: int, count: int) -> None:
        self.catch_up()
        batch = self.index.due(self.steps, until, count)
        assert batch == self.expected(until, count)
        if batch:
            self.delivered += [offset for _, offset in batch]
            self.steps = add_step(self.steps, Step(*batch[-1], len(self.dues)))


def test_units_come_in_the_order_of_their_times() -> None:
    waiting = Waiting()
    waiting.add(500, 100, 300, 100, 200)
    waiting.catch_up()
    assert waiting.index.due((), 300, 10) == [(100, 1), (100, 3), (200, 4), (300, 2)]
    assert waiting.index.due((), 300, 2) == [(100, 1), (100, 3)]
    assert waiting.index.next_due_ms(()) == 100
    assert waiting.index.next_due_ms((Step(300, 2, 5),)) == 500
    assert waiting.index.next_due_ms((Step(500, 0, 5),)) is None


def test_steps_that_another_makes_superfluous_are_left_out() -> None:
    steps = add_step((), Step(100, 5, 10))
    steps = add_step(steps, Step(50, 12, 20))
    assert steps == (Step(100, 5, 10), Step(50, 12, 20)), "the second says nothing of times up to 100"
    done = timer_index._are_done(steps, np.array([70, 70, 30]), np.array([9, 10, 19]))
    assert done.tolist() == [True, False, True]
    assert add_step(steps, Step(101, 0, 30)) == (Step(101, 0, 30),)
    assert add_step(steps, Step(70, 0, 30)) == (Step(100, 5, 10), Step(70, 0, 30))


def test_a_large_index_consists_of_few_files_and_little_memory() -> None:
    waiting = Waiting()
    rng = random.Random(3)
    waiting.add(*(rng.randrange(10_000) for _ in range(70_000)))
    waiting.catch_up()
    assert len(waiting.disk.list(DIRECTORY)) <= 2 + 7 + 7
    assert waiting.index.due((), 10_000, 70_000) == waiting.expected(10_000, 70_000)
    done = (Step(FOREVER, 0, 70_000),)
    waiting.steps = done
    waiting.add(*range(20_000, 20_000 + 2 * waiting.run_units))
    waiting.catch_up()
    assert len(waiting.disk.list(DIRECTORY)) == 2, "runs that are done are gone"


def test_a_million_at_one_time_are_no_scan() -> None:
    """Each batch begins where the last ended: a pass over what is done would make this quadratic."""
    waiting = Waiting()
    waiting.add(*[77] * 20_000)
    waiting.catch_up()
    steps: Steps = ()
    for first in range(0, 20_000, 1000):
        batch = waiting.index.due(steps, 77, 1000)
        assert batch == [(77, offset) for offset in range(first, first + 1000)]
        steps = add_step(steps, Step(*batch[-1], 20_000))
        (run, *_) = waiting.index._runs
        assert run.after(steps[-1]) == min(len(run), first + 1000)
    assert waiting.index.due(steps, 77, 1) == []


def test_leftovers_of_an_earlier_start_are_removed() -> None:
    waiting = Waiting()
    waiting.add(*range(10_000))
    waiting.catch_up()
    assert waiting.disk.list(DIRECTORY)
    again = TimerIndex(waiting.disk, waiting.queues, waiting.run_units)
    assert waiting.disk.list(DIRECTORY) == []
    while not again.catch_up(0, ()):
        pass
    assert again.due((), FOREVER, 3) == [(0, 0), (1, 1), (2, 2)]


def test_a_full_disk_leaves_units_in_memory_until_there_is_room() -> None:
    waiting = Waiting()
    waiting.add(*range(5_000))
    waiting.disk.free_pages = 0
    waiting.catch_up()
    assert waiting.disk.list(DIRECTORY) == []
    assert waiting.index.due((), FOREVER, 5_000) == waiting.expected(FOREVER, 5_000)
    waiting.disk.free_pages = None
    waiting.add(*range(5_000))
    waiting.catch_up()
    assert len(waiting.disk.list(DIRECTORY)) == 1
    assert waiting.index.due((), FOREVER, 10_000) == waiting.expected(FOREVER, 10_000)


def test_units_before_the_floor_are_never_read() -> None:
    waiting = Waiting()
    waiting.add(5, 6, 7)
    assert waiting.index.catch_up(2, ())
    assert waiting.index.due((), 10, 10) == [(7, 2)]
    assert waiting.index.first_pending(0, (Step(6, 1, 3),)) == 2
    assert waiting.index.first_pending(0, (Step(7, 2, 3),)) == 3


def test_a_queue_that_is_built_again_is_taken_in_from_its_first_unit() -> None:
    """A start after a crash gives a queue that it cannot trust its end, and then its units, from the first."""
    waiting = Waiting()
    waiting.queues.make(TOPIC, 0).start_at(2)
    waiting.catch_up()
    waiting.add(8, 7)
    waiting.catch_up()
    assert waiting.index.due((), 10, 10) == [(7, 1), (8, 0)]


def test_a_queue_that_was_emptied_is_begun_anew() -> None:
    waiting = Waiting()
    waiting.add(1, 2, 3)
    waiting.catch_up()
    waiting.queues.remove_all()
    waiting.index.clear()
    waiting.queues.make(TOPIC, 0).start_at(2)
    assert waiting.index.behind == 0
    waiting.queues.make(TOPIC, 0).append(2, 5000, 100, 9)
    assert waiting.index.behind == 1
    waiting.catch_up()
    assert waiting.index.due((), 10, 10) == [(9, 2)]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 40), max_size=60),
            st.integers(0, 40),
            st.integers(1, 30),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_every_unit_is_delivered_once_in_order(
    rounds: list[tuple[list[int], int, int, bool]],
) -> None:
    """Clocks go forward and back, batches end in the middle of a millisecond, nodes start again."""
    with pytest.MonkeyPatch.context() as patch:
        small_runs.__wrapped__(patch)  # type: ignore[attr-defined]
        waiting = Waiting()
        for dues, clock, count, restarts in rounds:
            waiting.add(*dues)
            if restarts:
                floor = waiting.index.first_pending(0, waiting.steps)
                assert not any(n not in waiting.delivered for n in range(floor))
                waiting.index = TimerIndex(waiting.disk, waiting.queues, waiting.run_units)
            waiting.deliver(clock, count)
            assert waiting.index.waiting(waiting.steps) == len(waiting.dues) - len(waiting.delivered)
        while waiting.expected(40, 1):
            waiting.deliver(40, 7)
        assert sorted(waiting.delivered) == list(range(len(waiting.dues)))
        assert waiting.index.next_due_ms(waiting.steps) is None
        assert waiting.index.waiting(waiting.steps) == 0


assert UNIT.size == timer_index._UNIT_TYPE.itemsize

"""When a simulated process takes its turns."""

from collections.abc import Callable
from random import Random

from simulation.machines.clock import HostClock
from simulation.machines.turns import ProcessTurns
from simulation.scheduler import MICROSECOND, MILLISECOND, SECOND, Scheduler


def _as_it_is(callback: Callable[..., object]) -> Callable[..., None]:
    def call(*arguments: object) -> None:
        callback(*arguments)

    return call


def test_other_work_of_the_machine_comes_before_each_turn() -> None:
    scheduler = Scheduler()
    other_work_ns: list[int] = []
    taken: list[int] = []
    turns = ProcessTurns(
        scheduler,
        HostClock(scheduler, 0, 0, 0),
        Random(1),
        100 * MICROSECOND,
        lambda: sum(other_work_ns),
        _as_it_is,
        lambda: taken.append(scheduler.now_ns),
    )
    turns.wake()
    scheduler.run_until(SECOND)
    assert len(taken) == 1
    assert taken[0] <= 100 * MICROSECOND
    other_work_ns += [20 * MILLISECOND, 5 * MILLISECOND]
    turns.wake()
    scheduler.after(10 * MILLISECOND, turns.wake)  # what comes meanwhile shares the turn
    scheduler.run_until(2 * SECOND)
    assert len(taken) == 2
    assert 25 * MILLISECOND < taken[1] - SECOND <= 25 * MILLISECOND + 100 * MICROSECOND

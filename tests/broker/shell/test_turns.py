"""The timer of the turns: how often it wakes, and that no deadline is missed."""

from itertools import count, pairwise

import trio
import trio.testing

from broker.shell.turns import Turns

PERIOD_NS = 200_000_000


class _Wakings(trio.abc.Instrument):
    """Counts the steps of one task."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += "run_timer" in task.name


async def test_the_timer_wakes_once_for_a_deadline(autojump_clock: trio.testing.MockClock) -> None:
    turns_at: list[int] = []

    def now_ns() -> int:
        return round(trio.current_time() * 1e9)

    def turn() -> int:
        turns_at.append(now_ns())
        return turns_at[-1] + PERIOD_NS

    turns, wakings = Turns(turn, now_ns), _Wakings()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        nursery.start_soon(turns.run_timer)
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(wakings)
        await trio.sleep(10 * PERIOD_NS / 1e9 + 0.05)
        trio.lowlevel.remove_instrument(wakings)
        nursery.cancel_scope.cancel()
    assert len(turns_at) == 11
    for earlier, later in pairwise(turns_at):
        assert later - earlier <= PERIOD_NS + 1_000_000
    assert wakings.count == 10


async def test_a_deadline_that_passes_while_the_timer_is_set_has_its_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The clock goes on between two looks at it."""
    times = count(0, 7_000_000)
    enough = trio.Event()
    turns_left = 100

    def turn() -> int:
        nonlocal turns_left
        turns_left -= 1
        if not turns_left:
            enough.set()
        return next(times) + 10_000_000

    turns = Turns(turn, lambda: next(times))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        nursery.start_soon(turns.run_timer)
        with trio.fail_after(60):
            await enough.wait()
        nursery.cancel_scope.cancel()

"""The simulated runtime gives the client the semantics that it has on Trio."""

from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from simulation.machines.client_runtime import ClientRuntime
from simulation.machines.clock import HostClock
from simulation.machines.network import Endpoint, Network
from simulation.machines.tasks import Cancelled
from simulation.scheduler import MILLISECOND, SECOND, Scheduler


class Machine:
    """A host with one process, and the network around it."""

    def __init__(self, rate_ppm: int = 0) -> None:
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler, lambda _: Random(1), lambda kind: None)
        self.clock = HostClock(self.scheduler, 5 * SECOND, rate_ppm, 0)
        self.ended: list[BaseException | None] = []
        self.runtime = ClientRuntime(
            self.scheduler, self.network, self.clock, Random(2), "c0", "10.0.0.9", 1, self.ended.append
        )

    def run(self, main: Coroutine[Any, Any, None], seconds: int = 10) -> None:
        self.runtime.run(main)
        self.scheduler.run_until(self.scheduler.now_ns + seconds * SECOND)

    def finish(self, main: Coroutine[Any, Any, None]) -> None:
        """Runs a main task that must end without an error."""
        self.run(main)
        assert self.ended == [None]


def test_sleep_follows_the_hosts_clock() -> None:
    machine = Machine(rate_ppm=50_000)
    times: list[int] = []

    async def main() -> None:
        await machine.runtime.sleep(1.05)
        times.append(machine.scheduler.now_ns)

    machine.finish(main())
    assert abs(times[0] - SECOND) < MILLISECOND


def test_a_group_ends_when_all_its_tasks_have_ended() -> None:
    machine = Machine()
    order: list[str] = []

    async def task(name: str, seconds: float) -> None:
        await machine.runtime.sleep(seconds)
        order.append(name)

    async def main() -> None:
        async with machine.runtime.task_group() as group:
            group.start_soon(task, "late", 2.0)
            group.start_soon(task, "early", 1.0)
            order.append("body")
        order.append("after")

    machine.finish(main())
    assert order == ["body", "early", "late", "after"]


def test_an_error_cancels_the_other_tasks_and_leaves_the_group_bare() -> None:
    machine = Machine()
    cancelled: list[str] = []

    async def waits() -> None:
        try:
            await machine.runtime.event().wait()
        except Cancelled:
            cancelled.append("waits")
            raise

    async def fails() -> None:
        await machine.runtime.sleep(1)
        raise ValueError("no")

    async def body() -> None:
        async with machine.runtime.task_group() as group:
            group.start_soon(waits)
            group.start_soon(fails)
            await machine.runtime.sleep(100)

    async def main() -> None:
        with pytest.raises(ValueError, match="no"):
            await body()

    machine.finish(main())
    assert cancelled == ["waits"]


def test_a_deadline_is_caught_by_its_own_scope_only() -> None:
    machine = Machine()
    seen: list[tuple[bool, bool]] = []

    async def main() -> None:
        runtime = machine.runtime
        with runtime.move_on_after(1) as outer:
            with runtime.move_on_after(5) as inner:
                await runtime.sleep(60)
            seen.append((True, True))  # never reached: the outer deadline passed
        seen.append((outer.cancelled_caught, inner.cancelled_caught))
        with runtime.move_on_after(1) as quick:
            await runtime.sleep(0)
        seen.append((quick.cancelled_caught, False))

    machine.finish(main())
    assert seen == [(True, False), (False, False)]


def test_a_shield_keeps_cancellation_away_until_it_is_left() -> None:
    machine = Machine()
    steps: list[str] = []

    async def main() -> None:
        runtime = machine.runtime
        with runtime.move_on_after(1):
            with runtime.move_on_after(60, shield=True):
                await runtime.sleep(3)
                steps.append("shielded")
            await runtime.sleep(0)
            steps.append("not reached")
        steps.append("after")

    machine.finish(main())
    assert steps == ["shielded", "after"]


def test_shielded_tasks_outlive_the_cancelled_body() -> None:
    machine = Machine()
    steps: list[str] = []

    async def serve() -> None:
        await machine.runtime.sleep(2)
        steps.append("served")

    async def main() -> None:
        runtime = machine.runtime
        with runtime.move_on_after(1):
            async with runtime.task_group(shielded=True) as group:
                group.start_soon(serve)
                try:
                    await runtime.sleep(60)
                finally:
                    with runtime.move_on_after(5, shield=True):
                        await runtime.sleep(2)
                        steps.append("closing")
                    group.cancel()

    machine.finish(main())
    assert steps == ["served", "closing"]


def test_a_killed_process_takes_no_further_step() -> None:
    machine = Machine()
    steps: list[str] = []

    async def main() -> None:
        try:
            await machine.runtime.sleep(2)
            steps.append("slept")
        finally:
            await machine.runtime.sleep(1)
            steps.append("cleaned up")

    machine.run(main(), seconds=1)
    machine.runtime.kill()
    machine.scheduler.run_until(20 * SECOND)
    assert steps == []
    assert machine.ended == []


def test_streams_deliver_in_order_through_loss_and_cuts() -> None:
    machine = Machine()
    network = machine.network
    network.split_probability = 0.5
    received = bytearray()

    def accept(endpoint: Endpoint) -> None:
        endpoint.on_data = received.extend

    network.listen("10.0.0.1:1", "server", accept)
    network.link("c0", "server").loss = 0.3
    sent = b"".join(number.to_bytes(4, "big") for number in range(2000))

    async def main() -> None:
        stream = await machine.runtime.connect("10.0.0.1:1")
        for begin in range(0, len(sent), 100):
            await stream.send_all([sent[begin : begin + 100]])
            await machine.runtime.sleep(0.01)

    machine.scheduler.at(SECOND // 2, network.set_cut, "c0", "server", True)
    machine.scheduler.at(3 * SECOND, network.set_cut, "c0", "server", False)
    machine.finish(main())
    assert bytes(received) == sent


def test_a_reset_is_an_error_and_a_close_is_the_end() -> None:
    machine = Machine()
    network = machine.network
    accepted: list[Endpoint] = []
    network.listen("10.0.0.1:1", "server", accepted.append)
    ends: list[object] = []

    async def main() -> None:
        for end in ("close", "reset"):
            stream = await machine.runtime.connect("10.0.0.1:1")
            getattr(accepted[-1], end)()
            try:
                ends.append(await stream.receive_some())
            except OSError:
                ends.append("error")
        network.stop_listening("10.0.0.1:1")
        with pytest.raises(OSError, match="refused"):
            await machine.runtime.connect("10.0.0.1:1")

    machine.finish(main())
    assert ends == [b"", "error"]


def test_what_a_clogged_connection_has_not_taken_can_still_change() -> None:
    machine = Machine()
    network = machine.network
    received = bytearray()

    def accept(endpoint: Endpoint) -> None:
        endpoint.on_data = received.extend

    network.listen("10.0.0.1:1", "server", accept)
    opened: list[Endpoint | None] = []
    network.connect("c0", "10.0.0.9", "10.0.0.1:1", lambda endpoint, _: opened.append(endpoint))
    machine.scheduler.run_until(SECOND)
    endpoint = opened[0]
    assert endpoint is not None
    network.set_cut("c0", "server", True)
    network.set_clogged("c0", "server", True)
    buffer = bytearray(b"a" * 10_000)
    endpoint.send([buffer])
    buffer[:] = b"b" * 10_000
    network.set_clogged("c0", "server", False)
    network.set_cut("c0", "server", False)
    machine.scheduler.run_until(5 * SECOND)
    assert received == b"a" * 4096 + b"b" * (10_000 - 4096)


def test_a_process_that_stands_still_does_late_what_it_had_in_hand() -> None:
    machine = Machine()
    runtime, done = machine.runtime, list[tuple[str, int]]()

    async def main() -> None:
        with runtime.move_on_after(3):
            await runtime.sleep(1)
            done.append(("first", machine.scheduler.now_ns // SECOND))
            await runtime.sleep(1)
            done.append(("late", machine.scheduler.now_ns // SECOND))
            await runtime.sleep(1)
            done.append(("never", 0))
        await runtime.sleep(1)
        done.append(("last", machine.scheduler.now_ns // SECOND))

    machine.scheduler.at(3 * SECOND // 2, runtime.pause)
    machine.scheduler.at(7 * SECOND // 2, runtime.resume)
    machine.scheduler.at(8 * SECOND, runtime.pause)
    machine.run(main(), seconds=9)
    assert done == [("first", 1), ("late", 3), ("last", 4)], "both times were over when it went on"
    assert runtime.stood_still_ns == 3 * SECOND, "the pause that goes on counts, too"

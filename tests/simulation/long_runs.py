"""Runs of hours in which nothing may grow: `python -m tests.simulation.long_runs --hours 2`.

A short run cannot tell what a node forgets from what it will forget. Here clients come and go, connections break,
leadership moves and topics are deleted every few seconds, under the same load all the time, and messages are kept for
20 s. Whatever a node holds then, on its disk or as objects in memory, is the same after an hour as after two.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from types import BuiltinFunctionType, CodeType, FunctionType, GetSetDescriptorType, ModuleType
from typing import Final

from simulation.plans.fault_times import Rhythm, draw_faults
from simulation.plans.plan import Limits, Plan
from simulation.plans.swarm import draw_swarm_plan
from simulation.randomness import stream
from simulation.scheduler import MILLISECOND, SECOND
from simulation.world.building import World
from simulation.world.running import Result, run_world

_ACTORS: Final = ("producer", "consumer", "administrator", "scheduler", "operator")
_FAULTS: Final = {"reset": 2, "client kill": 5, "topics": 30, "transfer": 45}
"""Kind -> the mean number of seconds from one to the next. No node ends: what it holds would begin anew."""
_NOT_HELD: Final = (ModuleType, type, CodeType, BuiltinFunctionType, GetSetDescriptorType)
_OF_THE_WORLD: Final = ("simulation", "structlog", "random")
"""Modules whose objects a node has been given: they are not its own, and journals grow."""
_GROWS: Final = 1.08
"""More than so many times what all nodes held before is growth. Who leads holds more, so all are counted together."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a node holds at one moment."""

    at_s: int
    objects: int
    files: int
    file_bytes: int


def long_plan(seed: int, seconds: int) -> Plan:
    """A plan of a steady load and faults that end no node, all over a minute before its end."""
    calm_ns, end_ns = (seconds - 60) * SECOND, seconds * SECOND
    faults = []
    for kind, gap_s in _FAULTS.items():
        rhythm = Rhythm(
            begin_ns=10 * SECOND,
            first_within_ns=10 * SECOND,
            mean_gaps_s=(gap_s,),
            gap_ns_min=SECOND,
            durations_ns_max=(100 * MILLISECOND, SECOND),
        )
        faults += draw_faults(stream(f"long {seed} {kind}"), kind, rhythm, calm_ns)
    return replace(
        draw_swarm_plan(seed, seconds=60),
        actors=_ACTORS,
        faults=tuple(sorted(faults, key=lambda fault: fault.time_ns)),
        flush="sync",
        producers=1,
        think_ms=4000,
        queues=2,
        calm_ns=calm_ns,
        end_ns=end_ns,
        limits=replace(
            Limits(),
            hour_ms=1000,
            reserved_hours=20,
            snapshot_entries=200,
            log_index_units=64,
            queue_units=16,
        ),
    )


def run_for_long(plan: Plan, looks: int) -> tuple[Result, dict[str, list[Held]]]:
    """Runs the plan; returns what each node held at so many moments, the same time apart."""
    world = World(plan)
    held: dict[str, list[Held]] = {host.name: [] for host in world.brokers[: plan.nodes]}

    def look() -> None:
        for host in world.brokers[: plan.nodes]:
            assert host.process is not None, "no fault of the plan ends a node"
            objects = sum(1 for _ in _reachable(host.process.node))
            now_s = world.scheduler.now_ns // SECOND
            held[host.name].append(Held(now_s, objects, host.disk.file_count, host.disk.file_bytes))

    for number in range(1, looks + 1):
        world.scheduler.at(number * plan.calm_ns // (looks + 1), look)
    return run_world(world), held


def growth(held: dict[str, list[Held]]) -> list[str]:
    """Returns a line for each thing of which all nodes together held more at the end of a run than in its middle."""
    looks = [*zip(*held.values(), strict=True)]
    third = len(looks) // 3
    lines = []
    for what in ("objects", "files", "file_bytes"):
        sums = [sum(getattr(of_node, what) for of_node in look) for look in looks]
        was, is_now = median(sums[-2 * third : -third]), median(sums[-third:])
        if is_now > was * _GROWS:
            lines.append(f"{was:.0f} {what} in the middle of the run, {is_now:.0f} at its end")
    return lines


def _reachable(root: object) -> Iterator[object]:
    """Yields each object that is reached from the root and is not of the world around it."""
    seen = {id(root)}
    left = [root]
    while left:
        held = left.pop()
        yield held
        # A function holds what it was made with, and not its module's names.
        parts = (
            [held.__closure__, held.__defaults__]
            if isinstance(held, FunctionType)
            else gc.get_referents(held)
        )
        for part in parts:
            if id(part) in seen or isinstance(part, _NOT_HELD):
                continue
            seen.add(id(part))
            module = part.__module__ if isinstance(part, FunctionType) else type(part).__module__
            if not (module or "").startswith(_OF_THE_WORLD):
                left.append(part)


def main() -> None:
    """Runs one plan, prints what its nodes held, and exits with 1 if something grew or the run has a finding."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=1.0, help="simulated; an hour takes some two minutes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--looks", type=int, default=24)
    arguments = parser.parse_args()
    result, held = run_for_long(long_plan(arguments.seed, int(arguments.hours * 3600)), arguments.looks)
    for node, looks in held.items():
        for look in looks:
            print(
                f"{node} {look.at_s:6} s {look.objects:7} objects {look.files:4} files {look.file_bytes:9} bytes"
            )
    print(f"{result.committed} entries, {result.fault_counts}, {result.elections} elections")
    found = growth(held) + ([] if result.violation is None else [str(result.violation)])
    print(*found or ["nothing grew"], sep="\n")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()

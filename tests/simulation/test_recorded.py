"""Clients judged by their traces when a run is over: what is true holds, and each kind of untruth is found."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO

import pytest

from broker.trace import Fail, Invoke, Ok, ReadResult, TraceEvent, TraceHeader, read_trace
from simulation.journal import Violation
from simulation.judges.group_model import GroupModel
from simulation.judges.recorded import RecordedClients, commit_times
from simulation.plans.swarm import draw_swarm_plan
from simulation.world.building import World
from simulation.world.running import Result, run_world


@pytest.fixture(scope="module")
def run() -> tuple[World, Result]:
    """A run with faults, the actors that every run has, and its traces."""
    actors = ("producer", "careful", "consumer", "auditor", "administrator")
    world = World(replace(draw_swarm_plan(3, seconds=30), actors=actors), keep_traces=True)
    result = run_world(world)
    assert result.violation is None
    return world, result


def _events(data: bytes) -> Iterator[TraceEvent]:
    return (event for event in read_trace(BytesIO(data)) if not isinstance(event, TraceHeader))


def _judge(run: tuple[World, Result], change: Callable[[TraceEvent, Invoke | None], TraceEvent]) -> None:
    """Judges all clients, each event changed before."""
    world, result = run
    clients = RecordedClients({group.name: group.model for group in world.groups})
    for name in world.traces.histories:
        asked: dict[int, Invoke] = {}
        events = []
        for event in _events(result.traces[name]):
            if isinstance(event, Invoke):
                asked[event.operation] = event
            question = asked.get(event.operation) if isinstance(event, Ok | Fail) else None
            events.append(change(event, question))
        clients.judge(name, events, at_most_once=name.startswith(("producer", "careful")))
    clients.check_end()


def test_what_is_true_holds(run: tuple[World, Result]) -> None:
    _judge(run, lambda event, asked: event)


def _place(event: TraceEvent, asked: Invoke | None) -> TraceEvent:
    is_append = isinstance(event, Ok) and asked is not None and asked.function == "append"
    return replace(event, result=7_000) if isinstance(event, Ok) and is_append else event


def _denial(event: TraceEvent, asked: Invoke | None) -> TraceEvent:
    is_append = isinstance(event, Ok) and asked is not None and asked.function == "append"
    return Fail(event.time_ns, event.operation, None) if isinstance(event, Ok) and is_append else event


def _gap(event: TraceEvent, asked: Invoke | None) -> TraceEvent:
    if isinstance(event, Ok) and isinstance(event.result, ReadResult) and len(event.result.values) > 1:
        read = event.result
        return replace(event, result=replace(read, offsets=read.offsets[1:], values=read.values[1:]))
    return event


def _empty(event: TraceEvent, asked: Invoke | None) -> TraceEvent:
    is_tail = isinstance(event, Ok) and asked is not None and asked.function == "tail"
    return replace(event, result=0) if isinstance(event, Ok) and is_tail and event.time_ns > 15e9 else event


def _elsewhere(event: TraceEvent, asked: Invoke | None) -> TraceEvent:
    is_fetch = isinstance(event, Ok) and asked is not None and asked.function == "fetch_offset"
    return replace(event, result=7_000) if isinstance(event, Ok) and is_fetch else event


def _not_asked(event: TraceEvent, asked: Invoke | None) -> TraceEvent:
    is_commit = isinstance(event, Invoke) and event.function == "commit_offset"
    return replace(event, argument=7_000) if isinstance(event, Invoke) and is_commit else event


@pytest.mark.parametrize(
    ("change", "invariant"),
    [
        (_place, "acknowledged messages are committed"),
        (_denial, "failed sends leave nothing"),
        (_gap, "reads leave nothing out"),
        (_empty, "the end of a queue is linearizable"),
        (_elsewhere, "stored offsets are linearizable"),
        (_not_asked, "offsets are stored when clients ask"),
    ],
)
def test_what_is_untrue_is_found(
    run: tuple[World, Result], change: Callable[[TraceEvent, Invoke | None], TraceEvent], invariant: str
) -> None:
    with pytest.raises(Violation) as found:
        _judge(run, change)
    assert found.value.invariant == invariant


def test_commits_are_timed_by_the_first_replica_that_tells_of_them(run: tuple[World, Result]) -> None:
    world, result = run
    replicas = [event for host in world.members.in_service() for event in _events(result.traces[host.name])]
    times = commit_times(replicas, world.model.last_index + 1)
    assert times == sorted(times)
    model = GroupModel()
    model.voters = tuple(f"n{number}" for number in range(world.plan.nodes))
    image, positions = world.model.image, [*world.model.positions, world.model.end_position]
    for begin, end, time_ns in zip(positions, positions[1:], times, strict=False):
        entry = bytes(image[begin:end])
        model.learn("n0", entry[: int.from_bytes(entry[4:8], "big")], time_ns)
    assert {key: queue.times for key, queue in model.queues.items()} == {
        key: queue.times for key, queue in world.model.queues.items()
    }

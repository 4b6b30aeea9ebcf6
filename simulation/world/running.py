"""The course of a run: machines start, faults happen and end, the group must recover, and then everything is judged.

    result = run_plan(plan_of_seed(7))

What is found first ends the run.
"""

import gc
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from simulation.faults.healing import heal_everything
from simulation.faults.injection import inject
from simulation.journal import Journal, Violation
from simulation.judges.idleness import SETTLED_NS, Idleness
from simulation.judges.power_losses import DataLoss
from simulation.plans.futures import with_future
from simulation.plans.plan import Fault, Fork, Plan
from simulation.scheduler import SECOND, Timer
from simulation.world.building import World
from simulation.world.end_checks import (
    JudgeHistory,
    check_actors,
    check_nodes,
    check_read,
    check_told,
    has_come_together,
    is_applied,
    is_read,
)

_SENDERS: Final = ("producer", "repeater", "careful")
"""Actors whose sends `ClientJudge` counts."""
_FLUSH_TRACES_NS: Final = SECOND
_LOAD_STOPS_BEFORE_END_NS: Final = 6 * SECOND
"""The shortest time from the end of the load to that of the run: what was asked for last is answered, and old enough
for actors to judge it.
"""
_RECOVERY_NS: Final = 12 * SECOND
"""The longest time from the end of all faults to an acknowledged message: two split elections and a route poll."""
_SERVES_NS: Final = 3 * SECOND
"""The shortest time from the end of all faults to that of the load, if a run ends early."""
_LOOK_NS: Final = SECOND // 2
_LAST_ENTRIES_NS: Final = SECOND
"""The longest time from the end of the run to the moment in which every node has applied everything."""
_READ_NS: Final = 24 * SECOND
"""The longest time from the end of all faults to the moment in which readers have got everything. A pull that was sent
to a machine right before that lost power is given up after 20 s by the client's clock, which may go slow.
"""
_ROUTE_NS: Final = 36 * SECOND
"""With several groups, the time beyond that: a member that was given a route without one of them shares out the others'
queues until its next look, 30 s later by its clock.
"""


@dataclass(slots=True)
class Result:
    """The result of a run."""

    plan: Plan
    violation: Violation | None
    simulated_ns: int
    trace_digest: str
    fault_counts: dict[str, int]
    events: int
    committed: int
    acknowledged: int
    read: int
    elections: int
    work_counts: dict[str, int]
    """The number of things that actors have done, by kind: an actor that never gets anywhere checks nothing."""
    transcript: list[str]
    states: list[str]
    traces: dict[str, bytes] = field(default_factory=dict)
    """The trace files by name, if they were kept."""
    marks: dict[str, int] = field(default_factory=dict)
    """The number of times that the group came to a state of the protocol, by name (simulation/judges/marks.py)."""
    data_loss: DataLoss | None = None
    """The loss to power failures that ended the run, as async flush allows: it is no finding."""


Explore = Callable[[str], int | None]
"""Told of each state that the run comes to while there are faults: a mark, behind the mark before it. Returns the seed
of another future to go on with from there, or None."""


def run_plan(plan: Plan, *, keep_traces: bool = False, judge_history: JudgeHistory | None = None) -> Result:
    """Runs a plan from beginning to end; `judge_history` has the last word on what clients were told."""
    world = World(plan, keep_traces=keep_traces or judge_history is not None)
    return run_world(world, judge_history)


def run_world(
    world: World, judge_history: JudgeHistory | None = None, explore: Explore | None = None
) -> Result:
    """Runs the whole plan of a new world. Never raises for what it finds.

    `judge_history` needs a world that keeps its traces. Raises KeyboardInterrupt if the run was interrupted.
    """
    journal = world.journal
    course = _Course(world, explore)
    with _logs_noted(journal), _garbage_kept():
        try:
            course.plan_events()
            course.run_to_end()
            if world.data_loss is None and not world.interrupted:
                course.await_last_entries()
            if journal.finding is None and not world.interrupted:
                course.check_end(judge_history)
        except Violation as violation:
            journal.found(violation)
        except Exception:
            # A mistake in the simulator is found like any other, with its plan and what came before.
            journal.found(Violation("the simulator fails", "world", traceback.format_exc()))
        finally:
            states = _states(world)
            for client in world.clients:
                client.kill()
            world.traces.flush()
    if world.interrupted:
        raise KeyboardInterrupt
    return _result(world, states)


class _Course:
    """The events of a run, in the order of time."""

    def __init__(self, world: World, explore: Explore | None) -> None:
        self._world = world
        self._explore = explore
        self._met: list[str] = []
        """The states that the present event has come to."""
        self._pending: list[Timer] = []
        """The faults to come."""
        self._acknowledged_at_calm = 0
        self._has_ended_early = False

    def plan_events(self) -> None:
        """Starts the name servers, and schedules all that the plan says."""
        world, scheduler, plan = self._world, self._world.scheduler, self._world.plan
        random_of = world.apart_or(world.random("starts"))
        for name_server in world.name_servers:
            name_server.start()
        for group in world.groups:
            for host in group.brokers:
                scheduler.at(random_of(f"start of {host.name}").randrange(SECOND), host.start)
            group.availability.start()
        for client in world.clients:
            scheduler.at(random_of(f"start of {client.name}").randrange(2 * SECOND), client.start)
        self._plan_faults(-1, plan.forks[0].time_ns if plan.forks else plan.end_ns)
        scheduler.at(plan.calm_ns, self._calm)
        scheduler.at(plan.calm_ns + _RECOVERY_NS, self._check_recovered)
        scheduler.at(plan.end_ns - _LOAD_STOPS_BEFORE_END_NS, self._stop_load)
        idle_from_ns = plan.calm_ns + _RECOVERY_NS
        idle_to_ns = idle_from_ns + plan.idle_ns
        if plan.idle_ns > SETTLED_NS and idle_to_ns < plan.end_ns - _LOAD_STOPS_BEFORE_END_NS:
            scheduler.at(idle_from_ns, self._rest, idle_to_ns)
        scheduler.at(_FLUSH_TRACES_NS, self._flush_traces)

    def _plan_faults(self, behind_ns: int, until_ns: int) -> None:
        world = self._world
        self._pending += [
            world.scheduler.at(fault.time_ns, self._strike, fault)
            for fault in world.plan.faults
            if behind_ns < fault.time_ns <= until_ns
        ]

    def _strike(self, fault: Fault) -> None:
        self._world.draw_for(fault)
        inject(self._world.stages[fault.group], fault)

    def run_to_end(self) -> None:
        """Runs up to the plan's end, with the futures that its forks say."""
        world, scheduler = self._world, self._world.scheduler
        forks = world.plan.forks
        for number, fork in enumerate(forks):
            scheduler.pause_behind = fork.event
            if scheduler.run_until(world.plan.end_ns):
                return  # a plan that was shrunk may end before
            behind = forks[number + 1 :]
            self._go_on_as(fork, behind[0].time_ns if behind else world.plan.end_ns)
        if self._explore is not None:
            world.journal.mark_reached = self._came_to
        served_ns = world.plan.calm_ns + _SERVES_NS if world.plan.ends_early else world.plan.end_ns
        while not scheduler.run_until(min(served_ns, world.plan.end_ns)):
            self._offer_futures()
        self._await_recovery()

    def _await_recovery(self) -> None:
        """Goes on up to the plan's end, or until the group has recovered and nothing is amiss."""
        world, scheduler = self._world, self._world.scheduler
        quiet_ns: int | None = None
        while scheduler.now_ns < world.plan.end_ns and not scheduler.stopped:
            if quiet_ns is None and self._has_recovered():
                self._stop_load()
                quiet_ns = scheduler.now_ns
            elif quiet_ns is not None and scheduler.now_ns >= quiet_ns + _LOAD_STOPS_BEFORE_END_NS:
                self._has_ended_early = has_come_together(world)
                if self._has_ended_early:
                    return
            scheduler.run_until(min(scheduler.now_ns + _LOOK_NS, world.plan.end_ns))

    def _go_on_as(self, fork: Fork, until_ns: int) -> None:
        self._world.go_on_as(fork.seed)
        self._plan_faults(fork.time_ns, until_ns)

    def _came_to(self, before: str, mark: str) -> None:
        scheduler = self._world.scheduler
        if scheduler.now_ns < self._world.plan.calm_ns:
            self._met.append(f"{mark}, behind {before}" if before else mark)
            scheduler.pause_behind = scheduler.events_run

    def _offer_futures(self) -> None:
        """Asks, between two events, whether to go on with another future; its faults are drawn from now on."""
        world, scheduler = self._world, self._world.scheduler
        met, self._met = self._met, []
        for state in met:
            assert self._explore is not None, "nobody else wants to know"
            seed = self._explore(state)
            if seed is not None:
                fork = Fork(scheduler.events_run, scheduler.now_ns, seed)
                for timer in self._pending:
                    # Those of this very moment strike still: the other future's begin behind it.
                    if timer.time_ns > fork.time_ns:
                        timer.cancel()
                world.plan = with_future(world.plan, fork)
                world.journal.mark_reached = lambda before, mark: None
                self._go_on_as(fork, world.plan.end_ns)
                return

    def await_last_entries(self) -> None:
        """Goes on until every node has applied what was committed in the last moment of the run, and all is read."""
        world, scheduler = self._world, self._world.scheduler
        applied_by_ns: int | None = None
        read_by_ns = world.plan.calm_ns + _READ_NS + (_ROUTE_NS if len(world.groups) > 1 else 0)
        while world.journal.finding is None and not self._has_ended_early:
            if applied_by_ns is None and (scheduler.now_ns >= read_by_ns or is_read(world)):
                # From here on: while readers are waited for, offsets are stored that a follower has yet to apply.
                applied_by_ns = scheduler.now_ns + _LAST_ENTRIES_NS
            if applied_by_ns is not None and (scheduler.now_ns >= applied_by_ns or is_applied(world)):
                break
            scheduler.run_until(scheduler.now_ns + _LAST_ENTRIES_NS // 100)

    def check_end(self, judge_history: JudgeHistory | None) -> None:
        """Raises Violation for the first thing that does not hold at the end.

        A run that ended with a loss of data is asked only for what clients were told until then, and one that ended
        early for what has not been looked at.
        """
        world = self._world
        looks = world.data_loss is None and not self._has_ended_early
        if looks:
            check_nodes(world)
            check_read(world)
        check_told(world, judge_history)
        if looks:
            check_actors(world)

    def _flush_traces(self) -> None:
        self._world.traces.flush()
        self._world.scheduler.after(_FLUSH_TRACES_NS, self._flush_traces)

    def _calm(self) -> None:
        self._heal()
        self._world.journal.note("world", "calm: all faults end")
        # What was acknowledged while there were faults is no sign that the group has recovered.
        self._acknowledged_at_calm = self._world.judges.acknowledged

    def _rest(self, until_ns: int) -> None:
        """Clients ask for nothing until then."""
        world = self._world
        world.context.load_stopped = True
        world.journal.note("world", "idle: clients ask for nothing")
        watching = [
            Idleness(world.scheduler, group.monitor, group.model, group.members_at_end())
            for group in world.groups
        ]

        def go_on() -> None:
            for idleness in watching:
                idleness.ends()
            world.context.load_stopped = False
            world.journal.note("world", "clients ask again")

        world.scheduler.at(until_ns, go_on)

    def _stop_load(self) -> None:
        self._world.context.load_stopped = True
        self._heal()  # a node may have found damage on its disk since

    def _heal(self) -> None:
        for stage in self._world.stages:
            heal_everything(stage)

    def _has_recovered(self) -> bool:
        """True if each group is led, and sends are answered again."""
        is_led = all(group.members.leader() is not None for group in self._world.groups)
        return is_led and self._is_answered()

    def _is_answered(self) -> bool:
        """True if something was acknowledged since all faults ended, or nobody sends, as in plans that were shrunk."""
        world = self._world
        sends = any(name in world.plan.actors for name in _SENDERS)
        return not sends or world.judges.acknowledged > self._acknowledged_at_calm

    def _check_recovered(self) -> None:
        world = self._world
        self._heal()
        for group in world.groups[1:]:
            if group.members.leader() is None and not group.judge.acknowledged:
                world.journal.found(Violation("liveness", group.name, "nobody leads it, or ever has"))
                return
        if not self._is_answered():
            limit_s = _RECOVERY_NS // SECOND
            detail = f"no message acknowledged within {limit_s} s after all faults"
            world.journal.found(Violation("liveness", "group", detail))


@contextmanager
def _logs_noted(journal: Journal) -> Iterator[None]:
    """Notes in the journal what brokers and clients log. An error of a handler that a broker logs is a finding."""

    def note_event(_: Any, level: str, event: Any) -> Any:
        error = sys.exc_info()[1]
        if isinstance(error, Violation):
            journal.found(error)
        elif error is not None and event.get("event") == "request failed":
            client = str(event.get("client"))
            journal.found(Violation("a handler fails", client, traceback.format_exc()))
        if event.get("event") != "role":  # noted by the monitor already
            text = " ".join(f"{key}={value}" for key, value in event.items() if key != "event")
            journal.note(journal.acting, f"log {level}: {event.get('event')} {text}".rstrip())
        raise structlog.DropEvent

    client_log = logging.getLogger("trivet.client")
    handler = _ClientLog(journal)
    client_log.addHandler(handler)
    propagated, client_log.propagate = client_log.propagate, False
    previous = structlog.get_config()
    structlog.configure(processors=[note_event])
    try:
        yield
    finally:
        structlog.configure(**previous)
        client_log.removeHandler(handler)
        client_log.propagate = propagated


class _ClientLog(logging.Handler):
    """Notes what clients log."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        self._journal.note("client", record.getMessage())


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Stops the search for cyclic garbage: that of a run is small, and looking for it takes a tenth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _states(world: World) -> list[str]:
    """Describes each node in one line, and the group in one, for a report."""
    lines = []
    for group in world.groups:
        lines += [f"{host.name}: {host.describe_state()}" for host in group.brokers if host.in_service]
        model = group.model
        lines.append(
            f"group{group.number or ''}: voters {' '.join(model.voters)}, "
            f"learners {' '.join(model.learners) or 'none'}, "
            f"committed up to {model.last_index}, {group.judge.acknowledged} messages acknowledged"
        )
    return lines


def _result(world: World, states: list[str]) -> Result:
    journal = world.journal
    return Result(
        plan=world.plan,
        violation=journal.finding,
        simulated_ns=world.scheduler.now_ns,
        trace_digest=world.traces.digest(),
        fault_counts=journal.fault_counts,
        events=world.scheduler.events_run,
        committed=sum(group.model.last_index + 1 for group in world.groups),
        acknowledged=world.judges.acknowledged,
        read=world.judges.read,
        elections=sum(group.monitor.elections for group in world.groups),
        work_counts=journal.work_counts,
        marks=journal.marks,
        transcript=list(journal.transcript),
        states=states,
        traces=world.traces.kept(),
        data_loss=world.data_loss if journal.finding is None else None,
    )

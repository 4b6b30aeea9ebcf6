"""From a failing plan to a small one: what the finding takes, and no more.

A plan is smaller if it ends earlier, has fewer groups, kinds of faults, actors, faults and nodes, and lighter values.
The search goes through these in that order, since each step makes all that come after it cheaper: a run that ends right
behind the finding is several times as fast, a kind that is dropped takes dozens of faults with it, and without most
actors a second costs a quarter. Within a step it is delta debugging (Zeller and Hildebrandt, Simplifying and Isolating
Failure-Inducing Input): runs of items are left out, ever shorter ones, as long as the plan still fails. It goes through
all steps again until nothing more can be left out, or until the budget is used up.

A smaller plan is another run and not a part of the old one: the group is not where it was when the next fault comes.
The least of it is that random numbers are others, and smaller plans keep their streams apart (`Plan.chance`), so that
what is left out changes no draw of what stays. What is left is luck, and a plan that misses the finding with some draws
may come to it with others: when nothing more can be left out, other numbers are tried, ever more of them. A plan counts
as failing if it breaks the same invariant, whichever way it comes to that.
Two invariants are too wide and are told apart by their reason as well: that nothing fails (where, and by which error)
and that the group recovers (from what). Otherwise a group without producers, which acknowledges nothing, would pass for
one that finds no leader.

The search draws nothing and looks at no clock: with the same budget of runs it comes to the same plan. Each run is
bounded by what the first one took (`RunLimit`); a budget of time comes from outside, as `may_go_on`.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Literal, TypeVar

from simulation.journal import Violation
from simulation.plans.plan import Fault, Limits, Plan, Shape
from simulation.scheduler import MILLISECOND, SECOND, TooManyEventsError
from simulation.workload import ACTORS
from simulation.world.building import World
from simulation.world.end_checks import JudgeHistory
from simulation.world.running import Result, run_world


@dataclass(frozen=True, slots=True)
class RunLimit:
    """The end of a run that has found nothing: a virtual time, or a number of events if that comes before it."""

    time_ns: int
    events: int | None = None


RunPlan = Callable[[Plan, RunLimit], Result | None]
"""Runs a plan up to a limit; None if nothing was found by then."""

Item = TypeVar("Item")

_MARGIN_NS = 2 * SECOND
"""A smaller plan may come to the finding a little later than the plan that it was made from."""
_FIRST_TRIES = 12
"""The draws with which the plan is tried under a light load, at most."""
_FROM_LUCK = ((0, 1), (1, 3), (3, 7))
"""The numbers with which a smaller plan is tried, beside that of the plan that it comes from, as multiples of the tries
that the first one took: to begin with, when nothing more can be left out with those, and when nothing can with these.
"""
_EVENTS_FACTOR = 2
"""A smaller plan may have so many times the events of the run that found something: what stands still less does more,
and what goes round in circles is not worth its time."""
_CALM_EARLIEST_NS = 4 * SECOND
"""The earliest end of faults, as in `draw_swarm_plan`: until then the group gets together."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`runs` of `runs_max` were made, now looking for smaller `what`; `best` is the smallest failing run so far."""

    runs: int
    runs_max: int
    what: str
    best: Result


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest failing run found, and why the search ended: nothing more can be left out, or the budget."""

    result: Result
    runs: int
    end: Literal["minimal", "runs", "stopped"]


def run_until(plan: Plan, limit: RunLimit, judge_history: JudgeHistory | None = None) -> Result | None:
    """Runs a plan up to the limit and returns its result; None if nothing was found by then."""
    world = World(plan, keep_traces=judge_history is not None)
    if limit.time_ns < plan.end_ns:
        world.scheduler.at(limit.time_ns + 1, _nothing_found)
    world.scheduler.events_max = limit.events
    try:
        return run_world(world, judge_history)
    except (_NothingFoundError, TooManyEventsError):
        return None


def cause_of(violation: Violation) -> tuple[str, ...]:
    """Returns what findings that count as the same have in common: the invariant, for two of them the reason."""
    if violation.detail.startswith("Traceback"):
        places = re.findall(r'^ *File ".*", line \d+, in (.*)$', violation.detail, re.MULTILINE)
        error = violation.detail.rstrip().rpartition("\n")[2].partition(":")[0]
        return violation.invariant, *places[-1:], error
    if violation.invariant == "liveness":
        return violation.invariant, re.sub(r"\d+", "0", violation.detail)
    return (violation.invariant,)


def shrink(
    failed: Result,
    *,
    runs_max: int = 200,
    may_go_on: Callable[[], bool] = lambda: True,
    run: RunPlan = run_until,
    progress: Callable[[Progress], object] = lambda progress: None,
) -> Shrunk:
    """The smallest plan that still fails, found with at most `runs_max` runs of `run`.

    `may_go_on` is asked before each run; once it says no, what was found so far is the result. `progress` is told after
    each run, so that whoever listens has the best plan in hand whatever happens.
    """
    assert failed.violation is not None, "only a failure can be shrunk"
    search = _Search(failed, runs_max, may_go_on, run, progress)
    return Shrunk(search.best, search.runs, search.end)


class _NothingFoundError(BaseException):
    """Ends a run from within; no Exception, which the world would take for a mistake of its own."""


def _nothing_found() -> None:
    raise _NothingFoundError


class _BudgetUsedError(Exception):
    def __init__(self, end: Literal["runs", "stopped"]) -> None:
        super().__init__(end)
        self.end: Literal["runs", "stopped"] = end


class _Search:
    """The search for a smaller plan. `best` is a run that was made, never one that is only believed to fail."""

    def __init__(
        self,
        failed: Result,
        runs_max: int,
        may_go_on: Callable[[], bool],
        run: RunPlan,
        progress: Callable[[Progress], object],
    ) -> None:
        assert failed.violation is not None
        self.best = failed
        self.runs = 0
        self.end: Literal["minimal", "runs", "stopped"] = "minimal"
        self._cause = cause_of(failed.violation)
        self._events_max = _EVENTS_FACTOR * failed.events or None
        self._runs_max = runs_max
        self._may_go_on = may_go_on
        self._run = run
        self._progress = progress
        self._what = "length"
        self._chances: Iterable[int] = ()
        self._tried: set[Plan] = {failed.plan}
        try:
            self._search()
        except _BudgetUsedError as used:
            self.end = used.end

    def _search(self) -> None:
        self._cut()
        luck = self._lighten_load()
        before = None
        while self.best.plan != before:
            before = self.best.plan
            for first, end in _FROM_LUCK:
                self._chances = range(first * luck, end * luck)
                self._leave_out_what_can_be()
            # They make nothing cheaper: not before the rest is out of the way.
            self._go_through((("values", self._lighten), ("durations", self._shorten_faults)))

    def _leave_out_what_can_be(self) -> None:
        before = None
        while self.best.plan != before:
            before = self.best.plan
            # The length again behind each large step: the smaller plan may come to the finding earlier.
            self._go_through(
                (
                    ("length", self._cut),
                    ("groups", self._drop_group),
                    ("futures", self._drop_forks),
                    ("kinds of faults", self._drop_kinds),
                    ("length", self._cut),
                    ("actors", self._drop_actors),
                    ("faults", self._drop_faults),
                    ("length", self._cut),
                    ("idle stretch", self._drop_idle_stretch),
                    ("nodes", self._drop_nodes),
                )
            )

    def _go_through(self, steps: Iterable[tuple[str, Callable[[], object]]]) -> None:
        for self._what, step in steps:
            step()

    def _fails(self, plan: Plan) -> bool:
        """Runs the plan, with other draws if need be; true if it comes to the same finding."""
        chance = self.best.plan.chance
        chances = self._chances if chance is None else (chance, *self._chances)
        return any(self._fails_as_it_is(replace(plan, chance=one)) for one in dict.fromkeys(chances))

    def _fails_as_it_is(self, plan: Plan) -> bool:
        """Runs the plan; true if it comes to the same finding, and then its run is the best one."""
        # A run is a function of its plan: what was tried has the same outcome again.
        if plan in self._tried:
            return plan == self.best.plan
        if self.runs >= self._runs_max:
            raise _BudgetUsedError("runs")
        if not self._may_go_on():
            raise _BudgetUsedError("stopped")
        self._tried.add(plan)
        self.runs += 1
        result = self._run(plan, RunLimit(self._limit_ns(plan), self._events_max))
        # The same cause, not just any: another finding would be shrunk in its place.
        fails = (
            result is not None and result.violation is not None and cause_of(result.violation) == self._cause
        )
        if fails:
            assert result is not None
            self.best = result
        self._progress(Progress(self.runs, self._runs_max, self._what, self.best))
        return fails

    def _limit_ns(self, plan: Plan) -> int:
        """Returns up to when a plan runs: a finding of before the calm must come before it again."""
        best = self.best
        return plan.calm_ns if best.simulated_ns < best.plan.calm_ns else plan.end_ns

    # ---- steps ---------------------------------------------------------------------------------------

    def _lighten_load(self) -> int:
        """Tries the plan with the actors that every run has, and with one of the others beside them, in turn.

        What follows costs a quarter then. Returns how many draws it took: a finding that few draws come to would be
        missed by every smaller plan that is tried once.
        """
        self._what = "load"
        plan = self.best.plan
        others = [name for name in plan.actors if ACTORS[name].share < 1]
        for number in range(_FIRST_TRIES):
            other = others[number % len(others)] if others else ""
            for kept in ("", other):
                actors = tuple(name for name in plan.actors if name == kept or name not in others)
                if actors and self._fails_as_it_is(replace(plan, actors=actors, chance=number)):
                    return 1 + (number // len(others) if kept else number)
        return 1

    def _cut(self) -> None:
        """Lets the faults end right behind the finding; for one of the calm, the calm begins right behind them."""
        plan, found_ns = self.best.plan, self.best.simulated_ns
        if found_ns < plan.calm_ns:
            faults = tuple(fault for fault in plan.faults if fault.time_ns <= found_ns)
            calm_ns = found_ns + _MARGIN_NS
        else:
            faults = plan.faults
            calm_ns = max((fault.time_ns + fault.duration_ns for fault in faults), default=0)
        # Whole seconds, and no calm before the group has come together: such a plan is one that could be drawn.
        calm_ns = max(_CALM_EARLIEST_NS, -(-calm_ns // SECOND) * SECOND)
        earlier_ns = max(0, plan.calm_ns - calm_ns)
        if not earlier_ns and faults == plan.faults:
            return
        calm_ns = plan.calm_ns - earlier_ns
        faults = tuple(
            replace(fault, duration_ns=min(fault.duration_ns, calm_ns - fault.time_ns)) for fault in faults
        )
        self._fails_as_it_is(replace(plan, calm_ns=calm_ns, end_ns=plan.end_ns - earlier_ns, faults=faults))

    def _drop_kinds(self) -> None:
        """Leaves out all kinds, or half of them, again and again; then all but one, the latest first; then ever fewer.

        One kind alone often does; and as each smaller plan is another run, which may miss what depends on luck, few
        large steps come further than many small ones.
        """

        def fails(kinds: tuple[str, ...]) -> bool:
            kept = tuple(fault for fault in self.best.plan.faults if fault.kind in kinds)
            return self._fails(replace(self.best.plan, faults=kept))

        kinds = tuple(dict.fromkeys(fault.kind for fault in reversed(self.best.plan.faults)))
        # Without any fault first: load alone is enough for some mistakes, and nothing is smaller.
        if fails(()):
            return
        while len(kinds) > 2:
            middle = len(kinds) // 2
            half = next((half for half in (kinds[:middle], kinds[middle:]) if fails(half)), None)
            if half is None:
                break
            kinds = half
        if not any(fails((kind,)) for kind in kinds):
            _leave_out(kinds[::-1], fails)

    def _drop_faults(self) -> None:
        _leave_out(self.best.plan.faults, lambda faults: self._fails(replace(self.best.plan, faults=faults)))

    def _drop_actors(self) -> None:
        def fails(actors: tuple[str, ...]) -> bool:
            return bool(actors) and self._fails(replace(self.best.plan, actors=actors))

        _leave_out(self.best.plan.actors, fails)

    def _drop_forks(self) -> None:
        if self.best.plan.forks:
            self._fails(replace(self.best.plan, forks=()))

    def _drop_group(self) -> None:
        if self.best.plan.groups > 1:
            faults = tuple(fault for fault in self.best.plan.faults if fault.group == 0)
            self._fails(replace(self.best.plan, groups=1, faults=faults))

    def _drop_idle_stretch(self) -> None:
        plan = self.best.plan
        if plan.idle_ns:
            self._fails(replace(plan, idle_ns=0, end_ns=max(plan.calm_ns, plan.end_ns - plan.idle_ns)))

    def _drop_nodes(self) -> None:
        if self.best.plan.nodes > 3:
            # Operators may not be bound to keep more voters than there are left.
            shape = self.best.plan.shape
            shape = replace(shape, fewest_voters=min(shape.fewest_voters, 3))
            self._fails(replace(self.best.plan, nodes=3, shape=shape))

    def _lighten(self) -> None:
        """Tries one producer, one queue, and the limits and members that plans have which are not dense."""
        if self.best.plan.producers > 1:
            self._fails_as_it_is(replace(self.best.plan, producers=1))
        if self.best.plan.queues > 1:
            self._fails_as_it_is(replace(self.best.plan, queues=1))
        if self.best.plan.shape != Shape():
            self._fails_as_it_is(replace(self.best.plan, shape=Shape()))
        # All limits at once, and one by one only where that no longer fails: most findings need none of them.
        usual = Limits()
        if self.best.plan.limits != usual and not self._fails_as_it_is(replace(self.best.plan, limits=usual)):
            for limit in fields(Limits):
                limits = replace(self.best.plan.limits, **{limit.name: getattr(usual, limit.name)})
                if limits != self.best.plan.limits:
                    self._fails_as_it_is(replace(self.best.plan, limits=limits))

    def _shorten_faults(self) -> None:
        for number in range(len(self.best.plan.faults)):
            while (fault := self.best.plan.faults[number]).duration_ns >= 2 * MILLISECOND:
                shorter_ns = max(MILLISECOND, fault.duration_ns // 4 // MILLISECOND * MILLISECOND)
                if not self._fails_as_it_is(self._with_fault(number, replace(fault, duration_ns=shorter_ns))):
                    break

    def _with_fault(self, number: int, fault: Fault) -> Plan:
        faults = self.best.plan.faults
        return replace(self.best.plan, faults=(*faults[:number], fault, *faults[number + 1 :]))


def _leave_out(items: tuple[Item, ...], still_fails: Callable[[tuple[Item, ...]], bool]) -> None:
    """Asks about ever shorter runs of items that are left out; what still fails stays out. All of them come first.

    Where something could be left out, longer runs are tried again: they may be possible now.
    """
    size = len(items)
    while size:
        before = len(items)
        begin = 0
        while begin < len(items):
            fewer = items[:begin] + items[begin + size :]
            if still_fails(fewer):
                items = fewer
            else:
                begin += size
        size = min(len(items), 2 * size) if len(items) < before else size // 2

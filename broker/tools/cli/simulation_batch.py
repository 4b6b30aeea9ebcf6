"""``trivet simulate --seeds A-B``: many runs, spread over processes.

The processes that run seeds leave Ctrl-C to this one, which then lets the seeds under way end, and tells of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from broker.tools.cli.errors import INTERRUPTED
from broker.tools.cli.findings import ShrinkBudget, keep_plan, replay_command, shrink_finding
from broker.tools.cli.futures import Futures
from broker.tools.cli.simulation_run import judge_history, print_counts, run_and_time

if TYPE_CHECKING:
    from simulation.world.running import Result

_RERUN_EVERY = 20
"""One seed in this many, beginning with the first, is run again in a process with another hash seed."""
_ALL_MARKS_FROM = 500
"""A batch of at least this many seeds fails if it never reached one of the states of simulation/judges/marks.py."""
_SHRUNK_OF_A_BATCH = 3
"""At most this many findings are shrunk: code that is broken throughout breaks in all of its seeds."""
_AHEAD_OF_EACH_JOB = 8
"""Seeds that wait for a process: enough while one that takes long is waited for, and no list of millions."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The part of a run's result that a batch keeps."""

    seed: int
    line: str
    finding: str
    digest: str
    simulated_s: float
    cpu_s: float
    lost_data: bool
    """True if power failures took data that async flush may lose, or a majority's votes; the run ended there."""
    fault_counts: dict[str, int]
    work_counts: dict[str, int]
    marks: dict[str, int]
    states: tuple[str, ...] = ()
    """States that the batch had not come to before, as far as was known when the run began."""
    futures: tuple[_Outcome, ...] = ()
    """Other futures of the run, each from one of these."""


@dataclass(slots=True)
class Batch:
    """The seeds to run, how to run them, and what came of those that have ended."""

    seeds: range
    seconds: int
    nodes: int | None
    """The number of brokers; None: as many as each seed draws."""
    jobs: int
    directory: Path
    """Plans of findings go there."""
    outcomes: list[_Outcome] = field(default_factory=list)
    futures_max: int = 0
    """Other futures of each run, at most."""
    wants_all_marks: bool = False
    """Whether even a small batch fails if it never reached one of the states of simulation/judges/marks.py."""
    states: set[str] = field(default_factory=set)
    """The states that the runs have come to, each behind the one before it."""
    reruns: int = 0
    differences: int = 0
    """Reruns that came to another trace: the simulator was not deterministic."""

    def run(self, budget: ShrinkBudget | None) -> int:
        """Run all seeds, tell of them, and shrink the first findings; returns the command's exit code."""
        print(f"seeds {self.seeds[0]}-{self.seeds[-1]}", flush=True)
        begin = time.monotonic()
        is_whole = self._run_seeds()
        self._print_totals(time.monotonic() - begin)
        if not is_whole:
            print(f"interrupted after {len(self.outcomes)} of {len(self.seeds)} seeds")
            return INTERRUPTED
        found = [outcome.seed for outcome in self.outcomes if outcome.finding]
        in_futures = any(outcome.finding for outcome in self._futures())
        if budget is not None:
            for seed in found[:_SHRUNK_OF_A_BATCH]:
                print(f"\nseed {seed}")
                self._shrink(seed, budget)
        lacks_marks = self._must_reach_all() and bool(self._never_reached())
        return 1 if found or in_futures or self.differences or lacks_marks else 0

    def _futures(self) -> list[_Outcome]:
        return [future for outcome in self.outcomes for future in outcome.futures]

    def _must_reach_all(self) -> bool:
        return self.wants_all_marks or len(self.outcomes) >= _ALL_MARKS_FROM

    def _never_reached(self) -> list[str]:
        """The states of the protocol that no run of the batch, and none of their futures, came to."""
        from simulation.judges.marks import MARKS

        reached = {mark for outcome in (*self.outcomes, *self._futures()) for mark in outcome.marks}
        return [mark for mark in MARKS if mark not in reached]

    def _run_seeds(self) -> bool:
        """Run seed after seed in the pool; returns False if Ctrl-C ended it early."""
        processes = min(self.jobs, len(self.seeds))
        with ProcessPoolExecutor(processes, initializer=_leave_interrupts_to_the_parent) as pool:
            coming = iter(self.seeds)
            waiting: deque[Future[_Outcome]] = deque()

            def submit(count: int) -> None:
                for seed in islice(coming, count):
                    waiting.append(
                        pool.submit(
                            _run_seed,
                            seed,
                            self.seconds,
                            self.nodes,
                            str(self.directory),
                            self.futures_max,
                            frozenset(self.states),
                        )
                    )

            submit(self.jobs * _AHEAD_OF_EACH_JOB)
            try:
                while waiting:
                    # The oldest first, so that seeds are told of in their order. It stays in `waiting` until it is
                    # there: an interrupt must not lose it.
                    outcome = waiting[0].result()
                    waiting.popleft()
                    self._take(outcome)
                    submit(1)
                    if not outcome.finding and (outcome.seed - self.seeds[0]) % _RERUN_EVERY == 0:
                        self._rerun(outcome)
            except KeyboardInterrupt:
                print("interrupted: the seeds under way are the last", file=sys.stderr, flush=True)
                pool.shutdown(wait=True, cancel_futures=True)
                for future in waiting:
                    if not future.cancelled():
                        self._take(future.result())
                return False
        return True

    def _take(self, outcome: _Outcome) -> None:
        self.outcomes.append(outcome)
        self.states.update(outcome.states)
        for one in (outcome, *outcome.futures):
            if one.finding:
                print(one.finding, flush=True)
        print(f"{len(self.outcomes)} of {len(self.seeds)}: {outcome.line}", file=sys.stderr, flush=True)

    def _rerun(self, outcome: _Outcome) -> None:
        self.reruns += 1
        difference = _difference(outcome, self.seconds, self.nodes)
        if difference:
            self.differences += 1
            print(f"seed {outcome.seed}: {difference}", flush=True)

    def _shrink(self, seed: int, budget: ShrinkBudget) -> None:
        """Make a finding of another process again in this one, and shrink it."""
        from simulation.plans.seeds import plan_of_seed

        result, _ = run_and_time(plan_of_seed(seed, seconds=self.seconds, nodes=self.nodes))
        if result.violation is None:
            print(f"seed {seed}: found in one process and not in another: the simulator is not deterministic")
        else:
            shrink_finding(result, self.directory, budget, judge_history)

    def _print_totals(self, wall_s: float) -> None:
        from simulation.judges.marks import MARKS
        from simulation.plans.plan import CHOREOGRAPHIES, FAULT_KINDS

        outcomes = self.outcomes
        faults, work = Counter[str](dict.fromkeys((*FAULT_KINDS, *CHOREOGRAPHIES), 0)), Counter[str]()
        marks = Counter[str](dict.fromkeys(MARKS, 0))
        for outcome in (*outcomes, *self._futures()):
            faults.update(outcome.fault_counts)
            work.update(outcome.work_counts)
            marks.update(outcome.marks)
        print("faults that took effect")
        print_counts(faults)
        print("what actors did")
        print_counts(work)
        print("states of the protocol that were reached")
        print_counts(marks)
        if missing := self._never_reached():
            print(f"never reached, and so not checked: {', '.join(missing)}")
        if futures := self._futures():
            print(
                f"{len(self.states)} states, one behind another; {len(futures)} other futures from them, "
                f"{sum(bool(future.finding) for future in futures)} findings, "
                f"{sum(future.cpu_s for future in futures):.0f} CPU s"
            )
        if losses := sum(outcome.lost_data for outcome in outcomes):
            print(
                f"{losses} of {len(outcomes)} seeds ended where power failures took data, as async flush may"
            )
        findings = sum(bool(outcome.finding) for outcome in outcomes)
        simulated_s = sum(outcome.simulated_s for outcome in outcomes)
        cpu_s = sum(outcome.cpu_s for outcome in outcomes)
        print(
            f"{len(outcomes)} seeds, {findings} findings; {self.reruns} run again in another process, "
            f"{self.differences} of them with another trace; {simulated_s:.0f} s simulated in {wall_s:.0f} s, "
            f"{simulated_s / max(cpu_s, 1e-9):.0f} per second of one core"
        )


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


_seen: set[str] = set()
"""In a process of the pool: the states that the batch has come to, as far as this process knows."""


def _run_seed(
    seed: int,
    seconds: int,
    nodes: int | None,
    directory: str,
    futures_max: int = 0,
    states: frozenset[str] = frozenset(),
) -> _Outcome:
    """Run one seed in a process of the pool, with its futures, and keep the plans of findings in ``directory``.

    ``states`` are those that the batch has come to.
    """
    from simulation.plans.seeds import plan_of_seed

    def outcome_of(result: Result, cpu_s: float) -> _Outcome:
        return _outcome(result, cpu_s, Path(directory))

    _seen.update(states)
    futures = Futures(_seen, futures_max, outcome_of) if futures_max else None
    result, cpu_s = run_and_time(plan_of_seed(seed, seconds=seconds, nodes=nodes), futures=futures)
    outcome = outcome_of(result, cpu_s)
    if futures is None:
        return outcome
    return replace(outcome, states=tuple(futures.new_states), futures=tuple(futures.outcomes))


def _outcome(result: Result, cpu_s: float, directory: Path) -> _Outcome:
    from simulation.findings.report import describe_finding, summary_line

    finding = ""
    if result.violation is not None:
        mark = "".join(f"-future-{fork.event}" for fork in result.plan.forks)
        finding = describe_finding(result, replay_command(keep_plan(result.plan, directory, mark)))
    return _Outcome(
        result.plan.seed,
        summary_line(result, cpu_s),
        finding,
        result.trace_digest,
        result.simulated_ns / 1e9,
        cpu_s,
        result.data_loss is not None,
        result.fault_counts,
        result.work_counts,
        result.marks,
    )


def _difference(outcome: _Outcome, seconds: int, nodes: int | None) -> str:
    """Run a seed again in a fresh process with another hash seed; returns "" if it comes to the same trace."""
    import simulation

    assert simulation.__file__ is not None
    # This code and no other: the working directory may hold another checkout.
    paths = [
        str(Path(simulation.__file__).parents[1 + simulation.__name__.count(".")]),
        *os.environ.get("PYTHONPATH", "").split(os.pathsep),
    ]
    command = [sys.executable, "-P", "-m", simulation.__name__]
    command += [str(outcome.seed), str(seconds), str(nodes or 0)]
    hash_seed = outcome.seed % 1000 + 1
    if os.environ.get("PYTHONHASHSEED") == str(hash_seed):
        hash_seed += 1  # the first run had that one
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(hash_seed),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"another process failed with {done.returncode}: {done.stderr.strip().rpartition(chr(10))[2]}"
    return "" if done.stdout.split("\n", 1)[0] == outcome.digest else "another process came to another trace"

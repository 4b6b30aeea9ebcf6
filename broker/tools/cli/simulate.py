"""``trivet simulate``: the deterministic simulator (docs/simulation.md). Batches are in `simulation_batch.py`."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from broker.tools.cli.errors import USAGE, CommandError
from broker.tools.cli.findings import ShrinkBudget, keep_plan, report_finding, shrink_finding
from broker.tools.cli.simulation_batch import Batch
from broker.tools.cli.simulation_progress import told
from broker.tools.cli.simulation_run import judge_history, print_counts, run_and_time

if TYPE_CHECKING:
    from simulation.plans.plan import Plan

_SECONDS_MAX = 86_400
"""The faults of a whole run are drawn before it, and its log is kept in memory."""
_SECONDS, _JOBS = 60, 1
_JOBS_MAX = 1024
_FUTURES_MAX = 1000
_SEED_DIGITS_MAX = 18
"""The most digits of a seed: so the number of seeds in a batch fits into a machine word."""
_FINDINGS = Path("simulation-findings")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OfABatch:
    """The options that only a batch has."""

    jobs: Annotated[int | None, Parameter(help=f"Processes for --seeds; {_JOBS} unless told.")] = None
    futures: Annotated[
        int | None,
        Parameter(
            help="With --seeds: where a run comes to a state that the batch has not seen, run another future, too; so "
            "many of each seed at most."
        ),
    ] = None
    all_marks: Annotated[
        bool,
        Parameter(negative="", help="With --seeds: fail if a state of the protocol was never reached."),
    ] = False

    def check(self, *, is_batch: bool) -> None:
        """Raise CommandError for options that one run cannot have, and for numbers that no machine can bear."""
        if not is_batch and self.jobs is not None:
            raise CommandError(
                f"--jobs {self.jobs}: a batch can be spread over processes (--seeds A-B), one run cannot",
                USAGE,
            )
        if not is_batch and (self.futures is not None or self.all_marks):
            raise CommandError("--futures and --all-marks are about a batch (--seeds A-B)", USAGE)
        if self.futures is not None and not 1 <= self.futures <= _FUTURES_MAX:
            raise CommandError(f"--futures {self.futures}: at least 1, and at most {_FUTURES_MAX}", USAGE)
        if self.jobs is not None and not 1 <= self.jobs <= _JOBS_MAX:
            raise CommandError(f"--jobs {self.jobs}: at least 1, and at most {_JOBS_MAX}", USAGE)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Shrinking:
    """The options that say whether findings are reduced, and what that may take."""

    shrink: Annotated[
        bool | None,
        Parameter(
            help="Whether a finding is reduced to the faults that it needs. By default all but that of --replay."
        ),
    ] = None
    shrink_runs: Annotated[int, Parameter(help="The most runs for shrinking a finding.")] = 200
    shrink_seconds: Annotated[float, Parameter(help="The most CPU seconds for that; 0: no limit.")] = 120.0

    def budget(self, *, by_default: bool) -> ShrinkBudget | None:
        """The bounds on shrinking a finding; None where none is shrunk. Raises CommandError."""
        if self.shrink_runs < 1 or not 0 <= self.shrink_seconds < float("inf"):
            raise CommandError("--shrink-runs must be at least 1, --shrink-seconds at least 0", USAGE)
        wanted = by_default if self.shrink is None else self.shrink
        return ShrinkBudget(self.shrink_runs, self.shrink_seconds) if wanted else None


_ONE_RUN = OfABatch()
_USUAL_SHRINKING = Shrinking()


def simulate(
    *,
    seed: Annotated[int | None, Parameter(help="Run this seed; without any option a random one.")] = None,
    seeds: Annotated[str | None, Parameter(help="Run the seeds A-B.")] = None,
    replay: Annotated[Path | None, Parameter(help="Run the plan in this file.")] = None,
    seconds: Annotated[
        int | None, Parameter(help=f"Virtual seconds of each run; {_SECONDS} unless told.")
    ] = None,
    nodes: Annotated[
        Literal[3, 5] | None,
        Parameter(help="Brokers in the group; unless told, three, of every fifth seed or so five."),
    ] = None,
    of_a_batch: OfABatch = _ONE_RUN,
    out: Annotated[
        Path | None,
        Parameter(
            help="Directory for traces (of one run; a batch keeps none) and the plans of findings. By default plans go "
            "to simulation-findings, and no traces are kept."
        ),
    ] = None,
    shrinking: Shrinking = _USUAL_SHRINKING,
) -> int:
    """Run the broker's code in a world in which everything, faults included, comes from one seed.

    Checks the invariants of docs/simulation-invariants.md as it runs, and afterwards what clients were told, with the
    checker that trivet analyze uses. A run also ends where power failures took from a majority entries that async
    flush may lose: that is told, and is no finding. A finding ends the run; its plan is kept in a file and
    shrunk to a small one, which --replay runs again. Ctrl-C while shrinking keeps the smallest plan so far. Exit
    codes: 0 everything holds, 1 something does not.
    """
    if sum(option is not None for option in (seed, seeds, replay)) > 1:
        raise CommandError("--seed, --seeds and --replay exclude each other", USAGE)
    if replay is not None and (seconds is not None or nodes is not None):
        raise CommandError(
            "--replay runs the plan as it is: --seconds and --nodes are those of its file", USAGE
        )
    of_a_batch.check(is_batch=seeds is not None)
    seconds = _SECONDS if seconds is None else seconds
    if not 30 <= seconds <= _SECONDS_MAX:
        raise CommandError(
            f"--seconds {seconds}: at least 30, of which the last 20 are for the recovery, and at most {_SECONDS_MAX}",
            USAGE,
        )
    budget = shrinking.budget(by_default=replay is None)
    chosen = None if seeds is None else _seed_range(seeds)
    # A replay without --out keeps nothing: its plan is in a file already.
    if out is not None:
        _try_to_write(out, f"--out {out}")
    elif replay is None:
        _try_to_write(_FINDINGS, f"{_FINDINGS} (--out DIR names another place for findings)")
    if chosen is not None:
        batch = Batch(chosen, seconds, nodes, of_a_batch.jobs or _JOBS, out or _FINDINGS)
        batch.futures_max, batch.wants_all_marks = of_a_batch.futures or 0, of_a_batch.all_marks
        return batch.run(budget)
    if replay is not None:
        plan = _read_plan(replay)
        print(f"seed {plan.seed}", flush=True)
    else:
        if seed is None:
            seed = int.from_bytes(os.urandom(4), "big")
        print(f"seed {seed}", flush=True)  # before anything else, so that a crash names it, too
        from simulation.plans.seeds import plan_of_seed

        plan = plan_of_seed(seed, seconds=seconds, nodes=nodes)
    return _run(plan, replay, out, budget)


def _try_to_write(directory: Path, named: str) -> None:
    """Raise CommandError if the directory cannot be written: better before the run than with a finding to keep."""
    is_there = directory.is_dir()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
        if not is_there and directory == _FINDINGS:
            directory.rmdir()  # most runs leave nothing there
    except OSError as error:
        raise CommandError(f"{named}: {error.strerror}", USAGE) from error


def _seed_range(text: str) -> range:
    match = re.fullmatch(r"(\d+)-(\d+)", text)
    if match is None or int(match[1]) > int(match[2]):
        raise CommandError(f"--seeds {text!r}: needs the form A-B with A not above B", USAGE)
    if len(match[2]) > _SEED_DIGITS_MAX:
        raise CommandError(f"--seeds {text!r}: numbers of at most {_SEED_DIGITS_MAX} digits", USAGE)
    return range(int(match[1]), int(match[2]) + 1)


def _read_plan(path: Path) -> Plan:
    import msgspec

    from simulation.plans.plan import decode_plan

    try:
        return decode_plan(path.read_bytes())
    except OSError as error:
        raise CommandError(f"--replay {path}: {error.strerror}", USAGE) from error
    except (msgspec.DecodeError, ValueError) as error:
        raise CommandError(f"--replay {path}: not a plan: {error}", USAGE) from error


def _run(plan: Plan, path: Path | None, out: Path | None, budget: ShrinkBudget | None) -> int:
    """Run the plan once and print what came of it; returns the exit code.

    ``path`` is the plan's file, which stays as it is. Without one, the plan of a finding is kept. ``out`` gets the
    traces. A finding is shrunk within ``budget``, or not at all if that is None.
    """
    from broker.trace import TRACE_SUFFIX
    from simulation.findings.report import summary_line

    result, cpu_s = run_and_time(plan, keep_traces=out is not None, watch=told)
    print(summary_line(result, cpu_s))
    print_counts(result.fault_counts)
    print_counts(result.work_counts)
    if out is not None:
        for name, data in result.traces.items():
            (out / f"{name}{TRACE_SUFFIX}").write_bytes(data)
    if result.violation is None:
        return 0
    if path is None:
        path = keep_plan(result.plan, out or _FINDINGS)
        if budget is not None:
            print(f"found: {path}")
    if budget is None:
        report_finding(result, path, shrunk=False)
    else:
        shrink_finding(result, out or _FINDINGS, budget, judge_history)
    return 1

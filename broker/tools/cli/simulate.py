"""``trivet simulate``: the deterministic simulator (docs/simulation.md)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from broker.tools.cli.errors import INTERRUPTED, USAGE, CommandError
from broker.tools.cli.findings import (
    ShrinkBudget,
    keep_plan,
    replay_command,
    report_finding,
    run_once,
    shrink_finding,
)

if TYPE_CHECKING:
    from simulation.plans.plan import Plan
    from simulation.world.running import Result

_RERUN_EVERY = 20
"""Of a batch, the first and every so manieth seed is run again in a process with another hash seed."""
_SHRUNK_OF_A_BATCH = 3
"""So many findings of a batch are shrunk: code that is broken throughout breaks in all of its seeds."""
_SECONDS_MAX = 86_400
"""The faults of a whole run are drawn before it, and its log is kept in memory."""
_SECONDS, _NODES, _JOBS = 60, 3, 1
_JOBS_MAX = 1024
_SEED_DIGITS_MAX = 18
"""So that a batch can be counted in a machine word."""
_AHEAD_OF_EACH_JOB = 8
"""Seeds of a batch that wait for a process: enough while one that takes long is waited for, and no list of millions."""
_FINDINGS = Path("simulation-findings")


@dataclass(slots=True)
class _Outcome:
    """What a batch keeps of a run."""

    seed: int
    line: str
    finding: str
    digest: str
    simulated_s: float
    cpu_s: float
    lost_data: bool
    """Whether power failures took what async flush may lose, or the votes of a majority; the run ended there."""
    fault_counts: dict[str, int] = field(default_factory=dict)
    work_counts: dict[str, int] = field(default_factory=dict)


def simulate(
    *,
    seed: Annotated[int | None, Parameter(help="Run this seed; without any option a random one.")] = None,
    seeds: Annotated[str | None, Parameter(help="Run the seeds A-B.")] = None,
    replay: Annotated[Path | None, Parameter(help="Run the plan in this file.")] = None,
    seconds: Annotated[
        int | None, Parameter(help=f"Virtual seconds of each run; {_SECONDS} unless told.")
    ] = None,
    nodes: Annotated[
        Literal[3, 5] | None, Parameter(help=f"Brokers in the group; {_NODES} unless told.")
    ] = None,
    jobs: Annotated[int | None, Parameter(help=f"Processes for --seeds; {_JOBS} unless told.")] = None,
    out: Annotated[
        Path | None,
        Parameter(
            help="Directory for traces (of one run; a batch keeps none) and the plans of findings. By default plans go "
            "to simulation-findings, and no traces are kept."
        ),
    ] = None,
    shrink: Annotated[
        bool | None,
        Parameter(help="Whether a finding is reduced to what it takes. By default all but that of --replay."),
    ] = None,
    shrink_runs: Annotated[int, Parameter(help="At most so many runs for shrinking a finding.")] = 200,
    shrink_seconds: Annotated[float, Parameter(help="At most so long; 0: as long as it takes.")] = 120.0,
) -> int:
    """Run the broker's code in a world in which everything, faults included, comes from one seed.

    Checks the invariants of docs/simulation.md as it runs, and afterwards what clients were told, with the checker that
    trivet analyze uses. What power failures take from a majority, entries as async flush may lose them or votes, ends
    the run too, and is told and no finding. A finding ends the run; its plan is kept in a file and shrunk to a small
    one, which --replay runs again. Ctrl-C while shrinking keeps the smallest plan so far. Exit codes: 0 everything
    holds, 1 something does not.
    """
    if sum(option is not None for option in (seed, seeds, replay)) > 1:
        raise CommandError("--seed, --seeds and --replay exclude each other", USAGE)
    if replay is not None and (seconds is not None or nodes is not None):
        raise CommandError(
            "--replay runs the plan as it is: --seconds and --nodes are those of its file", USAGE
        )
    if seeds is None and jobs is not None:
        raise CommandError(
            f"--jobs {jobs}: a batch can be spread over processes (--seeds A-B), one run cannot", USAGE
        )
    seconds = _SECONDS if seconds is None else seconds
    jobs = _JOBS if jobs is None else jobs
    if not 30 <= seconds <= _SECONDS_MAX:
        raise CommandError(
            f"--seconds {seconds}: at least 30, of which the last 20 are for the recovery, and at most {_SECONDS_MAX}",
            USAGE,
        )
    if not 1 <= jobs <= _JOBS_MAX:
        raise CommandError(f"--jobs {jobs}: at least 1, and at most {_JOBS_MAX}", USAGE)
    if shrink_runs < 1 or not 0 <= shrink_seconds < float("inf"):
        raise CommandError("--shrink-runs must be at least 1, --shrink-seconds at least 0", USAGE)
    if seeds is not None:
        _seed_range(seeds)
    if out is not None:
        _try_to_write(out, f"--out {out}")
    elif replay is None:
        _try_to_write(_FINDINGS, f"{_FINDINGS} (--out DIR names another place for findings)")
    if shrink is None:
        shrink = replay is None
    budget = ShrinkBudget(shrink_runs, shrink_seconds) if shrink else None
    if seeds is not None:
        return _batch(_seed_range(seeds), seconds, nodes or _NODES, jobs, out or _FINDINGS, budget)
    if replay is not None:
        return _replay(replay, out, budget)
    if seed is None:
        seed = int.from_bytes(os.urandom(4), "big")
    return _single(seed, seconds, nodes or _NODES, out, budget)


def _try_to_write(directory: Path, named: str) -> None:
    """A place that cannot be written is told before the run, and not when there is something to keep."""
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


def _single(seed: int, seconds: int, nodes: int, out: Path | None, budget: ShrinkBudget | None) -> int:
    print(f"seed {seed}", flush=True)
    from simulation.plans.draw import draw_plan

    result = _run_and_tell(draw_plan(seed, seconds=seconds, nodes=nodes), out)
    if result.violation is None:
        return 0
    path = keep_plan(result.plan, out or _FINDINGS)
    if budget is None:
        report_finding(result, path, shrunk=False)
    else:
        print(f"found: {path}")
        shrink_finding(result, out or _FINDINGS, budget, _judge_history)
    return 1


def _replay(path: Path, out: Path | None, budget: ShrinkBudget | None) -> int:
    """Exactly that plan, once; its file stays as it is."""
    import msgspec

    from simulation.plans.plan import decode_plan

    try:
        plan = decode_plan(path.read_bytes())
    except OSError as error:
        raise CommandError(f"--replay {path}: {error.strerror}", USAGE) from error
    except (msgspec.DecodeError, ValueError) as error:
        raise CommandError(f"--replay {path}: not a plan: {error}", USAGE) from error
    print(f"seed {plan.seed}", flush=True)
    result = _run_and_tell(plan, out)
    if result.violation is None:
        return 0
    if budget is None:
        report_finding(result, path, shrunk=False)
    else:
        shrink_finding(result, out or _FINDINGS, budget, _judge_history)
    return 1


def _run_and_tell(plan: Plan, out: Path | None) -> Result:
    """Runs the plan, prints what it came to in short, and writes its traces to `out`."""
    from simulation.findings.report import summary_line

    result, cpu_s = _run_and_time(plan, keep_traces=out is not None)
    print(summary_line(result, cpu_s))
    _print_counts(result.fault_counts)
    _print_counts(result.work_counts)
    if out is not None:
        _write_traces(out, result.traces)
    return result


def _run_and_time(plan: Plan, *, keep_traces: bool = False) -> tuple[Result, float]:
    """The result of a run, and its CPU seconds: without those that go into loading what the first run needs."""
    import simulation.world.running  # noqa: F401

    _judge_history({})
    begin = time.process_time()
    result = _run(plan, keep_traces=keep_traces)
    return result, time.process_time() - begin


def _run(plan: Plan, *, keep_traces: bool = False) -> Result:
    return run_once(plan, keep_traces=keep_traces, judge=_judge_history)


def _judge_history(traces: Mapping[str, bytes]) -> str:
    """The word of the checker of client histories, which the simulator itself may not import."""
    try:
        from spark_analysis.checking.plain import check_traces
    except ImportError:
        return ""  # the extra "analysis" is not installed; `ClientJudge` has looked at every answer already
    verdict = check_traces(traces)
    return "; ".join(verdict.findings) if verdict.verdict == "violated" else ""


def _write_traces(out: Path, traces: dict[str, bytes]) -> None:
    from broker.trace import TRACE_SUFFIX

    for name, data in traces.items():
        (out / f"{name}{TRACE_SUFFIX}").write_bytes(data)


def _batch(
    seeds: range, seconds: int, nodes: int, jobs: int, directory: Path, budget: ShrinkBudget | None
) -> int:
    print(f"seeds {seeds[0]}-{seeds[-1]}", flush=True)
    begin = time.monotonic()
    outcomes: list[_Outcome] = []
    found: list[int] = []
    reruns = differences = 0
    interrupted = False

    def tell(outcome: _Outcome) -> None:
        outcomes.append(outcome)
        if outcome.finding:
            found.append(outcome.seed)
            print(outcome.finding, flush=True)
        print(f"{len(outcomes)} of {len(seeds)}: {outcome.line}", file=sys.stderr, flush=True)

    with ProcessPoolExecutor(min(jobs, len(seeds)), initializer=_leave_interrupts_to_the_parent) as pool:
        coming = iter(seeds)
        waiting: deque[Future[_Outcome]] = deque()

        def submit(chosen: Iterable[int]) -> None:
            for seed in chosen:
                waiting.append(pool.submit(_run_for_batch, (seed, seconds, nodes, str(directory))))

        submit(islice(coming, jobs * _AHEAD_OF_EACH_JOB))
        try:
            while waiting:
                outcome = waiting[0].result()
                waiting.popleft()
                tell(outcome)
                submit(islice(coming, 1))
                if not outcome.finding and (outcome.seed - seeds[0]) % _RERUN_EVERY == 0:
                    difference = _run_again(outcome, seconds, nodes)
                    reruns += 1
                    if difference:
                        differences += 1
                        print(f"seed {outcome.seed}: {difference}", flush=True)
        except KeyboardInterrupt:
            interrupted = True
            print("interrupted: the seeds under way are the last", file=sys.stderr, flush=True)
            pool.shutdown(wait=True, cancel_futures=True)
            for future in waiting:
                if not future.cancelled():
                    tell(future.result())
    _tell_of_batch(outcomes, len(found), reruns, differences, time.monotonic() - begin)
    if interrupted:
        print(f"interrupted after {len(outcomes)} of {len(seeds)} seeds")
        return INTERRUPTED
    if budget is not None:
        for seed in found[:_SHRUNK_OF_A_BATCH]:
            print(f"\nseed {seed}")
            _shrink_again(seed, seconds, nodes, directory, budget)
    return 1 if found or differences else 0


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _shrink_again(seed: int, seconds: int, nodes: int, directory: Path, budget: ShrinkBudget) -> None:
    """A finding that another process has made is made here again, and shrunk."""
    from simulation.plans.draw import draw_plan

    result = _run(draw_plan(seed, seconds=seconds, nodes=nodes))
    if result.violation is None:
        print(f"seed {seed}: found in one process and not in another: the simulator is not deterministic")
    else:
        shrink_finding(result, directory, budget, _judge_history)


def _tell_of_batch(
    outcomes: list[_Outcome], findings: int, reruns: int, differences: int, wall_s: float
) -> None:
    from simulation.plans.plan import FAULT_KINDS

    faults, work = dict.fromkeys(FAULT_KINDS, 0), dict[str, int]()
    for outcome in outcomes:
        _add(faults, outcome.fault_counts)
        _add(work, outcome.work_counts)
    print("faults that took effect")
    _print_counts(faults)
    print("what actors did")
    _print_counts(work)
    simulated = sum(outcome.simulated_s for outcome in outcomes)
    cpu = sum(outcome.cpu_s for outcome in outcomes)
    losses = sum(outcome.lost_data for outcome in outcomes)
    if losses:
        print(
            f"{losses} of {len(outcomes)} seeds ended where power failures took votes, or data as async flush may"
        )
    print(
        f"{len(outcomes)} seeds, {findings} findings; {reruns} run again in another process, {differences} of them "
        f"with another trace; {simulated:.0f} s simulated in {wall_s:.0f} s, {simulated / max(cpu, 1e-9):.0f} per "
        "second of one core"
    )


def _run_for_batch(arguments: tuple[int, int, int, str]) -> _Outcome:
    from simulation.findings.report import describe_finding, summary_line
    from simulation.plans.draw import draw_plan

    seed, seconds, nodes, directory = arguments
    result, cpu_s = _run_and_time(draw_plan(seed, seconds=seconds, nodes=nodes))
    finding = ""
    if result.violation is not None:
        path = keep_plan(result.plan, Path(directory))
        finding = describe_finding(result, replay_command(path))
    return _Outcome(
        seed,
        summary_line(result, cpu_s),
        finding,
        result.trace_digest,
        result.simulated_ns / 1e9,
        cpu_s,
        result.data_loss is not None,
        result.fault_counts,
        result.work_counts,
    )


def _run_again(outcome: _Outcome, seconds: int, nodes: int) -> str:
    """What a fresh process with another hash seed does differently; "" if it comes to the same trace."""
    import simulation

    assert simulation.__file__ is not None
    # This code and no other: the working directory may hold another checkout.
    paths = [
        str(Path(simulation.__file__).parent.parent),
        *os.environ.get("PYTHONPATH", "").split(os.pathsep),
    ]
    command = [sys.executable, "-P", "-m", "simulation", str(outcome.seed), str(seconds), str(nodes)]
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


def _add(sums: dict[str, int], counts: dict[str, int]) -> None:
    for kind, count in counts.items():
        sums[kind] = sums.get(kind, 0) + count


def _print_counts(counts: dict[str, int]) -> None:
    for kind in sorted(counts):
        print(f"{counts[kind]:>8}  {kind}")

"""``trivet chaos``: load and faults against real processes, and a verdict."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from broker.tools.cli.analysis import require_analysis
from broker.tools.cli.errors import FAILED, INTERRUPTED, USAGE, CommandError
from broker.tools.cli.local_cluster import PROCESSES_MAX
from broker.tools.cli.options import AsJson
from broker.tools.cli.output import print_facts, print_json, print_table
from broker.tools.cli.progress import Progress
from broker.tools.cli.run_directory import UNDECIDED, judge_traces, log_clients_to, prepare_directory
from broker.tools.cli.signals import stop_signals

if TYPE_CHECKING:
    from broker.settings.tables import StorageSettings
    from broker.tools.chaos.run import ChaosRun, Summary


def chaos(
    *,
    minutes: Annotated[
        float, Parameter(help="How long faults go on; recovery and verdict come after it.")
    ] = 1.0,
    dir: Annotated[Path, Parameter(help="Where everything goes; an earlier run there is replaced.")] = Path(
        "chaos-data"
    ),
    seed: Annotated[int | None, Parameter(help="Draws the schedule; a random one by default.")] = None,
    kills: Annotated[
        int,
        Parameter(
            help="Instead of a schedule this many SIGKILLs; measures the time from each to the next acknowledgement."
        ),
    ] = 0,
    nodes: Annotated[Literal[3, 5], Parameter(help="Machines, each with a broker of every group.")] = 3,
    groups: Annotated[
        int, Parameter(help="Groups; faults hit a machine's brokers of all groups at once.")
    ] = 1,
    flush: Annotated[Literal["sync", "async"], Parameter(help="When a message is acknowledged.")] = "async",
    analysis: Annotated[bool, Parameter(help="Whether the traces are judged.")] = True,
    json: AsJson = False,
) -> int:
    """Run a local group, or several, under load and faults, and check that nothing is lost, doubled or read wrongly.

    A name server and brokers behind proxies are killed, paused, restarted, cut off, slowed down, given empty disks and
    replaced, by a schedule that the seed draws, while producers send and consumers read. Then each group must recover
    within a minute, its stores must be byte-identical, and the traces are judged: long ones by Spark.

    Exit codes: 0 everything holds, 1 something does not, 2 wrong usage, 3 nothing was found but the traces were not
    decided, 130 interrupted.
    """
    import random

    import trio

    from broker.tools.chaos.run import ChaosRun
    from broker.tools.chaos.schedule import draw_schedule

    _check(minutes, kills, nodes, groups)
    if analysis:
        require_analysis()
    if seed is None:
        seed = random.SystemRandom().randrange(1 << 32)
    directory = dir.absolute()
    prepare_directory(directory, "chaos")
    print(f"seed {seed}", flush=True, file=sys.stderr if json else sys.stdout)
    log_clients_to(directory / "clients.log")
    seconds = minutes * 60
    display = Progress(10.0)
    run = ChaosRun(
        directory,
        seed,
        () if kills else draw_schedule(seed, seconds),
        seconds,
        kills=kills,
        nodes=nodes,
        groups=groups,
        storage=_small_files(flush),
        tell=display.tell,
    )
    course = f"{kills} kills" if kills else f"faults for {minutes:g} min"
    display.tell(f"{course}; all files go to {directory}; Ctrl-C ends it")
    interrupted = trio.run(_run_with_progress, run, display)
    summary = run.summary
    code = FAILED if summary.finding is not None else 0
    if interrupted:
        code, summary.verdict = INTERRUPTED, "interrupted: nothing was judged"
        summary.warnings = []  # they are about a verdict
    elif analysis:
        display.tell("the traces are judged")
        code = _judge(summary, code, directory, keep_stdout=json)
    if json:
        print_json(summary)
    else:
        _print_summary(summary, code)
    return code


def _check(minutes: float, kills: int, nodes: int, groups: int) -> None:
    from broker.tools.cluster.layout import GROUPS_MAX

    if not 0 < minutes <= 24 * 60:
        raise CommandError(f"--minutes {minutes:g}: more than 0, and at most a day (1440)", USAGE)
    if not 1 <= groups <= GROUPS_MAX:
        raise CommandError(f"--groups {groups}: from 1 to {GROUPS_MAX}", USAGE)
    if groups * nodes > PROCESSES_MAX:
        raise CommandError(
            f"--groups {groups} --nodes {nodes}: at most {PROCESSES_MAX} brokers together", USAGE
        )
    if not 0 <= kills <= 10_000:
        raise CommandError(f"--kills {kills}: from 0 to 10000", USAGE)


def _small_files(flush: Literal["sync", "async"]) -> StorageSettings:
    """Return settings with which a short run has many files of each kind."""
    from broker.settings.tables import StorageSettings

    return StorageSettings(
        flush=flush,
        data_file_bytes=1024 * 1024,
        entry_index_file_bytes=32 * 4096,
        consume_queue_file_bytes=20 * 1024,
        index_file_slots=10_000,
        index_file_entries=40_000,
        max_message_bytes=64 * 1024,
    )


def _judge(summary: Summary, code: int, directory: Path, *, keep_stdout: bool) -> int:
    """Judge the traces, and note the verdict; return the exit code, which was ``code`` before that."""
    histories = [Path(path) for path in summary.traces]
    try:
        judged, summary.verdict, summary.report = judge_traces(directory, histories, keep_stdout=keep_stdout)
    except KeyboardInterrupt:
        summary.verdict = "interrupted: the traces were not judged"
        return INTERRUPTED
    return code or judged


_RESULTS = {
    0: "everything holds",
    FAILED: "SOMETHING DOES NOT HOLD",
    UNDECIDED: "nothing was found, but the traces were not decided",
    INTERRUPTED: "interrupted",
}


async def _run_with_progress(run: ChaosRun, display: Progress) -> bool:
    """Run it to its end or until it is interrupted, which returns True; either way every process is gone then."""
    interrupted = False

    async def interrupt() -> None:
        nonlocal interrupted
        await stopped()
        interrupted = True
        display.tell("interrupted: everything is being stopped")
        nursery.cancel_scope.cancel()

    with stop_signals() as stopped:
        async with display.showing(_state_of(run, display.pause_s)) as nursery:
            nursery.start_soon(interrupt)
            await run.run()
    return interrupted


def _state_of(run: ChaosRun, pause_s: float) -> Callable[[], str]:
    """Return a function that tells of present faults and rates, to be called every ``pause_s`` seconds."""
    acknowledged = 0

    def state() -> str:
        nonlocal acknowledged
        rate = (run.summary.acknowledged - acknowledged) / pause_s
        acknowledged = run.summary.acknowledged
        phase = run.phase if run.phase != "faults" else f"faults: {'; '.join(run.current) or 'none now'}"
        return f"{acknowledged:,} acknowledged ({rate:,.0f}/s), {run.summary.read:,} read; {phase}"

    return state


def _print_summary(summary: Summary, code: int) -> None:
    from broker.tools.chaos.run import kinds_in_order

    print()
    if summary.gaps is None:
        print_table(["fault", "fired"], kinds_in_order(summary.fired))
    messages = f"{summary.acknowledged:,} acknowledged, {summary.unknown:,} of unknown outcome, {summary.read:,} read"
    rows = [("messages", messages), ("questions", f"{summary.questions:,} about ends and offsets")]
    if summary.entries_compared:
        rows.append(
            (
                "stores",
                f"byte-identical: {summary.entries_compared:,} entries, {summary.bytes_compared:,} bytes",
            )
        )
    if summary.gaps is not None:
        rows += summary.gaps.rows()
    rows += [("WARNING", warning) for warning in summary.warnings]
    if summary.finding is not None:
        rows.append(("FOUND", summary.finding))
    course = f"--minutes {summary.fault_seconds / 60:g}"
    if summary.gaps is not None:
        course = f"--kills {sum(summary.gaps.kills.values())}"
    repeat = f"trivet chaos {course} --seed {summary.seed}"
    repeat += f" --groups {summary.groups}" if summary.groups > 1 else ""
    repeat += f" --nodes {summary.nodes} --flush {summary.flush}"
    rows += [("traces", summary.verdict)]
    if summary.report is not None:
        rows.append(("report", summary.report))
    if code:
        rows.append(("look at", f"{summary.directory}: namesrv.log, clients.log, nX/broker.log"))
        if summary.traces:
            rows.append(("again", f"trivet analyze {' '.join(summary.traces)}"))
    rows += [("repeat", repeat), ("time", f"{summary.seconds:.0f} s"), ("result", _RESULTS[code])]
    print_facts(rows)

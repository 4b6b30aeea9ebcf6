"""``trivet demo``: the whole system at work, in half a minute."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from broker.tools.cli.analysis import require_analysis
from broker.tools.cli.errors import USAGE, CommandError
from broker.tools.cli.options import AsJson
from broker.tools.cli.output import print_facts, print_json
from broker.tools.cli.progress import Progress
from broker.tools.cli.run_directory import judge_traces, prepare_directory

if TYPE_CHECKING:
    import trio

    from broker.tools.demo.scenario import Demonstration, Summary


_SPARK_AHEAD_LINES_MAX = 60_000
"""Traces of more may be too long for the Spark that is started ahead, which is one for short histories."""


def demo(
    *,
    input: Annotated[Path | None, Parameter(help="Send every line of this file.")] = None,
    dir: Annotated[Path, Parameter(help="Where everything goes; an earlier demo there is replaced.")] = Path(
        "demo-data"
    ),
    analysis: Annotated[bool, Parameter(help="Whether the traces are judged.")] = True,
    spark: Annotated[
        bool, Parameter(negative="", help="Have Spark judge them, though they are short; needs Java.")
    ] = False,
    console: Annotated[
        bool, Parameter(negative="", help="Serve a page that shows the group, as long as it runs.")
    ] = False,
    console_port: Annotated[int, Parameter(help="Its port; 0 takes a free one.")] = 9880,
    json: AsJson = False,
) -> int:
    """Send text through a group of three whose leader is killed, and check what clients saw.

    Starts a name server and three brokers, sends every line of --input (by default 24,000 lines of the running
    Python's standard library) while three consumers read, kills the leader with SIGKILL, starts it again, compares the
    three stores byte by byte and judges the recorded traces, as `trivet analyze` does: those of a long --input with
    Spark. Exit codes: 0 everything holds, 1 something does not, 3 the traces were not judged although they should have
    been.
    """
    import trio

    from broker.tools.demo.scenario import Demonstration
    from broker.tools.demo.text import library_lines, lines_of

    if input is not None and not input.is_file():
        raise CommandError(f"--input {input}: no such file", USAGE)
    if not 0 <= console_port <= 65535:
        raise CommandError(f"--console-port {console_port}: a port from 0 to 65535", USAGE)
    if analysis:
        require_analysis()
    if console:
        from broker.tools.cli.console import require_console

        require_console()
    lines = library_lines() if input is None else lines_of(input)
    if not lines:
        raise CommandError(f"--input {input}: has no lines", USAGE)
    directory = dir.absolute()
    prepare_directory(directory, "demo")
    begin = time.monotonic()
    progress = Progress(2.0)
    progress.tell(f"{len(lines):,} lines to send; everything goes to {dir}")
    demonstration = Demonstration(directory, lines, progress.tell)
    # Spark starts while the demonstration goes on, so that nobody waits for it afterwards.
    starts_spark = analysis and spark and len(lines) <= _SPARK_AHEAD_LINES_MAX
    trio.run(
        _run_with_progress,
        demonstration,
        len(lines),
        progress,
        starts_spark,
        f"127.0.0.1:{console_port}" if console else "",
    )
    summary = demonstration.summary
    code = 0
    if analysis:
        progress.tell("the traces are judged")
        code, summary.verdict, summary.report = judge_traces(directory, spark=spark, keep_stdout=json)
    summary.seconds = time.monotonic() - begin
    if json:
        print_json(summary)
    else:
        _print_summary(summary)
    return code


async def _run_with_progress(
    demonstration: Demonstration, lines: int, progress: Progress, starts_spark: bool, console_listen: str
) -> None:
    summary = demonstration.summary

    def state() -> str:
        return f"{summary.messages_sent:,} of {lines:,} acknowledged, {summary.messages_read:,} read"

    async with progress.showing(state) as nursery:
        if starts_spark:
            nursery.start_soon(_start_spark, demonstration.failed_over)
        if console_listen:
            nursery.start_soon(_serve_console, demonstration, console_listen, progress)
        await demonstration.run()


async def _serve_console(demonstration: Demonstration, listen: str, progress: Progress) -> None:
    import trio

    from broker.console.options import ConsoleOptions
    from broker.tools.cli.console import start_console

    await demonstration.serving.wait()
    options = ConsoleOptions(name_servers=(demonstration.name_server_address,), listen=listen)
    async with trio.open_nursery() as nursery:
        progress.tell(f"look at {await start_console(nursery, options, trio.sleep_forever)}")


async def _start_spark(may_begin: trio.Event) -> None:
    """Start Spark while the rest is sent, once the failover is measured; `judge_traces` finds it there."""
    import trio

    await may_begin.wait()
    with contextlib.suppress(ImportError):  # which the verdict tells of
        from spark_analysis.session import start_ahead

        await trio.to_thread.run_sync(start_ahead)


def _print_summary(summary: Summary) -> None:
    rows = [
        (
            "messages",
            f"{summary.messages_sent:,} sent, {summary.messages_read:,} read, {summary.read_again:,} read again",
        ),
        (
            "failover",
            f"{summary.killed} killed, {summary.new_leader} led; {summary.failover_ms:,.0f} ms to the next send",
        ),
        ("stores", f"byte-identical: {summary.entries_compared:,} entries, {summary.bytes_compared:,} bytes"),
        ("verdict", summary.verdict),
        ("report", summary.report or "none"),
        ("data", f"{summary.directory} (traces in {summary.traces})"),
        ("time", f"{summary.seconds:.0f} s"),
    ]
    if summary.messages_of_unknown_outcome:
        rows.insert(1, ("unknown", f"{summary.messages_of_unknown_outcome:,} sends of unknown outcome"))
    print()
    print_facts(rows)

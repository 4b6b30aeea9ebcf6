"""``trivet migrate`` (docs/migrating.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from broker.tools.cli.errors import USAGE, CommandError
from broker.tools.cli.options import AsJson

if TYPE_CHECKING:
    from broker.migration.report import Report

_LOOK_EVERY_S: Final = 1.0
"""DLedger notes what is committed every three seconds."""


def migrate(
    *,
    source: Annotated[
        Path, Parameter(name="--from", help="The store of a RocketMQ node: its storePathRootDir.")
    ],
    to: Annotated[
        Path | None,
        Parameter(help="The directory of the backup that it becomes; without one it is only checked."),
    ] = None,
    config: Annotated[
        Path | None,
        Parameter(help="Settings of a node of the group that it becomes, or the broker's broker.conf."),
    ] = None,
    group: Annotated[
        str | None,
        Parameter(help="The group's name, which is the broker's (brokerName); else as in --config."),
    ] = None,
    cluster: Annotated[str | None, Parameter(help="The cluster's name; else as in --config.")] = None,
    node: Annotated[
        str | None, Parameter(help="The DLedger node (dLegerSelfId), where the store has several.")
    ] = None,
    dledger: Annotated[
        Path | None, Parameter(help="storePathDLedgerCommitLog, where that is not below the store.")
    ] = None,
    leave_out: Annotated[
        list[str] | None,
        Parameter(negative="", help="A topic whose messages are not to be taken; repeatable."),
    ] = None,
    while_running: Annotated[
        bool,
        Parameter(
            negative="",
            help="Copy what is committed while the broker runs; run it again when it has stopped.",
        ),
    ] = False,
    follow: Annotated[
        bool,
        Parameter(
            negative="", help="Go on copying until the broker has stopped, and complete the backup then."
        ),
    ] = False,
    json: AsJson = False,
) -> int:
    """Make a backup of the store of a RocketMQ DLedger node, of which `trivet restore` makes Trivet's stores.

    Messages keep their bytes, offsets and ids. Topics, consumer groups, positions, delayed messages and open
    transactions come along. The store is only read, and checked message by message before anything is written. A copy
    that broke off is gone on with.
    """
    import time

    from broker.backups.directory import BackupWriter
    from broker.migration.migrating import Following, copy_entries, survey_source
    from broker.migration.source import Source
    from broker.state.release import THIS_RELEASE
    from broker.tools.cli.progress import Progress
    from log.own_topics import DEFAULT_DELAY_LEVELS_MS

    delay_levels_ms = DEFAULT_DELAY_LEVELS_MS
    if config is not None:
        from broker.settings.reading import load

        settings = load(config)
        group, cluster = group or settings.node.group, cluster or settings.node.cluster
        delay_levels_ms = settings.broker.delay_level_ms
    if follow and to is None:
        raise CommandError("--follow needs --to DIRECTORY", USAGE)
    if to is not None and not group:
        raise CommandError("--to needs --group NAME, the broker's brokerName, or --config FILE", USAGE)
    progress = Progress(10.0)

    def show(what: str, index: int) -> None:
        progress.show(f"{what} up to entry {index:,}")

    copied = 0
    with Source(source, node, dledger=dledger, may_run=while_running or follow) as store:
        surveyed = survey_source(
            store,
            group=group or "",
            cluster=cluster or "DefaultCluster",
            left_out=frozenset(leave_out or ()),
            delay_levels_ms=delay_levels_ms,
            progress=show,
        )
        if to is not None:
            with BackupWriter(to) as writer:
                copied = copy_entries(surveyed, writer, THIS_RELEASE, show)
                if follow and store.is_running:
                    following = Following(surveyed, writer, THIS_RELEASE)
                    while not store.has_stopped():
                        copied += following.step()
                        progress.show(
                            f"follows the broker, up to entry {writer.last_index:,}; ends when it stops"
                        )
                        time.sleep(_LOOK_EVERY_S)
                    copied += following.finish()
        report = surveyed.report(to, copied=copied, is_complete=to is not None and not store.is_running)
    progress.clear()
    _tell(report, json=json)
    return 0


def _tell(report: Report, *, json: bool) -> None:
    from broker.tools.cli.output import print_facts, print_json, print_table

    if json:
        print_json(report)
        return
    print_table(
        ("topic", "queues", "messages", "ever", "groups"),
        [
            (topic.topic, topic.queues, topic.messages, topic.next_offset, topic.consumer_groups)
            for topic in report.topics
        ],
    )
    entries = (
        f"{report.first_index:,} to {report.last_index:,} ({report.committed_index:,} by its checkpoint)"
    )
    waiting = (
        f"{report.delayed_waiting:,} delayed, {report.timed_waiting:,} timed, {report.half_open:,} half messages "
        "without a decision"
    )
    rows = [
        ("source", f"{report.source}, node {report.node}"),
        ("entries", f"{entries}, terms to {report.last_term}"),
        ("messages", f"{report.messages:,} in queues, {report.records_without_queue:,} records in none"),
        ("groups", f"{report.consumer_groups:,} with {report.positions:,} positions"),
        ("waiting", waiting),
        ("checked", f"every message; {report.units_compared:,} units of the broker's own queues agree"),
        ("left", f"{report.brokers_own:,} topics and groups that each broker makes by itself"),
        ("setting", f"storage.data_file_bytes = {report.data_file_bytes}"),
        *(("not taken", sentence) for sentence in report.not_taken),
        ("result", _result(report)),
    ]
    print_facts(rows)


def _result(report: Report) -> str:
    if not report.directory:
        return "checked only: nothing was written (--to DIRECTORY)"
    if not report.is_complete:
        return (
            f"{report.entries_copied:,} entries copied into {report.directory}; not complete: stop the broker and run "
            "it again"
        )
    return (
        f"{report.entries_copied:,} entries copied; {report.directory} is complete: "
        f"trivet restore {report.directory} --config FILE for each node"
    )

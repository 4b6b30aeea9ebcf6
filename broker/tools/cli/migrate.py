"""``trivet migrate`` (docs/migrating.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from broker.tools.cli.errors import USAGE, CommandError
from broker.tools.cli.options import DEFAULT_CONNECTIONS, AsJson, Connections, check_addresses
from broker.tools.cli.output import print_facts, print_json, print_table

if TYPE_CHECKING:
    from broker.client.admin import AdminClient
    from broker.migration.report import Report
    from broker.migration.source import Source
    from broker.settings.tables import Settings

_LOOK_EVERY_S: Final = 1.0
"""DLedger notes what is committed every three seconds."""
_REST: Final = 3
"""Looks at a broker that runs are this many times as far apart as one of them takes."""


def migrate(
    *,
    source: Annotated[
        str,
        Parameter(
            name="--from",
            help="The store of a RocketMQ DLedger node, its storePathRootDir; or name servers of a cluster that runs, "
            'HOST:PORT, several joined by ";".',
        ),
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
            negative="",
            help="Go on copying until the broker has stopped, or takes no messages any more, and complete the backup "
            "then.",
        ),
    ] = False,
    connections: Connections = DEFAULT_CONNECTIONS,
    json: AsJson = False,
) -> int:
    """Make a backup of a RocketMQ broker, of which `trivet restore` makes Trivet's stores.

    Messages keep their offsets; those of a store keep their bytes and all ids, too. Topics, consumer groups, consumer
    offsets, delayed messages and open transactions come along. The source is only read, and every message of it is
    checked. Run the same command again to go on with a copy that broke off.
    """
    from broker.migration.source import Source

    if _is_cluster(source) and (node or dledger or cluster or while_running):
        raise CommandError(
            "--node, --dledger, --cluster and --while-running are about a store, and not about a cluster that runs",
            USAGE,
        )
    if follow and to is None:
        raise CommandError("--follow needs --to DIRECTORY", USAGE)
    new_group = _NewGroup.of(to, config, group, cluster, frozenset(leave_out or ()))
    if _is_cluster(source):
        report = _of_cluster(check_addresses(source, "--from"), connections, new_group, follow=follow)
    else:
        if to is not None and not new_group.group:
            raise CommandError("--to needs --group NAME, the broker's brokerName, or --config FILE", USAGE)
        with Source(Path(source), node, dledger=dledger, may_run=while_running or follow) as store:
            report = _of_store(store, new_group, follow=follow)
    _tell(report, json=json)
    return 0


def _is_cluster(source: str) -> bool:
    """Tells addresses from a directory: they end with a port, and no such directory is there."""
    return source.rpartition(":")[2].isdigit() and ":" in source and not Path(source).exists()


@dataclass(frozen=True)
class _NewGroup:
    """The group that a broker becomes."""

    to: Path | None
    """The directory of its backup; None where the source is only checked."""
    settings: Settings
    group: str
    """Its name; "" if none was given."""
    cluster: str
    left_out: frozenset[str]
    """Topics whose messages are not taken."""

    @classmethod
    def of(
        cls,
        to: Path | None,
        config: Path | None,
        group: str | None,
        cluster: str | None,
        left_out: frozenset[str],
    ) -> _NewGroup:
        """The group that the options name, and where they are silent the settings in ``config``. Raises as `load`."""
        from broker.settings.loading import load
        from broker.settings.tables import Settings

        if config is None:
            return cls(to, Settings(), group or "", cluster or "DefaultCluster", left_out)
        settings = load(config)
        return cls(to, settings, group or settings.node.group, cluster or settings.node.cluster, left_out)


def _of_cluster(names: list[str], connections: Connections, new_group: _NewGroup, *, follow: bool) -> Report:
    import trio

    from broker.backups.directory import BackupWriter
    from broker.client.admin import AdminClient
    from broker.client.errors import ClientError
    from broker.migration.running_broker import RunningBroker
    from broker.migration.taking_over import TakingOver, Wanted, look_at, preview
    from broker.state.release import THIS_RELEASE
    from broker.tools.cli.progress import Progress

    progress = Progress(10.0)
    to, settings = new_group.to, new_group.settings
    wanted = Wanted(settings.storage.data_file_bytes, settings.broker.delay_level_ms, new_group.left_out)

    def show(what: str, index: int) -> None:
        progress.show(f"{what} {index + 1:,} messages")

    async def take_over() -> Report:
        async with AdminClient(names, **connections.identity()) as admin:
            broker = RunningBroker(admin, new_group.group or await _only_group(admin))
            if to is None:
                return preview(broker, await look_at(broker, wanted), wanted)
            with BackupWriter(to) as writer:
                copy = TakingOver(broker, writer, wanted, THIS_RELEASE, show)
                for sentence in (await copy.begin()).not_taken:
                    progress.tell(f"not taken: {sentence}")
                is_told = False
                while not copy.is_complete:
                    begun_s = trio.current_time()
                    try:
                        await copy.step(begun_s)
                    except ClientError as error:
                        # A broker that stops, or whose master changes, is looked for anew while it is followed.
                        if not (follow and error.retry_may_help):
                            raise
                        progress.show(f"the broker does not answer: {error}")
                    else:
                        if not follow and not copy.is_still:
                            break
                        if not is_told:
                            progress.tell("follows the broker, and ends when that takes no messages any more")
                            is_told = True
                        progress.show(f"follows the broker, {copy.copied:,} messages copied")
                    if not copy.is_complete:
                        await trio.sleep(max(_LOOK_EVERY_S, _REST * (trio.current_time() - begun_s)))
                return copy.report()

    report = trio.run(take_over)
    progress.clear()
    return report


async def _only_group(admin: AdminClient) -> str:
    """The broker name of the cluster, where it has one. Raises CommandError, ClientError."""
    names = sorted((await admin.cluster_info()).broker_table)
    if len(names) != 1:
        raise CommandError(
            f"--group NAME: which broker name? There are {', '.join(names) or 'none'}, and each becomes a group",
            USAGE,
        )
    return names[0]


def _of_store(store: Source, new_group: _NewGroup, *, follow: bool) -> Report:
    import time

    from broker.backups.directory import BackupWriter
    from broker.migration.migrating import Following, copy_entries, survey_source
    from broker.state.release import THIS_RELEASE
    from broker.tools.cli.progress import Progress

    progress = Progress(10.0)

    def show(what: str, index: int) -> None:
        progress.show(f"{what} up to entry {index:,}")

    to, copied = new_group.to, 0
    surveyed = survey_source(
        store,
        group=new_group.group,
        cluster=new_group.cluster,
        left_out=new_group.left_out,
        delay_levels_ms=new_group.settings.broker.delay_level_ms,
        progress=show,
    )
    if to is not None:
        with BackupWriter(to) as writer:
            copied = copy_entries(surveyed, writer, THIS_RELEASE, show)
            # What the survey has found is copied by now; the broker has written more meanwhile.
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
    return report


def _tell(report: Report, *, json: bool) -> None:
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
    waiting = (
        f"{report.delayed_waiting:,} delayed, {report.timed_waiting:,} timed, {report.half_open:,} half messages "
        "without a decision"
    )
    checked = "every message"
    entries = f"{report.first_index:,} to {report.last_index:,}"
    if report.is_store:
        entries += f" ({report.committed_index:,} by its checkpoint), terms to {report.last_term}"
        checked += f"; {report.units_compared:,} units of the broker's own queues agree"
    rows = [
        ("source", f"{report.source}, {'node' if report.is_store else 'broker'} {report.node}"),
        ("entries", entries),
        ("messages", f"{report.messages:,} in queues, {report.records_without_queue:,} records in none"),
        ("consumer groups", f"{report.consumer_groups:,} with {report.positions:,} offsets"),
        ("waiting", waiting),
        ("checked", checked),
        ("left", f"{report.brokers_own:,} topics and consumer groups that each broker makes by itself"),
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
            f"{report.entries_copied:,} entries copied into {report.directory}; not complete: "
            f"{'stop the broker' if report.is_store else 'have the broker take no messages'} and run it again"
        )
    return (
        f"{report.entries_copied:,} entries copied; {report.directory} is complete: "
        f"trivet restore {report.directory} --config FILE for each node"
    )

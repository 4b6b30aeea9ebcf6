"""Putting a node together: one place for the Trio shell, the simulator and the tests, which all run the same parts."""

import os
from collections.abc import Callable, Iterable

import structlog

from broker.administration.backup_processor import BackupProcessor
from broker.administration.connections_processor import ConnectionsProcessor
from broker.administration.group_changes_processor import GroupChangesProcessor
from broker.administration.settings_processor import SettingsProcessor
from broker.administration.statistics_processor import StatisticsProcessor
from broker.administration.status_processor import StatusProcessor
from broker.consumer_groups.client_questions_processor import ClientQuestionsProcessor
from broker.consumer_groups.heartbeats_processor import HeartbeatsProcessor
from broker.consumer_groups.locks_processor import LocksProcessor
from broker.delayed.delays import DelayService
from broker.delayed.timers import TimerService
from broker.node.format_gate import FormatGate
from broker.node.group_limit import GroupLimit
from broker.node.listeners import Listeners
from broker.node.long_answers import LongAnswers
from broker.node.node import Node
from broker.offsets.commits import OffsetCommits
from broker.offsets.dead_offsets import DeadOffsets
from broker.offsets.offsets_processor import OffsetsProcessor
from broker.offsets.resets import OffsetResets
from broker.offsets.resets_processor import ResetsProcessor
from broker.reading.pull_processor import PullProcessor
from broker.reading.queries_processor import QueriesProcessor
from broker.remoting.addresses import split_address
from broker.remoting.node_status import ProcessFacts
from broker.replica.inner_limits import InnerLimits
from broker.replica.members_file import MembersFile
from broker.replica.recovering_file import RecoveringFile, RunFacts
from broker.replica.replica import Replica, ReplicaOptions
from broker.requests.connection import Outgoing
from broker.requests.deadline import Time
from broker.requests.processing import Processor
from broker.retention.cleaning_processor import CleaningProcessor
from broker.retention.retention import Retention
from broker.sending.portions_processor import PortionsProcessor
from broker.sending.replies_processor import RepliesProcessor
from broker.sending.send_back_processor import SendBackProcessor
from broker.sending.send_processor import SendProcessor
from broker.settings.live import LiveSettings, differing
from broker.settings.rules import ImpossibleSettingError
from broker.settings.tables import CONSUME_QUEUE_UNIT_BYTES, Settings
from broker.state.release import THIS_RELEASE, Release
from broker.statistics.events import Events
from broker.statistics.stats import Stats
from broker.statistics.timings import Timings
from broker.topics.creation import Creations
from broker.topics.topics_processor import TopicsProcessor
from broker.trace import TraceWriter
from broker.transactions.checks import TransactionChecks
from broker.transactions.decisions import Decisions
from log.disk import Disk
from log.layout import UNIT_BYTES
from log.loops import INSTALLED
from log.options import StoreOptions
from log.record import pack_host
from log.store import Store
from raft.config import RaftConfig
from raft.state import RandomSource

log = structlog.get_logger("trivet.assembly")

_MS = 1_000_000

_MEMORY_BYTES_UNKNOWN = 4 << 30
"""A machine that does not say how much memory it has is taken to have so much."""

COMMIT_NOTICE_DELAY_NS = 10 * _MS
"""Followers learn of a commit with the next append, or this much later: they forward the requests that they may not
answer.
"""


def build_node(
    settings: Settings,
    disk: Disk,
    outgoing: Outgoing,
    random: RandomSource,
    now_ns: int,
    wall_ms: int,
    trace_writer: TraceWriter | None,
    *,
    hour_of_day: Callable[[int], int],
    advertised: str | None = None,
    store_options: StoreOptions | None = None,
    process_id: Callable[[], int] = os.getpid,
    process_facts: Callable[[], ProcessFacts] = ProcessFacts,
    memory_bytes: int = 0,
    boot: str = "",
    release: Release = THIS_RELEASE,
    limits: InnerLimits | None = None,
    stopwatch: Callable[[], int] = lambda: 0,
) -> Node:
    """Builds a node over what `disk` holds, recovered and ready to be connected.

    `advertised` is the ``host:port`` that clients are told, if it is not what `settings` says; its host must be a
    numeric address. `store_options` replaces what follows from `settings`. `boot` names the time since the machine was
    started, "" if that is unknown: pages that were not flushed do not outlive it (broker/replica/recovering_file.py).
    `hour_of_day` tells the hour at a time in milliseconds. `memory_bytes` is what the machine has, 0 if unknown.
    `release` is another one than this where releases are tried together, and `limits` are others than a node's own
    where a short life is to see what they gate.
    `process_facts` tells what the system knows of this process, for operators.
    `stopwatch` returns nanoseconds, for the figures on how long the node's work takes.

    Raises `log.errors.LogFault` when the store cannot be used (locked, damaged, disk), `log.errors.RecordError` when
    the advertised host is a name.
    """
    address = advertised or settings.advertised_address(split_address(settings.node.listen)[1])
    store_host = pack_host(*split_address(address))
    store, recovery = Store.open(
        disk, store_options or store_options_of(settings, memory_bytes), wall_ms, release.newest_format
    )
    for sentence in recovery.damage:
        log.warning("recovered", damage=sentence)

    # The settings in force may differ from the file's: changes that were made at run time are in the store.
    live = LiveSettings(settings, disk)
    settings = live.current
    limits = limits or InnerLimits()
    time, listeners, timings = Time(now_ns, wall_ms), Listeners(), Timings(stopwatch)
    stats = Stats(now_ns, wall_ms, timings, series_max=settings.observe.metrics_series_max)
    events = Events()
    replica = Replica(
        ReplicaOptions(
            node_id=settings.node.id,
            raft=raft_config_of(settings, limits),
            sync_flush=settings.storage.flush == "sync",
            flush_interval_ns=settings.storage.flush_interval_ms * _MS,
            uncommitted_bytes_max=settings.limits.max_pending_proposal_bytes,
            store_host=store_host,
            release=release,
            limits=limits,
        ),
        store,
        recovery,
        MembersFile(
            disk,
            settings.raft.peers or {settings.node.id: ""},
            newcomer=settings.node.id if settings.raft.join else None,
            lineage=settings.raft.lineage,
        ),
        RecoveringFile(disk, RunFacts(settings.storage.flush, boot, settings.storage.accept_data_loss)),
        random=random,
        now_ns=now_ns,
        wall_ms=wall_ms,
        observer=listeners,
        events=events,
        trace=trace_writer,
        timings=timings,
    )
    node = Node(replica, outgoing, live, time, listeners, stats, events)

    def pace_scrubber(settings: Settings) -> None:
        storage = settings.storage
        replica.scrubbing.pace(storage.scrub_bytes_per_second, storage.scrub_interval_s, time.now_ns)

    pace_scrubber(settings)
    live.on_change(pace_scrubber)
    about_the_node = StatusProcessor(
        replica,
        live,
        stats,
        time,
        listeners,
        address=address,
        recovered=recovery.damage,
        disk=disk,
        process_id=process_id,
        process_facts=process_facts,
        hour_of_day=hour_of_day,
    )
    backups = BackupProcessor(replica, time, listeners, settings.node)
    retention = Retention(replica, live, disk, time, hour_of_day, lambda: backups.needed_from_index)
    DeadOffsets(replica.leadership, node.registry, time, listeners)
    FormatGate(replica, live, time, listeners)
    node.start(
        [
            *_processors(node, address, store_host, random),
            about_the_node,
            backups,
            CleaningProcessor(retention),
            SettingsProcessor(replica, live),
        ]
    )
    found = recovery.log
    log.info(
        "start",
        release=replica.release.name,
        node=settings.node.id,
        address=address,
        peers_at=settings.raft.peer_listen or settings.raft.peers.get(settings.node.id, ""),
        store=settings.storage.path,
        entries=f"{found.begin.index}..{found.last_good_index}",
        cut_at=found.damaged_at,
        stopped_in_order=recovery.clean_stop,
        snapshot=store.snapshot.applied_index,
        term=replica.term,
        settings=differing(settings),
    )
    return node


def _processors(node: Node, address: str, store_host: bytes, random: RandomSource) -> Iterable[Processor]:
    """The processors that serve clients and administrators of the group. Each constructor says what it uses."""
    replica, leadership = node.replica, node.replica.leadership
    requests, registry, calls = node, node.registry, node.calls
    settings, time, listeners, stats = node.settings, node.time, node.listeners, node.stats
    names = settings.current.node

    group_limit = GroupLimit(replica, settings)
    offsets = OffsetCommits(leadership, settings, group_limit, time, listeners)
    resets = OffsetResets(leadership, offsets, listeners)
    creations = Creations(leadership, settings, group_limit)
    long_answers = LongAnswers(requests, time)
    decisions = Decisions(leadership, requests, settings, time, listeners, store_host)
    return (
        SendProcessor(
            leadership,
            requests,
            creations,
            stats,
            settings,
            time,
            listeners,
            store_host=store_host,
            random=random,
        ),
        PortionsProcessor(leadership, settings, time, listeners),
        PullProcessor(
            replica, requests, registry, offsets, resets, creations, stats, settings, time, listeners
        ),
        HeartbeatsProcessor(replica, requests, registry, creations, settings, time, listeners, node.events),
        OffsetsProcessor(leadership, requests, registry, offsets, resets, long_answers),
        LocksProcessor(leadership, requests, creations, settings, time, listeners),
        QueriesProcessor(replica, requests),
        TopicsProcessor(leadership, requests, creations, offsets, settings, time, listeners, long_answers),
        ConnectionsProcessor(replica, requests, registry, stats, time, names.group, long_answers),
        ResetsProcessor(replica, requests, registry, offsets, resets, names.group),
        ClientQuestionsProcessor(replica, requests, registry, calls, names.group),
        StatisticsProcessor(
            replica,
            requests,
            registry,
            stats,
            time,
            long_answers,
            broker_name=names.group,
            cluster=names.cluster,
            address=address,
        ),
        GroupChangesProcessor(replica, settings, time, listeners),
        SendBackProcessor(leadership, requests, registry, creations, stats, settings, time, random),
        RepliesProcessor(
            leadership,
            registry,
            calls,
            settings,
            time,
            node.events,
            address=address,
            store_host=store_host,
            random=random,
        ),
        DelayService(leadership, settings.current.broker.delay_level_ms, time, listeners, node.events),
        TimerService(leadership, stats, time, listeners, node.events),
        decisions,
        TransactionChecks(decisions, leadership, node, registry, settings, time, listeners, node.events),
    )


def store_options_of(settings: Settings, memory_bytes: int = 0) -> StoreOptions:
    """The sizes that a store is opened with: always those that it was made with.

    Raises `ImpossibleSettingError` for a log directory outside of the store's.
    """
    storage = settings.storage
    directory = os.path.relpath(settings.log_directory, storage.path)
    if directory.startswith(".."):
        raise ImpossibleSettingError(
            "storage.log_path", f"{storage.log_path!r} is not inside of storage.path, {storage.path!r}"
        )
    return StoreOptions(
        dledger_directory=directory,
        data_file_bytes=storage.data_file_bytes,
        prepare_ahead_bytes=min(storage.prepare_ahead_bytes, storage.data_file_bytes),
        write_buffer=storage.write_buffer,
        hot_bytes=(memory_bytes or _MEMORY_BYTES_UNKNOWN) * storage.memory_percent // 100,
        index_file_units=storage.entry_index_file_bytes // UNIT_BYTES,
        consume_queue_file_units=storage.consume_queue_file_bytes // CONSUME_QUEUE_UNIT_BYTES,
        index_slots=storage.index_file_slots,
        index_entries=storage.index_file_entries,
        delay_levels_ms=settings.broker.delay_level_ms,
        loops=INSTALLED,
    )


def raft_config_of(settings: Settings, limits: InnerLimits) -> RaftConfig:
    """The group's timing, and how much of it may be under way."""
    raft = settings.raft
    return RaftConfig(
        election_timeout_min_ns=raft.election_timeout_min_ms * _MS,
        election_timeout_max_ns=raft.election_timeout_max_ms * _MS,
        heartbeat_interval_ns=raft.heartbeat_ms * _MS,
        max_inflight_appends=max(1, raft.peer_window_bytes // limits.append_bytes_max),
        max_uncommitted_entries=settings.limits.max_pending_proposals,
        commit_notice_delay_ns=COMMIT_NOTICE_DELAY_NS,
        catch_up_lag_entries=limits.catch_up_lag_entries,
        preferred_leaders=raft.preferred_leaders,
    )

"""Putting a node together: one place for the Trio shell, the simulator and the tests, which all run the same parts."""

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import structlog

from broker.administration.backup_processor import BackupProcessor
from broker.administration.connections_processor import ConnectionsProcessor
from broker.administration.group_changes_processor import GroupChangesProcessor
from broker.administration.health import Health
from broker.administration.metrics import NodeMetrics
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
from broker.node.long_responses import LongResponses
from broker.node.machine import SHIPPED, Machine, Variant
from broker.node.node import Node
from broker.node.running import RunningNode
from broker.offsets.commits import OffsetCommits
from broker.offsets.dead_offsets import DeadOffsets
from broker.offsets.offsets_processor import OffsetsProcessor
from broker.offsets.resets import OffsetResets
from broker.offsets.resets_processor import ResetsProcessor
from broker.reading.held_pulls import HeldPulls
from broker.reading.pull_checks import PullChecks
from broker.reading.pull_processor import PullProcessor
from broker.reading.pull_responses import PullResponses, PullSteps
from broker.reading.queries_processor import QueriesProcessor
from broker.reading.queue_reads import QueueReads
from broker.remoting.addresses import split_address
from broker.replica.inner_limits import InnerLimits
from broker.replica.members_file import MembersFile
from broker.replica.options import ReplicaOptions, ReplicaSurroundings
from broker.replica.recovering_file import RecoveringFile, RunFacts
from broker.replica.replica import Replica
from broker.replica.report import report_on
from broker.replica.start import OnDisk
from broker.requests.deadline import MS, Time
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
from broker.statistics.events import Events
from broker.statistics.stats import Stats
from broker.statistics.timings import Timings
from broker.topics.creation import Creations
from broker.topics.topics_processor import TopicsProcessor
from broker.transactions.checks import TransactionChecks
from broker.transactions.decisions import Decisions
from log.files.disk import Disk
from log.formats.layout import UNIT_BYTES
from log.formats.loops import INSTALLED
from log.formats.record import pack_host
from log.options import StoreOptions
from log.store import RecoveryReport, Store
from raft.options import RaftOptions
from raft.state import RandomSource

log = structlog.get_logger("trivet.assembly")


_MEMORY_BYTES_UNKNOWN = 4 << 30
"""A machine that does not say how much memory it has is taken to have so much."""

COMMIT_NOTICE_DELAY_NS = 10 * MS
"""Followers learn of a commit with the next append, or this much later: they forward the requests that they may not
answer.
"""


def build_node(settings: Settings, machine: Machine, variant: Variant = SHIPPED) -> Node:
    """Builds a node over what the machine's disk holds, recovered and ready to be connected.

    Raises `log.errors.LogFault` when the store cannot be used (locked, damaged, disk), `log.errors.RecordError` when
    the host of its address is a name.
    """
    address = machine.address or settings.advertised_address(split_address(settings.node.listen)[1])
    store_host = pack_host(*split_address(address))
    store, recovery = Store.open(
        machine.disk,
        variant.store_options or store_options_of(settings, machine.memory_bytes),
        machine.wall_ms,
        variant.release.newest_format,
    )
    for sentence in recovery.damage:
        log.warning("recovered", damage=sentence)

    # The settings in force may differ from the file's: changes that were made at run time are in the store.
    live = LiveSettings(settings, machine.disk)
    settings = live.current
    listeners, events, timings = Listeners(), Events(), Timings(machine.stopwatch)
    now_ns, wall_ms = machine.now_ns, machine.wall_ms
    replica = Replica(
        _replica_options(settings, variant, store_host),
        _found(settings, machine, store, recovery),
        ReplicaSurroundings(machine.random, now_ns, wall_ms, listeners, events, timings, machine.trace),
    )
    stats = Stats(now_ns, wall_ms, timings, series_max=settings.observe.metrics_series_max)
    node = Node(replica, machine.outgoing, live, Time(now_ns, wall_ms), listeners, stats, events)
    _pace_scrubber(node)
    # Who is built earlier hears of what happens earlier, and acts first when several are due.
    about_the_node = _about_the_node(node, machine, address, recovery.damage)
    shared = _shared(node, address, store_host, machine.random)
    node.start(
        [
            *about_the_node,
            *_storing(node, shared),
            *_reading(node, shared),
            *_members_of_consumer_groups(node, shared),
            *_administration(node, shared),
            *_what_falls_due(node, shared),
        ]
    )
    _tell_start(node, address, recovery)
    return node


def told_to_operators(
    running: RunningNode, disk: Disk, certificate_expires_s: Callable[[], float | None] = lambda: None
) -> tuple[Health, NodeMetrics]:
    """Returns the health and the metrics of a node that runs over that disk.

    `certificate_expires_s` returns a Unix time, or None where no certificate is shown.
    """
    node = running.node
    report = partial(report_on, node.replica)
    health = Health(running, report)
    return health, NodeMetrics(
        node, node.replica.leadership, report, running.registrars, health, disk, certificate_expires_s
    )


def _replica_options(settings: Settings, variant: Variant, store_host: bytes) -> ReplicaOptions:
    return ReplicaOptions(
        node_id=settings.node.id,
        raft=raft_options_of(settings, variant.limits),
        sync_flush=settings.storage.flush == "sync",
        flush_interval_ns=settings.storage.flush_interval_ms * MS,
        uncommitted_bytes_max=settings.limits.max_pending_proposal_bytes,
        store_host=store_host,
        release=variant.release,
        limits=variant.limits,
    )


def _found(settings: Settings, machine: Machine, store: Store, recovery: RecoveryReport) -> OnDisk:
    membership = MembersFile(
        machine.disk,
        settings.raft.peers or {settings.node.id: ""},
        newcomer=settings.node.id if settings.raft.join else None,
        lineage=settings.raft.lineage,
    )
    run = RunFacts(settings.storage.flush, machine.boot, settings.storage.accept_data_loss)
    return OnDisk(store, recovery, membership, RecoveringFile(machine.disk, run))


def _pace_scrubber(node: Node) -> None:
    """Has the scrubber go as fast as the settings say, now and after each change of them."""

    def pace(settings: Settings) -> None:
        storage = settings.storage
        node.replica.scrubbing.pace(
            storage.scrub_bytes_per_second, storage.scrub_interval_s, node.time.now_ns
        )

    pace(node.settings.current)
    node.settings.on_change(pace)


def _tell_start(node: Node, address: str, recovery: RecoveryReport) -> None:
    replica, settings, found = node.replica, node.settings.current, recovery.log
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
        snapshot=replica.store.snapshot.applied_index,
        term=replica.term,
        settings=differing(settings),
    )


# ------------------------------------------------ the processors; each constructor says what it uses


class _Shared(NamedTuple):
    """The services that several processors use, and what they tell of this node."""

    group_limit: GroupLimit
    offsets: OffsetCommits
    resets: OffsetResets
    creations: Creations
    long_responses: LongResponses
    decisions: Decisions
    address: str
    store_host: bytes
    random: RandomSource


def _shared(node: Node, address: str, store_host: bytes, random: RandomSource) -> _Shared:
    leadership = node.replica.leadership
    group_limit = GroupLimit(leadership, node.settings)
    offsets = node.add(OffsetCommits(leadership, node.settings, group_limit, node.time, node.listeners))
    node.add(DeadOffsets(leadership, offsets, node.registry, node.time, node.listeners))
    return _Shared(
        group_limit,
        offsets,
        node.add(OffsetResets(leadership, offsets, node.listeners)),
        node.add(Creations(leadership, node.settings, group_limit)),
        LongResponses(node, node.time),
        Decisions(leadership, node, node.settings, node.time, node.listeners, store_host),
        address,
        store_host,
        random,
    )


def _about_the_node(
    node: Node, machine: Machine, address: str, recovered: tuple[str, ...]
) -> Iterable[Processor]:
    """The processors of what operators ask of this node or order, and what it deletes and raises by itself."""
    replica = node.replica
    status = StatusProcessor(
        replica.leadership,
        partial(report_on, replica),
        node.settings,
        node.stats,
        node.time,
        node.listeners,
        machine,
        address=address,
        recovered=recovered,
    )
    backups = BackupProcessor(
        replica.applied,
        replica.store.log,
        replica.loads,
        replica.release,
        node.settings.current.node,
        replica.limits.backup_lease_ms,
        node.time,
        node.listeners,
    )
    retention = node.add(
        Retention(
            replica.leadership,
            replica.head,
            replica.disk_space,
            node.settings,
            machine,
            node.time,
            lambda: backups.needed_from_index,  # the head of the log stays until a copy under way has it
            replica.group_changes.hand_over_to_room,
            node.listeners,
        )
    )
    FormatGate(replica.leadership, replica.members, replica.release, node.settings, node.time, node.listeners)
    return (
        status,
        backups,
        CleaningProcessor(retention, node),
        SettingsProcessor(replica.leadership, node.settings),
        GroupChangesProcessor(
            replica.group_changes, replica.members, node.settings, node.time, node.listeners
        ),
    )


def _storing(node: Node, shared: _Shared) -> Iterable[Processor]:
    leadership = node.replica.leadership
    # Messages that are sent back and copies of replies are appended as sends are. All of them draw from one stream of
    # chance, so that a run of the simulator repeats.
    return (
        SendProcessor(
            leadership,
            node,
            shared.creations,
            node.stats,
            node.settings,
            node.time,
            node.listeners,
            store_host=shared.store_host,
            random=shared.random,
        ),
        PortionsProcessor(leadership, node.settings, node.time, node.listeners),
        SendBackProcessor(
            leadership,
            node,
            node.registry,
            shared.creations,
            node.stats,
            node.settings,
            node.time,
            shared.random,
        ),
        RepliesProcessor(
            leadership,
            node.registry,
            node.calls,
            node.settings,
            node.time,
            node.events,
            address=shared.address,
            store_host=shared.store_host,
            random=shared.random,
        ),
    )


def _reading(node: Node, shared: _Shared) -> Iterable[Processor]:
    replica, leadership = node.replica, node.replica.leadership
    registry, stats, settings, time = node.registry, node.stats, node.settings, node.time
    offsets, resets = shared.offsets, shared.resets
    steps = PullSteps(
        node.add(PullChecks(leadership, registry, settings)),
        QueueReads(leadership, resets),
        node.add(
            PullResponses(leadership, replica.loads, replica.members, node, resets, stats, settings, time)
        ),
    )
    held = node.add(
        HeldPulls(leadership, node, registry, resets, steps, stats, settings, time, node.listeners)
    )
    return (
        PullProcessor(leadership, node, offsets, resets, shared.creations, steps, held, settings, time),
        QueriesProcessor(leadership, node),
        OffsetsProcessor(leadership, node, registry, offsets, resets, shared.long_responses),
        ResetsProcessor(leadership, node, registry, offsets, resets, node.group),
    )


def _members_of_consumer_groups(node: Node, shared: _Shared) -> Iterable[Processor]:
    leadership = node.replica.leadership
    return (
        HeartbeatsProcessor(
            leadership,
            node,
            node.registry,
            shared.creations,
            node.settings,
            node.time,
            node.listeners,
            node.events,
        ),
        LocksProcessor(leadership, node, shared.creations, node.settings, node.time, node.listeners),
        ClientQuestionsProcessor(leadership, node, node.registry, node.calls, node.group),
    )


def _administration(node: Node, shared: _Shared) -> Iterable[Processor]:
    """Topics and consumer groups, and the figures of them, as operators ask for them."""
    leadership, long_responses = node.replica.leadership, shared.long_responses
    return (
        TopicsProcessor(
            leadership,
            node,
            shared.creations,
            shared.offsets,
            node.settings,
            node.time,
            node.listeners,
            long_responses,
        ),
        ConnectionsProcessor(
            leadership, node, node.registry, node.stats, node.time, node.group, long_responses
        ),
        StatisticsProcessor(
            leadership,
            node,
            node.registry,
            node.stats,
            node.time,
            long_responses,
            broker_name=node.group,
            cluster=node.settings.current.node.cluster,
            address=shared.address,
        ),
    )


def _what_falls_due(node: Node, shared: _Shared) -> Iterable[Processor]:
    """Delayed messages, timers and transactions: what the leader does when its time has come."""
    leadership = node.replica.leadership
    return (
        DelayService(
            leadership, node.settings.current.broker.delay_level_ms, node.time, node.listeners, node.events
        ),
        TimerService(leadership, node.stats, node.time, node.listeners, node.events),
        shared.decisions,
        TransactionChecks(
            shared.decisions,
            leadership,
            node,
            node.registry,
            node.settings,
            node.time,
            node.listeners,
            node.events,
        ),
    )


# ------------------------------------------------ what follows from the settings


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


def raft_options_of(settings: Settings, limits: InnerLimits) -> RaftOptions:
    """The group's timing, and how much of it may be under way."""
    raft = settings.raft
    return RaftOptions(
        election_timeout_min_ns=raft.election_timeout_min_ms * MS,
        election_timeout_max_ns=raft.election_timeout_max_ms * MS,
        heartbeat_interval_ns=raft.heartbeat_ms * MS,
        max_inflight_appends=max(1, raft.peer_window_bytes // limits.append_bytes_max),
        max_uncommitted_entries=settings.limits.max_pending_proposals,
        commit_notice_delay_ns=COMMIT_NOTICE_DELAY_NS,
        catch_up_lag_entries=limits.catch_up_lag_entries,
        preferred_leaders=raft.preferred_leaders,
    )

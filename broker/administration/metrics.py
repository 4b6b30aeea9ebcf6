"""The metrics that a node tells Prometheus, read from its parts when it is asked.

Nothing is kept here, and between two questions the node does nothing for them. What grows with topics and consumer
groups is told of `observe.metrics_series_max` of them; the rest is summed up under `OTHERS`. Reading through many
thousand consumer offsets takes long for a node that has others to serve: `None` among what is told is a place where the
reader may let them go first.

Figures of the group (consumer lag, messages that wait, members) are the leader's: a sum over all nodes counts nothing
twice.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, Protocol

from broker.administration.health import Health
from broker.administration.queue_figures import store_time
from broker.node.client_registry import ClientRegistry
from broker.node.ports import State
from broker.node.registrar import Registrar
from broker.replica.report import ReplicaReport
from broker.requests.connection import Connection
from broker.requests.deadline import Time
from broker.requests.line import LineState
from broker.settings.live import LiveSettings
from broker.state.metadata import DelayProgress
from broker.state.topic_rules import (
    DEAD_LETTER_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    is_system_topic,
)
from broker.statistics.events import EventKind, Events
from broker.statistics.families import Told, counter, gauge, histogram, many, one
from broker.statistics.stats import Stats
from broker.statistics.totals import OTHERS
from log.errors import LogFault
from log.files.disk import Disk
from log.formats.layout import HEADER_BYTES

QUEUES_AT_ONCE: Final = 200
"""Queues whose lag is read before others have their turn: a millisecond's work."""

_NS: Final = 1e9

# Labels that several metrics have, in RocketMQ's words (`BrokerMetricsConstant`).
_STORAGE: Final = ("storage_type", "storage_medium")
_GIVEN: Final = ("topic", "consumer_group", "is_retry", "is_system")
_LAG: Final = ("consumer_group", "topic", "queue_id", "is_retry", "is_system")

# ------------------------------------------------------------------ the group

HAS_LEADER = gauge("trivet_server_has_leader", "1 where the node knows a leader.")
IS_LEADER = gauge("trivet_server_is_leader", "1 on the node that leads its term.")
IS_LEARNER = gauge("trivet_server_is_learner", "1 on a member without a vote.")
SERVING = gauge("trivet_server_serving", "1 on the leader once it answers for the group.")
RECOVERING = gauge(
    "trivet_server_recovering",
    "1 while the node may lack what it acknowledged; its vote counts only where all voters agree.",
)
TERM = gauge("trivet_server_term", "Raft's term.")
COMMITTED = counter("trivet_server_proposals_committed_total", "Index up to which entries are committed.")
APPLIED = counter(
    "trivet_server_proposals_applied_total", "Index up to which entries are dispatched and applied."
)
PENDING = gauge("trivet_server_proposals_pending", "Entries of the log that are not known to be committed.")
HEALTH = gauge("trivet_server_healthcheck", "1 where a check of /livez or /readyz passes.", "type", "name")
ACTIVE_PEERS = gauge("trivet_network_active_peers", "1 while there is a link to the peer.", "peer")
PEER_LAG = gauge("trivet_peer_lag_entries", "Leader: entries that the peer has not acknowledged.", "peer")
PEER_CONTACT = gauge("trivet_peer_last_contact_seconds", "Leader: time since the peer answered last.", "peer")
PEER_RECOVERING = gauge(
    "trivet_peer_recovering", "Leader: 1 while the peer says that it is recovering.", "peer"
)

LEADER_CHANGES = counter(
    "trivet_server_leader_changes_seen_total", "How often the node has heard of another leader than before."
)
EVENTS = counter(
    "trivet_events_total",
    "What whoever is on call is told of: roles, lost leaders, slow flushes, stalled turns, refused connections, ...",
    "event",
)
REASONS = counter("trivet_event_reasons_total", "The same by reason.", "event", "reason")

DIGEST = gauge(
    "trivet_state_digest",
    "Sum of the replicated state behind an entry; nodes that tell another one of the same entry have drifted apart.",
    "every",
)
DIGEST_INDEX = gauge(
    "trivet_state_digest_index", "The index of that entry, which is told every so many entries.", "every"
)

# ------------------------------------------------------------------ log and disk

FLUSH = histogram("trivet_disk_wal_fsync_duration_seconds", "Flushes of the log.")
APPEND = histogram(
    "trivet_disk_wal_write_duration_seconds",
    "Appends to the log, into the page cache: on a follower each, on a leader the first of a turn.",
)
CHECKPOINT = histogram(
    "trivet_checkpoint_duration_seconds", "Flushes of queues and index files, every few seconds."
)
PREPARE = histogram("trivet_prepare_duration_seconds", "Files and pages made ready ahead of the writer.")
LOAD = histogram("trivet_cold_read_duration_seconds", "Old entries brought into memory for readers.")
SNAPSHOT = histogram(
    "trivet_disk_backend_snapshot_duration_seconds", "Snapshots of the applied state, encoded and written."
)
STORAGE = gauge("rocketmq_storage_size", "Bytes of the log.", *_STORAGE)
FLUSH_BEHIND = gauge(
    "rocketmq_storage_flush_behind_bytes", "Bytes of the log that are not flushed.", *_STORAGE
)
DISPATCH_BEHIND = gauge(
    "rocketmq_storage_dispatch_behind_bytes", "Bytes of the log that are not dispatched.", *_STORAGE
)
RESERVE_TIME = gauge(
    "rocketmq_storage_message_reserve_time",
    "Age of the first message of the log, in milliseconds.",
    *_STORAGE,
)
LOG_END = gauge("trivet_log_end_position_bytes", "Where the log ends.")
DISK_TOTAL = gauge("trivet_disk_total_bytes", "Size of the disk that the store is on.")
DISK_FREE = gauge("trivet_disk_free_bytes", "Bytes of it that the node may still use.")
DISK_FULL = gauge(
    "trivet_disk_full", "1 while the disk is full: sends are refused, or something found no room."
)
SCRUB = histogram("trivet_scrub_duration_seconds", "Slices of old files read and checked.")
REPAIR = histogram(
    "trivet_repair_duration_seconds", "Flushes of what was put back in place of damaged bytes."
)
SCRUBBED = counter("trivet_scrubbed_bytes_total", "Bytes of old files that were read and checked.")
SCRUB_PASS = gauge(
    "trivet_scrub_last_pass_seconds", "When a pass over all old files ended last, Unix time; 0 if none has."
)
DAMAGE_FOUND = counter(
    "trivet_damage_found_total", "Damaged entries, units and files found in a running node."
)
DAMAGE_REPAIRED = counter("trivet_damage_repaired_total", "Those that were put right, and are on the disk.")
DAMAGE_LEFT = gauge("trivet_damage_left", "Entries that are known to be damaged and not put back yet.")
FILES = gauge("trivet_store_files", "Files of the store: log, consume_queue, index.", "kind")

# ------------------------------------------------------------------ turns

TURN = histogram(
    "trivet_turn_duration_seconds", "Turns, from their beginning until what they send is written."
)
LAG = histogram(
    "trivet_loop_lag_seconds", "How late turns began that a timer had wanted: who held up the loop?"
)

# ------------------------------------------------------------------ messages

MESSAGES_IN = counter(
    "rocketmq_messages_in_total",
    "Messages that this node took as the leader, of each topic.",
    "topic",
    "is_system",
)
BYTES_IN = counter("rocketmq_throughput_in_total", "Bytes of their records.", "topic", "is_system")
MESSAGES_OUT = counter(
    "rocketmq_messages_out_total", "Messages that this node gave to consumer groups.", *_GIVEN
)
BYTES_OUT = counter("rocketmq_throughput_out_total", "Bytes of their records.", *_GIVEN)
DEAD_LETTERS = counter(
    "rocketmq_send_to_dlq_messages_total",
    "Messages that this node made dead letters as the leader.",
    "consumer_group",
)
PUTS_FAILED = counter("trivet_sends_failed_total", "Sends that were refused by the store, or lost.")
SEND = histogram(
    "trivet_send_duration_seconds",
    "Messages on the leader, from being appended to being committed and applied.",
)
PULL = histogram(
    "trivet_pull_duration_seconds",
    "Pulls that found messages, from being read or woken to being answered: how long old entries took to load.",
)
HELD_PULLS = gauge("trivet_held_pulls", "Pulls that wait for messages.")
HELD_REQUESTS = gauge("trivet_held_requests", "Requests that wait for a leader.")
LAG_MESSAGES = gauge(
    "rocketmq_consumer_lag_messages",
    "Leader: messages of a queue that a consumer group has not consumed.",
    *_LAG,
)
LAG_LATENCY = gauge(
    "rocketmq_consumer_lag_latency",
    "Leader: age of the first of them in milliseconds; 0 if there is none.",
    *_LAG,
)
DELAYED = gauge("trivet_delay_level_messages", "Leader: messages that wait at a delay level.", "level")
TIMED = gauge("rocketmq_timing_messages", "Leader: messages that wait for a time of their own.")
HALF = gauge("rocketmq_half_messages", "Leader: transactions that are not decided.")

# ------------------------------------------------------------------ connections

CONNECTIONS = gauge("trivet_connections", "Connections: of clients, links to peers, to name servers.", "kind")
CERTIFICATE = gauge(
    "trivet_certificate_expires_seconds",
    "When the first of the certificates that are shown expires, Unix time.",
)
PRODUCERS = gauge("rocketmq_producer_connections", "Leader: producers that are known.")
CONSUMERS = gauge("rocketmq_consumer_connections", "Leader: consumers that are known.", "consumer_group")
TOPICS = gauge("rocketmq_topic_number", "Topics.")
GROUPS = gauge("rocketmq_consumer_group_number", "Consumer groups.")
SUMMED_UP = gauge(
    "trivet_metrics_summed_up",
    "1 for metrics of which not every topic or group is told (observe.metrics_series_max).",
    "metric",
)

_STORAGE_LABELS: Final = ("local", "disk")


class CountedNode(Protocol):
    """A node, as far as its metrics need it; its replica tells of itself (`ReplicaReport`)."""

    @property
    def settings(self) -> LiveSettings:
        """Its settings of now."""

    @property
    def time(self) -> Time:
        """Its time, and that of the group."""

    @property
    def stats(self) -> Stats:
        """Its counters of requests and messages."""

    @property
    def events(self) -> Events:
        """Its counters of events, such as connections that it refused."""

    @property
    def registry(self) -> ClientRegistry[Connection]:
        """The producers and consumers that it knows."""

    @property
    def client_count(self) -> int:
        """Clients connected to it."""

    @property
    def held_count(self) -> int:
        """Requests that wait for a leader."""


class NodeMetrics:
    """The metrics of one node that runs."""

    def __init__(
        self,
        node: CountedNode,
        state: State,
        report: Callable[[int], ReplicaReport],
        registrars: Sequence[Registrar],
        health: Health,
        disk: Disk,
        certificate_expires_s: Callable[[], float | None],
    ) -> None:
        """`report` tells of the replica at a monotonic time. `certificate_expires_s` returns a Unix time, or None where
        no certificate is shown.
        """
        self._node = node
        self._state = state
        self._report = report
        self._registrars = registrars
        self._health = health
        self._disk = disk
        self._certificate_expires_s = certificate_expires_s

    @property
    def labels(self) -> tuple[str, str, str]:
        """The values of the common labels."""
        names = self._node.settings.current.node
        return names.cluster, names.group, names.id

    def told(self) -> Iterator[Told | None]:
        """Yields every metric once; None where the reader may let others go first."""
        report = self._report(self._node.time.now_ns)
        yield from self._group(report)
        yield from self._storage(report)
        yield from self._turns()
        yield None
        yield from self._messages()
        yield None
        yield from self._connections(report)
        totals = self._node.stats
        summed_up = {MESSAGES_IN: totals.stored.led.is_over, MESSAGES_OUT: totals.given_totals.is_over}
        if self._state.serving:
            yield from self._waiting()
            summed_up[LAG_MESSAGES] = yield from self._consumer_lag()
        yield many(SUMMED_UP, (((metric.name,), is_over) for metric, is_over in summed_up.items()))

    # ------------------------------------------------------------------ the group, the log

    def _group(self, report: ReplicaReport) -> Iterator[Told]:
        raft = report.raft
        yield one(HAS_LEADER, raft.leader is not None)
        yield one(IS_LEADER, raft.leader == raft.node)
        yield one(IS_LEARNER, raft.node in raft.configuration.learners)
        yield one(SERVING, report.serving)
        yield one(RECOVERING, raft.recovering is not None)
        yield one(TERM, raft.term)
        # The first entry has index 0: these tell how many there are.
        yield one(COMMITTED, raft.commit_index + 1)
        yield one(APPLIED, self._state.applied_index + 1)
        yield one(PENDING, max(0, raft.last_index - raft.commit_index))
        yield many(
            HEALTH,
            (
                ((kind, check.name), not check.problem)
                for kind, checks in (("livez", self._health.live()), ("readyz", self._health.ready()))
                for check in checks
            ),
        )
        yield one(LEADER_CHANGES, self._node.stats.leader_changes)
        events = self._node.events
        yield many(EVENTS, (((event.label,), events.count(event)) for event in EventKind))
        yield many(
            REASONS, (((event.label, reason), count) for (event, reason), count in events.counts.items())
        )
        digests = report.digests.items()
        yield many(DIGEST, (((str(every),), digest) for every, (_, digest) in digests))
        yield many(DIGEST_INDEX, (((str(every),), index) for every, (index, _) in digests))
        others = [member for member in raft.configuration.members if member != raft.node]
        yield many(ACTIVE_PEERS, (((peer,), peer in report.links) for peer in others))
        peers = raft.peers
        yield many(PEER_LAG, (((peer.node,), raft.last_index - peer.match_index) for peer in peers))
        yield many(PEER_CONTACT, (((peer.node,), peer.silence_ns / _NS) for peer in peers))
        yield many(PEER_RECOVERING, (((peer.node,), peer.recovering) for peer in peers))

    def _storage(self, report: ReplicaReport) -> Iterator[Told]:
        store, timings = self._state.store, self._node.stats.timings
        log = store.log
        yield one(FLUSH, timings.flush)
        yield one(APPEND, timings.append)
        yield one(CHECKPOINT, timings.checkpoint)
        yield one(PREPARE, timings.prepare)
        yield one(LOAD, timings.load)
        yield one(SNAPSHOT, timings.snapshot)
        yield STORAGE, [(_STORAGE_LABELS, log.end_position - log.first_position)]
        yield FLUSH_BEHIND, [(_STORAGE_LABELS, log.bytes_after(log.durable_index))]
        yield DISPATCH_BEHIND, [(_STORAGE_LABELS, log.bytes_after(self._state.applied_index))]
        try:
            first_ms = store.store_time_of(log.first_position + HEADER_BYTES)
        except LogFault:
            pass  # an empty log
        else:
            yield RESERVE_TIME, [(_STORAGE_LABELS, max(0, self._node.time.group_ms - first_ms))]
        yield one(LOG_END, log.end_position)
        usage = self._disk.usage()
        yield one(DISK_TOTAL, usage.total_bytes)
        yield one(DISK_FREE, usage.free_bytes)
        yield one(DISK_FULL, report.disk_full)
        yield one(SCRUB, timings.scrub)
        yield one(REPAIR, timings.repair)
        yield one(SCRUBBED, report.scrubbed_bytes)
        yield one(SCRUB_PASS, (report.scrubbed_ms or 0) / 1000)
        yield one(DAMAGE_FOUND, report.damage_found)
        yield one(DAMAGE_REPAIRED, report.damage_repaired)
        yield one(DAMAGE_LEFT, report.damage_left)
        yield many(
            FILES,
            (
                (("log",), len(log.file_starts())),
                (("consume_queue",), sum(queue.file_count for queue in store.queues)),
                (("index",), len(store.index)),
            ),
        )

    def _turns(self) -> Iterator[Told]:
        timings = self._node.stats.timings
        yield one(TURN, timings.turn)
        yield one(LAG, timings.lag)

    # ------------------------------------------------------------------ messages

    def _messages(self) -> Iterator[Told]:
        node, stats = self._node, self._node.stats
        # What has come since the last ten seconds is not counted yet (`StoredBytes`).
        stats.stored.count(self._state.store.queues, node.time.now_ns // 1_000_000_000)
        taken = [
            (labels or (OTHERS,), messages, record_bytes)
            for labels, messages, record_bytes in stats.stored.led
        ]
        given = [
            (labels or (OTHERS, OTHERS), messages, record_bytes)
            for labels, messages, record_bytes in stats.given_totals
        ]
        yield many(MESSAGES_IN, (((topic, _is_system(topic)), messages) for (topic,), messages, _ in taken))
        yield many(BYTES_IN, (((topic, _is_system(topic)), size) for (topic,), _, size in taken))
        yield many(
            MESSAGES_OUT, (((topic, group, *_kind(topic)), messages) for (topic, group), messages, _ in given)
        )
        yield many(BYTES_OUT, (((topic, group, *_kind(topic)), size) for (topic, group), _, size in given))
        yield many(
            DEAD_LETTERS,
            (
                ((topic.removeprefix(DEAD_LETTER_PREFIX),), messages)
                for (topic,), messages, _ in taken
                if topic.startswith(DEAD_LETTER_PREFIX)
            ),
        )
        yield one(PUTS_FAILED, stats.puts_failed)
        yield one(SEND, stats.timings.send)
        yield one(PULL, stats.timings.pull)
        yield one(HELD_PULLS, stats.pulls_held())
        yield one(HELD_REQUESTS, node.held_count)

    def _waiting(self) -> Iterator[Told]:
        metadata, store = self._state.metadata, self._state.store
        queues, timers = store.queues, store.timers
        levels = range(1, len(self._node.settings.current.broker.delay_level_ms) + 1)

        def waiting(level: int) -> int:
            queue = queues.get(SCHEDULE_TOPIC, level - 1)
            return (
                0 if queue is None else queue.max_offset - metadata.delays.get(level, DelayProgress()).offset
            )

        yield many(DELAYED, (((str(level),), waiting(level)) for level in levels))
        timers.catch_up(metadata.timers.floor, metadata.timers.steps)
        yield one(TIMED, timers.waiting(metadata.timers.steps))
        half = queues.get(HALF_TOPIC, 0)
        yield one(HALF, 0 if half is None else metadata.transactions.count_before(half.max_offset))

    def _consumer_lag(self) -> Generator[Told | None, None, bool]:
        """Reads the offsets of every queue, in the order in which they were first committed: that never changes.

        Returns whether some of them were summed up.
        """
        node, state = self._node, self._state
        series_max = node.settings.current.observe.metrics_series_max
        behind: list[tuple[tuple[str, ...], float]] = []
        ages: list[tuple[tuple[str, ...], float]] = []
        others = read = 0
        is_over = False
        for group, topic in list(state.metadata.offsets):
            if not node.registry.may_consume(group, topic) and topic != RETRY_PREFIX + group:
                continue  # read once, and not subscribed to any more
            for queue_id, offset in list(state.metadata.offsets.get((group, topic), {}).items()):
                read += 1
                if not read % QUEUES_AT_ONCE:
                    yield None
                queue = state.store.queues.get(topic, queue_id)
                if queue is None:
                    continue
                first = max(offset, queue.min_offset)
                count = max(0, queue.max_offset - first)
                if len(behind) >= series_max:
                    others += count
                    is_over = True
                    continue
                labels = (group, topic, str(queue_id), *_kind(topic))
                behind.append((labels, count))
                stored_ms = store_time(state.store, queue, first) if count else 0
                ages.append((labels, max(0, node.time.group_ms - stored_ms) if stored_ms else 0))
        if is_over:
            behind.append(((OTHERS, OTHERS, OTHERS, "false", "false"), others))
        yield LAG_MESSAGES, [*behind]
        yield LAG_LATENCY, [*ages]
        return is_over

    # ------------------------------------------------------------------ connections

    def _connections(self, report: ReplicaReport) -> Iterator[Told]:
        node, metadata = self._node, self._state.metadata
        registry = node.registry
        connected = (LineState.AWAITS, LineState.UP)
        yield many(
            CONNECTIONS,
            (
                (("client",), node.client_count),
                (("peer",), len(report.links)),
                (("name_server",), sum(one.line.state in connected for one in self._registrars)),
            ),
        )
        expires_s = self._certificate_expires_s()
        if expires_s is not None:
            yield one(CERTIFICATE, expires_s)
        yield one(TOPICS, len(metadata.topics))
        yield one(GROUPS, len(metadata.groups))
        if not self._state.serving:
            return
        yield one(
            PRODUCERS, len({c for group in registry.producer_groups() for c in registry.producers(group)})
        )
        groups = registry.consumer_groups()
        series_max = node.settings.current.observe.metrics_series_max
        counted = [((group,), len(registry.members(group))) for group in groups[:series_max]]
        if len(groups) > series_max:
            counted.append(((OTHERS,), sum(len(registry.members(group)) for group in groups[series_max:])))
        yield CONSUMERS, [*counted]


def _is_system(topic: str) -> str:
    return "true" if is_system_topic(topic) else "false"


def _kind(topic: str) -> tuple[str, str]:
    """Returns the values of RocketMQ's labels is_retry and is_system for a topic."""
    return "true" if topic.startswith(RETRY_PREFIX) else "false", _is_system(topic)

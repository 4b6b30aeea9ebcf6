"""One replica of a broker group: Raft, the log and the replicated metadata put together, without any I/O of its own.

Read this file first. It follows a message in order: 1 propose (a send processor appends a record to the leader's log),
2 replicate (Raft sends ranges of the log to the peers; a peer checks and appends them), 3 commit (a majority holds
them, and whoever sent one is answered), 4 dispatch (ConsumeQueue and IndexFile are built, metadata commands applied),
5 answer (other requests, held pulls). `turn` runs whatever has become possible since the last turn, so everything that
arrived meanwhile shares one append to each peer, one dispatch and one flush.

Everything that happens to a replica is a method call with the time as an argument, and everything it wants done is
left in the outboxes of its links or in what `turn` returns. The order that safety asks for holds by construction:

- the hard state is on disk (`Store.save_hard_state` returns after the fsync) before any message of the same list of
  effects is queued, because effects are carried out in the order in which raft gave them;
- entries are in the mapping before the acknowledgement is queued, and with ``flush = "sync"`` on disk, because raft is
  told `persisted` only then;
- nothing queued in an outbox leaves the process before the turn sends it: by then it has written what that rests on.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import cbor2
import msgspec
import structlog

from broker import peer_protocol
from broker.commands import Command, DeleteTopic, Several, decode_command, encode_command
from broker.connection import Connection
from broker.loads import Loads
from broker.membership import Membership
from broker.metadata import Metadata
from broker.peer_protocol import RaftFrame
from broker.proposals import CommandWaiter, NotServingError, Observer, OverloadedError, Waiter
from broker.read_barriers import ReadBarriers
from broker.recovering import RecoveringFile
from broker.replica_trace import ReplicaTrace
from broker.topics import INTERNAL_TOPIC
from broker.trace import TraceWriter
from broker.waiting import first_waiting_index
from log.checkpoint import CheckpointJob
from log.cold_reads import ColdReads
from log.dispatch import Arrival
from log.entry_log import FlushJob
from log.entry_range import EntryRange
from log.errors import DamagedRangeError, DiskError, DiskFullError
from log.hard_state import HardState as StoredHardState
from log.properties import get_property
from log.record import encode_record, peek
from log.retention import RetentionPolicy
from log.snapshot import Snapshot
from log.store import RecoveryReport, Store
from log.tail import PrepareJob
from raft import effects as fx
from raft.config import HardState, RaftConfig
from raft.configuration import AddLearner, Change
from raft.core import Raft
from raft.errors import LeadershipTransferring, NotLeader, ProposalLimit, RaftError
from raft.messages import AppendRequest, AppendResponse
from raft.recovery_loss import Loss
from raft.state import RandomSource
from raft.terms import LogTerms

log = structlog.get_logger("trivet.replica")

_INTERNAL_TOPIC_BYTES: Final = INTERNAL_TOPIC.encode()
_NO_OP: Final = b"noop"
_COMMAND: Final = b"command"
_CONFIGURATION: Final = b"configuration"

RECORD_BYTES_WITHOUT_VARIABLE_PARTS: Final = 75
"""A V1 record's size without hosts, body, topic and properties (storage.md 1.1)."""

APPEND_BYTES_MAX: Final = 256 * 1024
"""The most that one append carries, unless a single entry is larger."""

CONFIGURATION_BYTES_MAX: Final = 4096
"""More than the entry of a membership change has: names and addresses of a few nodes."""

CHECKPOINT_INTERVAL_NS: Final = 3_000_000_000
"""How often queues and index files are flushed and noted (storage.md 3.3)."""
NO_SPACE_PAUSE_NS: Final = 10_000_000_000
"""After which what found no space on the disk is tried again; retention looks as often."""

SNAPSHOT_INTERVAL_ENTRIES: Final = 200_000
"""A metadata snapshot is written after so many applied entries."""

SNAPSHOT_NS_PER_BYTE: Final = 50
"""How long a snapshot may take on its way to a peer and there, by its size: 20 MB/s."""


_NEVER: Final = 1 << 62


class Replica:
    """The state of one node of a group. Calls do not block except for the rare fsync of term and vote.

    `links` are the outgoing connections to the other nodes, which the shell keeps connected; what is sent to a node
    without a connection is dropped there, as any network may.
    """

    def __init__(
        self,
        node_id: str,
        membership: Membership,
        store: Store,
        recovery: RecoveryReport,
        recovering: RecoveringFile,
        *,
        raft_config: RaftConfig,
        sync_flush: bool,
        uncommitted_bytes_max: int,
        flush_interval_ns: int,
        store_host: bytes,
        random: RandomSource,
        now_ns: int,
        wall_ms: int,
        observer: Observer,
        trace: TraceWriter | None,
    ) -> None:
        self.node_id = node_id
        self.membership = membership
        self.store = store
        self.now_ns = now_ns
        self.wall_ms = wall_ms
        self.links: dict[str, Connection] = {}
        self.loads = Loads(ColdReads(store.log, store.options.hot_bytes))
        self._log = store.log
        self._sync_flush = sync_flush
        self._uncommitted_bytes_max = uncommitted_bytes_max
        self._flush_interval_ns = flush_interval_ns
        self._store_host = store_host
        self._observer = observer

        hard_state = store.hard_state.read()
        self._recovering = recovering
        voters = self.membership.load(self._log.last_index)[-1][1].voters
        loss, reason = recovering.judge(
            recovery, has_term=hard_state is not None, only_voter=voters == (node_id,)
        )
        if loss is Loss.ALL:
            log.info("the disk is empty: the other nodes are asked whether the group is new")
        elif loss is not None:
            log.warning("recovering: this node may lack what it acknowledged", lost=loss.value, reason=reason)
        if recovery.needs_snapshot:
            # What is here belongs to no state; the leader sends a snapshot, or everything.
            log.error("log given up", damage=recovery.damage)
            self.metadata = Metadata()
            store.reset(0, 0, 0, {}, Snapshot(-1, self._state_snapshot()))
        elif store.log.damaged:
            # The group has these entries still; this node takes them from it again.
            log.error("damaged log cut", damage=recovery.damage)
            store.cut_damage()
        snapshot = store.load_snapshot()
        self.metadata = Metadata()
        if snapshot is not None:
            self.metadata = self._restore(snapshot.data)
            self._restore_queue_ends(snapshot.data)
        self._metadata_index = -1 if snapshot is None else snapshot.applied_index
        """The last entry whose command `metadata` reflects; dispatch may restart before it."""

        entry_log = self._log
        configurations = self.membership.load(entry_log.last_index)
        hard_state = hard_state or StoredHardState()
        self._trace = ReplicaTrace(trace, entry_log, now_ns, hard_state.term, recovery.committed_index)
        self.raft = Raft(
            raft_config,
            node_id,
            HardState(hard_state.term, hard_state.vote or None),
            LogTerms(entry_log.first_index, entry_log.last_index, entry_log.term_runs(), entry_log.base_term),
            min(
                max(recovery.committed_index, store.dispatched_index, entry_log.first_index - 1),
                entry_log.last_index,
            ),
            configurations,
            random,
            now_ns,
            lambda first, last: entry_log.clip(first, last, APPEND_BYTES_MAX),
            loss,
        )
        self.applied_index = store.dispatched_index
        """Entries up to here are dispatched; commands among them are in `metadata`."""
        self._committed_index = self.raft.commit_index
        self._serving_from: int | None = None
        self.serving = False
        """This node leads, and everything committed before its term is applied: it may answer for the group."""

        self.disk_full = False
        """Set by retention: nothing is taken until there is room again."""

        self._queue_ends: dict[tuple[str, int], int] = {}
        self._waiting: deque[tuple[int, Waiter]] = deque()
        self._waiting_for_commit: deque[tuple[int, Waiter]] = deque()
        """Whoever need not wait until the entry is dispatched and applied, too."""
        self._command_waiters: dict[int, CommandWaiter] = {}
        self._uncommitted: deque[tuple[int, int]] = deque()
        self._uncommitted_bytes = 0
        self._reads = ReadBarriers()
        self._frame: RaftFrame | None = None
        self._entry_range: EntryRange | None = None
        self._written_index = -2
        """Up to where the log was acknowledged from the page cache."""
        self._flushing = False
        self._flush_generation = 0
        self._flush_due_ns = now_ns + flush_interval_ns
        self._flushed_position = entry_log.end_position
        self._preparing = False
        self._checkpoint_due_ns = now_ns + CHECKPOINT_INTERVAL_NS
        self._checkpointed_index = self.applied_index
        self._waiting_snapshot: Snapshot | None = None
        """Written when all that it reflects is durable here."""
        self._no_space_until_ns = 0
        """Until then nothing is tried again of what there was no space for, and can wait."""
        self._configuration_waiter: tuple[int, Waiter] | None = None
        self._dismissed_index = -1
        """The newest configuration of which another node has said that this node is not in it."""
        self.peers: dict[str, str] = {}
        """The nodes to keep a link to, by id, with their addresses; replaced, never changed."""
        self._update_peers()
        self._save_membership()
        self._carry_out()

    # ------------------------------------------------------------------ 1 propose

    @property
    def term(self) -> int:
        """The current term."""
        return self.raft.term

    @property
    def leader(self) -> str | None:
        """The node that this one follows; itself when it leads; None when unknown."""
        return self.raft.leader

    def queue_end(self, topic: str, queue_id: int) -> int:
        """The queue offset that the leader gives to the next message, uncommitted ones counted."""
        return self._queue_ends.get((topic, queue_id), 0)

    def check_may_append(self, count: int = 1, *, despite_full_disk: bool = False) -> None:
        """Raises `NotServingError`, `OverloadedError` or `DiskFullError` when `count` entries cannot be appended now.

        `disk_full` is for messages. What is small, and lets consumers go on, is taken `despite_full_disk` until nothing
        is left: positions, order locks, topics and groups, members.
        """
        if not self.serving:
            raise NotServingError(self.raft.leader)
        if self.disk_full and not despite_full_disk:
            raise DiskFullError(
                "the store", "writing", "more of the disk is used than the configuration allows"
            )
        if self._uncommitted_bytes > self._uncommitted_bytes_max:
            raise OverloadedError(f"{self._uncommitted_bytes} bytes of the log wait for a majority")
        try:
            self.raft.check_proposal(count)
        except (LeadershipTransferring, NotLeader) as error:
            # It leads no more when its removal is committed, and is told so after those who wait for the members.
            raise NotServingError(None) from error
        except ProposalLimit as error:
            raise OverloadedError(str(error)) from error

    def append_message(
        self,
        topic: str,
        topic_bytes: bytes,
        queue_id: int,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int,
        prepared_transaction_offset: int,
        body: bytes | memoryview,
        properties: bytes,
        waiter: Waiter | None,
        *,
        told_at_commit: bool = False,
    ) -> tuple[int, int]:
        """Appends one message to the leader's log: (physical offset of its record, queue offset).

        Call `check_may_append` first. `waiter` is told when the entry is committed; of a batch only the last needs
        one. With `told_at_commit` it may be told before the entry is dispatched, in the same turn. Raises
        `log.errors.EntryTooLargeError`, `DiskFullError`, `RecordError`, with nothing appended.
        """
        assert topic_bytes != _INTERNAL_TOPIC_BYTES, "every replica would apply it as a command"
        entry_log = self._log
        size = (
            RECORD_BYTES_WITHOUT_VARIABLE_PARTS
            + len(born_host)
            + len(self._store_host)
            + len(body)
            + len(topic_bytes)
            + len(properties)
        )
        if len(topic_bytes) > 127:
            size += 1  # a V2 record has two bytes for the topic's length
        physical_offset = entry_log.next_position(size) + 48
        key = (topic, queue_id)
        queue_offset = self._queue_ends.get(key, 0)
        record = encode_record(
            topic_bytes,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_timestamp,
            born_host,
            self.wall_ms,
            self._store_host,
            reconsume_times,
            prepared_transaction_offset,
            body,
            properties,
        )
        index = entry_log.append(self.raft.term, record)
        self.raft.propose(1, self.now_ns)
        self._queue_ends[key] = queue_offset + 1
        self._uncommitted.append((index, size))
        self._uncommitted_bytes += size
        if waiter is not None:
            (self._waiting_for_commit if told_at_commit else self._waiting).append((index, waiter))
        return physical_offset, queue_offset

    def make_room_for_messages(self, topic_bytes: bytes, born_host: bytes, sizes: Iterable[int]) -> None:
        """After this `append_message` takes messages of these sizes (body and properties), in this order, all of them.

        So a batch is stored whole or not at all. Raises `log.errors.EntryTooLargeError`, `DiskFullError`.
        """
        beside = (
            RECORD_BYTES_WITHOUT_VARIABLE_PARTS + len(born_host) + len(self._store_host) + len(topic_bytes)
        )
        if len(topic_bytes) > 127:
            beside += 1  # a V2 record, as in `append_message`
        self._log.make_room_for_all([beside + size for size in sizes])

    def propose_command(
        self, command: Command, done: Callable[[Any], None], lost: Callable[[], None]
    ) -> None:
        """Appends a metadata command; `done` gets what `Metadata.apply` returned, once committed.

        Raises as `check_may_append`.
        """
        self.check_may_append(despite_full_disk=True)
        waiter = CommandWaiter(done, lost)
        index = self._append_internal(_COMMAND, encode_command(command))
        self.raft.propose(1, self.now_ns)
        self._waiting.append((index, waiter))
        self._command_waiters[index] = waiter

    def when_applied(self, waiter: Waiter) -> None:
        """Tells `waiter` when everything that is in this leader's log now is committed, dispatched and applied, or that
        this node stopped leading first. Leader only; maybe before this returns.
        """
        last_index = self._log.last_index
        if last_index <= self.applied_index:
            waiter.committed()
        else:
            self._waiting.append((last_index, waiter))

    def read_barrier(self, ready: Callable[[], None], lost: Callable[[], None]) -> None:
        """Calls `ready` when this node's applied state is as new as the call (dissertation 6.4); leader only.

        All barriers of a turn share one round of messages. Raises `NotServingError`.
        """
        if not self.serving:
            raise NotServingError(self.raft.leader)
        self._reads.add((ready, lost))

    def _append_internal(self, tag: bytes, body: bytes) -> int:
        properties = b"TAGS\x01" + tag + b"\x02"
        host = self._store_host
        size = (
            RECORD_BYTES_WITHOUT_VARIABLE_PARTS
            + 2 * len(host)
            + len(body)
            + len(_INTERNAL_TOPIC_BYTES)
            + len(properties)
        )
        physical_offset = self._log.next_position(size) + 48
        record = encode_record(
            _INTERNAL_TOPIC_BYTES,
            0,
            0,
            0,
            physical_offset,
            0,
            self.wall_ms,
            host,
            self.wall_ms,
            host,
            0,
            0,
            body,
            properties,
        )
        index = self._log.append(self.raft.term, record)
        self._uncommitted.append((index, size))
        self._uncommitted_bytes += size
        return index

    # ------------------------------------------------------------------ 2 replicate

    def peer_met(self, node: str, address: str) -> None:
        """`node` has dialled this one, and listens for peers at `address`."""
        self.membership.met(node, address)
        self._update_peers()

    def peer_parted(self, node: str) -> None:
        """The link that `node` had dialled is gone."""
        self.membership.parted(node)
        self._update_peers()

    def peer_connected(self, node: str, now_ns: int) -> None:
        """The link to `node` is up."""
        if node not in self.raft.configuration.members:
            self._dismiss(node)
        self.now_ns = now_ns
        self.raft.peer_connected(node, now_ns)
        self._carry_out()

    def peer_disconnected(self, node: str, now_ns: int) -> None:
        """A connection with `node`, either way, was lost: the strongest sign of its death there is."""
        self.now_ns = now_ns
        self.raft.peer_disconnected(node, now_ns)
        self._carry_out()

    def peer_received(self, frame: RaftFrame, now_ns: int, wall_ms: int) -> bool:
        """A Raft message has come. Bytes that fail their checks are dropped, as if lost on the way.

        False when it wants no turn: an acknowledgement that commits nothing and makes room for nothing, as every second
        one in a group of three.
        """
        self.now_ns, self.wall_ms = now_ns, wall_ms
        message = frame.message
        if isinstance(message, AppendRequest) and message.spans:
            try:
                entry_range = self._log.check_range(frame.body, message.prev_index + 1, frame.position)
            except DamagedRangeError as error:
                log.warning("append refused", source=message.source, error=str(error))
                return False
            if not _same_terms(entry_range, message):
                # The sender's log was truncated and written anew between queueing and sending: not these entries.
                log.warning(
                    "append refused", source=message.source, error="bytes of other terms than announced"
                )
                return False
            self._entry_range = entry_range
        raft = self.raft
        raft.step(message, now_ns)
        if raft.has_effects:
            self._frame = frame
            self._carry_out()
            self._frame = None
            wants_turn = True
        else:
            wants_turn = raft.wants_replicate or not isinstance(message, AppendResponse)
        self._entry_range = None
        return wants_turn

    def tick(self, now_ns: int, wall_ms: int) -> None:
        """Time has passed; due at `deadline_ns`."""
        self.now_ns, self.wall_ms = now_ns, wall_ms
        deadline = self.raft.deadline()
        if deadline is not None and deadline <= now_ns:
            self.raft.tick(now_ns)
            self._carry_out()

    def deadline_ns(self) -> int:
        """When `tick` and `turn` must run at the latest: nothing is due while nothing is waiting to be done."""
        deadline: int | None = self.raft.deadline()
        due = _NEVER if deadline is None else deadline
        if not self._sync_flush and not self._flushing and self._log.end_position != self._flushed_position:
            due = min(due, self._flush_due_ns)
        if self.applied_index != self._checkpointed_index:
            due = min(due, self._checkpoint_due_ns)
        return due

    def _carry_out(self) -> None:
        """Carries out raft's effects, in order (see raft/effects.py for what that order promises)."""
        raft = self.raft
        while effects := raft.take_effects():
            for effect in effects:
                self._HANDLERS[type(effect)](self, effect)
            if not self._sync_flush:
                self._acknowledge_written()

    def _acknowledge_written(self) -> None:
        """With ``flush = "async"`` an entry is acknowledged from the page cache: it survives this process."""
        last_index = self._log.last_index
        if last_index == self._written_index and last_index == self.raft.persisted_index:
            return
        self._written_index = last_index
        self._log.write_back()
        self._recovering.acknowledged(last_index)
        self.raft.persisted(last_index, self.raft.log_generation, self.now_ns)

    def _on_send(self, effect: fx.Send) -> None:
        message = effect.message
        link = self.links.get(message.target)
        if link is None:
            return
        if isinstance(message, AppendRequest) and message.spans:
            last = message.last_index
            end, position, body = self._log.run(message.prev_index + 1, last, APPEND_BYTES_MAX)
            assert end == last, "the run that raft had clipped"
            frame = RaftFrame(message, position, body=body)
        else:
            frame = RaftFrame(message)
        link.send(*peer_protocol.encode_frame(frame))

    def _on_committed(self, effect: fx.Committed) -> None:
        self._committed_index = effect.index

    def _on_accept_entries(self, effect: fx.AcceptEntries) -> None:
        entries = self._entry_range
        assert entries is not None, "entries are accepted from an append only"
        configurations = effect.message.configurations
        if configurations:
            self.membership.learn(
                entries, [index for index, _ in configurations if index >= effect.first_index]
            )
            self._save_membership()
        self._log.append_range(entries, effect.skip)

    def _on_append_noop(self, effect: fx.AppendNoop) -> None:
        index = self._append_internal(_NO_OP, b"")
        assert index == effect.index, f"no-op written at {index}, raft has {effect.index}"
        self._serving_from = index

    def _on_append_configuration(self, effect: fx.AppendConfiguration) -> None:
        self._save_membership()
        index = self._append_internal(_CONFIGURATION, self.membership.encode(effect.configuration))
        assert index == effect.index, f"configuration written at {index}, raft has {effect.index}"

    def _on_truncate(self, effect: fx.TruncateLog) -> None:
        assert effect.last_index >= self.applied_index, "an applied entry would be truncated"
        self._trace.appended(self.now_ns)
        self._log.truncate(effect.last_index)
        self._trace.truncated(self.now_ns, effect.last_index)

    def _on_save_hard_state(self, effect: fx.SaveHardState) -> None:
        self.store.hard_state.write(StoredHardState(effect.term, effect.vote or ""))

    def _on_role_changed(self, effect: fx.RoleChanged) -> None:
        if effect.role is not fx.Role.LEADER:
            self._stop_leading()
        self._trace.role(self.now_ns, effect)
        log.info("role", role=effect.role.value, term=effect.term, leader=effect.leader)
        self._observer.role_changed()

    def _on_read_ready(self, effect: fx.ReadReady) -> None:
        self._reads.confirmed(effect.token, effect.index)

    def _on_read_lost(self, effect: fx.ReadLost) -> None:
        self._reads.lost(effect.token)

    def _on_snapshot_needed(self, effect: fx.SnapshotNeeded) -> None:
        message = effect.message
        link = self.links.get(message.target)
        if link is None:
            self.raft.snapshot_failed(message.target, self.now_ns)
            return
        snapshot = self._state_snapshot()
        reflected = max(self.applied_index, self._metadata_index)
        frame = RaftFrame(message, self._log.first_position, reflected, snapshot)
        try:
            buffers = peer_protocol.encode_frame(frame)
        except peer_protocol.PeerProtocolError as error:
            log.warning("snapshot not sent", target=message.target, reason=str(error))
            self.raft.snapshot_failed(message.target, self.now_ns)
            return
        link.send(*buffers)
        # A long one is on its way for a while, and is not to be sent again meanwhile.
        self.raft.snapshot_sent(message.target, self.now_ns + len(snapshot) * SNAPSHOT_NS_PER_BYTE)

    def _on_reset_log(self, effect: fx.ResetLog) -> None:
        frame = self._frame
        assert frame is not None, "a log is reset by a snapshot only"
        snapshot = Snapshot(frame.applied_index, bytes(frame.body))
        state = cbor2.loads(snapshot.data)
        queue_ends = {(topic, queue): end for topic, queue, end in _queue_ends(state)}
        metadata = self._restore(snapshot.data)
        # A log that begins anew must never be found beside the members of long ago. They are noted as those of its very
        # beginning, for the entries that are here until then may end before theirs, or be truncated.
        self.membership.save([(-1, effect.configuration)])
        self._waiting_snapshot = None
        self.store.reset(effect.first_index, frame.position, effect.base_term, queue_ends, snapshot)
        self.metadata = metadata
        self._metadata_index = snapshot.applied_index
        self.applied_index = self._committed_index = effect.first_index - 1
        self._save_membership()
        self._trace.reset(self.now_ns, effect.first_index)
        log.info("log begins anew from the leader's", first_index=effect.first_index)

    def _on_recovery_changed(self, effect: fx.RecoveryChanged) -> None:
        self._recovering.keep(effect.loss)
        if effect.loss is None and self.raft.term == 0:
            log.info("the group is new")
        elif effect.loss is None:
            log.info("recovered: this node holds what it ever acknowledged", term=self.raft.term)
        else:
            log.info("recovering", lost=effect.loss.value)

    def _on_configuration_changed(self, effect: fx.ConfigurationChanged) -> None:
        self._save_membership()
        self._update_peers()
        if effect.committed:
            members = effect.configuration.members
            log.info("members", index=effect.index, voters=effect.configuration.voters, members=members)
            for node in self.links:
                if node not in members:
                    self._dismiss(node)
            waiter = self._configuration_waiter
            if waiter is not None and waiter[0] <= effect.index:
                self._configuration_waiter = None
                waiter[1].committed()
        self._observer.role_changed()

    _HANDLERS: Final[dict[type, Callable[["Replica", Any], None]]] = {
        fx.Send: _on_send,
        fx.Committed: _on_committed,
        fx.AcceptEntries: _on_accept_entries,
        fx.AppendNoop: _on_append_noop,
        fx.AppendConfiguration: _on_append_configuration,
        fx.TruncateLog: _on_truncate,
        fx.SaveHardState: _on_save_hard_state,
        fx.RoleChanged: _on_role_changed,
        fx.ReadReady: _on_read_ready,
        fx.ReadLost: _on_read_lost,
        fx.SnapshotNeeded: _on_snapshot_needed,
        fx.ResetLog: _on_reset_log,
        fx.ConfigurationChanged: _on_configuration_changed,
        fx.RecoveryChanged: _on_recovery_changed,
    }

    # ------------------------------------------------------------------ 3 to 5: the turn

    def turn(self, now_ns: int, wall_ms: int, send: Callable[[], None]) -> None:
        """Does all that has become possible: replicates, answers sends, dispatches and applies what is committed.

        `send` is called before the dispatch: acknowledgements and answers to sends need not wait for it, and whatever
        is asked because of them comes after this turn. Afterwards `flush_job` and `prepare_job` say what a worker
        thread should do, and the outboxes of the links and of the clients' connections hold what is to be written.
        """
        self.now_ns, self.wall_ms = now_ns, wall_ms
        raft = self.raft
        reads = self._reads
        is_first = True
        while True:
            if reads.wanted:
                reads.begin_round(raft, now_ns)
            if not self._sync_flush:
                self._acknowledge_written()
            if self._log.last_index != self._trace.appended_index:
                self._trace.appended(now_ns)
            if is_first or raft.wants_replicate:
                is_first = False
                raft.replicate(now_ns)
            if raft.has_effects:
                self._carry_out()
            if self._committed_index > self.applied_index:
                self._trace.committed(now_ns, self._committed_index, raft.term)
                waiting = self._waiting_for_commit
                while waiting and waiting[0][0] <= self._committed_index:
                    waiting.popleft()[1].committed()
                send()
                self._apply_committed()
            elif not reads.wanted:
                break
            reads.applied(self.applied_index)
        if reads.confirmed_at:
            reads.applied(self.applied_index)

    def _apply_committed(self) -> None:
        """4 dispatch, then 5 answer: whoever is answered, or was before in this turn, can read what it wrote."""
        upto = self._committed_index
        store = self.store
        arrivals: list[Arrival] = []
        while self.applied_index < upto:
            # A command is applied before the entries behind it get their units: it may delete their topic.
            dispatch = store.dispatch(upto, self.wall_ms, stop_at_internal=True)
            arrivals += dispatch.arrivals
            for index, record in dispatch.internal:
                self._apply_internal(index, record)
            self.applied_index = dispatch.last_index
        self._trace.dispatched(self.now_ns, upto)
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= upto:
            self._uncommitted_bytes -= uncommitted.popleft()[1]
        serving_from = self._serving_from
        if serving_from is not None and not self.serving and upto >= serving_from:
            self._start_serving()
        waiting = self._waiting
        while waiting and waiting[0][0] <= upto:
            waiting.popleft()[1].committed()
        if arrivals:
            self._observer.arrived(arrivals)
        if upto - self.store.snapshot_index > SNAPSHOT_INTERVAL_ENTRIES:
            self.save_snapshot()

    def _apply_internal(self, index: int, record: memoryview) -> None:
        head = peek(record)
        is_new = index > self._metadata_index
        if is_new:
            self._metadata_index = index
        if record[head.topic_begin : head.topic_end] != _INTERNAL_TOPIC_BYTES:
            if is_new:
                self.metadata.transactions.apply_record(record)
            return
        tag = get_property(bytes(record[head.properties_begin : head.properties_end]), b"TAGS")
        if tag != _COMMAND:
            return
        command = decode_command(record[head.body_begin : head.body_end])
        result = self.metadata.apply(command) if is_new else None
        # Also for those that the snapshot reflects: dispatch began before them, and made the topic's queues again.
        for single in command.commands if isinstance(command, Several) else (command,):
            if isinstance(single, DeleteTopic):
                self.store.remove_topic(single.topic)
        if not is_new:
            return
        waiter = self._command_waiters.pop(index, None)
        if waiter is not None:
            waiter.result = result
        self._observer.metadata_changed(command)

    def _start_serving(self) -> None:
        """Everything before this term is committed and dispatched: the queues' ends are known, clients may come."""
        self._queue_ends = self.store.queue_end_offsets()
        self.serving = True
        log.info("serving", term=self.raft.term, index=self._serving_from)
        self._observer.role_changed()

    def _stop_leading(self) -> None:
        self._serving_from = None
        self.serving = False
        self._queue_ends = {}
        self._uncommitted.clear()
        self._uncommitted_bytes = 0
        self._command_waiters.clear()
        waiting = [*self._waiting_for_commit, *self._waiting]
        self._waiting_for_commit.clear()
        self._waiting.clear()
        if self._configuration_waiter is not None:
            waiting.append(self._configuration_waiter)
            self._configuration_waiter = None
        for _, waiter in waiting:
            waiter.lost()
        self._reads.abandon_wanted()

    # ------------------------------------------------------------------ worker thread jobs

    def flush_job(self) -> FlushJob | None:
        """What is to be flushed now; run it in a worker thread and report with `flushed`. One at a time."""
        if self._flushing:
            return None
        if not self._sync_flush and self.now_ns < self._flush_due_ns:
            return None
        self._flush_due_ns = self.now_ns + self._flush_interval_ns
        self._flushed_position = self._log.end_position
        job = self._log.flush_job()
        if job is not None:
            self._flushing = True
            self._flush_generation = self.raft.log_generation
        return job

    def flushed(self, job: FlushJob, now_ns: int) -> None:
        """The job has run without an error. (After a failed flush the node must stop: what was lost is unknown.)"""
        self.now_ns = now_ns
        self._flushing = False
        durable = self._log.flushed(job)
        self._write_snapshot()
        if self._sync_flush:
            self.raft.persisted(durable, self._flush_generation, self.now_ns)
            self._carry_out()

    def prepare_job(self) -> PrepareJob | None:
        """Files and pages to make ready ahead of the writer; run it in a worker thread, report with `prepared`."""
        if self._preparing:
            return None
        job = self._log.prepare_job()
        self._preparing = job is not None
        return job

    def prepared(self, job: PrepareJob) -> None:
        """The job has run; a full disk shows again, as an error, when the writer gets there."""
        self._preparing = False
        self._log.prepared(job)

    def checkpoint_job(self) -> CheckpointJob | None:
        """From time to time, what makes the next start short; run it in a worker thread, report `checkpointed`."""
        if self.now_ns < self._no_space_until_ns:
            return None
        if not self.store.checkpoint_waits:
            if self.now_ns < self._checkpoint_due_ns or self.applied_index == self._checkpointed_index:
                return None
            self._checkpoint_due_ns = self.now_ns + CHECKPOINT_INTERVAL_NS
            self._checkpointed_index = self.applied_index
        try:
            return self.store.checkpoint_job(self._committed_index)
        except DiskFullError as error:
            self._checkpointed_index = -1
            self._lacks_space(error)
            return None

    def checkpointed(self, job: CheckpointJob) -> None:
        """The job has run without an error."""
        self.store.checkpointed(job)
        if job.refused is not None:
            self._lacks_space(job.refused)

    def _lacks_space(self, error: DiskFullError) -> None:
        """What only makes a start short, or lets the log's head go, waits for space: it is no reason to stop."""
        self._no_space_until_ns = self.now_ns + NO_SPACE_PAUSE_NS
        log.warning("no space on the disk, tried again later", error=str(error))

    # ------------------------------------------------------------------ the end

    def hand_over(self) -> str | None:
        """Begins to give leadership to the peer that holds most of the log; its id, or None where there is none."""
        peers = [
            peer
            for peer in self.raft.status(self.now_ns).peers
            if peer.voter and peer.connected and not peer.recovering
        ]
        if not peers:
            return None
        target = max(peers, key=lambda peer: peer.match_index).node
        try:
            self.raft.transfer_leadership(target, self.now_ns)
        except RaftError as error:
            log.info("leadership is not handed over", target=target, reason=str(error))
            return None
        self._carry_out()
        return target

    def close(self, now_ns: int) -> None:
        """An orderly stop: everything flushed, the checkpoint written. No call may follow."""
        self._trace.stopped(now_ns)
        try:
            self.store.flush()
            self._waiting_snapshot = None
            self._no_space_until_ns = 0
            self.save_snapshot()
        except BaseException:
            self.store.abandon()
            raise
        self.store.close(self._committed_index)

    # ------------------------------------------------------------------ snapshots and membership

    def _state_snapshot(self) -> bytes:
        return cbor2.dumps(
            {
                "metadata": self.metadata.snapshot(),
                "addresses": self.membership.addresses,
                # Of what is dispatched, and so committed: an end that a truncated entry had reached would leave a hole.
                "queue_ends": msgspec.msgpack.encode(
                    [(queue.topic, queue.queue_id, queue.max_offset) for queue in self.store.queues]
                ),
            }
        )

    def _restore(self, snapshot: bytes) -> Metadata:
        state = cbor2.loads(snapshot)
        self.membership.merge(state["addresses"])
        return Metadata.restore(state["metadata"])

    def _restore_queue_ends(self, snapshot: bytes) -> None:
        """Queues without a unit on this disk go on where the snapshot says, so that no offset is given twice."""
        for topic, queue_id, end in _queue_ends(cbor2.loads(snapshot)):
            queue = self.store.queues.get(topic, queue_id)
            if queue is None:
                queue = self.store.queues.make(topic, queue_id)
            if queue.min_offset == queue.max_offset < end:
                queue.start_at(end)

    def _save_membership(self) -> None:
        self.membership.save(self.raft.configurations)

    def _update_peers(self) -> None:
        raft = self.raft
        # What is committed cannot give way to an earlier configuration any more.
        known = (
            raft.configurations[-1:]
            if raft.configuration_index <= raft.commit_index
            else raft.configurations[-2:]
        )
        self.peers = self.membership.peers(self.node_id, [configuration for _, configuration in known])

    @property
    def is_member(self) -> bool:
        """Whether this node belongs to its group, as far as it knows: not before it is added, nor once it is removed.

        A node that was away when it was removed hears of it from the others; a leader that still writes to it, or a
        newer configuration with it, says more than they.
        """
        raft = self.raft
        if raft.leader is None and self._dismissed_index > raft.configuration_index:
            return False
        return self.node_id in raft.configuration.members

    def dismissed(self, index: int) -> None:
        """Another node says that this one is not in the configuration in force at `index`."""
        if index > self._dismissed_index:
            self._dismissed_index = index
            self._observer.role_changed()

    def _dismiss(self, node: str) -> None:
        index = self.raft.configuration_index
        if index <= self.raft.commit_index:
            self.links[node].send(*peer_protocol.encode_frame(peer_protocol.NotAMember(index)))

    def change_membership(self, change: Change, address: str | None, waiter: Waiter) -> None:
        """Proposes to add, promote or remove a member; `waiter` hears when that is committed, or lost.

        `address` is where a node that is added listens for peers. Raises as `check_may_append`, DiskFullError, and
        `raft.errors.ConfigurationError`.
        """
        self.check_may_append(despite_full_disk=True)
        addresses = self.membership.addresses
        self._log.make_room(CONFIGURATION_BYTES_MAX)  # raft counts the entry as appended before it is
        index = self.raft.propose_configuration(change, self.now_ns)
        if isinstance(change, AddLearner):
            assert address, "a member needs an address"
            addresses[change.node] = address
        self._configuration_waiter = (index, waiter)
        try:
            self._carry_out()
        except DiskFullError as error:
            # Raft has it, the disk has not: this node must stop, not refuse a request.
            raise DiskError("membership", "noting a change", str(error)) from error

    def transfer_leadership(self, target: str) -> None:
        """Begins to hand leadership over to `target`, a voter; given up after an election timeout.

        Raises `NotServingError`, and `raft.errors.RaftError` where raft refuses.
        """
        if not self.serving:
            raise NotServingError(self.raft.leader)
        self.raft.transfer_leadership(target, self.now_ns)
        self._carry_out()

    def delete_expired(self, policy: RetentionPolicy, is_delete_hour: bool) -> int:
        """Deletes the data files at the log's head that may go; how many (log/retention.py)."""
        store, entry_log = self.store, self._log
        starts = entry_log.file_starts()
        if len(starts) < 2:
            return 0

        waiting_from: int | None = None

        def find_waiting() -> int | None:
            nonlocal waiting_from
            waiting_from = first_waiting_index(store, self.metadata)
            return waiting_from

        def delete() -> int:
            return store.delete_expired(
                policy,
                wall_ms=self.wall_ms,
                is_delete_hour=is_delete_hour,
                find_waiting=find_waiting,
            )

        removed = delete()
        if not removed and entry_log.index_at(starts[1]) > store.snapshot_index + 1:
            # Nothing goes that the snapshot does not cover; whether the first file may go shows behind a new one.
            self.save_snapshot()
            removed = delete()
        if removed:
            self.raft.drop_before(entry_log.first_index)
            self._save_membership()
            if waiting_from is not None and waiting_from < entry_log.first_index:
                log.error("messages that still waited went with the head of the log: the disk is nearly full")
        return removed

    def save_snapshot(self) -> None:
        """Writes the applied state durably, as soon as the log is; what comes before it may be deleted then.

        After a start dispatch may begin before what the last snapshot reflects: until it is past that, that one stays.
        A snapshot never reflects what a power failure could still take: if a majority loses it, too, the group goes on
        with other entries in that place, and this node would hold the commands of those for applied.
        """
        if self._waiting_snapshot is None and self.applied_index >= self._metadata_index:
            self._waiting_snapshot = Snapshot(self.applied_index, self._state_snapshot())
        self._write_snapshot()

    def _write_snapshot(self) -> None:
        snapshot = self._waiting_snapshot
        if (
            snapshot is not None
            and snapshot.applied_index <= self._log.durable_index
            and self.now_ns >= self._no_space_until_ns
        ):
            try:
                self.store.save_snapshot(snapshot.applied_index, snapshot.data)
            except DiskFullError as error:
                self._lacks_space(error)
            else:
                self._waiting_snapshot = None


def _queue_ends(state: dict[str, Any]) -> list[tuple[str, int, int]]:
    """(topic, queue id, end) of every queue, from a snapshot; earlier versions kept them as CBOR."""
    kept = state["queue_ends"]
    if isinstance(kept, bytes):
        kept = msgspec.msgpack.decode(kept)
    ends: list[tuple[str, int, int]] = kept
    return ends


def _same_terms(entries: EntryRange, message: AppendRequest) -> bool:
    """Whether the bytes have the terms that the message announced."""
    index = message.prev_index + 1
    spans = []
    for term, count in message.spans:
        spans.append((index, term))
        index += count
    return entries.last_index == index - 1 and entries.term_spans == tuple(spans)

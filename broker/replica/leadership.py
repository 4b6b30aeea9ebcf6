"""A replica as its group's leader: it appends what comes in to the log, and tells those who wait what became of it.

A leadership lasts for one term. Raft has it begin with an entry that says nothing. When all before that one is applied,
the node *serves*: it knows where the queues end, and may answer for the group. When raft ends it, all who wait are told
that the outcome is unknown, and everything here is forgotten. On a node that does not lead it is empty.

Processors see this object, through the ports of broker/node/ports.py, in whatever role the node is.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import structlog

from broker.replica.applied import AppliedState
from broker.replica.basis import Basis
from broker.replica.batch_appends import BatchAppends
from broker.replica.internal_records import COMMAND, INTERNAL_TOPIC_BYTES, NO_OP, append_internal
from broker.replica.members import Members
from broker.replica.options import ReplicaOptions
from broker.replica.proposals import CallbackWaiter, NewMessage, Waiter, ignore
from broker.replica.read_barriers import ReadBarriers
from broker.replica.uncommitted import Uncommitted
from broker.requests.errors import BatchUnderWayError, NotServingError, OverloadedError, ReplicaError
from broker.state.commands import (
    FORMAT_OF_COMMANDS,
    Command,
    RaiseFormat,
    RaiseHead,
    deleted_topics,
    encode_command,
    format_of,
)
from broker.state.metadata import Metadata
from log.errors import DiskFullError
from log.formats.layout import HEADER_BYTES
from log.formats.record import RECORD_BYTES_WITHOUT_VARIABLE_PARTS, SHORT_TOPIC_BYTES_MAX
from raft.effects import AppendNoop
from raft.errors import LeadershipTransferring, NotLeader, ProposalLimit

log = structlog.get_logger("trivet.replica")

_TOLD_A_TURN: Final = 500
"""A few ms: each is answered. There may be 65,536 of them (`limits.max_pending_proposals`), and more behind a batch."""


class Leadership:
    """One node as the leader."""

    def __init__(
        self,
        basis: Basis,
        applied: AppliedState,
        members: Members,
        options: ReplicaOptions,
    ) -> None:
        self.store = store = basis.store
        self.limits = options.limits
        self._log = store.log
        self._encode_record = store.options.loops.encode_record
        self._raft = basis.raft
        self._applied = applied
        self._members = members
        self._disk_space = basis.disk_space
        self._observer = basis.observer
        self._time = basis.time
        self._timings = basis.timings
        self._store_host = options.store_host
        self._uncommitted_bytes_max = options.uncommitted_bytes_max

        self.serving_from: int | None = None
        """While this node leads: the entry that began its term, or that says where its log begins."""
        self.serving = False
        """True when this node leads and all up to `serving_from` is applied: it may answer for the group."""
        self.owes_head = False
        """True while all that this leader lacks to serve is that the log says where it begins, and that all queues
        begin at the group's head: that is tried again in each turn."""
        self.uncommitted = Uncommitted(store.queue_end, options.limits.told_a_turn)
        self.batches = BatchAppends(
            self,
            store.log,
            basis.raft,
            self.uncommitted,
            basis.time,
            options.store_host,
            store.options.batch_messages,
        )
        self.reads = ReadBarriers()
        self.others_first = False
        """Messages wait that came before those which come now; set by the node, which brings them in order."""
        self.untold: deque[Callable[[], None]] = deque()
        """Calls that tell those who waited for what this node has appended in a term that is over. It may lead again by
        then. To be looked at only."""
        self.has_timed_append = False
        """An append was timed in this turn: one of each is, for two clocks a message would be felt."""

    # ------------------------------------------------------------------ the state that it answers from

    @property
    def term(self) -> int:
        """The current term."""
        return self._raft.term

    @property
    def applied_index(self) -> int:
        """The last entry that is dispatched and applied."""
        return self._applied.index

    @property
    def metadata(self) -> Metadata:
        """The replicated state, as of `applied_index`."""
        return self._applied.metadata

    def queue_end(self, topic: str, queue_id: int) -> int:
        """The queue offset that the leader gives to the next message, uncommitted ones counted."""
        return self.uncommitted.queue_end((topic, queue_id))

    @property
    def owes_answers(self) -> bool:
        """Tells whether somebody waits for what this node has appended as the leader."""
        return self.uncommitted.has_waiting or bool(self.untold)

    # ------------------------------------------------------------------ its beginning and its end

    def append_noop(self, effect: AppendNoop) -> None:
        """Begins a term with an entry of its own: by it all that is before it gets committed (5.4.2, 8).

        Later ones are for nodes that have lost their votes (raft/recovery.py, An empty disk).
        """
        # Told by the log's last term: of those that are appended for recovering nodes the term has begun already.
        begins_term = self.store.log.last_term < effect.term
        assert self.uncommitted.is_empty or not begins_term, (
            f"left of an earlier leadership: {self.uncommitted}"
        )
        index = self.append_internal(NO_OP, b"")
        assert index == effect.index, f"no-op written at {index}, raft has {effect.index}"
        if begins_term:
            self.serving_from = index

    def start_serving(self) -> None:
        """Begins to answer for the group: all before this term is applied, and so the queues' ends are known.

        A node whose log begins behind the group's head, as it lacked room for more, has that said by an entry first,
        and serves when this is applied: what it tells of a queue's begin every later leader knows.
        """
        if self._lacks_what_the_group_keeps:
            self._say_where_the_log_begins()
            return
        # All queues begin at the group's head first: an earlier leader may have told of that already.
        self.owes_head = self.store.head_steps is not None
        if self.owes_head:
            return
        self.uncommitted.queue_ends = self.store.queue_ends_behind_dispatch()
        self.serving = True
        log.info("serving", term=self._raft.term, index=self.serving_from)
        self._observer.role_changed()

    @property
    def _lacks_what_the_group_keeps(self) -> bool:
        metadata = self.metadata
        return (
            metadata.head_position < self._log.first_position
            and metadata.format >= FORMAT_OF_COMMANDS[RaiseHead]
        )

    def _say_where_the_log_begins(self) -> None:
        try:
            # Before the entry is written: what raft would refuse must not be in the log.
            self.check_proposal(1)
            index = self.append_internal(COMMAND, encode_command(RaiseHead(self._log.first_position)))
        except (ReplicaError, DiskFullError):
            self.owes_head = True  # leadership is handed over, or there is no room
            return
        self._raft.propose(1)
        self.serving_from = index
        self.owes_head = False

    def stop(self) -> None:
        """Forgets all that only a leader has. Turns tell all who wait, most of them that the outcome is unknown."""
        self.serving_from = None
        self.serving = self.owes_head = False
        # Who waits behind a batch has come after all whose entries are in the log, and is told after them.
        behind_batch = self.batches.abandon()
        self.untold.extend(self.uncommitted.abandon())
        self.untold.extend([waiter.lost for waiter in behind_batch])
        self._members.give_up_change()
        self.reads.abandon_wanted()

    def tell_untold(self) -> None:
        """Tells some of those who waited when the leadership ended; to be called in each turn while there are any."""
        untold = self.untold
        for _ in range(min(len(untold), _TOLD_A_TURN)):
            untold.popleft()()

    # ------------------------------------------------------------------ proposals

    def check_may_append(self, count: int = 1, *, despite_full_disk: bool = False) -> None:
        """Raises `NotServingError`, `OverloadedError` or `DiskFullError` when `count` entries cannot be appended now.

        `BatchUnderWayError`, an `OverloadedError`, keeps messages away while a batch is under way.
        `DiskSpace.refuses_sends` is for messages. What is small, and lets consumers go on, is taken `despite_full_disk`
        until nothing is left: consumer offsets, order locks, topics and consumer groups, members.
        """
        # First of all: a request that finds another leader is forwarded, whatever this node lacks.
        if not self.serving:
            raise NotServingError(self._raft.leader)
        if self._disk_space.refuses_sends and not despite_full_disk:
            raise DiskFullError("the store", "writing", "more of the disk is used than the settings allow")
        if not despite_full_disk and (self.batches.under_way is not None or self.others_first):
            raise BatchUnderWayError("a long batch is being stored")
        if self.uncommitted.bytes > self._uncommitted_bytes_max:
            raise OverloadedError(f"{self.uncommitted.bytes} bytes of the log wait for a majority")
        self.check_proposal(count)

    def check_proposal(self, count: int) -> None:
        """Raises as `check_may_append` where raft does not take `count` entries now."""
        try:
            self._raft.check_proposal(count)
        except (LeadershipTransferring, NotLeader) as error:
            # It leads no more when its removal is committed, and is told so after those who wait for the members.
            raise NotServingError(None) from error
        except ProposalLimit as error:
            raise OverloadedError(str(error)) from error

    def append_message(
        self, message: NewMessage, waiter: Waiter | None, *, told_at_commit: bool = False
    ) -> tuple[int, int]:
        """Appends one message to the leader's log; returns (physical offset of its record, queue offset).

        Call `check_may_append` first. `waiter` is told when the entry is committed. With `told_at_commit` it may be
        told before the entry is dispatched, in the same turn. Raises `log.errors.EntryTooLargeError`, `DiskFullError`,
        `RecordError`, with nothing appended.
        """
        topic_bytes = message.topic.encode()
        assert self.batches.under_way is None, "nothing comes between the messages of a batch"
        assert topic_bytes != INTERNAL_TOPIC_BYTES, "every replica would apply it as a command"
        entry_log, store_host, time = self._log, self._store_host, self._time
        born_host, body, properties = message.born_host, message.body, message.properties
        # The record holds its own offset, which depends on its size: an entry that does not fit begins the next file.
        size = (
            RECORD_BYTES_WITHOUT_VARIABLE_PARTS
            + len(born_host)
            + len(store_host)
            + len(body)
            + len(topic_bytes)
            + len(properties)
        )
        if len(topic_bytes) > SHORT_TOPIC_BYTES_MAX:
            size += 1  # the topic's length takes two bytes
        physical_offset = entry_log.next_position(size) + HEADER_BYTES
        key = (message.topic, message.queue_id)
        queue_offset = self.uncommitted.queue_end(key)
        record = self._encode_record(
            topic_bytes,
            message.queue_id,
            message.flag,
            queue_offset,
            physical_offset,
            message.sys_flag,
            message.born_timestamp,
            born_host,
            time.group_ms,
            store_host,
            message.reconsume_times,
            message.prepared_transaction_offset,
            body,
            properties,
        )
        assert len(record) == size, "the record is where its own offset says"
        # The entry first: its write may fail, and raft must not count what is not there.
        if self.has_timed_append:
            index = entry_log.append(self._raft.term, record)
        else:
            began_ns = self._timings.stopwatch()
            index = entry_log.append(self._raft.term, record)
            self._timings.append.observe(self._timings.stopwatch() - began_ns)
            self.has_timed_append = True
        self._raft.propose(1)
        self.uncommitted.add_messages(
            key, queue_offset + 1, index, size, waiter, told_at_commit=told_at_commit
        )
        return physical_offset, queue_offset

    def propose_command(
        self, command: Command, done: Callable[[Any], None] = ignore, lost: Callable[[], None] = ignore
    ) -> None:
        """Appends a metadata command; `done` gets what `Metadata.apply` returned, once committed.

        Raises as `check_may_append`.
        """
        assert isinstance(command, RaiseFormat) or format_of(command) <= self.metadata.format, (
            "no member may meet a command that it cannot read"
        )
        self.check_may_append(despite_full_disk=True)
        gone = deleted_topics(command)
        if gone and self.batches.under_way is not None:
            raise BatchUnderWayError("a long batch is being stored, and may be for the topic that goes")
        waiter = CallbackWaiter(done, lost)
        index = self.append_internal(COMMAND, encode_command(command))
        # Behind the write, which may fail: then the topic has its queues still.
        for topic in gone:
            # Wherever it is applied, the queues are gone then: what comes behind it in the log begins them anew.
            self.uncommitted.forget_queues(topic)
        self._raft.propose(1)
        self.uncommitted.wait_for_command(index, waiter)

    def append_internal(self, tag: bytes, body: bytes) -> int:
        """Appends a record of the group's own, of which raft knows already or is to be told; returns its index.

        Raises `log.errors.EntryTooLargeError`, `DiskFullError`, with nothing appended.
        """
        index, size = append_internal(
            self._log, self._raft.term, tag, body, self._store_host, self._time.group_ms
        )
        self.uncommitted.add(index, size)
        return index

    # ------------------------------------------------------------------ waiting without a proposal

    def when_applied(self, waiter: Waiter) -> None:
        """Tells `waiter` when all entries that this leader's log has now are applied, or that it stopped leading first.

        A batch that is under way counts as if all of it were in the log. Leader only. The waiter may be told before
        this returns.
        """
        if self.batches.under_way is not None:
            self.batches.under_way.waiting.append(waiter)
            return
        last_index = self._log.last_index
        if last_index <= self._applied.index:
            waiter.committed()
        else:
            self.uncommitted.wait_for_apply(last_index, waiter)

    def read_barrier(
        self, ready: Callable[[], None], lost: Callable[[], None], share: str = "", weight: int = 1
    ) -> None:
        """Calls `ready` when this node's applied state is as new as the call (dissertation 6.4); leader only.

        All barriers of a turn share one round of messages. `share` says whose this one is (`Connection.share`, "" of
        the node's own), and `weight` what `ready` takes (read_barriers.py). Raises `NotServingError`.
        """
        if not self.serving:
            raise NotServingError(self._raft.leader)
        self.reads.add((ready, lost, weight, share))

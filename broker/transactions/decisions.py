"""Decisions: END_TRANSACTION 37, and the operation messages that tell tools of them (see the head of this package).

A decision is appended if the state calls the transaction open and no decision of it is under way. Only this leader
knows what is under way, and forgets it with its term: then the entries are applied or can never be committed. A
repeated decision (of the client, of a node that forwards, of an answered question) waits for the first one, or gets its
response from the log: success if it says the same, else TRANSACTION_FAILED (4). That answer waits, too, since a
decision that is lost with its leader decides nothing. RocketMQ answers every second decision with success; here nobody
is told that a transaction was rolled back that was committed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import structlog

from broker.node.listeners import Listeners
from broker.node.ports import Appends, Requests, State
from broker.reading.queries_processor import committed_record
from broker.remoting.codes import RequestCode, ResponseCode, TransactionOutcome
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import EndTransactionHeader
from broker.replica.proposals import CallbackWaiter, NewMessage, Waiter, ignore, stored_again
from broker.requests.connection import Connection
from broker.requests.deadline import NEVER, Time
from broker.requests.errors import BatchUnderWayError, ReplicaError, RequestError
from broker.requests.processing import OUTCOME_UNKNOWN, HandledOn, Route
from broker.requests.responses import reply
from broker.settings.live import LiveSettings
from broker.state.open_transactions import Transactions
from broker.state.topic_rules import CHECK_EXHAUSTED_TOPIC, HALF_OPERATIONS_TOPIC, HALF_TOPIC, queues_of
from broker.state.transaction_records import (
    HALF_TOPIC_BYTES,
    OPERATION_BYTES_MAX,
    check_immunity_ms,
    committed_properties,
    committed_sys_flag,
    given_up_properties,
    operation_body,
    operation_properties,
)
from broker.state.waiting_messages import destination
from log.errors import DiskFullError, EntryTooLargeError, RecordError
from log.formats.properties import PRODUCER_GROUP, UNIQ_KEY, get_property
from log.formats.record import Record, decode_record, peek

log = structlog.get_logger("trivet.transactions")

OPERATION_DELAY_NS: Final = 3_000_000_000
"""The time for which the operation message of a commit waits for others (`transactionOpBatchInterval`)."""
RETRY_NS: Final = 500_000_000
"""After what could not be appended, the time to the next attempt."""

_CANDIDATES_MAX: Final = 64
"""Records that are looked at for one key, the newest. Who sends to a topic chooses keys, and may use others'."""

_NAMES: Final = {TransactionOutcome.COMMIT: "committed", TransactionOutcome.ROLLBACK: "rolled back"}


@dataclass(slots=True, eq=False)
class _Deciding:
    """A decision that is in the log and not yet committed, and the requests that wait for it."""

    decisions: "Decisions"
    half_offset: int
    outcome: TransactionOutcome | None
    """None where the transaction is given up."""
    requests: list[tuple[Connection, RemotingCommand]] = field(default_factory=list)
    """The requests for this outcome: they get SUCCESS when it is committed."""
    others: list[tuple[Connection, RemotingCommand]] = field(default_factory=list)
    """The requests for another outcome: they are told that the transaction is decided otherwise."""

    def committed(self) -> None:
        self.decisions.decided(self.half_offset)
        for connection, command in self.requests:
            reply(connection, command, ResponseCode.SUCCESS)
        for connection, command in self.others:
            reply(connection, command, ResponseCode.TRANSACTION_FAILED, _decided_otherwise(self.outcome))

    def lost(self) -> None:
        for connection, command in (*self.requests, *self.others):
            reply(connection, command, ResponseCode.SYSTEM_ERROR, OUTCOME_UNKNOWN)


def _decided_otherwise(outcome: TransactionOutcome | None) -> str:
    """Returns the remark of the response to a request that wants another outcome than this, the decided one."""
    what = "given up after too many checks" if outcome is None else _NAMES[outcome]
    return f"the transaction is decided: it was {what}"


class Decisions:
    """Appends all that decides a transaction. `store_host` is this node's address, packed as in a record.

    The keys of `_deciding` are half messages that the committed state still calls open, as long as this node serves.
    """

    def __init__(
        self,
        leadership: Appends,
        requests: Requests,
        settings: LiveSettings,
        time: Time,
        listeners: Listeners,
        store_host: bytes,
    ) -> None:
        self._leadership = leadership
        self._requests = requests
        self._settings = settings
        self._time = time
        self._store_host = store_host
        self._key_prefix = store_host.hex().upper().encode()
        self._deciding: dict[int, _Deciding] = {}
        """By half offset, what this leader has appended and not seen committed."""
        self._operations_under_way = False
        """An operation message is appended and not committed; the next one waits for that."""
        listeners.role_changes.append(self._role_changed)
        self._operations = time.add_deadline(self._write_operations)

    def routes(self) -> Iterable[Route]:
        """Decisions are for the leader, who alone knows which transactions are open."""
        return (Route(RequestCode.END_TRANSACTION, self.end, HandledOn.LEADER),)

    @property
    def state(self) -> Transactions:
        """The open transactions, as far as decisions are committed."""
        return self._leadership.metadata.transactions

    def is_open(self, half_offset: int) -> bool:
        """Tells whether a half message may be decided now."""
        return half_offset not in self._deciding and self.state.is_open(half_offset)

    # ------------------------------------------------------------------ END_TRANSACTION

    def end(self, connection: Connection, command: RemotingCommand) -> None:
        """Handles a producer's commit or rollback; the response comes when the decision is committed.

        Raises `RequestError`, and as `Leadership.check_may_append`, with nothing appended.
        """
        header = command.decode_fields(EndTransactionHeader)
        if committed_record(self._leadership, header.commit_log_offset) is None:
            # This leader may be deposed, and the next one have it: only behind a barrier may it say that there is none.
            self._requests.handle_after_barrier(connection, command, self._end)
        else:
            self._end(connection, command)

    def _end(self, connection: Connection, command: RemotingCommand) -> None:
        header = command.decode_fields(EndTransactionHeader)
        try:
            outcome = TransactionOutcome(header.outcome)
        except ValueError:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"commitOrRollback is {header.outcome}, allowed are 8 (commit), 12 (rollback) and 0 (unknown)",
            ) from None
        half = self._checked_half(header)
        self._check_access(connection, command, half)
        if outcome is TransactionOutcome.UNKNOWN:
            # `EndTransactionProcessor` answers nothing, since nobody waits; the producer will be asked.
            reply(connection, command, ResponseCode.SUCCESS)
            return
        # One entry decides: this request appends it, or joins the request that has, or is told what the log says.
        half_offset = half.queue_offset
        deciding = self._deciding.get(half_offset)
        # Immunity bounds new decisions only: a repeated one hears what the first one came to.
        if deciding is None and self.state.is_open(half_offset):
            self._check_immunity(half, header)
            deciding = (
                self._commit(half)
                if outcome is TransactionOutcome.COMMIT
                else self._append_rollback(half_offset)
            )
        if deciding is not None:
            waiting = deciding.requests if deciding.outcome is outcome else deciding.others
            waiting.append((connection, command))
            return
        decided = self._outcome_of(half)
        if decided is not outcome:
            raise RequestError(ResponseCode.TRANSACTION_FAILED, _decided_otherwise(decided))
        reply(connection, command, ResponseCode.SUCCESS)

    def _checked_half(self, header: EndTransactionHeader) -> Record:
        """Returns the half message that a request names.

        Raises `RequestError` where there is none, or where its place or producer group is not what the request says.
        """
        view = committed_record(self._leadership, header.commit_log_offset)
        if view is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        head = peek(view)
        # What is looked at, and in which order, is `EndTransactionProcessor.checkPrepareMessage`'s, so that clients get
        # its words.
        if view[head.topic_begin : head.topic_end] != HALF_TOPIC_BYTES:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"Find prepared transaction message failed: at {header.commit_log_offset} is another message",
            )
        half = decode_record(view)
        group = get_property(half.properties, PRODUCER_GROUP)
        if group != header.producer_group.encode():
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != header.half_queue_offset:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        if half.physical_offset != header.commit_log_offset:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
        return half

    def _check_access(self, connection: Connection, command: RemotingCommand, half: Record) -> None:
        """Raises `RequestError` for a client that may not publish to the transaction's topic.

        It is checked here for requests that came to other nodes, too: those may not have the half message yet.
        """
        target = destination(half)
        access = self._requests.access
        if access is not None and target is not None:
            access.check_publish(connection.host, command, target.topic)

    def _check_immunity(self, half: Record, header: EndTransactionHeader) -> None:
        """Raises `RequestError` for a decision that comes too late (5.x).

        A producer that asked not to be asked for a while decides within that time, or waits until it is asked.
        """
        immunity_ms = check_immunity_ms(half.properties, self._settings.current.broker.transaction_timeout_ms)
        if immunity_ms is None or header.from_transaction_check:
            return
        if self._time.group_ms - half.born_timestamp > immunity_ms:
            raise RequestError(
                ResponseCode.ILLEGAL_OPERATION,
                f"the message is older than its check immunity of {immunity_ms} ms: wait to be asked",
            )

    def _outcome_of(self, half: Record) -> TransactionOutcome | None:
        """The outcome of a decided transaction, from the log; None for one that was given up.

        Raises `RequestError` where the log does not tell.
        """
        target = destination(half)
        key = get_property(half.properties, UNIQ_KEY)
        if target is None or key is None:
            return TransactionOutcome.ROLLBACK  # it could not be committed
        for topic, outcome in (
            (target.topic, TransactionOutcome.COMMIT),
            (CHECK_EXHAUSTED_TOPIC, None),
        ):
            for view in records_with_key(self._leadership, topic, key, half.physical_offset):
                # Keys are the clients' words: another transaction may have the same one.
                if peek(view).prepared_transaction_offset == half.physical_offset:
                    return outcome
        return TransactionOutcome.ROLLBACK  # which leaves no message

    # ------------------------------------------------------------------ the entries that decide

    def _commit(self, half: Record) -> _Deciding:
        """Appends the message itself, in its true topic. Raises `RequestError` where that cannot take it."""
        target = destination(half)
        config = None if target is None else self._leadership.metadata.topics.get(target.topic)
        if target is None or config is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{'' if target is None else target.topic}] of the transaction does not exist (any more)",
            )
        topic, queue_id = target
        # Nothing is decided: the topic may get the queue back before the transaction is given up.
        if queue_id >= queues_of(config):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{queue_id}] of the transaction is illegal, topic {topic} has fewer queues now",
            )
        message = stored_again(half, topic, queue_id, committed_properties(half))
        message.sys_flag = committed_sys_flag(half)
        return self._decide(half, TransactionOutcome.COMMIT, message)

    def give_up(self, half: Record, times_checked: int) -> None:
        """Appends the copy for operators.

        Raises `RequestError` for one that is too long, and as `Leadership.check_may_append`.
        """
        copy = stored_again(half, CHECK_EXHAUSTED_TOPIC, 0, given_up_properties(half, times_checked))
        self._decide(half, None, copy)

    def forget(self, half_offset: int) -> None:
        """Ends a transaction whose half message is not in the log any more; raises as `Leadership.check_may_append`."""
        self._append_rollback(half_offset)

    def _decide(self, half: Record, outcome: TransactionOutcome | None, message: NewMessage) -> _Deciding:
        """Appends the message that decides; it says of which half message it is."""
        deciding = self._begin(half.queue_offset, outcome)
        message.prepared_transaction_offset = half.physical_offset
        try:
            self._leadership.append_message(message, deciding)
        except (RecordError, EntryTooLargeError) as error:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        # Only what is in the log: a decision that was refused leaves the transaction open.
        self._deciding[half.queue_offset] = deciding
        return deciding

    def _append_rollback(self, half_offset: int) -> _Deciding:
        """Appends the operation message, which is all that there is of a rollback."""
        deciding = self._begin(half_offset, TransactionOutcome.ROLLBACK)
        self._append_operation((half_offset,), deciding)
        self._deciding[half_offset] = deciding
        return deciding

    def _begin(self, half_offset: int, outcome: TransactionOutcome | None) -> _Deciding:
        """Begins a decision, which is to be appended next. Raises as `Leadership.check_may_append`."""
        self._leadership.check_may_append()
        # With two decisions in the log a message could be delivered that its producer was told is rolled back.
        assert self.is_open(half_offset), f"the transaction of half message {half_offset} is decided already"
        return _Deciding(self, half_offset, outcome)

    # ------------------------------------------------------------------ operation messages

    def decided(self, half_offset: int) -> None:
        """A decision is committed and applied."""
        del self._deciding[half_offset]
        self._plan_operations()

    def _plan_operations(self) -> None:
        """Sets the time of the next operation message, if one is owed."""
        owed = len(self.state.operations_owed)
        if owed and not self._operations_under_way:
            delay_ns = 0 if owed >= self._leadership.limits.operations_waiting_max else OPERATION_DELAY_NS
            self._operations.due_ns = min(self._operations.due_ns, self._time.now_ns + delay_ns)

    def _write_operations(self) -> None:
        """Appends one operation message, for as many decisions as it takes; the next when this one is committed."""
        self._operations.due_ns = NEVER
        listed: list[int] = []
        size = 0
        for half_offset in self.state.operations_owed:
            size += len(b"%d," % half_offset)
            if size > OPERATION_BYTES_MAX:
                break
            listed.append(half_offset)
        if not listed:
            return
        try:
            self._leadership.check_may_append()
            # If this node stops leading first, the next leader finds them owed.
            self._append_operation(tuple(listed), CallbackWaiter(self._operations_written, ignore))
        except BatchUnderWayError:
            self._leadership.batches.when_over(self._write_operations)
            return
        except (ReplicaError, DiskFullError) as error:
            log.info("operation messages wait", reason=str(error))
            self._operations.due_ns = self._time.now_ns + RETRY_NS
            return
        self._operations_under_way = True

    def _append_operation(self, half_offsets: tuple[int, ...], waiter: Waiter) -> None:
        group_ms = self._time.group_ms
        unique_key = b"%s%012X%08X" % (self._key_prefix, group_ms, half_offsets[0] & 0xFFFF_FFFF)
        operation = NewMessage(
            HALF_OPERATIONS_TOPIC,
            0,
            0,
            0,
            group_ms,
            self._store_host,
            0,
            operation_body(half_offsets),
            operation_properties(unique_key),
        )
        self._leadership.append_message(operation, waiter)

    def _operations_written(self, _: object) -> None:
        """An operation message of decisions that were committed already is committed and applied."""
        self._operations_under_way = False
        self._plan_operations()

    def _role_changed(self) -> None:
        if not self._leadership.serving:
            # Those who wait hear that the outcome is unknown from their waiters. The next leader has the entries, or
            # nobody ever will.
            self._deciding.clear()
            self._operations_under_way = False
            self._operations.due_ns = NEVER
        else:
            self._plan_operations()

    def half_queue_end(self) -> int:
        """The end of the committed half messages' queue."""
        queue = self._leadership.store.queues.get(HALF_TOPIC, 0)
        return 0 if queue is None else queue.max_offset


def records_with_key(state: State, topic: str, key: bytes, behind: int) -> Iterator[memoryview]:
    """Committed records of a topic, at physical offsets behind `behind`, that the index has under a unique key.

    Hashes collide: a record may have another key. Raises `RequestError` behind the last one where there may be more.
    """
    offsets = state.store.find_by_key(topic, key.decode("utf-8", "replace"), _CANDIDATES_MAX)
    for offset in offsets:
        view = committed_record(state, offset) if offset > behind else None
        if view is not None:
            head = peek(view)
            if view[head.topic_begin : head.topic_end] == topic.encode():
                yield view
    if len(offsets) == _CANDIDATES_MAX and offsets[-1] > behind:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the index leads to {_CANDIDATES_MAX} newer messages of {topic} with this key, or another of its hash, "
            "and no more are looked at: nobody can tell what became of the transaction",
        )

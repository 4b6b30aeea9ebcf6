"""Questions about undecided transactions: CHECK_TRANSACTION_STATE 39, giving up, RESUME_CHECK_HALF_MESSAGE 323.

Every `transaction_check_interval_ms` a leader looks at all open transactions. For each that is older than
`transaction_timeout_ms` (or than the CHECK_IMMUNITY_TIME_IN_SECONDS that it was sent with) it asks one client of the
producer group, another one each time, through the node that the client is connected to. After `transaction_check_max`
questions, or when it is older than the log is kept for, a transaction is given up into TRANS_CHECK_MAX_TIME_TOPIC:
there an operator finds it and may have it asked about again (323).

Only questions that can be sent are counted. RocketMQ counts on while no producer of the group lives, and so gives up
the transactions of an application that was down for some minutes.

A pass is cut into slices, one at a time under way, so that a hundred thousand open transactions neither fill the log's
window nor keep clients waiting.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import structlog

from broker.delayed.deliveries import tell_of_damage, tell_of_refusal
from broker.node.client_registry import ClientRegistry
from broker.node.consumer_group import RegisteredClient
from broker.node.listeners import Listeners
from broker.node.ports import Appends, Requests
from broker.reading.queries_processor import committed_record
from broker.remoting.admin_headers import ResumeCheckHalfMessageHeader
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, encode, request
from broker.remoting.headers import CheckTransactionStateHeader
from broker.remoting.opaques import Opaques
from broker.replica.proposals import CallbackWaiter, stored_again
from broker.requests.connection import Connection
from broker.requests.deadline import NEVER, Time
from broker.requests.errors import BatchUnderWayError, ReplicaError, RequestError
from broker.requests.processing import HandledOn, Route
from broker.requests.responses import reply, reply_unknown
from broker.settings.live import LiveSettings
from broker.state.commands import CheckTransactions, CommitOffsets, PutTopic, ResumeTransaction
from broker.state.topic_rules import CHECK_EXHAUSTED_TOPIC, HALF_OPERATIONS_TOPIC, HALF_TOPIC, topic_config
from broker.state.transaction_records import (
    CHECK_TIMES,
    check_immunity_ms,
    resumed_properties,
)
from broker.state.waiting_messages import destination
from broker.statistics.events import Events
from broker.transactions.decisions import Decisions, records_with_key
from log.errors import DamagedLogError, DiskFullError, EntryTooLargeError, OutOfRangeError, RecordError
from log.formats.message_id import offset_message_id, parse_offset_message_id
from log.formats.properties import (
    PRODUCER_GROUP,
    REAL_TOPIC,
    UNIQ_KEY,
    get_property,
    with_property,
    without_properties,
)
from log.formats.record import Record, RecordHead, decode_record, peek

log = structlog.get_logger("trivet.transactions")

PROGRESS_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""Its offsets in the half and operation topics tell RocketMQ, and its tools, what is over."""

SLICE_BYTES_MAX: Final = 4 * 1024 * 1024
"""The bytes of bodies that are read for the questions of one slice."""
UNSENT_BYTES_MAX: Final = 4 * 1024 * 1024
"""A producer that leaves more unread is not asked."""
RETRY_NS: Final = 500_000_000
GROUPS_REMEMBERED_MAX: Final = 10_000
"""Producer groups whose turns are remembered; with more, all begin again."""


class TransactionChecks:
    """Asks producers while this node serves.

    A slice is under way from the proposal of its command until that is applied; then its questions are sent. A node
    that does not serve has nothing under way and nothing remaining.
    """

    def __init__(
        self,
        decisions: Decisions,
        leadership: Appends,
        requests: Requests,
        registry: ClientRegistry[Connection],
        settings: LiveSettings,
        time: Time,
        listeners: Listeners,
        events: Events,
    ) -> None:
        self._events = events
        self._decisions = decisions
        self._leadership = leadership
        self._requests = requests
        self._registry = registry
        self._settings = settings
        self._time = time
        self._check_max = settings.current.broker.transaction_check_max
        self._interval_ns = settings.current.broker.transaction_check_interval_ms * 1_000_000
        self._pass_due_ns = NEVER
        self._remaining: deque[int] = deque()
        """The open half messages that this pass has yet to look at."""
        self._under_way = False
        """The command of a slice is in the log, and its questions wait for that; the next slice waits for both."""
        self._topic_under_way = False
        """The creation of TRANS_CHECK_MAX_TIME_TOPIC was proposed in this term."""
        self._asked: dict[str, int] = {}
        """By producer group, the number of questions so far; it says which client's turn it is."""
        self._resuming: dict[str, None] = {}
        """Message ids whose new half message is not committed yet."""
        self._opaques = Opaques()
        self.observer: Callable[[Record], None] | None = None
        """Hears of each half message whose question is about to be counted; only watches."""
        listeners.role_changes.append(self._role_changed)
        self._deadline = time.add_deadline(self._run)

    def routes(self) -> Iterable[Route]:
        """Only an operator's order is a request; questions come by themselves."""
        return (Route(RequestCode.RESUME_CHECK_HALF_MESSAGE, self.resume, HandledOn.LEADER_READ),)

    def _role_changed(self) -> None:
        if not self._leadership.serving:
            self._deadline.due_ns = self._pass_due_ns = NEVER
            self._remaining.clear()
            self._under_way = False
            self._topic_under_way = False
            self._resuming.clear()
        elif self._deadline.due_ns == NEVER:
            self._deadline.due_ns = self._pass_due_ns = self._time.now_ns + self._interval_ns

    # ------------------------------------------------------------------ a pass

    def _run(self) -> None:
        """Begins a pass when it is time, and looks at a slice of it unless one is under way."""
        now_ns = self._time.now_ns
        if now_ns >= self._pass_due_ns:
            self._pass_due_ns = now_ns + self._interval_ns
            # Of very many a pass takes longer than the interval: the one under way goes on instead.
            if not self._remaining:
                self._remaining.extend(self._decisions.state.open_before(self._decisions.half_queue_end()))
                self._note_progress()
        self._deadline.due_ns = self._pass_due_ns
        if self._remaining and not self._under_way:
            try:
                self._check_slice()
            except BatchUnderWayError:
                self._leadership.batches.when_over(self._run)
                return
            except (ReplicaError, DiskFullError) as error:
                tell_of_refusal(self._events, "transactions", error, now_ns)
                self._deadline.due_ns = now_ns + RETRY_NS
                return
            if self._remaining and not self._under_way:
                # Nobody was asked: the rest in further turns, others wait, too.
                self._deadline.due_ns = now_ns

    def _check_slice(self) -> None:
        """Looks at the next transactions, and has the questions counted that they need.

        Raises as `Leadership.check_may_append`; then the slice is looked at again.
        """
        questions: list[Record] = []
        size = 0
        looked_at = 0
        remaining = self._remaining
        most = min(self._leadership.limits.transactions_at_once, len(remaining))
        while looked_at < most and size < SLICE_BYTES_MAX:
            try:
                half = self._ask_or_give_up(remaining[looked_at])
            except DamagedLogError as error:
                # It may be whole again in the next pass; the others need not wait for that.
                tell_of_damage(self._events, "transactions", error, self._time.now_ns)
                half = None
            if half is not None:
                if self.observer is not None:
                    self.observer(half)
                questions.append(half)
                size += len(half.body)
            looked_at += 1
        if questions:
            # Questions are counted: while no producer could commit, because the disk is full, nobody is asked.
            self._leadership.check_may_append()
            self._leadership.propose_command(
                CheckTransactions(tuple(half.queue_offset for half in questions)),
                lambda _: self._ask(questions),
            )
            self._under_way = True
        # Not before the command is in the log: a refused slice is looked at again, all of it.
        for _ in range(looked_at):
            remaining.popleft()

    def _ask_or_give_up(self, half_offset: int) -> Record | None:
        """Returns the half message if its producer is to be asked now, and gives it up if that is due.

        Raises as `give_up`.
        """
        decisions = self._decisions
        if not decisions.is_open(half_offset):
            return None
        found = self._half(half_offset)
        if found is None:
            decisions.forget(half_offset)
            return None
        record, head = found
        age_ms = self._time.group_ms - head.store_timestamp
        times = decisions.state.times(half_offset)
        reserved_ms = self._settings.current.retention.reserved_hours * self._leadership.limits.hour_ms
        # One that is as old as the log may get would keep the head of the log (broker/retention/waited_for.py).
        if times >= self._check_max or age_ms > reserved_ms:
            self._give_up(decode_record(record), times)
            return None
        properties = bytes(record[head.properties_begin : head.properties_end])
        timeout_ms = self._settings.current.broker.transaction_timeout_ms
        immunity_ms = check_immunity_ms(properties, timeout_ms)
        # A negative age says that the clock was set back: better asked than forgotten.
        if 0 <= age_ms <= (timeout_ms if immunity_ms is None else immunity_ms):
            return None
        # Looked for before anything is counted: without a producer there is no question.
        if self.producer_of(properties) is None:
            return None
        return decode_record(record)

    def _half(self, half_offset: int) -> tuple[memoryview, RecordHead] | None:
        """The record of a half message; None where retention or damage took it."""
        store = self._leadership.store
        queue = store.queues.get(HALF_TOPIC, 0)
        unit = None if queue is None else queue.unit(half_offset)
        if queue is None or unit is None:
            return None
        try:
            record = store.record_of(queue, half_offset, unit)
            return record, peek(record)
        except (OutOfRangeError, RecordError) as error:
            log.warning("half message dropped", offset=half_offset, reason=str(error))
            return None

    def _give_up(self, half: Record, times: int) -> None:
        log.warning(
            "transaction given up", offset=half.queue_offset, asked=times, group=_group_of(half.properties)
        )
        if CHECK_EXHAUSTED_TOPIC not in self._leadership.metadata.topics and not self._topic_under_way:
            topic = topic_config(CHECK_EXHAUSTED_TOPIC, 1)
            self._leadership.propose_command(PutTopic(topic, self._time.group_ms, if_absent=True))
            self._topic_under_way = True
        try:
            # Behind the command that makes the topic, if there was none: so it exists wherever the copy is applied.
            self._decisions.give_up(half, times)
        except RequestError as error:
            log.warning("half message dropped", offset=half.queue_offset, reason=error.remark)
            self._decisions.forget(half.queue_offset)

    def _note_progress(self) -> None:
        """Stores offsets as RocketMQ does: what lies before them needs no second look."""
        metadata = self._leadership.metadata
        state = metadata.transactions
        end = self._decisions.half_queue_end()
        first_open = state.first_open(end)
        queue = self._leadership.store.queues.get(HALF_OPERATIONS_TOPIC, 0)
        progress = {HALF_TOPIC: first_open}
        # Operation messages stand in the order of decisions, not of half messages: only when all is decided and written
        # nothing before their end is needed.
        if queue is not None and first_open == end and not state.operations_owed:
            progress[HALF_OPERATIONS_TOPIC] = queue.max_offset
        changed = tuple(
            (PROGRESS_GROUP, topic, 0, offset)
            for topic, offset in progress.items()
            if metadata.offsets.get((PROGRESS_GROUP, topic), {}).get(0, 0) != offset
        )
        if changed:
            try:
                self._leadership.propose_command(CommitOffsets(changed))
            except (ReplicaError, DiskFullError):
                pass  # the next pass says it again

    # ------------------------------------------------------------------ questions

    def _ask(self, halves: list[Record]) -> None:
        """Sends the questions, which are counted now."""
        assert self._under_way, "the questions of one slice are asked at a time"
        self._under_way = False
        self._deadline.due_ns = self._time.now_ns
        for half in halves:
            # It may have been decided, or its producer gone, while the count was on its way through the log.
            client = self.producer_of(half.properties) if self._decisions.is_open(half.queue_offset) else None
            target = destination(half)
            if client is not None and target is not None:
                try:
                    question = self._question(half, *target)
                except (RecordError, ValueError) as error:
                    # The message was taken by a version that left no room for this; it is given up some day.
                    log.warning("question not sent", offset=half.queue_offset, reason=str(error))
                    continue
                client.connection.send(question)
                group = _group_of(half.properties)
                if len(self._asked) >= GROUPS_REMEMBERED_MAX:
                    self._asked.clear()
                self._asked[group] = self._asked.get(group, 0) + 1

    def _question(self, half: Record, topic: str, queue_id: int) -> bytes:
        """The frame of a question: the half message as its producer made it, and where it is in the log.

        Raises `RecordError` or `ValueError` for one that is too long.
        """
        # The client reads topic, queue and count from the record, and names the half message by the header's offsets.
        times = self._decisions.state.times(half.queue_offset)
        shown = replace(
            half,
            topic=topic,
            queue_id=queue_id,
            properties=with_property(
                without_properties(half.properties, CHECK_TIMES), CHECK_TIMES, b"%d" % times
            ),
        )
        unique_key = (get_property(half.properties, UNIQ_KEY) or b"").decode("utf-8", "replace")
        header = CheckTransactionStateHeader(
            half_queue_offset=half.queue_offset,
            commit_log_offset=half.physical_offset,
            message_id=unique_key,
            transaction_id=unique_key,
            offset_message_id=offset_message_id(half.store_host, half.physical_offset),
            topic=HALF_TOPIC,
            broker_name=self._settings.current.node.group,
        )
        question = request(
            RequestCode.CHECK_TRANSACTION_STATE,
            header,
            shown.encode(),
            opaque=self._opaques.next(),
            one_way=True,
        )
        return encode(question)

    def producer_of(self, properties: bytes) -> RegisteredClient[Connection] | None:
        """Returns the client of a half message's producer group whose turn it is to be asked.

        Passed over are clients that do not read, and those that may not publish to the message's topic: a question
        shows all of it, and producer groups have no owner.
        """
        group, access = _group_of(properties), self._requests.access
        topic = (get_property(properties, REAL_TOPIC) or b"").decode("utf-8", "replace")
        clients = self._registry.producer_members(group)
        first = self._asked.get(group, 0)
        for number in range(len(clients)):
            client = clients[(first + number) % len(clients)]
            connection = client.connection
            if access is not None and not access.may_publish(connection.host, client.access_key, topic):
                continue
            if connection.unsent_bytes <= UNSENT_BYTES_MAX and not connection.is_link_full():
                return client
        return None

    # ------------------------------------------------------------------ RESUME_CHECK_HALF_MESSAGE

    def resume(self, connection: Connection, command: RemotingCommand) -> None:
        """Makes a transaction open again that was given up, or has an open one asked about from the start.

        Raises `RequestError` for an id of no such message, and as `Leadership.check_may_append`.
        """
        header = command.decode_fields(ResumeCheckHalfMessageHeader)
        try:
            _, physical_offset = parse_offset_message_id(header.message_id)
        except RecordError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        view = committed_record(self._leadership, physical_offset)
        record = None if view is None else decode_record(view)
        if record is None or record.topic not in (HALF_TOPIC, CHECK_EXHAUSTED_TOPIC):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"{header.message_id} is no half message and none that was given up (in {CHECK_EXHAUSTED_TOPIC})",
            )
        if record.topic == HALF_TOPIC:
            self._ask_from_the_start(connection, command, record.queue_offset)
            return
        # It was given up: its half message is stored anew, once, however often that is ordered.
        again = self._resumed_already(record)
        if again is not None:
            self._ask_from_the_start(connection, command, again.queue_offset)
            return
        # Until it is committed the index does not lead to the new half message.
        if header.message_id in self._resuming:
            raise RequestError(ResponseCode.SYSTEM_BUSY, f"{header.message_id} is being resumed")
        self._leadership.check_may_append()
        waiter = CallbackWaiter(
            lambda _: self._resumed(header.message_id, connection, command),
            # Told late, maybe: the same order may have come anew by then, to this node in a later term.
            lambda: reply_unknown(connection, command),
        )
        try:
            self._leadership.append_message(
                stored_again(record, HALF_TOPIC, 0, resumed_properties(record)), waiter
            )
        except (RecordError, EntryTooLargeError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        self._resuming[header.message_id] = None

    def _resumed(self, message_id: str, connection: Connection, command: RemotingCommand) -> None:
        """Answers an order whose new half message is committed."""
        del self._resuming[message_id]
        reply(connection, command, ResponseCode.SUCCESS)

    def _ask_from_the_start(self, connection: Connection, command: RemotingCommand, half_offset: int) -> None:
        """Has the questions counted anew. Raises `RequestError` for a transaction that is decided."""
        if not self._decisions.is_open(half_offset):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the transaction is decided, or was given up: then the message is in {CHECK_EXHAUSTED_TOPIC}",
            )
        self._leadership.propose_command(
            ResumeTransaction(half_offset),
            lambda _: reply(connection, command, ResponseCode.SUCCESS),
            lambda: reply_unknown(connection, command),
        )

    def _resumed_already(self, given_up: Record) -> Record | None:
        """The half message that an earlier order has made of one that was given up.

        Raises `RequestError` where the log does not tell.
        """
        key = get_property(given_up.properties, UNIQ_KEY)
        if key is not None:
            for view in records_with_key(self._leadership, HALF_TOPIC, key, given_up.physical_offset):
                record = decode_record(view)
                if get_property(record.properties, UNIQ_KEY) == key:
                    return record
        return None


def _group_of(properties: bytes) -> str:
    return (get_property(properties, PRODUCER_GROUP) or b"").decode("utf-8", "replace")

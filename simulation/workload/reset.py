"""Consumer groups that an administrator sends elsewhere while they read, or while nobody of them is there.

Each machine has a member of one consumer group, which comes and goes, and a plain reader with a consumer group of its
own; and an administrator who has any of these consumer groups reset: by time or of one queue, with force or without.
`reset_rules` says what must hold of that. Half of the readers bring their offset with each pull, as Java's consumers
do.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from broker.client.admin import AdminClient
from broker.client.consuming.consumer import Consumer
from broker.client.consuming.intake import FetchLimits
from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.errors import ClientError, ConnectionFailed
from broker.client.message import Message, MessageQueue, trace_key
from broker.client.transport.connection import Connection, Fields
from broker.client.transport.core import BUSY_CODES
from broker.client.transport.runtime import Buffer, Runtime
from broker.remoting.admin_bodies import QueueOffsets
from broker.remoting.codes import PullSysFlag, RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.requests.processing import OUTCOME_UNKNOWN
from broker.trace import TraceHeader, TraceWriter
from broker.trace.format import FAIL, OK
from simulation.journal import Violation
from simulation.judges.client_judge import ClientWriter
from simulation.randomness import Random
from simulation.workload.context import Context
from simulation.workload.reset_rules import TOPIC, Member, Report, ResetRequest, Resets
from simulation.workload.sending import send_now_and_then
from simulation.workload.watched_pool import Attempt, WatchedPool

GROUP: Final = "listeners"

_ASKED: Final = (
    RequestCode.PULL_MESSAGE,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.GET_MIN_OFFSET,
)
_LIMITS: Final = FetchLimits(messages=8, batch=8, suspend_s=4.0)
"""Low limits: a reader with much to do would pull nothing, and so hear of no order, while it goes on and reports."""
_SEND_PAUSE_S: Final = 0.8
_RESET_PAUSE_S: Final = 4.0
_COMMITS: Final = 0.15
"""The share of messages or polls after which the offset is stored."""
_IS_LONG: Final = 0.1
_LONG_S: Final = 1.0
"""The share of messages whose handling takes long, and the longest time of it."""


class _Reports(ClientWriter):
    """Tells judge and rules what a member asks and reports. Nothing is written: a trace knows no resets."""

    __slots__ = ("_context", "_member", "_open")

    def __init__(self, context: Context, member: Member, name: str) -> None:
        header = TraceHeader("client", name, "", 0)
        super().__init__(lambda data: None, header, context.judges.of, lambda: context.scheduler.now_ns)
        self._context = context
        self._member = member
        self._open: dict[int, Report] = {}

    def flush(self) -> None:
        """Forgets what is buffered: there is no file."""
        self._buffer.clear()

    def invoke_commit_offset(self, time_ns: int, process: str, key: str, group: str, offset: int) -> int:
        """Notes a report that leaves."""
        operation = super().invoke_commit_offset(time_ns, process, key, group, offset)
        topic, _, queue = key.rpartition("/")
        if topic == TOPIC:
            self._open[operation] = self._member.reports(int(queue.rpartition(":")[2]), offset)
        return operation

    def _end(self, record: tuple[Any, ...]) -> None:
        try:
            super()._end(record)
        except Violation as violation:
            self._context.journal.found(violation)  # at once: the client's tasks take a while to end
            raise
        if record[0] in (OK, FAIL):
            self.taken(record[2])

    def taken(self, operation: int) -> None:
        """Notes that a broker has had a report: if it counts, it comes before all that is asked from now on."""
        report = self._open.pop(operation, None)
        if report is not None:
            report.until_ns = self._now_ns()


async def reset(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Sends, reads as a member and as a plain reader, and has consumer groups reset."""
    rules = context.invariant(Resets)
    random = runtime.random

    def chapter() -> Message:
        return Message(TOPIC, random.randbytes(random.choice((10, 200))))

    reader_group = f"listener-{runtime.local_address().replace('.', '-')}"
    async with runtime.task_group() as group:
        group.start_soon(send_now_and_then, context, runtime, "authors", _SEND_PAUSE_S, chapter)
        group.start_soon(_administer, context, runtime, rules, (GROUP, reader_group))
        group.start_soon(_read, context, runtime, rules, reader_group)
        while True:
            await _consume(context, runtime, rules)
            longest_s = 1.0 if context.is_calm() else 6.0
            await runtime.sleep(longest_s * random.random())


# ---- readers -------------------------------------------------------------------------------------------------


async def _consume(context: Context, runtime: Runtime, rules: Resets) -> None:
    """Reads as a member of the consumer group for a while."""
    random = runtime.random
    member = Member(rules, GROUP, f"member {runtime.local_address()}")
    consumer = Consumer(
        context.name_servers,
        group=GROUP,
        topics=TOPIC,
        start="first",
        limits=_LIMITS,
        trace=_Reports(context, member, "listener"),
        runtime=runtime,
    )

    hears_calls = random.random() < 0.5
    """False for a client that is not called, as Java's of 5.x, and follows what its pulls are told."""

    def called(connection: Connection, command: RemotingCommand) -> None:
        if not hears_calls:
            return
        reads = consumer.assignment()
        try:
            for queue, offset in QueueOffsets.decode(command.body).offsets.items():
                if MessageQueue(queue.topic, queue.broker_name, queue.queue_id) in reads:
                    member.sent(queue.queue_id, offset)
        except Violation as violation:
            context.journal.found(violation)
        # The judge has heard of the order before the client: what that reports from now on may not be of before.
        assert follow is not None, "a consumer follows such calls"
        follow(connection, command)

    follow = consumer.core.on_request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, called)
    async with consumer:
        consumer.core.pool = WatchedPool(consumer.core.pool, _ASKED, member.asking)
        with runtime.move_on_after(context.stay_s(random, 15)):
            async for message in consumer:
                member.got(message)
                await _handle(context, runtime, consumer)


async def _read(context: Context, runtime: Runtime, rules: Resets, group: str) -> None:
    """Reads all queues from where the consumer group stands when the process begins, until it is sent elsewhere."""
    random = runtime.random
    member = Member(rules, group, f"reader {runtime.local_address()}")
    reports = _Reports(context, member, group)
    brings_offset = random.random() < 0.5

    @contextmanager
    def asking(fields: Fields, body: Buffer) -> Iterator[Attempt]:
        brought = None
        if brings_offset and isinstance(fields, dict) and "queueOffset" in fields:
            brought = bring(fields)
        with member.asking(fields, body) as attempt:
            yield attempt
        if brought is not None and attempt.answer is not None:
            reports.taken(brought)

    def bring(fields: dict[str, str]) -> int | None:
        queue_id = int(fields["queueId"])
        for queue, offset in consumer.positions().items():
            if queue.queue_id == queue_id:
                fields["sysFlag"] = str(int(fields["sysFlag"]) | PullSysFlag.COMMIT_OFFSET)
                fields["commitOffset"] = str(offset)
                operation = reports.invoke_commit_offset(0, group, trace_key(queue), group, offset)
                reports.info(0, operation)  # nothing ever says what became of it
                return operation
        return None

    async with PullConsumer(
        context.name_servers, group=group, limits=_LIMITS, trace=reports, runtime=runtime
    ) as consumer:
        consumer.core.pool = WatchedPool(consumer.core.pool, _ASKED, asking)
        await _assign(consumer, runtime)
        while True:
            for message in await consumer.poll(max_messages=random.choice((1, 5, 32)), timeout_s=1.0):
                member.got(message)
            await _handle(context, runtime, consumer)


async def _handle(context: Context, runtime: Runtime, consumer: Consumer | PullConsumer) -> None:
    """Takes long over what was read, now and then, and stores the offsets, now and then."""
    random = runtime.random
    if random.random() < _IS_LONG and not context.is_calm():
        await runtime.sleep(random.random() * _LONG_S)
    if random.random() < _COMMITS:
        try:
            await consumer.commit()
        except ClientError:
            pass


async def _assign(consumer: PullConsumer, runtime: Runtime) -> None:
    starts: dict[MessageQueue, int] | None = None
    while starts is None:
        try:
            starts = {queue: await _find_start(consumer, queue) for queue in await consumer.queues(TOPIC)}
        except ClientError:
            await runtime.sleep(0.2)
    consumer.assign(starts)


async def _find_start(consumer: PullConsumer, queue: MessageQueue) -> int:
    """Returns the stored offset of the consumer group in a queue, or where the queue begins if there is none."""
    stored = await consumer.committed(queue)
    return await consumer.min_offset(queue) if stored is None else stored


# ---- the administrator ---------------------------------------------------------------------------------------


async def _administer(context: Context, runtime: Runtime, rules: Resets, groups: tuple[str, str]) -> None:
    random = runtime.random
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    async with AdminClient(context.name_servers, runtime=runtime) as admin:
        while True:
            await context.pause(runtime, _RESET_PAUSE_S)
            try:
                addresses = [
                    address
                    for broker in (await admin.cluster_info()).broker_table.values()
                    for address in broker.broker_addresses.values()
                ]
            except ClientError:
                continue
            if not addresses:
                continue
            request = _draw(context, rules, random, random.choice(groups))
            rules.asks(request)
            try:
                answer = await admin.call(random.choice(addresses), code, _fields(request))
            except ConnectionFailed as error:
                # A request that has left may be carried out at any time from now on: its order may come later.
                if not error.request_left:
                    rules.refused(request, str(error))
            else:
                _judge(rules, request, answer)


def _draw(context: Context, rules: Resets, random: Random, group: str) -> ResetRequest:
    """Draws a reset: most are by time, to a message, to a moment beside it, or to the end."""
    now_ns = context.scheduler.now_ns
    times = rules.times()
    queue_id = random.randrange(context.facts.queues) if random.random() < 0.5 else None
    if queue_id is not None and random.random() < 0.5:
        end = rules.end(queue_id)
        return ResetRequest(group, now_ns, 0, False, queue_id, random.randrange(end + 2))
    timestamp_ms = (
        random.choice(times) + random.choice((-1, 0, 1)) if times and random.random() < 0.85 else -1
    )
    return ResetRequest(group, now_ns, timestamp_ms, random.random() < 0.5, queue_id, None)


def _fields(request: ResetRequest) -> dict[str, str]:
    fields = {
        "topic": TOPIC,
        "group": request.group,
        "timestamp": str(request.timestamp_ms),
        "isForce": "true" if request.is_force else "false",
    }
    if request.queue_id is not None:
        fields["queueId"] = str(request.queue_id)
    if request.offset is not None:
        fields["offset"] = str(request.offset)
    return fields


def _judge(rules: Resets, request: ResetRequest, answer: RemotingCommand) -> None:
    if answer.code == ResponseCode.SUCCESS:
        offsets = QueueOffsets.decode(answer.body).offsets
        rules.acknowledged(request, {queue.queue_id: offset for queue, offset in offsets.items()})
    elif answer.code in BUSY_CODES or answer.remark != OUTCOME_UNKNOWN:
        rules.refused(request, f"{answer.code}: {answer.remark}")

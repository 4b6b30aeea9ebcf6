"""A topic that is written and read, deleted, and made again; messages as long as one may be, and longer.

Its readers' consumer group is sent elsewhere now and then just before the topic goes, so that nobody has followed yet;
and others go on telling where they are, one way, while it goes and is made again.

What is sent while the topic goes may be refused, or be stored behind the deletion and begin the queue anew: both are
right, as long as what is acknowledged is where the answer says, and a queue of the new topic holds nothing of the old.
That the nodes' queues begin anew the judges of all runs see: the group's model numbers messages as the log does.
"""

from typing import Final

from broker.client.admin import AdminClient
from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.errors import ClientError, MessageRejected
from broker.client.message import Message, MessageQueue, MessageView, SendResult, trace_key
from broker.client.producing.producer import Producer
from broker.client.transport.runtime import Runtime, TaskGroup
from broker.remoting.codes import RequestCode, ResponseCode
from broker.trace import TraceWriter
from simulation.journal import Violation
from simulation.judges.group_model import CommittedMessage
from simulation.workload.context import Context, Invariant

TOPIC: Final = "flats"
BODY_BYTES_MAX: Final = 4096
"""The setting of the simulated brokers."""

_LANES: Final = 2
_SEND_PAUSE_S: Final = 0.3
_LIFE_S: Final = 3.0
_READERS: Final = "lookers"
_TELLERS: Final = "tellers"
_ORDERS: Final = 0.5
"""The share of the topic's lives that end with an order to its readers."""
_REPORTS: Final = 12
_BETWEEN_REPORTS_S: Final = 0.0008
_LENGTHS: Final = (1, 100, 700, BODY_BYTES_MAX - 1, BODY_BYTES_MAX, BODY_BYTES_MAX + 1, 2 * BODY_BYTES_MAX)


class Tenancies(Invariant):
    """Acknowledged messages are where the answer says, readers get nothing else, and no body is longer than allowed."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._held: dict[tuple[int, int], list[CommittedMessage]] = {}
        """Queue id and offset -> what has been committed there, in all lives of the topic."""

    def committed(self, message: CommittedMessage) -> None:
        """Notes where a message is. Raises Violation."""
        record = message.record
        if record.topic == TOPIC:
            if len(record.body) > BODY_BYTES_MAX:
                raise Violation("bodies are as long as allowed", "group", f"{len(record.body)} bytes")
            self._held.setdefault((record.queue_id, record.queue_offset), []).append(message)

    def acknowledged(self, result: SendResult, length: int) -> None:
        """Judges an acknowledgement. Raises Violation."""
        place = (result.queue.queue_id, result.queue_offset)
        keys = [held.property(b"UNIQ_KEY") for held in self._held.get(place, ())]
        if result.message_id not in keys or length > BODY_BYTES_MAX:
            raise Violation(
                "what a topic takes is there", "tenants", f"{result.message_id} of {length} bytes at {place}"
            )
        self.context.journal.did("message to a topic that comes and goes")

    def refused(self, length: int, error: MessageRejected) -> None:
        """Judges a refusal: only what is too long is refused for what it is. Raises Violation."""
        if length <= BODY_BYTES_MAX:
            raise Violation("what may be stored is not refused", "tenants", f"{length} bytes: {error}")
        self.context.journal.did("message that is too long")

    def read(self, message: MessageView) -> None:
        """Judges what a reader gets. Raises Violation."""
        place = (message.queue.queue_id, message.queue_offset)
        if not any(held.record.body == message.body for held in self._held.get(place, ())):
            raise Violation("messages are read as they were committed", "tenants", f"{TOPIC} at {place}")
        self.context.journal.did("message of a topic that comes and goes")


async def tenant(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Makes the topic, lives in it for a while, deletes it, and begins anew. Raises Violation."""
    async with runtime.task_group() as group:
        lives = _Tenant(context, runtime)
        for _ in range(_LANES):
            group.start_soon(lives.send)
        group.start_soon(lives.read)
        async with AdminClient(context.name_servers, runtime=runtime) as admin:
            await lives.move(admin, group)


class _Tenant:
    """The work of one process. Each part goes on for ever, and raises Violation."""

    def __init__(self, context: Context, runtime: Runtime) -> None:
        self._context = context
        self._runtime = runtime
        self._random = runtime.random
        self._invariant = context.invariant(Tenancies)

    async def send(self) -> None:
        """Sends messages of all lengths."""
        context, runtime = self._context, self._runtime
        async with Producer(
            context.name_servers, group="tenants", retry_unknown=True, runtime=runtime
        ) as producer:
            while True:
                await context.pause(runtime, _SEND_PAUSE_S)
                length = self._random.choice(_LENGTHS)
                try:
                    result = await producer.send(Message(TOPIC, self._random.randbytes(length)))
                except MessageRejected as error:
                    self._invariant.refused(length, error)
                except ClientError:
                    await runtime.sleep(0.05)
                else:
                    self._invariant.acknowledged(result, length)

    async def read(self) -> None:
        """Reads the topic from its begin on, again and again."""
        runtime = self._runtime
        while True:
            async with PullConsumer(self._context.name_servers, group=_READERS, runtime=runtime) as consumer:
                try:
                    # From 0, whichever life of the topic this is: with each the offsets begin anew.
                    consumer.assign(dict.fromkeys(await consumer.queues(TOPIC), 0))
                    for _ in range(self._random.randrange(1, 8)):
                        for message in await consumer.poll(timeout_s=0.5):
                            self._invariant.read(message)
                except ClientError:
                    pass
            await runtime.sleep(self._random.random())

    async def move(self, admin: AdminClient, group: TaskGroup) -> None:
        """Makes the topic and deletes it; `group` has the tasks that tell where readers are while it goes."""
        random, runtime = self._random, self._runtime
        while True:
            try:
                await admin.create_topic(TOPIC, queues=random.randrange(1, 4))
                await runtime.sleep(random.expovariate(1 / _LIFE_S))
                if random.random() < _ORDERS:
                    await self._send_readers_to_the_end(admin)
                if random.random() < 0.5:
                    group.start_soon(self._report, admin)
                await admin.delete_topic(TOPIC)
                self._context.journal.did("topic that was written to deleted")
            except ClientError:
                await runtime.sleep(0.3)

    async def _send_readers_to_the_end(self, admin: AdminClient) -> None:
        """Raises ClientError."""
        fields = {"topic": TOPIC, "group": _READERS, "timestamp": "-1", "isForce": "true"}
        address = self._random.choice(await admin.addresses())
        answer = await admin.call(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        if answer.code == ResponseCode.SUCCESS:
            self._context.journal.did("order in a topic that goes")

    async def _report(self, admin: AdminClient) -> None:
        """Tells the leader one way, again and again, where a reader is."""
        random, context = self._random, self._context
        try:
            route = await admin.core.routes.get(TOPIC)
            queue = MessageQueue(TOPIC, context.groups[0], 0)
            address = route.address(queue.broker_name)
            if address is None:
                return
            connection = await admin.core.pool.get(address)
            for _ in range(_REPORTS):
                offset = random.randrange(5)
                asked = context.judge.asked(_TELLERS, trace_key(queue), _TELLERS, (), offset)
                context.judge.asked_to_store(asked)
                fields = {
                    "topic": TOPIC,
                    "queueId": "0",
                    "consumerGroup": _TELLERS,
                    "commitOffset": str(offset),
                }
                connection.send_one_way(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
                await self._runtime.sleep(random.expovariate(1 / _BETWEEN_REPORTS_S))
        except ClientError:
            pass

"""A reader whose subscription changes, and stands in its heartbeats alone, as with RocketMQ's clients: a pull says
nothing of it, is held, and asks for one message. What it does not want comes many at a time.

Such a client looks at what comes by the subscription that it had when it asked. So what it is given fits that, and
nothing that fits it is passed over; a pull that is held for another one is ended (`judges/waits.py`).
"""

from typing import Final

from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.consuming.subscription import Subscription
from broker.client.errors import BrokerError, ClientError
from broker.client.message import Message, MessageQueue, views
from broker.client.producing.producer import Producer
from broker.client.transport.connection import Connection
from broker.client.transport.runtime import Runtime
from broker.remoting.bodies import ConsumerData, HeartbeatData
from broker.remoting.codes import PullSysFlag, RequestCode, ResponseCode
from broker.remoting.headers import PullMessageResponseHeader
from broker.remoting.json_body import encode_body
from broker.trace import TraceWriter
from simulation.journal import Violation
from simulation.judges.group_model import CommittedMessage
from simulation.workload.context import Context, Invariant

TOPIC: Final = "news"
GROUP: Final = "subscribers"
_WANTED: Final = ("sports", "weather", "sports || weather", "culture")
_TOGETHER: Final = (1, 1, 2, 12, 12, 24)
_BATCH_MAX: Final = 12
"""A longer batch would exceed by much what may wait for a majority, as it may where it comes alone."""
_SEND_PAUSE_S: Final = 2.5
_CHANGES_S: Final = 3.0
_SESSION_S: Final = 15.0
_HELD_S: Final = 5.0
_PULL_MARGIN_S: Final = 2.0
_AGAIN_S: Final = 0.2
_HELD_NS_MIN: Final = 100_000_000
_PULL_RESPONSES: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    )
)


class Subscriptions(Invariant):
    """Judges what pulls bring: only what fits the subscription with which a pull was sent, and nothing is left out."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._sent: dict[tuple[int, int], CommittedMessage] = {}
        """By (queue id, offset)."""

    def committed(self, message: CommittedMessage) -> None:
        """Notes a message."""
        record = message.record
        if record.topic == TOPIC:
            self._sent[record.queue_id, record.queue_offset] = message

    def given(self, queue_id: int, begin: int, end: int, got: list[int], wanted: Subscription) -> None:
        """Judges what a pull from `begin` on brought, which goes on at `end`. Raises Violation."""
        for offset in range(begin, end):
            message = self._sent.get((queue_id, offset))
            tag = None if message is None else message.property(b"TAGS")
            if (offset in got) is (tag in wanted.tags) or message is None:
                continue
            place = f"{TOPIC}/{queue_id} at {offset}, {tag}; asked for {wanted.expression} from {begin} on"
            if offset in got:
                raise Violation("only what is wanted", "subscribers", place)
            if not self.context.model.may_be_gone(message):
                raise Violation("all that is wanted", "subscribers", f"{place}, told {end}")
        self.context.journal.did("pull of a changing subscription", len(got))


async def subscribe(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Sends news, and reads what it subscribes to at the time. Raises Violation."""
    random = runtime.random

    async def send_news() -> None:
        async with Producer(context.name_servers, group="reporters", runtime=runtime) as producer:
            while True:
                await context.pause(runtime, _SEND_PAUSE_S)
                tag = random.choice(("sports", "weather", "culture"))
                news = [Message(TOPIC, random.randbytes(10), tags=tag)] * random.choice(_TOGETHER)
                send = producer.send_batch if 1 < len(news) <= _BATCH_MAX else producer.send_many
                try:
                    await send(news, queue=f"page{random.randrange(2)}")
                except ClientError:
                    await runtime.sleep(0.05)

    async with runtime.task_group() as tasks:
        tasks.start_soon(send_news)
        reader = _Reader(context, runtime)
        async with PullConsumer(context.name_servers, group=f"{GROUP}-tool", runtime=runtime) as consumer:
            while True:
                try:
                    queues = await consumer.queues(TOPIC)
                    address = (await consumer.core.routes.get(TOPIC)).address(queues[0].broker_name)
                    if address is not None:
                        with runtime.move_on_after(random.expovariate(1 / _SESSION_S)):
                            await reader.read(await consumer.core.pool.get(address), queues)
                except ClientError:
                    pass
                await runtime.sleep(_AGAIN_S)


class _Reader:
    """A member of the group, alone there."""

    def __init__(self, context: Context, runtime: Runtime) -> None:
        self._context = context
        self._runtime = runtime
        self._invariant = context.invariant(Subscriptions)
        self._client_id = f"{runtime.local_address()}@{runtime.now_ns()}"
        self._wanted = self._next()
        self._positions: dict[MessageQueue, int] = {}
        self._is_broken = False

    def _next(self) -> Subscription:
        return Subscription.parse(
            TOPIC, self._runtime.random.choice(_WANTED), self._context.scheduler.now_ns // 1_000_000
        )

    async def read(self, connection: Connection, queues: list[MessageQueue]) -> None:
        """Reads by one connection, until something goes wrong there.

        Raises BrokerError, ConnectionFailed, Violation.
        """
        self._is_broken = False
        await self._beat(connection)
        async with self._runtime.task_group() as tasks:
            for queue in queues:
                tasks.start_soon(self._pull_on, connection, queue)
            try:
                while not self._is_broken:
                    await self._runtime.sleep(self._runtime.random.expovariate(1 / _CHANGES_S))
                    self._wanted = self._next()
                    await self._beat(connection)
            finally:
                tasks.cancel()

    async def _beat(self, connection: Connection) -> None:
        data = ConsumerData(group_name=GROUP, subscription_data_set=[self._wanted.data()])
        body = encode_body(HeartbeatData(client_id=self._client_id, consumer_data_set=[data]))
        response = await connection.call(RequestCode.HEART_BEAT, None, body)
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark or "", connection.address)

    async def _pull_on(self, connection: Connection, queue: MessageQueue) -> None:
        try:
            while True:
                await self._pull(connection, queue)
        except ClientError:
            self._is_broken = True

    async def _pull(self, connection: Connection, queue: MessageQueue) -> None:
        begin, wanted = self._positions.get(queue, 0), self._wanted
        fields = {
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "consumerGroup": GROUP,
            "queueOffset": str(begin),
            "maxMsgNums": "1",
            "sysFlag": str(int(PullSysFlag.SUSPEND)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(int(_HELD_S * 1000)),
            "subVersion": str(wanted.version),
        }
        began_ns = self._runtime.now_ns()
        response = await connection.call(RequestCode.PULL_MESSAGE, fields, b"", _HELD_S + _PULL_MARGIN_S)
        if response.code not in _PULL_RESPONSES:
            raise BrokerError(response.code, response.remark or "", connection.address)
        end = response.decode_fields(PullMessageResponseHeader).next_begin_offset
        if response.code != ResponseCode.PULL_OFFSET_MOVED:
            got = response.code == ResponseCode.SUCCESS
            offsets = [message.queue_offset for message in views(queue, response.body)] if got else []
            self._invariant.given(queue.queue_id, begin, end, offsets, wanted)
        self._positions[queue] = end
        if response.code == ResponseCode.PULL_NOT_FOUND and self._runtime.now_ns() - began_ns < _HELD_NS_MIN:
            await self._runtime.sleep(_AGAIN_S)  # the broker holds no more pulls than it has places for

"""An administrator who takes permissions away and gives them back: of a topic, and of a consumer group that reads it.

A topic is writable only, readable only or both (17); a consumer group may consume or may not (200). Beside it somebody
sends to the topic and a member of the consumer group reads it. As with the reference's brokers, sends to a topic
without write permission are not refused: whoever asks for its route learns of it. `restrict_rules` says what must hold.
"""

from typing import Final

from broker.client.admin import AdminClient
from broker.client.consuming.consumer import Consumer
from broker.client.consuming.intake import FetchLimits
from broker.client.errors import ClientError, ConnectionFailed
from broker.client.message import Message
from broker.client.transport.core import BUSY_CODES
from broker.client.transport.runtime import Runtime
from broker.remoting.bodies import SubscriptionGroupConfig, TopicConfig
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.json_body import decode_body, encode_body
from broker.requests.processing import OUTCOME_UNKNOWN
from broker.trace import TraceWriter
from simulation.workload.context import Context
from simulation.workload.restrict_rules import GROUP, NOTE, TOPIC, Order, Restrictions
from simulation.workload.sending import send_now_and_then
from simulation.workload.watched_pool import WatchedPool

_ORDER_PAUSE_S: Final = 3.0
_QUESTION_PAUSE_S: Final = 1.0
_LANES: Final = 3
"""Several lanes: one that has asked a broker that is cut off waits."""
_SEND_PAUSE_S: Final = 0.7
_LEADER: Final = 0.4
_ASKS_AGAIN: Final = 0.3
_ALLOWED: Final = 0.6
"""The share of orders that allow reading."""
_LIMITS: Final = FetchLimits(suspend_s=2.0)


async def restrict(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Changes settings, asks for them, sends and reads."""
    rules = context.invariant(Restrictions)
    random = runtime.random

    def note() -> Message:
        return Message(TOPIC, random.randbytes(30))

    async with (
        AdminClient(context.name_servers, runtime=runtime) as admin,
        runtime.task_group() as group,
    ):
        for _ in range(_LANES):
            group.start_soon(_administer, context, runtime, rules, admin)
            group.start_soon(_ask, context, runtime, rules, admin)
        group.start_soon(send_now_and_then, context, runtime, "hosts", _SEND_PAUSE_S, note)
        while True:
            consumer = Consumer(
                context.name_servers,
                group=GROUP,
                topics=TOPIC,
                start="first",
                limits=_LIMITS,
                runtime=runtime,
            )
            async with consumer:
                # What a consumer hands out says nothing of pulls that found nothing: each answer is judged by itself.
                consumer.core.pool = WatchedPool(
                    consumer.core.pool, (RequestCode.PULL_MESSAGE,), rules.pulling
                )
                with runtime.move_on_after(context.stay_s(random, 15)):
                    async for message in consumer:
                        rules.read(message.queue.queue_id, message.queue_offset)
            await runtime.sleep(random.random())


class _Brokers:
    """The addresses of brokers, as far as this process knows: also while no name server is reached."""

    def __init__(self, runtime: Runtime, admin: AdminClient) -> None:
        self._random = runtime.random
        self._admin = admin
        self._known: list[str] = []

    async def any(self) -> str:
        """Returns any broker's address, rather often the leader's.

        Raises ClientError, also if no broker is registered.
        """
        if not self._known or self._random.random() < _ASKS_AGAIN:
            table = (await self._admin.cluster_info()).broker_table
            self._known = [
                address for broker in table.values() for _, address in sorted(broker.broker_addresses.items())
            ]
        if not self._known:
            raise ClientError("no broker is registered")
        return self._known[0] if self._random.random() < _LEADER else self._random.choice(self._known)


async def _administer(context: Context, runtime: Runtime, rules: Restrictions, admin: AdminClient) -> None:
    """Gives orders; once faults are over it allows everything, again and again: a late request may come in between."""
    random = runtime.random
    brokers = _Brokers(runtime, admin)
    is_topic = True
    while True:
        is_calm = context.is_calm()
        await runtime.sleep(random.expovariate(1 / _ORDER_PAUSE_S) if not is_calm else 3.0)
        is_calm = context.is_calm()
        # What nobody may read nobody could have got when the run ends.
        if context.load_stopped and not rules.forbids:
            continue
        # In the calm by turns, so that both are certainly allowed in time.
        is_topic = not is_topic if is_calm else random.random() < 0.5
        try:
            address = await brokers.any()
        except ClientError:
            continue
        order = rules.order(is_topic=is_topic, is_allowed=is_calm or random.random() < _ALLOWED)
        perm = (6 if is_calm else random.choice((4, 6))) if order.is_allowed else 2
        try:
            answer = await (
                _set_topic(context, admin, address, order, perm)
                if is_topic
                else _set_group(admin, address, order)
            )
        except ConnectionFailed as error:
            if not error.request_left:
                rules.refused(order, str(error))
            continue
        # Any other code but the one for an unknown outcome says that nothing was changed.
        if answer[0] == ResponseCode.SUCCESS:
            rules.acknowledged(order)
        elif answer[0] in BUSY_CODES or answer[1] != OUTCOME_UNKNOWN:
            rules.refused(order, f"{answer[0]}: {answer[1]}")


async def _set_topic(
    context: Context, admin: AdminClient, address: str, order: Order, perm: int
) -> tuple[int, str | None]:
    fields = {
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "readQueueNums": str(context.facts.queues),
        "writeQueueNums": str(context.facts.queues),
        "perm": str(perm),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": f"+{NOTE}={order.number}",
    }
    answer = await admin.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    return answer.code, answer.remark


async def _set_group(admin: AdminClient, address: str, order: Order) -> tuple[int, str | None]:
    config = SubscriptionGroupConfig(
        group_name=GROUP, consume_enable=order.is_allowed, attributes={f"+{NOTE}": str(order.number)}
    )
    body = encode_body(config)
    # The reference's way to write changes of attributes: +name=value.
    answer = await admin.call(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
    return answer.code, answer.remark


async def _ask(context: Context, runtime: Runtime, rules: Restrictions, admin: AdminClient) -> None:
    random = runtime.random
    brokers = _Brokers(runtime, admin)
    while True:
        await runtime.sleep(random.expovariate(1 / _QUESTION_PAUSE_S))
        is_topic = random.random() < 0.5
        try:
            address = await brokers.any()
            since_ns = context.scheduler.now_ns
            if is_topic:
                answer = await admin.call(address, RequestCode.GET_TOPIC_CONFIG, {"topic": TOPIC})
            else:
                answer = await admin.call(address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": GROUP})
        except ClientError:
            continue
        if answer.code == ResponseCode.SUCCESS:
            kind: type[TopicConfig | SubscriptionGroupConfig]
            kind = TopicConfig if is_topic else SubscriptionGroupConfig
            rules.told(since_ns, decode_body(answer.body, kind), is_topic=is_topic)
        elif answer.code in (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
            rules.told(since_ns, None, is_topic=is_topic)

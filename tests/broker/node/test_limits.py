"""Every limit of a broker tried with bad input: the documented code, and a remark that says what is wrong.

The first part goes through the tables of what clients of the reference rely on, in their order: names, sends, pulls,
groups, offsets, locks, administration. The second part is about what grows by what clients do: topics, groups, queues,
positions, transactions, and what waits inside of a node.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from broker.consumer_groups.heartbeats_processor import GROUPS_PER_CLIENT_MAX, SUBSCRIPTIONS_PER_CLIENT_MAX
from broker.reading.subscriptions import TAGS_LENGTH_MAX
from broker.remoting.bodies import ConsumerData, HeartbeatData, MessageModel, ProducerData, SubscriptionData
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.json_body import REQUEST_BYTES_MAX, encode_body
from broker.requests.budget import REQUESTS_MAX
from broker.state.topic_rules import CLIENT_ID_LENGTH_MAX, FORBIDDEN_TO_SEND, INTERNAL_TOPIC
from log.batch import BatchItem, encode_batch
from log.properties import encode_properties
from tests.broker.fields import pull_fields, send_fields, topic_fields
from tests.broker.harness import START_WALL_MS, Client, Group

BODY_BYTES_MAX = 256 * 1024
"""What the harness allows."""
PROPERTIES_BYTES_MAX = 31 * 1024

Answer = Callable[[Client], RemotingCommand]


def prepared(**settings: Any) -> Group:
    """A group with topic T of two queues, an ordered one, one that nobody may read, and group g."""
    group = Group.elected(1, **settings)
    client = group.connect()
    client.create_topic("T", 2)
    put_topic(client, topic="Ordered", order=True)
    put_topic(client, topic="WriteOnly", perm=2)
    put_topic(client, topic="NoQueue", writeQueueNums=0)
    client.heartbeat("g", ["T"])
    put_group(client, b'{"groupName": "Silent", "consumeEnable": false}')
    put_group(client, b'{"groupName": "NoBroadcast", "consumeBroadcastEnable": false}')
    return group


@pytest.fixture(scope="module")
def shared() -> Group:
    """For requests that are refused, and so leave nothing behind."""
    return prepared()


def put_topic(client: Client, **changes: Any) -> RemotingCommand:
    fields = topic_fields(readQueueNums=2, writeQueueNums=2) | changes
    return client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


def put_group(client: Client, body: bytes) -> RemotingCommand:
    return client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)


def send(
    topic: str = "T", body: bytes = b"x", properties: Mapping[str, str] | None = None, **header: Any
) -> Answer:
    return lambda client: client.wait(client.start_send(topic, body, properties=properties, **header))


def batch(*items: BatchItem, topic: str = "T", body: bytes | None = None, **header: Any) -> Answer:
    data = encode_batch(items) if body is None else body
    return send(topic, data, batch=True, **header)


def item(body: bytes = b"x", /, **properties: str) -> BatchItem:
    return BatchItem(0, body, encode_properties(properties))


def pull(**changes: Any) -> Answer:
    return lambda client: client.call(RequestCode.PULL_MESSAGE, pull_fields(**changes))


def heartbeat(client_id: str = "c", consumers: Any = (), producers: Any = (), **changes: Any) -> Answer:
    data = HeartbeatData(
        client_id=client_id,
        consumer_data_set=list(consumers),
        producer_data_set=list(producers),
        **changes,
    )
    return lambda client: client.call(RequestCode.HEART_BEAT, None, encode_body(data))


def call(code: int, body: bytes = b"", **fields: Any) -> Answer:
    return lambda client: client.call(code, fields, body)


HALF = {"TRAN_MSG": "true", "PGROUP": "P"}
CODES = ResponseCode
ILLEGAL = CODES.MESSAGE_ILLEGAL
ERROR = CODES.SYSTEM_ERROR
FORBIDDEN = CODES.NO_PERMISSION
NO_TOPIC = CODES.TOPIC_NOT_EXIST

REFUSED: dict[str, tuple[Answer, int, str]] = {
    # names
    "topic blank": (send(" "), ERROR, "the specified topic is blank"),
    "topic of 128": (send("x" * 128), ERROR, "has 128 characters, at most 127 are allowed"),
    "topic with a space": (send("a b"), ERROR, "'a b' contains illegal characters, allowed are %|a-z"),
    "topic as a path": (send("../x"), ERROR, "'../x' contains illegal characters"),
    "dead letter topic of 256": (send("%DLQ%" + "x" * 251), ERROR, "at most 255 are allowed"),
    # sends
    **{
        f"send to {topic}": (send(topic), FORBIDDEN, f"the topic [{topic}] is the broker's own")
        for topic in sorted(FORBIDDEN_TO_SEND | {INTERNAL_TOPIC})
        if topic != "TRANS_CHECK_MAX_TIME_TOPIC"
    },
    "template unknown": (send("New", defaultTopic="None"), NO_TOPIC, "topic[New] not exist"),
    "template not to be inherited": (send("New", defaultTopic="T"), NO_TOPIC, "creation from 'T'"),
    "queue 2 of 2": (send(queue_id=2), ERROR, "queueId[2] is illegal, topic T has 2 write queues"),
    "any queue of none": (
        send(topic="NoQueue", queue_id=-1),
        ERROR,
        "topic NoQueue has no queue to write to",
    ),
    "reply to another topic": (
        lambda client: client.call(RequestCode.SEND_REPLY_MESSAGE, send_fields(topic="NoQueue"), b"x"),
        CODES.NO_PERMISSION,
        "a reply goes to DefaultCluster_REPLY_TOPIC, not NoQueue",
    ),
    "inner batch": (send(sysFlag=0xC0), ILLEGAL, "sysFlag 128 (inner batch)"),
    "batch of inner batches": (batch(item(), sysFlag=0x80), ILLEGAL, "sysFlag 128"),
    "body too long": (
        send(body=bytes(BODY_BYTES_MAX + 1)),
        ILLEGAL,
        f"the message body has {BODY_BYTES_MAX + 1} bytes, at most {BODY_BYTES_MAX} are allowed",
    ),
    "properties too long": (
        send(properties={"k": "v" * PROPERTIES_BYTES_MAX}),
        ILLEGAL,
        f"at most {PROPERTIES_BYTES_MAX} are allowed",
    ),
    "too many keys": (
        send(properties={"KEYS": "k " * 1001}),
        ILLEGAL,
        "the message has 1001 keys, at most 1000 are allowed",
    ),
    "reply with too many keys": (
        lambda client: client.call(
            RequestCode.SEND_REPLY_MESSAGE,
            send_fields(topic="DefaultCluster_REPLY_TOPIC", properties="KEYS\x01" + "k " * 1001),
            b"x",
        ),
        ILLEGAL,
        "1001 keys",
    ),
    "batch that is large with what its messages share": (
        batch(*[item()] * 1200, properties={"k": "v" * 1000}),
        ILLEGAL,
        "the first 1000 messages of the batch have ",
    ),
    "very many keys in a batch": (
        batch(*[item(KEYS="k " * 250)] * 201),
        ILLEGAL,
        "the messages of the batch have 50250 keys together, at most 50000 are allowed",
    ),
    "very many keys that a batch shares": (
        batch(*[item()] * 201, properties={"KEYS": "k " * 250}),
        ILLEGAL,
        "have 50250 keys together",
    ),
    "too many keys in a batch": (batch(item(), item(KEYS="k " * 1001)), ILLEGAL, "1001 keys"),
    "field missing": (
        lambda client: client.call(RequestCode.SEND_MESSAGE_V2, {"a": "PG", "b": "T"}, b"x"),
        ERROR,
        "the custom field <c> is null",
    ),
    "field no number": (send(flag="many"), ERROR, "<flag>"),
    "number too large": (send(flag=1 << 31), ERROR, "<flag>"),
    "retry topic of nobody": (send("%RETRY%nobody"), 26, "subscription group [nobody] does not exist"),
    "batch to be stored once that is none": (
        batch(body=b"no batch", once=0),
        ILLEGAL,
        "batch item 0 is cut off",
    ),
    "stored once without a key": (send(once=0), ILLEGAL, "needs a UNIQ_KEY"),
    # batches
    "batch too long": (batch(item(bytes(BODY_BYTES_MAX))), ILLEGAL, "at most 262144 are allowed"),
    "batch cut off": (batch(body=encode_batch([item()])[:-1]), ILLEGAL, "batch"),
    "batch of nothing": (batch(body=b""), ILLEGAL, "batch"),
    "batch for retries": (batch(item(), topic="%RETRY%g"), ILLEGAL, "cannot be sent to a retry topic"),
    "batch for retries that are over": (
        batch(item(), topic="%RETRY%g", reconsumeTimes=99),
        ILLEGAL,
        "retry topic",
    ),
    "batch of delayed": (batch(item(), item(DELAY="1")), ILLEGAL, "cannot be delayed"),
    "long batch of delayed": (
        batch(item(bytes(100_000)), item(DELAY="1"), item()),
        ILLEGAL,
        "cannot be delayed",
    ),
    "batch that shares a delay": (batch(item(), properties={"DELAY": "1"}), ILLEGAL, "cannot be delayed"),
    "batch that shares a transaction": (
        batch(item(), item(), properties=HALF),
        ILLEGAL,
        "cannot be transactions",
    ),
    "batch of timed": (batch(item(TIMER_DELAY_SEC="9")), ILLEGAL, "cannot be delayed"),
    "batch of half messages": (batch(item(b"x", **HALF)), ILLEGAL, "cannot be transactions"),
    "batch with too long properties": (
        batch(item(), properties={"k": "v" * PROPERTIES_BYTES_MAX}),
        ILLEGAL,
        f"at most {PROPERTIES_BYTES_MAX} are allowed",
    ),
    # delay levels, delivery at a time
    "level no number": (
        send(properties={"DELAY": "soon"}),
        ILLEGAL,
        "the delay level (DELAY) is 'soon', no number",
    ),
    "time too far": (send(properties={"TIMER_DELAY_SEC": "259201"}), ILLEGAL, "max delay 259200000ms"),
    "time no number": (
        send(properties={"TIMER_DELIVER_MS": "soon"}),
        ILLEGAL,
        "TIMER_DELIVER_MS is 'soon', no number",
    ),
    "time to be cancelled": (
        send(properties={"TIMER_DELAY_MS": "5000", "TIMER_DEL_UNIQKEY": "k"}),
        ILLEGAL,
        "cannot be cancelled",
    ),
    # transactions
    "half message that is delayed": (
        send(properties={**HALF, "DELAY": "1"}, sysFlag=4),
        ILLEGAL,
        "a transaction message cannot be delivered later (DELAY)",
    ),
    "half message with a time": (
        send(properties={**HALF, "TIMER_DELAY_SEC": "1"}, sysFlag=4),
        ILLEGAL,
        "a transaction message cannot be delivered later (TIMER_DELAY_SEC)",
    ),
    "prepared without being half": (send(sysFlag=4), ILLEGAL, "without TRAN_MSG=true"),
    "rolled back already": (send(sysFlag=12), ILLEGAL, "sysFlag 12"),
    "decision about nothing": (
        call(
            RequestCode.END_TRANSACTION,
            producerGroup="P",
            tranStateTableOffset=0,
            commitLogOffset=1 << 40,
            commitOrRollback=8,
            msgId="x",
        ),
        ERROR,
        "",
    ),
    # pulls
    "group may not consume": (pull(consumerGroup="Silent"), FORBIDDEN, "no permission, Silent"),
    "pull of an unknown topic": (pull(topic="None"), NO_TOPIC, "topic[None] not exist"),
    "topic may not be read": (pull(topic="WriteOnly"), FORBIDDEN, "[WriteOnly] pulling message is forbidden"),
    "queue to read 2 of 2": (pull(queueId=2), ERROR, "queueId[2] is illegal, topic:[T]"),
    "queue to read -1": (pull(queueId=-1), ERROR, "queueId[-1] is illegal"),
    "expression of another language": (
        pull(expressionType="XPATH", subscription="/a"),
        ERROR,
        "does not support consumer to filter message by XPATH",
    ),
    "no tag": (pull(subscription="||"), CODES.SUBSCRIPTION_PARSE_FAILED, "names no tag"),
    "tags too long": (
        pull(subscription="t" * (TAGS_LENGTH_MAX + 1)),
        CODES.SUBSCRIPTION_PARSE_FAILED,
        "has 8193 characters, at most 8192 are allowed",
    ),
    "bad SQL92": (
        pull(expressionType="SQL92", subscription="a > 1 AND OR b"),
        CODES.SUBSCRIPTION_PARSE_FAILED,
        "character 11",
    ),
    "SQL92 too long": (
        pull(expressionType="SQL92", subscription="a = 1" + " AND a = 1" * 1000),
        CODES.SUBSCRIPTION_PARSE_FAILED,
        "8192",
    ),
    "no subscription": (
        pull(sysFlag=0, consumerGroup="NoBroadcast"),
        CODES.SUBSCRIPTION_NOT_EXIST,
        "the consumer's subscription to T does not exist",
    ),
    "subscription of yesterday": (pull(sysFlag=0, subVersion=9), 25, "subscription to T is not the latest"),
    "group name to pull with": (pull(consumerGroup="a b"), 26, "subscription group [a b] does not exist"),
    # consumer groups
    "client without a name": (heartbeat(""), ERROR, "clientID has 0 characters"),
    "client with a long name": (heartbeat("c" * 256), ERROR, "has 256 characters, allowed are 1 to 255"),
    "consumer group with a space": (
        heartbeat(consumers=[ConsumerData(group_name="a b")]),
        1,
        "illegal characters",
    ),
    "consumer group of 249": (
        heartbeat(consumers=[ConsumerData(group_name="g" * 249)]),
        ERROR,
        "the specified group has 249 characters, at most 248 are allowed",
    ),
    "producer group blank": (heartbeat(producers=[ProducerData("")]), 1, "the specified group is blank"),
    "very many groups": (
        heartbeat(producers=[ProducerData(f"p{n}") for n in range(GROUPS_PER_CLIENT_MAX + 1)]),
        ERROR,
        "would be in 1001 groups, at most 1000 are allowed",
    ),
    "very long heartbeat": (
        heartbeat(
            consumers=[
                ConsumerData(
                    group_name="g",
                    subscription_data_set=[SubscriptionData(topic="T", sub_string="t" * REQUEST_BYTES_MAX)],
                )
            ]
        ),
        ERROR,
        f"at most {REQUEST_BYTES_MAX} are allowed",
    ),
    "very many subscriptions": (
        heartbeat(
            consumers=[
                ConsumerData(
                    group_name="g",
                    subscription_data_set=[
                        SubscriptionData(topic=f"T{n}") for n in range(SUBSCRIPTIONS_PER_CLIENT_MAX + 1)
                    ],
                )
            ]
        ),
        ERROR,
        f"at most {SUBSCRIPTIONS_PER_CLIENT_MAX} are allowed",
    ),
    "heartbeat that is no JSON": (call(RequestCode.HEART_BEAT, b"{"), ERROR, "the body is no JSON: "),
    "list of nobody's consumers": (
        call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="nobody"),
        ERROR,
        "no consumer for this group, nobody",
    ),
    "given back to nobody": (
        call(RequestCode.CONSUMER_SEND_MSG_BACK, offset=48, group="nobody", delayLevel=0),
        26,
        "subscription group not exist, nobody",
    ),
    "given back what is not there": (
        call(RequestCode.CONSUMER_SEND_MSG_BACK, offset=7, group="g", delayLevel=0),
        ERROR,
        "look message by offset failed, 7",
    ),
    # offsets and queries
    "offset in an unknown topic": (
        call(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="g", topic="None", queueId=0, commitOffset=1),
        NO_TOPIC,
        "topic[None] not exist",
    ),
    "offset in queue 2 of 2": (
        call(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="g", topic="T", queueId=2, commitOffset=1),
        ERROR,
        "queueId[2] is illegal, topic[T] has queues 0 to 1",
    ),
    "end of queue -1": (call(RequestCode.GET_MAX_OFFSET, topic="T", queueId=-1), 1, "queueId[-1] is illegal"),
    "message at no place": (call(RequestCode.VIEW_MESSAGE_BY_ID, offset=1 << 50), ERROR, ""),
    "key that nobody used": (
        call(RequestCode.QUERY_MESSAGE, topic="T", key="k", maxNum=1, beginTimestamp=0, endTimestamp=1 << 60),
        CODES.QUERY_NOT_FOUND,
        "",
    ),
    # locks
    "lock for nobody": (
        call(RequestCode.LOCK_BATCH_MQ, b'{"clientId": "", "consumerGroup": "g", "mqSet": []}'),
        ERROR,
        "needs a clientId and a consumerGroup",
    ),
    "lock for a long name": (
        call(
            RequestCode.LOCK_BATCH_MQ,
            b'{"clientId": "%s", "consumerGroup": "g", "mqSet": []}' % (b"c" * (CLIENT_ID_LENGTH_MAX + 1)),
        ),
        ERROR,
        "the clientId has 256 characters, at most 255 are allowed",
    ),
    "lock of no group": (
        call(RequestCode.UNLOCK_BATCH_MQ, b'{"clientId": "c", "consumerGroup": "a b", "mqSet": []}'),
        ERROR,
        "illegal characters",
    ),
    # administration
    "topic with too many queues": (lambda c: put_topic(c, readQueueNums=65_537), 1, "allowed are 0 to 65536"),
    "topic with unknown rights": (lambda c: put_topic(c, perm=32), 1, "perm is 32"),
    "topic with another filter": (
        lambda c: put_topic(c, topicFilterType="NO_TAG"),
        ERROR,
        "topicFilterType is 'NO_TAG', allowed are SINGLE_TAG and MULTI_TAG",
    ),
    "topic with long attributes": (
        lambda c: put_topic(c, attributes="+a=" + "v" * 4096),
        ERROR,
        "attributes have 4097 characters, at most 4096 are allowed",
    ),
    **{
        f"topic with {name}": (
            functools.partial(put_topic, attributes=f"+{name}={value}"),
            ERROR,
            f"the attribute {name} is {value!r}, supported is ",
        )
        for name, value in (
            ("queue.type", "BatchCQ"),
            ("cleanup.policy", "COMPACTION"),
            ("reserve.time", "3600000"),
        )
    },
    "topic of the system": (lambda c: put_topic(c, topic="TBW102"), 1, "conflict with system topic"),
    "group with a long configuration": (
        lambda c: put_group(c, b'{"groupName": "g2", "attributes": {"+a": "%s"}}' % (b"v" * 8192)),
        ERROR,
        "at most 8192 are allowed",
    ),
    "group with an attribute that says not what to do": (
        lambda c: put_group(c, b'{"groupName": "g2", "attributes": {"a": "v"}}'),
        ERROR,
        "the attribute change 'a=v' is neither +name=value nor -name",
    ),
    "group with many retries": (
        lambda c: put_group(c, b'{"groupName": "g2", "retryMaxTimes": 10001}'),
        1,
        "10000",
    ),
    "unknown request": (call(9999), CODES.REQUEST_CODE_NOT_SUPPORTED, "request type 9999 not supported"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusal_has_its_code_and_says_why(shared: Group, case: str) -> None:
    answer, code, remark = REFUSED[case]
    client = shared.connect()
    got = answer(client)
    client.close()
    assert (got.code, remark in (got.remark or "")) == (code, True), f"code {got.code}: {got.remark}"


@pytest.mark.parametrize(
    "answer",
    [
        send(topic="x" * 127),
        send(topic="%|aZ09_-"),
        send(queue_id=-5),
        send(body=bytes(BODY_BYTES_MAX)),
        send(body=b""),
        send(properties={"DELAY": "99"}),
        send(properties={"DELAY": "-1"}),
        send(properties={"TIMER_DELAY_SEC": "259200"}),
        send(properties={"TIMER_DELAY_MS": "-1"}),
        send(properties={"KEYS": "k" + "  k" * 999}),
        send(properties={"k": "v" * (PROPERTIES_BYTES_MAX - len("k\x01\x02"))}),
        batch(item(), item(b"")),
        batch(*[item(KEYS="k " * 250)] * 200),
        batch(*[item(note="a b c d " * 30)] * 200),
        batch(*[item(b"ten bytes.", UNIQ_KEY="7F00000100002A9F00000000000003E8")] * 3000),
        pull(subscription="t" * TAGS_LENGTH_MAX, queueOffset=0),
        heartbeat("c" * CLIENT_ID_LENGTH_MAX, producers=[ProducerData("p" * 248)]),
        lambda client: put_topic(client, topic="Many", readQueueNums=65_536, perm=7),
        lambda client: put_topic(client, topic="Long", attributes="+a=" + "v" * 4095),
    ],
)
def test_what_is_just_within_its_limit_is_taken(answer: Answer) -> None:
    got = answer(prepared().connect())
    assert got.code in {CODES.SUCCESS, CODES.PULL_NOT_FOUND}, f"code {got.code}: {got.remark}"


@pytest.mark.parametrize(
    ("settings", "answer", "code", "remark"),
    [
        ({"auto_create_topics": False}, send("New"), NO_TOPIC, "topic[New] not exist"),
        ({"auto_create_topics": False}, send("%DLQ%nobody"), NO_TOPIC, "topic[%DLQ%nobody] not exist"),
        ({"auto_create_groups": False}, pull(consumerGroup="New"), 26, "group [New] does not exist"),
        ({"reject_transactions": True}, send(properties=HALF, sysFlag=4), FORBIDDEN, "is forbidden"),
        (
            {"sql_filters": False},
            pull(expressionType="SQL92", subscription="a = 1"),
            1,
            "filter message by SQL92",
        ),
        ({"permission": "write"}, pull(), FORBIDDEN, "the broker's permission does not include reading"),
        ({"permission": "read"}, send("Ordered"), FORBIDDEN, "does not include writing"),
        (
            {"lite_pulls": False},
            lambda client: client.call(RequestCode.LITE_PULL_MESSAGE, pull_fields()),
            FORBIDDEN,
            "litePullMessageEnable",
        ),
        (
            {"accept_sends_from_ms": START_WALL_MS + 3_600_000},
            send(),
            ERROR,
            f"takes no sends until {START_WALL_MS + 3_600_000} (startAcceptSendRequestTimeStamp)",
        ),
        (
            {"accept_sends_from_ms": START_WALL_MS + 3_600_000},
            lambda client: client.call(RequestCode.SEND_REPLY_MESSAGE, send_fields(), b"x"),
            ERROR,
            "startAcceptSendRequestTimeStamp",
        ),
        (
            {"permission": "read"},
            call(RequestCode.CONSUMER_SEND_MSG_BACK, offset=48, group="g", delayLevel=0),
            FORBIDDEN,
            "does not include writing",
        ),
    ],
)
def test_what_the_configuration_forbids(
    settings: Mapping[str, Any], answer: Answer, code: int, remark: str
) -> None:
    group = Group.elected(1, broker={"permission": "read-write"} | dict(settings))
    client = group.connect()
    client.create_topic("T", 2)
    put_topic(client, topic="Ordered", order=True)
    put_group(client, b'{"groupName": "g"}')
    got = answer(client)
    assert (got.code, remark in (got.remark or "")) == (code, True), f"code {got.code}: {got.remark}"


def test_sends_are_taken_from_the_time_that_is_configured() -> None:
    group = prepared()
    client = group.connect()
    begin_ms = group.wall_ms + 60_000
    client.ok(RequestCode.UPDATE_BROKER_CONFIG, None, b"startAcceptSendRequestTimeStamp=%d" % begin_ms)
    assert send()(client).code == ERROR
    group.advance(61)
    assert send()(client).code == CODES.SUCCESS


def test_a_broker_that_takes_no_writes_steers_producers_by_the_route_alone() -> None:
    """As in the reference: only of ordered topics a send is refused, others are found unwritable in the route."""
    group = prepared(broker={"permission": "read"})
    assert group.connect().send("T", b"x").queue_offset == 0


def test_a_pull_that_may_not_read_creates_no_group() -> None:
    group = prepared(broker={"permission": "write"})
    assert pull(consumerGroup="New")(group.connect()).code == FORBIDDEN
    assert "New" not in group.node("n0").replica.metadata.groups


def test_broadcasting_where_it_is_forbidden(shared: Group) -> None:
    client = shared.connect()
    client.heartbeat("NoBroadcast", ["T"], model=MessageModel.BROADCASTING)
    got = pull(sysFlag=0, consumerGroup="NoBroadcast")(client)
    client.close()
    assert got.code == FORBIDDEN
    assert "[NoBroadcast] can not consume by broadcast way" in (got.remark or "")


def test_no_room_on_the_disk(shared: Group) -> None:
    replica = shared.node(shared.leader).replica
    replica.disk_space.refuses_sends = True
    got = send()(shared.connect())
    replica.disk_space.refuses_sends = False
    assert got.code == CODES.SERVICE_NOT_AVAILABLE
    assert "disk full: " in (got.remark or "")


# ---------------------------------------------------------------------- what grows


def test_topics_are_created_up_to_the_limit_however_fast_they_are_asked_for() -> None:
    group = Group.elected(1, limits={"max_topics": 20})
    there = len(group.node("n0").replica.metadata.topics)
    client = group.connect()
    opaques = [client.start_send(f"T{number}", b"x") for number in range(40)]
    answers = [client.wait(opaque) for opaque in opaques]
    assert [answer.code for answer in answers].count(CODES.SUCCESS) == 20 - there
    refused = next(answer for answer in answers if answer.code != CODES.SUCCESS)
    assert refused.code == NO_TOPIC
    assert "there are 20 topics, at most 20 are allowed (limits.max_topics)" in (refused.remark or "")
    assert len(group.node("n0").replica.metadata.topics) == 20
    for asked in (put_topic(client, topic="Another"), client.heartbeat("g"), pull(topic="T0")(client)):
        assert "max_topics" in (asked.remark or "max_topics")
    assert "%RETRY%g" not in group.node("n0").replica.metadata.topics
    assert put_topic(client, topic="T0").code == CODES.SUCCESS, "what is there can be changed"
    client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T1"})
    assert put_topic(client, topic="Another").code == CODES.SUCCESS


def test_groups_are_created_up_to_the_limit() -> None:
    group = prepared(limits={"max_groups": 15})
    client = group.connect()
    there = len(group.node("n0").replica.metadata.groups)
    opaques = [client.start_pull("T", f"G{number}", 0) for number in range(20)]
    answers = [client.wait(opaque) for opaque in opaques]
    created = [answer for answer in answers if answer.code == CODES.PULL_NOT_FOUND]
    assert len(created) == 15 - there
    refused = next(answer for answer in answers if answer.code != CODES.PULL_NOT_FOUND)
    assert refused.code == CODES.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "there are 15 groups, at most 15 are allowed (limits.max_groups)" in (refused.remark or "")
    assert client.heartbeat("Another").code == CODES.SUCCESS, "it may be a client of another group as well"
    assert "max_groups" in (put_group(client, b'{"groupName": "Another"}').remark or "")
    assert put_group(client, b'{"groupName": "g", "retryMaxTimes": 3}').code == CODES.SUCCESS


def test_groups_that_only_have_positions_count_however_they_come() -> None:
    group = prepared(limits={"max_groups": 15})
    client = group.connect()
    metadata = group.node("n0").replica.metadata
    there = metadata.group_count

    def report(name: str) -> RemotingCommand:
        return client.wait(client.start_call(RequestCode.UPDATE_CONSUMER_OFFSET, position_of(name)))

    def position_of(name: str) -> dict[str, object]:
        return {"consumerGroup": name, "topic": "T", "queueId": 0, "commitOffset": 0}

    # All at once, so that what is under way has to be counted, and then one by one.
    opaques = [
        client.start_call(RequestCode.UPDATE_CONSUMER_OFFSET, position_of(f"P{number}"))
        for number in range(20)
    ]
    codes = [client.wait(opaque).code for opaque in opaques]
    assert codes.count(CODES.SUCCESS) == 15 - there
    assert metadata.group_count == 15
    refused = report("P19")
    assert refused.code == CODES.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "there are 15 groups, at most 15 are allowed (limits.max_groups)" in (refused.remark or "")
    client.tell(RequestCode.UPDATE_CONSUMER_OFFSET, position_of("Q"))
    group.advance(1)
    clone = {"srcGroup": "P0", "destGroup": "R", "topic": "T", "offline": True}
    assert "max_groups" in (client.call(RequestCode.CLONE_GROUP_OFFSET, clone).remark or "")
    assert "max_groups" in (put_group(client, b'{"groupName": "S"}').remark or "")
    assert client.wait(client.start_pull("T", "U", 0)).code == CODES.SUBSCRIPTION_GROUP_NOT_EXIST
    assert metadata.group_count == 15

    # Who is there may go on, and become more than a name; who goes makes room.
    assert report("P0").code == CODES.SUCCESS
    assert put_group(client, b'{"groupName": "P0"}').code == CODES.SUCCESS
    assert metadata.group_count == 15
    client.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "P0", "cleanOffset": True})
    assert report("P19").code == CODES.SUCCESS
    assert report("P0").code == CODES.SUBSCRIPTION_GROUP_NOT_EXIST
    client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert metadata.nameless_groups == 0
    metadata.snapshot()


@pytest.mark.parametrize("kind", ["consumer", "producer"])
def test_groups_that_have_clients(kind: str) -> None:
    group = prepared(limits={"max_groups": 15})
    client = group.connect()

    def announce(*names: str) -> RemotingCommand:
        if kind == "consumer":
            return heartbeat(consumers=[ConsumerData(group_name=name) for name in names])(client)
        return heartbeat(producers=[ProducerData(name) for name in names])(client)

    names = [f"N{number}" for number in range(14)]
    assert announce(*names).code == CODES.SUCCESS
    refused = announce("O1", "O2", "O3")
    assert refused.code == ERROR
    assert f" {kind} groups have clients, 3 more would be too many: at most 15" in (refused.remark or "")
    assert announce(*names).code == CODES.SUCCESS, "who is there may go on"


def test_a_heartbeat_of_very_many_groups_fits_into_the_log() -> None:
    group = prepared()
    client = group.connect()
    names = [f"{number:0240}" for number in range(GROUPS_PER_CLIENT_MAX)]
    assert (
        heartbeat(consumers=[ConsumerData(group_name=name) for name in names])(client).code == CODES.SUCCESS
    )
    assert all(name in group.node("n0").replica.metadata.groups for name in names)
    again = heartbeat(consumers=[ConsumerData(group_name="one-more")])(client)
    assert "at most 1000" in (again.remark or "illegal")


def test_queues_of_all_topics_together() -> None:
    group = Group.elected(1, limits={"max_queues": 2000})
    client = group.connect()
    assert put_topic(client, topic="A", readQueueNums=500).code == CODES.SUCCESS
    refused = put_topic(client, topic="B", writeQueueNums=1000)
    assert refused.code == ERROR
    assert "1000 more would be too many: at most 2000 are allowed (limits.max_queues)" in (
        refused.remark or ""
    )
    assert "limits.max_queues" in (put_topic(client, topic="A", readQueueNums=1500).remark or "")
    assert put_topic(client, topic="A", readQueueNums=10).code == CODES.SUCCESS
    assert put_topic(client, topic="B", writeQueueNums=500).code == CODES.SUCCESS


def test_queues_that_one_answer_tells_of() -> None:
    """More would be no frame, after seconds in which nobody else is served."""
    group = prepared()
    client = group.connect()
    for topic in ("A", "B"):
        assert (
            put_topic(client, topic=topic, readQueueNums=60_000, writeQueueNums=60_000).code == CODES.SUCCESS
        )
        position = {"consumerGroup": "h", "topic": topic, "queueId": 0, "commitOffset": 0}
        client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, position)
    questions: list[tuple[int, dict[str, Any]]] = [
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "h"}),
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "h", "topicList": "A;B;None"}),
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False}),
    ]
    for code, fields in questions:
        answer = client.call(code, fields)
        assert answer.code == ERROR
        assert "these are 120000 queues, an answer tells of at most 100000" in (answer.remark or "")
    client.ok(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "h", "topicList": "T;T;T"})


def test_positions_of_groups() -> None:
    group = Group.elected(1, limits={"max_stored_offsets": 10})
    client = group.connect()
    client.create_topic("T", 4)

    def report(number: int, offset: int = 1) -> dict[str, Any]:
        return {"consumerGroup": f"G{number}", "topic": "T", "queueId": 0, "commitOffset": offset}

    opaques = [client.start_call(RequestCode.UPDATE_CONSUMER_OFFSET, report(number)) for number in range(15)]
    answers = [client.wait(opaque) for opaque in opaques]
    assert [answer.code for answer in answers] == [CODES.SUCCESS] * 10 + [ERROR] * 5
    assert "at most 10 positions of groups in queues are stored (limits.max_stored_offsets)" in str(
        answers[-1].remark
    )
    client.tell(RequestCode.UPDATE_CONSUMER_OFFSET, report(20))
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, report(3, offset=2))
    clone = client.call(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "G1", "destGroup": "G30"})
    assert (clone.code, "max_stored_offsets" in str(clone.remark)) == (ERROR, True)
    group.advance(1)
    metadata = group.node("n0").replica.metadata
    assert metadata.offsets.count == sum(map(len, metadata.offsets.values())) == 10
    client.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G1", "cleanOffset": True})
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, report(20))


def test_a_late_report_does_not_bring_a_deleted_topic_s_positions_back() -> None:
    group = prepared()
    client = group.connect()
    client.tell(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 7},
    )
    client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    group.advance(1)
    client.create_topic("T", 2)
    position = {"consumerGroup": "g", "topic": "T", "queueId": 0, "setZeroIfNotFound": False}
    assert client.call(RequestCode.QUERY_CONSUMER_OFFSET, position).code == CODES.QUERY_NOT_FOUND


def test_undecided_transactions() -> None:
    group = prepared(limits={"max_open_transactions": 3})
    client = group.connect()
    half = send(properties=HALF, sysFlag=4)
    assert [half(client).code for _ in range(4)] == [CODES.SUCCESS] * 3 + [CODES.SYSTEM_BUSY]
    assert "3 transactions are undecided, at most 3 may be" in (half(client).remark or "")
    assert send()(client).code == CODES.SUCCESS


def test_sends_that_wait_for_their_topic(group: Group) -> None:
    """While no majority answers, the topic is not created, and what waits for it is bounded."""
    leader = group.leader
    client = group.connect(leader)
    group.partition(leader)
    body = bytes(200_000)
    opaques = [client.start_send("New", body) for _ in range(300)]
    group.advance(0.1)
    refused = [client.answers[opaque] for opaque in opaques if opaque in client.answers]
    assert 50 < len(refused) < 200
    assert {answer.code for answer in refused} == {CODES.SYSTEM_BUSY}
    assert "wait for topics that are being created" in (refused[0].remark or "")
    group.heal()
    for opaque in opaques:
        if opaque not in client.answers:
            assert client.wait(opaque).code in {
                CODES.SUCCESS,
                ERROR,
                CODES.SERVICE_NOT_AVAILABLE,
            }
    assert client.send("New", body).queue_id >= 0, "the room is given back"


def test_questions_that_wait_for_a_confirmed_leader(group: Group) -> None:
    leader = group.leader
    client = group.connect(leader)
    client.create_topic("T")
    group.partition(leader)
    question = {"topic": "T", "queueId": 0}
    opaques = [
        client.start_call(RequestCode.GET_MAX_OFFSET, question, bytes(1000))
        for _ in range(REQUESTS_MAX // 2 + 10)
    ]
    busy = [client.answers[opaque] for opaque in opaques if opaque in client.answers]
    group.settle()
    busy = [client.answers[opaque] for opaque in opaques if opaque in client.answers]
    assert busy
    assert {answer.code for answer in busy} == {CODES.SYSTEM_BUSY}
    assert "confirms this leader" in (busy[0].remark or "")
    group.heal()
    group.elect()
    assert group.connect().offset_of(RequestCode.GET_MAX_OFFSET, "T") == 0

"""Every limit of a broker tried with bad input: the documented code, and a remark that says what is wrong.

It goes through the tables of what clients of the reference rely on, in their order: names, sends, pulls, groups,
offsets, locks, administration. What grows by what clients do has its limits in `test_growth.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import pytest

from broker.consumer_groups.heartbeats_processor import GROUPS_PER_CLIENT_MAX, SUBSCRIPTIONS_PER_CLIENT_MAX
from broker.reading.subscriptions import TAGS_LENGTH_MAX
from broker.remoting.bodies import ConsumerData, MessageModel, ProducerData, SubscriptionData
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.json_body import REQUEST_BYTES_MAX
from broker.state.topic_rules import CLIENT_ID_LENGTH_MAX, FORBIDDEN_TO_SEND, INTERNAL_TOPIC
from log.formats.batch import encode_batch
from log.formats.record import SYS_FLAG_INNER_BATCH, SYS_FLAG_PREPARED, SYS_FLAG_ROLLBACK
from tests.broker.fields import pull_fields, send_fields
from tests.broker.harness import START_WALL_MS, Group
from tests.broker.node.limited import (
    Answer,
    batch,
    call,
    heartbeat,
    item,
    prepared,
    pull,
    put_group,
    put_topic,
    send,
)

BODY_BYTES_MAX = 256 * 1024
"""What the harness allows."""
PROPERTIES_BYTES_MAX = 31 * 1024


@pytest.fixture(scope="module")
def shared() -> Group:
    """For requests that are refused, and so leave nothing behind."""
    return prepared()


HALF = {"TRAN_MSG": "true", "PGROUP": "P"}
CODES = ResponseCode
NEED_UNWRAP = 0x40  # of RocketMQ's `MessageSysFlag`: the body is several messages
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
    "inner batch": (send(sysFlag=SYS_FLAG_INNER_BATCH | NEED_UNWRAP), ILLEGAL, "sysFlag 128 (inner batch)"),
    "batch of inner batches": (batch(item(), sysFlag=SYS_FLAG_INNER_BATCH), ILLEGAL, "sysFlag 128"),
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
        send(properties={**HALF, "DELAY": "1"}, sysFlag=SYS_FLAG_PREPARED),
        ILLEGAL,
        "a transaction message cannot be delivered later (DELAY)",
    ),
    "half message with a time": (
        send(properties={**HALF, "TIMER_DELAY_SEC": "1"}, sysFlag=SYS_FLAG_PREPARED),
        ILLEGAL,
        "a transaction message cannot be delivered later (TIMER_DELAY_SEC)",
    ),
    "prepared without being half": (send(sysFlag=SYS_FLAG_PREPARED), ILLEGAL, "without TRAN_MSG=true"),
    "rolled back already": (send(sysFlag=SYS_FLAG_ROLLBACK), ILLEGAL, "sysFlag 12"),
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
        "would be in 1001 groups, of consumers and producers; at most 1000 are allowed",
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
        (
            {"reject_transactions": True},
            send(properties=HALF, sysFlag=SYS_FLAG_PREPARED),
            FORBIDDEN,
            "is forbidden",
        ),
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

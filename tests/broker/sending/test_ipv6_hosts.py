"""Hosts of clients and brokers with IPv6 on every way that a message takes (`MessageExtEncoder`, `MessageSysFlag`).

A record says with its flags how long its two hosts are. Whatever stores a message again keeps the host that it was born
at and puts its own in the other place, and one broker's may be of the other family than the next leader's.
"""

from __future__ import annotations

from msgspec.structs import replace

from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.headers import CheckTransactionStateHeader, PushReplyMessageHeader
from broker.state.topic_rules import CHECK_EXHAUSTED_TOPIC
from log.formats.batch import BatchItem, encode_batch
from log.formats.message_id import parse_offset_message_id
from log.formats.record import (
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_PREPARED,
    Record,
    pack_host,
    unpack_host,
)
from tests.broker.fields import send_fields
from tests.broker.harness import Client, Group, Pulled, split_records

BORN_AT = "2001:db8::7"
HALF = {"TRAN_MSG": "true", "PGROUP": "P"}


def prepared(**settings: object) -> Group:
    """Three brokers, of which n1 is told to clients by an IPv6 address."""
    group = Group(3, broker=settings, start=False)
    member = group.members["n1"]
    member.config = replace(member.config, node=replace(member.config.node, advertise="2001:db8::1"))
    for node in group.members:
        group.start(node)
    group.elect()
    group.connect().create_topic("T")
    return group


def led_by(group: Group, node: str) -> Client:
    """A client at an IPv6 address, of whichever node, while `node` leads."""
    if group.leader != node:
        group.transfer_leadership(node)
    client = group.connect(host=BORN_AT)
    client.heartbeat("g", producer_group="P")
    return client


def records(client: Client, topic: str) -> list[Record]:
    pulled = client.pull(topic, "g", 0)
    assert pulled.code == ResponseCode.SUCCESS, pulled.status
    return pulled.records


def check(record: Record, stored_by: str) -> None:
    assert unpack_host(record.born_host).address == BORN_AT
    assert record.sys_flag & 0x30 == (0x30 if stored_by == "n1" else SYS_FLAG_BORN_HOST_V6)
    family = "2001:db8::1" if stored_by == "n1" else "127.0.0.1"
    assert unpack_host(record.store_host).address == family


def test_every_way_of_a_message_while_leaders_of_both_kinds_change() -> None:
    group = prepared(transaction_check_max=1, transaction_check_interval_ms=5_000, delay_levels="20s")
    client = led_by(group, "n1")
    plain = client.send("T", b"plain", sysFlag=SYS_FLAG_COMPRESSED | 0x30)
    assert len(plain.message_id) == 56
    client.send("T", encode_batch([BatchItem(0, b"one", b""), BatchItem(0, b"two", b"")]), batch=True)
    viewed = client.ok(
        RequestCode.VIEW_MESSAGE_BY_ID, {"offset": parse_offset_message_id(plain.message_id)[1]}
    )
    assert split_records(viewed.body)[0].body == b"plain"
    client.send("T", b"delayed", 0, {"DELAY": "1"})
    client.send("T", b"timed", 0, {"TIMER_DELAY_MS": "20000"})
    half = client.send("T", b"committed", 0, HALF, sysFlag=SYS_FLAG_PREPARED | SYS_FLAG_COMPRESSED)
    client.send("T", b"given up", 0, HALF, sysFlag=SYS_FLAG_PREPARED)
    stored_by = dict.fromkeys(("plain", "one", "two"), "n1")

    client.close()
    client = led_by(group, "n0")
    client.ok(
        RequestCode.END_TRANSACTION,
        {
            "producerGroup": "P",
            "tranStateTableOffset": half.queue_offset,
            "commitLogOffset": parse_offset_message_id(half.message_id)[1],
            "commitOrRollback": 8,
            "msgId": half.transaction_id,
        },
    )
    found = {record.body.decode(): record for record in records(client, "T")}
    sent_back = found["plain"].physical_offset
    client.ok(RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": sent_back, "group": "g", "delayLevel": 1})
    client.ok(RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": sent_back, "group": "g", "delayLevel": -1})
    group.advance(15)  # the producer of the last half message is asked, and gives no answer
    (question,) = [n for n in client.notices if n.code == RequestCode.CHECK_TRANSACTION_STATE]
    (asked,) = split_records(question.body)
    check(asked, "n1")
    header = question.decode_fields(CheckTransactionStateHeader)
    assert len(header.offset_message_id or "") == 56
    (given_up,) = records(client, CHECK_EXHAUSTED_TOPIC)
    check(given_up, "n0")
    (dead,) = records(client, "%DLQ%g")
    check(dead, "n0")
    assert (dead.body, dead.sys_flag & 1) == (b"plain", 1), "compressed it was, and is"
    assert dead.properties_by_name()["ORIGIN_MESSAGE_ID"] == plain.message_id

    client = led_by(group, "n1")
    group.advance(30)
    (retried,) = records(client, "%RETRY%g")
    check(retried, "n1")
    assert (retried.body, retried.sys_flag & 1, retried.reconsume_times) == (b"plain", 1, 1)
    found = {record.body.decode(): record for record in records(client, "T")}
    stored_by |= {"delayed": "n1", "timed": "n1", "committed": "n0"}
    assert found.keys() == stored_by.keys()
    for name, record in found.items():
        check(record, stored_by[name])
    assert found["committed"].sys_flag & 0xD == 9
    group.converge()
    follower = group.connect(group.follower, host=BORN_AT)
    assert Pulled.of(follower.wait(follower.start_pull("T", "g", 0))).bodies == [
        r.body for r in found.values()
    ]


def test_hosts_that_are_told() -> None:
    group = prepared()
    client = led_by(group, "n1")
    answer = client.ok(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
    assert b'"clientAddr":"[2001:db8::7]:' in answer.body
    fields = send_fields(
        topic="DefaultCluster_REPLY_TOPIC", properties=f"REPLY_TO_CLIENT\x01{client.client_id}\x02"
    )
    client.start_call(RequestCode.SEND_REPLY_MESSAGE, fields, b"reply")
    group.settle()
    pushed = next(n for n in client.notices if n.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
    header = pushed.decode_fields(PushReplyMessageHeader)
    assert header.born_host.startswith("[2001:db8::7]:")
    assert header.store_host.startswith("[2001:db8::1]:")
    assert pack_host(BORN_AT, 1)[:-4] == client.connection.host[:-4]

"""Batches of very many messages."""

from __future__ import annotations

import pytest

from broker.remoting.codes import ResponseCode
from log.formats.batch import BatchItem, encode_batch
from tests.broker.harness import Client, Group

PROPOSALS_MAX = 50


@pytest.fixture(params=[1, 3])
def client(request: pytest.FixtureRequest) -> Client:
    group = Group.elected(request.param, limits={"max_pending_proposals": PROPOSALS_MAX})
    client = group.connect()
    client.create_topic("T")
    client.heartbeat("g")
    return client


def start_batch(client: Client, count: int) -> int:
    items = [BatchItem(0, b"%d" % number, b"") for number in range(count)]
    return client.start_send("T", encode_batch(items), batch=True)


def test_more_messages_than_may_be_under_way_are_taken_while_nothing_is(client: Client) -> None:
    """The leader ended itself at the one that was too many, and so did the next, which was sent the batch again."""
    count = 3 * PROPOSALS_MAX
    answer = client.wait(start_batch(client, count))
    assert answer.code == ResponseCode.SUCCESS
    assert (answer.fields["queueOffset"], answer.fields["msgId"].count(",")) == ("0", count - 1)
    found: list[bytes] = []
    while len(found) < count:
        found += client.pull("T", "g", len(found)).bodies
    assert found == [b"%d" % number for number in range(count)]
    assert client.send("T", b"next").queue_offset == count
    client.group.converge()


def test_more_messages_than_may_be_under_way_are_refused_beside_others(client: Client) -> None:
    first = client.start_send("T", b"first")
    answer = client.wait(start_batch(client, PROPOSALS_MAX))
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert client.wait(first).code == ResponseCode.SUCCESS
    assert client.send("T", b"second").queue_offset == 1


def test_messages_of_a_batch_across_two_data_files_follow_each_other() -> None:
    group = Group.elected(1)
    client = group.connect()
    client.create_topic("T")
    client.heartbeat("g")
    log = group.node(group.leader).replica.store.log
    body, count = bytes(100_000), 2
    while log.end_position % log.file_bytes < log.file_bytes - 150_000:
        client.send("T", body)
    items = [BatchItem(0, b"%d" % number + body, b"") for number in range(count)]
    answer = client.wait(client.start_send("T", encode_batch(items), batch=True))
    assert answer.code == ResponseCode.SUCCESS
    offset = int(answer.fields["queueOffset"])
    pulled = [client.pull("T", "g", offset + number).records[0] for number in range(count)]
    assert [record.body[:1] for record in pulled] == [b"0", b"1"]
    first, second = (int(key[-16:], 16) for key in answer.fields["msgId"].split(","))
    assert [record.physical_offset for record in pulled] == [first, second]
    assert first // log.file_bytes < second // log.file_bytes


def test_batch_is_judged_by_properties_and_stored_with_those_of_all(client: Client) -> None:
    """A body may hold any word; what is no UTF-8 is stored as it is; the batch's key is for messages without one."""
    items = [
        BatchItem(1, b"DELAY\x011\x02", b"TAGS\x01DELIVERED\x02UNIQ_KEY\x01first"),
        BatchItem(2, b"TRAN_MSG\x01true\x02", b"a\x01\xff\x02WAIT\x01true\x02"),
    ]
    envelope = {"WAIT": "true", "UNIQ_KEY": "all", "b": "c"}
    answer = client.wait(client.start_send("T", encode_batch(items), 0, envelope, batch=True))
    assert (answer.code, answer.fields["transactionId"]) == (ResponseCode.SUCCESS, "first,all")
    offset = int(answer.fields["queueOffset"])
    added = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"
    assert [
        (record.flag, record.body, record.properties) for record in client.pull("T", "g", offset).records
    ] == [
        (1, items[0].body, b"TAGS\x01DELIVERED\x02UNIQ_KEY\x01first\x02b\x01c\x02" + added),
        (2, items[1].body, b"a\x01\xff\x02UNIQ_KEY\x01all\x02b\x01c\x02" + added),
    ]

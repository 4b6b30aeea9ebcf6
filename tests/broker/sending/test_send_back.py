"""Messages sent back by consumers: growing delay, dead letters, and who is refused (`AbstractSendMessageProcessor`)."""

from __future__ import annotations

import pytest

from broker.remoting.bodies import SubscriptionGroupConfig
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.json_body import encode_body
from log.formats.layout import HEADER_BYTES
from log.formats.message_id import offset_message_id, parse_offset_message_id
from log.formats.record import Record
from tests.broker.harness import Client, Group
from tests.broker.lost_leader import LostLeader

RETRY, DEAD = "%RETRY%g", "%DLQ%g"


@pytest.fixture
def group() -> Group:
    return Group.elected(3, broker={"delay_levels": "1s 2s 3s 4s 5s"})


@pytest.fixture(params=["leader", "follower"])
def client(group: Group, request: pytest.FixtureRequest) -> Client:
    client = group.connect(getattr(group, request.param))
    client.create_topic("T")
    client.heartbeat("g")
    return client


def send_back_fields(record: Record, delay_level: int = 0, **more: object) -> dict[str, object]:
    return {
        "offset": record.physical_offset,
        "group": "g",
        "delayLevel": delay_level,
        "originMsgId": "id",
        "originTopic": record.topic,
        **more,
    }


def send_back(client: Client, record: Record, delay_level: int = 0, **more: object) -> int:
    fields = send_back_fields(record, delay_level, **more)
    return client.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code


def first_message(client: Client) -> Record:
    client.send("T", b"body", 0, {"TAGS": "a", "KEYS": "k"})
    return client.pull("T", "g", 0).records[0]


def test_message_comes_back_later_each_time_and_is_a_dead_letter_in_the_end(client: Client) -> None:
    group = client.group
    original = record = first_message(client)
    for retry in range(3):
        assert send_back(client, record, maxReconsumeTimes=3) == ResponseCode.SUCCESS
        group.advance(3 + retry - 0.5)
        assert client.pull(RETRY, "g", retry).code == ResponseCode.PULL_NOT_FOUND, "level 3 + retry"
        group.advance(1)
        (record,) = client.pull(RETRY, "g", retry).records
        properties = record.properties_by_name()
        assert record.reconsume_times == retry + 1
        assert record.body == b"body"
        assert properties["RETRY_TOPIC"] == "T"
        assert properties["TAGS"] == "a"
        assert properties["ORIGIN_MESSAGE_ID"] == offset_message_id(
            original.store_host, original.physical_offset
        )
    assert send_back(client, record, maxReconsumeTimes=3) == ResponseCode.SUCCESS
    client.create_topic("other")
    (dead,) = client.pull(DEAD, "g", 0).records
    assert (dead.body, dead.reconsume_times) == (b"body", 4)
    told = dead.properties_by_name()
    assert told["DLQ_ORIGIN_TOPIC"] == "T"
    assert told["DLQ_ORIGIN_MESSAGE_ID"] == offset_message_id(original.store_host, original.physical_offset)
    assert client.pull(RETRY, "g", 3).code == ResponseCode.PULL_NOT_FOUND


def test_level_that_the_client_names_counts(client: Client) -> None:
    record = first_message(client)
    assert send_back(client, record, 1) == ResponseCode.SUCCESS
    client.group.advance(1.2)
    assert client.pull(RETRY, "g", 0).bodies == [b"body"]


@pytest.mark.parametrize("retried", [-1, -4, -(1 << 31)])
def test_message_that_was_sent_as_retried_less_than_never_comes_back_like_a_first_retry(
    client: Client, retried: int
) -> None:
    """There is no delay level below the first: a message that waited there would be lost, though it was taken."""
    client.send("T", b"body", reconsumeTimes=retried)
    (record,) = client.pull("T", "g", 0).records
    assert send_back(client, record) == ResponseCode.SUCCESS
    client.group.advance(3.5)
    (record,) = client.pull(RETRY, "g", 0).records
    assert (record.body, record.reconsume_times) == (b"body", retried + 1)


def test_message_that_was_sent_as_retried_as_often_as_can_be_told_is_a_dead_letter(client: Client) -> None:
    most = (1 << 31) - 1
    client.send("T", b"body", reconsumeTimes=most)
    (record,) = client.pull("T", "g", 0).records
    assert send_back(client, record) == ResponseCode.SUCCESS
    (dead,) = client.pull(DEAD, "g", 0).records
    assert (dead.body, dead.reconsume_times) == (b"body", most)


def test_negative_level_is_a_dead_letter_at_once(client: Client) -> None:
    assert send_back(client, first_message(client), -1) == ResponseCode.SUCCESS
    assert client.pull(DEAD, "g", 0).bodies == [b"body"]


def test_group_says_how_often_where_the_client_does_not(client: Client) -> None:
    config = encode_body(SubscriptionGroupConfig(group_name="g", retry_max_times=0))
    client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)
    record = first_message(client)
    assert send_back(client, record, maxReconsumeTimes=-1) == ResponseCode.SUCCESS
    assert client.pull(DEAD, "g", 0).bodies == [b"body"]


def test_group_without_retry_queues_drops_what_is_sent_back(client: Client) -> None:
    config = encode_body(SubscriptionGroupConfig(group_name="g", retry_queue_nums=0))
    client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)
    assert send_back(client, first_message(client), 1) == ResponseCode.SUCCESS
    client.group.advance(5)
    assert client.pull(RETRY, "g", 0).code == ResponseCode.PULL_NOT_FOUND


def test_acknowledged_retry_survives_the_leader(group: Group) -> None:
    client = group.connect(group.follower)
    client.create_topic("T")
    client.heartbeat("g")
    assert send_back(client, first_message(client), 2) == ResponseCode.SUCCESS
    group.kill(group.leader)
    group.elect()
    group.advance(5)
    assert client.pull(RETRY, "g", 0).bodies == [b"body"]


def test_what_waits_for_its_topic_goes_to_the_next_leader(group: Group) -> None:
    """Nothing of it is stored when the leader that was to create the topic is deposed."""
    before = group.leader
    client = group.connect(before)
    client.create_topic("T")
    client.heartbeat("g")
    record = first_message(client)
    group.converge()
    group.partition(before)
    opaque = client.start_call(RequestCode.CONSUMER_SEND_MSG_BACK, send_back_fields(record, -1))
    group.run_until(lambda: any(m.alive.replica.serving for m in group.alive() if m.id != before))
    group.heal()
    assert client.wait(opaque).code == ResponseCode.SUCCESS
    assert client.pull(DEAD, "g", 0).bodies == [b"body"]


def test_client_that_sends_to_the_retry_topic_itself_meets_the_same_limit(client: Client) -> None:
    client.send(RETRY, b"again", 0, {"DELAY": "1"}, reconsumeTimes=2, maxReconsumeTimes=2)
    noted = {"DELAY": "1", "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "ID"}
    client.send(RETRY, b"dead", 0, noted, reconsumeTimes=3, maxReconsumeTimes=2)
    (dead,) = client.pull(DEAD, "g", 0).records
    told = dead.properties_by_name()
    assert (dead.body, told["DLQ_ORIGIN_TOPIC"], told["DLQ_ORIGIN_MESSAGE_ID"]) == (b"dead", "T", "ID")
    client.group.advance(2)
    assert client.pull(RETRY, "g", 0).bodies == [b"again"]


def test_refusals(client: Client) -> None:
    record = first_message(client)
    offset = record.physical_offset
    assert send_back(client, record, group="unknown") == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    for wrong in (offset + 1, offset - HEADER_BYTES, -5, 1 << 50):
        assert send_back(client, record, offset=wrong) == ResponseCode.SYSTEM_ERROR
    unknown = client.wait(client.start_send("%RETRY%unknown", b"x"))
    assert unknown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_retry_topic_that_takes_no_messages(client: Client) -> None:
    record = first_message(client)
    client.create_topic(RETRY, perm=4)
    assert send_back(client, record) == ResponseCode.NO_PERMISSION
    client.create_topic(RETRY)
    assert send_back(client, record) == ResponseCode.SUCCESS


def test_no_room_for_a_topic_of_dead_letters(group: Group) -> None:
    client = group.connect()
    client.create_topic("T")
    client.heartbeat("g")
    record = first_message(client)
    count = len(group.node(group.leader).replica.metadata.topics)
    client.ok(RequestCode.UPDATE_BROKER_CONFIG, None, b"limits.max_topics=%d" % count)
    assert send_back(client, record, -1) == ResponseCode.SYSTEM_ERROR
    client.ok(RequestCode.UPDATE_BROKER_CONFIG, None, b"limits.max_topics=%d" % (count + 1))
    assert send_back(client, record, -1) == ResponseCode.SUCCESS
    assert client.pull(DEAD, "g", 0).bodies == [b"body"]


def test_ids_name_offsets(client: Client) -> None:
    receipt = client.send("T", b"x")
    assert (
        parse_offset_message_id(receipt.message_id)[1] == client.pull("T", "g", 0).records[0].physical_offset
    )


def test_those_that_a_lost_leader_had_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """They waited for their topic. Some of them are held still when the others are told, and another node leads."""
    there = LostLeader(monkeypatch)
    client = there.client
    fields = send_back_fields(first_message(client), -1)
    there.group.converge()
    asked = [client.start_call(RequestCode.CONSUMER_SEND_MSG_BACK, fields) for _ in range(20)]
    there.lose()
    assert {answer.code for answer in there.answers(asked)} == {ResponseCode.SUCCESS}
    assert there.order_of(asked) == asked

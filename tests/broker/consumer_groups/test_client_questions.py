"""Questions that the broker passes on to consumers: 307, 309 and 223, whatever node each is connected to."""

from __future__ import annotations

import json

import pytest

from broker.consumer_groups import client_questions_processor
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, encode, response
from broker.remoting.frame import FrameDecoder
from log.formats.record import decode_record
from tests.broker.harness import Client, Group


@pytest.fixture(params=["leader", "follower"])
def consumer(group: Group, request: pytest.FixtureRequest) -> Client:
    """A consumer on the leader or on another node."""
    client = group.connect(getattr(group, request.param), name="consumer")
    client.create_topic("T")
    client.heartbeat("g")
    return client


@pytest.fixture(params=["leader", "follower"])
def admin(group: Group, request: pytest.FixtureRequest) -> Client:
    return group.connect(getattr(group, request.param), name="admin")


def asked(client: Client, code: int) -> RemotingCommand:
    """The question, once it is there."""

    def found() -> list[RemotingCommand]:
        return [notice for notice in client.notices if notice.code == code]

    client.group.run_until(lambda: bool(found()), f"request {code} to the client")
    return found()[-1]


def answer(
    client: Client, to: RemotingCommand, code: int = 0, remark: str | None = None, body: bytes = b""
) -> None:
    """The client's answer, as its bytes arrive."""
    node = client._member.alive
    node.begin(client.group.now_ns, client.group.wall_ms)
    for command in FrameDecoder().feed(encode(response(to, code, remark, None, body))):
        node.received(client.connection, command)
    client._member.due_ns = client.group.now_ns


INFO = {"consumerGroup": "g", "clientId": "consumer", "jstackEnable": "true"}


def test_running_info_comes_back_as_the_client_gave_it(consumer: Client, admin: Client) -> None:
    opaque = admin.start_call(RequestCode.GET_CONSUMER_RUNNING_INFO, INFO)
    question = asked(consumer, RequestCode.GET_CONSUMER_RUNNING_INFO)
    assert dict(question.fields) == INFO
    answer(consumer, question, body=b'{"anything":{{"queueId":0}:1}}')
    told = admin.wait(opaque)
    assert (told.code, bytes(told.body)) == (ResponseCode.SUCCESS, b'{"anything":{{"queueId":0}:1}}')


def test_refusal_of_the_client_is_passed_on(consumer: Client, admin: Client) -> None:
    opaque = admin.start_call(RequestCode.GET_CONSUMER_RUNNING_INFO, INFO)
    answer(consumer, asked(consumer, RequestCode.GET_CONSUMER_RUNNING_INFO), 1, "not here")
    told = admin.wait(opaque)
    assert (told.code, told.remark) == (1, "not here")


def test_client_that_is_not_there(consumer: Client, admin: Client) -> None:
    for fields in ({**INFO, "clientId": "other"}, {**INFO, "consumerGroup": "h"}):
        told = admin.call(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
        assert told.code == ResponseCode.CONSUMER_NOT_ONLINE
        assert "not online" in (told.remark or "")


def test_client_that_says_nothing(consumer: Client, admin: Client) -> None:
    opaque = admin.start_call(RequestCode.GET_CONSUMER_RUNNING_INFO, INFO)
    asked(consumer, RequestCode.GET_CONSUMER_RUNNING_INFO)
    told = admin.wait(opaque, limit_s=15)
    assert told.code == ResponseCode.CONSUME_MSG_TIMEOUT


def test_answer_that_is_too_long_hurts_nobody(consumer: Client, admin: Client) -> None:
    opaque = admin.start_call(RequestCode.GET_CONSUMER_RUNNING_INFO, INFO)
    question = asked(consumer, RequestCode.GET_CONSUMER_RUNNING_INFO)
    answer(consumer, question, body=b"x" * (9 * 1024 * 1024))
    told = admin.wait(opaque)
    remark = "consumer <g> <consumer> answered with 9437184 bytes: up to 8388608 are passed on"
    assert (told.code, told.remark) == (1, remark)


def test_one_message_is_consumed_directly(consumer: Client, admin: Client) -> None:
    receipt = consumer.send("T", b"the body")
    fields = {"consumerGroup": "g", "clientId": "consumer", "msgId": receipt.message_id}
    opaque = admin.start_call(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    question = asked(consumer, RequestCode.CONSUME_MESSAGE_DIRECTLY)
    assert question.fields["brokerName"] == "broker-a"
    assert decode_record(bytes(question.body)).body == b"the body"
    answer(consumer, question, body=b'{"consumeResult":"CR_SUCCESS"}')
    assert bytes(admin.wait(opaque).body) == b'{"consumeResult":"CR_SUCCESS"}'


@pytest.mark.parametrize("message_id", ["", "zz", "00" * 15, "7F0000010000" + "F" * 20])
def test_message_that_is_not_there(consumer: Client, admin: Client, message_id: str) -> None:
    fields = {"consumerGroup": "g", "clientId": "consumer", "msgId": message_id}
    told = admin.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    assert told.code == ResponseCode.SYSTEM_ERROR
    assert told.remark


def test_status_of_all_consumers(group: Group, consumer: Client, admin: Client) -> None:
    second = group.connect(group.leader, name="second")
    second.heartbeat("g")
    silent = group.connect(group.follower, name="silent")
    silent.heartbeat("g")
    opaque = admin.start_call(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "g", "clientAddr": ""}
    )
    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    queue = '{"brokerName":"broker-a","queueId":0,"topic":"T"}'
    answer(consumer, asked(consumer, code), body=f'{{"messageQueueTable":{{{queue}:7}}}}'.encode())
    answer(second, asked(second, code), body=b"no JSON")
    asked(silent, code)
    body = bytes(admin.wait(opaque, limit_s=15).body).decode()
    assert body == f'{{"consumerTable":{{"consumer":{{{queue}:7}}}}}}'


def test_of_very_many_consumers_some_are_asked(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_questions_processor, "CLIENTS_ASKED_MAX", 2)
    clients = [group.connect(name=f"c{number}") for number in range(4)]
    clients[0].create_topic("T")
    for client in clients:
        client.heartbeat("g")
    admin = group.connect(name="admin")
    opaque = admin.start_call(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "g"})
    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    group.settle()
    questions = [(client, notice) for client in clients for notice in client.notices if notice.code == code]
    assert len(questions) == 2
    for client, question in questions:
        answer(client, question, body=b'{"messageQueueTable":{}}')
    told = json.loads(bytes(admin.wait(opaque).body))
    assert told == {"consumerTable": {client.client_id: {} for client, _ in questions}}


def test_a_status_that_cannot_be_read_ends_no_node(consumer: Client, admin: Client) -> None:
    """Whoever was in the consumer group ended the leader by a queue of thousands of brackets."""
    opaque = admin.start_call(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "g"})
    queue = '{"brokerName":"broker-a","queueId":0,"topic":"T","x":' + "[" * 50_000
    body = json.dumps({"messageQueueTable": {queue: 7}}).encode()
    answer(consumer, asked(consumer, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT), body=body)
    assert json.loads(bytes(admin.wait(opaque).body)) == {"consumerTable": {}}


def test_status_of_one_consumer(consumer: Client, admin: Client) -> None:
    fields = {"topic": "T", "group": "g", "clientAddr": "consumer"}
    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    opaque = admin.start_call(code, fields)
    answer(
        consumer,
        asked(consumer, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT),
        body=b'{"messageQueueTable":{}}',
    )
    assert json.loads(bytes(admin.wait(opaque).body)) == {"consumerTable": {"consumer": {}}}
    told = admin.call(code, {**fields, "clientAddr": "nobody"})
    assert (told.code, told.remark) == (1, "No Any Consumer online in the consumer group: [g]")


def test_questions_that_wait_for_silent_clients_are_bounded(consumer: Client, admin: Client) -> None:
    large = bytes(1 << 20)
    opaques = [admin.start_call(RequestCode.GET_CONSUMER_RUNNING_INFO, INFO, large) for _ in range(40)]
    admin.group.settle()
    refused = [opaque for opaque in opaques if opaque in admin.answers]
    assert {admin.answers[opaque].code for opaque in refused} == {ResponseCode.SYSTEM_BUSY}
    assert len(opaques) - len(refused) == 16, "of 32 MiB, half is what one address can have"
    admin.group.advance(11)
    assert all(opaque in admin.answers for opaque in opaques)
    waits = admin.start_call(RequestCode.GET_CONSUMER_RUNNING_INFO, INFO, large)
    admin.group.settle()
    assert waits not in admin.answers, "what waited has made room"


def test_a_consumer_with_two_connections_is_asked_once(group: Group, consumer: Client, admin: Client) -> None:
    again = group.connect(group.follower, name="consumer")
    again.heartbeat("g")
    opaque = admin.start_call(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "g"})
    group.settle()
    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    ((client, question),) = [
        (client, notice) for client in (consumer, again) for notice in client.notices if notice.code == code
    ]
    answer(client, question, body=b'{"messageQueueTable":{}}')
    assert json.loads(bytes(admin.wait(opaque).body)) == {"consumerTable": {"consumer": {}}}

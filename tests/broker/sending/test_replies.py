"""Request-reply: a reply reaches its requester on any node, and the replier hears of it (`ReplyMessageProcessor`)."""

from __future__ import annotations

from typing import Any

import pytest

from broker.node import client_calls
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, encode, response
from broker.remoting.frame import FrameDecoder
from broker.remoting.headers import PushReplyMessageHeader, SendMessageResponseHeader
from log.formats.properties import encode_properties, parse_properties
from log.formats.record import SYS_FLAG_PREPARED
from tests.broker.fields import send_fields
from tests.broker.harness import Client, Group

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


def prepared(**settings: Any) -> Group:
    group = Group.elected(3, broker=settings)
    client = group.connect()
    client.heartbeat("g")
    client.close()
    return group


@pytest.fixture
def group() -> Group:
    return prepared()


def start_reply(client: Client, to: str | None, body: bytes = b"reply", **changes: Any) -> int:
    properties = {"UNIQ_KEY": "0A", "CORRELATION_ID": "c1", "MSG_TYPE": "reply"}
    if to is not None:
        properties["REPLY_TO_CLIENT"] = to
    fields = send_fields(
        producerGroup="repliers",
        topic=REPLY_TOPIC,
        bornTimestamp=client.group.wall_ms,
        flag=5,
        properties=encode_properties(properties).decode(),
    )
    return client.start_call(RequestCode.SEND_REPLY_MESSAGE, fields | changes, body)


def pushed_to(client: Client) -> RemotingCommand:
    return [n for n in client.notices if n.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT][-1]


def answer(client: Client, command: RemotingCommand, code: int = 0) -> None:
    """Has a requester answer a pushed reply."""
    node = client.group.node(client._member.id)
    node.begin(client.group.now_ns, client.group.wall_ms)
    for received in FrameDecoder().feed(encode(response(command, code, "from the test"))):
        node.received(client.connection, received)
    client.group.members[client._member.id].due_ns = client.group.now_ns
    client.group.settle()


@pytest.mark.parametrize("asks", ["leader", "follower"])
@pytest.mark.parametrize("answers", ["leader", "follower"])
def test_reply_reaches_the_requester_wherever_both_are(group: Group, asks: str, answers: str) -> None:
    requester = group.connect(getattr(group, asks), name="requester")
    requester.heartbeat(producer_group="P")
    replier = group.connect(getattr(group, answers))
    opaque = start_reply(replier, "requester", b"forty-two")
    group.settle()
    pushed = pushed_to(requester)
    assert opaque not in replier.answers, "the replier hears when the requester has it"
    header = pushed.decode_fields(PushReplyMessageHeader)
    properties = parse_properties((header.properties or "").encode())
    assert (pushed.body, header.topic, header.flag) == (b"forty-two", REPLY_TOPIC, 5)
    assert (properties["CORRELATION_ID"], properties["MSG_TYPE"]) == ("c1", "reply")
    assert int(properties["PUSH_REPLY_TIME"]) == group.wall_ms
    assert header.born_host.startswith("127.0.0.1:")
    answer(requester, pushed)
    result = replier.wait(opaque)
    assert result.code == ResponseCode.SUCCESS
    stored = result.decode_fields(SendMessageResponseHeader)
    assert len(stored.message_id) == 32
    assert replier.pull(REPLY_TOPIC, "g", 0).bodies == [b"forty-two"]


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_a_consumer_that_never_answers_keeps_no_reply_from_others(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An account could have its own consumer asked until nobody else was asked any more."""
    monkeypatch.setattr(client_calls, "WAITING_MAX", 10)
    group = prepared()
    mute = group.connect(getattr(group, place), host="10.0.0.1", name="mute")
    mute.heartbeat("g")
    fields = {"consumerGroup": "g", "clientId": "mute", "jstackEnable": False}
    asked = [mute.start_call(RequestCode.GET_CONSUMER_RUNNING_INFO, fields) for _ in range(20)]
    group.settle()
    refused = [mute.answers[opaque].code for opaque in asked if opaque in mute.answers]
    assert refused == 15 * [ResponseCode.SYSTEM_BUSY]
    requester = group.connect(host="10.0.0.2", name="requester")
    requester.heartbeat(producer_group="P")
    opaque = start_reply(requester, "requester")
    group.settle()
    answer(requester, pushed_to(requester))
    assert requester.wait(opaque).code == ResponseCode.SUCCESS


def test_long_replies_to_one_that_never_answers_keep_none_from_others(group: Group) -> None:
    mute = group.connect(host="10.0.0.1", name="mute")
    mute.heartbeat(producer_group="P")
    asked = [start_reply(mute, "mute", bytes(240_000)) for _ in range(160)]
    group.settle()
    refused = {mute.answers[opaque].code for opaque in asked if opaque in mute.answers}
    assert refused == {ResponseCode.SYSTEM_BUSY}, "what it does not answer is bounded by its bytes"
    requester = group.connect(host="10.0.0.2", name="requester")
    requester.heartbeat(producer_group="P")
    opaque = start_reply(requester, "requester", bytes(240_000))
    group.settle()
    answer(requester, pushed_to(requester))
    assert requester.wait(opaque).code == ResponseCode.SUCCESS


def test_of_questions_that_a_node_has_relayed_the_newest_are_remembered(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may never answer, and nobody tells the node on the way when to forget."""
    monkeypatch.setattr(client_calls, "RELAYED_MAX", 3)
    requester = group.connect(group.follower, name="requester")
    requester.heartbeat(producer_group="P")
    replier = group.connect()
    asked = [start_reply(replier, "requester") for _ in range(5)]
    group.settle()
    for pushed in requester.notices:
        answer(requester, pushed)
    assert [opaque in replier.answers for opaque in asked] == 2 * [False] + 3 * [True]
    assert {replier.wait(opaque).code for opaque in asked[2:]} == {ResponseCode.SUCCESS}
    assert {replier.wait(opaque).code for opaque in asked[:2]} == {ResponseCode.SYSTEM_ERROR}, "in vain"


def test_replies_need_not_be_stored() -> None:
    group = prepared(store_replies=False)
    requester = group.connect(name="requester")
    requester.heartbeat(producer_group="P")
    opaque = start_reply(requester, "requester")
    group.settle()
    answer(requester, pushed_to(requester))
    assert requester.wait(opaque).code == ResponseCode.SUCCESS
    assert requester.pull(REPLY_TOPIC, "g", 0).bodies == []


@pytest.mark.parametrize(
    ("to", "remark"),
    [
        (None, "reply message properties[REPLY_TO_CLIENT] is null"),
        ("nobody", "push reply message fail, channel of <nobody> not found."),
    ],
)
def test_reply_to_nobody_is_answered_so(group: Group, to: str | None, remark: str) -> None:
    client = group.connect()
    result = client.wait(start_reply(client, to))
    assert (result.code, result.remark) == (ResponseCode.SYSTEM_ERROR, remark)


def test_requester_that_refuses_says_nothing_or_leaves(group: Group) -> None:
    requester = group.connect(group.follower, name="requester")
    requester.heartbeat(producer_group="P")
    replier = group.connect()
    refused = start_reply(replier, "requester")
    group.settle()
    answer(requester, pushed_to(requester), ResponseCode.SYSTEM_ERROR)
    assert "code 1, from the test" in str(replier.wait(refused).remark)
    silent = start_reply(replier, "requester")
    group.advance(9.5)
    assert silent not in replier.answers
    assert "no answer" in str(replier.wait(silent).remark)
    leaving = start_reply(replier, "requester")
    group.settle()
    requester.close()
    assert "no answer" in str(replier.wait(leaving).remark)


def test_late_or_foreign_answers_do_no_harm(group: Group) -> None:
    requester = group.connect(group.follower, name="requester")
    requester.heartbeat(producer_group="P")
    replier = group.connect()
    opaque = start_reply(replier, "requester")
    group.settle()
    pushed = pushed_to(requester)
    stranger = group.connect(group.follower)
    answer(stranger, pushed)
    assert opaque not in replier.answers
    group.advance(11)
    assert replier.answers[opaque].code == ResponseCode.SYSTEM_ERROR
    answer(requester, pushed)
    answer(requester, pushed)
    assert replier.send("T", b"x").queue_offset == 0


def test_requester_is_found_after_a_failover(group: Group) -> None:
    requester = group.connect(group.follower, name="requester")
    requester.heartbeat(producer_group="P")
    old = group.leader
    group.kill(old)
    group.elect()
    replier = group.connect()
    opaque = start_reply(replier, "requester")
    group.settle()
    answer(requester, pushed_to(requester))
    assert replier.wait(opaque).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION),
        ({"topic": "SELF_TEST_TOPIC"}, ResponseCode.NO_PERMISSION),
        ({"queueId": 1}, ResponseCode.SYSTEM_ERROR),
        ({"sysFlag": SYS_FLAG_PREPARED}, ResponseCode.MESSAGE_ILLEGAL),
        ({"properties": "x" * 40_000}, ResponseCode.MESSAGE_ILLEGAL),
        ({"topic": None}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_what_is_no_reply_is_refused(group: Group, changes: dict[str, Any], code: ResponseCode) -> None:
    client = group.connect(name="requester")
    client.heartbeat(producer_group="P")
    assert client.wait(start_reply(client, "requester", **changes)).code == code
    assert client.notices == []


def test_reply_that_is_too_long_is_refused(group: Group) -> None:
    client = group.connect()
    answer = client.wait(start_reply(client, "x", b"x" * (256 * 1024 + 1)))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL

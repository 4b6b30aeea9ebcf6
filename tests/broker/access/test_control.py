"""Access control: signatures, and the permissions that every kind of request needs."""

from __future__ import annotations

import json

import pytest

from broker.access.accounts import parse
from broker.access.control import AccessControl
from broker.client.transport.credentials import Credentials
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import ROCKETMQ, RemotingCommand, encode, request
from broker.remoting.frame import FrameDecoder
from broker.remoting.rocketmq_signature import signature
from broker.requests.errors import RequestError
from log.formats.record import pack_host

ACCOUNTS = """
white_remote_addresses = ["10.9.*.*"]

[[accounts]]
access_key = "limited"
secret_key = "limited-secret"
topic_permissions = { written = "PUB", read = "SUB", both = "PUB|SUB" }
group_permissions = { mine = "SUB" }

[[accounts]]
access_key = "reader-of-all"
secret_key = "reader-secret"
default_topic_permission = "SUB"
default_group_permission = "SUB"
topic_permissions = { hidden = "DENY" }

[[accounts]]
access_key = "operator"
secret_key = "operator-secret"
admin = true
white_remote_address = "10.8.0.1"
topic_permissions = { payroll = "DENY" }
"""

HOST = pack_host("192.168.0.1", 5000)
SECRETS = {"limited": "limited-secret", "reader-of-all": "reader-secret", "operator": "operator-secret"}

control = AccessControl(parse(ACCOUNTS, "accounts.toml"))


def signed(account: str, code: int, fields: dict[str, str], body: bytes = b"") -> RemotingCommand:
    """A request as it arrives, signed by an account."""
    return request(code, Credentials(account, SECRETS[account]).sign(fields, body), body)


def passes(command: RemotingCommand, host: bytes = HOST) -> bool:
    try:
        control.check(host, command)
    except RequestError as refused:
        return refused.code != ResponseCode.NO_PERMISSION
    return True


def refusal(command: RemotingCommand) -> str:
    with pytest.raises(RequestError) as refused:
        control.check(HOST, command)
    assert refused.value.code == ResponseCode.NO_PERMISSION
    return refused.value.remark


def test_signature_is_the_one_of_the_reference() -> None:
    """Computed with openssl: HMAC-SHA-1, key 12345678, over the values in the order of their names, then the body."""
    fields = {"topic": "T", "AccessKey": "RocketMQ", "queueId": "0", "Signature": "left out"}
    assert signature("12345678", fields, b"body") == "fbNK4K46j3CluO6/jr/5YqCUDeM="


@pytest.mark.parametrize("serialization", [0, ROCKETMQ])
def test_signature_holds_over_the_wire_in_both_serializations(serialization: int) -> None:
    command = signed("limited", RequestCode.SEND_MESSAGE, {"topic": "written", "a": "é"}, b"\x00body")
    command.serialization = serialization
    (arrived,) = FrameDecoder().feed(encode(command))
    assert passes(arrived)


def test_bare_numbers_of_the_cpp_client_are_signed_as_texts() -> None:
    fields = Credentials("limited", SECRETS["limited"]).sign({"topic": "written", "queueId": "0"}, b"")
    header = {
        "code": 10,
        "flag": 0,
        "language": "CPP",
        "opaque": 1,
        "version": 63,
        "extFields": {**fields, "queueId": 0},
    }
    text = json.dumps(header).encode()
    frame = (4 + len(text)).to_bytes(4, "big") + len(text).to_bytes(4, "big") + text
    (arrived,) = FrameDecoder().feed(frame)
    assert passes(arrived)


def test_what_was_changed_under_way_is_refused() -> None:
    good = signed("limited", RequestCode.SEND_MESSAGE, {"topic": "written"}, b"body")
    for change in (
        {"fields": {**good.fields, "topic": "both"}},
        {"fields": {**good.fields, "more": "x"}},
        {"fields": {k: v for k, v in good.fields.items() if k != "Signature"}},
        {"body": b"Body"},
    ):
        command = request(good.code, change.get("fields", good.fields), change.get("body", b"body"))  # type: ignore[arg-type]
        assert "signature is not that of AccessKey 'limited'" in refusal(command)


def test_a_query_by_unique_key_is_flagged_after_it_was_signed() -> None:
    command = signed("limited", RequestCode.QUERY_MESSAGE, {"topic": "read", "key": "k"})
    flagged = request(command.code, {**command.fields, "_UNIQUE_KEY_QUERY": "true"})
    assert passes(flagged)


def test_who_says_nothing_is_told_what_to_do() -> None:
    assert "names no AccessKey" in refusal(request(RequestCode.SEND_MESSAGE, {"topic": "written"}))
    cpp = request(RequestCode.SEND_MESSAGE, {"topic": "written", "AccessKey": "", "Signature": "x"})
    assert "names no AccessKey" in refusal(cpp)
    assert "no account has the AccessKey 'nobody'" in refusal(
        request(RequestCode.SEND_MESSAGE, {"AccessKey": "nobody", "Signature": "x"})
    )


def test_of_what_a_stranger_has_written_little_comes_back_or_into_the_log() -> None:
    told = refusal(request(RequestCode.SEND_MESSAGE, {"AccessKey": "n" * 100_000, "Signature": "x"}))
    assert told.startswith("no account has the AccessKey 'nnn")
    assert len(told) == 500


def test_trusted_addresses_need_not_sign() -> None:
    unsigned = request(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "T"})
    assert passes(unsigned, pack_host("10.9.3.4", 1))
    assert not passes(unsigned, pack_host("10.8.0.1", 1))
    named = request(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "T", "AccessKey": "operator"})
    assert passes(named, pack_host("10.8.0.1", 1))
    assert not passes(named, pack_host("10.8.0.2", 1))


def heartbeat(*subscriptions: tuple[str, str]) -> bytes:
    return json.dumps(
        {
            "clientID": "c",
            "consumerDataSet": [
                {"groupName": group, "subscriptionDataSet": [{"topic": topic, "subString": "*"}]}
                for group, topic in subscriptions
            ],
            "producerDataSet": [{"groupName": "any"}],
        }
    ).encode()


def locks(group: str, topic: str) -> bytes:
    queue = {"brokerName": "b", "queueId": 0, "topic": topic}
    return json.dumps({"clientId": "c", "consumerGroup": group, "mqSet": [queue]}).encode()


def check(group: str, topic: str) -> bytes:
    return json.dumps({"clientId": "c", "group": group, "subscriptionData": {"topic": topic}}).encode()


@pytest.mark.parametrize(
    ("code", "fields", "body", "allowed"),
    [
        (10, {"topic": "written"}, b"", True),
        (10, {"topic": "read"}, b"", False),
        (10, {"topic": "%RETRY%mine"}, b"", True),
        (10, {"topic": "%RETRY%theirs"}, b"", False),
        (10, {"topic": "RMQ_SYS_TRACE_TOPIC"}, b"", True),
        (310, {"b": "both"}, b"", True),
        (310, {"b": "other"}, b"", False),
        (320, {"b": "other"}, b"", False),
        (324, {"topic": "other"}, b"", False),
        (325, {"b": "written"}, b"", True),
        (36, {"group": "mine"}, b"", True),
        (36, {"group": "theirs"}, b"", False),
        (11, {"topic": "read", "consumerGroup": "mine"}, b"", True),
        (11, {"topic": "read", "consumerGroup": "theirs"}, b"", False),
        (11, {"topic": "written", "consumerGroup": "mine"}, b"", False),
        (11, {"topic": "%RETRY%mine", "consumerGroup": "mine"}, b"", True),
        (361, {"topic": "other", "consumerGroup": "mine"}, b"", False),
        (12, {"topic": "read", "key": "k"}, b"", True),
        (12, {"topic": "written", "key": "k"}, b"", False),
        (33, {"offset": "0", "topic": "other"}, b"", False),
        (33, {"offset": "0", "topic": "read"}, b"", True),
        (34, {}, heartbeat(("mine", "read")), True),
        (34, {}, heartbeat(), True),
        (34, {}, heartbeat(("mine", "read"), ("theirs", "read")), False),
        (34, {}, heartbeat(("mine", "written")), False),
        (35, {"clientID": "c", "producerGroup": "any"}, b"", True),
        (35, {"clientID": "c", "consumerGroup": "theirs"}, b"", False),
        (46, {}, check("mine", "read"), True),
        (46, {}, check("mine", "other"), False),
        (38, {"consumerGroup": "mine"}, b"", True),
        (38, {"consumerGroup": "theirs"}, b"", False),
        (14, {"consumerGroup": "mine", "topic": "read"}, b"", True),
        (14, {"consumerGroup": "theirs", "topic": "read"}, b"", False),
        (15, {"consumerGroup": "mine", "topic": "other"}, b"", False),
        (41, {}, locks("mine", "read"), True),
        (41, {}, locks("mine", "other"), False),
        (42, {}, locks("theirs", "read"), False),
        (30, {"topic": "written", "queueId": "0"}, b"", True),
        (30, {"topic": "other", "queueId": "0"}, b"", False),
        (222, {"topic": "read", "group": "mine"}, b"", True),
        (222, {"topic": "read", "group": "theirs"}, b"", False),
        (307, {"consumerGroup": "theirs"}, b"", False),
        (314, {"srcGroup": "mine", "destGroup": "theirs"}, b"", False),
        (208, {"consumerGroup": "mine", "topic": "read"}, b"", True),
        (208, {"consumerGroup": "mine", "topicList": "read;other"}, b"", False),
        (345, {"group": "mine", "topic": "other"}, b"", False),
        (315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "read"}, b"", True),
        (315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "other"}, b"", False),
        (315, {"statsName": "GROUP_GET_SIZE", "statsKey": "read@mine"}, b"", True),
        (315, {"statsName": "GROUP_GET_SIZE", "statsKey": "read@theirs"}, b"", False),
        (315, {"statsName": "BROKER_PUT_NUMS", "statsKey": "c"}, b"", False),
        (21, {}, b"", True),
        (43, {}, b"", True),
        (26, {}, b"", False),
        (28, {}, b"", False),
        (45, {}, b"", False),
        (204, {"producerGroup": "any"}, b"", False),
        (328, {}, b"", False),
        (90001, {}, b"", False),
        (90005, {}, b"", False),
        (90006, {"index": "0"}, b"", False),
        (90007, {"offset": "0"}, b"", False),
        (17, {"topic": "written"}, b"", False),
        (25, {}, b"", False),
        (215, {"topic": "written"}, b"", False),
        (200, {}, b"", False),
        (207, {"groupName": "mine"}, b"", False),
        (329, {}, b"", False),
        (90002, {}, b"", False),
    ],
)
def test_what_a_limited_account_may_do(code: int, fields: dict[str, str], body: bytes, allowed: bool) -> None:
    command = signed("limited", code, fields, body)
    assert passes(command) is allowed
    # An administrator may do all of it.
    assert passes(signed("operator", code, fields, body))


def test_defaults_hold_where_nothing_is_written() -> None:
    assert passes(signed("reader-of-all", 11, {"topic": "any", "consumerGroup": "g"}))
    assert passes(signed("reader-of-all", 33, {"offset": "0"}))
    assert not passes(signed("reader-of-all", 11, {"topic": "hidden", "consumerGroup": "g"}))
    assert not passes(signed("reader-of-all", 10, {"topic": "any"}))


def test_what_is_written_binds_an_administrator() -> None:
    remark = refusal(signed("operator", 11, {"topic": "payroll", "consumerGroup": "g"}))
    assert remark == "'operator' needs SUB on topic 'payroll'"


def test_remarks_say_what_is_missing() -> None:
    assert refusal(signed("limited", 10, {"topic": "read"})) == "'limited' needs PUB on topic 'read'"
    assert refusal(signed("limited", 36, {"group": "g"})) == "'limited' needs SUB on group 'g'"
    assert refusal(signed("limited", 17, {})) == (
        "request 17 (UPDATE_AND_CREATE_TOPIC) needs an administrator, and 'limited' is not one"
    )

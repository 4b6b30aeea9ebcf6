"""Commands in both header serializations: golden bytes, typed headers, round trips."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.remoting import command as remoting
from broker.remoting.codes import LanguageCode, RequestCode, ResponseCode
from broker.remoting.command import JSON, ROCKETMQ, Int32, Int64, RemotingCommand
from broker.remoting.errors import HeaderFieldError
from broker.remoting.frame import FrameDecoder

GOLDEN_BINARY = bytes.fromhex(
    "000000260100002200690001990000000700000000000000000000000d0005746f706963000000025431"
)

REAL_RESPONSE_HEADER = (
    b'{"code":19,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"0","maxOffset":"0","minOffset":"0"},'
    b'"flag":1,"language":"JAVA","opaque":2851,"remark":"NO_MESSAGE_IN_QUEUE",'
    b'"serializeTypeCurrentRPC":"JSON","version":252}'
)


class TopicHeader(msgspec.Struct):
    topic: str
    queue_id: Int32 = msgspec.field(name="queueId")
    offset: Int64 | None = None
    order: bool | None = None


def one(data: bytes) -> RemotingCommand:
    (command,) = FrameDecoder().feed(data)
    return command


def frame(header: bytes, body: bytes = b"", serialization: int = JSON) -> bytes:
    word = serialization << 24 | len(header)
    return (4 + len(header) + len(body)).to_bytes(4, "big") + word.to_bytes(4, "big") + header + body


def test_golden_binary_request() -> None:
    command = remoting.request(105, {"topic": "T1"}, opaque=7, serialization=ROCKETMQ, version=409)
    assert remoting.encode(command) == GOLDEN_BINARY
    decoded = one(GOLDEN_BINARY)
    assert decoded.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
    assert (decoded.opaque, decoded.version, decoded.flag, decoded.remark) == (7, 409, 0, None)
    assert decoded.language_code is LanguageCode.JAVA
    assert decoded.fields == {"topic": "T1"}
    assert decoded.body == b""
    assert not decoded.is_response


def test_real_json_response_header() -> None:
    decoded = one(frame(REAL_RESPONSE_HEADER, b"body"))
    assert decoded.code == ResponseCode.PULL_NOT_FOUND
    assert decoded.is_response
    assert (decoded.opaque, decoded.version, decoded.remark) == (2851, 252, "NO_MESSAGE_IN_QUEUE")
    assert decoded.fields["suggestWhichBrokerId"] == "0"
    assert decoded.body == b"body"


def test_json_header_is_written_in_alphabetical_order_without_nulls() -> None:
    decoded = one(frame(REAL_RESPONSE_HEADER))
    assert remoting.encode(decoded) == frame(REAL_RESPONSE_HEADER)  # raw fields go out as they came
    without = remoting.encode(remoting.request(34, opaque=1))
    assert list(json.loads(without[8:])) == [
        "code",
        "flag",
        "language",
        "opaque",
        "serializeTypeCurrentRPC",
        "version",
    ]


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_response_keeps_serialization_and_opaque(serialization: int) -> None:
    request = one(
        remoting.encode(remoting.request(30, {"topic": "T"}, opaque=42, serialization=serialization))
    )
    answer = remoting.response(request, ResponseCode.SUCCESS, "fine", {"offset": "5"}, b"xyz")
    encoded = remoting.encode(answer)
    assert encoded[4] == serialization
    assert encoded == remoting.encode_response_head(request, 0, "fine", {"offset": "5"}, 3) + b"xyz"
    decoded = one(encoded)
    assert (decoded.opaque, decoded.flag, decoded.remark, decoded.body) == (42, 1, "fine", b"xyz")
    assert decoded.fields == {"offset": "5"}


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_typed_fields(serialization: int) -> None:
    sent = TopicHeader("主题", -3, 2**63 - 1, True)
    request = one(remoting.encode(remoting.request(1, sent, serialization=serialization)))
    assert request.decode_fields(TopicHeader) == sent
    assert request.fields == {"topic": "主题", "queueId": "-3", "offset": str(2**63 - 1), "order": "true"}
    assert request.decode_fields(TopicHeader) == sent  # after the dict was made, too
    unsent = remoting.request(1, sent)
    unsent.decode_fields(TopicHeader).topic = "changed by its reader"
    assert unsent.decode_fields(TopicHeader) == sent


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"queueId": "1"}, "topic", "the custom field <topic> is null"),
        ({"topic": "T"}, "queueId", "the custom field <queueId> is null"),
        ({"topic": "T", "queueId": "abc"}, "queueId", "the custom field <queueId> is 'abc'"),
        ({"topic": "T", "queueId": "2147483648"}, "queueId", "<= 2147483647"),
        ({"topic": "T", "queueId": "1", "offset": str(2**63)}, "offset", "<= 9223372036854775807"),
        ({"topic": "T", "queueId": "1", "order": "perhaps"}, "order", "'perhaps'"),
    ],
)
def test_field_errors_name_the_field(
    serialization: int, fields: dict[str, str], field: str, text: str
) -> None:
    request = one(remoting.encode(remoting.request(1, fields, serialization=serialization)))
    with pytest.raises(HeaderFieldError) as caught:
        request.decode_fields(TopicHeader)
    assert caught.value.field == field
    assert text in str(caught.value)


def test_json_null_field_is_absent_and_bare_scalars_are_strings() -> None:
    text = (
        b'{"code":1,"extFields":{"topic":7,"queueId":3,"order":true,"offset":null},'
        b'"opaque":1,"flag":0,"version":1,"language":"CPP"}'
    )
    request = one(frame(text))
    assert request.decode_fields(TopicHeader) == TopicHeader("7", 3, None, True)
    assert request.fields == {"topic": "7", "queueId": "3", "order": "true"}
    missing = one(frame(text.replace(b'"topic":7', b'"topic":null')))
    with pytest.raises(HeaderFieldError, match="the custom field <topic> is null"):
        missing.decode_fields(TopicHeader)


@pytest.mark.parametrize("ext", [b"[1]", b'"text"', b'{"topic":{"a":1}}', b'{"topic":"\xff"}'])
def test_fields_that_are_no_map_of_strings(ext: bytes) -> None:
    request = one(frame(b'{"code":1,"extFields":' + ext + b',"flag":0,"opaque":1}'))
    with pytest.raises(HeaderFieldError):
        request.decode_fields(TopicHeader)
    with pytest.raises(HeaderFieldError):
        _ = request.fields


def test_absent_or_null_fields_are_empty() -> None:
    assert one(frame(b'{"code":1}')).fields == {}
    assert one(frame(b'{"code":1,"extFields":null}')).fields == {}


def test_header_cannot_set_what_is_not_on_the_wire() -> None:
    command = one(frame(b'{"code":1,"body":"evil","serialization":1}', b"real"))
    assert (command.body, command.serialization) == (b"real", JSON)


def test_unknown_language_is_other() -> None:
    assert one(frame(b'{"code":1,"language":"KLINGON"}')).language_code is LanguageCode.OTHER
    assert one(frame(b'{"code":1,"language":9}')).language_code is LanguageCode.GO


def test_limits_of_what_can_be_sent() -> None:
    with pytest.raises(ValueError, match="use JSON"):
        remoting.encode(remoting.request(200050, serialization=ROCKETMQ))
    assert one(remoting.encode(remoting.request(200050))).code == 200050
    with pytest.raises(ValueError, match="16777216"):
        remoting.encode_head(remoting.request(10), 16 * 1024 * 1024)


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
@pytest.mark.parametrize("remark", [None, "", 'quo"te\\\x01\n é'])
@pytest.mark.parametrize(
    "fields", [None, {}, {"queueId": "3", 'k"': "\x01é"}, TopicHeader("T", 1, None, False)]
)
def test_fast_response_head_equals_the_general_one(
    serialization: int, remark: str | None, fields: dict[str, str] | TopicHeader | None
) -> None:
    request = remoting.request(10, opaque=-5, serialization=serialization)
    general = remoting.encode_head(remoting.response(request, 0, remark, fields), 7)
    assert remoting.encode_response_head(request, 0, remark, fields, 7) == general


text_without_surrogates = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
int32 = st.integers(-(2**31), 2**31 - 1)


@given(
    serialization=st.sampled_from([JSON, ROCKETMQ]),
    code=st.integers(0, 32767),
    flag=st.integers(0, 3),
    opaque=int32,
    version=st.integers(0, 32767),
    language=st.sampled_from([code.name for code in LanguageCode]),
    remark=st.none() | text_without_surrogates.filter(bool),
    fields=st.dictionaries(text_without_surrogates, text_without_surrogates.filter(bool), max_size=8),
    body=st.binary(max_size=64),
)
def test_round_trip(
    serialization: int,
    code: int,
    flag: int,
    opaque: int,
    version: int,
    language: str,
    remark: str | None,
    fields: dict[str, str],
    body: bytes,
) -> None:
    sent = RemotingCommand(code, flag, language, opaque, version, remark, fields, body, serialization)
    received = one(remoting.encode(sent))
    again = one(remoting.encode(received))  # with the fields still undecoded, as a forwarder sends it on
    for command in (received, again):
        assert command.fields == fields
        assert command == RemotingCommand(
            code, flag, language, opaque, version, remark, command.fields, body, serialization
        )

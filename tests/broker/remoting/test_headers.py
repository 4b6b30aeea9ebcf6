"""Typed headers: wire names, mandatory fields, and that the long and short send headers agree."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from broker.remoting import admin_headers, headers, name_server_headers
from broker.remoting import command as remoting
from broker.remoting.errors import HeaderFieldError
from broker.remoting.frame import FrameDecoder


def all_headers() -> list[type[msgspec.Struct]]:
    return [
        member
        for module in (headers, admin_headers, name_server_headers)
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, msgspec.Struct) and member.__module__ == module.__name__
    ]


WIRE = {
    headers.SendMessageHeaderV2: "a! b! c! d! e! f! g! h! i j k l m n once again",
    headers.SendMessageHeader: (
        "producerGroup! topic! defaultTopic! defaultTopicQueueNums! queueId! sysFlag! bornTimestamp! flag! "
        "properties reconsumeTimes unitMode maxReconsumeTimes batch brokerName once again"
    ),
    headers.SendMessageResponseHeader: "msgId! queueId! queueOffset! transactionId MSG_REGION TRACE_ON once",
    headers.PullMessageHeader: (
        "consumerGroup! topic! queueId! queueOffset! maxMsgNums! sysFlag! commitOffset! suspendTimeoutMillis! "
        "subVersion! subscription expressionType maxMsgBytes"
    ),
    headers.PullMessageResponseHeader: "suggestWhichBrokerId! nextBeginOffset! minOffset! maxOffset!",
    headers.UnregisterClientHeader: "clientID! producerGroup consumerGroup",
    headers.EndTransactionHeader: (
        "producerGroup! tranStateTableOffset! commitLogOffset! commitOrRollback! msgId! fromTransactionCheck "
        "transactionId topic"
    ),
    headers.CheckTransactionStateHeader: (
        "tranStateTableOffset! commitLogOffset! msgId transactionId offsetMsgId topic bname"
    ),
    headers.ConsumerSendMessageBackHeader: (
        "offset! group! delayLevel! originMsgId originTopic unitMode maxReconsumeTimes"
    ),
    headers.QueryMessageHeader: "topic! key! maxNum! beginTimestamp! endTimestamp! _UNIQUE_KEY_QUERY",
    admin_headers.CreateTopicHeader: (
        "topic! defaultTopic! readQueueNums! writeQueueNums! perm! topicFilterType! order! topicSysFlag "
        "attributes force"
    ),
    admin_headers.DeleteSubscriptionGroupHeader: "groupName! cleanOffset removeOffset",
    name_server_headers.GetRouteHeader: "topic! acceptStandardJsonOnly",
    name_server_headers.RegisterBrokerHeader: (
        "brokerName! brokerAddr! clusterName! haServerAddr! brokerId! compressed bodyCrc32 "
        "heartbeatTimeoutMillis enableActingMaster allTopics"
    ),
    name_server_headers.BrokerIdentityHeader: "brokerName! brokerAddr! clusterName! brokerId!",
}


@pytest.mark.parametrize("header_type", WIRE, ids=lambda header_type: header_type.__name__)
def test_wire_names(header_type: type[msgspec.Struct]) -> None:
    wire = {
        field.encode_name + ("!" if field.required else "") for field in msgspec.structs.fields(header_type)
    }
    assert wire == set(WIRE[header_type].split())


def test_long_and_short_send_headers_have_the_same_attributes() -> None:
    assert headers.SendMessageHeader.__struct_fields__ == headers.SendMessageHeaderV2.__struct_fields__


def sample(field_type: object) -> object:
    """A value of a header field's type."""
    text = str(field_type)
    if "bool" in text:
        return True
    return -7 if "int" in text else "véx"


@pytest.mark.parametrize("serialization", [remoting.JSON, remoting.ROCKETMQ])
@pytest.mark.parametrize("header_type", all_headers(), ids=lambda header_type: header_type.__name__)
def test_every_header_crosses_the_wire(header_type: type[msgspec.Struct], serialization: int) -> None:
    fields = msgspec.structs.fields(header_type)
    for chosen in (fields, tuple(field for field in fields if field.required)):
        sent = header_type(**{field.name: sample(field.type) for field in chosen})
        request = remoting.request(1, sent, serialization=serialization)
        (received,) = FrameDecoder().feed(remoting.encode(request))
        assert received.decode_fields(header_type) == sent
    required = [field.encode_name for field in fields if field.required]
    if required:
        (empty,) = FrameDecoder().feed(remoting.encode(remoting.request(1, serialization=serialization)))
        with pytest.raises(HeaderFieldError, match=f"the custom field <{required[0]}> is null"):
            empty.decode_fields(header_type)

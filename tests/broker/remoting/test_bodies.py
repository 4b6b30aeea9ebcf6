"""Bodies: the reference's JSON dialect, other clients' habits, the registration's two forms."""

from __future__ import annotations

import gc
import json
import struct
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.remoting import register_body
from broker.remoting.admin_bodies import (
    ConsumeOffset,
    ConsumeStats,
    ListedOffsets,
    QueueOffsets,
    TopicOffset,
    TopicStats,
    consume_stats_body,
)
from broker.remoting.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    DataVersion,
    HeartbeatData,
    LockBatchBody,
    LockBatchResponseBody,
    MessageModel,
    MessageQueue,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigTable,
    TopicList,
)
from broker.remoting.codes import Version
from broker.remoting.errors import BodyError
from broker.remoting.json_body import (
    DEPTH_MAX,
    DIALECT_BYTES_MAX,
    FORGIVEN_COMMAS_MAX,
    ObjectKeyed,
    decode_body,
    decode_request,
    encode_body,
    encode_object_keyed,
    parse_loose_json,
)
from broker.remoting.node_status import decode_node_status
from broker.remoting.register_body import TOPICS_MAX, RegisterBrokerBody, body_crc
from broker.remoting.route import BrokerData, BrokerMemberGroup, ClusterInfo, QueueData, TopicRouteData

HEARTBEAT = (
    b'{"clientID":"10.0.0.1@123","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"g","messageModel":"CLUSTERING","subscriptionDataSet":['
    b'{"classFilterMode":false,"codeSet":[97,-5],"expressionType":"TAG","subString":"a || b",'
    b'"subVersion":1700000000000,"tagsSet":["a","b"],"topic":"T"}],"unitMode":false}],'
    b'"producerDataSet":[{"groupName":"p"}],"somethingNew":{"x":[1,2]}}'
)


def test_heartbeat() -> None:
    subscription = SubscriptionData(
        code_set=[97, -5], sub_string="a || b", sub_version=1700000000000, tags_set=["a", "b"], topic="T"
    )
    expected = HeartbeatData(
        client_id="10.0.0.1@123",
        consumer_data_set=[ConsumerData(group_name="g", subscription_data_set=[subscription])],
        producer_data_set=[ProducerData("p")],
    )
    assert decode_body(HEARTBEAT, HeartbeatData) == expected
    assert decode_body(memoryview(encode_body(expected)), HeartbeatData) == expected


def test_heartbeat_with_ordinals_nulls_and_numbers_as_strings() -> None:
    body = (
        b'{"clientID":"c","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,"groupName":"g",'
        b'"messageModel":0,"subscriptionDataSet":[{"codeSet":["97"],"subVersion":"1700000000000",'
        b'"subString":"a","tagsSet":null,"topic":"T"}]}],"producerDataSet":null}'
    )
    heartbeat = decode_body(body, HeartbeatData)
    (consumer,) = heartbeat.consumer_data_set
    assert consumer.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    assert consumer.consume_type is ConsumeType.CONSUME_PASSIVELY
    assert consumer.message_model is MessageModel.BROADCASTING
    (subscription,) = consumer.subscription_data_set
    assert (subscription.code_set, subscription.sub_version) == ([97], 1700000000000)
    assert (subscription.tags_set, heartbeat.producer_data_set) == ([], [])


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "a value expected at character 0"),
        (b"\xff", "no JSON"),
        (b"{}", "no HeartbeatData: Object missing required field `clientID`"),
        (b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":"X"}]}', "messageModel"),
        (b'{"clientID":"c"} x', "something after the end"),
        (b'{"clientID":"\\ud800"}', "no JSON"),
        (b'{"clientID":' + b"9" * 5000 + b"}", "number too long"),
        (b'{"clientID":1e999}', "number too large at character 17"),
        (b"[" * (DEPTH_MAX + 2), f"nested deeper than {DEPTH_MAX}"),
        (b"[" * 100_000, f"nested deeper than {DEPTH_MAX}"),
    ],
)
def test_bad_bodies_say_what_is_wrong(body: bytes, text: str) -> None:
    with pytest.raises(BodyError) as caught:
        decode_body(body, HeartbeatData)
    assert text in str(caught.value)


@given(st.text(st.sampled_from('{}[]:,"\\019.-eE truefalsn\x01u'), max_size=60) | st.text(max_size=20))
def test_loose_parser_gives_a_value_or_a_body_error(text: str) -> None:
    try:
        value = parse_loose_json(text.encode(errors="surrogatepass"))
    except BodyError:
        return
    msgspec.json.encode(value)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(json_values)
def test_loose_parser_agrees_on_standard_json(value: object) -> None:
    assert parse_loose_json(msgspec.json.format(msgspec.json.encode(value))) == value


ROUTE = TopicRouteData(
    broker_datas=[BrokerData({2: "h2:1", 0: "h0:1", 10: "h10:1"}, "brokér", "c")],
    order_topic_conf="b:8",
    queue_datas=[QueueData(broker_name="b", perm=6, read_queue_nums=8, write_queue_nums=4)],
)
ROUTE_TAIL = (
    b'"cluster":"c","enableActingMaster":false}],"filterServerTable":{},"orderTopicConf":"b:8",'
    b'"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":4}]}'
)


@pytest.mark.parametrize(("version", "asked"), [(0, False), (252, False), (400, False)])
def test_route_for_old_clients_has_bare_keys(version: int, asked: bool) -> None:
    encoded = ROUTE.encode(version, asked)
    start = '{"brokerDatas":[{"brokerAddrs":{0:"h0:1",2:"h2:1",10:"h10:1"},"brokerName":"brokér",'
    assert encoded == start.encode() + ROUTE_TAIL
    assert TopicRouteData.decode(encoded) == ROUTE


@pytest.mark.parametrize(("version", "asked"), [(401, False), (479, False), (0, True), (121, True)])
def test_route_for_new_clients_is_standard_ascii_json(version: int, asked: bool) -> None:
    encoded = ROUTE.encode(version, asked)
    start = (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"h0:1","10":"h10:1","2":"h2:1"},"brokerName":"brok\\u00e9r",'
    )
    assert encoded == start + ROUTE_TAIL
    assert TopicRouteData.decode(encoded) == ROUTE


def test_characters_outside_the_basic_plane_become_surrogate_pairs() -> None:
    route = TopicRouteData(broker_datas=[BrokerData({0: "h"}, "😀", "c")])
    encoded = route.encode(479, False)
    assert b"\\ud83d\\ude00" in encoded
    assert TopicRouteData.decode(encoded) == route


def test_cluster_info_and_member_group_have_bare_keys_always() -> None:
    info = ClusterInfo({"b": BrokerData({0: "h:1", 1: "h:2"}, "b", "c")}, {"c": ["b"]})
    assert info.encode() == (
        b'{"brokerAddrTable":{"b":{"brokerAddrs":{0:"h:1",1:"h:2"},"brokerName":"b","cluster":"c",'
        b'"enableActingMaster":false}},"clusterAddrTable":{"c":["b"]}}'
    )
    assert ClusterInfo.decode(info.encode()) == info
    assert BrokerMemberGroup({1: "h:1"}, "b", "c").encode() == (
        b'{"brokerMemberGroup":{"brokerAddrs":{1:"h:1"},"brokerName":"b","cluster":"c"}}'
    )


def test_topic_list_leaves_out_a_null_broker_address() -> None:
    assert encode_body(TopicList(topics=["a"])) == b'{"topicList":["a"]}'
    assert encode_body(TopicList("h:1", ["a"])) == b'{"brokerAddr":"h:1","topicList":["a"]}'


def test_maps_keyed_by_queues() -> None:
    stats = TopicStats({MessageQueue("b", 0, "T"): TopicOffset(5, 9, 1)})
    written = encode_body({"offsetTable": encode_object_keyed(stats.offsets)})
    assert written == (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:'
        b'{"lastUpdateTimestamp":5,"maxOffset":9,"minOffset":1}}}'
    )
    assert TopicStats.decode(written) == stats
    spaced = (
        b'{ "offsetTable" : { { "topic" : "T", "queueId" : 0 , "brokerName":"b"} : '
        b'{"minOffset":1,"maxOffset":9,"lastUpdateTimestamp":"5"} } }'
    )
    assert TopicStats.decode(spaced) == stats
    consume = ConsumeStats({MessageQueue("b", 1, "T"): ConsumeOffset(5, 4, 3, 2)}, 1.5)
    progress = ObjectKeyed()
    progress.add(consume.offsets)
    assert ConsumeStats.decode(b"".join(consume_stats_body(progress, 1.5).all())) == consume
    offsets = QueueOffsets({MessageQueue("b", 1, "T"): 7, MessageQueue("b", 2, "T"): 8})
    assert QueueOffsets.decode(offsets.encode()) == offsets
    listed = ListedOffsets()
    listed.add(offsets.offsets)
    assert listed.encode().startswith(
        b'{"offsetTable":[{"brokerName":"b","offset":7,"queueId":1,"topic":"T"},'
    )
    deep = json.dumps('{"brokerName":"b","queueId":0,"topic":"T","x":' + "[" * 50_000)
    for key in (b'"T"', deep.encode()):
        with pytest.raises(BodyError, match="map key"):
            TopicStats.decode(b'{"offsetTable":{%b:{}}}' % key)


@pytest.mark.parametrize(
    "body", [b"{}", b"[]", b'{"node":"\xff"}', b'{"of_a_newer_release":' + b"[" * 50_000]
)
def test_what_is_no_status_of_a_node_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_node_status(body)


def test_lock_bodies() -> None:
    body = (
        b'{"clientId":"c","consumerGroup":"g","mqSet":[{"topic":"T","brokerName":"b","queueId":3}],'
        b'"onlyThisBroker":true}'
    )
    locks = decode_body(body, LockBatchBody)
    assert locks.queues == [MessageQueue("b", 3, "T")]
    assert encode_body(LockBatchResponseBody(locks.queues)) == (
        b'{"lockOKMQSet":[{"brokerName":"b","queueId":3,"topic":"T"}]}'
    )


def test_subscription_group_of_either_line() -> None:
    old = b'{"brokerId":0,"consumeEnable":false,"groupName":"g","retryMaxTimes":3,"retryQueueNums":1}'
    new = b'{"groupName":"g","groupRetryPolicy":{"type":"CUSTOMIZED"},"subscriptionDataSet":null,"attributes":{}}'
    assert decode_body(old, SubscriptionGroupConfig) == SubscriptionGroupConfig(
        group_name="g", consume_enable=False, retry_max_times=3
    )
    assert decode_body(new, SubscriptionGroupConfig) == SubscriptionGroupConfig(
        group_name="g", group_retry_policy={"type": "CUSTOMIZED"}
    )


REGISTRATION = RegisterBrokerBody(
    topics=TopicConfigTable(
        DataVersion(3, 0, 1700000000000),
        {
            "T": TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=4, perm=6),
            "D": TopicConfig(topic_name="D", attributes={"message.type": "NORMAL x"}),
        },
    )
)


def test_register_body_forms() -> None:
    plain = REGISTRATION.encode()
    assert RegisterBrokerBody.decode(plain, compressed=False, version=409) == REGISTRATION
    for version in (409, 479):
        compressed = REGISTRATION.encode_compressed(version)
        assert RegisterBrokerBody.decode(compressed, compressed=True, version=version) == REGISTRATION
    oldest = encode_body(REGISTRATION.topics)
    assert RegisterBrokerBody.decode(oldest, compressed=False, version=36) == REGISTRATION
    assert RegisterBrokerBody.decode(b"", compressed=False, version=409) == RegisterBrokerBody()


def test_register_body_layout() -> None:
    def item(data: bytes) -> bytes:
        return struct.pack(">i", len(data)) + data

    data = (
        item(b'{"counter":3,"timestamp":7}')
        + struct.pack(">i", 2)
        + item(b"T 8 4 6 SINGLE_TAG")
        + item(b'D 1 2 4 MULTI_TAG {"k":"v w"}')
        + item(b"[]")
        + struct.pack(">i", 1)
        + item(b'{"mapping":1}')
    )
    decoded = RegisterBrokerBody.decode(zlib.compress(data), compressed=True, version=479)
    assert decoded.topics.data_version == DataVersion(3, 0, 7)
    assert decoded.topics.topic_config_table == {
        "T": TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=4, perm=6),
        "D": TopicConfig(
            topic_name="D",
            read_queue_nums=1,
            write_queue_nums=2,
            perm=4,
            topic_filter_type="MULTI_TAG",
            attributes={"k": "v w"},
        ),
    }


def test_register_body_crc_has_no_sign_bit() -> None:
    assert zlib.crc32(b"a") == 0xE8B7BE43
    assert body_crc(b"a") == 0x68B7BE43


@given(st.binary(max_size=80), st.booleans())
def test_damaged_compressed_registration_is_a_body_error(data: bytes, deflate: bool) -> None:
    try:
        RegisterBrokerBody.decode(zlib.compress(data) if deflate else data, compressed=True, version=479)
    except BodyError:
        pass


@given(st.integers(0, 200), st.integers(0, 255))
def test_flipped_bytes_of_a_registration_are_read_or_a_body_error(at: int, value: int) -> None:
    inner = bytearray(zlib.decompress(REGISTRATION.encode_compressed(479)))
    inner[at % len(inner)] = value
    try:
        RegisterBrokerBody.decode(zlib.compress(inner), compressed=True, version=479)
    except BodyError:
        pass


@pytest.mark.parametrize(
    "text", ["T 8 4 6", "T 8 4 x SINGLE_TAG", "T 8 99999999999 6 SINGLE_TAG", "T 8 4 6 S {"]
)
def test_bad_topic_texts(text: str) -> None:
    body = text.encode()
    data = (
        struct.pack(">i", 2)
        + b"{}"
        + struct.pack(">i", 1)
        + struct.pack(">i", len(body))
        + body
        + struct.pack(">i", 2)
        + b"[]"
    )
    with pytest.raises(BodyError):
        RegisterBrokerBody.decode(zlib.compress(data), compressed=True, version=409)


@pytest.mark.parametrize("version", [36, 409])
@pytest.mark.parametrize("padding", [b"", b" " * DIALECT_BYTES_MAX])
def test_registrations_that_are_no_utf8_are_malformed(version: int, padding: bytes) -> None:
    table = b'{"topicConfigTable":{"T":{"topicName":"\xff"}}}%b' % padding
    body = table if version == 36 else b'{"topicConfigSerializeWrapper":%b}' % table
    with pytest.raises(BodyError, match="can't decode byte 0xff"):
        RegisterBrokerBody.decode(body, compressed=False, version=version)


def test_long_bodies_of_requests_are_standard_json() -> None:
    padding = "x" * DIALECT_BYTES_MAX
    standard = b'{"clientID":"c","note":"%b"}' % padding.encode()
    assert decode_request(standard, HeartbeatData).client_id == "c"
    dialect = b'{clientID:"c",note:"%b"}'
    assert decode_request(dialect % b"short", HeartbeatData).client_id == "c"
    with pytest.raises(BodyError, match=f"the body of {len(dialect % padding.encode())} bytes"):
        decode_request(dialect % padding.encode(), HeartbeatData)


def test_ordinals_and_nulls_are_forgiven_in_bodies_that_are_not_too_long() -> None:
    """What the C++ client writes, for as many groups as a client may have: each value is looked at."""
    group = b'{"groupName":"g","messageModel":1,"subscriptionDataSet":null}'
    groups = b",".join([group] * 1000)
    body = decode_request(b'{"clientID":"c","consumerDataSet":[%b]}' % groups, HeartbeatData)
    assert {data.message_model for data in body.consumer_data_set} == {MessageModel.CLUSTERING}
    more = b",".join([group] * FORGIVEN_COMMAS_MAX)
    with pytest.raises(BodyError, match=r"the body of \d+ bytes is no HeartbeatData"):
        decode_request(b'{"clientID":"c","consumerDataSet":[%b]}' % more, HeartbeatData)


def test_long_registrations_are_standard_json_and_count_their_topics() -> None:
    padding = b"x" * DIALECT_BYTES_MAX
    with pytest.raises(BodyError, match=r"the body of \d+ bytes is no RegisterBrokerBody"):
        RegisterBrokerBody.decode(b'{filterServerList:["%b"]}' % padding, compressed=False, version=409)
    with pytest.raises(BodyError, match=r"the body of \d+ bytes is no TopicConfigTable"):
        RegisterBrokerBody.decode(b'{dataVersion:{},x:"%b"}' % padding, compressed=False, version=36)
    version = b'{"counter":3,"timestamp":7}'
    head = struct.pack(">i", len(version)) + version
    count = TOPICS_MAX + 1
    with pytest.raises(BodyError, match=f"has {count} topics, at most {TOPICS_MAX} are read"):
        RegisterBrokerBody.decode(
            zlib.compress(head + struct.pack(">i", count) + bytes(count), 1), compressed=True, version=409
        )
    topics = b",".join(b'"%d":{"topicName":"%d"}' % (number, number) for number in range(count))
    for body, of_version in (
        (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{%b}}}' % topics, 409),
        (b'{"topicConfigTable":{%b}}' % topics, 36),
    ):
        with pytest.raises(BodyError, match=f"has {count} topics, at most {TOPICS_MAX} are read"):
            RegisterBrokerBody.decode(body, compressed=False, version=of_version)


def test_what_topics_of_a_registration_have_in_common_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    parse = register_body._parse_topic

    def watched(text: str) -> TopicConfig:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr(register_body, "_parse_topic", watched)
    topics = {
        f"t{number}": TopicConfig(topic_name=f"t{number}", perm=4 + 2 * (number % 2), attributes={"a": "b c"})
        for number in range(1000)
    }
    body = RegisterBrokerBody(topics=TopicConfigTable(topic_config_table=topics))
    encoded = body.encode_compressed(Version.V5_0_0)
    read = RegisterBrokerBody.decode(encoded, compressed=True, version=Version.V5_0_0)
    assert read == body
    assert len(parsed) == 2, "of the words behind the names there are two kinds"


def test_tables_of_topics_and_routes_are_nothing_to_the_garbage_collector() -> None:
    """Hundreds of thousands of them live as long as a name server, and its full collections would visit each."""
    topic = TopicConfig(topic_name="t", attributes={"a": "b"})
    queues = QueueData(broker_name="b", perm=6, read_queue_nums=4, write_queue_nums=4)
    assert not any(map(gc.is_tracked, (topic, topic.attributes, queues, {"b": queues})))

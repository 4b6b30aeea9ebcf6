"""The name server's rules one by one, through its requests."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

import msgspec
import pytest

from broker.name_server import KeyValueError, NameServer
from broker.remoting import command as remoting
from broker.remoting.bodies import DataVersion, TopicConfig, TopicConfigTable, TopicList
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import ROCKETMQ, RemotingCommand
from broker.remoting.frame import FrameDecoder
from broker.remoting.json_body import decode_body, encode_body
from broker.remoting.name_server_headers import RegisterBrokerHeader
from broker.remoting.register_body import RegisterBrokerBody, body_crc
from broker.remoting.route import ClusterInfo, QueueData, TopicRouteData
from broker.settings.tables import NameServerSettings
from tests.broker.name_server_end import answered

SECOND = 1_000_000_000
FIRST_VERSION = DataVersion(1, 0, 1)


class MemoryStorage:
    """A storage whose next save can be made to fail."""

    def __init__(self, data: bytes | None = None) -> None:
        self.data = data
        self.failing = False

    def load(self) -> bytes | None:
        return self.data

    def save(self, data: bytes) -> None:
        if self.failing:
            raise OSError(28, "No space left on device")
        self.data = data


class Client:
    """Speaks to a name server through encoded frames, as one connection after another."""

    def __init__(self, server: NameServer) -> None:
        self.server = server

    def call(
        self,
        code: int,
        fields: Mapping[str, str] | msgspec.Struct | None = None,
        body: bytes = b"",
        *,
        connection: str = "client",
        now_ns: int = 0,
        version: int = 409,
        serialization: int = remoting.JSON,
    ) -> RemotingCommand:
        request = remoting.request(code, fields, body, opaque=9, version=version, serialization=serialization)
        (received,) = FrameDecoder().feed(remoting.encode(request))
        decoded = answered(self.server, connection, received, now_ns)
        assert decoded is not None
        assert decoded.is_response
        assert (decoded.opaque, decoded.serialization) == (9, serialization)
        return decoded

    def register(
        self,
        address: str,
        broker_id: int,
        topics: Mapping[str, int] | None = None,
        *,
        name: str = "b",
        cluster: str = "c",
        version: DataVersion = FIRST_VERSION,
        connection: str | None = None,
        now_ns: int = 0,
        heartbeat_timeout_ms: int | None = None,
        enable_acting_master: bool | None = None,
        all_topics: bool | None = None,
        compressed: bool = False,
        crc: int | None = None,
        sys_flags: Mapping[str, int] | None = None,
    ) -> RemotingCommand:
        table = {
            topic: TopicConfig(
                topic_name=topic,
                read_queue_nums=4,
                write_queue_nums=4,
                perm=perm,
                topic_sys_flag=(sys_flags or {}).get(topic, 0),
            )
            for topic, perm in (topics if topics is not None else {"T": 6, "U": 6}).items()
        }
        register_body = RegisterBrokerBody(topics=TopicConfigTable(version, table))
        body = register_body.encode_compressed(409) if compressed else register_body.encode()
        header = RegisterBrokerHeader(
            broker_name=name,
            broker_address=address,
            cluster_name=cluster,
            ha_server_address=address + "/ha",
            broker_id=broker_id,
            compressed=compressed,
            body_crc=body_crc(body) if crc is None else crc,
            heartbeat_timeout_ms=heartbeat_timeout_ms,
            enable_acting_master=enable_acting_master,
            all_topics=all_topics,
        )
        return self.call(
            RequestCode.REGISTER_BROKER, header, body, connection=connection or address, now_ns=now_ns
        )

    def identity(self, address: str, name: str = "b", cluster: str = "c") -> dict[str, str]:
        return {"brokerName": name, "brokerAddr": address, "clusterName": cluster, "brokerId": "0"}

    def route(self, topic: str = "T") -> TopicRouteData | None:
        answer = self.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        assert answer.code == ResponseCode.SUCCESS
        return TopicRouteData.decode(answer.body)

    def addresses(self, topic: str = "T") -> dict[str, dict[int, str]]:
        route = self.route(topic)
        return (
            {} if route is None else {data.broker_name: data.broker_addresses for data in route.broker_datas}
        )

    def permissions(self, topic: str = "T") -> dict[str, int]:
        route = self.route(topic)
        return {} if route is None else {data.broker_name: data.perm for data in route.queue_datas}

    def topics(self, code: int, fields: Mapping[str, str] | None = None) -> list[str]:
        return decode_body(self.call(code, fields).body, TopicList).topics

    def clusters(self) -> dict[str, list[str]]:
        return ClusterInfo.decode(self.call(RequestCode.GET_BROKER_CLUSTER_INFO).body).cluster_table


@pytest.fixture
def client() -> Client:
    return Client(NameServer(NameServerSettings()))


# Registration, in the order of `RouteInfoManager.registerBroker`.


@pytest.mark.parametrize("compressed", [False, True])
def test_register_then_route(client: Client, compressed: bool) -> None:
    answer = client.register("h0", 0, compressed=compressed)
    assert answer.code == ResponseCode.SUCCESS
    assert (answer.fields, answer.body) == ({}, b"")
    route = client.route()
    assert route is not None
    assert client.addresses() == {"b": {0: "h0"}}
    assert route.broker_datas[0].cluster == "c"
    assert route.queue_datas == [QueueData(broker_name="b", perm=6, read_queue_nums=4, write_queue_nums=4)]
    assert client.clusters() == {"c": ["b"]}


def test_crc_is_checked_unless_zero(client: Client) -> None:
    refused = client.register("h0", 0, crc=1)
    assert (refused.code, refused.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")
    assert client.route() is None
    assert client.register("h0", 0, crc=0).code == ResponseCode.SUCCESS


def test_changing_role_moves_the_address_to_its_new_id(client: Client) -> None:
    client.register("h0", 0)
    client.register("h1", 2)
    client.register("h1", 0, version=DataVersion(1, 1, 1))
    assert client.addresses() == {"b": {0: "h1"}}
    client.register("h0", 1)
    assert client.addresses() == {"b": {0: "h1", 1: "h0"}}


def test_leader_of_an_earlier_term_cannot_take_the_id_back(client: Client) -> None:
    client.register("h0", 0, version=DataVersion(1, 3, 1))
    client.register("h1", 0, version=DataVersion(1, 4, 1))
    stale = client.register("h0", 0, version=DataVersion(9, 3, 9))
    assert stale.code == ResponseCode.SUCCESS  # it is told nothing, as by the reference
    assert client.addresses() == {"b": {0: "h1"}}
    asked = client.call(
        RequestCode.QUERY_DATA_VERSION, client.identity("h0"), encode_body(DataVersion(9, 3, 9))
    )
    assert asked.fields == {"changed": "true"}


def test_unchanged_version_keeps_queue_data_but_adds_missing_topics(client: Client) -> None:
    client.register("h0", 0, {"T": 6})
    client.register("h0", 0, {"T": 4, "U": 6})
    assert client.permissions("T") == {"b": 6}
    assert client.permissions("U") == {"b": 6}
    client.register("h0", 0, {"T": 4}, version=DataVersion(2, 0, 2))
    assert client.permissions("T") == {"b": 4}
    assert client.permissions("U") == {"b": 6}  # topics missing from the body are left


def test_a_complete_registration_ends_what_it_does_not_name(client: Client) -> None:
    """Of that broker name only; the same registration again, or one that need not be complete, ends nothing."""
    client.register("h0", 0, {"T": 6, "U": 6})
    client.register("x0", 0, {"T": 6, "U": 6}, name="x")
    client.register("h0", 0, {"T": 6}, all_topics=True)
    assert client.permissions("U") == {"b": 6, "x": 6}, "its version is known"
    client.register("h0", 0, {"T": 6}, version=DataVersion(2, 0, 2))
    assert client.permissions("U") == {"b": 6, "x": 6}
    client.register("h0", 0, {"T": 6}, version=DataVersion(2, 0, 3), all_topics=True)
    assert client.permissions("T") == {"b": 6, "x": 6}
    assert client.permissions("U") == {"x": 6}
    client.register("x0", 0, {"T": 6}, name="x", version=DataVersion(2, 0, 2), all_topics=True)
    assert client.route("U") is None


def test_followers_bring_no_topics_and_are_told_their_master(client: Client) -> None:
    answer = client.register("h1", 1)
    assert answer.fields == {}
    assert client.route() is None
    client.register("h0", 0)
    answer = client.register("h1", 1)
    assert answer.fields == {"masterAddr": "h0", "haServerAddr": "h0/ha"}
    assert client.addresses() == {"b": {1: "h1", 0: "h0"}}


def test_prime_slave_registers_topics_without_write(client: Client) -> None:
    client.register("h1", 1, enable_acting_master=True)
    assert client.permissions() == {"b": 4}
    client.register("h0", 0, enable_acting_master=True)
    assert client.permissions() == {"b": 6}
    client.server.routes.connection_closed("h0")
    assert client.permissions() == {"b": 4}


def test_the_loss_of_a_master_changes_no_topic_by_itself(client: Client) -> None:
    """All would be in one call; routes say it."""
    topics = {f"t{number}": 6 for number in range(2_000)}
    for broker_id, address in enumerate(("h0", "h1")):
        client.register(address, broker_id, topics=topics, enable_acting_master=True)
    lines = 0

    def counted(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return counted

    sys.settrace(counted)
    try:
        client.server.routes.connection_closed("h0")
    finally:
        sys.settrace(None)
    assert lines < 200
    assert client.permissions("t7") == {"b": 4}
    client.register("h0", 0, topics=topics, enable_acting_master=True)
    assert client.permissions("t7") == {"b": 6}


def test_broker_moving_to_another_name_or_cluster_leaves_the_old_one(client: Client) -> None:
    client.register("h0", 0)
    client.register("h0", 0, name="other", cluster="c2")
    assert client.clusters() == {"c2": ["other"]}
    assert client.addresses() == {"other": {0: "h0"}}


def test_missing_header_field_and_damaged_body_are_answered(client: Client) -> None:
    missing = client.call(RequestCode.REGISTER_BROKER, {"brokerName": "b"})
    assert (missing.code, missing.remark) == (1, "the custom field <brokerAddr> is null")
    fields = {**client.identity("h0"), "haServerAddr": "x"}
    damaged = client.call(RequestCode.REGISTER_BROKER, fields, b"{")
    assert damaged.code == 1
    assert "no JSON" in (damaged.remark or "")
    assert client.clusters() == {}


# Leaving: unregistration, closed connections, silence.


def test_unregister_removes_address_then_name_then_cluster(client: Client) -> None:
    client.register("h0", 0)
    client.register("h1", 1)
    client.register("x0", 0, name="x", cluster="c")
    assert client.call(RequestCode.UNREGISTER_BROKER, client.identity("h0")).code == 0
    assert client.addresses() == {"b": {1: "h1"}, "x": {0: "x0"}}
    client.call(RequestCode.UNREGISTER_BROKER, client.identity("h1"))
    assert client.addresses() == {"x": {0: "x0"}}
    client.call(RequestCode.UNREGISTER_BROKER, client.identity("x0", "x"))
    assert client.route() is None
    assert client.clusters() == {}
    assert client.topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == []


def test_late_unregistration_of_a_deposed_leader_leaves_its_successor(client: Client) -> None:
    client.register("h0", 0)
    client.register("h1", 0)
    client.call(RequestCode.UNREGISTER_BROKER, client.identity("h0"))
    client.server.routes.connection_closed("h0")
    assert client.addresses() == {"b": {0: "h1"}}


def test_closed_connection_removes_its_brokers_at_once(client: Client) -> None:
    client.register("h0", 0, connection="first")
    client.server.routes.connection_closed("first")
    assert client.route() is None
    client.register("h0", 0, connection="first")
    client.register("h0", 0, connection="second")
    client.server.routes.connection_closed("first")
    assert client.addresses() == {"b": {0: "h0"}}


def is_silent_from(server: NameServer, at_ns: int) -> bool:
    """Tells whether the first broker expires at that time, and not earlier."""
    earlier, then = (copy.deepcopy(server).routes.drop_silent(now_ns) for now_ns in (at_ns - 1, at_ns))
    return not earlier and bool(then)


def test_silence_expires_a_broker(client: Client) -> None:
    server = client.server
    client.register("h0", 0, now_ns=5 * SECOND)
    client.register("h1", 1, now_ns=6 * SECOND, heartbeat_timeout_ms=10_000)
    assert server.routes.drop_silent(16 * SECOND - 1) == []
    assert server.routes.drop_silent(16 * SECOND) == ["h1"]
    assert client.addresses() == {"b": {0: "h0"}}
    client.register("h0", 0, now_ns=20 * SECOND)
    assert is_silent_from(server, 140 * SECOND)
    assert server.routes.drop_silent(140 * SECOND) == ["h0"]
    assert client.route() is None
    assert server.routes.drop_silent(1 << 62) == []


def test_heartbeat_and_unchanged_version_query_put_expiry_off(client: Client) -> None:
    server = client.server
    client.register("h0", 0)
    client.call(RequestCode.BROKER_HEARTBEAT, client.identity("h0"), now_ns=10 * SECOND)
    assert is_silent_from(server, 130 * SECOND)
    same = client.call(
        RequestCode.QUERY_DATA_VERSION,
        client.identity("h0"),
        encode_body(DataVersion(1, 0, 1)),
        now_ns=20 * SECOND,
    )
    assert same.fields == {"changed": "false"}
    assert decode_body(same.body, DataVersion) == DataVersion(1, 0, 1)
    assert is_silent_from(server, 140 * SECOND)
    other = client.call(
        RequestCode.QUERY_DATA_VERSION,
        client.identity("h0"),
        encode_body(DataVersion(2, 0, 1)),
        now_ns=30 * SECOND,
    )
    assert other.fields == {"changed": "true"}
    assert is_silent_from(server, 140 * SECOND)
    unknown = client.call(
        RequestCode.QUERY_DATA_VERSION, client.identity("h9"), encode_body(DataVersion(1, 0, 1))
    )
    assert (unknown.fields, unknown.body) == ({"changed": "true"}, b"")


# Queries.


def test_route_version_gate(client: Client) -> None:
    client.register("h0", 0)
    fields = {"topic": "T"}
    old = client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, version=400)
    assert b'{"brokerAddrs":{0:"h0"}' in bytes(old.body)
    new = client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, version=401)
    assert b'{"brokerAddrs":{"0":"h0"}' in bytes(new.body)
    asked = client.call(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, {**fields, "acceptStandardJsonOnly": "true"}, version=0
    )
    assert asked.body == new.body
    binary = client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, version=401, serialization=ROCKETMQ)
    assert binary.body == new.body


def test_route_of_unknown_topic(client: Client) -> None:
    answer = client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "nowhere"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "nowhere" in (answer.remark or "")


def test_route_over_several_brokers(client: Client) -> None:
    client.register("h0", 0)
    client.register("x0", 0, {"T": 4}, name="x")
    assert client.addresses() == {"b": {0: "h0"}, "x": {0: "x0"}}
    assert client.permissions() == {"b": 6, "x": 4}


def test_topic_lists(client: Client) -> None:
    flags = {"unit": 1, "sub": 2, "both": 3}
    client.register("h0", 0, dict.fromkeys(["T", "unit", "sub", "both"], 6), sys_flags=flags)
    client.register("x0", 0, {"X": 6}, name="x", cluster="c2")
    assert client.topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == ["T", "unit", "sub", "both", "X"]
    assert client.topics(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "c2"}) == ["X"]
    assert client.topics(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "c3"}) == []
    assert client.topics(RequestCode.GET_UNIT_TOPIC_LIST) == ["unit", "both"]
    assert client.topics(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == ["sub", "both"]
    assert client.topics(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == ["sub"]
    system = client.call(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert json.loads(bytes(system.body)) == {"brokerAddr": "h0", "topicList": ["c", "b", "c2", "x"]}


def test_broker_member_group(client: Client) -> None:
    client.register("h0", 0)
    client.register("h2", 2)
    fields = {"clusterName": "c", "brokerName": "b"}
    answer = client.call(RequestCode.GET_BROKER_MEMBER_GROUP, fields)
    assert answer.body == (
        b'{"brokerMemberGroup":{"brokerAddrs":{0:"h0",2:"h2"},"brokerName":"b","cluster":"c"}}'
    )
    nobody = client.call(RequestCode.GET_BROKER_MEMBER_GROUP, {**fields, "brokerName": "x"})
    assert b'"brokerAddrs":{}' in bytes(nobody.body)


# Administration.


def test_write_permission_wiped_and_added(client: Client) -> None:
    client.register("h0", 0)
    client.register("x0", 0, name="x")
    wiped = client.call(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "b"})
    assert wiped.fields == {"wipeTopicCount": "2"}
    assert client.permissions() == {"b": 4, "x": 6}
    client.register("h0", 0)  # unchanged: stays wiped
    assert client.permissions() == {"b": 4, "x": 6}
    added = client.call(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "b"})
    assert added.fields == {"addTopicCount": "2"}
    assert client.permissions() == {"b": 6, "x": 6}
    client.call(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "b"})
    client.register("h0", 0, version=DataVersion(2, 0, 2))
    assert client.permissions() == {"b": 6, "x": 6}


def test_delete_topic_everywhere_or_in_one_cluster(client: Client) -> None:
    client.register("h0", 0)
    client.register("x0", 0, name="x", cluster="c2")
    client.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T", "clusterName": "c2"})
    assert client.permissions("T") == {"b": 6}
    client.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "U"})
    assert client.route("U") is None


def test_register_topic_on_known_brokers_only(client: Client) -> None:
    client.register("h0", 0)
    queues = [
        QueueData(broker_name=name, perm=6, read_queue_nums=2, write_queue_nums=2) for name in ("b", "zz")
    ]
    body = TopicRouteData(queue_datas=queues).encode(409, False)
    assert client.call(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "N"}, body).code == 0
    assert client.permissions("N") == {"b": 6}


def test_unknown_code_responses_and_one_way_requests(client: Client) -> None:
    unknown = client.call(9999)
    assert (unknown.code, unknown.remark) == (3, " request type 9999 not supported")
    one_way = remoting.request(RequestCode.UNREGISTER_BROKER, client.identity("h0"), one_way=True)
    client.register("h0", 0)
    assert answered(client.server, "client", one_way, 0) is None
    assert client.route() is None
    answer = remoting.response(remoting.request(105), 0)
    assert answered(client.server, "client", answer, 0) is None


def test_answer_that_no_frame_can_carry_becomes_one_that_says_so(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server ended with all that it knew when somebody asked for the list of too many topics."""
    client.register("h0", 0, {"T" * 100 + str(number): 6 for number in range(100)})
    monkeypatch.setattr(remoting, "FRAME_SIZE_MAX", 10_000)
    listing = client.server.answer(
        "client", remoting.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), 0
    )
    assert listing is not None
    (answer,) = FrameDecoder().feed(listing)
    assert "the response cannot be sent: a frame of" in refusal(answer)
    assert client.server.answer("client", remoting.request(105, one_way=True), 0) is None


def test_what_a_handler_did_not_foresee_hurts_its_request_only(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("broker.name_server.route_table.RouteTable.cluster_info", broken)
    assert refusal(client.call(RequestCode.GET_BROKER_CLUSTER_INFO)) == "KeyError: 'surprise'"


# Key-value configuration.


def refusal(answer: RemotingCommand) -> str:
    assert answer.code == ResponseCode.SYSTEM_ERROR
    return answer.remark or ""


def test_brokers_and_routes_are_limited() -> None:
    client = Client(NameServer(NameServerSettings(max_brokers=2, max_routes=5)))
    assert client.register("a:1", 0, {"T": 6, "U": 6}).code == 0
    assert client.register("a:2", 1, {"T": 6, "U": 6}).code == 0
    assert "there would be 3 brokers, at most 2 are allowed (max_brokers)" in refusal(
        client.register("a:3", 2)
    )
    assert client.register("a:1", 0, {"T": 6, "U": 6}).code == 0, "who is there may go on"
    changed = DataVersion(2, 0, 2)
    many = dict.fromkeys(("T", "U", "V", "W", "X", "Y"), 6)
    assert "6 routes, at most 5 are allowed (max_routes)" in refusal(
        client.register("a:1", 0, many, version=changed)
    )
    fewer = {topic: perm for topic, perm in many.items() if topic != "Y"}
    assert client.register("a:1", 0, fewer, version=changed).code == 0
    body = TopicRouteData(
        queue_datas=[QueueData(broker_name="b", perm=6, read_queue_nums=4, write_queue_nums=4)]
    ).encode(409, True)
    assert "max_routes" in refusal(client.call(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "Z"}, body))
    assert (
        client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Z"}).code == ResponseCode.TOPIC_NOT_EXIST
    )


def test_key_values_are_limited() -> None:
    client = Client(NameServer(NameServerSettings(max_key_values=2)))

    def put(key: str, value: str = "v", namespace: str = "n") -> RemotingCommand:
        return client.call(RequestCode.PUT_KV_CONFIG, {"namespace": namespace, "key": key, "value": value})

    assert (put("k1").code, put("k2").code) == (0, 0)
    assert "there are 2 keys, at most 2 are allowed (max_key_values)" in refusal(put("k3"))
    assert "max_key_values" in refusal(put("k1", namespace="other"))
    assert put("k1", "changed").code == 0
    assert "the key has 256 characters, at most 255 are allowed" in refusal(put("k" * 256))
    assert "the namespace has 256 characters" in refusal(put("k1", namespace="n" * 256))
    assert "the value has 1048577 characters, at most 1048576 are allowed" in refusal(
        put("k1", "v" * 1_048_577)
    )


def test_all_values_together_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.name_server.key_values.VALUES_LENGTH_MAX", 10)
    client = Client(NameServer(NameServerSettings()))
    key = {"namespace": "n", "key": "k"}
    assert client.call(RequestCode.PUT_KV_CONFIG, {**key, "value": "v" * 10}).code == 0
    refused = refusal(client.call(RequestCode.PUT_KV_CONFIG, {**key, "key": "l", "value": "v"}))
    assert "all values would have 11 characters, at most 10 are allowed" in refused
    assert client.call(RequestCode.PUT_KV_CONFIG, {**key, "value": "w" * 10}).code == 0, "it takes the place"


def test_changes_write_so_much_in_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each writes all of the configuration: whoever may change it could have a name server write for ever."""
    monkeypatch.setattr("broker.name_server.key_values.WRITTEN_BYTES_MAX", 100_000)
    monkeypatch.setattr("broker.name_server.key_values.WRITTEN_BYTES_PER_SECOND", 10_000)
    storage = MemoryStorage()
    client = Client(NameServer(NameServerSettings(), storage))
    key = {"namespace": "n", "key": "k"}

    def put(value: str, now_ns: int = 10**15) -> RemotingCommand:
        return client.call(RequestCode.PUT_KV_CONFIG, {**key, "value": value}, now_ns=now_ns)

    codes = [put(str(number) + "v" * 5000).code for number in range(30)]
    assert codes == [0] * 19 + [ResponseCode.SYSTEM_BUSY] * 11
    kept = storage.data
    refused = put("w")
    assert refused.remark is not None
    assert "try again in 0.5 s" in refused.remark
    assert client.call(RequestCode.DELETE_KV_CONFIG, key, now_ns=10**15).code == ResponseCode.SYSTEM_BUSY
    assert put("18" + "v" * 5000).code == 0, "nothing changes, and nothing is written"
    assert storage.data is kept
    assert [put(value, 10**15 + 10**9).code for value in ("w", "x")] == [0, 0]


def test_a_configuration_of_more_than_changes_may_write_at_a_stretch_can_be_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of an earlier release may be as long: not even a key could be deleted, however long one waited."""
    monkeypatch.setattr("broker.name_server.key_values.WRITTEN_BYTES_MAX", 10_000)
    monkeypatch.setattr("broker.name_server.key_values.WRITTEN_BYTES_PER_SECOND", 10_000)
    storage = MemoryStorage()
    storage.data = json.dumps(
        {"configTable": {"n": {str(number): "v" * 8000 for number in range(3)}}}
    ).encode()
    client = Client(NameServer(NameServerSettings(), storage))
    codes = [
        client.call(
            RequestCode.DELETE_KV_CONFIG, {"namespace": "n", "key": key}, now_ns=10**15 + after_s * 10**9
        ).code
        for key, after_s in (("0", 0), ("1", 0), ("1", 2))
    ]
    assert codes == [0, ResponseCode.SYSTEM_BUSY, 0]


def test_a_namespace_fits_into_the_answer_of_a_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers are told of all ordered topics; they could not register any more once that is too long to be sent."""
    monkeypatch.setattr("broker.name_server.key_values.NAMESPACE_BYTES_MAX", 60)
    client = Client(NameServer(NameServerSettings()))
    key = {"namespace": "ORDER_TOPIC_CONFIG", "key": "k"}
    assert client.call(RequestCode.PUT_KV_CONFIG, {**key, "value": "v" * 40}).code == 0
    refused = refusal(client.call(RequestCode.PUT_KV_CONFIG, {**key, "key": "l", "value": "v" * 10}))
    assert "namespace ORDER_TOPIC_CONFIG would have 75 bytes, at most 60 are allowed" in refused
    assert client.call(RequestCode.PUT_KV_CONFIG, {**key, "namespace": "n", "value": "v" * 10}).code == 0


def test_configuration_that_finds_no_room_is_refused() -> None:
    client = Client(NameServer(NameServerSettings(max_key_values=1)))
    assert client.call(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"}).code == 0
    refused = refusal(client.call(RequestCode.UPDATE_NAMESRV_CONFIG, None, b"orderMessageEnable=true"))
    assert "there are 1 keys, at most 1 are allowed" in refused


def test_key_values_survive_a_restart() -> None:
    storage = MemoryStorage()
    client = Client(NameServer(NameServerSettings(), storage))
    key = {"namespace": "n", "key": "k"}
    assert client.call(RequestCode.GET_KV_CONFIG, key).code == ResponseCode.QUERY_NOT_FOUND
    assert client.call(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"}).code == 22
    assert client.call(RequestCode.PUT_KV_CONFIG, {**key, "value": "v"}).code == 0
    assert json.loads(storage.data or b"") == {"configTable": {"n": {"k": "v"}}}
    client = Client(NameServer(NameServerSettings(), storage))
    assert client.call(RequestCode.GET_KV_CONFIG, key).fields == {"value": "v"}
    assert client.call(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"}).body == b'{"table":{"k":"v"}}'
    assert client.call(RequestCode.DELETE_KV_CONFIG, key).code == 0
    assert client.call(RequestCode.DELETE_KV_CONFIG, key).code == 0
    assert json.loads(storage.data or b"") == {"configTable": {}}
    assert client.call(RequestCode.GET_KV_CONFIG, key).code == 22


def test_failed_save_is_answered_and_changes_nothing() -> None:
    storage = MemoryStorage()
    client = Client(NameServer(NameServerSettings(), storage))
    key = {"namespace": "n", "key": "k"}
    client.call(RequestCode.PUT_KV_CONFIG, {**key, "value": "old"})
    storage.failing = True
    for answer in (
        client.call(RequestCode.PUT_KV_CONFIG, {**key, "value": "new"}),
        client.call(RequestCode.DELETE_KV_CONFIG, key),
    ):
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "No space left" in (answer.remark or "")
    assert client.call(RequestCode.GET_KV_CONFIG, key).fields == {"value": "old"}


def test_unreadable_key_values_stop_the_start() -> None:
    with pytest.raises(KeyValueError, match="cannot be read"):
        NameServer(NameServerSettings(), MemoryStorage(b'{"configTable":'))


def test_order_configuration_in_route_and_registration() -> None:
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "b:4"}
    for enabled, expected in ((True, "b:4"), (False, None)):
        client = Client(NameServer(NameServerSettings(ordered_messages=enabled)))
        client.call(RequestCode.PUT_KV_CONFIG, order)
        assert client.register("h0", 0).body == b'{"table":{"T":"b:4"}}'
        route = client.route()
        assert route is not None
        assert route.order_topic_conf == expected


def test_own_configuration_is_shown_and_changed_as_far_as_can_be(client: Client) -> None:
    shown = client.call(RequestCode.GET_NAMESRV_CONFIG)
    assert b"listenPort=9876\n" in bytes(shown.body)
    assert b"orderMessageEnable=false\n" in bytes(shown.body)
    for body, code, words in (
        (b"listenPort=1", ResponseCode.NO_PERMISSION, "listenPort cannot change while the name server runs"),
        (b"orderMessageEnable=true\nlistenPort=1", ResponseCode.NO_PERMISSION, "listenPort"),
        (b"orderMessageEnable=yes", ResponseCode.SYSTEM_ERROR, "must be true or false"),
        (b"\xff", ResponseCode.SYSTEM_ERROR, "byte 0 is not UTF-8 text"),
        (b"a=\\u1", ResponseCode.SYSTEM_ERROR, "hexadecimal"),
    ):
        refused = client.call(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
        assert refused.code == code
        assert words in (refused.remark or "")
    assert b"orderMessageEnable=false\n" in bytes(client.call(RequestCode.GET_NAMESRV_CONFIG).body)
    changed = client.call(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true")
    assert changed.code == ResponseCode.SUCCESS
    assert b"orderMessageEnable=true\n" in bytes(client.call(RequestCode.GET_NAMESRV_CONFIG).body)


def test_changed_configuration_outlives_a_restart() -> None:
    storage = MemoryStorage()
    client = Client(NameServer(NameServerSettings(), storage))
    client.call(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true")
    again = Client(NameServer(NameServerSettings(), storage))
    assert b"orderMessageEnable=true\n" in bytes(again.call(RequestCode.GET_NAMESRV_CONFIG).body)

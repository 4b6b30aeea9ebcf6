"""Registration: name servers hear nothing before there is a role, and then the role at once (`BrokerController`)."""

from __future__ import annotations

import pytest

from broker.name_server.server import NameServer
from broker.node.registration_request import registration, unregistration
from broker.remoting.bodies import DataVersion
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import FRAME_SIZE_MAX, RemotingCommand, encode
from broker.remoting.command import request as make_request
from broker.remoting.frame import FrameDecoder
from broker.remoting.name_server_headers import BrokerIdentityHeader, RegisterBrokerHeader
from broker.remoting.register_body import RegisterBrokerBody, body_crc
from broker.remoting.route import TopicRouteData
from broker.settings.tables import NameServerSettings
from broker.state.topic_rules import topic_config
from tests.broker.harness import Group
from tests.broker.name_server_end import answered


def told(group: Group, node: str) -> RemotingCommand | None:
    config = group.members[node].config
    return registration(group.node(node), config, config.node.listen)


def header(command: RemotingCommand | None) -> RegisterBrokerHeader:
    assert command is not None
    return command.decode_fields(RegisterBrokerHeader)


def body(command: RemotingCommand | None) -> RegisterBrokerBody:
    assert command is not None
    return RegisterBrokerBody.decode(command.body, compressed=False, version=command.version)


def test_nothing_is_said_before_there_is_a_role() -> None:
    group = Group(3)
    for node in group.members:
        config = group.members[node].config
        assert told(group, node) is None
        assert unregistration(group.node(node), config, config.node.listen) is None


def test_leader_is_zero_and_followers_are_their_number_plus_one() -> None:
    group = Group(3)
    leader = group.elect()
    group.connect().create_topic("T", 2)
    group.converge()
    for number, node in enumerate(group.members):
        command = told(group, node)
        said = header(command)
        assert said.broker_id == (0 if node == leader else number + 1)
        assert said.broker_name == "broker-a"
        assert said.broker_address == f"127.0.0.1:{10_000 + number}"
        assert said.ha_server_address == f"127.0.0.1:{10_001 + number}"
        assert command is not None
        assert said.body_crc == body_crc(command.body)
        topics = body(command).topics
        assert topics.topic_config_table["T"].read_queue_nums == 2
        assert "TBW102" in topics.topic_config_table
        assert topics.data_version.state_version == group.node(node).replica.term


def test_name_server_is_told_anew_after_a_role_or_a_topic_changed(group: Group) -> None:
    node = group.node(group.leader)
    before = node.registration_version
    group.connect().create_topic("T")
    assert node.registration_version > before
    versions = {member: group.node(member).registration_version for member in group.members}
    group.kill(group.leader)
    group.elect()
    group.settle()
    for member in group.alive():
        assert member.alive.registration_version > versions[member.id]


@pytest.mark.parametrize(
    ("permission", "expected"), [("read", 4), ("write", 2), ("none", 0), ("read-write", 6)]
)
def test_permission_of_the_broker_masks_those_of_its_topics(permission: str, expected: int) -> None:
    group = Group.elected(1, broker={"permission": permission})
    group.connect().create_topic("T", perm=6)
    assert body(told(group, "n0")).topics.topic_config_table["T"].perm == expected
    assert group.node("n0").replica.metadata.topics["T"].perm == 6


def test_a_permission_that_changes_at_run_time_reaches_the_route() -> None:
    """A name server takes topics of a known broker anew only if their version has changed (`RouteInfoManager`)."""
    group = Group.elected(1)
    client = group.connect()
    client.create_topic("T")
    server = NameServer(NameServerSettings())

    def routed() -> int:
        node = group.node("n0")
        command = registration(node, node.settings.current, "127.0.0.1:10000")
        assert command is not None
        answered(server, "n0", command, group.now_ns)
        query = make_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        route = answered(server, "client", query, group.now_ns)
        assert route is not None
        return TopicRouteData.decode(route.body).queue_datas[0].perm

    assert routed() == 6
    for permission in (4, 2, 4, 6):
        client.ok(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=%d" % permission)
        assert routed() == permission
        wipe = make_request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
        answered(server, "admin", wipe, group.now_ns)
        client.ok(RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=%d" % (24 + permission))
        assert routed() == permission & 4  # what is wiped stays so while nothing of the topics changes


def test_the_default_topic_is_in_no_route_where_sends_create_none() -> None:
    """Its route has clients send to a topic that nobody has, and ask again and again (`DefaultMQProducerImpl`)."""
    group = Group.elected(1, broker={"auto_create_topics": False})
    client = group.connect()
    client.create_topic("T")
    node = group.node("n0")

    def topics() -> tuple[bool, DataVersion]:
        command = registration(node, node.settings.current, "127.0.0.1:10000")
        table = body(command).topics
        assert "T" in table.topic_config_table
        return "TBW102" in table.topic_config_table, table.data_version

    is_there, before = topics()
    assert not is_there
    client.ok(RequestCode.UPDATE_BROKER_CONFIG, body=b"autoCreateTopicEnable=true")
    is_there, after = topics()
    assert is_there
    assert after.counter > before.counter, "name servers take a broker's topics anew only then"


def test_the_default_topic_leaves_the_routes_when_sends_create_none_any_more() -> None:
    """It stayed until a name server was restarted: a registration said only which topics there are."""
    group = Group.elected(1)
    client = group.connect()
    server = NameServer(NameServerSettings())
    node = group.node("n0")

    def code_of_route() -> int:
        command = registration(node, node.settings.current, "127.0.0.1:10000")
        assert command is not None
        taken = answered(server, "n0", command, group.now_ns)
        assert taken is not None
        assert taken.code == ResponseCode.SUCCESS
        query = make_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
        route = answered(server, "client", query, group.now_ns)
        assert route is not None
        return route.code

    assert code_of_route() == ResponseCode.SUCCESS
    client.ok(RequestCode.UPDATE_BROKER_CONFIG, body=b"autoCreateTopicEnable=false")
    assert code_of_route() == ResponseCode.TOPIC_NOT_EXIST


def test_route_follows_the_leader(group: Group) -> None:
    group.connect().create_topic("T")
    group.converge()
    server = NameServer(NameServerSettings())

    def master() -> str | None:
        for member in group.alive():
            command = told(group, member.id)
            if command is not None:
                answer = answered(server, member.id, command, group.now_ns)
                assert answer is not None
                assert answer.code == ResponseCode.SUCCESS
        query = make_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        route = answered(server, "client", query, group.now_ns)
        assert route is not None
        (broker,) = TopicRouteData.decode(route.body).broker_datas
        return broker.broker_addresses.get(0)

    first = group.leader
    assert master() == group.members[first].config.node.listen
    group.kill(first)
    group.elect()
    assert master() == group.members[group.leader].config.node.listen
    group.restart(first)
    group.elect()
    group.converge()
    assert master() == group.members[group.leader].config.node.listen
    command = unregistration(
        group.node(first), group.members[first].config, group.members[first].config.node.listen
    )
    assert command is not None
    assert (
        command.decode_fields(BrokerIdentityHeader).broker_id
        == group.members[first].config.follower_broker_id
    )


def test_as_many_topics_as_there_may_be_fit_into_a_frame() -> None:
    group = Group.elected(1)
    metadata = group.node("n0").replica.metadata
    for number in range(20_000 - len(metadata.topics)):
        name = f"%RETRY%{number:0248}"
        metadata.topics[name] = topic_config(name, 1)
    command = told(group, "n0")
    assert command is not None
    assert len(encode(command)) < FRAME_SIZE_MAX
    assert header(command).compressed
    known = RegisterBrokerBody.decode(command.body, compressed=True, version=command.version)
    assert known.topics.topic_config_table == metadata.topics
    assert header(command).body_crc == body_crc(command.body)
    (received,) = FrameDecoder().feed(encode(command))
    answer = answered(NameServer(NameServerSettings()), "n0", received, group.now_ns)
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS

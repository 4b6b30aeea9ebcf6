"""Heartbeats, consumer lists and change notices, on one node and through others."""

from __future__ import annotations

import pytest

from broker.consumer_groups import heartbeats_processor
from broker.consumer_groups.heartbeats_processor import TOLD_AGAIN_NS
from broker.remoting.bodies import (
    CheckClientConfigBody,
    ConsumerData,
    ConsumerListBody,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.headers import NotifyConsumerIdsChangedHeader
from broker.remoting.json_body import decode_body, encode_body
from broker.statistics.events import EventKind
from tests.broker.harness import SECOND, Client, Group
from tests.broker.lost_leader import LostLeader


def members(client: Client, consumer_group: str = "g") -> list[str]:
    answer = client.ok(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": consumer_group})
    return decode_body(answer.body, ConsumerListBody).consumer_id_list


def notices(client: Client) -> list[str]:
    """The groups of the change notices that have come since the last question."""
    client.group.settle()
    taken, client.notices[:] = list(client.notices), []
    assert all(notice.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED for notice in taken)
    assert all(notice.is_one_way for notice in taken)
    return [notice.decode_fields(NotifyConsumerIdsChangedHeader).consumer_group for notice in taken]


def test_consumers_of_all_nodes_are_one_group_and_hear_of_each_other(group: Group) -> None:
    clients = [group.connect(node, name=f"c-{node}") for node in ("n0", "n1", "n2")]
    for client in clients:
        assert client.heartbeat("g").code == ResponseCode.SUCCESS
    for client in clients:
        assert members(client) == ["c-n0", "c-n1", "c-n2"]
    assert [notices(client).count("g") for client in clients] == [3, 2, 1]
    for client in clients:
        client.heartbeat("g")
    assert [notices(client) for client in clients] == [[], [], []]


def test_subscriptions_that_wait_to_be_checked_are_so_many_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats_processor, "_CHECKED_MAX", 10)
    group = Group.elected(1)
    client = group.connect()
    subscription = SubscriptionData(topic="T", sub_string="n > 5", expression_type="SQL92")
    body = encode_body(CheckClientConfigBody("c", "g", subscription))
    asked = [client.start_call(RequestCode.CHECK_CLIENT_CONFIG, None, body) for _ in range(8)]
    codes = [client.wait(opaque).code for opaque in asked]
    assert codes == 5 * [ResponseCode.SUCCESS] + 3 * [ResponseCode.SYSTEM_BUSY], "what one address may have"
    client.ok(RequestCode.CHECK_CLIENT_CONFIG, None, body)


def test_members_of_a_new_group_are_told_again_once_its_retry_topic_is_known(group: Group) -> None:
    """A Java client takes the queue of a topic whose route it has just learnt only when it rebalances again."""
    for node in (group.leader, group.follower):
        client = group.connect(node, name=f"c-{node}")
        client.heartbeat(f"g-{node}")
        assert notices(client) == [f"g-{node}"]
        group.advance(TOLD_AGAIN_NS / 1e9 + 0.1)
        assert notices(client) == [f"g-{node}"]
        group.advance(60)
        assert notices(client) == [], "twice is enough"

    known = group.connect(group.leader, name="later")
    known.heartbeat(f"g-{group.follower}")
    assert notices(known) == [f"g-{group.follower}"]
    group.advance(TOLD_AGAIN_NS / 1e9 + 0.1)
    assert notices(known) == [], "the group is not new"


def test_client_that_knows_every_node_is_one_member_and_is_told_once(group: Group) -> None:
    everywhere = [group.connect(node, name="everywhere") for node in ("n0", "n1", "n2")]
    for connection in everywhere:
        connection.heartbeat("g")
    assert members(everywhere[0]) == ["everywhere"]
    for connection in everywhere:
        notices(connection)
    other = group.connect(group.follower, name="other")
    other.heartbeat("g")
    told = {connection.connection.name: notices(connection) for connection in everywhere}
    assert sorted(told.values()) == [[], [], ["g"]]
    leading = next(c for c in everywhere if c.connection in group.members[group.leader].clients)
    assert told[leading.connection.name] == ["g"], "its own connection, not one through another node"


def test_notices_can_be_switched_off_for_the_whole_broker() -> None:
    group = Group.elected(1)
    first, second = group.connect(), group.connect()
    first.create_topic("T")
    first.heartbeat("g")
    first.ok(RequestCode.UPDATE_BROKER_CONFIG, None, b"notifyConsumerIdsChangedEnable=false")
    group.settle()
    first.notices.clear()
    second.heartbeat("g")
    group.settle()
    assert not first.notices
    first.ok(RequestCode.UPDATE_BROKER_CONFIG, None, b"notifyConsumerIdsChangedEnable=true")
    second.close()
    group.settle()
    assert [notice.code for notice in first.notices] == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]


@pytest.mark.parametrize("way", ["close", "unregister", "silence"])
def test_leaving_member_is_missed_at_once(group: Group, way: str) -> None:
    stays = group.connect(group.leader, name="stays")
    leaves = group.connect(group.follower, name="leaves")
    stays.heartbeat("g")
    leaves.heartbeat("g")
    group.advance(TOLD_AGAIN_NS / 1e9 + 0.1)  # a new group's second notice
    notices(stays)
    if way == "close":
        leaves.close()
    elif way == "unregister":
        leaves.ok(RequestCode.UNREGISTER_CLIENT, {"clientID": "leaves", "consumerGroup": "g"})
    else:
        for _ in range(5):
            group.advance(30)
            stays.heartbeat("g")
    assert notices(stays) == ["g"]
    assert members(stays) == ["stays"]


@pytest.mark.parametrize("at", ["leader", "its node", "another node"])
def test_nobody_takes_another_client_out_of_its_groups(group: Group, at: str) -> None:
    """UNREGISTER_CLIENT with another's clientID did, from every connection and over every node."""
    stays = group.connect(group.leader, name="stays")
    victim = group.connect(group.follower, name="victim")
    others = [node for node in ("n0", "n1", "n2") if node not in (group.leader, group.follower)]
    node = {"leader": group.leader, "its node": group.follower, "another node": others[0]}[at]
    stays.heartbeat("g")
    victim.heartbeat("g")
    group.connect(node, name="stranger").ok(
        RequestCode.UNREGISTER_CLIENT, {"clientID": "victim", "consumerGroup": "g"}
    )
    group.settle()
    assert members(stays) == ["stays", "victim"]


def test_silent_client_is_disconnected(group: Group, client: Client) -> None:
    client.heartbeat("g")
    group.advance(121)
    assert client.closed
    node = group.node(group.leader)
    assert node.events.counts[EventKind.CONNECTION_CLOSED, "silent client"] == 1


def test_a_client_whose_heartbeats_lie_unread_is_not_silent(group: Group, client: Client) -> None:
    """A node that had stood still for two minutes closed all its clients before it read what they had sent."""
    client.heartbeat("g")
    silent = group.connect(group.leader)
    silent.heartbeat("g")
    group.now_ns += 300 * SECOND
    group.settle()
    client.heartbeat("g")
    group.advance(2)
    assert (client.closed, silent.closed) == (False, True)


def test_list_of_an_unknown_group_is_an_error(group: Group) -> None:
    answer = group.connect().call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "nobody"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "no consumer for this group, nobody"


def test_heartbeat_is_answered_when_the_group_and_its_retry_topic_exist(group: Group) -> None:
    client = group.connect(group.follower)
    client.create_topic("T")
    assert client.heartbeat("g").code == ResponseCode.SUCCESS
    leader = group.node(group.leader).replica
    assert "g" in leader.metadata.groups
    assert leader.metadata.topics["%RETRY%g"].read_queue_nums == 1
    assert client.pull("T", "g", 0).code == ResponseCode.PULL_NOT_FOUND
    assert client.pull("%RETRY%g", "g", 0).code == ResponseCode.PULL_NOT_FOUND


def test_group_that_may_not_be_created_is_refused_when_it_pulls() -> None:
    group = Group.elected(1, broker={"auto_create_groups": False})
    client = group.connect()
    client.create_topic("T")
    assert client.heartbeat("g").code == ResponseCode.SUCCESS
    assert "g" not in group.node("n0").replica.metadata.groups
    refused = client.wait(client.start_pull("T", "g", 0))
    assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    body = encode_body(SubscriptionGroupConfig(group_name="g"))
    client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
    assert client.pull("T", "g", 0).code == ResponseCode.PULL_NOT_FOUND


def test_creation_by_use_does_not_undo_what_an_administrator_did(group: Group) -> None:
    admin, client = group.connect(), group.connect(group.follower)
    config = encode_body(SubscriptionGroupConfig(group_name="g", retry_max_times=3, retry_queue_nums=2))
    order = admin.start_call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)
    client.heartbeat("g")
    admin.wait(order)
    metadata = group.node(group.leader).replica.metadata
    assert metadata.groups["g"].retry_max_times == 3


@pytest.mark.parametrize("quiet", ["broadcast", "switched off"])
def test_groups_that_are_not_told(group: Group, quiet: str) -> None:
    one, other = group.connect(name="one"), group.connect(name="other")
    model = MessageModel.BROADCASTING if quiet == "broadcast" else MessageModel.CLUSTERING
    if quiet == "switched off":
        config = SubscriptionGroupConfig(group_name="g", notify_consumer_ids_changed_enable=False)
        one.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode_body(config))
    one.heartbeat("g", model=model)
    other.heartbeat("g", model=model)
    assert notices(one) == []


def test_changed_subscription_is_told(group: Group) -> None:
    one, other = group.connect(name="one"), group.connect(name="other")
    one.heartbeat("g", ["T"])
    other.heartbeat("g", ["T"])
    notices(one)
    other.heartbeat("g", ["T", "U"], version=2)
    assert notices(one) == ["g"]


def test_new_leader_knows_the_clients_of_every_node_without_a_new_heartbeat(group: Group) -> None:
    old = group.leader
    survivors = [node for node in group.members if node != old]
    clients = [group.connect(node, name=f"c-{node}") for node in survivors]
    for client in clients:
        client.heartbeat("g", ["T"], expression="a || b")
        notices(client)
    group.kill(old)
    group.elect()
    group.settle()
    assert sorted(members(clients[0])) == sorted(client.client_id for client in clients)
    assert all("g" in notices(client) for client in clients), "each hears of the others at the new leader"
    subscription = group.node(group.leader).registry.subscription("g", "T")
    assert subscription is not None
    assert subscription.sub_string == "a || b"


def test_leader_forgets_relayed_clients_when_it_stops_leading(group: Group) -> None:
    old = group.leader
    client = group.connect(group.follower, name="relayed")
    client.heartbeat("g")
    group.settle()
    assert group.node(old).registry.members("g") == ["relayed"]
    target = next(node for node in group.members if node != old)
    group.transfer_leadership(target)
    group.advance(1)
    if client.connection not in group.members[old].clients:
        assert group.node(old).registry.members("g") == []
    client.close()
    group.settle()
    for node in group.members:
        assert group.node(node).registry.members("g") == []


def test_clients_are_told_again_to_a_leader_whose_link_was_made_anew(group: Group) -> None:
    follower = group.follower
    client = group.connect(follower, name="c")
    client.heartbeat("g")
    group.settle()
    group.partition(follower)
    group.advance(0.1)
    group.heal()
    group.elect()
    group.advance(3)
    assert group.node(group.leader).registry.members("g") == ["c"]


def test_bad_heartbeats_are_refused_whole(group: Group, client: Client) -> None:
    answer = client.heartbeat("bad group!")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "illegal characters" in (answer.remark or "")
    assert group.node(group.leader).registry.members("bad group!") == []
    answer = client.call(RequestCode.HEART_BEAT, None, b"no json")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "JSON" in (answer.remark or "")


@pytest.mark.parametrize(
    ("expression_type", "expression", "code"),
    [
        ("TAG", "a || b", ResponseCode.SUCCESS),
        ("TAG", "||", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("SQL92", "a > 1", ResponseCode.SUCCESS),
        ("SQL92", "a > ", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ],
)
def test_check_of_a_subscription(
    group: Group, expression_type: str, expression: str, code: ResponseCode
) -> None:
    subscription = SubscriptionData(topic="T", expression_type=expression_type, sub_string=expression)
    body = encode_body(CheckClientConfigBody("c", "g", subscription))
    assert group.connect().call(RequestCode.CHECK_CLIENT_CONFIG, None, body).code == code


def test_members_hear_once_of_all_that_left_together(group: Group) -> None:
    """As when a node dies with thousands of clients: to tell each of each would take the leader's time."""
    staying = [group.connect(group.leader) for _ in range(5)]
    leaving = [group.connect(group.follower) for _ in range(20)]
    for client in (*staying, *leaving):
        client.heartbeat("g")
        client.start_pull("T", "g", 0, suspend_ms=30_000)
    group.settle()
    for client in staying:
        client.notices.clear()
    group.kill(group.follower)
    group.advance(1)
    for client in staying:
        assert [notice.code for notice in client.notices] == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
    members = group.connect().ok(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
    assert len(decode_body(members.body, ConsumerListBody).consumer_id_list) == len(staying)


def test_those_that_a_lost_leader_had_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """They waited for their consumer group."""
    there = LostLeader(monkeypatch)
    client = there.client
    data = HeartbeatData(client_id="a", consumer_data_set=[ConsumerData(group_name="new")])
    asked = [client.start_call(RequestCode.HEART_BEAT, None, encode_body(data)) for _ in range(20)]
    there.lose()
    assert {answer.code for answer in there.answers(asked)} == {ResponseCode.SUCCESS}
    assert there.order_of(asked) == asked

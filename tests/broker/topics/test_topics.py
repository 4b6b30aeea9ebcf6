"""Topics and groups: administration, creation by use, what a broker always has, and failovers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from broker.node.node import Node
from broker.remoting.bodies import (
    ConsumerData,
    HeartbeatData,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicList,
)
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.headers import SendMessageResponseHeader
from broker.remoting.json_body import decode_body, encode_body
from broker.topics.first_messages import NewTopics
from tests.broker.fields import topic_fields
from tests.broker.harness import Client, Group


@pytest.fixture(params=["leader", "follower"])
def client(group: Group, request: pytest.FixtureRequest) -> Client:
    return group.connect(getattr(group, request.param))


def topics(client: Client) -> dict[str, TopicConfig]:
    answer = client.ok(RequestCode.GET_ALL_TOPIC_CONFIG)
    return decode_body(answer.body, TopicConfigTable).topic_config_table


def groups(client: Client) -> dict[str, SubscriptionGroupConfig]:
    answer = client.ok(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    return decode_body(answer.body, SubscriptionGroupTable).subscription_group_table


def test_broker_has_its_own_topics_and_groups(client: Client) -> None:
    found = topics(client)
    assert (found["TBW102"].perm, found["TBW102"].write_queue_nums) == (7, 8)
    assert found["SCHEDULE_TOPIC_XXXX"].write_queue_nums == 18
    assert found["DefaultCluster"].write_queue_nums == 16
    assert found["broker-a"].perm == 7
    assert "CID_RMQ_SYS_TRANS" in groups(client)


def test_system_topics_are_created_once(group: Group) -> None:
    version = group.node(group.leader).replica.metadata.topics_version
    group.kill(group.leader)
    group.elect()
    group.advance(1)
    assert group.node(group.leader).replica.metadata.topics_version == version


@pytest.mark.parametrize("wanted", [False, True])
def test_trace_topic_is_there_for_producers_where_nothing_is_created_by_sending(wanted: bool) -> None:
    group = Group.elected(1, broker={"trace_topic": wanted, "auto_create_topics": False})
    traces = topics(group.connect()).get("RMQ_SYS_TRACE_TOPIC")
    assert (traces is not None) == wanted
    if traces is not None:
        assert (traces.read_queue_nums, traces.write_queue_nums, traces.perm) == (1, 1, 6)
        group.connect().send("RMQ_SYS_TRACE_TOPIC", b"trace")


def test_topic_is_created_changed_and_deleted(client: Client) -> None:
    client.create_topic("T", 4)
    assert topics(client)["T"].read_queue_nums == 4
    client.create_topic("T", 2, perm=4)
    answer = client.ok(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})
    config = decode_body(answer.body, TopicConfig)
    assert (config.read_queue_nums, config.perm) == (2, 4)
    client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert "T" not in topics(client)
    assert client.call(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"}).code == ResponseCode.TOPIC_NOT_EXIST


def test_deleted_topic_that_is_made_again_is_empty(client: Client) -> None:
    client.heartbeat("g")
    client.create_topic("T")
    client.send("T", b"old")
    client.ok(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1},
    )
    client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    client.create_topic("T")
    client.send("T", b"new")
    begin = client.offset_of(RequestCode.GET_MIN_OFFSET, "T")
    assert client.pull("T", "g", begin).bodies == [b"new"]
    client.group.converge()
    queues = [member.alive.replica.store.queues.get("T", 0) for member in client.group.alive()]
    assert len({(queue.min_offset, queue.max_offset) for queue in queues if queue is not None}) == 1


@pytest.mark.parametrize("between", ["nothing", "a restart", "a failover"])
def test_a_topic_that_is_made_again_says_where_its_next_message_goes(group: Group, between: str) -> None:
    client = group.connect()
    client.create_topic("T")
    for number in range(3):
        client.send("T", b"old %d" % number)
    client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    client.create_topic("T")
    if between == "a failover":
        group.transfer_leadership(group.follower)
    elif between == "a restart":
        for node in list(group.members):
            group.kill(node)
        for node in list(group.members):
            group.restart(node)
        group.elect()
    client = group.connect()
    assert client.offset_of(RequestCode.GET_MAX_OFFSET, "T") == 0
    assert client.send("T", b"new").queue_offset == 0
    assert client.offset_of(RequestCode.GET_MAX_OFFSET, "T") == 1


def test_a_message_right_behind_the_deletion_begins_the_queue_anew(group: Group) -> None:
    """It is in the log before the deletion is applied, while the topic is still there for who sends."""
    client = group.connect()
    client.create_topic("T")
    client.send("T", b"old")
    deletion = client.start_call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    sending = client.start_send("T", b"behind")
    client.wait(deletion)
    answer = client.wait(sending)
    client.create_topic("T")
    assert answer.decode_fields(SendMessageResponseHeader).queue_offset == 0
    assert client.offset_of(RequestCode.GET_MAX_OFFSET, "T") == 1
    assert client.send("T", b"next").queue_offset == 1


def test_acknowledged_topics_are_not_forgotten(group: Group) -> None:
    client = group.connect(group.follower)
    client.create_topic("T", 3)
    config = encode_body(SubscriptionGroupConfig(group_name="g", retry_max_times=5))
    client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)
    group.kill(group.leader)
    group.elect()
    assert topics(client)["T"].read_queue_nums == 3
    assert groups(client)["g"].retry_max_times == 5
    for node in [member.id for member in group.alive()]:
        group.kill(node)
    for node in list(group.members):
        group.restart(node)
    group.elect()
    again = group.connect()
    assert topics(again)["T"].read_queue_nums == 3
    assert groups(again)["g"].retry_max_times == 5


def test_groups_are_created_changed_and_deleted(client: Client) -> None:
    config = encode_body(SubscriptionGroupConfig(group_name="g", retry_max_times=5))
    client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)
    answer = client.ok(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"})
    assert decode_body(answer.body, SubscriptionGroupConfig).retry_max_times == 5
    client.create_topic("T")
    commit = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1}
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    client.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": True})
    missing = client.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"})
    assert missing.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert ("g", "T") not in client.group.node(client.group.leader).replica.metadata.offsets


def test_what_5_says_of_a_group_is_kept_and_told(client: Client) -> None:
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 10_000, "max": 7_200_000}}
    for changes in (
        {"attributes": {"+a": "1", "+b": "2"}},
        {"attributes": {"-a": ""}, "groupRetryPolicy": policy},
    ):
        body = json.dumps({"groupName": "g", **changes}).encode()
        client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
    group = client.group
    group.kill(group.leader)
    group.elect()
    answer = group.connect().ok(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"})
    told = json.loads(bytes(answer.body))
    assert (told["attributes"], told["groupRetryPolicy"]) == ({"b": "2"}, policy)
    others = group.connect().ok(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "TOOLS_CONSUMER"})
    assert "groupRetryPolicy" not in json.loads(bytes(others.body)), "null would be none to RocketMQ's tools"


@pytest.mark.parametrize(
    "policy",
    [
        {"x": 2**64},
        {"x": -(2**63) - 1},
        {"customizedRetryPolicy": {"next": [1000, 10**30]}},
        {"x": {"y": {"z": 1}}},
        {"x": [[1]]},
    ],
)
def test_a_retry_policy_that_no_snapshot_can_hold_is_refused(client: Client, policy: object) -> None:
    """It was committed, and no node of the group could go on, or start again."""
    group = {"groupName": "g", "groupRetryPolicy": policy}
    for code, body in (
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {"groupConfigList": [group]}),
    ):
        answer = client.call(code, None, json.dumps(body).encode())
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "groupRetryPolicy" in (answer.remark or "")
    missing = client.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"})
    assert missing.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_topics_are_created_together(client: Client) -> None:
    client.create_topic("old", 4)
    body = b"""{"topicConfigList": [
        {"topicName": "old", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "attributes": {"+kind": "FIFO"}},
        {"topicName": "new", "readQueueNums": 3, "writeQueueNums": 3, "perm": 4, "order": true}]}"""
    client.ok(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, body)
    found = topics(client)
    assert (found["old"].read_queue_nums, found["old"].attributes) == (2, {"kind": "FIFO"})
    assert (found["new"].write_queue_nums, found["new"].perm, found["new"].order) == (3, 4, True)


def test_groups_are_created_together(client: Client) -> None:
    body = b'{"groupConfigList": [{"groupName": "g", "retryMaxTimes": 5}, {"groupName": "h"}]}'
    client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, body)
    assert (groups(client)["g"].retry_max_times, groups(client)["h"].retry_max_times) == (5, 16)


@pytest.mark.parametrize(
    ("code", "body", "remark"),
    [
        (18, b'{"topicConfigList": [{"topicName": "T"}, {"topicName": "a b"}]}', "illegal characters"),
        (18, b'{"topicConfigList": [{"topicName": "T"}, {"topicName": "TBW102"}]}', "conflict with system"),
        (18, b'{"topicConfigList": []}', "the list has 0 topics"),
        (18, b"{}", "topicConfigList"),
        (225, b'{"groupConfigList": [{"groupName": "g"}, {"groupName": "a b"}]}', "illegal characters"),
        (
            225,
            b'{"groupConfigList": [%s]}' % b",".join([b'{"groupName": "g"}'] * 1001),
            "the list has 1001 groups",
        ),
    ],
)
def test_lists_are_taken_as_a_whole_or_refused(group: Group, code: int, body: bytes, remark: str) -> None:
    client = group.connect()
    answer = client.call(RequestCode(code), None, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in (answer.remark or "")
    assert "T" not in topics(client)
    assert "g" not in groups(client)


def test_list_of_system_topics(client: Client) -> None:
    client.create_topic("T")
    system = decode_body(client.ok(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).body, TopicList).topics
    assert "TBW102" in system
    assert "T" not in system


def test_first_message_creates_its_topic_like_the_template(client: Client) -> None:
    assert client.send("T", b"x", defaultTopicQueueNums=3).queue_offset == 0
    config = topics(client)["T"]
    assert (config.perm, config.read_queue_nums, config.write_queue_nums) == (6, 3, 3)


def test_created_topics_take_after_the_template_and_their_client(client: Client) -> None:
    """The filter type is the template's, the flags tell of a client in a unit; what exists stays as it is."""
    fields = topic_fields(
        topic="Template",
        readQueueNums=2,
        writeQueueNums=2,
        perm=7,
        topicFilterType="MULTI_TAG",
        topicSysFlag=2,
        order=True,
    )
    client.ok(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    client.send("T", b"x", defaultTopic="Template")
    client.send("Unit", b"x", unitMode=True)
    data = HeartbeatData(client_id="c")
    data.consumer_data_set += [ConsumerData(group_name="unit", unit_mode=True), ConsumerData(group_name="g")]
    client.ok(RequestCode.HEART_BEAT, None, encode_body(data))
    client.send("T", b"y", unitMode=True)
    found = topics(client)
    assert (found["T"].topic_filter_type, found["T"].topic_sys_flag, found["T"].order) == (
        "MULTI_TAG",
        0,
        False,
    )
    assert (found["Unit"].topic_filter_type, found["Unit"].topic_sys_flag) == ("SINGLE_TAG", 1)
    assert (found["%RETRY%unit"].topic_sys_flag, found["%RETRY%g"].topic_sys_flag) == (2, 0)


def test_groups_in_units_are_known_to_the_next_leader() -> None:
    """Their heartbeats came while nobody served."""
    group = Group(3)
    client = group.connect("n1")
    data = HeartbeatData(client_id="c")
    data.consumer_data_set.append(ConsumerData(group_name="unit", unit_mode=True))
    client.start_call(RequestCode.HEART_BEAT, None, encode_body(data))
    group.elect()
    group.advance(1)
    assert topics(client)["%RETRY%unit"].topic_sys_flag == 2


def test_first_message_may_come_before_the_first_election() -> None:
    group = Group(3)
    client = group.connect("n1")
    opaque = client.start_send("T", b"early")
    assert client.wait(opaque).code == ResponseCode.SUCCESS
    assert topics(client)["T"].write_queue_nums == 4


def test_no_creation_where_it_is_switched_off() -> None:
    group = Group.elected(1, broker={"auto_create_topics": False})
    client = group.connect()
    answer = client.wait(client.start_send("T", b"x"))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "topic[T] not exist" in (answer.remark or "")


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({"topic": "TBW102"}, "conflict with system topic"),
        ({"topic": "DefaultCluster"}, "conflict with system topic"),
        ({"topic": "a b"}, "illegal characters"),
        ({"topic": ""}, "blank"),
        ({"topic": "x" * 128}, "at most 127"),
        ({"readQueueNums": -1}, "readQueueNums is -1"),
        ({"writeQueueNums": 100_000}, "writeQueueNums is 100000"),
        ({"perm": 64}, "perm is 64"),
        ({"attributes": "nonsense"}, "neither +name=value nor -name"),
        ({"order": "perhaps"}, "<order>"),
        ({"perm": None}, "the custom field <perm> is null"),
    ],
)
def test_bad_topics(group: Group, change: dict[str, object], remark: str) -> None:
    fields = topic_fields(**change)
    answer = group.connect().call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in (answer.remark or "")


def test_system_topics_are_not_deleted_and_unknown_ones_are_gone_already(group: Group) -> None:
    client = group.connect()
    refused = client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "TBW102"})
    assert refused.code == ResponseCode.SYSTEM_ERROR
    client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "never-made"})


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        (b"{}", "groupName"),
        (b'{"groupName":"a b"}', "illegal characters"),
        (b'{"groupName":"g","retryQueueNums":-1}', "retryQueueNums is -1"),
        (b"", "JSON"),
    ],
)
def test_bad_groups(group: Group, body: bytes, remark: str) -> None:
    answer = group.connect().call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in (answer.remark or "")


def test_sends_that_waited_for_their_topics_are_handled_some_in_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two topics that come to be in one turn, and for which thousands wait."""
    group = Group.elected(3)
    client = group.connect()
    opaques = [client.start_send(f"T{number % 2}", b"x") for number in range(2_000)]
    leader = group.node(group.leader)
    log = leader.replica.store.log
    appended: list[int] = []
    original = Node.turn

    def turn(node: Node, now_ns: int, wall_ms: int, send: Callable[[], None]) -> bool:
        before = log.last_index
        result = original(node, now_ns, wall_ms, send)
        if node is leader:
            appended.append(log.last_index - before)
        return result

    monkeypatch.setattr(Node, "turn", turn)
    assert {client.wait(opaque).code for opaque in opaques} == {ResponseCode.SUCCESS}
    assert sum(appended) >= 2_000
    assert max(appended) <= leader.replica.limits.held_at_once


def test_sends_that_waited_for_a_topic_go_to_the_next_leader() -> None:
    group = Group.elected(3)
    before = group.leader
    client = group.connect()
    # The others hear nothing: the topic is in the log of this leader only, which will be deposed.
    group.partition(before)
    opaques = [client.start_send("T", b"x", properties={"KEYS": str(number)}) for number in range(500)]
    group.run_until(lambda: any(m.alive.replica.serving for m in group.alive() if m.id != before))
    group.heal()
    assert {client.wait(opaque).code for opaque in opaques} == {ResponseCode.SUCCESS}
    group.converge()
    assert group.node(before).stats.put == 0


@contextmanager
def one_more_each_turn(
    client: Client, at: Node, when: Callable[[], bool] = lambda: True
) -> Iterator[list[int]]:
    """Has a client send 600 messages and, behind each turn of that node where `when` says so, one more until 650.

    Yields the opaques of all.
    """
    opaques: list[int] = []

    def send() -> None:
        opaques.append(client.start_send("New", b"%d" % len(opaques), 0))

    for _ in range(600):
        send()
    original = Node.turn

    def turn(node: Node, now_ns: int, wall_ms: int, flush: Callable[[], None]) -> bool:
        result = original(node, now_ns, wall_ms, flush)
        if node is at and when() and len(opaques) < 650:
            send()
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Node, "turn", turn)
        yield opaques


def order_of(client: Client) -> list[int]:
    """The numbers of the messages that are stored, in their order."""
    numbers: list[int] = []
    while bodies := client.pull("New", "g", len(numbers)).bodies:
        numbers += map(int, bodies)
    return numbers


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_a_later_send_does_not_overtake_those_that_waited_for_their_topic(group: Group, place: str) -> None:
    client = group.connect(getattr(group, place))
    with one_more_each_turn(client, group.node(group.leader)) as opaques:
        group.run_until(lambda: len(opaques) == 650)
        assert {client.wait(opaque).code for opaque in opaques} == {ResponseCode.SUCCESS}
    assert order_of(client) == list(range(650))


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_the_topic_is_deleted_while_sends_that_waited_for_it_leave(group: Group, place: str) -> None:
    """Some are stored in the topic that goes, the others create it anew: those, too, stay in their order."""
    leader = group.node(group.leader)
    new_topics = cast(Any, leader._routes[RequestCode.SEND_MESSAGE][0]).__self__._new_topics
    operator, client = group.connect(), group.connect(getattr(group, place))
    asked: list[int] = []
    original = NewTopics._handle_some

    def handle_some(self: NewTopics) -> None:
        original(self)
        if self is new_topics and self.leaving and not asked:
            asked.append(operator.start_call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "New"}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NewTopics, "_handle_some", handle_some)
        with one_more_each_turn(client, leader) as opaques:
            group.run_until(lambda: len(opaques) == 650)
            assert {client.wait(opaque).code for opaque in opaques} == {ResponseCode.SUCCESS}
    assert operator.wait(asked[0]).code == ResponseCode.SUCCESS
    stored = order_of(client)
    assert 0 < len(stored) < 650
    assert stored == list(range(650 - len(stored), 650))


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_the_leader_hands_over_while_sends_that_waited_for_their_topic_leave(
    group: Group, place: str
) -> None:
    before = group.leader
    leader, heir = group.node(before), next(node for node in group.members if node != before)
    new_topics = cast(Any, leader._routes[RequestCode.SEND_MESSAGE][0]).__self__._new_topics
    client = group.connect(before if place == "leader" else heir)
    original, is_handed_over = NewTopics._handle_some, False

    def handle_some(self: NewTopics) -> None:
        nonlocal is_handed_over
        original(self)
        if self is new_topics and self.leaving and not is_handed_over:
            is_handed_over = True
            leader.replica.raft.transfer_leadership(heir, group.now_ns)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NewTopics, "_handle_some", handle_some)
        with one_more_each_turn(client, leader) as opaques:
            group.run_until(lambda: group.node(heir).replica.serving)
            group.run_until(lambda: len(opaques) == 650)
            assert {client.wait(opaque).code for opaque in opaques} == {ResponseCode.SUCCESS}
    assert order_of(client) == list(range(650))


def test_the_leader_is_lost_while_sends_wait_for_their_topic() -> None:
    group = Group.elected(3)
    before = group.leader
    client = group.connect()
    group.partition(before)
    leader = group.node(before).replica
    with one_more_each_turn(client, group.node(before), lambda: not leader.serving) as opaques:
        group.run_until(lambda: any(m.alive.replica.serving for m in group.alive() if m.id != before))
        group.heal()
        group.run_until(lambda: len(opaques) == 650)
        assert {client.wait(opaque).code for opaque in opaques} == {ResponseCode.SUCCESS}
    assert order_of(client) == list(range(650))

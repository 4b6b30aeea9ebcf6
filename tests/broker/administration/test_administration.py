"""Requests of mqadmin: statistics, connections, groups of topics, resets, and a node's own state."""

from __future__ import annotations

import time

import msgspec
import pytest

from broker.remoting.admin_bodies import (
    ConsumerConnection,
    ConsumeStats,
    GroupList,
    ProducerConnection,
    QueueOffsets,
    TopicStats,
)
from broker.remoting.bodies import KeyValueTable, MessageQueue, TopicList
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.json_body import decode_body
from broker.remoting.node_status import decode_node_status
from tests.broker.harness import Client, Group


@pytest.fixture(params=["leader", "follower"])
def client(group: Group, request: pytest.FixtureRequest) -> Client:
    client = group.connect(getattr(group, request.param), name="me")
    client.create_topic("T", 2)
    client.heartbeat("g", producer_group="p")
    return client


def commit(client: Client, offset: int) -> None:
    fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": offset}
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def queue(queue_id: int) -> MessageQueue:
    return MessageQueue("broker-a", queue_id, "T")


def test_topic_statistics(client: Client) -> None:
    for body in (b"0", b"1"):
        client.send("T", body)
    stored_ms = client.group.wall_ms
    stats = TopicStats.decode(client.ok(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}).body).offsets
    assert (stats[queue(0)].min_offset, stats[queue(0)].max_offset) == (0, 2)
    assert 0 <= stored_ms - stats[queue(0)].last_update_timestamp < 1000
    assert stats[queue(1)].max_offset == 0
    assert client.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "U"}).code == ResponseCode.TOPIC_NOT_EXIST


def test_consume_statistics(client: Client) -> None:
    for body in (b"0", b"1", b"2"):
        client.send("T", body)
    commit(client, 1)
    for topic in (None, "T"):
        answer = client.ok(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": topic})
        stats = ConsumeStats.decode(answer.body).offsets
        assert (stats[queue(0)].broker_offset, stats[queue(0)].consumer_offset) == (3, 1)
        assert stats[queue(0)].last_timestamp > 0
        assert stats[queue(1)].broker_offset == 0
    asked = {"consumerGroup": "g", "topic": "T", "topicList": "gone;T"}
    listed = ConsumeStats.decode(client.ok(RequestCode.GET_CONSUME_STATS, asked).body).offsets
    assert list(listed) == [queue(0), queue(1)]
    none = client.ok(RequestCode.GET_CONSUME_STATS, asked | {"topicList": "gone"}).body
    assert ConsumeStats.decode(none).offsets == {}


def test_consume_statistics_tell_how_fast_a_group_consumes(group: Group) -> None:
    client = group.connect(group.leader)
    client.create_topic("T", 2)
    client.heartbeat("g")
    for _ in range(6):
        client.send("T", b"x")
    commit(client, 1)
    assert len(client.pull("T", "g", 0).records) == 6
    answer = client.ok(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"})
    assert ConsumeStats.decode(answer.body).consume_tps == pytest.approx(6 / 60)


def test_connections(client: Client) -> None:
    other = client.group.connect(name="other", host="10.1.2.3")
    other.heartbeat("g")
    body = client.ok(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"}).body
    found = decode_body(body, ConsumerConnection)
    assert sorted(connection.client_id for connection in found.connection_set) == ["me", "other"]
    assert {c.client_address for c in found.connection_set if c.client_id == "other"} == {
        f"10.1.2.3:{other.connection.name.rpartition(':')[2]}"
    }
    assert list(found.subscription_table) == ["T"]
    producers = client.ok(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"}).body
    assert [c.client_id for c in decode_body(producers, ProducerConnection).connection_set] == ["me"]
    everyone = msgspec.json.decode(client.ok(RequestCode.GET_ALL_PRODUCER_INFO).body)
    assert [item["clientId"] for item in everyone["data"]["p"]] == ["me"]
    missing = client.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "x"})
    assert missing.code == ResponseCode.CONSUMER_NOT_ONLINE
    missing = client.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "x"})
    assert missing.code == ResponseCode.SYSTEM_ERROR


def test_groups_of_topics_and_topics_of_groups(client: Client) -> None:
    commit(client, 1)
    fields = {"srcGroup": "g", "destGroup": "gone"}
    client.ok(RequestCode.CLONE_GROUP_OFFSET, fields)
    body = client.ok(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"}).body
    assert decode_body(body, GroupList).group_list == ["g", "gone"]
    body = client.ok(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "gone"}).body
    assert decode_body(body, TopicList).topics == ["T"]
    body = client.ok(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": "g", "topic": "T"}).body
    assert msgspec.json.decode(body)["subscriptionData"]["subString"] == "*"


def test_reset_by_time_reaches_every_consumer(client: Client) -> None:
    group = client.group
    client.send("T", b"0")
    group.advance(10)
    middle_ms = group.wall_ms
    client.send("T", b"1")
    commit(client, 2)
    other = group.connect(name="other")
    other.heartbeat("g")
    group.settle()
    client.notices.clear()
    other.notices.clear()
    fields = {"topic": "T", "group": "g", "timestamp": middle_ms, "isForce": True}
    body = client.ok(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields).body
    assert QueueOffsets.decode(body).offsets == {queue(0): 1, queue(1): 0}
    group.settle()
    for told in (client, other):
        (order,) = told.notices
        assert order.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
        assert QueueOffsets.decode(order.body).offsets == {queue(0): 1, queue(1): 0}
    end = client.ok(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields | {"timestamp": -1}).body
    assert QueueOffsets.decode(end).offsets[queue(0)] == 2
    nobody = client.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields | {"group": "x"})
    assert nobody.code == ResponseCode.CONSUMER_NOT_ONLINE


def test_reset_of_one_queue_leaves_the_others_alone(client: Client) -> None:
    """As mqadmin of 5.x asks: time 0 and no force, so that all else of the topic would go to its beginning."""
    for body in (b"0", b"1", b"2"):
        client.send("T", body)
    commit(client, 3)
    client.notices.clear()
    fields = {"topic": "T", "group": "g", "timestamp": 0, "isForce": False, "queueId": 0, "offset": 2}
    one = client.ok(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields).body
    assert QueueOffsets.decode(one).offsets == {queue(0): 2}
    client.group.settle()
    (order,) = client.notices
    assert QueueOffsets.decode(order.body).offsets == {queue(0): 2}
    by_time = client.ok(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields | {"offset": -1}).body
    assert QueueOffsets.decode(by_time).offsets == {queue(0): 0}
    later = {"timestamp": -1, "queueId": None, "offset": None}
    unforced = client.ok(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields | later).body
    assert QueueOffsets.decode(unforced).offsets == {queue(0): 0}, "of queue 1 no position is stored"
    for wrong in ({"queueId": 2}, {"offset": 4}):
        refused = client.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields | wrong)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "queue" in (refused.remark or "")


def test_each_node_tells_its_own_state(group: Group) -> None:
    client = group.connect()
    client.create_topic("T")
    client.send("T", b"x")
    group.converge()
    seen = {
        node: decode_node_status(group.connect(node).ok(RequestCode.TRIVET_NODE_STATUS).body)
        for node in group.members
    }
    leader = group.leader
    for node, status in seen.items():
        log = group.node(node).replica.store.log
        assert status.node == node
        assert status.role == ("leader" if node == leader else "follower")
        assert (status.leader, status.serving) == (leader, node == leader)
        assert (status.last_index, status.last_position) == (log.last_index, log.end_position)
        assert status.applied_index == status.commit_index == log.last_index
        assert (status.group, status.cluster, status.process_id) == ("broker-a", "DefaultCluster", 4711)
        assert status.address == group.members[node].config.node.listen
    assert {peer.id: peer.match_index for peer in seen[leader].peers} == {
        node: seen[leader].last_index for node in group.members if node != leader
    }


def test_runtime_table(group: Group) -> None:
    client = group.connect()
    client.create_topic("T")
    client.heartbeat("g")
    for _ in range(30):
        client.send("T", b"x")
        group.advance(1)
    client.pull("T", "g", 0)
    table = decode_body(client.ok(RequestCode.GET_BROKER_RUNTIME_INFO).body, KeyValueTable).table
    assert table["msgPutTotalTodayNow"] == "30"
    assert table["msgGetTotalTodayNow"] == "30"
    over_10_s, over_60_s, _ = (float(rate) for rate in table["putTps"].split())
    assert over_10_s == pytest.approx(1.0, abs=0.2)
    assert over_60_s == pytest.approx(1.0, abs=0.2)
    assert table["getTransferedTps"] == table["getTransferredTps"]
    assert int(table["commitLogMaxOffset"]) == group.node(group.leader).replica.store.log.end_position
    assert table["dispatchBehindBytes"] == "0"
    assert table["dispatchMaxBuffer"] == "0"
    assert table["remainTransientStoreBufferNumbs"] == str((1 << 31) - 1)
    assert table["bootTimestamp"].isdigit()
    assert table["scheduleMessageOffset_18"] == "0,0"
    client.wait(client.start_send("T", b"x", properties={"DELAY": "18"}))
    table = decode_body(client.ok(RequestCode.GET_BROKER_RUNTIME_INFO).body, KeyValueTable).table
    assert table["scheduleMessageOffset_18"] == "0,1"


def runtime(client: Client) -> dict[str, str]:
    return decode_body(client.ok(RequestCode.GET_BROKER_RUNTIME_INFO).body, KeyValueTable).table


def test_runtime_table_has_what_mqadmin_prints(group: Group) -> None:
    """The keys of `AdminBrokerProcessor.prepareRuntimeInfo`, of the leader and of another node."""
    queues = ("sendThreadPoolQueue", "pullThreadPoolQueue", "queryThreadPoolQueue", "EndTransactionQueue")
    keys = {
        "brokerVersionDesc",
        "brokerVersion",
        "brokerActive",
        "putTps",
        "getTransferedTps",
        "getTransferredTps",
        "msgPutTotalTodayNow",
        "msgPutTotalTodayMorning",
        "msgPutTotalYesterdayMorning",
        "msgGetTotalTodayNow",
        "msgGetTotalTodayMorning",
        "msgGetTotalYesterdayMorning",
        "pageCacheLockTimeMills",
        "earliestMessageTimeStamp",
        "commitLogDiskRatio",
        "commitLogDirCapacity",
        "consumeQueueDiskRatio",
        "commitLogMinOffset",
        "commitLogMaxOffset",
        "dispatchBehindBytes",
        "dispatchMaxBuffer",
        "remainHowManyDataToFlush",
        "remainTransientStoreBufferNumbs",
        "startAcceptSendRequestTimeStamp",
        "bootTimestamp",
        "runtime",
        "putMessageDistributeTime",
        "putMessageEntireTimeMax",
        "putMessageAverageSize",
        "putMessageFailedTimes",
        "putMessageTimesTotal",
        "getFoundTps",
        "getMissTps",
        "getTotalTps",
        "getMessageEntireTimeMax",
        "timerReadBehind",
        "timerOffsetBehind",
        "timerCongestNum",
        "timerEnqueueTps",
        "timerDequeueTps",
    }
    keys |= {f"scheduleMessageOffset_{level}" for level in range(1, 19)}
    keys |= {f"{queue}{figure}" for queue in queues for figure in ("Size", "Capacity", "HeadWaitTimeMills")}
    for node in group.members:
        assert keys <= runtime(group.connect(node)).keys()


def test_sizes_and_failures_of_puts(group: Group) -> None:
    client = group.connect(group.leader)
    client.create_topic("T")
    before = runtime(client)
    record = client.send("T", b"x" * 100)
    client.send("T", b"x" * 300)
    refused = client.wait(client.start_send("T", b"x" * (256 * 1024 + 1)))
    assert (record.queue_offset, refused.code) == (0, ResponseCode.MESSAGE_ILLEGAL)
    client.heartbeat("g")
    lengths = [len(found.encode()) for found in client.pull("T", "g", 0).records]
    after = runtime(client)
    assert (before["putMessageFailedTimes"], after["putMessageFailedTimes"]) == ("0", "1")
    assert float(after["putMessageAverageSize"]) == sum(lengths) / 2
    assert (after["remainHowManyDataToFlush"] == "0 B") == (
        group.node(group.leader).replica.store.log.durable_index
        == group.node(group.leader).replica.store.log.last_index
    )


def test_puts_by_the_time_that_their_commit_took(group: Group) -> None:
    client = group.connect(group.leader)
    client.create_topic("T")

    def classes() -> dict[str, int]:
        words = runtime(client)["putMessageDistributeTime"].split()
        return {name: int(count) for name, count in (word.rsplit(":", 1) for word in words)}

    before = classes()
    client.send("T", b"at once")
    assert classes()["[<=0ms]"] == before["[<=0ms]"] + 1
    assert runtime(client)["putMessageEntireTimeMax"] == "0"
    group.lose = lambda source, target, frame: True
    late = client.start_send("T", b"late")
    group.advance(0.3)
    group.lose = lambda source, target, frame: False
    assert client.wait(late).code == ResponseCode.SUCCESS
    after = classes()
    assert sum(after.values()) - sum(before.values()) >= 2
    assert sum(after[name] for name in ("[200~500ms]", "[500ms~1s]")) == 1
    assert 300 <= int(runtime(client)["putMessageEntireTimeMax"]) < 1000


def test_reads_that_find_something_and_reads_that_do_not(group: Group) -> None:
    client = group.connect(group.leader)
    client.create_topic("T")
    client.heartbeat("g")
    client.send("T", b"1")
    client.send("T", b"2")
    for offset in (0, 1, 2, 2, 2):
        client.pull("T", "g", offset)
    client.start_pull("T", "g", 2, suspend_ms=60_000)
    group.advance(10)
    table = runtime(client)
    found, missed, total, transferred = (
        float(table[f"get{which}Tps"].split()[1]) for which in ("Found", "Miss", "Total", "Transferred")
    )
    assert total == pytest.approx(found + missed, abs=0.002)
    assert missed == pytest.approx(2 * found, rel=0.02), "two reads found something, four did not"
    assert transferred == pytest.approx(1.5 * found, rel=0.02), "three messages"


def test_what_waits_for_a_time_of_its_own(group: Group) -> None:
    client = group.connect(group.leader)
    client.create_topic("T")
    for seconds in (20, 20, 3000):
        client.send("T", b"x", properties={"TIMER_DELAY_SEC": str(seconds)})
    group.advance(11)
    for node in group.members:
        table = runtime(group.connect(node))
        assert (table["timerCongestNum"], table["timerReadBehind"]) == ("3", "0")
        assert table["timerEnqueueTps"] == "0.050"
    group.advance(15)
    for node in group.members:
        table = runtime(group.connect(node))
        assert (table["timerCongestNum"], table["timerReadBehind"]) == ("1", "0")
    table = runtime(client)
    assert table["timerDequeueTps"] == f"{2 / 60:.3f}"


def test_days_begin_at_midnight(group: Group) -> None:
    """mqadmin clusterList takes the messages of today and of yesterday from these."""
    client = group.connect()
    client.create_topic("T")

    def totals() -> tuple[int, int, int]:
        table = decode_body(client.ok(RequestCode.GET_BROKER_RUNTIME_INFO).body, KeyValueTable).table
        moments = ("YesterdayMorning", "TodayMorning", "TodayNow")
        return tuple(int(table[f"msgPutTotal{moment}"]) for moment in moments)  # type: ignore[return-value]

    def next_noon() -> None:
        for _ in range(12):
            group.skip(2 * 3_600_000)
            group.advance(11)

    while time.localtime(group.wall_ms / 1000).tm_hour != 12:
        group.skip(3_600_000)
    group.advance(11)
    client.send("T", b"x")
    assert totals() == (0, 0, 1)
    next_noon()
    client.send("T", b"x")
    client.send("T", b"x")
    assert totals() == (0, 1, 3)
    next_noon()
    assert totals() == (1, 3, 3)


@pytest.mark.parametrize("code", [22, 23, 50, RequestCode.QUERY_ASSIGNMENT, 31_000, 200_050])
def test_unknown_request(client: Client, code: int) -> None:
    answer = client.call(code)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == f" request type {int(code)} not supported"

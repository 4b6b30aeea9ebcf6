"""mqadmin, the reference's administration command, of both versions: each must exit well and print what it should.

Part of ``make interop``; needs Java and Maven. What is checked is the part of the output that an operator reads.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.interop import wire
from tests.interop.artifacts import cpp_client_path
from tests.interop.clients import CPP, Client
from tests.interop.cluster import Cluster, make_topic
from tests.interop.conftest import available
from tests.interop.mqadmin import Mqadmin
from tests.interop.processes import Child, wait_until
from tests.interop.test_send_and_receive import DELIVERY_LIMIT_S, read_back, send

pytestmark = pytest.mark.java_only

ROOT = Path(__file__).resolve().parent.parent.parent


def wait_for_commit(mqadmin: Mqadmin, group: str) -> None:
    """Until the group's stored offsets are the ends of its queues; clients store theirs every five seconds."""

    def caught_up() -> bool:
        progress = mqadmin("consumerProgress", "-g", group, excused="CODE: 206")  # nothing stored yet
        return re.search(r"Diff Total:\s+0\b", progress) is not None

    wait_until(caught_up, DELIVERY_LIMIT_S, "no lag once offsets are stored", interval_s=1)


def test_cluster_list(mqadmin: Mqadmin, cluster: Cluster) -> None:
    output = mqadmin("clusterList")
    for node in cluster.nodes:
        assert re.search(rf"\s{re.escape(node.address)}\s", output), output
    assert re.search(rf"\s0\s+{re.escape(cluster.leader().address)}\s", output), output


@pytest.fixture
def cluster_name(cluster: Cluster) -> str:
    """The name under which the brokers have registered."""
    return wire.cluster_name(cluster.name_server)


@pytest.mark.core
@pytest.mark.both_headers
def test_topic_commands(
    mqadmin: Mqadmin, client: Client, cluster: Cluster, cluster_name: str, group: str
) -> None:
    topic = f"admin-{group}"
    assert "create topic to" in mqadmin("updateTopic", "-c", cluster_name, "-t", topic, "-r", "6", "-w", "6")
    wait_until(lambda: topic in mqadmin("topicList"), DELIVERY_LIMIT_S, "the topic listed", interval_s=0.5)

    route = mqadmin("topicRoute", "-t", topic)
    assert re.search(r'"readQueueNums":\s?6', route), route
    assert cluster.leader().address in route
    assert cluster_name in mqadmin("topicClusterList", "-t", topic)

    send(client, topic, count=12)
    status = mqadmin("topicStatus", "-t", topic)
    rows = re.findall(r"^\S+\s+(\d+)\s+(\d+)\s+(\d+)\s", status, re.MULTILINE)
    assert sorted(int(queue) for queue, _, _ in rows) == list(range(6)), status
    assert sum(int(high) for _, _, high in rows) == 12

    mqadmin("updateTopicPerm", "-t", topic, "-b", cluster.leader().address, "-p", "4")
    wait_until(
        lambda: re.search(r'"perm":\s?4', mqadmin("topicRoute", "-t", topic)),
        DELIVERY_LIMIT_S,
        "perm 4",
        interval_s=0.5,
    )
    assert "delete topic" in mqadmin("deleteTopic", "-c", cluster_name, "-t", topic)


def test_consumer_commands(mqadmin: Mqadmin, client: Client, topic: str, group: str) -> None:
    consumer = client.start("push", topic=topic, group=group)
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    send(client, topic, count=20)
    consumer.wait_for("message", DELIVERY_LIMIT_S, count=20)

    connection = mqadmin("consumerConnection", "-g", group)
    assert "CONSUME_PASSIVELY" in connection
    assert topic in connection
    assert "JAVA" in connection
    wait_for_commit(mqadmin, group)
    progress = mqadmin("consumerProgress", "-g", group)
    rows = re.findall(rf"^{re.escape(topic)}\s+\S+\s+(\d+)\s+(\d+)\s+(\d+)\s", progress, re.MULTILINE)
    assert sum(int(end) for _, end, _ in rows) == 20, progress
    consumer.stop()


def test_subscription_group_commands(mqadmin: Mqadmin, cluster_name: str, group: str) -> None:
    assert "success" in mqadmin("updateSubGroup", "-c", cluster_name, "-g", group, "-r", "3")
    assert "success" in mqadmin("deleteSubGroup", "-c", cluster_name, "-g", group)


@pytest.mark.both_headers
def test_message_queries(mqadmin: Mqadmin, client: Client, topic: str) -> None:
    sent = send(client, topic, count=5)
    event = sent[2]
    body_key = "key-m-2"

    # 5.x wants the topic, 4.9 does not know the option.
    also = [] if "java-4" in client.name else ["-t", topic]
    by_id = mqadmin("queryMsgById", "-i", event["offset_msg_id"], *also)
    assert f"OffsetID:            {event['offset_msg_id']}" in by_id, by_id
    wait_until(
        lambda: event["msg_id"] in mqadmin("queryMsgByKey", "-t", topic, "-k", body_key),
        DELIVERY_LIMIT_S,
        "the message by key",
        interval_s=0.5,
    )
    assert topic in mqadmin("queryMsgByUniqueKey", "-t", topic, "-i", event["msg_id"])
    by_offset = mqadmin(
        "queryMsgByOffset",
        "-t",
        topic,
        "-b",
        event["broker"],
        "-i",
        str(event["queue"]),
        "-o",
        str(event["offset"]),
    )
    assert topic in by_offset


def test_reset_offset_by_time(mqadmin: Mqadmin, client: Client, topic: str, group: str) -> None:
    """A running consumer is told to go back and gets everything again."""
    consumer = client.start("push", topic=topic, group=group)
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    send(client, topic, count=8)
    consumer.wait_for("message", DELIVERY_LIMIT_S, count=8)

    wait_for_commit(mqadmin, group)  # without a stored offset the broker knows no such group
    output = mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
    assert topic in output or group in output, output
    consumer.wait_for("message", DELIVERY_LIMIT_S, count=16)


def test_member_with_the_cpp_client(
    mqadmin: Mqadmin, cluster: Cluster, topic: str, group: str, tmp_path: Path
) -> None:
    """What it answers is told (203, 307), and the order to go back (220) comes in the form that it reads."""
    with available():
        cpp_client_path()
    cpp = Client(CPP, cluster.name_server, tmp_path)
    try:
        consumer = cpp.start("push", topic=topic, group=group)
        consumer.wait_for("started", DELIVERY_LIMIT_S)
        send(cpp, topic, count=8)
        consumer.wait_for("message", DELIVERY_LIMIT_S, count=8)
        connection = mqadmin("consumerConnection", "-g", group)
        assert re.search(r"(?m)^\S+\s+127\.0\.0\.1:\d+\s+CPP\s", connection), connection
        assert topic in connection
        status = mqadmin("consumerStatus", "-g", group)
        assert re.search(r"(?m)^1\s", status), status

        wait_for_commit(mqadmin, group)
        mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
        consumer.wait_for("message", DELIVERY_LIMIT_S, count=16)
    finally:
        cpp.stop_all()


def test_member_with_trivets_own_client(mqadmin: Mqadmin, client: Client, topic: str, group: str) -> None:
    """What it says of itself (307) is compared with other members, and told."""
    argv = [sys.executable, "-m", "tests.interop.trivet_member", "--namesrv", client.name_server]
    argv += ["--topic", topic, "--group", group]
    with Child(argv, log=client.folder / f"trivet-{group}.log", cwd=ROOT) as member:
        member.wait_for("started", DELIVERY_LIMIT_S)
        send(client, topic, count=8)
        member.wait_for("message", DELIVERY_LIMIT_S, count=8)
        status = mqadmin("consumerStatus", "-g", group)
        assert re.search(r"(?m)^1\s.*V4_9_8", status), status
        assert "Rebalance OK" in status
        told = mqadmin("consumerStatus", "-g", group, "-i", str(member.of("started")[-1]["client_id"]))
        assert "#Consumer MQ Detail#" in told
        assert topic in told


def test_a_group_that_is_away_is_reset(mqadmin: Mqadmin, client: Client, topic: str, group: str) -> None:
    """Nobody is there to be told: it begins where it was sent when it comes back."""
    consumer = client.start("push", topic=topic, group=group)
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    send(client, topic, count=8)
    consumer.wait_for("message", DELIVERY_LIMIT_S, count=8)
    wait_for_commit(mqadmin, group)
    consumer.stop()

    mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
    back = client.start("push", topic=topic, group=group)
    back.wait_for("message", DELIVERY_LIMIT_S, count=8)
    back.stop()


def test_one_queue_is_reset(
    mqadmin: Mqadmin, client: Client, cluster: Cluster, topic: str, group: str
) -> None:
    if "java-4" in client.name:
        pytest.skip("mqadmin of 4.9 does not know the options")
    consumer = client.start("push", topic=topic, group=group)
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    sent = send(client, topic, count=16)
    consumer.wait_for("message", DELIVERY_LIMIT_S, count=16)
    wait_for_commit(mqadmin, group)

    queue = sent[0]["queue"]
    where = ("-b", cluster.leader().address, "-q", str(queue), "-o", "1")  # the tool does nothing for 0
    output = mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0", *where)
    assert "reset" in output, output
    again = sum(event["queue"] == queue for event in sent) - 1
    consumer.wait_for("message", DELIVERY_LIMIT_S, count=16 + again)
    wait_for_commit(mqadmin, group)
    consumer.stop()


def test_broker_status(mqadmin: Mqadmin, cluster: Cluster) -> None:
    leader = cluster.leader().address
    status = mqadmin("brokerStatus", "-b", leader)
    for key in ("putTps", "bootTimestamp", "commitLogMaxOffset", "brokerVersionDesc", "runtime"):
        assert re.search(rf"^{key}\s+:", status, re.MULTILINE), status


def test_broker_configuration(mqadmin: Mqadmin, cluster: Cluster) -> None:
    configuration = mqadmin("getBrokerConfig", "-b", cluster.leader().address)
    for key in ("brokerName", "brokerClusterName", "listenPort", "storePathRootDir"):
        assert re.search(rf"^{key}\s+=", configuration, re.MULTILINE), configuration


def test_write_permission_wipe(mqadmin: Mqadmin, cluster: Cluster, client: Client, group: str) -> None:
    topic = make_topic(cluster, f"wiped-{group}")
    broker = re.search(r'"brokerName":\s?"([^"]+)"', mqadmin("topicRoute", "-t", topic))
    assert broker is not None
    assert "wipe write perm of broker" in mqadmin("wipeWritePerm", "-b", broker[1])
    assert re.search(r'"perm":\s?4', mqadmin("topicRoute", "-t", topic))
    assert "add write perm of broker" in mqadmin("addWritePerm", "-b", broker[1])
    assert re.search(r'"perm":\s?6', mqadmin("topicRoute", "-t", topic))
    send(client, topic, count=1)


def test_send_message_and_print(mqadmin: Mqadmin, client: Client, topic: str) -> None:
    assert "SEND_OK" in mqadmin("sendMessage", "-t", topic, "-p", "by mqadmin")
    assert [event["body"] for event in read_back(client, topic)] == ["by mqadmin"]
    assert "by mqadmin" in mqadmin("printMsg", "-t", topic)

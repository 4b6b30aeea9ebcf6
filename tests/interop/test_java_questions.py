"""Requests of the administration client that no command of mqadmin makes; it reads each response itself.

Part of ``make interop``; needs Java and Maven.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.interop import wire
from tests.interop.clients import Client
from tests.interop.cluster import Cluster
from tests.interop.processes import Child, wait_until
from tests.interop.test_send_and_receive import DELIVERY_LIMIT_S, send

pytestmark = pytest.mark.java_only

ANSWER_LIMIT_S = 120
API_TIMEOUT_MS = "20000"
UNIT, UNIT_SUB = 1, 2
"""Bits of a topic's topicSysFlag (`TopicSysFlag`)."""


class Asked:
    """A process of the administration client; its answers as JSON."""

    def __init__(self, client: Client) -> None:
        self._process: Child = client.start("ask")
        self._process.wait_for("started", ANSWER_LIMIT_S)

    def __call__(self, method: str, *arguments: str) -> Any:
        done = len(self._process.of("answer"))
        self._process.write_line("\t".join([method, *arguments]))
        answer = self._process.wait_for("answer", ANSWER_LIMIT_S, count=done + 1)[-1]
        assert "result" in answer, f"{method}: {answer}"
        return tolerant(answer["result"])


def tolerant(text: str) -> Any:
    """JSON as RocketMQ's library writes it: objects and bare integers for keys, which become strings."""
    keyed = re.sub(r"([{,])(-?\d+):", r'\1"\2":', text)
    return json.loads(re.sub(r"(\{[^{}]*\}):", lambda match: json.dumps(match[1]) + ":", keyed))


def queue_ids(table: dict[str, Any]) -> dict[int, Any]:
    """A table by message queue, as one by queue id."""
    return {json.loads(queue)["queueId"]: value for queue, value in table.items()}


def test_consumers_and_offsets(client: Client, cluster: Cluster, topic: str, group: str) -> None:
    """223 with 221, 303, 308, 343, 345, 315."""
    leader = cluster.leader().address
    consumer = client.start("push", topic=topic, group=group, expression="a || b")
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    send(client, topic, count=12, tags="a")
    consumer.wait_for("message", DELIVERY_LIMIT_S, count=12)
    ask = Asked(client)

    def status() -> dict[int, int]:
        (table,) = ask("getConsumeStatus", topic, group, "").values()
        return queue_ids(table)

    wait_until(lambda: sum(status().values()) == 12, DELIVERY_LIMIT_S, "offsets of the member", interval_s=1)
    ends = {queue: wire.max_offset(leader, topic, queue) for queue in range(4)}
    assert status() == ends

    def spans() -> dict[int, dict[str, Any]]:
        return {span["messageQueue"]["queueId"]: span for span in ask("queryConsumeTimeSpan", topic, group)}

    assert sorted(spans()) == [0, 1, 2, 3]
    wait_until(  # the group's stored offsets follow every five seconds
        lambda: all(
            0 < span["minTimeStamp"] <= span["consumeTimeStamp"] == span["maxTimeStamp"]
            for queue, span in spans().items()
            if ends[queue]
        ),
        DELIVERY_LIMIT_S,
        "spans of all that is consumed",
        interval_s=1,
    )
    corrections = ask("queryCorrectionOffset", leader, topic, group, "nobody", API_TIMEOUT_MS)
    assert {int(queue): offset for queue, offset in corrections.items()} == {
        queue: offset for queue, offset in ends.items() if offset
    }
    if "java-5" in client.name:
        assert topic in ask("queryTopicsByConsumer", group)["topicList"]
        subscription = ask("querySubscription", group, topic)
        assert (subscription["topic"], subscription["subString"]) == (topic, "a || b")
        assert ask("examineSubscriptionGroupConfig", leader, group)["groupName"] == group

    def puts() -> int:
        return int(ask("viewBrokerStatsData", leader, "TOPIC_PUT_NUMS", topic)["statsMinute"]["sum"])

    wait_until(lambda: puts() == 12, DELIVERY_LIMIT_S, "the puts counted", interval_s=1)


def test_topics(client: Client, cluster: Cluster, topic: str) -> None:
    """351, 21 and 201 without what is the system's, 224, 304 with 305, 311 to 313."""
    leader = cluster.leader().address
    name = wire.cluster_name(cluster.name_server)
    ask = Asked(client)
    config = ask("examineTopicConfig", leader, topic)
    assert (config["topicName"], config["readQueueNums"], config["perm"]) == (topic, 4, 6)
    users = ask("getUserTopicConfig", leader, "false", API_TIMEOUT_MS)["topicConfigTable"]
    assert topic in users
    assert "TBW102" not in users
    assert "subscriptionGroupTable" in ask("getUserSubscriptionGroup", leader, API_TIMEOUT_MS)
    assert topic in ask("fetchTopicsByCLuster", name)["topicList"]
    system = ask("getSystemTopicList", API_TIMEOUT_MS)["topicList"]
    assert {name, "TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"} <= set(system)
    assert topic not in system

    ((broker, _),) = wire.broker_addresses(cluster.name_server).items()
    assert broker in system
    flags = {f"{topic}-u": UNIT, f"{topic}-s": UNIT_SUB, f"{topic}-us": UNIT | UNIT_SUB}
    for made, flag in flags.items():
        wire.create_topic(leader, made, 1, topic_sys_flag=flag)

    def listed(method: str) -> set[str]:
        return flags.keys() & set(ask(method, "false", API_TIMEOUT_MS)["topicList"])

    with_unit = {f"{topic}-u", f"{topic}-us"}
    wait_until(
        lambda: listed("getUnitTopicList") == with_unit, DELIVERY_LIMIT_S, "topics of units", interval_s=0.5
    )
    assert listed("getHasUnitSubTopicList") == {f"{topic}-s", f"{topic}-us"}
    assert listed("getHasUnitSubUnUnitTopicList") == {f"{topic}-s"}


def test_key_values(client: Client, group: str) -> None:
    """100, 219, 102."""
    ask = Asked(client)
    ask("createAndUpdateKvConfig", group, "colour", "blue=green\u00e9")
    ask("createAndUpdateKvConfig", group, "size", "7")
    assert ask("getKVListByNamespace", group)["table"] == {"colour": "blue=green\u00e9", "size": "7"}
    ask("deleteKvConfig", group, "colour")
    assert ask("getKVListByNamespace", group)["table"] == {"size": "7"}

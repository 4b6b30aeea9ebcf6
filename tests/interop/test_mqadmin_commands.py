"""Every command of mqadmin, of both versions: it works, or the broker says clearly that it is not supported.

A scenario of `BOTH` is steps, each a command and what an operator must read in its output (regular expressions). A test
holds the tables to the commands that mqadmin itself lists. Part of ``make interop``; needs Java and Maven.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.interop import wire
from tests.interop.clients import Client
from tests.interop.cluster import Cluster, make_topic
from tests.interop.mqadmin import Mqadmin
from tests.interop.processes import ChildError, wait_until
from tests.interop.test_mqadmin import wait_for_commit
from tests.interop.test_send_and_receive import DELIVERY_LIMIT_S, SEND_LIMIT_S

pytestmark = [pytest.mark.java_only, pytest.mark.trivet_only]

COUNT = 20
SETTLING_LIMIT_S = 20


@dataclass(frozen=True, slots=True)
class Step:
    """One command, ``{names}`` filled in from the stage, and patterns that its output must have."""

    command: str
    expected: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """The objects of the commands: a topic with messages, a consumer and a producer that are connected."""

    names: dict[str, str]


def scenario(*steps: tuple[str, ...]) -> tuple[Step, ...]:
    """Steps from tuples of a command and its patterns."""
    return tuple(Step(command, tuple(expected)) for command, *expected in steps)


UPDATED = "success"
BOTH = {
    "clusters": scenario(
        ("clusterList", r"\s0\s+{leader}\s", r"Trivet"),
        ("clusterList -m", r"#InTotalYest", r"{cluster}\s+{broker}"),
    ),
    "topics": scenario(
        ("topicList", r"(?m)^{topic}$"),
        ("topicList -c", r"{cluster}\s+{topic}\s+{group}\s"),
        ("topicRoute -t {topic}", r'"brokerName":\s?"{broker}"'),
        ("topicRoute -t {topic} -l", r"Total:\s+1\s+4\s+4"),
        ("topicStatus -t {topic}", r"{broker}\s+0\s+0\s+\d+\s", r"{broker}\s+3\s+0\s+\d+\s"),
        ("topicClusterList -t {topic}", r"{cluster}"),
        ("allocateMQ -t {topic} -i 127.0.0.1@a,127.0.0.1@b", r'"127.0.0.1@a":\[{{.*"127.0.0.1@b":\[{{'),
    ),
    "topic_changes": scenario(
        ("updateTopic -b {leader} -t {made}", r"create topic to {leader} success"),
        ("updateTopic -c {cluster} -t {made}-ordered -o true", r"orderConf=\[{broker}:8\]"),
        ("updateTopicPerm -t {made} -c {cluster} -p 4", r"update topic perm from 6 to 4 in {leader} success"),
        (
            "deleteTopic -c {cluster} -t {made}",
            r"from cluster \[{cluster}\] success",
            r"from NameServer success",
        ),
        ("deleteTopic -c {cluster} -t {made}-ordered", r"from cluster \[{cluster}\] success"),
    ),
    "group_changes": scenario(
        ("updateSubGroup -b {leader} -g {made}", r"to {leader} success"),
        ("updateSubGroup -c {cluster} -g {made} -r 3", r"to {leader} success", r"retryMaxTimes=3"),
        ("getConsumerConfig -g {made}", r"retryMaxTimes\s+=\s+3"),
        ("deleteSubGroup -c {cluster} -g {made}", r"delete subscription group \[{made}\].*success"),
    ),
    "broker": scenario(
        ("brokerStatus -b {leader}", r"commitLogMaxOffset\s*:\s*\d", r"scheduleMessageOffset_18\s*:\s*\d"),
        ("brokerStatus -c {cluster}", r"{leader}\s+putTps\s*:"),
        (
            "getBrokerConfig -b {leader}",
            r"(?m)^brokerName\s+=\s+{broker}",
            r"(?m)^brokerRole\s+=\s+SYNC_MASTER",
        ),
        ("getBrokerConfig -c {cluster}", r"Master: {leader}"),
        ("brokerConsumeStats -b {leader}", r"{topic}\s+{group}\s+{broker}\s+0\s", r"Diff Total: \d"),
        ("brokerConsumeStats -b {leader} -o true", r"Diff Total: 0"),
        ("cleanExpiredCQ -b {leader}", UPDATED),
        ("cleanExpiredCQ -c {cluster}", UPDATED),
        ("deleteExpiredCommitLog -b {leader}", UPDATED),
        ("cleanUnusedTopic -b {leader}", UPDATED),
        (
            "updateBrokerConfig -b {leader} -k fileReservedTime -v 71",
            r"update broker config success, {leader}",
        ),
        (
            "updateBrokerConfig -c {cluster} -k fileReservedTime -v 72",
            r"update broker config success, {leader}",
        ),
        ("updateBrokerConfig -b {leader} -k flushDiskType -v SYNC_FLUSH", r"CODE: 1 .*cannot change while"),
    ),
    "clients": scenario(
        ("producerConnection -g {producers} -t {topic}", r"0001\s.*JAVA\s+V{version}"),
        ("producer -b {leader}", r"producer group \({producers}\) instance : clientId="),
        ("consumerConnection -g {group}", r"CONSUME_PASSIVELY", r"{topic}\s+\*", r"JAVA\s+V{version}"),
        ("consumerProgress", r"{group}\s+1\s+V{version}\s+PUSH\s+CLUSTERING"),
        ("consumerProgress -g {group}", r"{topic}\s+{broker}\s+0\s+\d+\s+\d+\s+0\s", r"Diff Total: 0"),
        ("consumerProgress -g {group} -s true", r"{topic}\s+{broker}\s+0\s", r"Diff Total: 0"),
        ("consumerStatus -g {group}", r"(?m)^1\s.*V{version}", r"Rebalance OK"),
        ("consumerStatus -g {group} -s", r"Rebalance OK"),
        ("statsAll -t {topic}", r"{topic}\s+{group}\s+\d+\s"),
        ("statsAll -a -t {topic}", r"{topic}\s+{group}\s"),
    ),
    "offsets": scenario(
        ("cloneGroupOffset -s {group} -d {group}-clone -t {topic}", r"clone group offset success"),
        ("resetOffsetByTime -g {group} -t {topic} -s 0", r"{broker}\s+\d\s+.*0"),
        ("skipAccumulatedMessage -g {group} -t {topic}", r"{broker}\s+\d\s+"),
        ("skipAccumulatedMessage -g {group} -t {topic} -f true", r"{broker}\s+\d\s+"),
    ),
    "messages": scenario(
        ("queryMsgByKey -t {topic} -k key-m-3", r"{key}\s+{queue}\s+{offset}"),
        ("queryMsgByUniqueKey -t {topic} -i {key}", r"Queue Offset:\s+{offset}\s", r"CONSUMED"),
        ("queryMsgByUniqueKey -t {topic} -i {key} -a", r"Queue Offset:\s+{offset}\s"),
        ("queryMsgByUniqueKey -t {topic} -i {key} -g {group} -d {consumer}", r"consumeResult=CR_SUCCESS"),
        ("queryMsgByOffset -t {topic} -b {broker} -i {queue} -o {offset}", r"OffsetID:\s+{id}\s"),
        ("printMsg -t {topic}", r"MSGID: {key}", r"BODY: m-3"),
        ("printMsgByQueue -t {topic} -a {broker} -i {queue} -p true -d true", r"MSGID: {key}.*BODY: m-3"),
        ("consumeMessage -t {topic} -c 3", r"Consume ok", r"MSGID: "),
        ("consumeMessage -t {topic} -b {broker} -i {queue} -o {offset} -c 1", r"MSGID: {key}"),
        ("consumeMessage -t {topic} -b {broker} -i {queue} -s 0 -e {now}", r"MSGID: {key}"),
        ("queryCq -t {topic} -q {queue} -i {offset} -c 1", r"physicOffset={position}, ", r"tagsCode=97"),
        (
            "queryCq -t {topic} -q {queue} -i {offset} -c 1 -g {group}",
            r"physicOffset={position}, .*eval=true",
        ),
    ),
    "sends": scenario(
        ("sendMessage -t {made} -p body -k key -c tag", r"{broker}\s+\d\s+SEND_OK"),
        ("sendMessage -t {topic} -p body -b {broker} -i 1", r"{broker}\s+1\s+SEND_OK"),
        ("sendMsgStatus -b {broker} -s 10 -c 2", r"sendStatus=SEND_OK"),
        ("checkMsgSendRT -t {topic} -a 3 -s 10", r"{broker}\s+\d\s+true", r"Avg RT: "),
    ),
    "name_servers": scenario(
        ("getNamesrvConfig", r"(?m)^listenPort\s+=\s+\d"),
        ("updateNamesrvConfig -k orderMessageEnable -v true", r"update name server config success"),
        ("updateNamesrvConfig -k orderMessageEnable -v false", r"update name server config success"),
        ("updateKvConfig -s space -k key -v value", r"create or update kv config to namespace success"),
        ("deleteKvConfig -s space -k key", r"delete kv config from namespace success"),
        ("updateOrderConf -t {topic} -m put -v {broker}:4", r"update orderConf success"),
        ("updateOrderConf -t {topic} -m get", r"orderConf=\[{broker}:4\]"),
        ("updateOrderConf -t {topic} -m delete", r"delete orderConf success"),
    ),
    "exports": scenario(
        ("exportMetadata -c {cluster} -f {folder}", r"export {folder}/metadata.json success"),
        ("exportMetadata -c {cluster} -t -f {folder}", r"export {folder}/topic.json success"),
        ("exportMetadata -c {cluster} -g -f {folder}", r"export {folder}/subscriptionGroup.json success"),
        ("exportConfigs -c {cluster} -f {folder}", r"export {folder}/configs.json success"),
        ("exportMetrics -c {cluster} -f {folder}", r"export {folder}/metrics.json success"),
    ),
    "accounts_of_4x": scenario(
        ("updateAclConfig -b {leader} -a RocketMQ -s 12345678", r"CODE: 3 .*request type 50 not supported"),
        ("deleteAclConfig -b {leader} -a RocketMQ", r"CODE: 3 .*request type 51 not supported"),
        ("clusterAclConfigVersion -b {leader}", r"CODE: 3 .*request type 52 not supported"),
        ("updateGlobalWhiteAddr -b {leader} -g 10.0.0.1", r"CODE: 3 .*request type 53 not supported"),
    ),
}
ONLY_4 = {
    "message_by_id": scenario(("queryMsgById -i {id}", r"Queue Offset:\s+{offset}\s", r"CONSUMED")),
}
ONLY_5 = {
    "message_by_id": scenario(
        ("queryMsgById -i {id} -t {topic}", r"Queue Offset:\s+{offset}\s", r"CONSUMED"),
        ("queryMsgById -i {id} -t {topic} -g {group} -d {consumer}", r"consumeResult=CR_SUCCESS"),
    ),
    "progress_of_a_topic": scenario(
        ("consumerProgress -g {group} -t {topic}", r"{topic}\s+{broker}\s+0\s", r"Diff Total: 0"),
    ),
    "attributes": scenario(
        (
            'updateSubGroup -b {leader} -g {made}-5 --attributes +a=b -p {{"type":"EXPONENTIAL"}}',
            r"to {leader} success",
        ),
        ('updateSubGroup -b {leader} -g {made}-5 -r 5 -p {{"type":"EXPONENTIAL"}}', r"to {leader} success"),
        ("getConsumerConfig -g {made}-5", r"retryMaxTimes\s+=\s+5", r"EXPONENTIAL", r"a=b"),
        ("updateTopic -b {leader} -t {made}-5 -a +message.type=FIFO", r"create topic to {leader} success"),
        (
            "updateTopic -b {leader} -t {made}-batches -a +queue.type=BatchCQ",
            r"CODE: 1 .*the attribute queue.type is 'BatchCQ', supported is SimpleCQ alone",
        ),
    ),
    "lists": scenario(
        ("updateTopicList -c {cluster} -f {folder}/topics.json", r"to {leader} success"),
        ("topicRoute -t {made}-listed", r'"readQueueNums":\s?2'),
        ("updateSubGroupList -c {cluster} -f {folder}/groups.json", r"to {leader} success"),
        ("getConsumerConfig -g {made}-listed", r"retryMaxTimes\s+=\s+7"),
    ),
    "not_supported": scenario(
        ("setConsumeMode -c {cluster} -t {topic} -g {group} -m POP -q 4", r"request type 401 not supported"),
        ("resetMasterFlushOffset -b {leader} -o 0", r"request type 908 not supported"),
        ("haStatus -b {leader}", r"request type 907 not supported"),
        ("getSyncStateSet -c {cluster} -a {leader}", r"request type 1005 not supported"),
        ("getBrokerEpoch -b {broker}", r"request type 1007 not supported"),
        ("getColdDataFlowCtrInfo -b {leader}", r"request type 2003 not supported"),
        ("updateColdDataFlowCtrGroupConfig -b {leader} -g {group} -v 1", r"request type 2001 not supported"),
        ("removeColdDataFlowCtrGroupConfig -b {leader} -g {group}", r"request type 2002 not supported"),
        ("setCommitLogReadAheadMode -b {leader} -m 0", r"request type 2004 not supported"),
        ("updateStaticTopic -t {made}-static -qn 4 -c {cluster}", r"request type 513 not supported"),
        ("remappingStaticTopic -t {made}-static -c {cluster}", r"No topic route to do the remapping"),
        ("checkRocksdbCqWriteProgress -c {cluster}", r"request type 354 not supported"),
        ("addBroker -c {leader} -b /nowhere", r"request type 902 not supported"),
        ("removeBroker -c {leader} -b {cluster}:{broker}:0", r"request type 903 not supported"),
        ("getControllerMetaData -a {leader}", r"request type 1005 not supported"),
        ("getControllerConfig -a {leader}", r"request type 1010 not supported"),
        ("updateControllerConfig -a {leader} -k a -v b", r"request type 1009 not supported"),
    ),
    "accounts_of_5x": scenario(
        ("createUser -b {leader} -u u -p p", r"request type 3001 not supported"),
        ("updateUser -b {leader} -u u -p p", r"request type 3002 not supported"),
        ("deleteUser -b {leader} -u u", r"request type 3003 not supported"),
        ("getUser -b {leader} -u u", r"request type 3004 not supported"),
        ("listUser -b {leader}", r"request type 3005 not supported"),
        ("copyUser -f {leader} -t {leader} -u u", r"request type 3004 not supported"),
        ("createAcl -b {leader} -s User:u -r Topic:* -a PUB -d ALLOW", r"request type 3006 not supported"),
        ("updateAcl -b {leader} -s User:u -r Topic:* -a PUB -d ALLOW", r"request type 3007 not supported"),
        ("deleteAcl -b {leader} -s User:u", r"request type 3008 not supported"),
        ("getAcl -b {leader} -s User:u", r"request type 3009 not supported"),
        ("listAcl -b {leader}", r"request type 3010 not supported"),
        ("copyAcl -f {leader} -t {leader} -s User:u", r"request type 3009 not supported"),
    ),
}
ELSEWHERE = {
    "wipeWritePerm": "test_mqadmin.py, test_java_name_servers.py",
    "addWritePerm": "test_mqadmin.py, test_java_name_servers.py",
    "queryMsgTraceById": "test_java_sending.py",
    "startMonitoring": "runs for ever; it asks what consumerProgress and consumerStatus ask",
    "clusterRT": "runs for ever; it sends as checkMsgSendRT does",
    "electMaster": "for RocketMQ's controller, which a Raft group has not",
    "cleanBrokerMetadata": "for RocketMQ's controller, which a Raft group has not",
    "exportMetadataInRocksDB": "reads local files",
    "rocksDBConfigToJson": "reads local files",
    "dumpCompactionLog": "reads local files",
}
"""Commands that are not run here, and why, or where they are."""


def scenarios_of(client_name: str) -> dict[str, tuple[Step, ...]]:
    return BOTH | (ONLY_4 if client_name.startswith("java-4") else ONLY_5)


@pytest.fixture(scope="session")
def stages() -> Iterator[dict[str, tuple[Stage, Client]]]:
    """One stage for each client, set up by the first test that needs it."""
    running: dict[str, tuple[Stage, Client]] = {}
    yield running
    for _, client in running.values():
        client.stop_all()


@pytest.fixture
def stage(
    client: Client,
    cluster: Cluster,
    mqadmin: Mqadmin,
    stages: dict[str, tuple[Stage, Client]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Stage:
    if client.name not in stages:
        lasting = Client(client.name, client.name_server, tmp_path_factory.mktemp("stage"))
        try:
            stages[client.name] = (set_up(lasting, cluster, mqadmin), lasting)
        except BaseException:
            lasting.stop_all()
            raise
    return stages[client.name][0]


def set_up(client: Client, cluster: Cluster, mqadmin: Mqadmin) -> Stage:
    suffix = client.name.replace(".", "-")
    topic, group, producers = f"stage-{suffix}", f"stage-consumers-{suffix}", f"stage-producers-{suffix}"
    make_topic(cluster, topic)
    consumer = client.start("push", topic=topic, group=group)
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    sender = client.start("send", topic=topic, group="interop-sender", count=COUNT, tags="a")
    sender.finish(SEND_LIMIT_S)
    producer = client.start("transaction", topic=topic, group=producers, count=1, outcome="commit")
    producer.wait_for("sent", SEND_LIMIT_S)
    messages = consumer.wait_for("message", DELIVERY_LIMIT_S, count=COUNT + 1)
    wait_for_commit(mqadmin, group)
    sent = next(event for event in sender.of("sent") if event["index"] == 3)
    (position,) = {event["commit_log_offset"] for event in messages if event["body"] == "m-3"}
    leader = cluster.leader().address
    connected = mqadmin("consumerConnection", "-g", group)
    (consumer_id,) = re.findall(r"(?m)^(\S+@\S+)\s+\S+:\d+\s+JAVA", connected)
    made = f"made-{suffix}"
    (client.folder / "topics.json").write_text(
        json.dumps([{"topicName": f"{made}-listed", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}])
    )
    (client.folder / "groups.json").write_text(
        json.dumps([{"groupName": f"{made}-listed", "retryMaxTimes": 7}])
    )
    ((broker, _),) = wire.broker_addresses(cluster.name_server).items()
    return Stage(
        {
            "topic": topic,
            "group": group,
            "producers": producers,
            "made": made,
            "broker": broker,
            "leader": leader,
            "cluster": wire.cluster_name(cluster.name_server),
            "consumer": consumer_id,
            "id": sent["offset_msg_id"],
            "key": sent["msg_id"],
            "queue": str(sent["queue"]),
            "offset": str(sent["offset"]),
            "position": str(position),
            "folder": str(client.folder),
            "version": suffix.removeprefix("java-").replace("-", "_"),
            "now": str(int(time.time() * 1000)),
        }
    )


@pytest.mark.parametrize("name", sorted({*BOTH, *ONLY_4, *ONLY_5}))
def test_commands(client: Client, stage: Stage, mqadmin: Mqadmin, name: str) -> None:
    steps = scenarios_of(client.name).get(name)
    if steps is None:
        pytest.skip("commands of the other version")
    patterns = {key: re.escape(value) for key, value in stage.names.items()}
    for step in steps:
        check(
            mqadmin, step.command.format(**stage.names), [part.format(**patterns) for part in step.expected]
        )


def check(mqadmin: Mqadmin, command: str, wanted: list[str]) -> None:
    """Runs a command until all of `wanted` is in its output: name servers hear of changes a moment later."""
    output = ""

    def told() -> bool:
        nonlocal output
        output = mqadmin(*command.split(), excused="")
        return all(re.search(pattern, output) for pattern in wanted)

    try:
        wait_until(told, SETTLING_LIMIT_S, "the output", interval_s=0.5)
    except ChildError as error:
        raise AssertionError(f"mqadmin {command}: not {wanted} in\n{output}") from error


def test_every_command_of_mqadmin_is_in_the_tables(client: Client, mqadmin: Mqadmin) -> None:
    listed = set(re.findall(r"(?m)^ {3}(\w+)\s+\S", mqadmin.help()))
    tried = {step.command.split()[0] for steps in scenarios_of(client.name).values() for step in steps}
    assert len(listed) > 50, "mqadmin has not listed its commands"
    assert listed - tried - ELSEWHERE.keys() == set()
    assert tried <= listed

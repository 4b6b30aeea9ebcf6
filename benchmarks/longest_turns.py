"""The longest time for which one request keeps a node from everybody else, for the worst request of each kind.

    .venv/bin/python -m benchmarks.longest_turns [--only "heartbeat" ...]

A group of three without sockets or clocks (the tests' harness). Measured is the CPU time of each call that the
surroundings of a node make: bytes of a client or a peer that are handed in, a turn, the end of a job. A node does
nothing else while one of them runs, so the longest says how long heartbeats and other clients wait. Files are in
memory: what a disk adds is not in it. Of "a leader's state is read" the longest call gives the memory back that
the old files were, 0.1 to 0.3 s; on a disk a worker unmaps them, and it takes 1 ms beside a directory's flush.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from benchmarks.full_state import TOPICS, WIDE_GROUP, fill_registry, fill_tables, group_name, topic_name
from broker.access.name_server_control import NameServerControl
from broker.name_server import NameServer
from broker.name_server.sessions import NameServerSessions
from broker.node.links import AcceptedLink
from broker.node.running import RunningNode
from broker.peers.protocol import RaftFrame, encode_snapshot
from broker.remoting.bodies import DataVersion, TopicConfig, TopicConfigTable
from broker.remoting.codes import RequestCode, Version
from broker.remoting.command import encode, request
from broker.remoting.register_body import RegisterBrokerBody, body_crc
from broker.remoting.steps import finished
from broker.replica.applied import AppliedState
from broker.requests.client_sessions import ClientSession, SessionLimits
from broker.settings.tables import NameServerSettings
from log.formats.batch import BatchItem, encode_batch
from log.options import StoreOptions
from raft.messages import SnapshotRequest
from tests.broker.fields import pull_fields
from tests.broker.harness import Client, Group
from tests.broker.lines import Desk, let_in
from tests.hostile.test_cost import CHANGES_MEMBERS, DeafEnd, worst_frames

ENTRANCES: Final[tuple[tuple[type, str], ...]] = (
    (ClientSession, "received"),
    (ClientSession, "lost"),
    (AcceptedLink, "received"),
    (RunningNode, "turn"),
    (RunningNode, "job_done"),
    (AppliedState, "save"),
    (NameServerSessions, "turn"),
)
STORE: Final = StoreOptions(
    data_file_bytes=256 << 20,
    prepare_ahead_bytes=1 << 20,
    prepare_step_bytes=1 << 18,
    index_slots=500_000,
    index_entries=2_000_000,
)
"""IndexFiles are a tenth of the usual, and so is the memory that stands for them."""


@dataclass
class Longest:
    """The longest calls of a run, by entrance, in milliseconds of CPU."""

    ms: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {ms:.1f} ms" for name, ms in sorted(self.ms.items(), key=lambda item: -item[1])
        )

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measures what is called inside, and prints it as a part."""
        inside = Longest()
        with inside.measured():
            yield
        print(f"    {name}: {inside}", flush=True)
        for entrance, ms in inside.ms.items():
            self.ms[entrance] = max(ms, self.ms.get(entrance, 0.0))

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measures what is called inside."""
        originals = {(kind, name): getattr(kind, name) for kind, name in ENTRANCES}

        def watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                began = time.process_time_ns()
                try:
                    return original(*arguments)
                finally:
                    took = (time.process_time_ns() - began) / 1e6
                    self.ms[name] = max(took, self.ms.get(name, 0.0))

            return call

        for (kind, name), original in originals.items():
            setattr(kind, name, watched(f"{kind.__name__}.{name}", original))
        try:
            yield
        finally:
            for (kind, name), original in originals.items():
                setattr(kind, name, original)


def group_of_three(max_message_bytes: int = 256 << 10) -> tuple[Group, Client]:
    """A group that has written before, with a topic T of 4 queues, and a client of its leader."""
    group = Group.elected(3, options=STORE, max_message_bytes=max_message_bytes)
    client = group.connect()
    client.create_topic("T", queues=4)
    fill(client, 2000, b"KEYS\x01warm\x02")
    group.advance(2)
    gc.collect()
    gc.freeze()  # as a broker does when it has started (broker/shell/broker_server.py)
    return group, client


def batch(
    client: Client, items: list[BatchItem], topic: str = "T", once: tuple[int, bool] | None = None
) -> int:
    """Sends a batch, `once` with a floor, and whether it is sent again; returns its opaque."""
    fields = {
        "a": "PG",
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": 0,
        "f": 0,
        "g": client.group.wall_ms,
        "h": 0,
        "m": True,
    }
    if once is not None:
        fields |= {"once": once[0]} | ({"again": True} if once[1] else {})
    return client.start_call(RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch(items))


def fill(client: Client, count: int, properties: bytes = b"TAGS\x01a\x02") -> None:
    """Sends so many short messages to T, queue 0."""
    while count > 0:
        answer = client.wait(batch(client, [BatchItem(0, b"x", properties)] * min(count, 2000)))
        assert answer.code == 0, answer.remark
        count -= 2000


def tiny_batch(longest: Longest) -> None:
    """A batch of nearly as many messages as the default settings allow."""
    group, client = group_of_three(4 << 20)
    with longest.measured():
        answer = client.wait(batch(client, [BatchItem(0, b"", b"")] * 60_000))
        group.advance(1)
    assert answer.code == 0, answer.remark


def repeated_batch(longest: Longest) -> None:
    """A batch of 50,000 messages that is stored already, and is sent again."""
    group, client = group_of_three(4 << 20)
    items = [BatchItem(0, b"x", b"UNIQ_KEY\x01%016X\x02" % number) for number in range(50_000)]
    for again in (False, True):
        with longest.part("again" if again else "first"):
            answer = client.wait(batch(client, items, once=(0, again)))
            group.advance(1)
        assert answer.code == 0, answer.remark
    assert answer.fields["once"] == "found"


def many_keys(longest: Longest) -> None:
    """A batch with as many keys as it may have."""
    _, client = group_of_three()
    item = BatchItem(0, b"", b"KEYS\x01" + b" ".join(b"%d" % k for k in range(900)) + b"\x02")
    with longest.measured():
        answer = client.wait(batch(client, [item] * 55))
    assert answer.code == 0, answer.remark


def small_sends(longest: Longest) -> None:
    """What one read brings of the smallest sends."""
    _, client = group_of_three()
    with longest.measured():
        for _ in range(300):
            last = client.start_send("T", b"")
        client.wait(last)


def forwarded(longest: Longest) -> None:
    """The smallest requests of one client, by way of a follower: all that its link brings at once."""
    group, _ = group_of_three()
    client = group.connect(group.follower)
    with longest.measured():
        for _ in range(6_000):
            last = client.start_call(RequestCode.SEND_MESSAGE_V2)
        client.wait(last)


def filtered_pull(longest: Longest) -> None:
    """A pull whose filter takes nothing of a long queue: by tag, then by property."""
    _, client = group_of_three()
    fill(client, 60_000)
    client.heartbeat("G", ("T",))
    with longest.measured():
        client.pull("T", "G", 0, expression="b || c || d", count=2**31 - 1)


def whole_pull(longest: Longest) -> None:
    """A pull that takes as many messages as it may."""
    _, client = group_of_three()
    fill(client, 20_000)
    with longest.measured():
        client.pull("T", "G", 0, count=2**31 - 1)


def first_condition(longest: Longest) -> None:
    """The first condition in SQL92 of a process: what reads it is loaded."""
    _, client = group_of_three()
    client.send("T", b"x")
    for name in [name for name in sys.modules if name.startswith("broker.reading.sql92")]:
        del sys.modules[name]
    with longest.measured():
        fields = pull_fields(
            topic="T", consumerGroup="G", sysFlag=4, subscription="a > 5 AND b = 'c'", expressionType="SQL92"
        )
        client.call(RequestCode.PULL_MESSAGE, fields)


def hot_key(longest: Longest) -> None:
    """A query for a key that tens of thousands of messages have."""
    _, client = group_of_three()
    fill(client, 60_000, b"KEYS\x01hot\x02")
    with longest.measured():
        client.call(
            RequestCode.QUERY_MESSAGE,
            {"topic": "T", "key": "hot", "maxNum": 2**31 - 1, "beginTimestamp": 0, "endTimestamp": 2**62},
        )


def by_time(longest: Longest) -> None:
    """The offset of a time in a long queue whose messages are all of one time."""
    group, client = group_of_three()
    fill(client, 60_000)
    with longest.measured():
        for time_ms in (0, group.wall_ms, 2**62):
            client.call(
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": "T", "queueId": 0, "timestamp": time_ms}
            )


def lists_of_topics(longest: Longest) -> None:
    """A list of a thousand topics is created, all that there are by then are listed, and one goes."""
    group, client = group_of_three()
    configs = [{"topicName": f"T{k}", "readQueueNums": 8, "writeQueueNums": 8} for k in range(10_000)]
    for at in range(0, len(configs), 1000):
        body = json.dumps({"topicConfigList": configs[at : at + 1000]}).encode()
        with longest.part("created"):
            client.ok(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)
    with longest.part("listed"):
        client.ok(RequestCode.GET_ALL_TOPIC_CONFIG)
        client.call(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False})
    with longest.part("one deleted"):
        client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T9999"})
    with longest.part("snapshot"):
        group.node(group.leader).replica.applied.save()
        group.advance(30)


def offsets(longest: Longest) -> None:
    """A consumer group's offsets in 16,000 queues: stored, told, and copied."""
    group, client = group_of_three()
    topics = 1_000
    configs = [{"topicName": f"T{k}", "readQueueNums": 16, "writeQueueNums": 16} for k in range(topics)]
    client.ok(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, json.dumps({"topicConfigList": configs}).encode())
    client.heartbeat("G", ("T",))
    with longest.part("stored"):
        for k in range(topics):
            fields = {"consumerGroup": "G", "topic": f"T{k}", "commitOffset": 0}
            for queue in range(16):
                client.tell(RequestCode.UPDATE_CONSUMER_OFFSET, fields | {"queueId": queue})
            if k % 10 == 9:
                group.settle()
        group.advance(10)
    with longest.part("all told"):
        client.call(RequestCode.GET_ALL_CONSUMER_OFFSET)
    with longest.part("progress"):
        client.call(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G"})
    with longest.part("copied"):
        client.call(
            RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "G", "destGroup": "G2", "topic": "", "offline": True}
        )


def heartbeat(longest: Longest) -> None:
    """The longest heartbeat, which creates its consumer groups, and the same once more."""
    _, client = group_of_three()
    subscriptions = [{"topic": f"X{k}", "subString": "*", "subVersion": 1} for k in range(5)]
    groups = [{"groupName": f"G{k}", "subscriptionDataSet": subscriptions} for k in range(990)]
    body = json.dumps({"clientID": "c", "consumerDataSet": groups}).encode()
    with longest.part("first"):
        client.ok(RequestCode.HEART_BEAT, None, body)
    with longest.part("again"):
        client.ok(RequestCode.HEART_BEAT, None, body)


def locks(longest: Longest) -> None:
    """Order locks for as many queues as a long body names."""
    _, client = group_of_three()
    queues = [{"brokerName": "broker-a", "queueId": k, "topic": "T"} for k in range(8_000)]
    body = json.dumps({"clientId": "c", "consumerGroup": "G", "mqSet": queues}).encode()
    client.create_topic("T", queues=8_000)
    client.heartbeat("G", ("T",))
    with longest.measured():
        client.ok(RequestCode.LOCK_BATCH_MQ, None, body)


def wide_topic(longest: Longest) -> None:
    """What is told of each queue of a topic that has as many as it may."""
    _, client = group_of_three()
    client.create_topic("W", queues=65_536)
    client.heartbeat("G", ("W",))
    with longest.part("ranges"):
        client.ok(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "W"})
    with longest.part("times"):
        client.ok(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "W", "group": "G"})
    with longest.part("progress"):
        client.ok(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G", "topic": "W"})
    with longest.part("reset"):
        fields = {"topic": "W", "group": "G", "timestamp": -1, "isForce": True}
        client.ok(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)


def every_code(longest: Longest) -> None:
    """The worst frames of every request code, each with a body of 1 MiB (`tests/hostile/test_cost.py`)."""
    group, _ = group_of_three()
    for code in RequestCode:
        if code in CHANGES_MEMBERS:
            continue
        inside = Longest()
        for frame in worst_frames(code, 1, (1 << 20) - 4096):
            end = DeafEnd()
            session = group.accept(group.leader, end, "10.1.1.1", 999)
            with inside.measured():
                session.received(frame)
                group.settle()
            group.hang_up(group.leader, session)
        for entrance, ms in inside.ms.items():
            longest.ms[entrance] = max(ms, longest.ms.get(entrance, 0.0))
        if max(inside.ms.values()) > 10:
            print(f"    {code.name}: {inside}", flush=True)


FULL: Final[dict[str, tuple[RequestCode, dict[str, object]]]] = {
    "topics": (RequestCode.GET_ALL_TOPIC_CONFIG, {}),
    "groups": (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}),
    "offsets": (RequestCode.GET_ALL_CONSUMER_OFFSET, {}),
    "delay offsets": (RequestCode.GET_ALL_DELAY_OFFSET, {}),
    "topics of a group": (RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": WIDE_GROUP}),
    "groups of a topic": (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic_name(0)}),
    "progress of a group": (RequestCode.GET_CONSUME_STATS, {"consumerGroup": WIDE_GROUP}),
    "progress of all": (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False}),
    "corrections": (
        RequestCode.QUERY_CORRECTION_OFFSET,
        {"topic": topic_name(0), "compareGroup": WIDE_GROUP},
    ),
    "time spans": (RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": topic_name(0), "group": WIDE_GROUP}),
    "members": (RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": WIDE_GROUP}),
    "consumers' connections": (RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": WIDE_GROUP}),
    "producers' connections": (RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "producers"}),
    "all producers": (RequestCode.GET_ALL_PRODUCER_INFO, {}),
    "one consumer": (
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        {"consumerGroup": WIDE_GROUP, "clientId": "10.2.0.1@0"},
    ),
    "consumers' own status": (
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        {"group": WIDE_GROUP, "topic": topic_name(0)},
    ),
    "assignment": (RequestCode.QUERY_ASSIGNMENT, {}),
    "runtime": (RequestCode.GET_BROKER_RUNTIME_INFO, {}),
    "configuration": (RequestCode.GET_BROKER_CONFIG, {}),
    "node": (RequestCode.TRIVET_NODE_STATUS, {}),
    "figure of a topic": (
        RequestCode.VIEW_BROKER_STATS_DATA,
        {"statsName": "TOPIC_PUT_NUMS", "statsKey": topic_name(0)},
    ),
    "size of a topic": (
        RequestCode.VIEW_BROKER_STATS_DATA,
        {"statsName": "TOPIC_PUT_SIZE", "statsKey": topic_name(0)},
    ),
    "clean queues": (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, {}),
    "clean topics": (RequestCode.CLEAN_UNUSED_TOPIC, {}),
    "copy of offsets": (
        RequestCode.CLONE_GROUP_OFFSET,
        {"srcGroup": WIDE_GROUP, "destGroup": "copy", "topic": "", "offline": True},
    ),
    "reset": (
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        {"topic": topic_name(0), "group": WIDE_GROUP, "timestamp": -1, "isForce": True},
    ),
    "backup": (RequestCode.TRIVET_BACKUP_BEGIN, {}),
    "topic deleted": (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic_name(1)}),
    "group deleted": (
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        {"groupName": group_name(1), "cleanOffset": True},
    ),
    "wide group deleted": (
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        {"groupName": WIDE_GROUP, "cleanOffset": True},
    ),
}
"""Requests whose answers, or whose work, grow with a group's tables."""


def full_tables(longest: Longest) -> None:
    """Requests of all kinds to a group whose tables are full (`full_state`), and what happens to it besides."""
    group = Group.elected(
        3,
        options=STORE,
        limits={"max_topics": 100_000, "max_groups": 20_000, "max_connections": 100_000},
    )
    for member in group.alive():
        fill_tables(member.alive.replica.metadata, group.wall_ms)
        for number in range(TOPICS):
            member.alive.replica.store.queues.make(topic_name(number), 0)
    fill_registry(group)
    client = group.connect()
    group.advance(30)
    gc.collect()
    gc.freeze()
    for what, (code, fields) in FULL.items():
        with longest.part(what):
            client.call(code, fields)
            group.advance(1)
    with longest.part("a member joins"):
        client.heartbeat(WIDE_GROUP, (topic_name(0),))
        group.advance(3)
    with longest.part("snapshot"):
        for member in group.alive():
            member.alive.replica.applied.save()
        group.advance(30)
    with longest.part("a minute"):
        group.advance(60)
    with longest.part("another leads"):
        group.transfer_leadership(group.follower)
        group.advance(3)
    with longest.part("its leader dies"):
        group.kill(group.leader)
        group.elect()
        group.advance(3)
    with longest.part("a leader's state is read"):
        begin_anew(group)


def begin_anew(group: Group) -> None:
    """Sends a follower, whose tables and queues are as full, its leader's state as of much later: it begins anew."""
    source, target = group.leader, group.follower
    leader, follower = group.node(source).replica, group.node(target).replica
    for node in group.members.keys() - {target}:
        group.stop(node)  # they would have nothing to follow that with
    first_index = leader.store.log.last_index + 1_000
    message = SnapshotRequest(
        source, target, leader.term, first_index, leader.term, 0, leader.raft.configuration
    )
    position = leader.store.log.end_position + leader.store.options.data_file_bytes
    frame = RaftFrame(message, position - position % leader.store.options.data_file_bytes, first_index - 1)
    state = finished(leader.applied.written())
    group.members[target].process.links.accepted[source].received(b"".join(encode_snapshot(frame, state)))
    group.settle()
    assert follower.store.log.first_index == first_index
    assert follower.metadata == leader.metadata


def registration(longest: Longest) -> None:
    """A broker with 20,000 topics, and with 80,000, at a name server: it comes, has changed, and goes."""
    for count, compressed in ((20_000, False), (20_000, True), (80_000, False), (80_000, True)):
        desk = Desk()
        sessions = NameServerSessions(
            NameServer(NameServerSettings()),
            desk,
            desk.time,
            desk.outgoing,
            SessionLimits(connections_max=1000, idle_ns=120 * 10**9),
            bytes,
            NameServerControl(),
        )
        session = let_in(sessions.clients, "broker")
        for counter, what in enumerate(("first", "changed"), 1):
            topics = {
                f"topic-{number:06}": TopicConfig(
                    topic_name=f"topic-{number:06}", attributes={"+message.type": "NORMAL"}
                )
                for number in range(count)
            }
            read = RegisterBrokerBody(topics=TopicConfigTable(DataVersion(counter=counter), topics))
            body = read.encode_compressed(Version.V5_0_0) if compressed else read.encode()
            fields = {
                "brokerName": "b",
                "brokerAddr": "10.0.0.1:10911",
                "clusterName": "c",
                "haServerAddr": "",
                "brokerId": "0",
                "compressed": str(compressed).lower(),
                "bodyCrc32": str(body_crc(body)),
            }
            frame = encode(request(RequestCode.REGISTER_BROKER, fields, body))
            with longest.part(f"{count} topics, {'compressed' if compressed else 'JSON'}, {what}"):
                session.received(frame)
                while sessions.has_more:
                    sessions.turn()
        with longest.part(f"{count} topics, unregistered"):
            session.received(encode(request(RequestCode.UNREGISTER_BROKER, fields)))


def delayed(longest: Longest) -> None:
    """Twenty thousand messages that are due at once, by delay level and by time."""
    group, client = group_of_three()
    for what, properties in (
        ("levels", {"DELAY": "1"}),
        ("times", {"TIMER_DELIVER_MS": str(group.wall_ms + 20_000)}),
    ):
        for _ in range(20_000):
            last = client.start_send("T", b"x", properties=properties)
            if last % 200 == 0:
                client.wait(last)
        with longest.part(what):
            group.advance(30)


KINDS: Final[dict[str, Callable[[Longest], None]]] = {
    "batch of tiny messages": tiny_batch,
    "repeated batch": repeated_batch,
    "batch with many keys": many_keys,
    "small sends": small_sends,
    "forwarded requests": forwarded,
    "filtered pull": filtered_pull,
    "whole pull": whole_pull,
    "first condition": first_condition,
    "query for a hot key": hot_key,
    "offset by time": by_time,
    "lists of topics": lists_of_topics,
    "offsets": offsets,
    "heartbeat": heartbeat,
    "locks": locks,
    "delayed": delayed,
    "wide topic": wide_topic,
    "full tables": full_tables,
    "registration": registration,
    "every code": every_code,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=list(KINDS))
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    gc.set_threshold(50_000, 20, 50)
    for kind in arguments.only:
        longest = Longest()
        KINDS[kind](longest)
        print(f"{kind}: {longest}", flush=True)


if __name__ == "__main__":
    main()

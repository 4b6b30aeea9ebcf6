"""Trivet's files are read by others: a plain reader of the format, and RocketMQ's own store classes.

A client writes everything that leaves traces in a store (delays, times, transactions, retries, dead letters); the
broker is stopped; then its directory is read twice. Part of ``make interop``; needs Java and Maven.
"""

from __future__ import annotations

import base64
import re
import shutil
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop.artifacts import (
    JAVA_OPENS,
    REFERENCE_VERSION,
    REFERENCE_VERSION_5,
    java,
    reference_classpath,
)
from tests.interop.cluster import make_topic
from tests.interop.conftest import ClientOf, Configure, available
from tests.interop.processes import Child, Event, wait_until
from tests.interop.test_send_and_receive import DELIVERY_LIMIT_S, SEND_LIMIT_S, bodies, read_back, send
from tests.log.plain_reader import PlainRecord, plain_hash, query_index, read_entries, read_queue, read_record

pytestmark = [pytest.mark.java_only, pytest.mark.trivet_only]

DATA_FILE_BYTES = 1 << 20
QUEUE_FILE_BYTES = 20 * 100
SLOTS, ENTRIES = 1_000, 20_000
TOPIC = "orders"
NOT_QUEUED = (4, 12)
"""Transaction bits of sysFlag of records that no ConsumeQueue names (`ConsumeQueue`)."""
OWN_TOPIC = "TRIVET_SYS_RAFT_LOG"


@dataclass(frozen=True, slots=True)
class Written:
    """A stopped node's directory, the node's id, and what its producers were told."""

    root: Path
    acknowledged: dict[str, tuple[int, int]]
    """Body -> queue and offset in `TOPIC`."""


@pytest.fixture
def written(client_of: ClientOf, configure: Configure) -> Written:
    cluster = configure(
        broker={
            "storage": {
                "data_file_bytes": DATA_FILE_BYTES,
                "consume_queue_file_bytes": QUEUE_FILE_BYTES,
                "index_file_slots": SLOTS,
                "index_file_entries": ENTRIES,
                "max_message_bytes": DATA_FILE_BYTES // 2,
            },
            "broker": {"transaction_timeout_ms": 500, "transaction_check_interval_ms": 200},
        }
    )
    client = client_of(cluster.name_server)
    make_topic(cluster, TOPIC, queues=3)
    consumer = client.start(
        "push",
        topic=TOPIC,
        group="refusing",
        fail_times=99,
        max_reconsume=1,
        retry_level=1,
        expression="refused",
    )
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    events = send(client, TOPIC, count=200, tags="red,green", size=300)
    events += send(client, TOPIC, count=20, mode="async", size=100_000, prefix="large-", uncompressed=True)
    acknowledged = {
        f"{'m' if i < 200 else 'large'}-{event['index']}": event for i, event in enumerate(events)
    }
    send(client, TOPIC, count=30, mode="batch", batch=10, prefix="batch-")
    send(client, TOPIC, count=4, prefix="refused-", tags="refused")
    send(client, TOPIC, count=3, prefix="soon-", delay_level=1)
    send(client, TOPIC, count=3, prefix="waits-", delay_level=18)
    send(client, TOPIC, count=3, prefix="timed-", delay_ms=1_500)
    send(client, TOPIC, count=3, prefix="later-", delay_sec=3_600)
    decided = {"commit": "commit-", "rollback": "rollback-", "unknown": "asked-"}
    for outcome, prefix in decided.items():
        sender = client.start(
            "transaction",
            topic=TOPIC,
            group="deciders",
            outcome=outcome,
            check_outcome="commit",
            count=3,
            prefix=prefix,
        )
        sender.wait_for("done", SEND_LIMIT_S)
        if outcome == "unknown":
            sender.wait_for("checked", DELIVERY_LIMIT_S, count=3)
        sender.stop()  # any producer of the group would be asked about the next ones
    consumer.wait_for("refused", DELIVERY_LIMIT_S, count=8)
    expected = {f"{prefix}-{i}" for prefix in ("soon", "timed", "commit", "asked") for i in range(3)}
    wait_until(
        lambda: expected <= set(bodies(read_back(client, TOPIC))), DELIVERY_LIMIT_S, "all that is due", 1
    )
    wait_until(
        lambda: len(bodies(read_back(client, "%DLQ%refusing"))) == 4, DELIVERY_LIMIT_S, "the dead letters", 1
    )
    client.stop_all()
    cluster.stop()
    places = {body: (event["queue"], event["offset"]) for body, event in acknowledged.items()}
    return Written(cluster.store, places)


def records_of(root: Path) -> list[PlainRecord]:
    return [read_record(entry.body) for entry in read_entries(root / "dledger-n0")]


@pytest.mark.slow
def test_what_was_written_is_read_by_others(written: Written, client_name: str, tmp_path: Path) -> None:
    """Both readers find every message at its place, the acknowledged ones where they were acknowledged."""
    records = records_of(written.root)
    check_with_the_plain_reader(written, records)
    version = REFERENCE_VERSION if client_name.startswith("java-4") else REFERENCE_VERSION_5
    check_with_rocketmqs_store(version, written.root, records, tmp_path)


def check_with_the_plain_reader(written: Written, records: list[PlainRecord]) -> None:
    topics = {record.topic for record in records}
    assert topics >= {
        TOPIC,
        OWN_TOPIC,
        "%RETRY%refusing",
        "%DLQ%refusing",
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_wheel_timer",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    }
    at = {record.physical_offset: record for record in records}
    queued = {
        (record.topic, record.queue_id, record.queue_offset): record
        for record in records
        if record.topic != OWN_TOPIC and record.sys_flag & 12 not in NOT_QUEUED
    }
    units = 0
    for topic in sorted(path.name for path in (written.root / "consumequeue").iterdir()):
        for queue in sorted(int(path.name) for path in (written.root / "consumequeue" / topic).iterdir()):
            for number, offset, size, tags_code in read_queue(written.root, topic, queue):
                record = at[offset]
                assert queued[topic, queue, number] is record
                assert record.size == size
                if topic not in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"):
                    assert tags_code == plain_hash(record.properties.get("TAGS", ""))
                units += 1
    assert units == len(queued), "a record has no unit in its ConsumeQueue"
    bodies_at = {
        (record.queue_id, record.queue_offset): record.body.rstrip(b".")
        for record in queued.values()
        if record.topic == TOPIC
    }
    for body, place in written.acknowledged.items():
        assert bodies_at[place] == body.encode()
    for record in queued.values():
        if record.topic == TOPIC:
            found = query_index(written.root, SLOTS, record.topic, record.properties["UNIQ_KEY"])
            assert record.physical_offset in found


def check_with_rocketmqs_store(version: str, root: Path, records: list[PlainRecord], tmp_path: Path) -> None:
    """The store's own recovery, then every queue by its ConsumeQueue, and every message by key and position."""
    with available():
        classpath = reference_classpath(version)
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    (copy / "lock").unlink(missing_ok=True)
    argv = [
        java(),
        "-Xmx384m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        *JAVA_OPENS,
        f"-Duser.home={tmp_path}",
        "-cp",
        classpath,
        "trivet.interop.OpenStore",
    ]
    argv += [str(copy), "n0", *map(str, (DATA_FILE_BYTES, QUEUE_FILE_BYTES, SLOTS, ENTRIES))]
    with Child(argv, log=tmp_path / "store.log", cwd=tmp_path) as reader:
        reader.finish(DELIVERY_LIMIT_S)
    (end,) = reader.of("end")
    last = records[-1]
    assert end["max_position"] == last.physical_offset + last.size
    assert end["min_position"] == 0

    found: dict[tuple[str, int], list[Event]] = defaultdict(list)
    for event in reader.of("message"):
        found[event["topic"], event["queue"]].append(event)
    expected: dict[tuple[str, int], list[PlainRecord]] = defaultdict(list)
    for record in records:
        if record.topic != OWN_TOPIC and record.sys_flag & 12 not in NOT_QUEUED:
            expected[record.topic, record.queue_id].append(record)
    assert sorted(found) == sorted(expected)
    for place, wanted in expected.items():
        assert [facts_of(event) for event in found[place]] == [facts(record) for record in wanted], place
        for event in found[place]:
            assert event["looked_up"], event
            assert event["found_by_key"] or "UNIQ_KEY" not in decoded(event["properties"]), event


def facts(record: PlainRecord) -> tuple[object, ...]:
    body = record.body if not record.sys_flag & 1 else b"(compressed)"
    properties = {name: value for name, value in record.properties.items() if value}
    return (
        record.queue_offset,
        record.physical_offset,
        record.store_time,
        record.sys_flag & 12,
        body,
        properties,
    )


def facts_of(event: Event) -> tuple[object, ...]:
    body = base64.b64decode(event["body"]) if not event["sys_flag"] & 1 else b"(compressed)"
    place = (event["offset"], event["position"], event["store_ms"], event["sys_flag"] & 12)
    return *place, body, decoded(event["properties"])


def decoded(properties: str) -> dict[str, str]:
    pairs = re.findall("(.*?)\x01(.*?)\x02", base64.b64decode(properties).decode(), re.DOTALL)
    return dict(pairs)

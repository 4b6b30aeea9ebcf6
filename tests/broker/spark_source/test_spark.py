"""The data source in Spark over real brokers: batches, streams, checkpoints, a dead leader, a deleted head."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import trio

from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.message import Message, MessageQueue
from broker.client.producing.producer import Producer
from broker.settings.tables import Settings
from broker.spark_source.offsets import from_json, to_json
from broker.spark_source.options import parse_options
from broker.spark_source.source import (
    NarrowedBatchReader,
    TopicBatchReader,
    TopicPartition,
    TopicStreamReader,
)
from broker.spark_source.topic_reader import Ends
from broker.tools.cluster.local import LocalCluster
from tests.cluster.support import LIMIT_S, QUEUES, TOPIC, ready_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.slow]


async def send(cluster: LocalCluster, first: int, count: int) -> None:
    """Messages with the numbers as bodies, spread over the queues."""
    async with Producer(cluster.name_server_address, group="P", send_timeout_s=60.0) as producer:

        async def some(numbers: range) -> None:
            for number in numbers:
                body = b"%d" % number
                await producer.send(
                    Message(TOPIC, body, tags="even" if number % 2 == 0 else None, keys=("k", str(number)))
                )

        async with trio.open_nursery() as nursery:
            for lane in range(16):
                nursery.start_soon(some, range(first + lane, first + count, 16))


def options(cluster: LocalCluster, **changes: str) -> dict[str, str]:
    return {"nameServers": cluster.name_server_address, "subscribe": TOPIC, **changes}


async def in_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    """Spark's calls block."""
    return await trio.to_thread.run_sync(partial(call, *arguments))


def numbers_of(frame: DataFrame) -> list[int]:
    return sorted(int(bytes(row["body"])) for row in frame.select("body").collect())


async def test_a_batch_has_every_message_once(spark: SparkSession, tmp_path: Path) -> None:
    async with ready_cluster(tmp_path) as cluster:
        await send(cluster, 0, 1000)

        def load(**changes: str) -> DataFrame:
            return spark.read.format("trivet").options(**options(cluster, **changes)).load()

        def check() -> None:
            # In a thread, `rdd` knows no setting of a session, and Spark takes its own defaults.
            frame = load(minPartitions="6", pushFilters="false")
            assert frame.rdd.getNumPartitions() >= 6
            rows = frame.collect()
            assert sorted(int(bytes(row["body"])) for row in rows) == list(range(1000))
            assert len({(row["broker"], row["queue"], row["offset"]) for row in rows}) == 1000
            for row in rows:
                number = int(bytes(row["body"]))
                assert (row["topic"], row["broker"]) == (TOPIC, cluster.layout.options.group)
                assert row["tags"] == ("even" if number % 2 == 0 else None)
                assert row["keys"] == ["k", str(number)]
                assert row["properties"]["KEYS"] == f"k {number}"
                assert row["message_id"] == row["properties"]["UNIQ_KEY"]
                # The group's time (broker/replica/group_clock.py) may be a little behind the producer's clock.
                assert -1 < (row["timestamp"] - row["born_timestamp"]).total_seconds() < LIMIT_S
            # A part of each queue, and columns of one's own choice.
            ends = Counter(row["queue"] for row in rows)
            starts = {str(queue): 3 for queue in range(QUEUES)}
            stops = {str(queue): ends[queue] - 2 for queue in range(QUEUES)}
            chosen = {"startingOffsets": {TOPIC: starts}, "endingOffsets": {TOPIC: stops}}
            texts = {name: msgspec.json.encode(value).decode() for name, value in chosen.items()}
            part = (
                spark.read.format("trivet")
                .options(**options(cluster, **texts))
                .schema("queue INT, offset BIGINT")
            )
            seen = Counter(row["queue"] for row in part.load().where("offset >= 3").collect())
            assert seen == {queue: ends[queue] - 5 for queue in range(QUEUES)}
            assert load(startingTimestamp="99999999999999").count() == 0
            # A pattern finds the topic and none of the system's.
            by_pattern = {"nameServers": cluster.name_server_address, "subscribePattern": ".*"}
            assert spark.read.format("trivet").options(**by_pattern).load().count() == 1000
            far = msgspec.json.encode({TOPIC: dict.fromkeys(starts, 9999)}).decode()
            with pytest.raises(Exception, match=r"offset 9999 of .* is behind its end"):
                load(startingOffsets=far).count()
            with pytest.raises(Exception, match="is no column"):
                spark.read.format("trivet").options(**options(cluster)).schema("body STRING").load().count()

        await in_thread(check)


async def test_a_leader_killed_between_two_slices(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a task does, with the kill at a known moment."""
    monkeypatch.setattr("broker.spark_source.topic_reader.SLICE_MESSAGES", 50)
    monkeypatch.setattr("broker.spark_source.topic_reader.PULL_MESSAGES", 20)
    async with ready_cluster(tmp_path) as cluster:
        await send(cluster, 0, 1000)
        from pyspark.sql.types import BinaryType, StructType

        schema = StructType().add("body", BinaryType())
        reader = TopicBatchReader(parse_options(options(cluster), streaming=False), schema)
        parts = await in_thread(reader.partitions)
        assert len(parts) == QUEUES
        found: list[int] = []
        leader = await cluster.leader()
        for number, part in enumerate(parts):
            assert isinstance(part, TopicPartition)
            batches = reader.read(part)
            first = await in_thread(next, batches)
            if number == 1:
                await cluster.kill(leader.id)
            rest = await in_thread(list, batches)
            assert len(rest) >= 1
            found += [int(body) for batch in (first, *rest) for body in batch.column(0).to_pylist()]
        assert sorted(found) == list(range(1000))


async def test_a_stream_goes_on_from_its_checkpoint_after_the_leader_was_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    async with ready_cluster(tmp_path) as cluster:
        await send(cluster, 0, 600)

        def stream(**trigger: Any) -> list[int]:
            """Runs a query over the same checkpoint; returns the sizes of its micro-batches."""
            chosen = options(cluster, startingOffsets="earliest", maxOffsetsPerTrigger="250")
            frame = spark.readStream.format("trivet").options(**chosen).load()
            query = (
                frame.writeStream.format("parquet")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(**trigger)
                .start(str(tmp_path / "out"))
            )
            assert query.awaitTermination(int(LIMIT_S)), "the query does not end"
            return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

        assert await in_thread(partial(stream, availableNow=True)) == [250, 250, 100]
        leader = await cluster.leader()
        await cluster.kill(leader.id)
        await send(cluster, 600, 400)
        assert await in_thread(partial(stream, availableNow=True)) == [250, 150]
        # The last batch's commit is forgotten, as if the driver had died: the same offsets are read again, not others.
        last = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)

        def again() -> int:
            seen: list[int] = []
            chosen = options(cluster, startingOffsets="earliest", maxOffsetsPerTrigger="250")
            query = (
                spark.readStream.format("trivet")
                .options(**chosen)
                .load()
                .writeStream.foreachBatch(lambda frame, _: seen.append(frame.count()))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(int(LIMIT_S))
            assert seen == [150]
            return len(seen)

        frame = await in_thread(spark.read.parquet, str(tmp_path / "out"))
        assert await in_thread(numbers_of, frame) == list(range(1000))
        assert await in_thread(again) == 1


async def test_filters_narrow_what_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """Of 400 messages Spark's plan is given those that filters leave, not all of them; the answer is the same."""
    async with ready_cluster(tmp_path) as cluster:
        await send(cluster, 0, 400)

        def check() -> None:
            whole = spark.read.format("trivet").options(**options(cluster)).load()
            everything = whole.collect()
            frame = spark.createDataFrame(everything, whole.schema)
            from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual
            from pyspark.sql.types import BinaryType, StructType

            times = sorted(row["timestamp"] for row in everything)
            middle, far = times[len(times) // 2], times[-1] + timedelta(hours=1)
            conditions = {
                "queue = 1 AND offset >= 5 AND offset < 9": 4,
                "queue IN (0, 2) AND tags = 'even'": None,
                "tags IN ('even', 'other') AND offset > 20": None,
                "tags IS NULL": 200,
                "tags = 'other'": 0,
                f"timestamp >= TIMESTAMP'{middle}'": None,
                f"timestamp >= TIMESTAMP'{far}'": 0,
                f"topic = '{TOPIC}' AND broker = 'nobody'": 0,
            }
            for condition, count in conditions.items():
                expected = {(row["queue"], row["offset"]) for row in frame.where(condition).collect()}
                fresh = spark.read.format("trivet").options(**options(cluster)).load()
                found = [(row["queue"], row["offset"]) for row in fresh.where(condition).collect()]
                assert sorted(found) == sorted(expected), condition
                assert count is None or len(found) == count
            # Filters on queues and offsets leave no more to read than that.
            schema = StructType().add("body", BinaryType())
            reader = NarrowedBatchReader(parse_options(options(cluster), streaming=False), schema)
            pushed: list[Filter] = [EqualTo(("queue",), 1), GreaterThanOrEqual(("offset",), 5)]
            assert reader.pushFilters(pushed) == []
            (part,) = reader.partitions()
            assert isinstance(part, TopicPartition)
            assert (part.part.queue.queue_id, part.part.start) == (1, 5)
            by_option = spark.read.format("trivet").options(**options(cluster, tags="even || other"))
            assert by_option.load().count() == 200

        await in_thread(check)


async def test_a_stream_is_limited_by_bytes_and_waits_for_a_minimum(
    spark: SparkSession, tmp_path: Path
) -> None:
    async with ready_cluster(tmp_path) as cluster:
        await send(cluster, 0, 400)

        def sizes(name: str, **changes: str) -> list[int]:
            frame = spark.readStream.format("trivet").options(
                **options(cluster, startingOffsets="earliest", **changes)
            )
            query = (
                frame.load()
                .writeStream.format("noop")
                .option("checkpointLocation", str(tmp_path / name))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(int(LIMIT_S)), "the query does not end"
            return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]

        # A message takes some 200 bytes in the log.
        by_bytes = await in_thread(partial(sizes, "bytes", maxBytesPerTrigger="20000"))
        assert sum(by_bytes) == 400
        assert 3 <= len(by_bytes) <= 10
        assert max(by_bytes) <= 160
        assert await in_thread(partial(sizes, "tags", tags="even", maxOffsetsPerTrigger="1000")) == [200]
        # A query that ends when it has read what is there waits for nothing.
        assert await in_thread(partial(sizes, "least", minOffsetsPerTrigger="1000")) == [400]


def test_a_stream_with_too_few_messages_waits_until_it_has_waited_long_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {"nameServers": "127.0.0.1:1", "subscribe": TOPIC, "minOffsetsPerTrigger": "10"}
    from pyspark.sql.streaming.datasource import ReadMinRows
    from pyspark.sql.types import StringType, StructType

    schema = StructType().add("topic", StringType())
    reader = TopicStreamReader(parse_options({**given, "maxTriggerDelayMs": "5000"}, streaming=True), schema)
    queue = MessageQueue(TOPIC, "g", 0)
    state: dict[str, Any] = {"end": 3, "now": 100.0}
    monkeypatch.setattr(reader, "_ends", lambda: Ends({queue: 0}, {queue: state["end"]}))
    monkeypatch.setattr("broker.spark_source.source.time.monotonic", lambda: state["now"])
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(10)

    def after(start: int) -> int:
        found = reader.latestOffset(to_json({queue: start}), limit)
        return from_json(found)[queue]

    assert after(0) == 3  # the first micro-batch has what is there
    state |= {"end": 12, "now": 104.9}
    assert after(3) == 3
    state["end"] = 13
    assert after(3) == 13
    state |= {"end": 14, "now": 109.8}
    assert after(13) == 13
    state["now"] = 109.9
    assert after(13) == 14


async def test_a_stream_stores_the_offsets_of_its_group_if_it_is_told_to(
    spark: SparkSession, tmp_path: Path
) -> None:
    async with ready_cluster(tmp_path) as cluster:
        await send(cluster, 0, 100)

        def stream(**changes: str) -> None:
            chosen = options(cluster, startingOffsets="earliest", maxOffsetsPerTrigger="50", **changes)
            frame = spark.readStream.format("trivet").options(**chosen).load()
            query = (
                frame.writeStream.format("noop")
                .option("checkpointLocation", str(tmp_path / f"checkpoint-{changes['group']}"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(int(LIMIT_S)), "the query does not end"

        await in_thread(partial(stream, group="seen", commitOffsets="true"))
        await in_thread(partial(stream, group="unseen"))
        for group, is_stored in (("seen", True), ("unseen", False)):
            async with PullConsumer(cluster.name_server_address, group=group) as consumer:
                queues = await consumer.queues(TOPIC)
                ends = [await consumer.max_offset(queue) for queue in queues]
                assert sum(ends) == 100
                stored = [await consumer.committed(queue) or 0 for queue in queues]
                assert stored == (ends if is_stored else [0] * QUEUES)


def _deletes_soon(settings: Settings) -> Settings:
    retention = msgspec.structs.replace(
        settings.retention,
        interval_ms=100,
        disk_clean_percent=10,
        disk_force_percent=11,
        disk_full_percent=99,
    )
    storage = msgspec.structs.replace(
        settings.storage, data_file_bytes=128 * 1024, max_message_bytes=16 * 1024
    )
    return msgspec.structs.replace(settings, retention=retention, storage=storage)


async def test_a_deleted_head_fails_the_read_unless_told_otherwise(
    spark: SparkSession, tmp_path: Path
) -> None:
    usage = shutil.disk_usage(tmp_path)
    if 1 - usage.free / usage.total < 0.12:
        pytest.skip("the disk is too empty for retention to delete by usage")
    async with ready_cluster(tmp_path, change=_deletes_soon) as cluster:
        async with (
            Producer(cluster.name_server_address, group="P", send_timeout_s=60.0) as producer,
            PullConsumer(cluster.name_server_address, group="C") as consumer,
        ):
            queue = MessageQueue(TOPIC, cluster.layout.options.group, 0)
            while await consumer.min_offset(queue) < 20:
                await producer.send(Message(TOPIC, bytes(4096)), queue=queue)
            end = await consumer.max_offset(queue)
        starts = {str(number): 0 for number in range(QUEUES)}
        stops = {str(number): end if number == 0 else -1 for number in range(QUEUES)}
        chosen = options(
            cluster,
            startingOffsets=msgspec.json.encode({TOPIC: starts}).decode(),
            endingOffsets=msgspec.json.encode({TOPIC: stops}).decode(),
        )

        def offsets(**changes: str) -> list[int]:
            frame = spark.read.format("trivet").options(**chosen, **changes).load()
            return [row["offset"] for row in frame.where("queue = 0").orderBy("offset").collect()]

        with pytest.raises(Exception, match=r"messages from 0 to \d+ are lost: the queue begins at"):
            await in_thread(offsets)
        left = await in_thread(partial(offsets, failOnDataLoss="false"))
        assert left == list(range(left[0], end))
        assert left[0] >= 20

"""The sink in Spark over real brokers: what is written again is stored once, whoever dies meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from broker.client.admin import AdminClient
from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.message import MessageView
from broker.tools.cluster.local import LocalCluster
from tests.broker.spark_source.test_spark import send
from tests.cluster.support import LIMIT_S, TOPIC, ready_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.slow]

OUT = "out"


async def in_spark(spark: SparkSession, call: Callable[[], Any]) -> Any:
    """Calls in a thread. Spark finds a Python sink in a thread only once it has made a DataFrame there."""

    def run() -> Any:
        spark.createDataFrame([(1,)], "a int")
        return call()

    return await trio.to_thread.run_sync(run)


async def make_out(cluster: LocalCluster) -> None:
    async with AdminClient(cluster.name_server_address) as admin:
        await admin.create_topic(OUT, queues=4)


async def stored(cluster: LocalCluster) -> list[MessageView]:
    """All messages of the topic that is written."""
    found: list[MessageView] = []
    async with PullConsumer(cluster.name_server_address, group="C") as consumer:
        queues = await consumer.queues(OUT)
        ends = {queue: await consumer.max_offset(queue) for queue in queues}
        consumer.assign(dict.fromkeys(queues, 0))
        while len(found) < sum(ends.values()):
            found += await consumer.poll(timeout_s=1.0)
    return found


async def bodies(cluster: LocalCluster) -> Counter[bytes]:
    return Counter(message.body for message in await stored(cluster))


def into(cluster: LocalCluster, **options: str) -> dict[str, str]:
    return {"nameServers": cluster.name_server_address, **options}


async def test_a_batch_that_is_written_again_is_stored_once(spark: SparkSession, tmp_path: Path) -> None:
    async with ready_cluster(tmp_path) as cluster:
        await make_out(cluster)

        def write(reverse: bool, **options: str) -> None:
            from pyspark.sql.functions import expr

            frame = spark.range(0, 300, 1, 3).selectExpr(
                f"'{OUT}' as topic",
                "cast(id % 100 as string) as body",  # rows that are equal are rows of their own
                "if(id % 2 = 0, 'even', null) as tags",
                "array('k', cast(id % 100 as string)) as keys",
                "map('n', cast(id % 100 as string)) as properties",
                "id",
            )
            frame = frame.sortWithinPartitions(expr("-id" if reverse else "id")).drop("id")
            frame.write.format("trivet").mode("append").options(**into(cluster, **options)).save()

        await in_spark(spark, partial(write, False, writeId="daily", writeNumber="3"))
        first = await stored(cluster)
        assert Counter(message.body for message in first) == {b"%d" % number: 3 for number in range(100)}
        for message in first:
            number = message.body.decode()
            assert message.tags == ("even" if int(number) % 2 == 0 else None)
            assert (message.keys, message.properties["n"]) == (["k", number], number)
        await in_spark(spark, partial(write, True, writeId="daily", writeNumber="3"))
        await in_spark(spark, partial(write, True, writeId="daily", writeNumber="2"))
        assert len(await stored(cluster)) == 300
        await in_spark(spark, partial(write, False, writeId="daily", writeNumber="4"))
        await in_spark(spark, partial(write, False))
        assert await bodies(cluster) == {b"%d" % number: 9 for number in range(100)}


async def test_rows_that_cannot_be_messages_and_wrong_options_are_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    async with ready_cluster(tmp_path) as cluster:
        await make_out(cluster)

        def write(columns: tuple[str, ...], mode: str = "append", **options: str) -> None:
            frame = spark.range(1).selectExpr(*columns)
            frame.write.format("trivet").mode(mode).options(**into(cluster, **options)).save()

        for columns, mode, options, told in [
            (("'' as body",), "append", {"topic": OUT}, "RowError.*its body is null or empty"),
            (("'a' as body", "'a\x01b' as tags"), "append", {"topic": OUT}, "RowError.*must not contain"),
            (("'a' as body", "cast(null as string) as topic"), "append", {}, "RowError.*its topic is null"),
            (("'a' as body",), "append", {"topic": "unknown"}, "WriteError.*knows no such topic"),
            (("'a' as body",), "append", {}, "OptionError.*the option topic or a column topic"),
            (("'a' as value",), "append", {"topic": OUT}, "OptionError.*column value is not one"),
            (("1 as body",), "append", {"topic": OUT}, "OptionError.*binary or string is wanted"),
            (("'a' as body",), "append", {"topic": OUT, "writeNumber": "1"}, "goes with the option writeId"),
            (("'a' as body",), "overwrite", {"topic": OUT}, "OptionError.*only be appended"),
        ]:
            with pytest.raises(Exception, match=f"(?s){told}"):
                await in_spark(spark, partial(write, columns, mode, **options))
        assert not await stored(cluster)


async def test_delayed_rows_come_once_when_they_are_due(spark: SparkSession, tmp_path: Path) -> None:
    async with ready_cluster(tmp_path) as cluster:
        await make_out(cluster)

        def write() -> None:
            columns = (
                "cast(id as string) as body",
                "if(id % 2 = 0, 1, 0) as delay_level",
                "if(id % 2 = 1, now() + interval 1 second, null) as deliver_at",
                "cast(id as string) as row_id",  # the time of delivery is another one each time
            )
            frame = spark.range(10).selectExpr(*columns)
            options = into(cluster, topic=OUT, writeId="later")
            frame.write.format("trivet").mode("append").options(**options).save()

        await in_spark(spark, write)
        await in_spark(spark, write)
        with trio.fail_after(LIMIT_S):
            while len(await stored(cluster)) < 10:  # noqa: ASYNC110 - the topic is asked
                await trio.sleep(0.2)
        assert await bodies(cluster) == {b"%d" % number: 1 for number in range(10)}


@pytest.mark.in_turn
async def test_a_query_whose_leader_dies_and_that_is_started_again_stores_each_row_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    count = 800
    checkpoint = tmp_path / "checkpoint"
    async with ready_cluster(tmp_path) as cluster:
        await make_out(cluster)
        await send(cluster, 0, count)

        def start(change: Callable[[DataFrame], DataFrame] = lambda frame: frame) -> StreamingQuery:
            source = into(cluster, subscribe=TOPIC, startingOffsets="earliest", maxOffsetsPerTrigger="200")
            frame = spark.readStream.format("trivet").options(**source).load().select("body", "tags")
            return (
                change(frame)
                .writeStream.format("trivet")
                .options(**into(cluster, topic=OUT))
                .option("checkpointLocation", str(checkpoint))
                .trigger(availableNow=True)
                .start()
            )

        def fails_in_the_middle(frame: DataFrame) -> DataFrame:
            """A task of the third micro-batch fails when it has sent most of its rows."""
            return frame.where(
                "if(cast(cast(body as string) as int) % 200 = 199 and cast(cast(body as string) as int)"
                " > 400, raise_error('the disk of a worker'), true)"
            )

        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
        try:
            query = await in_spark(spark, partial(start, fails_in_the_middle))
            # The leader dies while micro-batches are being written.
            with trio.fail_after(LIMIT_S):
                while not await stored(cluster):  # noqa: ASYNC110 - the topic is asked
                    await trio.sleep(0.05)
            leader = await cluster.leader()
            await cluster.kill(leader.id)
            with pytest.raises(Exception, match="the disk of a worker"):
                await trio.to_thread.run_sync(query.awaitTermination, int(LIMIT_S))
            half = await bodies(cluster)
            assert 0 < len(half) < count
            assert set(half.values()) == {1}

            query = await in_spark(spark, start)
            assert await trio.to_thread.run_sync(query.awaitTermination, int(LIMIT_S))
            everything = {b"%d" % number: 1 for number in range(count)}
            assert await bodies(cluster) == everything

            # The last commit is forgotten, as if the driver had died before it: the micro-batch is written again.
            last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
            last.unlink()
            last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
            query = await in_spark(spark, start)
            assert await trio.to_thread.run_sync(query.awaitTermination, int(LIMIT_S))
            assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
            assert await bodies(cluster) == everything
        finally:
            spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")

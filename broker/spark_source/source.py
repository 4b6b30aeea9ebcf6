"""The classes that Spark calls: the data source, its batch reader and its stream reader.

Planning happens on the driver, reading in executors, each in a Python process without an event loop; so every step is
a ``trio.run`` of its own. A range is read in slices of some MiB, one ``trio.run`` each: a slice is what a task holds in
memory, a task that is stopped early (``LIMIT``) leaves no loop behind, and a new connection per slice costs a few
milliseconds of the hundred that decoding a slice takes.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from broker.client.message import MessageQueue
from broker.spark_source.common_options import OptionError
from broker.spark_source.narrowing import Narrowing
from broker.spark_source.offsets import (
    Loss,
    Offsets,
    OffsetsJson,
    QueueRange,
    from_json,
    left_of,
    limited,
    new_losses,
    points_of,
    ranges,
    split,
    to_json,
)
from broker.spark_source.options import Point, SourceOptions, parse_options
from broker.spark_source.rows import SCHEMA, check_columns, to_batch
from broker.spark_source.sink import TopicBatchWriter, TopicStreamWriter
from broker.spark_source.sink_options import parse_sink_options
from broker.spark_source.topic_reader import Ends, Slice, TopicReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

logger = logging.getLogger("trivet.spark")
Result = TypeVar("Result")
LOSSES_NAMED: Final = 5
"""The most losses that an error names."""


class DataLossError(RuntimeError):
    """Messages that were to be read are gone, and the option failOnDataLoss is true."""


@dataclass
class TopicPartition(InputPartition):
    """A range of one queue: what one task reads."""

    part: QueueRange

    def __init__(self, part: QueueRange) -> None:
        super().__init__(None)
        self.part = part


class TrivetDataSource(DataSource):
    """The format ``trivet``. docs/spark.md describes its options and its schema."""

    @classmethod
    def name(cls) -> str:
        return "trivet"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(self.options, streaming=False)
        return (NarrowedBatchReader if options.push_filters else TopicBatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return TopicStreamReader(parse_options(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return TopicBatchWriter(
            parse_sink_options(self.options, streaming=False, overwrite=overwrite), schema
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        return TopicStreamWriter(
            parse_sink_options(self.options, streaming=True, overwrite=overwrite), schema
        )


def register(spark: SparkSession) -> None:
    """Make ``format("trivet")`` known to the session, and send the code to executors in other processes."""
    from broker.spark_source.shipping import ship_rooms

    ship_rooms(spark)
    # Spark has this off, and then refuses to read from a source that takes filters.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(TrivetDataSource)


class _Reading:
    """The common part of both readers: the options, the columns that are wanted, and the reading of one range."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_columns(schema)
        self._options = options
        self._schema = schema
        self._tags = options.tags

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of the partition in order. Raises DataLossError, ReadError, DamagedMessage."""
        from pyspark.sql.pandas.types import to_arrow_schema

        if not isinstance(partition, TopicPartition):
            return  # Spark's stand-in for a plan without partitions
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        part = partition.part
        while part.start < part.stop:
            found = _with_reader(self._options, partial(_read_slice, part, self._tags))
            _report(found.losses, self._options)
            if found.messages:
                yield to_batch(found.messages, arrow)
            part = QueueRange(part.queue, found.next_offset, part.stop)


async def _read_slice(part: QueueRange, tags: frozenset[str], reader: TopicReader) -> Slice:
    return await reader.read_slice(part, tags)


class TopicBatchReader(_Reading, DataSourceReader):
    """Reads from the starting to the ending offsets, both fixed when the query is planned, what its filters leave."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        wanted, of_options = self._narrowing.tags, self._options.tags
        if wanted is not None:
            self._tags = wanted & of_options if of_options else wanted
            # To the brokers no tag at all means every message.
            if not self._tags:
                return []
        parts = _with_reader(self._options, partial(_plan_batch, self._options, self._narrowing))
        return [TopicPartition(part) for part in split(parts, self._options.min_partitions)]


class NarrowedBatchReader(TopicBatchReader):
    """A reader of a batch that takes filters. Spark refuses to read from one where its setting for filters is off."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        """Narrow the read; returns the filters that Spark still has to apply."""
        return [one for one in filters if not self._narrowing.add(one)]


async def _plan_batch(options: SourceOptions, narrowing: Narrowing, reader: TopicReader) -> list[QueueRange]:
    queues = await reader.queues()
    wanted = [queue for queue in queues if narrowing.takes(queue)]
    starting, ending = points_of(options.starting, queues), points_of(options.ending, queues)
    ends = await reader.ends(wanted)
    starts = await reader.resolve({queue: starting[queue] for queue in wanted}, ends)
    stops = await reader.resolve({queue: ending[queue] for queue in wanted}, ends)
    _check_within(stops, ends, options.ending.option)
    starts = _checked_starts(starts, ends, options)
    for bounds, time_ms, nearer in ((starts, narrowing.first_ms, max), (stops, narrowing.stop_ms, min)):
        if time_ms is not None:
            at = await reader.resolve(dict.fromkeys(wanted, Point("time", time_ms)), ends)
            bounds |= {queue: nearer(bounds[queue], at[queue]) for queue in wanted}
    parts = [narrowing.within(part) for part in ranges(starts, stops)]
    return [part for part in parts if part.start < part.stop]


def _checked_starts(starts: Offsets, ends: Ends, options: SourceOptions) -> Offsets:
    """Return the starts, moved to the first kept message where that is later; the messages between are a loss.

    Raises OptionError for a start behind its queue's end, DataLossError.
    """
    _check_within(starts, ends, options.starting.option)
    _report(new_losses(starts, ends.earliest, ends.latest), options)
    return {queue: max(start, ends.earliest[queue]) for queue, start in starts.items()}


def _check_within(offsets: Mapping[MessageQueue, int], ends: Ends, option: str) -> None:
    for queue, offset in offsets.items():
        end = ends.latest[queue]
        if offset > end:
            raise OptionError(
                f"option {option}: offset {offset} of {queue.topic}/{queue.broker_name}:{queue.queue_id} "
                f"is behind its end, {end}"
            )


class TopicStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on from where the last micro-batch ended. Offsets in the checkpoint: `offsets.to_json`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: Offsets | None = None
        self._latest_batch_s: float | None = None
        """The time at which a micro-batch was planned last, on the monotonic clock."""
        self._stored: OffsetsJson | None = None
        """The offsets that the consumer group has, where this reader has stored them."""

    def initialOffset(self) -> OffsetsJson:  # noqa: N802
        """Return the offsets at which a new query begins. Raises OptionError, DataLossError, ReadError."""
        return to_json(_with_reader(self._options, partial(_first_offsets, self._options)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options set; of several the first, as `latestOffset` looks at all of them
        itself."""
        limits = self._options.limits
        if limits.most_messages is not None:
            return ReadMaxRows(limits.most_messages)
        if limits.most_bytes is not None:
            return ReadMaxBytes(limits.most_bytes)
        return ReadAllAvailable() if limits.least_messages is None else ReadMinRows(limits.least_messages)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the ends that the queues have now: the query reads up to them. Raises ReadError."""
        self._target = self._ends().latest

    def latestOffset(self, start: OffsetsJson, limit: ReadLimit) -> OffsetsJson:  # noqa: N802
        """Return the offsets at which the next micro-batch ends. Raises DataLossError, ReadError."""
        self._store(start)
        starts, ends = from_json(start), self._ends()
        _report(new_losses(starts, ends.earliest, ends.latest), self._options)
        latest = ends.latest
        if self._target is not None:
            # A queue made again after the target was fixed ends where it ends now.
            latest = {queue: min(self._target.get(queue, 0), end) for queue, end in latest.items()}
        if isinstance(limit, ReadAllAvailable):
            return to_json(latest)
        if self._waits_for_more(sum(left_of(starts, latest).values())):
            return start
        most = self._options.limits.most_messages
        sizes = self._sizes(starts, Ends(ends.earliest, latest))
        return to_json(limited(starts, latest, most, sizes, self._options.limits.most_bytes))

    def _waits_for_more(self, available: int) -> bool:
        """Tell whether there are too few messages for a micro-batch, and time to wait. The first one never waits, and
        neither does a query that ends when it has read what is there."""
        limits, now_s = self._options.limits, time.monotonic()
        waited_s = math.inf if self._latest_batch_s is None else now_s - self._latest_batch_s
        if (
            limits.least_messages is not None
            and self._target is None
            and available < limits.least_messages
            and waited_s < limits.longest_wait_s
        ):
            return True
        self._latest_batch_s = now_s
        return False

    def _sizes(self, starts: Offsets, ends: Ends) -> dict[MessageQueue, float]:
        """The bytes of a message of each queue that has any, by those that come next; none without a limit by
        bytes."""
        if self._options.limits.most_bytes is None:
            return {}

        async def ask(reader: TopicReader) -> dict[MessageQueue, float]:
            return {
                queue: await reader.bytes_per_offset(queue, max(starts.get(queue, 0), ends.earliest[queue]))
                for queue, count in left_of(starts, ends.latest).items()
                if count
            }

        return _with_reader(self._options, ask)

    def reportLatestOffset(self) -> OffsetsJson | None:  # noqa: N802
        """Return the ends of all queues, for the query's progress. Raises ReadError."""
        return to_json(self._ends().latest)

    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> list[InputPartition]:
        """Return the ranges of a micro-batch: the same ones for the same offsets, also after a restart."""
        parts = split(ranges(from_json(start), from_json(end)), self._options.min_partitions)
        return [TopicPartition(part) for part in parts]

    def _store(self, offsets: OffsetsJson) -> None:
        """Store where the stream is as the consumer group's offsets, if the option commitOffsets says so.

        Called when Spark asks for the next offsets: by then it has committed the micro-batch before, and it asks even
        if nothing comes. Its call of `commit` would come a micro-batch later. Only tools that tell lags look at these
        offsets, so a failure is only a warning.
        """
        if not self._options.commit_offsets or offsets == self._stored:
            return

        async def store(reader: TopicReader) -> list[str]:
            return await reader.commit(from_json(offsets))

        failures = _with_reader(self._options, store)
        for failure in failures:
            logger.warning("offset of consumer group %s not stored: %s", self._options.group, failure)
        self._stored = None if failures else offsets

    def _ends(self) -> Ends:
        async def ask(reader: TopicReader) -> Ends:
            return await reader.ends(await reader.queues())

        return _with_reader(self._options, ask)


async def _first_offsets(options: SourceOptions, reader: TopicReader) -> Offsets:
    queues = await reader.queues()
    points = points_of(options.starting, queues)
    ends = await reader.ends(queues)
    return _checked_starts(await reader.resolve(points, ends), ends, options)


def _with_reader(options: SourceOptions, ask: Callable[[TopicReader], Awaitable[Result]]) -> Result:
    """Call ``ask`` in an event loop and with a client of its own, and return its result."""

    async def main() -> Any:
        async with TopicReader(options) as reader:
            return await ask(reader)

    response: Result = trio.run(main)
    return response


def _report(losses: list[Loss], options: SourceOptions) -> None:
    """Log a warning for each loss. Raises DataLossError instead if the option failOnDataLoss is true."""
    if not losses:
        return
    if options.fail_on_data_loss:
        more = f"; and {len(losses) - LOSSES_NAMED} more" if len(losses) > LOSSES_NAMED else ""
        named = "; ".join(str(loss) for loss in losses[:LOSSES_NAMED])
        raise DataLossError(f"{named}{more} (the option failOnDataLoss=false reads what is left)")
    for loss in losses:
        logger.warning("%s", loss)

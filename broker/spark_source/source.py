"""The classes that Spark calls: the data source, its batch reader and its stream reader.

Planning happens on the driver, reading in executors, each in a Python process without an event loop; so every step is
a ``trio.run`` of its own. A range is read in slices of some MiB, one ``trio.run`` each: a slice is what a task holds in
memory, a task that is stopped early (``LIMIT``) leaves no loop behind, and a new connection per slice costs a few
milliseconds of the hundred that decoding a slice takes.
"""

from __future__ import annotations

import logging
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
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from broker.client.message import MessageQueue
from broker.spark_source.common_options import OptionError
from broker.spark_source.offsets import (
    Loss,
    Offsets,
    OffsetsJson,
    QueueRange,
    from_json,
    limited,
    new_losses,
    points_of,
    ranges,
    split,
    to_json,
)
from broker.spark_source.options import SourceOptions, parse_options
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
        return TopicBatchReader(parse_options(self.options, streaming=False), schema)

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
    from broker.spark_source.shipping import ship

    ship(spark)
    spark.dataSource.register(TrivetDataSource)


class _Reading:
    """The common part of both readers: the options, the columns that are wanted, and the reading of one range."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_columns(schema)
        self._options = options
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of the partition in order. Raises DataLossError, ReadError, DamagedMessage."""
        from pyspark.sql.pandas.types import to_arrow_schema

        if not isinstance(partition, TopicPartition):
            return  # Spark's stand-in for a plan without partitions
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        part = partition.part
        while part.start < part.stop:
            found = _with_reader(self._options, partial(_read_slice, part))
            _report(found.losses, self._options)
            if found.messages:
                yield to_batch(found.messages, arrow)
            part = QueueRange(part.queue, found.next_offset, part.stop)


async def _read_slice(part: QueueRange, reader: TopicReader) -> Slice:
    return await reader.read_slice(part)


class TopicBatchReader(_Reading, DataSourceReader):
    """Reads from the starting to the ending offsets, both fixed when the query is planned."""

    def partitions(self) -> list[InputPartition]:
        parts = _with_reader(self._options, partial(_plan_batch, self._options))
        return [TopicPartition(part) for part in split(parts, self._options.min_partitions)]


async def _plan_batch(options: SourceOptions, reader: TopicReader) -> list[QueueRange]:
    queues = await reader.queues()
    starting, ending = points_of(options.starting, queues), points_of(options.ending, queues)
    ends = await reader.ends(queues)
    starts, stops = await reader.resolve(starting, ends), await reader.resolve(ending, ends)
    _check_within(stops, ends, options.ending.option)
    return ranges(_checked_starts(starts, ends, options), stops)


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
        self._stored: OffsetsJson | None = None
        """The offsets that the group has, where this reader has stored them."""

    def initialOffset(self) -> OffsetsJson:  # noqa: N802
        """Return the offsets at which a new query begins. Raises OptionError, DataLossError, ReadError."""
        return to_json(_with_reader(self._options, partial(_first_offsets, self._options)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the option maxOffsetsPerTrigger sets."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

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
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else sum(latest.values())
        return to_json(limited(starts, latest, most))

    def reportLatestOffset(self) -> OffsetsJson | None:  # noqa: N802
        """Return the ends of all queues, for the query's progress. Raises ReadError."""
        return to_json(self._ends().latest)

    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> list[InputPartition]:
        """Return the ranges of a micro-batch: the same ones for the same offsets, also after a restart."""
        parts = split(ranges(from_json(start), from_json(end)), self._options.min_partitions)
        return [TopicPartition(part) for part in parts]

    def _store(self, offsets: OffsetsJson) -> None:
        """Store where the stream is as the group's offsets, if the option commitOffsets says so.

        Spark asks for what comes next when it has committed what came before, also if nothing does; its call of
        `commit` is later by a micro-batch. Only tools that tell lags look at these offsets: a failure is a warning.
        """
        if not self._options.commit_offsets or offsets == self._stored:
            return

        async def store(reader: TopicReader) -> list[str]:
            return await reader.commit(from_json(offsets))

        failures = _with_reader(self._options, store)
        for failure in failures:
            logger.warning("offset of group %s not stored: %s", self._options.group, failure)
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

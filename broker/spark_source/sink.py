"""The classes that Spark calls to write: batches and micro-batches of rows, each row stored once.

Spark promises little of a task: it is run again where it has failed, twice at the same time where it is slow, and once
more with its whole micro-batch when the driver died before that was noted in the checkpoint. So the rows of a partition
are a portion of a writer (broker/client/producing/portion.py). The writer is the query and the partition, and its
number the micro-batch's: Spark tells both to its tasks, and both are in the checkpoint. A batch has no checkpoint; it
is a query of its own, unless the user names it (`writeId`), as whoever may run it again does.

A row is known by what it is and not by its place in the partition, since rows come in another order when a shuffle is
made again. Upstream blocks while a batch of rows is computed; so nothing is under way meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import trio
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from broker.client.errors import ClientError, MessageRejected, PortionUndecidable
from broker.client.producing.producer import Producer
from broker.spark_source.outgoing_rows import RowError, check_sink_columns, messages_of
from broker.spark_source.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql.types import StructType

logger = logging.getLogger("trivet.spark")
_QUERY: Final = "sql.streaming.queryId"
_MICRO_BATCH: Final = "streaming.sql.batchId"
_PRODUCER_GROUP: Final = "TRIVET_SPARK"


class WriteError(RuntimeError):
    """The brokers did not take the rows, or did not say so in time. The task may be run again: nothing gets doubled."""


class UndecidableWriteError(WriteError):
    """A micro-batch was half written so long ago that its log does not tell any more what of it is stored.

    Nothing was added. Somebody has to look what is there, and go on with a new checkpoint.
    """


@dataclass
class Written(WriterCommitMessage):
    """The work of a task: rows that it sent, and those that an earlier run had stored for good."""

    partition: int
    sent: int
    skipped: int


class TopicBatchWriter(DataSourceArrowWriter):
    """Writes a batch."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_sink_columns(schema, options.topic)
        self._options = options
        # Made on the driver, so that it is the same in all tasks and all their attempts.
        self._write_id = options.write_id or str(uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write a partition. Raises RowError, WriteError."""
        partition = _task().partitionId()
        return _write(
            self._options, f"{self._write_id}/{partition}", self._options.write_number, partition, iterator
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what was written; the rows are stored already."""
        logger.info("batch written: %s", _told(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Say that a part is stored, and stays."""
        logger.warning("batch failed; what tasks have stored stays: %s", _told(messages))


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_sink_columns(schema, options.topic)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write a partition of a micro-batch. Raises RowError, WriteError."""
        task = _task()
        query, number = task.getLocalProperty(_QUERY), task.getLocalProperty(_MICRO_BATCH)
        if query is None or number is None:
            raise WriteError(
                "Spark does not tell this task its query and micro-batch, which exactly-once rests on"
            )
        partition = task.partitionId()
        return _write(self._options, f"{query}/{partition}", int(number), partition, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Log what was written; the rows are stored already."""
        logger.info("micro-batch %s written: %s", batchId, _told(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Say that a part is stored: the micro-batch that is run again finds it."""
        logger.warning("micro-batch %s failed; what tasks have stored stays: %s", batchId, _told(messages))


def _task() -> TaskContext:
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None, "Spark writes in tasks"
    return task


def _write(
    options: SinkOptions, writer: str, number: int, partition: int, batches: Iterator[pa.RecordBatch]
) -> Written:
    """Write all rows as one portion, in an event loop of its own. Raises RowError, WriteError."""
    try:
        return trio.run(write_portion, options, writer, number, partition, batches)
    except RowError as error:
        raise RowError(f"partition {partition}: {error}") from error
    except MessageRejected as error:
        raise RowError(f"partition {partition}: a row cannot be a message: {error}") from error
    except PortionUndecidable as error:
        raise UndecidableWriteError(
            f"{error}; see what is there, and go on with a new checkpoint or writeId"
        ) from error
    except ClientError as error:
        raise WriteError(f"partition {partition} of {writer}, number {number}: {error}") from error


async def write_portion(
    options: SinkOptions, writer: str, number: int, partition: int, batches: Iterator[pa.RecordBatch]
) -> Written:
    """Write the rows of one task, each once however often this is done. Raises RowError, ClientError."""
    security = options.security
    async with Producer(
        options.name_servers,
        group=_PRODUCER_GROUP,
        send_timeout_s=options.timeout_s,
        attempt_timeout_s=min(5.0, options.timeout_s / 2),
        tls=security.tls_context(),
        credentials=security.credentials(),
    ) as producer:
        portion = producer.portion(writer, number, in_flight=options.in_flight)
        for batch in batches:
            await portion.send(messages_of(batch, options.topic))
        await portion.end()
        return Written(partition, portion.sent, portion.skipped)


def _told(messages: list[WriterCommitMessage | None]) -> str:
    written = [message for message in messages if isinstance(message, Written)]
    return (
        f"{sum(one.sent for one in written)} rows of {len(written)} partitions, "
        f"{sum(one.skipped for one in written)} of an earlier run"
    )

"""The exact log checker over DataFrames; docs/checker.md has the argument, reference.py the same rules in plain
Python.

Shape of the computation (n operations, one queue or many):

1. Every acknowledged or observed value, and every stated end, becomes a row (queue, position) with the invocation
   before which that position cannot have been appended (``lower``) or the completion after which it must have been
   (``upper``). Rows of one position are combined by a hash aggregation, on the mappers first: a million polls at the
   end of an idle queue shrink to one row before anything is sent. From here on there are only numbers, eight bytes
   each: a queue is the hash of its key, a value its own hash, a bound its moment with the kind of operation in its
   last two bits.
2. Positions are cut into buckets of 65,536 and swept by :mod:`spark_analysis.checking.sweep`, so that no stage sees
   a whole queue: the order of the log as a running minimum from the end, gaps as a running maximum from the beginning.
3. A position is wrong if ``lower`` is after that minimum, if it has two acknowledgements or two different values.
   Positions that were seen but not acknowledged, and those that must exist and that nobody knows, go to
   :mod:`spark_analysis.checking.queues.explain` with the appends of unknown outcome.

What stays after each step is small, and the next one runs only if there is something left for it to do: a good
history is read three times (census, positions, appends of unknown outcome) and shuffled twice.

Values are compared by their 64-bit hash (two given different values agree with probability 2**-64); that no two keys
have the same hash is checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import functions as sf

from spark_analysis.checking.columns import found_in, nothing, together
from spark_analysis.checking.kept import kept
from spark_analysis.checking.queues.explain import explain
from spark_analysis.checking.queues.knowledge import FUNCTIONS
from spark_analysis.checking.sweep import Running, running

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BUCKET_BITS: Final = 16
# Positions of the log itself, and of its first kept offset, which only moves forward, are two queues to the sweep.
LOG_AXIS, HEAD_AXIS = 0, 1
JUDGED: Final = (*FUNCTIONS, "poll")  # a poll is a read that does not say where
LONGEST_NS: Final = 1 << 60
QUEUES_BROADCAST: Final = 1_000_000
"""The names of at most this many queues, some 100 MB, are sent to every executor."""


@dataclass(frozen=True)
class LogFindings:
    """The findings about the queues of a history, and tables that further rules need.

    ``findings`` and ``unsure``: (key, kind, position, lower, upper); None where there is nothing. ``unseen`` is how
    many acknowledged values no read has returned. ``positions`` has a row for each known position of the log: (key,
    queue, bucket, position, lower, upper, value, other_value, acks, reads). ``disputed`` has those that were read and
    have several values; None without any.
    """

    findings: DataFrame | None
    unsure: DataFrame | None
    unseen: int
    positions: DataFrame
    disputed: DataFrame | None
    held: tuple[DataFrame, ...]

    def release(self) -> None:
        """Free what is kept on the executors' disks."""
        for frame in self.held:
            frame.unpersist()


class HistoryTooLongError(ValueError):
    """The history spans more than 36 years, or two of its keys have one hash: it cannot be judged."""


def check_log(operations: DataFrame, *, sparse: bool = False) -> LogFindings:
    """Judge every queue of ``operations`` (schema.OPERATIONS). Raises :class:`HistoryTooLongError`.

    ``sparse``: offsets may hold records that no client sees (of the system, aborted or compacted), so that an offset
    that nobody knows needs no explanation; see :func:`without_gaps`.

    Positions that need a closer look are counted first (one row comes to the driver), so that a good history pays for
    no query that can only come back empty.
    """
    if sparse:
        operations = without_gaps(operations)
    acknowledged = operations.where(sf.col("outcome") == "ok").where(sf.col("function").isin(*JUDGED))
    queues = _queues(operations).persist(StorageLevel.DISK_ONLY)
    census = _census(queues)
    zero_ns = census.zero_ns
    # A join that sends rows to their queue would put a hot queue on one task.
    names = sf.broadcast(queues) if census.queues <= QUEUES_BROADCAST else queues
    positions = _positions(acknowledged, zero_ns).persist(StorageLevel.DISK_ONLY)
    flagged = (
        _bounded(positions, sparse=sparse)
        .where("acks > 1 OR different OR lower_ns > latest_ns OR unexplained OR holes > 0")
        .join(names.select("queue", "key", "axis"), "queue")
        # Of first offsets no more is asked than that they never fall.
        .where("axis = 0 OR lower_ns > latest_ns")
        .select(
            *("key", "axis", "position", "lower", "latest", "value", "acks", "reads", "different", "known"),
            *("lower_ns", "latest_ns", "unexplained", "holes"),
        )
    )
    flagged = kept(flagged)
    found = flagged.agg(
        sf.count_if(sf.expr("acks > 1 OR different OR lower_ns > latest_ns")).alias("wrong"),
        sf.count_if(sf.expr("different AND reads > 0")).alias("disputed"),
        sf.count_if(sf.expr("axis = 0 AND (unexplained OR holes > 0)")).alias("unknown"),
    ).collect()[0]
    unseen = positions.agg(sf.count_if(sf.expr("acks > 0 AND reads = 0")).alias("unseen")).collect()[0][
        "unseen"
    ]
    findings = [_torn_reads(acknowledged)] if census.torn_reads else []
    unsure = None
    if found["wrong"]:
        findings.append(_wrong(flagged, zero_ns))
    if found["unknown"]:
        explained = explain(operations, flagged.where("axis = 0"), positions, zero_ns)
        if explained.findings is not None:
            findings.append(explained.findings)
        unsure = explained.unsure
    disputed = flagged.where("different AND reads > 0") if found["disputed"] else None
    named = positions.join(names.where(sf.col("axis") == LOG_AXIS).select("queue", "key"), "queue")
    all_found = together(findings) if findings else None
    return LogFindings(all_found, unsure, unseen, named, disputed, (queues, positions))


def without_gaps(operations: DataFrame) -> DataFrame:
    """Rewrite the history of a queue with gaps: its reads may pass over offsets, and any value of an unknown batch may
    stand anywhere."""
    is_attempt = sf.expr("function = 'append' AND outcome = 'info'")
    attempts = operations.where(is_attempt).withColumn("values", sf.explode("values"))
    return (
        operations.where(~is_attempt)
        .withColumn("filtered", sf.col("filtered") | (sf.col("function") == "read"))
        .unionByName(attempts.withColumn("values", sf.array("values")))
    )


def _queue_of(key: Column | str, axis: int) -> Column:
    return sf.xxhash64(key, sf.lit(axis))


def _queues(operations: DataFrame) -> DataFrame:
    """(queue, key, axis) of everything that is swept, with the span of its operations and the number of torn reads."""
    keys = operations.groupBy("key").agg(
        sf.min("invoke_ns").alias("first_ns"),
        sf.max(sf.greatest("invoke_ns", "complete_ns")).alias("last_ns"),
        sf.count_if(sf.expr("function = 'read' AND outcome = 'ok'") & _is_torn()).alias("torn"),
    )
    axes = [
        keys.select(
            *(_queue_of("key", axis).alias("queue"), "key", sf.lit(axis).alias("axis")),
            *("first_ns", "last_ns", "torn"),
        )
        for axis in (LOG_AXIS, HEAD_AXIS)
    ]
    return axes[0].unionByName(axes[1])


@dataclass(frozen=True, slots=True)
class _Census:
    """Numbers about the whole history. ``zero_ns``: the sweep counts moments from there, so that they leave two bits
    for the kind of operation."""

    zero_ns: int
    queues: int
    torn_reads: int


def _census(queues: DataFrame) -> _Census:
    census = queues.agg(
        sf.min("first_ns").alias("first_ns"),
        sf.max("last_ns").alias("last_ns"),
        sf.count("queue").alias("queues"),
        sf.count_distinct("queue").alias("hashes"),
        sf.sum(sf.when(sf.col("axis") == LOG_AXIS, sf.col("torn"))).alias("torn"),
    ).collect()[0]
    if census["queues"] != census["hashes"]:
        raise HistoryTooLongError("two keys have the same 64-bit hash: judge them apart")
    first = int(census["first_ns"] or 0)
    if int(census["last_ns"] or 0) - first >= LONGEST_NS:
        raise HistoryTooLongError("the history spans more than 36 years")
    return _Census(first, census["queues"], census["torn"] or 0)


def _wrong(flagged: DataFrame, zero_ns: int) -> DataFrame:
    """The findings that a position shows by itself.

    A wrong order is named by the operation that began too late, and by the one that ended too early.
    """
    began, ended = sf.col("lower").bitwiseAND(3), sf.col("latest").bitwiseAND(3)
    order = (
        sf.when(sf.col("axis") == HEAD_AXIS, sf.lit("backward-head"))
        .when(began == FUNCTIONS.index("tail"), sf.lit("stale-tail"))
        .when(began == FUNCTIONS.index("read"), sf.lit("stale-read"))
        .when(ended == FUNCTIONS.index("append"), sf.lit("append-order"))
        .otherwise(sf.lit("premature-read"))
    )
    kinds = sf.array(
        sf.when(sf.col("acks") > 1, sf.lit("duplicate-offset")),
        sf.when(sf.col("different"), sf.lit("inconsistent-offset")),
        sf.when(sf.col("lower_ns") > sf.col("latest_ns"), order),
    )
    lower, upper = sf.col("lower_ns") + zero_ns, sf.col("latest_ns") + zero_ns
    return found_in(flagged, sf.explode(sf.array_compact(kinds)), lower=lower, upper=upper)


def _is_torn() -> Column:
    """True for a read whose own response cannot be a part of any list, whatever the others saw."""
    count = sf.coalesce(sf.size("values"), sf.lit(0))
    last = sf.when(sf.col("offsets").isNull(), sf.col("first_offset") + count - 1).otherwise(
        sf.element_at("offsets", -1)
    )
    gaps = sf.expr(
        "size(offsets) > 1 AND exists(sequence(1, greatest(1, size(offsets) - 1)),"
        " i -> get(offsets, i) <= get(offsets, i - 1))"
    )
    whole = sf.col("first_offset").eqNullSafe(sf.col("offset")) & (
        sf.col("offsets").isNull() | (last - sf.col("first_offset") + 1 == count) & ~gaps
    )
    ascending = (sf.col("first_offset") >= sf.col("offset")) & (sf.col("offsets").isNull() | ~gaps)
    own_end = sf.col("end_offset").isNotNull() & sf.when(count > 0, last >= sf.col("end_offset")).otherwise(
        (sf.col("next_offset") <= sf.col("offset")) & (sf.col("offset") < sf.col("end_offset"))
    )
    shape = (
        sf.when(count == 0, False).when(sf.coalesce("filtered", sf.lit(False)), ~ascending).otherwise(~whole)
    )
    return shape | own_end


def _torn_reads(acknowledged: DataFrame) -> DataFrame:
    torn = acknowledged.where(sf.col("function") == "read").where(_is_torn())
    position = sf.coalesce("first_offset", "offset")
    return found_in(torn, "torn-read", position, sf.col("invoke_ns"), sf.col("complete_ns"))


class _Moments(NamedTuple):
    """The begin and the end of an operation, with its kind in the last two bits; a poll counts as a read."""

    begin: Column
    end: Column


def _moments(zero_ns: int) -> _Moments:
    kind = sf.lit(FUNCTIONS.index("read"))
    for code, function in enumerate(FUNCTIONS):
        kind = sf.when(sf.col("function") == function, sf.lit(code)).otherwise(kind)
    return _Moments(
        sf.shiftleft(sf.col("invoke_ns") - zero_ns, 2) + kind,
        sf.shiftleft(sf.col("complete_ns") - zero_ns, 2) + kind,
    )


def _positions(acknowledged: DataFrame, zero_ns: int) -> DataFrame:
    """One row for each queue and position that any operation states (step 1), in the partitions of its bucket."""
    moments = _moments(zero_ns)
    return (
        _values(acknowledged, moments)
        .unionByName(_ends(acknowledged, moments))
        .groupBy("queue", "position")
        .agg(
            sf.max("lower").alias("lower"),
            sf.min("upper").alias("upper"),
            sf.min("value").alias("value"),
            sf.max("value").alias("other_value"),
            sf.sum("acks").alias("acks"),
            sf.sum("reads").alias("reads"),
        )
        .withColumn("bucket", sf.shiftright("position", BUCKET_BITS))
        .repartition("queue", "bucket")
    )


def _values(acknowledged: DataFrame, moments: _Moments) -> DataFrame:
    """One row for each value that an operation states: an append cannot have come before it began (lower) and has come
    when it ended (upper); a read says only that it had come when the read ended."""
    return (
        acknowledged.where(
            sf.col("function").isin("append", "read", "poll") & sf.col("first_offset").isNotNull()
        )
        .select(
            _queue_of("key", LOG_AXIS).alias("queue"),
            (sf.col("function") == "append").alias("is_append"),
            moments.begin.alias("begin"),
            moments.end.alias("end"),
            "first_offset",
            "offsets",
            sf.posexplode("values"),
        )
        .select(
            "queue",
            # An operation whose offsets have no gaps names the first one only.
            sf.coalesce(sf.get("offsets", sf.col("pos")), sf.col("first_offset") + sf.col("pos")).alias(
                "position"
            ),
            sf.when(sf.col("is_append"), sf.col("begin")).alias("lower"),
            sf.col("end").alias("upper"),
            sf.xxhash64("col").alias("value"),
            sf.col("is_append").cast("int").alias("acks"),
            (~sf.col("is_append")).cast("int").alias("reads"),
        )
    )


def _ends(acknowledged: DataFrame, moments: _Moments) -> DataFrame:
    """One row for each statement about where the list ended or began: a tail or the end in a response, a head, and a
    read that found nothing."""
    queue, head = _queue_of("key", LOG_AXIS), _queue_of("key", HEAD_AXIS)

    def states(position: Column, *, begins: bool, of: Column = queue) -> Column:
        """The row that says: the list ended at ``position`` or before when the operation began (``begins``), or
        ``position`` was there when it ended."""
        lower, upper = (moments.begin, nothing()) if begins else (nothing(), moments.end)
        return sf.struct(
            of.alias("queue"), position.alias("position"), lower.alias("lower"), upper.alias("upper")
        )

    def ends_at(position: Column) -> list[Column]:
        return [states(position, begins=True), states(position - 1, begins=False)]

    # A tail or a known end says two things: that position was not filled when the operation began, and the one before
    # it was when it ended. A read that found nothing says the first only: the end may lie before where it asked. A
    # head says both of the deleted prefix, which is a queue of its own (`HEAD_AXIS`), and of the log that what is
    # deleted had been there.
    offset = sf.col("offset")
    is_empty = sf.col("first_offset").isNull() & (sf.col("next_offset") <= offset)
    has_end = sf.col("end_offset").isNotNull()
    observed = (
        sf.when(sf.col("function") == "tail", sf.array(*ends_at(offset)))
        .when(
            sf.col("function") == "head",
            sf.array(
                states(offset - 1, begins=False),
                states(offset, begins=True, of=head),
                states(offset - 1, begins=False, of=head),
            ),
        )
        .when(is_empty & has_end, sf.array(states(offset, begins=True), *ends_at(sf.col("end_offset"))))
        .when(is_empty, sf.array(states(offset, begins=True)))
        .when(has_end, sf.array(*ends_at(sf.col("end_offset"))))
    )
    return (
        acknowledged.where(
            sf.col("function").isin("tail", "head") | (sf.col("function") == "read") & (is_empty | has_end)
        )
        .select(sf.inline(observed))
        .where(sf.col("position") >= 0)
        .withColumns({"value": nothing(), "acks": sf.lit(0), "reads": sf.lit(0)})
    )


def _bounded(positions: DataFrame, *, sparse: bool) -> DataFrame:
    """Add ``latest``, the earliest completion that needs this or a later position, and ``holes``, the missing positions
    before and at it.

    Nothing is missing behind the last position that is needed, and ``latest`` is null there; nor in a sparse queue.
    """
    swept = running(
        positions,
        ["queue"],
        ["bucket"],
        ["position"],
        latest=Running("min", "upper", backwards=True, inclusive=True),
        previous=Running("max", "position"),
    )
    known = sf.col("value").isNotNull()
    reach = sf.col("position") - sf.coalesce("previous", sf.lit(-1)) - known.cast("int")
    return swept.select(
        *("queue", "position", "lower", "latest", "value", "acks", "reads"),
        (known & (sf.col("value") != sf.col("other_value"))).alias("different"),
        known.alias("known"),
        sf.shiftright("lower", 2).alias("lower_ns"),
        sf.shiftright("latest", 2).alias("latest_ns"),
        (known & (sf.col("acks") == 0)).alias("unexplained"),
        sf.when(sf.col("latest").isNotNull() & sf.lit(not sparse), reach).otherwise(0).alias("holes"),
    )

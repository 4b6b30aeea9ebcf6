"""Committed offsets: a register for each consumer group and queue.

With every value written once, deciding is a matter of zones (Gibbons and Korach, "Testing Shared Memories", 1997). The
operations of one value, its write and the reads that returned it, must happen together; let f be their earliest
completion and s their latest invocation. Values A and B can be ordered A before B unless some operation of B had ended
before one of A began (f_B < s_A). So the register is linearizable exactly if no read ended before its write began and
no two values exclude both orders: f_A < s_B and f_B < s_A.

A consumer may write one value again (after a rewind, or with nothing consumed meanwhile). The problem is then
NP-complete in general, and a search with a budget gives the answer, as for any other register
(:mod:`spark_analysis.checking.models`).

A consumer group without an offset and one at 0 are the same state here: RocketMQ answers either for a young queue
(ConsumerManageProcessor). A write of unknown outcome whose value nobody read can be left out without changing the
answer.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import StorageLevel

from spark_analysis.checking.columns import found_in, together
from spark_analysis.checking.models import MODELS
from spark_analysis.checking.queues.unknown_appends import Finding
from spark_analysis.checking.register_names import register_column
from spark_analysis.checking.sweep import Running, by_quantiles, running
from spark_analysis.checking.verdict import LINEARIZABLE, VIOLATED
from spark_analysis.importing.arrow import arrow_table
from spark_analysis.importing.calls import Call

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

INITIAL: Final = 0
_MOST_CONFIGURATIONS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Access:
    """One write or read of a register; ``complete_ns`` None: a write of unknown outcome."""

    op: int
    is_write: bool
    value: int
    invoke_ns: int
    complete_ns: int | None


def check_register(accesses: Sequence[Access]) -> tuple[list[Finding], list[Finding]]:
    """Judge one register; returns the findings, and the places that cannot be decided. A finding's position is the
    value concerned."""
    read_values = {one.value for one in accesses if not one.is_write}
    kept = [one for one in accesses if one.complete_ns is not None or one.value in read_values]
    writes = Counter(one.value for one in kept if one.is_write)
    writes[INITIAL] += 1
    findings = [Finding("phantom-offset", value) for value in sorted(read_values - writes.keys())]
    if max(writes.values()) > 1:
        # Zones work only for values that were written once. A value that nobody wrote is wrong in any order.
        return (findings, []) if findings else _search(kept)
    first_end: dict[int, float] = defaultdict(lambda: math.inf)
    last_begin: dict[int, float] = defaultdict(lambda: -math.inf)
    written: dict[int, int] = {}
    # Every register had its initial value before everything else.
    first_end[INITIAL] = -math.inf
    for one in kept:
        if one.complete_ns is not None:
            first_end[one.value] = min(first_end[one.value], one.complete_ns)
        last_begin[one.value] = max(last_begin[one.value], one.invoke_ns)
        if one.is_write:
            written[one.value] = one.invoke_ns
    findings += [
        Finding("stale-offset", value) for value, begin in written.items() if first_end[value] < begin
    ]
    # Two values exclude each other only if at least one of them has f < s (a forward zone): the other one then begins
    # inside of it. So of all zones in the order of their beginnings, backward ones [s, f] first at one moment, none may
    # end, in the sense of f, before a forward one that begins earlier does.
    zones = sorted(
        (min(end, last_begin[value]), end < last_begin[value], value) for value, end in first_end.items()
    )
    reach = -math.inf
    for _, is_forward, value in zones:
        if first_end[value] < reach:
            findings.append(Finding("stale-offset", value))
        if is_forward:
            reach = max(reach, last_begin[value])
    return findings, []


def calls_of(accesses: Iterable[Access]) -> list[Call]:
    """The accesses as calls of the model "register", in which nothing written is None."""
    return [
        Call(one.op, "write", one.value or None, None, one.invoke_ns, one.complete_ns)
        if one.is_write
        else Call(one.op, "read", None, one.value or None, one.invoke_ns, one.complete_ns)
        for one in accesses
    ]


def _search(accesses: Sequence[Access]) -> tuple[list[Finding], list[Finding]]:
    result = MODELS["register"].decide(calls_of(accesses), maximum_configurations=_MOST_CONFIGURATIONS)
    if result.verdict == LINEARIZABLE:
        return [], []
    values = {one.op: one.value for one in accesses}
    found = [Finding("stale-offset", values[result.stuck[0]] if result.stuck else INITIAL)]
    return (found, []) if result.verdict == VIOLATED else ([], found)


_FOUND: Final = "key STRING, kind STRING, position BIGINT, lower BIGINT, upper BIGINT, unsure BOOLEAN"
_BEFORE_ALL: Final = -(1 << 63)


@dataclass(frozen=True)
class RegisterFindings:
    """``found``: (key, kind, position, lower, upper, unsure), whose position is the value concerned."""

    found: DataFrame
    held: tuple[DataFrame, ...]

    def release(self) -> None:
        """Free what is persisted on the executors' disks."""
        for frame in self.held:
            frame.unpersist()


def check_offsets(operations: DataFrame) -> RegisterFindings:
    """Judge the register of every queue and consumer group in ``operations`` by the rules of :func:`check_register`,
    over the cluster.

    The zone of a value is a hash aggregation; whether zones exclude each other is a sweep over time in buckets, so that
    the history of one register is spread over all tasks. Only registers into which one value was written twice are
    judged each by one task, with a budget.
    """
    from pyspark.sql import functions as sf

    accesses = operations.where(
        "(function = 'commit_offset' AND outcome <> 'fail') OR (function = 'fetch_offset' AND outcome = 'ok')"
    ).select(
        "op",
        register_column().alias("key"),
        (sf.col("function") == "commit_offset").alias("is_write"),
        sf.coalesce("offset", sf.lit(INITIAL).cast("bigint")).alias("value"),
        "invoke_ns",
        "complete_ns",
    )
    values = _values(accesses).persist(StorageLevel.DISK_ONLY)
    census = values.agg(
        sf.count(sf.lit(1)).alias("values"), sf.count_if(sf.expr("writes > 1")).alias("rewritten")
    ).collect()[0]
    # A value written twice makes zones meaningless; such registers are searched, unless a phantom has judged
    # them already.
    rewritten = values.where("writes > 1").select("key").distinct()
    phantoms = values.where(sf.col("writes") == 0)
    plain = values
    searched: list[DataFrame] = []
    if census["rewritten"]:
        phantom_keys = phantoms.select("key").distinct()
        plain = values.join(rewritten, "key", "left_anti")
        searched.append(
            accesses.join(rewritten, "key", "left_semi")
            .join(phantom_keys, "key", "left_anti")
            .groupBy("key")
            .applyInArrow(_check_one, _FOUND)
        )
    before_written = plain.where("first_end < write_begin")
    found = [
        _named(phantoms, "phantom-offset"),
        _named(before_written, "stale-offset"),
        _named(_excluded(plain, census["values"]), "stale-offset"),
        *searched,
    ]
    return RegisterFindings(together(found), (values,))


def _values(accesses: DataFrame) -> DataFrame:
    """One row for each value of each register: how often it was written, and the ends of its zone.

    A write of unknown outcome whose value nobody read is left out. Every register was once written its initial
    value, before everything else.
    """
    from pyspark.sql import functions as sf

    is_read = sf.col("reads") > 0
    is_initial = sf.col("value") == INITIAL
    return (
        accesses.groupBy("key", "value")
        .agg(
            sf.count_if(~sf.col("is_write")).alias("reads"),
            sf.count_if("is_write").alias("attempted"),
            sf.count_if(sf.col("is_write") & sf.col("complete_ns").isNotNull()).alias("written"),
            sf.min("complete_ns").alias("known_end"),
            sf.max("invoke_ns").alias("last_begin"),
            sf.max(sf.when(sf.col("complete_ns").isNotNull(), sf.col("invoke_ns"))).alias("known_begin"),
            sf.max(sf.when(sf.col("is_write"), sf.col("invoke_ns"))).alias("write_begin"),
        )
        .select(
            "key",
            "value",
            (
                sf.when(is_read, sf.col("attempted")).otherwise(sf.col("written")) + is_initial.cast("int")
            ).alias("writes"),
            sf.when(is_initial, sf.lit(_BEFORE_ALL)).otherwise(sf.col("known_end")).alias("first_end"),
            sf.when(is_read, sf.col("last_begin")).otherwise(sf.col("known_begin")).alias("last_begin"),
            # An attempt without an answer to write a value that nobody read need not have happened.
            sf.when(is_read & ~is_initial, sf.col("write_begin")).alias("write_begin"),
            is_read.alias("is_read"),
        )
        .where("writes > 0 OR is_read")
    )


def _excluded(values: DataFrame, count: int) -> DataFrame:
    """Values whose zone ends before a forward zone that begins earlier ends: neither can come first."""
    from pyspark.sql import functions as sf

    forward = sf.col("first_end") < sf.col("last_begin")
    zones = values.where("last_begin IS NOT NULL").select(
        "key",
        "value",
        "first_end",
        forward.alias("is_forward"),
        sf.when(forward, sf.col("first_end")).otherwise(sf.col("last_begin")).alias("begin"),
        sf.when(forward, sf.col("last_begin")).alias("forward_end"),
    )
    zones = zones.withColumn("bucket", by_quantiles(zones, "begin", count))
    # At one moment backward zones come first: only a forward zone that begins strictly earlier excludes them.
    order = ["begin", "is_forward", "value"]
    reach = Running("max", "forward_end")
    return running(zones, ["key"], ["bucket"], order, reach=reach).where("first_end < reach")


def _named(rows: DataFrame, kind: str) -> DataFrame:
    from pyspark.sql import functions as sf

    return found_in(rows, kind, "value", unsure=sf.lit(False))


def _check_one(table: pa.Table) -> pa.Table:
    accesses = [
        Access(row["op"], row["is_write"], row["value"], row["invoke_ns"], row["complete_ns"])
        for row in table.to_pylist()
    ]
    findings, unsure = check_register(accesses)
    rows = [(one, False) for one in findings] + [(one, True) for one in unsure]
    key = table["key"][0].as_py()
    return arrow_table([(key, one.kind, one.position, None, None, doubt) for one, doubt in rows], _FOUND)

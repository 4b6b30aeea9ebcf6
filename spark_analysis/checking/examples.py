"""The first few findings of each kind with the operations that prove them.

The choice of these operations is stated twice, on DataFrames and on rows, and both must choose the same ones. A finding
about an order is proved by the operations that begin and end at the two moments that it names. A finding about a
position is proved by the operations that touch that position; of each value that was seen there, the append comes
before its readers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as sf

from spark_analysis.checking.proofs import (
    EXAMPLES_OF_EACH_KIND,
    PROOF_OPERATIONS,
    REGISTERS,
    SHOWN,
    VALUED,
    shown,
)
from spark_analysis.checking.register_names import register_column, register_name
from spark_analysis.checking.verdict import Anomaly

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = Mapping[str, Any]


def examples(findings: DataFrame, operations: DataFrame, kinds: list[str]) -> list[Anomaly]:
    """Choose the first few findings of each kind, with the operations that prove them.

    Each operation has the ``value`` that it says is at the position of the finding.
    """
    chosen = _first_of_each_kind(findings, kinds)
    proofs = _proofs(findings.sparkSession, operations, chosen)
    return [
        Anomaly(
            row["kind"],
            row["key"],
            row["position"],
            tuple(shown(operation.asDict()) for operation in proofs.get(number, [])),
        )
        for number, row in enumerate(chosen)
    ]


def _first_of_each_kind(findings: DataFrame, kinds: list[str]) -> list[Any]:
    """The first few findings of each kind, those of a kind together."""
    first_of_kind = Window.partitionBy("kind").orderBy("key", "position", "lower", "upper")
    # Findings of these kinds are proved by the operations that state the offset, and not by the two moments: these are
    # about its order, which may be right.
    disputed = sf.col("kind").isin("duplicate-offset", "inconsistent-offset")
    return sorted(
        findings.withColumns({name: sf.when(~disputed, sf.col(name)) for name in ("lower", "upper")})
        .withColumn("place", sf.row_number().over(first_of_kind))
        .where(sf.col("place") <= EXAMPLES_OF_EACH_KIND)
        .collect(),
        key=lambda row: (kinds.index(row["kind"]), row["place"]),
    )


def _proofs(spark: SparkSession, operations: DataFrame, chosen: Sequence[Row]) -> dict[int, list[Any]]:
    """The operations that prove each of the findings, by its place among them."""
    wanted = spark.createDataFrame(
        [
            (number, row["key"], row["position"], row["lower"], row["upper"])
            for number, row in enumerate(chosen)
        ],
        "number INT, queue STRING, at BIGINT, lower BIGINT, upper BIGINT",
    )
    count = sf.greatest(sf.coalesce(sf.size("values"), sf.lit(1)), sf.lit(1))
    first = sf.coalesce("first_offset", "offset")
    last = sf.coalesce(sf.element_at("offsets", -1), sf.col("first_offset") + count - 1, sf.col("offset"))
    touches = sf.col("at").between(first, last)
    index = sf.when(
        touches,
        sf.coalesce(
            sf.array_position("offsets", sf.col("at")) - 1, sf.col("at") - sf.col("first_offset")
        ).cast("int"),
    )
    begins = sf.col("invoke_ns") == sf.col("lower")
    ends = sf.col("complete_ns") == sf.col("upper")
    queue = sf.when(sf.col("function").isin(*REGISTERS), register_column()).otherwise(sf.col("key"))
    ordered = sf.col("lower").isNotNull()
    # Comparisons with constants first: the join pairs every operation of a queue with every finding about it.
    moments = [row["lower"] for row in chosen if row["lower"] is not None]
    limits = [row["upper"] for row in chosen if row["upper"] is not None]
    places = sorted(
        {row["position"] for row in chosen if row["lower"] is None and row["position"] is not None}
    )
    near = reduce(
        lambda one, other: one | other,
        (sf.lit(place).between(first, last) for place in places),
        sf.col("invoke_ns").isin(moments) | sf.col("complete_ns").isin(limits),
    )
    # What decides first; then, of each value that was seen there, its append before its readers.
    first_of_value = Window.partitionBy("number", "value").orderBy(
        "minor", sf.col("function") != "append", "invoke_ns", "op"
    )
    proofs = (
        operations.where(near)
        .withColumn("of", queue)
        .join(
            sf.broadcast(wanted),
            (sf.col("of") == sf.col("queue")) & sf.when(ordered, begins | ends).otherwise(touches | ends),
        )
        .withColumn("value", sf.get("values", sf.when(sf.col("function").isin(*VALUED), index)))
        .withColumn("minor", ~sf.coalesce(begins | ends, sf.lit(False)))
        .withColumn("place", sf.row_number().over(first_of_value))
        .where(sf.col("place") <= PROOF_OPERATIONS)
        .select("number", sf.struct("minor", "place", sf.struct(*SHOWN).alias("operation")).alias("found"))
        .groupBy("number")
        .agg(sf.slice(sf.sort_array(sf.collect_list("found")), 1, PROOF_OPERATIONS).alias("found"))
        .collect()
    )
    return {row["number"]: [entry["operation"] for entry in row["found"]] for row in proofs}


# ---- by plain rules -------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """A finding, with the columns of :class:`spark_analysis.checking.queues.log_model.LogFindings`."""

    kind: str
    key: str
    position: int
    lower: int | None
    upper: int | None


def plain_examples(found: Sequence[Found], operations: Sequence[Row]) -> list[Anomaly]:
    """Choose as :func:`examples` does, from the rows of a history that one task holds."""
    taken: Counter[str] = Counter()
    chosen: list[Found] = []
    for one in sorted(found, key=lambda one: (one.kind, one.key, one.position, *map(_nulls_first, one[3:]))):
        taken[one.kind] += 1
        if taken[one.kind] <= EXAMPLES_OF_EACH_KIND:
            is_disputed = one.kind in ("duplicate-offset", "inconsistent-offset")
            chosen.append(one._replace(lower=None, upper=None) if is_disputed else one)
    if not chosen:
        return []
    by_key: dict[str, list[tuple[Row, int | None, int | None]]] = defaultdict(list)
    wanted = {one.key for one in chosen}
    for row in operations:
        key = judged_key(row)
        if key in wanted:
            by_key[key].append((row, *_extent(row)))
    return [Anomaly(one.kind, one.key, one.position, _proof(one, by_key[one.key])) for one in chosen]


def _extent(row: Row) -> tuple[int | None, int | None]:
    """The first and the last offset that an operation says something about."""
    offset, first = row["offset"], row["first_offset"]
    if first is None:
        return offset, row["offsets"][-1] if row["offsets"] else offset
    return first, row["offsets"][-1] if row["offsets"] else first + max(1, len(row["values"] or ())) - 1


def _proof(
    one: Found, operations: Sequence[tuple[Row, int | None, int | None]]
) -> tuple[dict[str, Any], ...]:
    """Return the operations that prove a finding: first those that decide; then, of each value that was seen there, its
    append before its readers."""
    by_value: dict[str | None, list[tuple[Any, ...]]] = defaultdict(list)
    for row, first, last in operations:
        touches = first is not None and last is not None and first <= one.position <= last
        decides = (one.lower is not None and row["invoke_ns"] == one.lower) or (
            one.upper is not None and row["complete_ns"] == one.upper
        )
        if decides or (touches and one.lower is None):
            value = _value_at(row, one.position) if touches else None
            order = (not decides, row["function"] != "append", row["invoke_ns"], row["op"])
            by_value[value].append((order, len(by_value[value]), row))
    entries = []
    for value, listed in by_value.items():
        for place, ((is_minor, *_), _, row) in enumerate(sorted(listed, key=lambda entry: entry[:2])):
            operation = {name: row.get(name) for name in SHOWN} | {"value": value}
            entries.append(((is_minor, place), tuple(map(_nulls_first, operation.values())), operation))
    entries.sort(key=lambda entry: entry[:2])
    return tuple(shown(operation) for _, _, operation in entries[:PROOF_OPERATIONS])


def _value_at(row: Row, position: int) -> str | None:
    if row["function"] not in VALUED:
        return None
    values, offsets = row["values"] or (), row["offsets"]
    if offsets is not None:
        index = offsets.index(position) if position in offsets else -1
    else:
        index = -1 if row["first_offset"] is None else position - row["first_offset"]
    return values[index] if 0 <= index < len(values) else None


def _nulls_first(value: Any) -> tuple[bool, Any]:
    return (False, 0) if value is None else (True, value)


def judged_key(row: Row) -> str:
    """The key under which an operation is judged: its queue, or for consumer offsets its register."""
    key: str = row["key"]
    return register_name(key, row["group"]) if row["function"] in REGISTERS else key

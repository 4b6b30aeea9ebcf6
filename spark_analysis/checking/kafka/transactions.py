"""Cycles of transactions: Jepsen's ``G1c`` and ``G1c-realtime``, over what transactions polled from each other.

A consumer at read committed gets nothing of a transaction before it has committed. So if T2 polled what T1 sent, T1
committed before T2 did. Each commit lies inside its transaction's operation; that gives two ways to be wrong:

* ``G1c``: the transactions of a circle each polled what the one before had sent;
* ``G1c-realtime``: along a chain of such steps a transaction ended before one began that must have committed earlier.

Edges between writers of neighbouring offsets are not drawn: a queue interleaves transactions, so circles through them
are normal (Jepsen allows its ``G0`` always, and ``G1c`` as soon as they are drawn). Only transactions that send and
poll can be inside a circle or a chain. Those, and the edges between them, go to one task, so they are counted before:
beyond :data:`MAXIMUM_EDGES` the answer is that nobody knows. Everything around them stays distributed.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as sf

from spark_analysis.checking.kept import kept
from spark_analysis.importing.arrow import arrow_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAXIMUM_EDGES: Final = 2_000_000
MAXIMUM_CYCLES: Final = 100
_FOUND: Final = "kind STRING, ops ARRAY<BIGINT>"


@dataclass(frozen=True, slots=True)
class Cycle:
    """``ops``: operations of which each polled what the one before it had sent.

    For a ``G1c`` the first follows the last in the same way; for a ``G1c-realtime`` the last had ended before the first
    began.
    """

    kind: str
    ops: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """The time in which a transaction can have committed.

    Not before ``lower_ns``: ``lower_op``, the transaction itself or one that it polled from, began then. Not after
    ``upper_ns``: ``upper_op``, the transaction itself or one that polled what it sent, had ended then.
    """

    lower_ns: int
    lower_op: int
    upper_ns: int
    upper_op: int


def cycles(spans: Mapping[int, Span], edges: Iterable[tuple[int, int]]) -> list[Cycle]:
    """Find cycles, at most :data:`MAXIMUM_CYCLES`. ``edges`` are (sender, poller) between operations of ``spans``."""
    after: dict[int, list[int]] = defaultdict(list)
    before: dict[int, list[int]] = defaultdict(list)
    for sender, poller in sorted(set(edges)):
        after[sender].append(poller)
        before[poller].append(sender)
    waits = {op: len(before[op]) for op in sorted(spans)}
    ready = deque(op for op, count in waits.items() if not count)
    lower = {op: span.lower_ns for op, span in spans.items()}
    came_from: dict[int, int] = {}
    found: list[Cycle] = []
    while ready:
        op = ready.popleft()
        # It committed behind the beginnings of all that it polled from, step by step, and before its own end.
        if lower[op] > spans[op].upper_ns:
            chain = [spans[op].upper_op, op]
            while chain[-1] in came_from:
                chain.append(came_from[chain[-1]])
            chain.append(spans[chain[-1]].lower_op)
            found.append(Cycle("G1c-realtime", tuple(reversed(dict.fromkeys(chain)))))
        for poller in after[op]:
            # Who polled from it committed later still; the chain is remembered for the proof.
            if lower[op] > lower[poller]:
                lower[poller] = lower[op]
                came_from[poller] = op
            waits[poller] -= 1
            if not waits[poller]:
                ready.append(poller)
    # What is left is in a circle or behind one. Going back from any of it, always to one that is left, enters a circle.
    left = {op: None for op, count in waits.items() if count}
    while left:
        path: dict[int, int] = {}
        op = next(iter(left))
        while op in left and op not in path:
            path[op] = len(path)
            op = next((sender for sender in before[op] if sender in left), -1)
        if op in path:
            circle = [one for one, place in path.items() if place >= path[op]]
            found.append(Cycle("G1c", tuple(reversed(circle))))
        for one in path:
            del left[one]
    return found[:MAXIMUM_CYCLES]


def find_cycles(operations: DataFrame) -> list[Cycle] | None:
    """The cycles among the transactions of ``operations``; None if there are too many transactions to know."""
    sends = operations.where("function = 'append' AND outcome <> 'fail'").select(
        *("op", "key", "outcome", "invoke_ns", "complete_ns"),
        sf.col("offsets").isNotNull().alias("is_transaction"),
        sf.explode("values").alias("value"),
    )
    polls = operations.where("function IN ('poll', 'read') AND outcome = 'ok'").select(
        "op", "key", "function", "invoke_ns", "complete_ns", sf.explode("values").alias("value")
    )
    mixed = kept(
        sends.where("is_transaction AND outcome = 'ok'")
        .select("op", "invoke_ns", "complete_ns")
        .distinct()
        .join(polls.where("function = 'poll'").select("op"), "op", "left_semi")
    )
    # A value that several operations sent says nothing about either.
    writers = (
        sends.groupBy("key", "value")
        .agg(
            sf.min("op").alias("sender"),
            sf.max("op").alias("another"),
            sf.min("invoke_ns").alias("sent_ns"),
        )
        .where("sender = another")
        .drop("another")
    )
    steps = kept(
        polls.join(writers, ["key", "value"])
        .where("op <> sender")
        .groupBy("sender", "op")
        .agg(
            sf.struct(sf.min("sent_ns").alias("at_ns"), sf.col("sender").alias("by")).alias("sent"),
            sf.struct(sf.min("complete_ns").alias("at_ns"), sf.col("op").alias("by")).alias("polled"),
        )
    )
    ops = mixed.select("op")
    senders = ops.withColumnRenamed("op", "sender")
    edges = steps.join(ops, "op", "left_semi").join(senders, "sender", "left_semi").select("sender", "op")
    if edges.count() > MAXIMUM_EDGES:
        return None
    itself = {
        name: sf.struct(sf.col(f"{name}_ns").alias("at_ns"), sf.col("op").alias("by"))
        for name in ("invoke", "complete")
    }
    spans = (
        mixed.join(steps.groupBy("op").agg(sf.max("sent").alias("began")), "op", "left")
        .join(steps.groupBy(sf.col("sender").alias("op")).agg(sf.min("polled").alias("ended")), "op", "left")
        .select(
            sf.lit(None).cast("bigint").alias("sender"),
            "op",
            sf.greatest(itself["invoke"], "began").alias("lower"),
            sf.least(itself["complete"], "ended").alias("upper"),
        )
    )
    nothing = sf.lit(None).cast("struct<at_ns: bigint, by: bigint>")
    rows = spans.unionByName(edges.withColumns({"lower": nothing, "upper": nothing}))
    found = rows.groupBy(sf.lit(0).alias("all")).applyInArrow(_cycles_of, _FOUND).collect()
    return [Cycle(row["kind"], tuple(row["ops"])) for row in found]


def _cycles_of(table: pa.Table) -> pa.Table:
    spans: dict[int, Span] = {}
    edges: list[tuple[int, int]] = []
    columns = [table[name].to_pylist() for name in ("sender", "op", "lower", "upper")]
    for sender, op, lower, upper in zip(*columns, strict=True):
        if sender is None:
            spans[op] = Span(lower["at_ns"], lower["by"], upper["at_ns"], upper["by"])
        else:
            edges.append((sender, op))
    return arrow_table([(one.kind, list(one.ops)) for one in cycles(spans, edges)], _FOUND)

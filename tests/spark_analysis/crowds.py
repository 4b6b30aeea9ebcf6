"""Hundreds of small histories as one, each on queues, registers and clients of its own.

What the DataFrames say about all of them costs little more than what they say about one, and the plain rules, which
brute force and the mutation score hold to the truth, say the same about every queue.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from spark_analysis.checking.queues.knowledge import Operation
from spark_analysis.checking.registers import INITIAL, Access
from spark_analysis.importing import schema
from spark_analysis.importing.history import History

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = tuple[Any, ...]
DAMAGE = "file STRING, position BIGINT, kind STRING, reason STRING"


@dataclass
class Crowd:
    """Rows of schema.OPERATIONS, of replicas' events and of damage."""

    operations: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    damage: list[Row] = field(default_factory=list)

    def add(self, key: str, operations: Iterable[Operation], *, first_op: int | None = None) -> None:
        """One queue, with clients and values of its own; ``first_op`` joins rows of one operation on several queues."""
        base = 100_000 * len(self.operations) if first_op is None else first_op
        self.operations += (as_row(one, base + one.op, key) for one in operations)

    def add_register(self, key: str, group: str, accesses: Iterable[Access]) -> None:
        base = 100_000 * len(self.operations)
        for one in accesses:
            function = "commit_offset" if one.is_write else "fetch_offset"
            outcome = "info" if one.complete_ns is None else "ok"
            if one.is_write or outcome == "ok":
                told = one.value if one.value != INITIAL or one.op % 2 else None
                row = (
                    base + one.op,
                    "c",
                    function,
                    key,
                    group,
                    outcome,
                    one.invoke_ns,
                    one.complete_ns,
                    told,
                )
                self.operations.append((*row, *[None] * 7))

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows as the plain rules take them: every column of schema.RECORDS that is looked at."""
        names = ("file", "position", *schema.OPERATION_NAMES, *schema.EVENT_NAMES)
        tables: tuple[tuple[str, Sequence[str], list[Row]], ...] = (
            ("operation", schema.OPERATION_NAMES, self.operations),
            ("event", schema.EVENT_TABLE_NAMES, self.events),
            ("damage", ("file", "position", "kind", "reason"), self.damage),
        )
        return [
            dict.fromkeys(names) | {"record": record} | dict(zip(columns, row, strict=True))
            for record, columns, rows in tables
            for row in rows
        ]

    def history(self, spark: SparkSession) -> History:
        return History(
            "crowd",
            spark.createDataFrame(self.operations, schema.OPERATIONS),
            spark.createDataFrame(self.events, schema.EVENT_TABLE),
            spark.createDataFrame(self.damage, DAMAGE),
        )


def as_row(one: Operation, number: int, key: str) -> Row:
    """The operation as a row of schema.OPERATIONS."""
    values = list(one.values) if one.function not in ("tail", "head") else None
    offsets = list(one.offsets) if one.offsets else None
    return (
        *(number, one.client, one.function, key, None, one.outcome, one.invoke_ns, one.complete_ns),
        *(one.offset, one.filtered, one.first_offset, offsets, values, one.next_offset, one.end_offset, None),
    )


def of_its_own(history: Iterable[Operation], name: str) -> list[Operation]:
    """With clients and values that no other history has."""
    return [
        replace(one, client=f"{name} {one.client}", values=tuple(f"{name} {value}" for value in one.values))
        for one in history
    ]


def homeless(
    rng: random.Random, history: Sequence[Operation], is_moved: Callable[[Operation], bool] | None = None
) -> tuple[list[Operation], list[Operation]]:
    """Of the appends of unknown outcome about half are without a queue, which the broker was to choose."""
    moved = is_moved or (
        lambda one: one.function == "append" and one.outcome == "info" and rng.random() < 0.5
    )
    away = [one for one in history if moved(one)]
    return [one for one in history if one not in away], away

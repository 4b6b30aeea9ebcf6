"""Throughput, latency and lag over the run, in at most `SLICES_MAX` moments of at most `FUNCTIONS_SHOWN` lines."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from spark_analysis.checking.verdict import Verdict
from spark_analysis.importing.history import History
from spark_analysis.telling.report.run_figure import Panel, Series

SLICES_MIN: Final = 40
SLICES_MAX: Final = 200
FUNCTIONS_SHOWN: Final = 4
NODES_SHOWN: Final = 6
GROUPS_SHOWN: Final = 9
RARE: Final = 200
"""A function gets no line if fewer than one operation in this many is of it: it would be a few dots."""
_PER_SLICE: Final = 20
"""Operations that a slice has on average, at least: fewer would draw noise."""


def slices_for(operations: int) -> int:
    """The number of moments into which a run is cut: few where there is little to count in each."""
    return max(SLICES_MIN, min(SLICES_MAX, operations // _PER_SLICE))


def cut_into_slices(verdict: Verdict) -> tuple[int, int, int]:
    """How a run is cut into moments: (the first one's begin in ns, how many there are, the length of each in ns)."""
    start_ns = verdict.facts.get("first_ns") or 0
    slices = slices_for(verdict.operations)
    slice_ns = max(1, int(max(verdict.facts.get("seconds", 0.0), 1e-6) * 1e9 / slices) + 1)
    return start_ns, slices, slice_ns


def frequent(verdict: Verdict) -> list[str]:
    """The functions that are drawn, the most frequent first."""
    outcomes: dict[str, dict[str, int]] = verdict.facts.get("functions", {})
    answered = sorted((-counts.get("ok", 0), function) for function, counts in outcomes.items())
    return [function for count, function in answered[:FUNCTIONS_SHOWN] if -count * RARE >= verdict.operations]


def panels_of(verdict: Verdict, history: History) -> list[Panel]:
    """Throughput and latency of the most frequent functions, and how far each replica was behind; two queries."""
    from pyspark.sql import functions as sf

    start_ns, slices, slice_ns = cut_into_slices(verdict)
    shown = frequent(verdict)
    # Answers count, at the time at which they came: an operation without one has no latency.
    rows = (
        history.operations.where("outcome = 'ok' AND complete_ns IS NOT NULL")
        .where(sf.col("function").isin(shown))
        .withColumn("slice", sf.floor((sf.col("complete_ns") - start_ns) / slice_ns))
        .where(sf.col("slice").between(0, slices - 1))
        .groupBy("slice", "function")
        .agg(
            sf.count(sf.lit(1)).alias("count"),
            sf.percentile_approx((sf.col("complete_ns") - sf.col("invoke_ns")) / 1e6, 0.99).alias("latency"),
        )
        .collect()
    )
    drawn = []
    if rows:
        by_slice = {(row["function"], row["slice"]): (row["count"], row["latency"]) for row in rows}
        drawn += rate_and_latency(shown, by_slice, slices, slice_ns)
    return drawn + lags(_committed(history, start_ns, slice_ns, slices), slices, slice_ns)


def rate_and_latency(
    functions: Sequence[str], by_slice: dict[tuple[str, int], tuple[int, float]], slices: int, slice_ns: int
) -> list[Panel]:
    """Two panels from (function, slice) -> (operations, milliseconds)."""
    rate, latency = [], []
    for name in functions:
        found = [by_slice.get((name, number)) for number in range(slices)]
        times = [number * slice_ns / 1e9 for number in range(slices + 1)]
        counts = [0.0 if one is None else one[0] * 1e9 / slice_ns for one in found]
        slowest = [None if one is None else one[1] for one in found]
        # The last slice is as wide as the others: its value is repeated at its end.
        rate.append(Series(name, tuple(zip(times, [*counts, counts[-1]], strict=True))))
        latency.append(Series(name, tuple(zip(times, [*slowest, slowest[-1]], strict=True))))
    return [
        Panel("Throughput", "operations completed per second", tuple(rate)),
        Panel("Latency", "milliseconds; 99 of 100 operations were faster", tuple(latency), True),
    ]


def _committed(
    history: History, start_ns: int, slice_ns: int, slices: int
) -> dict[tuple[str, str, int], int]:
    """(group, node, slice) -> the commit index that it stated last there, of the replicas that are drawn; a slice
    without a commit has no row."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    at = sf.floor((sf.col("time_ns") - start_ns) / slice_ns)
    rows = (
        history.events.where("kind = 'commit'")
        .withColumn("slice", sf.greatest(sf.lit(0), at))
        .where(sf.col("slice") < slices)
        .groupBy(sf.coalesce("group", sf.lit("")).alias("group"), "node", "slice")
        .agg(sf.max_by("last_index", sf.struct("time_ns", "position")).alias("committed"))
        .withColumn("place", sf.dense_rank().over(Window.partitionBy("group").orderBy("node")))
        .where(sf.col("place") <= NODES_SHOWN)
        .orderBy("group", "node", "slice")
        .limit(GROUPS_SHOWN * NODES_SHOWN * slices)
        .collect()
    )
    return {(row["group"], row["node"], row["slice"]): row["committed"] for row in rows}


def lags(committed: Mapping[tuple[str, str, int], int], slices: int, slice_ns: int) -> list[Panel]:
    """A panel for each group, from (group, node, slice) -> commit index: indices are a group's own."""
    by_group: dict[str, dict[tuple[str, int], int]] = {}
    for (group, node, number), index in sorted(committed.items()):
        by_group.setdefault(group, {})[node, number] = index
    unit = "entries committed behind the furthest"
    return [
        Panel(
            f"Replica lag, {group}" if group and len(by_group) > 1 else "Replica lag",
            unit,
            lag(of_group, slices, slice_ns),
        )
        for group, of_group in islice(by_group.items(), GROUPS_SHOWN)
    ]


def lag(committed: dict[tuple[str, int], int], slices: int, slice_ns: int) -> tuple[Series, ...]:
    """The entries by which each node was behind; a node is drawn from its first commit on."""
    nodes = sorted({node for node, _ in committed})
    last: dict[str, int] = {}
    points: dict[str, list[tuple[float, float | None]]] = {node: [] for node in nodes}
    for number in range(slices + 1):
        for node in nodes:
            if (node, number) in committed:
                last[node] = committed[node, number]
        furthest = max(last.values(), default=0)
        for node in nodes:
            behind = float(furthest - last[node]) if node in last else None
            points[node].append((number * slice_ns / 1e9, behind))
    return tuple(Series(node, tuple(points[node])) for node in nodes[:NODES_SHOWN])

"""What the report shows of a history, as small rows on the driver: bounded, whatever the history's size.

At most `SLICES` moments of the run, `EVENTS_MAX` changes of roles and faults, and the `TIMELINE_OPERATIONS` operations
next to one proof come out of Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spark_analysis.figures import Band, Bar, Mark, Panel, Series
from spark_analysis.history import History
from spark_analysis.verdict import Anomaly

if TYPE_CHECKING:
    from pyspark.sql import Column

SLICES: Final = 200
EVENTS_MAX: Final = 5000
FAULTS_MAX: Final = 400
TIMELINE_OPERATIONS: Final = 40
EVIDENCE_MAX: Final = 12
_FUNCTIONS_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class Event:
    """A start, stop, change of role or fault, at ``second`` after the first operation."""

    node: str
    kind: str
    second: float
    role: str | None = None
    term: int | None = None
    detail: str | None = None
    targets: tuple[str, ...] = ()


def events_of(history: History, start_ns: int) -> list[Event]:
    """Roles, starts, stops and faults in the order of their times; the first `EVENTS_MAX`."""
    rows = (
        history.events.where("kind IN ('role', 'start', 'stop', 'fault')")
        .select("node", "kind", "time_ns", "role", "term", "detail", "targets", "file", "position")
        .orderBy("time_ns", "file", "position")
        .limit(EVENTS_MAX)
        .collect()
    )
    return [
        Event(
            row["node"],
            row["kind"],
            (row["time_ns"] - start_ns) / 1e9,
            row["role"],
            row["term"],
            row["detail"],
            tuple(row["targets"] or ()),
        )
        for row in rows
    ]


def role_bands(events: Iterable[Event], seconds: float) -> list[Band]:
    """Who was what from when until when; a node is down between its end (or its kill) and its next start."""
    bands: list[Band] = []
    current: dict[str, tuple[float, str, str]] = {}

    def change(node: str, second: float, role: str | None, label: str = "") -> None:
        begun = current.pop(node, None)
        if begun is not None and second > begun[0]:
            bands.append(Band(node, begun[1], begun[0], second, begun[2]))
        if role is not None:
            current[node] = (second, role, label)

    for event in events:
        if event.kind == "role":
            assert event.role is not None
            label = str(event.term) if event.role == "leader" else ""
            change(event.node, event.second, event.role, label)
        elif event.kind == "start":
            change(event.node, event.second, "follower")
        elif event.kind == "stop":
            change(event.node, event.second, "down")
        elif (event.detail or "").startswith("kill"):
            for target in event.targets:
                if target in current:
                    change(target, event.second, "down")
    for node, (begun, _, _) in sorted(current.items()):
        change(node, max(seconds, begun), None)
    return bands


def fault_marks(events: Iterable[Event]) -> list[Mark]:
    """The faults in order, numbered from 1; the first `FAULTS_MAX`."""
    faults = [event for event in events if event.kind == "fault"][:FAULTS_MAX]
    return [
        Mark(fault.second, number, f"{fault.detail or 'fault'} {' '.join(fault.targets)}".rstrip())
        for number, fault in enumerate(faults, 1)
    ]


def panels_of(history: History, start_ns: int, seconds: float) -> list[Panel]:
    """Throughput and latency of the most frequent functions, and how far each replica was behind."""
    from pyspark.sql import functions as sf

    slice_ns = max(1, int(seconds * 1e9 / SLICES) + 1)
    rows = (
        history.operations.where("outcome = 'ok' AND complete_ns IS NOT NULL")
        .withColumn("slice", sf.floor((sf.col("complete_ns") - start_ns) / slice_ns))
        .groupBy("slice", "function")
        .agg(
            sf.count(sf.lit(1)).alias("count"),
            sf.percentile_approx((sf.col("complete_ns") - sf.col("invoke_ns")) / 1e6, 0.99).alias("latency"),
        )
        .collect()
    )
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["function"]] = counts.get(row["function"], 0) + row["count"]
    shown = sorted(counts, key=lambda name: (-counts[name], name))[:_FUNCTIONS_SHOWN]
    by_slice = {(row["function"], row["slice"]): row for row in rows}
    rate, latency = [], []
    for name in shown:
        found = [by_slice.get((name, number)) for number in range(SLICES)]
        times = [number * slice_ns / 1e9 for number in range(SLICES)]
        per_second = [0.0 if row is None else row["count"] * 1e9 / slice_ns for row in found]
        rate.append(Series(name, list(zip(times, per_second, strict=True))))
        slowest = [None if row is None else row["latency"] for row in found]
        latency.append(Series(name, list(zip(times, slowest, strict=True))))
    panels = []
    if shown:
        panels.append(Panel("throughput", "operations completed per second", rate))
        panels.append(Panel("latency", "milliseconds, 99 of 100 were faster", latency, is_logarithmic=True))
    lag = _lag(history, start_ns, slice_ns)
    if lag:
        panels.append(Panel("replica lag", "committed entries behind the furthest replica", lag))
    return panels


def _lag(history: History, start_ns: int, slice_ns: int) -> list[Series]:
    from pyspark.sql import functions as sf

    rows = (
        history.events.where("kind = 'commit'")
        .withColumn("slice", sf.floor((sf.col("time_ns") - start_ns) / slice_ns))
        .groupBy("node", "slice")
        .agg(sf.max("last_index").alias("committed"))
        .where(sf.col("slice") < SLICES)
        .collect()
    )
    committed = {(row["node"], max(0, row["slice"])): row["committed"] for row in rows}
    nodes = sorted({node for node, _ in committed})
    last = dict.fromkeys(nodes, 0)
    points: dict[str, list[tuple[float, float | None]]] = {node: [] for node in nodes}
    for number in range(SLICES):
        for node in nodes:
            last[node] = max(last[node], committed.get((node, number), 0))
        furthest = max(last.values(), default=0)
        for node in nodes:
            points[node].append((number * slice_ns / 1e9, float(furthest - last[node])))
    return [Series(node, points[node]) for node in nodes]


# ---- the proof -----------------------------------------------------------------------------------------------------


def smallest_proof(anomalies: Iterable[Anomaly]) -> Anomaly | None:
    """The anomaly to show first: one with two operations that contradict each other, the closest to each other."""
    proved = [one for one in anomalies if one.proof and "op" in one.proof[0]]
    return min(
        proved, key=lambda one: (len(one.proof) < 2, window_of(one)[1] - window_of(one)[0]), default=None
    )


def window_of(anomaly: Anomaly) -> tuple[int, int]:
    """From the first invocation to the last completion of the proof, nanoseconds; one phantom is proof enough."""
    proof = anomaly.proof[:1] if anomaly.kind.startswith("phantom-") else anomaly.proof
    begin = min(one["invoke_ns"] for one in proof)
    return begin, max(one.get("complete_ns") or one["invoke_ns"] for one in proof)


def bars_around(anomaly: Anomaly, history: History) -> tuple[list[Bar], float, float]:
    """The proof and what went on around it on the same queue; bars and borders in milliseconds from its beginning."""
    from pyspark.sql import functions as sf

    begin, end = window_of(anomaly)
    margin = max(1000, (end - begin) // 6 if len(anomaly.proof) > 1 else end - begin)
    low, high = begin - margin, end + margin
    proof = [one["op"] for one in anomaly.proof if one["invoke_ns"] <= end]
    queue = anomaly.key.split(" ")[0]
    ended = sf.coalesce("complete_ns", sf.lit(high))
    near = (sf.col("key") == queue) & (sf.col("invoke_ns") <= high) & (ended >= low)
    distance = sf.greatest(sf.lit(0), sf.lit(begin) - ended, sf.col("invoke_ns") - end)
    rows = (
        history.operations.where(near | sf.col("op").isin(proof))
        .select(
            *("op", "client", "function", "outcome", "invoke_ns", "complete_ns", "offset"),
            *("first_offset", "values", "next_offset", "end_offset"),
        )
        # An append of unknown outcome may be open for ever: what completed in the window says more.
        .orderBy(~sf.col("op").isin(proof), sf.col("complete_ns").isNull(), distance, "invoke_ns")
        .limit(TIMELINE_OPERATIONS)
        .collect()
    )
    bars = []
    for row in rows:
        operation = {name: value for name, value in row.asDict().items() if value is not None}
        stop = row["complete_ns"]
        bars.append(
            Bar(
                row["client"],
                (max(row["invoke_ns"], low) - begin) / 1e6,
                None if stop is None else (min(stop, high) - begin) / 1e6,
                short_label(operation),
                row["op"] in proof,
                _tooltip(operation, begin),
            )
        )
    return bars, (low - begin) / 1e6, (high - begin) / 1e6


def short_label(operation: dict[str, Any]) -> str:
    """What fits on a bar: the function and the offset it is about."""
    function = operation["function"]
    if function == "append":
        if "first_offset" in operation:
            return f"append @{operation['first_offset']}"
        return "append, outcome unknown" if operation["outcome"] == "info" else "append refused"
    if function in ("read", "poll"):
        count = len(operation.get("values", ()))
        asked = operation.get("offset", operation.get("first_offset"))
        answer = "nothing" if not count else f"{count} message{'s' if count > 1 else ''}"
        if operation["outcome"] != "ok":
            answer = "no answer"
        return f"{function} @{asked}: {answer}" if asked is not None else f"{function}: {answer}"
    return f"{function} = {operation.get('offset', 'none' if operation['outcome'] == 'ok' else 'unknown')}"


def _tooltip(operation: dict[str, Any], zero_ns: int) -> str:
    begin = (operation["invoke_ns"] - zero_ns) / 1e6
    end = operation.get("complete_ns")
    until = "?" if end is None else f"{(end - zero_ns) / 1e6:.3f}"
    values = list(operation.get("values", ()))
    named = ", ".join(str(value) for value in values[:3]) + (
        f", {len(values) - 3} more" if values[3:] else ""
    )
    return f"{short_label(operation)}  [{begin:.3f}, {until}] ms  {named}".rstrip()


# ---- what replicas recorded ----------------------------------------------------------------------------------------


def evidence_of(anomalies: Sequence[Anomaly], history: History, start_ns: int) -> dict[int, list[str]]:
    """For findings about replicas (by their place in ``anomalies``), the events that show them, as sentences."""
    found: dict[int, list[str]] = {}
    chosen = [
        (place, condition) for place, one in enumerate(anomalies) if (condition := _shows(one)) is not None
    ]
    for place, condition in chosen[:EVIDENCE_MAX]:
        rows = history.events.where(condition).orderBy("time_ns", "file", "position").limit(6).collect()
        if rows:
            found[place] = [_sentence(row.asDict(), start_ns) for row in rows]
    return found


def _shows(anomaly: Anomaly) -> Column | None:
    from pyspark.sql import functions as sf

    node, kind, position = sf.col("node") == anomaly.key, sf.col("kind"), sf.lit(anomaly.position)
    either = sf.col("node").isin(anomaly.key.split(" and "))
    match anomaly.kind:
        case "two-leaders":
            return (kind == "role") & (sf.col("role") == "leader") & (sf.col("term") == position)
        case "term-went-back":
            return node & kind.isin("role", "start") & (sf.col("term") == position)
        case "commit-went-back":
            return node & (kind == "commit") & (sf.col("last_index") == position)
        case "committed-truncated":
            return node & (kind == "truncate") & (sf.col("last_index") == position - 1)
        case "leader-incomplete":
            return node & (sf.col("role") == "leader") & (sf.col("last_index") == position - 1)
        case "log-mismatch":
            return either & (kind == "append") & (sf.col("first_index") == position)
        case "prefix-mismatch":
            return either & (kind == "digest") & (sf.col("last_index") == position)
    return None


def _sentence(event: dict[str, Any], start_ns: int) -> str:
    at = f"{(event['time_ns'] - start_ns) / 1e9:.6f} s: {event['node']}"
    first, last, term = event["first_index"], event["last_index"], event["term"]
    match event["kind"]:
        case "role":
            return f"{at} became {event['role']} in term {term}, its log ending at index {last}"
        case "start":
            return f"{at} started in term {term}, its log ending at index {last}"
        case "commit":
            return f"{at} moved its commit index to {last}"
        case "truncate":
            return f"{at} removed everything after index {last}"
        case "append":
            return f"{at} appended entries {first} to {last} of term {term}, digest {event['digest']:08x}"
        case _:
            return f"{at} stated digest {event['digest']:08x} for entries up to {last}"

"""What the report shows of a history, as small rows on the driver: bounded, whatever the history's size.

:func:`collect_report` asks Spark a handful of questions whose answers have a known greatest size: `SLICES_MAX` moments
of the run, `EVENTS_MAX` changes of roles and faults, `WINDOWS` proofs with the `TIMELINE_OPERATIONS` operations next
to each, and a few events of replicas for a finding about them. Everything after it is a pure function of
:class:`ReportData`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from spark_analysis.figures import Panel, Series
from spark_analysis.history import History
from spark_analysis.stories import contradiction, number_in, numbers_in
from spark_analysis.verdict import REPLICA_ANOMALIES, Anomaly, Verdict

if TYPE_CHECKING:
    from pyspark.sql import Column

SLICES_MIN: Final = 40
SLICES_MAX: Final = 200
EVENTS_MAX: Final = 5000
WINDOWS: Final = 6
TIMELINE_OPERATIONS: Final = 28
EVIDENCE_FINDINGS: Final = 40
EVIDENCE_ROWS: Final = 20
FUNCTIONS_SHOWN: Final = 4
REGISTERS: Final = ("commit_offset", "fetch_offset")
CHANGES: Final = ("append", "commit_offset")
NODES_SHOWN: Final = 6
RARE: Final = 200
"""Of a function that is less than one operation in so many, no line is drawn: it would be a few dots."""
_PER_SLICE: Final = 20
"""Operations that a slice has on average, at least: fewer would draw noise."""


@dataclass(frozen=True, slots=True)
class Event:
    """What a replica or a driver recorded, at ``time_ns``; the columns of schema.EVENTS that a report shows."""

    node: str
    kind: str
    time_ns: int
    role: str | None = None
    term: int | None = None
    first_index: int | None = None
    last_index: int | None = None
    digest: int | None = None
    detail: str | None = None
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Window:
    """The operations of a proof, between ``begin_ns`` and ``end_ns``, and those on the same queue around it."""

    begin_ns: int
    end_ns: int
    low_ns: int
    high_ns: int
    proof: tuple[int, ...] = ()
    """Which operations (``op``) prove the finding."""
    operations: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class ReportData:
    """``windows`` and ``evidence`` are by the finding's place in ``Verdict.anomalies``."""

    events: tuple[Event, ...] = ()
    panels: tuple[Panel, ...] = ()
    windows: dict[int, Window] = field(default_factory=dict)
    evidence: dict[int, tuple[Event, ...]] = field(default_factory=dict)


def collect_report(verdict: Verdict, history: History) -> ReportData:
    """Everything that the page of one history needs from Spark."""
    start_ns = verdict.facts.get("first_ns") or 0
    seconds = max(verdict.facts.get("seconds", 0.0), 1e-6)
    return ReportData(
        tuple(_events(history)),
        tuple(_panels(history, start_ns, seconds, verdict.operations)) if verdict.operations else (),
        _windows(verdict.anomalies, history),
        _evidence(verdict.anomalies, history),
    )


_EVENT_COLUMNS: Final = (
    *("node", "kind", "time_ns", "role", "term", "first_index", "last_index", "digest", "detail"),
    "targets",
)


def _event(row: Any) -> Event:
    columns = {name: row[name] for name in _EVENT_COLUMNS}
    return Event(**columns | {"targets": tuple(row["targets"] or ())})


def _events(history: History) -> list[Event]:
    """Roles, starts, stops and faults in the order of their times; the first `EVENTS_MAX`."""
    rows = (
        history.events.where("kind IN ('role', 'start', 'stop', 'fault')")
        .select(*_EVENT_COLUMNS, "file", "position")
        .orderBy("time_ns", "file", "position")
        .limit(EVENTS_MAX)
        .collect()
    )
    return [_event(row) for row in rows]


# ---- the whole run -------------------------------------------------------------------------------------------------


def slices_for(operations: int) -> int:
    """Into how many moments a run is cut: few where there is little to count in each."""
    return max(SLICES_MIN, min(SLICES_MAX, operations // _PER_SLICE))


def _panels(history: History, start_ns: int, seconds: float, operations: int) -> list[Panel]:
    """Throughput and latency of the most frequent functions, and how far each replica was behind."""
    from pyspark.sql import functions as sf

    slices = slices_for(operations)
    slice_ns = max(1, int(seconds * 1e9 / slices) + 1)
    frequent = (
        history.operations.where("outcome = 'ok' AND complete_ns IS NOT NULL")
        .groupBy("function")
        .count()
        .orderBy(sf.desc("count"), "function")
        .limit(FUNCTIONS_SHOWN)
        .collect()
    )
    shown = [row["function"] for row in frequent if row["count"] * RARE >= operations]
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
    panels = []
    if shown:
        by_slice = {(row["function"], row["slice"]): (row["count"], row["latency"]) for row in rows}
        panels += rate_and_latency(shown, by_slice, slices, slice_ns)
    committed = _committed(history, start_ns, slice_ns, slices)
    if committed:
        panels.append(
            Panel("Replica lag", "entries committed behind the furthest", lag(committed, slices, slice_ns))
        )
    return panels


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


def _committed(history: History, start_ns: int, slice_ns: int, slices: int) -> dict[tuple[str, int], int]:
    """(node, slice) -> the commit index that it stated last there; a slice without a commit has no row."""
    from pyspark.sql import functions as sf

    at = sf.floor((sf.col("time_ns") - start_ns) / slice_ns)
    rows = (
        history.events.where("kind = 'commit'")
        .withColumn("slice", sf.greatest(sf.lit(0), at))
        .where(sf.col("slice") < slices)
        .groupBy("node", "slice")
        .agg(sf.max_by("last_index", sf.struct("time_ns", "position")).alias("committed"))
        .orderBy("node", "slice")
        .limit(NODES_SHOWN * slices)
        .collect()
    )
    return {(row["node"], row["slice"]): row["committed"] for row in rows}


def lag(committed: dict[tuple[str, int], int], slices: int, slice_ns: int) -> tuple[Series, ...]:
    """How far each node was behind; a node is drawn from its first commit on."""
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


# ---- proofs of clients ---------------------------------------------------------------------------------------------


def span_of(anomaly: Anomaly) -> tuple[int, int]:
    """From the first invocation to the last completion of the proof, nanoseconds.

    Of an order the two operations that contradict each other; of a phantom, who saw it: one is proof enough.
    """
    pair = contradiction(anomaly)
    proof = pair or (anomaly.proof[:1] if anomaly.kind.startswith("phantom-") else anomaly.proof)
    begin = min(one["invoke_ns"] for one in proof)
    return begin, max(one.get("complete_ns") or one["invoke_ns"] for one in proof)


def places_to_draw(anomalies: Sequence[Anomaly]) -> list[int]:
    """The smallest proof of each kind that clients saw, the smallest of all first; at most `WINDOWS`."""
    smallest: dict[str, tuple[int, int, int]] = {}
    for place, one in enumerate(anomalies):
        if not one.proof or "op" not in one.proof[0]:
            continue
        begin, end = span_of(one)
        # Two operations that contradict each other explain themselves, one alone seldom does.
        rank = 0 if contradiction(one) is not None else 1 if len(one.proof) > 1 else 2
        size = (rank, end - begin, place)
        smallest[one.kind] = min(size, smallest.get(one.kind, size))
    return [place for _, _, place in sorted(smallest.values())][:WINDOWS]


def moments_of(anomaly: Anomaly, window: Window) -> list[int]:
    """When the proof's operations began and ended: what is near to them says more than the middle of a long window."""
    ends = [one.get("complete_ns") or one["invoke_ns"] for one in anomaly.proof if one["op"] in window.proof]
    begins = [one["invoke_ns"] for one in anomaly.proof if one["op"] in window.proof]
    return sorted({*begins, *ends})


def window_around(anomaly: Anomaly) -> Window:
    """The borders of the drawing of a proof, without operations."""
    begin, end = span_of(anomaly)
    margin = max(1000, (end - begin) // 6)
    proof = tuple(one["op"] for one in anomaly.proof if one["invoke_ns"] <= end)
    return Window(begin, end, begin - margin, end + margin, proof)


def widened(window: Window, others: Sequence[dict[str, Any]]) -> Window:
    """The window with room for more operations, and of its own those that are in it then."""
    begin = min([window.begin_ns, *(one["invoke_ns"] for one in others)])
    end = max([window.end_ns, *(one.get("complete_ns") or one["invoke_ns"] for one in others)])
    margin = max(1000, (end - begin) // 6)
    low, high = begin - margin, end + margin
    inside = (
        one for one in window.operations if one["invoke_ns"] <= high and one.get("complete_ns", high) >= low
    )
    return Window(begin, end, low, high, window.proof, tuple(inside))


def _windows(anomalies: Sequence[Anomaly], history: History) -> dict[int, Window]:
    """The windows of `places_to_draw`, filled by one query."""
    from pyspark.sql import Window as Over
    from pyspark.sql import functions as sf

    windows = {place: window_around(anomalies[place]) for place in places_to_draw(anomalies)}
    if not windows:
        return {}
    nearness = []
    for place, window in windows.items():
        queue, _, group = anomalies[place].key.partition(" ")
        ended = sf.coalesce("complete_ns", sf.lit(window.high_ns))
        in_window = (sf.col("invoke_ns") <= window.high_ns) & (ended >= window.low_ns)
        # The other side of a group's position that was read too late may be anywhere among those stored and read.
        # A question without an answer says nothing.
        is_concerned = (
            (sf.col("group") == group) & sf.col("function").isin(*REGISTERS)
            if group
            else in_window & ~sf.col("function").isin(*REGISTERS)
        )
        says = sf.col("function").isin(*CHANGES) | (sf.col("outcome") == "ok")
        in_proof = sf.col("op").isin(list(window.proof))
        near = (sf.col("key") == queue) & is_concerned & says
        moments = [sf.abs(sf.col("invoke_ns") - at_ns) for at_ns in moments_of(anomalies[place], window)]
        distance = sf.least(*moments) if len(moments) > 1 else moments[0]
        one = sf.struct(sf.lit(place).alias("place"), in_proof.alias("in_proof"), distance.alias("distance"))
        nearness.append(sf.when(in_proof | near, one))
    # An append of unknown outcome may be open for ever: what completed in the window says more.
    order = Over.partitionBy("place").orderBy(
        sf.desc("in_proof"), sf.col("complete_ns").isNull(), "distance", "invoke_ns", "op"
    )
    rows = (
        history.operations.select(*_DRAWN, sf.explode(sf.array_compact(sf.array(*nearness))).alias("near"))
        .select(*_DRAWN, "near.*")
        .withColumn("rank", sf.row_number().over(order))
        .where(sf.col("rank") <= TIMELINE_OPERATIONS)
        .orderBy("place", "rank")
        .collect()
    )
    found: dict[int, list[dict[str, Any]]] = {place: [] for place in windows}
    for row in rows:
        operation = {name: row[name] for name in _DRAWN if row[name] is not None}
        found[row["place"]].append(operation)
    return {place: replace(window, operations=tuple(found[place])) for place, window in windows.items()}


_DRAWN: Final = (
    *("op", "client", "function", "outcome", "invoke_ns", "complete_ns", "offset"),
    *("first_offset", "values", "next_offset", "end_offset"),
)


# ---- what replicas recorded ----------------------------------------------------------------------------------------


def _evidence(anomalies: Sequence[Anomaly], history: History) -> dict[int, tuple[Event, ...]]:
    """For findings about replicas the events that show them; one query."""
    from pyspark.sql import Window as Over
    from pyspark.sql import functions as sf

    chosen = [
        (place, condition)
        for place, one in enumerate(anomalies)
        if one.kind in REPLICA_ANOMALIES and (condition := _shows(one)) is not None
    ][:EVIDENCE_FINDINGS]
    if not chosen:
        return {}
    any_of = reduce(lambda one, other: one | other, (condition for _, condition in chosen))
    places = sf.array(*(sf.when(condition, sf.lit(place)) for place, condition in chosen))
    newest_first = Over.partitionBy("place", "node", "kind").orderBy(sf.desc("time_ns"), sf.desc("position"))
    rows = (
        history.events.where(any_of)
        .select(*_EVENT_COLUMNS, "file", "position", sf.explode(sf.array_compact(places)).alias("place"))
        .withColumn("rank", sf.row_number().over(newest_first))
        .where(sf.col("rank") <= EVIDENCE_ROWS)
        .orderBy("place", "time_ns", "file", "position")
        .collect()
    )
    found: dict[int, list[Event]] = {}
    for row in rows:
        found.setdefault(row["place"], []).append(_event(row))
    return {place: telling(anomalies[place], events) for place, events in found.items()}


def _shows(anomaly: Anomaly) -> Column | None:
    """Which events tell of a finding: both sides of the contradiction."""
    from pyspark.sql import functions as sf

    node, kind, position = sf.col("node") == anomaly.key, sf.col("kind"), sf.lit(anomaly.position)
    either = sf.col("node").isin(anomaly.key.split(" and "))
    other = sf.lit(number_in(anomaly.detail))
    last = sf.col("last_index")
    match anomaly.kind:
        case "two-leaders":
            return (kind == "role") & (sf.col("role") == "leader") & (sf.col("term") == position)
        case "term-went-back":
            return node & kind.isin("role", "start") & sf.col("term").isin(position, other)
        case "commit-went-back":
            return node & (kind == "commit") & last.isin(position, other)
        case "committed-truncated":
            return node & (
                ((kind == "truncate") & (last == position - 1)) | ((kind == "commit") & (last == other))
            )
        case "leader-incomplete":
            term = sf.lit(numbers_in(anomaly.detail)[0])
            leads = node & (sf.col("role") == "leader") & (sf.col("term") == term) & (last == position - 1)
            return leads | ((kind == "commit") & (last == other) & (sf.col("term") < term))
        case "log-mismatch":
            return either & (kind == "append") & (sf.col("first_index") == position)
        case "prefix-mismatch":
            return either & (kind == "digest") & (last == position)
    return None


def telling(anomaly: Anomaly, events: Sequence[Event]) -> tuple[Event, ...]:
    """The events that contradict each other, at most one of each side where there are sides.

    ``events``: of one finding, in the order of their times.
    """
    other = number_in(anomaly.detail)
    match anomaly.kind:
        case "term-went-back":
            return _turn(events, lambda one: one.term == other, lambda one: one.term == anomaly.position)
        case "commit-went-back":
            return _turn(
                events, lambda one: one.last_index == other, lambda one: one.last_index == anomaly.position
            )
        case "committed-truncated":
            return _turn(events, lambda one: one.kind == "commit", lambda one: one.kind == "truncate")
        case "leader-incomplete":
            commits = [one for one in events if one.kind == "commit"][:1]
            return tuple(sorted(commits + [one for one in events if one.kind == "role"][:1], key=_time))
        case "two-leaders":
            first = {one.node: one for one in reversed(events)}
            return tuple(sorted(first.values(), key=_time))
    # Runs of entries, and prefixes, that different digests were stated for.
    by_run: dict[tuple[int | None, ...], dict[int | None, Event]] = {}
    for event in events:
        by_run.setdefault((event.term, event.first_index, event.last_index), {}).setdefault(
            event.digest, event
        )
    return tuple(sorted(max(by_run.values(), key=len, default={}).values(), key=_time))


def _time(event: Event) -> int:
    return event.time_ns


def _turn(events: Sequence[Event], was: Any, became: Any) -> tuple[Event, ...]:
    """The last event of one side before the first of the other side that follows any."""
    earlier: Event | None = None
    for event in events:
        if was(event):
            earlier = event
        elif became(event) and earlier is not None:
            return earlier, event
    return tuple(events[:2])

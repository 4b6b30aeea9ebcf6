"""Events of replicas that show a finding about them: a few, of both sides of the contradiction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from spark_analysis.checking.replicas.names import group_before
from spark_analysis.checking.verdict import REPLICA_ANOMALIES, Anomaly
from spark_analysis.importing.history import History
from spark_analysis.telling.report.tables import TracedEvent
from spark_analysis.telling.stories.replicas import number_in, numbers_in

if TYPE_CHECKING:
    from pyspark.sql import Column

EVIDENCE_OF_A_KIND: Final = 6
EVIDENCE_ROWS: Final = 20
EVENT_COLUMNS: Final = (
    *("node", "kind", "time_ns", "role", "term", "first_index", "last_index", "digest", "detail"),
    *("targets", "group"),
)


def event_of(row: Any) -> TracedEvent:
    """A row with `EVENT_COLUMNS`."""
    columns = {name: row[name] for name in EVENT_COLUMNS}
    return TracedEvent(**columns | {"targets": tuple(row["targets"] or ())})


def evidence_of(
    anomalies: Sequence[Anomaly], history: History, groups: Sequence[str]
) -> dict[int, tuple[TracedEvent, ...]]:
    """For findings about replicas of these groups the events that show them; one query."""
    from pyspark.sql import Window as Over
    from pyspark.sql import functions as sf

    chosen: list[tuple[int, Column]] = []
    for kind in REPLICA_ANOMALIES:
        places = [place for place, one in enumerate(anomalies) if one.kind == kind][:EVIDENCE_OF_A_KIND]
        chosen += [
            (place, condition)
            for place in places
            if (condition := _shows(anomalies[place], groups)) is not None
        ]
    if not chosen:
        return {}
    # One query for all findings: each would read all events once more.
    any_of = reduce(lambda one, other: one | other, (condition for _, condition in chosen))
    shown_by = sf.array(*(sf.when(condition, sf.lit(place)) for place, condition in chosen))
    newest_first = Over.partitionBy("place", "node", "kind").orderBy(sf.desc("time_ns"), sf.desc("position"))
    rows = (
        history.events.where(any_of)
        .select(*EVENT_COLUMNS, "file", "position", sf.explode(sf.array_compact(shown_by)).alias("place"))
        .withColumn("rank", sf.row_number().over(newest_first))
        .where(sf.col("rank") <= EVIDENCE_ROWS)
        .orderBy("place", "time_ns", "file", "position")
        .collect()
    )
    found: dict[int, list[TracedEvent]] = {}
    for row in rows:
        found.setdefault(row["place"], []).append(event_of(row))
    return {place: telling(anomalies[place], events) for place, events in found.items()}


def _shows(anomaly: Anomaly, groups: Sequence[str]) -> Column | None:
    """The condition for events that show a finding: both sides of the contradiction."""
    from pyspark.sql import functions as sf

    node, kind, position = sf.col("node") == anomaly.key, sf.col("kind"), sf.lit(anomaly.position)
    either = sf.col("node").isin(anomaly.key.split(" and "))
    other = sf.lit(number_in(anomaly.detail))
    last = sf.col("last_index")
    match anomaly.kind:
        case "two-leaders":
            led = sf.col("node").isin(anomaly.detail.split(" and "))
            return led & (kind == "role") & (sf.col("role") == "leader") & (sf.col("term") == position)
        case "term-went-back":
            return node & kind.isin("role", "start") & sf.col("term").isin(position, other)
        case "commit-went-back":
            return node & (kind == "commit") & last.isin(position, other)
        case "committed-truncated":
            return node & (
                ((kind == "truncate") & (last == position - 1)) | ((kind == "commit") & (last == other))
            )
        case "leader-incomplete":
            numbers = numbers_in(anomaly.detail)  # the second, of several: where the leader's log ended
            term, end = sf.lit(numbers[0]), sf.lit(numbers[1]) if len(numbers) > 2 else position - 1
            leads = node & (sf.col("role") == "leader") & (sf.col("term") == term) & (last == end)
            knew = (kind == "commit") & (last == other) & (sf.col("term") < term)
            return leads | (knew & sf.col("node").startswith(group_before(anomaly.key, groups)))
        case "log-mismatch":
            return either & (kind == "append") & (sf.col("first_index") == position)
        case "prefix-mismatch":
            return either & (kind == "digest") & (last == position)
    return None


def telling(anomaly: Anomaly, events: Sequence[TracedEvent]) -> tuple[TracedEvent, ...]:
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
    # Runs of entries, or prefixes, for which different digests were stated.
    by_run: dict[tuple[int | None, ...], dict[int | None, TracedEvent]] = {}
    for event in events:
        by_run.setdefault((event.term, event.first_index, event.last_index), {}).setdefault(
            event.digest, event
        )
    return tuple(sorted(max(by_run.values(), key=len, default={}).values(), key=_time))


def _time(event: TracedEvent) -> int:
    return event.time_ns


def _turn(events: Sequence[TracedEvent], was: Any, became: Any) -> tuple[TracedEvent, ...]:
    """The last event of one side before the first of the other side that follows any."""
    earlier: TracedEvent | None = None
    for event in events:
        if was(event):
            earlier = event
        elif became(event) and earlier is not None:
            return earlier, event
    return tuple(events[:2])

"""The content of the page of a short history, from rows of this process: the questions of `data.py` in plain Python.

The answers are the same, so that a page does not tell whether Spark was there; tests hold the two against each other.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

from spark_analysis.checking.register_names import queue_and_group
from spark_analysis.checking.replicas.names import group_before, named_rows
from spark_analysis.checking.verdict import REGISTER_ANOMALIES, REPLICA_ANOMALIES, Anomaly, Verdict
from spark_analysis.importing.history_rows import HistoryRows
from spark_analysis.telling.names import NAMED_MAX, names_from, operations_of
from spark_analysis.telling.report.data import EVENTS_MAX
from spark_analysis.telling.report.evidence import (
    EVIDENCE_OF_A_KIND,
    EVIDENCE_ROWS,
    event_of,
    telling,
)
from spark_analysis.telling.report.run_data import (
    cut_into_slices,
    frequent,
    lags,
    rate_and_latency,
)
from spark_analysis.telling.report.run_figure import Panel
from spark_analysis.telling.report.tables import ReportData, TracedEvent, Window
from spark_analysis.telling.report.windows import (
    CHANGES,
    DRAWN,
    REGISTERS,
    TIMELINE_OPERATIONS,
    moments_of,
    places_to_draw,
    window_around,
)
from spark_analysis.telling.stories import decisive, refused_value
from spark_analysis.telling.stories.replicas import number_in, numbers_in

Row = Mapping[str, Any]
ROLES: Final = ("role", "start", "stop", "fault")


def collect_small_report(verdict: Verdict, history: HistoryRows) -> ReportData:
    """All that the page of one short history needs."""
    groups = verdict.facts.get("groups", ())
    history = replace(history, events=named_rows(history.events, groups))
    windows = windows_of_rows(verdict.anomalies, history)
    around = (operation for window in windows.values() for operation in window.operations)
    events = sorted(
        (one for one in history.events if one["kind"] in ROLES),
        key=lambda one: (one["time_ns"], one["file"], one["position"]),
    )
    return ReportData(
        tuple(event_of(one) for one in events[:EVENTS_MAX]),
        tuple(_panels(verdict, history)) if verdict.operations else (),
        windows,
        _evidence(verdict.anomalies, history, groups),
        names_of_rows(history, [*operations_of(verdict.anomalies), *around]),
    )


def names_of_rows(history: HistoryRows, operations: Iterable[Row]) -> dict[str, str]:
    """The names of the clients of ``operations``: identity -> name."""
    clients = {str(one["client"]) for one in operations if one.get("client") is not None}
    if history.recorders is None or not clients:
        return {}
    begins: dict[tuple[str, str | None], int] = {}
    for client, recorder, invoke_ns in history.recorders:
        known = begins.get((client, recorder), invoke_ns)
        begins[client, recorder] = min(known, invoke_ns)
    of_recorder: dict[str | None, list[tuple[int, str]]] = defaultdict(list)
    for (client, recorder), begin in begins.items():
        of_recorder[recorder].append((begin, client))
    rows = [
        SimpleNamespace(client=client, recorder=recorder, place=place, clients=len(listed))
        for recorder, listed in of_recorder.items()
        for place, (_, client) in enumerate(sorted(listed), 1)
        if client in clients
    ]
    rows.sort(key=lambda row: (row.client, row.recorder or ""))
    return names_from(rows[:NAMED_MAX])


def windows_of_rows(anomalies: Sequence[Anomaly], history: HistoryRows) -> dict[int, Window]:
    """The windows of `places_to_draw`, filled."""
    found = {}
    for place in places_to_draw(anomalies):
        window = window_around(decisive(anomalies[place]))
        near = sorted(_nearness(anomalies[place], window, history), key=lambda entry: entry[:5])
        operations = (
            {name: one[name] for name in DRAWN if one[name] is not None}
            for *_, one in near[:TIMELINE_OPERATIONS]
        )
        found[place] = replace(window, operations=tuple(operations))
    return found


def _nearness(anomaly: Anomaly, window: Window, history: HistoryRows) -> Iterable[tuple[Any, ...]]:
    """Yield the operations that say something about a proof, each with its sorting key: the proof itself first, then
    completed operations, the nearest first."""
    queue, group = anomaly.key, ""
    if anomaly.kind in REGISTER_ANOMALIES:
        queue, group = queue_and_group(queue)
    refused, moments = refused_value(anomaly), moments_of(anomaly, window)
    for one in history.operations:
        is_register = one["function"] in REGISTERS
        ended = window.high_ns if one["complete_ns"] is None else one["complete_ns"]
        if group:
            is_concerned = one["group"] == group and is_register
        else:
            is_concerned = one["invoke_ns"] <= window.high_ns and ended >= window.low_ns and not is_register
        says = one["function"] in CHANGES or one["outcome"] == "ok"
        in_proof = one["op"] in window.proof or (
            refused is not None and one["outcome"] == "fail" and refused in (one["values"] or ())
        )
        if in_proof or (one["key"] == queue and is_concerned and says):
            distance = min(abs(one["invoke_ns"] - at_ns) for at_ns in moments)
            yield not in_proof, one["complete_ns"] is None, distance, one["invoke_ns"], one["op"], one


def _panels(verdict: Verdict, history: HistoryRows) -> list[Panel]:
    """Throughput, latency and lag of replicas."""
    start_ns, slices, slice_ns = cut_into_slices(verdict)
    shown = frequent(verdict)
    # What `run_data.panels_of` asks of Spark, by the same rules.
    took: dict[tuple[str, int], list[float]] = defaultdict(list)
    for one in history.operations:
        if one["outcome"] == "ok" and one["complete_ns"] is not None and one["function"] in shown:
            number = (one["complete_ns"] - start_ns) // slice_ns
            if 0 <= number < slices:
                took[one["function"], number].append((one["complete_ns"] - one["invoke_ns"]) / 1e6)
    drawn = []
    if took:
        by_slice = {
            place: (len(listed), sorted(listed)[math.ceil(0.99 * len(listed)) - 1])
            for place, listed in took.items()
        }
        drawn += rate_and_latency(shown, by_slice, slices, slice_ns)
    committed: dict[tuple[str, str, int], tuple[int, int, int]] = {}
    for event in history.events:
        number = max(0, (event["time_ns"] - start_ns) // slice_ns)
        if event["kind"] == "commit" and number < slices:
            said = (event["time_ns"], event["position"], event["last_index"])
            place = (event["group"] or "", event["node"], number)
            committed[place] = max(committed.get(place, said), said)
    return drawn + lags({place: said[2] for place, said in committed.items()}, slices, slice_ns)


def _evidence(
    anomalies: Sequence[Anomaly], history: HistoryRows, groups: Sequence[str]
) -> dict[int, tuple[TracedEvent, ...]]:
    """For findings about replicas the events that show them."""
    found: dict[int, tuple[TracedEvent, ...]] = {}
    for kind in REPLICA_ANOMALIES:
        places = [place for place, one in enumerate(anomalies) if one.kind == kind][:EVIDENCE_OF_A_KIND]
        for place in places:
            shows = _shows(anomalies[place], groups)
            by_side: dict[tuple[str, str], list[Row]] = defaultdict(list)
            for event in history.events:
                if shows(event):
                    by_side[event["node"], event["kind"]].append(event)
            kept = [
                one
                for listed in by_side.values()
                for one in sorted(listed, key=lambda one: (one["time_ns"], one["position"]))[-EVIDENCE_ROWS:]
            ]
            if kept:
                kept.sort(key=lambda one: (one["time_ns"], one["file"], one["position"]))
                found[place] = telling(anomalies[place], [event_of(one) for one in kept])
    return found


def _shows(anomaly: Anomaly, groups: Sequence[str]) -> Callable[[Row], bool]:
    """Tells whether an event shows a finding: both sides of the contradiction."""
    node, position, other = anomaly.key, anomaly.position, number_in(anomaly.detail)
    either = node.split(" and ")
    match anomaly.kind:
        case "two-leaders":
            leaders = anomaly.detail.split(" and ")
            return lambda one: (
                one["node"] in leaders
                and (one["kind"], one["role"], one["term"]) == ("role", "leader", position)
            )
        case "term-went-back":
            return lambda one: (
                one["node"] == node
                and one["kind"] in ("role", "start")
                and one["term"] is not None
                and one["term"] in (position, other)
            )
        case "commit-went-back":
            return lambda one: (
                one["node"] == node and one["kind"] == "commit" and one["last_index"] in (position, other)
            )
        case "committed-truncated":
            assert position is not None
            sides = (("truncate", position - 1), ("commit", other))
            return lambda one: one["node"] == node and (one["kind"], one["last_index"]) in sides
        case "leader-incomplete":
            numbers = numbers_in(anomaly.detail)  # the second, of several: where the leader's log ended
            assert position is not None
            term, end = numbers[0], numbers[1] if len(numbers) > 2 else position - 1
            group = group_before(node, groups)
            return lambda one: (
                (
                    one["node"] == node
                    and (one["role"], one["term"], one["last_index"]) == ("leader", term, end)
                )
                or (
                    one["kind"] == "commit"
                    and one["last_index"] == other
                    and one["term"] is not None
                    and one["term"] < term
                    and one["node"].startswith(group)
                )
            )
        case "log-mismatch":
            return lambda one: (
                one["node"] in either and one["kind"] == "append" and one["first_index"] == position
            )
        case "prefix-mismatch":
            return lambda one: (
                one["node"] in either and one["kind"] == "digest" and one["last_index"] == position
            )
    return lambda one: False

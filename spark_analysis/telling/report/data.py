"""The part of a history that the report shows, as small rows on the driver: bounded, whatever the history's size.

:func:`collect_report` asks Spark a handful of questions whose answers have a known greatest size: moments of the run
(:mod:`.run_data`), `EVENTS_MAX` changes of roles and faults, proofs with the operations next to each (:mod:`.windows`),
and a few events of replicas for a finding about them (:mod:`.evidence`).
"""

from dataclasses import replace
from typing import Final

from spark_analysis.checking.replicas.names import named_events
from spark_analysis.checking.verdict import Verdict
from spark_analysis.importing.history import History
from spark_analysis.telling.names import names_of, operations_of
from spark_analysis.telling.report.evidence import EVENT_COLUMNS, event_of, evidence_of
from spark_analysis.telling.report.run_data import panels_of
from spark_analysis.telling.report.tables import ReportData, TracedEvent
from spark_analysis.telling.report.windows import windows_of

EVENTS_MAX: Final = 5000


def collect_report(verdict: Verdict, history: History) -> ReportData:
    """Ask Spark for everything that the page of one history needs."""
    groups = verdict.facts.get("groups", ())
    history = replace(history, events=named_events(history.events, groups))
    windows = windows_of(verdict.anomalies, history)
    around = (operation for window in windows.values() for operation in window.operations)
    return ReportData(
        tuple(_events(history)),
        tuple(panels_of(verdict, history)) if verdict.operations else (),
        windows,
        evidence_of(verdict.anomalies, history, groups),
        names_of(history, [*operations_of(verdict.anomalies), *around]),
    )


def _events(history: History) -> list[TracedEvent]:
    """Roles, starts, stops and faults in the order of their times; the first `EVENTS_MAX`."""
    rows = (
        history.events.where("kind IN ('role', 'start', 'stop', 'fault')")
        .select(*EVENT_COLUMNS, "file", "position")
        .orderBy("time_ns", "file", "position")
        .limit(EVENTS_MAX)
        .collect()
    )
    return [event_of(row) for row in rows]

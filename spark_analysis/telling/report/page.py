"""The page: verdict and small tables in, HTML text out (its design: report.html)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from spark_analysis.checking.verdict import EXPLANATIONS, Anomaly, Verdict
from spark_analysis.importing.history import History
from spark_analysis.importing.history_rows import HistoryRows
from spark_analysis.telling import stories
from spark_analysis.telling.console import describe
from spark_analysis.telling.names import identities, named, operations_of, with_names
from spark_analysis.telling.report.answer import checked_and_not, words
from spark_analysis.telling.report.data import EVENTS_MAX, collect_report
from spark_analysis.telling.report.parts import fault_marks, role_bands, sentence
from spark_analysis.telling.report.proof_figures import proof_figures
from spark_analysis.telling.report.run_figure import run
from spark_analysis.telling.report.small_data import collect_small_report
from spark_analysis.telling.report.tables import ReportData
from spark_analysis.telling.stories.words import duration

FAULTS_LISTED: Final = 60
FINDINGS_LISTED: Final = 40
FINDINGS_OPEN: Final = 3
LINES_LISTED: Final = 50


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding in words: what, where, and the operations or events that show it."""

    kind: str
    place: str
    story: tuple[str, ...]
    lines: tuple[str, ...]


def write_report(verdict: Verdict, history: History | HistoryRows | None, target: Path) -> Path:
    """Write the page for one history to the file ``target``, making its directory; returns the path."""
    if isinstance(history, HistoryRows):
        data = collect_small_report(verdict, history)
    else:
        data = ReportData() if history is None else collect_report(verdict, history)
    page = render(verdict, data)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page, encoding="utf-8")
    return target


def render(verdict: Verdict, data: ReportData) -> str:
    """The HTML text of the page."""
    import jinja2

    # Clients get their names everywhere before anything is drawn, so that figures and sentences call them the same.
    verdict = with_names(verdict, data.names)
    windows = {
        place: replace(window, operations=tuple(named(one, data.names) for one in window.operations))
        for place, window in data.windows.items()
    }
    data = replace(data, windows=windows)
    first_ns = verdict.facts.get("first_ns") or 0
    seconds = verdict.facts.get("seconds", 0.0)
    marks = fault_marks(data.events, first_ns)
    proofs = proof_figures(verdict, data, marks)
    places = places_to_list(verdict.anomalies)
    listed = [verdict.anomalies[place] for place in places]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("spark_analysis.telling.report", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    bands = role_bands(data.events, seconds, first_ns)
    drawn = run(data.panels, bands, marks, 0.0, max(seconds, 1e-6)) if data.panels else None
    return environment.get_template("report.html").render(
        verdict=verdict,
        words=words(verdict),
        span=duration(round(seconds * 1e9)),
        example=proofs[0] if proofs else None,
        proofs=proofs,
        explanations=EXPLANATIONS,
        checked=checked_and_not(verdict),
        run=drawn,
        has_roles=bool(bands),
        has_all_events=len(data.events) < EVENTS_MAX,
        faults=marks[:FAULTS_LISTED],
        more_faults=len(marks) - FAULTS_LISTED,
        findings=[_finding(verdict.anomalies[place], place, data, first_ns) for place in places],
        findings_open=FINDINGS_OPEN,
        lines_listed=LINES_LISTED,
        clients=identities(
            [
                *operations_of(listed),
                *(operation for window in data.windows.values() for operation in window.operations),
            ]
        ),
    )


def places_to_list(anomalies: Sequence[Anomaly]) -> list[int]:
    """The first findings, at most `FINDINGS_LISTED`, and some of each kind; in their order."""
    rank: dict[int, int] = {}
    of_kind = Counter[str]()
    for place, one in enumerate(anomalies):
        rank[place] = of_kind[one.kind]
        of_kind[one.kind] += 1
    return sorted(sorted(rank, key=lambda place: (rank[place], place))[:FINDINGS_LISTED])


def _finding(anomaly: Anomaly, place: int, data: ReportData, first_ns: int) -> Finding:
    around = data.windows[place].operations if place in data.windows else ()
    evidence = data.evidence.get(place, ())
    lines = tuple(describe(one, first_ns) for one in stories.operations_told(anomaly, around))
    return Finding(
        anomaly.kind,
        stories.place_of(anomaly),
        tuple(stories.story(anomaly, first_ns, around)),
        lines or tuple(sentence(event, first_ns) for event in evidence),
    )

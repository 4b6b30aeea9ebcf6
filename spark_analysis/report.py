"""The report: one HTML page without scripts or network, the answer in words first (its design: templates/report.html).

`report_data.py` brings a bounded part of the history to the driver, `figures.py` draws it, so that the page shows the
same everywhere and for ever, and has about one size.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_analysis import figures
from spark_analysis.console import describe
from spark_analysis.figures import Band, Mark
from spark_analysis.history import History
from spark_analysis.report_data import (
    Event,
    bars_around,
    events_of,
    evidence_of,
    fault_marks,
    panels_of,
    role_bands,
    smallest_proof,
    window_of,
)
from spark_analysis.verdict import EXPLANATIONS, LINEARIZABLE, UNDECIDED, VIOLATED, Anomaly, Verdict

FAULTS_LISTED: Final = 60
PROOFS_LISTED: Final = 40
PROOFS_OPEN: Final = 3

# What is promised, the functions that it takes to judge it, and the anomalies that break it.
_PROMISES: Final = (
    (
        "acknowledged appends have offsets of their own, in real-time order, with nothing lost or invented between",
        ("append",),
        (
            *("duplicate-offset", "append-order", "nonmonotonic-send", "torn-append", "unexplained-offset"),
            *("duplicate-value", "lost-write", "unseen"),
        ),
    ),
    (
        "reads agree with appends and with each other, and are never stale",
        ("read", "poll"),
        (
            *("inconsistent-offset", "stale-read", "premature-read", "torn-read", "aborted-read"),
            *("phantom-value", "unexplained-value", "duplicate-value"),
        ),
    ),
    (
        "consumers' polls go forward and pass over nothing",
        ("poll",),
        ("poll-skip", "nonmonotonic-poll", "int-poll-skip", "int-nonmonotonic-poll"),
    ),
    ("queries of a queue's ends are never stale", ("tail", "head"), ("stale-tail", "backward-head")),
    (
        "committed offsets behave like registers",
        ("commit_offset", "fetch_offset"),
        ("stale-offset", "phantom-offset"),
    ),
)
_REPLICAS_PROMISE: Final = (
    "replicas kept Raft's guarantees: one leader a term, terms and commit indices that never go back, nothing "
    "committed removed, leaders that have all that is committed, equal bytes in equal places"
)
REPLICA_ANOMALIES: Final = (
    *("two-leaders", "term-went-back", "commit-went-back", "committed-truncated", "leader-incomplete"),
    *("log-mismatch", "prefix-mismatch"),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing of the page: inline SVG, with the sentence that says how to read it."""

    title: str
    reading: str
    svg: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Proof:
    """A finding in words: what, where, and the operations or events that show it."""

    kind: str
    place: str
    detail: str
    lines: tuple[str, ...]


def write_report(verdict: Verdict, history: History | None, target: Path) -> Path:
    """Write the page for one history to the file ``target``, making its directory; returns the path."""
    import jinja2

    start_ns = verdict.facts.get("first_ns") or 0
    events = events_of(history, start_ns) if history is not None else []
    marks = fault_marks(events)
    listed = verdict.anomalies[:PROOFS_LISTED]
    evidence = evidence_of(listed, history, start_ns) if history is not None else {}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("spark_analysis", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html").render(
        verdict=verdict,
        words=words(verdict),
        explanations=EXPLANATIONS,
        checked=checked_and_not(verdict),
        proof=_proof_figure(verdict, history, events, marks) if history is not None else None,
        run=_run_figure(verdict, history, events, marks) if history is not None else None,
        faults=marks[:FAULTS_LISTED],
        more_faults=len(marks) - FAULTS_LISTED,
        proofs=[_proof(one, evidence.get(place, [])) for place, one in enumerate(listed)],
        proofs_open=PROOFS_OPEN,
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page, encoding="utf-8")
    return target


def words(verdict: Verdict) -> list[str]:
    """The answer in sentences, for somebody who has never seen the tool."""
    replicas = [kind for kind in verdict.counts if kind in REPLICA_ANOMALIES]
    clients = [kind for kind in verdict.counts if kind not in REPLICA_ANOMALIES]
    is_log = verdict.facts.get("functions") is not None
    one_copy = (
        "a single queue on a single machine"
        if is_log
        else f"a single {verdict.facts.get('model', 'object')} on a single machine"
    )
    said: list[str] = []
    if clients:
        said.append(
            f"The clients saw something that {one_copy} can never show: {_counted(verdict, clients)}."
        )
    elif verdict.verdict == VIOLATED:
        said.append(f"What the clients saw can be explained by {one_copy}, but not what the replicas did.")
    if replicas:
        said.append(f"The replicas broke Raft's guarantees: {_counted(verdict, replicas)}.")
    if verdict.verdict == LINEARIZABLE:
        said.append(
            f"Everything that the clients saw can be explained by {one_copy}: there is an order of all operations in "
            "which each takes effect at one moment between its call and its answer."
        )
    if verdict.verdict == UNDECIDED:
        said.append(
            "No violation was found, but not everything could be decided; what is open is listed below."
        )
    if any("cut" in line or "middle" in line for line in verdict.damage):
        said.append("The recording was cut off: the verdict is about what was recorded before.")
    elif verdict.damage:
        said.append("Parts of the recording could not be read: the verdict is about the rest.")
    return said


def _counted(verdict: Verdict, kinds: list[str]) -> str:
    return ", ".join(f"{kind} ({verdict.counts[kind]:,})" for kind in kinds)


def checked_and_not(verdict: Verdict) -> list[tuple[str, str]]:
    """Each promise as (holds, broken or unchecked, sentence), from what the history contains and what was found."""
    recorded = verdict.facts.get("functions")
    if recorded is None:
        state = {LINEARIZABLE: "holds", VIOLATED: "broken"}.get(verdict.verdict, "unchecked")
        return [(state, f"every key behaves like the model {verdict.facts.get('model')}")]

    def state_of(is_recorded: bool, kinds: tuple[str, ...]) -> str:
        return "broken" if verdict.counts.keys() & set(kinds) else "holds" if is_recorded else "unchecked"

    states = [
        (state_of(bool(recorded.keys() & set(needed)), kinds), text) for text, needed, kinds in _PROMISES
    ]
    states.append((state_of(bool(verdict.facts["replica_events"]), REPLICA_ANOMALIES), _REPLICAS_PROMISE))
    return [
        (state, f"{text} (nothing of the kind was recorded)" if state == "unchecked" else text)
        for state, text in states
    ]


def _proof_figure(
    verdict: Verdict, history: History, events: list[Event], marks: list[Mark]
) -> Figure | None:
    """The timeline of the smallest window that proves a violation."""
    anomaly = smallest_proof(verdict.anomalies)
    if anomaly is None:
        return None
    bars, low, high = bars_around(anomaly, history)
    zero_s: float = (window_of(anomaly)[0] - verdict.facts["first_ns"]) / 1e9

    def milliseconds(second: float) -> float:
        return (second - zero_s) * 1e3

    bands = [
        Band(
            band.node,
            band.role,
            milliseconds(band.start),
            milliseconds(band.stop),
            f"{band.role}, term {band.label}" if band.label else band.role,
        )
        for band in role_bands(events, zero_s + high / 1e3)
    ]
    inside = [
        Mark(at, mark.number, mark.text) for mark in marks if low <= (at := milliseconds(mark.at)) <= high
    ]
    where = "" if anomaly.position is None else f", offset {anomaly.position}"
    return Figure(
        f"Why: {anomaly.kind} in {anomaly.key}{where}",
        f"{anomaly.explanation.capitalize()}. A lane for each client, a bar from the call to the answer; the red bars "
        "together are the contradiction, grey ones went on around them on the same queue. Zero is "
        f"{zero_s:.3f} s after the first operation.",
        figures.timeline(bars, bands, inside, low, high),
        tuple(describe(one) for one in anomaly.proof),
    )


def _run_figure(verdict: Verdict, history: History, events: list[Event], marks: list[Mark]) -> str | None:
    if not verdict.operations:
        return None
    seconds = max(verdict.facts["seconds"], 1e-6)
    panels = panels_of(history, verdict.facts["first_ns"], seconds)
    return figures.run(panels, role_bands(events, seconds), marks, 0.0, seconds) if panels else None


def _proof(anomaly: Anomaly, evidence: list[str]) -> Proof:
    place = anomaly.key if anomaly.position is None else f"{anomaly.key} at {anomaly.position}"
    lines = tuple(describe(one) for one in anomaly.proof) or tuple(evidence)
    return Proof(anomaly.kind, place, anomaly.detail, lines)

"""The report: one HTML page without scripts or network, the answer in words first (its design: templates/report.html).

`report_data.py` brings a bounded part of the history to the driver; from there on everything is a pure function:
`stories.py` tells the findings, `figures.py` draws them, and :func:`render` puts the page together. So the page shows
the same everywhere and for ever, and has about one size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spark_analysis import figures, stories
from spark_analysis.console import describe
from spark_analysis.figures import Band, Bar, Gap, Mark
from spark_analysis.history import History
from spark_analysis.report_data import EVENTS_MAX, Event, ReportData, Window, collect_report, widened
from spark_analysis.report_parts import (
    ROLE_WORDS,
    bar_of,
    bar_of_call,
    bar_of_event,
    fault_marks,
    role_bands,
    sentence,
)
from spark_analysis.verdict import (
    EXPLANATIONS,
    LINEARIZABLE,
    REPLICA_ANOMALIES,
    UNDECIDED,
    VIOLATED,
    Anomaly,
    Verdict,
)

FAULTS_LISTED: Final = 60
FINDINGS_LISTED: Final = 40
FINDINGS_OPEN: Final = 3
REPLICA_FIGURES: Final = 4
LINES_LISTED: Final = 50

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
    (
        "answers about a queue's beginning and end are never stale",
        ("tail", "head"),
        ("stale-tail", "backward-head"),
    ),
    (
        "the positions that consumer groups store are read back as they were stored",
        ("commit_offset", "fetch_offset"),
        ("stale-offset", "phantom-offset"),
    ),
)
_TRANSACTIONS_PROMISE: Final = (
    "transactions are whole, in order, and see of each other only what was committed"
)
_TRANSACTION_ANOMALIES: Final = (
    *("int-send-skip", "int-nonmonotonic-send", "precommitted-read", "G1c", "G1c-realtime"),
)
_REPLICAS_PROMISE: Final = (
    "replicas kept Raft's guarantees: one leader a term, terms and commit indices that never go back, nothing "
    "committed removed, leaders that have all that is committed, equal bytes in equal places"
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing of the page: inline SVG, with the story that it shows, how to read it, and its operations as text."""

    kind: str
    place: str
    story: tuple[str, ...]
    reading: str
    svg: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding in words: what, where, and the operations or events that show it."""

    kind: str
    place: str
    story: tuple[str, ...]
    lines: tuple[str, ...]


def write_report(verdict: Verdict, history: History | None, target: Path) -> Path:
    """Write the page for one history to the file ``target``, making its directory; returns the path."""
    data = ReportData() if history is None else collect_report(verdict, history)
    page = render(verdict, data)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page, encoding="utf-8")
    return target


def render(verdict: Verdict, data: ReportData) -> str:
    """The page."""
    import jinja2

    first_ns = verdict.facts.get("first_ns") or 0
    seconds = verdict.facts.get("seconds", 0.0)
    marks = fault_marks(data.events, first_ns)
    proofs = proof_figures(verdict, data, marks)
    listed = verdict.anomalies[:FINDINGS_LISTED]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("spark_analysis", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    bands = role_bands(data.events, seconds, first_ns)
    run = figures.run(data.panels, bands, marks, 0.0, max(seconds, 1e-6)) if data.panels else None
    return environment.get_template("report.html").render(
        verdict=verdict,
        words=words(verdict),
        example=proofs[0] if proofs else None,
        proofs=proofs,
        explanations=EXPLANATIONS,
        checked=checked_and_not(verdict),
        run=run,
        has_roles=bool(bands),
        has_all_events=len(data.events) < EVENTS_MAX,
        faults=marks[:FAULTS_LISTED],
        more_faults=len(marks) - FAULTS_LISTED,
        findings=[_finding(one, data.evidence.get(place, ()), first_ns) for place, one in enumerate(listed)],
        findings_open=FINDINGS_OPEN,
        lines_listed=LINES_LISTED,
    )


# ---- words ---------------------------------------------------------------------------------------------------------


def words(verdict: Verdict) -> list[str]:
    """The answer in sentences, for somebody who has never seen the tool."""
    clients = [kind for kind in verdict.counts if kind not in REPLICA_ANOMALIES]
    replicas = [kind for kind in verdict.counts if kind in REPLICA_ANOMALIES]
    is_log = verdict.facts.get("functions") is not None
    one_copy = f"a single {'queue' if is_log else verdict.facts.get('model', 'object')} on a single machine"
    said: list[str] = []
    if clients:
        said.append(f"The clients saw something that {one_copy} can never show.")
    elif verdict.verdict == VIOLATED:
        said.append(
            f"What the clients saw can be explained by {one_copy}, but the replicas broke guarantees that keep it so."
            if verdict.operations
            else "The replicas broke guarantees of Raft; no client's operations were recorded."
        )
    if clients and replicas:
        said.append("The replicas broke guarantees of Raft, too.")
    if verdict.verdict == LINEARIZABLE:
        said.append(
            f"Everything that the clients saw can be explained by {one_copy}: there is an order of all operations in "
            "which each takes effect at one moment between its call and its answer."
            if verdict.operations
            else "Not one operation of a client is in the recording: there was nothing to contradict."
        )
    if verdict.verdict == UNDECIDED:
        said.append(
            "No violation was found, but not everything could be decided; what is open is listed below."
            if verdict.operations or not verdict.damage
            else "Nothing of the recording could be read: there is no answer."
        )
    if not verdict.operations:
        return said
    if any("cut" in line or "middle" in line for line in verdict.damage):
        said.append("The recording was cut off: the verdict is about what was recorded before.")
    elif verdict.damage:
        said.append("Parts of the recording could not be read: the verdict is about the rest.")
    return said


def checked_and_not(verdict: Verdict) -> list[tuple[str, str]]:
    """Each promise as (holds, broken, open or unchecked, sentence), from what was recorded and what was found."""
    recorded = verdict.facts.get("functions")
    if recorded is None:
        state = {LINEARIZABLE: "holds", VIOLATED: "broken"}.get(verdict.verdict, "open")
        return [(state, f"every key behaves like the model {verdict.facts.get('model')}")]

    def state_of(is_recorded: bool, kinds: Sequence[str]) -> str:
        if verdict.counts.keys() & set(kinds):
            return "broken"
        if any(
            f"{kind} at " in line or line.startswith(f"{kind}:")
            for line in verdict.undecided
            for kind in kinds
        ):
            return "open"
        return "holds" if is_recorded else "unchecked"

    states = [
        (state_of(bool(recorded.keys() & set(needed)), kinds), text) for text, needed, kinds in _PROMISES
    ]
    if verdict.facts.get("transactions"):
        states.append((state_of(True, _TRANSACTION_ANOMALIES), _TRANSACTIONS_PROMISE))
    states.append((state_of(bool(verdict.facts["replica_events"]), REPLICA_ANOMALIES), _REPLICAS_PROMISE))
    return [
        (state, f"{text} (nothing of the kind was recorded)" if state == "unchecked" else text)
        for state, text in states
    ]


def _finding(anomaly: Anomaly, evidence: Sequence[Event], first_ns: int) -> Finding:
    lines = tuple(describe(one, first_ns) for one in anomaly.proof)
    return Finding(
        anomaly.kind,
        stories.place_of(anomaly),
        tuple(stories.story(anomaly, first_ns)),
        lines or tuple(sentence(event, first_ns) for event in evidence),
    )


# ---- figures -------------------------------------------------------------------------------------------------------


def proof_figures(verdict: Verdict, data: ReportData, marks: Sequence[Mark]) -> list[Figure]:
    """A timeline for the smallest proof of each kind: those of clients first, the smallest of all at the beginning."""
    first_ns = verdict.facts.get("first_ns") or 0
    drawn = [
        _client_figure(verdict.anomalies[place], window, data.events, marks, first_ns)
        for place, window in data.windows.items()
    ]
    kinds: set[str] = set()
    for place, events in data.evidence.items():
        anomaly = verdict.anomalies[place]
        if anomaly.kind not in kinds and len(kinds) < REPLICA_FIGURES:
            kinds.add(anomaly.kind)
            drawn.append(_replica_figure(anomaly, events, data.events, marks, first_ns))
    calls = [one for one in verdict.anomalies if one.kind == "not-linearizable" and one.proof]
    drawn += [_call_figure(one) for one in calls[:1]]
    return drawn


@dataclass(frozen=True, slots=True)
class _Scale:
    """Nanoseconds of the history to the numbers on a drawing's axis, which counts from ``zero_ns``."""

    zero_ns: int
    unit_ns: float
    unit: str

    @classmethod
    def of(cls, zero_ns: int, span_ns: int) -> _Scale:
        """The unit in which a span is a number of one to four digits."""
        for unit_ns, unit in ((1e9, "seconds"), (1e6, "milliseconds"), (1e3, "microseconds")):
            if span_ns >= 5 * unit_ns:
                return cls(zero_ns, unit_ns, unit)
        return cls(zero_ns, 1.0, "nanoseconds")

    def __call__(self, at_ns: float) -> float:
        return (at_ns - self.zero_ns) / self.unit_ns

    def bands(self, events: Sequence[Event], until_ns: int) -> list[Band]:
        """Roles with the leader's term spelled out, as these pictures have room."""
        return [
            Band(
                band.node,
                band.role,
                self(band.start * 1e9),
                self(band.stop * 1e9),
                f"{ROLE_WORDS.get(band.role, band.role)}{', ' if band.label else ''}{band.label}",
            )
            for band in role_bands(events, until_ns / 1e9, 0)
        ]

    def marks(self, marks: Sequence[Mark], first_ns: int, low: float, high: float) -> list[Mark]:
        """Those within the drawing."""
        moved = [Mark(self(mark.at * 1e9 + first_ns), mark.number, mark.text) for mark in marks]
        return [mark for mark in moved if low <= mark.at <= high]

    def axis(self, first_ns: int) -> str:
        """The axis' caption."""
        return f"{self.unit}, counted from {(self.zero_ns - first_ns) / 1e9:,.6f} s after the first operation"


def _client_figure(
    anomaly: Anomaly, window: Window, events: Sequence[Event], marks: Sequence[Mark], first_ns: int
) -> Figure:
    pair = stories.contradiction(anomaly, window.operations)
    proof = {*window.proof, *(one["op"] for one in pair or ())}
    window = widened(window, pair or ())
    scale = _Scale.of(window.begin_ns, window.high_ns - window.low_ns)
    low, high = scale(window.low_ns), scale(window.high_ns)
    gap = None
    if pair is not None:
        begin, end = pair[0]["complete_ns"], pair[1]["invoke_ns"]
        gap = Gap(scale(begin), scale(end), f"{stories.duration(end - begin)} between")
    bars = [
        bar_of(one, one["op"] in proof, scale, window.low_ns, window.high_ns) for one in window.operations
    ]
    lines = [describe(one, first_ns) for one in sorted(window.operations, key=_begin) if one["op"] in proof]
    return _figure(
        anomaly,
        bars,
        scale,
        (low, high),
        events,
        marks,
        first_ns,
        window.high_ns,
        gap,
        tuple(lines),
        tuple(stories.story(anomaly, first_ns, window.operations)),
    )


def _begin(operation: dict[str, Any]) -> int:
    begin: int = operation["invoke_ns"]
    return begin


def _replica_figure(
    anomaly: Anomaly,
    evidence: Sequence[Event],
    events: Sequence[Event],
    marks: Sequence[Mark],
    first_ns: int,
) -> Figure:
    begin, end = evidence[0].time_ns, evidence[-1].time_ns
    margin = max(1_000_000, (end - begin) // 3)
    scale = _Scale.of(begin, end - begin + 2 * margin)
    bars = [bar_of_event(event, scale) for event in evidence]
    borders = scale(begin - margin), scale(end + margin)
    lines = tuple(sentence(event, first_ns) for event in evidence)
    told = tuple(stories.story(anomaly, first_ns))
    return _figure(anomaly, bars, scale, borders, events, marks, first_ns, end + margin, None, lines, told)


def _figure(
    anomaly: Anomaly,
    bars: Sequence[Bar],
    scale: _Scale,
    borders: tuple[float, float],
    events: Sequence[Event],
    marks: Sequence[Mark],
    first_ns: int,
    until_ns: int,
    gap: Gap | None,
    lines: tuple[str, ...],
    told: tuple[str, ...],
) -> Figure:
    low, high = borders
    bands, inside = scale.bands(events, until_ns), scale.marks(marks, first_ns, low, high)
    who = "replica" if anomaly.kind in REPLICA_ANOMALIES else "client"
    what = (
        "each red mark something that it recorded"
        if who == "replica"
        else "each bar an operation from its call to its answer; the red ones together are the contradiction, the grey "
        "ones went on around them on the same queue"
    )
    behind = (
        " Below, what the replicas were meanwhile; a yellow ground is a time without a leader."
        if bands
        else ""
    )
    return Figure(
        anomaly.kind,
        stories.place_of(anomaly),
        told,
        f"Each row is a {who}, {what}.{behind}",
        figures.timeline(bars, bands, inside, low, high, unit=scale.axis(first_ns), gap=gap),
        lines,
    )


def _call_figure(anomaly: Anomaly) -> Figure:
    """What a search was left with: times of these formats may be mere positions in the file."""
    ends = [one["complete_ns"] or one["invoke_ns"] for one in anomaly.proof]
    low, high = min(one["invoke_ns"] for one in anomaly.proof), max(ends)
    margin = max(1, (high - low) // 12)
    bars = [bar_of_call(one, number > 0) for number, one in enumerate(anomaly.proof)]
    return Figure(
        anomaly.kind,
        stories.place_of(anomaly),
        tuple(stories.story(anomaly)),
        "Each row is a client, each bar an operation from its call to its answer. Grey is the last operation that "
        "could be put in order, red are those of which none can follow.",
        figures.timeline(bars, [], [], low - margin, high + margin, unit="the history's own clock"),
        tuple(describe(one) for one in anomaly.proof),
    )

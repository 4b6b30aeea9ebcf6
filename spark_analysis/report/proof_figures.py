"""The proofs as drawings: one for each kind of finding, with its story and how to read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark_analysis import stories
from spark_analysis.console import describe
from spark_analysis.report.lanes import Band, Mark
from spark_analysis.report.parts import ROLE_WORDS, bar_of, bar_of_call, bar_of_event, role_bands, sentence
from spark_analysis.report.tables import Event, ReportData, Window
from spark_analysis.report.timeline import Bar, Gap, timeline
from spark_analysis.report.windows import fitted
from spark_analysis.stories.words import duration
from spark_analysis.verdict import REPLICA_ANOMALIES, Anomaly, Verdict

REPLICA_FIGURES: Final = 4


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing of the page: inline SVG, with the story that it shows, how to read it, and its operations as text."""

    kind: str
    place: str
    story: tuple[str, ...]
    reading: str
    svg: str
    lines: tuple[str, ...] = ()


def proof_figures(verdict: Verdict, data: ReportData, marks: Sequence[Mark]) -> list[Figure]:
    """A timeline for the smallest proof of each kind: those of clients first, the smallest of all at the beginning."""
    first_ns = verdict.facts.get("first_ns") or 0
    drawn = [
        _client_figure(verdict.anomalies[place], window, data.events, marks, first_ns)
        for place, window in data.windows.items()
    ]
    of_replicas: dict[str, int] = {}
    for place in data.evidence:
        of_replicas.setdefault(verdict.anomalies[place].kind, place)
    # REPLICA_ANOMALIES begins with what causes the others.
    for place in [of_replicas[kind] for kind in REPLICA_ANOMALIES if kind in of_replicas][:REPLICA_FIGURES]:
        drawn.append(
            _replica_figure(verdict.anomalies[place], data.evidence[place], data.events, marks, first_ns)
        )
    calls = [one for one in verdict.anomalies if one.kind == "not-linearizable" and one.proof]
    drawn += [_call_figure(one) for one in calls[:1]]
    return drawn


@dataclass(frozen=True, slots=True)
class _Scale:
    """Nanoseconds of the history to the numbers on a drawing's axis, which counts from ``zero_ns``."""

    first_ns: int
    """The first operation's beginning, from which the stories count."""
    zero_ns: int
    unit_ns: float
    unit: str

    @classmethod
    def of(cls, first_ns: int, begin_ns: int, span_ns: int) -> _Scale:
        """The unit in which a span is a number of one to four digits; seconds count as in the stories."""
        if span_ns >= 5e9:
            return cls(first_ns, first_ns, 1e9, "seconds")
        for unit_ns, unit in ((1e6, "milliseconds"), (1e3, "microseconds")):
            if span_ns >= 5 * unit_ns:
                return cls(first_ns, begin_ns, unit_ns, unit)
        return cls(first_ns, begin_ns, 1.0, "nanoseconds")

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

    def marks(self, marks: Sequence[Mark], low: float, high: float) -> list[Mark]:
        """Those within the drawing."""
        moved = [Mark(self(mark.at * 1e9 + self.first_ns), mark.number, mark.text) for mark in marks]
        return [mark for mark in moved if low <= mark.at <= high]

    @property
    def caption(self) -> str:
        """The axis'."""
        after = self.zero_ns - self.first_ns
        return (
            f"{self.unit}{f', counted from {after / 1e9:,.6f} s' if after else ''} after the first operation"
        )


def _client_figure(
    anomaly: Anomaly, window: Window, events: Sequence[Event], marks: Sequence[Mark], first_ns: int
) -> Figure:
    pair = stories.contradiction(anomaly, window.operations)
    decisive = stories.decisive(anomaly, window.operations)
    proof = {one["op"] for one in decisive}
    window = fitted(window, decisive)
    scale = _Scale.of(first_ns, window.begin_ns, window.high_ns - window.low_ns)
    low, high = scale(window.low_ns), scale(window.high_ns)
    gap = None
    if pair is not None:
        begin, end = pair[0]["complete_ns"], pair[1]["invoke_ns"]
        gap = Gap(scale(begin), scale(end), f"{duration(end - begin)} between")
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
    scale = _Scale.of(first_ns, begin, end - begin + 2 * margin)
    bars = [bar_of_event(event, scale) for event in evidence]
    borders = scale(begin - margin), scale(end + margin)
    lines = tuple(sentence(event, first_ns) for event in evidence)
    told = tuple(stories.story(anomaly, first_ns))
    return _figure(anomaly, bars, scale, borders, events, marks, end + margin, None, lines, told)


def _figure(
    anomaly: Anomaly,
    bars: Sequence[Bar],
    scale: _Scale,
    borders: tuple[float, float],
    events: Sequence[Event],
    marks: Sequence[Mark],
    until_ns: int,
    gap: Gap | None,
    lines: tuple[str, ...],
    told: tuple[str, ...],
) -> Figure:
    low, high = borders
    bands, inside = scale.bands(events, until_ns), scale.marks(marks, low, high)
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
        timeline(bars, bands, inside, low, high, unit=scale.caption, gap=gap),
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
        timeline(bars, [], [], low - margin, high + margin, unit="the history's own clock"),
        tuple(describe(one) for one in anomaly.proof),
    )

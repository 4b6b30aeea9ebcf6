"""The proofs as drawings: one for each kind of finding, with its story and how to read it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from spark_analysis.checking.verdict import REPLICA_ANOMALIES, Anomaly, Verdict
from spark_analysis.telling import stories
from spark_analysis.telling.console import describe
from spark_analysis.telling.report.lanes import Band, Mark
from spark_analysis.telling.report.parts import (
    ROLE_WORDS,
    bar_of,
    bar_of_call,
    bar_of_event,
    role_bands,
    sentence,
)
from spark_analysis.telling.report.tables import ReportData, TracedEvent, Window
from spark_analysis.telling.report.timeline import Bar, Gap, timeline
from spark_analysis.telling.report.windows import fitted
from spark_analysis.telling.stories.words import duration

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
    """A timeline for the smallest proof of each kind: clients' first, and of these what is understood best."""
    draw = _Draughtsman(data.events, marks, verdict.facts.get("first_ns") or 0)
    drawn = [draw.clients(verdict.anomalies[place], window) for place, window in data.windows.items()]
    of_replicas: dict[str, int] = {}
    for place in data.evidence:
        of_replicas.setdefault(verdict.anomalies[place].kind, place)
    # REPLICA_ANOMALIES begins with what causes the others.
    for place in [of_replicas[kind] for kind in REPLICA_ANOMALIES if kind in of_replicas][:REPLICA_FIGURES]:
        drawn.append(draw.replicas(verdict.anomalies[place], data.evidence[place]))
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
    def of(cls, first_ns: int, begin_ns: int, span_ns: int) -> Self:
        """The unit in which a span is a number of one to four digits; seconds count as in the stories."""
        if span_ns >= 5e9:
            return cls(first_ns, first_ns, 1e9, "seconds")
        for unit_ns, unit in ((1e6, "milliseconds"), (1e3, "microseconds")):
            if span_ns >= 5 * unit_ns:
                return cls(first_ns, begin_ns, unit_ns, unit)
        return cls(first_ns, begin_ns, 1.0, "nanoseconds")

    def __call__(self, at_ns: float) -> float:
        return (at_ns - self.zero_ns) / self.unit_ns

    def bands(self, events: Sequence[TracedEvent], until_ns: int) -> list[Band]:
        """Roles with the leader's term spelled out, as these pictures have room."""
        return [
            Band(
                band.node,
                band.role,
                self(band.start * 1e9),
                self(band.stop * 1e9),
                f"{ROLE_WORDS.get(band.role, band.role)}{', ' if band.label else ''}{band.label}",
                band.group,
            )
            for band in role_bands(events, until_ns / 1e9, 0)
        ]

    def marks(self, marks: Sequence[Mark], low: float, high: float) -> list[Mark]:
        """The faults within the drawing."""
        moved = [Mark(self(mark.at * 1e9 + self.first_ns), mark.number, mark.text) for mark in marks]
        return [mark for mark in moved if low <= mark.at <= high]

    @property
    def caption(self) -> str:
        """The caption of the axis."""
        after = self.zero_ns - self.first_ns
        return (
            f"{self.unit}{f', counted from {after / 1e9:,.6f} s' if after else ''} after the first operation"
        )


@dataclass(frozen=True, slots=True)
class _Draughtsman:
    """Draws proofs in front of what all of them share: roles, faults (in seconds), the first operation's moment."""

    events: Sequence[TracedEvent]
    faults: Sequence[Mark]
    first_ns: int

    def clients(self, anomaly: Anomaly, window: Window) -> Figure:
        """Operations around a finding, those that decide in red."""
        decisive = stories.decisive(anomaly, window.operations)
        proof = {one["op"] for one in decisive}
        told = stories.story(anomaly, self.first_ns, window.operations)
        pair = stories.contradiction(anomaly, window.operations)
        # The decisive operations may be far apart: all of them must be seen, and some of what went on around them.
        window = fitted(window, decisive)
        scale = _Scale.of(self.first_ns, window.begin_ns, window.high_ns - window.low_ns)
        gap = None
        if pair is not None:
            begin, end = pair[0]["complete_ns"], pair[1]["invoke_ns"]
            gap = Gap(scale(begin), scale(end), f"{duration(end - begin)} between")
        bars = [
            bar_of(one, one["op"] in proof, scale, window.low_ns, window.high_ns) for one in window.operations
        ]
        red = sorted((one for one in window.operations if one["op"] in proof), key=_begin)
        lines = [describe(one, self.first_ns) for one in red]
        reading = (
            "Each row is a client, each bar an operation from its call to its answer; the red ones together are the "
            "contradiction, the grey ones went on around them on the same queue."
        )
        drawing, note = self._drawing(
            bars, scale, window.low_ns, window.high_ns, self._group_of(anomaly.key), gap
        )
        return _figure(anomaly, told, reading + note, drawing, lines)

    def replicas(self, anomaly: Anomaly, evidence: Sequence[TracedEvent]) -> Figure:
        """The events of replicas, as marks."""
        begin, end = evidence[0].time_ns, evidence[-1].time_ns
        margin = max(1_000_000, (end - begin) // 3)
        scale = _Scale.of(self.first_ns, begin, end - begin + 2 * margin)
        bars = [bar_of_event(event, scale) for event in evidence]
        lines = [sentence(event, self.first_ns) for event in evidence]
        reading = "Each row is a replica, each red mark something that it recorded."
        group = evidence[0].group or ""
        drawing, note = self._drawing(bars, scale, begin - margin, end + margin, group)
        return _figure(anomaly, stories.story(anomaly, self.first_ns), reading + note, drawing, lines)

    def _group_of(self, queue: str) -> str | None:
        """The group that has a queue, where the queue is called as Trivet's client calls it, orders/broker-a:2."""
        groups = {one.group for one in self.events if one.group}
        return next((group for group in groups if f"/{group}:" in queue), None)

    def _drawing(
        self,
        bars: Sequence[Bar],
        scale: _Scale,
        low_ns: int,
        high_ns: int,
        group: str | None,
        gap: Gap | None = None,
    ) -> tuple[str, str]:
        """The SVG, and a sentence about what stands behind the bars."""
        low, high = scale(low_ns), scale(high_ns)
        bands, faults = scale.bands(self.events, high_ns), scale.marks(self.faults, low, high)
        note = " Below, what the replicas were meanwhile; a yellow ground is a time without a leader."
        drawing = timeline(bars, bands, faults, low, high, unit=scale.caption, gap=gap, group=group)
        return drawing, note if bands else ""


def _begin(operation: dict[str, Any]) -> int:
    begin: int = operation["invoke_ns"]
    return begin


def _figure(
    anomaly: Anomaly, told: Sequence[str], reading: str, drawing: str, lines: Sequence[str]
) -> Figure:
    return Figure(anomaly.kind, stories.place_of(anomaly), tuple(told), reading, drawing, tuple(lines))


def _call_figure(anomaly: Anomaly) -> Figure:
    """Draw the operations that have no order: times of these formats may be mere positions in the file."""
    ends = [one["complete_ns"] or one["invoke_ns"] for one in anomaly.proof]
    low, high = min(one["invoke_ns"] for one in anomaly.proof), max(ends)
    margin = max(1, (high - low) // 12)
    is_dead_end = anomaly.is_dead_end
    bars = [bar_of_call(one, number > 0 or not is_dead_end) for number, one in enumerate(anomaly.proof)]
    reading = "Each row is a client, each bar an operation from its call to its answer. " + (
        "Grey is the last operation that could be put in order, red are those of which none can follow."
        if is_dead_end
        else "Together they have no order."
    )
    drawing = timeline(bars, [], [], low - margin, high + margin, unit="the history's own clock")
    return _figure(
        anomaly, stories.story(anomaly), reading, drawing, [describe(one) for one in anomaly.proof]
    )

"""The report's drawings: plain data in, SVG text out.

Drawn by hand rather than by a plotting library, because the two pictures that matter are no plots: lanes of operations
whose labels must not cover each other, and panels that share one axis of time with the faults through all of them.
Texts are placed by an upper estimate of their width. Colours are classes of the page (templates/report.html). What is
drawn is bounded by the callers, whatever the history's size, and what would be narrower than a pixel is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 980
LEFT: Final = 140
RIGHT: Final = 24
_PLOT: Final = WIDTH - LEFT - RIGHT
_CHARACTER: Final = 7.6
"""An upper estimate of the mean width of a character of the drawings' 12 pixel font."""
_ROW: Final = 22
_FLAG: Final = 18
_FLAG_ROOM: Final = 60
"""Two numbers of three digits and a dash, and some air."""
_MANY_MARKS: Final = 12
"""From so many faults on, their lines are drawn faintly: together they would hide what they go through."""
_PIXEL: Final = 0.7
_KEY: Final = 20
"""A piece of a line in the legend, and air before its name."""
SERIES: Final = ("s0", "s1", "s2", "s3", "s4", "s5")
"""Classes of the page's colours for lines."""


@dataclass(frozen=True, slots=True)
class Bar:
    """An operation on the lane of its client. ``stop`` None: nobody knows when it ended."""

    lane: str
    start: float
    stop: float | None
    label: str
    is_proof: bool
    tooltip: str


@dataclass(frozen=True, slots=True)
class Band:
    """A replica's role for a while; ``label`` is drawn where it fits."""

    node: str
    role: str
    start: float
    stop: float
    label: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that was done to the system, and its number in the report's list."""

    at: float
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Gap:
    """From the end of one operation to the beginning of another that contradicts it."""

    start: float
    stop: float
    label: str


@dataclass(frozen=True, slots=True)
class Series:
    """A line: (time, value) in order of time; None interrupts it."""

    name: str
    points: Sequence[tuple[float, float | None]]


@dataclass(frozen=True, slots=True)
class Panel:
    """A small plot among others over the same time."""

    title: str
    unit: str
    series: Sequence[Series]
    is_logarithmic: bool = False


class Axis:
    """Time from left to right. A history of one moment gets a width too."""

    def __init__(self, start: float, stop: float) -> None:
        self.start = start
        self.stop = stop if stop > start else start + 1e-6

    def x(self, at: float) -> float:
        """The place of a time, at the border if it is outside."""
        inside = min(max(at, self.start), self.stop)
        return LEFT + (inside - self.start) / (self.stop - self.start) * _PLOT

    def ticks(self) -> list[float]:
        """Round times, some eight of them."""
        return round_steps(self.start, self.stop, 8)


def round_steps(start: float, stop: float, about: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between two numbers."""
    raw = max((stop - start) / about, 1e-12)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    first = math.ceil(start / step - 1e-9)
    return [number * step for number in range(first, math.floor(stop / step + 1e-9) + 1)]


def shortened(text: str, width: float) -> str:
    """The text, or its two ends around dots, so that it fits into so many pixels; empty if nothing would."""
    room = int(width / _CHARACTER)
    if len(text) <= room:
        return text
    if room < 4:
        return ""
    return f"{text[: room - room // 2 - 1]}…{text[len(text) - room // 2 :]}"


def text_width(text: str) -> float:
    """An upper estimate, in pixels."""
    return len(text) * _CHARACTER


# ---- the proof -----------------------------------------------------------------------------------------------------


def timeline(
    bars: Sequence[Bar],
    bands: Sequence[Band],
    marks: Sequence[Mark],
    start: float,
    stop: float,
    *,
    unit: str = "milliseconds",
    gap: Gap | None = None,
) -> str:
    """Clients as lanes, each operation from invocation to completion; replicas below.

    Times without a leader, faults and the ``gap`` between what had ended and what began go through all lanes.
    """
    axis = Axis(start, stop)
    top = (_FLAG if marks else 0) + 8.0
    stripes: list[str] = []
    content: list[str] = []
    y = top + (_ROW if gap is not None else 0)
    for number, (lane, rows) in enumerate(_in_rows(bars, axis)):
        height = _ROW * len(rows) + 6
        if number % 2 == 0:
            stripes.append(_rectangle(0, y, WIDTH, height, "stripe"))
        content.append(_text(LEFT - 8, y + height / 2 + 4, shortened(lane, LEFT - 14), "end", lane))
        for index, row in enumerate(rows):
            content += [_bar(bar, placed, axis, y + 3 + index * _ROW) for bar, placed in row]
        y += height
    clients_end = y
    if bands:
        y += 10
        content.append(_text(0, y + 12, "replicas", "start", "", "small"))
        drawn, y = _roles(bands, axis, y)
        content += drawn
        stripes.append(_no_leader(bands, axis, top, clients_end))
    if gap is not None:
        content += _gap(gap, axis, top, clients_end)
    behind = [*stripes, *_grid(axis, top, y), *_fault_lines(marks, axis, y)]
    return _svg(y + 38, [*behind, *content, *_flags(marks, axis), *_time_axis(axis, y, unit)])


def _gap(gap: Gap, axis: Axis, top: float, bottom: float) -> list[str]:
    """What ended and what began, as two lines through the lanes, and how far they are apart."""
    begin, end = axis.x(gap.start), axis.x(gap.stop)
    y, width = top + 11, text_width(gap.label)
    place, anchor = (end + 6, "start") if end + 6 + width <= WIDTH else (begin - 6, "end")
    if width + 12 <= end - begin:
        place, anchor = (begin + end) / 2, "middle"
    arrow = f'<path class="gap" d="M{begin:.1f} {y + 4}V{bottom:.1f}M{end:.1f} {y + 4}V{bottom:.1f}"/>'
    bar = f'<path class="gap-span" d="M{begin:.1f} {y + 6}H{end:.1f}"/>'
    return [
        f"<g><title>{escape(gap.label)}</title>{arrow}{bar}</g>",
        _text(place, y, gap.label, anchor, "", "gap-text"),
    ]


@dataclass(frozen=True, slots=True)
class _Placed:
    """Where a bar's label stands: x, SVG anchor, the text that fits."""

    x: float
    anchor: str
    label: str


def _in_rows(bars: Sequence[Bar], axis: Axis) -> list[tuple[str, list[list[tuple[Bar, _Placed]]]]]:
    """Lanes with the proof first; in each, rows in which neither bars nor labels overlap."""
    by_lane: dict[str, list[Bar]] = {}
    for bar in sorted(bars, key=lambda bar: (bar.start, bar.lane)):
        by_lane.setdefault(bar.lane, []).append(bar)
    order = sorted(by_lane, key=lambda lane: (not any(bar.is_proof for bar in by_lane[lane]), lane))
    found = []
    for lane in order:
        rows: list[list[tuple[Bar, _Placed]]] = []
        ends: list[float] = []
        for bar in by_lane[lane]:
            placed, left, right = _label(bar, axis)
            row = next((index for index, end in enumerate(ends) if left >= end), len(rows))
            if row == len(rows):
                rows.append([])
                ends.append(0.0)
            rows[row].append((bar, placed))
            ends[row] = right + 6
        found.append((lane, rows))
    return found


def _label(bar: Bar, axis: Axis) -> tuple[_Placed, float, float]:
    """The label inside the bar if it fits, else right of it, else left of it; and the room that both take."""
    begin, end = axis.x(bar.start), axis.x(axis.stop if bar.stop is None else bar.stop)
    end = max(end, begin + 3)
    width = text_width(bar.label)
    if width + 10 <= end - begin:
        return _Placed(begin + 5, "start", bar.label), begin, end
    if end + 5 + width <= WIDTH:
        return _Placed(end + 5, "start", bar.label), begin, end + 5 + width
    if begin - 5 - width >= LEFT:
        return _Placed(begin - 5, "end", bar.label), begin - 5 - width, end
    return _Placed(begin + 5, "start", shortened(bar.label, end - begin - 10)), begin, end


def _bar(bar: Bar, placed: _Placed, axis: Axis, y: float) -> str:
    begin, end = axis.x(bar.start), axis.x(axis.stop if bar.stop is None else bar.stop)
    kind = "proof" if bar.is_proof else "other"
    shape = _rectangle(
        begin, y, max(3.0, end - begin), _ROW - 5, f"{kind} open" if bar.stop is None else kind
    )
    inside = placed.anchor == "start" and placed.x < end
    label = _text(placed.x, y + 12, placed.label, placed.anchor, "", f"on-{kind}" if inside else "")
    return f"<g><title>{escape(bar.tooltip)}</title>{shape}{label}</g>"


# ---- the whole run -------------------------------------------------------------------------------------------------


def run(
    panels: Sequence[Panel], bands: Sequence[Band], marks: Sequence[Mark], start: float, stop: float
) -> str:
    """Panels over one axis of time in seconds: roles of the replicas, then each plot; faults through all of them."""
    axis = Axis(start, stop)
    top = (_FLAG if marks else 0) + 8.0
    content: list[str] = []
    y = top
    if bands:
        y += 18
        content.append(_title(y - 5, "Replicas", "who led, and in which term"))
        drawn, y = _roles(bands, axis, y)
        content += drawn
        y += 14
    for panel in panels:
        drawn, y = _plot(panel, axis, y)
        content += drawn
    behind = [*_grid(axis, top, y), *_fault_lines(marks, axis, y)]
    return _svg(y + 38, [*behind, *content, *_flags(marks, axis), *_time_axis(axis, y, "seconds")])


def _plot(panel: Panel, axis: Axis, y: float) -> tuple[list[str], float]:
    """A title line with the legend, then the lines; returns the y below."""
    height = 110.0
    content = [_title(y + 13, panel.title, panel.unit)]
    content += _legend(panel, y)
    y += 22
    values = [value for series in panel.series for _, value in series.points if value is not None]
    most = max(values, default=1.0) or 1.0
    scale = _Logarithmic(min((value for value in values if value > 0), default=1.0), most)
    place = scale.share if panel.is_logarithmic else lambda value: value / (most * 1.05)
    steps = scale.ticks() if panel.is_logarithmic else round_steps(0, most * 1.05, 4)
    for step in steps:
        at = y + height * (1 - place(step))
        content.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        content.append(_text(LEFT - 6, at + 4, _number(step), "end"))
    for number, series in enumerate(panel.series):
        path = _steps(
            [(axis.x(time), value) for time, value in series.points], lambda v: y + height * (1 - place(v))
        )
        content.append(f'<path class="line {SERIES[number % len(SERIES)]}" d="{path}"/>')
    return content, y + height + 16


def _legend(panel: Panel, y: float) -> list[str]:
    """The names of the lines, at the right end of the title's line."""
    right = float(WIDTH - RIGHT)
    room = right - LEFT - text_width(f"{panel.title}  {panel.unit}") - 16
    each = room / max(1, len(panel.series)) - _KEY - 10
    fits = sum(text_width(one.name) + _KEY + 10 for one in panel.series) <= room
    names = [one.name if fits else shortened(one.name, each) for one in panel.series]
    x = right - sum(text_width(name) + _KEY + 10 for name in names)
    content = []
    for number, (name, series) in enumerate(zip(names, panel.series, strict=True)):
        colour = SERIES[number % len(SERIES)]
        content.append(f'<path class="key {colour}" d="M{x + 10:.1f} {y + 9:.1f}h{_KEY - 6}"/>')
        content.append(_text(x + 10 + _KEY, y + 13, name, "start", series.name))
        x += text_width(name) + _KEY + 10
    return content


def _steps(points: Sequence[tuple[float, float | None]], height_of: Callable[[float], float]) -> str:
    """A path that keeps each value until the next time; a value of None interrupts it."""
    path: list[str] = []
    pen_down = False
    last = 0.0
    for x, value in points:
        if pen_down:
            path.append(f"H{x:.1f}")
        if value is None:
            pen_down = False
            continue
        at = height_of(value)
        if not pen_down:
            path.append(f"M{x:.1f} {at:.1f}")
        elif at != last:
            path.append(f"V{at:.1f}")
        pen_down, last = True, at
    return "".join(path)


class _Logarithmic:
    """Whole decades around the values; zero lies on the lower border."""

    def __init__(self, least: float, most: float) -> None:
        self._low = math.floor(math.log10(least))
        self._high = max(math.ceil(math.log10(most)), self._low + 1)

    def share(self, value: float) -> float:
        """0 at the bottom, 1 at the top."""
        if value <= 0:
            return 0.0
        return min(1.0, max(0.0, (math.log10(value) - self._low) / (self._high - self._low)))

    def ticks(self) -> list[float]:
        """At most five powers of ten."""
        every = -(-(self._high - self._low) // 4)
        return [10.0**power for power in range(self._low, self._high + 1, every)]


# ---- what both have ------------------------------------------------------------------------------------------------


def _title(y: float, text: str, unit: str) -> str:
    """What is drawn below, in bold, and in what unit."""
    return (
        f'<text x="{LEFT}" y="{y:.1f}" text-anchor="start"><tspan class="title">{escape(text)}</tspan>'
        f'<tspan class="unit">  {escape(unit)}</tspan></text>'
    )


def _roles(bands: Sequence[Band], axis: Axis, y: float) -> tuple[list[str], float]:
    """One row for each node; returns the y below. What is narrower than a pixel is left out next to another."""
    content: list[str] = []
    for node in sorted({band.node for band in bands}):
        content.append(_text(LEFT - 8, y + 13, shortened(node, LEFT - 74), "end", node))
        drawn_to = -math.inf
        for band in bands:
            if band.node != node or band.stop <= axis.start or band.start >= axis.stop:
                continue
            begin, end = axis.x(band.start), axis.x(band.stop)
            if end - begin < _PIXEL and begin - drawn_to < _PIXEL:
                continue
            drawn_to = end
            shape = _rectangle(begin, y + 2, max(_PIXEL, end - begin), 15, f"role-{band.role}")
            fits = text_width(band.label) + 6 <= end - begin
            label = _text(begin + 4, y + 14, band.label, "start", "", f"on-{band.role}") if fits else ""
            about = f"{node}: {band.role} {band.label}".rstrip()
            content.append(f"<g><title>{escape(about)}</title>{shape}{label}</g>")
        y += 20
    return content, y


def _no_leader(bands: Sequence[Band], axis: Axis, top: float, bottom: float) -> str:
    """A tint where no node led, so that a wait in a lane explains itself."""
    free = [(axis.start, axis.stop)]
    for band in bands:
        if band.role == "leader":
            free = [
                piece
                for low, high in free
                for piece in ((low, min(high, band.start)), (max(low, band.stop), high))
                if piece[0] < piece[1]
            ]
    return "".join(
        f"<g><title>no leader</title>"
        f"{_rectangle(axis.x(low), top, axis.x(high) - axis.x(low), bottom - top, 'leaderless')}</g>"
        for low, high in free
    )


def _fault_lines(marks: Sequence[Mark], axis: Axis, bottom: float) -> list[str]:
    """A line for each fault, through everything."""
    kind = "fault many" if len(marks) >= _MANY_MARKS else "fault"
    lines = []
    for mark in marks:
        x = f"{axis.x(mark.at):.1f}"
        line = f'<line class="{kind}" x1="{x}" x2="{x}" y1="{_FLAG}" y2="{bottom:.1f}"/>'
        lines.append(f"<g><title>{mark.number}: {escape(mark.text)}</title>{line}</g>")
    return lines


def _flags(marks: Sequence[Mark], axis: Axis) -> list[str]:
    """The faults' numbers above their lines, neighbours that have no room together as 3-5."""
    groups: list[tuple[float, list[Mark]]] = []
    for mark in sorted(marks, key=lambda mark: (mark.at, mark.number)):
        x = axis.x(mark.at)
        if groups and x - groups[-1][0] < _FLAG_ROOM:
            groups[-1][1].append(mark)
        else:
            groups.append((x, [mark]))
    content = [_text(0, 12, "faults", "start", "", "small")] if groups else []
    for x, members in groups:
        numbers = sorted(mark.number for mark in members)
        label = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        content.append(_text(x, 12, label, "middle", "", "flag"))
    return content


def _grid(axis: Axis, top: float, bottom: float) -> list[str]:
    return [
        f'<line class="grid" x1="{axis.x(tick):.1f}" x2="{axis.x(tick):.1f}" y1="{top}" y2="{bottom:.1f}"/>'
        for tick in axis.ticks()
    ]


def _time_axis(axis: Axis, y: float, unit: str) -> list[str]:
    labels = [_text(axis.x(tick), y + 18, _number(tick), "middle") for tick in axis.ticks()]
    return [*labels, _text(LEFT + _PLOT / 2, y + 34, unit, "middle", "", "unit")]


def _number(value: float) -> str:
    text = f"{value:,.6f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _rectangle(x: float, y: float, width: float, height: float, kind: str) -> str:
    corner = ' rx="2"' if height < 30 else ""
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{corner}/>'


def _text(x: float, y: float, text: str, anchor: str = "start", tooltip: str = "", kind: str = "") -> str:
    if not text:
        return ""
    title = f"<title>{escape(tooltip)}</title>" if tooltip else ""
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{title}{escape(text)}</text>'


def _svg(height: float, content: Iterable[str]) -> str:
    body = "\n".join(piece for piece in content if piece)
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}" role="img">\n{body}\n</svg>'

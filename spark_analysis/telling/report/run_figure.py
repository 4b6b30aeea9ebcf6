"""The whole run: roles of the replicas, then plots over one axis of time, with the faults through all of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from spark_analysis.telling.report.lanes import FLAG, Band, Mark, fault_lines, flags, roles
from spark_analysis.telling.report.svg import (
    LEFT,
    RIGHT,
    SMALLEST,
    WIDTH,
    Axis,
    drawing,
    grid,
    number_text,
    round_steps,
    shortened,
    text_at,
    text_width,
    time_axis,
    unit_of_seconds,
)

_KEY: Final = 20
"""The width of a piece of line in the legend, with the air before its name."""
SERIES: Final = ("s0", "s1", "s2", "s3", "s4", "s5")
"""Classes of the page's colours for lines."""


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


def run(
    panels: Sequence[Panel], bands: Sequence[Band], marks: Sequence[Mark], start: float, stop: float
) -> str:
    """Panels over one axis of time in seconds: roles of the replicas, then each plot; faults through all of them."""
    axis = Axis(start, stop)
    top = (FLAG if marks else 0) + 8.0
    content: list[str] = []
    y = top
    if bands:
        y += 18
        content.append(_title(y - 5, "Replicas", "who led, and in which term"))
        drawn, y = roles(bands, axis, y)
        content += drawn
        y += 14
    for panel in panels:
        drawn, y = _plot(panel, axis, y)
        content += drawn
    behind = [*grid(axis, top, y), *fault_lines(marks, axis, y)]
    return drawing(
        y + 38, [*behind, *content, *flags(marks, axis), *time_axis(axis, y, *unit_of_seconds(stop - start))]
    )


def _plot(panel: Panel, axis: Axis, y: float) -> tuple[list[str], float]:
    """A title line with the legend, then the lines; returns the y below."""
    height = 110.0
    content = [_title(y + 13, panel.title, panel.unit)]
    content += _legend(panel, y)
    y += 22
    values = [value for series in panel.series for _, value in series.points if value is not None]
    most = max(values, default=0.0)
    most = max(most, 10 * SMALLEST) if most > SMALLEST else 1.0
    scale = _Logarithmic(min((value for value in values if value > SMALLEST), default=1.0), most)
    place = scale.share if panel.is_logarithmic else lambda value: value / (most * 1.05)
    steps = scale.ticks() if panel.is_logarithmic else round_steps(0, most * 1.05, 4)
    for step in steps:
        at = y + height * (1 - place(step))
        content.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        content.append(text_at(LEFT - 6, at + 4, number_text(step), "end"))
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
        content.append(text_at(x + 10 + _KEY, y + 13, name, "start", series.name))
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
    """Whole decades around the values, which are positive; what is less than ``least`` lies on the lower border."""

    def __init__(self, least: float, most: float) -> None:
        self._low = math.floor(math.log10(least))
        self._high = max(math.ceil(math.log10(most)), self._low + 1)

    def share(self, value: float) -> float:
        """0 at the bottom, 1 at the top."""
        if value <= SMALLEST:
            return 0.0
        return min(1.0, max(0.0, (math.log10(value) - self._low) / (self._high - self._low)))

    def ticks(self) -> list[float]:
        """The powers of ten on the axis, five at most."""
        every = -(-(self._high - self._low) // 4)
        return [10.0**power for power in range(self._low, self._high + 1, every)]


def _title(y: float, text: str, unit: str) -> str:
    """The title of a plot in bold, and its unit."""
    return (
        f'<text x="{LEFT}" y="{y:.1f}" text-anchor="start"><tspan class="title">{escape(text)}</tspan>'
        f'<tspan class="unit">  {escape(unit)}</tspan></text>'
    )

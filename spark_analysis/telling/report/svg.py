"""Elements of drawings: plain data in, SVG text out.

Drawn by hand rather than by a plotting library, because the two pictures that matter are no plots: lanes of operations
whose labels must not cover each other (:mod:`.timeline`), and panels that share one axis of time with the faults
through all of them (:mod:`.run_figure`). Texts are placed by an upper estimate of their width. Colours are classes of
the page (report.html). The callers bound what is drawn, whatever the history's size, and leave out what would be
narrower than a pixel.
"""

import math
from collections.abc import Iterable
from html import escape
from typing import Final

WIDTH: Final = 980
LEFT: Final = 140
RIGHT: Final = 24
PLOT: Final = WIDTH - LEFT - RIGHT
PIXEL: Final = 0.7
"""A width below which nobody sees anything."""
SMALLEST: Final = 1e-6
"""The least value that plots tell from zero: of milliseconds a nanosecond."""
_CHARACTER: Final = 7.6
"""An upper estimate of the mean width of a character of the drawings' 12 pixel font."""


class Axis:
    """Time from left to right. A history of one moment gets a width too."""

    def __init__(self, start: float, stop: float) -> None:
        self.start = start
        self.stop = stop if stop > start else start + 1e-6

    def x(self, at: float) -> float:
        """The place of a time, at the border if it is outside."""
        inside = min(max(at, self.start), self.stop)
        return LEFT + (inside - self.start) / (self.stop - self.start) * PLOT

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
    """The text, or its two ends around dots, so that it fits into ``width`` pixels; "" if nothing would fit."""
    room = int(width / _CHARACTER)
    if len(text) <= room:
        return text
    if room < 4:
        return ""
    return f"{text[: room - room // 2 - 1]}…{text[len(text) - room // 2 :]}"


def text_width(text: str) -> float:
    """An upper estimate of a text's width, in pixels."""
    return len(text) * _CHARACTER


def grid(axis: Axis, top: float, bottom: float) -> list[str]:
    """A faint line at each tick, from top to bottom."""
    return [
        f'<line class="grid" x1="{axis.x(tick):.1f}" x2="{axis.x(tick):.1f}" y1="{top}" y2="{bottom:.1f}"/>'
        for tick in axis.ticks()
    ]


def time_axis(axis: Axis, y: float, unit: str, in_unit: float = 1.0) -> list[str]:
    """The numbers of the ticks below ``y``, and their unit under them; the axis's 1 is ``in_unit`` of it."""
    labels = [text_at(axis.x(tick), y + 18, number_text(tick * in_unit), "middle") for tick in axis.ticks()]
    return [*labels, text_at(LEFT + PLOT / 2, y + 34, unit, "middle", "", "unit")]


def unit_of_seconds(span: float) -> tuple[str, float]:
    """The unit in which a span of seconds is told on an axis, and how many of it a second has."""
    if span >= 1:
        return "seconds", 1.0
    return ("milliseconds", 1e3) if span >= 1e-3 else ("microseconds", 1e6)


def number_text(value: float) -> str:
    """The number of a tick, its thousands set apart."""
    if 0 < abs(value) < SMALLEST:
        return f"{value:.2g}"
    written = f"{value:,.6f}".rstrip("0").rstrip(".")
    return "0" if written in ("-0", "") else written


def rectangle(x: float, y: float, width: float, height: float, kind: str) -> str:
    """A box of the class ``kind``; flat ones have round corners."""
    corner = ' rx="2"' if height < 30 else ""
    return f'<rect class="{escape(kind)}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{corner}/>'


def text_at(x: float, y: float, text: str, anchor: str, tooltip: str = "", kind: str = "") -> str:
    """A text whose start, middle or end is at ``x``, its baseline at ``y``."""
    if not text:
        return ""
    title = f"<title>{escape(tooltip)}</title>" if tooltip else ""
    style = f' class="{escape(kind)}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{title}{escape(text)}</text>'


def drawing(height: float, content: Iterable[str]) -> str:
    """The whole picture."""
    body = "\n".join(piece for piece in content if piece)
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}" role="img">\n{body}\n</svg>'

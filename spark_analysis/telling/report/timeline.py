"""The proof of a violation: clients as lanes, each operation from its call to its answer, replicas below."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from spark_analysis.telling.report.lanes import FLAG, Band, Mark, fault_lines, flags, no_leader, roles
from spark_analysis.telling.report.svg import (
    LEFT,
    WIDTH,
    Axis,
    drawing,
    grid,
    rectangle,
    shortened,
    text_at,
    text_width,
    time_axis,
)

_ROW: Final = 22


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
class Gap:
    """The time from the end of one operation to the beginning of another that contradicts it."""

    start: float
    stop: float
    label: str


def timeline(
    bars: Sequence[Bar],
    bands: Sequence[Band],
    marks: Sequence[Mark],
    start: float,
    stop: float,
    *,
    unit: str = "milliseconds",
    gap: Gap | None = None,
    group: str | None = None,
) -> str:
    """Draw clients as lanes, each operation from invocation to completion, and replicas below.

    Times without a leader (of ``group``, or of any), faults, and the ``gap`` between the end of one operation and the
    beginning of another go through all lanes.
    """
    axis = Axis(start, stop)
    top = (FLAG if marks else 0) + 8.0
    stripes: list[str] = []
    content: list[str] = []
    y = top + (_ROW if gap is not None else 0)
    for number, (lane, rows) in enumerate(_in_rows(bars, axis)):
        height = _ROW * len(rows) + 6
        if number % 2 == 0:
            stripes.append(rectangle(0, y, WIDTH, height, "stripe"))
        content.append(text_at(LEFT - 8, y + height / 2 + 4, shortened(lane, LEFT - 14), "end", lane))
        for index, row in enumerate(rows):
            content += [_bar(bar, placed, axis, y + 3 + index * _ROW) for bar, placed in row]
        y += height
    clients_end = y
    if bands:
        y += 18
        content.append(text_at(0, y - 2, "replicas", "start", "", "small"))
        drawn, y = roles(bands, axis, y)
        content += drawn
        stripes.append(no_leader(bands, axis, top, clients_end, group))
    if gap is not None:
        content += _gap(gap, axis, top, clients_end)
    # What stands first in an SVG is drawn below what follows: lines and stripes cross the lanes without hiding
    # operations.
    behind = [*stripes, *grid(axis, top, y), *fault_lines(marks, axis, y)]
    return drawing(y + 38, [*behind, *content, *flags(marks, axis), *time_axis(axis, y, unit)])


def _gap(gap: Gap, axis: Axis, top: float, bottom: float) -> list[str]:
    """Draw the end of one operation and the beginning of the other as two lines through the lanes, and how far they are
    apart."""
    begin, end = axis.x(gap.start), axis.x(gap.stop)
    y, width = top + 11, text_width(gap.label)
    place, anchor = (end + 6, "start") if end + 6 + width <= WIDTH else (begin - 6, "end")
    if width + 12 <= end - begin:
        place, anchor = (begin + end) / 2, "middle"
    arrow = f'<path class="gap" d="M{begin:.1f} {y + 4}V{bottom:.1f}M{end:.1f} {y + 4}V{bottom:.1f}"/>'
    bar = f'<path class="gap-span" d="M{begin:.1f} {y + 6}H{end:.1f}"/>'
    return [
        f"<g><title>{escape(gap.label)}</title>{arrow}{bar}</g>",
        text_at(place, y, gap.label, anchor, "", "gap-text"),
    ]


@dataclass(frozen=True, slots=True)
class _Placed:
    """The place of a bar's label: x, SVG anchor, the text that fits."""

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
    """The label inside the bar if it fits, else right of it, else left of it; and the room that bar and label take."""
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
    shape = rectangle(begin, y, max(3.0, end - begin), _ROW - 5, f"{kind} open" if bar.stop is None else kind)
    inside = placed.anchor == "start" and placed.x < end
    label = text_at(
        placed.x, y + 12, placed.label, placed.anchor, "", f"on-{kind}" if inside else f"of-{kind}"
    )
    return f"<g><title>{escape(bar.tooltip)}</title>{shape}{label}</g>"

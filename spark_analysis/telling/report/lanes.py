"""Parts of both drawings: a row of roles for each replica, and faults as lines through everything, with numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from spark_analysis.telling.report.svg import LEFT, PIXEL, Axis, rectangle, shortened, text_at, text_width

FLAG: Final = 18
"""The height of the line of faults' numbers."""
_FLAG_ROOM: Final = 60
"""The width of two numbers of three digits and a dash, with some air."""
_MANY_MARKS: Final = 12
"""With more faults than this, their lines are drawn faintly: together they would hide the rest of the drawing."""


@dataclass(frozen=True, slots=True)
class Band:
    """A replica's role for a while; ``label`` is drawn where it fits."""

    node: str
    role: str
    start: float
    stop: float
    label: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A thing that was done to the system, and its number in the report's list."""

    at: float
    number: int
    text: str


def roles(bands: Sequence[Band], axis: Axis, y: float) -> tuple[list[str], float]:
    """One row for each node; returns the y below. What is narrower than a pixel is left out next to another."""
    content: list[str] = []
    for node in sorted({band.node for band in bands}):
        content.append(text_at(LEFT - 8, y + 13, shortened(node, LEFT - 14), "end", node))
        drawn_to = -math.inf
        for band in bands:
            if band.node != node or band.stop <= axis.start or band.start >= axis.stop:
                continue
            begin, end = axis.x(band.start), axis.x(band.stop)
            # A node that changes its role thousands of times would make a page of megabytes that shows no more.
            if end - begin < PIXEL and begin - drawn_to < PIXEL:
                continue
            drawn_to = end
            shape = rectangle(begin, y + 2, max(PIXEL, end - begin), 15, f"role-{band.role}")
            fits = text_width(band.label) + 6 <= end - begin
            label = text_at(begin + 4, y + 14, band.label, "start", "", f"on-{band.role}") if fits else ""
            about = f"{node}: {band.role} {band.label}".rstrip()
            content.append(f"<g><title>{escape(about)}</title>{shape}{label}</g>")
        y += 20
    return content, y


def no_leader(bands: Sequence[Band], axis: Axis, top: float, bottom: float, only: str | None = None) -> str:
    """A tint where no node of a group led, so that a wait in a lane explains itself; of each group, or of one."""
    groups = sorted({band.group for band in bands})
    content = ""
    for group in groups if only is None else [only]:
        free = [(axis.start, axis.stop)]
        for band in bands:
            if band.role == "leader" and band.group == group:
                free = [
                    piece
                    for low, high in free
                    for piece in ((low, min(high, band.start)), (max(low, band.stop), high))
                    if piece[0] < piece[1]
                ]
        about = f"no leader of {group}" if group and len(groups) > 1 else "no leader"
        content += "".join(
            f"<g><title>{escape(about)}</title>"
            f"{rectangle(axis.x(low), top, axis.x(high) - axis.x(low), bottom - top, 'leaderless')}</g>"
            for low, high in free
        )
    return content


def fault_lines(marks: Sequence[Mark], axis: Axis, bottom: float) -> list[str]:
    """A line for each fault, through everything."""
    kind = "fault many" if len(marks) >= _MANY_MARKS else "fault"
    lines = []
    for mark in marks:
        x = f"{axis.x(mark.at):.1f}"
        line = f'<line class="{kind}" x1="{x}" x2="{x}" y1="{FLAG}" y2="{bottom:.1f}"/>'
        lines.append(f"<g><title>{mark.number}: {escape(mark.text)}</title>{line}</g>")
    return lines


def flags(marks: Sequence[Mark], axis: Axis) -> list[str]:
    """The faults' numbers above their lines, neighbours that have no room together as 3-5."""
    groups: list[tuple[float, list[Mark]]] = []
    for mark in sorted(marks, key=lambda mark: (mark.at, mark.number)):
        x = axis.x(mark.at)
        if groups and x - groups[-1][0] < _FLAG_ROOM:
            groups[-1][1].append(mark)
        else:
            groups.append((x, [mark]))
    content = [text_at(0, 12, "faults", "start", "", "small")] if groups else []
    for x, members in groups:
        numbers = sorted(mark.number for mark in members)
        label = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        content.append(text_at(x, 12, label, "middle", "", "flag"))
    return content

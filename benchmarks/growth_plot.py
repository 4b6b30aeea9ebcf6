"""The figures of benchmarks/results/growth.json as docs/growth.svg, and as a table in Markdown.

python -m benchmarks.growth_plot
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any, Final

from benchmarks.checker_plots import COLORS, DOCS, log_scale, short
from benchmarks.growth import RESULTS

WORDS: Final[Mapping[str, str]] = {
    "topics": "topics of 8 queues",
    "connections": "connections to the leader",
    "groups": "consumer groups",
    "delayed": "timed messages",
}
PANELS: Final[tuple[tuple[str, Callable[[dict[str, Any]], float]], ...]] = (
    ("CPU of three brokers, us a message", lambda one: one["us_per_message"]),
    ("CPU while nobody sends, % of a core", lambda one: one["idle_percent"]),
    ("memory of a broker beside mappings, MiB", lambda one: one["memory_mib"]),
)
SIDE: Final = 260
TOP: Final = 32
LEFT: Final = 56
RIGHT: Final = 16


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    rows: dict[str, list[dict[str, Any]]] = {}
    for one in json.loads(parser.parse_args().results.read_text()):
        rows.setdefault(one["row"], []).append(one)
    (DOCS / "growth.svg").write_text(_drawn(rows))
    print("| idle beside the load | number | us a message | idle, % of a core | MiB a node | load |")
    print("|---|---|---|---|---|---|")
    for name, found in rows.items():
        for one in found:
            figures = f"{one['us_per_message']:.0f} | {one['idle_percent']:.2f} | {one['memory_mib']:.0f}"
            print(f"| {WORDS[name]} | {one['size']:,} | {figures} | {one['load']:.0f} |")


def _drawn(rows: Mapping[str, list[dict[str, Any]]]) -> str:
    width, height = len(PANELS) * (LEFT + SIDE) + RIGHT, TOP + SIDE + 78
    content = [f'<rect width="{width}" height="{height}" fill="white"/>']
    title = "what stands idle beside the load, and what the load and the rest cost"
    content.append(f'<text x="{width / 2}" y="18" text-anchor="middle" font-weight="bold">{title}</text>')
    for place, (name, value_of) in enumerate(PANELS):
        content += _panel(place * (LEFT + SIDE) + LEFT, name, value_of, rows)
    for place, name in enumerate(rows):
        x, y = LEFT + place * (width - LEFT) / len(rows), TOP + SIDE + 60
        content.append(f'<circle cx="{x:.0f}" cy="{y}" r="4" fill="{COLORS[place]}"/>')
        content.append(f'<text x="{x + 10:.0f}" y="{y + 4}">{escape(WORDS[name])}</text>')
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    body = "\n".join(content)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">\n{body}\n</svg>\n'


def _panel(
    left: float,
    name: str,
    value_of: Callable[[dict[str, Any]], float],
    rows: Mapping[str, list[dict[str, Any]]],
) -> list[str]:
    """One square: numbers to the right, logarithmic; figures upwards from 0, as what matters is whether they rise."""
    measured = [one for found in rows.values() for one in found]
    xs, x_ticks = log_scale([one["size"] for one in measured], left, left + SIDE)
    highest = max(map(value_of, measured)) * 1.15
    step = next(step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if highest / step <= 7)
    bottom, middle = TOP + SIDE, TOP + SIDE / 2

    def ys(value: float) -> float:
        return bottom - value / highest * SIDE

    drawn = [
        f'<text x="{left + SIDE / 2}" y="{bottom + 34}" text-anchor="middle">number</text>',
        f'<text transform="translate({left - 36} {middle}) rotate(-90)" text-anchor="middle">{escape(name)}</text>',
    ]
    for tick in x_ticks:
        drawn.append(f'<path d="M{xs(tick):.1f} {TOP}V{bottom}" stroke="#ddd"/>')
        drawn.append(f'<text x="{xs(tick):.1f}" y="{bottom + 16}" text-anchor="middle">{short(tick)}</text>')
    for number in range(int(highest / step) + 1):
        y = ys(number * step)
        drawn.append(f'<path d="M{left} {y:.1f}H{left + SIDE}" stroke="#ddd"/>')
        drawn.append(f'<text x="{left - 5}" y="{y + 4:.1f}" text-anchor="end">{number * step:g}</text>')
    for color, found in zip(COLORS, rows.values(), strict=False):
        points = [(xs(one["size"]), ys(value_of(one))) for one in found]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        drawn.append(f'<path d="M{path}" fill="none" stroke="{color}" opacity="0.5"/>')
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>' for x, y in points]
    return drawn


if __name__ == "__main__":
    main()

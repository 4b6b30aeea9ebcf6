"""The figures of benchmarks/results/checker-scaling.json and checker-cluster.json as the plots and tables of the docs.

    python -m benchmarks.checker_plots

Writes docs/checker-scaling.svg, checker-porcupine.svg and checker-cluster.svg, and prints the tables in Markdown.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from benchmarks.checker_scaling import CLUSTER, CLUSTER_RESULTS, RESULTS

DOCS: Final = Path(__file__).parents[1] / "docs"
OUT_OF_BOUNDS: Final = ("memory", "time")
PANELS: Final[tuple[tuple[str, Callable[[dict[str, Any]], float]], ...]] = (
    ("seconds from start to verdict", lambda one: one["seconds"]),
    ("CPU seconds of all its processes", lambda one: one["cpu_seconds"]),
    ("peak memory of all its processes, GB", lambda one: one["peak_bytes"] / 1e9),
)
SIDE: Final = 260
TOP: Final = 32
LEFT: Final = 56
RIGHT: Final = 16
"""Pixels: the side of a panel, and the room above it, left of it and right of the last."""
COLORS: Final = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    measurements: list[dict[str, Any]] = json.loads(parser.parse_args().results.read_text())["measurements"]
    growth = [one for one in measurements if one["history"]["format"] in ("parquet", "trace")]
    compared = [one for one in measurements if one["history"]["format"] in ("words", "log-only")]
    if growth:
        _plot(growth, DOCS / "checker-scaling.svg", "trivet analyze, up to 10 million operations")
        print(_table(growth))
    if compared:
        _plot(compared, DOCS / "checker-porcupine.svg", "one queue: trivet analyze and porcupine")
        print(_table(compared))
    on_cluster: list[dict[str, Any]] = json.loads(CLUSTER_RESULTS.read_text())["measurements"]
    title = "one good hot queue, up to 100 million operations: one process, a standalone cluster"
    _plot(on_cluster, DOCS / "checker-cluster.svg", title)
    print(_table(on_cluster))
    print(_shuffles(on_cluster))


def _line(one: dict[str, Any]) -> str:
    history = one["history"]
    if history["format"] in ("words", "log-only"):
        return f"{one['checker']}, {'unknown outcomes' if history['unknown'] else 'all answered'}"
    if one["checker"] == CLUSTER:
        return "one queue, on a standalone cluster"
    queues = "one queue" if history["queues"] == 1 else f"{history['queues']} queues"
    source = ", CBOR trace" if history["format"] == "trace" else ""
    return f"{queues}, {'bad' if history['planted'] else 'good'}{source}"


def _plot(measurements: list[dict[str, Any]], target: Path, title: str) -> None:
    """Time, CPU time and memory over operations, all logarithmic; a cross is a run that was ended at a bound."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for one in sorted(measurements, key=lambda one: one["history"]["operations"]):
        lines.setdefault(_line(one), []).append(one)
    height = TOP + SIDE + 60 + 18 * math.ceil(len(lines) / 3)
    width = len(PANELS) * (LEFT + SIDE) + RIGHT
    content = [f'<rect width="{width}" height="{height}" fill="white"/>']
    if any(one["verdict"] in OUT_OF_BOUNDS for one in measurements):
        title += "; a cross: ended at its bound, no verdict"
    content.append(
        f'<text x="{width / 2}" y="18" text-anchor="middle" font-weight="bold">{escape(title)}</text>'
    )
    for place, (name, value_of) in enumerate(PANELS):
        content += _panel(place * (LEFT + SIDE) + LEFT, name, value_of, lines)
    for place, name in enumerate(lines):
        x, y = LEFT + place % 3 * (width - LEFT) / 3, TOP + SIDE + 60 + place // 3 * 18
        content.append(f'<circle cx="{x:.0f}" cy="{y}" r="4" fill="{COLORS[place]}"/>')
        content.append(f'<text x="{x + 10:.0f}" y="{y + 4}">{escape(name)}</text>')
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    body = "\n".join(content)
    target.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">\n{body}\n</svg>\n'
    )


def _panel(
    left: float,
    name: str,
    value_of: Callable[[dict[str, Any]], float],
    lines: Mapping[str, Sequence[dict[str, Any]]],
) -> list[str]:
    """One square with its axes; its border on the left is at ``left``."""
    measured = [one for listed in lines.values() for one in listed]
    xs, x_ticks = log_scale([one["history"]["operations"] for one in measured], left, left + SIDE)
    ys, y_ticks = log_scale([value_of(one) for one in measured], TOP + SIDE, TOP)
    bottom, middle = TOP + SIDE, TOP + SIDE / 2
    drawn = [
        f'<text x="{left + SIDE / 2}" y="{bottom + 34}" text-anchor="middle">operations</text>',
        f'<text transform="translate({left - 36} {middle}) rotate(-90)" text-anchor="middle">{escape(name)}</text>',
    ]
    for tick in x_ticks:
        drawn.append(f'<path d="M{xs(tick):.1f} {TOP}V{bottom}" stroke="#ddd"/>')
        drawn.append(f'<text x="{xs(tick):.1f}" y="{bottom + 16}" text-anchor="middle">{short(tick)}</text>')
    for tick in y_ticks:
        drawn.append(f'<path d="M{left} {ys(tick):.1f}H{left + SIDE}" stroke="#ddd"/>')
        drawn.append(f'<text x="{left - 5}" y="{ys(tick) + 4:.1f}" text-anchor="end">{short(tick)}</text>')
    for color, listed in zip(COLORS, lines.values(), strict=False):
        points = [(xs(one["history"]["operations"]), ys(value_of(one))) for one in listed]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        drawn.append(f'<path d="M{path}" fill="none" stroke="{color}" opacity="0.5"/>')
        for one, (x, y) in zip(listed, points, strict=True):
            drawn.append(
                f'<path d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8" stroke="{color}" stroke-width="2.5"/>'
                if one["verdict"] in OUT_OF_BOUNDS
                else f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>'
            )
    return drawn


def log_scale(
    values: Sequence[float], begin: float, end: float
) -> tuple[Callable[[float], float], list[float]]:
    """The function from a value to its place between ``begin`` and ``end``, logarithmic; and the ticks there."""
    low, high = math.log10(min(values)) - 0.1, math.log10(max(values)) + 0.1
    powers = range(math.ceil(low), math.floor(high) + 1)
    # Within less than two powers of ten, 2 and 5 times such a power are named, too.
    factors = (1, 2, 5) if len(powers) < 3 else (1,)
    ticks = [factor * 10.0**power for power in range(math.floor(low), math.ceil(high)) for factor in factors]

    def place(value: float) -> float:
        return begin + (math.log10(value) - low) / (high - low) * (end - begin)

    return place, [tick for tick in ticks if low <= math.log10(tick) <= high]


def short(tick: float) -> str:
    """1000 as 1k, 1000000 as 1M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if tick >= size:
            return f"{tick / size:g}{letter}"
    return f"{tick:g}"


def _table(measurements: list[dict[str, Any]]) -> str:
    rows = [
        "| history | operations | unknown | end | seconds | CPU s | GB | others' cores | load |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in measurements:
        end = f"{one['verdict']} bound" if one["verdict"] in OUT_OF_BOUNDS else one["verdict"]
        history = one["history"]
        cells = (
            *(
                _line(one),
                f"{history['operations']:,}",
                f"{history['unknown']:,}",
                end,
                f"{one['seconds']:.0f}",
            ),
            *(f"{one['cpu_seconds']:.0f}", f"{one['peak_bytes'] / 1e9:.1f}"),
            *(f"{one['others_cores']:.2f}", f"{one['load']:.0f}"),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _shuffles(measurements: list[dict[str, Any]]) -> str:
    """What each stage has shuffled, in the order of their ends."""
    rows = ["| history | operations | stage | tasks | written, MB | read, MB |", "|---|---|---|---|---|---|"]
    for one in measurements:
        for stage in one.get("stages", ()):
            moved = (f"{stage[f'shuffle_{way}_bytes'] / 1e6:.1f}" for way in ("write", "read"))
            cells = (
                _line(one),
                f"{one['history']['operations']:,}",
                stage["name"],
                str(stage["tasks"]),
                *moved,
            )
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()

"""The figures of benchmarks/results/checker-scaling.json as the plots and tables of docs/checker.md.

    python -m benchmarks.checker_plots

Writes docs/checker-scaling.svg and docs/checker-porcupine.svg, and prints the tables in Markdown.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

import altair as alt
import pandas as pd

from benchmarks.checker_scaling import RESULTS

DOCS: Final = Path(__file__).parents[1] / "docs"
OUT_OF_BOUNDS: Final = ("memory", "time")
ENDED: Final = "ended at its bound, no verdict"


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


def _line(one: dict[str, Any]) -> str:
    history = one["history"]
    if history["format"] in ("words", "log-only"):
        return f"{one['checker']}, {'unknown outcomes' if history['unknown'] else 'all answered'}"
    queues = "one queue" if history["queues"] == 1 else f"{history['queues']} queues"
    source = ", CBOR trace" if history["format"] == "trace" else ""
    return f"{queues}, {'bad' if history['planted'] else 'good'}{source}"


def _plot(measurements: list[dict[str, Any]], target: Path, title: str) -> None:
    """Time, CPU time and memory over operations, all logarithmic; a cross is a run that was ended at a bound."""
    rows = pd.DataFrame(
        {
            "operations": one["history"]["operations"],
            "unknown": one["history"]["unknown"],
            "seconds": one["seconds"],
            "CPU seconds": one["cpu_seconds"],
            "GB": one["peak_bytes"] / 1e9,
            "history": _line(one),
            "end": ENDED if one["verdict"] in OUT_OF_BOUNDS else "verdict",
        }
        for one in measurements
    )
    base = alt.Chart(rows).encode(
        x=alt.X("operations:Q", scale=alt.Scale(type="log"), axis=alt.Axis(format="~s", tickCount=5)),
        color=alt.Color("history:N", title=None, scale=alt.Scale(scheme="category10")),
    )
    shape = alt.Shape(
        "end:N", title=None, scale=alt.Scale(domain=["verdict", ENDED], range=["circle", "cross"])
    )

    def panel(field: str, name: str) -> Any:
        y = alt.Y(f"{field}:Q", scale=alt.Scale(type="log"), title=name, axis=alt.Axis(tickCount=5))
        points = base.mark_point(filled=True, size=60, opacity=0.9).encode(y=y, shape=shape)
        return (base.mark_line(opacity=0.5).encode(y=y) + points).properties(width=260, height=260)

    chart = alt.hconcat(
        panel("seconds", "seconds from start to verdict"),
        panel("CPU seconds", "CPU seconds of all its processes"),
        panel("GB", "peak memory of all its processes, GB"),
    )
    chart.properties(title=title).configure_legend(orient="bottom", columns=3, labelLimit=300).save(
        str(target)
    )


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


if __name__ == "__main__":
    main()

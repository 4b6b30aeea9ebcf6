"""Trivet's figures beside other systems', as ratios: ``python benchmarks/compare.py TRIVET.json PEER.json...``.

``TRIVET.json`` is what ``trivet bench --output`` wrote. Each ``PEER.json`` is named after its system and has, by
workload (A, B, C_1024, C_100, D), the figures ``msgs_s``, ``p50_ms`` and ``server_cpu_us_per_msg`` as far as it has
them, and ``E_ms``, the failover times. Only figures of one machine and one sitting compare; this program cannot know
whether they are.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from broker.tools.bench.results import Measurement, Report
from broker.tools.cli.output import print_table

FIGURES = {"msgs_per_s": "msgs_s", "p50_ms": "p50_ms", "server_cpu_us_per_msg": "server_cpu_us_per_msg"}
"""Names here, and in the peers' files."""


def main() -> None:
    """Print one row for each workload, flush mode, figure and peer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trivet", type=Path, metavar="TRIVET.json")
    parser.add_argument("peers", type=Path, nargs="+", metavar="PEER.json")
    options = parser.parse_args()
    report = msgspec.json.decode(options.trivet.read_bytes(), type=Report)
    rows: list[list[object]] = []
    for path in options.peers:
        peer: Mapping[str, Any] = msgspec.json.decode(path.read_bytes())
        for measurement in report.measurements:
            rows.extend(_compare(measurement, path.stem, peer))
    print_table(["work", "flush", "figure", "Trivet", "peer", "its figure", "ratio"], rows)


def _compare(measurement: Measurement, name: str, peer: Mapping[str, Any]) -> list[list[object]]:
    pairs: list[tuple[str, float | None, float | None]] = []
    if measurement.workload == "E":
        pairs.append(("median failover ms", measurement.p50_ms, _median(peer.get("E_ms", []))))
    else:
        figures = peer.get(_key(measurement), {})
        pairs.extend((own, getattr(measurement, own), figures.get(theirs)) for own, theirs in FIGURES.items())
    return [
        [
            measurement.workload,
            measurement.flush,
            figure,
            f"{own:,.3f}",
            name,
            f"{other:,.3f}",
            f"{own / other:.2f}",
        ]
        for figure, own, other in pairs
        if own is not None and other
    ]


def _key(measurement: Measurement) -> str:
    if measurement.workload != "C":
        return measurement.workload
    return f"C_{measurement.settings[0].body_bytes}"


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


if __name__ == "__main__":
    main()

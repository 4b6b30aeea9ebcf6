"""The verdicts published with porcupine's histories, reproduced by ``trivet analyze``: time and memory of both runs.

    python -m benchmarks.published_verdicts [--results FILE]

Ends with exit code 1 if a verdict differs from the published one. Needs Go, which fetches the histories.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

from benchmarks.measured_process import Bounds, end_in_order, measure
from benchmarks.porcupine_module import Published, published

RESULTS: Final = Path(__file__).parent / "results" / "published-verdicts.json"
BOUNDS: Final = Bounds(1800.0, 8_000_000_000)


def judge(histories: Published) -> dict[str, Any]:
    """Judge all histories of a format in one run of ``trivet analyze``; returns the entry for the file of results."""
    command = [sys.executable, "-m", "trivet", "analyze", "--json", "--master", "local[2]"]
    files = [str(path) for path in histories.verdicts]
    run = measure([*command, "--format", histories.format, *files], BOUNDS)
    answers = {}
    if run.exit_code in (0, 1, 3):
        answers = {Path(one["path"]): one for one in json.loads(run.output)["histories"]}
    got = {path: answers[path]["verdict"] if path in answers else "none" for path in histories.verdicts}
    return {
        "format": histories.format,
        "histories": len(histories.verdicts),
        "operations": sum(one["operations"] for one in answers.values()),
        "verdicts": dict(sorted(Counter(got.values()).items())),
        "different": sorted(
            path.name for path, verdict in got.items() if verdict != histories.verdicts[path]
        ),
        "exit_code": run.exit_code,
        "seconds": run.seconds,
        "cpu_seconds": run.cpu_seconds,
        "peak_bytes": run.peak_bytes,
        "others_cores": run.others_cores,
        "load": run.load,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    results: Path = parser.parse_args().results
    end_in_order()
    found = [judge(histories) for histories in published()]
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps(found, indent=1) + "\n")
    print(results.read_text())
    sys.exit(any(one["different"] for one in found))


if __name__ == "__main__":
    main()

"""The log checker beside porcupine, on random histories of one queue: do they agree, and what stays undecided?

    python -m benchmarks.log_verdicts SCRATCH [--histories 11259]

The histories are those of the tests (``tests/spark_analysis/histories.py``) with up to 30 operations: appends of one
value and batches, a quarter of unknown outcome and a quarter refused, reads and tails; in every third few values are
tried again and again; most are bent in up to four places. The plain rules judge each as every command does, and once
more without the search for coverings. Porcupine (fetched and built by Go when this runs) knows a batch of unknown
outcome as parts, each of which takes effect directly behind the one before it or not at all.

Prints one object of JSON. Ends with exit code 1 if the two disagree about a history, and names its seed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final
from unittest import mock

from benchmarks.measured_process import Bounds, end_in_order, measure
from benchmarks.porcupine_module import build
from spark_analysis.checking.queues import unknown_appends
from spark_analysis.checking.queues.knowledge import Operation
from spark_analysis.checking.queues.reference import check_queue
from spark_analysis.checking.verdict import UNDECIDED
from tests.spark_analysis.histories import random_history

HISTORIES: Final = 11_259
OPERATIONS: Final = 30
FEW_VALUES: Final = 4
BOUNDS: Final = Bounds(3600.0, 6_000_000_000)
LIMIT: Final = "10s"  # of porcupine, for one history
LATER_NS: Final = 1_000  # moments of the histories may be before 0, which means no end to the program
WORDS: Final = {"Ok": "linearizable", "Illegal": "violated", "Unknown": "undecided"}


def history_of(seed: int) -> list[Operation]:
    """The history of a seed, without what porcupine's model here does not know: refused appends, and ends that reads
    state."""
    rng = random.Random(seed)
    made = random_history(rng, size=OPERATIONS, values=FEW_VALUES if seed % 3 == 0 else 0)
    return [replace(one, end_offset=None) if one.function == "read" else one for one in made]


def words_of(history: Sequence[Operation]) -> Iterator[str]:
    """The history in the words of benchmarks/porcupine/main.go; a batch that was answered is an append for each value,
    which its offsets keep together."""
    numbers: dict[str, int] = {}

    def number(value: str) -> int:
        return numbers.setdefault(value, len(numbers))

    for one in history:
        end_ns = -1 if one.complete_ns is None else one.complete_ns + LATER_NS
        start = f"{one.op} {one.invoke_ns + LATER_NS} {end_ns}"
        if one.function == "tail":
            yield f"{start} t {one.offset}"
        elif one.function == "read":
            yield " ".join([f"{start} r {one.offset}", *(str(number(value)) for value in one.values)])
        elif one.outcome == "ok":
            assert one.first_offset is not None
            for offset, value in enumerate(one.values, one.first_offset):
                yield f"{start} a {offset} {number(value)}"
        elif one.outcome == "info":
            for place, value in enumerate(one.values):
                yield f"{start} p {one.op} {place} {number(value)}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--histories", type=int, default=HISTORIES)
    options = parser.parse_args()
    end_in_order()
    options.scratch.mkdir(parents=True, exist_ok=True)
    program, words = options.scratch / "porcupine-program", options.scratch / "log-verdicts"
    build(program)
    histories = [history_of(seed) for seed in range(options.histories)]
    begin = time.process_time()
    ours = [check_queue(one)[0] for one in histories]
    cpu_seconds = time.process_time() - begin
    with mock.patch.object(unknown_appends, "cover", return_value=None):
        by_bounds = [check_queue(one)[0] for one in histories]
    words.write_text("\n".join("".join(f"{line}\n" for line in words_of(one)) for one in histories))
    run = measure([str(program.resolve()), "-limit", LIMIT, str(words)], BOUNDS)
    theirs = [WORDS[json.loads(line)["verdict"]] for line in run.output.splitlines()]
    assert len(theirs) == len(histories), run.errors
    pairs = Counter(zip(ours, theirs, strict=True))
    different = [
        seed
        for seed, verdicts in enumerate(zip(ours, theirs, strict=True))
        if UNDECIDED not in verdicts and len(set(verdicts)) > 1
    ]
    unknown = sum(any(one.outcome == "info" for one in history) for history in histories)
    told = {
        "histories": len(histories),
        "operations": sum(map(len, histories)),
        "with_unknown_outcomes": unknown,
        "trivet": dict(Counter(ours)),
        "trivet_undecided_by_bounds_alone": by_bounds.count(UNDECIDED),
        "porcupine": dict(Counter(theirs)),
        "pairs": {f"{mine}, {other}": count for (mine, other), count in sorted(pairs.items())},
        "different_seeds": different,
        "trivet_cpu_seconds": round(cpu_seconds, 2),
        "porcupine_cpu_seconds": run.cpu_seconds,
        "others_cores": run.others_cores,
        "load": run.load,
    }
    print(json.dumps(told, indent=1))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())

"""Tests that CI runs in turns: `make test` runs them all, CI those of one turn at each commit, and tells what it left.

- Hunts for mistakes (`hunt`). Most put a mistake into the code, of docs/planted-mistakes.md or beside its plans, and
  run seeds until it is found: that is evidence of what the simulator and its judges see rather than a test of a commit.
  Others look for one that nobody has planted, in hundreds of histories that two judges must judge alike.
- Tests that take many seconds for what hardly a commit can break, and of which a quicker one has a part (`in_turn`):
  runs that show what plans come to, the shrinking of a whole plan, the wheel in Spark's executors, a reference server,
  Java clients of another release than the newest.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final
from zlib import crc32

import pytest

TURNS: Final = {"hunt": 36, "in_turn": 12}
"""By the mark: so many turns that follow each other run all."""
_SENT: Final = "turns"


def _turns_of(item: pytest.Item) -> list[int]:
    return [turns for mark, turns in TURNS.items() if item.get_closest_marker(mark)]


class OneTurn:
    """Leaves out the tests of all turns but one. The turn of a test follows from its name, whatever else is run."""

    def __init__(self, turn: int) -> None:
        self.turn = turn
        self.run = 0
        self.left: dict[str, int] = {}
        """The number of cases, by test."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        in_turns = {item: max(turns) for item in items if (turns := _turns_of(item))}
        left = [
            item
            for item, turns in in_turns.items()
            if crc32(item.nodeid.encode()) % turns != self.turn % turns
        ]
        self.run = len(in_turns) - len(left)
        self.left = dict(Counter(item.nodeid.partition("[")[0] for item in left))
        if left:
            items[:] = [item for item in items if item not in left]
            config.hook.pytest_deselected(items=left)
        if (output := getattr(config, "workeroutput", None)) is not None:
            output[_SENT] = self.run, self.left

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """All processes that run tests say the same to the one that shares them out, which collects none."""
        self.run, self.left = getattr(node, "workeroutput", {}).get(_SENT, (self.run, self.left))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        write = terminalreporter.write_line
        write(f"turn {self.turn}: {self.run} tests that are run in turns; left to `make test` are")
        for test, count in self.left.items():
            write(f"{count:4} of {test}")

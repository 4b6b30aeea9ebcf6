"""Hunts for mistakes: `make test` runs them all, CI those of one turn at each commit, and tells what it left.

Most put a mistake into the code, of docs/planted-mistakes.md or beside its plans, and run seeds until it is found: that
is evidence of what the simulator and its judges see rather than a test of a commit. Others look for one that nobody has
planted, in hundreds of histories that two judges must judge alike.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final
from zlib import crc32

import pytest

TURNS: Final = 8
"""So many turns that follow each other run all."""
_MARK: Final = "hunt"


class OneTurn:
    """Leaves out the hunts of all turns but one. That of a hunt follows from its name, whatever else is run."""

    def __init__(self, turn: int) -> None:
        self.turn = turn % TURNS
        self.run = 0
        self.left: dict[str, int] = {}
        """The number of hunts, by test."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        hunts = [item for item in items if item.get_closest_marker(_MARK)]
        left = [item for item in hunts if crc32(item.nodeid.encode()) % TURNS != self.turn]
        self.run = len(hunts) - len(left)
        self.left = dict(Counter(item.nodeid.partition("[")[0] for item in left))
        if left:
            items[:] = [item for item in items if item not in left]
            config.hook.pytest_deselected(items=left)
        if (output := getattr(config, "workeroutput", None)) is not None:
            output[_MARK] = self.run, self.left

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """All processes that run tests say the same to the one that shares them out, which collects none."""
        self.run, self.left = getattr(node, "workeroutput", {}).get(_MARK, (self.run, self.left))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        write = terminalreporter.write_line
        write(f"turn {self.turn} of {TURNS}: {self.run} hunts for mistakes; left to `make test` are")
        for test, count in self.left.items():
            write(f"{count:4} of {test}")

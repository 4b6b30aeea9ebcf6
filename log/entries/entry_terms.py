"""The terms of a log's entries, as runs: a log has as many as it has seen leaders that appended something."""

from bisect import bisect_right
from collections.abc import Callable
from operator import itemgetter


class EntryTerms:
    """`starts` are (first index, term) of each run of entries with one term, from the log's first entry on.

    `base` is the term of the entry before the first one; `newest` that of the last run, 0 without any: no entry has it.
    """

    __slots__ = ("base", "newest", "starts")

    starts: list[tuple[int, int]]

    def __init__(self, base: int) -> None:
        self.empty(base)

    def find(self, first: int, last: int, term_of: Callable[[int], int]) -> None:
        """Adds the runs of entries `first`..`last`, whose terms `term_of` tells.

        Terms do not decrease, so that the end of each run is found by bisection: O(runs * log n).
        """
        while first <= last:
            term = term_of(first)
            self.add(first, term)
            first += 1 + bisect_right(range(first + 1, last + 1), term, key=term_of)

    def add(self, index: int, term: int) -> None:
        """Entry `index` begins a run behind the others."""
        self.starts.append((index, term))
        self.newest = term

    def of(self, index: int) -> int:
        """Returns the term of an entry that is in the log."""
        return self.starts[self._run(index)][1]

    def _run(self, index: int) -> int:
        return bisect_right(self.starts, index, key=itemgetter(0)) - 1

    # ---- for the log's cuts --------------------------------------------------------------------------

    def cut_behind(self, last_index: int) -> None:
        """Entries behind `last_index` go."""
        while self.starts and self.starts[-1][0] > last_index:
            self.starts.pop()
        self.newest = self.starts[-1][1] if self.starts else 0

    def cut_before(self, index: int) -> None:
        """Entries before `index` go, which stays."""
        self.base = self.of(index - 1)
        self.starts[: self._run(index) + 1] = [(index, self.of(index))]

    def empty(self, base: int) -> None:
        """All entries go; the next one follows one of term `base`."""
        self.base, self.newest, self.starts = base, 0, []

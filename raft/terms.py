"""The terms of a log's entries, as runs.

All that consensus ever asks about an entry is its term, and terms never fall along a log (5.3). A log of millions of
entries has as many runs as it has seen elections that appended something, so the runs stay in memory, and the bytes
stay with their owner.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise


class LogTerms:
    """Terms of the entries first_index..last_index and of the place before them.

    `base_term` is the term of first_index - 1: 0 at the beginning of a group's life, else that of the last entry
    that retention or a snapshot removed. `runs` are (first index, term), rising in both; the first run starts at
    first_index, and there is none in an empty log, whose last_index is first_index - 1.
    """

    # `_run_starts` and `_run_terms` are of equal length and rise strictly; `last_term` is the last of the terms, or
    # `base_term` when there are none.
    __slots__ = ("_run_starts", "_run_terms", "base_term", "first_index", "last_index", "last_term")

    def __init__(
        self,
        first_index: int = 0,
        last_index: int = -1,
        runs: Iterable[tuple[int, int]] = (),
        base_term: int = 0,
    ) -> None:
        self.first_index = first_index
        self.last_index = last_index
        self.base_term = base_term
        self._run_starts: list[int] = []
        self._run_terms: list[int] = []
        for start, term in runs:
            self._run_starts.append(start)
            self._run_terms.append(term)
        self.last_term = self._run_terms[-1] if self._run_terms else base_term
        self._check()

    def _check(self) -> None:
        starts, terms = self._run_starts, self._run_terms
        if self.first_index < 0 or self.last_index < self.first_index - 1:
            raise ValueError(f"no log spans {self.first_index}..{self.last_index}")
        if bool(starts) != (self.last_index >= self.first_index):
            raise ValueError("runs must cover exactly the entries of the log")
        if starts and (starts[0] != self.first_index or starts[-1] > self.last_index):
            raise ValueError(f"runs {starts} do not cover {self.first_index}..{self.last_index}")
        rising = all(earlier < later for earlier, later in pairwise(starts))
        if not rising or any(earlier >= later for earlier, later in pairwise(terms)):
            raise ValueError("runs must rise in index and in term")
        if terms and terms[0] < max(self.base_term, 1):
            raise ValueError(f"term {terms[0]} follows term {self.base_term}")

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """(first index, term) of each run; enough, with the other attributes, to build the view again."""
        return tuple(zip(self._run_starts, self._run_terms, strict=True))

    def term_at(self, index: int) -> int:
        """Returns the term of an entry, or of the place before the log."""
        assert self.first_index - 1 <= index <= self.last_index, (
            f"index {index} outside of {self.first_index - 1}..{self.last_index}"
        )
        starts = self._run_starts
        # Also the only place of an empty log, which has no run.
        if index < self.first_index:
            return self.base_term
        # Nearly always: what is asked for is of the newest run.
        if index >= starts[-1]:
            return self.last_term
        return self._run_terms[bisect_right(starts, index) - 1]

    def matches(self, index: int, term: int) -> bool:
        """True if the log is known to have an entry of `term` at `index` (the consistency check of 5.3)."""
        return self.first_index - 1 <= index <= self.last_index and self.term_at(index) == term

    def append(self, term: int, count: int) -> None:
        """Adds `count` entries of `term` after the last."""
        assert term >= self.last_term, f"term {term} after term {self.last_term}"
        assert count > 0, "a run of no entries"
        # An empty log has no run, although `base_term` may be this term.
        if term != self.last_term or not self._run_starts:
            self._run_starts.append(self.last_index + 1)
            self._run_terms.append(term)
            self.last_term = term
        self.last_index += count

    def truncate(self, last_index: int) -> None:
        """Removes all entries after `last_index`."""
        assert self.first_index - 1 <= last_index <= self.last_index, f"cannot truncate to {last_index}"
        self.last_index = last_index
        while self._run_starts and self._run_starts[-1] > last_index:
            self._run_starts.pop()
            self._run_terms.pop()
        self.last_term = self._run_terms[-1] if self._run_terms else self.base_term

    def reset(self, first_index: int, base_term: int) -> None:
        """Makes this an empty log that will begin at `first_index`, after an entry of `base_term`."""
        self.first_index = first_index
        self.last_index = first_index - 1
        self.base_term = self.last_term = base_term
        self._run_starts.clear()
        self._run_terms.clear()

    def drop_before(self, first_index: int) -> None:
        """Forgets the entries before `first_index`, which retention removed; the log may become empty by that."""
        if first_index <= self.first_index:
            return
        # Read from the runs before they go.
        self.base_term = self.term_at(first_index - 1)
        self.first_index = first_index
        if first_index > self.last_index:
            self.reset(first_index, self.base_term)
            return
        run = bisect_right(self._run_starts, first_index) - 1
        del self._run_starts[:run], self._run_terms[:run]
        # The run that this entry is of may have begun before it.
        self._run_starts[0] = first_index

    def spans(self, first_index: int, last_index: int) -> tuple[tuple[int, int], ...]:
        """Returns (term, count) of each run within first_index..last_index."""
        starts = self._run_starts
        if first_index > last_index:
            return ()
        if first_index >= starts[-1]:  # what is new is nearly always of the newest run
            return ((self.last_term, last_index - first_index + 1),)
        spans = []
        run = bisect_right(starts, first_index) - 1
        while first_index <= last_index:
            end = starts[run + 1] - 1 if run + 1 < len(starts) else self.last_index
            count = min(end, last_index) - first_index + 1
            spans.append((self._run_terms[run], count))
            first_index += count
            run += 1
        return tuple(spans)

    def first_difference(self, prev_index: int, spans: Sequence[tuple[int, int]]) -> int:
        """Returns the first index after `prev_index` at which this log lacks or contradicts the entries of `spans`.

        It is one past those entries when the log holds them all. The log must reach back to prev_index + 1.
        """
        index = prev_index + 1
        for term, count in spans:
            end = index + count
            # Run by run of this log: within one run all entries have the term that its first has.
            while index < end:
                if index > self.last_index or self.term_at(index) != term:
                    return index
                run = bisect_right(self._run_starts, index)
                run_end = self._run_starts[run] if run < len(self._run_starts) else self.last_index + 1
                index = min(end, run_end)
        return index

    def last_not_after(self, index: int, term: int) -> int:
        """Returns the greatest index, not above `index`, whose term is not above `term`.

        This is the search for the conflict at the end of 5.3: two logs agree at most up to there when one of them has
        `term` at `index` or ends at it. Returns first_index - 2 when not even the place before the log qualifies.
        """
        index = min(index, self.last_index)
        if index < self.first_index - 1:
            return self.first_index - 2
        run = bisect_right(self._run_terms, term)  # the first run with a greater term
        if run < len(self._run_starts):
            index = min(index, self._run_starts[run] - 1)
        # The place before the log has a term, too, and no run.
        if index < self.first_index and self.base_term > term:
            return self.first_index - 2
        return index

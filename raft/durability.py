"""The part of a node's log that is on its own disk.

A flush runs beside the state machine: while it is under way entries may be truncated and others written in their
place, and its end says nothing about those. So each truncation opens a new generation; whoever starts a flush notes
the generation with the index, and of a report from an older one only that part counts that no later truncation cut.
"""

# A flush that outlives more of them counts for nothing: what it has made durable the next one says.
_TRUNCATIONS_REMEMBERED = 64


class PersistedIndex:
    """Tracks `index`: each entry up to it is durable, and is the one that the log now holds there.

    `generation` rises by one with each truncation.
    """

    __slots__ = ("_cuts", "_oldest_known", "generation", "index")

    def __init__(self, index: int) -> None:
        self.index = index
        self.generation = 0
        # (generation that the cut opened, last index it left), both rising: a cut below earlier ones outdoes them.
        self._cuts: list[tuple[int, int]] = []
        # A flush of an older generation counts for nothing: the cuts after it are no longer all known.
        self._oldest_known = 0

    def cut(self, last_index: int) -> None:
        """Takes note that the log was truncated to `last_index`, or began anew after it."""
        self.generation += 1
        self.index = min(self.index, last_index)
        # Whatever an earlier cut left behind this index, this one takes.
        while self._cuts and self._cuts[-1][1] >= last_index:
            self._cuts.pop()
        self._cuts.append((self.generation, last_index))
        if len(self._cuts) > _TRUNCATIONS_REMEMBERED:
            self._oldest_known = self._cuts.pop(0)[0]

    def flushed(self, index: int, generation: int) -> bool:
        """Takes note of a flush, begun in `generation`, that covered the log up to `index`; returns True when more is
        durable by it."""
        assert generation <= self.generation, f"a flush of generation {generation}, in {self.generation}"
        if generation != self.generation:
            if generation < self._oldest_known:
                return False
            # Of what it covered counts what no later cut has taken.
            index = min([index, *(left for opened, left in self._cuts if opened > generation)])
        if index <= self.index:
            return False
        self.index = index
        return True

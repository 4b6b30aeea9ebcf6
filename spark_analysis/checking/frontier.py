"""Registers whose values repeat, with many operations of unknown outcome: a way through all that may happen.

In the graph (:mod:`spark_analysis.checking.register_graph`) every operation of unknown outcome can happen again and
again. If it has no way to the end, no order exists. If it has, one is looked for that uses of each kind of unknown
operation no more than had been invoked by then.

*Prices* for using what is scarce show where to look: from every node the least price of a way to the end is known, and
the search by depth goes there first. They also prove that there is no way: each that uses no more than there is pays at
most the *budget*, what all there is costs. So a node from which the rest of the budget does not reach the end is given
up, and if that is so of the first one, there is no order. While the search does not come to an end, the prices of what
the cheapest way uses too much of rise, and those of what it leaves fall. What the search has found hopeless it
remembers. docs/checker.md has the arguments.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from operator import mul
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from spark_analysis.checking.register_graph import Bounds, Graph, Timeline, Way
from spark_analysis.checking.search import (
    MAXIMUM_BYTES,
    MAXIMUM_CONFIGURATIONS,
    OutOfBoundsError,
    SearchResult,
)
from spark_analysis.checking.verdict import LINEARIZABLE, UNDECIDED, VIOLATED
from spark_analysis.importing.calls import Call

_FRAME_BYTES: Final = 700
_LABEL_BYTES: Final = 100
_FAILURES_OF_A_ROUND: Final = 200
_BITS: Final = 24  # of a count of used operations; the highest of them stays free
_ONE: Final = 1 << 21  # a price of one. The number of uses is the smaller part of a sum of prices.
_MOST: Final = 1 << 18  # the highest price, so that no sum comes near what is far


def search_register(
    calls: Sequence[Call],
    initial: Any,
    *,
    maximum_configurations: int = MAXIMUM_CONFIGURATIONS,
    maximum_bytes: int = MAXIMUM_BYTES,
    is_over: Callable[[], bool] = lambda: False,
) -> SearchResult:
    """Decide a register of ``write``, ``read`` and ``cas``; the bounds are those of
    :func:`spark_analysis.checking.search.search`."""
    bounds = Bounds(maximum_configurations, maximum_bytes, is_over)
    timeline = Timeline(calls, initial)
    graph = Graph(timeline, bounds)
    search = _Search(timeline, graph, bounds)
    try:
        graph.grow()
        is_right = search.run()
    except OutOfBoundsError as over:
        if graph.has_end:
            return SearchResult(UNDECIDED, bounds.seen, timeline.order(search.best), bound=over.bound)
        is_right = False
    order = timeline.order(search.best)
    if is_right:
        return SearchResult(LINEARIZABLE, bounds.seen, order)
    return SearchResult(VIOLATED, bounds.seen, order, (timeline.ended[search.best.layer],))


class _Search:
    """The search for a way through the graph that uses no more of each kind than had been invoked.

    ``best`` is the way that came furthest. ``_raised`` has for each unknown call how far the price of its kind has been
    raised for all who use it before the next of its kind is invoked: of these calls no more than its rank can be used
    by then. ``_failed`` has for each node what had been used, in one number, where there was no way from there.
    """

    def __init__(self, timeline: Timeline, graph: Graph, bounds: Bounds) -> None:
        self.timeline, self.graph, self.bounds = timeline, graph, bounds
        self.best = Way(0, ())
        self._raised = [0] * len(timeline.ops)
        self._failed: dict[int, list[int]] = defaultdict(list)
        self._kind_of = [-1] * (len(timeline.ops) + 1)
        for place, alike in enumerate(timeline.kinds.values()):
            for number in alike:
                self._kind_of[number] = place
        # The highest bit of each count, 0 in all of them: set before a subtraction, it stays where the count is enough.
        self._guard = sum(1 << _BITS * place + _BITS - 1 for place in range(len(timeline.kinds)))

    def run(self) -> bool:
        """True if there is a way to the end of the history."""
        most_failures = 0
        while True:
            most_failures += _FAILURES_OF_A_ROUND
            self.bounds.look(len(self.graph.nodes))
            prices = self._prices()
            far = self.graph.far(np.array(prices, dtype=np.int64))
            budget = sum(map(mul, self.timeline.ranks, self._raised))
            if far[0] // _ONE > budget:
                return False
            answer = self._look(array("q", far.tobytes()), prices, budget, most_failures)
            if answer is not None or not self.graph.has_end:
                return bool(answer) and self.graph.has_end
            self._raise(self._cheapest(far, prices))

    def _prices(self) -> list[int]:
        """The price of a step by each call: of those of unknown outcome :data:`_ONE` for each time that it was raised,
        and 1, so that of the cheapest ways the shortest is taken."""
        prices = [0] * (len(self.timeline.ops) + 1)
        for alike in self.timeline.kinds.values():
            price = 1
            for number in reversed(alike):
                price += _ONE * self._raised[number]
                prices[number] = price
        return prices

    def _look(
        self, far: Sequence[int], prices: Sequence[int], budget: int, most_failures: int
    ) -> bool | None:
        """Search by depth, where the budget reaches furthest; None if there is more to search after so many failures.

        A label is a node, and how many operations of each kind were used on the way there."""
        graph = self.graph
        ends = set(graph.ends)
        frames = [(0, 0, self._following(0, 0, budget, far, prices))]
        numbers: list[int] = []
        failures = 0
        while frames:
            node, used, following = frames[-1]
            if node in ends:
                self._note(frames, numbers)
                return True
            label = next(following, None)
            if label is not None:
                node, number, used, left = label
                numbers.append(number)
                self.bounds.count(_FRAME_BYTES)
                frames.append((node, used, self._following(node, used, left, far, prices)))
                continue
            if graph.layer_of[node] > self.best.layer:
                self._note(frames, numbers)
            self._fail(node, used)
            failures += 1
            if failures > most_failures:
                self.bounds.bytes += _FRAME_BYTES * len(numbers)
                return None
            frames.pop()
            if numbers:
                numbers.pop()
                self.bounds.bytes += _FRAME_BYTES
        return False

    def _note(self, frames: Sequence[tuple[int, int, Any]], numbers: Sequence[int]) -> None:
        layers = [self.graph.layer_of[node] for node, _, _ in frames]
        steps = zip(layers, numbers, strict=False)
        self.best = Way(layers[-1], [step for step in steps if step[1] != self.graph.nothing])

    def _following(
        self, node: int, used: int, left: int, far: Sequence[int], prices: Sequence[int]
    ) -> Iterator[tuple[int, int, int, int]]:
        """The labels that one step leads to, the cheapest first, with the step's call, and what is ``left`` of the
        budget then."""
        graph = self.graph
        edges = range(graph.first[node], graph.last[node])
        steps = sorted((far[graph.targets[edge]] + prices[graph.by[edge]], edge) for edge in edges)
        for price, edge in steps:
            if price // _ONE > left:
                return
            target, number = graph.targets[edge], graph.by[edge]
            kind, after = self._kind_of[number], used
            if kind >= 0:
                if (used >> _BITS * kind) % (1 << _BITS) == self.timeline.ranks[number]:
                    continue
                after += 1 << _BITS * kind
            if not self._is_hopeless(target, after):
                yield target, number, after, left - prices[number] // _ONE

    def _is_hopeless(self, node: int, used: int) -> bool:
        """True if there was no way from the node with no more used than now."""
        guard, failed = self._guard, self._failed.get(node, ())
        self.bounds.look(len(failed))
        return any((used | guard) - less & guard == guard for less in failed)

    def _fail(self, node: int, used: int) -> None:
        guard, failed = self._guard, self._failed[node]
        size = len(failed)
        failed[:] = [more for more in failed if (more | guard) - used & guard != guard]
        failed.append(used)
        self.bounds.bytes -= (len(failed) - size) * (_LABEL_BYTES + len(self.timeline.kinds) * _BITS // 8)

    def _cheapest(self, far: NDArray[np.int64], prices: Sequence[int]) -> Counter[int]:
        """How often each call stands in the cheapest way, whatever there is of its kind."""
        graph = self.graph
        node, used, ends = 0, Counter[int](), set(graph.ends)
        while node not in ends:
            edges = range(graph.first[node], graph.last[node])
            edge = min(edges, key=lambda edge: far[graph.targets[edge]] + prices[graph.by[edge]])
            used[graph.by[edge]] += 1
            node = graph.targets[edge]
        return used

    def _raise(self, used: Counter[int]) -> None:
        """Raise the prices of what is used too often, and lower those of what is left."""
        highest = 0
        for alike in self.timeline.kinds.values():
            total = price = 0
            for number in alike:
                total += used[number]
                self._raised[number] = max(0, self._raised[number] + total - self.timeline.ranks[number])
                price += self._raised[number]
            highest = max(highest, price)
        # Any prices prove what they prove, lower ones as well.
        self._raised = [one >> (highest // _MOST).bit_length() for one in self._raised]

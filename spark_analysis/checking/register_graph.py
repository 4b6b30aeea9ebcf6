"""The graph of all that may happen to a register, if whatever has no known outcome can happen again and again.

Time is gone through once. At the end of each operation that was answered, every configuration takes what it needs so
that this operation has happened, and no more ("just in time"; Lowe, "Testing for Linearizability", 2017). A
configuration is the operations that are under way and done already, and the register's value. Operations of unknown
outcome that write the same, or compare and write the same, are of one *kind*, and a step by one of them names the
latest that had been invoked. Three things keep the configurations few:

* An operation of unknown outcome happens directly before one that notices it. Until then nobody can tell.
* Reads, and comparisons that failed, happen as soon as they can.
* How often each kind was used belongs to a way through the graph, not to a configuration.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_analysis.checking.search import OutOfBoundsError
from spark_analysis.importing.calls import Call

_FAR: Final = 1 << 61
_NODE_BYTES: Final = 60
_KEY_BYTES: Final = 300  # of a node by what it is, which is known until its layer is done
_EDGE_BYTES: Final = 20
_STEPS_BETWEEN_LOOKS_AT_THE_CLOCK: Final = 1024


@dataclass(slots=True)
class Bounds:
    """What is left of the bounds of a search. ``seen`` counts configurations, ``steps`` whatever takes time."""

    configurations: int
    bytes: int
    is_over: Callable[[], bool]
    seen: int = 0
    steps: int = 0

    def look(self, steps: int) -> None:
        """Look at the clock now and then."""
        self.steps += steps
        if self.steps >= _STEPS_BETWEEN_LOOKS_AT_THE_CLOCK:
            self.steps = 0
            if self.is_over():
                raise OutOfBoundsError("time")

    def count(self, size: int) -> None:
        """Count a configuration that takes ``size`` bytes."""
        self.seen += 1
        self.bytes -= size
        if self.seen > self.configurations:
            raise OutOfBoundsError("configurations")
        if self.bytes < 0:
            raise OutOfBoundsError("memory")
        self.look(1)


_Step = tuple[int, int, int]
"""A bit, 0 of an operation of unknown outcome; the value that is left; the call."""


class Way(NamedTuple):
    """The beginning of a way through the graph: steps as (layer, call), and the layer that it has come to."""

    layer: int
    steps: Sequence[tuple[int, int]]


class Timeline:
    """The calls of a register by number, their values as small numbers, and their beginnings and ends in time.

    Call number n needs the value ``needs[n]`` and leaves ``leaves[n]``; -1 for any, and for the one that was there.
    ``refuses[n]`` is what a comparison that failed did not find. Unknown calls of one kind are numbered from 1 in the
    order of their beginnings, ``ranks``. ``ended``: the op of each answered call, in the order of their ends.
    """

    def __init__(self, calls: Sequence[Call], initial: Any) -> None:
        numbers: dict[Any, int] = {initial: 0}
        self.ops = [one.op for one in calls]
        self.is_answered = [one.complete_ns is not None for one in calls]
        self.needs, self.leaves, self.refuses = ([-1] * len(calls) for _ in range(3))
        for number, one in enumerate(calls):
            needs, leaves = one.argument if one.function == "cas" else (one.result, one.argument)
            if one.function != "write":
                wanted = numbers.setdefault(needs, len(numbers))
                is_refused = one.function == "cas" and self.is_answered[number] and not one.result
                (self.refuses if is_refused else self.needs)[number] = wanted
            if one.function != "read" and self.refuses[number] < 0:
                self.leaves[number] = numbers.setdefault(leaves, len(numbers))
        self.values = len(numbers)
        # Beginnings before ends at one moment: what only touches is concurrent.
        self.events = sorted(
            [(one.invoke_ns, False, number) for number, one in enumerate(calls)]
            + [
                (one.complete_ns, True, number)
                for number, one in enumerate(calls)
                if one.complete_ns is not None
            ]
        )
        self.ended = [self.ops[number] for _, ends, number in self.events if ends]
        self.kinds: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.ranks = [0] * len(calls)
        for _, _, number in self.events:
            # One that changes nothing is noticed by nobody.
            if not self.is_answered[number] and self.leaves[number] not in (-1, self.needs[number]):
                alike = self.kinds[self.needs[number], self.leaves[number]]
                alike.append(number)
                self.ranks[number] = len(alike)

    def sees(self, number: int, state: int) -> bool:
        """True if the call changes nothing, and can happen in this state."""
        if self.leaves[number] >= 0:
            return False
        return state != self.refuses[number] if self.refuses[number] >= 0 else state == self.needs[number]

    def order(self, way: Way) -> tuple[int, ...]:
        """The operations of a way that uses no more than there is; those that change nothing as soon as they can."""
        steps = iter(way.steps)
        step = next(steps, None)
        used: Counter[tuple[int, int]] = Counter()
        order: list[int] = []
        observers: list[int] = []
        state = layer = 0

        def observe() -> None:
            order.extend(self.ops[number] for number in observers if self.sees(number, state))
            observers[:] = [number for number in observers if not self.sees(number, state)]

        for _, ends, number in self.events:
            if not ends:
                if self.is_answered[number] and self.leaves[number] < 0:
                    observers.append(number)
                continue
            if layer == way.layer:
                break
            observe()
            while step is not None and step[0] == layer:
                done = step[1]
                if not self.is_answered[done]:
                    kind = self.needs[done], self.leaves[done]
                    done = self.kinds[kind][used[kind]]
                    used[kind] += 1
                order.append(self.ops[done])
                state = self.leaves[done]
                observe()
                step = next(steps, None)
            layer += 1
        return tuple(order)


class Graph:
    """The configurations, by number, and the steps between them, in layers: those that lead to the end of one answered
    operation after the other.

    The steps from a node are those from its ``first`` to its ``last``: each leads to one of ``targets`` ``by`` a call,
    or by ``nothing``, where two configurations have become one. ``layer_of`` has of each node the layer in which its
    steps are. ``ends`` are the nodes that came furthest; ``has_end`` is False if that is not the end of the history.
    """

    def __init__(self, timeline: Timeline, bounds: Bounds) -> None:
        self.timeline, self.bounds = timeline, bounds
        self.nothing = len(timeline.ops)
        self.first, self.last, self.layer_of = array("i"), array("i"), array("i")
        self.targets, self.by = array("i"), array("i")
        self.nodes = array("i")  # those that have steps, layer by layer
        self.layers: list[int] = []  # how many of these each layer has
        self.has_end = True
        self.ends: Sequence[int] = [self._add()]
        self._open: dict[int, int] = {}  # the place of its bit, of each answered operation under way

    def _add(self) -> int:
        self.first.append(0)
        self.last.append(0)
        self.layer_of.append(-1)
        self.bounds.count(_NODE_BYTES + _KEY_BYTES)
        return len(self.first) - 1

    def grow(self) -> None:
        """Go through time, up to the end or to the end of an operation that no configuration can have done."""
        frontier = {(0, 0): self.ends[0]}
        free = list(range(len(self.timeline.ops), -1, -1))
        latest: dict[tuple[int, int], int] = {}
        for _, ends, number in self.timeline.events:
            if ends:
                frontier = self._through(self._open[number], frontier, latest)
                if not frontier:
                    self.has_end = False
                    break
                self.ends = list(frontier.values())
                free.append(self._open.pop(number))
            elif self.timeline.is_answered[number]:
                self._open[number] = free.pop()
            elif self.timeline.ranks[number]:
                latest[self.timeline.needs[number], self.timeline.leaves[number]] = number
        for node in self.ends:
            self.layer_of[node] = len(self.layers) - (not self.has_end)

    def _through(
        self, place: int, frontier: dict[tuple[int, int], int], latest: dict[tuple[int, int], int]
    ) -> dict[tuple[int, int], int]:
        """Add every configuration that is reached from the frontier until an operation has happened; returns those in
        which it has, its bit taken away."""
        bit, nodes, known = 1 << place, len(self.nodes), len(self.first)
        steps, noticing, seen = self._steps(latest)
        here: dict[tuple[int, int, bool], int] = {}
        after: dict[tuple[int, int], int] = {}
        waiting: list[tuple[tuple[int, int, bool], int]] = []
        for (done, state), node in frontier.items():
            key = done | seen[state], state, False
            if here.setdefault(key, node) is node:
                waiting.append((key, node))
            else:
                self._connect(node, [here[key]], [self.nothing])
        for (done, state, is_owed), node in waiting:
            if done & bit:
                after[done & ~bit, state] = node
                continue
            targets, by = [], []
            for mask, state_after, number in noticing[state] if is_owed else steps[state]:
                if done & mask or (not mask and state_after == state):
                    continue
                done_after = done | mask | seen[state_after]
                key = done_after, state_after, not mask and done_after == done
                target = here.get(key)
                if target is None:
                    target = here[key] = self._add()
                    waiting.append((key, target))
                targets.append(target)
                by.append(number)
            self._connect(node, targets, by)
        self.layers.append(len(self.nodes) - nodes)
        self.bounds.bytes += _KEY_BYTES * (len(self.first) - known)
        return after

    def _connect(self, node: int, targets: list[int], by: list[int]) -> None:
        if targets:
            self.nodes.append(node)
            self.layer_of[node], self.first[node] = len(self.layers), len(self.targets)
            self.targets.fromlist(targets)
            self.by.fromlist(by)
            self.last[node] = len(self.targets)
            self.bounds.bytes -= _EDGE_BYTES * len(targets)

    def _steps(
        self, latest: dict[tuple[int, int], int]
    ) -> tuple[list[list[_Step]], list[list[_Step]], list[int]]:
        """What may happen now, by the value that is there: all steps; those that notice it; and the bits of the
        answered operations that happen as soon as it is there."""
        timeline = self.timeline
        noticing: list[list[_Step]] = [[] for _ in range(timeline.values)]
        writes: list[_Step] = []
        seen = [0] * timeline.values
        for number, place in self._open.items():
            if timeline.leaves[number] < 0:
                for state in range(timeline.values):
                    if timeline.sees(number, state):
                        seen[state] |= 1 << place
            else:
                listed = writes if timeline.needs[number] < 0 else noticing[timeline.needs[number]]
                listed.append((1 << place, timeline.leaves[number], number))
        for (needs, leaves), number in latest.items():
            (writes if needs < 0 else noticing[needs]).append((0, leaves, number))
        return [listed + writes for listed in noticing], noticing, seen

    def far(self, price: NDArray[np.int64]) -> NDArray[np.int64]:
        """The least price of a way from each node to an end."""
        far = np.full(len(self.first), _FAR, dtype=np.int64)
        far[np.array(self.ends)] = 0
        first, last, nodes, targets, by = (
            np.asarray(one) for one in (self.first, self.last, self.nodes, self.targets, self.by)
        )
        end = len(nodes)
        for count in reversed(self.layers):
            here = nodes[end - count : end]
            end -= count
            if not count:
                continue
            starts = first[here]
            edges = slice(starts[0], last[here[-1]])
            to, paid = targets[edges], price[by[edges]]
            before = far[here]
            while True:
                now = np.minimum(before, np.minimum.reduceat(far[to] + paid, starts - starts[0]))
                if (now == before).all():
                    break
                far[here] = before = now
        return far

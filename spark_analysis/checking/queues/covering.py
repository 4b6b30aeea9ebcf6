"""The search for prefixes of batches of unknown outcome that fill the offsets in need of an attempt: a bin covering.

The offsets that need an attempt are filled from the first to the last, each by the beginning of an attempt that had
been invoked by its deadline. Deadlines do not decrease, so an attempt that fits once fits ever after: attempts with the
same values are as good as each other. Of a value that nobody saw it does not matter which it is. So a state is how far
the offsets are filled, and how many attempts of each kind were used; states are few as long as kinds are. Where nothing
of a run of neighbours was seen, the longest prefix is the best: whatever comes behind it then has less left to fill.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from spark_analysis.checking.queues.attempts import Attempt, Hole, Placement, Seen

MOST_STATES: Final = 20_000
_MOST_COUNTS: Final = 4_000_000  # a state has one for each kind


class _Need(NamedTuple):
    position: int
    deadline_ns: float
    value: Hashable | None


Kind = tuple[Hashable | None, ...]  # an attempt's values, None for those that nobody saw
Used = tuple[int, ...]  # how many attempts of each kind


def cover(
    attempts: Iterable[Attempt],
    seen: Sequence[Seen],
    holes: Iterable[Hole],
    *,
    most_states: int = MOST_STATES,
) -> Placement | bool | None:
    """Find a place for appends of unknown outcome such that they explain every value seen and every hole of one queue.

    Returns it; False if there is none; None if that was not found out with ``most_states`` states, or so many as memory
    is spent on.
    """
    needs = sorted(
        [_Need(one.position, one.deadline_ns, one.value) for one in seen]
        + [_Need(at, hole.deadline_ns, None) for hole in holes for at in range(hole.first, hole.last + 1)],
        key=lambda need: need.position,
    )
    tried = _by_kind(attempts, {one.value for one in seen})
    # Attempts that nobody saw are tried first, the longest first: they fill most, and no seen value needs them.
    kinds = sorted(tried, key=lambda kind: (sum(value is not None for value in kind), -len(kind)))
    most_states = min(most_states, _MOST_COUNTS // max(1, len(kinds)))
    only_holes = _only_holes(needs)
    # An attempt fills at most as many needs as it has values. So even the shortest way takes more states than may be
    # used.
    if len(needs) > most_states * max(map(len, kinds), default=0):
        return None
    starts: dict[Hashable | None, list[int]] = defaultdict(list)
    for number, kind in enumerate(kinds):
        starts[kind[0]].append(number)

    def steps(filled: int, used: Used) -> Iterator[tuple[int, Used]]:
        """The states that one more attempt leads to. Attempts of which nothing was seen come first, and of each the
        longest prefix that fits."""
        need = needs[filled]
        for number in range(len(kinds)) if need.value is None else starts[need.value]:
            if bisect_right(tried[kinds[number]], (need.deadline_ns, math.inf)) > used[number]:
                after = (*used[:number], used[number] + 1, *used[number + 1 :])
                for end in _ends(kinds[number], needs, filled):
                    yield end, after
                    if only_holes[filled]:
                        break

    known: set[tuple[int, Used]] = set()
    reached = [(0, (0,) * len(kinds))]
    stack = [steps(*reached[0])] if needs else []
    while stack:
        state = next(stack[-1], None)
        if state is None:
            stack.pop()
            reached.pop()
        elif state[0] == len(needs):
            return _placement([*reached, state], needs, [tried[kind] for kind in kinds])
        elif state not in known:
            if len(known) == most_states:
                return None
            known.add(state)
            reached.append(state)
            stack.append(steps(*state))
    return False if needs else {}


def _placement(
    states: Sequence[tuple[int, Used]], needs: Sequence[_Need], tried: Sequence[Sequence[tuple[int, int]]]
) -> Placement:
    """Returns what stands where, if the search went through these states."""
    placed: Placement = {}
    for (first, before), (end, after) in pairwise(states):
        kind = next(number for number, count in enumerate(after) if count > before[number])
        _, op = tried[kind][before[kind]]
        placed |= {needs[first + index].position: (op, index) for index in range(end - first)}
    return placed


def _only_holes(needs: Sequence[_Need]) -> list[bool]:
    """Tell for each need whether nothing was seen there, nor behind it up to the end of its run of neighbours."""
    pure: list[bool] = []
    for place in reversed(range(len(needs))):
        ends_here = place + 1 == len(needs) or needs[place + 1].position > needs[place].position + 1
        pure.append(needs[place].value is None and (ends_here or pure[-1]))
    return pure[::-1]


def _by_kind(attempts: Iterable[Attempt], shown: set[Hashable]) -> Mapping[Kind, list[tuple[int, int]]]:
    """(invoke_ns, op) of the attempts of each kind, in order."""
    values: dict[int, dict[int, Hashable | None]] = defaultdict(dict)
    invoked: dict[int, int] = {}
    for one in attempts:
        values[one.op][one.index] = one.value if one.value in shown else None
        invoked[one.op] = one.invoke_ns
    tried: dict[Kind, list[tuple[int, int]]] = defaultdict(list)
    for op, by_index in values.items():
        tried[tuple(by_index[index] for index in sorted(by_index))].append((invoked[op], op))
    for listed in tried.values():
        listed.sort()
    return tried


def _ends(kind: Kind, needs: Sequence[_Need], first: int) -> Iterator[int]:
    """Yields the number of needs that are filled when a prefix of an attempt of this kind begins at the first of them,
    for each prefix that fits; the longest first."""
    end = first
    for index, value in enumerate(kind):
        place = first + index
        if (
            place == len(needs)
            or needs[place].position != needs[first].position + index
            or (needs[place].value is not None and needs[place].value != value)
        ):
            break
        end = place + 1
    yield from range(end, first, -1)

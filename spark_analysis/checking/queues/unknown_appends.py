"""Appends of unknown outcome: can they account for what nobody acknowledged?

Two things call for them: a value *seen* at an offset without an acknowledgement, and a *hole*, an offset that nobody
acknowledged or saw although the queue grew past it. Each has a deadline, the earliest completion that needs it, and
deadlines never decrease with the offset. An attempt can stand at an offset if it was invoked by the deadline. Because
the sets of fitting attempts are nested, counting decides (Hall's theorem); docs/checker.md has the argument.

Exact while attempts have one value each. An attempt of several values may have had effect for any number of its first
ones; filling holes with those is a bin covering. Bounds from both sides decide most of it, a search that is bounded the
rest (:mod:`spark_analysis.checking.queues.covering`), and what it does not is "unsure".
"""

import math
from bisect import bisect_right, insort
from collections import Counter, defaultdict, deque
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_analysis.checking.queues.attempts import Attempt, Hole, Placement, Seen
from spark_analysis.checking.queues.covering import cover


@dataclass(frozen=True, slots=True)
class Finding:
    """A reason why a queue's history is not linearizable, or cannot be decided.

    ``lower_ns`` is when an operation began that had to be earlier, ``upper_ns`` when one ended that had to be later:
    they name the operations that prove the finding, where two of them do.
    """

    kind: str
    position: int
    lower_ns: int | None = None
    upper_ns: int | None = None


def settle(
    attempts: Sequence[Attempt], seen: Sequence[Seen], holes: Sequence[Hole], shared: Sequence[int]
) -> tuple[list[Finding], list[Finding]]:
    """Explain the values and holes of one queue by its appends of unknown outcome; returns the findings, and the places
    that cannot be decided.

    ``shared``: invocation times of unseen attempts whose queue is not known; they may stand in any queue of the topic.
    """
    findings, unsure, _ = _bounded(attempts, seen, holes, shared)
    # The bounds decide nearly all; the search costs more, and only where they leave a doubt and nothing is wrong.
    if unsure and not findings:
        covering = cover(attempts, seen, holes)
        if isinstance(covering, dict):
            return [], []
        # With attempts that may stand in other queues, too, the search for this queue alone proves nothing.
        if covering is False and not shared:
            return unsure[:1], []
    return findings, unsure


def place(attempts: Sequence[Attempt], seen: Sequence[Seen], holes: Sequence[Hole]) -> Placement | None:
    """Choose the appends of unknown outcome that have had effect, and where, for a queue that :func:`settle` finds
    nothing wrong with; None if the search for them takes too long."""
    findings, unsure, placed = _bounded(attempts, seen, holes, ())
    if not findings and not unsure and _is_whole(placed):
        return placed
    covering = cover(attempts, seen, holes)
    return covering if isinstance(covering, dict) else None


def wanted_by(attempts: Sequence[Attempt], seen: Sequence[Seen], holes: Sequence[Hole]) -> list[float]:
    """The deadlines of the offsets that a queue's own appends of one value leave open."""
    bounds = _Bounds(attempts, seen, holes)
    bounds.explain_seen()
    bounds.explain_batches()
    return bounds.left_over()


def served(free: Iterable[Attempt], wanted: Mapping[str, Sequence[float]]) -> Iterator[tuple[str, Attempt]]:
    """Yields a queue with the append for each offset that is ``wanted``, if there is one for every offset of every
    queue.

    ``free``: appends of one value that no queue shows, which may stand in any queue; ``wanted``: deadlines by queue. A
    queue's own appends stand at its first offsets that they fit, so what it wants of others is as little, and as late,
    as can be.
    """
    deadlines = sorted((deadline, key) for key, listed in wanted.items() for deadline in listed)
    in_order = sorted(free, key=lambda one: (one.invoke_ns, one.op))
    if _enough([one.invoke_ns for one in in_order], [deadline for deadline, _ in deadlines]):
        for (_, key), one in zip(deadlines, in_order, strict=False):
            yield key, one


def _is_whole(placed: Placement) -> bool:
    """True if of each append a prefix of its values stands at neighbouring offsets."""
    places = {one: position for position, one in placed.items()}
    return all(not index or places.get((op, index - 1)) == at - 1 for (op, index), at in places.items())


def _bounded(
    attempts: Iterable[Attempt], seen: Iterable[Seen], holes: Iterable[Hole], shared: Sequence[int]
) -> tuple[list[Finding], list[Finding], Placement]:
    """Explain a queue as :func:`settle` does, but by bounds from both sides alone, which decide whatever has no
    batches; returns the findings, the places that cannot be decided, and which value was taken to stand where.

    Where nothing is wrong or unsure, that placement is an explanation, unless several batches have values in common."""
    bounds = _Bounds(attempts, seen, holes)
    bounds.explain_seen()
    bounds.explain_batches()
    if not bounds.findings:
        bounds.fill_holes(shared)
    return bounds.findings, bounds.unsure, bounds.placed


class _Bounds:
    """One queue while it is explained, step by step: single appends for what was seen, batches, then what is left for
    the holes.

    An attempt is in `_single` or `_batches` until it is taken for a place; a hole's offset is in `_open` until then.
    """

    def __init__(self, attempts: Iterable[Attempt], seen: Iterable[Seen], holes: Iterable[Hole]) -> None:
        self.findings: list[Finding] = []
        self.unsure: list[Finding] = []
        self.placed: Placement = {}
        self._single: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
        """The attempts of one value, (when it began, its operation), in that order, by value."""
        self._batches: dict[int, list[Attempt]] = defaultdict(list)
        """The values of each other attempt, in their order, by its operation."""
        for attempt in attempts:
            if attempt.size == 1:
                insort(self._single[attempt.value], (attempt.invoke_ns, attempt.op))
            else:
                self._batches[attempt.op].append(attempt)
        for values in self._batches.values():
            values.sort(key=lambda one: one.index)
        self._tries = Counter(one.value for values in self._batches.values() for one in values)
        self._first_try: dict[Hashable, int] = {}
        """When the first of the batches began that has a value, by value."""
        for values in self._batches.values():
            for one in values:
                first = self._first_try.get(one.value, one.invoke_ns)
                self._first_try[one.value] = min(first, one.invoke_ns)
        self._ambiguous = {
            value for value, count in self._tries.items() if count > 1 or value in self._single
        }
        """Values of batches that another attempt has, too."""
        self._open = {
            position: hole.deadline_ns for hole in holes for position in range(hole.first, hole.last + 1)
        }
        self._places = {one.position: one for one in seen}
        self._by_batch: dict[Hashable, Seen] = {}
        """The values that only a batch can explain."""
        self._spent: list[int] = []
        """The begins of those single attempts that a batch might stand for, which would leave them for the holes."""

    def explain_seen(self) -> None:
        """Takes single attempts for the values that were seen, and leaves the rest of these to batches."""
        for position in sorted(self._places):
            one = self._places[position]
            # Ascending offsets have ascending deadlines. The latest attempt that fits leaves the earliest ones, which
            # fit most, for the holes.
            fitting = bisect_right(self._single.get(one.value, []), (one.deadline_ns, math.inf))
            if fitting:
                time_ns, op = self._single[one.value].pop(fitting - 1)
                self.placed[position] = op, 0
                if self._tries[one.value]:
                    self._spent.append(time_ns)
            elif self._first_try.get(one.value, math.inf) <= one.deadline_ns:
                if one.value in self._by_batch:
                    complaints = self.unsure if one.value in self._ambiguous else self.findings
                    complaints.append(Finding("duplicate-value", position))
                self._by_batch[one.value] = one
            else:
                self.findings.append(Finding("unexplained-value", position))

    def explain_batches(self) -> None:
        """Places the batches of which a value was seen."""
        tried: set[tuple[Hashable, ...]] = set()
        # What is certain comes first: a batch that need not have had effect must not take an offset from one that has.
        in_order = sorted(
            self._batches.values(),
            key=lambda values: (self._is_ambiguous(values), values[0].invoke_ns, values[0].op),
        )
        for values in in_order:
            same = tuple(one.value for one in values)
            if same in tried:
                continue  # what this attempt could explain the first one of the same values explains, too
            tried.add(same)
            self._place_batch(values)

    def _is_ambiguous(self, values: Iterable[Attempt]) -> bool:
        return any(one.value in self._ambiguous for one in values)

    def _place_batch(self, values: Sequence[Attempt]) -> None:
        """Places the first values of a batch at neighbouring offsets, where some of them were seen."""
        found = [(self._by_batch[one.value], one.index) for one in values if one.value in self._by_batch]
        if not found:
            return
        complaints = self.unsure if self._is_ambiguous(values) else self.findings
        bases = {place.position - index for place, index in found}
        base = min(bases)
        # Its values were seen at distances that they do not have in it.
        if len(bases) > 1 or base < 0:
            complaints.append(Finding("torn-append", found[0][0].position))
            return
        # Up to the last value that was seen all must stand there, as one append's values stand side by side. Those
        # behind it nobody has seen: offsets without an append are not given to them here.
        deadlines = []
        for index in range(max(index for _, index in found) + 1):
            position = base + index
            place = self._places.get(position)
            if position in self._open:
                deadlines.append(self._open.pop(position))
            elif place is not None and place.value == values[index].value:
                deadlines.append(place.deadline_ns)
            else:
                complaints.append(Finding("torn-append", position))
                continue
            self.placed.setdefault(position, (values[index].op, index))
        if deadlines and values[0].invoke_ns > min(deadlines):
            complaints.append(Finding("unexplained-value", found[0][0].position))

    def left_over(self) -> list[float]:
        """The deadlines of the open offsets that single attempts leave when each takes the first one that it fits."""
        free = deque(sorted(begin for listed in self._single.values() for begin, _ in listed))
        wanted = []
        for _, deadline in sorted(self._open.items()):
            if free and free[0] <= deadline:
                free.popleft()
            else:
                wanted.append(deadline)
        return wanted

    def fill_holes(self, shared: Sequence[int]) -> None:
        """Takes the attempts that are left for the offsets that are; `shared` as `settle` has it."""
        left = sorted(self._open.items())
        deadlines = [deadline for _, deadline in left]
        unused = sorted(one for listed in self._single.values() for one in listed)
        self.placed |= {position: (op, 0) for (position, _), (_, op) in zip(left, unused, strict=False)}
        free = [time_ns for time_ns, _ in unused]
        if _enough(free, deadlines):
            return
        hole = Finding("unexplained-offset", left[0][0])
        # Assume the most that batches can have filled: where even that is not enough, no explanation exists.
        batched = [one.invoke_ns for values in self._batches.values() for one in values]
        if _enough(sorted([*free, *self._spent, *batched, *shared]), deadlines):
            self.unsure.append(hole)
        else:
            self.findings.append(hole)


def contested(
    topic: str,
    attempts: Mapping[str, Sequence[Attempt]],
    seen: Mapping[str, Sequence[Seen]],
    with_holes: Iterable[str],
) -> list[tuple[str, Finding, bool]]:
    """Values that queues of one topic have from the same attempts: (queue, finding, whether it is only unsure).

    :func:`settle` gives each queue all attempts that left their queue to the broker (those under the key ``topic``) and
    have a value that it shows; but an attempt stands in one queue. The cases are those of docs/checker.md, "Appends
    that leave the queue to the broker".
    """
    contest = _Contest(topic, attempts, seen, with_holes)
    return [*contest.of_values(), *contest.of_batches()]


class _Contest:
    """The attempts of unknown queue of one topic, and the queues that may need them.

    ``supply`` has the attempts by value, ``batches`` the values by operation, ``shown`` by value the places at which
    each queue shows it. ``wanting`` and ``needed``: by value the queues that may take one of its attempts, and those
    that must have one.
    """

    def __init__(
        self,
        topic: str,
        attempts: Mapping[str, Sequence[Attempt]],
        seen: Mapping[str, Sequence[Seen]],
        with_holes: Iterable[str],
    ) -> None:
        self.batches: dict[int, list[Hashable]] = defaultdict(list)
        self.supply: dict[Hashable, list[Attempt]] = defaultdict(list)
        for attempt in sorted(attempts.get(topic, ()), key=lambda one: one.index):
            self.batches[attempt.op].append(attempt.value)
            self.supply[attempt.value].append(attempt)
        own: dict[tuple[str, Hashable], list[Attempt]] = defaultdict(list)
        for queue, listed in attempts.items():
            for attempt in listed:
                if queue != topic and attempt.value in self.supply:
                    own[queue, attempt.value].append(attempt)
        self.holed = frozenset(with_holes)
        self.shown = _shown(self.supply, seen)
        self.deadlines = {
            value: min(one.deadline_ns for places in by_queue.values() for one in places)
            for value, by_queue in self.shown.items()
        }
        self.needs = {
            value: {
                queue: _need(len(places), own[queue, value], self.deadlines[value])
                for queue, places in by_queue.items()
            }
            for value, by_queue in self.shown.items()
        }
        # What a queue does not need for this value it may take for a hole.
        self.wanting = {
            value: {queue for queue, need in needs.items() if need.most or queue in self.holed}
            for value, needs in self.needs.items()
        }
        self.needed = {
            value: {queue for queue, need in needs.items() if need.least}
            for value, needs in self.needs.items()
        }

    def of_values(self) -> Iterator[tuple[str, Finding, bool]]:
        """The cases 1 to 4: each value by itself."""
        for value, needs in self.needs.items():
            count, rivals = len(self.supply[value]), sorted(self.wanting[value])
            if len(rivals) < 2 or any(need.least > count for need in needs.values()):
                continue  # 1.: nobody else wants these attempts, or one queue shows by itself that they are too few
            finding = Finding("duplicate-value", min(one.position for one in self.shown[value][rivals[-1]]))
            # The same values of one append are several attempts, and stand in one queue.
            appends = len({one.op for one in self.supply[value]})
            if sum(need.least for need in needs.values()) > count or len(self.needed[value]) > appends:
                yield rivals[-1], finding, False  # 2.: one has had effect twice
            elif not self._makes_no_difference(value, rivals):
                yield rivals[-1], finding, True  # 4.; in 3. the answers of the queues stand

    def _makes_no_difference(self, value: Hashable, rivals: Iterable[str]) -> bool:
        supply = self.supply[value]
        return (
            all(one.invoke_ns <= self.deadlines[value] for one in supply)
            and len({one.op for one in supply}) == len(supply)
            and sum(need.most for need in self.needs[value].values()) <= len(supply)
            and len({tuple(self.batches[one.op]) for one in supply}) == 1
            and self.holed.isdisjoint(rivals)
        )

    def of_batches(self) -> Iterator[tuple[str, Finding, bool]]:
        """The case 5: the queues that show a batch's values may be others for each value."""
        for batch in dict.fromkeys(map(tuple, self.batches.values())):
            by_value = [self.wanting[value] for value in batch if value in self.shown]
            rivals = sorted(set().union(*by_value))
            if len(rivals) < 2 or any(len(queues) == len(rivals) for queues in by_value):
                continue  # nobody else wants it, or one value has all who do: `of_values` has judged it
            # What nobody else attempted this batch must have put there.
            bound = {
                queue
                for value in batch
                if len(self.supply[value]) == 1
                for queue in self.needed.get(value, ())
            }
            last = max(bound) if len(bound) > 1 else rivals[-1]
            position = min(
                one.position
                for value in batch
                if value in self.shown
                for one in self.shown[value].get(last, ())
            )
            yield last, Finding("duplicate-value", position), len(bound) < 2


class _Need(NamedTuple):
    """The number of attempts of unknown queue that one queue needs for a value."""

    least: int
    most: int


def _need(places: int, own: Sequence[Attempt], deadline_ns: float) -> _Need:
    """Return how many more attempts a queue needs that shows a value in ``places`` places.

    ``own`` are the attempts that name the queue. The least is needed if all of them fit; the most, if only those do
    that fit at every place of every queue: single appends that began until ``deadline_ns``.
    """
    fit_everywhere = sum(one.invoke_ns <= deadline_ns and one.size == 1 for one in own)
    return _Need(max(0, places - len(own)), max(0, places - fit_everywhere))


def _shown(
    values: Container[Hashable], seen: Mapping[str, Sequence[Seen]]
) -> dict[Hashable, dict[str, list[Seen]]]:
    """The places at which queues show each of ``values``."""
    places: dict[Hashable, dict[str, list[Seen]]] = defaultdict(lambda: defaultdict(list))
    for queue, visible in seen.items():
        for one in visible:
            if one.value in values:
                places[one.value][queue].append(one)
    return places


def _enough(free: Sequence[int], deadlines: list[float]) -> bool:
    """True if each deadline (ascending) gets an invocation of its own at or before it."""
    return len(free) >= len(deadlines) and all(
        time_ns <= deadline for time_ns, deadline in zip(free, deadlines, strict=False)
    )

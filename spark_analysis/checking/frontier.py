"""Registers whose values repeat, with many operations of unknown outcome: a search by width instead of by depth.

Time is gone through once. At the end of each operation that was answered, every configuration takes what it needs so
that this operation has happened, and no more ("just in time"; Lowe, "Testing for Linearizability", 2017). A
configuration is the operations that are under way and done already, the register's value, and how many unknown
operations of each *counted* kind have been used; those of one kind write the same, or compare and write the same.

At first no kind is counted: whatever was invoked once may be used again and again. If even then no order exists, there
is none. If one exists that uses no more than there were, it is the answer. Else the kinds of which it used too many are
counted from now on, and time is gone through again. So the answer is exact, and only what is scarce costs anything.

Three things keep the configurations few:

* An operation of unknown outcome happens directly before one that notices it. Until then nobody can tell.
* Of two configurations that differ in what they used, the one that used less can do whatever the other can, so the
  other is forgotten. Less is also a comparison (u to v) in place of a write of v: whoever would need the comparison
  later can take the write instead.
* Reads, and comparisons that failed, happen as soon as they can.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from spark_analysis.checking.search import (
    MAXIMUM_BYTES,
    MAXIMUM_CONFIGURATIONS,
    OutOfBoundsError,
    SearchResult,
)
from spark_analysis.checking.verdict import LINEARIZABLE, UNDECIDED, VIOLATED
from spark_analysis.importing.calls import Call

_BITS: Final = 24  # of a count of used operations; the highest of them stays free
_CONFIGURATION_BYTES: Final = 400
_COSTS: Final = 1 << 20
_COMPARISONS_BETWEEN_LOOKS_AT_THE_CLOCK: Final = 1024


@dataclass(slots=True, eq=False)
class _Kind:
    """Unknown operations that are alike: the value that they need, in a tuple, or () of writes, and the one that they
    leave. ``unit`` is one of them in a configuration's count, 0 if they are not counted; ``ops`` are those invoked so
    far, and ``cost`` is smaller the more of them there are in all."""

    needs: tuple[Any, ...]
    leaves: Any
    unit: int = 0
    cost: int = 0
    ops: list[int] = field(default_factory=list)

    def count(self, used: int) -> int:
        return used // self.unit % (1 << _BITS)


Path = tuple[Any, "int | tuple[_Kind, int]"] | None
"""The operations so far, the last one first; of an unknown one its kind, and how many of it had been invoked."""


class _Configuration(NamedTuple):
    """``done``: bits of the operations under way that have happened. ``is_owed``: the last operation was of unknown
    outcome, and the next one must notice it. ``cost`` is what was used of kinds that are not counted."""

    done: int
    state: Any
    is_owed: bool
    used: int
    cost: int
    path: Path


@dataclass(slots=True)
class _Bounds:
    """What is left of the bounds of a search, for all walks together. ``seen`` counts configurations, ``compared``
    pairs of them since the last look at the clock."""

    configurations: int
    at_once: int
    is_over: Callable[[], bool]
    seen: int = 0
    compared: int = 0

    def look(self, compared: int) -> None:
        """Look at the clock now and then: what takes time is to compare a configuration with all that are like it."""
        self.compared += 1 + compared
        if self.compared >= _COMPARISONS_BETWEEN_LOOKS_AT_THE_CLOCK:
            self.compared = 0
            if self.is_over():
                raise OutOfBoundsError("time")

    def count(self, at_once: int) -> None:
        self.seen += 1
        if self.seen > self.configurations:
            raise OutOfBoundsError("configurations")
        if at_once > self.at_once:
            raise OutOfBoundsError("memory")


def search_register(
    calls: Sequence[Call],
    initial: Any,
    *,
    maximum_configurations: int = MAXIMUM_CONFIGURATIONS,
    maximum_bytes: int = MAXIMUM_BYTES,
    is_over: Callable[[], bool] = lambda: False,
) -> SearchResult:
    """Decide a register of ``write``, ``read`` and ``cas``; the bounds are those of
    :func:`spark_analysis.checking.search.search`, where bytes bound what is kept at one time."""
    bounds = _Bounds(maximum_configurations, maximum_bytes, is_over)
    counted: set[tuple[Any, ...]] = set()
    order: tuple[int, ...] = ()
    while True:
        # Every counted kind makes each configuration's count longer.
        bounds.at_once = max(1, maximum_bytes // (_CONFIGURATION_BYTES + len(counted) * _BITS // 8))
        walk = _Walk(calls, initial, counted, bounds)
        try:
            stuck = walk.run()
        except OutOfBoundsError as over:
            return SearchResult(UNDECIDED, bounds.seen, order, (), over.bound)
        order, scarce = _resolved(walk.best)
        if stuck is not None:
            return SearchResult(VIOLATED, bounds.seen, order, (stuck,))
        if not scarce:
            return SearchResult(LINEARIZABLE, bounds.seen, order)
        counted |= scarce


def _resolved(path: Path) -> tuple[tuple[int, ...], set[tuple[Any, ...]]]:
    """The operations of a path up to the first of which it used more than there were, and the kinds of which it used
    too many."""
    entries = []
    while path is not None:
        path, entry = path
        entries.append(entry)
    order: list[int] = []
    scarce: set[tuple[Any, ...]] = set()
    used: Counter[_Kind] = Counter()
    for entry in reversed(entries):
        if not isinstance(entry, int):
            kind, invoked = entry
            number = used[kind]
            used[kind] += 1
            # At that point of the path no more of its kind had been invoked.
            if number >= invoked:
                scarce.add((kind.needs, kind.leaves))
            elif not scarce:
                order.append(kind.ops[number])
        elif not scarce:
            order.append(entry)
    return tuple(order), scarce


class _Walk:
    """The configurations at a moment, as time goes on. ``best`` is the path of one that came as far as any."""

    def __init__(
        self, calls: Sequence[Call], initial: Any, counted: set[tuple[Any, ...]], bounds: _Bounds
    ) -> None:
        self.calls, self.bounds = calls, bounds
        self.best: Path = None
        self.kinds: dict[tuple[Any, ...], _Kind] = {}
        for one in calls:
            if one.complete_ns is None and one.function != "read":
                kind = self.kinds.setdefault(_kind_of(one), _Kind(*_kind_of(one)))
                kind.cost += 1
        units = (1 << _BITS * place for place in range(len(counted)))
        self.guard = 0
        for name, kind in self.kinds.items():
            # A configuration that used what there is much of is more likely to have used no more than there was.
            kind.cost = _COSTS // kind.cost
            if name in counted:
                kind.unit = next(units)
                # The highest bit of each count, 0 in all of them: set before a subtraction, it stays where the count is
                # enough.
                self.guard |= kind.unit << _BITS - 1
        self.slots: dict[int, int] = {}  # the bit of each operation that is under way, by number
        self.free = list(range(len(calls), -1, -1))
        self.frontier = [_Configuration(0, initial, False, 0, 0, None)]
        self.held = 0  # configurations of the frontier, and those that were reached from it and not forgotten

    def run(self) -> int | None:
        """Go through time; returns the operation that no configuration can have done by its end, or None."""
        events = [(one.invoke_ns, 0, number) for number, one in enumerate(self.calls)]
        events += [
            (one.complete_ns, 1, number)
            for number, one in enumerate(self.calls)
            if one.complete_ns is not None
        ]
        # Beginnings before ends at one moment: what only touches is concurrent.
        events.sort()
        for _, ends, number in events:
            one = self.calls[number]
            if ends:
                bit = 1 << self.slots[number]
                after = self._through(bit)
                if not after:
                    return one.op
                # All of them came as far; the cheapest most likely used no more than there was.
                self.best = min(after, key=lambda each: each.cost).path
                self.free.append(self.slots.pop(number))
                self.frontier = [each._replace(done=each.done & ~bit) for each in after]
            elif one.complete_ns is not None:
                self.slots[number] = self.free.pop()
            elif one.function != "read":
                self.kinds[_kind_of(one)].ops.append(one.op)
        return None

    def _through(self, bit: int) -> list[_Configuration]:
        """Every configuration in which an operation has happened, reached from one of the frontier's."""
        kept: dict[tuple[int, Any, bool], list[_Configuration]] = defaultdict(list)
        self.held = len(self.frontier)
        waiting = [one for one in map(self._absorbed, self.frontier) if self._is_kept(one, kept)]
        while waiting:
            following: list[_Configuration] = []
            for one in waiting:
                # A configuration that used less may have been added since.
                if not one.done & bit and any(other is one for other in kept[one[:3]]):
                    following += (after for after in self._steps(one) if self._is_kept(after, kept))
            waiting = following
        return [one for listed in kept.values() for one in listed if one.done & bit]

    def _is_kept(self, one: _Configuration, kept: dict[tuple[int, Any, bool], list[_Configuration]]) -> bool:
        """Remember a configuration unless one is known that used no more; forget those that used no less."""
        listed = kept[one[:3]]
        self.bounds.look(len(listed))
        for other in listed:
            if self._is_no_more(other.used, one.used) and (other.used != one.used or other.cost <= one.cost):
                return False
        left = [other for other in listed if not self._is_no_more(one.used, other.used)]
        self.held += len(left) + 1 - len(listed)
        listed[:] = [*left, one]
        self.bounds.count(self.held)
        return True

    def _is_no_more(self, one: int, other: int) -> bool:
        """True if what was used in ``one`` is no more than in ``other``."""
        guard = self.guard
        if (other | guard) - one & guard == guard:
            return True
        # Of each value the comparisons that are too many must be made up for by writes.
        debts: dict[Any, int] = defaultdict(int)
        for kind in self.kinds.values():
            if not kind.unit:
                continue
            more = kind.count(one) - kind.count(other)
            if not kind.needs:
                if more > 0:
                    return False
                debts[kind.leaves] += more
            elif more > 0:
                debts[kind.leaves] += more
        return all(debt <= 0 for debt in debts.values())

    def _steps(self, one: _Configuration) -> Iterator[_Configuration]:
        for number, slot in self.slots.items():
            call = self.calls[number]
            if one.done >> slot & 1 or call.function == "read":  # reads are absorbed as soon as they can be
                continue
            if call.function == "write":
                # It would not notice the unknown operation before it, which might as well not have happened.
                if one.is_owed:
                    continue
                following = call.argument
            elif call.result and one.state == call.argument[0]:
                following = call.argument[1]
            else:
                continue
            yield self._absorbed(
                one._replace(
                    done=one.done | 1 << slot, state=following, is_owed=False, path=(one.path, call.op)
                )
            )
        for kind in self.kinds.values():
            if not kind.ops or kind.leaves == one.state:  # one that changes nothing is noticed by nobody
                continue
            if kind.needs != (one.state,) if kind.needs else one.is_owed:
                continue
            if kind.unit and kind.count(one.used) == len(kind.ops):
                continue
            yield self._absorbed(
                _Configuration(
                    *(one.done, kind.leaves, True, one.used + kind.unit),
                    *(one.cost + kind.cost, (one.path, (kind, len(kind.ops)))),
                )
            )

    def _absorbed(self, one: _Configuration) -> _Configuration:
        """The configuration after every operation that notices its value, and leaves it."""
        done, path, state = one.done, one.path, one.state
        for number, slot in self.slots.items():
            if done >> slot & 1:
                continue
            call = self.calls[number]
            if (call.function == "read" and call.result == state) or (
                call.function == "cas" and not call.result and call.argument[0] != state
            ):
                done, path = done | 1 << slot, (path, call.op)
        if done == one.done:
            return one
        return one._replace(done=done, path=path, is_owed=False)


def _kind_of(call: Call) -> tuple[Any, ...]:
    if call.function == "cas":
        return (call.argument[0],), call.argument[1]
    return (), call.argument

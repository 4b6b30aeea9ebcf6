"""The stays of values, as a history of a container tells: when it was put in, and when it was taken out.

A *stay* is a value's time in the container. Its put takes effect in [put_from, put_until], its take in
[take_from, take_until]; a put must come before its take, so put_until is no later than take_until and take_from no
earlier than put_from. Strictly between put_until and take_from the value is inside in every order: its *core*.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from spark_analysis.checking.search import SearchResult
from spark_analysis.checking.verdict import LINEARIZABLE, VIOLATED
from spark_analysis.importing.calls import Call

Moment = float
"""Nanoseconds; integers, or infinite."""

LinearizationPoint = tuple[Moment, int]
"""A moment and the operation that takes effect then."""


@dataclass(frozen=True, slots=True)
class Stay:
    """One value. ``take_op`` None: nobody took it, so take_from and take_until are infinite."""

    value: Any
    put_op: int
    take_op: int | None
    put_from: Moment
    put_until: Moment
    take_from: Moment
    take_until: Moment

    @property
    def has_core(self) -> bool:
        return self.put_until < self.take_from

    @property
    def ops(self) -> tuple[int, ...]:
        return (self.put_op,) if self.take_op is None else (self.put_op, self.take_op)

    def taken_by(self, op: int, begin: Moment) -> Stay:
        """This stay, ended by a take of unknown outcome that was invoked at ``begin``."""
        return replace(self, take_op=op, take_from=max(begin, self.put_from), take_until=math.inf)


@dataclass(frozen=True, slots=True)
class Empty:
    """A take that found nothing: at a moment of [begin, end] the container was empty."""

    op: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Stays:
    """A history of a container: ``taken`` and ``left`` are values that were and were not seen to be taken.

    ``spare`` are the takes of unknown outcome as (invocation, op), earliest first, each of which may have taken one of
    ``left``."""

    taken: list[Stay]
    left: list[Stay]
    empties: list[Empty]
    spare: list[tuple[int, int]]


def begin_of(call: Call) -> int:
    """The begin of a call, as a key to sort by."""
    return call.invoke_ns


def end_of(call: Call) -> Moment:
    """The end of a call; infinite if its outcome is unknown, as it may take effect at any later time."""
    return math.inf if call.complete_ns is None else call.complete_ns


def violated(because: str, *proof: int) -> SearchResult:
    """``because`` says in one sentence why no order exists, of the operations ``proof``."""
    return SearchResult(VIOLATED, 0, (), proof, because=because)


def linearizable(order: Sequence[int]) -> SearchResult:
    return SearchResult(LINEARIZABLE, 0, tuple(order))


def stays_of(calls: Sequence[Call], put: str, take: str) -> Stays | SearchResult | None:
    """Pair puts and takes. A result: it is violated already. None: it is not known which put a take belongs to.

    A put of unknown outcome whose value nobody took can be left out: it need not have happened, and if a take of
    unknown outcome took it, both can be left out together.
    """
    takes: dict[Any, list[Call]] = defaultdict(list)
    puts: dict[Any, list[Call]] = defaultdict(list)
    empties, spare = [], []
    for call in calls:
        if call.function == put:
            puts[call.argument].append(call)
        elif call.function != take:
            return None
        elif call.complete_ns is None:
            spare.append((call.invoke_ns, call.op))
        elif call.result is None:
            empties.append(Empty(call.op, call.invoke_ns, call.complete_ns))
        else:
            takes[call.result].append(call)
    # To take this value out looks like a take that found nothing.
    if None in puts:
        return None
    for value, listed in takes.items():
        if len(listed) > len(puts[value]):
            what = " more often than it was put in" if puts[value] else ", which nobody had put in"
            # Of many the first few are shown: takes and puts in turns.
            ops = [one.op for pair in zip_longest(listed, puts[value]) for one in pair if one is not None]
            return violated(f"{value!r:.60} was taken out{what}", *ops)
    taken, left = [], []
    for value, tried in puts.items():
        if value not in takes:
            # Where nobody saw the value taken, one value is as good as another.
            left += [_stay(one, None) for one in tried if one.complete_ns is not None]
            continue
        if len(tried) > 1:
            return None
        stay = _stay(tried[0], takes[value][0])
        if stay.take_until < stay.put_from:
            return violated(f"{value!r:.60} was taken out before it was put in", *stay.ops)
        taken.append(stay)
    return Stays(taken, left, empties, sorted(spare))


def _stay(put: Call, take: Call | None) -> Stay:
    begin, end = put.invoke_ns, end_of(put)
    if take is None:
        return Stay(put.argument, put.op, None, begin, end, math.inf, math.inf)
    assert take.complete_ns is not None
    last = take.complete_ns
    return Stay(put.argument, put.op, take.op, begin, min(end, last), max(take.invoke_ns, begin), last)

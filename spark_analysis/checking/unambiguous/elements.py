"""Sets to which each element was added at most once.

Without reads of the whole set every element is an object of its own, of one bit, and linearizability is local. With
such reads, where nothing was removed, the reads say in which order the elements came. Reads of the whole set beside
removals are left to the search.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from spark_analysis.checking.search import SearchResult
from spark_analysis.checking.unambiguous.stays import (
    LinearizationPoint,
    Moment,
    begin_of,
    end_of,
    linearizable,
    violated,
)
from spark_analysis.importing.calls import Call


def decide_set(calls: Sequence[Call]) -> SearchResult | None:
    """Decide a set of ``add``, ``remove``, ``contains`` and ``read``; None if it is none of the cases above."""
    calls = [one for one in calls if one.complete_ns is not None or one.function in ("add", "remove")]
    functions = {one.function for one in calls}
    if "read" not in functions:
        return _element_by_element(calls)
    return _growing(calls) if functions <= {"add", "read"} else None


def _element_by_element(calls: Sequence[Call]) -> SearchResult | None:
    of: dict[Any, list[Call]] = defaultdict(list)
    for call in calls:
        of[call.argument].append(call)
    points: list[LinearizationPoint] = []
    for element, listed in of.items():
        found = _one_element(element, listed)
        if not isinstance(found, list):
            return found
        points += found
    # The moments of one element are in its order already, and a stable sort keeps that.
    points.sort(key=lambda point: point[0])
    return linearizable([op for _, op in points])


def _one_element(element: Any, calls: Sequence[Call]) -> list[LinearizationPoint] | SearchResult | None:
    """The operations in an order, with their moments.

    The element is inside between its addition and the first removal behind that. Both bounds are as close together as
    the calls that found it allow, which leaves all others as much room as they can have.
    """
    adds = [one for one in calls if one.function == "add"]
    removes = [one for one in calls if one.function == "remove"]
    seen = [one for one in calls if one.function == "contains" and one.result]
    missed = [one for one in calls if one.function == "contains" and not one.result]
    if not seen:
        # An addition of unknown outcome whose effect nobody saw need not have happened.
        adds = [one for one in adds if one.complete_ns is not None]
    if not adds:
        if seen:
            return violated(f"{element!r:.60} was found, which nobody had added", *(one.op for one in seen))
        return _in_turn(calls)
    if len(adds) > 1:
        return None
    (add,) = adds
    first_seen = min(seen, key=end_of, default=None)
    last_seen = max(seen, key=begin_of, default=None)
    added_until = min(end_of(add), math.inf if first_seen is None else end_of(first_seen))
    if added_until < add.invoke_ns:
        assert first_seen is not None
        return violated(f"{element!r:.60} was found before it was added", add.op, first_seen.op)
    # A removal takes it out only behind the last call that found it, and behind its addition.
    wanted = max(add.invoke_ns, -math.inf if last_seen is None else last_seen.invoke_ns)
    removed, remover = _first_removal(removes, wanted)
    added: Moment = added_until
    if removed > added_until:
        # It was added as late as possible, so no earlier removal took it out.
        removed, remover = _first_removal(removes, max(wanted, added_until))
    else:
        # It can be taken out before it has to be inside: then it is inside for a moment only.
        added = removed
    before, behind = [], []
    for one in (*missed, *removes):
        if one is remover:
            continue
        if one.invoke_ns <= added:
            before.append(one)
        elif end_of(one) >= removed:
            behind.append(one)
        else:
            provers = [call for call in (add, first_seen, last_seen, remover, one) if call is not None]
            what = "missed" if one.function == "contains" else "removed"
            reason = f"{element!r:.60} was {what} at a time when it was inside before and after"
            return violated(reason, *(call.op for call in provers))
    inside = [one for one in seen if one.op != add.op]
    taken_out = [] if remover is None else [(removed, remover.op)]
    return [
        *_in_turn(before),
        (added, add.op),
        *_in_turn(inside, added),
        *taken_out,
        *_in_turn(behind, removed),
    ]


def _first_removal(removes: Sequence[Call], wanted: Moment) -> tuple[Moment, Call | None]:
    """The first moment from ``wanted`` on at which one of them can take effect; infinite without one."""
    able = ((max(one.invoke_ns, wanted), one) for one in removes if end_of(one) >= wanted)
    return min(able, key=lambda entry: entry[0], default=(math.inf, None))


def _growing(calls: Sequence[Call]) -> SearchResult | None:
    """Reads of the whole set, and nothing was removed: additions and reads stand in groups, one behind the other."""
    # Of a set that only grows a larger reading holds a smaller one, and is later.
    reads = sorted((one for one in calls if one.function == "read"), key=lambda one: len(set(one.result)))
    adds: dict[Any, list[Call]] = defaultdict(list)
    for one in calls:
        if one.function == "add":
            adds[one.argument].append(one)
    groups: list[list[Call]] = []
    before: set[Any] = set()
    last: Call | None = None
    for read in reads:
        elements = set(read.result)
        if not before <= elements:
            assert last is not None
            return violated("each of two reads has an element that the other one lacks", last.op, read.op)
        come = [element for element in dict.fromkeys(read.result) if element not in before]
        if come or last is None:
            for element in come:
                if not adds[element]:
                    return violated(f"{element!r:.60} was read, which nobody had added", read.op)
            if any(len(adds[element]) > 1 for element in come):
                return None  # either may have brought it: this takes a search
            groups += [[adds[element][0] for element in come], []]
        groups[-1].append(read)
        before, last = elements, read
    groups.append(
        [
            one
            for element, tried in adds.items()
            if element not in before
            for one in tried
            if one.complete_ns is not None
        ]
    )
    order: list[int] = []
    latest: Call | None = None
    for group in groups:
        if latest is not None:
            for one in group:
                if end_of(one) < latest.invoke_ns:
                    return violated(
                        "the first had ended before the second began, and what was read says the reverse",
                        *(one.op, latest.op, *((last.op,) if last is not None else ())),
                    )
        order += (one.op for one in sorted(group, key=begin_of))
        latest = max([*group, *([latest] if latest is not None else [])], key=begin_of, default=None)
    return linearizable(order)


def _in_turn(calls: Iterable[Call], earliest: Moment = -math.inf) -> list[LinearizationPoint]:
    """The calls whose outcome is known, each as soon as it can take effect from ``earliest`` on; the others need not
    have."""
    known = (one for one in calls if one.complete_ns is not None)
    return [(max(earliest, one.invoke_ns), one.op) for one in sorted(known, key=begin_of)]

"""Knowledge about the offsets of a queue, as operations state it: the sentences of docs/checker.md, one by one.

:mod:`spark_analysis.checking.queues.reference` judges whole histories by them, and
:mod:`spark_analysis.checking.queues.following` histories that still grow.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from spark_analysis.checking.queues.unknown_appends import Finding
from spark_analysis.checking.queues.value_hash import value_hash

# Where several kinds of operation give the same bound, a lower bound is named after the last of them in this order, an
# upper bound after the first.
FUNCTIONS: Final = ("append", "head", "read", "tail")
_CODES: Final = {"poll": FUNCTIONS.index("read")} | {name: code for code, name in enumerate(FUNCTIONS)}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on one queue; the columns of schema.OPERATIONS that the log model looks at."""

    op: int
    function: str
    outcome: str
    invoke_ns: int
    complete_ns: int | None
    offset: int | None = None
    first_offset: int | None = None
    values: tuple[str, ...] = ()
    offsets: tuple[int, ...] | None = None
    next_offset: int | None = None
    end_offset: int | None = None
    filtered: bool = False
    client: str = "client"

    def pairs(self) -> list[tuple[int, str]]:
        """(offset, value) of each value appended or read."""
        if self.first_offset is None:
            return []
        offsets = self.offsets or range(self.first_offset, self.first_offset + len(self.values))
        return list(zip(offsets, self.values, strict=True))


@dataclass(slots=True)
class Position:
    """The knowledge about one offset.

    ``lower`` is the latest beginning of an operation that shows that the offset was empty until then: an append here,
    or an observer to whom the list ended here or before. ``upper`` is the earliest end of an operation that shows that
    it was filled by then. Both are a moment with the kind of operation (an index of :data:`FUNCTIONS`) in their last
    two bits. ``values`` are those that were acknowledged or read here, in the order in which they were met.
    """

    lower: int | None = None
    upper: int | None = None
    values: dict[str, None] = field(default_factory=dict)
    acks: int = 0
    reads: int = 0

    def began(self, bound: int) -> None:
        self.lower = bound if self.lower is None else max(bound, self.lower)

    def ended(self, bound: int) -> None:
        self.upper = bound if self.upper is None else min(bound, self.upper)

    @property
    def value(self) -> str:
        """The value; of several values, the one that the DataFrames take."""
        return next(iter(self.values)) if len(self.values) == 1 else min(self.values, key=value_hash)


class Axis:
    """The knowledge about the offsets of one queue, or about its first offsets kept."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at: dict[int, Position] = defaultdict(Position)

    def began(self, position: int, bound: int) -> None:
        """An operation that began then shows that the position was empty until then."""
        self.at[position].began(bound)

    def ended(self, position: int, bound: int) -> None:
        """An operation that ended then shows that the position was filled."""
        self.at[position].ended(bound)

    def shown(self, position: int, value: str, begin: int | None, end: int) -> None:
        """The value stands at the position: acknowledged if its append began at ``begin``, else read."""
        at = self.at[position]
        at.ended(end)
        if begin is None:
            at.reads += 1
        else:
            at.began(begin)
            at.acks += 1
        at.values[value] = None


def state(one: Operation, log: Axis, heads: Axis) -> None:
    """Tell the axes what an operation says. The first offset kept only grows, and is judged as if it were a queue."""
    if one.outcome != "ok" or one.function not in _CODES:
        return
    assert one.complete_ns is not None
    begin, end = one.invoke_ns << 2 | _CODES[one.function], one.complete_ns << 2 | _CODES[one.function]
    appended = begin if one.function == "append" else None
    for offset, value in one.pairs():
        log.shown(offset, value, appended, end)
    stated: int | None = None
    if one.function == "tail":
        stated = one.offset
    elif one.function == "read":
        stated = one.end_offset
        # A read that found nothing and does not send its reader onwards: the list ended there or before.
        if one.first_offset is None and _is_at_least(one.offset, one.next_offset):
            assert one.offset is not None
            log.began(one.offset, begin)
    elif one.function == "head" and one.offset is not None:
        heads.began(one.offset, begin)
        # Of the log it says that what is deleted had been there.
        if one.offset:
            log.ended(one.offset - 1, end)
            heads.ended(one.offset - 1, end)
    if stated is not None:
        log.began(stated, begin)
        if stated:
            log.ended(stated - 1, end)


def _is_at_least(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one >= other


def sweep(positions: Mapping[int, Position]) -> Iterator[tuple[int, Position, int | None, int]]:
    """Yields each position, the earliest end of an operation that shows it or a later one, and the one before."""
    order = sorted(positions)
    latest: list[int | None] = []
    least: int | None = None
    # From the end on: whoever shows an offset filled shows the same of all before it.
    for position in reversed(order):
        upper = positions[position].upper
        if upper is not None and (least is None or upper < least):
            least = upper
        latest.append(least)
    previous = -1
    for position in order:
        yield position, positions[position], latest.pop(), previous
        previous = position


def wrong_at(position: int, at: Position, latest: int | None) -> list[Finding]:
    """The findings that a position shows by itself; more knowledge takes none of them back."""
    lower_ns = None if at.lower is None else at.lower >> 2
    latest_ns = None if latest is None else latest >> 2
    kinds = ["duplicate-offset"] * (at.acks > 1) + ["inconsistent-offset"] * (len(at.values) > 1)
    return [Finding(kind, position, lower_ns, latest_ns) for kind in kinds] + missed_what_was_known(
        position, at, latest
    )


def missed_what_was_known(
    position: int, at: Position, latest: int | None, *, is_head: bool = False
) -> list[Finding]:
    """Returns a finding if an operation found this position empty that began after another had ended that showed it,
    or a later one, filled."""
    if at.lower is None or latest is None or at.lower >> 2 <= latest >> 2:
        return []
    began, ended = FUNCTIONS[at.lower & 3], FUNCTIONS[latest & 3]
    if is_head:
        kind = "backward-head"
    elif began in ("tail", "read"):
        kind = f"stale-{began}"
    else:
        kind = "append-order" if ended == "append" else "premature-read"
    return [Finding(kind, position, at.lower >> 2, latest >> 2)]


def torn_reads(operations: Iterable[Operation]) -> Iterator[Finding]:
    """Reads whose own answer cannot be a part of any list, whatever the others saw."""
    for one in operations:
        if one.function != "read" or one.outcome != "ok":
            continue
        is_good = True
        if one.values:
            # A filter leaves out what it does not take; without one nothing is missing, from where it asked.
            offsets = [offset for offset, _ in one.pairs()]
            if one.filtered:
                is_good = _is_at_least(one.first_offset, one.offset) and all(
                    a < b for a, b in pairwise(offsets)
                )
            else:
                is_good = one.first_offset == one.offset and offsets == list(
                    range(offsets[0], offsets[0] + len(offsets))
                )
            if one.end_offset is not None and offsets[-1] >= one.end_offset:
                is_good = False
        elif one.end_offset is not None:
            # It found nothing and stays where it is, and says itself that the queue goes on behind that.
            assert one.offset is not None
            is_good = not (_is_at_least(one.offset, one.next_offset) and one.offset < one.end_offset)
        if not is_good:
            position = one.offset if one.first_offset is None else one.first_offset
            assert position is not None
            yield Finding("torn-read", position, one.invoke_ns, one.complete_ns)

"""The log checker in plain Python: the statement of the rules that Spark applies at scale.

It is to be read next to docs/checker.md, and tests compare it: with a brute-force search on small histories, and with
:mod:`spark_analysis.checking.queues.log_model` on many. It also judges histories that one task holds
(:mod:`spark_analysis.checking.small`), so it names its findings as the DataFrames do. Clarity goes before speed; it is
O(n log n) all the same.

The model: a queue is a growing list of values. ``append`` of k values is k single appends at consecutive offsets, with
nothing between them. Each takes effect somewhere inside the operation's interval, so a reader may see the first values
of a batch before the last: that is all that RocketMQ promises. An append of unknown outcome may have taken effect for
any number of its first values, at any time after its invocation. ``read`` at an offset returns values from there on, or
nothing if the list ends there or before. ``tail`` returns the list's length. ``poll`` is a read whose place the reader
does not name: the values that it returns are a fact; that it returns nothing is none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from spark_analysis.checking.queues.unknown import Attempt, Finding, Hole, Seen, contested, settle
from spark_analysis.checking.queues.value_hash import value_hash
from spark_analysis.checking.verdict import LINEARIZABLE, UNDECIDED, VIOLATED

# In the order in which a bound that several operations share is named: the last begins it, the first ends it.
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


@dataclass(frozen=True, slots=True)
class QueueFindings:
    """The findings about one queue, the places that could not be decided, and the knowledge about each offset."""

    findings: list[Finding]
    unsure: list[Finding]
    positions: dict[int, Position]


@dataclass(frozen=True, slots=True)
class _Swept:
    """A queue after its sweep: findings that need no further look, and places that appends of unknown outcome must
    explain."""

    positions: dict[int, Position]
    findings: list[Finding] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)


def check_queue(operations: Sequence[Operation], *, sparse: bool = False) -> tuple[str, list[Finding]]:
    """Judge one queue; returns the verdict with the findings, or with the places that could not be decided."""
    judged = check_queues({"": operations}, sparse=sparse)[""]
    if judged.findings:
        return VIOLATED, judged.findings
    return (UNDECIDED, judged.unsure) if judged.unsure else (LINEARIZABLE, [])


def check_queues(
    queues: Mapping[str, Sequence[Operation]], *, sparse: bool = False
) -> dict[str, QueueFindings]:
    """Judge every queue of a history.

    Queues are independent but for two things. An append whose queue the broker was to choose (its key is ``topic/``)
    may stand in any queue of its topic. And a value that nobody can have put where it was seen is named after what
    became of it elsewhere. ``sparse``: offsets may hold records that no client sees, so that an offset that nobody
    knows needs no explanation.
    """
    if sparse:
        queues = {key: without_gaps(operations) for key, operations in queues.items()}
    swept = {key: _swept(operations, sparse=sparse) for key, operations in queues.items()}
    tried = {key: _attempts(operations) for key, operations in queues.items()}
    attempts, shared = _placed(tried, swept)
    in_dispute = _contested(tried, swept)
    acknowledged = {
        at.value for one in swept.values() for at in one.positions.values() if at.acks and at.values
    }
    failed = {
        value
        for operations in queues.values()
        for one in operations
        if one.function == "append" and one.outcome == "fail"
        for value in one.values
    }
    judged = {}
    for key, one in swept.items():
        found, unsure, unmatched = _explained(one, attempts.get(key, []), shared.get(key, []))
        # A value that no append explains is named after what became of it elsewhere.
        for place in one.seen:
            if place.value in unmatched:
                kind = (
                    "duplicate-value"
                    if place.value in acknowledged
                    else "aborted-read"
                    if place.value in failed
                    else "phantom-value"
                )
                found.append(Finding(kind, place.position, None, int(place.deadline_ns)))
        for queue, finding, is_unsure in in_dispute:
            if queue == key:
                (unsure if is_unsure else found).append(finding)
        judged[key] = QueueFindings([*one.findings, *found], unsure, one.positions)
    return judged


def without_gaps(operations: Iterable[Operation]) -> list[Operation]:
    """Reads may pass over offsets; of a batch of unknown outcome any value may stand anywhere."""
    given: list[Operation] = []
    for one in operations:
        if one.function == "append" and one.outcome == "info":
            given += [replace(one, values=(value,)) for value in one.values]
        else:
            given.append(replace(one, filtered=one.filtered or one.function == "read"))
    return given


def _swept(operations: Sequence[Operation], *, sparse: bool) -> _Swept:
    """Check agreement and order; collect the values without an acknowledgement, and the offsets that nobody knows."""
    log, heads = _positions(operations)
    swept = _Swept(log, [*_torn_reads(operations)])
    for position, at, latest, _ in _sweep(heads):
        swept.findings.extend(_order(position, at, latest, is_head=True))
    for position, at, latest, previous in _sweep(log):
        lower_ns = None if at.lower is None else at.lower >> 2
        latest_ns = None if latest is None else latest >> 2
        if at.acks > 1:
            swept.findings.append(Finding("duplicate-offset", position, lower_ns, latest_ns))
        if len(at.values) > 1:
            swept.findings.append(Finding("inconsistent-offset", position, lower_ns, latest_ns))
        swept.findings.extend(_order(position, at, latest))
        if latest_ns is None:
            continue  # behind everything that must be there
        if at.values and not at.acks:
            swept.seen.append(Seen(position, at.value, latest_ns))
        last = position - 1 if at.values else position
        if previous < last and not sparse:
            swept.holes.append(Hole(previous + 1, last, latest_ns))
    return swept


def _positions(operations: Iterable[Operation]) -> tuple[dict[int, Position], dict[int, Position]]:
    """Collect the knowledge about each offset, and about each first offset kept. The latter only grows, and is judged
    as if it were a queue."""
    log: dict[int, Position] = defaultdict(Position)
    heads: dict[int, Position] = defaultdict(Position)
    for one in operations:
        if one.outcome != "ok" or one.function not in _CODES:
            continue
        assert one.complete_ns is not None
        begin, end = one.invoke_ns << 2 | _CODES[one.function], one.complete_ns << 2 | _CODES[one.function]
        is_append = one.function == "append"
        for offset, value in one.pairs():
            at = log[offset]
            at.ended(end)
            if is_append:
                at.began(begin)
                at.acks += 1
            else:
                at.reads += 1
            at.values[value] = None
        stated: int | None = None
        if one.function == "tail":
            stated = one.offset
        elif one.function == "read":
            stated = one.end_offset
            # A read that found nothing and does not send its reader onwards: the list ended there or before.
            if one.first_offset is None and _is_at_least(one.offset, one.next_offset):
                assert one.offset is not None
                log[one.offset].began(begin)
        elif one.function == "head" and one.offset is not None:
            heads[one.offset].began(begin)
            if one.offset:
                log[one.offset - 1].ended(end)
                heads[one.offset - 1].ended(end)
        if stated is not None:
            log[stated].began(begin)
            if stated:
                log[stated - 1].ended(end)
    return dict(log), dict(heads)


def _is_at_least(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one >= other


def _sweep(positions: Mapping[int, Position]) -> Iterator[tuple[int, Position, int | None, int]]:
    """Each position in order, with the earliest end that needs it or a later one, and the position before it."""
    order = sorted(positions)
    latest: list[int | None] = []
    least: int | None = None
    for position in reversed(order):
        upper = positions[position].upper
        if upper is not None and (least is None or upper < least):
            least = upper
        latest.append(least)
    previous = -1
    for position in order:
        yield position, positions[position], latest.pop(), previous
        previous = position


def _order(position: int, at: Position, latest: int | None, *, is_head: bool = False) -> list[Finding]:
    """Something began too late, after an end that needs this position or a later one."""
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


def _torn_reads(operations: Iterable[Operation]) -> Iterator[Finding]:
    """Reads whose own answer cannot be a part of any list, whatever the others saw."""
    for one in operations:
        if one.function != "read" or one.outcome != "ok":
            continue
        is_good = True
        if one.values:
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
            assert one.offset is not None
            is_good = not (_is_at_least(one.offset, one.next_offset) and one.offset < one.end_offset)
        if not is_good:
            position = one.offset if one.first_offset is None else one.first_offset
            assert position is not None
            yield Finding("torn-read", position, one.invoke_ns, one.complete_ns)


def _attempts(operations: Iterable[Operation]) -> list[Attempt]:
    return [
        Attempt(one.op, index, len(one.values), value, one.invoke_ns)
        for one in operations
        if one.function == "append" and one.outcome == "info"
        for index, value in enumerate(one.values)
    ]


def _placed(
    attempts: Mapping[str, list[Attempt]], swept: Mapping[str, _Swept]
) -> tuple[dict[str, list[Attempt]], dict[str, list[int]]]:
    """The attempts of each queue; and when those began that may stand in any queue of their topic.

    An append whose queue the broker was to choose belongs to the queue where one of its values was seen, if any was.
    """
    placed = {key: list(listed) for key, listed in attempts.items() if not key.endswith("/")}
    shared: dict[str, list[int]] = {}
    for topic, listed in attempts.items():
        if not topic.endswith("/") or not listed:
            continue
        queues = [key for key in swept if key[: key.rfind("/") + 1] == topic]
        tries = Counter(attempt.value for attempt in listed)
        needed: Counter[Hashable] = Counter()
        for key in queues:
            needed += Counter(one.value for one in swept[key].seen) - Counter(
                attempt.value for attempt in attempts.get(key, ())
            )
        # Of a value with more attempts than places nobody knows which one is somewhere else.
        settled = {attempt.op for attempt in listed if needed[attempt.value] >= tries[attempt.value]}
        for key in queues:
            values = {one.value for one in swept[key].seen}
            here = {attempt.op for attempt in listed if attempt.value in values}
            placed.setdefault(key, []).extend(attempt for attempt in listed if attempt.op in here)
            if swept[key].holes:
                shared[key] = [attempt.invoke_ns for attempt in listed if attempt.op not in settled | here]
    return placed, shared


def _contested(
    attempts: Mapping[str, list[Attempt]], swept: Mapping[str, _Swept]
) -> list[tuple[str, Finding, bool]]:
    found = []
    for topic, listed in attempts.items():
        if topic.endswith("/") and listed:
            keys = [key for key in swept if key[: key.rfind("/") + 1] == topic]
            with_holes = [key for key in keys if swept[key].holes]
            tried = {key: attempts[key] for key in (*keys, topic)}
            found += contested(topic, tried, {key: swept[key].seen for key in keys}, with_holes)
    return found


def _explained(
    swept: _Swept, attempts: Sequence[Attempt], shared: Sequence[int]
) -> tuple[list[Finding], list[Finding], set[Hashable]]:
    """Find appends of unknown outcome for what was seen without an acknowledgement and for what must have been.

    Gives what is wrong, what is not decided, and values that were seen and that nobody attempted. A queue that asks for
    more than was attempted is not looked at in detail, so that nothing grows with the size of a hole.
    """
    seen, holes = swept.seen, swept.holes
    lacking, attempted = sum(one.last - one.first + 1 for one in holes), len(attempts) + len(shared)
    findings: list[Finding] = []
    unsure: list[Finding] = []
    unmatched: set[Hashable] = set()
    # More offsets must be filled than appends were attempted: no look at the details can save the queue.
    if lacking > attempted:
        deadline = min(one.deadline_ns for one in holes)
        findings.append(Finding("unexplained-offset", holes[0].first, None, int(deadline)))
    tries = Counter(one.value for one in attempts)
    # More values were seen than attempted: those that stand more often than they were attempted are wrong.
    if len(seen) > attempted:
        places: dict[Hashable, list[int]] = defaultdict(list)
        for one in seen:
            places[one.value].append(one.position)
        for value, positions in places.items():
            if not tries[value]:
                unmatched.add(value)
            elif len(positions) > tries[value]:
                findings.append(Finding("duplicate-value", positions[0]))
    elif lacking <= attempted:
        unmatched = {one.value for one in seen if not tries[one.value]}
        explicable = [one for one in seen if one.value not in unmatched]
        found, unsure = settle(attempts, explicable, holes, shared)
        findings += found
    return findings, unsure, unmatched

"""The rules of :mod:`spark_analysis.checking.kafka.catalogue` in plain Python, for one queue, and those of
:mod:`spark_analysis.checking.kafka.transactions`, for several.

They are here to be read, to be compared with the DataFrames, and to judge histories that one task holds
(:mod:`spark_analysis.checking.small`).
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from spark_analysis.checking.kafka.catalogue import ALLOWED_FOR_ALL, ALLOWED_FOR_SUBSCRIBERS, ASSIGNMENTS
from spark_analysis.checking.kafka.transactions import Cycle, Span, cycles
from spark_analysis.checking.queues.knowledge import Operation, Position
from spark_analysis.checking.queues.reference import check_queues
from spark_analysis.checking.queues.unknown_appends import Finding


def catalogue(operations: Sequence[Operation], key: str) -> tuple[list[Finding], list[Finding]]:
    """Judge one queue; returns the findings, and those that are allowed for clients that subscribed."""
    positions = check_queues({key: operations})[key].positions
    findings, allowed = moved(operations, key, positions)
    return [
        *findings,
        *overwritten(operations, positions),
        *backward_sends(operations, positions),
        *precommitted(operations),
    ], allowed


def moved(
    operations: Sequence[Operation], key: str, positions: Mapping[int, Position]
) -> tuple[list[Finding], list[Finding]]:
    """Judge the steps between messages that a client got, or a transaction sent, one after the other.

    ``operations`` are those of the queue ``key``, and assignments; ``positions`` has the offsets of the queue. Returns
    the findings, and those that are allowed.
    """
    findings: list[Finding] = []
    allowed: list[Finding] = []
    known = sorted(position for position, at in positions.items() if at.values)

    def judge(
        steps: Iterable[tuple[int, int]],
        name: str,
        lower_ns: int,
        upper_ns: int | None,
        *,
        excused: bool = False,
    ) -> None:
        for earlier, later in steps:
            if later <= earlier:
                kind = name.format("nonmonotonic-", "")
            elif bisect_left(known, later) > bisect_left(known, earlier) + 1:
                kind = name.format("", "-skip")
            else:
                continue
            into = allowed if excused or kind in ALLOWED_FOR_ALL else findings
            into.append(Finding(kind, later, lower_ns, upper_ns))

    # A consumer group's rebalance moves its subscribers between queues, so their polls may skip or go back.
    subscribers = {one.client for one in operations if one.function == "subscribe" and one.outcome != "fail"}
    stands: dict[str, tuple[int, int | None]] = {}
    polled: list[int] = []
    for one in sorted(operations, key=_order):
        is_change = one.function in ASSIGNMENTS and one.outcome != "fail"
        # After a seek of this queue, or an assignment without it, the client's next poll begins anywhere.
        if is_change and (key in one.values) == (one.function == "seek"):
            stands.pop(one.client, None)
        offsets = [offset for offset, _ in one.pairs()]
        if one.function == "poll" and one.outcome == "ok" and offsets:
            if one.client in stands:
                last, ended_ns = stands[one.client]
                is_subscriber = one.client in subscribers
                judge([(last, offsets[0])], "{}poll{}", one.invoke_ns, ended_ns, excused=is_subscriber)
            judge(pairwise(offsets), "int-{}poll{}", one.invoke_ns, one.complete_ns)
            stands[one.client] = offsets[-1], one.complete_ns
            polled += offsets
        elif one.function == "append" and one.outcome == "ok":
            judge(pairwise(one.offsets or ()), "int-{}send{}", one.invoke_ns, one.complete_ns)
    # Acknowledged and passed by all polls: nobody reads it any more. Before the first and after the last
    # offset polled, somebody still may.
    if polled:
        first, last = min(polled), max(polled)
        findings += [
            Finding("lost-write", position)
            for position, at in positions.items()
            if at.acks and not at.reads and first <= position <= last
        ]
    assert all(one.kind in (*ALLOWED_FOR_SUBSCRIBERS, *ALLOWED_FOR_ALL) for one in allowed)
    return findings, allowed


def _order(one: Operation) -> tuple[int, int, int, int]:
    """The sorting key of operations: by time; rows of one operation, as of a transaction with several polls, by their
    last offset."""
    last = max((offset for offset, _ in one.pairs()[-1:]), default=-1)
    return one.invoke_ns, one.op, last, -1 if one.complete_ns is None else one.complete_ns


def overwritten(operations: Sequence[Operation], positions: Mapping[int, Position]) -> list[Finding]:
    """Find lost writes at offsets that show several values and were read: values that were acknowledged there and that
    no read returned from anywhere."""
    disputed = {position for position, at in positions.items() if len(at.values) > 1 and at.reads}
    if not disputed:
        return []
    answered = [one for one in operations if one.outcome == "ok"]
    returned = {value for one in answered if one.function in ("read", "poll") for _, value in one.pairs()}
    lost = {
        position
        for one in answered
        if one.function == "append"
        for position, value in one.pairs()
        if position in disputed and value not in returned
    }
    return [Finding("lost-write", position) for position in sorted(lost)]


def precommitted(operations: Sequence[Operation]) -> list[Finding]:
    """Find operations that polled or read a value that they sent themselves.

    A value that another operation may have put there shows nothing, unless it stands where the operation's own one
    does.
    """
    sent: dict[int, set[str]] = defaultdict(set)
    senders: dict[str, set[int]] = defaultdict(set)
    places: set[tuple[int, int, str]] = set()
    for one in operations:
        if one.function != "append":
            continue
        sent[one.op].update(one.values)
        if one.outcome != "fail":
            for value in one.values:
                senders[value].add(one.op)
        if one.outcome == "ok":
            places.update((one.op, *pair) for pair in one.pairs())
    return [
        Finding("precommitted-read", position, one.invoke_ns, one.complete_ns)
        for one in operations
        if one.function in ("poll", "read") and one.op in sent
        for position, value in one.pairs()
        if value in sent[one.op] and (not senders[value] - {one.op} or (one.op, position, value) in places)
    ]


def backward_sends(operations: Sequence[Operation], positions: Mapping[int, Position]) -> list[Finding]:
    """Find appends below the highest offset of those that the same client had finished before.

    An append of unknown outcome stands where its value was seen, if nothing was acknowledged there.
    """
    appends = [one for one in operations if one.function == "append"]
    tries = Counter(value for one in appends if one.outcome == "info" for value in one.values)
    seen: dict[str, list[int]] = defaultdict(list)
    for position, at in positions.items():
        if at.values and not at.acks:
            seen[at.value].append(position)
    steps: dict[str, list[_Step]] = defaultdict(list)
    for one in appends:
        if one.outcome == "ok" and one.pairs():
            assert one.complete_ns is not None
            places = [position for position, _ in one.pairs()]
            steps[one.client].append((one.invoke_ns, 0, min(places)))
            steps[one.client].append((one.complete_ns, 1, max(places)))
        elif one.outcome == "info":
            for value in one.values:
                # Of a value that was tried more often nobody knows which attempt stands there.
                if tries[value] == 1:
                    steps[one.client] += [(one.invoke_ns, 0, position) for position in seen[value]]
    return [finding for listed in steps.values() for finding in _backward(sorted(listed))]


_Step = tuple[int, int, int]
"""A moment; 0 for a beginning or 1 for an end; an offset. At one moment, beginnings sort before ends."""


def _backward(steps: Iterable[_Step]) -> Iterator[Finding]:
    highest = ended_ns = -1
    for time_ns, is_end, position in steps:
        if is_end:
            highest, ended_ns = max((highest, ended_ns), (position, time_ns))
        elif position < highest:
            yield Finding("nonmonotonic-send", position, time_ns, ended_ns)


def circles(queues: Mapping[str, Sequence[Operation]]) -> list[Cycle]:
    """The cycles among the transactions of all queues."""
    everything = [(key, one) for key, operations in queues.items() for one in operations]
    sends = [(key, one) for key, one in everything if one.function == "append" and one.outcome != "fail"]
    polls = [
        (key, one) for key, one in everything if one.function in ("poll", "read") and one.outcome == "ok"
    ]
    senders: dict[tuple[str, str], set[int]] = defaultdict(set)
    began: dict[int, int] = {}
    for key, one in sends:
        began[one.op] = one.invoke_ns
        for value in one.values:
            senders[key, value].add(one.op)
    ended = {one.op: one.complete_ns or 0 for _, one in polls}
    # A value with two senders does not say on whose transaction its reader depends.
    steps = {
        (sender, one.op)
        for key, one in polls
        for value in one.values
        if len(senders[key, value]) == 1
        for sender in senders[key, value] - {one.op}
    }
    committed = {one.op: one for _, one in sends if one.offsets is not None and one.outcome == "ok"}
    polled = {one.op for _, one in polls if one.function == "poll" and one.values}
    # A commit lies within its operation, after the beginning of each sender that it polled from, and before
    # the end of each that polled from it.
    lower = {op: (one.invoke_ns, op) for op, one in committed.items() if op in polled}
    upper = {op: (one.complete_ns or 0, op) for op, one in committed.items() if op in polled}
    for sender, op in steps:
        if op in lower:
            lower[op] = max(lower[op], (began[sender], sender))
        if sender in upper:
            upper[sender] = min(upper[sender], (ended[op], op))
    spans = {op: Span(*lower[op], *upper[op]) for op in lower}
    return cycles(spans, [(sender, op) for sender, op in steps if sender in spans and op in spans])

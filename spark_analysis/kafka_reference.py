"""The rules of :mod:`spark_analysis.kafka_catalogue` in plain Python, for one queue, and what
:mod:`spark_analysis.kafka_transactions` looks for in several: to be read, and compared with."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from spark_analysis.kafka_catalogue import ALLOWED_FOR_ALL, ALLOWED_FOR_SUBSCRIBERS, ASSIGNMENTS
from spark_analysis.kafka_transactions import Cycle, Span, cycles
from spark_analysis.reference import Operation
from spark_analysis.unknown import Finding


def catalogue(operations: Sequence[Operation], key: str) -> tuple[list[Finding], list[Finding]]:
    """What breaks the rules, and what would but is allowed for clients that subscribed."""
    findings: list[Finding] = []
    allowed: list[Finding] = []
    answered = [one for one in operations if one.outcome == "ok"]
    known = sorted({position for one in answered for position, _ in one.pairs()})
    subscribers = {one.client for one in operations if one.function == "subscribe" and one.outcome != "fail"}

    def judge(earlier: int, later: int, prefix: str, noun: str, *, is_subscriber: bool = False) -> None:
        if later <= earlier:
            kind = f"{prefix}nonmonotonic-{noun}"
        elif bisect_left(known, later) > bisect_left(known, earlier) + 1:
            kind = f"{prefix}{noun}-skip"
        else:
            return
        into = allowed if is_subscriber or kind in ALLOWED_FOR_ALL else findings
        into.append(Finding(kind, later))

    stands: dict[str, int] = {}
    polled: list[int] = []
    for one in sorted(operations, key=lambda one: (one.invoke_ns, one.op)):
        is_new = one.function in ASSIGNMENTS and one.outcome != "fail"
        if is_new and (key in one.values) == (one.function == "seek"):
            stands.pop(one.client, None)
        if one.function == "poll" and one.outcome == "ok" and one.values:
            offsets = [offset for offset, _ in one.pairs()]
            if one.client in stands:
                is_subscriber = one.client in subscribers
                judge(stands[one.client], offsets[0], "", "poll", is_subscriber=is_subscriber)
            for earlier, later in pairwise(offsets):
                judge(earlier, later, "int-", "poll")
            stands[one.client] = offsets[-1]
            polled += offsets
    findings += [Finding("lost-write", position) for position in sorted(_lost(answered, polled))]
    for one in answered:
        if one.function == "append":
            for earlier, later in pairwise(one.offsets or ()):
                judge(earlier, later, "int-", "send")
    findings += _backward_sends(operations)
    findings += _precommitted(operations)
    assert all(one.kind in (*ALLOWED_FOR_SUBSCRIBERS, *ALLOWED_FOR_ALL) for one in allowed)
    return findings, allowed


def _lost(answered: Sequence[Operation], polled: Sequence[int]) -> set[int]:
    read = [one for one in answered if one.function in ("read", "poll")]
    returned = {value for one in read for value in one.values}
    seen = {position for one in read for position, _ in one.pairs()}
    stand: dict[int, set[str]] = defaultdict(set)
    for one in answered:
        for position, value in one.pairs():
            stand[position].add(value)
    lost = set()
    for one in answered:
        if one.function == "append":
            for position, value in one.pairs():
                is_overwritten = position in seen and len(stand[position]) > 1 and value not in returned
                is_passed = position not in seen and bool(polled) and min(polled) <= position <= max(polled)
                if is_overwritten or is_passed:
                    lost.add(position)
    return lost


def _precommitted(operations: Sequence[Operation]) -> list[Finding]:
    sent: dict[int, set[str]] = defaultdict(set)
    for one in operations:
        if one.function == "append":
            sent[one.op].update(one.values)
    return [
        Finding("precommitted-read", position)
        for one in operations
        if one.function in ("poll", "read") and one.op in sent
        for position, value in one.pairs()
        if value in sent[one.op]
    ]


def _backward_sends(operations: Sequence[Operation]) -> list[Finding]:
    """Of each append the lowest offset against the highest of those that its client had finished before it began."""
    acknowledged = [
        (one, [place for place, _ in one.pairs()])
        for one in operations
        if one.function == "append" and one.first_offset is not None
    ]
    taken = {place for _, places in acknowledged for place in places}
    attempts = [one for one in operations if one.function == "append" and one.outcome == "info"]
    tries = Counter(value for one in attempts for value in one.values)
    seen: dict[str, set[int]] = defaultdict(set)
    for one in operations:
        if one.function in ("read", "poll") and one.outcome == "ok":
            for position, value in one.pairs():
                if position not in taken and tries[value] == 1:
                    seen[value].add(position)
    begun = [(one, min(places)) for one, places in acknowledged]
    begun += [(one, position) for one in attempts for value in one.values for position in sorted(seen[value])]
    ended = [(one.client, one.complete_ns or 0, max(places)) for one, places in acknowledged]
    found = []
    for later, position in begun:
        for client, complete_ns, reached in ended:
            if client == later.client and complete_ns < later.invoke_ns and reached > position:
                found.append(Finding("nonmonotonic-send", position))
                break
    return found


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
    steps = {
        (sender, one.op)
        for key, one in polls
        for value in one.values
        if len(senders[key, value]) == 1
        for sender in senders[key, value] - {one.op}
    }
    committed = {one.op: one for _, one in sends if one.offsets is not None and one.outcome == "ok"}
    polled = {one.op for _, one in polls if one.function == "poll" and one.values}
    spans = {}
    for op, one in committed.items():
        if op in polled:
            lower = max(
                [(one.invoke_ns, op), *((began[sender], sender) for sender, other in steps if other == op)]
            )
            assert one.complete_ns is not None
            upper = min(
                [(one.complete_ns, op), *((ended[other], other) for sender, other in steps if sender == op)]
            )
            spans[op] = Span(*lower, *upper)
    return cycles(spans, [(sender, op) for sender, op in steps if sender in spans and op in spans])

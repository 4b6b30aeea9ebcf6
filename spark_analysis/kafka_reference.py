"""The rules of :mod:`spark_analysis.kafka_catalogue` in plain Python, for one queue: to be read, and compared with."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from spark_analysis.kafka_catalogue import ALLOWED_FOR_SUBSCRIBERS, ASSIGNMENTS
from spark_analysis.reference import Operation
from spark_analysis.unknown import Finding


def catalogue(operations: Sequence[Operation], key: str) -> tuple[list[Finding], list[Finding]]:
    """What breaks the rules, and what would but is allowed for clients that subscribed."""
    findings: list[Finding] = []
    allowed: list[Finding] = []
    answered = [one for one in operations if one.outcome == "ok"]
    known = sorted({position for one in answered for position, _ in one.pairs()})
    subscribers = {one.client for one in operations if one.function == "subscribe" and one.outcome != "fail"}

    def judge(earlier: int, later: int, prefix: str, into: list[Finding]) -> None:
        if later <= earlier:
            into.append(Finding(f"{prefix}nonmonotonic-poll", later))
        elif bisect_left(known, later) > bisect_left(known, earlier) + 1:
            into.append(Finding(f"{prefix}poll-skip", later))

    stands: dict[str, int] = {}
    polled: list[int] = []
    for one in sorted(operations, key=lambda one: (one.invoke_ns, one.op)):
        if one.function in ASSIGNMENTS and one.outcome != "fail" and key not in one.values:
            stands.pop(one.client, None)
        if one.function == "poll" and one.outcome == "ok" and one.values:
            offsets = [offset for offset, _ in one.pairs()]
            if one.client in stands:
                judge(stands[one.client], offsets[0], "", allowed if one.client in subscribers else findings)
            for earlier, later in pairwise(offsets):
                judge(earlier, later, "int-", findings)
            stands[one.client] = offsets[-1]
            polled += offsets
    findings += [Finding("lost-write", position) for position in sorted(_lost(answered, polled))]
    findings += _backward_sends(answered)
    assert all(one.kind in ALLOWED_FOR_SUBSCRIBERS for one in allowed)
    return findings, allowed


def _lost(answered: Sequence[Operation], polled: Sequence[int]) -> set[int]:
    returned = {value for one in answered if one.function in ("read", "poll") for value in one.values}
    seen = {pair[0]: pair[1] for one in answered if one.function in ("read", "poll") for pair in one.pairs()}
    lost = set()
    for one in answered:
        if one.function == "append":
            for position, value in one.pairs():
                is_passed = bool(polled) and min(polled) <= position <= max(polled)
                if position in seen:
                    others = {
                        value for other in answered for place, value in other.pairs() if place == position
                    }
                    if len(others) > 1 and value not in returned:
                        lost.add(position)
                elif is_passed:
                    lost.add(position)
    return lost


def _backward_sends(answered: Sequence[Operation]) -> list[Finding]:
    found = []
    appends = [one for one in answered if one.function == "append"]
    for later in appends:
        for earlier in appends:
            assert earlier.complete_ns is not None
            assert earlier.first_offset is not None
            assert later.first_offset is not None
            if (
                earlier.client == later.client
                and earlier.complete_ns < later.invoke_ns
                and earlier.first_offset > later.first_offset
            ):
                found.append(Finding("nonmonotonic-send", later.first_offset))
                break
    return found

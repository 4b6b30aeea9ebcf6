"""The operations that prove a finding: two that contradict each other, or those that say what is at one place."""

from collections.abc import Sequence
from typing import Final

from spark_analysis.checking.verdict import Anomaly
from spark_analysis.telling.stories.words import Operation, value_at

PAIRS: Final = {
    "stale-read": "By then the message was there; the answer is older than the question.",
    "stale-tail": "By then the queue was longer; the answer is older than the question.",
    "premature-read": "So it was seen before anybody had begun to append it.",
    "append-order": "What is appended later must stand behind what was there before.",
    "nonmonotonic-send": "Both are the same client's; what it appends later must stand behind what it appended before.",
    "backward-head": "The first offset that a queue keeps never goes back.",
    "poll-skip": "Messages that follow the first answer were passed over.",
    "nonmonotonic-poll": "The second answer does not follow the first one, it goes back.",
    "stale-offset": "That offset had been replaced before the question was asked.",
}
"""Kinds that two operations prove, one of which had ended before the other began; each with the reason why that is
wrong."""

DISPUTES: Final = ("duplicate-offset", "inconsistent-offset")
"""Kinds that are about one place and several messages in it."""
_WITNESSES: Final = ("aborted-read", "phantom-value", "unexplained-value")
"""Kinds that are proved by any operation that was given the message."""


def contradiction(anomaly: Anomaly, around: Sequence[Operation] = ()) -> tuple[Operation, Operation] | None:
    """The two operations of a proof about an order: the one that had ended, and the one that began afterwards."""
    if anomaly.kind == "stale-offset":
        return _replaced(anomaly, (*anomaly.proof, *around))
    if anomaly.kind not in PAIRS:
        return None
    proof = [one for one in anomaly.proof if "invoke_ns" in one]
    pairs = [(earlier, later) for earlier in proof for later in proof if _precedes(earlier, later)]
    # What decides stands first in a proof.
    return min(pairs, key=lambda pair: proof.index(pair[0]) + proof.index(pair[1]), default=None)


def _precedes(earlier: Operation, later: Operation) -> bool:
    end = earlier.get("complete_ns")
    return end is not None and end < later["invoke_ns"]


def _replaced(anomaly: Anomaly, operations: Sequence[Operation]) -> tuple[Operation, Operation] | None:
    """Find, in a proof about consumer offsets, an operation that knew of a newer one and one that was told an older one
    afterwards."""
    commits: dict[int, list[Operation]] = {}
    for one in operations:
        if one["function"] == "commit_offset":
            commits.setdefault(_stored(one), []).append(one)
    answers = [one for one in operations if one["function"] == "fetch_offset" and one["outcome"] == "ok"]
    position = anomaly.position or 0

    def is_older(told: Operation, knew: Operation) -> bool:
        offset, newer = _stored(told), _stored(knew)
        since = [knew] if knew["function"] == "commit_offset" else commits.get(newer, [])
        if not since or offset == newer:
            return False
        if offset not in commits:
            return offset == 0
        return all(_precedes(old, new) for old in commits[offset] for new in since)

    # Of all such pairs the closest in time: it is the easiest to see, and leads nearest to what went wrong.
    known = [one for group in (*commits.values(), answers) for one in group if one["outcome"] == "ok"]
    pairs = [
        (knew, told)
        for knew in known
        for told in answers
        if position in (_stored(knew), _stored(told)) and _precedes(knew, told) and is_older(told, knew)
    ]
    return min(pairs, key=lambda pair: pair[1]["invoke_ns"] - pair[0]["complete_ns"], default=None)


def _stored(operation: Operation) -> int:
    """A stored consumer offset. A consumer group that has stored nothing begins at 0, or is told that there is none."""
    return operation.get("offset") or 0


def decisive(anomaly: Anomaly, around: Sequence[Operation] = ()) -> Sequence[Operation]:
    """The fewest operations that show what is wrong; the whole proof if it takes all of them. ``around``: other
    operations on the same key."""
    pair = contradiction(anomaly, around)
    if pair is not None:
        return pair
    if anomaly.kind in DISPUTES:
        return _one_for_each_value(anomaly) or anomaly.proof
    if anomaly.kind in _WITNESSES:
        witnesses = list(_one_for_each_value(anomaly))[:1]
        return [*witnesses, *refused(anomaly, around)] if witnesses else anomaly.proof
    if anomaly.kind == "torn-read":
        return [*anomaly.proof[:1], *left_out(anomaly, around)]
    if anomaly.kind == "phantom-offset":
        told = [one for one in anomaly.proof if one["function"] == "fetch_offset"][:1]
        return [*told, *last_stored(told, around)] if told else anomaly.proof
    return anomaly.proof


def _one_for_each_value(anomaly: Anomaly) -> Sequence[Operation]:
    """One operation for each message that is said to be there: its append or, if nobody was told of that, one that was
    given it."""
    found: dict[str, Operation] = {}
    for one in sorted(anomaly.proof, key=lambda one: one.get("function") != "append"):
        value = None if anomaly.position is None else value_at(one, anomaly.position)
        if value is not None and one.get("outcome") == "ok":
            found.setdefault(value, one)
    return list(found.values())


def refused_value(anomaly: Anomaly) -> str | None:
    """The message of an ``aborted-read``, whose append has no offset and so is in no proof."""
    if anomaly.kind != "aborted-read" or anomaly.position is None:
        return None
    given = (value_at(one, anomaly.position) for one in anomaly.proof)
    return next((value for value in given if value is not None), None)


def refused(anomaly: Anomaly, around: Sequence[Operation]) -> list[Operation]:
    """The append of the :func:`refused_value`, if it is among others."""
    value = refused_value(anomaly)
    appends = (one for one in around if one["function"] == "append" and one["outcome"] == "fail")
    return [one for one in appends if value in one.get("values", ())][:1]


def last_stored(told: Sequence[Operation], around: Sequence[Operation]) -> list[Operation]:
    """The newest consumer offset that was stored before a client was told another."""
    stored = [one for one in around if one["function"] == "commit_offset" and one["outcome"] == "ok"]
    before = [one for one in stored for asked in told if _precedes(one, asked)]
    return sorted(before, key=lambda one: one["complete_ns"])[-1:]


def left_out(anomaly: Anomaly, around: Sequence[Operation]) -> list[Operation]:
    """The append of the first message that a ``torn-read`` should have begun with, if it is among others."""
    read = anomaly.proof[0] if anomaly.proof else {}
    asked, first = read.get("offset"), read.get("first_offset")
    if asked is None or first is None or first <= asked:
        return []
    return [one for one in around if one["function"] == "append" and value_at(one, asked) is not None][:1]

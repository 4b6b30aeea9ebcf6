"""Findings in plain sentences, for a reader who has never seen the tool: who did what, when, and why it cannot be.

Pure functions of an :class:`Anomaly`. Most findings are a pair: one operation had ended before another began, and the
offsets say the opposite. The rest are about one place of a queue, or about what replicas recorded of themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from spark_analysis.stories.queues import QUEUE_STORIES
from spark_analysis.stories.replicas import REPLICA_STORIES
from spark_analysis.stories.words import Operation, began, duration, ended, moment
from spark_analysis.verdict import REPLICA_ANOMALIES, Anomaly

PAIRS: Final = {
    "stale-read": "By then the message was there; the answer is older than the question.",
    "stale-tail": "By then the queue was longer; the answer is older than the question.",
    "premature-read": "So it was seen before anybody had begun to append it.",
    "append-order": "What is appended later must stand behind what was there before.",
    "nonmonotonic-send": "Both are the same client's; what it appends later must stand behind what it appended before.",
    "backward-head": "The first offset that a queue keeps never goes back.",
    "poll-skip": "Messages that follow the first answer were passed over.",
    "nonmonotonic-poll": "The second answer does not follow the first one, it goes back.",
    "stale-offset": "That position had been replaced before the question was asked.",
}
"""Kinds that two operations prove, one of which had ended before the other began; and what is wrong with that."""

_PLACES: Final = QUEUE_STORIES | REPLICA_STORIES


def story(anomaly: Anomaly, first_ns: int = 0, around: Sequence[Operation] = ()) -> list[str]:
    """The finding in one to three sentences; moments count from ``first_ns``. Never empty.

    ``around``: other operations on the same key, for findings whose proof does not name its other side.
    """
    pair = contradiction(anomaly, around)
    if pair is not None:
        earlier, later = pair
        gap = duration(later["invoke_ns"] - earlier["complete_ns"])
        at = moment(earlier["complete_ns"], first_ns)
        return [
            f"{at}, {ended(earlier)}.",
            f"Then, {gap} later, {began(later)}.",
            PAIRS[anomaly.kind],
        ]
    tell = _PLACES.get(anomaly.kind)
    if tell is not None:
        return tell(anomaly)
    detail = f" ({anomaly.detail})" if anomaly.detail else ""
    return [f"{place_of(anomaly)}: {anomaly.explanation}{detail}."]


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
    """Of stored positions: who knew of a newer one, and who was told an older one afterwards."""
    stored = {one.get("offset"): one for one in operations if one["function"] == "commit_offset"}
    this = stored.get(anomaly.position)
    if this is None:
        return None

    def is_older(offset: int | None, than: Operation) -> bool:
        # A group that has stored nothing begins at 0, or is told that there is none.
        return _precedes(stored[offset], than) if offset in stored else offset in (None, 0)

    answers = [one for one in operations if one["function"] == "fetch_offset" and one["outcome"] == "ok"]
    known = [
        one for one in (*stored.values(), *answers) if one["outcome"] == "ok" and one.get("offset") in stored
    ]
    pairs = [
        (knew, told)
        for knew in known
        for told in answers
        if anomaly.position in (knew.get("offset"), told.get("offset"))
        and _precedes(knew, told)
        and is_older(told.get("offset"), stored[knew.get("offset")])
    ]
    return min(pairs, key=lambda pair: pair[1]["invoke_ns"] - pair[0]["complete_ns"], default=None)


def place_of(anomaly: Anomaly) -> str:
    """Where it is: of a queue the offset, of a replica the entry."""
    if anomaly.position is None or anomaly.kind == "two-leaders":
        return anomaly.key
    if anomaly.kind == "term-went-back":
        return f"{anomaly.key}, term {anomaly.position}"
    if anomaly.kind in REPLICA_ANOMALIES:
        return f"{anomaly.key}, entry {anomaly.position}"
    if anomaly.kind in ("stale-offset", "phantom-offset"):
        return f"{anomaly.key}, position {anomaly.position}"
    return f"{anomaly.key}, offset {anomaly.position}"

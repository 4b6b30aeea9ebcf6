"""Findings in plain sentences, for a reader who has never seen the tool: who did what, when, and why it cannot be.

Pure functions of an :class:`Anomaly`. Most findings are a pair: one operation had ended before another began, and the
offsets say the opposite (:mod:`.culprits`). The rest are about one place of a queue, or about what replicas recorded of
themselves.
"""

from collections.abc import Sequence
from typing import Final

from spark_analysis.checking.register_names import queue_and_group
from spark_analysis.checking.verdict import REGISTER_ANOMALIES, REPLICA_ANOMALIES, Anomaly
from spark_analysis.telling.stories.culprits import DISPUTES, PAIRS, contradiction, decisive, refused_value
from spark_analysis.telling.stories.queues import DETAILED_STORIES, QUEUE_STORIES
from spark_analysis.telling.stories.replicas import REPLICA_STORIES, nodes_of
from spark_analysis.telling.stories.words import Operation, began, duration, ended, moment, value_at

__all__ = ["DISPUTES", "contradiction", "decisive", "operations_told", "place_of", "refused_value", "story"]

_PLACES: Final = QUEUE_STORIES | REPLICA_STORIES


def story(anomaly: Anomaly, first_ns: int = 0, around: Sequence[Operation] = ()) -> list[str]:
    """The finding in one to three sentences; moments count from ``first_ns``. Never empty.

    ``around``: other operations on the same key, for findings whose proof does not name its other side.
    """
    # Two operations that contradict each other are the shortest proof there is: such a story is told first.
    pair = contradiction(anomaly, around)
    if pair is not None:
        earlier, later = pair
        gap = duration(later["invoke_ns"] - earlier["complete_ns"])
        at = moment(earlier["complete_ns"], first_ns)
        return [
            f"{at}, {ended(earlier)}.",
            f"Then, {gap} later, {began(later)}.",
            _wrong(anomaly, earlier, later),
        ]
    detailed, tell = DETAILED_STORIES.get(anomaly.kind), _PLACES.get(anomaly.kind)
    if detailed is not None:
        return detailed(anomaly, around, first_ns)
    if tell is not None:
        return tell(anomaly)
    detail = f" ({anomaly.detail})" if anomaly.detail else ""
    return [f"{place_of(anomaly)}: {anomaly.explanation}{detail}."]


def operations_told(anomaly: Anomaly, around: Sequence[Operation] = ()) -> list[Operation]:
    """The operations that the story tells of, then the rest of the proof."""
    told = list(decisive(anomaly, around))
    known = {one["op"] for one in told if "op" in one}
    return told + [one for one in anomaly.proof if one not in told and one.get("op") not in known]


def _wrong(anomaly: Anomaly, earlier: Operation, later: Operation) -> str:
    """Say what two operations that contradict each other cannot be."""
    if anomaly.kind == "premature-read" and anomaly.position is not None:
        values = value_at(earlier, anomaly.position), value_at(later, anomaly.position)
        if None not in values and values[0] != values[1]:
            return "Another message stood there already; what is appended later must stand behind it."
    return PAIRS[anomaly.kind]


def place_of(anomaly: Anomaly) -> str:
    """The place of a finding in words: of a queue the offset, of a replica the entry."""
    if anomaly.kind == "two-leaders":
        return anomaly.key
    if anomaly.kind in REPLICA_ANOMALIES:
        key, position = nodes_of(anomaly.key), "term" if anomaly.kind == "term-went-back" else "entry"
    elif anomaly.kind in REGISTER_ANOMALIES:
        queue, group = queue_and_group(anomaly.key)
        key, position = f"{queue}, consumer group {group}", "offset"
    else:
        key, position = anomaly.key, "offset"
    return key if anomaly.position is None else f"{key}, {position} {anomaly.position}"

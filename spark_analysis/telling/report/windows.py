"""The windows around the proofs that clients' operations are: at most `WINDOWS` of `TIMELINE_OPERATIONS` each."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from spark_analysis.checking.register_names import queue_and_group
from spark_analysis.checking.verdict import REGISTER_ANOMALIES, Anomaly
from spark_analysis.importing.history import History
from spark_analysis.telling.report.tables import Window
from spark_analysis.telling.stories import DISPUTES, contradiction, decisive, refused_value

WINDOWS: Final = 6
TIMELINE_OPERATIONS: Final = 28
REGISTERS: Final = ("commit_offset", "fetch_offset")
CHANGES: Final = ("append", "commit_offset")
DRAWN: Final = (
    *("op", "client", "function", "outcome", "invoke_ns", "complete_ns", "offset"),
    *("first_offset", "values", "next_offset", "end_offset"),
)


def span_of(operations: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """The first invocation and the last completion, in nanoseconds."""
    begin = min(one["invoke_ns"] for one in operations)
    return begin, max(one.get("complete_ns") or one["invoke_ns"] for one in operations)


def places_to_draw(anomalies: Sequence[Anomaly]) -> list[int]:
    """The smallest proof of each kind that clients saw, at most `WINDOWS`; those that are understood best come
    first."""
    smallest: dict[str, tuple[int, int, int]] = {}
    for place, one in enumerate(anomalies):
        if not one.proof or "op" not in one.proof[0]:
            continue
        begin, end = span_of(decisive(one))
        # Two messages in one place are where most other contradictions come from, and are understood at once. Two
        # operations that contradict each other explain themselves, too; one alone seldom does.
        is_cause = one.kind in DISPUTES and len(decisive(one)) > 1
        rank = 0 if is_cause else 1 if contradiction(one) is not None else 2 if len(one.proof) > 1 else 3
        size = (rank, end - begin, place)
        smallest[one.kind] = min(size, smallest.get(one.kind, size))
    return [place for _, _, place in sorted(smallest.values())][:WINDOWS]


def moments_of(anomaly: Anomaly, window: Window) -> list[int]:
    """The moments at which the proof's operations began and ended: operations near to them say more than those in the
    middle of a long window."""
    ends = [one.get("complete_ns") or one["invoke_ns"] for one in anomaly.proof if one["op"] in window.proof]
    begins = [one["invoke_ns"] for one in anomaly.proof if one["op"] in window.proof]
    return sorted({*begins, *ends})


def window_around(deciding: Sequence[Mapping[str, Any]]) -> Window:
    """The borders of the drawing of a proof by the operations that decide, without others."""
    begin, end = span_of(deciding)
    margin = max(1000, (end - begin) // 6)
    return Window(begin, end, begin - margin, end + margin, tuple(one["op"] for one in deciding))


def fitted(window: Window, deciding: Sequence[dict[str, Any]]) -> Window:
    """Fit the window around the ``deciding`` operations once all its operations are known, and keep those that are in
    it then."""
    new = window_around(deciding)
    low, high = new.low_ns, new.high_ns
    inside = (
        one for one in window.operations if one["invoke_ns"] <= high and one.get("complete_ns", high) >= low
    )
    return replace(new, proof=window.proof, operations=tuple(inside))


def windows_of(anomalies: Sequence[Anomaly], history: History) -> dict[int, Window]:
    """The windows of `places_to_draw`, filled by one query."""
    from pyspark.sql import Window as Over
    from pyspark.sql import functions as sf

    windows = {place: window_around(decisive(anomalies[place])) for place in places_to_draw(anomalies)}
    if not windows:
        return {}
    nearness = []
    for place, window in windows.items():
        queue, group = anomalies[place].key, ""
        if anomalies[place].kind in REGISTER_ANOMALIES:
            queue, group = queue_and_group(queue)
        ended = sf.coalesce("complete_ns", sf.lit(window.high_ns))
        in_window = (sf.col("invoke_ns") <= window.high_ns) & (ended >= window.low_ns)
        # The other side of a consumer offset that was read too late may be anywhere among those stored and read.
        # A question without an answer says nothing.
        is_concerned = (
            (sf.col("group") == group) & sf.col("function").isin(*REGISTERS)
            if group
            else in_window & ~sf.col("function").isin(*REGISTERS)
        )
        says = sf.col("function").isin(*CHANGES) | (sf.col("outcome") == "ok")
        in_proof = sf.col("op").isin(list(window.proof))
        refused = refused_value(anomalies[place])
        if refused is not None:
            in_proof |= (sf.col("outcome") == "fail") & sf.array_contains("values", refused)
        near = (sf.col("key") == queue) & is_concerned & says
        moments = [sf.abs(sf.col("invoke_ns") - at_ns) for at_ns in moments_of(anomalies[place], window)]
        distance = sf.least(*moments) if len(moments) > 1 else moments[0]
        one = sf.struct(sf.lit(place).alias("place"), in_proof.alias("in_proof"), distance.alias("distance"))
        nearness.append(sf.when(in_proof | near, one))
    # An append of unknown outcome may be open for ever: what completed in the window says more.
    order = Over.partitionBy("place").orderBy(
        sf.desc("in_proof"), sf.col("complete_ns").isNull(), "distance", "invoke_ns", "op"
    )
    rows = (
        history.operations.select(*DRAWN, sf.explode(sf.array_compact(sf.array(*nearness))).alias("near"))
        .select(*DRAWN, "near.*")
        .withColumn("rank", sf.row_number().over(order))
        .where(sf.col("rank") <= TIMELINE_OPERATIONS)
        .orderBy("place", "rank")
        .collect()
    )
    found: dict[int, list[dict[str, Any]]] = {place: [] for place in windows}
    for row in rows:
        operation = {name: row[name] for name in DRAWN if row[name] is not None}
        found[row["place"]].append(operation)
    return {place: replace(window, operations=tuple(found[place])) for place, window in windows.items()}

"""A history that one task holds: the same verdict, proofs included, from the plain rules.

The DataFrames of :mod:`spark_analysis.check` spread a queue of any length over a cluster. What they cost at least is
planning and some fifty short stages, tens of seconds of processor time for a thousand operations, which the plain rules
(:mod:`spark_analysis.reference` and its neighbours) judge in a fraction of one. So the first job of every check brings
the history to one task, which gives up beyond :data:`MOST_ROWS` rows; only then the DataFrames go on. Which of the two
has judged is a question of price and of nothing else: tests hold their answers against each other, finding by finding
and proof by proof.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_analysis import schema
from spark_analysis.kafka_catalogue import ASSIGNMENTS
from spark_analysis.kafka_reference import backward_sends, circles, moved, overwritten, precommitted
from spark_analysis.proofs import (
    DAMAGES_LISTED,
    EXAMPLES_OF_EACH_KIND,
    PROOF_OPERATIONS,
    REGISTERS,
    REPLICA_FINDINGS_LISTED,
    SHOWN,
    UNSURE_LISTED,
    VALUED,
    assembled,
    circle_anomalies,
    damage_facts,
    damage_line,
    shown,
    unsure_line,
)
from spark_analysis.raft_reference import NO_INDEX, ReplicaEvent, replica_findings
from spark_analysis.reference import Operation, QueueFindings, check_queues
from spark_analysis.registers import INITIAL, Access, check_register
from spark_analysis.unknown import Finding
from spark_analysis.verdict import Anomaly, Verdict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_analysis.history import History

MOST_ROWS: Final = 50_000
MOST_VALUES: Final = 500_000
"""Appended and read: a row may have many."""
MOST_ROWS_SETTING: Final = "TRIVET_ONE_TASK_ROWS"
"""Variable of the environment that is used in place of :data:`MOST_ROWS`; 0 spreads every history."""

Row = Mapping[str, Any]


def check_in_one_task(history: History, *, drained: bool = False, sparse: bool = False) -> Verdict | None:
    """The verdict, or None for a history that is too long for one task.

    One job of one stage, which reads no more than :data:`MOST_ROWS` rows of a history of any length.
    """
    path, values_max = history.path, MOST_VALUES
    rows_max = int(os.environ.get(MOST_ROWS_SETTING, MOST_ROWS))
    if rows_max <= 0:
        return None

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kept: list[pa.RecordBatch] = []
        rows = values = 0
        for batch in batches:
            rows += batch.num_rows
            values += pc.sum(pc.list_value_length(batch.column("values"))).as_py() or 0
            if rows > rows_max or values > values_max:
                kept = []
            else:
                kept.append(batch)
        answer = None
        if rows <= rows_max and values <= values_max:
            listed = [row for batch in kept for row in batch.to_pylist()]
            answer = _encoded(check_rows(path, listed, drained=drained, sparse=sparse))
        yield pa.RecordBatch.from_arrays([pa.array([answer], pa.string())], names=["verdict"])

    rows = _together(history).coalesce(1).limit(rows_max + 1)
    (answer,) = rows.mapInArrow(judge, "verdict STRING").collect()
    return None if answer["verdict"] is None else _decoded(answer["verdict"])


def _together(history: History) -> DataFrame:
    from pyspark.sql import functions as sf

    frames = {
        "operation": history.operations.select(*schema.OPERATION_NAMES),
        "event": history.events.select("file", "position", *schema.EVENT_NAMES),
        "damage": history.damage.select("file", "position", "kind", "reason"),
    }
    return reduce(
        lambda one, other: one.unionByName(other, allowMissingColumns=True),
        (frame.withColumn("record", sf.lit(record)) for record, frame in frames.items()),
    )


def _encoded(verdict: Verdict) -> str:
    return json.dumps(asdict(verdict))


def _decoded(text: str) -> Verdict:
    fields = json.loads(text)
    fields["anomalies"] = tuple(
        Anomaly(**one | {"proof": tuple(one["proof"])}) for one in fields["anomalies"]
    )
    return Verdict(**fields | {name: tuple(fields[name]) for name in ("undecided", "damage")})


class _Found(NamedTuple):
    """As the rows of :class:`spark_analysis.log_model.LogFindings`."""

    kind: str
    key: str
    position: int
    lower: int | None
    upper: int | None


def check_rows(path: str, rows: Sequence[Row], *, drained: bool = False, sparse: bool = False) -> Verdict:
    """Judge a history from rows of schema.OPERATIONS, schema.EVENTS and damage, told apart by ``record``."""
    operations = [row for row in rows if row["record"] == "operation"]
    events = [row for row in rows if row["record"] == "event"]
    damages = sorted(
        (row for row in rows if row["record"] == "damage"), key=lambda row: (row["file"], row["position"])
    )
    facts = _facts(operations, events) | damage_facts(Counter(row["kind"] for row in damages))
    queues: dict[str, list[Operation]] = defaultdict(list)
    changes: dict[str, list[Operation]] = defaultdict(list)
    for row in operations:
        one = _operation(row)
        (changes[one.client] if one.function in ASSIGNMENTS else queues[row["key"]]).append(one)
    judged = check_queues(queues, sparse=sparse)
    found = [_found(key, one) for key, queue in judged.items() for one in queue.findings]
    unsure = [_found(key, one) for key, queue in judged.items() for one in queue.unsure]
    undecided = _described(unsure)
    stale, unsure = _registers(operations)
    found += stale
    undecided += _described(unsure)
    excused: Counter[str] = Counter()
    for key, queue in judged.items():
        wrong, allowed = _catalogue(key, queues[key], changes, queue, facts)
        found += (_found(key, one) for one in wrong)
        excused.update(one.kind for one in allowed)
    counts = Counter(one.kind for one in found)
    if counts["append-order"] or counts["unexplained-value"]:
        for key, queue in judged.items():
            backward = backward_sends(queues[key], queue.positions)
            found += (_found(key, one) for one in backward)
            counts.update(one.kind for one in backward)
    anomalies = _examples(found, operations)
    unseen = [
        _Found("unseen", key, position, None, None)
        for key, queue in judged.items()
        for position, at in queue.positions.items()
        if at.acks and not at.reads
    ]
    if unseen:
        (counts if drained else excused)["unseen"] = len(unseen)
        anomalies += _examples(unseen, operations) if drained else []
    if facts["transactions"]:
        cycles = circles(queues)
        counts.update(one.kind for one in cycles)
        anomalies += circle_anomalies(cycles, lambda ops: _rows_of(ops, operations))
    if facts["replica_events"]:
        broken = replica_findings([_event(row) for row in sorted(events, key=_place_of_event)])
        counts.update(one.kind for one in broken)
        broken.sort(key=lambda one: (one.kind, one.position, one.key, one.detail))
        anomalies += (
            Anomaly(one.kind, one.key, one.position, (), one.detail)
            for one in broken[:REPLICA_FINDINGS_LISTED]
        )
    listed = [damage_line(row) for row in damages[:DAMAGES_LISTED]]
    return assembled(path, len(operations), +counts, excused, anomalies, undecided, listed, facts)


def _found(key: str, one: Finding) -> _Found:
    return _Found(one.kind, key, one.position, one.lower_ns, one.upper_ns)


def _facts(operations: Sequence[Row], events: Sequence[Row]) -> dict[str, Any]:
    """What was checked, in numbers; as :func:`spark_analysis.check.check` states them."""
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    for row in operations:
        outcomes[row["function"]][row["outcome"]] += 1
    nodes = Counter(row["node"] for row in events if row["kind"] not in ("fault", "note"))
    first = min((row["invoke_ns"] for row in operations), default=None)
    last = max((_end_ns(row) for row in operations), default=None)
    return {
        "functions": {
            function: dict(sorted(counts.items())) for function, counts in sorted(outcomes.items())
        },
        "transactions": sum(row["function"] == "append" and row["offsets"] is not None for row in operations),
        "queues": len({row["key"] for row in operations} - {None}),
        "clients": len({row["client"] for row in operations} - {None}),
        "first_ns": first,
        "seconds": ((last or 0) - (first or 0)) / 1e9,
        "replica_events": dict(sorted(nodes.items(), key=lambda item: str(item[0]))),
    }


def _end_ns(row: Row) -> int:
    end: int = row["invoke_ns"] if row["complete_ns"] is None else row["complete_ns"]
    return end


def _operation(row: Row) -> Operation:
    return Operation(
        *(row["op"], row["function"], row["outcome"], row["invoke_ns"], row["complete_ns"]),
        *(row["offset"], row["first_offset"], tuple(row["values"] or ())),
        offsets=None if row["offsets"] is None else tuple(row["offsets"]),
        next_offset=row["next_offset"],
        end_offset=row["end_offset"],
        filtered=bool(row["filtered"]),
        client=row["client"],
    )


def _described(unsure: Sequence[_Found]) -> list[str]:
    listed = sorted(unsure, key=lambda one: (one.key, one.position, one.kind))
    return [unsure_line(one.key, one.kind, one.position) for one in listed[:UNSURE_LISTED]]


def _registers(operations: Sequence[Row]) -> tuple[list[_Found], list[_Found]]:
    """Findings about committed offsets, and what is undecided."""
    registers: dict[str, list[Access]] = defaultdict(list)
    for row in operations:
        is_write = row["function"] == "commit_offset" and row["outcome"] != "fail"
        if is_write or (row["function"] == "fetch_offset" and row["outcome"] == "ok"):
            value = INITIAL if row["offset"] is None else row["offset"]
            access = Access(row["op"], is_write, value, row["invoke_ns"], row["complete_ns"])
            registers[_judged_key(row)].append(access)
    found: list[_Found] = []
    unsure: list[_Found] = []
    for key, accesses in registers.items():
        wrong, doubtful = check_register(accesses)
        found += (_found(key, one) for one in wrong)
        unsure += (_found(key, one) for one in doubtful)
    return found, unsure


def _judged_key(row: Row) -> str:
    """The queue, or the register of a group and a queue."""
    if row["function"] in REGISTERS and row["group"] is not None:
        return f"{row['key']} {row['group']}"
    key: str = row["key"]
    return key


def _catalogue(
    key: str,
    operations: Sequence[Operation],
    changes: Mapping[str, Sequence[Operation]],
    judged: QueueFindings,
    facts: dict[str, Any],
) -> tuple[list[Finding], list[Finding]]:
    """Jepsen's names for what consumers and transactions did with one queue, and what of it is allowed."""
    findings, allowed = overwritten(operations, judged.positions), list[Finding]()
    if "poll" in facts["functions"] or facts["transactions"]:
        clients = dict.fromkeys(one.client for one in operations if one.function == "poll")
        assigned = [one for client in clients for one in changes.get(client, ())]
        wrong, allowed = moved([*operations, *assigned], key, judged.positions)
        findings += wrong
    if facts["transactions"]:
        findings += precommitted(operations)
    return findings, allowed


def _rows_of(ops: Sequence[int], operations: Sequence[Row]) -> list[dict[str, Any]]:
    wanted = set(ops)
    rows = [dict(row) for row in operations if row["op"] in wanted]
    return sorted(rows, key=lambda row: (row["op"], row["function"], row["key"]))


def _place_of_event(row: Row) -> tuple[str, str, int]:
    return row["node"], row["file"], row["position"]


def _event(row: Row) -> ReplicaEvent:
    last_index = NO_INDEX if row["last_index"] is None else row["last_index"]
    return ReplicaEvent(
        row["node"], row["kind"], row["term"], row["role"], row["first_index"], last_index, row["digest"]
    )


def _examples(found: Sequence[_Found], operations: Sequence[Row]) -> list[Anomaly]:
    """The first few findings of each kind with the operations that touch them."""
    taken: Counter[str] = Counter()
    chosen: list[_Found] = []
    for one in sorted(found, key=lambda one: (one.kind, one.key, one.position, *map(_nulls_first, one[3:]))):
        taken[one.kind] += 1
        if taken[one.kind] <= EXAMPLES_OF_EACH_KIND:
            is_disputed = one.kind in ("duplicate-offset", "inconsistent-offset")
            chosen.append(one._replace(lower=None, upper=None) if is_disputed else one)
    if not chosen:
        return []
    by_key: dict[str, list[tuple[Row, int | None, int | None]]] = defaultdict(list)
    wanted = {one.key for one in chosen}
    for row in operations:
        key = _judged_key(row)
        if key in wanted:
            by_key[key].append((row, *_extent(row)))
    return [Anomaly(one.kind, one.key, one.position, _proof(one, by_key[one.key])) for one in chosen]


def _extent(row: Row) -> tuple[int | None, int | None]:
    """The first and the last offset that an operation says something about."""
    offset, first = row["offset"], row["first_offset"]
    if first is None:
        return offset, row["offsets"][-1] if row["offsets"] else offset
    return first, row["offsets"][-1] if row["offsets"] else first + max(1, len(row["values"] or ())) - 1


def _proof(
    one: _Found, operations: Sequence[tuple[Row, int | None, int | None]]
) -> tuple[dict[str, Any], ...]:
    """What decides first; then, of each value that was seen there, its append before its readers."""
    by_value: dict[str | None, list[tuple[Any, ...]]] = defaultdict(list)
    for row, first, last in operations:
        touches = first is not None and last is not None and first <= one.position <= last
        decides = (one.lower is not None and row["invoke_ns"] == one.lower) or (
            one.upper is not None and row["complete_ns"] == one.upper
        )
        if decides or (touches and one.lower is None):
            value = _value_at(row, one.position) if touches else None
            order = (not decides, row["function"] != "append", row["invoke_ns"], row["op"])
            by_value[value].append((order, len(by_value[value]), row))
    entries = []
    for value, listed in by_value.items():
        for place, ((is_minor, *_), _, row) in enumerate(sorted(listed, key=lambda entry: entry[:2])):
            operation = {name: row.get(name) for name in SHOWN} | {"value": value}
            entries.append(((is_minor, place), tuple(map(_nulls_first, operation.values())), operation))
    entries.sort(key=lambda entry: entry[:2])
    return tuple(shown(operation) for _, _, operation in entries[:PROOF_OPERATIONS])


def _value_at(row: Row, position: int) -> str | None:
    if row["function"] not in VALUED:
        return None
    values, offsets = row["values"] or (), row["offsets"]
    if offsets is not None:
        index = offsets.index(position) if position in offsets else -1
    else:
        index = -1 if row["first_offset"] is None else position - row["first_offset"]
    return values[index] if 0 <= index < len(values) else None


def _nulls_first(value: Any) -> tuple[bool, Any]:
    return (False, 0) if value is None else (True, value)

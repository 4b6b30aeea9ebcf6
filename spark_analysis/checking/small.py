"""The check of a history that one task holds: the same verdict, proofs included, from the plain rules.

The DataFrames of :mod:`spark_analysis.checking.distributed` spread a queue of any length over a cluster. They cost at
least planning and some fifty short stages: tens of seconds of processor time for a thousand operations, which the plain
rules (:mod:`spark_analysis.checking.queues.reference` and its neighbours) judge in a fraction of one. So the first job
of every check brings the history to one task, which gives up beyond :data:`MOST_ROWS` rows; only then the DataFrames go
on. The choice between the two is a question of cost only: tests hold their verdicts against each other, finding by
finding and proof by proof.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from spark_analysis.checking.examples import Found, Row, judged_key, plain_examples
from spark_analysis.checking.kafka.catalogue import ASSIGNMENTS
from spark_analysis.checking.kafka.reference import backward_sends, circles, moved, overwritten, precommitted
from spark_analysis.checking.proofs import DAMAGES_LISTED, Gathered, damage_facts, facts_of
from spark_analysis.checking.queues.knowledge import Operation
from spark_analysis.checking.queues.reference import QueueFindings, check_queues
from spark_analysis.checking.queues.unknown_appends import Finding
from spark_analysis.checking.registers import INITIAL, Access, check_register
from spark_analysis.checking.replicas.files import place_of_file
from spark_analysis.checking.replicas.names import groups_of, named_rows
from spark_analysis.checking.replicas.reference import NO_INDEX, ReplicaEvent, replica_findings
from spark_analysis.checking.verdict import Verdict
from spark_analysis.importing import schema
from spark_analysis.importing.arrow import arrow_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_analysis.importing.history import History

MOST_ROWS: Final = 50_000
MOST_VALUES: Final = 500_000
"""The most values appended and read, of which a row may have many, in a history that one task checks."""
MOST_ROWS_SETTING: Final = "TRIVET_ONE_TASK_ROWS"
"""Variable of the environment that is used in place of :data:`MOST_ROWS`; 0 spreads every history."""
_ANSWER: Final = "verdict BINARY"


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
                kept = []  # too long: it is judged by the DataFrames, and its rows are not to fill the memory
            else:
                kept.append(batch)
        answer = None
        if rows <= rows_max and values <= values_max:
            listed = [row for batch in kept for row in batch.to_pylist()]
            answer = pickle.dumps(check_rows(path, listed, drained=drained, sparse=sparse))
        yield from arrow_batches([(answer,)], _ANSWER)

    # One row beyond the limit shows that there are too many, and no more than that is read.
    rows = _together(history).coalesce(1).limit(rows_max + 1)
    (answer,) = rows.mapInArrow(judge, _ANSWER).collect()
    return None if answer["verdict"] is None else cast("Verdict", pickle.loads(answer["verdict"]))


def _together(history: History) -> DataFrame:
    from pyspark.sql import functions as sf

    frames = {
        "operation": history.operations.select(
            *schema.OPERATION_NAMES, *(name for name in ("called",) if name in history.operations.columns)
        ),
        "event": history.events.select(*schema.EVENT_TABLE_NAMES),
        "damage": history.damage.select("file", "position", "kind", "reason"),
    }
    return reduce(
        lambda one, other: one.unionByName(other, allowMissingColumns=True),
        (frame.withColumn("record", sf.lit(record)) for record, frame in frames.items()),
    )


def check_rows(path: str, rows: Sequence[Row], *, drained: bool = False, sparse: bool = False) -> Verdict:
    """Judge a history from rows of schema.OPERATIONS, schema.EVENT_TABLE and damage, told apart by ``record``."""
    operations = [row for row in rows if row["record"] == "operation"]
    recorded = [row for row in rows if row["record"] == "event"]
    groups = groups_of(recorded)
    events = named_rows(recorded, groups)
    damages = sorted(
        (row for row in rows if row["record"] == "damage"), key=lambda row: (row["file"], row["position"])
    )
    facts = _facts(operations, events, groups) | damage_facts(Counter(row["kind"] for row in damages))
    queues, changes = operations_by_queue(operations)
    judged = check_queues(queues, sparse=sparse)
    found = [_found(key, one) for key, queue in judged.items() for one in queue.findings]
    gathered = Gathered(facts, len(operations), damages=damages[:DAMAGES_LISTED])
    gathered.add_unsure(
        (key, one.position, one.kind) for key, queue in judged.items() for one in queue.unsure
    )
    stale, unsure = _registers(operations)
    found += stale
    gathered.add_unsure((one.key, one.position, one.kind) for one in unsure)
    for key, queue in judged.items():
        wrong, allowed = _catalogue(key, queues[key], changes, queue, facts)
        found += (_found(key, one) for one in wrong)
        gathered.allowed.update(one.kind for one in allowed)
    counts = gathered.counts
    counts.update(one.kind for one in found)
    # A client's sends can go backwards only where the order of appends is wrong at all.
    if counts["append-order"] or counts["unexplained-value"]:
        for key, queue in judged.items():
            backward = backward_sends(queues[key], queue.positions)
            found += (_found(key, one) for one in backward)
            counts.update(one.kind for one in backward)
    gathered.anomalies += plain_examples(found, operations)
    unseen = [
        Found("unseen", key, position, None, None)
        for key, queue in judged.items()
        for position, at in queue.positions.items()
        if at.acks and not at.reads
    ]
    gathered.add_unseen(len(unseen), lambda: plain_examples(unseen, operations), drained=drained)
    if facts["transactions"]:
        gathered.add_circles(circles(queues), lambda ops: _rows_of(ops, operations))
    if facts["replica_events"]:
        broken = replica_findings([_event(row) for row in sorted(events, key=_place_of_event)])
        broken.sort(key=lambda one: (one.kind, one.position, one.key, one.detail))
        gathered.add_replicas(
            Counter(one.kind for one in broken),
            ((one.kind, one.key, one.position, one.detail) for one in broken),
        )
    return gathered.verdict(path)


def operations_by_queue(
    operations: Iterable[Row],
) -> tuple[dict[str, list[Operation]], dict[str, list[Operation]]]:
    """The operations of each queue, and the assignments of each client."""
    queues: dict[str, list[Operation]] = defaultdict(list)
    changes: dict[str, list[Operation]] = defaultdict(list)
    for row in operations:
        one = operation_of(row)
        (changes[one.client] if one.function in ASSIGNMENTS else queues[row["key"]]).append(one)
    return queues, changes


def _found(key: str, one: Finding) -> Found:
    return Found(one.kind, key, one.position, one.lower_ns, one.upper_ns)


def _facts(operations: Sequence[Row], events: Sequence[Row], groups: Sequence[str]) -> dict[str, Any]:
    """Count the operations of the history; returns :func:`facts_of` them."""
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    for (function, outcome), count in Counter(
        (row["function"], row["outcome"]) for row in operations
    ).items():
        outcomes[function][outcome] = count
    # All rows of an operation call it the same.
    called = Counter(
        name
        for _, name in {
            (row["op"], row.get("called") or f"{row['function']} {row['outcome']}") for row in operations
        }
    )
    nodes = Counter(row["node"] for row in events if row["kind"] not in ("fault", "note"))
    begins = [row["invoke_ns"] for row in operations]
    ends = [row["complete_ns"] for row in operations if row["complete_ns"] is not None]
    return facts_of(
        outcomes,
        called if any(row.get("called") for row in operations) else {},
        transactions=sum(row["function"] == "append" and row["offsets"] is not None for row in operations),
        queues=len({row["key"] for row in operations} - {None}),
        clients=len({row["client"] for row in operations} - {None}),
        first_ns=min(begins, default=None),
        last_ns=max((*begins, *ends), default=None),
        groups=groups,
        replica_events=nodes,
    )


def operation_of(row: Row) -> Operation:
    return Operation(
        *(row["op"], row["function"], row["outcome"], row["invoke_ns"], row["complete_ns"]),
        *(row["offset"], row["first_offset"], tuple(row["values"] or ())),
        offsets=None if row["offsets"] is None else tuple(row["offsets"]),
        next_offset=row["next_offset"],
        end_offset=row["end_offset"],
        filtered=bool(row["filtered"]),
        client=row["client"],
    )


def accesses_by_register(operations: Iterable[Row]) -> dict[str, list[Access]]:
    """The commits and fetches of each consumer group in each queue that had effect, or may have."""
    registers: dict[str, list[Access]] = defaultdict(list)
    for row in operations:
        is_write = row["function"] == "commit_offset" and row["outcome"] != "fail"
        if is_write or (row["function"] == "fetch_offset" and row["outcome"] == "ok"):
            value = INITIAL if row["offset"] is None else row["offset"]
            access = Access(row["op"], is_write, value, row["invoke_ns"], row["complete_ns"])
            registers[judged_key(row)].append(access)
    return registers


def _registers(operations: Sequence[Row]) -> tuple[list[Found], list[Found]]:
    """Judge consumer offsets; returns the findings, and the places that cannot be decided."""
    found: list[Found] = []
    unsure: list[Found] = []
    for key, accesses in accesses_by_register(operations).items():
        wrong, doubtful = check_register(accesses)
        found += (_found(key, one) for one in wrong)
        unsure += (_found(key, one) for one in doubtful)
    return found, unsure


def _catalogue(
    key: str,
    operations: Sequence[Operation],
    changes: Mapping[str, Sequence[Operation]],
    judged: QueueFindings,
    facts: dict[str, Any],
) -> tuple[list[Finding], list[Finding]]:
    """Judge one queue by the rules of Jepsen's Kafka workload; returns the findings, and those that are allowed."""
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


def _place_of_event(row: Row) -> tuple[str, str, int, int]:
    return (row["node"], *place_of_file(row["file"]), row["position"])


def _event(row: Row) -> ReplicaEvent:
    last_index = NO_INDEX if row["last_index"] is None else row["last_index"]
    return ReplicaEvent(
        *(row["node"], row["kind"], row["term"], row["role"], row["first_index"], last_index, row["digest"]),
        last_term=row["last_term"],
        group=row["group"] or "",
    )

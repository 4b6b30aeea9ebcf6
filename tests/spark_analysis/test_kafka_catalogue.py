"""Jepsen's Kafka catalogue: for each name the smallest history that has it and one that nearly has; and Spark's rules
against the plain ones on many random histories."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from spark_analysis import schema, sweep
from spark_analysis.check import check
from spark_analysis.history import History, no_events
from spark_analysis.kafka_catalogue import backward_sends, check_polls, overwritten
from spark_analysis.kafka_reference import catalogue
from spark_analysis.log_model import check_log
from spark_analysis.reference import LINEARIZABLE, VIOLATED, Operation, check_queue
from spark_analysis.verdict import EXPLANATIONS, jepsen_name
from tests.spark_analysis.test_log_model import as_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY = "t/0"
Step = tuple[Any, ...]


def steps(*listed: Step) -> list[Operation]:
    """(function, client, offset or None, values or [(offset, value), ...]) one after the other."""
    operations = []
    for op, (function, client, offset, values) in enumerate(listed):
        begin, end = 10 * op, 10 * op + 5
        if function == "poll":
            offsets = tuple(place for place, _ in values)
            texts = tuple(value for _, value in values)
            first = offsets[0] if offsets else None
            operations.append(
                Operation(op, "poll", "ok", begin, end, None, first, texts, offsets or None, client=client)
            )
        elif function == "append":
            outcome = {None: "info", -1: "fail"}.get(offset, "ok")
            first = offset if outcome == "ok" else None
            complete = None if outcome == "info" else end
            operations.append(
                Operation(op, "append", outcome, begin, complete, None, first, values, client=client)
            )
        elif function == "read":
            first = offset if values else None
            operations.append(
                Operation(
                    *(op, "read", "ok", begin, end, offset, first, values),
                    next_offset=offset + len(values),
                    client=client,
                )
            )
        else:
            operations.append(Operation(op, function, "ok", begin, end, values=values, client=client))
    return operations


ABC = [("append", "p", place, (value,)) for place, value in enumerate("abcd")]
A, B, C, D = ((place, value) for place, value in enumerate("abcd"))

# name, what has it, what nearly has it
PAIRS: list[tuple[str, list[Step], list[Step]]] = [
    ("poll-skip", [*ABC, ("poll", "c", None, [A]), ("poll", "c", None, [C]), ("poll", "e", None, [A, B, C])],
     [*ABC, ("poll", "c", None, [A]), ("poll", "c", None, [B]), ("poll", "e", None, [C])]),
    # Offsets that nobody knows are no messages: Kafka puts its own records there.
    ("poll-skip", [*ABC, ("poll", "c", None, [A]), ("assign", "c", None, (KEY,)), ("poll", "c", None, [D]),
                   ("poll", "e", None, [A, B, C, D])],
     [*ABC, ("poll", "c", None, [A]), ("assign", "c", None, ("t/1",)), ("poll", "c", None, [D]),
      ("poll", "e", None, [A, B, C, D])]),
    ("nonmonotonic-poll", [*ABC, ("poll", "c", None, [A, B]), ("poll", "c", None, [B, C])],
     [*ABC, ("poll", "c", None, [A, B]), ("poll", "d", None, [B, C])]),
    ("int-poll-skip", [*ABC, ("poll", "c", None, [A, C]), ("poll", "e", None, [A, B])],
     [*ABC[:1], ("append", "p", None, ("b",)), ("append", "q", 2, ("c",)), ("poll", "c", None, [A, C])]),
    ("int-nonmonotonic-poll", [*ABC, ("poll", "c", None, [B, A])], [*ABC, ("poll", "c", None, [A, B])]),
    ("lost-write", [*ABC, ("poll", "c", None, [A]), ("poll", "d", None, [C])],
     [*ABC, ("poll", "c", None, [A]), ("poll", "d", None, [B, C])]),
    ("lost-write", [*ABC, ("append", "q", None, ("x",)), ("read", "c", 1, ("x",))],
     [*ABC, ("append", "q", None, ("x",)), ("read", "c", 1, ("b",))]),
    ("nonmonotonic-send", [("append", "p", 1, ("b",)), ("append", "p", 0, ("a",))],
     [("append", "p", 0, ("a",)), ("append", "p", 1, ("b",))]),
    ("G1a", [*ABC, ("append", "p", -1, ("x",)), ("poll", "c", None, [(4, "x")])],
     [*ABC, ("append", "p", None, ("x",)), ("poll", "c", None, [(4, "x")])]),
    ("duplicate", [*ABC, ("poll", "c", None, [(4, "a")])],
     [*ABC, ("append", "p", None, ("a",)), ("poll", "c", None, [(4, "a")])]),
    ("inconsistent-offsets", [*ABC, ("append", "p", None, ("x",)), ("poll", "c", None, [(0, "x")])],
     [*ABC, ("append", "p", None, ("x",)), ("poll", "c", None, [(4, "x")])]),
    ("inconsistent-offsets", [*ABC, ("append", "q", 3, ("x",))], [*ABC, ("append", "q", 4, ("x",))]),
]  # fmt: skip


def own_row(one: Operation, number: int, key: str) -> tuple[Any, ...]:
    """The operation with the queue ``key`` for KEY, and with clients and values that no other queue has."""
    row = list(as_row(one, number, key))
    row[1] = f"{key} {one.client}"
    if one.function in ("assign", "subscribe"):
        row[3], row[12] = "", [key if value == KEY else value for value in one.values]
    elif row[12] is not None:
        row[12] = [f"{key} {value}" for value in one.values]
    return tuple(row)


def names(operations: list[Operation]) -> set[str | None]:
    """Jepsen's names of everything that the plain rules find."""
    kinds = [one.kind for one in (*check_queue(operations)[1], *catalogue(operations, KEY)[0])]
    return {jepsen_name(kind) for kind in kinds}


@pytest.mark.spark
@pytest.mark.slow
def test_each_name_has_a_smallest_history(spark: SparkSession) -> None:
    """All pairs at once through Spark, a queue and clients of its own for each: the name, and the proof."""
    rows: list[tuple[Any, ...]] = []
    wanted: dict[str, str] = {}
    for number, (name, bad, good) in enumerate(PAIRS):
        for kind, listed in (("bad", bad), ("good", good)):
            key = f"{kind}-{number}/0"
            wanted[key] = name
            rows += [own_row(one, len(rows) + place, key) for place, one in enumerate(steps(*listed))]
    nothing = spark.createDataFrame([], "file STRING, position BIGINT, kind STRING, reason STRING")
    verdict = check(History("x", spark.createDataFrame(rows, schema.OPERATIONS), no_events(spark), nothing))
    found: dict[str, set[str | None]] = {}
    for anomaly in verdict.anomalies:
        found.setdefault(anomaly.key, set()).add(jepsen_name(anomaly.kind))
        assert anomaly.proof, anomaly
        assert anomaly.kind in EXPLANATIONS
    missing = {
        key: name for key, name in wanted.items() if key[0] == "b" and name not in found.get(key, set())
    }
    assert not missing, found
    assert not [key for key in found if key.startswith("good")]
    assert verdict.verdict == VIOLATED


@pytest.mark.parametrize(("name", "bad", "good"), PAIRS)
def test_the_plain_rules_name_the_same(name: str, bad: list[Step], good: list[Step]) -> None:
    if name not in ("G1a", "duplicate"):  # the plain checker calls both "unexplained"
        assert name in names(steps(*bad))
    assert check_queue(steps(*good))[0] == LINEARIZABLE
    assert not catalogue(steps(*good), KEY)[0]


@pytest.mark.parametrize("name", ["poll-skip", "nonmonotonic-poll"])
def test_a_rebalance_may_move_a_subscriber(name: str) -> None:
    (bad,) = [bad for other, bad, _ in PAIRS if other == name][:1]
    findings, allowed = catalogue(steps(("subscribe", "c", None, (KEY,)), *bad), KEY)
    assert not findings
    assert [one.kind for one in allowed] == [name]
    findings, allowed = catalogue(steps(("assign", "c", None, (KEY,)), *bad), KEY)
    assert [one.kind for one in findings] == [name]
    assert not allowed


@pytest.mark.spark
@pytest.mark.slow
def test_unseen_counts_where_readers_have_drained(spark: SparkSession) -> None:
    nothing = spark.createDataFrame([], "file STRING, position BIGINT, kind STRING, reason STRING")
    listed = [*ABC, ("poll", "c", None, [A, B, C])]
    rows = [as_row(one, place, KEY) for place, one in enumerate(steps(*listed))]
    history = History("x", spark.createDataFrame(rows, schema.OPERATIONS), no_events(spark), nothing)
    kept = check(history)
    assert (kept.verdict, kept.allowed, kept.counts) == (LINEARIZABLE, {"unseen": 1}, {})
    drained = check(history, drained=True)
    assert (drained.verdict, drained.allowed, drained.counts) == (VIOLATED, {}, {"unseen": 1})
    (anomaly,) = drained.anomalies
    assert (anomaly.kind, anomaly.position, len(anomaly.proof)) == ("unseen", 3, 1)


def random_polls(rng: random.Random) -> list[Operation]:
    """Two producers and three consumers of one queue; consumers mostly go on, sometimes jump, some subscribe."""
    listed: list[Step] = []
    log: list[str] = []
    stands = dict.fromkeys("cde", 0)
    for op in range(rng.randrange(5, 25)):
        choice = rng.random()
        client = rng.choice("cde")
        if choice < 0.45:
            outcome = rng.choice([len(log)] * 6 + [None, max(0, len(log) - 1), max(0, len(log) - 2)])
            listed.append(("append", rng.choice("pq"), outcome, (f"v{op}",)))
            if outcome is not None or rng.random() < 0.5:
                log.append(f"v{op}")
        elif choice < 0.9:
            first = max(0, stands[client] + rng.choice([0] * 8 + [-1, 1, 2]))
            offsets = list(range(first, min(len(log), first + rng.randrange(4))))
            if rng.random() < 0.1:
                rng.shuffle(offsets)
            if len(offsets) > 2 and rng.random() < 0.2:
                del offsets[1]
            listed.append(("poll", client, None, [(place, log[place]) for place in offsets]))
            stands[client] = offsets[-1] + 1 if offsets else stands[client]
        else:
            listed.append(
                (rng.choice(["assign", "assign", "subscribe"]), client, None, rng.choice([(KEY,), ("t/1",)]))
            )
    return steps(*listed)


@pytest.mark.spark
@pytest.mark.slow
def test_spark_and_the_plain_rules_agree(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also cut into many ranges of time and position."""
    monkeypatch.setattr(sweep, "ROWS_OF_A_BUCKET", 500)
    monkeypatch.setattr("spark_analysis.log_model.BUCKET_BITS", 1)
    expected: Counter[tuple[str, str, int, bool]] = Counter()
    rows: list[tuple[Any, ...]] = []
    for seed in range(300):
        key = f"t-{seed}/0"
        history = random_polls(random.Random(seed))
        findings, allowed = catalogue(history, KEY)
        expected.update({(key, one.kind, one.position, False) for one in findings})
        expected.update({(key, one.kind, one.position, True) for one in allowed})
        rows += [own_row(one, len(rows) + place, key) for place, one in enumerate(history)]
    operations = spark.createDataFrame(rows, schema.OPERATIONS)
    log = check_log(operations)
    assert log.disputed is not None
    found = (
        check_polls(operations, log.positions)
        .select("key", "kind", "position", "allowed")
        .distinct()
        .collect()
    )
    got = Counter(tuple(row) for row in found)
    for frame in (overwritten(operations, log.disputed), backward_sends(operations)):
        got.update({(row["key"], row["kind"], row["position"], False) for row in frame.collect()})
    log.release()
    assert set(got) == set(expected)
    assert {kind for _, kind, _, _ in got} == {
        *("poll-skip", "nonmonotonic-poll", "int-poll-skip", "int-nonmonotonic-poll"),
        *("lost-write", "nonmonotonic-send"),
    }

"""The DataFrames and the plain rules give one answer: verdict, findings, proofs, what is allowed and what is undecided.

The plain rules judge small histories by themselves, so this is also the test that it does not matter who judges.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf

from spark_analysis.checking import distributed, examples, proofs, small, sweep
from spark_analysis.checking.check import check
from spark_analysis.checking.distributed import check_distributed
from spark_analysis.checking.proofs import DAMAGES_LISTED
from spark_analysis.checking.queues import log_model
from spark_analysis.checking.queues.knowledge import Operation
from spark_analysis.checking.queues.value_hash import value_hash
from spark_analysis.checking.registers import Access
from spark_analysis.checking.replicas import invariants as raft_invariants
from spark_analysis.checking.verdict import EXPLANATIONS, Anomaly, Verdict
from tests.spark_analysis.checking.test_kafka_catalogue import KEY, TABLE, own_rows, random_polls
from tests.spark_analysis.checking.test_kafka_transactions import random_queues
from tests.spark_analysis.checking.test_raft_invariants import as_rows as event_rows
from tests.spark_analysis.checking.test_registers import random_accesses
from tests.spark_analysis.crowds import Crowd, homeless, of_its_own
from tests.spark_analysis.histories import random_history, without_acknowledgements
from tests.spark_analysis.log_mutations import CATALOGUE_MUTATIONS, LOG_MUTATIONS, good_history
from tests.spark_analysis.notation import rows as notation_rows
from tests.spark_analysis.raft_mutations import RAFT_MUTATIONS, good_events
from tests.spark_analysis.stages import last_stage, task_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANY = 10_000
TORN = [
    Operation(0, "append", "info", 0, None, values=("a", "b")),
    Operation(1, "append", "ok", 0, 5, first_offset=1, values=("c",)),
    Operation(2, "poll", "ok", 10, 15, first_offset=0, values=("a", "c", "b")),
]


def crowd(seed: int) -> Crowd:
    """Everything that can be said about queues, registers and replicas, right and wrong."""
    made = Crowd()
    kinds: list[dict[str, Any]] = [
        *({"batches": False}, {"batches": False, "values": 3}, {}, {"values": 4}),
        *({"batches": False, "size": 14}, {"rich": True}, {"rich": True, "values": 4}),
    ]
    for number in range(1400):
        rng = random.Random(seed + number)
        history = random_history(rng, **kinds[number % len(kinds)])
        made.add(f"queue-{number}/0", history if number % 3 else of_its_own(history, f"{number}"))
    for number in range(60):
        rng = random.Random(seed + number)
        for queue in (0, 1):
            history = of_its_own(random_history(rng, batches=number % 2 == 0), f"home-{number}")
            settled, away = homeless(rng, history)
            made.add(f"home-{number}/{queue}", settled)
            made.add(f"home-{number}/", away)
    for number in range(200):
        first_op = 100_000 * len(made.operations)
        for key, operations in without_acknowledgements(random.Random(seed + number)).items():
            made.add(
                key.replace("t", f"unacknowledged-{number}"),
                of_its_own(operations, f"{number}"),
                first_op=first_op,
            )
    for number, mutation in enumerate([None, *LOG_MUTATIONS, *CATALOGUE_MUTATIONS] * 3):
        rng = random.Random(seed + number)
        history = good_history(rng, 60)
        if mutation is not None:
            mutation(rng, history)
        made.add(f"bent-{number}/0", of_its_own(history, f"bent-{number}"))
    for number in range(300):
        history = random_polls(random.Random(seed + number))
        made.operations += own_rows(history, 1000 * len(made.operations), f"polls-{number}/0")
    assert KEY not in {row[3] for row in made.operations}
    for number in range(120):
        first_op = 100_000 * len(made.operations)
        for key, operations in random_queues(random.Random(seed + number), 8).items():
            made.add(f"transactions-{number}-{key}", operations, first_op=first_op)
    for number, entry in enumerate(TABLE):
        made.operations += notation_rows(entry.bad, f"bad{number:02}", 100_000 * len(made.operations))
    made.add(
        "heads/0", [Operation(0, "head", "ok", 0, 5, offset=3), Operation(1, "head", "ok", 10, 15, offset=1)]
    )
    made.add("torn/0", of_its_own(TORN, "torn"))
    for number in range(400):
        accesses = random_accesses(random.Random(seed + number), 9, 4 if number % 8 == 0 else None)
        if number % 10 == 0:
            accesses.append(Access(MANY, False, MANY, 20, 25))  # nobody has stored it
        # Of two of every ten the names together are the same, and the registers are not.
        names = {7: (f"register-{number} 0", "g h"), 8: (f"register-{number - 1}", "0 g h")}
        made.add_register(*names.get(number % 10, (f"register-{number}/0", "g")), accesses)
    rng = random.Random(seed)
    events = good_events(rng, 150)
    for break_one in [*RAFT_MUTATIONS] * 2:
        break_one(rng, events)
    made.events += event_rows(events)
    # Nodes of another group may have the same names.
    made.events += event_rows([replace(one, group="other") for one in good_events(rng, 100)])
    made.damage += ((f"{number % 3}.trace", number, "bad", "torn") for number in range(DAMAGES_LISTED + 5))
    return made


def told(anomaly: Anomaly) -> tuple[Any, ...]:
    return anomaly.kind, anomaly.key, anomaly.position, anomaly.detail, anomaly.proof


@pytest.fixture
def everything_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only the first findings are compared."""
    for module in (examples, distributed):
        monkeypatch.setattr(module, "EXAMPLES_OF_EACH_KIND", MANY)
    for module in (distributed, proofs):
        for name in ("REPLICA_FINDINGS_LISTED", "UNSURE_LISTED"):
            monkeypatch.setattr(module, name, MANY)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.hunt
@pytest.mark.parametrize(
    ("seed", "drained", "sparse"), [(0, True, False), (20_000, False, True)], ids=["dense", "sparse"]
)
def test_the_dataframes_and_the_plain_rules_agree(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    everything_told: None,
    seed: int,
    drained: bool,
    sparse: bool,
) -> None:
    """With buckets so small that every sweep goes through many of them."""
    monkeypatch.setattr(log_model, "BUCKET_BITS", 1)
    monkeypatch.setattr(sweep, "ROWS_OF_A_BUCKET", 500)
    monkeypatch.setattr(raft_invariants, "RANGE_BITS", 8)
    made = crowd(seed)
    expected = small.check_rows("crowd", made.rows(), drained=drained, sparse=sparse)
    found = check_distributed(made.history(spark), drained=drained, sparse=sparse)
    compare(found, expected)
    # What nobody injected is found by no model of a log; in a queue with gaps nothing need account for an offset.
    unheard = {"not-linearizable"} | ({"unexplained-offset", "torn-append"} if sparse else set())
    assert set(EXPLANATIONS) - {*expected.counts, *expected.allowed} == unheard
    assert sparse or expected.undecided


@pytest.mark.spark
@pytest.mark.slow
def test_a_history_that_one_task_holds_is_judged_by_one(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that is longer, or has more values, is not."""
    made = crowd(7)
    history = made.history(spark)
    expected = small.check_rows("crowd", made.rows())
    after = last_stage(spark)
    verdict = check(history)
    assert verdict.facts.pop("judged_by") == "one task"
    compare(verdict, expected)
    (records,) = task_records(spark, after)
    assert len(records) == 1
    monkeypatch.setattr(small, "MOST_VALUES", 1000)
    assert small.check_in_one_task(history) is None
    monkeypatch.undo()
    for most in (len(made.rows()) - 1, 0):
        monkeypatch.setenv(small.MOST_ROWS_SETTING, str(most))
        assert small.check_in_one_task(history) is None


@pytest.mark.spark
@pytest.mark.slow
def test_the_hash_of_a_value_is_sparks(spark: SparkSession) -> None:
    """Of every length up to three blocks, and of more than ASCII."""
    texts = ["ab\u00e9\u4e16\U0001f642"[: size % 6] + "x" * size for size in range(100)]
    rows = spark.createDataFrame([(text,) for text in (*texts, None)], "text STRING")
    hashes = [row[0] for row in rows.select(sf.xxhash64("text")).collect()]
    assert hashes == [value_hash(text) for text in (*texts, None)]


def compare(found: Verdict, expected: Verdict) -> None:
    assert found.counts == expected.counts
    assert found.allowed == expected.allowed
    assert found.undecided == expected.undecided
    assert found.facts == expected.facts
    assert found.damage == expected.damage
    for one, other in zip(found.anomalies, expected.anomalies, strict=True):
        assert told(one) == told(other)
    assert found == expected

"""``trivet.analysis``: the page of its documentation runs, orders are orders, minimal violations are minimal."""

from __future__ import annotations

import doctest
import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from broker.public.analysis import HistoryError, Operation, check
from broker.trace import TraceHeader, TraceWriter
from spark_analysis.api import _IS_NO_OPERATION, check_operation
from spark_analysis.checking.models import MODELS
from spark_analysis.checking.verdict import UNDECIDED
from spark_analysis.importing import schema
from tests.spark_analysis.checking.test_frontier import history as register_history
from tests.spark_analysis.checking.test_unambiguous import assert_is_an_order, history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs/analysis.md"


def test_the_page_runs() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.REPORT_ONLY_FIRST_FAILURE)
    assert found.attempted > 8
    assert found.failed == 0


@pytest.mark.parametrize("kind", ["fifo-queue", "stack", "cas-register"])
def test_orders_and_minimal_violations(kind: str) -> None:
    """With any one answer less than the minimal ones the history is possible."""
    orders = violations = 0
    for seed in range(60):
        calls = (
            register_history(seed, 10, 3, 3, 0.3, 0.3) if kind == "cas-register" else history(kind, seed, 10)
        )
        operations = [
            Operation(one.function, one.argument, one.result, one.invoke_ns, one.complete_ns) for one in calls
        ]
        calls = [replace(one, op=place) for place, one in enumerate(calls)]
        judgement = check(operations, kind, order=True, minimal=True)
        if judgement.order is not None:
            assert_is_an_order(calls, MODELS[kind], judgement.order)
            orders += 1
        elif judgement.minimal is not None:
            for missed in judgement.minimal:
                kept = [
                    one
                    if place in judgement.minimal and place != missed
                    else replace(one, result=None, complete_ns=None)
                    for place, one in enumerate(operations)
                ]
                assert not check(kept, kind).is_violated, (kind, seed)
            violations += 1
    assert min(orders, violations) >= 5


def test_keys_are_judged_apart_and_ordered_together() -> None:
    one = [Operation("write", 1, None, 0, 10, key="x"), Operation("read", None, 1, 2, 3, key="x")]
    other = [Operation("write", 2, None, 4, 5, key="y"), Operation("read", None, 2, 6, 7, key="y")]
    assert check([*one, *other], "register", order=True).order == (0, 1, 2, 3)
    assert check([*other, *one], "register", order=True).order == (2, 3, 0, 1)
    bad = check([*one, *other, Operation("read", None, None, 8, 9, key="y")], "register", minimal=True)
    assert (bad.verdict.anomalies[0].key, bad.minimal) == ("y", (3, 4))
    assert check([], "register").verdict.verdict == UNDECIDED


ROW: dict[str, Any] = {"function": "append", "key": "a/0", "outcome": "ok", "invoke_ns": 1, "complete_ns": 2}
ROW |= {"first_offset": 0, "values": ["u-1"]}
TOO_DEEP: list[Any] = []
for _ in range(200):
    TOO_DEEP = [TOO_DEEP]


def test_sets_are_values() -> None:
    history = [Operation("write", {1, 2}, None, 0, 1), Operation("read", None, {2, 1}, 2, 3)]
    assert check(history, "register").is_linearizable
    assert check([*history, Operation("read", None, {1, 3}, 4, 5)], "register").is_violated


@pytest.mark.parametrize(
    ("history", "model", "complaint"),
    [
        ([], "tree", "unknown; known are log"),
        ([Operation("push", 1, None, 0, 1)], "fifo-queue", "no function 'push'"),
        ([Operation("write", 1, None, 2, 1)], "register", "operation 0 completes at 1, before"),
        ([Operation("write", 1, None, 0.5, 1)], "register", "times are integers"),  # type: ignore[arg-type]
        ([Operation("txn", [("x", 1, 2)], None, 0, 1)], "multi-register", "multi-register: txn of"),
        ([Operation("enqueue", bytearray(b"x"), None, 0, 1)], "fifo-queue", "fifo-queue: enqueue of"),
        ([Operation("write", TOO_DEEP, None, 0, 1)], "register", "more than 100 lists"),
        ([{"function": "read"}], "register", "no Operation"),
        ([{"function": "read"}], "log", "has no outcome, invoke_ns, key"),
        (
            [{"function": "tail", "key": "a/0", "outcome": "ok", "invoke_ns": 1}],
            "log",
            "outcome 'ok', complete_ns",
        ),
        (
            [{"function": "write", "key": "a/0", "outcome": "info", "invoke_ns": 1}],
            "log",
            "function 'write', unknown",
        ),
        ([{"function": "tail", "key": None, "outcome": "info", "invoke_ns": 1}], "log", "key None"),
        ([ROW | {"values": "u-1"}], "log", "operation 0: values 'u-1' are no list of texts"),
        ([ROW | {"first_offset": None}], "log", "values and their first_offset go together"),
        ([ROW | {"values": [], "first_offset": None}], "log", "an append of no values"),
        ([ROW | {"first_offset": -1}], "log", "first_offset -1 is no offset"),
        ([ROW | {"first_offset": True}], "log", "first_offset True is no offset"),
        ([ROW | {"offsets": [0, 1]}], "log", "offsets .* are not those of its values"),
        ([ROW | {"offsets": [1]}], "log", "offsets .* are not those of its values"),
        ([ROW | {"key": "a/"}], "log", "'a/' names no queue"),
        ([ROW | {"op": "x"}], "log", "op 'x' is no integer"),
        ([ROW | {"function": "tail", "first_offset": None, "values": None}], "log", "a tail without offset"),
        ([ROW | {"function": "commit_offset", "values": None}], "log", "a commit_offset without offset"),
    ],
)
def test_what_cannot_be_judged_is_explained(history: list[Any], model: str, complaint: str) -> None:
    with pytest.raises(HistoryError, match=complaint):
        check(history, model)


def test_an_operation_that_failed_may_say_when() -> None:
    row = {"function": "append", "key": "a/0", "outcome": "fail", "invoke_ns": 1, "values": ["x"]}
    tail = {"function": "tail", "key": "a/0", "outcome": "ok", "invoke_ns": 1, "complete_ns": 2, "offset": 0}
    for complete_ns in (None, 5):
        assert check([row | {"complete_ns": complete_ns}, tail]).is_linearizable


def test_numbers_and_lists_may_be_those_of_numpy() -> None:
    read: dict[str, Any] = {"function": "read", "key": np.str_("a/0"), "outcome": "ok", "filtered": np.False_}
    read |= {
        "invoke_ns": np.int64(3),
        "complete_ns": np.uint64(4),
        "offset": np.int32(0),
        "first_offset": np.int64(0),
    }
    read |= {"offsets": np.array([0, 1]), "values": np.array(["u-1", "u-2"]), "next_offset": np.int64(2)}
    append = ROW | {"first_offset": np.int64(0), "op": np.int64(7)}
    other = ROW | {"values": [np.str_("u-2")], "first_offset": np.int64(1), "offsets": [np.int64(1)]}
    judgement = check([append, other, read], order=True)
    assert judgement.is_linearizable
    assert judgement.order == (7, 1, 2)
    assert check([append, other, read | {"values": np.array(["u-1", "u-3"])}]).is_violated
    with pytest.raises(HistoryError, match="first_offset True is no offset"):
        check([append | {"first_offset": np.True_}])
    times = Operation("write", 1, None, np.int64(0), np.int64(1))  # type: ignore[arg-type]
    assert check([times], "register").is_linearizable


@pytest.mark.spark
def test_a_data_frame_is_judged_by_its_session(spark: SparkSession) -> None:
    rows = [
        ("append", "a/0", "ok", 0, 1, 0, None, ["x"], 1),
        ("tail", "a/0", "ok", 2, 3, None, 0, None, 2),
    ]
    frame = spark.createDataFrame(
        rows,
        "function STRING, key STRING, outcome STRING, invoke_ns BIGINT, complete_ns BIGINT, first_offset BIGINT, "
        "offset BIGINT, values ARRAY<STRING>, op BIGINT",
    )
    judgement = check(frame, minimal=True)
    assert judgement.verdict.counts == {"stale-tail": 1}
    assert judgement.minimal == (1, 2)
    with pytest.raises(HistoryError, match="no column op"):
        check(frame.drop("op"))
    with pytest.raises(HistoryError, match="times are integers, and invoke_ns is of type timestamp"):
        check(frame.selectExpr("* EXCEPT (invoke_ns)", "timestamp_seconds(invoke_ns) AS invoke_ns"))
    for name, kind in (("op", "STRING"), ("offset", "DOUBLE"), ("first_offset", "DECIMAL(9, 1)")):
        with pytest.raises(HistoryError, match=f"{name} is of type .*, not bigint"):
            check(frame.withColumn(name, frame[name].cast(kind)))
    with pytest.raises(HistoryError, match="values is of type string, not array<string>"):
        check(frame.selectExpr("* EXCEPT (values)", "values[0] AS values"))


def is_refused(row: dict[str, Any]) -> bool:
    try:
        check_operation(0, row)
    except HistoryError:
        return True
    return False


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("ansi", ["true", "false"])
def test_a_data_frame_is_refused_for_what_mappings_are(spark: SparkSession, ansi: str) -> None:
    """Without ANSI the size of NULL is -1."""
    rng = random.Random(1)
    choices: dict[str, list[Any]] = {
        "client": ["c"],
        "function": [*schema.FUNCTIONS, "append", "append", "read", "read", "poll", "write", None],
        "key": ["t/0"] * 8 + ["t/", None],
        "outcome": ["ok"] * 8 + ["fail", "info", "OK", None],
        "invoke_ns": [1] * 20 + [3, None],
        "complete_ns": [2] * 9 + [None],
        "offset": [0, 1, 2, None, -1],
        "filtered": [True, False, None],
        "first_offset": [0, 0, 0, 1, None, None, -1],
        "offsets": [None] * 6 + [[0], [0, 2], [1, 0], [], [0, None], [-1]],
        "values": [["a"], ["a"], ["a", "b"], [None], [], None],
        "next_offset": [0, 1, None, -1],
        "end_offset": [None] * 4 + [1, -1],
    }
    rows = [
        dict.fromkeys(schema.OPERATION_NAMES)
        | {name: rng.choice(listed) for name, listed in choices.items()}
        | {"op": number if rng.random() < 0.95 else None, "reason": str(number)}
        for number in range(4000)
    ]
    frame = spark.createDataFrame(
        [tuple(row[name] for name in schema.OPERATION_NAMES) for row in rows], schema.OPERATIONS
    )
    setting, before = "spark.sql.ansi.enabled", spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set(setting, ansi)
    try:
        refused = {row["reason"] for row in frame.where(_IS_NO_OPERATION).collect()}
        assert refused == {row["reason"] for row in rows if is_refused(row)}
        assert 300 < len(refused) < 3900
        with pytest.raises(HistoryError, match="operation "):
            check(frame)
    finally:
        spark.conf.set(setting, str(before))


@pytest.mark.spark
def test_the_table_of_a_trace_is_judged_as_its_files_are(spark: SparkSession, tmp_path: Path) -> None:
    """An append that was never answered is no row of the kind `operation`, and explains what stands in the queue."""
    with (tmp_path / "a.trace").open("wb") as file:
        writer = TraceWriter(file.write, TraceHeader("client", "a", "one", 1))
        writer.invoke_append(1, "a", "t/0", ("unanswered",))
        number = writer.invoke_append(2, "b", "t/0", ("x",))
        writer.ok_append(3, number, 1)
        number = writer.invoke_tail(4, "a", "t/0")
        writer.ok_tail(5, number, 2)
        writer.flush()
    judgement = check(spark.read.format("trivet_trace").load(str(tmp_path)), order=True)
    assert judgement.is_linearizable
    assert judgement.steps is not None
    assert [(step.function, step.value) for step in judgement.steps] == [
        ("append", "unanswered"),
        ("append", "x"),
        ("tail", None),
    ]
    with (tmp_path / "b.trace").open("wb") as file:
        writer = TraceWriter(file.write, TraceHeader("client", "b", "one", 1))
        number = writer.invoke_tail(6, "c", "t/0")
        writer.ok_tail(7, number, 1)
        writer.flush()
    judgement = check(spark.read.format("trivet_trace").load(str(tmp_path)), minimal=True)
    assert judgement.verdict.counts == {"stale-tail": 1}
    assert judgement.minimal is not None
    assert len(judgement.minimal) == 2


def test_queues_that_contradict_each_other_have_a_minimal_violation() -> None:
    """Either can have the append that left its queue to the broker; each read is possible without the other one."""
    rows = [
        {"function": "append", "key": "t/", "outcome": "info", "invoke_ns": 0, "values": ["a"]},
        *(
            {"function": "read", "key": key, "outcome": "ok", "invoke_ns": 2, "complete_ns": 3, "offset": 0}
            | {"first_offset": 0, "values": ["a"], "next_offset": 1}
            for key in ("t/0", "t/1")
        ),
    ]
    judgement = check(rows, minimal=True)
    assert (judgement.is_violated, judgement.minimal) == (True, (1, 2))

"""The search agrees with trying every order, for every model, and ends within its bounds."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.tools.cli import run
from spark_analysis.checking.models import MODELS, Model
from spark_analysis.checking.search import Budget, search
from spark_analysis.checking.verdict import LINEARIZABLE, UNDECIDED, VIOLATED
from spark_analysis.importing.calls import Call

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_linearizable(calls: Sequence[Call], model: Model) -> bool:
    """By trying every order: no reduction, no look ahead, no links."""
    seen: set[tuple[Any, int]] = set()

    def may_come(number: int, done: int) -> bool:
        return not done >> number & 1 and all(
            done >> other & 1 or call.complete_ns is None or call.complete_ns >= calls[number].invoke_ns
            for other, call in enumerate(calls)
        )

    def explore(state: Any, done: int) -> bool:
        if all(done >> number & 1 for number, call in enumerate(calls) if call.complete_ns is not None):
            return True
        if (state, done) in seen:
            return False
        seen.add((state, done))
        return any(
            explore(following, done | 1 << number)
            for number, call in enumerate(calls)
            if may_come(number, done)
            for following in model.step(
                state, call.function, call.argument, call.result, call.complete_ns is not None
            )
        )

    return explore(model.initial, 0)


few = st.integers(0, 2)
text = st.sampled_from(["a", "b"])
maybe = st.none() | few
pairs = st.tuples(st.sampled_from(["x", "y"]), maybe)
CALLS: dict[str, st.SearchStrategy[tuple[str, Any, Any]]] = {
    "register": st.tuples(st.just("write"), few, st.none()) | st.tuples(st.just("read"), st.none(), maybe),
    "cas-register": st.tuples(st.just("write"), few, st.none())
    | st.tuples(st.just("read"), st.none(), maybe)
    | st.tuples(st.just("cas"), st.tuples(few, few), st.booleans()),
    "multi-register": st.lists(
        st.tuples(st.sampled_from(["r", "w"]), st.sampled_from(["x", "y"]), few), min_size=1, max_size=2
    ).map(
        lambda actions: (
            "txn",
            tuple((action, key, None if action == "r" else value) for action, key, value in actions),
            tuple(actions),
        )
    ),
    "mutex": st.sampled_from([("acquire", None, None), ("release", None, None)]),
    "key-value": st.tuples(st.sampled_from(["put", "append"]), text, st.none())
    | st.tuples(st.just("get"), st.none(), st.sampled_from(["", "a", "b", "ab", "ba", "aa", "aba"])),
    "set": st.tuples(st.sampled_from(["add", "remove"]), few, st.none())
    | st.tuples(st.just("contains"), few, st.booleans())
    | st.tuples(st.just("read"), st.none(), st.lists(few, unique=True).map(tuple)),
    "stack": st.tuples(st.just("push"), few, st.none()) | st.tuples(st.just("pop"), st.none(), maybe),
    "priority-queue": st.tuples(st.just("enqueue"), few, st.none())
    | st.tuples(st.just("dequeue"), st.none(), maybe),
    "fifo-queue": st.tuples(st.just("enqueue"), few, st.none())
    | st.tuples(st.just("dequeue"), st.none(), maybe),
}


@st.composite
def histories(draw: st.DrawFn, model: str) -> list[Call]:
    calls = []
    for op in range(draw(st.integers(1, 8))):
        function, argument, result = draw(CALLS[model])
        begin, lasts = draw(st.integers(0, 24)), draw(st.none() | st.integers(0, 10))
        complete_ns = None if lasts is None else begin + lasts
        calls.append(Call(op, function, argument, result if lasts is not None else None, begin, complete_ns))
    return calls


@pytest.mark.parametrize("name", MODELS)
@given(data=st.data())
def test_every_model_agrees_with_trying_every_order(name: str, data: st.DataObject) -> None:
    calls, model = data.draw(histories(name)), MODELS[name]
    expected = LINEARIZABLE if is_linearizable(calls, model) else VIOLATED
    found = model.decide(calls)
    assert found.verdict == expected
    # What the models know besides their step function decides nothing.
    assert search(calls, model.step, model.initial).verdict == expected
    if expected == LINEARIZABLE:
        explained = [calls[op] for op in found.prefix]
        assert {call.op for call in calls if call.complete_ns is not None} <= set(found.prefix)
        assert all(
            later.complete_ns is None or later.complete_ns >= earlier.invoke_ns
            for earlier, later in itertools.combinations(explained, 2)
        )


def exploding(size: int) -> list[Call]:
    """So many ways to fill a queue at once, one value twice; and the last two are taken out in the wrong order."""
    filled = [
        Call(number, "enqueue", max(1, number), None, number, 1000 if number < size - 2 else number + 1000)
        for number in range(size)
    ]
    filled[-2:] = [replace(one, invoke_ns=one.complete_ns or 0) for one in filled[-2:]]
    order = [*range(size - 2), size - 1, size - 2]
    taken = [
        Call(size + place, "dequeue", None, max(1, number), 2000 + place, 2000 + place)
        for place, number in enumerate(order)
    ]
    return filled + taken


def test_configurations_are_bounded() -> None:
    assert MODELS["fifo-queue"].decide(exploding(4)).verdict == VIOLATED
    found = MODELS["fifo-queue"].decide(exploding(40), maximum_configurations=1000)
    assert (found.verdict, found.bound, found.configurations) == (UNDECIDED, "configurations", 1001)


def test_memory_is_bounded() -> None:
    """What is counted is no less than what Python takes."""
    calls = exploding(60)
    MODELS["fifo-queue"].decide(calls, maximum_configurations=10)
    bound = 8 << 20
    tracemalloc.start()
    try:
        found = MODELS["fifo-queue"].decide(calls, maximum_bytes=bound, maximum_configurations=10**9)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found.verdict, found.bound) == (UNDECIDED, "memory")
    assert bound / 4 < peak < bound * 1.1


def test_time_is_bounded() -> None:
    asked = itertools.count()
    found = MODELS["fifo-queue"].decide(exploding(60), is_over=lambda: next(asked) >= 20)
    assert (found.verdict, found.bound) == (UNDECIDED, "time")
    assert next(asked) == 21
    assert found.configurations < 21 * 256


def test_looks_ahead_count_for_the_clock() -> None:
    """Where the search stalls, a configuration has a thousand reads looked at, each among all that may come before."""
    model, looked, asked = MODELS["register"], itertools.count(), itertools.count()
    calls = [Call(number, "write", number % 8, None, 0, 10**6) for number in range(24)]
    # The reads can each be had, but not one after the other.
    for number in range(200):
        calls.append(Call(100 + number, "read", None, number % 8, 10 * number, 10 * number + 1))

    def reaches(state: Any, read: Call, before: Sequence[Call]) -> bool:
        next(looked)
        return model.reaches(state, read, before)

    found = search(
        *(calls, model.step, model.initial),
        is_read=model.is_read,
        reaches=reaches,
        maximum_configurations=3000,
        is_over=lambda: next(asked) < 0,
    )
    assert found.bound == "configurations"
    assert next(asked) > next(looked) // 256


def test_a_long_good_history_is_quick() -> None:
    """Its configurations are as many as its operations: none is tried in vain."""
    size = 20_000
    calls = []
    for number in range(size):
        begin = 10 * number
        if number % 2:
            calls.append(Call(number, "read", None, number - 1, begin, begin + 3))
        else:
            calls.append(Call(number, "write", number, None, begin, begin + 15))
    found = MODELS["register"].decide(calls)
    assert found.verdict == LINEARIZABLE
    assert found.configurations <= size


def test_unknown_calls_that_are_alike_are_not_tried_in_every_order() -> None:
    unknown = [Call(number, "write", 1, None, number, None) for number in range(40)]
    reads = [Call(100 + number, "read", None, 2, 1000 + number, 1000 + number) for number in range(3)]
    found = MODELS["register"].decide([*unknown, *reads])
    assert found.verdict == VIOLATED
    assert found.configurations < 100


def write_exploding(path: Path, size: int) -> None:
    """Beside it a key that is simply good, and lines that fit no model."""
    lines: list[tuple[int, Any, str, str, str, Any]] = []
    for call in exploding(size):
        lines.append((call.invoke_ns, call.op, "invoke", call.function, "hard", call.argument))
        value = call.argument if call.function == "enqueue" else call.result
        assert call.complete_ns is not None
        lines.append((call.complete_ns, call.op, "ok", call.function, "hard", value))
    lines += [(1, "e", kind, "enqueue", "easy", 1) for kind in ("invoke", "ok")]
    lines += [(9, "e", "invoke", "dequeue", "easy", None), (10, "e", "ok", "dequeue", "easy", 1)]
    lines.sort(key=lambda line: line[0])
    names = ("time", "process", "type", "f", "key", "value")
    path.write_text("".join(json.dumps(dict(zip(names, line, strict=True))) + "\n" for line in lines))


@pytest.mark.spark
@pytest.mark.slow
def test_one_hard_key_costs_its_own_verdict_only(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_analysis.checking import keyed

    path = tmp_path / "hard.jsonl"
    write_exploding(path, 30)
    budget = Budget(memory_bytes=1 << 20)
    (verdict,) = keyed.judge_files(spark, [str(path)], "jsonl", "fifo-queue", budget)
    assert verdict.verdict == UNDECIDED
    assert verdict.facts["keys"] == 2
    (undecided,) = verdict.undecided
    assert undecided.startswith("hard: ")
    assert "(memory)" in undecided
    # More operations than a task should hold never reach one.
    monkeypatch.setattr(keyed, "MOST_OPERATIONS_OF_A_KEY", 50)
    (verdict,) = keyed.judge_files(spark, [str(path)], "jsonl", "fifo-queue", budget)
    assert verdict.undecided == ("hard: 60 operations are more than a search is begun with",)
    assert verdict.operations == 62


ETCD: Final = """\
INFO  jepsen.util - 0\t:invoke\t:write\t3
INFO  jepsen.util - 0\t:ok\t:write\t3
INFO  jepsen.util - 1\t:invoke\t:read\tnil
INFO  jepsen.util - 1\t:ok\t:read\tnil
"""
KNOSSOS: Final = """\
{:process 0, :type :invoke, :f :write, :value 3}
{:process 0, :type :ok, :f :write, :value 3}
{:process 1, :type :invoke, :f :read, :value nil}
{:process 1, :type :ok, :f :read, :value nil}
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "good", "bad"),
    [
        ("jepsen-etcd", ETCD.replace("ok\t:read\tnil", "ok\t:read\t3"), ETCD),  # absent, after a write
        ("knossos", KNOSSOS, KNOSSOS.replace(":ok, :f :read, :value nil", ":ok, :f :read, :value 4")),
    ],
)
def test_a_read_of_nil_from_the_command_line(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    format: str,
    good: str,
    bad: str,
) -> None:
    """Absent for etcd's logs, any value for Knossos."""
    files = {"good": good, "bad": bad}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    paths = [tmp_path / name for name in files]
    assert analyzed(capsys, format, "cas-register", paths) == (1, [LINEARIZABLE, VIOLATED])


def analyzed(
    capsys: pytest.CaptureFixture[str], format: str, model: str, paths: list[Path], *options: str
) -> tuple[int, list[str]]:
    """Exit code and verdicts of ``trivet analyze``, in the session of this process."""
    arguments = ["analyze", "--json", "--format", format, "--model", model, *options, *map(str, paths)]
    code = run(arguments)
    printed = capsys.readouterr()
    assert printed.out, printed.err
    return code, [one["verdict"] for one in json.loads(printed.out)["histories"]]

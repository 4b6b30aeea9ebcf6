"""Other systems' histories: formats, pairing, models, and what is quarantined."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_analysis.checking.keyed import complaint_of
from spark_analysis.checking.models import MODELS
from spark_analysis.checking.proofs import damage_facts
from spark_analysis.checking.search import search
from spark_analysis.checking.verdict import (
    LINEARIZABLE,
    UNDECIDED,
    VIOLATED,
    Anomaly,
    Verdict,
    corrected_for_gaps,
)
from spark_analysis.importing.arrow import arrow_table
from spark_analysis.importing.calls import Call, KeyedCall, calls
from spark_analysis.importing.edn import EdnError, read_all
from spark_analysis.importing.formats import parse
from spark_analysis.importing.lines import OVERLAPPING_LINE, STRAY_LINE, BadLine, Line
from spark_analysis.importing.schema import OPERATION_NAMES, OPERATIONS
from spark_analysis.light import judge_keyed
from tests.examples import examples
from tests.spark_analysis.notation import log_operations

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ETCD_GOOD = """\
INFO  jepsen.util - 0\t:invoke\t:write\t3
INFO  jepsen.util - 1\t:invoke\t:read\tnil
INFO  jepsen.util - 1\t:ok\t:read\tnil
INFO  jepsen.util - 0\t:ok\t:write\t3
INFO  jepsen.util - 2\t:invoke\t:cas\t[4 5]
INFO  jepsen.util - 2\t:fail\t:cas\t[4 5]
INFO  jepsen.util - 3\t:invoke\t:cas\t[3 7]
INFO  jepsen.util - 3\t:info\t:cas\t:timed-out
INFO  jepsen.util - 1\t:invoke\t:read\tnil
INFO  jepsen.util - 1\t:ok\t:read\t7
"""


def verdicts(format: str, text: str, model: str) -> dict[str, str]:
    by_key: dict[str, list[Call]] = defaultdict(list)
    for one in calls(format, parse(format, text.splitlines(keepends=True))):
        assert isinstance(one, KeyedCall), one
        by_key[one.key].append(one.call)
    return {
        key: search(found, MODELS[model].step, MODELS[model].initial).verdict for key, found in by_key.items()
    }


def test_an_etcd_log() -> None:
    assert verdicts("jepsen-etcd", ETCD_GOOD, "cas-register") == {"register": LINEARIZABLE}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("- 1\t:ok\t:read\t7", "- 1\t:ok\t:read\t4"),  # nobody wrote it
        ("- 1\t:ok\t:read\t7", "- 1\t:ok\t:read\tnil"),  # absent, after a write had ended
        ("[4 5]", "[3 5]"),  # a compare that failed though the value was there
    ],
)
def test_a_bent_etcd_log(old: str, new: str) -> None:
    assert verdicts("jepsen-etcd", ETCD_GOOD.replace(old, new), "cas-register") == {"register": VIOLATED}


def test_nil_is_any_value_for_knossos() -> None:
    text = (
        "{:process 0, :type :invoke, :f :write, :value 1}\n{:process 0, :type :ok, :f :write, :value 1}\n"
        "{:process 0, :type :invoke, :f :read, :value nil}\n{:process 0, :type :ok, :f :read, :value nil}\n"
    )
    assert verdicts("knossos", text, "cas-register") == {"": LINEARIZABLE}
    assert verdicts("knossos", text.replace(":read, :value nil}\n", ":read, :value 2}\n"), "register") == {
        "": VIOLATED
    }
    assert verdicts("knossos", f"[{text}]", "cas-register") == {"": LINEARIZABLE}


VECTOR = [
    f'{{:process {process}, :type {kind}, :f :write, :value ["x\\n]" {process}]}}\n'
    for process in range(3)
    for kind in (":invoke", ":ok")
]


def knossos(*operations: str) -> str:
    return "".join(f"{{:process {one}}}\n" for one in operations)


def test_values_with_keys_are_read_as_knossos_reads_them() -> None:
    """Jepsen's independent keys: every value is [key value]; the keys are judged apart."""
    text = knossos(
        *("0, :type :invoke, :f :write, :value [1 3]", "0, :type :ok, :f :write, :value [1 3]"),
        *("1, :type :invoke, :f :read, :value [2 nil]", "1, :type :ok, :f :read, :value [2 nil]"),
        *("2, :type :invoke, :f :cas, :value [1 [3 4]]", "2, :type :info, :f :cas, :value nil"),
        *("3, :type :invoke, :f :cas, :value [2 [5 6]]", "3, :type :fail, :f :cas, :value [2 [5 6]]"),
        *("1, :type :invoke, :f :read, :value [1 nil]", "1, :type :fail, :f :read, :value [1 nil]"),
        *("1, :type :invoke, :f :read, :value [1 nil]", "1, :type :ok, :f :read, :value [1 4]"),
    )
    assert verdicts("knossos", text, "cas-register") == {"1": LINEARIZABLE}
    late = text.replace("[1 4]", "[1 5]")
    assert verdicts("knossos", late, "cas-register") == {"1": VIOLATED}
    (bad,) = [
        one
        for one in parse(
            "knossos", f"{text}{{:process 9, :type :invoke, :f :write, :value 3}}".splitlines(True)
        )
        if isinstance(one, BadLine)
    ]
    assert "is not [key value]" in bad.reason


@pytest.mark.parametrize(
    "first",
    [
        "0, :type :invoke, :f :read, :value nil",
        "0, :type :invoke, :f :cas, :value [1 2]",
        "0, :type :invoke, :f :write, :value 3",
        '0, :type :invoke, :f :txn, :value [["r" 1 nil] ["w" 2 5]]',
    ],
)
def test_values_without_keys_stay_whole(first: str) -> None:
    text = knossos(first, "1, :type :invoke, :f :write, :value [1 3]")
    assert [one.key for one in parse("knossos", text.splitlines(True)) if isinstance(one, Line)] == ["", ""]


def test_a_vector_that_was_cut_is_read_up_to_there() -> None:
    """Wherever it ends: what was whole counts, and where the rest begins is told."""
    text = "; a history\n[" + "".join(VECTOR) + "] ; its end\n"
    whole = list(parse("knossos", text.splitlines(keepends=True)))
    assert [line.number for line in whole] == [2, 3, 4, 5, 6, 7]
    for length in range(text.index("[") + 1, text.index("] ; its end")):
        *lines, bad = parse("knossos", text[:length].splitlines(keepends=True))
        count = text[:length].count("}")
        rest = text[:length].rpartition("}")[2] if count else text[text.index("[") + 1 : length]
        assert lines == whole[:count]
        assert isinstance(bad, BadLine)
        assert bad.number == (count + 2 if rest.strip() else max(2, count + 1))
        assert bad.is_cut
        assert "the file was cut" in bad.reason


@pytest.mark.parametrize("wrong", ["{:process 0]\n", "}\n", "{:process}\n"])
def test_a_vector_is_read_up_to_what_is_no_edn(wrong: str) -> None:
    *lines, bad = parse("knossos", ["[", *VECTOR[:3], wrong, *VECTOR[3:], "]"])
    assert lines == list(parse("knossos", VECTOR[:3]))
    assert isinstance(bad, BadLine)
    assert bad.number == 4
    assert "was read" in bad.reason


@pytest.mark.parametrize(
    ("format", "line"),
    [
        ("knossos", VECTOR[0]),
        ("porcupine-kv", VECTOR[0]),
        ("jepsen-etcd", "INFO  jepsen.util - 1\t:ok\t:read\t34\n"),
        ("jepsen-etcd", "INFO  jepsen.util - 1\t:ok\t:cas\t[34 5]\n"),
        ("jsonl", '{"time": 2, "process": "p", "type": "ok", "f": "append", "key": "t/0", "value": 34}\n'),
    ],
)
def test_a_last_line_without_its_end_is_a_cut(format: str, line: str) -> None:
    """And no bad line; of a number without an end nobody knows whether digits are missing."""
    (kept,) = parse(format, [line])
    for length in range(line.index("read") if "read" in line else 5, len(line) - 2):
        first, bad = parse(format, [line, line[:length]])
        assert first == kept
        assert isinstance(bad, BadLine)
        assert (bad.number, bad.is_cut) == (2, True), line[:length]
        assert "the file was cut" in bad.reason
        if format != "jepsen-etcd":
            _, bad = parse(format, [line, line[:length] + "\n"])
            assert isinstance(bad, BadLine)
            assert not bad.is_cut


def test_truth_values_are_no_numbers() -> None:
    """Python calls True and 1 equal: as values, as what a compare expects, and as keys of registers."""

    def judge(model: str, *operations: tuple[str, Any, Any]) -> str:
        lines = [
            json.dumps({"time": at, "process": 0, "type": kind, "f": function, "key": "k", "value": value})
            for number, (function, asked, told) in enumerate(operations)
            for at, kind, value in ((2 * number, "invoke", asked), (2 * number + 1, "ok", told))
        ]
        (verdict,) = verdicts("jsonl", "\n".join(lines) + "\n", model).values()
        return verdict

    for value, other in (
        (True, 1),
        (1, True),
        (False, 0),
        (0, False),
        ([True], [1]),
        ({"a": 0}, {"a": False}),
    ):
        assert judge("register", ("write", value, None), ("read", None, value)) == LINEARIZABLE
        assert judge("register", ("write", value, None), ("read", None, other)) == VIOLATED
        compare = ("cas", [value, 5], [value, 5])
        assert judge("cas-register", ("write", value, None), compare) == LINEARIZABLE
        assert judge("cas-register", ("write", other, None), compare) == VIOLATED
        assert judge("set", ("add", value, None), ("read", None, [other])) == VIOLATED
        assert judge("set", ("add", value, None), ("add", other, None), ("read", None, [other])) == VIOLATED
        assert judge("fifo-queue", ("enqueue", value, None), ("dequeue", None, other)) == VIOLATED
    for key, other in ((True, 1), (0, False)):
        write, read = [["w", key, "x"]], [["r", other, "x"]]
        assert judge("multi-register", ("txn", write, write), ("txn", read, read)) == VIOLATED
        read = [["r", key, "x"]]
        assert judge("multi-register", ("txn", write, write), ("txn", read, read)) == LINEARIZABLE


@pytest.mark.parametrize(
    ("written", "read", "verdict"),
    [
        ("{true 1 1 2}", "{1 2 true 1}", LINEARIZABLE),
        ("{true 1 1 2}", "{1 2}", VIOLATED),  # to Python true and 1 are one key
        ('{1 "a"}', '{"1" "a"}', VIOLATED),
        ("#{1 true :a}", "#{:a 1 true}", LINEARIZABLE),  # a set has no order
        ("#{1 2}", "#{1 3}", VIOLATED),
        ("[1 2]", "[2 1]", VIOLATED),
    ],
)
def test_maps_and_sets_as_values(written: str, read: str, verdict: str) -> None:
    text = (
        f"{{:process 0, :type :invoke, :f :write, :value {written}}}\n"
        f"{{:process 0, :type :ok, :f :write, :value {written}}}\n"
        "{:process 0, :type :invoke, :f :read, :value nil}\n"
        f"{{:process 0, :type :ok, :f :read, :value {read}}}\n"
    )
    assert verdicts("knossos", text, "register") == {"": verdict}


def test_keys_are_judged_apart() -> None:
    text = "".join(
        f'{{:process {key}, :type {kind}, :f {function}, :key "{key}", :value {value}}}\n'
        for key, seen in ((0, '"xy"'), (1, '"yx"'))
        for kind, function, value in (
            (":invoke", ":append", '"x"'),
            (":ok", ":append", '"x"'),
            (":invoke", ":append", '"y"'),
            (":ok", ":append", '"y"'),
            (":invoke", ":get", "nil"),
            (":ok", ":get", seen),
        )
    )
    assert verdicts("porcupine-kv", text, "key-value") == {"0": LINEARIZABLE, "1": VIOLATED}


A, B = ("enqueue", "a", None), ("enqueue", "b", None)


@pytest.mark.parametrize(
    ("model", "good", "bad"),
    [
        ("fifo-queue", [A, B, ("dequeue", None, "a")], [A, B, ("dequeue", None, "b")]),
        ("fifo-queue", [("dequeue", None, None), A], [A, ("dequeue", None, None)]),
        (
            "mutex",
            [("acquire", None, None), ("release", None, None)],
            [("acquire", None, None), ("acquire", None, None)],
        ),
        (
            "set",
            [("add", 1, None), ("add", 2, None), ("read", None, (2, 1))],
            [("add", 1, None), ("read", None, ())],
        ),
        ("register", [("write", 1, None), ("read", None, 1)], [("write", 1, None), ("read", None, None)]),
        (
            "multi-register",
            [("txn", (("w", "x", 1), ("w", "y", 2)), None), ("txn", (("r", "y", None),), (("r", "y", 2),))],
            [("txn", (("w", "x", 1),), None), ("txn", (("r", "x", None),), (("r", "x", 3),))],
        ),
    ],
)
def test_models_in_pairs(model: str, good: list[Any], bad: list[Any]) -> None:
    def judge(steps: list[Any]) -> str:
        listed = [Call(n, f, a, r, 10 * n, 10 * n + 5) for n, (f, a, r) in enumerate(steps)]
        return search(listed, MODELS[model].step, MODELS[model].initial).verdict

    assert judge(good) == LINEARIZABLE
    assert judge(bad) == VIOLATED


EDN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(codec="ascii", min_codepoint=32), max_size=8),
    lambda inner: st.lists(inner, max_size=4),
)


def as_edn(value: Any) -> str:
    if isinstance(value, list):
        return "[" + " ".join(as_edn(one) for one in value) + "]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return (
        {None: "nil", True: "true", False: "false"}.get(value, str(value))
        if type(value) is not int
        else str(value)
    )


@settings(deadline=None)
@given(st.lists(EDN, max_size=4))
def test_edn_comes_back(values: list[Any]) -> None:
    assert list(read_all(" ".join(as_edn(value) for value in values))) == values


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r'"\u00e4"', "ä"),
        (r'"\\u00e4"', r"\u00e4"),
        (r'"\ud83d\ude00 \n\f"', "\U0001f600 \n\f"),
        ("1e5", 100000),
        ("-2E-1", -0.2),
        ("1.5e3M", 1500),
        ("3M", 3),
        (":1e5", "1e5"),
        ("e5", "e5"),
        ("1e", "1e"),
    ],
)
def test_characters_and_numbers_of_edn(written: str, read: object) -> None:
    assert list(read_all(written)) == [read]


@pytest.mark.parametrize(
    "text", ["{:a", "]", "{:a 1 :b}", '"open', "[1 2}", r'"\u12"', r'"\ud83d"', r'"\ude00\ud83d"']
)
def test_bad_edn_is_refused(text: str) -> None:
    with pytest.raises(EdnError):
        list(read_all(text))


def test_bad_json_lines_are_located() -> None:
    lines = [
        "nonsense\n",
        '{"time": 1, "process": "p", "type": "invoke", "f": "append", "key": "t/0", "value": "a"}\n',
        '{"time": 2, "process": "p", "type": "ok", "f": "append", "key": "t/0", "value": -4}\n',
        '{"time": "3", "process": "p", "type": "ok", "f": "append"}\n',
        '{"time": 4, "process": "q", "type": "ok", "f": "read", "value": []}\n',
        '{"time": 5, "process": "r", "type": "invoke", "f": "read", "key": "t/0", "value": 0}\n',
    ]
    rows = list(log_operations(parse("jsonl", lines)))
    assert [row.number for row in rows if isinstance(row, BadLine)] == [1, 3, 4, 5]
    left = [dict(zip(OPERATION_NAMES, row, strict=True)) for row in rows if not isinstance(row, BadLine)]
    # The append's answer is what is bad: whether it had effect, nobody knows.
    assert [(one["function"], one["outcome"], one["complete_ns"]) for one in left] == [
        ("append", "info", None),
        ("read", "info", None),
    ]


@pytest.mark.spark
@pytest.mark.slow
def test_many_files_in_one_job(spark: SparkSession, tmp_path: Path) -> None:
    from spark_analysis.checking.keyed import judge_files

    paths = []
    begun, ended = (f"INFO  jepsen.util - 0\t:{kind}\t:write\t3\n" for kind in ("invoke", "ok"))
    for name, text in (
        ("good", ETCD_GOOD),
        ("bad", ETCD_GOOD.replace("read\t7", "read\t4")),
        ("empty", ""),
        ("several clients of one name", 2 * begun + 2 * ended),
        ("damaged", "INFO  jepsen.util - ?\n" * 1100),
        ("damaged in one place", ETCD_GOOD.replace("read\t7", "read\t4") + "INFO  jepsen.util - ?\n"),
    ):
        path = tmp_path / f"{name}.log"
        path.write_text(text)
        paths.append(str(path))
    good, bad, empty, several, damaged, doubtful = judge_files(spark, paths, "jepsen-etcd", "cas-register")
    assert (good.verdict, bad.verdict) == (LINEARIZABLE, VIOLATED)
    assert (empty.operations, empty.damage) == (0, ())
    assert [one.facts["mispaired"] for one in (good, bad, several)] == [0, 0, 1]
    assert several.facts["bad_lines"] == 2
    assert good.operations == 5
    (anomaly,) = bad.anomalies
    assert anomaly.kind == "not-linearizable"
    assert anomaly.proof[-1]["result"] == 4
    assert damaged.facts["bad_lines"] == 1100
    assert [one.rpartition(": line ")[2].split(":")[0] for one in damaged.damage] == [
        str(number) for number in range(1, 21)
    ]
    # What could not be read of one file is no matter of another one.
    assert (doubtful.verdict, len(doubtful.damage), doubtful.facts["bad_lines"]) == (VIOLATED, 1, 1)
    assert corrected_for_gaps(doubtful).verdict == UNDECIDED


def operations_of(*lines: str) -> list[tuple[str, str, int | None]]:
    """(outcome, value, base offset) of appends from JSON lines."""
    rows = [row for row in log_operations(parse("jsonl", lines)) if not isinstance(row, BadLine)]
    named = [dict(zip(OPERATION_NAMES, row, strict=True)) for row in rows]
    return [(row["outcome"], row["values"][0], row["first_offset"]) for row in named]


def test_a_completion_behind_lines_that_are_bad_may_be_of_another_operation() -> None:
    form = '{{"time": {}, "process": "p", "type": "{}", "f": "append", "key": "t/0", "value": {}}}\n'
    first, answer = form.format(1, "invoke", '"a"'), form.format(2, "ok", 0)
    second, other = form.format(3, "invoke", '"b"'), form.format(4, "ok", 1)
    assert operations_of(first, answer, second, other) == [("ok", "a", 0), ("ok", "b", 1)]
    for between in (
        [answer[:20] + "\n", second[:20] + "\n"],
        [answer[:-1] + second],  # the end of the line is what was damaged
        [answer.replace("2", '"2"', 1), second.replace("3", '"3"', 1)],
    ):
        assert operations_of(first, *between, other) == [("info", "a", None)]
    # One record of another process, or of this one that is told apart from two, is no reason to doubt.
    assert operations_of(first, other.replace("4", '"4"', 1).replace('"p"', '"q"'), answer) == [
        ("ok", "a", 0)
    ]
    assert operations_of("\ufeff" + first, answer) == [("ok", "a", 0)]


def append_lines(*events: tuple[str, str, Any], key: str = "t/0") -> list[str]:
    """(process, type, value) of lines about appends, one after the other."""
    names = ("time", "process", "type", "value")
    return [
        json.dumps(dict(zip(names, (at, *event), strict=True)) | {"f": "append", "key": key}) + "\n"
        for at, event in enumerate(events)
    ]


def test_an_answer_must_say_which_queue_was_picked() -> None:
    """Otherwise the offsets of all queues of a topic would be those of one."""
    asked, told = append_lines(("p", "invoke", "a"), ("p", "ok", 0), key="t/")
    assert operations_of(asked, told) == [("info", "a", None)]
    assert operations_of(asked, told.replace("t/", "t/3")) == [("ok", "a", 0)]
    (bad,) = (one for one in log_operations(parse("jsonl", [asked, told])) if isinstance(one, BadLine))
    assert (bad.number, bad.completes) == (2, True)
    assert "in which queue of t/" in bad.reason
    read = asked.replace("append", "read").replace('"a"', "0")
    (refused,) = log_operations(parse("jsonl", [read]))
    assert isinstance(refused, BadLine)
    assert refused.reason.endswith("t/ names no queue")


def test_values_that_are_no_texts_have_one_form() -> None:
    """A tool that writes numbers as floats has read what was appended; NaN is no JSON, and equal to nothing."""
    for asked, told in ((1, 1.0), (True, True), (None, None), ({"b": 1, "a": 2}, {"a": 2, "b": 1})):
        pair = append_lines(("p", "invoke", [asked]), ("p", "ok", 0))
        seen = [
            line.replace("append", "read")
            for line in append_lines(("p", "invoke", 0), ("p", "ok", [[0, told]]))
        ]
        rows = list(log_operations(parse("jsonl", [*pair, *seen])))
        (one,), (other,) = (
            row[OPERATION_NAMES.index("values")] for row in rows if not isinstance(row, BadLine)
        )
        assert one == other
    (bad,) = parse("jsonl", append_lines(("p", "invoke", float("nan"))))
    assert isinstance(bad, BadLine)
    assert "NaN" in bad.reason


def test_several_clients_of_one_name_are_not_accused() -> None:
    """Whose a completion is nobody knows; a process that merely gave an operation up is judged as always."""
    finding = Anomaly("inconsistent-offset", "t/0", 0)
    for counts, verdict in (
        ({OVERLAPPING_LINE: 1, STRAY_LINE: 1}, UNDECIDED),
        ({OVERLAPPING_LINE: 2}, VIOLATED),
        ({STRAY_LINE: 2}, VIOLATED),
    ):
        facts = damage_facts(counts)
        found = Verdict("x", VIOLATED, 4, {finding.kind: 1}, (finding,), damage=("x: line 2",), facts=facts)
        judged = corrected_for_gaps(found)
        assert judged.verdict == verdict
        assert bool(judged.counts) == bool(judged.anomalies) == (verdict == VIOLATED)
        if verdict == UNDECIDED:
            assert "several clients seem to have one name" in judged.undecided[0]
            assert judged.undecided[1].startswith("t/0: inconsistent-offset at 0; ")
            assert corrected_for_gaps(replace(found, verdict=LINEARIZABLE, counts={})).verdict == UNDECIDED


def test_tags_and_files_of_another_format() -> None:
    tagged = '#jepsen.history.Op{:process 0, :type :invoke, :f :write, :value #{1 2}, :at #inst "2026"}'
    (line,) = parse("knossos", [tagged])
    assert isinstance(line, Line)
    assert (line.process, line.value) == ("0", [1, 2])
    (bad,) = parse("jepsen-etcd", [tagged, "\n"])
    assert isinstance(bad, BadLine)
    assert list(parse("jepsen-etcd", ["\n"])) == []


@pytest.mark.parametrize(
    ("function", "argument", "result"), [("put", 5, None), ("append", 5, None), ("get", None, 5)]
)
def test_what_is_no_text_is_a_bad_line_of_a_key_value_store(
    function: str, argument: Any, result: Any
) -> None:
    """And not the end of a search that meets it later."""
    assert complaint_of(MODELS["key-value"], Call(0, function, argument, result, 1, 2))
    assert (
        complaint_of(MODELS["key-value"], Call(0, function, argument and "5", result and "5", 1, 2)) is None
    )


@pytest.mark.parametrize(
    ("argument", "result"),
    [
        ((("r", "x", None), ("append", "x", 1)), (("r", "x", 5), ("append", "x", 1))),
        ((("r", "x", None), ("w", "x")), (("r", "x", 5), ("w", "x"))),
        ((("r", "x", None), ("r", "y", None)), (("r", "x", 5),)),
        ((("r", "x", None), 5), None),
    ],
)
def test_what_is_no_read_and_no_write_is_a_bad_line_of_a_multi_register(argument: Any, result: Any) -> None:
    """Behind a read that cannot have had its result at the beginning, too; an append is not judged as a read."""
    model = MODELS["multi-register"]
    assert complaint_of(model, Call(0, "txn", argument, result, 1, 2))
    good = Call(0, "txn", (("r", "x", None), ("w", "x", 1)), (("r", "x", 5), ("w", "x", 1)), 1, 2)
    assert complaint_of(model, good) is None


WRITTEN_AND_READ = {
    "jsonl": """\
{"time": 1, "process": 0, "type": "invoke", "f": "write", "value": "v?"}
{"time": 2, "process": 0, "type": "ok", "f": "write", "value": "v?"}
{"time": 3, "process": 0, "type": "invoke", "f": "read", "value": null}
{"time": 4, "process": 0, "type": "ok", "f": "read", "value": "v?"}
""",
    "knossos": """\
{:process 0, :type :invoke, :f :write, :value "v?"}
{:process 0, :type :ok, :f :write, :value "v?"}
{:process 0, :type :invoke, :f :read, :value nil}
{:process 0, :type :ok, :f :read, :value "v?"}
""",
    "jepsen-etcd": """\
INFO  jepsen.util - 0\t:invoke\t:write\tv?
INFO  jepsen.util - 0\t:ok\t:write\tv?
INFO  jepsen.util - 0\t:invoke\t:read\tnil
INFO  jepsen.util - 0\t:ok\t:read\tv?
""",
}


@pytest.mark.parametrize(
    ("format", "lines"),
    [*WRITTEN_AND_READ.items(), ("knossos", f"[{WRITTEN_AND_READ['knossos'].rstrip()}]\n")],
)
def test_what_is_no_utf8_is_a_bad_line(format: str, lines: str, tmp_path: Path) -> None:
    """Bytes that are no text have no value: with a sign in their place different values would be one."""
    path = tmp_path / "history"
    path.write_bytes(lines.encode().replace(b"?", b"\xc3\xa9"))
    found = judge_keyed(path, format, "register", None)
    assert (found.verdict, found.damage) == (LINEARIZABLE, ())
    bent = lines.encode()
    for value in (b"\xfe", b"\xfe", b"\xff"):
        bent = bent.replace(b"?", value, 1)
    path.write_bytes(bent)
    found = judge_keyed(path, format, "register", None)
    assert found.verdict == UNDECIDED
    assert "not UTF-8" in found.damage[0]
    assert "line 1:" in found.damage[0]


@pytest.mark.parametrize("kind", ["[{}]", "#{{{}}}", "{{1 {}}}"])
def test_a_value_in_too_many_lists_is_a_bad_line(kind: str) -> None:
    value = "1"
    for _ in range(2000):
        value = kind.format(value)
    line = f"{{:process 0, :type :invoke, :f :write, :value {value}}}\n"
    (bad,) = calls("knossos", parse("knossos", [line]))
    assert isinstance(bad, BadLine)
    assert "more than 100 lists" in bad.reason


_EDN_PIECES = st.sampled_from(
    [
        *(
            "{",
            "}",
            "[",
            "]",
            "#{",
            "(",
            ")",
            '"',
            ":process",
            ":type",
            ":invoke",
            ":f",
            ":read",
            ":time",
            "nil",
        ),
        *(
            "0",
            "-5",
            str(1 << 63),
            "9" * 5000,
            "1e999",
            " ",
            "\n",
            ";",
            "INFO  jepsen.util - 0\t:ok\t:cas\t[3",
        ),
        *(
            "{:process 0, :type :ok, :f :cas, :value [1 2]}",
            "{:process 0, :type :invoke, :f :cas, :value [1 2]}",
        ),
    ]
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(_EDN_PIECES, max_size=12), st.sampled_from(["knossos", "porcupine-kv", "jepsen-etcd"]))
def test_any_text_becomes_calls_or_is_located(pieces: list[str], format: str) -> None:
    """Nothing that a file of another system holds ends the analysis."""
    lines = "".join(pieces).splitlines(keepends=True)
    for one in calls(format, parse(format, lines)):
        if isinstance(one, BadLine):
            assert one.number >= 1
            assert one.reason
        else:
            assert abs(one.call.invoke_ns) <= 1 << 62


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from(["a", "poll", "send", "t/0", "\ud800", -1, 0, 3, 1 << 70, 0.5])
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)
MICRO = st.lists(
    st.sampled_from(
        [["poll"], ["send", "t/0", "a"], ["send", "t/0", [3, "a"]], ["poll", {"t/0": [[3, "a"]]}]]
    ),
    max_size=3,
)
LINE = st.fixed_dictionaries(
    {
        "time": st.integers(0, 9) | JSON,
        "process": st.sampled_from(["p", "q"]) | JSON,
        "type": st.sampled_from(["invoke", "invoke", "ok", "fail", "info"]) | JSON,
        "f": st.sampled_from(["append", "read", "poll", "txn", "assign", "tail", "fetch_offset"]) | JSON,
        "value": JSON | MICRO | st.just([[0, "a"]]) | st.integers(0, 4),
    },
    optional={"key": st.just("t/0") | JSON, "group": JSON, "rebalanced": JSON},
)


@pytest.mark.slow
@settings(max_examples=examples(400), deadline=None)
@given(st.lists(LINE | JSON, max_size=8), st.sampled_from(["", "[" * 100_000, '{"time": 1', "\ufeff{}"]))
def test_any_lines_become_rows_or_are_located(forms: list[Any], last: str) -> None:
    """Nothing that a file holds ends the analysis: what is kept fits the table, what is not has its line."""
    lines = [json.dumps(form) + "\n" for form in forms] + [last]
    for row in log_operations(parse("jsonl", lines)):
        if isinstance(row, BadLine):
            assert 1 <= row.number <= len(lines)
            assert row.reason
        else:
            table = arrow_table([row], OPERATIONS)
            assert table.num_rows == 1
            begun, ended = (row[OPERATION_NAMES.index(name)] for name in ("invoke_ns", "complete_ns"))
            assert ended is None or begun <= ended

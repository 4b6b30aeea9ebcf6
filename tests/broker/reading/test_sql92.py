"""SQL92 filters: what they say, what they refuse; an evaluator that looks nothing like them agrees."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.reading import sql92
from broker.reading.sql92 import EXPRESSION_LENGTH_MAX, SEARCHES_MAX, compile_in_steps, compile_sql
from broker.reading.sql92_conditions import DEPTH_MAX
from broker.reading.sql92_words import SqlError
from log.formats.properties import encode_properties
from tests.broker.reading.sql92_table import TABLE, grammar, table


def matches(expression: str, **properties: str) -> bool:
    return compile_sql(expression)(encode_properties(properties))


def test_the_table_is_that_of_the_grammar() -> None:
    assert TABLE.read_text() == table(grammar())


@pytest.mark.parametrize(
    ("expression", "properties"),
    [
        ("a=3 and b<>4 And c>5 AND d<=4", {"a": "3", "b": "5", "c": "6", "d": "1"}),
        ("a=3 or b<>4 Or c>5 OR d<=4", {"a": "3"}),
        ("a in ('3', '4', '5')", {"a": "4"}),
        ("a not in ('3', '4', '5')", {"a": "6"}),
        ("a between 2 and 10", {"a": "10"}),
        ("a not between 2 and 10", {"a": "11"}),
        ("a is null", {}),
        ("a is not null and a='hello'", {"a": "hello"}),
        ("a is null OR a='hello'", {"a": "hello"}),
        ("a=TRUE OR b=FALSE", {"a": "True"}),
        ("a=TRUE OR b=FALSE", {"a": "x", "b": "no"}),
        ("TRUE = a", {"a": "true"}),
        ("TAGS is not null and TAGS='''''tag'''''", {"TAGS": "''tag''"}),
        ("a > 3.14", {"a": "3.1415"}),
        ("a > 3.1E10", {"a": "3.1415E10"}),
        ("a > b", {"a": "20", "b": "10"}),
        ("a=b", {"a": "3.14", "b": "3.14"}),
        ("a <> b", {"a": "3.14", "b": "3.141"}),
        ("a = b", {}),
        ("a contains 'x' and a startswith 'ax' and a endswith 'xb'", {"a": "axb"}),
        ("a not contains 'x'", {"a": "abb"}),
        ("'axb' contains 'x'", {}),
        ("a > -5 and a < +5", {"a": "-4"}),
        ("a > 3000000000", {"a": "3000000001"}),
        ("NOT (a = 1)", {"a": "2"}),
        ("a = 'é'", {"a": "é"}),
        ("/* all */ a = 1 -- of them\n", {"a": "1"}),
        ("now > 5 and android = 1 and $in = 2", {"now": "6", "android": "1", "$in": "2"}),
        ("a >= 0.0", {"a": "0"}),
        ("a >= 5 and a <= 5", {"a": "5"}),
        ("TRUE", {}),
    ],
)
def test_what_is_wanted(expression: str, properties: dict[str, str]) -> None:
    assert matches(expression, **properties)


@pytest.mark.parametrize(
    ("expression", "properties"),
    [
        ("a > 5", {}),
        ("a > 5 or a < 5", {"a": "5"}),
        ("NOT (a > 5)", {}),
        ("a <> 5", {}),
        ("NULL", {}),
        ("a > 5", {"a": "five"}),
        ("a > 5 or b = 'x'", {"a": "five", "b": "x"}),
        ("a > 5", {"a": "5.5"}),
        ("a > 5", {"a": "3000000000"}),
        ("a between up and low", {"a": "3.14", "up": "up", "low": "low"}),
        ("a is not null", {}),
        ("a", {"a": "true"}),
        ("a not contains 'x'", {}),
        ("a not contains ''", {"a": "b"}),
        ("a not in ('x')", {}),
        ("'a' = b", {}),
        ("A = 1", {"a": "1"}),
        ("-a = 5", {"a": "-5"}),
        ("a > 5", {"a": " 6"}),
        ("a > 5", {"a": "1_0"}),
        ("(a > 3) = TRUE", {}),
    ],
)
def test_what_is_not_wanted(expression: str, properties: dict[str, str]) -> None:
    assert not matches(expression, **properties)


@pytest.mark.parametrize(
    ("expression", "position", "reason"),
    [
        ("a and between 2 and 10", 6, "'between' is not expected here"),
        ("a between 10 and 0", 10, "the lower bound 10 of BETWEEN is above the upper 0"),
        ("a > 'x'", 4, "only numbers and properties can be compared by >"),
        ("a > 5 garbage", 6, "'garbage' is not expected here"),
        ("a > and", 4, "'and' is not expected here"),
        ("", 0, "the expression ends too early"),
        ("a = ", 4, "the expression ends too early"),
        ("a # 3", 2, "'#' begins nothing that is known"),
        ("a = 'x", 4, '"\'" begins nothing that is known'),
        ("a > 100000000000000000000000", 4, "100000000000000000000000 is beyond 64 bits"),
        ("a > 1e999", 4, "1e999 is beyond the largest number"),
        ("a in (3)", 6, "'3' is not expected here"),
        ("5 in ('3')", 6, "IN needs a property before it"),
        ("a contains x", 11, "'x' is not expected here"),
        ("5", 0, "a condition is needed here, not a value"),
        ("a = NULL", 0, "NULL cannot be compared; IS NULL asks for it"),
        ("NOT a > 5", 4, "only numbers and properties can be compared by >"),
        ("TRUE = 5", 0, "True cannot be compared with 5"),
    ],
)
def test_what_is_refused_and_why(expression: str, position: int, reason: str) -> None:
    with pytest.raises(SqlError) as caught:
        compile_sql(expression)
    assert (caught.value.position, caught.value.reason) == (position, reason)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 5000 + "a=1",
        "NOT " * (DEPTH_MAX + 1) + "(a=1)",
        "-" * 4000 + "a = 1",
        "x" * (EXPRESSION_LENGTH_MAX + 1),
        "a = 1" + " = TRUE" * 1000,
        "(NOT " * 1000 + "(a=1)" + ")" * 1000,
    ],
)
def test_hostile_input_is_refused(expression: str) -> None:
    with pytest.raises(SqlError):
        compile_sql(expression)


def test_long_conditions_do_not_nest() -> None:
    expression = " or ".join(["a=1"] * 900)
    assert matches(expression, a="1")
    assert not matches(expression, a="2")


@given(st.text(alphabet="ab'()=<> 1.5-,ornotadilus", max_size=60))
def test_any_text_is_compiled_or_refused(text: str) -> None:
    try:
        predicate = compile_sql(text)
    except SqlError as error:
        position = error.position
    else:
        position = 0
        assert predicate(b"a\x011\x02") in (True, False)
    assert 0 <= position <= len(text)


# ---- an independent evaluator: sets of three-valued outcomes over a tree, numbers by hand ------------------------

NAMES = ("a", "b", "c")
Tree = tuple[str, ...] | tuple[object, ...]

leaves = st.one_of(
    st.tuples(
        st.just("cmp"),
        st.sampled_from(NAMES),
        st.sampled_from([">", ">=", "<", "<=", "=", "<>"]),
        st.integers(-3, 3),
    ),
    st.tuples(
        st.just("text"),
        st.sampled_from(NAMES),
        st.sampled_from(["=", "<>"]),
        st.sampled_from(["x", "1", "it's"]),
    ),
    st.tuples(st.just("null"), st.sampled_from(NAMES), st.booleans()),
    st.tuples(
        st.just("in"),
        st.sampled_from(NAMES),
        st.booleans(),
        st.lists(st.sampled_from(["x", "1", "2"]), min_size=1, max_size=3),
    ),
    st.tuples(
        st.just("between"), st.sampled_from(NAMES), st.booleans(), st.integers(-3, 0), st.integers(0, 3)
    ),
    st.tuples(
        st.just("part"),
        st.sampled_from(NAMES),
        st.sampled_from(["contains", "startswith", "endswith"]),
        st.booleans(),
        st.sampled_from(["", "x", "1"]),
    ),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.just("and"), inner, inner),
        st.tuples(st.just("or"), inner, inner),
        st.tuples(st.just("not"), inner),
    ),
    max_leaves=8,
)
values = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["x", "1", "2", "-2", "it's", "xx1", "0"]))


def written(tree: Tree) -> str:
    match tree:
        case ("cmp", name, order, number):
            return f"{name} {order} {number}"
        case ("text", name, order, text):
            return f"{name} {order} '{str(text).replace(chr(39), chr(39) * 2)}'"
        case ("null", name, positive):
            return f"{name} is {'' if positive else 'not '}null"
        case ("in", name, positive, texts):
            listed = ", ".join(f"'{text}'" for text in texts)  # type: ignore[attr-defined]
            return f"{name} {'' if positive else 'not '}in ({listed})"
        case ("between", name, positive, low, high):
            return f"{name} {'' if positive else 'not '}between {low} and {high}"
        case ("part", name, kind, positive, text):
            return f"{name} {'' if positive else 'not '}{kind} '{text}'"
        case ("not", inner):
            return f"not ({written(inner)})"  # type: ignore[arg-type]
        case (joint, left, right):
            return f"({written(left)}) {joint} ({written(right)})"  # type: ignore[arg-type]
    raise AssertionError(tree)


class MismatchError(Exception):
    pass


def truth(tree: Tree, values: dict[str, str]) -> float:
    """1 true, 0 false, 0.5 unknown: AND is the minimum, OR the maximum, NOT the complement."""
    match tree:
        case ("not", inner):
            return 1 - truth(inner, values)  # type: ignore[arg-type]
        case ("and", left, right):
            first = truth(left, values)  # type: ignore[arg-type]
            return first if first == 0 else min(first, truth(right, values))  # type: ignore[arg-type]
        case ("or", left, right):
            first = truth(left, values)  # type: ignore[arg-type]
            return first if first == 1 else max(first, truth(right, values))  # type: ignore[arg-type]
    kind, name, *rest = tree
    value = values.get(str(name))
    if kind == "null":
        return float((value is None) == rest[0])
    if kind == "part":
        how, positive, text = rest
        text, found = str(text), False
        if value is not None and text:
            ends = {"contains": value.find(text) >= 0, "startswith": value[: len(text)] == text}
            found = ends.get(str(how), value[-len(text) :] == text) == positive
        return float(found)
    if value is None:
        return 0.5
    if kind == "in":
        return float((value in rest[1]) == rest[0])  # type: ignore[operator]
    if kind == "text":
        return float((value == rest[1]) == (rest[0] == "="))
    try:
        number = int(value)
    except ValueError:
        raise MismatchError from None
    if kind == "between":
        return float((rest[1] <= number <= rest[2]) == rest[0])  # type: ignore[operator]
    order, wanted = rest
    assert isinstance(wanted, int)
    signs = {">": (1,), ">=": (0, 1), "<": (-1,), "<=": (-1, 0), "=": (0,), "<>": (-1, 1)}
    return float(((number > wanted) - (number < wanted)) in signs[str(order)])


@given(trees, values)
def test_the_compiled_condition_agrees_with_a_plain_evaluator(tree: Tree, values: dict[str, str]) -> None:
    try:
        expected = truth(tree, values) == 1
    except MismatchError:
        expected = False
    assert matches(written(tree), **values) is expected


def test_searches_in_one_condition_are_bounded() -> None:
    """Hundreds of them in one long value take longer than a turn may."""
    term = "a contains 'xyx'"
    compile_sql(" OR ".join([term] * SEARCHES_MAX + ["a = 1"]))
    with pytest.raises(SqlError, match=f"at most {SEARCHES_MAX} CONTAINS are allowed") as refused:
        compile_sql(" OR ".join([term] * (SEARCHES_MAX + 1)))
    assert refused.value.position == SEARCHES_MAX * len(term + " OR ") + len("a ")


def test_long_expressions_are_not_remembered_for_long() -> None:
    kept = [weakref.ref(compile_sql(f"a = {number} or " * 100 + "a = 1")) for number in range(100)]
    gc.collect()
    assert sum(one() is not None for one in kept) <= 16


@pytest.mark.parametrize("many", [2, 10])
@pytest.mark.parametrize("end", ["a = 1", "a ="], ids=["right", "wrong"])
def test_equal_long_expressions_that_come_together_are_read_once(many: int, end: str) -> None:
    def expression(number: int) -> str:
        return f"b{many}{number} = 1 or " * 500 + end

    def outcome(text: str) -> bool | str:
        try:
            return matches(text, a="1")
        except SqlError as error:
            return str(error)

    alone = sum(1 for _ in compile_in_steps(expression(1)))
    assert alone > 4
    together = [compile_in_steps(expression(2)) for _ in range(many)]
    for one in together[:2]:
        next(one)
    del together[0]  # its client is gone: the others go on
    steps, left = 2, together
    while left:
        left = [one for one in left if next(one, "over") is None]
        steps += len(left)
    assert steps == alone
    assert outcome(expression(2)) == (True if end == "a = 1" else outcome(expression(1)))


def test_a_long_expression_takes_properties_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(raw: bytes, name: bytes) -> None:
        raise AssertionError("each search looks through all of them")

    monkeypatch.setattr(sql92, "get_property", searched)
    properties = {f"name{number}": "x" * 40 for number in range(600)}
    assert matches("absent is not null or " * 300 + "name7 = 'no' or name599 is not null", **properties)

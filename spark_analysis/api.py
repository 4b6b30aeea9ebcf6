"""``from trivet.analysis import check``: verdicts on operations that a program has at hand (docs/analysis.md)."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final

from spark_analysis.checking.keyed import complaint_of, decide_within
from spark_analysis.checking.minimal import minimal_calls, minimal_rows
from spark_analysis.checking.models import MODELS, Model
from spark_analysis.checking.proofs import VALUED
from spark_analysis.checking.queues.witness import Step
from spark_analysis.checking.search import Budget, SearchResult
from spark_analysis.checking.small import check_rows
from spark_analysis.checking.verdict import (
    LINEARIZABLE,
    UNDECIDED,
    VIOLATED,
    Anomaly,
    Verdict,
    corrected_for_gaps,
    worst,
)
from spark_analysis.checking.witness import in_time, witness_of
from spark_analysis.importing import schema
from spark_analysis.importing.calls import READS, Call
from spark_analysis.importing.frozen import freeze
from spark_analysis.importing.json_rows import ASSIGNMENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_analysis.importing.history import History

LOG: Final = "log"
SPARSE_LOG: Final = "sparse-log"
_REQUIRED: Final = ("function", "outcome", "invoke_ns", "complete_ns", "key")
_OUTCOMES: Final = ("ok", "fail", "info")
_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint", "void")
# The types in which a column of schema.OPERATIONS may come; a cast from any other one would change what it says, or
# fail in words that are Spark's.
_TYPES_OF: Final = {
    "BIGINT": _INTEGERS,
    "BOOLEAN": ("boolean", "void"),
    "ARRAY<BIGINT>": (*(f"array<{kind}>" for kind in _INTEGERS), "void"),
    "ARRAY<STRING>": ("array<string>", "array<void>", "void"),
}


class HistoryError(ValueError):
    """The model cannot judge such a history: the caller's mistake, and no retry helps. The message names the operation
    and what is wrong."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a client; ``complete_ns`` None: of unknown outcome. Times are integers of one clock.

    An operation that certainly failed did not happen, and is left out."""

    function: str
    argument: Any = None
    result: Any = None
    invoke_ns: int = 0
    complete_ns: int | None = None
    key: str = ""
    client: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The answer about one history.

    ``verdict`` has the counts, anomalies and what could not be decided. ``order``, if it was asked for and there is
    one: the places of the operations in the history that was given, in an order that explains them. ``minimal``, if it
    was asked for and the history is violated: the places of operations whose answers contradict each other, all of
    which the contradiction needs. ``steps``, of a log: the order with the queue, offset, value and moment of each. An
    append is there once for each of its values, as readers may see the first before the last.
    """

    verdict: Verdict
    order: tuple[int, ...] | None = None
    minimal: tuple[int, ...] | None = None
    steps: tuple[Step, ...] | None = None

    @property
    def is_linearizable(self) -> bool:
        return self.verdict.verdict == LINEARIZABLE

    @property
    def is_violated(self) -> bool:
        return self.verdict.verdict == VIOLATED


def check(
    history: Iterable[Operation] | Iterable[Mapping[str, Any]] | DataFrame,
    model: str = LOG,
    *,
    drained: bool = False,
    order: bool = False,
    minimal: bool = False,
    budget: Budget | None = None,
) -> Judgement:
    """Judge a history.

    For ``model`` "log" or "sparse-log" a history is rows with the columns of docs/trace-schema.md, as mappings or as a
    DataFrame of Spark, whose session judges it. One with all these columns is the table of a trace: operations whose
    halves stand in rows of their own are joined, and replicas' events and damage count. For every other model a history
    is :class:`Operation` objects, judged in this process. ``order`` asks for a linearization, which is made in this
    process: of a DataFrame, the operations come here. ``minimal`` asks for a smallest set of operations that is still
    wrong. Raises :class:`HistoryError`.
    """
    if model in (LOG, SPARSE_LOG):
        return _check_log(history, drained=drained, sparse=model == SPARSE_LOG, order=order, minimal=minimal)
    if model not in MODELS:
        raise HistoryError(f"model {model}: unknown; known are {', '.join((LOG, SPARSE_LOG, *MODELS))}")
    if drained:
        raise HistoryError(f"model {model}: drained is for logs only")
    return _check_keyed(list(history), MODELS[model], order, minimal, budget or Budget())  # type: ignore[arg-type]


def _check_log(history: Any, *, drained: bool, sparse: bool, order: bool, minimal: bool) -> Judgement:
    if hasattr(history, "sparkSession"):
        from spark_analysis.checking.check import check as check_history

        judged = _history_of(history)
        verdict = check_history(judged, drained=drained, sparse=sparse)
        is_wanted = (verdict.verdict == LINEARIZABLE and order) or minimal
        rows = [
            row.asDict() | {"record": "operation"}
            for row in (judged.operations.collect() if is_wanted else ())
        ]
    else:
        rows = [_log_row(place, one) for place, one in enumerate(history)]
        verdict = check_rows("", rows, drained=drained, sparse=sparse)
    verdict = corrected_for_gaps(verdict)
    steps = witness_of(rows, sparse=sparse) if order and verdict.verdict == LINEARIZABLE else None
    smallest = minimal_rows(rows, verdict, sparse=sparse) if minimal else None
    in_order = None if steps is None else tuple(one.op for one in steps if one.op is not None)
    return Judgement(verdict, in_order, smallest, steps)


def _history_of(frame: DataFrame) -> History:
    """The history of a table of a trace, or of one with the columns of schema.OPERATIONS. Raises HistoryError."""
    from pyspark.sql import functions as sf

    from spark_analysis.importing.history import History, history_of, no_events

    if {name for name, _, _ in schema.RECORD_COLUMNS} <= set(frame.columns):
        return history_of(frame)
    check_columns(frame, "the DataFrame")
    if "op" not in frame.columns:
        # It must be the same in every job, which a number given while reading is not.
        raise HistoryError("the DataFrame has no column op: a number of each operation")
    columns = [
        (sf.col(name) if name in frame.columns else sf.lit(None)).cast(kind).alias(name)
        for name, kind, _ in schema.OPERATION_COLUMNS
    ]
    session, operations = frame.sparkSession, frame.select(*columns)
    for row in operations.where(_IS_NO_OPERATION).limit(1).collect():
        check_operation(row["op"], row.asDict())
        raise AssertionError(f"check_operation takes what _IS_NO_OPERATION does not: {row}")
    damage = session.createDataFrame([], "file STRING, position BIGINT, kind STRING, reason STRING")
    return History("", operations, no_events(session), damage)


def _log_row(place: int, given: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise HistoryError(f"operation {place}: {given!r:.60} is no row of a log's history")
    unknown = given.keys() - {*schema.OPERATION_NAMES, "record"}
    missing = [name for name in _REQUIRED if name not in given and name != "complete_ns"]
    if unknown or missing:
        what = f"has no {', '.join(missing)}" if missing else f"has {', '.join(sorted(unknown))}, unknown"
        raise HistoryError(f"operation {place} {what} (docs/trace-schema.md)")
    row: dict[str, Any] = dict.fromkeys(schema.OPERATION_NAMES) | {"filtered": False}
    row |= {name: _plain(value) for name, value in given.items()}
    if row["op"] is None:
        row["op"] = place
    check_operation(place, row)
    return row | {"record": "operation"}


def _plain(value: Any) -> Any:
    """Python's own integers, texts and lists for those of numpy and pandas; anything else as it is."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def check_columns(frame: DataFrame, what: str) -> None:
    """Raises HistoryError for a table of operations without the columns that every one needs, or with columns of
    another type: casting a timestamp to an integer makes seconds of it, and NaN may become 0."""
    missing = [name for name in _REQUIRED if name not in frame.columns]
    if missing:
        raise HistoryError(f"{what} has no column {', '.join(missing)} (docs/trace-schema.md)")
    wanted = {name: kind for name, kind, _ in schema.OPERATION_COLUMNS}
    for name, kind in frame.dtypes:
        allowed = _TYPES_OF.get(wanted.get(name, ""))
        if allowed is not None and kind not in allowed:
            problem = "times are integers, and " if name in _REQUIRED else ""
            raise HistoryError(
                f"{what}: {problem}{name} is of type {kind}, not {wanted[name].lower()} (docs/trace-schema.md)"
            )


def check_operation(place: object, row: Mapping[str, Any]) -> None:
    """Raises HistoryError for a row, with all columns of schema.OPERATIONS, that is no operation on a queue."""
    outcome, complete_ns = row["outcome"], row["complete_ns"]
    if row["function"] not in schema.FUNCTIONS:
        raise HistoryError(
            f"operation {place}: function {row['function']!r:.60}, unknown (docs/trace-schema.md)"
        )
    if not isinstance(row["key"], str) and row["function"] not in ASSIGNMENTS:
        raise HistoryError(f"operation {place}: key {row['key']!r:.60}")
    # It does not matter when an operation failed.
    is_ended = complete_ns is not None
    if outcome not in _OUTCOMES or (outcome != "fail" and is_ended != (outcome == "ok")):
        raise HistoryError(f"operation {place}: outcome {outcome!r:.60}, complete_ns {complete_ns!r:.60}")
    _check_times(place, row["invoke_ns"], complete_ns)
    problem = _problem_of_shape(row) or _problem_of_answer(row)
    if problem is not None:
        raise HistoryError(f"operation {place}: {problem} (docs/trace-schema.md)")


def _problem_of_shape(row: Mapping[str, Any]) -> str | None:
    """Say which column holds what it cannot; None if none does."""
    if type(row["op"]) is not int:
        return f"op {row['op']!r:.60} is no integer"
    for name in ("offset", "first_offset", "next_offset", "end_offset"):
        if row[name] is not None and not _is_offset(row[name]):
            return f"{name} {row[name]!r:.60} is no offset"
    values, offsets = row["values"], row["offsets"]
    # A text would do for a list of texts, each a letter.
    if values is not None and not (
        isinstance(values, list | tuple) and all(one is None or isinstance(one, str) for one in values)
    ):
        return f"values {values!r:.60} are no list of texts"
    if offsets and not (
        isinstance(offsets, list | tuple)
        and all(map(_is_offset, offsets))
        and len(offsets) == len(values or ())
        and offsets[0] == row["first_offset"]
    ):
        return f"offsets {offsets!r:.60} are not those of its values"
    return None


def _problem_of_answer(row: Mapping[str, Any]) -> str | None:
    """Say what an operation leaves out, where without it the operation would be taken for one of another kind; None if
    nothing."""
    function, is_ok = row["function"], row["outcome"] == "ok"
    has_values = bool(row["values"])
    if is_ok and function in VALUED and has_values != (row["first_offset"] is not None):
        return "values and their first_offset go together"
    if is_ok and function == "append" and not has_values:
        return "an append of no values"
    is_stated = is_ok and function in ("read", "tail", "head")
    if row["offset"] is None and (is_stated or (function == "commit_offset" and row["outcome"] != "fail")):
        return f"a {function} without offset"
    if is_ok and function not in ASSIGNMENTS and row["key"].endswith("/"):
        return f"{row['key']!r:.60} names no queue"
    return None


def _is_offset(value: object) -> bool:
    return type(value) is int and value >= 0


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


# What `check_operation` refuses, for rows that are not in this process. The size of NULL is NULL where Spark is in
# ANSI mode, and else -1.
_IS_NO_OPERATION: Final = f"""
    op IS NULL OR function IS NULL OR function NOT IN ({_listed(schema.FUNCTIONS)})
    OR outcome IS NULL OR outcome NOT IN ({_listed(_OUTCOMES)})
    OR (key IS NULL AND function NOT IN ({_listed(ASSIGNMENTS)}))
    OR invoke_ns IS NULL OR complete_ns < invoke_ns
    OR (outcome <> 'fail' AND isnotnull(complete_ns) <> (outcome = 'ok'))
    OR `offset` < 0 OR first_offset < 0 OR next_offset < 0 OR end_offset < 0
    OR array_min(offsets) < 0 OR exists(offsets, one -> one IS NULL)
    OR (size(offsets) > 0 AND (size(offsets) <> coalesce(size(`values`), 0) OR NOT get(offsets, 0) <=> first_offset))
    OR (outcome = 'ok' AND function IN ({_listed(VALUED)})
        AND (coalesce(size(`values`), 0) > 0) <> isnotnull(first_offset))
    OR (outcome = 'ok' AND function = 'append' AND coalesce(size(`values`), 0) <= 0)
    OR (`offset` IS NULL AND (outcome = 'ok' AND function IN ('read', 'tail', 'head')
        OR outcome <> 'fail' AND function = 'commit_offset'))
    OR (outcome = 'ok' AND endswith(key, '/') AND function NOT IN ({_listed(ASSIGNMENTS)}))
"""


def _check_times(place: object, invoke_ns: Any, complete_ns: Any) -> None:
    if type(invoke_ns) is not int or type(complete_ns) not in (int, type(None)):
        raise HistoryError(f"operation {place}: times are integers, not {invoke_ns!r} and {complete_ns!r}")
    if complete_ns is not None and complete_ns < invoke_ns:
        raise HistoryError(
            f"operation {place} completes at {complete_ns}, before its invocation at {invoke_ns}"
        )


def _check_keyed(
    operations: Sequence[Operation], model: Model, wants_order: bool, wants_minimal: bool, budget: Budget
) -> Judgement:
    keys: dict[str, list[Call]] = defaultdict(list)
    for place, one in enumerate(operations):
        if not isinstance(one, Operation):
            raise HistoryError(f"operation {place}: {one!r:.60} is no Operation")
        invoke_ns, complete_ns = _plain(one.invoke_ns), _plain(one.complete_ns)
        _check_times(place, invoke_ns, complete_ns)
        try:
            asked, told = freeze(one.argument), freeze(one.result) if complete_ns is not None else None
        except ValueError as error:
            raise HistoryError(f"operation {place}: {error}") from None
        if one.function == "cas" and complete_ns is not None:
            told = bool(one.result)
        call = Call(place, one.function, asked, told, invoke_ns, complete_ns)
        if (problem := complaint_of(model, call)) is not None:
            raise HistoryError(f"operation {place}: {problem}")
        # A read without an answer says nothing, and changes nothing: it may stand anywhere.
        if call.complete_ns is not None or call.function not in READS:
            keys[one.key if model.by_key else ""].append(call)
    found = {key: decide_within(budget, model, calls) for key, calls in keys.items()}
    verdict = _verdict(operations, model, keys, found)
    order = minimal = None
    if wants_order and verdict.verdict == LINEARIZABLE:
        order = _merged(operations, found)
    if wants_minimal and verdict.verdict == VIOLATED:
        key = next(key for key, one in found.items() if one.verdict == VIOLATED)
        minimal = minimal_calls(
            keys[key], lambda calls: decide_within(budget, model, calls).verdict == VIOLATED
        )
    return Judgement(corrected_for_gaps(verdict), order, minimal)


def _verdict(
    operations: Sequence[Operation],
    model: Model,
    keys: Mapping[str, Sequence[Call]],
    found: Mapping[str, SearchResult],
) -> Verdict:
    # What shows the violation: the end of the longest order that the model allows, and what can follow it in no way.
    anomalies = tuple(
        Anomaly(
            "not-linearizable",
            key,
            None,
            tuple(_shown(place, operations[place]) for place in (*one.prefix[-1:], *one.stuck)),
            one.because
            or f"after {len(one.prefix)} of {len(keys[key])} operations in an order that the model allows",
        )
        for key, one in found.items()
        if one.verdict == VIOLATED
    )
    undecided = tuple(
        f"{key}: given up after {one.configurations} configurations ({one.bound})"
        for key, one in found.items()
        if one.verdict == UNDECIDED
    )
    return Verdict(
        "",
        worst([one.verdict for one in found.values()]),
        sum(map(len, keys.values())),
        {"not-linearizable": len(anomalies)} if anomalies else {},
        anomalies,
        undecided,
        facts={
            "model": model.name,
            "keys": len(keys),
            "answered": sum(one.complete_ns is not None for calls in keys.values() for one in calls),
        },
    )


def _shown(place: int, one: Operation) -> dict[str, Any]:
    names = ("client", "function", "argument", "result", "invoke_ns", "complete_ns")
    return {"op": place, **{name: getattr(one, name) for name in names}}


def _merged(operations: Sequence[Operation], found: Mapping[str, SearchResult]) -> tuple[int, ...]:
    """One order of the operations of all keys."""
    by_key = (in_time((operations[place].invoke_ns, place) for place in one.prefix) for one in found.values())
    return tuple(place for _, place in heapq.merge(*by_key, key=lambda event: event[0]))

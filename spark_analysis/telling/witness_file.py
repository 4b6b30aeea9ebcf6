"""A witness as a file: a line of JSON for each step, in the order that explains a linearizable history
(docs/report.md)."""

import heapq
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_analysis.checking.keyed import complaint_of, decide_within
from spark_analysis.checking.models import MODELS
from spark_analysis.checking.search import Budget
from spark_analysis.checking.verdict import LINEARIZABLE
from spark_analysis.checking.witness import in_time, witness_of
from spark_analysis.importing.calls import KeyedCall, calls
from spark_analysis.importing.formats import parse
from spark_analysis.importing.frozen import as_json
from spark_analysis.importing.lines import KEEP_WHAT_IS_NO_UTF8


def write_log_witness(file: Path, rows: Sequence[Mapping[str, Any]], *, sparse: bool) -> bool:
    """Write the witness of a linearizable history (rows of schema.OPERATIONS); False if none was found in time."""
    steps = witness_of(rows, sparse=sparse)
    if steps is None:
        return False
    clients = {row["op"]: row["client"] for row in rows}
    _write(
        file,
        (
            {
                "moment_ns": one.moment_ns,
                "op": one.op,
                "client": clients.get(one.op),
                "function": one.function,
                "key": one.key,
                "offset": one.offset,
                "value": one.value,
            }
            for one in steps
        ),
    )
    return True


def write_keyed_witness(file: Path, path: Path, format: str, model_name: str, budget: Budget | None) -> bool:
    """Write the witness of a linearizable history of another model than the log, which is read again from ``path``;
    False if none was found within the budget."""
    model, within = MODELS[model_name], budget or Budget()
    keys: dict[str, list[KeyedCall]] = defaultdict(list)
    with path.open(encoding="utf-8", errors=KEEP_WHAT_IS_NO_UTF8) as text:
        for one in calls(format, parse(format, text)):
            if isinstance(one, KeyedCall) and complaint_of(model, one.call) is None:
                keys[one.key if model.by_key else ""].append(one)
    orders = []
    for listed in keys.values():
        result = decide_within(within, model, [one.call for one in listed])
        if result.verdict != LINEARIZABLE:
            return False
        orders.append(_told(listed, result.prefix))
    _write(file, heapq.merge(*orders, key=lambda step: step["moment_ns"]))
    return True


def _told(listed: Iterable[KeyedCall], order: Sequence[int]) -> Iterator[dict[str, Any]]:
    by_op = {one.call.op: one for one in listed}
    for moment_ns, op in in_time((by_op[op].call.invoke_ns, op) for op in order):
        one = by_op[op]
        argument, result = (json.loads(as_json(value)) for value in (one.call.argument, one.call.result))
        yield {
            "moment_ns": moment_ns,
            "op": op,
            "client": one.process,
            "function": one.call.function,
            "key": one.key,
            "argument": argument,
            "result": result,
            "line": one.number,
        }


def _write(file: Path, steps: Iterable[Mapping[str, Any]]) -> None:
    with file.open("w", encoding="utf-8") as lines:
        for step in steps:
            told = {name: value for name, value in step.items() if value is not None}
            lines.write(json.dumps(told, ensure_ascii=False) + "\n")

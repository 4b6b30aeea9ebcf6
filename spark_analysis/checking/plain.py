"""The check of a small history without Spark: traces as bytes in, findings out, by the rules in plain Python.

:mod:`spark_analysis.checking.queues.reference` and :mod:`spark_analysis.checking.registers` decide one queue and one
register at a time; here traces become their operations. The simulator's runs are judged by it, and tests use it where
starting Spark would take longer than the question.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Final

from broker.trace import Fail, Info, Invoke, Ok, ReadResult, TraceHeader, read_trace
from spark_analysis.checking.queues.reference import LINEARIZABLE, UNDECIDED, VIOLATED, Operation, check_queue
from spark_analysis.checking.register_names import register_name
from spark_analysis.checking.registers import INITIAL, Access, check_register

__all__ = ["PlainVerdict", "check_traces"]

_FILE_SHIFT: Final = 40
"""Operations count from 0 in every trace; the trace's number in the upper bits makes them unique."""

_REGISTER_FUNCTIONS: Final = frozenset({"commit_offset", "fetch_offset"})


@dataclass(frozen=True, slots=True)
class PlainVerdict:
    """The verdict on some traces: ``verdict`` is that of the worst key, ``findings`` name keys and reasons, and
    ``operations`` is how many were judged."""

    verdict: str
    findings: tuple[str, ...]
    operations: int


def check_traces(
    traces: Mapping[str, bytes], *, is_judged: Callable[[str], bool] = lambda key: True
) -> PlainVerdict:
    """Judge the clients' operations in ``traces`` (name -> content), which must share one clock.

    ``is_judged`` chooses the keys (``topic/broker:queue``). Raises `broker.trace.TraceFormatError`.
    """
    queues: dict[str, list[Operation]] = defaultdict(list)
    registers: dict[str, list[Access]] = defaultdict(list)
    for number, content in enumerate(traces.values()):
        for place, (invoke, end) in enumerate(_pairs(content)):
            key = invoke.key if not isinstance(end, Ok) or end.key is None else end.key
            if not is_judged(key):
                continue
            op = number << _FILE_SHIFT | place
            if invoke.function in _REGISTER_FUNCTIONS:
                access = _access(op, invoke, end)
                if access is not None:
                    registers[register_name(key, invoke.group)].append(access)
            elif not isinstance(end, Fail):
                queues[key].append(_operation(op, invoke, end))
    return _judge(queues, registers)


def _judge(queues: Mapping[str, list[Operation]], registers: Mapping[str, list[Access]]) -> PlainVerdict:
    findings: list[str] = []
    verdict = LINEARIZABLE
    for key, operations in queues.items():
        answer, found = check_queue(operations)
        if answer != LINEARIZABLE:
            verdict = _worse(verdict, answer)
            findings += [f"{key}: {one.kind} at {one.position}" for one in found]
    for key, accesses in registers.items():
        wrong, unsure = check_register(accesses)
        if wrong or unsure:
            verdict = _worse(verdict, VIOLATED if wrong else UNDECIDED)
            findings += [f"{key}: {one.kind} at {one.position}" for one in (*wrong, *unsure)]
    judged = sum(map(len, queues.values())) + sum(map(len, registers.values()))
    return PlainVerdict(verdict, tuple(findings), judged)


def _worse(one: str, other: str) -> str:
    order = (LINEARIZABLE, UNDECIDED, VIOLATED)
    return max(one, other, key=order.index)


def _pairs(content: bytes) -> Iterable[tuple[Invoke, Ok | Fail | Info | None]]:
    """Every operation with its end, None for one that the trace leaves open."""
    begun: dict[int, Invoke] = {}
    for event in read_trace(BytesIO(content)):
        if isinstance(event, Invoke):
            if event.operation in begun:  # the recorder has begun anew, in its old file
                yield begun.pop(event.operation), None
            begun[event.operation] = event
        elif isinstance(event, Ok | Fail | Info) and event.operation in begun:
            yield begun.pop(event.operation), event
        elif isinstance(event, TraceHeader):
            continue
    for invoke in begun.values():
        yield invoke, None


def _access(op: int, invoke: Invoke, end: Ok | Fail | Info | None) -> Access | None:
    complete_ns = end.time_ns if isinstance(end, Ok) else None
    if invoke.function == "commit_offset":
        assert isinstance(invoke.argument, int)
        return (
            None if isinstance(end, Fail) else Access(op, True, invoke.argument, invoke.time_ns, complete_ns)
        )
    if not isinstance(end, Ok):
        return None
    assert not isinstance(end.result, ReadResult)
    return Access(op, False, INITIAL if end.result is None else end.result, invoke.time_ns, complete_ns)


def _operation(op: int, invoke: Invoke, end: Ok | Info | None) -> Operation:
    ok = end if isinstance(end, Ok) else None
    outcome, complete_ns = ("ok", ok.time_ns) if ok is not None else ("info", None)
    result = None if ok is None else ok.result
    argument = invoke.argument
    if invoke.function == "read":
        assert isinstance(argument, tuple)
        assert isinstance(argument[0], int)
        offset, filtered = argument
        seen = result if isinstance(result, ReadResult) else None
        return Operation(
            op,
            "read",
            outcome,
            invoke.time_ns,
            complete_ns,
            offset=offset,
            first_offset=seen.offsets[0] if seen is not None and seen.offsets else None,
            values=() if seen is None else seen.values,
            offsets=None if seen is None else seen.offsets,
            next_offset=None if seen is None else seen.next_offset,
            end_offset=None if seen is None else seen.end,
            filtered=bool(filtered),
        )
    assert not isinstance(result, ReadResult)
    if invoke.function == "append":
        assert isinstance(argument, tuple)
        values = tuple(str(value) for value in argument)
        return Operation(
            op, "append", outcome, invoke.time_ns, complete_ns, first_offset=result, values=values
        )
    return Operation(op, invoke.function, outcome, invoke.time_ns, complete_ns, offset=result)

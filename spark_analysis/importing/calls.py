"""Histories of other systems as calls of a sequential model, for the check by search."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from spark_analysis.importing.frozen import freeze
from spark_analysis.importing.lines import BadLine, Line, Open, Orphan, matched


@dataclass(frozen=True, slots=True)
class Call:
    """One operation of a model: ``complete_ns`` None if its outcome is unknown."""

    op: int
    function: str
    argument: Any
    result: Any
    invoke_ns: int
    complete_ns: int | None


@dataclass(frozen=True, slots=True)
class KeyedCall:
    """A call, its client, the key that it concerns, and the line that invoked it."""

    key: str
    process: str
    call: Call
    number: int


def calls(format: str, lines: Iterable[Line | BadLine]) -> Iterator[KeyedCall | BadLine]:
    """Pair invocations with completions, process by process; what never completes has an unknown outcome.

    A failed operation did not happen and is left out, with one exception: a failed compare-and-set of a Jepsen etcd
    log is an answer (the value was another one). A read that nobody answered says nothing and is left out, and so is
    a Knossos read of nil, which there means any value.
    """
    count = 0
    for operation in matched(lines):
        if isinstance(operation, BadLine):
            yield operation
            continue
        if isinstance(operation, Orphan):
            yield operation.bad_line()
            continue
        begun, ended = (operation.line, None) if isinstance(operation, Open) else operation
        try:
            call = _call(format, count, begun, ended)
        except ValueError as error:
            yield BadLine(begun.number, str(error))
            continue
        count += 1
        if call is not None:
            yield KeyedCall(begun.key, begun.process, call, begun.number)


READS: Final = ("read", "get")


def _call(format: str, op: int, begun: Line, ended: Line | None) -> Call | None:
    function, argument = begun.function, freeze(begun.value)
    if ended is None or ended.kind == "info":
        return None if function in READS else Call(op, function, argument, None, begun.time_ns, None)
    result: Any = freeze(ended.value)
    if ended.kind == "fail":
        if format != "jepsen-etcd" or function != "cas":
            return None
        result = False
    elif function == "cas":
        result = True
    if format == "knossos" and function == "read" and result is None:
        return None
    return Call(op, function, argument, result, begun.time_ns, ended.time_ns)

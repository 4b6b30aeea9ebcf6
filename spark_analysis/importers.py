"""Histories of other systems: each format becomes lines that say who invoked or completed what, then calls.

Formats (docs/importing.md has examples): ``jsonl``, ``knossos`` (EDN), ``porcupine-kv`` (EDN lines), ``jepsen-etcd``
(text logs). The order of the lines is the order of time where a line has no time of its own. A line that cannot be
understood is quarantined with its place; a history is judged without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from broker.trace.events import MAX_INTEGER, brief
from spark_analysis.edn import EdnCutError, EdnError, is_vector, read_all, read_vector
from spark_analysis.frozen import freeze
from spark_analysis.search import Call

# What a format means if the user does not say: its model, and what a read of nil states.
DEFAULT_MODELS: Final = {
    "jsonl": "log",
    "knossos": "cas-register",
    "porcupine-kv": "key-value",
    "jepsen-etcd": "cas-register",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One event of a history: ``kind`` is invoke, ok, fail or info.

    ``rebalanced``: the keys that the consumer was given or lost while the operation ran.
    """

    number: int
    time_ns: int
    process: str
    kind: str
    function: str
    key: str
    value: Any
    group: str | None = None
    rebalanced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that was left out, and why.

    ``records``: as how many it may have been written; one that nobody can read may be two that were joined.
    ``is_cut``: the file ends inside of it, so that nothing of it was ever wrong. ``completes``: it is the completion of
    an operation whose invocation is good.
    """

    number: int
    reason: str
    records: int = 1
    is_cut: bool = False
    completes: bool = False


@dataclass(frozen=True, slots=True)
class KeyedCall:
    """A call, its client, the key that it concerns, and the line that invoked it."""

    key: str
    process: str
    call: Call
    number: int


UNREADABLE: Final = 2
"""``records`` of a line that is not even in the format."""
CUT: Final = "the file was cut inside of this line: everything before it was read"
KINDS: Final = ("invoke", "ok", "fail", "info")
LARGEST: Final = MAX_INTEGER
"""What a time, in nanoseconds, or an offset can be: 64 bits are left for sums."""


def parse(format: str, text: Iterable[str]) -> Iterator[Line | BadLine]:
    """The lines of a file, with their ends, in one of :data:`DEFAULT_MODELS`' formats."""
    return _PARSERS[format](_without_mark(text))


def _without_mark(text: Iterable[str]) -> Iterator[str]:
    """Editors of some systems begin a file of UTF-8 with a byte order mark, which is no text."""
    for number, line in enumerate(text):
        yield line if number else line.removeprefix("\ufeff")


def _jepsen_etcd(text: Iterable[str]) -> Iterator[Line | BadLine]:
    pattern = re.compile(
        r"^INFO\s+jepsen\.util\s+-\s+(\d+)\s+:(invoke|ok|fail|info)\s+:(read|write|cas)\s+(.*)$"
    )
    is_empty, is_log = True, False
    for number, line in enumerate(text, 1):
        match = pattern.match(line.rstrip())
        is_empty, is_log = is_empty and not line.strip(), is_log or "jepsen.util" in line
        has_end = line.endswith("\n")
        # Of a number without the end of its line nobody knows whether digits are missing.
        if not has_end and is_log and (match is None or match[4][-1:].isdigit()):
            yield BadLine(number, CUT, UNREADABLE, is_cut=True)
            continue
        if match is None:
            if "jepsen.util" in line and ":nemesis" not in line and line.strip():
                yield BadLine(number, f"not an operation: {line.strip()[:80]}", UNREADABLE)
            continue
        process, kind, function, rest = match.groups()
        try:
            value = None if kind == "info" else next(read_all(rest), None)
        except EdnError as error:
            yield BadLine(number, str(error) if has_end else CUT, UNREADABLE, not has_end)
            continue
        yield Line(number, number, process, kind, function, "register", value)
    if not (is_empty or is_log):
        yield BadLine(1, "no line of this file is one of a Jepsen log", UNREADABLE)


def _maps(text: Iterable[str]) -> Iterator[tuple[int, dict[str, Any] | BadLine]]:
    """EDN maps, one a line, or all in one vector."""
    lines = list(text)
    joined = "".join(lines)
    if _is_vector(joined):
        number, place = 1, 0
        try:
            for begun, form in read_vector(joined):
                number, place = number + joined.count("\n", place, begun), begun
                yield number, form
        except EdnError as error:
            number += joined.count("\n", place, error.place)
            is_cut = isinstance(error, EdnCutError)
            reason = (
                f"the file was cut: {error} that begins here; everything before it was read"
                if is_cut
                else f"{error}; nothing behind it was read"
            )
            yield number, BadLine(number, reason, UNREADABLE, is_cut)
        return
    for number, line in enumerate(lines, 1):
        try:
            for form in read_all(line):
                yield number, form
        except EdnError as error:
            is_cut = isinstance(error, EdnCutError) and not line.endswith("\n")
            yield number, BadLine(number, CUT if is_cut else str(error), UNREADABLE, is_cut)


def _is_vector(text: str) -> bool:
    try:
        return is_vector(text)
    except EdnError:
        return False


def _edn(text: Iterable[str]) -> Iterator[Line | BadLine]:
    has_times: bool | None = None
    for order, (number, form) in enumerate(_maps(text), 1):
        if isinstance(form, BadLine):
            yield form
            continue
        problem = _edn_problem(form)
        if problem is not None:
            yield BadLine(number, problem)
            continue
        if form["process"] == "nemesis":
            continue
        if has_times is None:
            has_times = "time" in form
        if ("time" in form) != has_times:
            yield BadLine(
                number, f":time is {'missing' if has_times else 'given'}, unlike in the first operation"
            )
            continue
        process, function, key = (str(form.get(name, "")) for name in ("process", "f", "key"))
        time_ns = form.get("time", order)
        yield Line(number, time_ns, process, form["type"], function, key, form.get("value"))


def _edn_problem(form: Any) -> str | None:
    if not isinstance(form, dict) or "process" not in form or "f" not in form:
        return f"not an operation: {brief(form, 80)}"
    if form.get("type") not in KINDS:
        return f":type is {brief(form.get('type'))}, none of {', '.join(KINDS)}"
    return _time_problem(":time", form["time"]) if "time" in form else None


def _time_problem(name: str, time_ns: Any) -> str | None:
    if type(time_ns) is not int:
        return f"{name} is {brief(time_ns)}, no integer"
    if abs(time_ns) > LARGEST:
        return f"{name} is {brief(time_ns)}; allowed are nanoseconds from {-LARGEST} to {LARGEST}"
    return None


def _jsonl(text: Iterable[str]) -> Iterator[Line | BadLine]:
    for number, line in enumerate(text, 1):
        if not line.strip():
            continue
        try:
            form = json.loads(line, parse_constant=_no_constant)
            if "\\u" in line:  # half a surrogate pair is no text
                json.dumps(form, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            is_cut = not line.endswith("\n")
            yield BadLine(number, CUT if is_cut else f"not JSON: {error}", UNREADABLE, is_cut)
            continue
        problem = _problem(form)
        if problem is not None:
            yield BadLine(number, problem)
            continue
        time_ns, process, value = form["time"], str(form["process"]), form.get("value")
        key, group = ("" if form.get(name) is None else str(form[name]) for name in ("key", "group"))
        rebalanced = tuple(str(key) for key in form.get("rebalanced") or ())
        yield Line(
            *(number, time_ns, process, form["type"], form["f"], key, value, group or None, rebalanced)
        )


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is none of its numbers")


def _problem(form: Any) -> str | None:
    if not isinstance(form, dict):
        return "not a JSON object"
    for name, kind in (("process", (int, str)), ("type", str), ("f", str)):
        if not isinstance(form.get(name), kind) or isinstance(form.get(name), bool):
            return f"{name!r} is missing or of a wrong type"
    problem = _time_problem("'time'", form.get("time"))
    if problem is not None:
        return problem
    if not isinstance(form.get("rebalanced") or [], list):
        return "'rebalanced' is no list of keys"
    if form["type"] not in KINDS:
        return f"type {form['type']!r} is none of {', '.join(KINDS)}"
    return None


_PARSERS: Final = {"jsonl": _jsonl, "knossos": _edn, "porcupine-kv": _edn, "jepsen-etcd": _jepsen_etcd}


OVERLAPPING: Final = "invokes while an operation of its own is open"
STRAY: Final = "which it has not invoked"
"""How the complaints end that together say that one name was several clients' (``damage_facts`` of
:mod:`spark_analysis.proofs`)."""


@dataclass(frozen=True, slots=True)
class Open:
    """An invocation that the text does not complete; ``lost``: how many records behind it could not be read."""

    line: Line
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Orphan:
    """A completion without an invocation before it in the text; ``lost``: how many records before it could not be
    read."""

    line: Line
    lost: int = 0

    def bad_line(self) -> BadLine:
        """What it is if the text is the whole history."""
        process, function = self.line.process, self.line.function
        return BadLine(self.line.number, f"process {process} completes {function}, {STRAY}")


def second_invocation(line: Line) -> BadLine:
    """The complaint about an invocation of a process that has one open; that one counts as never answered."""
    return BadLine(line.number, f"process {line.process} {OVERLAPPING}")


def early_completion(begun: Line, ended: Line) -> BadLine:
    """The complaint about a completion whose time is before that of its invocation, which counts as never answered."""
    what = f"process {ended.process} completes {ended.function} at time {ended.time_ns}"
    return BadLine(ended.number, f"{what}, before its invocation at {begun.time_ns}")


def doubtful_completion(ended: Line) -> BadLine:
    """The complaint about a completion that may be of a later operation: see :data:`LOST_BETWEEN`."""
    what = f"process {ended.process} completes {ended.function}"
    return BadLine(ended.number, f"{what}, perhaps another one than it invoked before the lines that are bad")


LOST_BETWEEN: Final = 2
"""Where so many records may be missing between an invocation and a completion of its process, they may be the one's
completion and the other's invocation; so the one counts as never answered, and the other is left out."""


def matched(
    lines: Iterable[Line | BadLine],
) -> Iterator[tuple[Line, Line | None] | BadLine | Open | Orphan]:
    """Each invocation with its completion, in the order of completions; then those that were left open.

    A process has one operation open at a time; a line that breaks this is a :class:`BadLine`, and bad lines pass
    through. An orphan stands before the first invocation of its process.
    """
    opened: dict[str, tuple[Line, int]] = {}
    invoked: set[str] = set()
    lost = 0
    for line in lines:
        if isinstance(line, BadLine):
            lost += line.records
            yield line
            continue
        begun, lost_before = opened.pop(line.process, (None, 0))
        if line.kind == "invoke":
            if begun is not None:
                yield second_invocation(line)
                yield begun, None
            opened[line.process] = line, lost
            invoked.add(line.process)
        elif begun is not None and begun.function == line.function:
            if line.time_ns < begun.time_ns:
                yield early_completion(begun, line)
                yield begun, None
            elif lost - lost_before >= LOST_BETWEEN:
                yield doubtful_completion(line)
                yield begun, None
            else:
                yield begun, line
        else:
            if begun is not None:
                opened[line.process] = begun, lost_before
            orphan = Orphan(line, lost)
            yield orphan if line.process not in invoked else orphan.bad_line()
    for begun, lost_before in sorted(opened.values(), key=lambda entry: entry[0].number):
        yield Open(begun, lost - lost_before)


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
        call = _call(format, count, begun, ended)
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

"""Histories of other systems: each format becomes lines, each of which says who invoked or completed an operation.

Formats (docs/importing.md has examples): ``jsonl``, ``knossos`` (EDN), ``porcupine-kv`` (EDN lines), ``jepsen-etcd``
(text logs). The order of the lines is the order of time where a line has no time of its own. A line that cannot be
understood is left out and told with its place.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from broker.trace.events import brief
from spark_analysis.importing.edn import EdnCutError, EdnError, is_vector, read_all, read_vector
from spark_analysis.importing.lines import CUT, KINDS, LARGEST, NO_UTF8, UNREADABLE, BadLine, Line, is_utf8

# What a format means if the user does not say: its model, and what a read of nil states.
DEFAULT_MODELS: Final = {
    "jsonl": "log",
    "knossos": "cas-register",
    "porcupine-kv": "key-value",
    "jepsen-etcd": "cas-register",
}


def parse(format: str, text: Iterable[str]) -> Iterator[Line | BadLine]:
    """The lines of a file, with their ends, in one of :data:`DEFAULT_MODELS`' formats."""
    return _PARSERS[format](_without_mark(text))


def _without_mark(text: Iterable[str]) -> Iterator[str]:
    """Leave out the byte order mark with which editors of some systems begin a file of UTF-8."""
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
        if "jepsen.util" in line and not is_utf8(line):
            yield BadLine(number, NO_UTF8, UNREADABLE)
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
        # Lines are counted as forms are read: whoever has to mend the file looks for a line.
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


def _knossos(text: Iterable[str]) -> Iterator[Line | BadLine]:
    """EDN whose values may all be [key value], as Jepsen's independent keys are written.

    Whether they are, the first invocation says that can only be one of both: a read of [key nil] or a cas of [key
    [from to]] on the one side, no value, a single one or a cas of [from to] on the other.
    """
    lines = _edn(text)
    waiting: list[Line | BadLine] = []
    has_keys: bool | None = None
    for line in lines:
        waiting.append(line)
        if isinstance(line, Line) and line.kind == "invoke":
            has_keys = _has_key(line)
            if has_keys is not None:
                break
    whole = chain(waiting, lines)
    yield from map(_keyed, whole) if has_keys else whole


def _has_key(line: Line) -> bool | None:
    """True if an invocation's value is a key and a value, None if nobody can tell."""
    match line.value:
        case [_, None]:
            return True
        case [_, second] if line.function == "cas":
            return isinstance(second, list)
        case [_, _] if line.function != "txn":
            return None
    return False


def _keyed(line: Line | BadLine) -> Line | BadLine:
    if isinstance(line, BadLine):
        return line
    match line.value:
        case [key, value]:
            return replace(line, key=str(key), value=value)
    if line.kind == "invoke":
        return BadLine(
            line.number, f"{brief(line.value, 80)} is not [key value], unlike the values before it"
        )
    return replace(line, value=None)  # its invocation has the key


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
            if not is_utf8(line):
                raise ValueError(NO_UTF8)
            form = _DECODER.decode(line)
            if "\\u" in line:  # half a surrogate pair is no text
                json.dumps(form, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            is_cut = not line.endswith("\n")
            why = (
                f"{error.msg} (column {error.colno})"
                if isinstance(error, json.JSONDecodeError)
                else str(error)
            )
            yield BadLine(number, CUT if is_cut else f"not JSON: {why}", UNREADABLE, is_cut)
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


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)


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


_PARSERS: Final = {"jsonl": _jsonl, "knossos": _knossos, "porcupine-kv": _edn, "jepsen-etcd": _jepsen_etcd}

"""Small histories in the notation of docs/checker.md, as JSON lines: what the page shows is what the tests judge.

``p: send a@0 b@1; c: poll a@0 || d: poll b@1`` is: client p sends a and then b, acknowledged at offsets 0 and 1; then,
at the same time, c polls a and d polls b. ``a@?`` is a send of unknown outcome, ``a!`` one that failed, ``y.a@0``
concerns queue y (x, if no queue is named), ``[send a@0, poll b@1]`` is a transaction, and parentheses hold what happens
one after the other while something else goes on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from spark_analysis.checking.queues.knowledge import Operation
from spark_analysis.importing.arrow import Row
from spark_analysis.importing.formats import parse
from spark_analysis.importing.json_lines import credible
from spark_analysis.importing.json_rows import log_rows
from spark_analysis.importing.lines import BadLine, Line, Open, Orphan, matched
from spark_analysis.importing.moments import Period
from spark_analysis.importing.schema import OPERATION_NAMES

STEP_NS = 10
_LOOKED_AT = [one.name for one in fields(Operation)]


@dataclass(frozen=True)
class _Message:
    queue: str
    value: str
    offset: int | None
    outcome: str


def _message(text: str) -> _Message:
    match = re.fullmatch(r"(?:(\w)\.)?(\w)(?:@(\d+|\?)|(!))", text)
    assert match is not None, text
    queue, value, offset, failed = match.groups()
    is_known = offset is not None and offset != "?"
    outcome = "fail" if failed else "ok" if is_known else "info"
    return _Message(queue or "x", value, int(offset) if is_known else None, outcome)


class _Writer:
    """Lines of one history; keys, clients and values get ``name`` in front, so that many can be judged at once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: list[tuple[int, str]] = []

    def sequence(self, text: str, begin: int) -> int:
        for step in _split(text, ";"):
            begin = self.together(step, begin) + 1
        return begin

    def together(self, text: str, begin: int) -> int:
        parts = _split(text, "||")
        end = begin
        for part in parts:
            if part.startswith("("):
                end = max(end, self.sequence(part[1:-1], begin + 1))
        operations = [part for part in parts if not part.startswith("(")]
        return max([end, *(self.operation(one, begin, end + STEP_NS) for one in operations)])

    def operation(self, text: str, begin: int, end: int) -> int:
        client, what = text.split(": ", 1)
        if what.startswith("["):
            self.transaction(client, _split(what[1:-1], ","), begin, end)
            return end
        verb, *words = what.split()
        if verb == "send":
            for word in words:
                self.send(client, _message(word), begin, end)
                begin, end = end + 1, end + 1 + STEP_NS
            return end - 1 - STEP_NS
        if verb == "poll":
            self.pair(client, "poll", begin, end, None, self.polled(words))
        elif verb == "read":
            offset = _message(words[0]).offset
            self.pair(
                client, "read", begin, end, offset, self.polled(words)[self.key("x")], key=self.key("x")
            )
        else:
            self.pair(client, verb, begin, end, [self.key(queue) for queue in words], None)
        return end

    def send(self, client: str, one: _Message, begin: int, end: int) -> None:
        asked = f"{self.name}{one.value}"
        self.pair(client, "append", begin, end, asked, one.offset, kind=one.outcome, key=self.key(one.queue))

    def transaction(self, client: str, parts: list[str], begin: int, end: int) -> None:
        asked: list[Any] = []
        told: list[Any] = []
        for part in parts:
            verb, *words = part.split()
            if verb == "send":
                one = _message(words[0])
                asked.append(["send", self.key(one.queue), f"{self.name}{one.value}"])
                told.append(["send", self.key(one.queue), [one.offset, f"{self.name}{one.value}"]])
            else:
                asked.append(["poll"])
                told.append(["poll", self.polled(words)])
        self.pair(client, "txn", begin, end, asked, told)

    def polled(self, words: list[str]) -> dict[str, list[list[Any]]]:
        queues: dict[str, list[list[Any]]] = {}
        for one in map(_message, words):
            queues.setdefault(self.key(one.queue), []).append([one.offset, f"{self.name}{one.value}"])
        return queues

    def key(self, queue: str) -> str:
        return f"{self.name}/{queue}"

    def pair(
        self,
        client: str,
        function: str,
        begin: int,
        end: int,
        asked: Any,
        told: Any,
        *,
        kind: str = "ok",
        key: str = "",
    ) -> None:
        line = {"process": f"{self.name}{client}", "f": function, "key": key}
        self.lines.append((begin, json.dumps({"time": begin, "type": "invoke", "value": asked} | line)))
        self.lines.append((end, json.dumps({"time": end, "type": kind, "value": told} | line)))


def _split(text: str, separator: str) -> list[str]:
    """At the separators that no bracket encloses."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if not depth and text.startswith(separator, place):
            parts.append(text[start:place].strip())
            start = place + len(separator)
    return [*parts, text[start:].strip()]


def json_lines(text: str, name: str = "") -> list[str]:
    """The history as the lines of a JSON lines file."""
    writer = _Writer(name)
    writer.sequence(text, 0)
    return [line for _, line in sorted(writer.lines, key=lambda line: line[0])]


def log_operations(lines: Iterable[Line | BadLine], period: Period | None = None) -> Iterator[Row | BadLine]:
    """Rows of schema.OPERATIONS from JSON lines in one piece, without Spark."""
    for one in matched(credible(lines, period or Period())):
        if isinstance(one, BadLine):
            yield one
        elif isinstance(one, Orphan):
            yield one.bad_line()
        elif isinstance(one, Open):
            yield from log_rows(one.line.number, one.line, None)
        else:
            yield from log_rows(one[0].number, *one)


def rows(text: str, name: str = "", first_op: int = 0) -> list[tuple[Any, ...]]:
    """The history as rows of schema.OPERATIONS."""
    read = list(log_operations(parse("jsonl", json_lines(text, name))))
    assert not [row for row in read if isinstance(row, BadLine)], read
    return [(first_op + row[0], *row[1:]) for row in read if not isinstance(row, BadLine)]


def by_queue(listed: list[tuple[Any, ...]]) -> dict[str, list[Operation]]:
    """Rows of schema.OPERATIONS as operations of each queue; assignments are in all of them."""
    queues: dict[str, list[Operation]] = {}
    everywhere: list[Operation] = []
    for row in listed:
        named = dict(zip(OPERATION_NAMES, row, strict=True))
        named |= {"values": tuple(named["values"] or ()), "offsets": tuple(named["offsets"] or ()) or None}
        one = Operation(**{name: named[name] for name in _LOOKED_AT})
        (queues.setdefault(named["key"], []) if named["key"] else everywhere).append(one)
    return {key: listed + everywhere for key, listed in queues.items()}

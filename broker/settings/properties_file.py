"""Java properties text, the syntax of RocketMQ's ``broker.conf``.

Written from the format's description in the documentation of ``java.util.Properties``: comments begin with ``#`` or
``!``, the key ends at the first unescaped ``=``, ``:`` or blank, a backslash at the end joins the next line, and
``\\uXXXX`` and the usual one-letter escapes stand in keys and values. Unlike Java, every entry keeps its line number,
because the messages that refuse a value must say where it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LETTER_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANKS = " \t\f"
_FOUR_DIGITS = re.compile("[0-9a-fA-F]{4}")


class PropertiesSyntaxError(ValueError):
    """Text that is not properties; ``line`` counts from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Property:
    """One entry and the line (from 1) on which it begins."""

    key: str
    value: str
    line: int


def parse(text: str) -> list[Property]:
    """Every entry in file order, repeated keys included; raises :class:`PropertiesSyntaxError`."""
    entries = []
    for line, logical in _logical_lines(text):
        key_end = _key_end(logical)
        rest = logical[key_end:].lstrip(_BLANKS)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANKS)
        entries.append(Property(_unescape(logical[:key_end], line), _unescape(rest, line), line))
    return entries


def line(key: str, value: str) -> str:
    """One entry as text that `parse` reads back, its line feed included."""
    escapes = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
    shown = "".join(escapes.get(character, character) for character in value)
    kept = (
        "\\" if shown[:1] in tuple(_BLANKS) else ""
    )  # or its first blank would be taken for the separator's
    return f"{key}={kept}{shown}\n"


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with continuations joined, without comments and blank lines."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    number = 0
    while number < len(lines):
        start = number
        logical = lines[number].lstrip(_BLANKS)
        number += 1
        if not logical or logical[0] in "#!":
            continue
        while _ends_in_continuation(logical):
            following = lines[number].lstrip(_BLANKS) if number < len(lines) else ""
            logical = logical[:-1] + following
            number += 1
        if logical:
            yield start + 1, logical


def _ends_in_continuation(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _key_end(logical: str) -> int:
    escaped = False
    for position, character in enumerate(logical):
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character in "=:" or character in _BLANKS:
            return position
    return len(logical)


def _unescape(text: str, line: int) -> str:
    if "\\" not in text:
        return text
    pieces: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\" or position == len(text):
            pieces.append(character)
            continue
        escape = text[position]
        position += 1
        if escape == "u":
            digits = text[position : position + 4]
            if _FOUR_DIGITS.fullmatch(digits) is None:
                raise PropertiesSyntaxError(line, f"\\u{digits} is not four hexadecimal digits")
            pieces.append(chr(int(digits, 16)))
            position += 4
        else:
            pieces.append(_LETTER_ESCAPES.get(escape, escape))
    return "".join(pieces)

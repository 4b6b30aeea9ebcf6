"""The words and signs of conditions in SQL92, and why a condition cannot be used."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from broker.reading.sql92_table import KEYWORD, PASSED, WORD

_WORD: Final = re.compile(WORD)
_KEYWORD: Final = re.compile(KEYWORD)
END: Final = "$END"
"""The kind of the token behind the last one."""


class SqlError(ValueError):
    """An expression that cannot be used; `position` counts characters from 0. The client's fault, no retry helps."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"at character {position + 1}: {reason}")
        self.position = position
        self.reason = reason


class Token(NamedTuple):
    """A word or sign of an expression, which begins at character `at`."""

    kind: str
    text: str
    at: int


def tokens(expression: str) -> Iterator[Token]:
    """Yields words and signs one by one. Raises `SqlError` at what begins none."""
    # With an end every comment has one; else it would be looked for again at each of many hyphens.
    text, at = expression + "\n", 0
    while at < len(text):
        found = _WORD.match(text, at)
        if found is None:
            raise SqlError(at, f"{text[at]!r} begins nothing that is known")
        kind, word = found.lastgroup, found[0]
        assert kind is not None, "each kind is a named group"
        if kind == "NAME" and (keyword := _KEYWORD.fullmatch(word)):
            kind = keyword.lastgroup or kind
        if kind not in PASSED:
            yield Token(kind, word, at)
        at = found.end()
    yield Token(END, "", len(expression))

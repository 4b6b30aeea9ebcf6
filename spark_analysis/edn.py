"""A reader for the part of EDN that Jepsen, Knossos and porcupine histories use.

Maps, vectors, lists and sets, strings, numbers, keywords and symbols (both as plain text), nil, true, false,
comments. A tag, as in ``#jepsen.history.Op{...}``, is left out: what it stands before is read as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final


class EdnError(ValueError):
    """Text that is not EDN, with the place."""


_TOKEN: Final = re.compile(
    r"""[\s,]+|;[^\n]*
    |(?P<open>\#?\{|\[|\()|(?P<close>[}\])])
    |(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<atom>[^\s,"{}\[\]();]+)""",
    re.VERBOSE | re.DOTALL,
)
_DIGITS_MAX: Final = 1000
_CLOSING: Final = {"{": "}", "#{": "}", "[": "]", "(": ")"}
_WORDS: Final[dict[str, Any]] = {"nil": None, "true": True, "false": False}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}


def read_all(text: str) -> Iterator[Any]:
    """Every top-level form of ``text``. Raises :class:`EdnError`."""
    open_forms: list[tuple[str, list[Any]]] = []
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise EdnError(f"character {place}: unexpected {text[place : place + 20]!r}")
        place = match.end()
        value: Any
        if match["open"]:
            open_forms.append((match["open"], []))
            continue
        if match["close"]:
            if not open_forms or _CLOSING[open_forms[-1][0]] != match["close"]:
                raise EdnError(f"character {match.start()}: {match['close']!r} closes nothing")
            value = _form(*open_forms.pop(), match.start())
        elif match["string"]:
            value = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), match["string"][1:-1])
        elif match["atom"]:
            if match["atom"].startswith("#") and not match["atom"].startswith("##"):
                continue
            value = _atom(match["atom"])
        else:
            continue
        if open_forms:
            open_forms[-1][1].append(value)
        else:
            yield value
    if open_forms:
        raise EdnError(f"the text ends inside {open_forms[-1][0]!r}")


def _form(opening: str, parts: list[Any], place: int) -> Any:
    if opening == "{":
        if len(parts) % 2:
            raise EdnError(f"character {place}: a map with a key without value")
        try:
            return dict(zip(parts[::2], parts[1::2], strict=True))
        except TypeError:  # unhashable
            raise EdnError(f"character {place}: a map or a list is the key of a map") from None
    return parts


def _atom(word: str) -> Any:
    if word in _WORDS:
        return _WORDS[word]
    if re.fullmatch(r"[+-]?\d+N?", word):
        if len(word) > _DIGITS_MAX:
            raise EdnError(f"an integer of {len(word)} digits")
        return int(word.rstrip("N"))
    if re.fullmatch(r"[+-]?\d+\.\d*(?:[eE][+-]?\d+)?M?", word):
        return float(word.rstrip("M"))
    return word.removeprefix(":")

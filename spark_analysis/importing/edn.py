"""A reader for the part of EDN that Jepsen, Knossos and porcupine histories use.

Maps, vectors, lists and sets, strings, numbers, keywords and symbols (both as plain text), nil, true, false,
comments. A tag, as in ``#jepsen.history.Op{...}``, is left out: what it stands before is read as it is. A set is a list
in one order, whatever the order in which it was written, and a truth value that is the key of a map is a
:class:`~spark_analysis.importing.frozen.Truth`, as to Python ``true`` and ``1`` would be one key.
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from spark_analysis.importing.frozen import freeze, order
from spark_analysis.importing.lines import NO_UTF8, is_utf8


class EdnError(ValueError):
    """Text that is not EDN. ``place``: the character at which the form begins that could not be read."""

    place = 0


class EdnCutError(EdnError):
    """The text ends inside of a form."""


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
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def read_all(text: str) -> Iterator[Any]:
    """Every top-level form of ``text``. Raises :class:`EdnError`."""
    return (form for _, form in _forms(text, 0))


def is_vector(text: str) -> bool:
    """True if the first form of ``text`` is a vector, whole or not. Raises :class:`EdnError`."""
    return any(token["open"] == "[" for token in islice(_tokens(text), 1))


def read_vector(text: str) -> Iterator[tuple[int, Any]]:
    """(place, form) of each form inside of the one vector that ``text`` is, one by one.

    Raises :class:`EdnError` after all that stands before what is wrong.
    """
    return _forms(text, 1)


def _forms(text: str, depth: int) -> Iterator[tuple[int, Any]]:
    """(place, form) of each form that is inside of ``depth`` others."""
    open_forms: list[tuple[str, list[Any]]] = []
    begun = 0  # where the form begins that is yielded next
    is_over = False
    try:
        for token in _tokens(text):
            if len(open_forms) == depth or is_over:
                begun = token.start()
            if is_over:
                raise EdnError(f"character {begun}: more than one form")
            value: Any
            if token["open"]:
                open_forms.append((token["open"], []))
                if len(open_forms) == depth:
                    begun = token.end()
                continue
            if token["close"]:
                if not open_forms or _CLOSING[open_forms[-1][0]] != token["close"]:
                    raise EdnError(f"character {token.start()}: {token['close']!r} closes nothing")
                value = _form(*open_forms.pop(), token.start())
            elif token["string"]:
                value = _text(token["string"][1:-1], token.start())
            else:
                value = _atom(token["atom"])
            if len(open_forms) > depth:
                open_forms[-1][1].append(value)
            elif len(open_forms) == depth:
                yield begun, value
                begun = token.end()
            else:
                is_over = True
        if open_forms:
            raise EdnCutError(f"the text ends inside of {open_forms[-1][0]!r}")
    except EdnError as error:
        error.place = begun
        raise


def _tokens(text: str) -> Iterator[re.Match[str]]:
    """Yield the tokens of a text without blanks, comments and tags."""
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None and text[place] == '"':
            raise EdnCutError("the text ends inside of a string")
        if match is None:
            raise EdnError(f"character {place}: unexpected {text[place : place + 20]!r}")
        place = match.end()
        is_tag = (match["atom"] or "").startswith("#") and not match["atom"].startswith("##")
        if match.lastgroup is not None and not is_tag:
            if not is_utf8(match[0]):
                raise EdnError(f"character {match.start()}: {NO_UTF8}")
            yield match


def _form(opening: str, parts: list[Any], place: int) -> Any:
    if opening == "{":
        if len(parts) % 2:
            raise EdnError(f"character {place}: a map with a key without value")
        keys = [freeze(key) if isinstance(key, bool) else key for key in parts[::2]]
        try:
            entries = dict(zip(keys, parts[1::2], strict=True))
        except TypeError:  # unhashable
            raise EdnError(f"character {place}: a map or a list is the key of a map") from None
        if len(entries) < len(keys):
            raise EdnError(f"character {place}: a map with the same key twice")
        return entries
    if opening != "#{":
        return parts
    try:
        return sorted(parts, key=lambda part: order(freeze(part)))
    except ValueError as error:
        raise EdnError(f"character {place}: {error}") from None


def _text(written: str, place: int) -> str:
    """What a string stands for whose escapes are ``written`` out."""

    def character(found: re.Match[str]) -> str:
        if found[1]:
            return chr(int(found[1], 16))
        if found[2] == "u":
            raise EdnError(f"character {place}: a string with \\u without four digits")
        return _ESCAPES.get(found[2], found[2])

    if "\\" not in written:
        return written
    text = re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", character, written, flags=re.DOTALL)
    try:
        # Two escapes may be the halves of one character, as Java writes it.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise EdnError(f"character {place}: a string with half a character in it") from None


def _atom(word: str) -> Any:
    if word in _WORDS:
        return _WORDS[word]
    if re.fullmatch(r"[+-]?\d+N?", word):
        if len(word) > _DIGITS_MAX:
            raise EdnError(f"an integer of {len(word)} digits")
        return int(word.rstrip("N"))
    if re.fullmatch(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?M?", word):
        return float(word.rstrip("M"))
    return word.removeprefix(":")

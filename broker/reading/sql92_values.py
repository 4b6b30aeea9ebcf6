"""Values in conditions in SQL92: how two of them compare, one of which may be the text of a property.

The rules are RocketMQ's (`ComparisonExpression`); sql92.py says what they come to.
"""

import re
from typing import Any, Final


class TypeMismatchError(Exception):
    """A message has a text where a number is needed."""


class Long(int):
    """An integer literal beyond 32 bits: texts beside it are read with 64."""


_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_FRACTION: Final = re.compile(
    r"\s*[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)\s*"
)


def _as_integer(text: str, like: int) -> int:
    bits = 63 if isinstance(like, Long) else 31
    if len(text) <= 20 and _INTEGER.fullmatch(text):
        number = int(text)
        if -(1 << bits) <= number < 1 << bits:
            return number
    raise TypeMismatchError


def as_fraction(text: str) -> float:
    """Reads a decimal fraction as Java does. Raises `TypeMismatchError`."""
    if len(text) > 400 or not _FRACTION.fullmatch(text):
        raise TypeMismatchError
    return float(text.strip().rstrip("fFdD") if text.strip()[-1:] in "fFdD" else text)


def compare(left: Any, right: Any) -> int:
    """Returns -1, 0 or 1; kinds that cannot be compared are unequal (-1). Raises `TypeMismatchError`."""
    if type(left) is not type(right):
        if isinstance(left, str):
            left = _like(left, right)
        elif isinstance(right, str):
            right = _like(right, left)
        elif isinstance(left, bool) or isinstance(right, bool):
            return -1
        elif isinstance(left, float) or isinstance(right, float):
            left, right = float(left), float(right)
    if left == right:
        return 0
    if left != left or right != right:  # NaN is equal to itself and above all others, as in Java
        return int(left != left) - int(right != right)
    return 1 if left > right else -1


def _like(text: str, other: Any) -> Any:
    if isinstance(other, bool):
        return text.lower() == "true"
    if isinstance(other, int):
        return _as_integer(text, other)
    return as_fraction(text)

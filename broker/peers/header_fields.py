"""Checks of single fields in the headers that peers send: whatever has not the right type and range is refused."""

from typing import Any, Final, NoReturn

INDEX_END: Final = 1 << 62
"""Behind every index, term and number that a header may hold."""


class FieldError(Exception):
    """A header's field is not what it must be."""


def refuse(name: str, value: object) -> NoReturn:
    """Raises `FieldError`."""
    raise FieldError(f"field {name} has the value {value!r}")


def index_of(name: str, value: Any, low: int = -1) -> int:
    """The value, if it is an index or a number from `low` on."""
    if type(value) is not int or not low <= value < INDEX_END:
        refuse(name, value)
    return value


def text_of(name: str, value: Any) -> str:
    """The value, if it is text."""
    if type(value) is not str:
        refuse(name, value)
    return value


def bytes_of(name: str, value: Any) -> bytes:
    """The value, if it is bytes."""
    if type(value) is not bytes:
        refuse(name, value)
    return value


def flag_of(name: str, value: Any) -> bool:
    """The value, if it is a truth value."""
    if type(value) is not bool:
        refuse(name, value)
    return value

"""Values of a history in the form that states of a search need: hashable, equal only if a user would call them the
same.

Python says ``True == 1`` and ``False == 0``, so a register that was set to ``true`` would have given an acceptable
answer with ``1``. Truth values are therefore a type of their own here. ``1`` and ``1.0`` are one number, as in JSON.
"""

import json
from enum import Enum
from typing import Any


class Truth(Enum):
    """``true`` or ``false``; equal to nothing else."""

    FALSE = "false"
    TRUE = "true"

    def __bool__(self) -> bool:
        return self is Truth.TRUE

    def __repr__(self) -> str:
        return self.value

    __str__ = __repr__


def freeze(value: Any) -> Any:
    """Lists as tuples, maps as pairs in one order, truth values as :class:`Truth`; what is frozen stays as it is."""
    if isinstance(value, bool):
        return Truth.TRUE if value else Truth.FALSE
    if isinstance(value, list | tuple):
        return tuple(freeze(one) for one in value)
    if isinstance(value, dict):
        return tuple(sorted(((freeze(key), freeze(one)) for key, one in value.items()), key=order))
    return value


def order(value: Any) -> tuple[Any, ...]:
    """A sorting key for frozen values: any two can be compared, and equal ones are side by side."""
    match value:
        case None:
            return (0,)
        case int() | float():
            return 1, value
        case str():
            return 2, value
        case Truth():
            return 3, value.value
        case tuple():
            return 4, tuple(order(one) for one in value)
    return 5, repr(value)


def as_json(value: Any) -> str:
    """A frozen value as text, from which ``freeze(json.loads(text))`` makes it again."""
    return json.dumps(value, default=_plain)


def _plain(value: Any) -> bool:
    if isinstance(value, Truth):
        return bool(value)
    raise TypeError(f"{value!r:.60} is no value of a history")

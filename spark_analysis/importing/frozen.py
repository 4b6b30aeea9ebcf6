"""Values of a history in the form that states of a search need: hashable, equal only if a user would call them the
same.

Python says ``True == 1`` and ``False == 0``, so a register that was set to ``true`` would have given an acceptable
answer with ``1``. Truth values are therefore a type of their own here. ``1`` and ``1.0`` are one number, as in JSON.
"""

import json
from enum import Enum
from typing import Any, Final

DEEPEST: Final = 100
"""The most lists and maps that stand one in the other: whoever goes through a value does so by recursion."""


class Truth(Enum):
    """``true`` or ``false``; equal to nothing else."""

    FALSE = "false"
    TRUE = "true"

    def __bool__(self) -> bool:
        return self is Truth.TRUE

    def __repr__(self) -> str:
        return self.value

    __str__ = __repr__


def freeze(value: Any, left: int = DEEPEST) -> Any:
    """Lists as tuples, maps as pairs in one order, sets frozen, truth values as :class:`Truth`; what is frozen stays as
    it is. Raises ValueError for more than ``left`` lists one in the other."""
    if isinstance(value, bool):
        return Truth.TRUE if value else Truth.FALSE
    if not isinstance(value, list | tuple | dict | set | frozenset):
        return value
    if not left:
        raise ValueError(f"a value has more than {DEEPEST} lists one in the other")
    if isinstance(value, dict):
        pairs = ((freeze(key, left - 1), freeze(one, left - 1)) for key, one in value.items())
        return tuple(sorted(pairs, key=order))
    parts = (freeze(one, left - 1) for one in value)
    return frozenset(parts) if isinstance(value, set | frozenset) else tuple(parts)


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
        case frozenset():
            return 5, tuple(sorted(map(order, value)))
    return 6, repr(value)


def as_json(value: Any) -> str:
    """A frozen value as text, from which ``freeze(json.loads(text))`` makes it again."""
    return json.dumps(value, default=_plain)


def _plain(value: Any) -> bool:
    if isinstance(value, Truth):
        return bool(value)
    raise TypeError(f"{value!r:.60} is no value of a history")

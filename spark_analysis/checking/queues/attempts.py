"""Appends of unknown outcome, and the offsets that they have to explain."""

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attempt:
    """Value ``index`` of the ``size`` values of an append of unknown outcome, invoked at ``invoke_ns``."""

    op: int
    index: int
    size: int
    value: Hashable
    invoke_ns: int


@dataclass(frozen=True, slots=True)
class Seen:
    """``value`` was read at ``position`` and no append was acknowledged there."""

    position: int
    value: Hashable
    deadline_ns: float


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets ``first..last`` must hold something, and nobody acknowledged or saw what."""

    first: int
    last: int
    deadline_ns: float


Placement = dict[int, tuple[int, int]]
"""Offset -> the append of unknown outcome whose value stands there, by its ``op``, and the value's ``index``."""

"""Planted mistakes by name: each patch says beside itself what it is called and where the mistake comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from broker.replica.replica import Replica

Patch = Callable[[pytest.MonkeyPatch], None]
Flush = Literal["sync", "async"]
Part = Literal["consensus", "storage", "broker"]


@dataclass(frozen=True, slots=True)
class Planted:
    """A mistake, the flush mode that its plans need (None: either), an actor and the groups that they must have."""

    patch: Patch
    history: str
    flush: Flush | None = None
    actor: str | None = None
    groups: int = 1
    part: Part | None = None
    """The part of the product that it is in, of one that was planted before anything was made to find it."""


PLANTED: dict[str, Planted] = {}
"""Filled by the modules of patches as they are imported; `planted_bugs` imports them all."""

UNAIDED: dict[str, Planted] = {}
"""Those with a part: they measure what the simulator finds without help (`detection.py`), so plans are made as if they
were not there."""


def planted(
    name: str,
    history: str,
    *,
    flush: Flush | None = None,
    actor: str | None = None,
    groups: int = 1,
    part: Part | None = None,
) -> Callable[[Patch], Patch]:
    """Lists a patch as a planted mistake. `history`: who made it, or what it gets wrong."""

    def listed(patch: Patch) -> Patch:
        assert name not in PLANTED | UNAIDED, f"two mistakes are called {name!r}"
        mistakes = PLANTED if part is None else UNAIDED
        mistakes[name] = Planted(patch, history, flush, actor, groups, part)
        return patch

    return listed


def let_leadership_know_the_clock(patch: pytest.MonkeyPatch) -> None:
    """Gives `Leadership` an attribute `clock`, for mistakes that take a wall clock for the group's."""
    original = Replica.__init__

    def init(self: Replica, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        self.leadership.clock = self.clock  # type: ignore[attr-defined]

    patch.setattr(Replica, "__init__", init)

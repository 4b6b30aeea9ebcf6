"""Planted mistakes by name: each patch says beside itself what it is called and where the mistake comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pytest

Patch = Callable[[pytest.MonkeyPatch], None]
Flush = Literal["sync", "async"]


@dataclass(frozen=True, slots=True)
class Planted:
    """A mistake, the flush mode that its plans need (None: either), an actor and the groups that they must have."""

    patch: Patch
    history: str
    flush: Flush | None = None
    actor: str | None = None
    groups: int = 1


PLANTED: dict[str, Planted] = {}
"""Filled by the modules of patches as they are imported; `planted_bugs` imports them all."""


def planted(
    name: str, history: str, *, flush: Flush | None = None, actor: str | None = None, groups: int = 1
) -> Callable[[Patch], Patch]:
    """Lists a patch as a planted mistake. `history`: who made it, or what it gets wrong."""

    def listed(patch: Patch) -> Patch:
        assert name not in PLANTED, f"two mistakes are called {name!r}"
        PLANTED[name] = Planted(patch, history, flush, actor, groups)
        return patch

    return listed

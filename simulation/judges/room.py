"""Room that runs out: what may wait at a node has a bound (broker/replica/inner_limits.py), and what finds no room is
marked, so that a batch says whether it came to refusals at all.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.node.node import Node
from broker.requests.shared_places import SharedPlaces
from simulation.journal import Journal


class _Places(SharedPlaces):
    """Places that tell when there is no room."""

    __slots__ = ("_has_none",)

    def __init__(self, most: int, has_none: Callable[[], object]) -> None:
        super().__init__(most)
        self._has_none = has_none

    def has_room(self, share: str, wanted: int = 1) -> bool:
        if super().has_room(share, wanted):
            return True
        self._has_none()
        return False


def watch_room(node: Node, journal: Journal) -> None:
    """Notes from now on what finds no room at a node's new process."""

    def mark(text: str) -> Callable[[], None]:
        return lambda: journal.reached(text)

    limits = node.replica.limits
    node._held._budget._places = _Places(
        limits.held_requests_max, mark("too many requests wait for a leader")
    )
    node._forwarding._places = _Places(
        limits.forwarded_max, mark("too many requests wait for the leader's answer")
    )
    node._relayed._unhandled._places = _Places(
        limits.unhandled_max, mark("too many requests wait for a turn")
    )

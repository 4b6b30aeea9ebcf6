"""Room that runs out: what may wait at a node has a bound (broker/replica/inner_limits.py), and what finds no room is
marked, so that a batch says whether it came to refusals at all.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.node.node import Node
from simulation.journal import Journal


def watch_room(node: Node, journal: Journal) -> None:
    """Notes from now on what finds no room at a node's new process."""

    def mark(text: str) -> Callable[[], None]:
        return lambda: journal.reached(text)

    places = node.waiting_places
    places.leader.none_left = mark("too many requests wait for a leader")
    places.answer.none_left = mark("too many requests wait for the leader's answer")
    places.turn.none_left = mark("too many requests wait for a turn")

"""Digests of the replicated state at indices that all nodes of a group agree on, so that a drift between them shows.

Nodes apply the same log, and so must have the same state behind the same entry. Each of them sums its state up behind
entries whose number is a multiple of a step, and tells the newest sum of each step: two nodes that tell different sums
of one index have drifted apart. Few nodes are at the same small step when they are asked while much comes in, so there
are larger ones; and a group that takes little reaches a large one only after days, so there are smaller ones.

A sum costs as much as a snapshot, and is made in steps like one. So small steps are left out when they come soon after
each other, or when there is much state. Nobody need agree on what is left out.
"""

from hashlib import blake2b
from typing import Final

from broker.remoting.pieces import Pieces
from broker.replica.state_writing import StateWriting
from broker.requests.long_bodies import finished
from broker.state.metadata import Metadata
from broker.state.writing import ROWS_AT_ONCE

STEPS: Final = (1 << 10, 1 << 15, 1 << 20)
REST_NS: Final = 10_000_000_000
"""A step but the largest is left out so soon behind its last one."""
ITEMS_MAX: Final = 5_000
"""With more topics, groups and offsets only the largest step counts: these take four milliseconds."""

_DIGEST_BYTES: Final = 6
"""A number of 48 bits is told exactly by Prometheus' floating point numbers."""


class Digests:
    """The newest sums of one node."""

    __slots__ = ("_rows_at_once", "_taken_ns", "_writing", "newest")

    def __init__(self, writing: StateWriting, rows_at_once: int = ROWS_AT_ONCE) -> None:
        self._writing = writing
        self._rows_at_once = rows_at_once
        self.newest: dict[int, tuple[int, int]] = {}
        """By step, the index of the entry and the sum of the state behind it."""
        self._taken_ns: dict[int, int] = {}

    @staticmethod
    def next_index(applied_index: int) -> int:
        """Returns the first index behind that one at which there may be a sum."""
        return (applied_index + 1) // STEPS[0] * STEPS[0] + STEPS[0] - 1

    def applied(self, index: int, metadata: Metadata, now_ns: int) -> None:
        """The state behind the entry `index` is here, and nothing of what follows it."""
        if (index + 1) % STEPS[0]:
            return
        items = len(metadata.topics) + len(metadata.groups) + metadata.offsets.count
        steps = [step for step in STEPS if not (index + 1) % step and self._is_due(step, items, now_ns)]
        if not steps:
            return
        self._taken_ns |= dict.fromkeys(steps, now_ns)

        def written(state: Pieces, _took_ns: int) -> None:
            self.newest |= dict.fromkeys(steps, (index, _sum(state)))

        self._writing.begin(metadata.view().written(self._rows_at_once), written)

    def _is_due(self, step: int, items: int, now_ns: int) -> bool:
        if step == STEPS[-1]:
            return True
        return items <= ITEMS_MAX and now_ns - self._taken_ns.get(step, -REST_NS) >= REST_NS


def digest_of(metadata: Metadata) -> int:
    """Sums up topics, groups, offsets and all else that is replicated.

    Queues are left out: after a start they end where they ended before, while their log is gone through once more.
    """
    return _sum(finished(metadata.written(ROWS_AT_ONCE)))


def _sum(state: Pieces) -> int:
    whole = blake2b(digest_size=_DIGEST_BYTES)
    for piece in state.all():
        whole.update(piece)
    return int.from_bytes(whole.digest())

"""Digests of the replicated state at indices that all nodes of a group agree on, so that a drift between them shows.

Nodes apply the same log, and so must have the same state behind the same entry. Each of them sums its state up behind
entries whose number is a multiple of a step, and tells the newest sum of each step: two nodes that tell different sums
of one index have drifted apart. Few nodes are at the same small step when they are asked while much comes in, so there
are larger ones; and a group that takes little reaches a large one only after days, so there are smaller ones.

The order in which the rows of a table stand is not part of a sum: release 0.1.0 wrote offsets in the order in which
they came, and what is loaded from that need not stand where it would if the log had been gone through.

A sum costs some times what a snapshot does, and is made in steps like one. So small steps are left out when they come
soon after each other, or when there is much state. Nobody need agree on what is left out.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

import msgspec

from broker.replica.state_writing import StateWriting
from broker.requests.processing import Pace
from broker.state.metadata import Metadata
from broker.state.writing import ROWS_AT_ONCE, MessagePackWriter, Rows

STEPS: Final = (1 << 10, 1 << 15, 1 << 20)
REST_NS: Final = 10_000_000_000
"""A step but the largest is left out so soon behind its last one."""
ITEMS_MAX: Final = 5_000
"""With more topics, consumer groups and offsets only the largest step counts: these take six milliseconds."""

_DIGEST_BYTES: Final = 6
"""A number of 48 bits is told exactly by Prometheus' floating point numbers."""


@dataclass(slots=True, eq=False)
class Digests:
    """The newest sums of one node."""

    _writing: StateWriting
    _rows_at_once: int = ROWS_AT_ONCE
    newest: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The newest sum of each step: the index of an entry, and the sum of the state right behind it."""
    _taken_ns: dict[int, int] = field(default_factory=dict)

    @staticmethod
    def next_index(applied_index: int) -> int:
        """Returns the first index behind that one at which there may be a sum."""
        return (applied_index + 1) // STEPS[0] * STEPS[0] + STEPS[0] - 1

    def applied(self, index: int, metadata: Metadata, now_ns: int) -> None:
        """Begins the sums that are due behind the entry `index`; `metadata` is the state right behind it, without
        anything that follows."""
        if (index + 1) % STEPS[0]:
            return
        items = len(metadata.topics) + len(metadata.groups) + metadata.offsets.count
        steps = [step for step in STEPS if not (index + 1) % step and self._is_due(step, items, now_ns)]
        if not steps:
            return
        self._taken_ns |= dict.fromkeys(steps, now_ns)

        def summed(digest: int, _took_ns: int) -> None:
            self.newest |= dict.fromkeys(steps, (index, digest))

        # Of a view: later turns go on with the sum, and commands change the state meanwhile.
        self._writing.begin(_summed(metadata.view(), self._rows_at_once), summed)

    def _is_due(self, step: int, items: int, now_ns: int) -> bool:
        # It comes seldom enough, whatever it takes.
        if step == STEPS[-1]:
            return True
        return items <= ITEMS_MAX and now_ns - self._taken_ns.get(step, -REST_NS) >= REST_NS


def _summed(metadata: Metadata, rows_at_once: int) -> Generator[None, None, int]:
    """Does a step of the sum up to each yield, and returns it: that of each row's digest and that of all else."""
    encode, pace = msgspec.msgpack.Encoder().encode, Pace(rows_at_once)
    total, others = 0, {}
    for name, value in metadata.tables(rows_at_once).items():
        if not isinstance(value, Rows):
            others[name] = value
            continue
        # Rows are added up in whatever order, so that each sum has to say of which table the row is.
        key = name.encode()
        for rows in value.slices:
            total += sum(
                int.from_bytes(blake2b(encode(row), digest_size=_DIGEST_BYTES, key=key).digest())
                for row in rows
            )
            if pace.spent(value.weight(rows)):
                yield
    whole = blake2b(digest_size=_DIGEST_BYTES)
    pieces = yield from MessagePackWriter(rows_at_once).map(others)
    for piece in pieces.all():
        whole.update(piece)
    return (total + int.from_bytes(whole.digest())) % (1 << 8 * _DIGEST_BYTES)

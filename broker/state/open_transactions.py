"""Which transactions are open: replicated, and derived from the log alone (see the head of this package).

Half messages are numbered by their offsets in their queue. Nothing is kept of one before something is said of it:
`horizon` is the first offset that nothing was said of yet, and what lies at or beyond it is open. Below, open ones are
kept one by one. So a finished transaction costs nothing, whatever their number, and an open one an entry or less.
"""

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from broker.state.transaction_records import decision_of


@dataclass(slots=True)
class Transactions:
    """The state machine's part; changed by `apply_record`, `checked` and `resumed` only, in log order."""

    horizon: int = 0
    times_checked: dict[int, int] = field(default_factory=dict)
    """Open half messages before the horizon -> how often a producer was asked about them."""
    operations_owed: dict[int, None] = field(default_factory=dict)
    """Decided ones without an operation message, oldest decision first."""

    def is_open(self, half_offset: int) -> bool:
        """Whether a half message, which must exist, is undecided."""
        return half_offset >= self.horizon or half_offset in self.times_checked

    def open_before(self, end: int) -> Iterator[int]:
        """The open ones of the half messages before `end`; of this moment, whatever happens while it is read."""
        return chain(tuple(self.times_checked), range(self.horizon, end))

    def times(self, half_offset: int) -> int:
        """How often a producer was asked about an open one."""
        return self.times_checked.get(half_offset, 0)

    def first_open(self, end: int) -> int:
        """The first open half message; `end`, where the queue ends, if there is none."""
        return min(self.times_checked, default=min(self.horizon, end))

    # ------------------------------------------------------------------ applied, in log order

    def apply_record(self, record: memoryview) -> None:
        """A committed record that may decide something."""
        decision = decision_of(record)
        if decision is None:
            return
        for offset in decision.half_offsets:
            self._mention(offset)
            was_open = self.times_checked.pop(offset, None) is not None
            if decision.is_operation:
                self.operations_owed.pop(offset, None)
            elif was_open:
                self.operations_owed[offset] = None

    def checked(self, half_offsets: tuple[int, ...]) -> None:
        """A producer is about to be asked about these."""
        for offset in half_offsets:
            self._mention(offset)
            if offset in self.times_checked:
                self.times_checked[offset] += 1

    def resumed(self, half_offset: int) -> None:
        """An administrator wants it asked about as if it were new."""
        if half_offset in self.times_checked:
            self.times_checked[half_offset] = 0

    def _mention(self, half_offset: int) -> None:
        for offset in range(self.horizon, half_offset + 1):
            self.times_checked[offset] = 0
        self.horizon = max(self.horizon, half_offset + 1)

    # ------------------------------------------------------------------ snapshots

    def to_fields(self) -> list[Any]:
        """For a snapshot. Numbers are packed: millions of small objects would keep the owner's thread for seconds."""
        times = self.times_checked
        return [self.horizon, _packed(times), _packed(times.values()), _packed(self.operations_owed)]

    @classmethod
    def from_fields(cls, fields: list[Any] | None) -> "Transactions":
        """The state that `to_fields` gave; that of a store without transactions for None."""
        if fields is None:
            return cls()
        if len(fields) == 3:  # as it was before numbers were packed
            horizon, times_checked, owed = fields
            return cls(horizon, dict(times_checked), dict.fromkeys(owed))
        horizon, offsets, counts, owed = fields
        times = dict(zip(_unpacked(offsets), _unpacked(counts), strict=True))
        return cls(horizon, times, dict.fromkeys(_unpacked(owed)))


def _packed(numbers: Collection[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


def _unpacked(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(data) // 8}q", data)

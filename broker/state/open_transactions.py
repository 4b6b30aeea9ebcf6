"""The open transactions: replicated, and derived from the log alone (see broker/transactions).

Half messages are numbered by their offsets in their queue. Nothing is kept of one until the log says something of it:
`horizon` is the first offset of which nothing was said yet, and all at or beyond it are open. Below the horizon open
ones are kept one by one. So a finished transaction costs nothing, and an open one an entry or less.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from broker.requests.processing import Pace
from broker.state.snapshot_reading import Read
from broker.state.transaction_records import decision_of
from broker.state.writing import NUMBERS_A_ROW, Numbers


@dataclass(slots=True)
class Transactions:
    """The part of the replicated state; only `apply_record`, `checked` and `resumed` change it, in log order.

    All keys of `times_checked` and `operations_owed` are below `horizon`, and none is in both.
    """

    horizon: int = 0
    times_checked: dict[int, int] = field(default_factory=dict)
    """By open half message below the horizon, how often a producer was asked about it."""
    operations_owed: dict[int, None] = field(default_factory=dict)
    """Decided half messages without an operation message, oldest decision first."""

    def is_open(self, half_offset: int) -> bool:
        """Tells whether a half message, which must exist, is undecided."""
        return half_offset >= self.horizon or half_offset in self.times_checked

    def open_before(self, end: int) -> Iterator[int]:
        """The open half messages before `end`, as they are at the call, whatever happens while they are read."""
        return chain(tuple(self.times_checked), range(self.horizon, end))

    def count_before(self, end: int) -> int:
        """The number of open half messages before `end`, which is not before the horizon."""
        return len(self.times_checked) + max(0, end - self.horizon)

    def times(self, half_offset: int) -> int:
        """The number of times that a producer was asked about an open half message."""
        return self.times_checked.get(half_offset, 0)

    def first_open(self, end: int) -> int:
        """The first open half message; `end`, where the queue ends, if there is none."""
        # Keys lie below the horizon: where there are any, the first of them is the first of all.
        return min(self.times_checked, default=min(self.horizon, end))

    # ------------------------------------------------------------------ applied, in log order

    def apply_record(self, record: memoryview) -> None:
        """Takes over what a committed record decides, if it decides anything."""
        decision = decision_of(record)
        if decision is None:
            return
        for offset in decision.half_offsets:
            # Whatever is said of a half message moves the horizon behind it, also where nothing follows from that.
            self._mention(offset)
            was_open = self.times_checked.pop(offset, None) is not None
            if decision.is_operation:
                self.operations_owed.pop(offset, None)
            # A second decision, which a producer may have repeated, makes no second operation message.
            elif was_open:
                self.operations_owed[offset] = None

    def checked(self, half_offsets: tuple[int, ...]) -> None:
        """Counts a question about each of these that is open."""
        for offset in half_offsets:
            self._mention(offset)
            # Else it was decided while the question was on its way into the log.
            if offset in self.times_checked:
                self.times_checked[offset] += 1

    def resumed(self, half_offset: int) -> None:
        """Counts the questions about an open half message anew, as an administrator wants it."""
        if half_offset in self.times_checked:
            self.times_checked[half_offset] = 0

    def _mention(self, half_offset: int) -> None:
        """Moves the horizon behind a half message of which something is said; those before it are open one by one."""
        for offset in range(self.horizon, half_offset + 1):
            self.times_checked[offset] = 0
        self.horizon = max(self.horizon, half_offset + 1)

    # ------------------------------------------------------------------ snapshots

    def view(self) -> "Transactions":
        """The open transactions as they are now, whatever changes from here on."""
        return Transactions(self.horizon, self.times_checked.copy(), self.operations_owed.copy())

    def to_fields(self) -> list[Any]:
        """The form in a snapshot. Numbers are packed: millions of small objects would take seconds."""
        times = self.times_checked
        return [self.horizon, Numbers(times), Numbers(times.values()), Numbers(self.operations_owed)]

    @classmethod
    def read(cls, fields: list[Any] | None, rows_at_once: int, pace: Pace) -> Read["Transactions"]:
        """Reads the state of which `to_fields` gave the form; for None that of a store without transactions."""
        if fields is None:
            return cls()
        if len(fields) == 3:  # as it was before numbers were packed
            horizon, times_checked, owed = fields
            return cls(horizon, dict(times_checked), dict.fromkeys(owed))
        horizon, offsets, counts, owed = fields
        state = cls(horizon)
        numbers_at_once = rows_at_once * NUMBERS_A_ROW
        for some, times in zip(
            _unpacked(offsets, numbers_at_once), _unpacked(counts, numbers_at_once), strict=True
        ):
            state.times_checked.update(zip(some, times, strict=True))
            if pace.spent(max(1, len(some) // NUMBERS_A_ROW)):
                yield
        for some in _unpacked(owed, numbers_at_once):
            state.operations_owed.update(dict.fromkeys(some))
            if pace.spent(max(1, len(some) // NUMBERS_A_ROW)):
                yield
        return state


def _unpacked(data: bytes, at_once: int) -> Iterator[tuple[int, ...]]:
    for begin in range(0, len(data), 8 * at_once):
        some = data[begin : begin + 8 * at_once]
        yield struct.unpack(f"<{len(some) // 8}q", some)

"""Counts that only rise, by labels, of which there may be any number: those beyond a limit are summed up."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

OTHERS: Final = "(others)"
"""Stands for the labels that have no place of their own. No topic or consumer group may be called so."""

Labels = tuple[str, ...]


@dataclass(slots=True, eq=False)
class Totals:
    """Messages and bytes by labels, the first `_series_max` of them; the sum of all others is kept in one place.

    A place, once given, is kept until its labels are forgotten, so that what is read falls only then.
    """

    _series_max: int
    _table: dict[Labels, list[int]] = field(default_factory=dict)
    _others: list[int] = field(default_factory=lambda: [0, 0])
    is_over: bool = False
    """True once something was summed up for lack of a place."""

    def add(self, labels: Labels, messages: int, record_bytes: int) -> None:
        """Counts messages whose records have so many bytes together."""
        counts = self._table.get(labels)
        if counts is None:
            if len(self._table) < self._series_max:
                counts = self._table[labels] = [0, 0]
            else:
                counts = self._others
                self.is_over = True
        counts[0] += messages
        counts[1] += record_bytes

    def forget(self, is_gone: Callable[[Labels], bool]) -> None:
        """Frees the places of labels that are gone."""
        for labels in [labels for labels in self._table if is_gone(labels)]:
            del self._table[labels]

    def __iter__(self) -> Iterator[tuple[Labels | None, int, int]]:
        """Yields labels, messages and bytes; None for the others, if there are any."""
        for labels, (messages, record_bytes) in list(self._table.items()):
            yield labels, messages, record_bytes
        if self.is_over:
            yield None, self._others[0], self._others[1]

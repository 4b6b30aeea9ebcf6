"""Places in which requests wait, of which nobody gets more than he leaves to others.

With a bound alone the first that fills all places keeps everybody else out for as long as he likes. So an address gets
a further place only while it has fewer than are free: one alone has half of them, and a second one half of what is
left.
"""

from collections import Counter
from typing import Final


class SharedPlaces:
    """`count` places, and who has how many of them."""

    __slots__ = ("_count", "_of", "taken")

    def __init__(self, count: int) -> None:
        self._count: Final = count
        self._of: Counter[str] = Counter()
        self.taken = 0

    def has_room(self, address: str) -> bool:
        """Tells whether somebody who has connected from there may have one more."""
        return self._of[address] < self._count - self.taken

    def take(self, address: str) -> None:
        """Notes that a place is taken; `has_room` was asked."""
        self._of[address] += 1
        self.taken += 1

    def give_back(self, address: str) -> None:
        """Notes that a place is free again."""
        assert self._of[address] > 0, "only what was taken is given back"
        self._of[address] -= 1
        self.taken -= 1
        if not self._of[address]:
            del self._of[address]

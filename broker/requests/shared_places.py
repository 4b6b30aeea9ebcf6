"""Places in which requests wait, or the bytes that these take, of which nobody gets more than he leaves to others.

With a bound alone the first that fills all places keeps everybody else out for as long as he likes. So an address gets
what it wants only if it then has no more than were free: one alone has half of them, and a second one half of what is
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

    def has_room(self, address: str, wanted: int = 1) -> bool:
        """Tells whether somebody who has connected from there may have so many more."""
        return self._of[address] + wanted <= self._count - self.taken

    def take(self, address: str, wanted: int = 1) -> None:
        """Notes that places are taken; `has_room` was asked."""
        self._of[address] += wanted
        self.taken += wanted

    def give_back(self, address: str, taken: int = 1) -> None:
        """Notes that places are free again."""
        assert self._of[address] >= taken, "only what was taken is given back"
        self._of[address] -= taken
        self.taken -= taken
        if not self._of[address]:
            del self._of[address]

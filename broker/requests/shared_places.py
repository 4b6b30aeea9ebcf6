"""Places in which requests wait, or the bytes that these take, of which nobody gets more than he leaves to others.

With a bound alone the first that fills all places keeps everybody else out for as long as he likes. So an address gets
what it wants only if it then has no more than were free: one alone has half of them, and a second one half of what is
left.
"""

from typing import Final


class SharedPlaces:
    """`count` places, and who has how many of them."""

    __slots__ = ("_count", "_of", "taken")

    def __init__(self, count: int) -> None:
        self._count: Final = count
        self._of: dict[str, int] = {}
        """By address; never 0."""
        self.taken = 0

    def has_room(self, address: str, wanted: int = 1) -> bool:
        """Tells whether somebody who has connected from there may have so many more."""
        return self._of.get(address, 0) + wanted <= self._count - self.taken

    def take(self, address: str, wanted: int = 1) -> None:
        """Notes that places are taken; `has_room` was asked."""
        self._of[address] = self._of.get(address, 0) + wanted
        self.taken += wanted

    def give_back(self, address: str, taken: int = 1) -> None:
        """Notes that places are free again."""
        left = self._of.pop(address, 0) - taken
        assert left >= 0, "only what was taken is given back"
        if left:
            self._of[address] = left
        self.taken -= taken

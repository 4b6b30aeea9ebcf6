"""Places in which requests wait, or the bytes that these take, of which no address keeps the others out.

With a bound alone, the first that fills all places keeps everybody else out for as long as he likes. So the second half
of the places is for those who have little. Up to the first half everybody gets what he wants: an address alone has all
of that, however many clients are behind it. Beyond it, with k addresses that have places (who asks counted), an address
gets what it wants only if it then has no more than a k-th of what was free. So a second address finds a third of that
half, whatever the first has, and after k addresses that take all they get 1/(k+1) of all places is free. Who is let in
is never sent away for another: what he waits for may have begun. What counts as one address is said
in one place (`broker.remoting.addresses.share_of`).
"""

from collections.abc import Callable
from typing import Final


def _unheard() -> None:
    """Stands in for `SharedPlaces.none_left` as long as nobody wants to hear of it."""


class SharedPlaces:
    """`most` places, and how many of them each address has."""

    __slots__ = ("_half", "_most", "_of", "none_left", "taken")

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._half: Final = most // 2
        self._of: dict[str, int] = {}
        """By what addresses count as; never 0."""
        self.taken = 0
        self.none_left: Callable[[], object] = _unheard
        """Called when somebody who asks finds no room."""

    def has_room(self, share: str, wanted: int = 1) -> bool:
        """Tells whether an address may have `wanted` places more; if not, calls `none_left`."""
        # The first half is for whoever comes first. Beyond it see the head of this module.
        if self.taken + wanted <= self._half:
            return True
        # Who asks counts as one of those that have places.
        shares = len(self._of) + (share not in self._of)
        if (self._of.get(share, 0) + wanted) * shares <= self._most - self.taken:
            return True
        self.none_left()
        return False

    def take(self, share: str, wanted: int = 1) -> None:
        """Counts places as taken; `has_room` must have said that there are so many."""
        self._of[share] = self._of.get(share, 0) + wanted
        self.taken += wanted

    def free(self, share: str, taken: int = 1) -> None:
        """Counts `taken` places of an address as free again."""
        left = self._of.pop(share, 0) - taken
        assert left >= 0, "only what was taken is freed"
        if left:
            self._of[share] = left
        self.taken -= taken

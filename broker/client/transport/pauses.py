"""The pauses between attempts at one thing: each is longer than the one before, up to a limit.

They are random, so that clients which failed at the same moment do not come back at the same moment.
"""

import random


class Pauses:
    """The pauses of one run of attempts. Their mean is ``first_s`` seconds, and times ``growth`` up to ``max_s``."""

    __slots__ = ("_first_s", "_growth", "_max_s", "_mean_s", "_random")

    def __init__(self, source: random.Random, first_s: float, max_s: float, growth: float = 2.0) -> None:
        self._random = source
        self._first_s = self._mean_s = first_s
        self._max_s = max_s
        self._growth = growth

    def next_s(self) -> float:
        """Return the next pause: half of its mean to one and a half of it."""
        return self.grow() * (0.5 + self._random.random())

    def grow(self) -> float:
        """Return the mean of the next pause, without chance, in seconds; the pause after it is longer, as after
        `next_s`.
        """
        mean_s = self._mean_s
        self._mean_s = min(mean_s * self._growth, self._max_s)
        return mean_s

    def reset(self) -> None:
        """Begin anew with the shortest pause, as an attempt has succeeded."""
        self._mean_s = self._first_s

"""The numbers of requests that a server makes of its own: their responses carry them."""


class Opaques:
    """Counts up; an opaque is an int of Java's, so that 0 follows the largest of these."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        """Returns a number that none of the 2^31 - 1 requests before it has had."""
        self._last = (self._last + 1) & 0x7FFF_FFFF
        return self._last

"""When a part of a node must act next."""

from collections.abc import Callable
from typing import Final

__all__ = ["NEVER", "Deadline"]

NEVER: Final = 1 << 62


class Deadline:
    """`act` is called in the first turn at or after `due_ns`, and sets that anew; whoever has one sets it at any time.

    A node looks at all of them twice a turn, which is why this is a number to read and not a question to ask.
    """

    __slots__ = ("act", "due_ns")

    def __init__(self, act: Callable[[], None], due_ns: int) -> None:
        self.act = act
        self.due_ns = due_ns

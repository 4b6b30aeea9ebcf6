"""When the parts of a node must act next."""

from collections.abc import Callable
from typing import Final

__all__ = ["NEVER", "Deadline", "Deadlines"]

NEVER: Final = 1 << 62


class Deadline:
    """`act` is called in the first turn at or after `due_ns`, and sets it anew; whoever has one sets it at any time."""

    __slots__ = ("_all", "_due_ns", "act")

    def __init__(self, all_deadlines: "Deadlines", act: Callable[[], None], due_ns: int) -> None:
        self._all = all_deadlines
        self.act = act
        self.due_ns = due_ns

    @property
    def due_ns(self) -> int:
        """Monotonic nanoseconds."""
        return self._due_ns

    @due_ns.setter
    def due_ns(self, due_ns: int) -> None:
        self._due_ns = due_ns
        if due_ns < self._all.earliest_ns:
            self._all.earliest_ns = due_ns


class Deadlines:
    """All of a node, which asks twice a turn: so the earliest is a number to read.

    `earliest_ns` may be too early, when one was put off: then nothing is due at that time, and the right one is known.
    """

    __slots__ = ("_deadlines", "earliest_ns")

    def __init__(self) -> None:
        self._deadlines: list[Deadline] = []
        self.earliest_ns = NEVER

    def add(self, act: Callable[[], None], due_ns: int) -> Deadline:
        """One more."""
        deadline = Deadline(self, act, due_ns)
        self._deadlines.append(deadline)
        return deadline

    def run(self, now_ns: int) -> None:
        """Calls whose time has come, in the order in which they were added."""
        if self.earliest_ns > now_ns:
            return
        for deadline in self._deadlines:
            if deadline.due_ns <= now_ns:
                deadline.act()
        self.earliest_ns = min([deadline.due_ns for deadline in self._deadlines])

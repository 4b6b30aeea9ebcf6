"""The time of the call under way, and when the parts of a node must act next."""

from collections.abc import Callable
from typing import Final

NEVER: Final = 1 << 62

MS: Final = 1_000_000
SECOND: Final = 1_000_000_000
"""In nanoseconds, in which all monotonic times are."""


class Deadline:
    """`act` is called in the first turn at or after `due_ns`, and sets `due_ns` anew; its owner may set it, too."""

    __slots__ = ("_due_ns", "_time", "act")

    def __init__(self, time: "Time", act: Callable[[], None], due_ns: int) -> None:
        self._time = time
        self.act = act
        self.due_ns = due_ns

    @property
    def due_ns(self) -> int:
        """Monotonic nanoseconds."""
        return self._due_ns

    @due_ns.setter
    def due_ns(self, due_ns: int) -> None:
        self._due_ns = due_ns
        if due_ns < self._time.earliest_ns:
            self._time.earliest_ns = due_ns


class Time:
    """A node's time: it stands still during a call, and whoever calls sets it first.

    `now_ns` is monotonic, `group_ms` the group's time of day (broker/replica/group_clock.py) in ms since 1970. A
    turn asks twice for the earliest of all deadlines, so `earliest_ns` is kept as a number. It may be too early after a
    deadline was put off: then nothing is due at that time, and `run_due` finds the right one.
    """

    __slots__ = ("_deadlines", "earliest_ns", "group_ms", "now_ns")

    def __init__(self, now_ns: int, group_ms: int) -> None:
        self.now_ns = now_ns
        self.group_ms = group_ms
        self._deadlines: list[Deadline] = []
        self.earliest_ns = NEVER

    def add_deadline(self, act: Callable[[], None], due_ns: int = NEVER) -> Deadline:
        """Registers a part that must act at a time; the part sets that time in the deadline that this returns."""
        deadline = Deadline(self, act, due_ns)
        self._deadlines.append(deadline)
        return deadline

    def remove_deadline(self, deadline: Deadline) -> None:
        """Forgets a part that was registered. It may be called from what a deadline does."""
        deadline.due_ns = NEVER
        self._deadlines.remove(deadline)

    def run_due(self) -> None:
        """Calls the deadlines that are due, in the order in which they were added."""
        now_ns = self.now_ns
        if self.earliest_ns > now_ns:
            return
        for deadline in [deadline for deadline in self._deadlines if deadline.due_ns <= now_ns]:
            if deadline.due_ns <= now_ns:  # unless an earlier one has put it off, or removed it
                deadline.act()
        self.earliest_ns = min([deadline.due_ns for deadline in self._deadlines], default=NEVER)

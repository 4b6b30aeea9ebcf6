"""The time of the call under way, and when the parts of a node must act next.

Some of these parts judge the silence of others. Where the node itself was late, as on a machine that has no time for
it, what the others have said may lie unread, and their silence is its own. So a late turn does not judge: what waits
for a connection begins its time anew (`Time.is_late`), and who looks for idle ones looks again when what is there has
been read (`Time.add_deadline`).
"""

from collections.abc import Callable
from typing import Final

NEVER: Final = 1 << 62

MS: Final = 1_000_000
SECOND: Final = 1_000_000_000
"""In nanoseconds, in which all monotonic times are."""

LATE_NS: Final = 100 * MS
"""A turn that comes so much later than a deadline is late. One of a node that has its processor is not, whatever the
load; of one that has a thirtieth of it nearly all are."""

READ_FIRST_NS: Final = SECOND
"""A deadline that judges silence and is late by more than this is put off by as much, so that what has come is read
before. A shorter delay matters little beside the limits of silence, which are tens of seconds."""


class Deadline:
    """`act` is called in the first turn at or after `due_ns`, and sets `due_ns` anew; its owner may set it, too."""

    __slots__ = ("_due_ns", "_judges_silence", "_not_before_ns", "_time", "act")

    def __init__(
        self, time: "Time", act: Callable[[], None], due_ns: int, *, judges_silence: bool = False
    ) -> None:
        self._time = time
        self._judges_silence = judges_silence
        self._not_before_ns = 0
        """Until then is read what came while the node was late."""
        self.act = act
        self.due_ns = due_ns

    @property
    def due_ns(self) -> int:
        """Monotonic nanoseconds."""
        return self._due_ns

    @due_ns.setter
    def due_ns(self, due_ns: int) -> None:
        self._due_ns = due_ns = due_ns if due_ns > self._not_before_ns else self._not_before_ns
        if due_ns < self._time.earliest_ns:
            self._time.earliest_ns = due_ns

    def reads_first(self, now_ns: int) -> bool:
        """Puts the deadline off, once, if it judges silence and is late. Returns whether it was."""
        late = self._judges_silence and now_ns - self._due_ns > READ_FIRST_NS
        # Once: a node that is late all the time would never judge anybody otherwise.
        if not late or self._due_ns == self._not_before_ns:
            return False
        self.due_ns = self._not_before_ns = now_ns + READ_FIRST_NS
        return True


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

    def add_deadline(
        self, act: Callable[[], None], due_ns: int = NEVER, *, judges_silence: bool = False
    ) -> Deadline:
        """Registers a part that must act at a time; the part sets that time in the deadline that this returns.

        One that `judges_silence` is put off, once, where a turn comes for it more than `READ_FIRST_NS` late.
        """
        deadline = Deadline(self, act, due_ns, judges_silence=judges_silence)
        self._deadlines.append(deadline)
        return deadline

    def is_late(self, due_ns: int) -> bool:
        """Tells whether what was due at `due_ns` is done so late that others may have spoken, and nobody has read it
        yet."""
        return self.now_ns - due_ns > LATE_NS

    def remove_deadline(self, deadline: Deadline) -> None:
        """Forgets a part that was registered. It may be called from what a deadline does."""
        # So that `run_due`, which may be under way, passes it over.
        deadline.due_ns = NEVER
        self._deadlines.remove(deadline)

    def run_due(self) -> None:
        """Calls the deadlines that are due, in the order in which they were added."""
        now_ns = self.now_ns
        if self.earliest_ns > now_ns:
            return
        for deadline in [deadline for deadline in self._deadlines if deadline.due_ns <= now_ns]:
            # Unless an earlier one has put it off, or removed it.
            if deadline.due_ns <= now_ns and not deadline.reads_first(now_ns):
                deadline.act()
        # Anew from all of them, as each that acted has set its own.
        self.earliest_ns = min([deadline.due_ns for deadline in self._deadlines], default=NEVER)

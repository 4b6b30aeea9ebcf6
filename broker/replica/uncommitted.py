"""The entries that a leader has appended and no majority is known to hold yet: how much it is, where queues end with
it, who waits.

On a node that does not lead all of this is empty.

Followers that stood still for a second acknowledge all at once what tens of thousands wait for. So those who wait are
told some in each turn, and `is_behind` says that there are more.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from broker.replica.proposals import CallbackWaiter, Waiter

ANSWERS_FOR_ONE: Final = 4
"""Senders that take as long to be told as one who waits until an entry is applied: they wait for a commit, and get an
answer and nothing more."""


@dataclass(slots=True, eq=False)
class Uncommitted:
    """The appends of one leader in its term, in the order of the log. Indices given to one method never fall."""

    _stored_end: Callable[[tuple[str, int]], int]
    """Tells where a queue ends as far as it is dispatched."""
    _told_a_turn: int
    """See `InnerLimits.told_a_turn`."""
    _answers_left: int = 0
    """How many who wait for a commit only this turn may still tell."""
    _applied_left: int = 0
    """How many who wait until their entry is applied this turn may still tell."""
    queue_ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """The offset of the next message of each queue to which something was appended that was not dispatched when
    this leader began."""
    _begun_anew: set[str] = field(default_factory=set)
    """Topics that are being deleted, or were: what is not in `queue_ends` begins at 0."""
    bytes: int = 0
    """The sum of `_sizes`."""
    _sizes: deque[tuple[int, int]] = field(default_factory=deque)
    """(index of the last entry, bytes) of what was appended at once."""
    _committed_upto: int = -1
    """Entries up to there are committed, whoever leads."""
    is_behind: bool = False
    """Some were not told yet of what has happened: `committed` and `applied` are to be called again."""
    _wait_for_commit: deque[tuple[int, Waiter]] = field(default_factory=deque)
    _wait_for_apply: deque[tuple[int, Waiter]] = field(default_factory=deque)
    """The waiters, with their entries, that wait until the entry is dispatched and applied, too."""
    _commands: dict[int, CallbackWaiter] = field(default_factory=dict)
    """The waiters that are told what the application of a command returned; each is in `_wait_for_apply`, too."""

    @property
    def has_waiting(self) -> bool:
        """Tells whether anybody waits."""
        return bool(self._wait_for_commit or self._wait_for_apply)

    def __str__(self) -> str:
        waiting = len(self._wait_for_commit) + len(self._wait_for_apply)
        return f"{self.bytes} bytes, the ends of {len(self.queue_ends)} queues, {waiting} who wait"

    @property
    def is_empty(self) -> bool:
        """Tells whether nothing is appended and nobody waits, as while this node does not lead."""
        return not (self._sizes or self.bytes or self.has_waiting or self._commands or self.queue_ends)

    def add(self, index: int, size: int) -> None:
        """Counts `size` bytes of an entry that belongs to no queue."""
        self._sizes.append((index, size))
        self.bytes += size

    def add_messages(
        self,
        queue: tuple[str, int],
        end: int,
        index: int,
        size: int,
        waiter: Waiter | None,
        *,
        told_at_commit: bool,
    ) -> None:
        """Counts `size` bytes of messages of one queue, which ends at the offset `end` with them.

        `waiter` is told when the last of them, the entry `index`, is committed, or later, when it is applied.
        """
        self.queue_ends[queue] = end
        self._sizes.append((index, size))
        self.bytes += size
        if waiter is not None:
            (self._wait_for_commit if told_at_commit else self._wait_for_apply).append((index, waiter))

    def queue_end(self, queue: tuple[str, int]) -> int:
        """Returns the offset of the next message of a queue."""
        end = self.queue_ends.get(queue)
        if end is None:
            # What is stored of a topic that is being deleted is gone everywhere by the time that this message is
            # dispatched.
            end = 0 if queue[0] in self._begun_anew else self._stored_end(queue)
        return end

    def wait_for_apply(self, index: int, waiter: Waiter) -> None:
        """Has `waiter` told when the entry is dispatched and applied."""
        self._wait_for_apply.append((index, waiter))

    def wait_for_command(self, index: int, waiter: CallbackWaiter) -> None:
        """Has `waiter` told what the application of a command has returned."""
        self._wait_for_apply.append((index, waiter))
        self._commands[index] = waiter

    def command_applied(self, index: int, result: Any) -> None:
        """Notes the result of a command for its waiter, which is told it by `applied`."""
        waiter = self._commands.pop(index, None)
        # None waits for the commands of earlier leaders.
        if waiter is not None:
            waiter.result = result

    def forget_queues(self, topic: str) -> None:
        """Lets the queues of a topic begin at 0 again."""
        self._begun_anew.add(topic)
        for key in [key for key in self.queue_ends if key[0] == topic]:
            del self.queue_ends[key]

    def begin_turn(self) -> None:
        """Allows the turn that begins its whole share."""
        self._answers_left = ANSWERS_FOR_ONE * self._told_a_turn
        self._applied_left = self._told_a_turn
        self.is_behind = False

    def committed(self, upto: int) -> None:
        """Tells those who wait for no more than the commit of entries up to `upto`, as far as the turn goes."""
        self._committed_upto = upto
        waiting = self._wait_for_commit
        while waiting and waiting[0][0] <= upto:
            if not self._answers_left:
                self.is_behind = True
                return
            self._answers_left -= 1
            # Taken out first: who is told may append, and wait again.
            waiting.popleft()[1].committed()

    def applied(self, upto: int) -> None:
        """Counts entries up to `upto` no more, and tells those who wait until all of them are applied, likewise."""
        sizes, waiting = self._sizes, self._wait_for_apply
        # All of them in this turn: nobody is called for these.
        while sizes and sizes[0][0] <= upto:
            self.bytes -= sizes.popleft()[1]
        while waiting and waiting[0][0] <= upto:
            if not self._applied_left:
                self.is_behind = True
                return
            self._applied_left -= 1
            waiting.popleft()[1].committed()

    def abandon(self) -> list[Callable[[], None]]:
        """Forgets everything, as the leadership is over. Returns what to call to tell those who wait, who may be
        thousands: that their entry is committed, if that was known, else that the outcome is unknown."""
        size = sum(size for _, size in self._sizes)
        assert self.bytes == size, f"{self.bytes} bytes are counted, of entries that have {size}"
        # Some of those who wait for a commit may not have been told yet of one that came: their messages are stored.
        known = self._committed_upto
        tell = [
            waiter.committed if index <= known else waiter.lost for index, waiter in self._wait_for_commit
        ]
        tell += [waiter.lost for _, waiter in self._wait_for_apply]
        for kept in (
            self.queue_ends,
            self._begun_anew,
            self._sizes,
            self._commands,
            self._wait_for_commit,
            self._wait_for_apply,
        ):
            kept.clear()
        self.bytes = 0
        self.is_behind = False
        return tell

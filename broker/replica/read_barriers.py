"""Reads that wait until it is sure that what is applied here is as new as the question (dissertation 6.4).

All that are asked for in one turn share one round of messages. A barrier is *wanted* until the turn begins a round for
it, *confirming* until a majority has answered that round, and *confirmed* until the replica has applied as far as the
log was committed when the round began.
"""

from collections import deque
from collections.abc import Callable

from raft.core import Raft
from raft.effects import ReadLost, ReadReady

Barrier = tuple[Callable[[], None], Callable[[], None]]
"""What to call when it is passed, and when leadership was lost first; one of them, once."""


class ReadBarriers:
    """The barriers of one replica."""

    __slots__ = ("_confirming", "_next_token", "confirmed_at", "wanted")

    def __init__(self) -> None:
        self.wanted: list[Barrier] = []
        """For which a round has to begin."""
        self._confirming: dict[object, list[Barrier]] = {}
        self.confirmed_at: deque[tuple[int, Callable[[], None]]] = deque()
        """(index, what to call) of those that only wait for `applied`."""
        self._next_token = 0

    def add(self, barrier: Barrier) -> None:
        """One more for the next round."""
        self.wanted.append(barrier)

    def begin_round(self, raft: Raft, now_ns: int) -> None:
        """A round for all that are wanted; raft answers with their token, maybe at once."""
        token = self._next_token
        self._next_token += 1
        self._confirming[token], self.wanted = self.wanted, []
        raft.read_index(token, now_ns)

    def confirmed(self, effect: ReadReady) -> None:
        """A majority has answered a round: its barriers are passed when that index is applied."""
        for ready, _ in self._confirming.pop(effect.token):
            self.confirmed_at.append((effect.index, ready))

    def lost(self, effect: ReadLost) -> None:
        """Leadership ended during the round."""
        for _, lost in self._confirming.pop(effect.token):
            lost()

    def applied(self, index: int) -> None:
        """Everything up to `index` is applied."""
        confirmed = self.confirmed_at
        while confirmed and confirmed[0][0] <= index:
            confirmed.popleft()[1]()

    def abandon_wanted(self) -> None:
        """Leadership ended before their round began."""
        wanted, self.wanted = self.wanted, []
        for _, lost in wanted:
            lost()

"""Reads that wait until the state applied here is certainly as new as the question (dissertation 6.4).

All that are asked for in one turn share one round of messages. A barrier is *wanted* until the turn begins a round for
it, *confirming* until a majority has answered that round, and *confirmed* until the replica has applied as far as the
log was committed when the round began.

A client may ask for hundreds of reads at once, and one may take milliseconds. So a turn lets pass what weighs
`WEIGHT_A_TURN` together, and the next turn, which is wanted at once, goes on. What may pass goes in turn by whom it is
of, and what is light before what is heavy, to which the last quarter of each turn belongs: so neither keeps the other
waiting for more than a few turns, and of nobody's reads another waits for more than one at a time. No reads but those
of one address and about as heavy keep their order.
"""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from broker.requests.in_turn import InTurn
from raft.core import Raft
from raft.effects import ReadLost, ReadReady

Barrier = tuple[Callable[[], None], Callable[[], None], int, str]
"""(called when the barrier is passed, called when leadership was lost first, weight, whose it is); one of the two is
called, once."""

WEIGHT_A_TURN: Final = 256
"""The weight of the reads that one turn lets pass; the least is 1, of some 15 us, and the last one may be heavier."""

_TOLD_A_TURN: Final = 500
"""Some ms: each is held, or sent to the next leader. There may be 40,000 of them (`requests.budget.REQUESTS_MAX`)."""

LIGHT: Final = 8
"""The weight of what looks at one thing: a message, an offset, a time in a queue."""


@dataclass(slots=True, eq=False)
class ReadBarriers:
    """The barriers of one replica."""

    wanted: list[Barrier] = field(default_factory=list)
    """The barriers for which a round has to begin."""
    _confirming: dict[object, list[Barrier]] = field(default_factory=dict)
    confirmed_at: deque[tuple[int, Barrier]] = field(default_factory=deque)
    """(index, barrier) of those that only wait for `applied`; the indices never fall."""
    may_pass: int = 0
    """The number of those for which enough is applied: of all in `_light` and `_heavy`."""
    lost_reads: deque[Callable[[], None]] = field(default_factory=deque)
    """The callbacks of those whose leadership is over: called some in each turn (`tell_lost`). To be looked at
    only."""
    _light: InTurn[Barrier] = field(default_factory=InTurn)
    _heavy: InTurn[Barrier] = field(default_factory=InTurn)
    """Barriers for which enough is applied, light ones and heavy ones, by the shares of those who asked."""
    _next_token: int = 0
    _left: int = WEIGHT_A_TURN
    """The weight that may still pass in this turn."""

    def begin_turn(self) -> None:
        """Allows the turn that begins its whole share of barriers (`WEIGHT_A_TURN`)."""
        self._left = WEIGHT_A_TURN

    def wait(self, index: int) -> bool:
        """True if barriers that wait for no more than what is applied up to `index` are left for the next turn."""
        return self._left <= 0 and self._has_any_for(index)

    def go_on(self, index: int) -> bool:
        """True if this turn may let pass barriers that wait for no more than what is applied up to `index`."""
        return self._left > 0 and self._has_any_for(index)

    def _has_any_for(self, index: int) -> bool:
        return self.may_pass > 0 or (bool(self.confirmed_at) and self.confirmed_at[0][0] <= index)

    @property
    def confirming(self) -> Collection[object]:
        """The tokens of the rounds that wait for a majority, by which raft knows them."""
        return self._confirming.keys()

    def add(self, barrier: Barrier) -> None:
        """Adds a barrier to the next round."""
        self.wanted.append(barrier)

    def begin_round(self, raft: Raft) -> None:
        """Begins a round for all that are wanted; raft answers with its token, maybe at once.

        Raises `raft.errors.NotLeader`.
        """
        token = self._next_token
        self._next_token += 1
        # Before raft hears of the token, as it may answer within the call.
        self._confirming[token], self.wanted = self.wanted, []
        raft.read_index(token)

    def confirmed(self, effect: ReadReady) -> None:
        """Has the barriers of a round, which a majority has answered, wait until that index is applied."""
        # They pass in this order: one that waited for less behind one that waits for more would stand still.
        assert not self.confirmed_at or effect.index >= self.confirmed_at[-1][0], (
            f"a read is confirmed at {effect.index}, behind one at {self.confirmed_at[-1][0]}"
        )
        for barrier in self._confirming.pop(effect.token):
            self.confirmed_at.append((effect.index, barrier))

    def lost(self, effect: ReadLost) -> None:
        """Gives up the barriers of a round during which the leadership ended."""
        self._give_up(self._confirming.pop(effect.token))

    def applied(self, index: int) -> None:
        """Passes the barriers that waited until everything up to `index` is applied, as far as the turn goes."""
        confirmed, light, heavy = self.confirmed_at, self._light, self._heavy
        while confirmed and confirmed[0][0] <= index:
            barrier = confirmed.popleft()[1]
            (light if barrier[2] <= LIGHT else heavy).add(barrier[3], barrier)
            self.may_pass += 1
        while self.may_pass and self._left > 0:
            # The last quarter of a turn's weight is for heavy ones, so that light ones do not keep them out.
            is_light = light and (self._left > WEIGHT_A_TURN // 4 or not heavy)
            ready, _, weight, _ = (light if is_light else heavy).take()
            self.may_pass -= 1
            self._left -= weight
            ready()

    def abandon_wanted(self) -> None:
        """Gives up the barriers whose round has not begun, as the leadership has ended.

        Those that are confirmed pass: what is true of the moment in which they were stays so.
        """
        wanted, self.wanted = self.wanted, []
        self._give_up(wanted)

    def _give_up(self, barriers: list[Barrier]) -> None:
        self.lost_reads.extend([lost for _, lost, _, _ in barriers])

    def tell_lost(self) -> None:
        """Tells some of those whose leadership is over; to be called in each turn while there are any."""
        told = self.lost_reads
        for _ in range(min(len(told), _TOLD_A_TURN)):
            told.popleft()()

"""One task that reads all sockets of a node.

A task per socket would cost a wake-up, a registration with the system and two passes of Trio's scheduler for every few
bytes that arrive, and the turn would come in a pass of its own behind them. Here the sockets stand in an epoll set of
their own, and Trio waits for that set as for one descriptor. When anything has arrived, the task reads once from each
socket that is ready, and the turn follows in the same step.

Nobody keeps others waiting. Every pass begins with those that are to be first, however many others are ready, or left
from the pass before: the links of peers, since on what they bring depends who leads, and flushes that have ended.
Whatever a socket holds beyond one read waits until all others have been read. After `PASS_S` the turn comes, and the
sockets that are left are read before any that have been read already, those that are first among themselves: of these
and of the others one each is read in any pass. While passes end like that, all are given fewer bytes at once
(`shares`), until a pass has time for all or little is read of each: a crowd that sends without end then keeps the
others waiting for a handful of requests of each of it, and not for a thousand. A connection whose last read took so
long to handle is given fewer bytes at once, too, and so is one that has to prove an account and has not yet
(broker/shell/sockets.py). All of these strangers together have a tenth of the time: they stand in a set of their own,
which is one descriptor among those of all others. So they keep others from little, and all clients of a node that is
lost, thousands that have to prove themselves anew, are let in within their patience. Among strangers, who are all the
clients of a name server, addresses have turns: each stands in one of some sets, by its address, and of each set one is
read before any set has a second one. A crowd that comes from few addresses keeps those of others waiting for little.

While one message comes soon after another, a pass of Trio's scheduler between them is much of what they cost. So a task
that was woken soon after it had begun to wait goes on waiting in the set itself, as long as nobody else wants
anything: no other task is ready to run, none waits for room in a socket, and no turn is due. After `AWAY_S` Trio
has its pass in any case, so that new connections, timers and worker threads wait no longer than that. An idle node
stays with Trio. If nothing came in such a wait, as when clients run in the node's own event loop, the next ones are
left out, each time twice as many.

A socket that is not to be read from is taken out of the set: epoll would report its end again and again.
"""

import select
import sys
from collections.abc import Callable
from time import monotonic_ns, perf_counter
from typing import Final, NoReturn

import trio

from broker.shell.turns import Turns

_READY_AT_ONCE: Final = 256
"""The most sockets that are read from before a turn. Others that are ready come first behind it."""

PASS_S: Final = 0.02
"""The time, in seconds, after which no further socket is read before a turn: heartbeats wait for the turn."""

STRANGERS_S: Final = PASS_S / 10
"""The time, in seconds, after which no further stranger is read in a pass, be they many or what one has sent long."""

SETS_OF_STRANGERS: Final = 64
"""A set for each address would take as many descriptors as there are addresses. Which ones share a set nobody can
choose: Python's hash of a text is another one in each process."""

SHARES_MAX: Final = 32
"""The most that `Reading.shares` can be: a connection is read 4 KiB at a time then."""

AWAY_S: Final = 0.01
"""The time, in seconds, for which the task may stay away from Trio, beyond one wait and one pass of reads."""

_WAIT_S: Final = 0.001
"""One wait for sockets away from Trio, in seconds: the shortest that epoll knows."""

_SOON_NS: Final = 2_000_000
"""If something comes this soon behind the last, the task waits for the next away from Trio. A turn that becomes due in
such a wait is late by `_WAIT_S` at most."""

_SHORT_NS: Final = 250_000
_LITTLE_BYTES: Final = 4096
"""After reads and a turn that took longer, or brought more, the task returns to Trio: its pass costs little beside
them, and what comes meanwhile shares the next turn."""

_WAITS_LEFT_OUT_MAX: Final = 63


class _ReadyTasks(trio.abc.Instrument):
    """Knows the tasks that are ready to run and have not run yet, but for the one that asks."""

    def __init__(self) -> None:
        self.tasks: set[trio.lowlevel.Task] = set()
        # Methods of the set itself, since Trio calls these at every step of every task.
        self.task_scheduled = self.tasks.add  # type: ignore[assignment, method-assign]
        self.before_task_step = self.tasks.discard  # type: ignore[assignment, method-assign]


class Reading:
    """Reads sockets, and runs a turn behind each pass. Linux only: see `begin`."""

    def __init__(self, turns: Turns, begin: Callable[[], None]) -> None:
        """`begin` sets the node's time, once for each pass."""
        assert sys.platform == "linux"
        self._turns = turns
        self._begin = begin
        self._epoll = select.epoll()
        self._first = select.epoll()
        """The set of the sockets that are to be first. They stand in the set of all, too; this one is asked when the
        answer of the other cannot have them all."""
        self._strangers = select.epoll()
        """The sets of connections that have to show an account and have not; it stands in the set of all as one
        descriptor."""
        self._sets_of_strangers: dict[int, select.epoll] = {}
        """By their descriptors."""
        # Each descriptor is in one of the next three at most, and so in the sets: those of the first two are in that of
        # all, the second's in that of the first ones, too, and the third's in one of the strangers'.
        self._readers: dict[int, Callable[[], None]] = {}
        self._first_readers: dict[int, Callable[[], None]] = {}
        self._stranger_readers: dict[int, tuple[select.epoll, Callable[[], None]]] = {}
        """With the set in which each stands."""
        self._left: list[tuple[int, int]] = []
        """Sockets that were ready, and that the last pass had no time for."""
        self.shares = 1
        """The divisor of the bytes that are read at once: above 1 while passes have no time for all who are ready."""
        self.bytes_read = 0
        """The bytes of this pass, which those who read count."""
        self.in_pass = False
        """Sockets are read from now; all that they bring counts as come at once."""
        self.waiting_writers = 0
        """The number of tasks that wait, with Trio, until a socket takes more."""
        for _ in range(SETS_OF_STRANGERS):
            strangers = select.epoll()
            self._sets_of_strangers[strangers.fileno()] = strangers
            self._strangers.register(strangers.fileno(), select.EPOLLIN)
        # All strangers are one reader among the others, and have as much time as one.
        self.add(self._strangers.fileno(), self._read_strangers)

    @classmethod
    def begin(cls, turns: Turns, begin: Callable[[], None]) -> "Reading | None":
        """Returns None on systems without epoll: there every socket has a task that reads."""
        return cls(turns, begin) if sys.platform == "linux" else None

    def add(
        self,
        descriptor: int,
        read: Callable[[], None],
        *,
        first: bool = False,
        stranger: str | None = None,
    ) -> None:
        """Calls `read`, which must not block, whenever there is something to read. What it raises, `run` raises.

        Those that are to be `first` are called before all others, in every pass. Strangers, for each of whom `stranger`
        is what his address counts as, share what one other has.
        """
        # At the end of the process `run` may be over before the last connection is.
        if not self._epoll.closed:
            for readers in (self._readers, self._first_readers, self._stranger_readers):
                assert descriptor not in readers, "a socket has one reader"
            if stranger is not None:
                sets = tuple(self._sets_of_strangers.values())
                strangers = sets[hash(stranger) % len(sets)]
                strangers.register(descriptor, select.EPOLLIN)
                self._stranger_readers[descriptor] = strangers, read
                return
            self._epoll.register(descriptor, select.EPOLLIN)
            if first:
                self._first.register(descriptor, select.EPOLLIN)
                self._first_readers[descriptor] = read
            else:
                self._readers[descriptor] = read

    def remove(self, descriptor: int) -> None:
        """Reads no more from a descriptor, even if it was found ready. To be called before it is closed."""
        if self._readers.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)
        elif self._first_readers.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)
            self._first.unregister(descriptor)
        elif (stranger := self._stranger_readers.pop(descriptor, None)) is not None:
            strangers, _ = stranger
            strangers.unregister(descriptor)

    async def run(self) -> NoReturn:
        """Reads and runs turns until cancelled."""
        turns, poll = self._turns, self._epoll.poll
        descriptor = self._epoll.fileno()
        wait_readable = trio.lowlevel.wait_readable
        checkpoint_if_cancelled = trio.lowlevel.checkpoint_if_cancelled
        others = _ReadyTasks()
        trio.lowlevel.add_instrument(others)
        found: list[tuple[int, int]] = []
        away_ns = int(AWAY_S * 1e9)

        def read() -> None:
            self._read(found)

        try:
            waiting_since_ns = 0
            waits_left_out = next_wait = 0
            while True:
                await wait_readable(descriptor)
                await checkpoint_if_cancelled()  # the node may have failed in a task of the same batch
                woken_ns = began_ns = monotonic_ns()
                next_wait = max(next_wait - 1, 0)
                # Something has come soon behind the last, and a wait in the set was not in vain lately.
                may_wait = not next_wait and woken_ns - waiting_since_ns <= _SOON_NS
                found = poll(0, _READY_AT_ONCE) if not self._left else self._left_before_others()
                while True:
                    self.bytes_read = 0
                    turns.run_after(read)
                    # Somebody else wants to go on, or what was ready is not all read: Trio's pass comes first.
                    if not may_wait or others.tasks or self._left or self.waiting_writers:
                        break
                    ended_ns = monotonic_ns()
                    if ended_ns - began_ns > _SHORT_NS or self.bytes_read > _LITTLE_BYTES:
                        break
                    # New connections, timers and threads have waited for long enough, or a turn is due, which the timer
                    # brings.
                    if ended_ns - woken_ns > away_ns or turns.is_due_within(0):
                        break
                    found = poll(_WAIT_S, _READY_AT_ONCE)
                    if not found:
                        waits_left_out = next_wait = min(2 * waits_left_out + 1, _WAITS_LEFT_OUT_MAX)
                        break
                    waits_left_out = 0
                    began_ns = monotonic_ns()
                # Before other tasks run, as `run_after` wants it.
                turns.set_timer()
                waiting_since_ns = monotonic_ns()
        finally:
            trio.lowlevel.remove_instrument(others)
            self._readers.clear()
            self._first_readers.clear()
            self._stranger_readers.clear()
            self._epoll.close()
            self._first.close()
            self._strangers.close()
            for strangers in self._sets_of_strangers.values():
                strangers.close()

    def _read(self, found: list[tuple[int, int]]) -> None:
        self._begin()
        self.in_pass = True
        try:
            self._read_all(found)
        finally:
            self.in_pass = False

    def _read_strangers(self) -> None:
        until = perf_counter() + STRANGERS_S
        read: set[int] = set()
        # The system puts each one that it has told behind all others that are ready: each has his turn, and each set.
        while perf_counter() <= until and (sets := self._strangers.poll(0, 1)):
            found = self._sets_of_strangers[sets[0][0]].poll(0, 1)
            if not found:
                continue  # the last of this set was closed, which the set of sets has yet to see
            descriptor = found[0][0]
            # All that were ready have had their turn.
            if descriptor in read:
                return
            read.add(descriptor)
            _, reader = self._stranger_readers[descriptor]
            reader()

    def _left_before_others(self) -> list[tuple[int, int]]:
        """Returns who is to be read in a pass behind one that had no time for all: whom it has left comes first."""
        left, self._left = self._left, []
        first = self._first_readers
        ready = dict(self._first.poll(0))
        waited = [(descriptor, ready.pop(descriptor)) for descriptor, _ in left if descriptor in ready]
        others = [one for one in left if one[0] not in first]
        # Whoever was left is read before anybody new is.
        if not others:
            others = [one for one in self._epoll.poll(0, _READY_AT_ONCE) if one[0] not in first]
        return [*waited, *ready.items(), *others]

    def _read_all(self, found: list[tuple[int, int]]) -> None:
        readers, first = self._readers, self._first_readers
        until = perf_counter() + PASS_S
        if len(found) == _READY_AT_ONCE:
            # More are ready than were told.
            found = self._first.poll(0) + [one for one in found if one[0] not in first]
        # Whoever is not among the readers any more was closed by what others have brought.
        left_first: list[tuple[int, int]] = []
        for place, (descriptor, _) in enumerate(found, 1):
            reader = first.get(descriptor)
            if reader is not None:
                reader()
                if perf_counter() > until:
                    left_first = [one for one in found[place:] if one[0] in first]
                    break
        for place, (descriptor, _) in enumerate(found, 1):
            reader = readers.get(descriptor)
            if reader is None:
                continue
            reader()
            if perf_counter() > until:
                left = [one for one in found[place:] if one[0] in readers]
                self._left = left_first + left
                if left:
                    self.shares = min(2 * self.shares, SHARES_MAX)
                return
        self._left = left_first
        self.shares = max(self.shares // 2, 1)

"""All the sockets that a node is sent requests and acknowledgements on, read by one task.

A task per socket costs a wake-up, a registration with the system and two passes of Trio's scheduler for every few
bytes that arrive, and the turn comes in a pass of its own behind them. Here the sockets stand in an epoll of their own,
for as long as they are read from, and Trio waits for that one: when anything has arrived, everything that has is read,
once from each socket, and the turn follows in the same step. What a socket holds beyond one read waits until all others
had theirs, so that nobody who sends much keeps anybody waiting. Nor does one whose requests are expensive: after
`PASS_S` the turn comes first, and then the sockets that are left, before any that have been read; and of a connection
whose last read took so long, fewer bytes are read (broker/shell/sockets.py).

A socket that is not to be read from is taken out: epoll would report its end again and again.
"""

import select
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Final, NoReturn

import trio

from broker.shell.turns import Turns

_READY_AT_ONCE: Final = 256
"""Sockets that are read from before a turn; those that are ready beyond them come first after it."""

PASS_S: Final = 0.02
"""How long sockets are read before a turn, beyond what one read takes: heartbeats wait for it."""


class Reading:
    """Reads, then runs the turn. Linux only: see `begin`."""

    def __init__(self, turns: Turns) -> None:
        assert sys.platform == "linux"
        self._turns = turns
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._left: list[tuple[int, int]] = []
        """Ready sockets that the last pass had no time for."""
        self.now = 0.0
        """Trio's time when the reads began that are under way."""

    @classmethod
    def begin(cls, turns: Turns) -> "Reading | None":
        """None on systems without epoll: there every socket has a task that reads."""
        return cls(turns) if sys.platform == "linux" else None

    def add(self, descriptor: int, read: Callable[[], None]) -> None:
        """Calls `read`, which must not block, whenever there is something to read. What it raises, `run` raises."""
        if not self._epoll.closed:
            self._epoll.register(descriptor, select.EPOLLIN)
            self._readers[descriptor] = read

    def remove(self, descriptor: int) -> None:
        """Reads no more from it, even if it was found ready; to be called before it is closed."""
        if self._readers.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    async def run(self) -> NoReturn:
        """Reads and runs turns until cancelled."""
        turns, poll, readers = self._turns, self._epoll.poll, self._readers
        descriptor = self._epoll.fileno()
        wait_readable, current_time = trio.lowlevel.wait_readable, trio.current_time
        checkpoint_if_cancelled = trio.lowlevel.checkpoint_if_cancelled

        def read() -> None:
            found = self._left or poll(0, _READY_AT_ONCE)
            self._left = []
            until = perf_counter() + PASS_S
            for place, (ready, _) in enumerate(found, 1):
                reader = readers.get(ready)
                if reader is not None:  # else another's bytes have closed it
                    reader()
                if perf_counter() > until:
                    self._left = found[place:]
                    return

        try:
            while True:
                await wait_readable(descriptor)
                await checkpoint_if_cancelled()  # the node may have failed in a task of the same batch
                self.now = current_time()
                turns.run_after(read)
        finally:
            readers.clear()
            self._epoll.close()

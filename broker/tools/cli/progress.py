"""Progress of a command on stderr: events line by line, and the present state."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import trio

_REWRITTEN_EVERY_S = 0.5


class Progress:
    """Events stay, each with the seconds since the beginning. The state is one line below them.

    On a terminal that line is rewritten. Elsewhere a state is printed at most every ``line_every_s``.
    """

    def __init__(self, line_every_s: float) -> None:
        self._begin = self._shown = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._width = 0
        self.pause_s = _REWRITTEN_EVERY_S if self._terminal else line_every_s
        """Pause to make between two states."""

    def tell(self, event: str) -> None:
        """Print an event."""
        self.clear()
        print(self._timed(event), file=sys.stderr, flush=True)

    def show(self, state: str) -> None:
        """Show the present state, if the time for it has come."""
        now = time.monotonic()
        if now - self._shown < self.pause_s:
            return
        self._shown = now
        if self._terminal:
            # A line that wraps cannot be rewritten.
            line = self._timed(state)[: shutil.get_terminal_size().columns - 1]
            print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)
            self._width = len(line)
        else:
            print(self._timed(state), file=sys.stderr, flush=True)

    @contextlib.asynccontextmanager
    async def showing(self, state: Callable[[], str]) -> AsyncIterator[trio.Nursery]:
        """Show what ``state`` returns again and again while the block lasts; tasks in the nursery that it yields end
        with the block."""
        import trio

        async def keep_showing() -> None:
            while True:
                await trio.sleep(self.pause_s)
                self.show(state())

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep_showing)
                yield nursery
                nursery.cancel_scope.cancel()
        finally:
            self.clear()

    def clear(self) -> None:
        """Take the state away."""
        if self._width:
            print(f"\r{'':<{self._width}}\r", end="", file=sys.stderr, flush=True)
            self._width = 0

    def _timed(self, text: str) -> str:
        return f"{time.monotonic() - self._begin:6.1f} s  {text}"

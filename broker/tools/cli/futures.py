"""Other futures of a simulated run: where it comes to a state that its batch has not seen, the process forks.

The world is one thread, so that a child of the process has all of it, and goes on with other random numbers and other
faults (`Explore`, simulation/world/running.py). The parent waits for it, and then goes on as if nothing had been: its
own run is the same with and without futures. A child's plan says where it left its seed's run, so that `--replay` runs
it alone.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.world.running import Result


class Futures:
    """The futures of one run. Pass `explore` to `run_world`, and call `ended` when that has returned."""

    def __init__(self, seen: set[str], futures_max: int, outcome: Callable[[Result, float], Any]) -> None:
        """`seen` are the states that the batch knows of; those of this run are added. `outcome` makes, of a child's
        result and its CPU seconds, the object that is sent to its parent, pickled."""
        self.new_states: list[str] = []
        self.outcomes: list[Any] = []
        """What `outcome` made of each future."""
        self._seen = seen
        self._left = futures_max
        self._outcome = outcome
        self._pipe: int | None = None
        """In a child: where it writes what its parent waits for."""

    def explore(self, state: str) -> int | None:
        """Returns the number of the future to go on with in a child; None in the parent, and for a known state."""
        if state in self._seen:
            return None
        self._seen.add(state)
        self.new_states.append(state)
        if not self._left:
            return None
        self._left -= 1
        number = len(self.outcomes)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            self._pipe = writing
            return number
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            data = pipe.read()
        os.waitpid(child, 0)
        assert data, f"the future of {state!r} ended without a result"
        self.outcomes.append(pickle.loads(data))
        return None

    def ended(self, result: Result) -> None:
        """A run has ended. Returns in the parent only; a child tells its parent what came of it, and ends."""
        if self._pipe is None:
            return
        try:
            with os.fdopen(self._pipe, "wb") as pipe:
                # The CPU time of a process begins anew with it.
                pipe.write(pickle.dumps(self._outcome(result, time.process_time())))
        finally:
            os._exit(0)

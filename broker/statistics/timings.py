"""The times that a node's work takes: a histogram for each kind, and the stopwatch that they are measured with.

The core owns no clock. A node's own time stands still during a call, so what happens within one is measured with a
stopwatch that the process hands in; the simulator's shows no time at all, and stays deterministic.
"""

from collections.abc import Callable

from broker.statistics.histogram import Histogram


class Timings:
    """The histograms of one node. `stopwatch` returns nanoseconds since any moment, and may be read by any thread."""

    __slots__ = (
        "append",
        "checkpoint",
        "flush",
        "lag",
        "load",
        "prepare",
        "pull",
        "repair",
        "scrub",
        "send",
        "snapshot",
        "stopwatch",
        "turn",
    )

    def __init__(self, stopwatch: Callable[[], int] = lambda: 0) -> None:
        self.stopwatch = stopwatch
        self.append = Histogram()
        """One append of a leader's into a follower's log; on the leader that of the first message of a turn."""
        self.flush = Histogram()
        """A flush of the log, in its thread."""
        self.checkpoint = Histogram()
        """A checkpoint of queues and index files, in its thread."""
        self.prepare = Histogram()
        """Files and pages made ready ahead of the writer, in their thread."""
        self.load = Histogram()
        """Old entries brought into memory for a reader, in their thread."""
        self.scrub = Histogram()
        """A slice of old files read and checked, in its thread."""
        self.repair = Histogram()
        """A flush of what was put back in place of damaged bytes, in its thread."""
        self.snapshot = Histogram()
        """A snapshot of the state: encoded, and written when the log was durable so far."""
        self.turn = Histogram()
        """A turn, from its beginning until what it had to send was written."""
        self.lag = Histogram()
        """The delays with which turns began that a timer had wanted."""
        self.send = Histogram()
        """A message on the leader, from the end of the turn that appended it to that which applied it."""
        self.pull = Histogram()
        """A pull that found messages, from when it came, or was woken, until it was answered."""

"""The times that a node's work takes: a histogram for each kind, and the stopwatch that they are measured with.

The core owns no clock. A node's own time stands still during a call, so what happens within one is measured with a
stopwatch that the process hands in; the simulator's shows no time at all, and stays deterministic.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from broker.statistics.histogram import Histogram


@dataclass(slots=True, eq=False)
class Timings:
    """The histograms of one node. `stopwatch` returns nanoseconds since any moment, and may be read by any thread."""

    stopwatch: Callable[[], int] = lambda: 0
    append: Histogram = field(default_factory=Histogram)
    """One append of a leader's into a follower's log; on the leader that of the first message of a turn."""
    flush: Histogram = field(default_factory=Histogram)
    """A flush of the log, in its thread."""
    checkpoint: Histogram = field(default_factory=Histogram)
    """A checkpoint of queues and index files, in its thread."""
    prepare: Histogram = field(default_factory=Histogram)
    """Files and pages made ready ahead of the writer, in their thread."""
    load: Histogram = field(default_factory=Histogram)
    """Old entries brought into memory for a reader, in their thread."""
    scrub: Histogram = field(default_factory=Histogram)
    """A slice of old files read and checked, in its thread."""
    repair: Histogram = field(default_factory=Histogram)
    """A flush of what was put back in place of damaged bytes, in its thread."""
    snapshot: Histogram = field(default_factory=Histogram)
    """A snapshot of the state: encoded, and written when the log was durable so far."""
    turn: Histogram = field(default_factory=Histogram)
    """A turn, from its beginning until what it had to send was written."""
    lag: Histogram = field(default_factory=Histogram)
    """The delays with which turns began that a timer had wanted."""
    send: Histogram = field(default_factory=Histogram)
    """A message on the leader, from the end of the turn that appended it to that which applied it."""
    pull: Histogram = field(default_factory=Histogram)
    """A pull that found messages, from when it came, or was woken, until it was answered."""

"""A journal for tests that have no world."""

from broker.trace import TraceHeader, TraceWriter
from simulation.journal import Journal
from simulation.scheduler import Scheduler


def empty_journal() -> Journal:
    """A journal with a clock of its own, whose trace goes nowhere."""
    return Journal(Scheduler(), TraceWriter(lambda data: None, TraceHeader("driver", "driver", "", 0)))

"""An actor of the workload: a kind of client process, and how many seeds have it.

Most actors have no invariant of their own: `client_judge` holds every answer in their traces against what the group has
committed, and `monitor` looks at the nodes. An actor whose promises go further (a transaction that was rolled back
stays unseen, a timer fires once and not early) states them in an `Invariant`, which is fed with everything that the
group commits and which the actor's `main` tells what it did and saw.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from broker.client.transport.runtime import Runtime
from broker.trace import TraceWriter
from simulation.workload.context import Context, Invariant

Main = Callable[[Context, Runtime, TraceWriter], Awaitable[None]]
"""A client process: runs until it is killed. A `Violation` that it raises is a finding, and so is any other error."""


def _one(producers: int) -> int:
    return 1


@dataclass(frozen=True, slots=True)
class Actor:
    """A kind of client process."""

    main: Main
    share: float = 1.0
    """The share of the seeds that have it; with 0 only dense plans do (simulation/plans/dense.py)."""
    processes: Callable[[int], int] = _one
    """Returns how many run side by side, from the plan's number of producers; each may be killed and started again."""
    at_most_once: bool = False
    """True if its messages are stored at most once: it never repeats an attempt of unknown outcome, or has the brokers
    recognize it."""
    invariant: type[Invariant] | None = None

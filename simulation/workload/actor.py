"""What an actor of the workload is, and what its invariant is told.

Most actors have no invariant of their own: `client_judge` holds every answer in their traces against what the group has
committed, and `monitor` looks at the nodes. An actor whose promises go further (a transaction that was rolled back
stays unseen, a timer fires once and not early) states them in an `Invariant`, which is fed with everything that the
group commits and which the actor's `main` tells what it did and saw.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.trace import TraceWriter
from simulation.client_runtime import ClientRuntime
from simulation.group_model import CommittedMessage

if TYPE_CHECKING:
    from broker.node.node import Node
    from broker.state.commands import Command
    from simulation.broker_host import BrokerHost
    from simulation.plan import Plan
    from simulation.world import World

__all__ = ["Actor", "Invariant", "Main", "one"]

Main = Callable[["World", ClientRuntime, TraceWriter], Awaitable[None]]
"""A client process: runs until it is killed. A `Violation` that it raises is a finding, and so is any other error."""


def one(plan: Plan) -> int:
    """One process, whatever the plan."""
    return 1


class Invariant:
    """What must hold of an actor's work; one instance a run, whatever the number of processes and restarts.

    Every hook may raise `Violation`; none does anything unless it is overridden. Times are true ones, in nanoseconds.
    """

    def __init__(self, world: World) -> None:
        self.world = world

    def committed(self, message: CommittedMessage) -> None:
        """A message has been committed, in the order of the log; no node need have applied it."""

    def applied(self, command: Command, now_ns: int) -> None:
        """A metadata command has been committed."""

    def check_node(self, host: BrokerHost, node: Node) -> None:
        """At the end, for every node: it has applied everything."""

    def check_end(self) -> None:
        """At the end: the load stopped six seconds ago, and no fault has happened for twenty."""


@dataclass(frozen=True, slots=True)
class Actor:
    """A kind of client process."""

    main: Main
    share: float = 1.0
    """In what share of the seeds the swarm turns it on."""
    processes: Callable[[Plan], int] = one
    """How many run side by side; each may be killed and started again."""
    at_most_once: bool = False
    """Whether its messages are stored at most once: it never repeats an attempt of unknown outcome, or has the brokers
    recognize it."""
    invariant: type[Invariant] | None = None

"""Request processors, and the places where a request may be processed.

A processor is a class with a `routes` method; each route names a request code, the handler and the place. The node
looks the code up, sees to it that the request reaches a node where it may be handled (followers forward to their
leader), and calls the handler. The handler answers now or later with `reply`, or never for one-way requests.
"""

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from broker.remoting.command import RemotingCommand
from broker.requests.connection import Connection

Handler = Callable[[Connection, RemotingCommand], Iterator[None] | None]
"""Handles a request of a client. May raise `RequestError`, `RemotingError`, `ReplicaError` or `DiskFullError`: the node
answers for it, or hands the request to the leader (`Node._handle`). If it takes long, it returns an iterator, of which
the node does one step at once and one in each later turn; each step may raise the same. The node may also close the
iterator before its first step: whatever has to be freed at its end is taken in its steps."""


class Pace:
    """Tells a handler that works in steps when one of them has done enough.

    for queues in ...:
        ...
        if pace.spent(len(queues)):
            yield
    """

    __slots__ = ("_at_once", "_left")

    def __init__(self, at_once: int) -> None:
        self._at_once = self._left = at_once

    def spent(self, count: int) -> bool:
        """Counts what was done; True once it is enough for a step, which begins to count anew."""
        self._left -= count
        if self._left > 0:
            return False
        self._left = self._at_once
        return True


OUTCOME_UNKNOWN: Final = "the leader was lost before it answered: the outcome is unknown"
"""The remark, with code 1, where a request may have taken effect, or may yet."""


class HandledOn(enum.Enum):
    """The nodes on which a request may be handled."""

    ANY = "any"
    """On the node that received it."""
    LEADER = "leader"
    """On the leader once it serves; other nodes forward it, and hold it for a moment while there is no leader."""
    LEADER_READ = "leader read"
    """On the leader, after a read barrier: what is read was current at some moment after the request came."""


@dataclass(frozen=True, slots=True)
class Route:
    """A request code, who handles it and on which nodes."""

    code: int
    handler: Handler
    handled_on: HandledOn


class Processor(Protocol):
    """A group of handlers that belong together."""

    def routes(self) -> Iterable[Route]:
        """The requests that this processor handles."""

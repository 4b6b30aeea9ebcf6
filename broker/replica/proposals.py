"""What a replica says to those who propose to it, and to those who watch it.

A proposal is refused at once, with nothing left behind in the log, or is in the log; then its waiter hears exactly one
of two things, that it is committed or that its outcome is unknown. There is no third answer, and none comes twice.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from broker.state.commands import Command
from log.dispatch import Arrival


class Waiter(Protocol):
    """Whoever waits for an entry to be committed: exactly one of the two is called, once."""

    def committed(self) -> None:
        """The entry is committed, dispatched and applied; or only committed, if it was agreed that this is enough."""

    def lost(self) -> None:
        """This node stopped leading first: whether the entry will be committed is unknown."""


class Observer(Protocol):
    """What the node around the replica wants to know."""

    def role_changed(self) -> None:
        """Role, leader or readiness to serve is now another."""

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        """Queues have new committed messages."""

    def metadata_changed(self, command: Command) -> None:
        """A command was applied."""


class CommandWaiter:
    """Gives the result of applying a command to whoever proposed it."""

    __slots__ = ("_done", "_lost", "result")

    def __init__(self, done: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._done = done
        self._lost = lost
        self.result: Any = None

    def committed(self) -> None:
        self._done(self.result)

    def lost(self) -> None:
        self._lost()

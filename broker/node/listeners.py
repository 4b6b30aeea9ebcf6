"""The events of a node, and the parts of it that act then."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from broker.requests.connection import Connection
from broker.state.commands import Command
from log.dispatching.dispatch import Arrival


@dataclass(slots=True, eq=False)
class Listeners:
    """For each kind of event the parts to call, in the order in which they were added; the replica's observer."""

    role_changes: list[Callable[[], None]] = field(default_factory=list)
    """Role, leader, members or readiness to serve have changed."""
    arrivals: list[Callable[[Iterable[Arrival]], None]] = field(default_factory=list)
    """Committed messages are in their queues."""
    commands: list[Callable[[Command], None]] = field(default_factory=list)
    """A metadata command was applied."""
    disconnects: list[Callable[[Connection], None]] = field(default_factory=list)
    """A client, of this node or another, is gone."""
    leaders_reachable: list[Callable[[], None]] = field(default_factory=list)
    """Another node leads and there is a link to it: it is to hear what only this node knows. Called for a new
    leader and after a new connection to it; several times for one leader does no harm."""

    def role_changed(self) -> None:
        """Tells the listeners that role, leader, members or readiness to serve have changed."""
        for listener in self.role_changes:
            listener()

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        """Tells the listeners which queues have new committed messages."""
        for listener in self.arrivals:
            listener(arrivals)

    def metadata_changed(self, command: Command) -> None:
        """Tells the listeners that a command was applied."""
        for listener in self.commands:
            listener(command)

    def disconnected(self, connection: Connection) -> None:
        """Tells the listeners that a client is gone: its registrations end."""
        for listener in self.disconnects:
            listener(connection)

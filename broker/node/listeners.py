"""What happens to a node, and the parts of it that act then."""

from collections.abc import Callable, Iterable

from broker.requests.connection import Connection
from log.dispatch import Arrival


class Listeners:
    """For each kind of event the parts to call, in the order in which they were added."""

    __slots__ = ("arrivals", "disconnects", "leaders_reachable", "role_changes")

    def __init__(self) -> None:
        self.arrivals: list[Callable[[Iterable[Arrival]], None]] = []
        """Committed messages are in their queues."""
        self.role_changes: list[Callable[[], None]] = []
        """Role, leader or readiness to serve has changed."""
        self.disconnects: list[Callable[[Connection], None]] = []
        """A client, of this node or another, is gone."""
        self.leaders_reachable: list[Callable[[], None]] = []
        """Another node leads and there is a link to it: it is to hear what only this node knows. Called for a new
        leader and after a new connection to it; several times for one leader does no harm."""

"""The connections of a simulated process; an endpoint of the network stands for the socket of each."""

from collections.abc import Callable, Sequence

from broker.requests.connection import Buffer, Connection, Outgoing
from simulation.machines.network import Endpoint
from simulation.scheduler import Scheduler

_CLOSED_HERE = "closed here"

Guard = Callable[[Callable[..., object]], Callable[..., None]]


class Wires:
    """`guarded` makes of a callback one that the network may call, whatever has become of the process.

    What comes on a connection waits in its endpoint while `Connection.may_be_read`, told `unsent_bytes_max`, says no.
    """

    def __init__(
        self, outgoing: Outgoing, scheduler: Scheduler, guarded: Guard, unsent_bytes_max: int
    ) -> None:
        self.endpoints: dict[Connection, Endpoint] = {}
        self._outgoing = outgoing
        self._scheduler = scheduler
        self._guarded = guarded
        self._unsent_bytes_max = unsent_bytes_max
        self._lost: dict[Connection, Callable[[str], object]] = {}
        """For each of `endpoints`, told with the reason when it is closed."""
        self._sent: dict[Connection, Callable[[Connection, Sequence[Buffer]], object]] = {}

    def attach(
        self,
        connection: Connection,
        endpoint: Endpoint,
        received: Callable[[bytes], object],
        lost: Callable[[str], object],
        sent: Callable[[Connection, Sequence[Buffer]], object] | None = None,
    ) -> None:
        """`endpoint` carries `connection` from now on; `sent` is told of what leaves, turn by turn."""
        self.endpoints[connection] = endpoint
        self._lost[connection] = lost
        if sent is not None:
            self._sent[connection] = sent

        def came(data: bytes) -> None:
            received(data)
            self._look_whether_to_wait(connection, endpoint)

        endpoint.on_data = self._guarded(came)
        endpoint.on_closed = self._guarded(lambda reason: self._closed(connection, reason))

    def hand_out(self) -> None:
        """Sends what is queued, and closes what is to be closed."""
        for connection in self._outgoing.take() if self._outgoing.connections else ():
            endpoint = self.endpoints.get(connection)
            # Taken in any case: what is queued for a connection that is gone is dropped.
            buffers = connection.take()
            if endpoint is None:
                continue
            if connection.aborted:
                endpoint.close()
            else:
                if buffers and (sent := self._sent.get(connection)) is not None:
                    sent(connection, buffers)
                endpoint.send(buffers)
                if endpoint.has_unsent:
                    self._keep(connection, endpoint, sum(map(len, buffers)))
                elif buffers:
                    connection.was_written = True
                if connection.close_requested:
                    endpoint.close_when_sent()
                elif not endpoint.readable:
                    self._look_whether_to_read(connection, endpoint)
            if endpoint.closed:
                # Not now, in the middle of a turn: the process hears of it in an event of its own.
                self._scheduler.after(0, self._guarded(self._closed), connection, _CLOSED_HERE)

    def _keep(self, connection: Connection, endpoint: Endpoint, size: int) -> None:
        """Counts what the system has not taken of what was left before and the `size` bytes that were sent now."""
        left = connection.unsent_bytes + size
        connection.unsent_bytes = endpoint.unsent_bytes
        if connection.unsent_bytes < left:
            connection.was_written = True
        endpoint.on_writable = self._guarded(lambda: self._written(connection))
        self._look_whether_to_wait(connection, endpoint)

    def _written(self, connection: Connection) -> None:
        """The system has taken something of what was left of a connection's bytes."""
        endpoint = self.endpoints.get(connection)
        if endpoint is None:
            return
        connection.unsent_bytes = endpoint.unsent_bytes
        connection.was_written = True
        if endpoint.closed:
            self._closed(connection, _CLOSED_HERE)
        elif not endpoint.readable:
            self._look_whether_to_read(connection, endpoint)

    def held_back(self) -> set[Endpoint]:
        """Returns the ends that are not read from just now, however long the process has stood still."""
        return {
            endpoint
            for connection, endpoint in self.endpoints.items()
            if not connection.may_be_read(self._unsent_bytes_max)
        }

    def _look_whether_to_wait(self, connection: Connection, endpoint: Endpoint) -> None:
        if not connection.may_be_read(self._unsent_bytes_max):
            endpoint.readable = False

    def _look_whether_to_read(self, connection: Connection, endpoint: Endpoint) -> None:
        if connection.may_be_read(self._unsent_bytes_max):
            endpoint.readable = True
            endpoint.peer.kick()

    def _closed(self, connection: Connection, reason: str) -> None:
        if self.endpoints.pop(connection, None) is not None:
            self._sent.pop(connection, None)
            self._lost.pop(connection)(reason)

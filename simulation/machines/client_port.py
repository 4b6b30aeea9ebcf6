"""The port of a simulated server for clients: a connection is let in at once, without TLS, if there is a place for it.

Which connection finds no place, and which is closed for another, the server's `ClientSessions` decide, as in
production. That is judged here by the bytes that have come on each connection, and not by what the sessions remember.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from broker.remoting.addresses import split_address
from broker.requests.client_sessions import ClientSession, ClientSessions
from broker.requests.connection import Connection
from log.formats.record import pack_host
from simulation.journal import Journal, Violation
from simulation.machines.network import Endpoint
from simulation.machines.unanswered import Unanswered
from simulation.machines.wires import Wires
from simulation.scheduler import nothing

_PREFIX: Final = 4
"""The bytes of a frame that say how many follow."""


@dataclass(slots=True, eq=False)
class _Guest:
    """The bytes that have come on a connection until the end of its first frame."""

    _prefix: bytes = b""
    _came: int = 0
    has_asked: bool = False

    def received(self, data: bytes) -> None:
        self._came += len(data)
        self._prefix += data[: _PREFIX - len(self._prefix)]
        self.has_asked = (
            len(self._prefix) == _PREFIX and self._came >= int.from_bytes(self._prefix, "big") + _PREFIX
        )


class ClientPort:
    """Lets in the clients of one process of a server, which has `places` for them and where nobody has an account."""

    def __init__(
        self,
        server: str,
        clients: ClientSessions,
        wires: Wires,
        places: int,
        journal: Journal,
        unanswered: Unanswered | None = None,
    ) -> None:
        """`unanswered` is told of what clients ask and get."""
        self._server = server
        self._clients = clients
        self._wires = wires
        self._places = places
        self._journal = journal
        self._guests: dict[Connection, _Guest] = {}
        """The connections that have a place, as far as what has been seen says so."""
        self._unanswered = unanswered
        if unanswered is not None:
            clients.handle = unanswered.before(clients.handle)

    def take(self, endpoint: Endpoint, ended: Callable[[], object] = nothing) -> ClientSession | None:
        """Takes in a client that has connected, unless all places are taken; `ended` is called when it is gone."""
        # Counted before: what `accept` closes for this one is what is judged.
        leaving = sum(connection.aborted for connection in self._guests)
        session = self._clients.accept(endpoint.address, pack_host(*split_address(endpoint.address)))
        self._judge(session, leaving)
        if session is None:
            endpoint.close()
            return None
        session.let_in()
        connection, guest = session.connection, _Guest()
        self._guests[connection] = guest

        def received(data: bytes) -> None:
            if not guest.has_asked:
                guest.received(data)
            session.received(data)

        def lost(_: str) -> None:
            self._guests.pop(connection, None)
            if unanswered is not None:
                unanswered.lost(connection)
            session.lost()
            ended()

        unanswered = self._unanswered
        self._wires.attach(
            connection, endpoint, received, lost, None if unanswered is None else unanswered.sent
        )
        return session

    def _judge(self, session: ClientSession | None, leaving: int) -> None:
        """Judges who was sent away or refused for want of a place.

        `leaving` were to be closed before, for whatever reason. It is not known here which of them still has its place,
        and so less is judged while there are any.
        """
        # One that has asked may stay for good; so the crowd of those that have not is where somebody must go from.
        guests, is_full = self._guests, len(self._guests) >= self._places
        gone = [connection for connection in guests if connection.aborted]
        alive = len(guests) - len(gone) + (session is not None)
        crowd = Counter(each.share for each, guest in guests.items() if not guest.has_asked)
        if session is None:
            self._journal.did("connection refused for want of a place")
            if not is_full or (crowd and not leaving):
                self._found(
                    "who finds no place finds all taken by others who have asked", f"crowd {dict(crowd)}"
                )
        elif len(gone) > leaving:
            self._journal.did("silent connection sent away for another")
            if not is_full:
                self._found("nobody goes while there is a place", "one has to go")
            if not leaving:
                (one,) = gone
                if guests[one].has_asked or crowd[one.share] < max(crowd.values()):
                    self._found("one of the largest crowd goes", f"{one.name} has to, of {dict(crowd)}")
                del guests[one]
        if alive > self._places:
            self._found("no more connections than places", f"{alive} are there")

    def _found(self, invariant: str, detail: str) -> None:
        raise Violation(invariant, self._server, f"{detail}; {len(self._guests)} of {self._places} places")

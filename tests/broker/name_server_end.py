"""A name server with which the nodes of a `Group` register, without sockets: the one that ships, and what it hears."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from broker.access.name_server_control import NameServerControl
from broker.name_server.server import NameServer
from broker.name_server.sessions import NameServerSessions
from broker.remoting.command import RemotingCommand
from broker.remoting.frame import FrameDecoder, whole_commands
from broker.requests.client_sessions import SessionLimits
from broker.requests.connection import Outgoing
from broker.requests.deadline import Time
from broker.requests.line import Line
from broker.settings.tables import NameServerSettings
from tests.broker.lines import SECOND, let_in

if TYPE_CHECKING:
    from tests.broker.harness import Group, Member

ADDRESS = "127.0.0.1:9876"

Told = Callable[[str, RemotingCommand], None]
"""Is told of each request and response on its way: by the id of the node that it is of, or for."""


def answered(
    server: NameServer, connection: object, command: RemotingCommand, now_ns: int = 0
) -> RemotingCommand | None:
    """What a name server answers, read as its client reads it; None where that is nothing."""
    frame = server.answer(connection, command, now_ns)
    return None if frame is None else whole_commands(frame)[0]


class NameServerEnd:
    """The name server of a group, whose `dial_name_server` is `dialled`.

    With `secret` it takes registrations from those alone that know it. While it is not `up`, it refuses connections.
    """

    def __init__(self, secret: str, told: Told) -> None:
        self._told = told
        self._group: Group
        self._time = Time(0, 0)
        self._outgoing = Outgoing()
        self._ends: dict[object, _End] = {}
        self.up = True
        self.core = NameServer(NameServerSettings(registration_secret=secret))
        self.sessions = NameServerSessions(
            self.core,
            self,
            self._time,
            self._outgoing,
            SessionLimits(connections_max=100, idle_ns=120 * SECOND),
            bytes,
            NameServerControl(registration_secret=secret),
        )

    def serves(self, group: Group) -> None:
        """Serves that group, by its clock."""
        self._group = group

    def begin(self) -> None:
        self._time.now_ns = self._group.now_ns

    def wake(self) -> None:
        """Nothing: what is queued leaves behind each frame that has come."""

    def dialled(self, member: Member, line: Line) -> None:
        """Takes a node's connection, or refuses it."""
        if self.up:
            _End(self, member, line)
            line.opened(line.connection)
        else:
            line.lost(line.connection, "connection refused")

    def die(self) -> None:
        """The process dies, and with it all that it knew; it takes no connections until it is `up` again."""
        self.up = False
        for end in list(self._ends.values()):
            end.close()

    def _hand_out(self) -> None:
        """Has responses arrive when all is done that goes on just now."""
        for connection in self._outgoing.take():
            data = b"".join(connection.take())
            if data:
                self._group.arrivals.append(partial(self._ends[connection].arrives, data))


class _End:
    """The name server's end of a node's connection (`tests.broker.harness.ClientEnd`)."""

    def __init__(self, host: NameServerEnd, member: Member, line: Line) -> None:
        self._host = host
        self._member = member
        self._line = line
        self._connection = line.connection
        host.begin()
        self._session = let_in(host.sessions.clients, member.config.node.listen)
        self._asked, self._answered = FrameDecoder(), FrameDecoder()
        member.clients[self._connection] = self
        host._ends[self._session.connection] = self

    def receive(self, data: bytes) -> None:
        for command in self._asked.feed(data):
            self._host._told(self._member.id, command)
        self._host.begin()
        self._session.received(data)
        self._host._hand_out()

    def arrives(self, data: bytes) -> None:
        """The node reads a response, unless it is gone."""
        if self._connection in self._member.clients:
            for command in self._answered.feed(data):
                self._host._told(self._member.id, command)
            self._line.received(data)

    def close(self) -> None:
        """Both ends hear that the connection is closed."""
        if self._member.clients.pop(self._connection, None) is not None:
            self.lost()
            self._line.lost(self._connection, "it is closed")

    def lost(self) -> None:
        """The name server hears that the connection is closed."""
        self._host.begin()
        del self._host._ends[self._session.connection]
        self._session.lost()

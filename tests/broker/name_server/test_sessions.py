"""A name server's connections: responses to who reads them, and an end for who falls silent."""

from __future__ import annotations

import pytest

from broker.access.name_server_control import NameServerControl
from broker.name_server import NameServer, sessions
from broker.name_server.sessions import NameServerSessions
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, encode, request
from broker.remoting.frame import FrameDecoder
from broker.requests.connection import Connection
from broker.settings.tables import NameServerSettings
from tests.broker.lines import Desk


class Rig:
    def __init__(self) -> None:
        self.desk = Desk()
        self.core = NameServer(NameServerSettings())
        self.sessions = NameServerSessions(
            self.core, self.desk, self.desk.time, 120 * 10**9, bytes, NameServerControl()
        )

    def connect(self) -> Connection:
        connection = Connection(self.desk.outgoing, "client")
        self.sessions.accept(connection)
        return connection

    def ask(self, connection: Connection, count: int = 1) -> list[RemotingCommand]:
        """The responses to so many requests that come at once."""
        data = b"".join(encode(request(RequestCode.GET_BROKER_CLUSTER_INFO, opaque=k)) for k in range(count))
        self.sessions.clients.open[connection].received(data)
        return FrameDecoder().feed(b"".join(connection.take()))


def test_requests_are_answered() -> None:
    rig = Rig()
    answers = rig.ask(rig.connect(), 3)
    assert [(answer.code, answer.opaque) for answer in answers] == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize("unread", ["in the outbox", "in the socket"])
def test_who_leaves_much_unread_is_refused(monkeypatch: pytest.MonkeyPatch, unread: str) -> None:
    """As shipped; the simulated name server answered without a limit."""
    rig = Rig()
    connection = rig.connect()
    monkeypatch.setattr(sessions, "UNREAD_BYTES_MAX", 10)
    if unread == "in the socket":
        connection.unsent_bytes = 11
    codes = [answer.code for answer in rig.ask(connection, 3)]
    answered = [ResponseCode.SUCCESS] if unread == "in the outbox" else []
    assert codes == [*answered, *[ResponseCode.SYSTEM_BUSY] * (3 - len(answered))]
    connection.unsent_bytes = 0
    assert [answer.code for answer in rig.ask(connection)] == [ResponseCode.SUCCESS]


def test_idle_connections_are_closed() -> None:
    """As shipped; the simulated name server closed those of silent brokers only."""
    rig = Rig()
    silent, busy = rig.connect(), rig.connect()
    rig.desk.advance(100)
    rig.ask(busy)
    rig.desk.advance(21)
    turns = rig.desk.turns_wanted
    rig.sessions.sweep()
    assert (silent.aborted, busy.aborted) == (True, False)
    assert rig.desk.turns_wanted > turns

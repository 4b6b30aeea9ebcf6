"""A name server's connections: responses to who reads them, and an end for who falls silent."""

from __future__ import annotations

import pytest

from broker.access.name_server_control import NameServerControl
from broker.name_server import NameServer, sessions
from broker.name_server.sessions import NameServerSessions
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, encode, request
from broker.remoting.frame import FrameDecoder
from broker.requests import unread
from broker.requests.connection import Connection
from broker.settings.tables import NameServerSettings
from broker.statistics.events import Event
from tests.broker.lines import Desk


class Rig:
    def __init__(self) -> None:
        self.desk = Desk()
        self.core = NameServer(NameServerSettings())
        self.sessions = NameServerSessions(
            self.core, self.desk, self.desk.time, 120 * 10**9, bytes, NameServerControl()
        )

    def connect(self, name: str = "client") -> Connection:
        connection = Connection(self.desk.outgoing, name)
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


def test_strangers_that_read_nothing_take_a_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty of them had a name server grow by 200 MB."""
    monkeypatch.setattr(unread, "STRANGERS_UNREAD_BYTES_MAX", 100_000)
    rig = Rig()
    reads = rig.connect("10.0.0.1:1")
    strangers = [rig.connect(f"10.0.0.2:{number}") for number in range(50)]
    data = encode(request(RequestCode.GET_BROKER_CLUSTER_INFO)) * 50
    for _ in range(3):
        for stranger in strangers:
            rig.sessions.clients.open[stranger].received(data)
            stranger.unsent_bytes += sum(map(len, stranger.take()))
        assert sum(each.unsent_bytes for each in strangers if not each.aborted) <= 100_000 + 50_000
        assert len(rig.ask(reads, 3)) == 3
    assert sum(each.aborted for each in strangers) > 20
    assert not reads.aborted
    assert rig.sessions.events.counts[Event.CONNECTION_CLOSED, "leaves answers unread"] > 20


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

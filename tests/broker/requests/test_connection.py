"""What a connection asks of whoever owns its socket, and what of its bytes counts as unread."""

from __future__ import annotations

import pytest

from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, request
from broker.remoting.frame import FrameDecoder
from broker.requests import connection as connection_module
from broker.requests.connection import LOOPBACK_HOST, Connection, Outgoing, RelayedConnection
from broker.requests.responses import LARGE_BODY_BYTES, reply

LIMIT = 1000


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "UNREAD_BYTES_MAX", LIMIT)


@pytest.mark.parametrize("queued", [0, 300, LIMIT])
def test_what_is_queued_and_what_the_socket_has_not_taken_count_as_unread_together(queued: int) -> None:
    connection = Connection(Outgoing(), "a")
    if queued:
        connection.send(bytes(queued - 1), b"x")
    connection.unsent_bytes = LIMIT - queued
    assert not connection.leaves_much_unread(), "as much as that may wait"
    connection.unsent_bytes += 1
    assert connection.leaves_much_unread()
    connection.take()  # the socket has it
    connection.unsent_bytes = LIMIT
    assert not connection.leaves_much_unread()


def test_of_a_relayed_client_only_its_replica_s_link_counts() -> None:
    full = False
    delivered: list[object] = []
    connection = RelayedConnection(Outgoing(), "n1", 7, LOOPBACK_HOST, delivered.append, lambda: full)
    connection.send(bytes(LIMIT + 1))
    assert (len(delivered), connection.outbox) == (1, [])
    assert not connection.leaves_much_unread()
    full = True
    assert connection.leaves_much_unread()


@pytest.mark.parametrize("size", [LARGE_BODY_BYTES, LARGE_BODY_BYTES + 1])
@pytest.mark.parametrize("unread", [LIMIT, LIMIT + 1])
def test_who_leaves_much_unread_gets_no_long_body(size: int, unread: int) -> None:
    connection = Connection(Outgoing(), "a")
    connection.unsent_bytes = unread
    reply(connection, request(RequestCode.GET_ALL_TOPIC_CONFIG), ResponseCode.SUCCESS, body=bytes(size))
    (answer,) = responses(connection)
    if size > LARGE_BODY_BYTES and unread > LIMIT:
        assert (answer.code, answer.body) == (ResponseCode.SYSTEM_BUSY, b"")
    else:
        assert (answer.code, len(answer.body)) == (ResponseCode.SUCCESS, size)


def responses(connection: Connection) -> list[RemotingCommand]:
    return FrameDecoder().feed(b"".join(connection.take()))


def test_a_connection_is_listed_once_in_a_turn_however_much_is_sent() -> None:
    outgoing = Outgoing()
    one, other = Connection(outgoing, "one"), Connection(outgoing, "other")
    one.send(b"a")
    other.send(b"b")
    one.send(b"c", b"d")
    one.close()
    one.close()
    assert outgoing.take() == [one, other]
    assert one.take() == [b"a", b"c", b"d"]
    assert outgoing.take() == []


def test_an_aborted_connection_is_listed_once_and_has_nothing_to_write() -> None:
    outgoing = Outgoing()
    queued, idle, closing = (Connection(outgoing, name) for name in ("queued", "idle", "closing"))
    queued.send(b"answer")
    closing.send(b"answer")
    closing.close()
    assert not closing.aborted
    for connection in (queued, idle, closing, queued):
        connection.abort()
    assert outgoing.take() == [queued, closing, idle]
    for connection in (queued, idle, closing):
        assert (connection.aborted, connection.close_requested, connection.outbox) == (True, True, [])


def test_a_connection_that_is_to_be_closed_is_not_listed_again() -> None:
    """Its owner has been asked once, and may know nothing of it any more."""
    outgoing = Outgoing()
    connection = Connection(outgoing, "a")
    connection.abort()
    outgoing.take()
    connection.send(b"late")
    connection.close()
    connection.abort()
    assert outgoing.take() == []


def test_a_connection_that_is_to_be_closed_in_order_can_be_closed_at_once() -> None:
    """The shell waited for a reader that reads nothing, and heard nothing of it."""
    outgoing = Outgoing()
    connection = Connection(outgoing, "a")
    connection.close()
    assert outgoing.take() == [connection]
    connection.abort()
    assert outgoing.take() == [connection]
    connection.abort()
    assert outgoing.take() == [], "once"


@pytest.mark.parametrize(
    ("unsent", "waits", "may"), [(0, False, True), (9, False, True), (10, False, False), (0, True, False)]
)
def test_who_leaves_much_unsent_or_has_requests_that_wait_is_not_read_from(
    unsent: int, waits: bool, may: bool
) -> None:
    connection = Connection(Outgoing(), "a client")
    connection.unsent_bytes, connection.has_unhandled = unsent, waits
    assert connection.may_be_read(9) == may

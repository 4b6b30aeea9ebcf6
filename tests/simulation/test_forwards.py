"""A leader is held to the order in which the requests of a client have come by another node."""

from __future__ import annotations

import pytest

from broker.peers.protocol import Forward
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand, encode_head
from broker.requests.connection import Outgoing, RelayedConnection
from simulation.journal import Violation
from simulation.judges.forwards import IN_ORDER, Forwards

_HOST = bytes(8)


class _Leader:
    """Handles of what has come whatever a test says."""

    def __init__(self) -> None:
        self.handled: list[int] = []
        self._forwards = Forwards("n0")

    def comes(self, opaque: int, client: int = 1, source: str = "n1") -> None:
        self._forwards.comes(source, Forward(client, _HOST, 3, encode_head(_request(opaque), 0)))

    def handles(self, opaque: int, client: int = 1, source: str = "n1") -> None:
        connection = RelayedConnection(Outgoing(), source, client, _HOST, lambda buffers: None, lambda: False)
        self._forwards.is_handled(connection, _request(opaque))
        self.handled.append(opaque)


def _request(opaque: int) -> RemotingCommand:
    return RemotingCommand(RequestCode.HEART_BEAT, opaque=opaque)


def test_what_is_handled_in_order_is_handed_on_though_some_comes_to_nothing() -> None:
    leader = _Leader()
    for opaque in (5, 6, 7, 8):
        leader.comes(opaque)
    for opaque in (5, 7, 8):
        leader.handles(opaque)
    assert leader.handled == [5, 7, 8]


def test_a_request_that_is_handled_behind_a_later_one_was_overtaken() -> None:
    leader = _Leader()
    for opaque in (5, 6, 7):
        leader.comes(opaque)
    leader.handles(6)
    with pytest.raises(Violation) as found:
        leader.handles(5)
    assert found.value.invariant == IN_ORDER


def test_clients_do_not_wait_for_each_other() -> None:
    leader = _Leader()
    for opaque, client, source in ((5, 1, "n1"), (5, 2, "n1"), (5, 1, "n2")):
        leader.comes(opaque, client, source)
    for opaque, client, source in ((5, 1, "n2"), (5, 2, "n1"), (5, 1, "n1")):
        leader.handles(opaque, client, source)
    assert leader.handled == [5, 5, 5]


def test_the_number_of_a_request_may_come_again() -> None:
    leader = _Leader()
    for opaque in (5, 6, 5):
        leader.comes(opaque)
    for opaque in (5, 5):
        leader.handles(opaque)
    with pytest.raises(Violation):
        leader.handles(6)

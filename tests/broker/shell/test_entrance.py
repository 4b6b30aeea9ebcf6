"""A crowd at the entrance: however many speak, shake hands or go at once, few are seen to before others are.

What is counted happens between two of Trio's looks at sockets and timers, which is where a node's other tasks stand.
"""

from __future__ import annotations

import socket
import ssl
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from broker.requests.connection_places import Places
from broker.settings.tables import TlsSettings
from broker.shell.sockets import ACCEPTED_AT_ONCE, accept_forever, listen
from broker.shell.tls import HEARD_AT_ONCE, Admission, Entrance, Handshakes, dial_tls
from broker.shell.tls_contexts import server_context
from broker.statistics.events import Events
from tests.broker.shell.certificates import Certificates
from tests.broker.shell.servers import LIMIT_S

CROWD = 100


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


class Passes(trio.abc.Instrument):
    """Counts what is noted in each pass of Trio's scheduler."""

    def __init__(self) -> None:
        self.number = 0
        self.noted: Counter[int] = Counter()

    def before_io_wait(self, timeout: float) -> None:
        self.number += 1

    def note(self) -> None:
        self.noted[self.number] += 1


@pytest.fixture
def crowd() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """The near and far ends of connections."""
    pairs = [socket.socketpair() for _ in range(CROWD)]
    for pair in pairs:
        for end in pair:
            end.setblocking(False)
    yield pairs
    for pair in pairs:
        for end in pair:
            end.close()


def _context(certificates: Certificates) -> ssl.SSLContext:
    certificate, key = certificates.issue()
    context = server_context(TlsSettings(certificate=certificate, key=key))
    assert context is not None
    return context


def _places() -> Places:
    return Places(CROWD, lambda: False, lambda: 0, Events())


def _entrance(certificates: Certificates) -> Entrance:
    return Entrance(_context(certificates), Events(), enforcing=False, first_byte_s=10 * LIMIT_S)


async def test_those_who_have_connected_are_accepted_by_the_handful() -> None:
    """One in a pass, and a crowd that connects keeps others waiting before anything of them is seen."""
    passes = Passes()
    listener = listen("127.0.0.1:0", backlog=CROWD)
    far = [socket.create_connection(listener.getsockname()) for _ in range(CROWD)]
    near: list[socket.socket] = []

    def accepted(sock: socket.socket, _: tuple[str, int]) -> None:
        near.append(sock)
        passes.note()
        if len(near) == CROWD:
            accepting.cancel()

    with trio.fail_after(LIMIT_S):
        trio.lowlevel.add_instrument(passes)
        with trio.CancelScope() as accepting:
            await accept_forever(listener, accepted, Events())
        trio.lowlevel.remove_instrument(passes)
    for sock in (*near, *far, listener):
        sock.close()
    assert passes.noted.total() == CROWD
    assert max(passes.noted.values()) == ACCEPTED_AT_ONCE
    assert len(passes.noted) == -(-CROWD // ACCEPTED_AT_ONCE)


async def test_one_step_of_one_handshake_in_a_pass(
    certificates: Certificates,
    crowd: list[tuple[socket.socket, socket.socket]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entrance, client, places = _entrance(certificates), certificates.client(), _places()
    passes = Passes()
    step = ssl.SSLObject.do_handshake

    def counted(session: ssl.SSLObject) -> None:
        if session.server_side:
            passes.note()
        step(session)

    monkeypatch.setattr(ssl.SSLObject, "do_handshake", counted)
    admitted: list[Admission | None] = []

    async def admit(near: socket.socket) -> None:
        place = places.take("127.0.0.1")
        assert place is not None
        admitted.append(await entrance.admit(near, "127.0.0.1:1", place))

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as running:
            running.start_soon(entrance.run)
            trio.lowlevel.add_instrument(passes)
            async with trio.open_nursery() as nursery:
                for near, far in crowd:
                    nursery.start_soon(dial_tls, far, client, "127.0.0.1")
                    nursery.start_soon(admit, near)
            trio.lowlevel.remove_instrument(passes)
            running.cancel_scope.cancel()
    assert len([admission for admission in admitted if admission is not None and admission.tls]) == CROWD
    assert passes.noted.total() == 2 * CROWD
    assert set(passes.noted.values()) == {1}


async def test_a_peer_does_not_wait_for_a_crowd_of_clients(
    certificates: Certificates, crowd: list[tuple[socket.socket, socket.socket]]
) -> None:
    context, client = _context(certificates), certificates.client()
    clients, peers = Handshakes(), Handshakes()
    order: list[str] = []

    async def accept(handshakes: Handshakes, near: socket.socket, name: str) -> None:
        await handshakes.accept(near, context, "127.0.0.1")
        order.append(name)

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            for near, far in crowd[1:]:
                nursery.start_soon(accept, clients, near, "client")
                nursery.start_soon(dial_tls, far, client, "127.0.0.1")
            near, far = crowd[0]
            nursery.start_soon(accept, peers, near, "peer")
            nursery.start_soon(dial_tls, far, client, "127.0.0.1")
    assert order.index("peer") < CROWD / 4


async def test_a_crowd_of_one_address_keeps_nobody_else_waiting(
    certificates: Certificates, crowd: list[tuple[socket.socket, socket.socket]]
) -> None:
    context, client, handshakes = _context(certificates), certificates.client(), Handshakes()
    order: list[str] = []

    async def accept(near: socket.socket, source: str) -> None:
        await handshakes.accept(near, context, source)
        order.append(source)

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            for near, far in crowd[1:]:
                nursery.start_soon(accept, near, "10.0.0.1")
                nursery.start_soon(dial_tls, far, client, "127.0.0.1")
            near, far = crowd[0]
            nursery.start_soon(accept, near, "10.0.0.2")
            nursery.start_soon(dial_tls, far, client, "127.0.0.1")
    assert len(order) == CROWD
    assert order.index("10.0.0.2") < CROWD / 4


async def test_a_handshake_that_is_given_up_while_it_waits_keeps_nobody_waiting() -> None:
    handshakes, order = Handshakes(), list[int]()

    given_up = trio.CancelScope()

    async def step(number: int) -> None:
        with given_up if number == 1 else trio.CancelScope():
            await handshakes.begin_step("10.0.0.1")
            order.append(number)
            handshakes.end_step()

    with trio.fail_after(LIMIT_S):
        await handshakes.begin_step("10.0.0.1")
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(step, number)
                await trio.testing.wait_all_tasks_blocked()
            given_up.cancel()
            handshakes.end_step()
    assert order == [0, 2]


@pytest.mark.skipif(sys.platform != "linux", reason="it needs epoll")
async def test_of_those_who_go_at_once_few_are_heard_in_a_pass(
    certificates: Certificates, crowd: list[tuple[socket.socket, socket.socket]]
) -> None:
    entrance, places = _entrance(certificates), _places()
    passes = Passes()

    async def admit(near: socket.socket) -> None:
        place = places.take("127.0.0.1")
        assert place is not None
        assert await entrance.admit(near, "127.0.0.1:1", place) is None
        place.free()
        passes.note()

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as running:
            running.start_soon(entrance.run)
            async with trio.open_nursery() as nursery:
                for near, _ in crowd:
                    nursery.start_soon(admit, near)
                await trio.testing.wait_all_tasks_blocked()
                assert len(places.silent) == CROWD
                trio.lowlevel.add_instrument(passes)
                for _, far in crowd:
                    far.close()
            trio.lowlevel.remove_instrument(passes)
            running.cancel_scope.cancel()
    assert passes.noted.total() == CROWD
    assert max(passes.noted.values()) <= HEARD_AT_ONCE
    assert places.taken == 0

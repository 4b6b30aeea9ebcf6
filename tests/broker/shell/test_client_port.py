"""A crowd at the port: however many speak, shake hands or go at once, few are seen to before others are.

What is counted happens between two of Trio's looks at sockets and timers, which is where a node's other tasks stand.
"""

from __future__ import annotations

import socket
import ssl
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from broker.remoting.command import RemotingCommand
from broker.requests.client_sessions import ClientSessions, SessionLimits
from broker.requests.connection import Connection, Outgoing
from broker.requests.deadline import Time
from broker.settings.tables import TlsSettings
from broker.shell.client_port import HEARD_AT_ONCE, ClientPort
from broker.shell.sockets import ACCEPTED_AT_ONCE, accept_forever, has_come, listen
from broker.shell.tls import Handshakes, dial_tls
from broker.shell.tls_contexts import server_context
from broker.shell.wires import Wires
from broker.statistics.events import EventKind, Events
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


class Server:
    """A port without a listener, whose clients ask for nothing."""

    can_prove_clients = False
    has_strangers = False

    def __init__(self, certificates: Certificates, *, in_the_clear: bool = False) -> None:
        outgoing = Outgoing()
        self.wires = Wires(outgoing, lambda: None, self._wake)
        self.let_in: list[Connection] = []
        self.all_let_in = trio.Event()
        self.clients = ClientSessions(
            self,
            SessionLimits(connections_max=CROWD, idle_ns=10 * int(LIMIT_S) * 10**9),
            self.wires,
            Time(0, 0),
            outgoing,
            bytes,
            Events(),
        )
        context = None if in_the_clear else _context(certificates)
        self.port = ClientPort([], self.clients, self.wires, context, enforcing=False)

    def client_connected(self, connection: Connection) -> None:
        self.let_in.append(connection)
        if len(self.let_in) == CROWD:
            self.all_let_in.set()

    def received(self, connection: Connection, command: RemotingCommand) -> None:
        raise AssertionError("nobody asks for anything")

    def client_disconnected(self, connection: Connection) -> None:
        pass

    def _wake(self) -> None:
        self.wires.hand_out()

    def take(self, near: socket.socket) -> None:
        self.port._take(near, ("127.0.0.1", 1))


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


class WhenWoken(trio.abc.Instrument):
    """Does something right before a task goes on that has waited until a listener can be read."""

    def __init__(self, do: Callable[[], None]) -> None:
        self._do = do
        self._is_waiting = False

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if "accept_forever" in task.name:
            if self._is_waiting:
                self._do()
            self._is_waiting = True


@pytest.mark.parametrize("passes", [0, 1, 2, 9])
async def test_a_port_that_refuses_others_ends_in_order(passes: int, certificates: Certificates) -> None:
    """Also one that has just begun, as a node that is stopped while it starts."""
    server = Server(certificates)
    listener = listen("127.0.0.1:0")
    port = ClientPort([listener], server.clients, server.wires, None, enforcing=False)
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as running:
            port.start(running)
            for _ in range(passes):
                await trio.lowlevel.checkpoint()
            port.refuse_others()
            await trio.testing.wait_all_tasks_blocked()
            running.cancel_scope.cancel()


async def test_who_connects_while_others_are_refused_is_taken_in(certificates: Certificates) -> None:
    """The node refuses others in a turn that runs before its task which has heard of this one."""
    server = Server(certificates)
    listener = listen("127.0.0.1:0")
    port = ClientPort([listener], server.clients, server.wires, None, enforcing=False)
    refuses = WhenWoken(port.refuse_others)
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as running:
            port.start(running)
            trio.lowlevel.add_instrument(refuses)
            await trio.testing.wait_all_tasks_blocked()
            with socket.create_connection(listener.getsockname()):
                await trio.testing.wait_all_tasks_blocked()
                assert listener.fileno() == -1
                assert len(server.let_in) == 1
            trio.lowlevel.remove_instrument(refuses)
            running.cancel_scope.cancel()


async def test_what_has_come_of_one_who_is_not_let_in_is_known(certificates: Certificates) -> None:
    server = Server(certificates)
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as running:
            server.port.start(running)
            near, far = socket.socketpair()
            with far:
                server.take(near)
                [session] = server.clients.arriving
                wire = server.wires.open[session.connection]
                assert not wire.has_unread()
                far.send(b"\x16")
                assert wire.has_unread()
                running.cancel_scope.cancel()


async def test_one_step_of_one_handshake_in_a_pass(
    certificates: Certificates,
    crowd: list[tuple[socket.socket, socket.socket]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, client = Server(certificates), certificates.client()
    passes = Passes()
    step = ssl.SSLObject.do_handshake

    def counted(session: ssl.SSLObject) -> None:
        if session.server_side:
            passes.note()
        step(session)

    monkeypatch.setattr(ssl.SSLObject, "do_handshake", counted)
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as running:
            server.port.start(running)
            trio.lowlevel.add_instrument(passes)
            for near, far in crowd:
                running.start_soon(dial_tls, far, client, "127.0.0.1")
                server.take(near)
            await server.all_let_in.wait()
            trio.lowlevel.remove_instrument(passes)
            running.cancel_scope.cancel()
    assert all(connection.is_encrypted for connection in server.let_in)
    assert (server.clients.places.taken, server.clients.open, server.wires.open) == (0, {}, {})
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
@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "half a ClientHello"])
async def test_of_those_who_go_at_once_few_are_heard_in_a_pass(
    certificates: Certificates,
    crowd: list[tuple[socket.socket, socket.socket]],
    monkeypatch: pytest.MonkeyPatch,
    said: bytes,
) -> None:
    server, passes = Server(certificates), Passes()
    places, all_gone = server.clients.places, trio.Event()
    free = places.free

    def freed(connection: Connection) -> None:
        free(connection)
        passes.note()
        if not places.taken:
            all_gone.set()

    monkeypatch.setattr(places, "free", freed)
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as running:
            server.port.start(running)
            for near, far in crowd:
                far.send(said)
                server.take(near)
            await trio.testing.wait_all_tasks_blocked()
            assert places.taken == CROWD
            assert all(not has_come(near) for near, _ in crowd)
            trio.lowlevel.add_instrument(passes)
            for _, far in crowd:
                far.close()
            await all_gone.wait()
            trio.lowlevel.remove_instrument(passes)
            running.cancel_scope.cancel()
    assert passes.noted.total() == CROWD
    assert max(passes.noted.values()) <= HEARD_AT_ONCE
    assert server.let_in == []
    assert server.clients.events.counts == {(EventKind.CONNECTION_REFUSED, "not let in"): CROWD}


async def test_who_loses_his_place_in_a_handshake_is_closed(certificates: Certificates) -> None:
    server = Server(certificates)
    pairs = [socket.socketpair() for _ in range(CROWD + 2)]
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as running:
            server.port.start(running)
            for near, _ in pairs[:CROWD]:
                server.take(near)
            pairs[0][1].send(b"\x16")
            await trio.testing.wait_all_tasks_blocked()
            for near, _ in pairs[CROWD:]:
                server.take(near)
            await trio.testing.wait_all_tasks_blocked()
            assert [near.fileno() for near, _ in pairs[:2]] == [-1, -1]
            assert all(near.fileno() >= 0 for near, _ in pairs[2:])
            assert server.clients.places.taken == len(server.wires.open) == CROWD
            running.cancel_scope.cancel()
    for near, far in pairs:
        assert near.fileno() == -1
        far.close()


@pytest.mark.parametrize("in_the_clear", [False, True])
async def test_who_loses_his_place_before_his_task_has_run_is_closed(
    in_the_clear: bool, certificates: Certificates
) -> None:
    """The server never hears of him."""
    server = Server(certificates, in_the_clear=in_the_clear)
    pairs = [socket.socketpair() for _ in range(CROWD + 1)]
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as running:
            server.port.start(running)
            for near, _ in pairs:
                server.take(near)
            await trio.testing.wait_all_tasks_blocked()
            assert pairs[0][0].fileno() == -1
            assert server.clients.places.taken == len(server.wires.open) == CROWD
            assert len(server.let_in) == (CROWD if in_the_clear else 0)
            running.cancel_scope.cancel()
    for _, far in pairs:
        far.close()

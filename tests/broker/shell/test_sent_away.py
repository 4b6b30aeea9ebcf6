"""Whoever is sent away behind the entrance, for a limit or for what it sends, is told in the log and counted, once."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import structlog.testing
import trio

from broker.settings.tables import NameServerSettings, Settings, TlsSettings
from broker.shell.sockets import accept_forever, connect
from broker.shell.tls import TlsSession, dial_tls
from broker.statistics.events import EventKind, Events
from tests.broker.shell.certificates import Certificates
from tests.broker.shell.servers import LIMIT_S, Servers, running
from tests.hostile.key_updates import KeyUpdates


def updates(session: TlsSession) -> bytes:
    try:
        return KeyUpdates(session._ssl, session._outgoing).take(64 * 1024, wants_answers=False)
    except LookupError as error:
        pytest.skip(str(error))


def garbage(session: TlsSession) -> bytes:
    return b"\x17\x03\x03\x00\x20" + bytes(32)


async def send(sock: socket.socket, data: bytes) -> None:
    """Sends it, as far as the other end takes it, and waits for the connection's end."""
    try:
        while data:
            await trio.lowlevel.wait_writable(sock)
            data = data[sock.send(data) :]
        while True:
            await trio.lowlevel.wait_readable(sock)
            if not sock.recv(65_536):
                return
    except ConnectionError:
        pass
    finally:
        sock.close()


def place(servers: Servers, server: str) -> str:
    if server == "name server":
        return servers.name_server
    return servers.configs["n0"].raft.peers["n0"] if server == "peers" else servers.brokers["n0"].address


@pytest.mark.parametrize("server", ["broker", "name server", "peers"])
@pytest.mark.parametrize(
    ("sends", "reason", "detail"),
    [
        (
            updates,
            "TLS without requests",
            "it sends TLS's own messages, such as key updates, and hardly any data",
        ),
        (garbage, "broken TLS", "SSL"),
    ],
)
async def test_what_tls_does_not_bear_is_told(
    server: str, sends: Callable[[TlsSession], bytes], reason: str, detail: str, tmp_path: Path
) -> None:
    """The connection was closed without a word."""
    folder = tmp_path / "certificates"
    folder.mkdir()
    certificates = Certificates(folder)
    certificate, key = shown = certificates.issue()
    ca = certificates.authority() if server == "peers" else ""

    def change(settings: Settings) -> Settings:
        tls = TlsSettings(certificate=certificate, key=key, peer_ca=ca)
        return msgspec.structs.replace(settings, tls=tls)

    base = NameServerSettings(tls_certificate=certificate, tls_key=key)
    with structlog.testing.capture_logs() as logs:
        async with running(tmp_path, nodes=3 if ca else 1, name_server=base, change=change) as servers:
            for _ in range(2):
                sock = await connect(place(servers, server))
                session = await dial_tls(sock, certificates.client(shows=shown), "127.0.0.1")
                await send(sock, sends(session))
            broker, process = servers.brokers["n0"], servers.name_servers[servers.name_server]
            events = process._sessions.events if server == "name server" else broker.node.events
            is_link = server == "peers"
            event = EventKind.LINK_CLOSED if is_link else EventKind.CONNECTION_CLOSED
            reason = "a stranger's" if is_link else reason
            while True:  # the client may hear of the end before it is told
                if events.counts.get((event, reason), 0) == 2:
                    break
                await trio.sleep(0.01)
    told = [entry for entry in logs if (entry["event"], entry.get("reason")) == (event.value, reason)]
    assert len(told) == (2 if is_link else 1)
    for entry in told:
        assert entry["source"] == "127.0.0.1"
        assert detail in entry["detail"]


async def test_a_server_that_has_no_descriptors_left_says_so() -> None:
    class Full(socket.socket):
        """The first connection finds no descriptor."""

        failures = 1

        def accept(self) -> tuple[socket.socket, tuple[str, int]]:
            if self.failures:
                self.failures -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    listener = Full(fileno=socket.create_server(("127.0.0.1", 0)).detach())
    listener.setblocking(False)
    events = Events()
    accepted = trio.Event()
    with trio.fail_after(LIMIT_S), structlog.testing.capture_logs() as lines:
        async with trio.open_nursery() as nursery:

            def take(sock: socket.socket, _: tuple[str, int]) -> None:
                sock.close()
                accepted.set()

            nursery.start_soon(accept_forever, listener, take, events)
            (await connect(f"127.0.0.1:{listener.getsockname()[1]}")).close()
            await accepted.wait()
            nursery.cancel_scope.cancel()
    listener.close()
    assert events.counts == {(EventKind.CONNECTION_REFUSED, "out of descriptors"): 1}
    assert [line["detail"] for line in lines] == ["[Errno 24] Too many open files"]

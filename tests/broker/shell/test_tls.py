"""TLS on the port of plain connections: who gets in under which mode, and that bytes arrive as they were."""

from __future__ import annotations

import contextlib
import errno
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
import structlog.testing
import trio

from broker.client.admin import AdminClient
from broker.client.errors import ConnectFailed, ConnectionFailed, NameServerUnavailable
from broker.remoting.codes import RequestCode
from broker.requests.connection import Connection, Outgoing
from broker.settings.rules import ImpossibleSettingError, check_name_server
from broker.settings.tables import NameServerSettings, TlsSettings
from broker.shell.name_server import NameServerProcess
from broker.shell.sockets import SocketConnection, connect
from broker.shell.tls import TlsSession
from broker.shell.tls_contexts import reload_certificates, server_context
from broker.tools.cluster.query import ask, cluster_info
from tests.broker.shell.certificates import Certificates
from tests.broker.shell.servers import LIMIT_S

FAR_S = 10 * int(LIMIT_S)
"""Of a limit that is not the one which a test is about: it ends after the test has failed."""


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@contextlib.asynccontextmanager
async def name_server(certificates: Certificates, **settings: object) -> AsyncIterator[str]:
    """A running name server with a certificate; gives its address."""
    certificate, key = certificates.issue()
    config = NameServerSettings(
        listen="127.0.0.1:0",
        kv_config_path="",
        tls_certificate=certificate,
        tls_key=key,
        **settings,  # type: ignore[arg-type]
    )
    check_name_server(config)
    server = NameServerProcess(config)
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve)
            yield server.address
            nursery.cancel_scope.cancel()


def refusals(logs: Sequence[Mapping[str, object]]) -> list[tuple[object, object]]:
    """The reason and detail of each connection that was told to be refused."""
    return [(entry["reason"], entry["detail"]) for entry in logs if entry["event"] == "connection refused"]


async def test_one_port_serves_both_when_permissive(certificates: Certificates) -> None:
    async with name_server(certificates) as address:
        assert (await cluster_info(address)).broker_table == {}
        assert (await cluster_info(address, tls=certificates.client())).broker_table == {}


async def test_enforcing_sends_plain_connections_away(certificates: Certificates) -> None:
    with structlog.testing.capture_logs() as logs:
        async with name_server(certificates, tls_mode="enforcing") as address:
            with pytest.raises(ConnectionFailed):
                await cluster_info(address)
            await cluster_info(address, tls=certificates.client())
    assert [entry["detail"] for entry in logs if "detail" in entry] == ["not encrypted, and TLS is enforced"]


async def test_disabled_takes_no_handshake(certificates: Certificates) -> None:
    async with name_server(certificates, tls_mode="disabled") as address:
        await cluster_info(address)
        with pytest.raises(ConnectFailed, match="may not speak TLS"):
            await cluster_info(address, tls=certificates.client())


async def test_client_does_not_believe_another_authority(certificates: Certificates) -> None:
    async with name_server(certificates) as address:
        with pytest.raises(ConnectFailed, match=r"(?i)certificate is not good"):
            await cluster_info(address, tls=certificates.client(authority="other"))
        async with AdminClient(address, tls=certificates.client(authority="other")) as admin:
            with pytest.raises(NameServerUnavailable, match="certificate is not good") as caught:
                await admin.cluster_info()
            assert not caught.value.retry_may_help


async def test_client_does_not_believe_a_certificate_for_another_host(certificates: Certificates) -> None:
    certificate, key = certificates.issue("elsewhere.example")
    settings = NameServerSettings(listen="127.0.0.1:0", tls_certificate=certificate, tls_key=key)
    server = NameServerProcess(settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve)
        with pytest.raises(ConnectFailed, match="IP address mismatch"):
            await cluster_info(server.address, tls=certificates.client())
        nursery.cancel_scope.cancel()


async def test_required_client_certificates(certificates: Certificates) -> None:
    settings = {"tls_client_auth": "required", "tls_client_ca": certificates.authority("clients")}
    stranger = certificates.client(shows=certificates.issue("stranger.example", "strangers"))
    known = certificates.client(shows=certificates.issue("client.example", "clients"))
    with structlog.testing.capture_logs() as logs:
        async with name_server(certificates, **settings) as address:
            for refused in (certificates.client(), stranger):
                with pytest.raises(ConnectionFailed):
                    await cluster_info(address, tls=refused)
            await cluster_info(address, tls=known)
    reasons = [entry["detail"] for entry in logs if entry["event"] == "connection refused"]
    assert len(reasons) == 2
    assert "peer_did_not_return_a_certificate" in reasons[0].lower().replace(" ", "_")
    assert "issuer" in reasons[1], "its own is of another authority"


async def test_large_frames_pass(certificates: Certificates) -> None:
    """Frames of many TLS records each way: as much key-value configuration as a header may have."""
    value = "v" * 260_000
    async with name_server(certificates) as address:
        tls = certificates.client()
        fields = {"namespace": "n", "key": "k"}
        await ask(address, RequestCode.PUT_KV_CONFIG, fields | {"value": value}, tls=tls)
        answer = await ask(address, RequestCode.GET_KV_CONFIG, fields, tls=tls)
        assert answer.fields["value"] == value


async def test_garbage_after_a_handshake_byte_is_sent_away(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For what it is: no limit of time would end the connection within this test's own."""
    monkeypatch.setattr("broker.requests.client_sessions.HANDSHAKE_NS", FAR_S * 10**9)
    with structlog.testing.capture_logs() as logs:
        async with name_server(certificates, idle_seconds=FAR_S) as address:
            stream = await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2]))
            await stream.send_all(b"\x16" + b"\xff" * 100)
            with contextlib.suppress(trio.BrokenResourceError):
                while await stream.receive_some(100):
                    pass
            await stream.aclose()
            await cluster_info(address)
    (reason,) = [entry["detail"] for entry in logs if entry["event"] == "connection refused"]
    assert "version" in reason.lower()


async def test_connection_that_says_nothing_is_closed(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.requests.client_sessions.SWEEP_NS", 10**8)
    with structlog.testing.capture_logs() as logs:
        async with name_server(certificates, idle_seconds=1) as address:
            stream = await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2]))
            assert await stream.receive_some(1) == b""
    assert refusals(logs) == [("not let in", "nothing came within 1 s")]


async def test_handshake_that_stops_half_way_is_given_up(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.requests.client_sessions.SWEEP_NS", 10**8)
    monkeypatch.setattr("broker.requests.client_sessions.HANDSHAKE_NS", 10**8)
    with structlog.testing.capture_logs() as logs:
        async with name_server(certificates, idle_seconds=FAR_S) as address:
            stream = await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2]))
            await stream.send_all(b"\x16\x03\x01\x02\x00")  # a record's head, and nothing of the record
            assert await stream.receive_some(1) == b""
    assert refusals(logs) == [("not let in", "no TLS handshake within 0.1 s")]


async def test_writes_beyond_the_socket_buffer_arrive_in_order(certificates: Certificates) -> None:
    """What the socket does not take at once goes out later, encrypted once and whole."""
    certificate, key = certificates.issue()
    context = server_context(TlsSettings(certificate=certificate, key=key))
    assert context is not None
    listener = socket.create_server(("127.0.0.1", 0))
    received = bytearray()
    pieces = [bytes([k]) * 300_000 for k in range(20)]
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:

            async def server() -> None:
                sock, _ = await trio.to_thread.run_sync(listener.accept)
                sock.setblocking(False)
                session = TlsSession(context, server_side=True)
                await session.handshake(sock, trio.Lock())
                connection = Connection(Outgoing(), "test")
                link = SocketConnection(sock, connection, tls=session)
                for piece in pieces:
                    connection.send(piece[:100_000], memoryview(piece)[100_000:])
                    link.flush()
                connection.close()
                link.flush()
                await link.read_and_write(lambda data: None)

            nursery.start_soon(server)
            sock = await connect(f"127.0.0.1:{listener.getsockname()[1]}")
            session = TlsSession(certificates.client(), server_side=False, server_hostname="127.0.0.1")
            await session.handshake(sock, trio.Lock())
            link = SocketConnection(sock, Connection(Outgoing(), "test"), tls=session)
            await link.read(received.extend)
    listener.close()
    assert bytes(received) == b"".join(pieces)


@pytest.mark.parametrize(
    ("change", "setting", "words"),
    [
        ({"key": "missing.pem"}, "tls.key", "No such file"),
        ({"certificate": "KEY"}, "tls.key", "PEM"),
        ({"key": "OTHER_KEY"}, "tls.key", "the key is not the certificate's"),
        ({"client_auth": "required", "client_ca": "KEY"}, "tls.client_ca", "no PEM certificate"),
    ],
)
def test_files_that_cannot_be_used_are_named(
    certificates: Certificates, change: dict[str, str], setting: str, words: str
) -> None:
    certificate, key = certificates.issue()
    named = {"KEY": key, "OTHER_KEY": certificates.issue("127.0.0.2")[1]}
    change = {name: named.get(value, value) for name, value in change.items()}
    settings = TlsSettings(**{"certificate": certificate, "key": key} | change)  # type: ignore[arg-type]
    with pytest.raises(ImpossibleSettingError, match=words) as refused:
        server_context(settings)
    assert refused.value.setting == setting


def test_old_versions_are_not_spoken(certificates: Certificates) -> None:
    certificate, key = certificates.issue()
    context = server_context(TlsSettings(certificate=certificate, key=key))
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


async def test_certificate_is_read_anew(certificates: Certificates) -> None:
    """A renewed certificate is shown to whoever connects next; a broken one changes nothing."""
    certificate, key = certificates.issue()
    server = NameServerProcess(
        NameServerSettings(listen="127.0.0.1:0", tls_certificate=certificate, tls_key=key)
    )
    new_certificate, new_key = certificates.issue("127.0.0.1", "new")
    renewed = certificates.client(authority="new")
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve)
            await cluster_info(server.address, tls=certificates.client())
            with pytest.raises(ConnectFailed):
                await cluster_info(server.address, tls=renewed)
            shutil.copyfile(new_certificate, certificate)
            with structlog.testing.capture_logs() as logs:
                server.reload()  # the key is still the old one
            assert [entry["event"] for entry in logs] == ["certificate not reloaded"]
            await cluster_info(server.address, tls=certificates.client())
            shutil.copyfile(new_key, key)
            server.reload()
            await cluster_info(server.address, tls=renewed)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("trouble", ["another key", "no descriptors"])
def test_files_that_are_replaced_while_they_are_read_anew_end_no_server(
    certificates: Certificates, trouble: str
) -> None:
    """They were good when they were tried, and are another moment later: a node stopped at such a SIGHUP."""

    class Replaced(ssl.SSLContext):
        def load_cert_chain(self, *_: object) -> None:
            if trouble == "no descriptors":
                raise OSError(errno.EMFILE, "Too many open files")
            super().load_cert_chain(certificate, other_key)

    certificate, key = certificates.issue()
    other_key = certificates.issue("127.0.0.2")[1]
    settings = TlsSettings(certificate=certificate, key=key)
    with structlog.testing.capture_logs() as logs:
        assert not reload_certificates([Replaced(ssl.PROTOCOL_TLS_SERVER)], settings)
    assert [entry["event"] for entry in logs] == ["certificate not reloaded"]
    assert reload_certificates([server_context(settings)], settings)

"""A group of three on real sockets whose links want proof: it works for its members and for nobody else."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import msgspec
import pytest
import structlog.testing
import trio

from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.peers.protocol import ClientGone, Forward, encode_frame
from broker.settings.tables import NameServerSettings, Settings, TlsSettings
from broker.shell.sockets import connect
from broker.shell.tls import dial_tls
from broker.shell.tls_contexts import peer_contexts
from tests.broker.shell.certificates import Certificates
from tests.broker.shell.servers import Servers, running

SECRET = "a secret of the group"


def with_secret(settings: Settings) -> Settings:
    return msgspec.structs.replace(settings, raft=msgspec.structs.replace(settings.raft, peer_secret=SECRET))


async def send_and_read_back(servers: Servers, tls: ssl.SSLContext | None = None) -> None:
    async with (
        Producer(servers.name_server, group="p", send_timeout_s=60, tls=tls) as producer,
        PullConsumer(servers.name_server, group="TOOLS_CONSUMER", tls=tls) as consumer,
    ):
        sent = [await producer.send(Message("T", b"%d" % number)) for number in range(20)]
        consumer.assign({result.queue: 0 for result in sent})
        bodies: list[bytes] = []
        while len(bodies) < len(sent):
            bodies += [message.body for message in await consumer.poll()]
    assert sorted(bodies, key=int) == [b"%d" % number for number in range(20)]


async def wait_linked(servers: Servers) -> None:
    """Until each node has a link to each of the others; a majority, which serves, needs fewer."""
    while True:
        if all(len(broker.node.replica.links) == 2 for broker in servers.brokers.values()):
            return
        await trio.sleep(0.01)


async def closed_by(stream: trio.SocketStream) -> bytes:
    """Everything that the other side still sends before it closes."""
    received = b""
    with contextlib.suppress(trio.BrokenResourceError):
        while data := await stream.receive_some(4096):
            received += data
    return received


async def test_group_with_a_secret(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=3, change=with_secret) as servers:
        await send_and_read_back(servers)
        await wait_linked(servers)


async def test_node_without_the_secret_is_no_member(tmp_path: Path) -> None:
    """n2 has another secret: the other two go on without it, it takes part in nothing, and both sides say why."""

    def change(settings: Settings) -> Settings:
        settings = with_secret(settings)
        if settings.node.id == "n2":
            raft = msgspec.structs.replace(settings.raft, peer_secret="another secret of another")
            settings = msgspec.structs.replace(settings, raft=raft)
        return settings

    with structlog.testing.capture_logs() as logs:

        def said(event: str, why: str = "") -> bool:
            return any(entry["event"] == event and why in entry.get("reason", "") for entry in logs)

        async with running(tmp_path, nodes=3, change=change) as servers:
            await send_and_read_back(servers)
            while True:
                if said("no link to a peer", "peer_secret is another") and said("link of a peer closed"):
                    break
                await trio.sleep(0.01)
            leader = await servers.wait_leader()
            outsider = servers.brokers["n2"].node.replica
            assert leader.node.replica.node_id != "n2"
            assert outsider.links == {}
            assert outsider.store.log.last_index == -1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "frame of 1195725856 bytes with a header of 12064"),
        (
            b"".join(encode_frame(Forward(1, b"\x7f\0\0\x01\0\0\0\0", 1, b"x"))),
            "a handshake's header cannot be read",
        ),
        (b"".join(encode_frame(ClientGone(1))), "a handshake's header cannot be read"),
        (b"\x00\x00\x10\x01\x00\x10" + b"x" * 4096, "frame of 4097 bytes with a header of 16"),
    ],
)
async def test_stranger_is_sent_away_without_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, reason: str
) -> None:
    """For what it sends: the limit of time would not end the link within this test's own."""
    monkeypatch.setattr("broker.node.links.HANDSHAKE_NS", 3600 * 10**9)
    with structlog.testing.capture_logs() as logs:
        async with running(tmp_path, nodes=3, change=with_secret) as servers:
            host, _, port = servers.configs["n0"].raft.peers["n0"].partition(":")
            stream = await trio.open_tcp_stream(host, int(port))
            own_host, own_port = stream.socket.getsockname()
            await stream.send_all(data)
            assert await closed_by(stream) == b""
    (told,) = [entry for entry in logs if entry.get("address") == f"{own_host}:{own_port}"]
    assert (told["event"], told["reason"]) == ("link of a peer closed", "a stranger's")
    assert reason in told["detail"]


async def test_silent_strangers_are_few_and_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with structlog.testing.capture_logs() as logs:
        async with running(tmp_path, nodes=3, change=with_secret) as servers:
            await send_and_read_back(servers)
            await wait_linked(servers)
            monkeypatch.setattr("broker.node.links.STRANGERS_MAX", 3)
            host, _, port = servers.configs["n0"].raft.peers["n0"].partition(":")
            for patience_s, count, sent_away in ((0.2, 3, 3), (3600.0, 4, 1)):
                monkeypatch.setattr("broker.node.links.HANDSHAKE_NS", int(patience_s * 1e9))
                streams = [await trio.open_tcp_stream(host, int(port)) for _ in range(count)]
                for stream in streams[:sent_away]:
                    assert await closed_by(stream) == b""
            await send_and_read_back_more(servers)
    reasons = [entry.get("detail", "") for entry in logs if entry["event"] == "link of a peer closed"]
    assert reasons.count("3 others are there") == 1
    assert sum("did not prove" in reason for reason in reasons) == 3


def crowded(settings: Settings) -> Settings:
    limits = msgspec.structs.replace(settings.limits, max_connections=2)
    return msgspec.structs.replace(with_secret(settings), limits=limits)


async def test_neither_silent_strangers_nor_clients_keep_peers_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there may be, for as long as they like: the oldest stranger gives way to a peer that dials, and
    clients are not counted with peers."""
    with structlog.testing.capture_logs() as logs:
        async with running(tmp_path, nodes=3, change=crowded) as servers:
            await send_and_read_back(servers)
            await wait_linked(servers)
            monkeypatch.setattr("broker.node.links.HANDSHAKE_NS", 3600 * 10**9)
            monkeypatch.setattr("broker.node.links.STRANGERS_MAX", 3)
            host, _, client_port = servers.brokers["n0"].address.partition(":")
            clients = [await trio.open_tcp_stream(host, int(client_port)) for _ in range(3)]
            assert await closed_by(clients[0]) == b"", "there are as many clients as there may be"
            _, _, port = servers.configs["n0"].raft.peers["n0"].partition(":")
            streams = [await trio.open_tcp_stream(host, int(port)) for _ in range(4)]
            assert await closed_by(streams[0]) == b""  # so all others have been accepted
            servers.brokers["n1"].node.replica.links["n0"].close()
            assert await closed_by(streams[1]) == b""  # n1 has dialled anew
            for stream in clients:
                await stream.aclose()
            await send_and_read_back_more(servers)
            for stream in streams:
                await stream.aclose()
    reasons = [entry.get("detail", "") for entry in logs if entry["event"] == "link of a peer closed"]
    assert reasons.count("3 others are there") >= 2


async def send_and_read_back_more(servers: Servers) -> None:
    async with Producer(servers.name_server, group="p", send_timeout_s=60) as producer:
        await producer.send(Message("T", b"after the strangers"))


async def test_everything_encrypted(tmp_path: Path) -> None:
    """Clients, registration and peers, each believed by an authority of its own, and nobody in the clear."""
    folder = tmp_path / "certificates"
    folder.mkdir()
    certificates = Certificates(folder)
    certificate, key = certificates.issue()
    peer_certificate, peer_key = certificates.issue("127.0.0.1", "peers")
    clients_own = certificates.issue("client.example", "clients")
    name_server = NameServerSettings(tls_mode="enforcing", tls_certificate=certificate, tls_key=key)

    def change(settings: Settings) -> Settings:
        return msgspec.structs.replace(
            with_secret(settings),
            tls=TlsSettings(
                mode="enforcing",
                certificate=peer_certificate,
                key=peer_key,
                client_auth="required",
                client_ca=certificates.authority("clients"),
                name_server_ca=certificates.authority(),
                peer_ca=certificates.authority("peers"),
            ),
        )

    with structlog.testing.capture_logs() as logs:
        async with running(tmp_path, nodes=3, name_server=name_server, change=change) as servers:
            client = certificates.client(shows=clients_own)
            client.load_verify_locations(certificates.authority("peers"))  # which certifies the brokers
            await send_and_read_back(servers, client)
            await wait_linked(servers)

            # A client's certificate, good on the clients' port, makes no peer.
            sock = await connect(servers.configs["n0"].raft.peers["n0"])
            session = await dial_tls(sock, client, "127.0.0.1")
            await trio.lowlevel.wait_readable(sock)
            with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
                session.decrypt(sock.recv(4096))
            sock.close()
    refused = [entry.get("detail", "") for entry in logs if entry["event"] == "link of a peer closed"]
    assert any("certificate is not good" in reason for reason in refused), refused


def test_peer_contexts_need_an_authority() -> None:
    assert peer_contexts(TlsSettings()) is None

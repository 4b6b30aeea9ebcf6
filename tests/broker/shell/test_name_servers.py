"""Several name servers at once: brokers register with all, and nobody misses one that is gone."""

from __future__ import annotations

import itertools
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import structlog.testing
import trio
import trio.testing

from broker.client.admin import AdminClient
from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.name_server.sessions import NameServerSessions
from broker.remoting.addresses import split_address
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, encode, request
from broker.remoting.frame import FrameDecoder
from broker.requests.connection import Connection
from broker.settings.tables import NameServerSettings, Settings
from broker.shell.name_server import NameServerProcess
from broker.shell.socket_reading import STRANGERS_S, Reading
from broker.state.release import THIS_RELEASE
from broker.tools.cluster.query import cluster_info
from tests.broker.shell.servers import LIMIT_S, running
from tests.broker.shell.test_client_port import CROWD, Passes


async def test_one_of_two_name_servers_is_lost(tmp_path: Path) -> None:
    """Clients that talked to it go on with the other; it comes back empty and is told everything again."""
    async with running(tmp_path, nodes=3, name_servers=2) as servers:
        await servers.wait_leader()
        await servers.wait_registered()
        first, second = servers.name_servers
        both = f"{first};{second}"
        async with (
            AdminClient(both) as admin,
            Producer(both, group="p", send_timeout_s=60) as producer,
            PullConsumer(both, group="TOOLS_CONSUMER") as consumer,
        ):
            await admin.create_topic("T", queues=2)
            sent = [await producer.send(Message("T", b"before"))]
            servers.name_servers[first].stop()
            await admin.create_topic("U", queues=1)
            sent.append(await producer.send(Message("U", b"after")))
            consumer.assign({result.queue: 0 for result in sent})
            bodies: list[bytes] = []
            while len(bodies) < 2:
                bodies += [message.body for message in await consumer.poll()]
            assert sorted(bodies) == [b"after", b"before"]
        await wait_registered(second, 3)

        # Where it was, another one begins, which knows nothing.
        again = NameServerProcess(msgspec.structs.replace(servers.base, listen=first))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(again.serve)
            await wait_registered(first, 3)
            async with AdminClient(first) as admin:
                assert {"T", "U"} <= set(await admin.topics())
            again.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="it needs epoll")
async def test_of_those_who_ask_or_go_at_once_few_are_heard_in_a_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands that did so at the same moment kept all others waiting for seconds."""
    passes = {"asked": Passes(), "gone": Passes()}
    read_strangers = Reading._read_strangers

    def counted_pass(reading: Reading) -> None:
        for counted in passes.values():
            counted.number += 1
        read_strangers(reading)

    monkeypatch.setattr(Reading, "_read_strangers", counted_pass)
    asked, gone = NameServerSessions.received, NameServerSessions.client_disconnected
    all_asked, all_gone = trio.Event(), trio.Event()

    def received(sessions: NameServerSessions, connection: Connection, command: RemotingCommand) -> None:
        asked(sessions, connection, command)
        passes["asked"].note()
        if passes["asked"].noted.total() == CROWD:
            all_asked.set()

    def disconnected(sessions: NameServerSessions, connection: Connection) -> None:
        gone(sessions, connection)
        passes["gone"].note()
        if passes["gone"].noted.total() == CROWD:
            all_gone.set()

    monkeypatch.setattr(NameServerSessions, "received", received)
    monkeypatch.setattr(NameServerSessions, "client_disconnected", disconnected)
    # Each look at the clock finds it a quarter of a stranger's time later.
    looks = itertools.count()
    monkeypatch.setattr("broker.shell.socket_reading.perf_counter", lambda: next(looks) * STRANGERS_S / 4)
    server = NameServerProcess(NameServerSettings(listen="127.0.0.1:0", kv_config_path=""))
    ask = encode(request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}))
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve)
            crowd = [socket.create_connection(split_address(server.address)) for _ in range(CROWD)]
            await trio.testing.wait_all_tasks_blocked()
            for remote in crowd:
                remote.sendall(ask)
            await all_asked.wait()
            for remote in crowd:
                remote.close()
            await all_gone.wait()
            server.stop()
    assert max(passes["asked"].noted.values()) <= 4
    # The end of a connection takes its task some passes of Trio's scheduler.
    assert max(passes["gone"].noted.values()) < CROWD / 2


async def test_answers_that_nobody_reads_are_not_made() -> None:
    """Two hundred questions come in one read; their answers together would be a gigabyte."""
    server = NameServerProcess(NameServerSettings(listen="127.0.0.1:0", kv_config_path=""))
    put = [
        request(
            RequestCode.PUT_KV_CONFIG, {"namespace": "N", "key": f"k{k}", "value": 250_000 * "v"}, opaque=k
        )
        for k in range(20)
    ]
    ask = [request(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"}, opaque=k) for k in range(200)]
    _, answers = await exchange(server, put, ask)
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}


async def test_key_values_outlive_a_name_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any configuration, too: below the directory of the start, as what a broker stores is."""
    monkeypatch.chdir(tmp_path)
    settings = NameServerSettings(listen="127.0.0.1:0")
    fields = {"namespace": "N", "key": "k"}
    ask = [request(RequestCode.GET_KV_CONFIG, fields, opaque=1)]
    put = [request(RequestCode.PUT_KV_CONFIG, {**fields, "value": "v"}, opaque=2)]
    ((unknown,),) = await exchange(NameServerProcess(settings), ask)
    assert unknown.code == ResponseCode.QUERY_NOT_FOUND
    assert names_below(tmp_path) == [], "what has nothing to keep makes no file"
    ((stored,),) = await exchange(NameServerProcess(settings), put)
    assert stored.code == ResponseCode.SUCCESS
    ((found,),) = await exchange(NameServerProcess(settings), ask)
    assert found.fields["value"] == "v"
    assert names_below(tmp_path) == ["namesrv", "namesrv/kvConfig.json"]


async def test_a_name_server_says_what_it_begins_with_and_why_it_ends(tmp_path: Path) -> None:
    """There was no line at its start, and "stop" came before the end."""
    path = tmp_path / "kvConfig.json"
    path.write_text('{"configTable": {"N": {"a": "1", "b": "2"}}}')
    settings = NameServerSettings(
        listen="127.0.0.1:0",
        kv_config_path=str(path),
        registration_secret="s" * 20,
        tls_key_password="p" * 20,
    )
    with structlog.testing.capture_logs() as logs, trio.fail_after(LIMIT_S):
        server = NameServerProcess(settings)
        address = server.address
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve)
            server.stop("SIGTERM")
    told = {entry["event"]: entry for entry in logs}
    start, begins, stop = told["start"], told["stop begins"], told["stop"]
    assert (start["release"], start["address"]) == (THIS_RELEASE.name, address)
    assert (start["key_values_at"], start["key_values"]) == (str(path), 2)
    assert start["settings"] == {
        "listen": "127.0.0.1:0",
        "kv_config_path": str(path),
        "registration_secret": "(set)",
        "tls_key_password": "(set)",
    }
    assert begins["reason"] == stop["reason"] == "SIGTERM"
    assert logs[-1] is stop


async def test_a_name_server_that_fails_says_of_what(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: NameServerSessions) -> int:
        raise RuntimeError("planted")

    monkeypatch.setattr(NameServerSessions, "turn", fails)
    server = NameServerProcess(NameServerSettings(listen="127.0.0.1:0", kv_config_path=""))
    with (
        structlog.testing.capture_logs() as logs,
        trio.fail_after(LIMIT_S),
        pytest.raises(ExceptionGroup),
    ):
        await server.serve()
    (stop,) = (entry for entry in logs if entry["event"] == "stop")
    assert stop["reason"] == "bug: RuntimeError: planted"


def names_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


async def exchange(
    server: NameServerProcess, *rounds: Sequence[RemotingCommand]
) -> list[list[RemotingCommand]]:
    """Runs a name server for some questions, of which those of one round are sent together; the answers to each."""
    answers: list[list[RemotingCommand]] = []
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve)
            stream = await trio.open_tcp_stream("127.0.0.1", int(server.address.rpartition(":")[2]))
            decoder = FrameDecoder()
            for questions in rounds:
                answers.append([])
                await stream.send_all(b"".join(encode(question) for question in questions))
                while len(answers[-1]) < len(questions):
                    data = await stream.receive_some(1 << 20)
                    assert data, "the name server has closed the connection"
                    answers[-1] += decoder.feed(bytes(data))
            await stream.aclose()
            server.stop()
    return answers


async def test_broker_starts_while_a_name_server_is_down(tmp_path: Path) -> None:
    def change(settings: Settings) -> Settings:
        addresses = ("127.0.0.1:1", *settings.node.name_servers)  # nobody listens at the first
        return msgspec.structs.replace(
            settings, node=msgspec.structs.replace(settings.node, name_servers=addresses)
        )

    async with running(tmp_path, change=change) as servers:
        await servers.wait_registered()
        async with Producer(servers.name_server, group="p", send_timeout_s=60) as producer:
            await producer.send(Message("T", b"sent"))


async def wait_registered(name_server: str, count: int) -> None:
    while True:
        if await registered(name_server) == count:
            return
        await trio.sleep(0.01)


async def registered(name_server: str) -> int:
    """Returns the number of brokers that a name server knows."""
    brokers = (await cluster_info(name_server)).broker_table.values()
    return sum(len(broker.broker_addresses) for broker in brokers)

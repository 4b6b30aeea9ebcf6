"""Garbage, oversized, slow and half-open connections against every port: only that connection suffers."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
import trio.lowlevel

from broker.remoting.addresses import split_address
from broker.remoting.codes import RequestCode
from broker.remoting.command import encode, request
from broker.settings.tables import RaftSettings
from broker.tools.cluster.local import LocalCluster
from tests.cluster.support import (
    LIMIT_S,
    Load,
    check_identical,
    check_nothing_lost,
    pids_of,
    ready_cluster,
)

pytestmark = pytest.mark.cluster

SEED = 4
EACH = 8
"""Bad connections of a kind to a port at the same time."""


class Port(NamedTuple):
    """A port of a server, and its log, with the words that it has of a connection that sends what is no frame."""

    address: str
    log: Path
    words: tuple[str, str]


OF_CLIENTS = ("connection closed ", " reason=oversized ")
OF_PEERS = ("link of a peer closed ", " detail='frame of ")


def ports_of(cluster: LocalCluster) -> list[Port]:
    """The name server's, and each node's for clients and for peers."""
    ports = [Port(cluster.name_server_address, cluster.layout.directory / "namesrv.log", OF_CLIENTS)]
    for node in cluster.nodes.values():
        ports.append(Port(node.address, node.log_path, OF_CLIENTS))
        ports.append(Port(node.settings.raft.peers[node.id], node.log_path, OF_PEERS))
    return ports


async def wait_closed(stream: trio.SocketStream) -> None:
    """Read until the server has closed its end."""
    try:
        while await stream.receive_some(65536):
            pass
    except trio.BrokenResourceError:
        pass


async def send_garbage(stream: trio.SocketStream, dice: random.Random) -> None:
    """Bytes that are no frame: the server hangs up."""
    try:
        await stream.send_all(b"\xf3" + dice.randbytes(4000))
    except trio.BrokenResourceError:
        return
    await wait_closed(stream)


async def send_oversized(stream: trio.SocketStream, dice: random.Random) -> None:
    """A length that no frame may have: the server hangs up without waiting for the rest."""
    await stream.send_all(struct.pack(">I", dice.randrange(1 << 30, 1 << 32)))
    try:
        await stream.send_all(b"\0" * 4096)
    except trio.BrokenResourceError:
        return
    await wait_closed(stream)


async def send_frame_and_leave(stream: trio.SocketStream, dice: random.Random) -> None:
    """A request whose answer nobody waits for."""
    await stream.send_all(
        encode(request(RequestCode.GET_BROKER_CLUSTER_INFO, None, opaque=dice.randrange(1 << 31)))
    )


async def cut_off_in_a_frame(stream: trio.SocketStream, dice: random.Random) -> None:
    """Half a request, then nothing more, ever."""
    frame = encode(request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T" * 100}, opaque=1))
    await stream.send_all(frame[: dice.randrange(1, len(frame))])


async def send_byte_by_byte(stream: trio.SocketStream, dice: random.Random) -> None:
    """A good request, one byte after the other: it is answered like any other (or refused, by a port for peers)."""
    frame = encode(request(RequestCode.GET_BROKER_CLUSTER_INFO, None, opaque=1))
    try:
        for at in range(len(frame)):
            await stream.send_all(frame[at : at + 1])
            await trio.lowlevel.checkpoint()
        await stream.receive_some(65536)
    except trio.BrokenResourceError:
        return


async def open_and_say_nothing(stream: trio.SocketStream, dice: random.Random) -> None:
    """Only connected."""


BEHAVIOURS: list[Callable[[trio.SocketStream, random.Random], Awaitable[None]]] = [
    send_garbage,
    send_oversized,
    send_frame_and_leave,
    cut_off_in_a_frame,
    send_byte_by_byte,
    open_and_say_nothing,
]


HANGS_UP = (send_garbage, send_oversized)
"""What makes the server close the connection; the test waits until it has. The log says that it is for what was sent,
and not for a limit of time. Of one address only a few are told, so that each connection comes from another."""


async def test_only_the_bad_connection_suffers(tmp_path: Path) -> None:
    """One group for all kinds, one kind after the other."""
    # No leader is lost to a busy CPU.
    raft = RaftSettings(election_timeout_min_ms=4_000, election_timeout_max_ms=6_000)
    async with ready_cluster(tmp_path, raft=raft) as cluster:
        load = Load(cluster)
        for behave in BEHAVIOURS:
            try:
                await check_only_the_bad_connection_suffers(cluster, load, behave)
            except BaseException as error:
                error.add_note(behave.__name__)
                raise


async def check_only_the_bad_connection_suffers(
    cluster: LocalCluster, load: Load, behave: Callable[[trio.SocketStream, random.Random], Awaitable[None]]
) -> None:
    dice = random.Random(SEED)
    pids = pids_of(cluster)
    kind = 1 + BEHAVIOURS.index(behave)
    opened: list[tuple[Port, str]] = []
    """Each bad connection's port, and the address that it comes from."""
    async with load.running():
        await load.wait_for(20)
        before = await cluster.status(LIMIT_S)
        async with contextlib.AsyncExitStack() as stack, trio.open_nursery() as nursery:
            for port in ports_of(cluster):
                host, number = split_address(port.address)
                for _ in range(EACH):
                    own = f"127.0.{kind}.{1 + len(opened)}" if behave in HANGS_UP else None
                    stream = await trio.open_tcp_stream(host, number, local_address=own)
                    await stack.enter_async_context(stream)
                    own_host, own_port = stream.socket.getsockname()
                    opened.append((port, f"{own_host}:{own_port}"))
                    nursery.start_soon(behave, stream, dice)
            await load.wait_for(100)  # while all of them are open
            if behave not in HANGS_UP:
                nursery.cancel_scope.cancel()
        await load.wait_for(20)
    if behave in HANGS_UP:
        check_told(opened)
    assert load.unknown == 0
    assert pids_of(cluster) == pids
    assert all(child.running for child in cluster.children())
    after = await cluster.status(LIMIT_S)
    assert sorted(after) == sorted(before) == sorted(cluster.nodes)
    assert {status.term for status in after.values()} == {status.term for status in before.values()}, (
        "somebody lost its leader"
    )
    await check_nothing_lost(cluster, load)
    await check_identical(cluster)


def check_told(opened: list[tuple[Port, str]]) -> None:
    """The server's log says of each connection that it was closed for what it sent."""
    for port, address in opened:
        lines = [line for line in port.log.read_text().splitlines() if f"={address} " in line]
        assert len(lines) == 1, lines
        for words in port.words:
            assert words in lines[0]

"""Proxies are a faithful network until they are told otherwise: bytes in order, ends and breaks of connections."""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from broker.peers.handshake import NONCE_BYTES
from broker.peers.protocol import Hello, encode_frame
from broker.tools.chaos.proxy import CLIENTS, Network, open_network

LIMIT_S = 240.0
"""Ends a test that hangs."""


def hello(source: str) -> bytes:
    frame = Hello(7, "broker-a", source, "n1", "127.0.0.1:1", bytes(NONCE_BYTES))
    return b"".join(encode_frame(frame))


class Server:
    """A listening socket and the connections that came."""

    def __init__(self, listeners: list[trio.SocketListener]) -> None:
        self._listener = listeners[0]
        host, port = self._listener.socket.getsockname()
        self.address = f"{host}:{port}"

    async def accept(self) -> trio.SocketStream:
        return await self._listener.accept()


@asynccontextmanager
async def network_and_server(*, peers: bool) -> AsyncIterator[tuple[Network, Server, str]]:
    with trio.fail_after(LIMIT_S):
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with listeners[0], open_network() as network:
            server = Server(listeners)
            yield network, server, network.listen("n1", server.address, peers=peers)


async def dial(address: str) -> trio.SocketStream:
    host, _, port = address.rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


async def receive_exactly(stream: trio.SocketStream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        received = await stream.receive_some(count - len(data))
        assert received, f"closed after {len(data)} of {count} bytes"
        data += received
    return data


async def test_bytes_pass_both_ways_and_ends_come_over() -> None:
    data = random.Random(1).randbytes(3_000_000)
    async with network_and_server(peers=False) as (_, server, address):
        near = await dial(address)
        far = await server.accept()

        async def send() -> None:
            await near.send_all(data)
            await near.send_eof()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            assert await receive_exactly(far, len(data)) == data
            assert await far.receive_some() == b""
        await far.send_all(b"answer")
        await far.aclose()
        assert await receive_exactly(near, 6) == b"answer"
        assert await near.receive_some() == b""


async def test_a_cut_holds_bytes_back_in_one_direction() -> None:
    async with network_and_server(peers=True) as (network, server, address):
        near = await dial(address)
        await near.send_all(hello("n0"))
        far = await server.accept()
        await receive_exactly(far, len(hello("n0")))
        with network.cut(("n0", "n1")):
            await near.send_all(b"held")
            await far.send_all(b"through")
            assert await receive_exactly(near, 7) == b"through"
            with trio.move_on_after(0.05) as waited:
                await far.receive_some()
            assert waited.cancelled_caught
        assert await receive_exactly(far, 4) == b"held"


async def test_cuts_of_other_links_do_not_matter() -> None:
    async with network_and_server(peers=True) as (network, server, address):
        with network.cut(("n2", "n1"), ("n1", "n2"), (CLIENTS, "n1"), ("n1", "n0")):
            near = await dial(address)
            await near.send_all(hello("n0") + b"more")
            far = await server.accept()
            assert (await receive_exactly(far, len(hello("n0")) + 4)).endswith(b"more")


async def test_cuts_overlap_and_count() -> None:
    async with network_and_server(peers=False) as (network, _, _):
        with network.cut((CLIENTS, "n1")):
            with network.cut((CLIENTS, "n1")):
                pass
            assert network.is_cut(CLIENTS, "n1")
        assert not network.is_cut(CLIENTS, "n1")


async def test_the_end_of_a_connection_does_not_pass_a_cut() -> None:
    async with network_and_server(peers=False) as (network, server, address):
        near = await dial(address)
        far = await server.accept()
        with network.cut((CLIENTS, "n1")):
            await near.aclose()
            with trio.move_on_after(0.05) as waited:
                await far.receive_some()
            assert waited.cancelled_caught
        assert await far.receive_some() == b""


async def test_a_delay_keeps_order_and_takes_its_time() -> None:
    async with network_and_server(peers=False) as (network, server, address):
        near = await dial(address)
        far = await server.accept()
        with network.delay("n1", 0.05):
            begin = trio.current_time()
            for number in range(50):
                await near.send_all(bytes([number]))
            assert await receive_exactly(far, 50) == bytes(range(50))
            assert trio.current_time() - begin >= 0.05


async def test_a_reset_breaks_both_ends() -> None:
    async with network_and_server(peers=False) as (network, server, address):
        near = await dial(address)
        far = await server.accept()
        await near.send_all(b"x")
        await receive_exactly(far, 1)
        assert network.reset("n1") == 1
        for end in (near, far):
            with pytest.raises(trio.BrokenResourceError):
                await end.receive_some()
        assert network.reset("n1") == 0


async def test_a_server_that_is_down_refuses() -> None:
    async with network_and_server(peers=False) as (network, _, _):
        with socket.socket() as holder:  # which keeps the port from others, and does not listen
            holder.bind(("127.0.0.1", 0))
            host, port = holder.getsockname()
            near = await dial(network.listen("n2", f"{host}:{port}", peers=False))
            with pytest.raises(trio.BrokenResourceError):
                await near.receive_some()


async def test_a_peer_that_says_no_hello_is_sent_away() -> None:
    async with network_and_server(peers=True) as (_, _, address):
        near = await dial(address)
        await near.send_all(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(trio.BrokenResourceError):
            await near.receive_some()

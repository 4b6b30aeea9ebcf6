"""A node outlives its name servers, and is registered again as soon as one is there."""

from __future__ import annotations

import pytest
import structlog.testing
import trio
import trio.testing

from broker.remoting.command import FRAME_SIZE_MAX, RemotingCommand, encode, request, response
from broker.remoting.frame import FrameDecoder
from broker.shell.registrar import Changes, Registrar
from broker.shell.sockets import listen
from tests.broker.shell.servers import LIMIT_S

REGISTER = 103


class Registrations:
    """A name server's end: which commands came, connection by connection."""

    def __init__(self) -> None:
        self.listener = listen("127.0.0.1:0")
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"

    async def accept(self) -> trio.SocketStream:
        sock, _ = await trio.socket.from_stdlib_socket(self.listener).accept()
        return trio.SocketStream(sock)

    async def receive(self, stream: trio.SocketStream) -> RemotingCommand:
        decoder = FrameDecoder()
        while True:
            data = await stream.receive_some(65_536)
            assert data, "the node has closed the connection"
            for command in decoder.feed(bytes(data)):
                await stream.send_all(encode(response(command, 0)))
                return command


def registrar(address: str, body: list[bytes]) -> Registrar:
    return Registrar(address, lambda: request(REGISTER, None, body[0]), lambda: None, Changes(), 30.0)


async def test_name_server_that_goes_away_is_connected_again() -> None:
    server = Registrations()
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(registrar(server.address, [b"topics"]).run)
            for _ in range(2):
                stream = await server.accept()
                assert (await server.receive(stream)).body == b"topics"
                await stream.aclose()
            stream = await server.accept()
            await stream.send_all(b"\xff" * 8)  # no frame at all
            await stream.aclose()
            stream = await server.accept()
            assert (await server.receive(stream)).code == REGISTER
            nursery.cancel_scope.cancel()
    server.listener.close()


async def test_a_name_server_that_cannot_be_reached_is_told_once(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = OSError("all attempts failed")
    refused.__cause__ = ExceptionGroup("each", [ConnectionRefusedError("refused")])
    failures: list[Exception] = [refused] * 5 + [UnicodeError("no name of a host")] * 2

    async def connect(registrar: Registrar) -> trio.abc.Stream:
        if failures:
            raise failures.pop(0)
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(Registrar, "_connect", connect)
    with structlog.testing.capture_logs() as logs, trio.move_on_after(20):
        await registrar("ns:9876", [b"topics"]).run()
    reasons = [entry["reason"] for entry in logs]
    assert reasons == ["refused", "no name of a host", "no connection within 6 s"]
    assert {entry["address"] for entry in logs} == {"ns:9876"}


async def test_registration_that_no_frame_can_carry_ends_nothing() -> None:
    server = Registrations()
    body = [bytes(FRAME_SIZE_MAX)]
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(registrar(server.address, body).run)
            stream = await server.accept()
            assert await stream.receive_some() == b""
            body[0] = b"topics"
            stream = await server.accept()
            assert (await server.receive(stream)).body == b"topics"
            nursery.cancel_scope.cancel()
    server.listener.close()

"""A name server process: sockets and time for `broker.name_server`."""

import os
import socket
import time
from pathlib import Path
from typing import Final

import structlog
import trio

from broker.name_server import NameServer
from broker.remoting.addresses import join_address
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand, encode, response
from broker.remoting.frame import BrokenStreamError, FrameDecoder
from broker.requests.connection import Connection, Outgoing
from broker.settings.tables import NameServerConfig
from broker.shell.certificate_expiry import told_expiry
from broker.shell.clock import reload_on_hangup, stop_on_signal
from broker.shell.descriptors import FILES_OF_A_NAME_SERVER, connections_allowed
from broker.shell.incoming import IncompleteFrames
from broker.shell.sockets import SocketConnection, accept_forever, listen, packed_host
from broker.shell.tls import Entrance
from broker.shell.tls_contexts import reload_certificates, server_context

log = structlog.get_logger("trivet.namesrv")

_SWEEP_S: Final = 5.0

UNREAD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Answers that may wait for one client: a hundred questions come in one read, and a list may have megabytes."""


class FileStorage:
    """The key-value configuration in one file, replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> bytes | None:
        """What was saved last; None if nothing was."""
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None

    def save(self, data: bytes) -> None:
        """Durable when it returns; raises OSError when that fails."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(self._path.name + ".tmp")
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


class NameServerProcess:
    """The sockets around one name server core."""

    def __init__(self, config: NameServerConfig) -> None:
        self._config = config
        storage = FileStorage(Path(config.kv_config_path)) if config.kv_config_path else None
        self._core = NameServer(config, storage)
        self._context = server_context(config.tls, "tls_")
        told_expiry(config.tls, "tls_", time.time())
        self._entrance = Entrance(
            self._context,
            enforcing=config.tls_mode == "enforcing",
            first_byte_s=config.idle_seconds,
        )
        self._listener = listen(config.listen)
        self._open: dict[int, SocketConnection] = {}
        self._connections_max = connections_allowed(config.max_connections, FILES_OF_A_NAME_SERVER)
        self._incomplete = IncompleteFrames(self._close)
        self._next_number = 0
        self._stop = trio.Event()

    @property
    def address(self) -> str:
        """Where it listens, with the port in use."""
        host, port = self._listener.getsockname()[:2]
        return join_address(host, port)

    def stop(self) -> None:
        """Asks `serve` to end."""
        self._stop.set()

    def reload(self) -> None:
        """Reads the certificate anew; one that cannot be used is logged, and the one before is shown."""
        if reload_certificates([self._context], self._config.tls, "tls_"):
            told_expiry(self._config.tls, "tls_", time.time())

    async def serve(self) -> None:
        """Serves until `stop`."""
        try:
            async with trio.open_nursery() as nursery:

                def accepted(sock: socket.socket, address: tuple[str, int]) -> None:
                    if len(self._open) + self._entrance.waiting >= self._connections_max:
                        log.warning("connection refused", address=address[0], limit=self._connections_max)
                        sock.close()
                        return
                    nursery.start_soon(self._serve_connection, sock, address)

                nursery.start_soon(accept_forever, self._listener, accepted)
                nursery.start_soon(self._sweep)
                await self._stop.wait()
                nursery.cancel_scope.cancel()
        finally:
            for connection in list(self._open.values()):
                connection.close()
            self._listener.close()

    async def _serve_connection(self, sock: socket.socket, address: tuple[str, int]) -> None:
        name = f"{address[0]}:{address[1]}"
        admission = await self._entrance.admit(sock, name)
        if admission is None:
            return
        number = self._next_number
        self._next_number += 1
        outgoing = Outgoing()
        connection = Connection(outgoing, name, packed_host(address))
        open_socket = self._open[number] = SocketConnection(sock, connection, tls=admission.tls)
        decoder = FrameDecoder()
        core, incomplete = self._core, self._incomplete

        def received(data: bytes) -> None:
            now_ns = time.monotonic_ns()
            held = decoder.pending_size
            try:
                commands = decoder.feed(data)
            except BrokenStreamError as error:
                commands = error.commands
                log.warning("connection closed", client=connection.name, reason=str(error))
                connection.close()
            if held or decoder.pending_size:
                incomplete.holds(connection, decoder.pending_size)
            unread = connection.unsent_bytes
            for command in commands:
                has_room = unread <= UNREAD_BYTES_MAX
                answer = core.answer(number, command, now_ns) if has_room else _refusal(command)
                if answer is not None:
                    connection.send(answer)
                    unread += len(answer)
            open_socket.flush()

        try:
            await open_socket.read_and_write(received)
        finally:
            open_socket.close()
            incomplete.holds(connection, 0)
            del self._open[number]
            core.connection_closed(number)

    def _close(self, connection: Connection) -> None:
        for open_socket in self._open.values():
            if open_socket.connection is connection:
                open_socket.close()
                return

    async def _sweep(self) -> None:
        """Drops brokers that have fallen silent, and closes idle connections."""
        while True:
            await trio.sleep(_SWEEP_S)
            for number in self._core.expire(time.monotonic_ns()):
                expired = self._open.get(number)  # type: ignore[call-overload]
                if expired is not None:
                    expired.close()
            oldest = trio.current_time() - self._config.idle_seconds
            for open_socket in list(self._open.values()):
                if open_socket.last_active() < oldest:
                    open_socket.close()


def _refusal(command: RemotingCommand) -> bytes | None:
    if command.is_response or command.is_one_way:
        return None
    return encode(response(command, ResponseCode.SYSTEM_BUSY, "[OVERLOAD]earlier answers are unread"))


async def serve(
    config: NameServerConfig, *, task_status: trio.TaskStatus[NameServerProcess] = trio.TASK_STATUS_IGNORED
) -> None:
    """Runs a name server until SIGTERM or SIGINT, or until cancelled. Raises OSError when it cannot listen."""
    server = NameServerProcess(config)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_on_signal, server.stop)
        nursery.start_soon(reload_on_hangup, server.reload)
        task_status.started(server)
        await server.serve()
        nursery.cancel_scope.cancel()

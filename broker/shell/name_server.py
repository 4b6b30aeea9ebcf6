"""A name server process: sockets and time for `broker.name_server`."""

import secrets
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import trio

from broker.access.accounts import Accounts
from broker.access.name_server_control import NameServerControl
from broker.administration.health import Check
from broker.name_server import NameServer
from broker.name_server.metrics import NameServerMetrics
from broker.name_server.sessions import NameServerSessions
from broker.remoting.addresses import join_address
from broker.requests.client_sessions import SessionLimits
from broker.requests.connection import Outgoing
from broker.requests.deadline import Time
from broker.settings.live import differing
from broker.settings.tables import NameServerSettings
from broker.shell.access_file import AccessFile
from broker.shell.certificate_expiry import told_expiry
from broker.shell.client_port import ClientPort
from broker.shell.descriptors import FILES_OF_A_NAME_SERVER, connections_allowed
from broker.shell.socket_reading import Reading
from broker.shell.sockets import listen
from broker.shell.stopping import Stopping
from broker.shell.tls_contexts import ask_brokers, reload_certificates, server_context
from broker.shell.turns import Turns
from broker.shell.wires import Wires
from broker.state.release import THIS_RELEASE
from log.files.private_files import make_directories
from log.files.replacement import replace_file

if TYPE_CHECKING:
    from broker.shell.http import HttpServer

log = structlog.get_logger("trivet.name_server")


class FileStorage:
    """Keeps the key-value configuration in one file, which is replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> bytes | None:
        """Returns what was saved last, or None if nothing was. Raises OSError."""
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None

    def save(self, data: bytes) -> None:
        """Saves `data`, which is durable when this returns. Raises OSError."""
        make_directories(self._path.parent)
        replace_file(self._path, self._path.with_name(self._path.name + ".tmp"), data)


class NameServerProcess:
    """One name server. `serve` runs it until it is cancelled or `stop` is called."""

    def __init__(self, settings: NameServerSettings) -> None:
        self._settings = settings
        storage = FileStorage(Path(settings.kv_config_path)) if settings.kv_config_path else None
        core = NameServer(settings, storage)
        self._control = NameServerControl(
            registration_secret=settings.registration_secret,
            by_certificate=bool(settings.tls_broker_ca),
            whole_frames=settings.acl_signatures == "frame",
            encrypted_only=not settings.acl_allow_plaintext,
            open_routes=settings.acl_routes == "anyone",
        )
        self._core = core
        self._access = AccessFile(settings.acl_file, self._use_accounts) if settings.acl_file else None
        self._context = server_context(settings.tls, "tls_")
        if settings.tls_broker_ca:
            assert self._context is not None, "the settings were checked"
            ask_brokers(self._context, settings.tls_broker_ca, "tls_broker_ca")
        told_expiry(settings.tls, "tls_", time.time())
        self._listener = listen(settings.listen)
        self._operators_listener = listen(settings.metrics) if settings.metrics else None
        outgoing = Outgoing()
        self._wires = Wires(outgoing, self._begin, self._wake)
        self._time = Time(time.monotonic_ns(), 0)
        self._sessions = NameServerSessions(
            core,
            self._wires,
            self._time,
            outgoing,
            SessionLimits(
                connections_max=connections_allowed(settings.max_connections, FILES_OF_A_NAME_SERVER),
                idle_ns=settings.idle_seconds * 1_000_000_000,
            ),
            secrets.token_bytes,
            self._control,
        )
        self._turns = Turns(self._sessions.turn, time.monotonic_ns)
        self._reading = Reading.begin(self._turns, self._begin)
        self.operators = None
        """Serves metrics and health checks."""
        if self._operators_listener is not None:
            self.operators = self._operators_server(core, self._operators_listener)

        self._client_port = ClientPort(
            [self._listener],
            self._sessions.clients,
            self._wires,
            self._context,
            enforcing=settings.tls_mode == "enforcing",
            reading=self._reading,
        )
        self._stopping = Stopping(log)
        self._key_values = core.key_values
        """The keys that were loaded."""

    @property
    def address(self) -> str:
        """The address that it listens at, with the port in use."""
        host, port = self._listener.getsockname()[:2]
        return join_address(host, port)

    def stop(self, reason: str = "asked to") -> None:
        """Asks `serve` to end."""
        self._stopping.begin(reason)

    def _use_accounts(self, accounts: Accounts) -> None:
        self._control.replace(accounts)
        self._core.accounts = accounts.digest

    def reload(self) -> None:
        """Reads certificate and accounts anew. Files that cannot be used are logged, and change nothing."""
        if reload_certificates([self._context], self._settings.tls, "tls_"):
            told_expiry(self._settings.tls, "tls_", time.time())
        if self._access is not None:
            self._access.reload()

    async def serve(self) -> None:
        """Serves until `stop`."""
        log.info(
            "start",
            release=THIS_RELEASE.name,
            address=self.address,
            key_values_at=self._settings.kv_config_path,
            key_values=self._key_values,
            settings=differing(self._settings),
        )
        with self._stopping.told(self._close):
            await self._serve_until_stopped()

    async def _serve_until_stopped(self) -> None:
        async with trio.open_nursery() as nursery:
            self._client_port.start(nursery)
            nursery.start_soon(self._turns.run)
            nursery.start_soon(self._turns.run_timer)
            if self._reading is not None:
                nursery.start_soon(self._reading.run)
            if self._access is not None:
                nursery.start_soon(self._access.watch)
            if self.operators is not None:
                nursery.start_soon(self.operators.run)
            await self._stopping.asked.wait()
            nursery.cancel_scope.cancel()

    def _close(self) -> None:
        self._wires.close()
        self._listener.close()
        if self._operators_listener is not None:
            self._operators_listener.close()

    def _operators_server(self, core: NameServer, listener: socket.socket) -> "HttpServer":
        from broker.shell.metrics import operators_server  # much of a start, for those who ask for it

        metrics = NameServerMetrics(core, self._sessions.events)

        def begin() -> None:
            metrics.connections = len(self._sessions.clients.open)

        # Who is answered has found the loop going round, and there is nothing to wait for.
        return operators_server(
            listener,
            begin=begin,
            told=metrics.told,
            labels=lambda: ("", "", self.address),
            live=lambda: [Check("loop", "")],
            ready=lambda: [Check("loop", "")],
            events=self._sessions.events,
        )

    # ------------------------------------------------------------------ for the sessions

    def _begin(self) -> None:
        self._time.now_ns = time.monotonic_ns()

    def _wake(self) -> None:
        """Writes what is queued: a name server answers at once."""
        self._wires.hand_out()
        if self._sessions.has_more:
            self._turns.wake()

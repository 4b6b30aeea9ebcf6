"""A broker process: sockets, clocks and worker threads for a node, and no logic of its own.

All that a node does happens in calls of `broker.node.running.RunningNode`. This module brings it bytes and time, and
carries out what a turn leaves behind: bytes to write, and jobs for threads.
"""

import random
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog
import trio

from broker.access.accounts import Accounts
from broker.access.control import AccessControl
from broker.assembly import build_node, told_to_operators
from broker.node.machine import Machine
from broker.node.running import RunningNode
from broker.remoting.addresses import join_address, split_address
from broker.remoting.node_status import ProcessFacts
from broker.replica.jobs import OUT_AT_ONCE, Job
from broker.requests.connection import Outgoing
from broker.settings.tables import Settings
from broker.shell.access_file import AccessFile
from broker.shell.certificate_expiry import told_expiry
from broker.shell.client_port import ClientPort
from broker.shell.descriptors import FILES_OF_A_STORE, connections_allowed, open_files
from broker.shell.machine import local_hour, machine_clock, machine_memory_bytes
from broker.shell.node_wires import NodeWires
from broker.shell.socket_reading import Reading
from broker.shell.sockets import accept_forever, listen
from broker.shell.stopping import Stopping
from broker.shell.tls_contexts import name_server_context, peer_contexts, reload_certificates, server_context
from broker.shell.trace_file import TraceFile
from broker.shell.turns import Turns
from broker.shell.worker import JobsBetweenReads
from broker.statistics.events import EventKind
from log.errors import DiskError, DiskFullError
from log.files.mmap_disk import MmapDisk

if TYPE_CHECKING:
    from broker.shell.http import HttpServer

log = structlog.get_logger("trivet.broker")

VIP_PORT_DISTANCE: Final = 2
"""Clients look for the VIP channel this far below the port of ``listen`` (RocketMQ's `MixAll.brokerVIPChannel`)."""


class _Listeners(NamedTuple):
    """The sockets that a broker listens at."""

    clients: list[socket.socket]
    """The first at `node.listen`, the other at the VIP channel, if there is one."""
    peers: socket.socket | None
    operators: socket.socket | None

    @classmethod
    def open(cls, settings: Settings) -> "_Listeners":
        """Listens where the settings say. Raises OSError."""
        clients = [listen(settings.node.listen)]
        if settings.node.vip:
            host, _ = split_address(settings.node.listen)
            # By the port that is bound: the settings may leave it to the system.
            vip_port = clients[0].getsockname()[1] - VIP_PORT_DISTANCE
            clients.append(listen(join_address(host, vip_port)))
        peers_at = settings.raft.peer_listen or settings.raft.peers.get(settings.node.id)
        operators_at = settings.observe.metrics
        return cls(
            clients,
            None if peers_at is None else listen(peers_at),
            listen(operators_at) if operators_at else None,
        )

    def close(self) -> None:
        """Closes them all; those of clients may be closed already."""
        for listener in (*self.clients, self.peers, self.operators):
            if listener is not None:
                listener.close()


class BrokerServer:
    """One broker. `serve` runs it until it is cancelled or `stop` is called."""

    def __init__(self, settings: Settings, disk: MmapDisk | None = None, boot: str | None = None) -> None:
        """With a `disk` its store is there, instead of where the settings say; `boot` goes before the machine's."""
        self._settings = settings
        self._stopping = Stopping(log)
        client_tls = server_context(settings.tls)
        name_server_tls = name_server_context(settings.tls)
        peer_tls = peer_contexts(settings.tls)
        self._contexts = [client_tls, name_server_tls, *(() if peer_tls is None else peer_tls.both)]
        self._certificate_expires_s = told_expiry(settings.tls, "tls.", time.time())
        # Before the node is built, which is told the address: its port may be left to the system.
        self._listeners = _Listeners.open(settings)
        self.address = settings.advertised_address(self._listeners.clients[0].getsockname()[1])
        connections_max = connections_allowed(settings.limits.max_connections, FILES_OF_A_STORE)
        self._outgoing = Outgoing()
        self._trace = None
        if settings.observe.trace:
            self._trace = TraceFile(Path(settings.observe.trace), settings.node.id, settings.node.group)
        self._disk = disk or MmapDisk(Path(settings.storage.path), lock_memory=settings.storage.lock_memory)
        self.node = build_node(settings, self._machine(boot))
        self._turns = Turns(self._turn, time.monotonic_ns)
        self._reading = Reading.begin(self._turns, self._set_time)
        self._job_threads = trio.CapacityLimiter(OUT_AT_ONCE)
        """Trio's own threads may all wait until the name of a peer is resolved: of each attempt that was given up one
        goes on waiting."""
        self._complaints: dict[str, str] = {}
        """By the job that failed when it ran last, why."""
        self._told_of_lock = False
        self._has_stopped = False
        """The orderly stop has come to its end: nobody waits for anything, and no job is out."""
        self._wires = NodeWires(
            self._outgoing,
            self._begin,
            self._turns.wake,
            self._reading,
            peers=peer_tls,
            name_servers=name_server_tls,
        )
        self._running = RunningNode(
            self.node,
            self._wires,
            address=self.address,
            nonce=secrets.token_bytes,
            begin_job=self._begin_job,
            begin_flush=self._begin_flush,
            connections_max=connections_max,
        )
        self._client_port = ClientPort(
            self._listeners.clients,
            self._running.clients,
            self._wires,
            client_tls,
            enforcing=settings.tls.mode == "enforcing",
            reading=self._reading,
            unsent_bytes_high=settings.limits.max_pending_bytes_per_connection,
        )
        self._wires.refuse_clients = self._client_port.refuse_others
        self._flusher = None
        if self._reading is not None:
            self._flusher = JobsBetweenReads("flush", self._reading, self._running.job_done)
        self._access = AccessFile(settings.acl.file, self._use_accounts) if settings.acl.file else None
        if settings.acl.file and settings.acl.allow_plaintext:
            log.warning("accounts are taken over plain connections, too", setting="acl.allow_plaintext")
        self.operators = None
        """Serves metrics and health checks."""
        if self._listeners.operators is not None:
            self.operators = self._operators_server(self._listeners.operators)

    def _machine(self, boot: str | None) -> Machine:
        """Returns what this process has of the machine, for the node."""
        return Machine(
            disk=self._disk,
            outgoing=self._outgoing,
            random=random.Random(),
            now_ns=time.monotonic_ns(),
            wall_ms=_wall_ms(),
            hour_of_day=local_hour,
            address=self.address,
            memory_bytes=machine_memory_bytes(),
            boot=machine_clock() if boot is None else boot,
            process_facts=self._process_facts,
            stopwatch=time.perf_counter_ns,
            trace=None if self._trace is None else self._trace.writer,
        )

    def _process_facts(self) -> ProcessFacts:
        opened, opened_max = open_files()
        expires_s = self._certificate_expires_s
        return ProcessFacts(
            open_files=opened,
            open_files_max=opened_max,
            certificate_expires_ms=None if expires_s is None else round(expires_s * 1000),
            accounts=None if self.node.access is None else self.node.access.digest,
        )

    def _use_accounts(self, accounts: Accounts) -> None:
        acl = self._settings.acl
        self.node.access = AccessControl(
            accounts, whole_frames=acl.signatures == "frame", encrypted_only=not acl.allow_plaintext
        )

    def stop(self, reason: str = "asked to") -> None:
        """Asks `serve` to end in order."""
        self._stopping.begin(reason)

    def reload(self) -> None:
        """Reads certificates and accounts anew. Files that cannot be used are logged, and change nothing (but see
        `reload_certificates`)."""
        if reload_certificates(self._contexts, self._settings.tls):
            self._certificate_expires_s = told_expiry(self._settings.tls, "tls.", time.time())
        if self._access is not None:
            self._access.reload()

    async def serve(self) -> None:
        """Serves until `stop`. Raises `log.errors.DiskError` when the disk fails: what it holds is not certain then."""
        with self._stopping.told(self._close):
            await self._serve_until_stopped()

    def _operators_server(self, listener: socket.socket) -> "HttpServer":
        from broker.shell.metrics import operators_server  # a tenth of a start, for those who ask for it

        health, metrics = told_to_operators(self._running, self._disk, lambda: self._certificate_expires_s)
        return operators_server(
            listener,
            begin=self._begin,
            told=metrics.told,
            labels=lambda: metrics.labels,
            live=health.live,
            ready=health.ready,
            events=self.node.events,
        )

    async def _serve_until_stopped(self) -> None:
        async with trio.open_nursery() as nursery:
            start = nursery.start_soon
            start(self._turns.run)
            start(self._turns.run_timer)
            if self._reading is not None:
                start(self._reading.run)
            self._wires.tasks = nursery
            if self._flusher is not None:
                start(self._flusher.run)
            if self._access is not None:
                start(self._access.watch)
            self._client_port.start(nursery)
            if self._listeners.peers is not None:
                start(accept_forever, self._listeners.peers, self._accept_peer(nursery), self.node.events)
            if self.operators is not None:
                start(self.operators.run)
            # Last, as it dials: what is dialled runs in the tasks that are there by now.
            self._running.start()
            await self._stopping.asked.wait()
            # The stop has turns of its own: the tasks end only behind it.
            stopped = trio.Event()
            self._running.stop(stopped.set)
            await stopped.wait()
            self._has_stopped = True
            nursery.cancel_scope.cancel()

    # ------------------------------------------------------------------ the turn

    def _begin(self) -> None:
        # All that a pass of reads brings counts as come at once: one look at the clock, at its beginning.
        if self._reading is None or not self._reading.in_pass:
            self._set_time()

    def _set_time(self) -> None:
        self.node.begin(time.monotonic_ns(), _wall_ms())

    def _turn(self) -> int:
        now_ns = time.monotonic_ns()
        if now_ns > self._running.due_ns:
            self.node.stats.timings.lag.observe(now_ns - self._running.due_ns)
        self._running.turn(now_ns, _wall_ms())
        deadline_ns = self._running.end_turn()
        self.node.turn_took(time.monotonic_ns() - now_ns, now_ns)
        if self._trace is not None:
            self._trace.flush_if_due(now_ns)
            if self._trace.failure is not None:
                self._stop_trace(self._trace, now_ns)
        return deadline_ns

    def _stop_trace(self, trace: TraceFile, now_ns: int) -> None:
        """Hands what is left of a trace to the system, and goes on without one; tells if it could not be written."""
        self._trace = None
        trace.close()
        if trace.failure is not None:
            reason = "disk full" if isinstance(trace.failure, DiskFullError) else "disk error"
            self.node.events.warn(EventKind.TRACE_STOPPED, reason, now_ns, detail=str(trace.failure))

    # ------------------------------------------------------------------ peers

    def _accept_peer(self, nursery: trio.Nursery) -> Callable[[socket.socket, tuple[str, int]], None]:
        def accepted(sock: socket.socket, address: tuple[str, int]) -> None:
            # However many clients there are: a group whose nodes do not reach each other serves none of them.
            name = f"{address[0]}:{address[1]}"
            nursery.start_soon(self._wires.serve_accepted, self._running.links, sock, name)

        return accepted

    # ------------------------------------------------------------------ worker threads

    def _begin_flush(self, flush: Job) -> None:
        if self._flusher is None:
            self._begin_job(flush)
        else:
            self._flusher.start(flush)

    def _begin_job(self, job: Job) -> None:
        assert self._wires.tasks is not None, "turns run while the node serves"
        self._wires.tasks.start_soon(self._run_job, job)

    async def _run_job(self, job: Job) -> None:
        try:
            # A node that stops waits for the jobs that are out: their files must not change behind its back.
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(job.run, limiter=self._job_threads)
            self._complaints.pop(job.what, None)
        except DiskError as error:
            if job.failure_stops_node:
                raise
            if str(error) != self._complaints.get(job.what):  # wanted again, some in every turn, told once
                self._complaints[job.what] = str(error)
                log.warning("a job has failed, and is tried again", job=job.what, error=str(error))
        # Also behind an error that stops no node: what has failed is taken back, and wanted again.
        self._running.job_done(job)
        if self._disk.locker.failure and not self._told_of_lock:
            self._told_of_lock = True
            log.warning(
                "memory is not locked", reason=self._disk.locker.failure, setting="storage.lock_memory"
            )

    def _close(self) -> None:
        self._wires.close()
        self._listeners.close()
        try:
            if self._has_stopped:
                self.node.replica.close(time.monotonic_ns())
            else:
                # It was cancelled, or failed, be it on the way to its stop: nothing may vouch for what the disk holds.
                # Whoever starts the node again in this process finds files that nobody holds.
                self.node.replica.abandon()
        finally:
            if self._trace is not None:
                self._stop_trace(self._trace, time.monotonic_ns())


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000

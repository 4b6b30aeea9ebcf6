"""A node that runs: with its links to peers, its clients, its registrations, the jobs that are out, and its stop.

The shell, the simulator and the tests' group run nodes by this class and have no logic of their own: they bring bytes
and time, write what `Connection`s hold, dial, and run jobs. How they do that:

    clients.accept, links.accept    for each connection that comes; what they return is given its bytes
    turn, then end_turn             when `Surroundings.wake` was called, or the last turn's deadline has come
    job_done                        when a job has run that was begun through `begin_job` or `begin_flush`
    stop                            at a signal
"""

from collections.abc import Callable
from typing import Protocol

from broker.node.links import PeerLinks
from broker.node.node import Node
from broker.node.orderly_stop import OrderlyStop
from broker.node.registrar import Registrar
from broker.node.registration_request import registration, unregistration
from broker.peers.protocol import Frame
from broker.replica.jobs import Job, Jobs
from broker.requests.client_sessions import ClientSessions, SessionLimits
from broker.requests.connection import Connection
from broker.requests.deadline import SECOND
from broker.requests.line import Line, Surroundings


class NodeSurroundings(Surroundings, Protocol):
    """The time of a node, and its ways to others."""

    def hand_out(self) -> None:
        """Writes what is queued for connections, as far as that is possible now."""

    def dial_peer(self, line: Line) -> None:
        """Begins to connect `line.connection` with `line.address`; reports to the line what comes of it."""

    def dial_name_server(self, line: Line) -> None:
        """Begins to connect with a name server, as `dial_peer` does with a peer."""

    def refuse_clients(self) -> None:
        """Lets nobody connect any more; who has connected already is taken in."""

    def has_unread(self, connection: Connection) -> bool:
        """Tells whether something has come from a client, let in or not, that was not received yet."""


class RunningNode:
    """One node that runs.

    `address` is the ``host:port`` that clients are told. `nonce` returns the given number of random bytes. `begin_job`
    has a job run in a thread, as soon as one is free; `begin_flush` does it for flushes, which others wait for.
    `deliver` stands in for `Node.peer_received`. `connections_max` bounds the connections of clients, where the system
    allows fewer of them than the settings.
    """

    def __init__(
        self,
        node: Node,
        surroundings: NodeSurroundings,
        *,
        address: str,
        nonce: Callable[[int], bytes],
        begin_job: Callable[[Job], None],
        begin_flush: Callable[[Job], None] | None = None,
        deliver: Callable[[str, Frame], bool] | None = None,
        connections_max: int | None = None,
    ) -> None:
        self.node = node
        self._surroundings = surroundings
        self.jobs = Jobs(node.replica)
        self._begin_job = begin_job
        self._begin_flush = begin_flush or begin_job
        settings = node.settings.current
        self.links = PeerLinks(
            node,
            node.replica.linked_peers,
            surroundings,
            node.time,
            node.outgoing,
            node.events,
            secret=settings.raft.peer_secret,
            nonce=nonce,
            dial=surroundings.dial_peer,
            deliver=deliver,
        )
        limits = SessionLimits(
            connections_max=settings.limits.max_connections if connections_max is None else connections_max,
            idle_ns=settings.limits.idle_seconds * SECOND,
            work_at_once=node.replica.limits.work_at_once,
        )
        self.clients = ClientSessions(
            node, limits, surroundings, node.time, node.outgoing, nonce, node.events
        )
        self.registrars = [
            Registrar(
                name_server,
                # With the settings of that time, of which some may change while the node runs.
                lambda: registration(node, node.settings.current, address),
                lambda: unregistration(node, node.settings.current, address),
                settings.broker.register_interval_ms * 1_000_000,
                secret=settings.node.registration_secret,
                surroundings=surroundings,
                time=node.time,
                outgoing=node.outgoing,
                dial=surroundings.dial_name_server,
            )
            for name_server in settings.node.name_servers
        ]
        self._told_version = node.registration_version
        """The `Node.registration_version` that the registrars have heard of."""
        self.due_ns = node.time.now_ns
        """The time at which the next turn is due at the latest."""
        self._stop: OrderlyStop | None = None
        self._sweep = node.time.add_deadline(
            self._sweep_clients, self.clients.sweep_due_ns, judges_silence=True
        )

    def start(self) -> None:
        """Begins to dial peers and name servers."""
        self.links.follow_membership()
        for registrar in self.registrars:
            registrar.line.start()
        self._surroundings.wake()

    def turn(self, now_ns: int, wall_ms: int) -> None:
        """Does all that has become possible; `end_turn` follows."""
        node = self.node
        # Before the node's own turn, so that what they propose leaves in it.
        if self.clients.unhandled.by_share:
            node.begin(now_ns, wall_ms)
            self.clients.go_on()
        goes_on = node.turn(now_ns, wall_ms, self._send)
        # Members may have come or gone in the turn.
        self.links.follow_membership()
        if node.registration_version != self._told_version:
            self._told_version = node.registration_version
            for registrar in self.registrars:
                registrar.changed()
        if self._stop is not None:
            self._stop.turned()
        if goes_on or self.clients.unhandled.by_share:
            self._surroundings.wake()

    def end_turn(self) -> int:
        """Sends what `turn` has left, and begins the jobs that are due.

        Returns when the next turn is due at the latest, in nanoseconds. That is asked last, when all that was due is
        done or begun.
        """
        self._send()
        for job in self.jobs.others():
            self._begin_job(job)
        self.due_ns = self.node.expect_turn(self.jobs.due_ns)
        return self.due_ns

    def _send(self) -> None:
        """Writes what is queued, and begins the flush that others wait for: it takes longer than the rest of a turn."""
        self._surroundings.hand_out()
        if (flush := self.jobs.flush()) is not None:
            self._begin_flush(flush)

    def job_done(self, job: Job) -> None:
        """Takes back a job that has run, without an error or with one that stops no node."""
        self._surroundings.begin()
        self.jobs.done(job)
        # A stop waits for the last of them (`OrderlyStop.turned`).
        if job.wants_turn or self._stop is not None:
            self._surroundings.wake()

    # ------------------------------------------------------------------ the end

    @property
    def is_stopping(self) -> bool:
        """The orderly stop has begun."""
        return self._stop is not None

    def stop(self, stopped: Callable[[], None]) -> None:
        """Stops in order, once; `stopped` is called at the end of a turn when nothing is left to wait for."""
        if self._stop is None:
            settings, replica = self.node.settings.current, self.node.replica
            # To a preferred leader that stayed leadership would come back, again and again.
            lingers = settings.node.id not in settings.raft.preferred_leaders
            self._stop = OrderlyStop(
                replica.leadership,
                replica.group_changes,
                self.jobs,
                self.registrars,
                self,
                self._surroundings,
                self.node.time,
                stopped,
                linger_ns=settings.node.linger_s * SECOND if lingers else 0,
            )

    @property
    def has_clients(self) -> bool:
        """True while a client is connected."""
        return bool(self.clients.open)

    def refuse_clients(self) -> None:
        """Lets no other client connect."""
        self._surroundings.refuse_clients()

    def part_with_clients(self) -> bool:
        """Closes connections on which nothing is under way, behind their last responses; tells whether it was all and
        these responses are written, nobody is arriving, and other nodes know what becomes of what their clients have
        asked."""
        if self.node.owes_answers:
            return False  # of a node that nobody has taken over from, or that has begun what takes steps
        unread = self._surroundings.has_unread
        left = [connection for connection in self.clients.open if not connection.close_requested]
        owed = self.node.owed_answers(left)
        for connection in left:
            if connection in owed or connection.has_unhandled or unread(connection):
                owed.add(connection)
            else:
                connection.close()
        # Who reads slowly would lose the rest of a response, and those behind it.
        is_written = not any(connection.unread_bytes for connection in self.clients.open)
        are_gone = self.clients.part_with_silent(unread)
        return are_gone and is_written and not owed and not self.node.owes_nodes

    def _sweep_clients(self) -> None:
        self.clients.sweep()
        self._sweep.due_ns = self.clients.sweep_due_ns

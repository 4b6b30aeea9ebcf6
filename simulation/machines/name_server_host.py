"""A machine that runs a name server: the real core behind simulated sockets.

It keeps nothing but its key-value configuration, and that only where it was told a file: half of the name servers
have a disk for it. What can happen to that happens with the fault *name server*: the power fails together with the
process, or the next change meets a full disk, a flush that fails, or a power failure.
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, Protocol

from broker.access.control import Sight
from broker.access.name_server_control import NameServerControl
from broker.name_server import NameServer
from broker.name_server.sessions import UNREAD_BYTES_MAX, NameServerSessions
from broker.remoting.command import RemotingCommand
from broker.requests.client_sessions import SessionLimits
from broker.requests.connection import Connection, Outgoing
from broker.requests.deadline import Time
from broker.settings.tables import NameServerSettings
from log.errors import DiskError
from simulation.journal import Journal, Violation
from simulation.machines.client_port import ClientPort
from simulation.machines.clock import HostClock
from simulation.machines.network import Endpoint, Network
from simulation.machines.simulated_disk import PowerFailure, SimulatedDisk
from simulation.machines.wires import Wires
from simulation.randomness import Random
from simulation.scheduler import MILLISECOND, SECOND, Timer

_DARK_NS = SECOND
"""A name server whose power failed in the middle of a change is down for so long."""
_STEP_NS = 3 * MILLISECOND
"""About what one step of a long registration takes; in between others are answered."""
_LONG_REGISTRATION_BYTES = 0
"""Every registration is carried out as a shipped name server does those of thousands of topics."""
_FILE: Final = "kvConfig.json"
_HAS_FILE: Final = 0.5
_POWER, _NO_SPACE, _NO_FLUSH, _POWER_INSIDE = 0.3, 0.4, 0.5, 0.7
"""Each happens to a name server with a disk where `Fault.amount` is below it, and not below the one before; beyond the
last only the process ends."""


class NameServerWatcher(Protocol):
    """A listener that judges name servers by all that happens to them."""

    def name_server_started(self, host: NameServerHost, core: NameServer) -> None:
        """A process has begun, with what it read from its file."""

    def name_server_stopped(self, host: NameServerHost) -> None:
        """The process has ended."""

    def name_server_asked(
        self, host: NameServerHost, number: int, command: RemotingCommand, now_ns: int, answer: bytes | None
    ) -> None:
        """A request of connection `number` has been carried out, begun at `now_ns`; its answer is about to leave."""

    def name_server_interrupted(self, host: NameServerHost, command: RemotingCommand) -> None:
        """Power failed while it carried out a request; it stops next."""

    def name_server_lost(self, host: NameServerHost, number: int) -> None:
        """A connection has ended."""

    def name_server_expired(self, host: NameServerHost) -> None:
        """The name server has dropped brokers that were silent for too long."""


class KeptConfiguration:
    """`broker.name_server.KeyValueStorage` on a simulated disk, as `broker.shell.name_server.FileStorage`."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self.failed = False
        """The disk has refused what the last request changed."""

    def load(self) -> bytes | None:
        """Returns what was saved last, or None."""
        return self._disk.read(_FILE) if self._disk.exists(_FILE) else None

    def save(self, data: bytes) -> None:
        """Saves it durably, or leaves what was there and raises OSError."""
        self.failed = True
        try:
            self._disk.write_durably(_FILE, data)
        except DiskError as error:
            raise OSError(errno.EIO, str(error)) from error
        self.failed = False


class NameServerHost:
    """A machine with a name server; `kill` and `start` lose everything it knew, but what it keeps in a file."""

    def __init__(
        self,
        network: Network,
        journal: Journal,
        watchers: Sequence[NameServerWatcher],
        name: str,
        ip: str,
        clock: HostClock,
        random: Random,
        registration_secret: str,
        connections_max: int,
    ) -> None:
        """`random` says whether it has a file, and what its disk does. Brokers prove that they know the secret."""
        self._network = network
        self._journal = journal
        self._watchers = watchers
        self._random = random
        self._secret = registration_secret
        self._connections_max = connections_max
        self._disk = SimulatedDisk(random) if random.random() < _HAS_FILE else None
        self.storage: KeptConfiguration | None = None
        """The file of the running process; None without one."""
        self.name = name
        self.address = f"{ip}:9876"
        self._clock = clock
        self._core: NameServer | None = None
        self._sessions: NameServerSessions | None = None
        self._wires: Wires
        """The wires of the process that runs, or ran last; `_client_port` is its port."""
        self._client_port: ClientPort
        self._timer: Timer | None = None
        """The next turn of the running process."""
        self._time = Time(0, 0)
        self._numbers: dict[Connection, int] = {}
        """The numbers that watchers know connections by."""
        network.name_address(self.address, name)

    @property
    def has_file(self) -> bool:
        """True if its key-value configuration is kept in a file, and so outlives its process."""
        return self._disk is not None

    @property
    def is_running(self) -> bool:
        """True while its process runs."""
        return self._core is not None

    def now_ns(self) -> int:
        """Returns its monotonic clock's time."""
        return self._clock.now_ns()

    def start(self) -> None:
        """Starts a process, which knows no more than its file has; does nothing while one runs."""
        if self._core is None:
            if self._disk is not None:
                self.storage = KeptConfiguration(self._disk)
            # All of it is made anew, as by a process: what the last one knew is gone but for the file.
            settings = NameServerSettings(listen=self.address)
            outgoing = Outgoing()
            self._wires = Wires(outgoing, self._network.scheduler, self._guarded, UNREAD_BYTES_MAX)
            self._core = NameServer(settings, self.storage, long_registration_bytes=_LONG_REGISTRATION_BYTES)
            self._timer = None
            self._time = Time(self._clock.now_ns(), 0)
            self._sessions = NameServerSessions(
                self._core,
                self,
                self._time,
                outgoing,
                SessionLimits(connections_max=self._connections_max, idle_ns=settings.idle_seconds * SECOND),
                self._random.randbytes,
                NameServerControl(registration_secret=self._secret),
                self._answer_in_steps,
            )
            self._client_port = ClientPort(
                self.name, self._sessions.clients, self._wires, self._connections_max, self._journal
            )
            for watcher in self._watchers:
                watcher.name_server_started(self, self._core)
            self._network.listen(self.address, self.name, self._accept)
            self._turn(self._sessions)

    def fail(self, amount: float) -> None:
        """Its process ends, and something may happen to its disk."""
        self.kill()
        disk = self._disk
        if disk is None:
            return
        disk.full = False
        if amount < _POWER:
            disk.lose_power()
        elif amount < _NO_SPACE:
            disk.full = True
        elif amount < _NO_FLUSH:
            disk.failing_flushes = 1
        elif amount < _POWER_INSIDE:
            disk.arm_power_failure(1 + int(amount * 100) % 2)

    def heal(self) -> None:
        """The disk is as it should be, and the process runs."""
        if self._disk is not None:
            self._disk.full = False
            self._disk.failing_flushes = 0
            self._disk.arm_power_failure(0)
        self.start()

    def kill(self) -> None:
        """Its process ends."""
        if self._core is not None:
            for watcher in self._watchers:
                watcher.name_server_stopped(self)
            if self._disk is not None:
                self._disk.lose_process()
        self._core = self._sessions = None
        self._network.stop_listening(self.address)
        for endpoint in self._network.endpoints_of(self.name):
            endpoint.close()

    # ---- connections ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """See `broker.requests.line.Surroundings`."""
        self._time.now_ns = self._clock.now_ns()

    def wake(self) -> None:
        """Writes what is queued, at once as the shell does it, and goes on with what takes long."""
        self._wires.hand_out()
        sessions = self._sessions
        if sessions is not None and sessions.has_more:
            self._plan_turn(sessions, self._time.now_ns)

    def _turn(self, sessions: NameServerSessions) -> None:
        self.begin()
        # Told first: what is answered in this turn is judged as without those brokers.
        if sessions.sweep_due_ns <= self._time.now_ns:
            for watcher in self._watchers:
                watcher.name_server_expired(self)
        self._plan_turn(sessions, sessions.turn())

    def _plan_turn(self, sessions: NameServerSessions, due_ns: int) -> None:
        """A turn comes then by its clock, if none is planned before; one that is due now, when a step has passed."""
        scheduler, timer = self._network.scheduler, self._timer
        is_due = due_ns <= self._time.now_ns
        at_ns = scheduler.now_ns + _STEP_NS if is_due else self._clock.true_ns(due_ns)
        if timer is not None and timer.callback is not None:
            if timer.time_ns <= at_ns:
                return  # that turn says when the next one is due
            timer.cancel()
        self._timer = scheduler.at(at_ns, self._guarded(self._turn), sessions)

    def _guarded(self, callback: Callable[..., object]) -> Callable[..., None]:
        # For the process that runs now: what comes for it once another one runs is dropped.
        core = self._core

        def call(*arguments: Any) -> None:
            if self._core is core:
                try:
                    callback(*arguments)
                except PowerFailure:
                    self._goes_dark()
                except Violation:
                    raise
                except Exception as error:  # whatever the code under test raises is a finding
                    raise Violation("a name server fails", self.name, traceback.format_exc()) from error

        return call

    def _accept(self, endpoint: Endpoint) -> None:
        number = len(self._numbers)

        def ended() -> None:
            for watcher in self._watchers:
                watcher.name_server_lost(self, number)

        session = self._client_port.take(endpoint, ended)
        if session is not None:
            self._numbers[session.connection] = number

    def _answer_in_steps(
        self, connection: Connection, command: RemotingCommand, now_ns: int, sight: Sight
    ) -> Generator[None, None, bytes | None]:
        assert self._core is not None, "only a running process is asked"
        number = self._numbers[connection]
        if self.storage is not None:
            # The watcher looks at what this request alone has met.
            self.storage.failed = False
        try:
            answer = yield from self._core.answer_in_steps(connection, command, now_ns, sight)
        except PowerFailure:
            for watcher in self._watchers:
                watcher.name_server_interrupted(self, command)
            raise
        for watcher in self._watchers:
            watcher.name_server_asked(self, number, command, now_ns, answer)
        return answer

    def _goes_dark(self) -> None:
        assert self._disk is not None, "without a disk nothing is saved"
        self._journal.note(self.name, "power fails while it saves a change")
        self.kill()
        self._disk.lose_power()
        self._network.scheduler.after(_DARK_NS, self.start)

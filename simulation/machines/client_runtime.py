"""The client's `Runtime` (broker/client/transport/runtime.py) in the simulator: tasks, clock, connections of a host."""

import errno
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from broker.client.transport.runtime import Buffer, ByteStream, CancelScope, Event
from broker.client.transport.runtime import TaskGroup as TaskGroupProtocol
from simulation.machines.clock import HostClock
from simulation.machines.network import Endpoint, Network
from simulation.machines.tasks import Scope, SimulatedEvent, TaskGroup, TaskProcess
from simulation.randomness import Random
from simulation.scheduler import Scheduler


class SimulatedStream:
    """`broker.client.transport.runtime.ByteStream` over a simulated connection."""

    def __init__(self, process: TaskProcess, endpoint: Endpoint) -> None:
        self._process = process
        self._endpoint = endpoint
        self._received: list[bytes] = []
        self._ended: str | None = None
        self._arrival: SimulatedEvent | None = None
        self._room: SimulatedEvent | None = None
        endpoint.on_data = self._on_data
        endpoint.on_closed = self._on_closed
        endpoint.on_writable = self._on_writable

    def write_nowait(self, buffers: Sequence[Buffer]) -> int:
        """Sends what the kernel takes now, and returns how many bytes that is."""
        return self._endpoint.send_nowait(buffers)

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        """Sends everything, and waits for room. Raises OSError."""
        endpoint = self._endpoint
        if endpoint.closed:
            raise OSError(errno.EPIPE, self._ended or "the connection is closed")
        endpoint.send(buffers)
        while endpoint.has_unsent:
            self._room = SimulatedEvent(self._process)
            await self._room.wait()
        if endpoint.closed:
            raise OSError(errno.ECONNRESET, self._ended or "the connection is closed")

    async def receive_some(self) -> bytes:
        """Returns all bytes that have arrived, and waits for the first; none at the stream's end.

        Raises OSError, as a socket would, once the connection is reset or closed here.
        """
        while not self._received:
            if self._ended is not None:
                # By the words of the network: these are errors to who reads, and an end that the peer has closed is
                # none.
                if "reset" in self._ended or "acknowledged" in self._ended:
                    raise OSError(errno.ECONNRESET, self._ended)
                if self._ended == "closed here":
                    raise OSError(errno.EBADF, self._ended)
                return b""
            self._arrival = SimulatedEvent(self._process)
            await self._arrival.wait()
        received, self._received = self._received, []
        return received[0] if len(received) == 1 else b"".join(received)

    def close(self) -> None:
        """Closes at once."""
        self._endpoint.close()
        self._on_closed("closed here")

    def _on_data(self, data: bytes) -> None:
        self._received.append(data)
        if self._arrival is not None:
            self._arrival.set()

    def _on_closed(self, reason: str) -> None:
        if self._ended is None:
            self._ended = reason
        if self._arrival is not None:
            self._arrival.set()
        # Who waits for room has to hear of it, too.
        self._on_writable()

    def _on_writable(self) -> None:
        if self._room is not None:
            self._room.set()


class ClientRuntime(TaskProcess):
    """The runtime of one client process on a host."""

    def __init__(
        self,
        scheduler: Scheduler,
        network: Network,
        clock: HostClock,
        random: Random,
        host: str,
        ip: str,
        number: int,
        failed: Callable[[BaseException | None], object],
    ) -> None:
        super().__init__(scheduler, clock, failed)
        self._network = network
        self._host = host
        self._ip = ip
        self._number = number
        self.random = random
        self.now_ns = clock.now_ns
        self.wall_ms = clock.wall_ms

    def process_id(self) -> int:
        """Returns a number of its own for every incarnation."""
        return self._number

    def local_address(self) -> str:
        """Returns the host's IP address."""
        return self._ip

    def event(self) -> Event:
        """Returns a new event."""
        return SimulatedEvent(self)

    def task_group(self, *, shielded: bool = False) -> AbstractAsyncContextManager[TaskGroupProtocol]:
        """Returns a new task group."""
        return TaskGroup(self, shielded=shielded)

    def move_on_after(self, seconds: float, *, shield: bool = False) -> CancelScope:
        """Returns a new scope."""
        return Scope(self, seconds, shield)

    async def connect(self, address: str) -> ByteStream:
        """Opens a connection. Raises OSError when it is refused."""
        done = SimulatedEvent(self)
        found: list[tuple[Endpoint | None, str]] = []
        given_up = False

        def opened(endpoint: Endpoint | None, reason: str) -> None:
            # The kernel goes on with a connection that nobody waits for; what comes of it is closed at once.
            if (given_up or self.killed) and endpoint is not None:
                endpoint.close()
                return
            found.append((endpoint, reason))
            done.set()

        self._network.connect(self._host, self._ip, address, opened)
        try:
            await done.wait()
        except BaseException:
            given_up = True
            for endpoint, _ in found:
                if endpoint is not None:
                    endpoint.close()
            raise
        endpoint, reason = found[0]
        if endpoint is None:
            raise OSError(errno.ECONNREFUSED, reason)
        return SimulatedStream(self, endpoint)

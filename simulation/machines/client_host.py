"""A machine with one client process, which can be killed and started again, and stand still in between."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from broker.trace import TraceWriter
from simulation.machines.client_runtime import ClientRuntime
from simulation.machines.clock import HostClock
from simulation.machines.network import Network
from simulation.randomness import Random, branch


@dataclass(eq=False)
class ClientHost:
    """A client machine; clock and name outlive the process."""

    _network: Network
    name: str
    _ip: str
    _clock: HostClock
    _random: Random
    _main: Callable[[ClientRuntime, TraceWriter], Awaitable[None]]
    _new_writer: Callable[[str], TraceWriter]
    """Makes the trace of a process by its name."""
    _main_failed: Callable[[str, BaseException], object]
    """Gets what `main` raises, by `name`."""
    _runtime: ClientRuntime | None = None
    _failed: ClientRuntime | None = None
    _incarnation: int = 0
    _writer: TraceWriter | None = None

    @property
    def is_running(self) -> bool:
        """True while its process runs."""
        return self._runtime is not None

    def start(self) -> None:
        """Starts the process; does nothing while it runs."""
        if self._runtime is not None:
            return
        # The clients of a machine's next process are others: their names, numbers and traces are not of the last one.
        self._incarnation += 1
        number = self._incarnation * 100 + int(self._ip.rpartition(".")[2])
        writer = self._writer = self._new_writer(f"{self.name}.{self._incarnation}")
        runtime = self._runtime = ClientRuntime(
            self._network.scheduler,
            self._network,
            self._clock,
            branch(self._random),
            self.name,
            self._ip,
            number,
            self._ended,
        )

        async def main() -> None:
            await self._main(runtime, writer)

        runtime.run(main())

    def kill(self) -> None:
        """Ends the process at once; no task of it gets another step."""
        runtime, self._runtime = self._runtime, None
        if runtime is None:
            runtime, self._failed = self._failed, None  # what its other tasks were doing ends here
        if runtime is not None:
            for endpoint in self._network.endpoints_of(self.name):
                endpoint.close()
            self._network.kick(self.name)  # a paused process's sockets were full
            runtime.kill()
            self.flush()

    @property
    def is_paused(self) -> bool:
        """True while its process stands still."""
        return self._runtime is not None and self._runtime.is_paused

    def pause(self) -> None:
        """The process stands still; what it has sent goes on its way, and what comes waits in its sockets."""
        if self._runtime is not None:
            self._runtime.pause()
            for endpoint in self._network.endpoints_of(self.name):
                endpoint.readable = False

    def resume(self) -> None:
        """Lets it go on, with what has come and all time limits that are over: either is seen first."""
        runtime = self._runtime
        if runtime is None or not runtime.is_paused:
            return
        if self._random.random() < 0.5:
            runtime.resume()
            self._read_sockets()
        else:
            self._read_sockets()
            # Behind all that the sockets deliver, which comes in events of this moment.
            self._network.scheduler.after(0, runtime.resume)

    def _read_sockets(self) -> None:
        for endpoint in self._network.endpoints_of(self.name):
            endpoint.readable = True
            endpoint.peer.kick()

    def flush(self) -> None:
        """Writes out what the trace holds."""
        if self._writer is not None:
            self._writer.flush()

    def _ended(self, error: BaseException | None) -> None:
        runtime, self._runtime = self._runtime, None
        if error is not None:
            self._failed = runtime
            self._main_failed(self.name, error)

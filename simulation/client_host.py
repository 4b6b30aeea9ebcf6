"""A machine with one client process, which can be killed and started again, as an actor of the workload asks for."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from simulation.client_judge import ClientWriter
from simulation.client_runtime import ClientRuntime
from simulation.clock import HostClock
from simulation.workload.actor import Main

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["ClientHost"]


class ClientHost:
    """One client machine; clock and name outlive the process."""

    def __init__(
        self,
        world: World,
        name: str,
        ip: str,
        clock: HostClock,
        random: Random,
        main: Main,
        *,
        at_most_once: bool,
    ) -> None:
        self.world = world
        self.name = name
        self.ip = ip
        self.clock = clock
        self._random = random
        self._main = main
        self._at_most_once = at_most_once
        self._runtime: ClientRuntime | None = None
        self._failed: ClientRuntime | None = None
        self._incarnation = 0
        self._writer: ClientWriter | None = None

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return self._runtime is not None

    def start(self) -> None:
        """Starts the process; does nothing while it runs."""
        if self._runtime is not None:
            return
        world = self.world
        self._incarnation += 1
        number = self._incarnation * 100 + int(self.ip.rpartition(".")[2])
        writer = self._writer = world.client_writer(
            f"{self.name}.{self._incarnation}", at_most_once=self._at_most_once
        )
        runtime = self._runtime = ClientRuntime(
            world.scheduler,
            world.network,
            self.clock,
            Random(self._random.getrandbits(64)),
            self.name,
            self.ip,
            number,
            self._ended,
        )

        async def main() -> None:
            await self._main(world, runtime, writer)

        runtime.run(main())

    def kill(self) -> None:
        """Ends the process; what it was waiting for it will never know."""
        runtime, self._runtime = self._runtime, None
        if runtime is None:
            runtime, self._failed = self._failed, None  # what its other tasks were doing ends here
        if runtime is not None:
            for endpoint in self.world.network.endpoints_of(self.name):
                endpoint.close()
            runtime.kill()
            self.flush()

    def flush(self) -> None:
        """Hands on what the trace holds."""
        if self._writer is not None:
            self._writer.flush()

    def _ended(self, error: BaseException | None) -> None:
        runtime, self._runtime = self._runtime, None
        if error is not None:
            self._failed = runtime
            self.world.client_failed(self.name, error)

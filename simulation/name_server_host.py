"""A machine that runs a name server: the real core behind simulated sockets. Name servers keep nothing on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.name_server import NameServer
from broker.remoting.errors import FrameError
from broker.remoting.frame import FrameDecoder
from broker.settings import NameServerConfig
from simulation.clock import HostClock
from simulation.network import Endpoint
from simulation.scheduler import SECOND

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["NameServerHost"]

_EXPIRY_CHECK_NS = 5 * SECOND


class NameServerHost:
    """One name server; `kill` and `start` lose everything it knew."""

    def __init__(self, world: World, name: str, ip: str, clock: HostClock) -> None:
        self._world = world
        self.name = name
        self.address = f"{ip}:9876"
        self._clock = clock
        self._core: NameServer | None = None
        self._endpoints: dict[int, Endpoint] = {}
        self._next_number = 0
        world.network.name_address(self.address, name)

    def start(self) -> None:
        """Starts it empty; does nothing while it runs."""
        if self._core is None:
            self._core = NameServer(NameServerConfig(listen=self.address))
            self._world.network.listen(self.address, self.name, self._accept)
            self._world.scheduler.after(_EXPIRY_CHECK_NS, self._expire, self._core)

    def kill(self) -> None:
        """Its process ends."""
        self._core = None
        self._endpoints.clear()
        self._world.network.stop_listening(self.address)
        for endpoint in self._world.network.endpoints_of(self.name):
            endpoint.close()

    def _accept(self, endpoint: Endpoint) -> None:
        core = self._core
        assert core is not None, "it listens only while it runs"
        number = self._next_number
        self._next_number += 1
        self._endpoints[number] = endpoint
        decoder = FrameDecoder()

        def received(data: bytes) -> None:
            if self._core is not core:
                return
            try:
                commands = decoder.feed(data)
            except FrameError:
                endpoint.close()
                closed("damaged")
                return
            for command in commands:
                answer = core.answer(number, command, self._clock.now_ns())
                if answer is not None:
                    endpoint.send([answer])

        def closed(_: str) -> None:
            if self._core is core and self._endpoints.pop(number, None) is not None:
                core.connection_closed(number)

        endpoint.on_data = received
        endpoint.on_closed = closed

    def _expire(self, core: NameServer) -> None:
        if self._core is not core:
            return
        for number in core.expire(self._clock.now_ns()):
            assert isinstance(number, int)
            endpoint = self._endpoints.pop(number, None)
            if endpoint is not None:
                endpoint.close()
                core.connection_closed(number)
        self._world.scheduler.after(_EXPIRY_CHECK_NS, self._expire, core)

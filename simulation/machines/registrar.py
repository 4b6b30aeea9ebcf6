"""Keeps a simulated broker registered with a name server: the stand-in for `broker.shell.registrar`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.node.registration import registration, unregistration
from broker.remoting.command import encode
from broker.remoting.errors import FrameError
from broker.remoting.frame import FrameDecoder
from simulation.machines.network import Endpoint
from simulation.scheduler import MILLISECOND, SECOND, Timer

if TYPE_CHECKING:
    from simulation.machines.broker_host import BrokerProcess

__all__ = ["Registrar"]

_TIMEOUT_NS = 6 * SECOND
_RETRY_NS_MIN = 100 * MILLISECOND
_RETRY_NS_MAX = 5 * SECOND


class Registrar:
    """Registers with one name server, at once when something is new and again every interval."""

    def __init__(self, process: BrokerProcess, address: str) -> None:
        self._process = process
        self._address = address
        self._endpoint: Endpoint | None = None
        self._decoder = FrameDecoder()
        self._opaque = 0
        self._awaiting = False
        self.said_version = -1
        """Of what the node has to say, what was sent last."""
        self._attempt = 0
        self._retry_ns = _RETRY_NS_MIN
        self._timeout: Timer | None = None

    def dial(self) -> None:
        """Connects, again and again until it succeeds."""
        process = self._process
        self._attempt += 1
        attempt = self._attempt

        def opened(endpoint: Endpoint | None, _: str) -> None:
            if process.dead or self._attempt != attempt:
                if endpoint is not None:
                    endpoint.close()
                return
            if endpoint is None:
                self._again()
                return
            self._retry_ns = _RETRY_NS_MIN
            self._endpoint = endpoint
            self._decoder = FrameDecoder()
            self._awaiting = False
            endpoint.on_data = process.guarded(self._received)
            endpoint.on_closed = process.guarded(self._lost)
            self._register()

        def too_slow() -> None:
            if self._attempt == attempt and self._endpoint is None:
                self._again()

        process.call_after(_TIMEOUT_NS, too_slow)
        host = process.host
        host.surroundings.network.connect(host.name, host.ip, self._address, process.guarded(opened))

    def changed(self) -> None:
        """There is something new to say."""
        if self._endpoint is not None and not self._awaiting:
            self._register()

    def unregister(self) -> None:
        """Says goodbye, if connected; for an orderly stop."""
        process = self._process
        command = unregistration(process.node, process.host.config, process.host.address)
        if self._endpoint is not None and command is not None:
            self._opaque += 1
            command.opaque = self._opaque
            self._endpoint.send([encode(command)])

    def _register(self) -> None:
        process = self._process
        assert self._endpoint is not None
        self.said_version = process.node.registration_version
        command = registration(process.node, process.host.config, process.host.address)
        if self._timeout is not None:
            self._timeout.cancel()
        if command is None:
            return
        self._opaque += 1
        command.opaque = self._opaque
        self._awaiting = True
        self._endpoint.send([encode(command)])
        self._timeout = process.call_after(_TIMEOUT_NS, self._give_up)

    def _received(self, data: bytes) -> None:
        try:
            commands = self._decoder.feed(data)
        except FrameError:
            self._give_up()
            return
        if commands:
            self._awaiting = False
            if self._timeout is not None:
                self._timeout.cancel()
            interval_ns = self._process.host.config.broker.register_interval_ms * MILLISECOND
            if self.said_version != self._process.node.registration_version:
                self._register()
            else:
                self._timeout = self._process.call_after(interval_ns, self._register)

    def _give_up(self) -> None:
        if self._endpoint is not None:
            self._endpoint.close()
            self._lost("no answer")

    def _lost(self, _: str) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
        self._endpoint = None
        self._again()

    def _again(self) -> None:
        self._attempt += 1
        self._process.call_after(self._retry_ns, self.dial)
        self._retry_ns = min(2 * self._retry_ns, _RETRY_NS_MAX)

"""The connections between the replicas: the simulator's stand-in for `broker.shell.peer_links`, with the same duties.

TCP loses, repeats and reorders nothing, but Raft must bear all three; so single Raft messages can be dropped, doubled
or held back here, where a link hands them to the node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.connection import Connection
from broker.peer_protocol import (
    PROTOCOL_VERSION,
    Frame,
    Hello,
    PeerDecoder,
    PeerProtocolError,
    RaftFrame,
    encode_frame,
)
from raft.messages import VoteResponse
from simulation.network import Endpoint
from simulation.scheduler import MICROSECOND, MILLISECOND, SECOND, Timer

if TYPE_CHECKING:
    from simulation.broker_host import BrokerProcess

__all__ = ["FrameFaults", "PeerLinks"]

_CONNECT_TIMEOUT_NS = 2 * SECOND
_HELLO_TIMEOUT_NS = 5 * SECOND
_RETRY_NS_MIN = 20 * MILLISECOND
_RETRY_NS_MAX = 500 * MILLISECOND
_USER_TIMEOUT_NS = 5 * SECOND


@dataclass(slots=True)
class FrameFaults:
    """Probabilities, per Raft message, on the links of one node."""

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0


class _Inbound:
    """A link that a peer dialled."""

    __slots__ = ("decoder", "endpoint", "source")

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.decoder = PeerDecoder()
        self.source: str | None = None


class PeerLinks:
    """The links of one process."""

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process
        self._node = process.node
        self._inbound: dict[str, _Inbound] = {}
        self._retry_ns: dict[str, int] = {}
        self._attempts: dict[str, int] = {}

    # ---- dialled -------------------------------------------------------------------------------------

    def dial(self, peer: str) -> None:
        """Tries to connect with a peer now, and again until it succeeds."""
        process = self._process
        address = self._node.replica.membership.addresses.get(peer)
        if address is None:
            return
        attempt = self._attempts[peer] = self._attempts.get(peer, 0) + 1
        host = process.host

        def opened(endpoint: Endpoint | None, _: str) -> None:
            if process.dead or self._attempts[peer] != attempt:
                if endpoint is not None:
                    endpoint.close()
                return
            timeout.cancel()
            if endpoint is None:
                self._again(peer)
            else:
                self._serve_dialled(peer, endpoint)

        def too_slow() -> None:
            if self._attempts[peer] == attempt:
                self._again(peer)

        timeout: Timer = process.call_after(_CONNECT_TIMEOUT_NS, too_slow)
        host.world.network.connect(host.name, host.ip, address, process.guarded(opened))

    def _again(self, peer: str) -> None:
        retry_ns = self._retry_ns.get(peer, _RETRY_NS_MIN)
        self._retry_ns[peer] = min(2 * retry_ns, _RETRY_NS_MAX)
        self._attempts[peer] += 1
        self._process.call_after(retry_ns, self.dial, peer)

    def _serve_dialled(self, peer: str, endpoint: Endpoint) -> None:
        process, node = self._process, self._node
        self._retry_ns[peer] = _RETRY_NS_MIN
        endpoint.user_timeout_ns = _USER_TIMEOUT_NS
        connection = Connection(node.outgoing, f"peer {peer}")
        process.endpoints[connection] = endpoint

        def lost(_: str) -> None:
            if process.endpoints.pop(connection, None) is None:
                return
            if node.replica.links.get(peer) is connection:
                del node.replica.links[peer]
            process.begin()
            node.peer_lost(peer)
            process.wake()
            process.call_after(_RETRY_NS_MIN, self.dial, peer)

        def unexpected(_: bytes) -> None:
            endpoint.close()
            lost("a peer answered on a link that only this node sends on")

        endpoint.on_data = process.guarded(unexpected)
        endpoint.on_closed = process.guarded(lost)
        hello = Hello(PROTOCOL_VERSION, node.group, node.replica.node_id, peer)
        connection.send(*encode_frame(hello))
        node.replica.links[peer] = connection
        process.begin()
        node.peer_connected(peer)
        process.wake()

    # ---- accepted ------------------------------------------------------------------------------------

    def accept(self, endpoint: Endpoint) -> None:
        """A peer has dialled this node."""
        process = self._process
        link = _Inbound(endpoint)
        endpoint.user_timeout_ns = _USER_TIMEOUT_NS

        def lost(_: str) -> None:
            self._inbound_lost(link)

        def silent() -> None:
            if link.source is None:
                endpoint.close()

        def received(data: bytes) -> None:
            process.begin()
            try:
                for frame in link.decoder.feed(data):
                    self._frame(link, frame)
            except PeerProtocolError as error:
                process.host.note(f"link of peer {link.source} closed: {error}")
                endpoint.close()
                self._inbound_lost(link)
            process.wake()

        endpoint.on_data = process.guarded(received)
        endpoint.on_closed = process.guarded(lost)
        process.call_after(_HELLO_TIMEOUT_NS, silent)

    def accepted(self) -> list[Endpoint]:
        """The ends of the links that peers have dialled, for tests that break them."""
        return [link.endpoint for link in self._inbound.values()]

    def _frame(self, link: _Inbound, frame: Frame) -> None:
        node = self._node
        if link.source is None:
            link.source = self._check_hello(frame)
            earlier = self._inbound.pop(link.source, None)
            self._inbound[link.source] = link
            if earlier is not None:
                earlier.endpoint.close()
                node.peer_lost(link.source)
            return
        world = self._process.host.world
        if isinstance(frame, RaftFrame):
            message = frame.message
            if isinstance(message, VoteResponse) and message.granted and not message.pre_vote:
                world.monitor.voted(world.broker(link.source), message.request_term, message.target)
        faults = self._process.host.frame_faults
        if isinstance(frame, RaftFrame) and faults is not None:
            self._frame_with_faults(link, frame, faults)
        else:
            node.peer_received(link.source, frame)

    def _frame_with_faults(self, link: _Inbound, frame: RaftFrame, faults: FrameFaults) -> None:
        world = self._process.host.world
        random, source = world.network.random, link.source
        assert source is not None
        drawn = random.random()
        if drawn < faults.loss:
            world.fired("message loss")
            return
        if drawn < faults.loss + faults.reordering:
            world.fired("message reordering")
            delay = random.randrange(MICROSECOND, 30 * MILLISECOND)
            self._process.call_after(delay, self._late, link, frame)
            return
        if drawn < faults.loss + faults.reordering + faults.duplication:
            world.fired("message duplication")
            delay = random.randrange(MICROSECOND, 30 * MILLISECOND)
            self._process.call_after(delay, self._late, link, frame)
        self._node.peer_received(source, frame)

    def _late(self, link: _Inbound, frame: RaftFrame) -> None:
        if link.source is not None and self._inbound.get(link.source) is link:
            self._process.begin()
            self._node.peer_received(link.source, frame)
            self._process.wake()

    def _inbound_lost(self, link: _Inbound) -> None:
        if link.source is not None and self._inbound.get(link.source) is link:
            del self._inbound[link.source]
            self._process.begin()
            self._node.peer_lost(link.source)
            self._process.wake()

    def _check_hello(self, frame: Frame) -> str:
        node = self._node
        expected = (PROTOCOL_VERSION, node.group, node.replica.node_id)
        if not isinstance(frame, Hello) or (frame.version, frame.group, frame.target) != expected:
            raise PeerProtocolError(f"not the hello that was expected: {frame!r:.100}")
        return frame.source

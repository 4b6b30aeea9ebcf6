"""The connections between the replicas: the simulator's stand-in for `broker.shell.peer_links`, with the same duties.

TCP loses, repeats and reorders nothing, but Raft must bear all three; so single Raft messages can be dropped, doubled
or held back here, where a link hands them to the node. The handshake is the real one, with an empty secret.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.peers.handshake import HANDSHAKE_FRAME_BYTES_MAX, NONCE_BYTES, Accepting, Dialling
from broker.peers.protocol import (
    PROTOCOL_VERSION,
    Frame,
    Hello,
    PeerDecoder,
    PeerProtocolError,
    RaftFrame,
    encode_frame,
    take_frame,
)
from broker.requests.connection import Connection
from raft.messages import AppendRequest, TimeoutNow, VoteResponse
from simulation.machines.network import Endpoint
from simulation.scheduler import MICROSECOND, MILLISECOND, SECOND, Timer

if TYPE_CHECKING:
    from simulation.machines.broker_host import BrokerProcess

__all__ = ["FrameFaults", "PeerLinks"]

_CONNECT_TIMEOUT_NS = 2 * SECOND
_HELLO_TIMEOUT_NS = 5 * SECOND
_RETRY_NS_MIN = 20 * MILLISECOND
_RETRY_NS_MAX = 500 * MILLISECOND
_REFUSED_RETRY_NS = 2 * SECOND
_USER_TIMEOUT_NS = 5 * SECOND


@dataclass(slots=True)
class FrameFaults:
    """Probabilities, per Raft message, on the links of one node."""

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    corruption: float = 0.0
    """Of messages with entries: a bit of them flips, as TCP's own checksum lets one in many through."""
    told: Callable[[], object] = lambda: None
    """Called for each message to which one of these happens."""


class _Inbound:
    """A link that a peer dialled."""

    __slots__ = ("accepting", "decoder", "endpoint", "pending", "source")

    def __init__(self, endpoint: Endpoint, accepting: Accepting) -> None:
        self.endpoint = endpoint
        self.accepting = accepting
        self.pending = b""
        self.decoder = PeerDecoder()
        self.source: str | None = None


class _Dialled:
    """The link, or the attempt to get one, with a peer of this process; `gone` ends it for good."""

    __slots__ = ("address", "attempt", "endpoint", "gone", "peer", "retry_ns")

    def __init__(self, peer: str, address: str) -> None:
        self.peer = peer
        self.address = address
        self.attempt = 0
        self.retry_ns = _RETRY_NS_MIN
        self.endpoint: Endpoint | None = None
        self.gone = False


class PeerLinks:
    """The links of one process."""

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process
        self._node = process.node
        self._inbound: dict[str, _Inbound] = {}
        self.peers: dict[str, str] = {}
        """Those of the replica for which there are links."""
        self._dialled: dict[str, _Dialled] = {}

    def follow_membership(self) -> None:
        """Begins links with new peers and ends those with others, when the replica has other peers."""
        peers = self.peers = self._node.replica.members.peers
        for peer in [peer for peer in self._dialled if peer not in peers]:
            dialled = self._dialled.pop(peer)
            dialled.gone = True
            if dialled.endpoint is not None:
                endpoint = dialled.endpoint
                endpoint.close()
                endpoint.on_closed("its peer is none of the group")
        for peer in peers:
            if peer not in self._dialled:
                self._dialled[peer] = _Dialled(peer, peers[peer])
                self._dial(self._dialled[peer])

    def _nonce(self, size: int) -> bytes:
        return self._process.host.random.randbytes(size)

    # ---- dialled -------------------------------------------------------------------------------------

    def _dial(self, dialled: _Dialled) -> None:
        """Tries to connect with a peer now, and again until it succeeds."""
        if dialled.gone:
            return
        process = self._process
        dialled.address = self.peers[dialled.peer]
        dialled.attempt += 1
        attempt = dialled.attempt
        host = process.host

        def opened(endpoint: Endpoint | None, _: str) -> None:
            if process.dead or dialled.gone or dialled.attempt != attempt:
                if endpoint is not None:
                    endpoint.close()
                return
            timeout.cancel()
            if endpoint is None:
                self._again(dialled)
            else:
                self._serve_dialled(dialled, endpoint)

        def too_slow() -> None:
            if dialled.attempt == attempt:
                self._again(dialled)

        timeout: Timer = process.call_after(_CONNECT_TIMEOUT_NS, too_slow)
        host.surroundings.network.connect(host.name, host.ip, dialled.address, process.guarded(opened))

    def _again(self, dialled: _Dialled, retry_ns: int = 0) -> None:
        retry_ns = retry_ns or dialled.retry_ns
        dialled.retry_ns = min(2 * dialled.retry_ns, _RETRY_NS_MAX)
        dialled.attempt += 1
        self._process.call_after(retry_ns, self._dial, dialled)

    def _serve_dialled(self, dialled: _Dialled, endpoint: Endpoint) -> None:
        process, node, peer = self._process, self._node, dialled.peer
        replica = node.replica
        dialled.retry_ns = _RETRY_NS_MIN
        dialled.endpoint = endpoint
        endpoint.user_timeout_ns = _USER_TIMEOUT_NS
        connection = Connection(node.outgoing, f"peer {peer}")
        process.endpoints[connection] = endpoint
        own_address = replica.membership.addresses.get(replica.node_id, "")
        hello = Hello(
            PROTOCOL_VERSION, node.group, replica.node_id, peer, own_address, self._nonce(NONCE_BYTES)
        )
        handshake = Dialling(hello, "")
        pending = b""
        up = False

        def lost(_: str) -> None:
            if process.endpoints.pop(connection, None) is None:
                return
            timeout.cancel()
            dialled.endpoint = None
            if up:
                if replica.links.get(peer) is connection:
                    del replica.links[peer]
                process.begin()
                node.peer_lost(peer)
                process.wake()
            self._again(dialled, _RETRY_NS_MIN if up else _REFUSED_RETRY_NS)

        def close(reason: str) -> None:
            endpoint.close()
            lost(reason)

        def received(data: bytes) -> None:
            nonlocal pending, up
            pending += data
            try:
                if up:
                    raise PeerProtocolError("it answers on a link that only this node sends on")
                taken = take_frame(pending, HANDSHAKE_FRAME_BYTES_MAX)
                if taken is None:
                    return
                proof = handshake.answered(taken[0])
            except PeerProtocolError as error:
                close(str(error))
                return
            connection.send(*encode_frame(proof))
            up = True
            timeout.cancel()
            replica.links[peer] = connection
            process.begin()
            node.peer_connected(peer)
            process.wake()

        timeout = process.call_after(_HELLO_TIMEOUT_NS, close, "it said nothing")
        endpoint.on_data = process.guarded(received)
        endpoint.on_closed = process.guarded(lost)
        connection.send(*encode_frame(hello))
        process.wake()

    # ---- accepted ------------------------------------------------------------------------------------

    def accept(self, endpoint: Endpoint) -> None:
        """A peer has dialled this node."""
        process, node = self._process, self._node
        link = _Inbound(endpoint, Accepting(node.group, node.replica.node_id, "", self._nonce))
        endpoint.user_timeout_ns = _USER_TIMEOUT_NS

        def lost(_: str) -> None:
            self._inbound_lost(link)

        def silent() -> None:
            if link.source is None:
                endpoint.close()

        def received(data: bytes) -> None:
            process.begin()
            wants_turn = link.source is None
            try:
                if link.source is None:
                    data = self._shake_hands(link, data)
                if link.source is not None:
                    for frame in link.decoder.feed(data):
                        wants_turn |= self._frame(link, frame)
            except PeerProtocolError as error:
                process.host.note(f"link of peer {link.source} closed: {error}")
                endpoint.close()
                self._inbound_lost(link)
                wants_turn = True
            if wants_turn:
                process.wake()

        endpoint.on_data = process.guarded(received)
        endpoint.on_closed = process.guarded(lost)
        process.call_after(_HELLO_TIMEOUT_NS, silent)

    def accepted(self) -> list[Endpoint]:
        """The ends of the links that peers have dialled, for tests that break them."""
        return [link.endpoint for link in self._inbound.values()]

    def _shake_hands(self, link: _Inbound, data: bytes) -> bytes:
        """Takes the frames of the handshake; returns what follows them, once the peer has proved itself."""
        link.pending += data
        accepting = link.accepting
        while accepting.source is None:
            taken = take_frame(link.pending, HANDSHAKE_FRAME_BYTES_MAX)
            if taken is None:
                return b""
            frame, link.pending = taken
            answer = accepting.received(frame)
            if answer is not None:
                link.endpoint.send(encode_frame(answer))
        node = self._node
        link.source, rest, link.pending = accepting.source, link.pending, b""
        earlier = self._inbound.pop(link.source, None)
        self._inbound[link.source] = link
        if earlier is not None:
            earlier.endpoint.close()
            node.peer_lost(link.source)
        node.replica.members.met(link.source, accepting.hello.address)
        return rest

    def _frame(self, link: _Inbound, frame: Frame) -> bool:
        """Whether it wants a turn."""
        node = self._node
        assert link.source is not None, "the handshake is over"
        if isinstance(frame, RaftFrame):
            message = frame.message
            if isinstance(message, VoteResponse) and message.granted and not message.pre_vote:
                watcher = self._process.host.surroundings.watcher
                watcher.voted(link.source, message.request_term, message.target)
        faults = self._process.host.frame_faults
        if isinstance(frame, RaftFrame) and faults is not None:
            self._frame_with_faults(link, frame, faults)
            return True
        return node.peer_received(link.source, frame)

    def _frame_with_faults(self, link: _Inbound, frame: RaftFrame, faults: FrameFaults) -> None:
        surroundings = self._process.host.surroundings
        random, source = surroundings.network.random, link.source
        fired = surroundings.journal.fired
        assert source is not None
        is_append = isinstance(frame.message, AppendRequest) and bool(frame.body)
        if is_append and random.random() < faults.corruption:
            fired("message corruption")
            faults.told()
            body = bytearray(frame.body)
            body[random.randrange(len(body))] ^= 1 << random.randrange(8)
            frame = frame._replace(body=body)
        drawn = random.random()
        if drawn < faults.loss:
            fired("message loss")
            faults.told()
            return
        if drawn < faults.loss + faults.reordering:
            fired("message reordering")
            faults.told()
            delay = random.randrange(MICROSECOND, 30 * MILLISECOND)
            self._process.call_after(delay, self._late, link, frame)
            return
        if drawn < faults.loss + faults.reordering + faults.duplication:
            fired("message duplication")
            faults.told()
            delay = random.randrange(MICROSECOND, 30 * MILLISECOND)
            self._process.call_after(delay, self._late, link, frame)
        self._node.peer_received(source, frame)

    def call_to_arms(self, leader: str, term: int) -> bool:
        """A `TimeoutNow` of that leader and term arrives late, or twice; False when its link is down."""
        link = self._inbound.get(leader)
        if link is None:
            return False
        process = self._process
        delay = process.host.surroundings.network.random.randrange(MICROSECOND, MILLISECOND)
        process.call_after(delay, self._late, link, RaftFrame(TimeoutNow(leader, process.host.name, term)))
        return True

    def _late(self, link: _Inbound, frame: RaftFrame) -> None:
        if link.source is not None and self._inbound.get(link.source) is link:
            self._process.begin()
            self._node.peer_received(link.source, frame)
            self._process.wake()

    def _inbound_lost(self, link: _Inbound) -> None:
        if link.source is not None and self._inbound.get(link.source) is link:
            del self._inbound[link.source]
            self._node.replica.members.parted(link.source)
            self._process.begin()
            self._node.peer_lost(link.source)
            self._process.wake()

"""The links between the nodes of a group: one that this node dials to each peer, and one accepted from each.

A node sends on the links that it has dialled and receives on those that it has accepted (broker/peers/protocol.py).
A link that breaks is the first sign of a peer's death, and the node is told at once, whichever of the two it was.

Before the node hears of a link both ends have proved that they belong to the group (broker/peers/handshake.py). Until
then whoever has connected is a stranger: of those there may be a few at a time, for a few seconds, and each can make
the node keep no more than one short frame. A node that is late itself, as on a machine that has no time for it, gives
them these seconds anew: their proofs may lie unread. A dialled link is a line (broker/requests/line.py), AWAITS meaning
the challenge; an accepted one has the states AWAITS, UP and ENDED of the same table.
"""

from collections.abc import Callable
from typing import Final, Protocol

import structlog

from broker.peers.handshake import HANDSHAKE_FRAME_BYTES_MAX, NONCE_BYTES, Accepting, Dialling
from broker.peers.protocol import (
    Frame,
    Hello,
    PeerDecoder,
    PeerProtocolError,
    encode_frame,
    take_frame,
)
from broker.remoting.addresses import share_of
from broker.replica.linked_peers import LinkedPeers
from broker.requests.connection import Connection, Outgoing
from broker.requests.crowd import Crowd
from broker.requests.deadline import MS, NEVER, Time
from broker.requests.line import TRANSITIONS, Line, LineState, Patience, Surroundings
from broker.statistics.events import EventKind, Events

log = structlog.get_logger("trivet.peers")


HANDSHAKE_NS: Final = 5_000 * MS
"""The other end must say within this time that it is a peer, TLS included, and prove it within as much again.

A peer whose turns take longer has no link until they do not: it is dialled again 2 s behind each attempt that came to
nothing. Until then it could neither follow nor lead: within the default election timeouts nobody would hear of it.
"""

PATIENCE: Final = Patience(
    connect_ns=2_000 * MS,
    answer_ns=HANDSHAKE_NS,
    rest_ns_min=20 * MS,
    rest_ns_max=500 * MS,
    refused_rest_ns=2_000
    * MS,  # with a peer that does not believe this node, or that this node does not believe
)

_TOLD_AT_ONCE: Final = 10
"""Links of one address that end, for various reasons, of which each is worth a line."""

RECEIVE_BYTES: Final = 32 * 1024
"""The most bytes of a peer that are taken at once, but for the rest of a frame that is long, such as an append: some
hundreds of short frames, of which each takes some microseconds. What clients ask by them may have to wait for its turn
(`relayed_clients.py`)."""

STRANGERS_MAX: Final = 64
"""Connections at a time that have not yet proved that they are a peer's. For the next one the oldest is closed, of the
address that has most.

A peer proves itself within two round trips, so that the one that has waited longest is the least likely to be one:
silent strangers, however many, cannot keep peers out for the seconds that each may stay. Nor can those that come faster
than two round trips take, from elsewhere.
"""

UNACKNOWLEDGED_NS_MAX: Final = 5_000 * MS
"""A link is broken if the other end's system does not acknowledge its bytes for so long (TCP_USER_TIMEOUT). Whoever
owns the sockets sees to it."""


PROBED_NS: Final = 2_000 * MS
"""On a link that nothing comes on for so long, as between followers, the other end's system is asked for a sign
(keepalive), and then each second: one whose machine has lost its power ends after `UNACKNOWLEDGED_NS_MAX`, too, and is
dialled anew. Before that some may be lost: where both are set, Linux counts no probes, but looks at that time alone."""


class LinkedNode(Protocol):
    """The node that the links belong to."""

    @property
    def identity(self) -> str:
        """The group's name among its nodes."""

    def peer_received(self, source: str, frame: Frame) -> bool:
        """Takes a frame from a peer; returns whether it wants a turn. Raises `PeerProtocolError`."""

    def peer_connected(self, node: str) -> None:
        """Hears that the link to `node` is up, or that from it."""

    def peer_lost(self, node: str) -> None:
        """Hears that the link to `node` is lost, or that from it."""


class _DialledLink:
    """The link that this node sends on to one peer: the user of a `Line`. Its methods are described there."""

    def __init__(self, links: "PeerLinks", peer: str, address: str) -> None:
        self._links = links
        self._peer = peer
        self._pending = b""
        """The bytes of a frame of the handshake that is not whole."""
        self._handshake: Dialling
        self._complaint = ""
        """The reason why there was no link, as it was logged last."""
        self.line = links.line(f"peer {peer}", address, self)

    def opened(self) -> None:
        links, peers = self._links, self._links.peers
        # Another nonce for each connection: a proof that was recorded on an earlier one is worth nothing.
        hello = peers.hello(links.node.identity, self._peer, links.nonce(NONCE_BYTES))
        self._handshake = Dialling(hello, links.secret, peers.release, peers.group_format)
        self._pending = b""
        self.line.connection.send(*encode_frame(hello))
        self.line.awaits()

    def received(self, data: bytes) -> None:
        if self.line.state is LineState.UP:
            log.warning("a peer answers on a link that only this node sends on", peer=self._peer)
            self.line.refuse("it answers on a link that only this node sends on")
            return
        try:
            assert self.line.state is LineState.AWAITS, "only the handshake is answered"
            self._pending += data
            taken = take_frame(self._pending, HANDSHAKE_FRAME_BYTES_MAX)
            if taken is None:
                return
            proof = self._handshake.answered(taken[0])
        except PeerProtocolError as error:
            self.line.refuse(str(error))
            return
        # The proof goes first: the node sends as soon as it hears of the link, and nothing is believed before the
        # proof.
        self.line.connection.send(*encode_frame(proof))
        self.line.up()
        self._complaint = ""
        self._links.peers.up(self._peer, self.line.connection, self._handshake.version)
        self._links.node.peer_connected(self._peer)

    def due(self) -> None:
        raise AssertionError("a link that is up waits for nothing")

    def lost(self, was: LineState, reason: str) -> None:
        if was is LineState.UP:
            self._links.peers.down(self._peer, self.line.connection)
            self._links.node.peer_lost(self._peer)
        refused = was is LineState.AWAITS and self.line.state is LineState.RESTS
        # The other end was there, and there was no link: told once for each reason, as it is tried again and again.
        if refused and reason != self._complaint:
            self._complaint = reason
            log.warning("no link to a peer", peer=self._peer, address=self.line.address, reason=reason)


class AcceptedLink:
    """A link that another node has dialled: this node receives on it."""

    __slots__ = (
        "_accepting",
        "_address",
        "_decoder",
        "_links",
        "_pending",
        "_source",
        "_state",
        "connection",
        "share",
        "until_ns",
    )

    def __init__(self, links: "PeerLinks", connection: Connection, address: str, until_ns: int) -> None:
        peers = links.peers
        self.connection = connection
        self.until_ns = until_ns
        """A stranger is sent away at this time."""
        self._links = links
        self._address = address
        self.share = share_of(self.host)
        """The share that it counts as among strangers, and where handshakes take turns."""
        self._accepting = Accepting(
            links.node.identity,
            peers.node_id,
            links.secret,
            links.nonce,
            peers.release,
            peers.group_format,
        )
        self._pending = b""
        self._decoder = PeerDecoder()
        self._state = LineState.AWAITS
        self._source: str | None = None
        """The peer, if and only if the state is UP."""

    def received(self, data: bytes) -> int:
        """Takes bytes that have come. Nonsense in them ends this link; whatever else is raised must stop the node.

        Returns how many bytes are still to come of the frame that is under way, as far as that is known.
        """
        links = self._links
        links.begin()
        wants_turn = False
        decoder = self._decoder
        try:
            source = self._source
            if source is None:
                data = self._shake_hands(data)
                source = self._source
                if source is None:
                    return 0
                wants_turn = True  # the node has met a peer
            deliver = links.deliver
            for frame in decoder.feed(data):
                if deliver(source, frame):
                    wants_turn = True
        except PeerProtocolError as error:
            self.close(str(error))
        if wants_turn:
            links.wake()
        return decoder.needed - decoder.held

    def lost(self) -> None:
        """Hears that the connection is closed."""
        if self._state is LineState.AWAITS:
            self.close("closed before it proved that it is a peer")
        elif self._state is LineState.UP:
            self._links.begin()
            self._end_up()

    def close(self, reason: str) -> None:
        """Ends the link for a reason that is worth a line in the log. Does nothing when it has ended."""
        if self._state is LineState.ENDED:
            return
        peer = self._accepting.source
        links = self._links
        links.events.warn(
            EventKind.LINK_CLOSED,
            "a stranger's" if self._state is LineState.AWAITS else "a peer's",
            links.time.now_ns,
            source=self.host,
            at_once=_TOLD_AT_ONCE,
            peer=peer,
            address=self._address,
            detail=reason,
        )
        # A peer's link was the node's, which hears that it is lost; a stranger's was known here alone.
        if self._state is LineState.UP:
            self._end_up()
        else:
            links.strangers.discard(self)
            self.end()

    @property
    def host(self) -> str:
        """The address that it comes from, without its port."""
        return self._address.rpartition(":")[0]

    def _end_up(self) -> None:
        assert self._source is not None, "a link that is up is that of a peer"
        source = self._source
        self.end()
        self._links.accepted_link_lost(source, self)

    def end(self) -> None:
        """Closes the connection. Whatever still comes on it is ignored."""
        self._become(LineState.ENDED)
        self._source = None
        self.connection.abort()
        self._links.wake()

    def _shake_hands(self, data: bytes) -> bytes:
        """Takes the frames of the handshake. Returns what follows them, once `_source` is known."""
        if self._state is LineState.ENDED:
            return b""
        self._pending += data
        accepting = self._accepting
        while accepting.source is None:
            taken = take_frame(self._pending, HANDSHAKE_FRAME_BYTES_MAX)
            if taken is None:
                return b""
            frame, self._pending = taken
            challenge = accepting.received(frame)
            if challenge is not None:
                self.connection.send(*encode_frame(challenge))
                # It has said who it is, and has as much time again for its proof.
                self.until_ns = self._links.time.now_ns + HANDSHAKE_NS
                self._links.wake()
        self._become(LineState.UP)
        self._source = accepting.source
        self._links.accepted_link_up(self, accepting.hello)
        rest, self._pending = self._pending, b""
        return rest

    def _become(self, state: LineState) -> None:
        assert state in TRANSITIONS[self._state], f"{self._state.value} to {state.value}"
        self._state = state


class PeerLinks:
    """All links of one node with its peers.

    `deliver` stands in for `Node.peer_received`. `nonce` returns the given number of random bytes. `dial` is described
    at `Line`.
    """

    def __init__(
        self,
        node: LinkedNode,
        peers: LinkedPeers,
        surroundings: Surroundings,
        time: Time,
        outgoing: Outgoing,
        events: Events,
        *,
        secret: str,
        nonce: Callable[[int], bytes],
        dial: Callable[[Line], None],
        deliver: Callable[[str, Frame], bool] | None = None,
    ) -> None:
        self.node = node
        self.peers = peers
        self.time = time
        self.events = events
        self.secret = secret
        self.nonce = nonce
        self.begin = surroundings.begin
        self.wake = surroundings.wake
        self.deliver = deliver or node.peer_received
        self.accepted: dict[str, AcceptedLink] = {}
        """The links that are up, by peer: the newest of each."""
        self.strangers: Crowd[AcceptedLink] = Crowd()
        """The accepted links that are not up, oldest first."""
        self._followed: dict[str, str] = {}
        """The `LinkedPeers.wanted` that was followed last: each of them has a link in `_dialled`, and nobody else."""
        self._outgoing = outgoing
        self._surroundings = surroundings
        self._dial = dial
        self._dialled: dict[str, _DialledLink] = {}
        self._strangers_due = time.add_deadline(self._send_strangers_away)

    def line(self, name: str, address: str, user: _DialledLink) -> Line:
        """A line of this node to one peer."""
        return Line(
            name,
            address,
            PATIENCE,
            user,
            surroundings=self._surroundings,
            time=self.time,
            outgoing=self._outgoing,
            dial=self._dial,
        )

    def follow_membership(self) -> None:
        """Begins links with new peers and ends those with others, if the members have changed."""
        peers = self.peers.wanted
        # It is another object whenever the members are others (`LinkedPeers.wanted`), and this is asked in each turn.
        if peers is self._followed:
            return
        self._followed = peers
        for peer in [peer for peer in self._dialled if peer not in peers]:
            self._dialled.pop(peer).line.end("it is no member of the group")
        for peer, address in peers.items():
            link = self._dialled.get(peer)
            if link is not None:
                # For the next attempt: a connection that is up goes on, whatever address it was dialled at.
                link.line.address = address
            else:
                link = self._dialled[peer] = _DialledLink(self, peer, address)
                link.line.start()

    # ------------------------------------------------------------------ accepted

    def accept(self, connection: Connection, address: str) -> AcceptedLink:
        """Takes a connection that somebody has made from `address`. A stranger may have to go for it."""
        if (oldest := self.strangers.make_room(STRANGERS_MAX)) is not None:
            oldest.close(f"{STRANGERS_MAX} others are there")
        self.begin()
        link = AcceptedLink(self, connection, address, self.time.now_ns + HANDSHAKE_NS)
        self.strangers.add(link, link.share)
        self._strangers_due.due_ns = min(self._strangers_due.due_ns, link.until_ns)
        self.wake()
        return link

    def accepted_link_up(self, link: AcceptedLink, hello: Hello) -> None:
        """Believes a peer that has proved itself. A peer that dials again has lost its earlier link."""
        source = hello.source
        self.strangers.discard(link)
        earlier = self.accepted.pop(source, None)
        self.accepted[source] = link
        if earlier is not None:
            # It may be another process by now: whatever its earlier link stood for is lost.
            earlier.end()
            self.node.peer_lost(source)
        self.peers.met(hello, self.time.now_ns)
        # Whoever dials is there, and its questions are answered on the link that this node dials.
        if (dialled := self._dialled.get(source)) is not None:
            dialled.line.hurry()
        if self.peers.sends_to(source):
            self.node.peer_connected(source)  # it can answer now what it is asked, and was asked before

    def accepted_link_lost(self, source: str, link: AcceptedLink) -> None:
        """Tells the node that the newest link of a peer has ended."""
        assert self.accepted.get(source) is link, "an earlier link is ended when a newer one is up"
        del self.accepted[source]
        self.peers.parted(source)
        self.node.peer_lost(source)

    def _send_strangers_away(self) -> None:
        now_ns = self.time.now_ns
        # What they have said may lie unread: this node was late, and not they.
        if self.time.is_late(self._strangers_due.due_ns):
            for link in self.strangers:
                link.until_ns = now_ns + HANDSHAKE_NS
        for link in [link for link in self.strangers if link.until_ns <= now_ns]:
            link.close(f"it did not prove within {HANDSHAKE_NS / 1e9:g} s that it is a peer")
        self._strangers_due.due_ns = min([link.until_ns for link in self.strangers], default=NEVER)

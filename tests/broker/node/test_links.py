"""The links of a node: they follow its group's members, believe only who proves itself, and tell of every loss."""

from __future__ import annotations

from itertools import pairwise

import cbor2
import pytest
import structlog.testing

from broker.node import links as links_module
from broker.node.links import AcceptedLink, PeerLinks
from broker.peers.handshake import NONCE_BYTES, Accepting, Dialling
from broker.peers.protocol import (
    Challenge,
    ClientGone,
    Frame,
    HandshakeFrame,
    Hello,
    encode_frame,
    take_frame,
)
from broker.requests.connection import Connection
from broker.requests.deadline import Time
from broker.requests.line import Line
from broker.state.release import FIRST_FORMAT, THIS_RELEASE
from tests.broker.harness import SECOND, Group

SECRET = "a secret of the group"


def sent(connection: Connection) -> HandshakeFrame:
    """The one frame that was sent."""
    taken = take_frame(b"".join(connection.take()), 4096)
    assert taken is not None
    assert taken[1] == b""
    return taken[0]


class Rig:
    """The links of n0, of a group whose other nodes are the test."""

    def __init__(self) -> None:
        self.group = Group(3)
        self.node = self.group.node("n0")
        self.node.replica.links.clear()
        self.happened: list[object] = []
        self.dialled: list[tuple[int, Line, Connection]] = []
        self.nonces = 0
        self.now_ns = self.group.now_ns + SECOND
        self.node.time = Time(self.now_ns, 0)  # apart from the links that the group has made
        self.node.peer_lost = lambda node: self.happened.append(f"lost {node}")  # type: ignore[method-assign]
        self.node.peer_connected = lambda node: self.happened.append(f"up {node}")  # type: ignore[method-assign]
        self.links = PeerLinks(
            self.node,
            self.node.replica.linked_peers,
            self,
            self.node.time,
            self.node.outgoing,
            self.node.events,
            secret=SECRET,
            nonce=self.nonce,
            dial=lambda line: self.dialled.append((self.now_ns, line, line.connection)),
            deliver=self.deliver,
        )

    def begin(self) -> None:
        self.node.begin(self.now_ns, 0)

    def wake(self) -> None:
        pass

    def nonce(self, size: int) -> bytes:
        self.nonces += 1
        return self.nonces.to_bytes(size, "big")

    def deliver(self, source: str, frame: Frame) -> bool:
        self.happened.append((source, frame))
        return True

    def advance(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND)
        self.begin()
        self.node.time.run_due()

    def connect(self, host: str = "somewhere") -> tuple[AcceptedLink, Connection]:
        """Somebody dials n0."""
        connection = Connection(self.node.outgoing, "stranger")
        return self.links.accept(connection, f"{host}:1"), connection

    def prove(self, link: AcceptedLink, connection: Connection, source: str, behind: bytes = b"") -> None:
        """As the node `source` does it, byte by byte. `behind` comes with the last byte of the proof."""
        newest, oldest = THIS_RELEASE.newest_protocol, THIS_RELEASE.oldest_protocol
        hello = Hello(newest, self.node.group, source, "n0", f"{source}:1", bytes(NONCE_BYTES), oldest)
        dialling = Dialling(hello, SECRET, THIS_RELEASE, FIRST_FORMAT)
        for byte in b"".join(encode_frame(hello)):
            link.received(bytes([byte]))
        challenge = sent(connection)
        proof = b"".join(encode_frame(dialling.answered(challenge)))
        link.received(proof[:-1])
        assert source not in self.links.accepted or self.links.accepted[source] is not link
        link.received(proof[-1:] + behind)

    def accept(self, source: str, behind: bytes = b"") -> tuple[AcceptedLink, Connection]:
        link, connection = self.connect()
        self.prove(link, connection, source, behind)
        assert self.links.accepted[source] is link
        return link, connection


FRAME = b"".join(encode_frame(ClientGone(1)))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_peer_that_has_proved_itself_is_heard(rig: Rig) -> None:
    link, _ = rig.accept("n1", FRAME)
    link.received(FRAME + FRAME[:3])
    link.received(FRAME[3:])
    assert rig.happened == [("n1", ClientGone(1))] * 3
    assert not rig.links.strangers
    link.lost()
    link.lost()
    link.received(FRAME)
    assert rig.happened[3:] == ["lost n1"]
    assert rig.links.accepted == {}


def test_a_stranger_s_hello_with_numbers_that_are_too_long_ends_its_link_alone(rig: Rig) -> None:
    link, connection = rig.connect()
    header = cbor2.dumps(("hello", 1 << 15_000, rig.node.group, "n1", "n0", "", 7))
    rest = header + bytes(NONCE_BYTES)
    link.received((2 + len(rest)).to_bytes(4, "big") + len(header).to_bytes(2, "big") + rest)
    assert connection.aborted
    assert not rig.links.strangers


def test_a_peer_that_sends_nonsense_later_is_lost(rig: Rig) -> None:
    link, connection = rig.accept("n1")
    with structlog.testing.capture_logs() as logs:
        link.received(b"\xff" * 8)
    assert (connection.aborted, rig.happened) == (True, ["lost n1"])
    assert [(entry["event"], entry["peer"]) for entry in logs] == [("link of a peer closed", "n1")]
    link.received(FRAME)
    link.lost()
    assert rig.happened == ["lost n1"]


def test_strangers_are_few_and_the_oldest_goes_first(rig: Rig) -> None:
    """As shipped; the simulator had no limit."""
    links = [rig.connect() for _ in range(links_module.STRANGERS_MAX)]
    assert not any(connection.aborted for _, connection in links)
    with structlog.testing.capture_logs() as logs:
        links.append(rig.connect())
    assert [connection.aborted for _, connection in links] == [True, *[False] * links_module.STRANGERS_MAX]
    assert [entry["detail"] for entry in logs] == ["64 others are there"]
    link, connection = links[1]
    rig.prove(link, connection, "n1")
    _, newest = rig.connect()
    assert not newest.aborted
    assert not links[2][1].aborted, "one that has proved itself is no stranger"


def test_a_crowd_from_elsewhere_does_not_send_a_peer_away(rig: Rig) -> None:
    """However fast it comes, and however many addresses it has: a peer needs two round trips."""
    link, connection = rig.connect("2001:db8:0:2::1")
    crowd = [rig.connect(f"2001:db8:0:1::{k:x}")[1] for k in range(3 * links_module.STRANGERS_MAX)]
    assert sum(each.aborted for each in crowd) == 2 * links_module.STRANGERS_MAX + 1
    rig.prove(link, connection, "n1")
    assert rig.links.accepted["n1"] is link


def test_strangers_that_are_silent_are_sent_away_each_in_its_time(rig: Rig) -> None:
    _, first = rig.connect()
    rig.advance(3)
    _, second = rig.connect()
    peer, connection = rig.accept("n1")
    with structlog.testing.capture_logs() as logs:
        rig.advance(2)
        assert (first.aborted, second.aborted) == (True, False)
        rig.advance(3)
    assert second.aborted
    assert not connection.aborted
    assert [entry["detail"] for entry in logs] == ["it did not prove within 5 s that it is a peer"] * 2
    peer.received(FRAME)
    assert rig.happened == [("n1", ClientGone(1))]


def test_a_late_node_reads_what_strangers_have_said_before_it_sends_them_away(rig: Rig) -> None:
    """A node that had no processor for seconds closed peers whose proofs it had not read, and none ever got in."""
    link, connection = rig.connect()
    _, silent = rig.connect("elsewhere")
    for _ in range(3):
        rig.advance(6)
    rig.prove(link, connection, "n1")
    assert rig.links.accepted["n1"] is link
    rig.advance(4.9)
    assert not silent.aborted
    rig.advance(0.1)
    assert (silent.aborted, connection.aborted) == (True, False), (
        "of whom this node has heard nothing in time"
    )


def test_a_peer_has_its_time_for_each_of_its_frames(rig: Rig) -> None:
    """One that is late itself answers the challenge seconds later."""
    link, connection = rig.connect()
    rig.advance(4)
    newest, oldest = THIS_RELEASE.newest_protocol, THIS_RELEASE.oldest_protocol
    hello = Hello(newest, rig.node.group, "n1", "n0", "n1:1", bytes(NONCE_BYTES), oldest)
    dialling = Dialling(hello, SECRET, THIS_RELEASE, FIRST_FORMAT)
    link.received(b"".join(encode_frame(hello)))
    rig.advance(1)
    rig.advance(3)
    assert not connection.aborted
    link.received(b"".join(encode_frame(dialling.answered(sent(connection)))))
    assert rig.links.accepted["n1"] is link
    slow, _ = rig.connect()
    slow.received(b"".join(encode_frame(hello)))
    rig.advance(1)  # when the other's time would have been over
    rig.advance(4)
    assert slow.connection.aborted, "a hello is no proof"


def test_a_peer_that_dials_again_has_lost_its_earlier_link(rig: Rig) -> None:
    earlier, connection = rig.accept("n1")
    later, _ = rig.accept("n1")
    assert (connection.aborted, rig.happened) == (True, ["lost n1"])
    earlier.received(FRAME)
    earlier.lost()
    assert rig.happened == ["lost n1"], "the end of a link that was replaced is no loss"
    later.received(FRAME)
    assert rig.happened[1:] == [("n1", ClientGone(1))]


def test_who_dials_is_met_and_parted(rig: Rig) -> None:
    link, _ = rig.accept("n7")
    assert rig.node.replica.members.peers["n7"] == "n7:1"
    link.lost()
    assert "n7" not in rig.node.replica.members.peers


def answer(line: Line, secret: str = SECRET) -> None:
    """As the peer at the other end does it."""
    hello = sent(line.connection)
    assert isinstance(hello, Hello)
    accepting = Accepting(
        hello.group, hello.target, secret, lambda size: b"\x07" * size, THIS_RELEASE, FIRST_FORMAT
    )
    challenge = accepting.received(hello)
    assert isinstance(challenge, Challenge)
    line.received(b"".join(encode_frame(challenge)))


def test_a_dialled_link_is_the_nodes_when_both_ends_have_proved_themselves(rig: Rig) -> None:
    rig.links.follow_membership()
    assert [line.name for _, line, _ in rig.dialled] == ["peer n1", "peer n2"]
    _, line, connection = rig.dialled[0]
    line.opened(connection)
    assert rig.node.replica.links == {}
    answer(line)
    assert rig.node.replica.links == {"n1": connection}
    assert rig.happened == ["up n1"]
    line.lost(connection, "closed")
    assert rig.node.replica.links == {}
    assert rig.happened == ["up n1", "lost n1"]


def test_a_peer_that_dials_is_dialled_at_once(rig: Rig) -> None:
    rig.links.follow_membership()
    _, line, connection = rig.dialled[0]
    line.lost(connection, "refused")
    attempts = len(rig.dialled)
    rig.accept("n1")
    assert [(line.name, at - rig.now_ns) for at, line, _ in rig.dialled[attempts:]] == [("peer n1", 0)]
    rig.accept("n1")  # the attempt is under way
    assert len(rig.dialled) == attempts + 1


def test_each_hello_has_a_nonce_of_its_own(rig: Rig) -> None:
    rig.links.follow_membership()
    nonces = []
    for _, line, connection in rig.dialled:
        line.opened(connection)
        hello = sent(connection)
        assert isinstance(hello, Hello)
        nonces.append(hello.nonce)
    assert len({*nonces}) == 2
    assert rig.nonces == 2, "they come from the source that was given"


def test_a_peer_with_another_secret_is_told_once_and_dialled_seldom(rig: Rig) -> None:
    rig.links.follow_membership()
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            _, line, connection = rig.dialled[-1]
            line.opened(connection)
            answer(line, "another secret")
            assert connection.aborted
            count = len(rig.dialled)
            while len(rig.dialled) == count or rig.dialled[-1][1] is not line:
                rig.advance(0.01)
    assert [entry["reason"] for entry in logs] == ["its peer_secret is another than this node's"]
    times = [at for at, dialled, _ in rig.dialled if dialled is line]
    assert {later - earlier for earlier, later in pairwise(times)} == {2 * SECOND}


def test_a_peer_that_answers_on_a_link_that_is_up_is_refused(rig: Rig) -> None:
    """It was rested from for 2 s as shipped, but for 20 ms in the simulator."""
    rig.links.follow_membership()
    _, line, connection = rig.dialled[0]
    line.opened(connection)
    answer(line)
    line.received(b"anything")
    assert (connection.aborted, rig.happened) == (True, ["up n1", "lost n1"])
    count = len([1 for _, dialled, _ in rig.dialled if dialled is line])
    rig.advance(1.9)
    assert len([1 for _, dialled, _ in rig.dialled if dialled is line]) == count
    rig.advance(0.1)
    assert len([1 for _, dialled, _ in rig.dialled if dialled is line]) == count + 1


def test_links_follow_the_members(rig: Rig) -> None:
    rig.links.follow_membership()
    _, line, connection = rig.dialled[0]
    line.opened(connection)
    answer(line)
    rig.node.replica.members.peers = {"n2": "elsewhere:2", "n3": "there:3"}
    rig.links.follow_membership()
    assert (connection.aborted, rig.happened) == (True, ["up n1", "lost n1"])
    assert rig.dialled[1][1].address == "elsewhere:2", (
        "an address that has changed counts for the next attempt"
    )
    assert rig.dialled[-1][1].name == "peer n3"
    rig.advance(10)
    assert [dialled for _, dialled, _ in rig.dialled].count(line) == 1

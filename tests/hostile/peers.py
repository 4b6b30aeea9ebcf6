"""Hostile frames behind the handshake: a peer that knows the secret, and is broken.

It takes the place of one node of three. It sends well-framed messages of every kind whose fields are those of another
moment, beyond what there is, or of nobody; frames that are cut or damaged; clients' requests and responses that nobody
made. The other two must not stop, must close its link where a frame cannot be right, and must go on to serve.

What it does not do is lie within the rules: vote twice in one term, lead a term that it invents, or acknowledge to one
what it denies to another. Raft believes its members in that, and so does Trivet (docs/security.md).
"""

from __future__ import annotations

import itertools
from random import Random
from typing import Any, Final

from broker.node.links import AcceptedLink
from broker.peers.handshake import NONCE_BYTES, Dialling
from broker.peers.protocol import (
    ClientGone,
    Forward,
    Frame,
    Hello,
    NotAMember,
    NotDone,
    RaftFrame,
    Relay,
    encode_frame,
    take_frame,
)
from broker.remoting.codes import RequestCode
from broker.requests.connection import Connection
from raft.configuration import Configuration
from raft.messages import (
    AppendRequest,
    AppendResponse,
    Message,
    RecoveryRequest,
    RecoveryResponse,
    SnapshotRequest,
    SnapshotResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from tests.broker.harness import Client, Group
from tests.hostile.drawing import Drawing

BROKEN: Final = "n2"
_LAST: Final = (1 << 62) - 1
_CODES: Final = tuple(
    code
    for code in map(int, RequestCode)
    if code not in {RequestCode.TRIVET_CHANGE_GROUP, RequestCode.TRIVET_TRANSFER_LEADERSHIP}
)


class BrokenPeer:
    """The node that is broken, and its links to the two others of `group`."""

    def __init__(self, group: Group, random: Random, drawing: Drawing) -> None:
        self._group = group
        self._random = random
        self._drawing = drawing
        self._links: dict[str, tuple[AcceptedLink, Connection]] = {}
        self._votes: dict[int, str] = {}
        """By term, whom it has given its vote: a second one would be a lie."""
        self._opaques = itertools.count(1)
        self.sending = b""
        """The frame that is being sent, or was last."""
        group.kill(BROKEN)

    def send(self, target: str) -> bool:
        """Sends one frame, over a new link if the last one was closed; tells whether this one is closed for it."""
        link, connection = self._linked(target)
        data = b"".join(encode_frame(self._frame(target)))
        damaged = self._random.random() < 0.15
        if damaged:
            data = self._damaged(data)
        self.sending = data
        link.received(data)
        connection.take()
        closed = connection.aborted
        if closed:
            del self._links[target]
        elif damaged:
            self.hang_up(target)  # what it sent may be the beginning of a longer frame
        return closed

    def hang_up(self, target: str) -> None:
        """Closes the link."""
        if target in self._links:
            self._links.pop(target)[0].lost()

    def end(self) -> None:
        """Closes all links."""
        for target in [*self._links]:
            self.hang_up(target)

    def _linked(self, target: str) -> tuple[AcceptedLink, Connection]:
        found = self._links.get(target)
        if found is not None and not found[1].aborted:
            return found
        member, random = self._group.members[target], self._random
        node, links = member.alive, member.process.links
        release = node.replica.release
        hello = Hello(
            release.newest_protocol,
            node.identity,
            BROKEN,
            target,
            random.choice(("127.0.0.1:20002", "", "nowhere", "x" * 3000, "::1", ":0")),
            random.randbytes(NONCE_BYTES),
            release.oldest_protocol,
            random.choice((release.newest_format, release.newest_format + 1, (1 << 31) - 1)),
            random.choice((release.name, "", "\u202e" * 100)),
            random.choice((None, 0, 1, self._group.wall_ms, 1 << 47)),
            random.random() < 0.5,
        )
        handshake = Dialling(hello, links.secret, release, node.replica.metadata.format)
        connection = Connection(member.outgoing, "broken")
        link = links.accept(connection, "10.1.1.1")
        link.received(b"".join(encode_frame(hello)))
        taken = take_frame(b"".join(connection.take()), 1 << 16)
        assert taken is not None, "a challenge"
        link.received(b"".join(encode_frame(handshake.answered(taken[0]))))
        self._links[target] = link, connection
        return link, connection

    # ------------------------------------------------------------------ what it sends

    def _damaged(self, data: bytes) -> bytes:
        random = self._random
        at = random.randrange(len(data))
        flipped = data[at] ^ 1 << random.randrange(8)
        return random.choice(
            (
                data[:at] + bytes((flipped,)) + data[at + 1 :],
                data[:at],
                data[:at] + random.randbytes(4) + data[at:],
                data[:4] + random.randbytes(len(data) - 4),
                b"\xff\xff\xff\xff\x00\x00",
                b"\x00\x00\x00\x02\x00\x00",
                b"\x00\x00\x00\x03\xff\xff\x00",
            )
        )

    def _frame(self, target: str) -> Frame:
        random = self._random
        node = self._group.node(target)
        number = random.choice((0, 1, 2, 3, 1000, _LAST))
        term = random.choice((node.replica.term, node.replica.term, 0, _LAST))
        match random.choice(("raft",) * 12 + ("forward",) * 3 + ("relay", "not done", "gone", "no member")):
            case "forward":
                body = b"".join(
                    self._drawing.request(random.choice(_CODES), next(self._opaques))
                    for _ in range(random.choice((1, 1, 3)))
                )
                body = random.choice((body, body, body, body[: len(body) // 2], b"", random.randbytes(30)))
                return Forward(number, random.choice((bytes(8), random.randbytes(20))), term, body)
            case "relay":
                frame = self._drawing.request(random.choice(_CODES), random.choice((1, 2, 3, 1000)))
                return Relay(number, random.choice((frame, frame[:-1], b"", random.randbytes(50))))
            case "not done":
                return NotDone(number, random.choice((0, 1, 2, -1, 2**31 - 1)), term)
            case "gone":
                return ClientGone(number)
            case "no member":
                return NotAMember(random.choice((-1, 0, node.replica.applied_index, _LAST)))
        message = self._message(target)
        position = random.choice((0, 1, node.replica.store.log.end_position, _LAST))
        attached = b""
        if isinstance(message, AppendRequest) and message.spans:
            attached = random.choice((random.randbytes(200), self._entries(target, message), b"\x00"))
        elif isinstance(message, SnapshotRequest):
            attached = random.choice((random.randbytes(200), b"", b"\xa0", b"\x80", bytes(5000)))
        return RaftFrame(message, position, random.choice((-1, 0, 10, _LAST)), attached)

    def _entries(self, target: str, message: AppendRequest) -> bytes:
        """Entries of the log itself, which may be of another place than the message says."""
        log = self._group.node(target).replica.store.log
        first = max(log.first_index, min(message.prev_index + 1, log.last_index))
        run = log.run(first, log.last_index, 4096)
        return bytes(run.body)

    def _message(self, target: str) -> Message:
        random = self._random
        replica = self._group.node(target).replica
        log, commit = replica.store.log, replica.raft.commit_index

        def index() -> int:
            near = random.choice((log.last_index, commit, log.first_index, 0)) + random.choice(
                (-1, 0, 0, 1, 2)
            )
            return max(-1, random.choice((near, near, near, -1, 1 << 40, _LAST)))

        def voted_for(term: int) -> bool:
            return self._votes.setdefault(term, target) == target

        now = replica.term
        term = random.choice((now, now, now, max(now - 1, 0), 0, now + 1, now + 1000, 1 << 40, _LAST))
        leads = replica.raft.leader is not None
        leading = min(term, now if leads else max(now - 1, 0))  # of a later term it would be believed
        round_number = random.choice((0, 1, 5, 1 << 30, _LAST))
        flag = random.random() < 0.5
        spans = tuple(
            (max(1, random.choice((now, now - 1, 1, now + 1, _LAST))), random.choice((1, 2, 5, 1 << 40)))
            for _ in range(random.choice((0, 0, 1, 1, 2, 3)))
        )
        names = ("n0", "n1", BROKEN, "n9", "", "x" * 300)
        members = random.sample(names, k=random.randrange(1, 5))
        voters = random.randrange(1, len(members) + 1)
        configuration = Configuration(tuple(members[:voters]), tuple(members[voters:]))
        granted = random.random() < 0.5
        kinds: dict[str, Any] = {
            "append": lambda: AppendRequest(
                BROKEN,
                target,
                leading,
                index(),
                random.choice((now, 0, 1, _LAST)),
                spans,
                index(),
                round_number,
                random.choice(((), (), ((index(), configuration),))),
            ),
            "appended": lambda: AppendResponse(
                BROKEN,
                target,
                term,
                flag,
                index(),
                index(),
                round_number,
                index(),
                random.choice((now, 0, _LAST)),
                granted,
            ),
            "vote": lambda: VoteRequest(
                BROKEN, target, term, index(), random.choice((now, 0, _LAST)), flag, granted
            ),
            "voted": lambda: VoteResponse(
                BROKEN, target, term, term, granted and voted_for(term), flag, random.random() < 0.3
            ),
            "snapshot": lambda: SnapshotRequest(
                BROKEN,
                target,
                leading,
                max(0, index()),
                random.choice((now, 0, _LAST)),
                index(),
                configuration,
            ),
            "installed": lambda: SnapshotResponse(BROKEN, target, term, index()),
            "timeout": lambda: TimeoutNow(BROKEN, target, term),
            "recovery": lambda: RecoveryRequest(BROKEN, target, term, random.choice((0, 1, _LAST))),
            "recovered": lambda: RecoveryResponse(
                BROKEN, target, term, random.choice((0, 1, 2)), term > 0, flag, index()
            ),
        }
        message: Message = kinds[random.choice(list(kinds))]()
        if random.random() < 0.05:
            message = message._replace(source=random.choice(names))
        if random.random() < 0.05:
            message = message._replace(target=random.choice(names))
        return message


class HealthyClients:
    """Clients of both other nodes, whose sends and pulls succeed whenever the group leads."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._clients: dict[str, Client] = {}
        self._sent = 0

    def look(self) -> None:
        """Waits for a leader; then a message is stored behind the last one, and is read."""
        group = self._group
        group.run_until(self._is_led, "the two others to serve")
        node = list(group.alive())[self._sent % 2].id
        client = self._clients.get(node)
        if client is None:
            client = self._clients[node] = group.connect(node, name=f"healthy {node}")
        body = b"message %d" % self._sent
        receipt = client.send("H", body)
        assert receipt.queue_offset == self._sent, f"{receipt}, {self._sent} were sent before"
        pulled = client.pull("H", "HG", self._sent)
        assert pulled.bodies == [body], pulled
        self._sent += 1

    def _is_led(self) -> bool:
        replicas = [member.alive.replica for member in self._group.alive()]
        leading = [replica for replica in replicas if replica.serving]
        return len(leading) == 1 and all(
            (replica.leader, replica.term) == (leading[0].node_id, leading[0].term) for replica in replicas
        )

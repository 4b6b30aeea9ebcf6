"""Hostile requests for whole nodes, beside a healthy client: leader, follower, name server and the port of the peers.

    python -m tests.hostile.fuzz --requests 1000000 [--seed 1]     # make fuzz; a failure prints what replays it

No sockets and no clock: nodes are those of the tests' group. What must hold for every seed:

- nothing is raised by a node, and nothing is logged as an exception that nobody foresaw;
- every request is answered once, or its connection is closed with a reason; what asks to wait is answered in time;
- the healthy client's answers are all right, and nothing of its own is changed: its messages, its offset, its topic and
  consumer group;
- the node that led still leads.

A broken peer (`tests/hostile/peers.py`) takes the place of the third node; the two others must go on to serve.

With accounts the stranger has one of its own, signs with it, and names what is the healthy client's; at a guarded name
server it claims to be a broker and the administrator, too. Without them everybody may change everything by request, so
that it names only its own there. At a port of peers with a secret it begins handshakes in a peer's name, and answers
them with what it can know.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import cbor2
import structlog

from broker.access.accounts import parse as parse_accounts
from broker.access.control import AccessControl
from broker.access.frame_signature import FRAME_SIGNATURE, sign_frame
from broker.access.name_server_control import BROKERS, NameServerControl
from broker.client.transport.credentials import Credentials
from broker.name_server import NameServer
from broker.name_server.sessions import NameServerSessions
from broker.node.links import AcceptedLink
from broker.peers.handshake import NONCE_BYTES, Accepting, Dialling
from broker.peers.protocol import (
    Challenge,
    Frame,
    Hello,
    NotAMember,
    Proof,
    RaftFrame,
    encode_frame,
    take_frame,
)
from broker.remoting.bodies import TopicConfig
from broker.remoting.codes import PullSysFlag, RequestCode, ResponseCode, Version
from broker.remoting.command import RemotingCommand, encode, request
from broker.remoting.frame import (
    CLIENT_FIELDS_MAX,
    CLIENT_HEADER_BYTES_MAX,
    NO_OPAQUE,
    BrokenStreamError,
    FrameDecoder,
)
from broker.remoting.name_server_headers import RegisterBrokerHeader
from broker.remoting.register_body import TOPICS_AT_ONCE, RegisterBrokerBody
from broker.remoting.rocketmq_signature import ACCESS_KEY
from broker.requests.client_sessions import ClientSession, SessionLimits
from broker.requests.connection import Connection
from broker.requests.greeting import read_greeting
from broker.settings.tables import NameServerSettings
from raft.messages import VoteRequest
from tests.broker.harness import Group
from tests.broker.lines import Desk, let_in
from tests.hostile.drawing import Drawing, Names, unfolding
from tests.hostile.peers import BrokenPeer, HealthyClients

CODES: Final = (*map(int, RequestCode), 0, -1, 999, 32767, 2**31 - 1)
_CHANGES_MEMBERS: Final = frozenset({RequestCode.TRIVET_CHANGE_GROUP, RequestCode.TRIVET_TRANSFER_LEADERSHIP})
_HAVE_MEMBERS_ASKED: Final = (
    RequestCode.HEART_BEAT,
    RequestCode.HEART_BEAT,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
)
"""By chance alone hardly anybody is in a consumer group whose members are asked something."""

ACCOUNTS: Final = """
[[accounts]]
access_key = "healthy-client"
secret_key = "secret of the healthy"
admin = true

[[accounts]]
access_key = "stranger"
secret_key = "secret of the stranger"
topic_permissions = { F0 = "PUB|SUB", F1 = "PUB", F2 = "SUB" }
group_permissions = { FG0 = "SUB", FG1 = "SUB" }
"""
_REGISTRATION_SECRET: Final = "the brokers' own secret"
HEALTHY: Final = Credentials("healthy-client", "secret of the healthy")
STRANGER: Final = Credentials("stranger", "secret of the stranger")
_LONG_EVERY: Final = 20
"""Of so many requests at a name server one comes while long registrations are under way."""
ROUND_REQUESTS: Final = 3_000
"""After so many a fresh group is made: what strangers may leave behind without accounts is bounded by settings."""


class FindingError(AssertionError):
    """What must hold did not."""


def _client_decoder() -> FrameDecoder:
    """As servers have it for the bytes of clients."""
    return FrameDecoder(header_bytes_max=CLIENT_HEADER_BYTES_MAX, fields_max=CLIENT_FIELDS_MAX)


class Stranger:
    """One connection that sends hostile requests, and sees to it that they are answered."""

    def __init__(self, received: Callable[[bytes], None]) -> None:
        self.send = received
        self.closed = False
        self.unanswered: dict[int, bytes] = {}
        """The frames, by opaque, of the requests that want an answer."""
        self.frames: list[bytes] = []
        self._decoder = FrameDecoder()
        self.questions: list[RemotingCommand] = []
        """What it was asked, and has not answered."""

    def sends(self, opaque: int, frame: bytes) -> None:
        """Sends one request, which `frame` is, or what nobody reads as one: then the connection is closed for it."""
        try:
            (command,) = _client_decoder().feed(frame)
        except BrokenStreamError:
            self.unanswered[opaque] = frame
        else:
            if not command.is_response and not command.is_one_way:
                self.unanswered[command.opaque] = frame
        self.frames.append(frame)
        self.send(frame)

    def receive(self, data: bytes) -> None:
        """Takes answers."""
        for command in self._decoder.feed(data):
            if not command.is_response and not command.is_one_way:
                self.questions.append(command)
            # Whoever sends a header that is too long is told so before its opaque is read, and has to go: till then the
            # request counts as one that has no answer.
            elif (
                command.is_response
                and command.opaque != NO_OPAQUE
                and self.unanswered.pop(command.opaque, None) is None
            ):
                raise FindingError(f"an answer to {command.opaque}, which waits for none: {command}")

    def close(self) -> None:
        """The node has closed the connection."""
        self.closed = True
        self.unanswered.clear()

    lost = close


@dataclass
class Told:
    """What a run tells at its end."""

    requests: int = 0
    closed: int = 0
    healthy_ms: list[float] = field(default_factory=list)
    """The time that each send and pull of the healthy client took, with all that was before it in the queue."""

    def percentile(self, part: float) -> float:
        """The time below which that part of the healthy client's calls took."""
        ordered = sorted(self.healthy_ms)
        return ordered[min(int(part * len(ordered)), len(ordered) - 1)] if ordered else 0.0


class BrokerRound:
    """A group of three, strangers at two of its nodes, and a healthy client."""

    def __init__(self, seed: int, told: Told, *, accounts: bool) -> None:
        self._told = told
        self._random = Random(seed)
        self._accounts = accounts
        others = ("H", "HG", "%RETRY%HG", "n0", "n1", "n2", "healthy-client") if accounts else ()
        self._drawing = Drawing(self._random, Names(others=others), STRANGER.sign if accounts else None)
        self.group = group = Group(3, seed=seed)
        self._leader = group.elect()
        self._healthy = healthy = group.connect(self._leader, name="healthy")
        healthy.create_topic("H", queues=2)
        for topic in ("F0", "F1", "F2"):
            healthy.create_topic(topic, queues=4)
        if accounts:
            for member in group.alive():
                member.alive.access = AccessControl(parse_accounts(ACCOUNTS, "accounts"))
        self._sent: list[bytes] = []
        self._strangers: dict[str, Stranger] = {}
        self._opaques = itertools.count(1)
        self._term = group.node(self._leader).replica.term

    def run(self, count: int) -> None:
        """Sends so many requests, in handfuls, and looks at the healthy client after each of them."""
        random = self._random
        while count > 0:
            handful = min(count, random.choice((1, 5, 20)))
            count -= handful
            began = time.process_time_ns()
            for _ in range(handful):
                self._send_one(random.choice(list(self.group.members)))
            self._look_at_healthy()
            self._told.healthy_ms.append((time.process_time_ns() - began) / 1e6)
            if random.random() < 0.02:
                self.group.advance(random.choice((0.1, 1, 6)))
        self._end()

    def _send_one(self, node_id: str) -> None:
        random = self._random
        stranger = self._strangers.get(node_id)
        if stranger is None or stranger.closed:
            stranger = self._strangers[node_id] = self._connect(node_id)
        if stranger.questions:
            answer = self._drawing.answer(stranger.questions.pop())
            stranger.frames.append(answer)
            stranger.send(answer)
            if stranger.closed:
                return
        code = random.choice(_HAVE_MEMBERS_ASKED if random.random() < 0.12 else CODES)
        if not self._accounts and code in _CHANGES_MEMBERS:
            code = RequestCode.TRIVET_NODE_STATUS
        opaque = next(self._opaques)
        stranger.sends(opaque, self._drawing.request(code, opaque))
        self._told.requests += 1

    def _connect(self, node_id: str) -> Stranger:
        stranger = Stranger(lambda data: session.received(data))  # noqa: PLW0108 - made below
        session: ClientSession = self.group.accept(node_id, stranger, "10.1.1.1", 999)
        return stranger

    def _call(self, code: int, fields: dict[str, Any], body: bytes = b"") -> RemotingCommand:
        texts = {name: str(value) for name, value in fields.items()}
        return self._healthy.call(code, HEALTHY.sign(texts, body) if self._accounts else texts, body)

    def _look_at_healthy(self) -> None:
        body = b"message %d" % len(self._sent)
        queue = {"topic": "H", "queueId": 1}
        sent = self._call(
            RequestCode.SEND_MESSAGE,
            {
                **queue,
                "producerGroup": "HP",
                "defaultTopic": "TBW102",
                "defaultTopicQueueNums": 4,
                "sysFlag": 0,
                "bornTimestamp": 0,
                "flag": 0,
            },
            body,
        )
        expect(sent.code == ResponseCode.SUCCESS, f"a send of the healthy client: {sent}")
        expect(sent.fields["queueOffset"] == str(len(self._sent)), f"somebody else has sent to H: {sent}")
        self._sent.append(body)
        pulled = self._call(
            RequestCode.PULL_MESSAGE,
            {
                **queue,
                "consumerGroup": "HG",
                "queueOffset": len(self._sent) - 1,
                "maxMsgNums": 1,
                "sysFlag": PullSysFlag.SUBSCRIPTION | PullSysFlag.COMMIT_OFFSET,
                "commitOffset": len(self._sent) - 1,
                "suspendTimeoutMillis": 0,
                "subVersion": 0,
                "subscription": "*",
            },
        )
        expect(pulled.code == ResponseCode.SUCCESS, f"a pull of the healthy client: {pulled}")
        expect(body in bytes(pulled.body), "the healthy client pulled another message than its own")
        leader = self.group.node(self._leader).replica
        expect(
            leader.serving and leader.term == self._term, f"the leader leads no more: {self.group.describe()}"
        )

    def _end(self) -> None:
        """What waits has been answered when the longest patience is over."""
        self.group.advance(200)
        for node_id, stranger in self._strangers.items():
            self._told.closed += stranger.closed
            for opaque, frame in stranger.unanswered.items():
                raise FindingError(f"{node_id} never answered {opaque}: {shown(frame)}")
        stored = self._call(
            RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "HG", "topic": "H", "queueId": 1}
        )
        expect(
            stored.fields.get("offset") == str(len(self._sent) - 1), f"the healthy group's offset: {stored}"
        )
        self._look_at_healthy()
        self.group.converge()

    @property
    def last_frames(self) -> list[bytes]:
        """What each stranger has sent last."""
        return [stranger.frames[-1] for stranger in self._strangers.values() if stranger.frames]


class NameServerRound:
    """A name server with a healthy broker's registration, and a stranger. One that is guarded knows accounts and
    brokers: there nothing that the stranger asks for changes anything.
    """

    def __init__(self, seed: int, told: Told, *, guarded: bool = False) -> None:
        self._told = told
        self._random = Random(seed)
        self._guarded = guarded
        names = Names(others=("H", "healthy", "10.0.0.1:10911", "C", "N", "k")) if guarded else Names()
        self._drawing = Drawing(self._random, names, self._claims if guarded else None)
        accounts = parse_accounts(ACCOUNTS, "accounts") if guarded else None
        self._desk = Desk()
        self._sessions = NameServerSessions(
            NameServer(NameServerSettings()),
            self._desk,
            self._desk.time,
            self._desk.outgoing,
            SessionLimits(connections_max=1000, idle_ns=10**18),
            self._random.randbytes,
            NameServerControl(accounts, _REGISTRATION_SECRET) if guarded else NameServerControl(),
        )
        self._healthy, self._broker = self._connect(), self._connect()
        self._nonces: dict[Connection, bytes] = {}
        self._signed = itertools.count(1)
        self._route = b""
        """What the healthy broker's clients were told at first."""
        if guarded:
            put = self._ask(
                self._healthy,
                request(RequestCode.PUT_KV_CONFIG, {"namespace": "N", "key": "k", "value": "v"}),
                HEALTHY,
            )
            expect(put.code == ResponseCode.SUCCESS, f"the administrator's value: {put}")
        self._opaques = itertools.count(1)
        self._stranger: Stranger | None = None

    def _connect(self) -> tuple[ClientSession, Connection]:
        session = let_in(self._sessions.clients, "c")
        return session, session.connection

    def _claims(self, fields: dict[str, str], body: bytes) -> dict[str, str]:
        """Signs as the stranger's own account, or pretends to be somebody else."""
        guessed = Credentials(HEALTHY.access_key, "a guess of the stranger's")
        return self._random.choice(
            (
                STRANGER.sign(fields, body),
                guessed.sign(fields, body),
                {**fields, ACCESS_KEY: BROKERS},
                {**fields, ACCESS_KEY: BROKERS, FRAME_SIGNATURE: "A" * 43 + "="},
                {**STRANGER.sign(fields, body), FRAME_SIGNATURE: "no base64"},
            )
        )

    def run(self, count: int) -> None:
        """Sends so many requests one by one, some while long registrations are under way; all are answered."""
        for number in range(count):
            at_once = self._random.choice((1, 2, 3)) if number % _LONG_EVERY == 0 else 0
            long = [self._begin_long(which) for which in range(at_once)]
            if self._stranger is None or self._stranger.closed:
                session, self._connection = self._connect()
                self._stranger = Stranger(session.received)
            opaque = next(self._opaques)
            frame = self._drawing.request(self._random.choice(CODES), opaque)
            began = time.process_time_ns()
            self._stranger.sends(opaque, frame)
            self._finish()
            self._stranger.receive(b"".join(self._connection.take()))
            for connection in long:
                (answer,) = FrameDecoder().feed(b"".join(connection.take()))
                expect(answer.code == ResponseCode.SUCCESS, f"a long registration: {answer}")
            if self._connection.close_requested:
                self._stranger.close()
                self._told.closed += 1
            expect(not self._stranger.unanswered, f"never answered: {shown(frame)}")
            self._told.requests += 1
            if number % 10 == 0:
                self._look_at_healthy()
                self._told.healthy_ms.append((time.process_time_ns() - began) / 1e6)

    def _begin_long(self, number: int) -> Connection:
        """One of some brokers registers so many topics, compressed or not, that it takes steps; none is made yet.

        A third of them have few bytes, which unfold to one topic's name thousands of times.
        """
        session, connection = self._connect()
        count = self._random.randrange(TOPICS_AT_ONCE, 3 * TOPICS_AT_ONCE)
        body = RegisterBrokerBody()
        body.topics.topic_config_table = {
            f"L{number}": TopicConfig(topic_name=f"L{number}") for number in range(count)
        }
        kind = self._random.choice(("plain", "compressed", "unfolds"))
        header = RegisterBrokerHeader(
            broker_name=f"long{number}",
            broker_address=f"10.0.1.{number}:10911",
            cluster_name="C",
            ha_server_address="",
            broker_id=0,
            compressed=kind != "plain",
        )
        if kind == "unfolds":
            data = unfolding(count)
        else:
            data = body.encode() if kind == "plain" else body.encode_compressed(Version.V5_0_0)
        session.received(
            self._of_broker(connection, session, request(RequestCode.REGISTER_BROKER, header, data))
        )
        return connection

    def _of_broker(self, connection: Connection, session: ClientSession, command: RemotingCommand) -> bytes:
        """The frame of a broker's request, by which it proves to be one."""
        if not self._guarded:
            return encode(command)
        nonce = self._nonces.get(connection)
        if nonce is None:
            session.received(encode(request(RequestCode.TRIVET_GREETING)))
            self._finish()
            (answer,) = FrameDecoder().feed(b"".join(connection.take()))
            found = read_greeting(answer)
            assert found is not None, "it greets"
            nonce = self._nonces[connection] = found[0]
        command.opaque = next(self._signed)
        sign_frame(BROKERS, _REGISTRATION_SECRET, nonce, command)
        return encode(command)

    def _finish(self) -> None:
        while self._sessions.has_more:
            self._sessions.turn()

    def _ask(
        self,
        link: tuple[ClientSession, Connection],
        command: RemotingCommand,
        signs: Credentials | None = None,
    ) -> RemotingCommand:
        session, connection = link
        if signs is not None and self._guarded:
            command.header = signs.sign(command.fields, command.body)
        frame = encode(command)
        if link is self._broker:
            frame = self._of_broker(connection, session, command)
        session.received(frame)
        self._finish()
        (answer,) = FrameDecoder().feed(b"".join(connection.take()))
        return answer

    def _look_at_healthy(self) -> None:
        header = RegisterBrokerHeader(
            broker_name="healthy",
            broker_address="10.0.0.1:10911",
            cluster_name="C",
            ha_server_address="",
            broker_id=0,
        )
        topics = (
            b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"H":{"topicName":"H"}},"dataVersion":{}}}'
        )
        registered = self._ask(self._broker, request(RequestCode.REGISTER_BROKER, header, topics))
        expect(registered.code == ResponseCode.SUCCESS, f"the healthy broker's registration: {registered}")
        route = self._ask(self._healthy, request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "H"}))
        expect(b"10.0.0.1:10911" in bytes(route.body), f"the healthy broker's route: {route}")
        if self._guarded:
            self._route = self._route or bytes(route.body)
            expect(self._route == bytes(route.body), f"it was {self._route!r}: {route}")
            value = self._ask(
                self._healthy, request(RequestCode.GET_KV_CONFIG, {"namespace": "N", "key": "k"}), HEALTHY
            )
            expect(value.fields.get("value") == "v", f"the administrator's value: {value}")

    @property
    def last_frames(self) -> list[bytes]:
        """What the stranger has sent last."""
        return [] if self._stranger is None else self._stranger.frames[-1:]


class PeerPortRound:
    """Strangers at the port of the peers: hellos, proofs and nonsense, of which none may become a link. With a secret
    some of them say all in a peer's name that they can say without it.
    """

    def __init__(self, seed: int, told: Told, *, secret: str = "") -> None:
        self._told = told
        self._random = Random(seed)
        self._secret = secret
        self.group = Group(3, seed=seed, peer_secret=secret)
        self._heard: list[bytes] = []
        """Proofs that were good once, on other links."""
        self._leader = self.group.elect()
        self.last_frames: list[bytes] = []

    def run(self, count: int) -> None:
        """Makes so many connections, some of which stay."""
        random = self._random
        for number in range(count):
            member = self.group.members[self._leader]
            connection = Connection(member.outgoing, "stranger")
            link = member.process.links.accept(connection, "10.1.1.1")
            if self._secret and random.random() < 0.5:
                self._pose_as_peer(link, connection)
            else:
                self.last_frames = [self._frame() for _ in range(random.choice((1, 1, 2)))]
                for frame in self.last_frames:
                    link.received(frame)
            connection.take()
            expect(link not in member.process.links.accepted.values(), "a stranger is taken for a peer")
            if random.random() < 0.7:
                link.lost()
            self._told.requests += 1
            if number % 50 == 0:
                self.group.advance(0.2)
                expect(self.group.leader == self._leader, f"another leads: {self.group.describe()}")
        self.group.advance(10)
        expect(not self.group.members[self._leader].process.links.strangers, "strangers stay")

    def _pose_as_peer(self, link: AcceptedLink, connection: Connection) -> None:
        """Begins a handshake in a peer's name, answers the challenge without the secret, and goes on as a peer does."""
        random, node = self._random, self.group.node(self._leader)
        release = node.replica.release
        peer = random.choice([name for name in self.group.members if name != self._leader])
        nonce = random.randbytes(NONCE_BYTES)
        hello = Hello(
            release.newest_protocol,
            node.identity,
            peer,
            self._leader,
            "127.0.0.1:1",
            nonce,
            release.oldest_protocol,
            release.newest_format,
            release.name,
        )
        self.last_frames = [b"".join(encode_frame(hello))]
        link.received(self.last_frames[0])
        taken = take_frame(b"".join(connection.take()), 1 << 16)
        assert taken is not None, "it is challenged"
        challenge = taken[0]
        assert isinstance(challenge, Challenge)
        good = Dialling(hello, self._secret, release, node.replica.metadata.format).answered(challenge).proof
        other = Accepting(node.identity, self._leader, "a guess", random.randbytes, release, 1)
        guess = other.received(hello)
        assert guess is not None, "a hello is challenged"
        proof = random.choice(
            (
                challenge.proof,
                guess.proof,
                random.randbytes(32),
                b"",
                good[:-1],
                good + b"\0",
                *self._heard[-3:],
            )
        )
        self._heard.append(good)
        term = node.replica.term
        later = (
            RaftFrame(VoteRequest(peer, self._leader, term + 1, 1 << 40, term, False, False)),
            NotAMember(1 << 40),
            Proof(good),
        )
        frames: list[Frame | Proof] = [Proof(proof), random.choice(later)]
        if random.random() < 0.2:
            frames.reverse()
            frames[0] = later[0]
        for frame in frames:
            self.last_frames.append(b"".join(encode_frame(frame)))
            link.received(self.last_frames[-1])

    def _frame(self) -> bytes:
        random = self._random
        node = self.group.node(self._leader)
        release = node.replica.release
        hello: list[Any] = ["hello", release.newest_protocol, node.group, "n1", self._leader, "127.0.0.1:1"]
        hello += [release.oldest_protocol, release.newest_format, release.name, 0, False]
        for _ in range(random.choice((0, 1, 1, 3))):
            hello[random.randrange(len(hello))] = random.choice(
                (None, -1, 2**70, "", "x" * 3000, b"\x00", [], {}, [[[]]] * 50, 1.5, True, "\u202e")
            )
        header: Any = random.choice(
            (hello, hello, hello[:-1], ["proof", random.randbytes(32)], ["challenge", b"", b"", 1], {})
        )
        body = random.choice((random.randbytes(16), b"", bytes(5000)))
        text = cbor2.dumps(header)
        if random.random() < 0.4:
            text = self._nonsense(text)
        length = 2 + len(text) + len(body)
        return length.to_bytes(4, "big") + min(len(text), 65535).to_bytes(2, "big") + text + body

    def _nonsense(self, text: bytes) -> bytes:
        """CBOR that says more than it has: lengths, depths, tags."""
        random = self._random
        at = random.randrange(len(text))
        return random.choice(
            (
                text[:at] + random.randbytes(3) + text[at:],
                b"\x81" * 3000,  # arrays in arrays
                b"\x9b" + b"\xff" * 8,  # an array of 2**64 - 1
                b"\x5b" + b"\x7f" * 8,  # as many bytes
                b"\xbb" + b"\x00\x00\x00\x00\xff\xff\xff\xff",
                bytes([0xC0 | random.randrange(24)]) + text,  # tagged: a date, a bignum, ...
                b"\xd8" + bytes([random.randrange(256)]) + text,
                b"\xc4\x82\x1b" + b"\x7f" * 8 + b"\x01",  # a decimal fraction
                b"\xc5\x82\x1b" + b"\x7f" * 8 + b"\x01",  # 1 * 2 ** 9.2e18
                b"\xc2\x59\x0c\x00" + b"\xff" * 3072,  # a number of 24,576 bits
                b"\xd8\x23\x78\x1e" + b"(a+)+" * 6,  # a regular expression
                b"\xd8\x1c\x81\xd8\x1d\x00",  # an array that holds itself
            )
        )


class BrokenPeerRound:
    """A group of three of which one is broken and knows the secret (`tests.hostile.peers`), and healthy clients."""

    def __init__(self, seed: int, told: Told) -> None:
        self._told = told
        self._random = Random(seed)
        self.group = Group(3, seed=seed)
        self.group.elect()
        client = self.group.connect()
        for topic in ("H", "F0", "F1", "F2"):
            client.create_topic(topic)
        self.group.converge()
        self._healthy = HealthyClients(self.group)
        self._broken = BrokenPeer(self.group, self._random, Drawing(self._random, Names()))

    @property
    def last_frames(self) -> list[bytes]:
        """What the broken peer has sent last."""
        return [self._broken.sending]

    def run(self, count: int) -> None:
        """Sends so many frames, in handfuls, and looks at the healthy clients after each of them."""
        random = self._random
        while count > 0:
            handful = min(count, random.choice((1, 5, 20)))
            count -= handful
            began = time.process_time_ns()
            for _ in range(handful):
                self._told.closed += self._broken.send(random.choice(("n0", "n1")))
                self._told.requests += 1
            self._healthy.look()
            self._told.healthy_ms.append((time.process_time_ns() - began) / 1e6)
            if random.random() < 0.05:
                self._broken.hang_up(random.choice(("n0", "n1")))
                self.group.advance(random.choice((0.1, 1, 6)))
        self._broken.end()
        self._healthy.look()
        self.group.converge()


def expect(holds: bool, otherwise: str) -> None:
    """Raises `FindingError` unless it holds."""
    if not holds:
        raise FindingError(otherwise)


def shown(frame: bytes) -> str:
    """A frame for a failure's text: its beginning as text, and all of it as hex digits, unless it is long."""
    return f"{len(frame)} bytes {frame[:300]!r} hex {frame[:2000].hex()}"


def _told_exceptions(_: Any, name: str, event: MutableMapping[str, Any]) -> Any:
    if name == "exception" or event.get("exc_info"):
        raise FindingError(f"unforeseen: {event}") from sys.exc_info()[1]
    raise structlog.DropEvent


Round = BrokerRound | NameServerRound | PeerPortRound | BrokenPeerRound

ROUNDS: Final[dict[str, Callable[[int, Told], Round]]] = {
    "brokers": lambda seed, told: BrokerRound(seed, told, accounts=False),
    "brokers with accounts": lambda seed, told: BrokerRound(seed, told, accounts=True),
    "name server": NameServerRound,
    "guarded name server": lambda seed, told: NameServerRound(seed, told, guarded=True),
    "port of the peers": PeerPortRound,
    "port of the peers with a secret": lambda seed, told: PeerPortRound(
        seed, told, secret="the peers' own secret"
    ),
    "a broken peer": BrokenPeerRound,
}


def run(kind: str, seed: int, count: int) -> Told:
    """Sends so many requests from one seed. Raises what is found; its notes say how to replay it."""
    told = Told()
    configured = structlog.get_config()
    structlog.configure(processors=[_told_exceptions], cache_logger_on_first_use=False)
    frames: Callable[[], list[bytes]] = list
    try:
        one = ROUNDS[kind](seed, told)
        frames = lambda: one.last_frames  # noqa: E731
        one.run(count)
    except BaseException as error:
        error.add_note(
            f"replay: python -m tests.hostile.fuzz --only {kind!r} --seed {seed} --requests {count}"
        )
        for frame in frames():
            error.add_note(f"sent last: {shown(frame)}")
        raise
    finally:
        structlog.configure(**configured)
    return told


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs rounds of all kinds, in turn, until so many requests have been sent."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=list(ROUNDS))
    options = parser.parse_args(arguments)
    kinds = [options.only] if options.only else list(ROUNDS)
    totals = {kind: Told() for kind in kinds}
    left = options.requests
    share = -(-options.requests // len(kinds))  # few requests go to all kinds, too
    for seed in itertools.count(options.seed):
        for kind in kinds:
            if left > 0:
                told = run(kind, seed, min(left, ROUND_REQUESTS, share))
                total = totals[kind]
                left -= told.requests
                total.requests += told.requests
                total.closed += told.closed
                total.healthy_ms += told.healthy_ms
        if left <= 0:
            break
        if seed % 10 == 0:
            print(f"seed {seed}: {options.requests - left} requests", flush=True)
    for kind, total in totals.items():
        print(
            f"{kind}: {total.requests} requests, {total.closed} connections closed; the healthy client's calls took "
            f"{total.percentile(0.5):.2f} ms, p99 {total.percentile(0.99):.2f}, at most {total.percentile(1):.2f}"
        )


if __name__ == "__main__":
    main()

"""A name server's connections: responses to who reads them, and an end for who falls silent."""

from __future__ import annotations

import itertools
import struct
import zlib

import pytest
import structlog.testing

from broker.access.name_server_control import NameServerControl
from broker.name_server import NameServer, sessions
from broker.name_server.route_table import TOPICS_AT_ONCE, RouteTable
from broker.name_server.server import LONG_REGISTRATION_BYTES
from broker.name_server.sessions import NameServerSessions
from broker.remoting import register_body
from broker.remoting.bodies import DataVersion, TopicConfig, TopicConfigTable, TopicList
from broker.remoting.codes import RequestCode, ResponseCode, Version
from broker.remoting.command import RemotingCommand, encode, request
from broker.remoting.frame import FrameDecoder
from broker.remoting.json_body import decode_body
from broker.remoting.register_body import RegisterBrokerBody
from broker.remoting.route import QueueData, TopicRouteData
from broker.requests import strangers_unread
from broker.requests.budget import Budget
from broker.requests.client_sessions import WORK_AT_ONCE, SessionLimits
from broker.requests.connection import Connection
from broker.requests.deadline import READ_FIRST_NS
from broker.settings.tables import NameServerSettings
from broker.statistics.events import EventKind
from tests.broker.lines import Desk, let_in


class Rig:
    def __init__(self) -> None:
        self.desk = Desk()
        self.core = NameServer(NameServerSettings())
        self.sessions = NameServerSessions(
            self.core,
            self.desk,
            self.desk.time,
            self.desk.outgoing,
            SessionLimits(connections_max=1000, idle_ns=120 * 10**9),
            bytes,
            NameServerControl(),
        )

    def connect(self, name: str = "client") -> Connection:
        return let_in(self.sessions.clients, name).connection

    def pass_time(self, seconds: int) -> None:
        """Lets time pass, with a turn whenever one is due."""
        end_ns = self.desk.now_ns + seconds * 10**9
        while (due_ns := self.sessions.turn()) <= end_ns:
            self.desk.now_ns = due_ns
        self.desk.now_ns = end_ns

    def ask(self, connection: Connection, count: int = 1) -> list[RemotingCommand]:
        """The responses to so many requests that come at once."""
        data = b"".join(encode(request(RequestCode.GET_BROKER_CLUSTER_INFO, opaque=k)) for k in range(count))
        self.sessions.clients.open[connection].received(data)
        return FrameDecoder().feed(b"".join(connection.take()))


def test_requests_are_answered() -> None:
    rig = Rig()
    answers = rig.ask(rig.connect(), 3)
    assert [(answer.code, answer.opaque) for answer in answers] == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize("unread", ["in the outbox", "in the socket"])
def test_who_leaves_much_unread_is_refused(monkeypatch: pytest.MonkeyPatch, unread: str) -> None:
    """As shipped; the simulated name server answered without a limit."""
    rig = Rig()
    connection = rig.connect()
    monkeypatch.setattr(sessions, "UNREAD_BYTES_MAX", 10)
    if unread == "in the socket":
        connection.unsent_bytes = 11
    codes = [answer.code for answer in rig.ask(connection, 3)]
    answered = [ResponseCode.SUCCESS] if unread == "in the outbox" else []
    assert codes == [*answered, *[ResponseCode.SYSTEM_BUSY] * (3 - len(answered))]
    connection.unsent_bytes = 0
    assert [answer.code for answer in rig.ask(connection)] == [ResponseCode.SUCCESS]


def test_who_leaves_much_unread_is_refused_behind_a_long_request_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand lists of all topics, asked for while a broker's topics were forgotten, were answered in one turn, and
    stood in memory all together."""
    rig = Rig()
    broker, leaving, client = rig.connect("broker"), rig.connect("leaving"), rig.connect("client")
    rig.sessions.clients.open[broker].received(registration(1_000, name="lasting"))
    rig.sessions.clients.open[leaving].received(registration(30_000, "10.0.0.2:10911"))
    rig.pass_time(1)
    monkeypatch.setattr(sessions, "UNREAD_BYTES_MAX", 10)
    rig.sessions.clients.open[leaving].lost()
    asked = encode(request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
    rig.sessions.clients.open[client].received(asked * 30)
    while rig.sessions.has_more:
        rig.sessions.turn()
    codes = [answer.code for answer in FrameDecoder().feed(b"".join(client.take()))]
    assert codes == [ResponseCode.SUCCESS, *[ResponseCode.SYSTEM_BUSY] * 29]


def test_what_waits_behind_a_long_request_is_answered_in_turns() -> None:
    rig = Rig()
    client = rig.connect("client")
    asked = encode(request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
    for data in (registration(10_000), asked * 20, asked * 20, asked * 20, asked * 20):
        rig.sessions.clients.open[client].received(data)
    answers: list[int] = []
    while rig.sessions.has_more:
        rig.sessions.turn()
        answers.append(len(FrameDecoder().feed(b"".join(client.take()))))
    assert sum(answers) == 81
    assert max(answers) <= 1 + WORK_AT_ONCE // 8


def test_strangers_that_read_nothing_take_a_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty of them had a name server grow by 200 MB."""
    monkeypatch.setattr(strangers_unread, "STRANGERS_UNREAD_BYTES_MAX", 100_000)
    rig = Rig()
    reads = rig.connect("10.0.0.1:1")
    strangers = [rig.connect(f"10.0.0.2:{number}") for number in range(50)]
    data = encode(request(RequestCode.GET_BROKER_CLUSTER_INFO)) * 50
    for _ in range(3):
        for stranger in strangers:
            rig.sessions.clients.open[stranger].received(data)
            stranger.unsent_bytes += sum(map(len, stranger.take()))
        assert sum(each.unsent_bytes for each in strangers if not each.aborted) <= 100_000 + 50_000
        assert len(rig.ask(reads, 3)) == 3
    assert sum(each.aborted for each in strangers) > 20
    assert not reads.aborted
    assert rig.sessions.events.counts[EventKind.CONNECTION_CLOSED, "leaves responses unread"] > 20


def test_idle_connections_are_closed() -> None:
    """As shipped; the simulated name server closed those of silent brokers only."""
    rig = Rig()
    silent, busy = rig.connect(), rig.connect()
    rig.pass_time(100)
    rig.ask(busy)
    turns = rig.desk.turns_wanted
    rig.pass_time(26)
    assert (silent.aborted, busy.aborted) == (True, False)
    assert rig.desk.turns_wanted > turns
    assert rig.sessions.events.counts == {(EventKind.CONNECTION_CLOSED, "idle"): 1}


def test_who_is_silent_is_judged_when_what_came_meanwhile_is_read() -> None:
    """A name server that stood still closed connections whose requests it had not read, and forgot their brokers."""
    rig = Rig()
    broker, silent = rig.connect("10.0.0.1:1"), rig.connect("10.0.0.2:1")
    for connection in (broker, silent):
        rig.sessions.clients.open[connection].received(registration(1))
    rig.pass_time(3)
    rig.desk.now_ns += 600 * 10**9
    assert rig.sessions.turn() == rig.desk.now_ns + READ_FIRST_NS
    rig.sessions.clients.open[broker].received(registration(1))
    rig.pass_time(1)
    assert (broker.aborted, silent.aborted) == (False, True)


def test_whose_broker_is_silent_is_closed_and_told_once() -> None:
    rig = Rig()
    connection = rig.connect("10.0.0.1:1")
    rig.sessions.clients.open[connection].received(registration(1))
    with structlog.testing.capture_logs() as logs:
        rig.pass_time(126)
    assert connection.aborted
    (told,) = logs
    assert (told["event"], told["reason"], told["source"]) == (
        "connection closed",
        "silent broker",
        "10.0.0.1",
    )


def registration(
    topics: int,
    address: str = "10.0.0.1:10911",
    *,
    compressed: bool = False,
    name: str = "b",
    version: int = 0,
    are_all: bool = False,
) -> bytes:
    table = {f"topic-{number}": TopicConfig(topic_name=f"topic-{number}") for number in range(topics)}
    body = RegisterBrokerBody(topics=TopicConfigTable(DataVersion(counter=version), table))
    return encode(
        request(
            RequestCode.REGISTER_BROKER,
            {
                "brokerName": name,
                "brokerAddr": address,
                "clusterName": "c",
                "haServerAddr": "",
                "brokerId": "0",
                "compressed": str(compressed).lower(),
                "allTopics": str(are_all).lower(),
            },
            body.encode_compressed(Version.V5_0_0) if compressed else body.encode(),
            opaque=topics,
        )
    )


def topic_count(rig: Rig) -> int:
    return rig.core.figures()[2]


@pytest.mark.parametrize("compressed", [False, True])
def test_a_long_registration_is_carried_out_in_steps(compressed: bool) -> None:
    """It took 90 ms for 80,000 topics; others are answered between two steps, the same connection behind the last."""
    rig = Rig()
    broker, other, client = rig.connect("broker"), rig.connect("other"), rig.connect("client")
    take_in = rig.sessions.clients.open[broker].received
    take_in(registration(30_000, compressed=compressed))
    gone = request(
        RequestCode.UNREGISTER_BROKER,
        {"brokerName": "b", "brokerAddr": "10.0.0.1:10911", "clusterName": "c", "brokerId": "0"},
        opaque=1,
    )
    take_in(encode(gone))
    rig.sessions.clients.open[other].received(registration(20_000, "10.0.0.2:10911"))
    steps, seen = 0, set()
    while rig.sessions.has_more:
        assert rig.ask(client)[0].code == 0
        rig.sessions.turn()
        seen.add(topic_count(rig))
        steps += 1
    assert steps > 12
    assert max(b - a for a, b in itertools.pairwise(sorted(seen)) if b <= 30_000) <= TOPICS_AT_ONCE
    answers = FrameDecoder().feed(b"".join(broker.take()))
    assert [(answer.opaque, answer.code) for answer in answers] == [(30_000, 0), (1, 0)]
    assert [answer.code for answer in FrameDecoder().feed(b"".join(other.take()))] == [0]
    assert topic_count(rig) == 20_000, "of the broker that came second"


def test_a_long_registration_ends_with_its_connection() -> None:
    rig = Rig()
    for steps in range(1, 12):
        broker, other = rig.connect("broker"), rig.connect("other")
        for connection in (broker, other):
            rig.sessions.clients.open[connection].received(registration(30_000))
        for _ in range(steps):
            rig.sessions.turn()
        for connection in (other, broker):
            rig.sessions.clients.open[connection].lost()
        while rig.sessions.has_more:
            rig.sessions.turn()
        assert rig.core.figures()[:3] == (0, 0, 0)


def test_brokers_that_are_gone_are_forgotten_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was looked for in all topics there are: three hundred on one connection took a second, in one call."""
    rig = Rig()
    broker, other, client = rig.connect("broker"), rig.connect("other"), rig.connect("client")
    rig.sessions.clients.open[other].received(registration(50, "10.0.0.2:10911", name="lasting"))
    for number in range(60):
        address = f"10.0.1.{number}:10911"
        rig.sessions.clients.open[broker].received(registration(500, address, name=f"b{number}"))
        while rig.sessions.has_more:
            rig.sessions.turn()
    other.take()
    drops = 0
    original = RouteTable._drop_queues

    def drop_queues(self: RouteTable, topic: str, broker_name: str) -> None:
        nonlocal drops
        drops += 1
        original(self, topic, broker_name)

    monkeypatch.setattr(RouteTable, "_drop_queues", drop_queues)
    rig.sessions.clients.open[broker].lost()
    longest, drops = drops, 0
    asked = encode(request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
    rig.sessions.clients.open[client].received(asked)
    assert not client.take(), "it is answered when all is forgotten"
    longest = max(longest, drops)
    steps = 0
    while rig.sessions.has_more:
        assert {queue.broker_name for queue in routes(rig, other, "topic-0")} == {"lasting"}
        drops = 0
        rig.sessions.turn()
        longest = max(longest, drops)
        steps += 1
    assert 0 < longest <= TOPICS_AT_ONCE
    assert steps >= 2
    (answer,) = FrameDecoder().feed(b"".join(client.take()))
    assert len(decode_body(answer.body, TopicList).topics) == 50
    assert rig.core.figures()[:3] == (1, 1, 50)


def routes(rig: Rig, connection: Connection, topic: str) -> list[QueueData]:
    command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    rig.sessions.clients.open[connection].received(encode(command))
    (answer,) = FrameDecoder().feed(b"".join(connection.take()))
    return TopicRouteData.decode(answer.body).queue_datas


def of_one_topic(count: int) -> bytes:
    """A registration that names one topic so many times, in some hundred bytes."""
    body = bytearray()
    for item in (b'{"timestamp":0,"counter":0}', *[b"t 1 1 6 SINGLE_TAG"] * count, b"[]"):
        body += struct.pack(">i", len(item)) + item
        if item.startswith(b"{"):
            body += struct.pack(">i", count)
    return encode(
        request(
            RequestCode.REGISTER_BROKER,
            {
                "brokerName": "small",
                "brokerAddr": "10.0.0.9:1",
                "clusterName": "c",
                "haServerAddr": "",
                "brokerId": "0",
                "compressed": "true",
            },
            zlib.compress(bytes(body + bytes(4)), 9),
        )
    )


def test_few_bytes_that_unfold_to_many_topics_wait_for_their_turn() -> None:
    """They were taken for short, and ended a name server that was in the middle of another registration."""
    rig = Rig()
    broker, other = rig.connect("broker"), rig.connect("other")
    frame = of_one_topic(2 * register_body.TOPICS_AT_ONCE)
    assert len(frame) < LONG_REGISTRATION_BYTES
    rig.sessions.clients.open[broker].received(registration(30_000))
    rig.sessions.clients.open[other].received(frame)
    assert not other.take()
    while rig.sessions.has_more:
        rig.sessions.turn()
    for connection in (broker, other):
        assert [answer.code for answer in FrameDecoder().feed(b"".join(connection.take()))] == [0]
    assert rig.core.figures()[:3] == (2, 2, 30_001)


def test_a_short_registration_that_removes_many_topics_waits_for_its_turn() -> None:
    """It was taken for short, and ended a name server that was in the middle of another registration."""
    rig = Rig()
    broker, other = rig.connect("broker"), rig.connect("other")
    rig.sessions.clients.open[broker].received(registration(30_000, version=1, are_all=True))
    rig.pass_time(1)
    rig.sessions.clients.open[other].received(registration(20_000, "10.0.0.2:10911", name="other"))
    rig.sessions.clients.open[broker].received(registration(1, version=2, are_all=True))
    while rig.sessions.has_more:
        rig.sessions.turn()
    for connection in (broker, other):
        assert {answer.code for answer in FrameDecoder().feed(b"".join(connection.take()))} == {0}
    assert rig.core.figures()[:3] == (2, 2, 20_000)
    assert rig.core.routes.topic_count("b") == 1


def test_long_registrations_that_wait_are_bounded() -> None:
    rig = Rig()
    rig.sessions._budget = Budget("registrations of other brokers", 1)
    connections = [rig.connect(f"broker{number}") for number in range(3)]
    for number, connection in enumerate(connections):
        rig.sessions.clients.open[connection].received(registration(30_000, f"10.0.0.{number}:1"))
    (answer,) = FrameDecoder().feed(b"".join(connections[2].take()))
    assert answer.code == ResponseCode.SYSTEM_BUSY


def test_long_registrations_that_wait_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.name_server.sessions.BYTES_BEHIND_MAX", 10_000)
    rig = Rig()
    connections = [rig.connect(f"broker{number}") for number in range(2)]
    for number, connection in enumerate(connections):
        rig.sessions.clients.open[connection].received(registration(30_000, f"10.0.0.{number}:1"))
    (answer,) = FrameDecoder().feed(b"".join(connections[1].take()))
    assert answer.code == ResponseCode.SYSTEM_BUSY


def test_long_registrations_of_one_address_leave_room_to_those_of_another() -> None:
    """Brokers, and whoever may be taken for one, could keep all other brokers from registering."""
    rig = Rig()
    rig.sessions._budget = Budget("registrations of other brokers", 4)
    crowd = [rig.connect(f"10.0.0.1:{number}") for number in range(5)]
    other = rig.connect("10.0.0.2:1")
    for number, connection in enumerate((*crowd, other)):
        rig.sessions.clients.open[connection].received(registration(10_000, f"10.0.0.{number}:1"))
    while rig.sessions.has_more:
        rig.sessions.turn()
    (answer,) = FrameDecoder().feed(b"".join(other.take()))
    assert answer.code == ResponseCode.SUCCESS
    codes = [FrameDecoder().feed(b"".join(connection.take()))[0].code for connection in crowd]
    assert codes == 3 * [ResponseCode.SUCCESS] + 2 * [ResponseCode.SYSTEM_BUSY]

"""A name server that knows its brokers and accounts: what strangers, brokers and accounts may do."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
import structlog.testing

from broker.access.accounts import parse
from broker.access.frame_signature import sign_frame
from broker.access.name_server_control import BROKERS, NameServerControl
from broker.access.name_server_needs import NAME_SERVER_NEEDS, Need
from broker.client.transport.credentials import Credentials, Signer
from broker.name_server import NameServer
from broker.name_server.sessions import NameServerSessions
from broker.remoting.bodies import DataVersion, TopicConfig, TopicConfigTable, TopicList
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, encode, request
from broker.remoting.frame import FrameDecoder
from broker.remoting.json_body import decode_body, encode_body
from broker.remoting.name_server_headers import RegisterBrokerHeader
from broker.remoting.register_body import RegisterBrokerBody
from broker.remoting.route import QueueData, TopicRouteData
from broker.requests.client_sessions import SessionLimits
from broker.requests.greeting import read_greeting
from broker.settings.tables import NameServerSettings
from broker.statistics.events import TOLD_EVERY_NS, EventKind
from log.formats.record import pack_host
from tests.broker.lines import Desk, let_in
from tests.broker.name_server_end import answered

SECRET = "the brokers' own secret"
ACCOUNTS = """
white_remote_addresses = ["10.9.0.1"]

[[accounts]]
access_key = "operator"
secret_key = "operator-secret"
admin = true

[[accounts]]
access_key = "service"
secret_key = "service-secret"
topic_permissions = { orders = "PUB|SUB" }
"""
OPERATOR = Credentials("operator", "operator-secret")
SERVICE = Credentials("service", "service-secret")
LEADER, INTRUDER = "10.0.0.1:10911", "6.6.6.6:10911"


class Rig:
    """A name server, at which the leader of a group is registered."""

    def __init__(self, control: NameServerControl) -> None:
        self.desk = Desk()
        self.core = NameServer(NameServerSettings())
        nonces = (number.to_bytes(16, "big") for number in range(1000))
        self.sessions = NameServerSessions(
            self.core,
            self.desk,
            self.desk.time,
            self.desk.outgoing,
            SessionLimits(connections_max=1000, idle_ns=120 * 10**9),
            lambda _: next(nonces),
            control,
        )
        self.leader = Caller(self)
        assert self.leader.greeted().register(LEADER).code == ResponseCode.SUCCESS

    def route(self) -> dict[int, str]:
        """The addresses to which clients are sent."""
        answer = answered(
            self.core, "any", request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}), 0
        )
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS, "the topic is served"
        route = TopicRouteData.decode(answer.body)
        assert route.queue_datas[0].perm == 6
        return route.broker_datas[0].broker_addresses

    def refused(self, reason: str) -> int:
        return self.sessions.events.counts.get((EventKind.REQUEST_REFUSED, reason), 0)


class Caller:
    """Somebody with a connection to it; signs by what it was given."""

    def __init__(self, rig: Rig, address: str = "192.168.0.1") -> None:
        self.session = let_in(rig.sessions.clients, f"{address}:5000", pack_host(address, 5000))
        self.connection = self.session.connection
        self.opaque = 0
        self.secret: str | None = None
        self.nonce = b""
        self.credentials: Credentials | None = None
        self.signer: Signer | None = None

    def greeted(self, secret: str = SECRET) -> Caller:
        """Signs as a broker."""
        found = read_greeting(self.send(request(RequestCode.TRIVET_GREETING)))
        assert found is not None
        self.secret, self.nonce = secret, found[0]
        return self

    def introduced(self, credentials: Credentials) -> Caller:
        """Signs as an account, whole frames."""
        self.signer = Signer(credentials, self.send(request(RequestCode.TRIVET_GREETING)))
        return self

    def send(self, command: RemotingCommand) -> RemotingCommand:
        self.session.received(encode(command))
        (answer,) = FrameDecoder().feed(b"".join(self.connection.take()))
        return answer

    def call(
        self, code: int, fields: Mapping[str, str] | msgspec.Struct | None = None, body: bytes = b""
    ) -> RemotingCommand:
        return self.send(self.made(code, fields, body))

    def made(
        self, code: int, fields: Mapping[str, str] | msgspec.Struct | None = None, body: bytes = b""
    ) -> RemotingCommand:
        self.opaque += 1
        command = request(code, fields, body, opaque=self.opaque)
        if self.secret is not None:
            sign_frame(BROKERS, self.secret, self.nonce, command)
        elif self.signer is not None:
            self.signer.sign(command)
        elif self.credentials is not None:
            command.header = self.credentials.sign(command.fields, body)
        return command

    def register(self, address: str, broker_id: int = 0, state_version: int = 1) -> RemotingCommand:
        return self.call(RequestCode.REGISTER_BROKER, *registration(address, broker_id, state_version))


def registration(
    address: str, broker_id: int = 0, state_version: int = 1
) -> tuple[RegisterBrokerHeader, bytes]:
    topic = TopicConfig(topic_name="orders", read_queue_nums=4, write_queue_nums=4, perm=6)
    table = TopicConfigTable(DataVersion(1, 0, state_version), {"orders": topic})
    header = RegisterBrokerHeader(
        broker_name="b",
        broker_address=address,
        cluster_name="c",
        ha_server_address=address,
        broker_id=broker_id,
    )
    return header, RegisterBrokerBody(topics=table).encode()


IDENTITY = {"brokerName": "b", "brokerAddr": LEADER, "clusterName": "c", "brokerId": "0"}
QUEUES = encode_body(
    TopicRouteData(
        queue_datas=[
            QueueData(broker_name="b", read_queue_nums=4, write_queue_nums=4, perm=4, topic_sys_flag=0)
        ]
    )
)

ATTACKS: list[tuple[int, Mapping[str, str] | msgspec.Struct, bytes]] = [
    (103, *registration(INTRUDER, 0, 1 << 60)),  # takes the leader's place in every route
    (104, IDENTITY, b""),  # the leader is not there any more
    (904, {"clusterName": "c", "brokerAddr": LEADER, "brokerName": "b"}, b""),
    (322, IDENTITY, encode_body(DataVersion(1, 0, 1))),
    (217, {"topic": "orders"}, QUEUES),  # makes it unwritable
    (205, {"brokerName": "b"}, b""),
    (327, {"brokerName": "b"}, b""),
    (216, {"topic": "orders"}, b""),
    (100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "b:1"}, b""),
    (102, {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"}, b""),
    (318, {}, b"orderMessageEnable=true"),
    (319, {}, b""),
]
READS: list[tuple[int, Mapping[str, str] | msgspec.Struct, bytes]] = [
    (101, {"namespace": "n", "key": "k"}, b""),
    (219, {"namespace": "n"}, b""),
    (106, {}, b""),
    (901, {"clusterName": "c", "brokerName": "b"}, b""),
    (206, {}, b""),
    (224, {"cluster": "c"}, b""),
    (304, {}, b""),
    (311, {}, b""),
    (312, {}, b""),
    (313, {}, b""),
]
BROKERS_OWN = (103, 104, 904, 322)


def guarded(**more: bool) -> NameServerControl:
    return NameServerControl(parse(ACCOUNTS, "accounts.toml"), SECRET, **more)


def test_every_request_is_tried_here() -> None:
    assert {code for code, *_ in [*ATTACKS, *READS]} | {105} == NAME_SERVER_NEEDS.keys()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: str(attack[0]))
@pytest.mark.parametrize("who", ["stranger", "account", "wrong secret", "wrong key", "other name"])
def test_who_is_no_broker_and_no_administrator_changes_nothing(
    attack: tuple[int, Mapping[str, str], bytes], who: str
) -> None:
    rig = Rig(guarded())
    caller = Caller(rig)
    if who == "account":
        caller.introduced(SERVICE)
    elif who == "wrong secret":
        caller.greeted("the intruder's own guess")
    elif who == "wrong key":
        caller.introduced(Credentials("operator", "guessed-secret"))
    elif who == "other name":
        caller.introduced(Credentials("brokers", SECRET))
    with structlog.testing.capture_logs() as logs:
        answer = caller.call(*attack)
    assert answer.code == ResponseCode.NO_PERMISSION, answer.remark
    assert rig.route() == {0: LEADER}
    assert rig.core._key_values.namespace("ORDER_TOPIC_CONFIG") is None
    (line,) = logs
    assert (line["event"], line["source"], line["code"]) == ("request refused", "192.168.0.1", attack[0])
    assert rig.sessions.events.count(EventKind.REQUEST_REFUSED) == 1


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: str(attack[0]))
def test_what_a_broker_may_do(attack: tuple[int, Mapping[str, str], bytes]) -> None:
    rig = Rig(guarded())
    answer = Caller(rig).greeted().call(*attack)
    assert (answer.code == ResponseCode.SUCCESS) == (attack[0] in BROKERS_OWN), answer.remark


@pytest.mark.parametrize("asked", [*ATTACKS, *READS], ids=lambda asked: str(asked[0]))
@pytest.mark.parametrize("whole", [True, False])
def test_an_administrator_may_do_all(asked: tuple[int, Mapping[str, str], bytes], whole: bool) -> None:
    """mqadmin signs by RocketMQ's scheme."""
    rig = Rig(guarded())
    caller = Caller(rig)
    caller.credentials = OPERATOR
    if whole:
        caller.introduced(OPERATOR)
    assert caller.call(*asked).code in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)


@pytest.mark.parametrize("read", READS, ids=lambda read: str(read[0]))
def test_who_is_known_may_ask(read: tuple[int, Mapping[str, str], bytes]) -> None:
    rig = Rig(guarded())
    known = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
    assert Caller(rig).call(*read).code == ResponseCode.NO_PERMISSION
    assert Caller(rig).introduced(SERVICE).call(*read).code in known
    assert Caller(rig).greeted().call(*read).code in known
    assert Caller(rig, "10.9.0.1").call(*read).code in known


def test_lists_leave_out_what_an_account_may_not_see() -> None:
    rig = Rig(guarded())
    operator = Caller(rig).introduced(OPERATOR)
    operator.call(217, {"topic": "payroll"}, QUEUES)

    def topics(caller: Caller) -> list[str]:
        return decode_body(caller.call(206).body, TopicList).topics

    assert topics(operator) == ["orders", "payroll"]
    assert topics(Caller(rig).introduced(SERVICE)) == ["orders"]


@pytest.mark.parametrize("open_routes", [True, False])
def test_routes_are_everyone_s_unless_they_are_not(open_routes: bool) -> None:
    rig = Rig(guarded(open_routes=open_routes))
    code = Caller(rig).call(105, {"topic": "orders"}).code
    assert code == (ResponseCode.SUCCESS if open_routes else ResponseCode.NO_PERMISSION)
    assert Caller(rig).introduced(SERVICE).call(105, {"topic": "orders"}).code == ResponseCode.SUCCESS


def test_a_secret_alone_guards_the_registrations() -> None:
    rig = Rig(NameServerControl(registration_secret=SECRET))
    stranger = Caller(rig)
    for attack in ATTACKS:
        if attack[0] in BROKERS_OWN:
            assert stranger.call(*attack).code == ResponseCode.NO_PERMISSION
    assert rig.route() == {0: LEADER}
    assert stranger.call(205, {"brokerName": "b"}).code == ResponseCode.SUCCESS


def test_without_settings_everything_is_everyone_s() -> None:
    """RocketMQ's brokers register as they always did."""
    rig = Rig(NameServerControl())
    assert Caller(rig).register(INTRUDER, state_version=2).code == ResponseCode.SUCCESS
    assert rig.route() == {0: INTRUDER}


def test_rocketmq_s_brokers_register_from_addresses_that_are_trusted() -> None:
    rig = Rig(guarded())
    assert Caller(rig, "10.9.0.1").register("10.9.0.1:10911", 1).code == ResponseCode.SUCCESS
    assert Caller(rig, "10.9.0.2").register("10.9.0.2:10911", 2).code == ResponseCode.NO_PERMISSION


def test_who_has_shown_something_is_no_stranger() -> None:
    """Their frames and answers count otherwise; a route is everyone's, and shows nothing."""
    rig = Rig(guarded())
    stranger, account, trusted = Caller(rig), Caller(rig), Caller(rig, "10.9.0.1")
    assert rig.leader.connection.is_proven
    account.introduced(SERVICE)
    for caller in (stranger, account, trusted):
        caller.call(105, {"topic": "orders"})
        caller.call(206)
    assert [caller.connection.is_proven for caller in (stranger, account, trusted)] == [False, True, True]


def test_a_broker_s_registration_cannot_be_sent_again() -> None:
    """Not on its own connection, and not on another: the old leader's word would come back."""
    rig = Rig(guarded())
    old = rig.leader.made(103, *registration(LEADER, state_version=5))
    assert rig.leader.send(old).code == ResponseCode.SUCCESS
    assert rig.leader.send(old).code == ResponseCode.NO_PERMISSION
    for caller in (Caller(rig), Caller(rig).greeted()):
        assert caller.send(old).code == ResponseCode.NO_PERMISSION
    assert (rig.refused("repeated"), rig.refused("bad signature")) == (1, 2)


def test_a_broker_s_registration_is_taken_as_it_was_made() -> None:
    rig = Rig(guarded())
    header, body = registration(LEADER, state_version=5)
    for change in ("body", "field", "code"):
        command = rig.leader.made(103, header, body)
        if change == "body":
            command.body = registration(INTRUDER, state_version=6)[1]
        elif change == "field":
            command.header = {**command.fields, "brokerAddr": INTRUDER}
        else:
            command.code = 104
        assert rig.leader.send(command).code == ResponseCode.NO_PERMISSION
    assert rig.route() == {0: LEADER}


def test_a_flood_of_one_stranger_hides_no_other_in_the_log() -> None:
    rig = Rig(guarded())
    stranger, other = Caller(rig), Caller(rig, "192.168.0.2")
    with structlog.testing.capture_logs() as logs:
        for _ in range(100):
            stranger.register(INTRUDER)
        other.register(INTRUDER)
        rig.desk.now_ns += TOLD_EVERY_NS  # without a turn, which would close strangers
        stranger.register(INTRUDER)
    told = [(line["source"], line.get("not_told")) for line in logs]
    assert told == [("192.168.0.1", None), ("192.168.0.2", None), ("192.168.0.1", 99)]
    assert rig.refused("no broker") == 102


def test_a_row_for_each_need() -> None:
    assert set(NAME_SERVER_NEEDS.values()) == set(Need)

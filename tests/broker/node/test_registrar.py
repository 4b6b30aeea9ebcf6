"""What a node says to a name server, and when."""

from __future__ import annotations

import msgspec
import pytest
import structlog.testing

from broker.access.identification import check_frame
from broker.access.name_server_control import BROKERS
from broker.node.registrar import PATIENCE, Registrar
from broker.remoting.codes import RequestCode
from broker.remoting.command import FRAME_SIZE_MAX, RemotingCommand, encode, request, response
from broker.remoting.frame import FrameDecoder
from broker.remoting.name_server_headers import RegisterBrokerHeader
from broker.remoting.route import BrokerData, ClusterInfo
from broker.requests.connection import Connection, Outgoing
from broker.requests.greeting import greet
from tests.broker.lines import Desk

REGISTER, UNREGISTER, NOTIFY = 103, 104, 905


class Rig:
    """A registrar, and the name server's end of its connection."""

    secret = ""

    def __init__(self) -> None:
        self.desk = Desk()
        self.body: bytes | None = b"topics"
        """What there is to say; None for nothing."""
        self.header: RegisterBrokerHeader | None = None
        self.registrar = Registrar(
            "ns:9876",
            lambda: None if self.body is None else request(REGISTER, self.header, self.body),
            lambda: request(UNREGISTER),
            30 * 10**9,
            secret=self.secret,
            surroundings=self.desk,
            time=self.desk.time,
            outgoing=self.desk.outgoing,
            dial=self.desk.dial,
        )
        self.line = self.registrar.line
        self.line.start()

    @property
    def state(self) -> str:
        return self.line.state.value

    def open(self) -> None:
        self.line.opened(self.desk.connection)

    def said(self) -> list[RemotingCommand]:
        return FrameDecoder().feed(self.desk.take())

    def answer(self, command: RemotingCommand, code: int = 0) -> None:
        self.line.received(encode(response(command, code)))

    def registered(self) -> None:
        self.open()
        (command,) = self.said()
        self.answer(command)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_it_registers_at_once_and_at_intervals(rig: Rig) -> None:
    rig.open()
    (command,) = rig.said()
    assert (command.code, command.body) == (REGISTER, b"topics")
    assert rig.state == "awaits"
    rig.answer(command)
    assert rig.state == "up"
    rig.desk.advance(29.9)
    assert rig.said() == []
    rig.desk.advance(0.2)
    (again,) = rig.said()
    assert again.opaque != command.opaque


def test_what_is_new_is_said_at_once(rig: Rig) -> None:
    rig.registered()
    rig.body = b"more topics"
    rig.registrar.changed()
    (command,) = rig.said()
    assert command.body == b"more topics"


def test_what_is_new_while_a_registration_is_under_way_is_said_behind_its_response(rig: Rig) -> None:
    rig.open()
    (first,) = rig.said()
    rig.body = b"more topics"
    rig.registrar.changed()
    rig.registrar.changed()
    assert rig.said() == []
    rig.answer(first)
    (second,) = rig.said()
    assert second.body == b"more topics"
    rig.answer(second)
    assert rig.said() == []


def test_a_node_without_a_role_waits_for_one(rig: Rig) -> None:
    rig.body = None
    rig.open()
    assert (rig.said(), rig.state) == ([], "up")
    rig.body = b"topics"
    rig.registrar.changed()
    assert [command.body for command in rig.said()] == [b"topics"]


def test_a_node_without_a_role_looks_again_after_the_interval(rig: Rig) -> None:
    """As shipped; the simulated registrar waited for a change for ever."""
    rig.body = None
    rig.open()
    rig.body = b"topics"
    rig.desk.advance(30)
    assert [command.body for command in rig.said()] == [b"topics"]


def test_the_longest_rest_is_a_second(rig: Rig) -> None:
    """As shipped; the simulated registrar rested for up to five."""
    for _ in range(7):
        rig.line.lost(rig.desk.connection, "refused")
        count = len(rig.desk.dialled)
        while len(rig.desk.dialled) == count:
            rig.desk.advance(0.01)
    assert rig.desk.rests_ms() == [100, 200, 400, 800, 1000, 1000, 1000]
    assert PATIENCE.rest_ns_max == 10**9


def test_a_connection_that_is_lost_is_made_anew_and_used(rig: Rig) -> None:
    rig.registered()
    rig.line.lost(rig.desk.connection, "closed")
    rig.desk.advance(0.1)
    rig.registered()
    rig.line.received(b"\xff" * 8)  # no frame at all
    assert rig.desk.connection.aborted
    rig.desk.advance(0.2)
    rig.registered()
    assert len(rig.desk.dialled) == 3


def test_a_name_server_that_does_not_answer_is_left(rig: Rig) -> None:
    rig.open()
    rig.desk.advance(5.9)
    assert rig.state == "awaits"
    rig.desk.advance(0.1)
    assert rig.state == "rests"


def test_only_the_response_to_the_newest_registration_counts(rig: Rig) -> None:
    """Name servers of RocketMQ 5 send requests (NOTIFY_MIN_BROKER_ID_CHANGE); either side took one for a response."""
    rig.open()
    (command,) = rig.said()
    with structlog.testing.capture_logs() as logs:
        rig.line.received(encode(request(NOTIFY, opaque=command.opaque)))
        rig.line.received(encode(response(request(REGISTER, opaque=command.opaque + 7), 0)))
        assert rig.state == "awaits"
        rig.answer(command)
    assert rig.state == "up"
    assert logs == []


def test_a_refusal_is_told(rig: Rig) -> None:
    """As shipped; the simulated registrar did not look at the code."""
    rig.open()
    with structlog.testing.capture_logs() as logs:
        rig.answer(rig.said()[0], 1)
    assert [(entry["event"], entry["code"]) for entry in logs] == [("registration refused", 1)]
    assert rig.state == "up"


def test_a_registration_that_no_frame_can_carry_ends_nothing(rig: Rig) -> None:
    """As shipped; in the simulator it would have ended the node."""
    rig.body = bytes(FRAME_SIZE_MAX)
    with structlog.testing.capture_logs() as logs:
        rig.open()
        assert rig.desk.connection.aborted
        rig.desk.advance(0.1)
        rig.open()
    assert len(logs) == 1
    assert "cannot be sent" in logs[0]["reason"]
    rig.body = b"topics"
    rig.desk.advance(0.3)
    rig.registered()
    assert rig.state == "up"


def test_a_name_server_that_cannot_be_reached_is_told_once(rig: Rig) -> None:
    with structlog.testing.capture_logs() as logs:
        for reason in ["refused"] * 3 + ["no such host"] * 2:
            rig.line.lost(rig.desk.connection, reason)
            rig.desk.advance(1)
        rig.desk.advance(20)
    assert [entry["reason"] for entry in logs] == ["refused", "no such host", "no connection within 6 s"]
    assert {entry["event"] for entry in logs} == {"no connection to a name server"}
    assert {entry["address"] for entry in logs} == {"ns:9876"}


def test_the_goodbye_is_the_last_word(rig: Rig) -> None:
    """Shipped, a registrar whose node changed its role behind the goodbye registered it again."""
    rig.open()
    (first,) = rig.said()
    rig.registrar.say_goodbye()
    assert [command.code for command in rig.said()] == [UNREGISTER], "even while a response is awaited"
    assert rig.desk.connection.close_requested
    rig.registrar.changed()
    rig.answer(first)
    rig.line.lost(rig.desk.connection, "closed here")
    rig.desk.advance(100)
    assert rig.said() == []
    assert (len(rig.desk.dialled), rig.line.is_closed) == (1, True)


SECRET = "a secret of the brokers"


class SecretRig(Rig):
    """A registrar that knows a secret, and a name server that greets."""

    secret = SECRET

    def greet(self) -> Connection:
        self.open()
        asked, probe = self.said()
        assert (asked.code, probe.code) == (RequestCode.TRIVET_GREETING, RequestCode.GET_ROUTEINFO_BY_TOPIC)
        far = Connection(Outgoing(), "broker")
        self.line.received(encode(response(asked, 0, None, greet(far, bytes))))
        return far


def test_with_a_secret_it_signs_what_it_says() -> None:
    rig = SecretRig()
    far = rig.greet()
    (command,) = rig.said()
    assert command.code == REGISTER
    check_frame(BROKERS, SECRET, command, far.greeting)
    rig.answer(command)
    rig.registrar.say_goodbye()
    (command,) = rig.said()
    assert command.code == UNREGISTER
    check_frame(BROKERS, SECRET, command, far.greeting)


def test_what_is_new_during_the_greeting_is_said_behind_it() -> None:
    rig = SecretRig()
    rig.open()
    asked, _ = rig.said()
    rig.body = b"more topics"
    rig.registrar.changed()
    assert rig.said() == []
    rig.line.received(encode(response(asked, 0, None, greet(Connection(Outgoing(), "broker"), bytes))))
    (command,) = rig.said()
    assert command.body == b"more topics"
    rig.answer(command)
    assert rig.said() == []


def test_name_servers_without_greetings_are_told_all_the_same() -> None:
    """RocketMQ's answer with code 3."""
    rig = SecretRig()
    rig.open()
    asked, _ = rig.said()
    rig.answer(asked, 3)
    (command,) = rig.said()
    assert (command.code, dict(command.fields)) == (REGISTER, {})


def test_a_name_server_that_cannot_greet_now_is_tried_again() -> None:
    rig = SecretRig()
    rig.open()
    asked, _ = rig.said()
    rig.answer(asked, 2)
    assert rig.state == "rests"
    rig.desk.advance(2)
    assert len(rig.desk.dialled) == 2


def test_a_greeting_that_cannot_be_read_ends_its_connection_alone() -> None:
    rig = SecretRig()
    rig.open()
    asked, _ = rig.said()
    greeting = response(asked, 0)
    greeting.header = msgspec.Raw(b'["no fields"]')
    rig.line.received(encode(greeting))
    assert rig.state == "rests"
    rig.desk.advance(2)
    assert len(rig.desk.dialled) == 2


def test_it_says_no_goodbye_before_it_is_greeted() -> None:
    rig = SecretRig()
    rig.open()
    rig.said()
    rig.registrar.say_goodbye()
    assert rig.said() == []


MASTERS = 106


def header(broker_id: int) -> RegisterBrokerHeader:
    return RegisterBrokerHeader("broker-a", "n0:1", "c", "n0:2", broker_id)


def masters(rig: Rig, command: RemotingCommand, **addresses: str) -> None:
    """The name server's answer to who is the master."""
    table = {
        name.replace("_", "-"): BrokerData({0: address}, name, "c") for name, address in addresses.items()
    }
    answer = response(command, 0)
    answer.body = ClusterInfo(table, {"c": list(table)}).encode()
    rig.line.received(encode(answer))


def led() -> Rig:
    """A node that is registered as the master, and follows another one now."""
    rig = Rig()
    rig.header = header(0)
    rig.registered()
    assert rig.registrar.is_master
    rig.header = header(2)
    rig.registrar.changed()
    return rig


def test_who_led_is_the_master_until_the_name_server_knows_another_one() -> None:
    rig = led()
    (question,) = rig.said()
    assert question.code == MASTERS
    masters(rig, question, broker_a="n0:1")
    assert rig.said() == []
    rig.desk.advance(0.02)
    (question,) = rig.said()
    assert question.code == MASTERS
    masters(rig, question, broker_a="n1:1", broker_b="n0:1")
    (command,) = rig.said()
    assert command.code == REGISTER
    assert not rig.registrar.is_master
    rig.answer(command)
    assert rig.registrar.is_registered
    assert not rig.registrar.is_master


def test_who_led_gives_the_place_up_after_two_seconds() -> None:
    rig = led()
    for _ in range(100):
        (question,) = rig.said()
        assert question.code == MASTERS
        masters(rig, question, broker_a="n0:1")
        rig.desk.advance(0.02)
    (command,) = rig.said()
    assert command.code == REGISTER


@pytest.mark.parametrize("code", [1, 3])
def test_who_led_registers_at_once_where_the_question_is_not_answered(code: int) -> None:
    rig = led()
    (question,) = rig.said()
    rig.answer(question, code)
    (command,) = rig.said()
    assert command.code == REGISTER


def test_who_leads_again_meanwhile_registers_as_the_master() -> None:
    rig = led()
    (question,) = rig.said()
    rig.header = header(0)
    rig.registrar.changed()
    masters(rig, question, broker_a="n0:1")
    rig.desk.advance(0.02)
    (command,) = rig.said()
    assert command.code == REGISTER
    rig.answer(command)
    assert rig.registrar.is_master


def test_a_name_server_that_was_lost_knows_no_master_either() -> None:
    rig = led()
    rig.said()
    rig.line.lost(rig.desk.connection, "it has ended")
    assert not rig.registrar.is_master
    rig.desk.advance(0.1)
    rig.open()
    (command,) = rig.said()
    assert command.code == REGISTER


def test_name_servers_that_answer_no_greeting_are_told_all_the_same() -> None:
    """RocketMQ 4.9's leave a request that they do not know without a response."""
    rig = SecretRig()
    rig.open()
    _, probe = rig.said()
    rig.answer(probe, 17)
    (command,) = rig.said()
    assert (command.code, dict(command.fields)) == (REGISTER, {})
    rig.answer(probe, 17)
    assert rig.state == "awaits"
    rig.answer(command)
    assert rig.state == "up"

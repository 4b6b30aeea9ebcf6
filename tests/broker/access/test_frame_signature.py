"""Trivet's own signatures: what they cover, and that each is good once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from broker.access.accounts import parse
from broker.access.control import AccessControl
from broker.access.frame_signature import FRAME_SIGNATURE, sign_frame
from broker.client.transport.credentials import Credentials, Signer
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import ROCKETMQ, RemotingCommand, encode, request, response
from broker.remoting.frame import FrameDecoder
from broker.remoting.rocketmq_signature import ACCESS_KEY, SIGNATURE, signature
from broker.requests.connection import Connection, Outgoing
from broker.requests.errors import RequestError
from broker.requests.greeting import GreetingError, greet
from log.formats.record import pack_host

ACCOUNTS = """
[[accounts]]
access_key = "operator"
secret_key = "operator-secret"
admin = true

[[accounts]]
access_key = "service"
secret_key = "service-secret"
topic_permissions = { orders = "PUB|SUB" }
group_permissions = { broker-a = "SUB" }
"""
HOST = pack_host("192.168.0.1", 5000)
OPERATOR = Credentials("operator", "operator-secret")
NONCE = bytes(range(16))

control = AccessControl(parse(ACCOUNTS, "accounts.toml"))
strict = AccessControl(parse(ACCOUNTS, "accounts.toml"), whole_frames=True)


class Client:
    """A client and its connection to a server, which has greeted it."""

    def __init__(
        self, *, is_encrypted: bool = False, nonce: bytes = NONCE, secret: str = "operator-secret"
    ) -> None:
        self.connection = Connection(Outgoing(), "client")
        self.connection.is_encrypted = is_encrypted
        fields = greet(self.connection, lambda size: nonce)
        asked = request(RequestCode.TRIVET_GREETING)
        self.signer = Signer(Credentials("operator", secret), response(asked, 0, None, fields))
        self.opaque = 0

    def request(self, code: int, fields: dict[str, str], body: bytes = b"") -> RemotingCommand:
        self.opaque += 1
        command = request(code, fields, body, opaque=self.opaque)
        self.signer.sign(command)
        return command

    def says(self, command: RemotingCommand, to: AccessControl = control) -> str | None:
        """What the server says to a request; None lets it in."""
        (arrived,) = FrameDecoder().feed(encode(command))
        try:
            to.check(HOST, arrived, self.connection.greeting)
        except RequestError as refused:
            return f"{refused.code} {refused.remark}"
        return None


def test_rocketmq_s_signature_lets_another_request_pass() -> None:
    """The reason for all this: values without names and without the code."""
    fields = OPERATOR.sign({"group": "broker-a"}, b"")
    seen = request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, fields)
    fields = {"groupName" if name == "group" else name: value for name, value in seen.fields.items()}
    forged = request(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
    control.check(HOST, forged)
    with pytest.raises(RequestError, match="not signed as a whole"):
        strict.check(HOST, forged)


def without(command: RemotingCommand, name: str) -> dict[str, str]:
    return {other: value for other, value in command.fields.items() if other != name}


CHANGES: dict[str, Callable[[RemotingCommand], dict[str, Any]]] = {
    "renamed": lambda it: {"header": without(it, "group") | {"groupName": it.fields["group"]}},
    "other code": lambda it: {"code": RequestCode.DELETE_SUBSCRIPTIONGROUP},
    "other body": lambda it: {"body": b"Body"},
    "other flag": lambda it: {"flag": 2},
    "other version": lambda it: {"version": it.version + 1},
    "other number": lambda it: {"opaque": it.opaque + 1},
    "other remark": lambda it: {"remark": "x"},
    "one more field": lambda it: {"header": {**it.fields, "more": "x"}},
    "one field less": lambda it: {"header": without(it, "other")},
    "between name and value": lambda it: {
        "header": without(it, "group") | {"grou": "p" + it.fields["group"]}
    },
    "other account": lambda it: {"header": {**it.fields, ACCESS_KEY: "service"}},
    "no signature": lambda it: {"header": without(it, FRAME_SIGNATURE)},
}
"""The attributes of a request that somebody has changed on its way."""


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("serialization", [0, ROCKETMQ])
def test_whatever_is_changed_is_found_out(change: str, serialization: int) -> None:
    client = Client()
    command = client.request(17, {"group": "broker-a", "other": "1"}, b"body")
    command.serialization = serialization
    changed = copy.copy(command)
    for name, value in CHANGES[change](command).items():
        setattr(changed, name, value)
    assert "the signature is not that of" in (client.says(changed) or "")
    assert client.says(command) is None


def test_a_request_is_good_once_and_on_its_connection_only() -> None:
    client = Client()
    first, second = client.request(17, {"topic": "orders"}), client.request(17, {"topic": "other"})
    assert client.says(second) is None
    for late in (first, second):
        assert "its signature was used already" in (client.says(late) or "")
    elsewhere = Client(nonce=bytes(16))
    assert "the signature is not that of" in (elsewhere.says(client.request(17, {"topic": "orders"})) or "")


def test_a_connection_that_was_not_greeted_takes_no_such_signature() -> None:
    command = Client().request(17, {"topic": "orders"})
    with pytest.raises(RequestError, match="this connection was not greeted"):
        control.check(HOST, command)


def test_an_encrypted_connection_is_proved_once() -> None:
    client = Client(is_encrypted=True)
    first, second = client.request(17, {"topic": "a"}), client.request(17, {"topic": "b"})
    assert FRAME_SIGNATURE in first.fields
    assert second.fields == {"topic": "b", ACCESS_KEY: "operator"}
    assert "signature" in (client.says(second) or "")  # nothing is proved yet
    assert client.says(first) is None
    assert client.says(second) is None
    assert client.says(second, strict) is None
    another = request(17, {"topic": "b", ACCESS_KEY: "service"})
    assert "the signature is not that of" in (client.says(another) or "")


def test_what_is_proved_in_the_clear_holds_for_nothing_else() -> None:
    client = Client()
    assert client.says(client.request(17, {"topic": "a"})) is None
    assert "the signature is not" in (client.says(request(17, {"topic": "b", ACCESS_KEY: "operator"})) or "")


def test_another_secret_in_the_file_ends_what_was_proved() -> None:
    client = Client(is_encrypted=True)
    assert client.says(client.request(17, {"topic": "a"})) is None
    changed = AccessControl(parse(ACCOUNTS.replace("operator-secret", "another-secret"), "accounts.toml"))
    unsigned = client.request(17, {"topic": "b"})
    assert client.says(unsigned) is None
    assert "the signature is not that of" in (client.says(unsigned, changed) or "")
    client.signer.answered(ResponseCode.NO_PERMISSION)
    assert FRAME_SIGNATURE in client.request(17, {"topic": "b"}).fields


def test_a_connection_is_greeted_once() -> None:
    connection = Connection(Outgoing(), "client")
    greet(connection, bytes)
    with pytest.raises(RequestError, match="greeted already"):
        greet(connection, bytes)


@pytest.mark.parametrize("code", [1, 3, 16])
def test_servers_without_greetings_are_sent_rocketmq_s_signatures(code: int) -> None:
    answer = response(request(RequestCode.TRIVET_GREETING), code, "no")
    command = request(10, {"topic": "orders"}, b"body")
    Signer(OPERATOR, answer).sign(command)
    assert command.fields[SIGNATURE] == signature("operator-secret", command.fields, b"body")
    with pytest.raises(GreetingError, match="no others are to be sent"):
        Signer(Credentials("operator", "operator-secret", whole_frames=True), answer)


@pytest.mark.parametrize("fields", [{}, {"nonce": "00", "sign": "each"}, {"nonce": "z" * 32, "sign": "each"}])
def test_what_is_no_greeting_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(GreetingError):
        Signer(OPERATOR, response(request(RequestCode.TRIVET_GREETING), 0, None, fields))
    with pytest.raises(GreetingError, match="code 2: busy"):
        Signer(OPERATOR, response(request(RequestCode.TRIVET_GREETING), 2, "busy"))


def test_the_signature_stays_what_it_is() -> None:
    """Computed with openssl: clients and servers of other releases make the same."""
    command = request(10, {"topic": "T", "queueId": "0"}, b"body", opaque=7, language="PYTHON", version=399)
    sign_frame("RocketMQ", "12345678", NONCE, command)
    assert command.fields[FRAME_SIGNATURE] == "BEZJYiyxcLUUDIQ0tfBuhKm86CRo+7TEIIo7hjOuqH0="

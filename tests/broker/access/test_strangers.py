"""Who counts as a stranger, of whom little is read at a time: whoever has to prove an account and has not yet."""

from __future__ import annotations

from broker.access.accounts import parse
from broker.access.control import AccessControl
from broker.client.transport.credentials import Credentials
from broker.remoting.codes import RequestCode, ResponseCode
from tests.broker.harness import Client, Group

READER = Credentials("reader-account", "reader-secret")
ACCOUNTS = """
white_remote_addresses = ["10.9.*.*"]

[[accounts]]
access_key = "reader-account"
secret_key = "reader-secret"
topic_permissions = { T = "SUB" }
"""


def guarded() -> Group:
    group = Group.elected(1)
    group.connect().create_topic("T")
    for member in group.alive():
        member.alive.access = AccessControl(parse(ACCOUNTS, "accounts.toml"))
    return group


def is_stranger(client: Client) -> bool:
    return not client.connection.is_proven


def test_a_stranger_is_one_until_a_request_of_an_account_is_let_in() -> None:
    group = guarded()
    client = group.connect()
    assert is_stranger(client)
    fields = {"topic": "T", "queueId": "0"}
    assert client.call(RequestCode.GET_MAX_OFFSET, fields).code == ResponseCode.NO_PERMISSION
    client.call(RequestCode.TRIVET_GREETING, {})
    assert is_stranger(client), "anybody is greeted"
    assert client.call(RequestCode.GET_MAX_OFFSET, READER.sign(fields, b"")).code == ResponseCode.SUCCESS
    assert not is_stranger(client)
    client.call(RequestCode.GET_MAX_OFFSET, fields)
    assert not is_stranger(client), "one refused request makes nobody unknown"


def test_who_comes_from_an_address_that_is_trusted_is_none_after_a_request() -> None:
    client = guarded().connect(host="10.9.0.1")
    client.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    assert not is_stranger(client)

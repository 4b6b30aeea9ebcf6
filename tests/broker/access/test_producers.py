"""Producer groups have no owner: who merely says that he is a producer gets nothing of what is not his."""

from __future__ import annotations

import pytest

from broker.access.accounts import parse
from broker.access.control import AccessControl
from broker.remoting.bodies import HeartbeatData, ProducerData
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.json_body import encode_body
from tests.broker.access.test_messages_by_position import ACCOUNTS, Account
from tests.broker.fields import send_fields
from tests.broker.harness import Group

INTERVAL_S = 10


@pytest.fixture
def group() -> Group:
    checks = {"transaction_timeout_ms": 2000, "transaction_check_interval_ms": INTERVAL_S * 1000}
    group = Group.elected(3, broker=checks)
    group.connect().create_topic("orders")
    for member in group.alive():
        member.alive.access = AccessControl(parse(ACCOUNTS, "accounts.toml"))
    return group


@pytest.fixture(params=["leader", "follower"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def producer(group: Group, name: str, place: str, client_id: str | None = None) -> Account:
    """A member of the producer group PG."""
    account = Account(group.connect(getattr(group, place), name=client_id), name)
    announce(account)
    return account


def announce(account: Account) -> None:
    data = HeartbeatData(client_id=account.client.client_id, producer_data_set=[ProducerData("PG")])
    assert account.call(RequestCode.HEART_BEAT, {}, encode_body(data)).code == ResponseCode.SUCCESS


def count(account: Account, code: int) -> int:
    """How often it was asked or told that."""
    return sum(notice.code == code for notice in account.client.notices)


def test_about_a_transaction_only_those_are_asked_who_may_publish_to_its_topic(
    group: Group, place: str
) -> None:
    thief, owner = producer(group, "reader", place), producer(group, "service", place)
    owner.send("orders", b"half", "TRAN_MSG\x01true\x02PGROUP\x01PG\x02", 4)
    group.advance(3.5 * INTERVAL_S)
    assert count(thief, RequestCode.CHECK_TRANSACTION_STATE) == 0
    asked = count(owner, RequestCode.CHECK_TRANSACTION_STATE)
    assert asked >= 3, "and as often as without him"
    owner.client.close()
    group.advance(3 * INTERVAL_S)
    assert count(thief, RequestCode.CHECK_TRANSACTION_STATE) == 0


def test_who_takes_a_producer_s_client_id_does_not_keep_him_from_being_asked(
    group: Group, place: str
) -> None:
    owner = producer(group, "service", place, "same")
    thief = producer(group, "reader", place, "same")
    owner.send("orders", b"half", "TRAN_MSG\x01true\x02PGROUP\x01PG\x02", 4)
    group.advance(3.5 * INTERVAL_S)
    assert count(owner, RequestCode.CHECK_TRANSACTION_STATE) >= 3
    assert count(thief, RequestCode.CHECK_TRANSACTION_STATE) == 0


def test_a_new_leader_knows_who_may_be_asked(group: Group) -> None:
    """From the nodes to which producers are connected: they tell what clients' last heartbeats said."""
    followers = [node for node in group.members if node != group.leader]
    owners, thieves = (
        [Account(group.connect(node), name) for node in followers] for name in ("service", "reader")
    )
    for account in (*thieves, *owners):
        announce(account)
    owners[0].send("orders", b"half", "TRAN_MSG\x01true\x02PGROUP\x01PG\x02", 4)
    group.converge()
    group.kill(group.leader)
    group.elect()
    group.advance(4 * INTERVAL_S)
    assert all(count(owner, RequestCode.CHECK_TRANSACTION_STATE) for owner in owners)
    assert not any(count(thief, RequestCode.CHECK_TRANSACTION_STATE) for thief in thieves)


def test_replies_go_to_the_account_that_had_the_client_id_first(group: Group, place: str) -> None:
    owner = producer(group, "service", place, "asker")
    thief = producer(group, "reader", "leader", "asker")
    again = producer(group, "service", place, "asker")
    replier = Account(group.connect(), "operator")
    fields = send_fields(
        producerGroup="repliers",
        topic="DefaultCluster_REPLY_TOPIC",
        properties="REPLY_TO_CLIENT\x01asker\x02CORRELATION_ID\x01c1\x02",
    )
    signed = replier._credentials.sign({name: str(value) for name, value in fields.items()}, b"secret")
    replier.client.start_call(RequestCode.SEND_REPLY_MESSAGE, signed, b"secret")
    group.settle()
    pushed = [count(each, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT) for each in (owner, thief, again)]
    assert pushed == [0, 0, 1], "on the newest connection of that account"

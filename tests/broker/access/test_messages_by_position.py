"""Requests that name a message by its position: what is allowed is a topic, and the message must be of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from broker.access.accounts import parse
from broker.access.control import AccessControl
from broker.client.transport.credentials import Credentials
from broker.remoting.bodies import ConsumerData, HeartbeatData, MessageModel, SubscriptionData
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.json_body import encode_body
from log.formats.message_id import parse_offset_message_id
from log.formats.record import SYS_FLAG_PREPARED
from tests.broker.fields import pull_fields, send_fields
from tests.broker.harness import Client, Group, split_records

ACCOUNTS = """
[[accounts]]
access_key = "operator-account"
secret_key = "operator-secret"
admin = true

[[accounts]]
access_key = "service-account"
secret_key = "service-secret"
topic_permissions = { orders = "PUB|SUB" }
group_permissions = { mine = "SUB" }

[[accounts]]
access_key = "reader-account"
secret_key = "reader-secret"
default_topic_permission = "SUB"
topic_permissions = { payroll = "DENY" }
group_permissions = { mine = "SUB" }
"""


class Account:
    """A client that signs its requests."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self._credentials = Credentials(f"{name}-account", f"{name}-secret")

    def call(self, code: int, fields: Mapping[str, Any], body: bytes = b"") -> RemotingCommand:
        texts = {name: str(value) for name, value in fields.items()}
        return self.client.call(code, self._credentials.sign(texts, body), body)

    def send(self, topic: str, body: bytes, properties: str = "", sys_flag: int = 0) -> int:
        """The position of the stored record."""
        fields = send_fields(
            producerGroup="PG", topic=topic, defaultTopicQueueNums=1, sysFlag=sys_flag, properties=properties
        )
        answer = self.call(RequestCode.SEND_MESSAGE, fields, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return parse_offset_message_id(answer.fields["msgId"])[1]

    def consume(self, topic: str) -> None:
        consumer = ConsumerData(
            group_name="mine",
            message_model=MessageModel.CLUSTERING,
            subscription_data_set=[SubscriptionData(topic=topic, sub_string="*")],
        )
        data = HeartbeatData(client_id=self.client.client_id, consumer_data_set=[consumer])
        assert self.call(RequestCode.HEART_BEAT, {}, encode_body(data)).code == ResponseCode.SUCCESS

    def send_back(self, position: int, **more: Any) -> RemotingCommand:
        fields = {"offset": position, "group": "mine", "delayLevel": 0, **more}
        return self.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields)


@pytest.fixture(params=["leader", "follower"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def group() -> Group:
    group = Group.elected(3)
    client = group.connect()
    client.create_topic("orders")
    client.create_topic("payroll")
    for member in group.alive():
        member.alive.access = AccessControl(parse(ACCOUNTS, "accounts.toml"))
    return group


def account(group: Group, name: str, place: str = "leader") -> Account:
    return Account(group.connect(getattr(group, place)), name)


def test_a_message_is_shown_to_who_may_read_its_topic(group: Group, place: str) -> None:
    operator, service = account(group, "operator"), account(group, "service", place)
    secret, own = operator.send("payroll", b"secret"), service.send("orders", b"own")
    group.converge()

    def view(position: int, topic: str) -> RemotingCommand:
        return service.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": position, "topic": topic})

    assert split_records(view(own, "orders").body)[0].body == b"own"
    refused = view(secret, "orders")
    assert (refused.code, bytes(refused.body)) == (ResponseCode.NO_PERMISSION, b"")
    assert view(secret, "payroll").code == ResponseCode.NO_PERMISSION


def test_a_delayed_message_is_shown_under_its_true_topic(group: Group) -> None:
    service = account(group, "service")
    position = service.send("orders", b"later", "DELAY\x0118\x02")
    shown = service.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": position, "topic": "orders"})
    assert split_records(shown.body)[0].body == b"later"


@pytest.mark.parametrize("names_topic", [True, False])
def test_a_consumer_sends_back_what_its_group_consumes(group: Group, place: str, names_topic: bool) -> None:
    operator, service = account(group, "operator"), account(group, "service", place)
    service.consume("orders")
    secret, own = operator.send("payroll", b"secret"), service.send("orders", b"own")
    more = {"originTopic": "orders"} if names_topic else {}
    assert service.send_back(own, **more).code == ResponseCode.SUCCESS
    assert service.send_back(secret, **more).code == ResponseCode.NO_PERMISSION
    assert service.send_back(secret, originTopic="payroll").code == ResponseCode.NO_PERMISSION


def test_a_consumer_is_made_to_consume_only_what_its_group_consumes(group: Group, place: str) -> None:
    operator, service = account(group, "operator"), account(group, "service", place)
    service.consume("orders")
    message_id = f"7F00000100002A9F{operator.send('payroll', b'secret'):016X}"
    fields = {"consumerGroup": "mine", "clientId": service.client.client_id, "msgId": message_id}
    refused = service.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    assert refused.code == ResponseCode.NO_PERMISSION
    assert RequestCode.CONSUME_MESSAGE_DIRECTLY not in {notice.code for notice in service.client.notices}


@pytest.mark.parametrize(
    "topic",
    [
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_wheel_timer",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "DefaultCluster_REPLY_TOPIC",
    ],
)
def test_a_default_permission_does_not_open_what_holds_those_of_all_topics(group: Group, topic: str) -> None:
    fields = pull_fields(consumerGroup="mine", topic=topic)
    refused = account(group, "reader").call(RequestCode.PULL_MESSAGE, fields)
    assert refused.code == ResponseCode.NO_PERMISSION
    assert (
        account(group, "operator").call(RequestCode.PULL_MESSAGE, fields).code != ResponseCode.NO_PERMISSION
    )


def test_an_undecided_message_cannot_be_sent_back() -> None:
    """It would be seen by consumers then, whatever its producer decides."""
    group = Group.elected(1)
    client = group.connect()
    client.create_topic("orders")
    client.heartbeat("mine", ["orders"])
    half = client.send("orders", b"half", 0, {"TRAN_MSG": "true", "PGROUP": "P"}, sysFlag=SYS_FLAG_PREPARED)
    position = parse_offset_message_id(half.message_id)[1]
    fields = {"offset": position, "group": "mine", "delayLevel": 0, "originTopic": "orders"}
    assert client.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("outcome", [8, 12])
def test_a_transaction_is_decided_by_who_may_publish_to_its_topic(
    group: Group, place: str, outcome: int
) -> None:
    """Who knows the producer group and where the half message lies is not therefore its producer."""
    operator, service = account(group, "operator"), account(group, "service", place)
    half = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02"

    def decide(who: Account, number: int, position: int) -> int:
        fields = {
            "producerGroup": "PG",
            "tranStateTableOffset": number,
            "commitLogOffset": position,
            "commitOrRollback": outcome,
            "fromTransactionCheck": "false",
            "msgId": "any",
            "topic": "orders",  # the request's word counts for nothing
        }
        return who.call(RequestCode.END_TRANSACTION, fields).code

    secret, own = (
        who.send(topic, b"half", half, 4) for who, topic in ((operator, "payroll"), (service, "orders"))
    )
    assert decide(service, 0, secret) == ResponseCode.NO_PERMISSION
    assert decide(account(group, "reader", place), 1, own) == ResponseCode.NO_PERMISSION
    transactions = group.node(group.leader).replica.metadata.transactions
    assert [transactions.is_open(number) for number in (0, 1)] == [True, True]
    assert decide(service, 1, own) == ResponseCode.SUCCESS
    assert decide(operator, 0, secret) == ResponseCode.SUCCESS

"""Pulls that wait, with access control: for a message while accounts change, for a leader while there is none."""

from __future__ import annotations

import json

import pytest

from broker.access.accounts import parse
from broker.access.control import AccessControl
from broker.client.transport.credentials import Credentials
from broker.remoting.codes import PullSysFlag, RequestCode, ResponseCode
from broker.remoting.command import JSON, ROCKETMQ, frame_head
from tests.broker.fields import MAY_BE_HELD, pull_fields
from tests.broker.harness import Client, Group, Pulled

READER = Credentials("reader-account", "reader-secret")
ACCOUNTS = """
white_remote_addresses = ["10.9.*.*"]

[[accounts]]
access_key = "reader-account"
secret_key = "reader-secret"
topic_permissions = { T = "%s" }
group_permissions = { g = "SUB" }
"""


def let_in(group: Group, permission: str) -> None:
    """Access to T on every node, as by a file that was changed."""
    for member in group.alive():
        member.alive.access = AccessControl(parse(ACCOUNTS % permission, "accounts.toml"))


@pytest.fixture
def group() -> Group:
    group = Group.elected(3)
    client = group.connect()
    client.create_topic("T")
    client.heartbeat("g")
    group.converge()
    let_in(group, "SUB")
    return group


def start_pull(client: Client, **changes: int) -> int:
    fields = pull_fields(sysFlag=MAY_BE_HELD, suspendTimeoutMillis=15_000, lo="false") | changes
    texts = {name: str(value) for name, value in fields.items()}
    return client.start_call(RequestCode.PULL_MESSAGE, READER.sign(texts, b""))


def send(group: Group) -> None:
    group.connect(host="10.9.0.1").send("T", b"x")


@pytest.mark.parametrize("node", ["leader", "follower"])
@pytest.mark.parametrize("arrives", [True, False])
def test_an_account_that_may_read_no_more_is_given_nothing(group: Group, node: str, arrives: bool) -> None:
    client = group.connect(getattr(group, node))
    held = start_pull(client)
    group.advance(1)
    let_in(group, "DENY")
    if arrives:
        send(group)
    answer = client.wait(held)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "needs SUB on topic 'T'" in (answer.remark or "")
    assert not answer.body


@pytest.mark.parametrize("node", ["leader", "follower"])
def test_an_account_that_still_may_is_served(group: Group, node: str) -> None:
    client = group.connect(getattr(group, node))
    held = start_pull(client)
    group.advance(1)
    let_in(group, "PUB|SUB")
    send(group)
    assert Pulled.of(client.wait(held)).bodies == [b"x"]


@pytest.mark.parametrize("node", ["leader", "follower"])
def test_a_pull_of_an_address_that_is_trusted_no_more_is_refused_whatever_its_fields_are(
    group: Group, node: str
) -> None:
    """Nobody had read them while the address was trusted: they ended its node, as no account could be found in them."""
    node_id = getattr(group, node)
    client = group.connect(node_id, host="10.9.0.2")
    fields = pull_fields(sysFlag=int(MAY_BE_HELD), suspendTimeoutMillis=15_000, unread={"no": "text"})
    header = json.dumps({"code": RequestCode.PULL_MESSAGE, "opaque": 7, "extFields": fields}).encode()
    group.members[node_id].process.clients.open[client.connection].received(frame_head(JSON, header, 0))
    group.advance(1)
    for member in group.alive():
        text = (ACCOUNTS % "SUB").replace("10.9.*.*", "10.9.0.1")
        member.alive.access = AccessControl(parse(text, "accounts.toml"))
    send(group)
    assert client.wait(7).code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_pull_that_waits_for_a_leader_is_still_its_account_s(group: Group, serialization: int) -> None:
    """It loses the position that it brought, and with that its signature, which was good when it came."""
    client = group.connect(group.follower)
    client.serialization = serialization
    send(group)
    group.converge()
    group.kill(group.leader)
    pull = start_pull(client, sysFlag=MAY_BE_HELD | PullSysFlag.COMMIT_OFFSET, commitOffset=1)
    answer = client.wait(pull)
    assert (answer.code, bool(answer.body)) == (ResponseCode.SUCCESS, True), answer.remark
    group.advance(1)
    assert not group.node(group.leader).replica.metadata.offsets

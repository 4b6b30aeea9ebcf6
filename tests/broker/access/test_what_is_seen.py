"""What an account gets to see: every request that a broker answers, asked by one that may use one topic and one group.

Beside those there are a topic, a group and clients of others, whose names, addresses, messages and figures are such
that they are found wherever they come back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Set
from dataclasses import dataclass

import pytest

from broker.access.accounts import parse
from broker.access.control import AccessControl
from broker.client.transport.credentials import Credentials
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, encode
from log.formats.message_id import parse_offset_message_id
from tests.broker.harness import Client, Group

ACCOUNTS = """
[[accounts]]
access_key = "alpha-account"
secret_key = "alpha-secret"
topic_permissions = { alpha = "PUB|SUB" }
group_permissions = { alphagroup = "SUB" }

[[accounts]]
access_key = "operator"
secret_key = "operator-secret"
admin = true
"""

ALPHA = Credentials("alpha-account", "alpha-secret")
OPERATOR = Credentials("operator", "operator-secret")

FIGURE = 7_654_321
"""The offset that the others' group has reported, which is in no other figure."""

NAMES = ("beta", "betagroup", "betaproducers")
SECRETS = ("beta-client", "10.7.7.7", "beta body", "betatag", str(FIGURE))
"""Never the words of who asks."""

FILTERED = {
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
}
"""Requests that name nothing, and are answered with what the account may see."""

MEMBERS = {RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.GET_CONSUMER_CONNECTION_LIST}

TELLING = [
    RequestCode.PULL_MESSAGE,
    RequestCode.QUERY_MESSAGE,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.GET_PRODUCER_CONNECTION_LIST,
    RequestCode.GET_CONSUME_STATS,
    RequestCode.QUERY_CORRECTION_OFFSET,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.QUERY_CONSUME_QUEUE,
    RequestCode.GET_ALL_PRODUCER_INFO,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
    RequestCode.LITE_PULL_MESSAGE,
]
"""Requests whose answers bear what is secret here, for who may ask them."""

CHANGES = frozenset(
    {
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.UNREGISTER_CLIENT,
    }
)
"""Requests that an administrator had better not make here."""


@dataclass
class World:
    """The group, and the positions of a message of each side."""

    group: Group
    alpha_position: int
    beta_position: int


@pytest.fixture
def world() -> World:
    group = Group.elected(3)
    positions = {}
    for side, host in (("alpha", "127.0.0.1"), ("beta", "10.7.7.7")):
        client = group.connect(host=host, name=f"{side}-client")
        client.create_topic(side)
        client.heartbeat(f"{side}group", [side], producer_group=f"{side}producers", expression=f"{side}tag")
        sent = client.send(side, f"{side} body".encode(), 0, {"KEYS": "key", "TAGS": f"{side}tag"})
        positions[side] = parse_offset_message_id(sent.message_id)[1]
        client.pull(side, f"{side}group", 0, expression="*")
        report(client, side, f"{side}group", 1 if side == "alpha" else FIGURE)
    # Each group has to do with both topics, and a member of the one with the other.
    client = group.connect(host="10.7.7.7", name="beta-client-of-both")
    client.heartbeat("alphagroup", ["alpha", "beta"], expression="betatag")
    report(client, "beta", "alphagroup", FIGURE)
    report(client, "alpha", "betagroup", FIGURE)
    group.converge()
    for member in group.alive():
        member.alive.access = AccessControl(parse(ACCOUNTS, "accounts.toml"))
    return World(group, positions["alpha"], positions["beta"])


def report(client: Client, topic: str, group: str, offset: int) -> None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": offset}
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def fields_naming(side: str, position: int) -> dict[str, str]:
    """Everything that any request names, of one side."""
    return {
        **dict.fromkeys(("topic", "b", "originTopic"), side),
        **dict.fromkeys(("topicList",), side),
        **dict.fromkeys(("group", "consumerGroup", "srcGroup", "destGroup", "groupName"), f"{side}group"),
        **dict.fromkeys(("compareGroup",), f"{side}group"),
        **dict.fromkeys(("producerGroup", "a"), f"{side}producers"),
        **dict.fromkeys(("offset", "commitLogOffset"), str(position)),
        **dict.fromkeys(("clientId", "clientID"), "nobody"),
        "msgId": f"7F00000100002A9F{position:016X}",
        "statsName": "TOPIC_PUT_NUMS",
        "statsKey": side,
    }


PLAIN = {
    **dict.fromkeys(
        ("queueId", "index", "queueOffset", "tranStateTableOffset", "commitOffset", "delayLevel"), "0"
    ),
    **dict.fromkeys(
        ("sysFlag", "suspendTimeoutMillis", "subVersion", "beginTimestamp", "bornTimestamp"), "0"
    ),
    **dict.fromkeys(("flag", "d", "e", "f", "g", "h", "j", "maxReconsumeTimes"), "0"),
    **dict.fromkeys(("isForce", "isOrder", "order", "fromTransactionCheck", "k", "unitMode"), "false"),
    **dict.fromkeys(("defaultTopic", "c"), "TBW102"),
    **dict.fromkeys(("defaultTopicQueueNums", "readQueueNums", "writeQueueNums"), "1"),
    "timestamp": "-1",
    "endTimestamp": str(1 << 50),
    "maxMsgNums": "32",
    "maxNum": "32",
    "count": "32",
    "key": "key",
    "subscription": "*",
    "commitOrRollback": "8",
    "operation": "remove",
    "node": "n9",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "properties": "",
    "i": "",
}


def body_naming(code: int, side: str) -> bytes:
    subscription = {"topic": side, "subString": "*"}
    bodies: dict[int, object] = {
        RequestCode.HEART_BEAT: {
            "clientID": "asker",
            "consumerDataSet": [{"groupName": f"{side}group", "subscriptionDataSet": [subscription]}],
        },
        RequestCode.CHECK_CLIENT_CONFIG: {"group": f"{side}group", "subscriptionData": subscription},
    }
    locks = {
        "clientId": "asker",
        "consumerGroup": f"{side}group",
        "mqSet": [{"brokerName": "broker-a", "queueId": 0, "topic": side}],
    }
    bodies |= dict.fromkeys((RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ), locks)
    return json.dumps(bodies[code]).encode() if code in bodies else b""


@dataclass
class Asked:
    """A question and its answer."""

    code: int
    what: str
    answer: RemotingCommand

    def found(self, words: Iterable[str]) -> list[str]:
        """Which of the words come back."""
        answer = encode(self.answer)
        return [word for word in words if word.encode() in answer]


def questions(world: World) -> list[tuple[str, dict[str, str]]]:
    """The fields of the questions that each request is asked with, and which side they name."""
    alpha = fields_naming("alpha", world.alpha_position)
    beta = fields_naming("beta", world.beta_position)
    names_group = ("group", "consumerGroup", "srcGroup", "destGroup", "groupName", "compareGroup")
    of_the_one = {**alpha, **{name: beta[name] for name in names_group}}
    return [
        ("alpha", alpha),
        ("alpha", {name: text for name, text in alpha.items() if name not in {"topic", "topicList"}}),
        # Figures by topic and group, and of the whole broker.
        ("alpha", {**alpha, "statsName": "GROUP_GET_NUMS", "statsKey": "alpha@alphagroup"}),
        ("broker", {**alpha, "statsName": "BROKER_PUT_NUMS", "statsKey": "DefaultCluster"}),
        ("beta", beta),
        ("beta", {**beta, "statsName": "GROUP_GET_NUMS", "statsKey": "beta@betagroup"}),
        ("their group", of_the_one),
        # A message of the others by its position, as of the own topic, and of none.
        ("position", {**alpha, "offset": str(world.beta_position), "msgId": beta["msgId"]}),
        ("position", {"offset": str(world.beta_position), "msgId": beta["msgId"]}),
    ]


def ask_everything(
    world: World, credentials: Credentials, node_id: str, without: Set[int] = frozenset()
) -> list[Asked]:
    """Each request that the brokers answer, with each of the questions."""
    group = world.group
    client = group.connect(node_id, name="asker")
    asked = []
    for code in sorted(set(group.node(node_id)._routes) - without):
        for what, named in questions(world):
            fields = {**PLAIN, **named}
            body = body_naming(code, "beta" if what == "beta" else "alpha")
            answer = client.call(code, credentials.sign(fields, body), body)
            asked.append(Asked(code, what, answer))
    client.close()
    group.settle()
    return asked


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_nothing_of_others_comes_back(world: World, place: str) -> None:
    leaks = []
    for asked in ask_everything(world, ALPHA, getattr(world.group, place)):
        words = [*NAMES, *SECRETS]
        if asked.what in {"beta", "their group"}:
            words = [*SECRETS]  # the names are the asker's
        elif asked.code in MEMBERS:
            # What a member of the own group says of itself is the group's: its id and its address.
            words = ["betagroup", "betaproducers", '"beta"', "betatag", str(FIGURE)]
        if found := asked.found(words):
            leaks.append((asked.code, asked.what, found))
        if asked.what == "beta" and asked.code not in FILTERED and asked.answer.code == ResponseCode.SUCCESS:
            leaks.append((asked.code, asked.what, ["answered"]))
    assert leaks == []


def test_an_administrator_sees_what_others_do_not(world: World) -> None:
    """So what is looked for above would be found."""
    asked = ask_everything(world, OPERATOR, world.group.leader, without=CHANGES)
    seen = {
        code: {word for one in asked if one.code == code for word in one.found(SECRETS)} for code in TELLING
    }
    assert {code.name for code, words in seen.items() if not words} == set()


def test_the_own_side_is_seen(world: World) -> None:
    """The account gets what is its own, filtered or not."""
    client = world.group.connect()

    def told(code: int, **fields: str) -> str:
        answer = client.call(code, ALPHA.sign(fields, b""))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return bytes(answer.body).decode()

    assert set(json.loads(told(21))["topicConfigTable"]) == {"alpha", "%RETRY%alphagroup"}
    assert set(json.loads(told(201))["subscriptionGroupTable"]) == {"alphagroup"}
    assert '"alpha@alphagroup"' in told(43)
    assert "alphagroup" in told(317, isOrder="false")
    assert json.loads(told(300, topic="alpha"))["groupList"] == ["alphagroup"]
    assert json.loads(told(343, group="alphagroup"))["topicList"] == ["alpha"]
    assert '"alpha"' in told(203, consumerGroup="alphagroup")
    assert '"alpha"' in told(208, consumerGroup="alphagroup")
    assert told(315, statsName="TOPIC_PUT_NUMS", statsKey="alpha")
    position = str(world.alpha_position)
    answer = client.call(RequestCode.VIEW_MESSAGE_BY_ID, ALPHA.sign({"offset": position}, b""))
    assert b"alpha body" in bytes(answer.body)

"""Consumer offsets and deletions: a topic or a consumer group that is made again has nobody's old offsets."""

from __future__ import annotations

from typing import Any

import pytest

from broker.remoting.codes import RequestCode, ResponseCode
from tests.broker.harness import Client, Group

KEY = {"consumerGroup": "g", "topic": "T", "queueId": 0}
DELETE_TOPIC = (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
DELETE_GROUP = (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": True})
RESET = {"topic": "T", "group": "g", "timestamp": 0, "isForce": True, "queueId": 0, "offset": 7}
CLONE = {"srcGroup": "h", "destGroup": "g", "topic": "T", "offline": True}
ORDERS: dict[str, tuple[int, dict[str, Any]]] = {
    "reset": (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET),
    "copy": (RequestCode.CLONE_GROUP_OFFSET, CLONE),
    "report": (RequestCode.UPDATE_CONSUMER_OFFSET, {**KEY, "commitOffset": 7}),
}


@pytest.fixture
def group() -> Group:
    group = Group.elected(3)
    client = group.connect(group.leader)
    client.create_topic("T")
    for name in ("g", "h"):
        client.heartbeat(name)
    for number in range(10):
        client.send("T", b"%d" % number)
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, {**KEY, "consumerGroup": "h", "commitOffset": 7})
    return group


def make_again(client: Client) -> list[int]:
    """Orders topic and consumer group, without a wait."""
    fields = {"topic": "T", "defaultTopic": "x", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}
    return [
        client.start_call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields),
        client.start_call(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"g","consumeEnable":true}'
        ),
    ]


def offsets(group: Group) -> list[dict[int, int] | None]:
    """Of g in T, at every node; they are the same."""
    return [member.alive.replica.metadata.offsets.get(("g", "T")) for member in group.alive()]


@pytest.mark.parametrize("deletion", [DELETE_TOPIC, DELETE_GROUP])
@pytest.mark.parametrize("order", ORDERS)
def test_what_is_decided_while_a_deletion_is_under_way_does_not_outlive_it(
    group: Group, order: str, deletion: tuple[int, dict[str, Any]]
) -> None:
    """It came into the log behind the deletion and what makes the name anew, decided by the state before both."""
    client = group.connect(group.leader)
    deleted: list[int] = []
    made: list[int] = []

    def delete_and_make() -> None:
        deleted.append(client.start_call(*deletion))
        made.extend(make_again(client))

    # A reset and a copy wait for a read barrier first, and are decided right behind this one.
    if order == "report":
        delete_and_make()
    else:
        group.node(group.leader).replica.leadership.read_barrier(
            delete_and_make, lambda: pytest.fail("it leads")
        )
    ordered = [client.start_call(*ORDERS[order])]
    group.advance(1)
    assert client.wait(deleted[0]).code == ResponseCode.SUCCESS
    assert [client.wait(opaque).code for opaque in made] == [ResponseCode.SUCCESS] * 2
    answer = client.wait(ordered[0])
    group.converge()
    assert offsets(group) == [None] * 3
    assert answer.code == ResponseCode.SYSTEM_BUSY


@pytest.mark.parametrize("deletion", [DELETE_TOPIC, DELETE_GROUP])
def test_a_report_that_nobody_waits_for_is_not_kept_behind_a_deletion(
    group: Group, deletion: tuple[int, dict[str, Any]]
) -> None:
    """It would go into the log when the name is made again."""
    client = group.connect(group.leader)
    ordered = [client.start_call(*deletion)]
    client.tell(RequestCode.UPDATE_CONSUMER_OFFSET, {**KEY, "commitOffset": 7})
    ordered += make_again(client)
    group.advance(1)
    assert [client.wait(opaque).code for opaque in ordered] == [ResponseCode.SUCCESS] * 3
    group.converge()
    assert offsets(group) == [None] * 3


def test_a_report_that_waits_goes_before_the_deletion_of_its_topic(group: Group) -> None:
    """It waited for others for 100 ms, in which the topic could go and come again."""
    client = group.connect(group.leader)
    client.tell(RequestCode.UPDATE_CONSUMER_OFFSET, {**KEY, "commitOffset": 7})
    client.ok(*DELETE_TOPIC)
    client.create_topic("T")
    group.advance(1)
    group.converge()
    assert offsets(group) == [None] * 3


def test_offsets_count_again_when_the_deletion_is_over(group: Group) -> None:
    client = group.connect(group.leader)
    client.ok(*DELETE_TOPIC)
    client.create_topic("T")
    client.ok(*ORDERS["report"])
    group.converge()
    assert offsets(group) == [{0: 7}] * 3

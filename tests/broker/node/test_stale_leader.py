"""A leader that the others have left behind must not say where a queue ends."""

from __future__ import annotations

import pytest

from broker.remoting.codes import RequestCode, ResponseCode
from tests.broker.fields import pull_fields
from tests.broker.harness import Client, Group


def pull(group: Group, offset: int, suspend_ms: int) -> dict[str, object]:
    may_wait, brings_subscription = 2, 4
    return pull_fields(
        consumerGroup="G",
        queueOffset=offset,
        sysFlag=brings_subscription | (may_wait if suspend_ms else 0),
        suspendTimeoutMillis=suspend_ms,
    )


def prepare(group: Group) -> Client:
    client = group.connect(group.leader)
    client.create_topic("T")
    client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"G","retryQueueNums":1}')
    client.send("T", b"first")
    group.converge()
    return client


@pytest.mark.parametrize("offset", [1, 2])
def test_end_of_a_queue_is_said_by_who_leads_still(group: Group, offset: int) -> None:
    """Offset 1 is the end, as far as the old leader knows; 2 is beyond it: the consumer would go back."""
    old = group.leader
    client = prepare(group)
    group.partition(old)
    opaque = client.start_call(RequestCode.PULL_MESSAGE, pull(group, offset, 0))
    group.settle()
    assert opaque not in client.answers
    # The majority's next leader takes two messages, of which the old one does not know.
    others = [member.id for member in group.alive() if member.id != old]
    group.run_until(lambda: any(group.node(node).replica.serving for node in others), "a new leader")
    other = group.connect(next(node for node in others if group.node(node).replica.serving))
    other.send("T", b"second")
    other.send("T", b"third")
    group.heal()
    answer = client.wait(opaque)
    assert answer.code in {ResponseCode.SUCCESS, ResponseCode.SERVICE_NOT_AVAILABLE}


def test_pull_whose_time_is_over_is_not_told_that_there_is_nothing(group: Group) -> None:
    client = prepare(group)
    opaque = client.start_call(RequestCode.PULL_MESSAGE, pull(group, 1, 100))
    group.settle()
    group.partition(group.leader)
    group.advance(0.2)
    assert opaque not in client.answers
    group.heal()
    assert client.wait(opaque).code == ResponseCode.PULL_NOT_FOUND

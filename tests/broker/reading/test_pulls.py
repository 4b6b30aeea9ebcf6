"""Pulls that wait, and pulls at nodes that know or may do less than the leader."""

from __future__ import annotations

import pytest

from broker.node.relayed_clients import RELAYED_BYTES_MAX
from broker.peers.protocol import Forward, Frame
from broker.reading import held_pulls
from broker.remoting.codes import RequestCode, ResponseCode
from tests.broker.fields import pull_fields
from tests.broker.harness import Client, Group, Pulled


def make_group(size: int = 1, **settings: object) -> tuple[Group, Client]:
    group = Group.elected(size, broker=settings)
    client = group.connect()
    client.create_topic("T")
    client.heartbeat("g")
    return group, client


def test_without_long_polling_a_pull_waits_for_a_second_and_not_at_all_for_what_comes() -> None:
    """Answered at once, a consumer of an idle queue would ask again at once, for ever."""
    group, client = make_group(long_polling=False)
    pull = client.start_pull("T", "g", 0, suspend_ms=20_000)
    group.advance(0.9)
    assert pull not in client.answers
    group.advance(0.2)
    assert client.answers.pop(pull).code == ResponseCode.PULL_NOT_FOUND
    pull = client.start_pull("T", "g", 0, suspend_ms=20_000)
    client.send("T", b"x")
    group.settle()
    assert Pulled.of(client.answers[pull]).bodies == [b"x"]


def test_one_arrival_does_not_fill_the_link_to_the_node_of_all_who_waited() -> None:
    """Each gets a copy there: of thousands, a broker's memory would not hold them."""
    group, client = make_group(3)
    reader = group.connect(group.follower)
    body = bytes(200_000)
    waiting = [
        reader.start_pull("T", "g", 0, suspend_ms=20_000) for _ in range(3 * RELAYED_BYTES_MAX // len(body))
    ]
    group.settle()
    client.send("T", body)
    group.settle()
    answers = [reader.answers[opaque] for opaque in waiting]
    given = [answer for answer in answers if answer.code == ResponseCode.SUCCESS]
    assert 0 < sum(len(answer.body) for answer in given) <= RELAYED_BYTES_MAX + 2 * len(body)
    refused = [answer for answer in answers if answer.code != ResponseCode.SUCCESS]
    assert {answer.code for answer in refused} == {ResponseCode.SYSTEM_BUSY}


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_long_pulls_of_one_address_are_held_only_while_they_leave_room(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull may be as long as any request: a client's that waited could take all memory of a leader."""
    monkeypatch.setattr(held_pulls, "HELD_BYTES_MAX", 4 << 20, raising=False)
    group, client = make_group(3)
    greedy = group.connect(getattr(group, place), host="10.0.0.1")
    fields = {**pull_fields(consumerGroup="g", topic="T", suspendTimeoutMillis=20_000), "sysFlag": 6}
    for _ in range(8):
        greedy.start_call(RequestCode.PULL_MESSAGE, fields, bytes(1 << 20))
    group.settle()
    held = group.node(group.leader).stats.pulls_held
    assert held() == 2
    assert [answer.code for answer in greedy.answers.values()] == 6 * [ResponseCode.PULL_NOT_FOUND]
    waits = client.start_pull("T", "g", 0, suspend_ms=20_000)
    group.settle()
    assert (held(), waits in client.answers) == (3, False)
    greedy.close()
    group.settle()
    client.send("T", b"x")
    assert Pulled.of(client.wait(waits)).bodies == [b"x"]
    assert held() == 0


def test_a_follower_that_does_not_know_a_subscription_asks_the_leader() -> None:
    """A consumer's heartbeat reaches one node before the other."""
    group, client = make_group(3, follower_reads=True)
    client.send("T", b"x")
    group.converge()
    reader = group.connect(group.follower)
    fields = pull_fields(sysFlag=0, subscription=None)
    asked: list[tuple[str, str]] = []

    def noted(source: str, target: str, frame: Frame) -> bool:
        if isinstance(frame, Forward):
            asked.append((source, target))
        return False

    group.lose = noted
    assert group.node(group.follower).registry.subscription("g", "T") is None
    assert Pulled.of(reader.call(RequestCode.PULL_MESSAGE, fields)).bodies == [b"x"]
    assert asked == [(group.follower, group.leader)]

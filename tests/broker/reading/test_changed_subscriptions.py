"""Consumers that subscribe to something else while pulls of theirs wait, which must be sent anew.

The pulls here bring no subscription, as those of Java's push consumers do not, and what a client does with an answer is
what Java's does: it drops what does not fit the subscription that it had when it asked, and goes on behind it.
"""

from __future__ import annotations

import random

import pytest

from broker.peers.protocol import Forward, Frame
from broker.remoting.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from broker.remoting.codes import PullSysFlag, RequestCode, ResponseCode
from broker.remoting.frame import whole_commands
from broker.remoting.json_body import encode_body
from broker.replica.inner_limits import InnerLimits
from tests.broker.fields import MAY_BE_HELD, pull_fields
from tests.broker.harness import Client, Group, Pulled
from tests.broker.node.test_held_requests import begin_transfer, only_elected, step_until

FOUND = ResponseCode.SUCCESS
NOT_FOUND = ResponseCode.PULL_NOT_FOUND


@pytest.fixture
def group() -> Group:
    group = Group.elected(3)
    client = group.connect()
    client.create_topic("T", 2)
    client.create_topic("Other")
    group.converge()
    return group


def start(
    client: Client,
    offset: int,
    version: int,
    *,
    consumer_group: str = "g",
    topic: str = "T",
    **changes: object,
) -> int:
    """A pull that rests on its group's heartbeats, and waits for 15 s."""
    fields: dict[str, object] = pull_fields(
        consumerGroup=consumer_group,
        topic=topic,
        queueOffset=offset,
        sysFlag=PullSysFlag.SUSPEND,
        suspendTimeoutMillis=15_000,
        subVersion=version,
        subscription=None,
    )
    return client.start_call(RequestCode.PULL_MESSAGE, {**fields, **changes})


def consumer(group: Group, node: str, expression: str = "red", version: int = 1) -> Client:
    """A client of the leader or of a follower, in the group."""
    client = group.connect(getattr(group, node))
    client.heartbeat("g", expression=expression, version=version)
    group.settle()
    return client


def send(group: Group, tag: str, body: bytes, topic: str = "T") -> None:
    group.connect().send(topic, body, properties={"TAGS": tag})


def told_to_pull_anew(client: Client, pull: int) -> int:
    """Returns the offset at which the client is told to go on."""
    answer = Pulled.of(client.answers[pull])
    assert (answer.code, answer.status, answer.bodies) == (NOT_FOUND, "SUBSCRIPTION_CHANGED", [])
    return answer.next_offset


@pytest.mark.parametrize("node", ["leader", "follower"])
def test_a_waiting_pull_is_sent_anew_when_its_group_changes_its_subscription(group: Group, node: str) -> None:
    client = consumer(group, node)
    send(group, "blue", b"0")
    send(group, "red", b"1")
    held = start(client, 2, 1)
    send(group, "blue", b"2")
    group.advance(1)
    assert held not in client.answers

    client.heartbeat("g", expression="blue", version=2)
    group.settle()
    # Where it was: what came while it waited may have been sent after the client had changed its mind.
    assert told_to_pull_anew(client, held) == 2
    send(group, "blue", b"3")
    group.converge()
    found = Pulled.of(client.wait(start(client, 2, 2)))
    assert (found.code, found.bodies, found.next_offset) == (FOUND, [b"2", b"3"], 4)


@pytest.mark.parametrize("node", ["leader", "follower"])
def test_all_pulls_of_the_group_and_topic_are_sent_anew_and_no_others(group: Group, node: str) -> None:
    client, other = consumer(group, node), consumer(group, "follower")
    client.heartbeat("h", expression="red", version=1)
    client.heartbeat("g", ["T", "Other"], expression="red", version=1)
    other.heartbeat("g", ["T", "Other"], expression="red", version=1)
    group.settle()
    ended = [start(client, 0, 1), start(client, 0, 1, queueId=1), start(other, 0, 1)]
    of_others = start(client, 0, 1, consumer_group="h"), start(other, 0, 1, topic="Other")
    with_its_own = start(client, 0, 0, sysFlag=MAY_BE_HELD, subscription="red")
    for_retries = start(client, 0, 1, topic="%RETRY%g")
    group.advance(1)

    client.heartbeat("g", ["T", "Other"], expression="red", version=1)
    group.advance(1)
    assert not client.answers.keys() & set(ended)
    client.heartbeat("g", expression="blue", version=2)
    group.settle()
    assert told_to_pull_anew(client, ended[0]) == told_to_pull_anew(client, ended[1]) == 0
    assert told_to_pull_anew(other, ended[2]) == 0
    for pull in (of_others[0], with_its_own, for_retries):
        assert pull not in client.answers
    assert of_others[1] not in other.answers
    send(group, "red", b"0")
    group.settle()
    assert Pulled.of(client.answers[with_its_own]).bodies == [b"0"]
    assert Pulled.of(client.answers[of_others[0]]).bodies == [b"0"]


@pytest.mark.parametrize("node", ["leader", "follower"])
@pytest.mark.parametrize("what", ["same", "older", "without"])
def test_a_heartbeat_that_changes_nothing_ends_no_wait(group: Group, node: str, what: str) -> None:
    """A member that joins has a later version of the same subscription: the others go on waiting."""
    client, joining = consumer(group, node, version=5), group.connect()
    held = start(client, 0, 5)
    group.advance(1)
    match what:
        case "same":
            joining.heartbeat("g", expression="red", version=6)
            client.heartbeat("g", expression="red", version=7)
        case "older":
            joining.heartbeat("g", expression="blue", version=4)
        case _:
            client.call(
                RequestCode.HEART_BEAT,
                None,
                b'{"clientID":"%s","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[]}],"withoutSub":true}'
                % client.client_id.encode(),
            )
    send(group, "blue", b"0")
    group.advance(1)
    assert held not in client.answers
    send(group, "red", b"1")
    group.settle()
    answer = Pulled.of(client.answers[held])
    assert (answer.code, answer.bodies, answer.next_offset) == (FOUND, [b"1"], 2)


@pytest.mark.parametrize("node", ["leader", "follower"])
def test_members_change_one_after_the_other(group: Group, node: str) -> None:
    """The second one's heartbeat does not change the group's subscription any more, but its own."""
    first, second = consumer(group, "leader"), consumer(group, node, version=2)
    first.heartbeat("g", expression="blue", version=3)
    group.settle()
    held, of_first = start(second, 0, 2), start(first, 0, 3)
    group.advance(1)
    second.heartbeat("g", expression="blue", version=4)
    group.settle()
    assert told_to_pull_anew(second, held) == 0
    assert of_first not in first.answers


@pytest.mark.parametrize("node", ["leader", "follower"])
@pytest.mark.parametrize("arrives", [True, False])
def test_a_topic_that_was_given_up_in_between(group: Group, node: str, arrives: bool) -> None:
    """Another member's heartbeat takes the topic out and puts it back: the pull notices when it wakes."""
    client, other = consumer(group, node), group.connect()
    held = start(client, 0, 1)
    group.advance(1)
    other.heartbeat("g", ["Other"], version=2)
    other.heartbeat("g", expression="blue", version=3)
    group.advance(1)
    if arrives:
        send(group, "blue", b"0")
        group.settle()
    else:
        group.advance(15)
    assert told_to_pull_anew(client, held) == 0


@pytest.mark.parametrize("serving", [True, False])
def test_a_pull_that_a_follower_has_forwarded_is_ended_there(group: Group, serving: bool) -> None:
    """The next leader would hear of the new subscription first, and give what it finds to the old pull."""
    client = consumer(group, "follower")
    if serving:
        held = start(client, 0, 1)
        group.advance(1)
    group.kill(group.leader)
    if not serving:
        held = start(client, 0, 1)  # is held for a leader
    group.settle()
    client.heartbeat("g", expression="blue", version=2)
    group.settle()
    assert told_to_pull_anew(client, held) == 0
    group.elect()
    again = start(client, 0, 2)
    send(group, "blue", b"0")
    assert Pulled.of(client.wait(again)).bodies == [b"0"]


def test_a_pull_that_a_deposed_leader_is_still_to_hand_on_is_ended_there() -> None:
    group = slow_group()
    other, client = group.connect(), consumer(group, "leader")
    for _ in range(5):
        start(other, 0, 1, sysFlag=MAY_BE_HELD, subscription="*")
    held = start(client, 0, 1)
    with_its_own = start(client, 0, 1, sysFlag=MAY_BE_HELD, subscription="*")
    group.settle()
    old = group.node(group.leader)
    begin_transfer(group, group.follower)
    step_until(group, random.Random(1), lambda: old.stats.pulls_held() == 5)
    client.heartbeat("g", expression="blue", version=2)
    assert told_to_pull_anew(client, held) == 0
    assert old.stats.pulls_held() < 5
    group.settle()
    send(group, "red", b"0")
    assert Pulled.of(client.wait(with_its_own)).bodies == [b"0"]
    assert len(client.answers) == 1


def test_a_pull_that_waits_for_the_queues_end_goes_to_no_next_leader(group: Group) -> None:
    client, old = consumer(group, "leader"), group.leader
    group.lose = lambda source, target, _: old in (source, target)
    pull = start(client, 0, 1, sysFlag=0)  # nothing is there, if this node leads
    group.settle()
    begin_heartbeat(client, "blue", 2)
    group.advance(3)
    assert told_to_pull_anew(client, pull) == 0


def slow_group() -> Group:
    """A group each of whose turns does little."""
    group = Group(3, start=False)
    group.limits = InnerLimits(held_at_once=1)
    for name in group.members:
        group.start(name)
    group.elect()
    group.connect().create_topic("T", 2)
    group.converge()
    return group


def begin_heartbeat(client: Client, expression: str, version: int) -> int:
    """A heartbeat that is on its way."""
    subscription = SubscriptionData(topic="T", sub_string=expression, sub_version=version)
    consumer = ConsumerData(
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        group_name="g",
        message_model=MessageModel.CLUSTERING,
        subscription_data_set=[subscription],
    )
    data = HeartbeatData(client_id=client.client_id, consumer_data_set=[consumer])
    return client.start_call(RequestCode.HEART_BEAT, None, encode_body(data))


def test_a_message_ends_no_pull_that_is_yet_to_be_told_of_a_change() -> None:
    """Of thousands some are told in each turn. The client would drop it, as it has asked for others."""
    group = slow_group()
    client, other = consumer(group, "leader"), consumer(group, "leader")
    other.heartbeat("g", expression="blue", version=2)
    pulls = [start(client, 0, 2, queueId=1) for _ in range(40)]
    last = start(client, 0, 2)
    group.settle()
    begin_heartbeat(client, "blue", 2)
    other.start_send("T", b"0", 0, properties={"TAGS": "blue"})
    step_until(group, random.Random(1), lambda: last in client.answers)
    assert told_to_pull_anew(client, last) == 0
    assert len(client.answers.keys() & set(pulls)) < 20, "before most of the others"
    group.settle()
    for pull in pulls:
        assert told_to_pull_anew(client, pull) == 0


@pytest.mark.parametrize("seed", range(6))
def test_no_leader_is_asked_for_a_pull_that_is_yet_to_be_taken_back(seed: int) -> None:
    """Of thousands some are taken back in each turn. The next leader knows the new subscription by then, and would give
    what it finds to the old pull.
    """
    group, rng = slow_group(), random.Random(seed)
    old, heir, third = group.leader, *[node for node in group.members if node != group.leader]
    clients = [group.connect(third) for _ in range(2)]
    for client in clients:
        client.heartbeat("g", expression="red", version=1)
    group.settle()
    only_elected(group, heir)
    group.kill(old)
    view = group.node(third).replica
    step_until(group, rng, lambda: view.leader is None)
    pulls = [(client, start(client, 0, 1)) for _ in range(60) for client in clients]
    step_until(group, rng, lambda: view.leader == heir)
    asked: list[int] = []

    def see(source: str, target: str, frame: Frame) -> bool:
        if isinstance(frame, Forward) and (source, target) == (third, heir):
            commands = whole_commands(bytes(frame.body))
            asked.extend(one.opaque for one in commands if one.code == RequestCode.PULL_MESSAGE)
        return False

    group.lose = see
    for client in reversed(clients):
        begin_heartbeat(client, "blue", 2)
    group.settle()
    assert len(asked) <= len(clients), (
        "of each the first went on in place of the heartbeat, before that was heard"
    )
    for client, pull in pulls:
        assert told_to_pull_anew(client, pull) == 0


@pytest.mark.parametrize("node", ["leader", "follower"])
def test_versions_of_a_pull_and_of_the_heartbeats(group: Group, node: str) -> None:
    """One that is ahead of its heartbeat waits for it, one that is behind is served (`PullMessageProcessor`)."""
    client = consumer(group, node, version=5)
    send(group, "red", b"0")
    ahead = client.wait(start(client, 0, 6))
    assert ahead.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    for version in (4, 5):
        assert Pulled.of(client.wait(start(client, 0, version))).bodies == [b"0"]

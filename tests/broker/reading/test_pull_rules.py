"""The table of `DefaultMessageStore.getMessage`, row by row: what a pull is answered with, and where it goes on."""

from __future__ import annotations

import pytest

from broker.remoting.bodies import MessageModel
from broker.remoting.codes import PullSysFlag, RequestCode, ResponseCode
from broker.replica.inner_limits import InnerLimits
from log.entries.entry_reads import record_at
from log.formats.record import decode_record
from tests.broker.fields import pull_fields
from tests.broker.harness import Client, Group, Pulled

FOUND = ResponseCode.SUCCESS
NOT_FOUND = ResponseCode.PULL_NOT_FOUND
NOT_MATCHED = ResponseCode.PULL_RETRY_IMMEDIATELY
MOVED = ResponseCode.PULL_OFFSET_MOVED


@pytest.fixture(scope="module")
def group() -> Group:
    """Topic T: queue 0 has messages 0 to 9 with tags a and b in turns, queue 1 none."""
    group = Group.elected(3)
    client = group.connect()
    client.create_topic("T", 2)
    client.heartbeat("g")
    for number in range(10):
        client.send("T", b"%d" % number, properties={"TAGS": "ab"[number % 2]})
    group.converge()
    return group


def pull(client: Client, queue_id: int, offset: int, expression: str = "*", **fields: int) -> Pulled:
    header = pull_fields(queueId=queue_id, queueOffset=offset, subscription=expression) | fields
    return Pulled.of(client.call(RequestCode.PULL_MESSAGE, header))


@pytest.mark.parametrize("node", ["leader", "follower"])
@pytest.mark.parametrize(
    ("queue_id", "offset", "expression", "code", "status", "next_offset"),
    [
        (1, 0, "*", NOT_FOUND, "NO_MATCHED_LOGIC_QUEUE", 0),
        (1, 5, "*", MOVED, "NO_MATCHED_LOGIC_QUEUE", 0),
        (0, -1, "*", MOVED, "OFFSET_TOO_SMALL", 0),
        (0, 10, "*", NOT_FOUND, "OFFSET_OVERFLOW_ONE", 10),
        (0, 11, "*", MOVED, "OFFSET_OVERFLOW_BADLY", 10),
        (0, 1 << 62, "*", MOVED, "OFFSET_OVERFLOW_BADLY", 10),
        (0, 3, "c", NOT_MATCHED, "NO_MATCHED_MESSAGE", 10),
        (0, 3, "a", FOUND, "FOUND", 10),
        (0, 9, "*", FOUND, "FOUND", 10),
    ],
)
def test_rules(
    group: Group,
    node: str,
    queue_id: int,
    offset: int,
    expression: str,
    code: int,
    status: str,
    next_offset: int,
) -> None:
    """A follower, which may lag, answers with what its leader says."""
    client = group.connect(getattr(group, node))
    answer = pull(client, queue_id, offset, expression)
    assert (answer.code, answer.status, answer.next_offset) == (code, status, next_offset)
    assert (answer.min_offset, answer.max_offset) == ((0, 10) if queue_id == 0 else (0, 0))


def test_what_is_given_ends_behind_the_last_taken(group: Group) -> None:
    client = group.connect()
    answer = pull(client, 0, 0, "a", maxMsgNums=2)
    assert (answer.bodies, answer.next_offset) == ([b"0", b"2"], 3)
    answer = pull(client, 0, 0, maxMsgNums=0)
    assert (answer.bodies, answer.next_offset) == ([b"0"], 1)


def test_the_first_matched_message_is_given_whatever_its_size(group: Group) -> None:
    """Up to what did not fit everything was looked at, and need not be again."""
    client = group.connect()
    answer = pull(client, 0, 0, "b", maxMsgBytes=1)
    assert (answer.bodies, answer.next_offset) == ([b"1"], 3)
    size = len(answer.records[0].encode())
    answer = pull(client, 0, 0, "b", maxMsgBytes=2 * size)
    assert (answer.bodies, answer.next_offset) == ([b"1", b"3"], 5)
    answer = pull(client, 0, 0, "b", maxMsgBytes=2 * size - 1)
    assert (answer.bodies, answer.next_offset) == ([b"1"], 3)


def test_messages_leave_as_views_of_the_log(group: Group) -> None:
    """Between the mapping and the socket nothing is copied; the shell gives the system what is queued here."""
    client = group.connect()
    opaque = client.start_pull("T", "g", 0)
    views = client.connection.outbox[1:]  # behind the head
    log = group.node(group.leader).replica.store.log
    for view in views:
        assert isinstance(view, memoryview)
        assert view.obj is record_at(log, decode_record(view).physical_offset).obj
    group.settle()
    assert len(views) == len(Pulled.of(client.answers[opaque]).records) == 10


@pytest.mark.parametrize("node", ["leader", "follower"])
def test_only_what_it_wants_wakes_a_pull_that_waits(node: str) -> None:
    """Its answer goes on behind all that it has looked at (`PullRequestHoldService`)."""
    group = Group.elected(3)
    sender = group.connect()
    sender.create_topic("T", 2)
    sender.heartbeat("g")
    client = group.connect(getattr(group, node))
    tags = client.start_pull("T", "g", 0, suspend_ms=15_000, expression="wanted")
    idle = client.start_pull("T", "g", 0, suspend_ms=15_000, expression="nothing")
    other = client.start_pull("T", "g", 0, 1, suspend_ms=15_000)
    for number in range(3):
        sender.send("T", b"%d" % number, properties={"TAGS": "unwanted"})
    group.advance(1)
    assert not client.answers
    sender.send("T", b"3", properties={"TAGS": "wanted"})
    group.settle()
    assert list(client.answers) == [tags]
    woken = Pulled.of(client.answers.pop(tags))
    assert (woken.code, woken.bodies, woken.next_offset) == (FOUND, [b"3"], 4)
    group.advance(14.5)
    answers = {opaque: Pulled.of(answer) for opaque, answer in client.answers.items()}
    assert {opaque: answer.code for opaque, answer in answers.items()} == {idle: NOT_FOUND, other: NOT_FOUND}
    assert answers[other].next_offset == 0
    assert pull(client, 0, answers[idle].next_offset, "nothing").next_offset == 4


def test_a_pull_that_wakes_is_told_to_go_on_if_more_came_than_one_look_goes_through() -> None:
    """What it wants lies behind: it must not wait for the next arrival."""
    group = Group(1, start=False)
    group.limits = InnerLimits(scanned_units=4)
    group.start("n0")
    group.elect()
    client = group.connect()
    client.create_topic("T")
    client.heartbeat("g")
    held = client.start_pull("T", "g", 0, suspend_ms=15_000, count=1, expression="wanted")
    group.settle()
    assert held not in client.answers
    for number in range(7):
        client.start_send("T", b"%d" % number, properties={"TAGS": "unwanted" if number < 6 else "wanted"})
    group.settle()
    woken = Pulled.of(client.answers[held])
    assert (woken.code, woken.next_offset) == (NOT_MATCHED, 4)
    assert pull(client, 0, woken.next_offset, "wanted").bodies == [b"6"]


def test_positions_of_broadcasting_groups_stay_with_their_members() -> None:
    """What comes with a pull is stored for cluster groups only (`PullMessageProcessor`)."""
    group = Group.elected(1)
    client = group.connect()
    client.create_topic("T")
    client.send("T", b"x")
    for name, model in (("all", MessageModel.BROADCASTING), ("shared", MessageModel.CLUSTERING)):
        client.heartbeat(name, model=model)
        client.pull("T", name, 0, commit_offset=1)
    group.advance(1)
    assert group.node("n0").replica.metadata.offsets == {("shared", "T"): {0: 1}}


@pytest.mark.parametrize(
    ("code", "body", "refusal"),
    [
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"g","consumeEnable":false}', 16),
        (RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=2", 16),
        (RequestCode.DELETE_TOPIC_IN_BROKER, b"", 17),
    ],
)
@pytest.mark.parametrize("arrives", [True, False])
def test_a_pull_that_waited_meets_every_check_again(
    code: int, body: bytes, refusal: int, arrives: bool
) -> None:
    """It is run again when it wakes: what has been forbidden meanwhile is refused."""
    group = Group.elected(1)
    client = group.connect()
    client.create_topic("T")
    client.heartbeat("g")
    pull_held = client.start_pull("T", "g", 0, suspend_ms=15_000)
    group.advance(1)
    client.ok(code, {"topic": "T"}, body)
    if arrives:
        client.create_topic("T") if refusal == 17 else None
        client.send("T", b"x")
        group.settle()
        expected = 0 if refusal == 17 else refusal
    else:
        group.advance(15)
        expected = refusal
    answer = client.answers[pull_held]
    assert answer.code == expected, answer.remark


@pytest.mark.parametrize("node", ["leader", "follower"])
def test_a_pull_for_a_topic_that_its_group_gave_up_is_refused_when_it_wakes(node: str) -> None:
    group = Group.elected(3)
    sender, client = group.connect(), group.connect(getattr(group, node))
    sender.create_topic("T")
    client.heartbeat("g", version=1)
    group.settle()
    held = client.start_call(
        RequestCode.PULL_MESSAGE,
        pull_fields(
            sysFlag=PullSysFlag.SUSPEND, suspendTimeoutMillis=15_000, subVersion=1, subscription=None
        ),
    )
    sender.heartbeat("g", topics=["Other"], version=3)
    sender.send("T", b"2")
    assert client.wait(held).code == ResponseCode.SUBSCRIPTION_NOT_EXIST

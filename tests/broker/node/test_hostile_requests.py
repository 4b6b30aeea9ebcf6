"""Requests that are wrong, by mistake or on purpose, hurt themselves and never the node, let alone the group."""

from __future__ import annotations

import pytest

from broker.node.relayed_clients import RELAYED_BYTES_MAX
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import (
    FRAME_SIZE_MAX,
    JSON,
    ROCKETMQ,
    RemotingCommand,
    decode_command,
    encode,
    response,
)
from broker.remoting.frame import FrameDecoder
from broker.replica.inner_limits import InnerLimits
from broker.replica.leadership import Leadership
from broker.requests.connection import UNREAD_BYTES_MAX
from broker.requests.errors import OverloadedError
from broker.state.commands import DeleteTopic, encode_command
from broker.state.topic_rules import FORBIDDEN_TO_SEND, INTERNAL_TOPIC, RETRY_PREFIX
from log.errors import DiskFullError
from tests.broker.fields import pull_fields
from tests.broker.harness import Client, Group, Pulled


@pytest.fixture(params=["leader", "follower"])
def client(group: Group, request: pytest.FixtureRequest) -> Client:
    client = group.connect(getattr(group, request.param))
    client.create_topic("T")
    return client


@pytest.mark.parametrize("sys_flag", [0x4, 0xC])
def test_prepared_and_rolled_back_messages_are_refused(client: Client, sys_flag: int) -> None:
    # Such a record gets no unit in its queue: the next message would leave a hole there, on every replica.
    answer = client.wait(client.start_send("T", b"half", sysFlag=sys_flag))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert client.send("T", b"whole").queue_offset == 0
    assert client.send("T", b"whole").queue_offset == 1
    client.group.converge()


_NO_SPACE = DiskFullError("the store", "writing", "no space left")


def fill_disk(patch: pytest.MonkeyPatch, error: Exception = _NO_SPACE) -> None:
    """Not even a command has room in the log."""

    def refused(self: Leadership, tag: bytes, body: bytes) -> int:
        raise error

    patch.setattr(Leadership, "append_internal", refused)


@pytest.mark.parametrize("from_a", ["leader", "follower"])
def test_offsets_reported_while_nothing_has_room_are_lost_and_nothing_else(
    group: Group, from_a: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = group.connect(getattr(group, from_a))
    client.create_topic("T")
    report = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 7}
    with monkeypatch.context() as patch:
        fill_disk(patch)
        client.tell(RequestCode.UPDATE_CONSUMER_OFFSET, report)
        group.advance(1)
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, report)
    assert client.ok(RequestCode.QUERY_CONSUMER_OFFSET, report).fields["offset"] == "7"


@pytest.mark.parametrize(
    ("error", "code", "remark"),
    [
        (DiskFullError("the store", "writing", "no space left"), 14, "disk full: "),
        (OverloadedError("9 bytes of the log wait for a majority"), 2, "[REJECTREQUEST]system busy"),
    ],
)
def test_answered_offset_report_without_room_is_told_that_it_is_not_stored(
    client: Client, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, remark: str
) -> None:
    report = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 7}
    with monkeypatch.context() as patch:
        fill_disk(patch, error)
        opaque = client.start_call(RequestCode.UPDATE_CONSUMER_OFFSET, report)
        question = client.start_call(RequestCode.QUERY_CONSUMER_OFFSET, report)
        answer = client.wait(opaque)
        assert answer.code == code
        assert (answer.remark or "").startswith(remark)
        client.wait(question)
    client.group.advance(1)
    assert client.call(RequestCode.QUERY_CONSUMER_OFFSET, report).fields["offset"] == "0"
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, report)
    assert client.ok(RequestCode.QUERY_CONSUMER_OFFSET, report).fields["offset"] == "7"


def test_of_offset_reports_that_find_room_in_part_each_is_told_what_became_of_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they are two commands, and the disk is full behind the first, which left when it was full."""
    count = InnerLimits().queues_per_command + 1
    reports = [
        {"consumerGroup": f"G{number}", "topic": "T", "queueId": 0, "commitOffset": 7}
        for number in range(count)
    ]
    append = Leadership.append_internal
    appended: list[bytes] = []

    def once(self: Leadership, tag: bytes, body: bytes) -> int:
        if appended:
            raise DiskFullError("the store", "writing", "no space left")
        appended.append(body)
        return append(self, tag, body)

    with monkeypatch.context() as patch:
        patch.setattr(Leadership, "append_internal", once)
        relayed_in_one_turn(client.group)
        for report in reports[:-1]:
            client.start_call(RequestCode.UPDATE_CONSUMER_OFFSET, report)
        answer = client.call(RequestCode.UPDATE_CONSUMER_OFFSET, reports[-1])
    assert (answer.code, "no space left" in (answer.remark or "")) == (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        True,
    )
    client.group.advance(1)
    for stored in (reports[0], reports[-2]):
        assert client.ok(RequestCode.QUERY_CONSUMER_OFFSET, stored).fields["offset"] == "7"
    assert client.call(RequestCode.QUERY_CONSUMER_OFFSET, reports[-1]).fields["offset"] == "0"


def test_leader_elected_with_a_full_disk_lives(group: Group) -> None:
    for member in group.alive():
        member.alive.replica.disk_space.refuses_sends = True
    group.kill(group.leader)
    group.run_until(lambda: any(member.alive.replica.serving for member in group.alive()))
    group.advance(5)
    assert len(group.alive()) == 2


def test_offset_reports_of_very_many_groups_fit_into_the_log(client: Client) -> None:
    count = 6000
    for number in range(count):
        report = {"consumerGroup": f"G{number:0240}", "topic": "T", "queueId": 0, "commitOffset": number}
        client.tell(RequestCode.UPDATE_CONSUMER_OFFSET, report)
    client.group.advance(1)
    report = {"consumerGroup": f"G{count - 1:0240}", "topic": "T", "queueId": 0}
    assert client.ok(RequestCode.QUERY_CONSUMER_OFFSET, report).fields["offset"] == str(count - 1)
    client.group.converge()


def test_request_that_is_too_large_to_be_forwarded_is_refused(group: Group) -> None:
    """Written anew with every field, its header is longer than what the client sent."""
    follower = group.node(group.follower)
    connection = group.connect(group.follower)
    header = b'{"code":10,"opaque":77,"extFields":{}}'
    body = bytes(FRAME_SIZE_MAX - 8 - len(header))
    follower.begin(group.now_ns, group.wall_ms)
    follower.received(connection.connection, decode_command(0, header, body))
    group.members[group.follower].due_ns = group.now_ns
    assert connection.wait(77).code == ResponseCode.MESSAGE_ILLEGAL


def test_group_whose_retry_topic_no_directory_can_be_named_after_is_refused(client: Client) -> None:
    name = "g" * 249
    body = b'{"groupName":"%b","retryQueueNums":1}' % name.encode()
    answer = client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    longest = name[:248]
    body = b'{"groupName":"%b","retryQueueNums":1}' % longest.encode()
    client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
    assert client.send(RETRY_PREFIX + longest, b"again").queue_offset == 0
    assert client.send(RETRY_PREFIX + longest, b"again").queue_offset == 1
    client.group.converge()
    queue = client.group.node(client.group.leader).replica.store.queues.get(RETRY_PREFIX + longest, 0)
    assert queue is not None
    assert queue.max_offset == 2


def pull_of_much(group: Group) -> tuple[Client, dict[str, object]]:
    """A client of a follower, and a pull that only the leader may answer, with a quarter of a MiB."""
    client = group.connect(group.follower)
    client.create_topic("T")
    for _ in range(9):
        client.send("T", bytes(32 * 1024))
    client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"G","retryQueueNums":1}')
    commits_offset, brings_subscription = 1, 4
    return client, pull_fields(consumerGroup="G", sysFlag=commits_offset | brings_subscription)


def relayed_in_one_turn(group: Group) -> None:
    """Lets the leader's next turn handle all that its followers forward, as if it was not much."""
    group.node(group.leader)._relayed._work_left = 1 << 30


def test_relayed_answers_do_not_pile_up_on_the_leader(group: Group) -> None:
    client, pull = pull_of_much(group)
    # The link takes all that a turn gives it: so all is given in one.
    relayed_in_one_turn(group)
    opaques = [client.start_call(RequestCode.PULL_MESSAGE, pull) for _ in range(200)]
    group.settle()
    codes = [client.answers[opaque].code for opaque in opaques]
    assert set(codes) == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
    answered = sum(len(client.answers[opaque].body) for opaque in opaques)
    assert RELAYED_BYTES_MAX < answered < RELAYED_BYTES_MAX + 512 * 1024
    assert Pulled.of(client.call(RequestCode.PULL_MESSAGE, pull)).bodies, "the link has room again"


def test_client_that_does_not_read_relayed_answers_is_disconnected(group: Group) -> None:
    client, pull = pull_of_much(group)
    client.start_call(RequestCode.PULL_MESSAGE, pull)
    client.connection.unsent_bytes = UNREAD_BYTES_MAX
    group.settle()
    answered = len(client.answers)
    assert answered == 1
    client.connection.unsent_bytes = 0  # with so much unsent its next request would not be read
    client.start_call(RequestCode.PULL_MESSAGE, pull)
    client.connection.unsent_bytes = UNREAD_BYTES_MAX + 1
    group.settle()
    assert client.closed
    assert len(client.answers) == answered
    assert Pulled.of(group.connect(group.follower).call(RequestCode.PULL_MESSAGE, pull)).bodies


# ---- the group's own topic: whatever came into it would be applied by every replica, for ever ----------------------


@pytest.mark.parametrize("properties", [{}, {"DELAY": "1"}, {"TIMER_DELAY_MS": "100"}, {"TRAN_MSG": "true"}])
def test_nobody_writes_commands_into_the_log(client: Client, properties: dict[str, str]) -> None:
    command = encode_command(DeleteTopic("T", 0))
    answer = client.wait(client.start_send(INTERNAL_TOPIC, command, 0, {"TAGS": "command", **properties}))
    assert answer.code == ResponseCode.NO_PERMISSION
    client.group.advance(3)
    assert "T" in client.group.node(client.group.leader).replica.metadata.topics


@pytest.mark.parametrize("topic", sorted(FORBIDDEN_TO_SEND))
def test_sending_creates_no_topic_of_the_brokers_own(client: Client, topic: str) -> None:
    before = dict(client.group.node(client.group.leader).replica.metadata.topics)
    assert client.wait(client.start_send(topic, b"x")).code == ResponseCode.NO_PERMISSION
    assert client.group.node(client.group.leader).replica.metadata.topics == before


def test_the_groups_own_topic_cannot_be_made_by_an_administrator(client: Client) -> None:
    fields = {"topic": INTERNAL_TOPIC, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1}
    more = {"perm": 6, "topicFilterType": "SINGLE_TAG", "order": False}
    answer = client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, {**fields, **more})
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_property_of_the_brokers_in_a_message_of_a_clients(client: Client) -> None:
    """REAL_QID says something in a message that waits; in any other it is the sender's own text."""
    properties = {"UNIQ_KEY": "K", "REAL_QID": "no number", "REAL_TOPIC": "T"}
    first = client.wait(client.start_send("T", b"x", 0, properties, once=0))
    client.start_send("T", b"other", 0, {"UNIQ_KEY": "L"})  # so that the next is decided in a later turn
    again = client.wait(client.start_send("T", b"x", 0, properties, once=0, again=True))
    assert (again.code, again.fields["once"]) == (ResponseCode.SUCCESS, "found")
    assert again.fields["queueId"] == first.fields["queueId"] == "0"


# ---- words of one client in the answer to another -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "remark", "serialization"),
    [(40_000, None, ROCKETMQ), (0, "\x01" * 7_000_000, JSON), (1, "x" * 8_000_000, JSON)],
)
def test_consumers_answer_that_cannot_be_carried(
    client: Client, code: int, remark: str | None, serialization: int
) -> None:
    client.heartbeat("g")
    asker = client.group.connect()
    asker.serialization = serialization
    fields = {"consumerGroup": "g", "clientId": client.client_id}
    opaque = asker.start_call(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    _answer_notice(client, code, remark, ROCKETMQ if remark else JSON)
    assert asker.wait(opaque).code == ResponseCode.SYSTEM_ERROR
    assert client.send("T", b"on it goes").queue_offset == 0


def test_requesters_answer_that_cannot_be_told_to_the_replier(client: Client) -> None:
    client.heartbeat(producer_group="P")
    replier = client.group.connect()
    fields = {
        "producerGroup": "P",
        "topic": "DefaultCluster_REPLY_TOPIC",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
    }
    more = {"queueId": 0, "sysFlag": 0, "bornTimestamp": 1, "flag": 0}
    properties = f"REPLY_TO_CLIENT\x01{client.client_id}\x02"
    opaque = replier.start_call(
        RequestCode.SEND_REPLY_MESSAGE, {**fields, **more, "properties": properties}, b"reply"
    )
    _answer_notice(client, 1, "\x01" * 7_000_000, ROCKETMQ)
    assert replier.wait(opaque).code == ResponseCode.SYSTEM_ERROR
    client.send("T", b"on it goes")


def test_clients_answer_that_is_too_large_to_be_passed_on(group: Group) -> None:
    """Written anew with every field it is longer than what the client sent."""
    client = group.connect(group.follower)
    client.create_topic("T")
    client.heartbeat("g")
    asker = group.connect()
    fields = {"consumerGroup": "g", "clientId": client.client_id}
    opaque = asker.start_call(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    header = b'{"code":0,"flag":1,"opaque":%d}' % _notice(client).opaque
    node = group.node(group.follower)
    node.begin(group.now_ns, group.wall_ms)
    body = bytes(FRAME_SIZE_MAX - 8 - len(header))
    node.received(client.connection, decode_command(JSON, header, body))
    group.members[group.follower].due_ns = group.now_ns
    assert asker.wait(opaque).code == ResponseCode.SYSTEM_ERROR


def _notice(client: Client) -> RemotingCommand:
    def questions() -> list[RemotingCommand]:
        return [notice for notice in client.notices if not notice.is_one_way]

    client.group.run_until(lambda: bool(questions()), "a question to the client")
    return questions()[-1]


def _answer_notice(client: Client, code: int, remark: str | None, serialization: int) -> None:
    answer = response(_notice(client), code, remark)
    answer.serialization = serialization
    node = client._member.alive
    node.begin(client.group.now_ns, client.group.wall_ms)
    for command in FrameDecoder().feed(encode(answer)):
        node.received(client.connection, command)
    client._member.due_ns = client.group.now_ns


@pytest.mark.parametrize(("asked", "bound"), [("leader", "UNREAD"), ("follower", "RELAYED")])
def test_long_lists_are_not_made_for_who_does_not_read_them(
    group: Group, asked: str, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for a hundred times in one read, the list of many topics would have filled the memory of a broker."""
    most = 1_000_000
    module = "requests.connection" if bound == "UNREAD" else "node.relayed_clients"
    monkeypatch.setattr(f"broker.{module}.{bound}_BYTES_MAX", most)
    # This client takes its answers after each turn: all are given in one, as if it took none.
    monkeypatch.setattr("broker.replica.read_barriers.WEIGHT_A_TURN", 1 << 30)
    client = group.connect(getattr(group, asked))
    many = b",".join(b'{"topicName": "T%d"}' % number for number in range(500))
    client.ok(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, b'{"topicConfigList": [%s]}' % many)
    size = len(client.ok(RequestCode.GET_ALL_TOPIC_CONFIG).body)
    opaques = [client.start_call(RequestCode.GET_ALL_TOPIC_CONFIG) for _ in range(3 * most // size)]
    answers = [client.wait(opaque) for opaque in opaques]
    given = sum(len(answer.body) for answer in answers)
    assert most - size < given <= most + 2 * size
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
    client.ok(RequestCode.GET_ALL_TOPIC_CONFIG)

"""Consumer offsets and queue offsets: rules, limits, and what a failover leaves."""

from __future__ import annotations

import pytest

from broker.offsets import offsets_processor
from broker.offsets.commits import OffsetCommits
from broker.peers.protocol import RaftFrame
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.headers import OffsetResponseHeader
from broker.remoting.json_body import parse_loose_json
from broker.replica.leadership import Leadership
from broker.requests.errors import OverloadedError
from raft.messages import VoteResponse
from tests.broker.harness import Client, Group


@pytest.fixture(params=["leader", "follower"])
def client(group: Group, request: pytest.FixtureRequest) -> Client:
    """Connected to either, which must make no difference."""
    client = group.connect(group.leader if request.param == "leader" else group.follower)
    client.create_topic("T", 2)
    client.heartbeat("g")
    return client


def commit(client: Client, offset: int, queue_id: int = 0, group: str = "g") -> None:
    fields = {"consumerGroup": group, "topic": "T", "queueId": queue_id, "commitOffset": offset}
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def stored(client: Client, queue_id: int = 0, group: str = "g") -> int:
    return client.offset_of(RequestCode.QUERY_CONSUMER_OFFSET, "T", queue_id, consumerGroup=group)


def test_queue_has_a_beginning_and_an_end(client: Client) -> None:
    assert client.offset_of(RequestCode.GET_MAX_OFFSET, "T") == 0
    assert client.offset_of(RequestCode.GET_MIN_OFFSET, "T") == 0
    for number in range(3):
        client.send("T", b"%d" % number)
    assert client.offset_of(RequestCode.GET_MAX_OFFSET, "T") == 3
    assert client.offset_of(RequestCode.GET_MIN_OFFSET, "T") == 0
    assert client.offset_of(RequestCode.GET_MAX_OFFSET, "T", 1) == 0


def test_offsets_by_time(client: Client) -> None:
    times = []
    for number in range(3):
        client.send("T", b"%d" % number)
        times.append(client.group.wall_ms)
        client.group.advance(1)

    def at(timestamp: int, boundary: str | None = None) -> int:
        return client.offset_of(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, "T", timestamp=timestamp, boundaryType=boundary
        )

    begin = times[0] - 10
    assert at(begin) == 0
    assert at(times[1] - 500) == 1
    assert at(times[1] - 500, "UPPER") == 0
    assert at(times[2] + 500) == 3
    earliest = client.ok(RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "T", "queueId": 0}).fields
    assert begin < int(earliest["timestamp"]) <= times[0]
    empty = client.ok(RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "T", "queueId": 1}).fields
    assert empty["timestamp"] == "-1"


def test_committed_offset_is_read_back(client: Client) -> None:
    commit(client, 7)
    commit(client, 3, queue_id=1)
    assert (stored(client), stored(client, 1)) == (7, 3)
    commit(client, 2)
    assert stored(client) == 2, "a lower offset is a consumer's right"


def test_one_way_commit_is_seen_by_the_question_after_it(client: Client) -> None:
    client.tell(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 5},
    )
    assert stored(client) == 5


def test_a_report_that_takes_back_one_on_its_way_is_stored(group: Group) -> None:
    """It says what is stored already, but not for long: the other report is in the log and not yet committed."""
    client = group.connect()
    client.create_topic("T")

    def report(offset: int) -> None:
        client.tell(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": offset},
        )
        group.advance(0.15)

    report(5)
    group.lose = lambda source, target, frame: True
    report(10)
    report(5)
    group.lose = lambda source, target, frame: False
    group.advance(1)
    assert group.node(group.leader).replica.metadata.offsets["g", "T"] == {0: 5}


def test_reports_that_find_no_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group.elected(1, limits={"max_stored_offsets": 1})
    client = group.connect()
    client.create_topic("T", 2)
    commits = group.node(group.leader).part(OffsetCommits)

    def report(queue_id: int, offset: int) -> None:
        client.tell(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "g", "topic": "T", "queueId": queue_id, "commitOffset": offset},
        )
        group.advance(0.15)

    def refuse(*_: object) -> None:
        raise OverloadedError("too much waits for a majority")

    report(0, 5)
    assert (stored(client), commits.dropped) == (5, 0)
    report(1, 5)
    assert commits.dropped == 1
    monkeypatch.setattr(Leadership, "propose_command", refuse)
    report(0, 7)
    assert (stored(client), commits.dropped) == (5, 2)


def test_a_question_waits_for_a_report_on_its_way(group: Group) -> None:
    """Who asks after the report, as the next member of the group does, is told of it."""
    client = group.connect()
    client.create_topic("T")
    client.tell(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 5},
    )
    group.lose = lambda source, target, frame: (
        isinstance(frame, RaftFrame) and bool(getattr(frame.message, "spans", ()))
    )
    group.advance(0.15)
    question = client.start_call(
        RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "g", "topic": "T", "queueId": 0}
    )
    group.advance(0.1)
    assert question not in client.answers
    group.lose = lambda source, target, frame: False
    assert client.wait(question).decode_fields(OffsetResponseHeader).offset == 5


def test_offset_that_comes_with_a_pull_is_stored(client: Client) -> None:
    client.send("T", b"0")
    client.pull("T", "g", 0, commit_offset=1)
    assert stored(client) == 1


def test_group_without_an_offset_begins_at_the_start_of_a_young_queue(client: Client) -> None:
    client.send("T", b"0")
    assert stored(client, group="new") == 0
    answer = client.call(
        RequestCode.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": "new", "topic": "T", "queueId": 0, "setZeroIfNotFound": False},
    )
    assert answer.code == ResponseCode.QUERY_NOT_FOUND


def test_group_without_an_offset_is_told_of_none_in_a_queue_that_is_long(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it begins there its consumer decides."""
    monkeypatch.setattr(offsets_processor, "YOUNG_QUEUE_BYTES", 2_000)
    question = {"consumerGroup": "new", "topic": "T", "queueId": 0}
    client.send("T", bytes(1_000))
    assert stored(client, group="new") == 0
    client.send("T", bytes(1_000), queue_id=1)
    client.ok(RequestCode.QUERY_CONSUMER_OFFSET, question | {"queueId": 1})
    answer = client.call(RequestCode.QUERY_CONSUMER_OFFSET, question)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND


def test_acknowledged_offsets_survive_leaders(group: Group, client: Client) -> None:
    for round_number in range(3):
        commit(client, 10 + round_number)
        victim = next(m.id for m in group.members.values() if client.connection not in m.clients)
        group.kill(victim)
        group.elect()
        assert stored(client) == 10 + round_number
        group.restart(victim)
        group.elect()
        group.converge()
    for member in group.alive():
        assert member.alive.replica.metadata.offsets["g", "T"] == {0: 12}


def test_offsets_survive_a_restart_of_all(group: Group, client: Client) -> None:
    commit(client, 4)
    for node in list(group.members):
        group.kill(node)
    for node in list(group.members):
        group.restart(node)
    group.elect()
    assert stored(group.connect()) == 4


def test_idle_consumer_does_not_grow_the_log(group: Group, client: Client) -> None:
    commit(client, 4)
    group.converge()
    last = group.node(group.leader).replica.store.log.last_index
    for _ in range(20):
        client.tell(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 4},
        )
        group.advance(5)
    assert group.node(group.leader).replica.store.log.last_index == last


def test_many_reports_share_a_command(group: Group, client: Client) -> None:
    group.converge()
    last = group.node(group.leader).replica.store.log.last_index
    for offset in range(100):
        client.tell(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "g", "topic": "T", "queueId": offset % 2, "commitOffset": offset},
        )
        group.advance(0.0005)
    group.advance(1)
    assert group.node(group.leader).replica.store.log.last_index == last + 1
    assert (stored(client), stored(client, 1)) == (98, 99)


def test_all_offsets_and_clones(client: Client) -> None:
    commit(client, 7)
    commit(client, 3, queue_id=1)
    client.ok(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g", "destGroup": "h"})
    assert (stored(client, 0, "h"), stored(client, 1, "h")) == (7, 3)
    body = client.ok(RequestCode.GET_ALL_CONSUMER_OFFSET).body
    assert b'"T@g":{0:7,1:3}' in bytes(body), "bare integer keys, as in consumerOffset.json"
    assert parse_loose_json(body) == {"offsetTable": {"T@g": {"0": 7, "1": 3}, "T@h": {"0": 7, "1": 3}}}


def test_a_clone_leaves_out_what_the_members_no_longer_consume_unless_told(client: Client) -> None:
    client.create_topic("left")
    commit(client, 7)
    client.ok(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": "g", "topic": "left", "queueId": 0, "commitOffset": 4},
    )

    def cloned(group: str, **more: str) -> list[str]:
        client.ok(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g", "destGroup": group, **more})
        table = parse_loose_json(client.ok(RequestCode.GET_ALL_CONSUMER_OFFSET).body)["offsetTable"]
        return sorted(key for key in table if key.endswith(f"@{group}"))

    assert cloned("h1") == ["T@h1"], "a member of g subscribes to T alone"
    assert cloned("h2", offline="false", topic="left") == []
    assert cloned("h3", offline="true") == ["T@h3", "left@h3"]
    client.ok(RequestCode.UNREGISTER_CLIENT, {"clientID": client.client_id, "consumerGroup": "g"})
    assert cloned("h4") == ["T@h4", "left@h4"], "without members nobody can tell"


def test_what_was_reported_before_does_not_undo_a_clone(group: Group, client: Client) -> None:
    commit(client, 100)
    report = {"consumerGroup": "h", "topic": "T", "queueId": 0, "commitOffset": 5}
    client.tell(RequestCode.UPDATE_CONSUMER_OFFSET, report)
    client.ok(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g", "destGroup": "h"})
    group.advance(1)
    assert stored(client, 0, "h") == 100


def test_what_was_reported_before_does_not_outlive_its_group(group: Group, client: Client) -> None:
    commit(client, 4)
    report = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 5}
    client.tell(RequestCode.UPDATE_CONSUMER_OFFSET, report)
    client.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": "true"})
    group.advance(1)
    assert ("g", "T") not in group.node(group.leader).replica.metadata.offsets


@pytest.mark.parametrize(
    ("code", "fields", "answer", "remark"),
    [
        (RequestCode.GET_MAX_OFFSET, {"topic": "none", "queueId": 0}, 17, "topic[none] not exist"),
        (RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 2}, 1, "queueId[2] is illegal"),
        (RequestCode.GET_MIN_OFFSET, {"topic": "T", "queueId": -1}, 1, "queueId[-1] is illegal"),
        (RequestCode.GET_MIN_OFFSET, {"topic": "T"}, 1, "the custom field <queueId> is null"),
        (RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "x"}, 1, "<queueId> is 'x'"),
        (
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": -1},
            1,
            "negative",
        ),
        (
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "?", "topic": "T", "queueId": 0, "commitOffset": 1},
            1,
            "illegal characters",
        ),
    ],
)
def test_bad_requests(client: Client, code: int, fields: dict[str, object], answer: int, remark: str) -> None:
    refused = client.call(code, fields)
    assert refused.code == answer
    assert remark in (refused.remark or "")


@pytest.mark.parametrize("how", ["hands over", "is deposed"])
def test_a_report_that_a_lost_leader_has_only_staged_is_stored_by_the_next(group: Group, how: str) -> None:
    """Its consumer was told that nobody knows what became of it, although nothing of it was in the log."""
    old = group.leader
    client = group.connect(old)
    client.create_topic("T", 2)
    client.heartbeat("g")
    group.converge()
    heir, leader = group.follower, group.node(old)
    group.settle()
    fields = {"consumerGroup": "g", "topic": "T", "queueId": 0}
    reported = client.start_call(RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "commitOffset": 5})
    asked = client.start_call(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    assert leader.part(OffsetCommits).staged
    leader.begin(group.now_ns, group.wall_ms)
    if how == "hands over":
        leader.replica.group_changes.transfer(heir)
    else:
        term = leader.replica.term + 1
        message = VoteResponse(heir, old, term, term, granted=False)
        leader.peer_received(heir, RaftFrame(message))
    assert client.wait(reported).code == ResponseCode.SUCCESS
    assert client.wait(asked).fields["offset"] == "5"
    assert stored(client) == 5

"""Order locks: granted once, kept across failovers, free again when not renewed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.consumer_groups.locks_processor import QUEUES_PER_REQUEST_MAX
from broker.remoting.bodies import LockBatchBody, LockBatchResponseBody, MessageQueue
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.json_body import decode_body, encode_body
from tests.broker.harness import SMALL_STORE, Client, Group
from tests.broker.lost_leader import LostLeader

QUEUES = (0, 1)


@pytest.fixture
def group() -> Group:
    group = Group.elected(3)
    group.connect().create_topic("T", 2)
    return group


def body(client: str, queues: tuple[int, ...], topic: str = "T", group: str = "g") -> bytes:
    wanted = [MessageQueue("broker-a", queue, topic) for queue in queues]
    return encode_body(LockBatchBody(client_id=client, consumer_group=group, queues=wanted))


def lock(connection: Client, client: str, *queues: int, topic: str = "T", group: str = "g") -> list[int]:
    answer = connection.ok(RequestCode.LOCK_BATCH_MQ, None, body(client, queues, topic, group))
    return [queue.queue_id for queue in decode_body(answer.body, LockBatchResponseBody).queues]


def unlock(connection: Client, client: str, *queues: int) -> None:
    connection.ok(RequestCode.UNLOCK_BATCH_MQ, None, body(client, queues))


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_one_holder_at_a_time(group: Group, place: str) -> None:
    connection = group.connect(getattr(group, place))
    assert lock(connection, "a", 0, 1) == [0, 1]
    assert lock(connection, "b", 0, 1) == []
    assert lock(connection, "b", 0, 1, group="other-group") == [0, 1]
    unlock(connection, "b", 0)
    assert lock(connection, "b", 0) == [], "only the holder releases"
    unlock(connection, "a", 0)
    assert lock(connection, "b", 0, 1) == [0]


def test_lock_is_free_after_a_minute_without_renewal(group: Group) -> None:
    connection = group.connect()
    assert lock(connection, "a", 0) == [0]
    for _ in range(4):
        group.advance(50)
        assert lock(connection, "b", 0) == []
        assert lock(connection, "a", 0) == [0], "renewed"
    group.advance(61)
    assert lock(connection, "b", 0) == [0]


def test_lock_survives_its_leader(group: Group) -> None:
    connection = group.connect(group.follower)
    assert lock(connection, "a", *QUEUES) == [0, 1]
    group.kill(group.leader)
    group.elect()
    assert lock(connection, "b", *QUEUES) == []
    assert lock(connection, "a", *QUEUES) == [0, 1]


def test_neither_a_new_leader_nor_a_wall_clock_ages_a_lock(group: Group) -> None:
    connection = group.connect(group.follower)
    assert lock(connection, "a", 0) == [0]
    group.advance(40)
    group.kill(group.leader)
    group.wall_offset_ms += 3_600_000
    group.elect()
    assert lock(connection, "b", 0) == []
    group.advance(50)
    assert lock(connection, "b", 0) == [], "what passed under the old leader is not counted"
    group.advance(11)
    assert lock(connection, "b", 0) == [0]
    group.wall_offset_ms -= 7_200_000
    group.advance(61)
    assert lock(connection, "a", 0) == [0]


def test_a_new_leader_goes_on_from_the_last_renewal_however_long_others_have_led(group: Group) -> None:
    """Counted from its own beginning, the lock of a consumer that died would live on for as long as they had led."""
    connection = group.connect(group.follower)
    group.advance(100)
    assert lock(connection, "a", 0) == [0]
    group.kill(group.leader)
    group.elect()
    assert lock(connection, "b", 0) == []
    group.advance(61)
    assert lock(connection, "b", 0) == [0]


def test_queues_that_do_not_exist_are_not_granted(group: Group) -> None:
    connection = group.connect()
    assert lock(connection, "a", 0, 2, -1) == [0]
    assert lock(connection, "a", 0, topic="none") == []
    unlock(connection, "a", 7)


def test_very_many_queues_at_once() -> None:
    """One command would be an entry that does not fit into a data file."""
    group = Group.elected(1, options=replace(SMALL_STORE, data_file_bytes=1 << 17))
    connection = group.connect()
    topic = "t" * 127
    connection.create_topic(topic, 1_500)
    every = range(1_500)
    assert lock(connection, "a", *every, topic=topic) == [*every]
    assert lock(connection, "b", 0, 1_499, topic=topic) == []
    connection.ok(RequestCode.UNLOCK_BATCH_MQ, None, body("a", tuple(every), topic))
    assert lock(connection, "b", 0, 1_499, topic=topic) == [0, 1_499]


def test_there_is_room_for_so_many_that_live() -> None:
    group = Group.elected(1, limits={"max_order_locks": 3})
    connection = group.connect()
    connection.create_topic("T", 2)
    assert lock(connection, "a", 0, 1) == [0, 1]
    assert lock(connection, "a", 0, group="h") == [0]
    refused = connection.call(RequestCode.LOCK_BATCH_MQ, None, body("a", (1,), group="h"))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert refused.remark == "there are 3 order locks, at most 3 may be (limits.max_order_locks)"
    group.advance(30)
    assert lock(connection, "a", 0, 1) == [0, 1], "renewed"
    group.advance(31)
    refused = connection.call(RequestCode.LOCK_BATCH_MQ, None, body("a", (0, 1), group="i"))
    assert refused.code == ResponseCode.SYSTEM_ERROR, "one has expired, two are wanted"
    assert lock(connection, "a", 1, group="h") == [1], "in the place of one that has expired"
    unlock(connection, "a", 0)
    pending = [
        connection.start_call(RequestCode.LOCK_BATCH_MQ, None, body("a", (0,), group=name))
        for name in ("i", "j")
    ]
    codes = [connection.wait(opaque).code for opaque in pending]
    assert codes == [ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR], "what is under way counts"


def test_locks_go_with_their_topic(group: Group) -> None:
    connection = group.connect()
    assert lock(connection, "a", 0) == [0]
    connection.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    connection.create_topic("T")
    assert lock(connection, "b", 0) == [0]


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
def test_bad_requests(group: Group, code: int) -> None:
    connection = group.connect()
    answer = connection.call(code, None, body("", (0,)))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "clientId" in (answer.remark or "")
    assert connection.call(code, None, b"{").code == ResponseCode.SYSTEM_ERROR


def test_a_lock_makes_its_group_as_a_pull_does_where_that_may_be() -> None:
    group = Group.elected(1, limits={"max_groups": 12})
    client = group.connect()
    client.create_topic("T", 2)
    known = group.node("n0").replica.metadata.groups
    refused = 0
    for number in range(8):
        answer = client.call(RequestCode.LOCK_BATCH_MQ, None, body("a", (0,), group=f"g{number}"))
        refused += answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert (f"g{number}" in known) is (answer.code == ResponseCode.SUCCESS)
    assert 0 < refused < 8
    closed = Group.elected(1, broker={"auto_create_groups": False})
    client = closed.connect()
    client.create_topic("T", 2)
    answer = client.call(RequestCode.LOCK_BATCH_MQ, None, body("a", (0,)))
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert not closed.node("n0").replica.metadata.locks


def test_locks_of_very_many_queues_are_refused(group: Group) -> None:
    client = group.connect()
    answer = client.call(RequestCode.LOCK_BATCH_MQ, None, body("a", (0,) * (QUEUES_PER_REQUEST_MAX + 1)))
    assert (answer.code, str(QUEUES_PER_REQUEST_MAX) in str(answer.remark)) == (
        ResponseCode.SYSTEM_ERROR,
        True,
    )


def test_an_unlock_that_is_held_stays_behind_the_locks_that_a_lost_leader_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They waited for their consumer group. The client would hold what it has given up, and nobody consume that."""
    there = LostLeader(monkeypatch)
    client = there.client
    wanted = body("a", (0,), group="new")
    asked = [client.start_call(RequestCode.LOCK_BATCH_MQ, None, wanted) for _ in range(8)]
    there.lose()
    asked.append(client.start_call(RequestCode.UNLOCK_BATCH_MQ, None, wanted))
    there.answers(asked)
    assert there.order_of(asked) == asked
    assert lock(there.group.connect(), "b", 0, group="new") == [0]

"""Messages by id and by key, from any node and only when committed (`QueryMessageProcessor`)."""

from __future__ import annotations

import pytest

from broker.peers.protocol import Frame, RaftFrame
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.headers import SendMessageResponseHeader
from log.formats.batch import BatchItem, encode_batch
from log.formats.layout import HEADER_BYTES
from log.formats.message_id import parse_offset_message_id
from raft.messages import TimeoutNow
from tests.broker.fields import send_fields
from tests.broker.harness import START_WALL_MS, Client, Group, split_records


@pytest.fixture
def group() -> Group:
    group = Group.elected(3)
    group.connect().create_topic("T", 2)
    return group


@pytest.fixture(params=["leader", "follower"])
def client(group: Group, request: pytest.FixtureRequest) -> Client:
    return group.connect(getattr(group, request.param))


def query(
    client: Client, key: str, *, unique: bool = False, maximum: int = 64, **fields: object
) -> list[bytes]:
    answer = client.call(
        RequestCode.QUERY_MESSAGE,
        {
            "topic": "T",
            "key": key,
            "maxNum": maximum,
            "beginTimestamp": 0,
            "endTimestamp": START_WALL_MS * 2,
            "_UNIQUE_KEY_QUERY": unique,
            **fields,
        },
    )
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return []
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return [record.body for record in split_records(answer.body)]


def test_by_id(client: Client) -> None:
    receipt = client.send("T", b"body")
    offset = parse_offset_message_id(receipt.message_id)[1]
    answer = client.ok(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
    (record,) = split_records(answer.body)
    assert (record.body, record.physical_offset) == (b"body", offset)


@pytest.mark.parametrize("shift", [1, -48, -1_000_000, 1_000_000])
def test_offset_that_is_no_message(client: Client, shift: int) -> None:
    offset = parse_offset_message_id(client.send("T", b"body").message_id)[1] + shift
    answer = client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"can not find message by the offset, {offset}"


def test_commands_of_the_group_are_no_messages(client: Client) -> None:
    assert client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 48}).code == ResponseCode.SYSTEM_ERROR


def test_by_key_newest_first(client: Client) -> None:
    for number in range(5):
        client.send("T", b"%d" % number, number % 2, {"KEYS": f"common own-{number}"})
    assert query(client, "common") == [b"4", b"3", b"2", b"1", b"0"]
    assert query(client, "common", maximum=2) == [b"4", b"3"]
    assert query(client, "own-3") == [b"3"]
    assert query(client, "own") == []
    assert query(client, "common", topic="other") == []


def test_by_unique_key(client: Client) -> None:
    client.send("T", b"mine", 0, {"UNIQ_KEY": "ABCDEF", "KEYS": "k"})
    assert query(client, "ABCDEF", unique=True) == [b"mine"]
    assert query(client, "k", unique=True) == [], "an ordinary key is none"
    given = client.send("T", b"other")
    assert given.transaction_id is not None
    assert query(client, given.transaction_id, unique=True) == [b"other"]


def test_the_unique_key_that_is_answered_is_the_one_that_is_found(client: Client) -> None:
    """Of several the last counts, as for every reader of the record; an empty one is none."""

    def send(body: bytes, properties: str) -> SendMessageResponseHeader:
        fields = send_fields(producerGroup="PG", bornTimestamp=1, properties=properties)
        return client.ok(RequestCode.SEND_MESSAGE, fields, body).decode_fields(SendMessageResponseHeader)

    twice = send(b"twice", "UNIQ_KEY\x01first\x02UNIQ_KEY\x01last\x02")
    assert twice.transaction_id == "last"
    empty = send(b"empty", "UNIQ_KEY\x01\x02a\x01b\x02")
    assert empty.transaction_id
    items = [
        BatchItem(0, b"one", b"UNIQ_KEY\x01\x02"),
        BatchItem(0, b"two", b"UNIQ_KEY\x01x\x02UNIQ_KEY\x01y\x02"),
    ]
    batch = client.send("T", encode_batch(items), batch=True)
    made, sent = str(batch.transaction_id).split(",")
    assert sent == "y"
    for key, body in (
        (twice.transaction_id, b"twice"),
        (empty.transaction_id, b"empty"),
        (made, b"one"),
        ("y", b"two"),
    ):
        assert query(client, key or "", unique=True) == [body]


def test_by_time(client: Client) -> None:
    begin = client.group.wall_ms
    client.send("T", b"early", 0, {"KEYS": "k"})
    client.group.advance(100)
    client.send("T", b"late", 0, {"KEYS": "k"})
    assert query(client, "k", endTimestamp=begin + 50_000) == [b"early"]
    assert query(client, "k", beginTimestamp=begin + 50_000) == [b"late"]


def test_keys_of_the_same_hash_are_told_apart(client: Client) -> None:
    client.send("T", b"one", 0, {"KEYS": "Aa"})
    client.send("T", b"two", 0, {"KEYS": "BB"})
    assert query(client, "Aa") == [b"one"]
    assert query(client, "BB") == [b"two"]


def test_what_is_not_committed_is_not_shown(group: Group) -> None:
    leader = group.leader
    client = group.connect(leader)
    offset = parse_offset_message_id(client.send("T", b"first").message_id)[1]
    log = group.node(leader).replica.store.log

    def lost(source: str, target: str, frame: Frame) -> bool:
        return isinstance(frame, RaftFrame)

    group.lose = lost
    next_offset = log.end_position + HEADER_BYTES
    client.start_send("T", b"secret")
    group.settle()
    assert log.end_position > next_offset
    (record,) = split_records(client.ok(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset}).body)
    assert record.body == b"first"
    unseen = client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": next_offset})
    # Before it says that nothing is there, a leader asks whether it still leads: it hears nobody.
    assert (unseen.code, unseen.body) == (ResponseCode.SERVICE_NOT_AVAILABLE, b"")


def test_lagging_follower_asks_the_leader(group: Group) -> None:
    follower = group.follower
    client = group.connect(follower)

    def lost(source: str, target: str, frame: Frame) -> bool:
        return target == follower and isinstance(frame, RaftFrame) and bool(frame.body)

    group.lose = lost
    offset = parse_offset_message_id(group.connect().send("T", b"body", 0, {"KEYS": "k"}).message_id)[1]
    assert group.node(follower).replica.store.log.end_position < offset
    assert client.ok(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset}).body
    assert query(client, "k") == [b"body"]


def test_a_deposed_leader_does_not_say_that_there_is_no_such_message(group: Group) -> None:
    deposed, successor = group.leader, group.follower
    group.partition(deposed)
    replica = group.node(successor).replica
    replica.raft.step(TimeoutNow(deposed, successor, replica.term), group.now_ns)
    group.run_until(lambda: replica.serving, "another leader")
    offset = parse_offset_message_id(group.connect(successor).send("T", b"body").message_id)[1]
    assert group.node(deposed).replica.serving
    client = group.connect(deposed)
    asked = client.start_call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
    group.settle()
    assert asked not in client.answers
    group.heal()
    assert split_records(client.wait(asked).body)[0].body == b"body"


def test_an_old_message_behind_many_with_its_key_is_not_searched_for_ever(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = group.connect()
    began_ms = group.wall_ms
    client.send("T", b"oldest", 0, {"KEYS": "constant"})
    group.advance(10)
    for _ in range(30):
        client.send("T", b"newer", 0, {"KEYS": "constant"})
    end_ms = began_ms + 5_000
    assert query(client, "constant", endTimestamp=end_ms) == [b"oldest"]
    monkeypatch.setattr("broker.reading.queries_processor.QUERY_STEPS_MAX", 20)
    assert query(client, "constant", endTimestamp=end_ms) == []
    fields = {"topic": "T", "key": "constant", "maxNum": 64, "beginTimestamp": 0, "endTimestamp": end_ms}
    remark = client.call(RequestCode.QUERY_MESSAGE, fields).remark
    assert remark is not None
    assert remark.endswith("only the newest 20 index entries were looked at")
    assert len(query(client, "constant")) == 20

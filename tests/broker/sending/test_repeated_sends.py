"""Exactly once for repeated sends: broker/sending/repeated_sends.py, whose rules these tests follow one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker.node.running import RunningNode
from broker.peers.protocol import Forward, Frame, RaftFrame
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import JSON, ROCKETMQ, RemotingCommand
from broker.replica.inner_limits import InnerLimits
from broker.sending import repeated_sends
from broker.sending.repeated_sends import RepeatedSends
from log.formats.batch import BatchItem, encode_batch
from log.index.index_files import IndexFiles
from raft.messages import AppendResponse
from tests.broker.harness import Client, Group


@pytest.fixture
def group() -> Group:
    group = Group.elected(3)
    client = group.connect()
    client.create_topic("T", 2)
    client.heartbeat("g")
    client.close()
    group.converge()
    return group


def begin(
    client: Client, key: str, *, floor: int = 0, again: bool = False, topic: str = "T", **properties: str
) -> int:
    """Starts an attempt of the send of the message `key`, whose body is its key."""
    return client.start_send(
        topic, key.encode(), 0, {"UNIQ_KEY": key, **properties}, once=floor, again=True if again else None
    )


def ask(client: Client, key: str, **how: Any) -> RemotingCommand:
    """One attempt and its answer."""
    return client.wait(begin(client, key, **how))


def place(answer: RemotingCommand) -> tuple[str, str, str]:
    assert answer.code == ResponseCode.SUCCESS, f"code {answer.code}: {answer.remark}"
    return answer.fields["msgId"], answer.fields["queueId"], answer.fields["queueOffset"]


def position(answer: RemotingCommand) -> int:
    return int(answer.fields["msgId"][-16:], 16)


def bodies(group: Group) -> list[bytes]:
    client = group.connect()
    return client.pull("T", "g", 0).bodies


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
@pytest.mark.parametrize("through_follower", [False, True])
def test_repeated_attempt_is_answered_with_the_first_place(
    group: Group, serialization: int, through_follower: bool
) -> None:
    client = group.connect(group.follower if through_follower else group.leader)
    client.serialization = serialization
    first = ask(client, "K1")
    assert "once" not in first.fields
    again = ask(client, "K1", again=True)
    assert place(again) == place(first)
    assert again.fields["once"] == "found"
    assert bodies(group) == [b"K1"]


def test_repeated_attempt_of_what_never_arrived_is_stored(group: Group, client: Client) -> None:
    answer = ask(client, "K1", again=True)
    assert place(answer)[2] == "0"
    assert "once" not in answer.fields
    assert bodies(group) == [b"K1"]


def test_known_after_a_failover(group: Group) -> None:
    first = ask(group.connect(), "K1")
    group.converge()
    group.kill(group.leader)
    group.elect()
    assert place(ask(group.connect(), "K1", again=True)) == place(first)


def test_waits_for_what_is_in_the_log_and_not_committed(group: Group) -> None:
    leader = group.leader
    client = group.connect()
    group.lose = lambda source, target, frame: _is_acknowledgement(frame, leader, target)
    first, again = begin(client, "K1"), begin(client, "K1", again=True)
    group.settle()
    assert not client.answers, "answered before the majority has the first attempt"
    group.lose = lambda source, target, frame: False
    assert place(client.wait(first)) == place(client.wait(again))
    assert bodies(group) == [b"K1"]


def test_attempts_at_the_same_time_are_stored_once(group: Group) -> None:
    client, other = group.connect(), group.connect(group.follower)
    client.send("T", b"before")  # so that the log is not idle
    calls = [
        (client, begin(client, "K1", again=True)),
        (other, begin(other, "K1", again=True)),
        (client, begin(client, "K1")),
        (client, begin(client, "K2", again=True)),
        (other, begin(other, "K1", again=True)),
    ]
    places = [place(sender.wait(call)) for sender, call in calls]
    assert len({places[0], places[1], places[2], places[4]}) == 1
    assert sorted(bodies(group)) == [b"K1", b"K2", b"before"]


def test_thousands_of_attempts_at_the_same_time_are_answered_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """3,000 took 108 ms in one call: each is looked up."""
    monkeypatch.setattr(Group, "limits", InnerLimits(held_at_once=5))
    group = Group.elected(3)
    client, other = group.connect(), group.connect(host="10.0.0.2")
    client.create_topic("T", 2)
    client.heartbeat("g")
    group.converge()
    leader = group.leader
    looked_up, addresses = [0], []
    original, end_turn = RepeatedSends._look_up, RunningNode.end_turn

    def look_up(self: RepeatedSends, decision: Any) -> Iterator[None]:
        looked_up.append(looked_up.pop() + 1)
        addresses.append(decision.connection.address)
        return original(self, decision)

    def ended(running: RunningNode) -> int:
        looked_up.append(0)
        return end_turn(running)

    group.lose = lambda source, target, frame: _is_acknowledgement(frame, leader, target)
    opaques = [begin(client, "K1", again=True) for _ in range(100)]
    last = begin(other, "K1", again=True)
    group.settle()
    monkeypatch.setattr(RepeatedSends, "_look_up", look_up)
    monkeypatch.setattr(RunningNode, "end_turn", ended)
    group.lose = lambda source, target, frame: False
    first = place(other.wait(last))
    assert addresses.index("10.0.0.2") <= 2, "addresses take turns"
    assert {place(client.wait(opaque)) for opaque in opaques} == {first}
    assert max(looked_up) <= 5
    assert bodies(group) == [b"K1"]


@pytest.mark.parametrize("through_follower", [False, True])
def test_attempts_that_are_to_be_handled_anew_when_leadership_ends_go_to_the_next_leader(
    monkeypatch: pytest.MonkeyPatch, *, through_follower: bool
) -> None:
    monkeypatch.setattr(Group, "limits", InnerLimits(held_at_once=1))
    group = Group.elected(3)
    old = group.leader
    third = next(node for node in group.members if node not in (old, group.follower))
    client = group.connect(third if through_follower else old)
    client.create_topic("T", 2)
    client.heartbeat("g")
    group.converge()
    group.lose = lambda source, target, frame: _is_acknowledgement(frame, old, target)
    opaques = [begin(client, "K1", again=True) for _ in range(30)]
    group.settle()
    group.lose = lambda source, target, frame: False
    group.transfer_leadership(group.follower)
    assert len({place(client.wait(opaque)) for opaque in opaques}) == 1
    assert bodies(group) == [b"K1"]


def test_first_attempt_that_arrives_late_finds_the_repeated_one(group: Group, client: Client) -> None:
    """It was held on its way (a paused follower) while the client asked again through another node."""
    floor = position(ask(client, "K0"))
    slow = group.connect(group.follower)
    held: list[tuple[str, str, Frame]] = []

    def hold(source: str, target: str, frame: Frame) -> bool:
        if isinstance(frame, Forward):
            held.append((source, target, frame))
            return True
        return False

    group.lose = hold
    late = begin(slow, "K1", floor=floor)
    group.settle()
    assert held
    group.lose = lambda source, target, frame: False
    again = ask(client, "K1", floor=floor, again=True)
    for name in ("K2", "K3"):
        ask(client, name, floor=floor)
    for source, target, frame in held:
        group.node(target).begin(group.now_ns, group.wall_ms)
        group.node(target).peer_received(source, frame)
        group.members[target].due_ns = group.now_ns
    assert place(slow.wait(late)) == place(again)
    assert bodies(group) == [b"K0", b"K1", b"K2", b"K3"]


def test_first_attempt_with_a_floor_of_this_term_is_not_looked_up(group: Group, client: Client) -> None:
    floor = position(ask(client, "K0"))
    index = group.node(group.leader).replica.store.index
    calls: list[str] = []

    def spy(*arguments: Any, **options: Any) -> list[int]:
        calls.append(arguments[1])
        return []

    index_type = type(index)
    original = index_type.query
    index_type.query = spy  # type: ignore[method-assign]
    try:
        floor = position(ask(client, "K1", floor=floor))
        ask(client, "K2", floor=floor)
    finally:
        index_type.query = original  # type: ignore[method-assign]
    assert calls == []


def test_first_attempt_with_a_floor_of_an_earlier_term_is_looked_up(group: Group) -> None:
    """A deposed leader may have stored it before its successor began."""
    floor = position(ask(group.connect(), "K0"))
    first = ask(group.connect(), "K1", floor=floor)
    group.converge()
    group.kill(group.leader)
    group.elect()
    assert place(ask(group.connect(), "K1", floor=floor)) == place(first)


def test_lost_leader_hands_on_what_it_has_not_decided(group: Group) -> None:
    old = group.leader
    client = group.connect(old)
    first = ask(client, "K1")
    group.lose = lambda source, target, frame: _is_acknowledgement(frame, old, target)
    client.start_send("T", b"other", 0)
    again = begin(client, "K1", again=True)
    group.settle()
    assert again not in client.answers
    group.lose = lambda source, target, frame: False
    group.partition(old)
    group.run_until(lambda: not group.node(old).replica.serving, "the old leader to step down")
    group.heal()
    assert place(client.wait(again)) == place(first)


def test_floor_of_another_log_is_refused(group: Group) -> None:
    answer = ask(group.connect(), "K1", floor=1 << 40, again=True)
    assert answer.code == ResponseCode.ONCE_UNDECIDABLE
    assert "this log ends before that" in (answer.remark or "")
    assert bodies(group) == []


def test_floor_that_the_log_does_not_reach_is_refused_with_a_new_one(group: Group, client: Client) -> None:
    ask(client, "K0")
    group.converge()
    log = group.node(group.leader).replica.store.log
    log.first_position = log.position_of(log.last_index)  # as after retention
    answer = ask(client, "K1", floor=1, again=True)
    assert answer.code == ResponseCode.ONCE_UNDECIDABLE
    newer = int(answer.fields["once"])
    assert log.first_position <= newer <= log.end_position
    assert place(ask(client, "K2", floor=newer))
    assert bodies(group) == [b"K0", b"K2"]


def test_a_first_attempt_whose_floor_lies_far_back_is_told_to_come_as_a_new_message(
    group: Group, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    floor = position(ask(client, "K0"))
    monkeypatch.setattr(IndexFiles, "begin_of_newest", lambda self, count: floor + 1)
    answer = ask(client, "K1", floor=floor)
    # With a floor of this term nothing is looked up: the next leader has to.
    assert place(answer)
    group.converge()
    group.kill(group.leader)
    group.elect()
    client = group.connect()
    answer = ask(client, "K2", floor=floor)
    assert answer.code == ResponseCode.ONCE_UNDECIDABLE
    assert "nothing of this message is stored: send it as a new one" in (answer.remark or "")
    assert int(answer.fields["once"]) > floor
    assert bodies(group) == [b"K0", b"K1"]


def test_a_message_behind_more_keys_of_its_hash_than_are_looked_at_is_not_stored_again(
    group: Group, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may send to a topic can choose such keys. It was taken for one that never arrived."""
    monkeypatch.setattr(repeated_sends, "_CANDIDATES_MAX", 3)
    keys = ["AaAa", "BBBB", "AaBB", "BBAa"]  # one hash, as texts of Java
    for key in keys[:3]:
        first = ask(client, key)
    assert place(ask(client, keys[0], again=True)), "all of them are looked at"
    ask(client, keys[3], floor=position(first))
    answer = ask(client, keys[0], again=True)
    assert answer.code == ResponseCode.ONCE_UNDECIDABLE
    assert "3 messages of other keys" in (answer.remark or "")
    assert bodies(group) == [key.encode() for key in keys]
    assert place(ask(client, "new", again=True)), "other keys are not concerned"


def test_message_without_a_key_is_refused(client: Client) -> None:
    call = client.start_send("T", b"x", 0, {}, once=0, again=True)
    answer = client.wait(call)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "UNIQ_KEY" in (answer.remark or "")


@pytest.mark.parametrize("delay", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}], ids=["level", "timer"])
def test_delayed_message_is_found_where_it_waits_and_after_its_delivery(
    group: Group, client: Client, delay: dict[str, str]
) -> None:
    first = ask(client, "K1", **delay)
    assert place(ask(client, "K1", again=True, **delay)) == place(first)
    group.advance(3)
    assert bodies(group) == [b"K1"]
    assert place(ask(client, "K1", again=True, **delay)) == place(first)
    group.advance(3)
    assert bodies(group) == [b"K1"]


def test_delayed_messages_of_other_topics_are_others(client: Client) -> None:
    client.create_topic("U")
    ask(client, "K1", DELAY="18")
    assert "once" not in ask(client, "K1", again=True, topic="U").fields


def test_automatic_creation_of_the_topic(client: Client) -> None:
    first, again = begin(client, "K1", topic="new"), begin(client, "K1", topic="new", again=True)
    assert place(client.wait(first)) == place(client.wait(again))


def send_batch(client: Client, keys: list[str], *, again: bool) -> RemotingCommand:
    items = [BatchItem(0, key.encode(), f"UNIQ_KEY\x01{key}\x02".encode()) for key in keys]
    fields = {
        "a": "PG",
        "b": "T",
        "c": "TBW102",
        "d": 4,
        "e": 0,
        "f": 0,
        "g": client.group.wall_ms,
        "h": 0,
        "i": f"UNIQ_KEY\x01{keys[0]}\x02",
        "m": True,
        "once": 0,
        "again": again,
    }
    return client.call(RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch(items))


def test_batch(group: Group, client: Client) -> None:
    keys = ["K1", "K2", "K3"]
    first = send_batch(client, keys, again=False)
    again = send_batch(client, keys, again=True)
    assert place(again) == place(first)
    assert again.fields["msgId"].count(",") == 2
    assert bodies(group) == [b"K1", b"K2", b"K3"]


def test_a_head_that_is_deleted_between_two_steps_of_a_search_leaves_a_batch_undecidable(
    group: Group, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ["K1", "K2", "K3"]
    send_batch(client, keys, again=False)
    group.converge()
    log = group.node(group.leader).replica.store.log
    original = repeated_sends._keys_of_batch

    def parts(command: RemotingCommand, _: int) -> Iterator[list[str]]:
        for part in original(command, 1):
            yield part
            log.first_position = log.position_of(log.last_index)  # as after retention

    monkeypatch.setattr(repeated_sends, "_keys_of_batch", parts)
    assert send_batch(client, keys, again=True).code == ResponseCode.ONCE_UNDECIDABLE


def test_batch_that_is_stored_in_part_is_undecidable(group: Group, client: Client) -> None:
    send_batch(client, ["K1", "K2"], again=False)
    answer = send_batch(client, ["K1", "K2", "K3"], again=True)
    assert answer.code == ResponseCode.ONCE_UNDECIDABLE
    assert "2 of 3" in (answer.remark or "")
    assert bodies(group) == [b"K1", b"K2"]


def test_messages_that_were_sent_apart_are_no_batch(client: Client) -> None:
    for keys in (["K1"], ["other"], ["K2"]):
        send_batch(client, keys, again=False)
    answer = send_batch(client, ["K1", "K2"], again=True)
    assert answer.code == ResponseCode.ONCE_UNDECIDABLE
    assert "1 of 2" in (answer.remark or "")


def test_of_a_batch_only_the_first_message_is_looked_up(
    monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    """Each of 30,000 took a look into the index for every topic in which messages may be hidden: a second."""
    keys = [f"K{number}" for number in range(500)]
    first = send_batch(client, keys, again=False)
    looked_up: list[str] = []
    query = IndexFiles.query

    def noted(self: IndexFiles, topic: str, key: str, *args: Any, **options: Any) -> Any:
        looked_up.append(key)
        return query(self, topic, key, *args, **options)

    monkeypatch.setattr(IndexFiles, "query", noted)
    again = send_batch(client, keys, again=True)
    assert again.fields["msgId"] == first.fields["msgId"]
    assert set(looked_up) == {"K0"}


def test_unmodified_clients_are_left_alone(group: Group, client: Client) -> None:
    for _ in range(2):
        client.send("T", b"x", 0, {"UNIQ_KEY": "K"})
    assert bodies(group) == [b"x", b"x"]


def _is_acknowledgement(frame: Frame, leader: str, target: str) -> bool:
    return target == leader and isinstance(frame, RaftFrame) and isinstance(frame.message, AppendResponse)

"""A batch of very many messages is stored in slices, one a turn: what goes on between them, and what waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.replica.inner_limits import InnerLimits
from broker.replica.replica import Replica
from broker.sending.repeated_sends import RepeatedSends
from broker.transactions.decisions import OPERATION_DELAY_NS
from log.formats.batch import BatchItem, encode_batch
from tests.broker.fields import pull_fields
from tests.broker.harness import SMALL_STORE, Client, Group, Pulled
from tests.broker.transactions.halves import COMMIT, INTERVAL_S, SETTINGS, end, questions, send_half, state

SLICE = 5
COUNT = 43
OPTIONS = replace(SMALL_STORE, batch_messages=SLICE)


@pytest.fixture
def group() -> Group:
    group = Group.elected(3, options=OPTIONS)
    client = group.connect()
    client.create_topic("T", 2)
    client.heartbeat("g")
    group.converge()
    return group


def start_batch(client: Client, name: str = "a", count: int = COUNT, **header: Any) -> int:
    items = [
        BatchItem(0, b"%s%d" % (name.encode(), number), b"UNIQ_KEY\x01%s%d\x02" % (name.encode(), number))
        for number in range(count)
    ]
    return client.start_send("T", encode_batch(items), batch=True, **header)


def stored(answer: RemotingCommand) -> int:
    """The queue offset of the first message."""
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return int(answer.fields["queueOffset"])


def until(group: Group, condition: Callable[[], bool]) -> None:
    """Single steps, so that a test may do something in the middle of a batch."""
    for _ in range(2000):
        if condition():
            return
        group.step_at_random(group.random)
    raise AssertionError(f"it does not come to this: {group.describe()}")


def until_in_the_log(group: Group, replica: Replica, slices: int) -> None:
    """So many slices of the batch that was sent last are in the leader's log."""
    begin = replica.store.log.last_index
    assert replica.leadership.batches.under_way
    until(group, lambda: replica.store.log.last_index >= begin + slices * SLICE)
    assert replica.leadership.batches.under_way


def bodies(group: Group, count: int) -> list[bytes]:
    """All messages of T's first queue, which are so many."""
    client = group.connect()
    found: list[bytes] = []
    while len(found) < count:
        pulled = client.pull("T", "g", len(found)).bodies
        assert pulled, f"only {len(found)} of {count}"
        found += pulled
    assert client.offset_of(RequestCode.GET_MAX_OFFSET, "T") == count
    return found


def names(name: str, count: int = COUNT) -> list[bytes]:
    return [b"%s%d" % (name.encode(), number) for number in range(count)]


def test_one_slice_a_turn_and_others_are_served_between(group: Group) -> None:
    replica = group.node(group.leader).replica
    client, other = group.connect(), group.connect()
    other.send("T", b"before")
    begin = replica.store.log.last_index
    opaque = start_batch(client)
    turns = 0
    while replica.leadership.batches.under_way:
        turns += 1
        before = replica.store.log.last_index
        pull = other.start_pull("T", "g", 0)
        group._turn(group.members[group.leader])
        assert replica.store.log.last_index - before <= SLICE
        assert Pulled.of(other.answers.pop(pull)).bodies == [b"before"]
    assert turns == 2 * ((COUNT - 1) // SLICE), (
        "to check them, then to append them; the first came with the request"
    )
    assert replica.store.log.last_index == begin + COUNT
    assert stored(client.wait(opaque)) == 1
    assert bodies(group, COUNT + 1) == [b"before", *names("a")]
    group.converge()


def test_consumer_offsets_and_heartbeats_go_on_between_slices(group: Group) -> None:
    leader = group.node(group.leader).replica
    client, other = group.connect(), group.connect()
    opaque = start_batch(client)
    until_in_the_log(group, leader, 2)
    heartbeat = other.start_call(
        RequestCode.HEART_BEAT, None, b'{"clientID":"x","consumerDataSet":[{"groupName":"h"}]}'
    )
    fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 0}
    commit = other.start_call(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    until(group, lambda: heartbeat in other.answers or not leader.leadership.batches.under_way)
    assert leader.leadership.batches.under_way, (
        "the heartbeat, whose consumer group is a command in the log, came between"
    )
    assert stored(client.wait(opaque)) == 0
    assert other.wait(commit).code == ResponseCode.SUCCESS
    assert bodies(group, COUNT) == names("a")
    again = client.wait(start_batch(client, once=0, again=True))
    assert (stored(again), again.fields["once"]) == (0, "found"), (
        "commands between its messages do not hide it"
    )


def test_messages_behind_a_batch_come_after_it_in_order(group: Group) -> None:
    leader = group.node(group.leader).replica
    client, other = group.connect(), group.connect(group.follower)
    opaques = [start_batch(client)]
    until_in_the_log(group, leader, 1)
    opaques += [client.start_send("T", b"%d" % number) for number in range(250)]
    through_follower = other.start_send("T", b"other queue", 1)
    opaques.append(start_batch(client, "b"))
    opaques.append(client.start_send("T", b"last"))
    offsets = [stored(client.wait(opaque)) for opaque in opaques]
    assert offsets == [0, *range(COUNT, COUNT + 250), COUNT + 250, 2 * COUNT + 250]
    assert stored(other.wait(through_follower)) == 0
    numbers = [b"%d" % number for number in range(250)]
    assert bodies(group, 2 * COUNT + 251) == [*names("a"), *numbers, *names("b"), b"last"]


def test_leadership_lost_in_the_middle(group: Group) -> None:
    """The batch's outcome is unknown, of what waited behind it nothing was done, and the next leader does it."""
    old = group.leader
    leader = group.node(old).replica
    client = group.connect()
    batch = start_batch(client)
    until_in_the_log(group, leader, 2)
    behind = client.start_send("T", b"behind", 1)
    group.stop(old)
    group.advance(5)
    group.go_on(old)  # the others have elected one of them meanwhile
    until(group, lambda: not leader.serving)
    assert not leader.leadership.batches.under_way
    assert client.wait(batch).code == ResponseCode.SYSTEM_ERROR
    assert stored(client.wait(behind)) == 0
    group.converge()
    end = group.connect().offset_of(RequestCode.GET_MAX_OFFSET, "T")
    assert end < COUNT
    assert group.connect().send("T", b"next").queue_offset == end


def test_leadership_lost_before_the_first_slice(group: Group) -> None:
    """Nothing of the batch is in the log: the next leader stores all of it."""
    old = group.leader
    leader = group.node(old).replica
    client = group.connect()
    batch = start_batch(client)
    assert leader.leadership.batches.under_way
    begin = leader.store.log.last_index
    target = group.follower
    leader.raft.transfer_leadership(target, group.now_ns)
    answer = client.wait(batch)
    assert leader.store.log.last_index > begin
    assert group.leader == target
    assert stored(answer) == 0
    assert bodies(group, COUNT) == names("a")


def test_a_transfer_that_is_asked_for_in_the_middle_waits_for_the_batch(group: Group) -> None:
    leader = group.node(group.leader).replica
    client = group.connect()
    batch = start_batch(client)
    until_in_the_log(group, leader, 2)
    group.transfer_leadership(group.follower)
    assert stored(client.wait(batch)) == 0
    assert bodies(group, COUNT) == names("a")


def test_nothing_is_begun_where_the_disk_has_no_room_for_all() -> None:
    group = Group.elected(1, options=OPTIONS)
    client = group.connect()
    client.create_topic("T")
    client.heartbeat("g")
    leader, disk = group.node(group.leader).replica, group.members["n0"].disk
    begin = leader.store.log.last_index
    disk.free_pages = 40
    item = BatchItem(0, bytes(20_000), b"")
    items = encode_batch([item] * (SLICE + 6))
    answers = []
    for _ in range(8):
        answers.append(client.wait(client.start_send("T", items, batch=True)))
        if answers[-1].code != ResponseCode.SUCCESS:
            break
    assert answers[-1].code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert not leader.leadership.batches.under_way
    taken = (len(answers) - 1) * (SLICE + 6)
    assert client.offset_of(RequestCode.GET_MAX_OFFSET, "T") == taken
    assert leader.store.log.last_index == begin + taken
    assert client.send("T", b"a short one").queue_offset == taken


def test_a_wrong_item_at_the_end_is_found_before_the_first_is_appended(group: Group) -> None:
    leader = group.node(group.leader).replica
    client = group.connect()
    begin = leader.store.log.last_index
    items = [BatchItem(0, b"x", b"")] * COUNT + [BatchItem(0, b"x", b"DELAY\x011\x02")]
    opaque = client.start_send("T", encode_batch(items), batch=True)
    assert leader.leadership.batches.under_way
    behind = client.start_send("T", b"behind")
    assert client.wait(opaque).code == ResponseCode.MESSAGE_ILLEGAL
    assert stored(client.wait(behind)) == 0
    assert leader.store.log.last_index == begin + 1


@pytest.mark.parametrize("slices", [0, 2])
def test_a_repeated_batch_is_stored_once(group: Group, slices: int) -> None:
    """Its first attempt is being checked, or stored in part, when the second comes; then both are repeated ones."""
    leader = group.node(group.leader).replica
    client, other = group.connect(), group.connect()
    first = start_batch(client, once=0)
    until(group, lambda: leader.leadership.batches.under_way is not None)
    if slices:
        until_in_the_log(group, leader, slices)
    second = start_batch(other, once=0, again=True)
    single = other.start_send("T", b"single", 0, {"UNIQ_KEY": "S"}, once=0, again=True)
    assert [stored(client.wait(first)), stored(other.wait(second)), stored(other.wait(single))] == [
        0,
        0,
        COUNT,
    ]
    third, fourth = start_batch(client, "c", once=0, again=True), start_batch(other, "c", once=0, again=True)
    assert [stored(client.wait(third)), stored(other.wait(fourth))] == [COUNT + 1] * 2
    assert bodies(group, 2 * COUNT + 1) == [*names("a"), b"single", *names("c")]


def test_a_topic_does_not_go_in_the_middle_of_a_batch(group: Group) -> None:
    leader = group.node(group.leader).replica
    client, other = group.connect(), group.connect()
    batch = start_batch(client)
    until_in_the_log(group, leader, 2)
    gone = other.start_call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert stored(client.wait(batch)) == 0
    assert other.wait(gone).code == ResponseCode.SUCCESS
    client.create_topic("T")
    assert client.send("T", b"anew").queue_offset == 0


@pytest.mark.parametrize("waits", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}])
def test_what_is_due_is_delivered_right_behind_a_batch(group: Group, waits: dict[str, str]) -> None:
    leader = group.node(group.leader).replica
    client = group.connect()
    client.send("T", b"waits", properties=waits)
    group.advance(0.9)
    batch = start_batch(client)
    until_in_the_log(group, leader, 1)
    group.now_ns += 200_000_000  # it is due while the batch is under way
    now_ns = group.now_ns
    group.settle()
    assert stored(client.answers[batch]) == 0
    assert bodies(group, COUNT + 1) == [*names("a"), b"waits"]
    assert group.now_ns == now_ns


def test_operations_of_transactions_are_written_right_behind_a_batch(group: Group) -> None:
    leader = group.node(group.leader).replica
    client, other = group.connect(), group.connect()
    assert end(client, send_half(client, b"committed"), COMMIT) == ResponseCode.SUCCESS
    assert state(group).operations_owed
    batch = start_batch(other)
    until_in_the_log(group, leader, 1)
    group.now_ns += OPERATION_DELAY_NS  # it is due while the batch is under way
    group.settle()
    stored(other.answers[batch])
    assert not state(group).operations_owed


def batch_after_batch(group: Group, seconds: float, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Two producers send one batch after the other, so that one always waits while another is under way.

    `meanwhile` is called once, when they have begun.
    """
    member = group.members[group.leader]
    leader = group.node(group.leader).replica.leadership
    producers = [group.connect(), group.connect()]
    opaques = [start_batch(producer) for producer in producers]
    meanwhile()
    for _ in range(round(seconds / 0.005)):
        group.now_ns += 5_000_000
        group._turn(member)
        group.hand_out(member)
        for at, producer in enumerate(producers):
            if (answer := producer.answers.pop(opaques[at], None)) is not None:
                stored(answer)
                opaques[at] = start_batch(producer)
        assert leader.batches.under_way, "one batch begins in the turn in which the other ends"


@pytest.mark.parametrize("waits", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1500"}])
def test_what_is_due_is_delivered_between_batches_that_follow_each_other(waits: dict[str, str]) -> None:
    group = Group.elected(1, options=OPTIONS)
    client = group.connect()
    client.create_topic("T", 2)
    client.heartbeat("g")
    client.send("T", b"waits", 1, waits)
    batch_after_batch(group, 2.5)
    assert client.pull("T", "g", 0, 1).bodies == [b"waits"]


def test_transactions_are_looked_at_between_batches_that_follow_each_other() -> None:
    group = Group.elected(1, options=OPTIONS, broker=SETTINGS)
    client, producer = group.connect(), group.connect()
    client.create_topic("T", 2)
    client.heartbeat("g")
    producer.heartbeat(producer_group="P")
    send_half(client, b"asked about")
    assert end(client, send_half(client, b"committed"), COMMIT) == ResponseCode.SUCCESS
    batch_after_batch(group, INTERVAL_S + 1)
    assert [record.body for _, record in questions(producer)] == [b"asked about"]
    assert state(group).operations_owed == {}, "that of the commit is written"


def test_first_messages_are_stored_between_batches_that_follow_each_other() -> None:
    """Their topic comes to be while a batch is under way. Batches from their own address would go behind them."""
    group = Group.elected(1, options=OPTIONS)
    group.connect().create_topic("T", 2)
    client = group.connect(host="10.0.0.1")
    opaques: list[int] = []

    def first_messages() -> None:
        opaques.extend(client.start_send("New", b"x", 0) for _ in range(250))

    batch_after_batch(group, 1, first_messages)
    assert [stored(client.answers[opaque]) for opaque in opaques] == [*range(250)]


@pytest.mark.parametrize("count", [None, COUNT])
def test_repeated_sends_are_stored_between_batches_that_follow_each_other(count: int | None) -> None:
    """They are looked for while a batch is under way, and that of others goes on meanwhile."""
    group = Group.elected(1, options=OPTIONS)
    client = group.connect()
    client.create_topic("T", 2)

    def start_repeated() -> int:
        again: dict[str, Any] = {"once": 0, "again": True}
        if count is None:
            return client.start_send("T", b"x", 0, {"UNIQ_KEY": "K"}, **again)
        return start_batch(client, "K", **again)

    opaques: list[int] = []
    batch_after_batch(group, 1, lambda: opaques.extend((start_repeated(), start_repeated())))
    first, second = (client.answers[opaque] for opaque in opaques)
    assert "once" not in first.fields
    assert (stored(second), second.fields["once"]) == (stored(first), "found")


def test_repeated_sends_behind_the_last_batch_are_all_stored_in_their_order() -> None:
    """They are more than go on in one turn, and nothing else wants another one. Among them is a batch."""
    group = Group(1, start=False, options=OPTIONS)
    group.limits = InnerLimits(held_at_once=3, told_a_turn=1)
    group.start("n0")
    group.elect()
    client, other = group.connect(), group.connect()
    client.create_topic("T", 2)
    client.start_send("T", b"before")
    short = start_batch(client, "K", SLICE + 1, once=0, again=True)
    singles = [
        client.start_send("T", b"x", 0, {"UNIQ_KEY": f"S{number}"}, once=0, again=True) for number in range(6)
    ]
    long = start_batch(other)
    group.settle()
    assert stored(other.answers[long]) == 1
    offsets = [stored(client.answers[opaque]) for opaque in singles]
    assert offsets == sorted(offsets)
    before = stored(client.answers[short])
    assert offsets[0] < before < offsets[1], "so that one batch keeps others waiting behind the other"


def test_a_repeated_send_that_waits_for_a_batch_goes_to_the_next_leader(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked for when the leadership ends, and nothing of it is stored: the next leader looks for it itself."""
    waiting: list[Any] = []
    append = RepeatedSends._append

    def appended(self: RepeatedSends, decision: Any) -> None:
        append(self, decision)
        if not decision.appended:
            waiting.append(decision)

    monkeypatch.setattr(RepeatedSends, "_append", appended)
    old = group.leader
    leader = group.node(old).replica
    client, other = group.connect(), group.connect()
    first = start_batch(other)
    until_in_the_log(group, leader, 2)
    again = client.start_send("T", b"again", 1, {"UNIQ_KEY": "K"}, once=0, again=True)
    start_batch(other, "b", 10 * COUNT)
    until(group, lambda: bool(waiting))
    group.stop(old)
    group.advance(5)
    group.go_on(old)
    until(group, lambda: not leader.serving)
    assert not waiting[0].appended
    stored(other.wait(first))
    assert stored(client.wait(again)) == 0
    group.converge()
    assert group.connect().pull("T", "g", 0, 1).bodies == [b"again"]


def test_other_long_requests_of_the_address_go_on_between_batches_that_follow_each_other() -> None:
    group = Group.elected(1, options=OPTIONS)
    client = group.connect()
    client.create_topic("T", 2)
    client.heartbeat("g")
    client.send("T", b"x", 1, {"a": "1"})
    fields = pull_fields(
        consumerGroup="g", topic="T", queueId=1, subscription="a = 1", expressionType="SQL92"
    )
    opaques: list[int] = []
    batch_after_batch(group, 1, lambda: opaques.append(client.start_call(RequestCode.PULL_MESSAGE, fields)))
    assert Pulled.of(client.answers[opaques[0]]).bodies == [b"x"]


def place(answer: RemotingCommand) -> tuple[str, str]:
    return answer.fields["msgId"], answer.fields["queueOffset"]


def in_the_midst_of_looking(group: Group, client: Client) -> tuple[RemotingCommand, int]:
    """A stored batch, and the opaque of its repetition, which has been looked for in part."""
    first = client.wait(start_batch(client, once=0))
    assert stored(first) == 0
    again = start_batch(client, once=0, again=True)
    leader = group.node(group.leader)
    until(group, lambda: leader.long_requests.has_more)
    assert again not in client.answers
    return first, again


def test_a_repeated_batch_is_looked_for_in_steps(group: Group) -> None:
    """Between them others send, other attempts of it wait, and all hear of the one place that it has."""
    client, other = group.connect(), group.connect()
    first, again = in_the_midst_of_looking(group, client)
    between = other.start_send("T", b"between", 1)
    third = start_batch(other, once=0, again=True)
    until(group, lambda: between in other.answers)
    assert again not in client.answers, "it takes more turns than a message"
    for answer in (client.wait(again), other.wait(third)):
        assert place(answer) == place(first)
        assert answer.fields["once"] == "found"
    assert bodies(group, COUNT) == names("a")


def test_leadership_lost_while_a_repeated_batch_is_looked_for(group: Group) -> None:
    """The next leader looks for it, and finds it."""
    client = group.connect()
    first, again = in_the_midst_of_looking(group, client)
    target = group.follower
    group.transfer_leadership(target)
    answer = client.wait(again)
    assert group.leader == target
    assert (place(answer), answer.fields["once"]) == (place(first), "found")
    assert bodies(group, COUNT) == names("a")


def test_a_message_without_a_key_in_a_repeated_batch_is_refused_and_nobody_waits_for_it(group: Group) -> None:
    client = group.connect()
    items = [
        BatchItem(0, b"x", b"UNIQ_KEY\x01k%d\x02" % number if number < 20 else b"") for number in range(30)
    ]
    for _ in range(2):
        answer = client.wait(client.start_send("T", encode_batch(items), batch=True, once=0, again=True))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL


def test_a_stop_of_a_node_alone_waits_until_a_batch_is_stored_and_what_is_behind_it() -> None:
    """A part of the batch was all that it had, and no client an answer."""
    group = Group.elected(1, options=OPTIONS)
    group.connect().create_topic("T", 2)
    client, other = group.connect(), group.connect()
    replica = group.node("n0").replica
    begin = replica.store.log.last_index
    opaque, behind = start_batch(client), other.start_send("T", b"x")
    ends: list[int] = []
    group.members["n0"].process.stop(lambda: ends.append(replica.store.log.last_index))
    group.run_until(lambda: bool(ends), "the stop ends")
    assert ends == [begin + COUNT + 1]
    assert [stored(client.answers[opaque]), stored(other.answers[behind])] == [0, COUNT]

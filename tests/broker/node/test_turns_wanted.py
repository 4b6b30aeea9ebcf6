"""A node has turns only when something wants one, and answers in a turn before it does what can wait."""

from typing import Any

import pytest

from broker.peers.protocol import Frame, RaftFrame
from broker.remoting.codes import RequestCode, ResponseCode
from broker.requests.deadline import NEVER, Time
from log.dispatching.dispatch import Dispatch
from log.store import Store
from raft.messages import AppendResponse
from tests.broker.harness import Group

TOPIC = "T"


def test_of_two_acknowledgements_only_the_first_wants_a_turn(group: Group) -> None:
    client = group.connect()
    client.create_topic(TOPIC)
    for _ in range(3):
        held: list[tuple[str, str, Frame]] = []

        def hold(source: str, target: str, frame: Frame, held: list[tuple[str, str, Frame]] = held) -> bool:
            is_answer = isinstance(frame, RaftFrame) and isinstance(frame.message, AppendResponse)
            if is_answer and target == group.leader:
                held.append((source, target, frame))
            return is_answer

        group.lose = hold
        sent = client.start_send(TOPIC, b"body")
        group.settle()
        group.lose = lambda source, target, frame: False
        assert len(held) == 2, "one of each follower"
        leader = group.node(group.leader)
        committed = leader.replica.raft.commit_index
        wanted = []
        for source, target, frame in held:
            leader.begin(group.now_ns, group.wall_ms)
            wanted.append(leader.peer_received(source, frame))
            if wanted[-1]:
                group.members[target].due_ns = group.now_ns
            group.settle()
        assert leader.replica.raft.commit_index == committed + 1
        assert wanted == [True, False]
        assert client.wait(sent, 0).code == ResponseCode.SUCCESS
    group.converge()


def test_answers_to_sends_do_not_wait_for_the_dispatch(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group.elected()
    client = group.connect()
    client.create_topic(TOPIC)
    group.converge()
    store = group.node(group.leader).replica.store
    dispatch = Store.dispatch
    sent = client.start_send(TOPIC, b"one"), client.start_send(TOPIC, b"two")
    answered: list[bool] = []

    def watched(self: Store, *arguments: Any, **options: Any) -> Dispatch:
        if self is store:
            answered.extend(opaque in client.answers for opaque in sent)
        return dispatch(self, *arguments, **options)

    monkeypatch.setattr(Store, "dispatch", watched)
    group.run_until(lambda: bool(answered), "the commit")
    assert answered == [True, True]
    assert [client.wait(opaque).code for opaque in sent] == [ResponseCode.SUCCESS] * 2
    queue = store.queues.get(TOPIC, 0)
    assert queue is not None
    assert queue.max_offset == 2


def test_a_follower_acknowledges_before_it_dispatches_what_was_committed_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group.elected()
    client = group.connect()
    client.create_topic(TOPIC)
    group.converge()
    follower, leader = group.node(group.follower).replica, group.node(group.leader).replica
    dispatch = Store.dispatch
    acknowledged: dict[str, int] = {}
    unsent: list[bool] = []

    def watch(source: str, target: str, frame: Frame) -> bool:
        if isinstance(frame, RaftFrame) and isinstance(frame.message, AppendResponse):
            acknowledged[source] = frame.message.log_index
        return False

    def watched(self: Store, *arguments: Any, **options: Any) -> Dispatch:
        if self is follower.store:
            unsent.append(follower.links[leader.node_id].outbox != [])
        return dispatch(self, *arguments, **options)

    group.lose = watch
    monkeypatch.setattr(Store, "dispatch", watched)
    for k in range(5):
        client.send(TOPIC, b"%d" % k)
    group.converge()
    assert unsent
    assert not any(unsent), "what it had to say was sent before"
    assert acknowledged[follower.node_id] == leader.store.log.last_index


def test_deadlines_run_when_due_and_the_earliest_is_known() -> None:
    ran: list[str] = []
    time = Time(0, 0)

    def act(name: str, again_ns: int) -> None:
        ran.append(name)
        known[name].due_ns = again_ns

    known = {
        "a": time.add_deadline(lambda: act("a", NEVER), 30),
        "b": time.add_deadline(lambda: act("b", 40), NEVER),
        "c": time.add_deadline(lambda: act("c", NEVER), 20),
    }
    assert time.earliest_ns == 20
    time.now_ns = 19
    time.run_due()
    assert ran == []
    known["b"].due_ns = 10
    assert time.earliest_ns == 10
    time.now_ns = 20
    time.run_due()
    assert ran == ["b", "c"]
    assert time.earliest_ns == 30
    known["a"].due_ns = 50  # put off: found out when its time would have come
    assert time.earliest_ns <= 40
    time.now_ns = 39
    time.run_due()
    assert ran == ["b", "c"]
    assert time.earliest_ns == 40
    time.now_ns = 60
    time.run_due()
    assert ran == ["b", "c", "a", "b"]
    assert time.earliest_ns == 40, "in the past: due at once"


def test_a_deadline_that_another_s_act_sets_is_not_forgotten() -> None:
    time = Time(0, 0)
    ran: list[str] = []

    def act() -> None:
        ran.append("first")
        first.due_ns = NEVER

    first = time.add_deadline(act, NEVER)

    def second() -> None:
        ran.append("second")
        later.due_ns = NEVER
        first.due_ns = 5

    later = time.add_deadline(second, 5)
    time.now_ns = 5
    time.run_due()
    assert ran == ["second"]
    assert time.earliest_ns == 5
    time.now_ns = 5
    time.run_due()
    assert ran == ["second", "first"]
    assert time.earliest_ns == NEVER


@pytest.mark.parametrize("size", [1, 3])
def test_what_is_proposed_behind_a_read_barrier_leaves_in_the_same_turn(size: int) -> None:
    """It waited for the next turn, which in an idle group comes with the next heartbeat."""
    group = Group.elected(size)
    client = group.connect()
    client.create_topic(TOPIC)
    client.heartbeat("g")
    client.send(TOPIC, b"body")
    group.advance(1)
    fields = {"topic": TOPIC, "group": "g", "timestamp": 0, "isForce": False, "queueId": 0, "offset": 0}
    reset = client.start_call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    group.settle()
    assert client.answers[reset].code == ResponseCode.SUCCESS

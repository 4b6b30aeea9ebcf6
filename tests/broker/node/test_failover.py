"""When a leader is replaced, and when not: its death costs no wait; a slow disk or a pause does not unseat it."""

import pytest

from broker.node.running import RunningNode
from broker.replica.inner_limits import InnerLimits
from broker.replica.proposals import CallbackWaiter, ignore
from broker.replica.uncommitted import ANSWERS_FOR_ONE, Uncommitted
from tests.broker.harness import Group

TOPIC = "T"
OTHERS = {"n0": ["n1", "n2"], "n1": ["n2", "n0"], "n2": ["n0", "n1"]}
"""The voters behind a leader, its heir first."""


def test_the_heir_of_a_dead_leader_serves_at_once() -> None:
    for seed in range(10):
        group = Group(3, seed=seed)
        old = group.elect()
        group.advance(1)
        group.kill(old)
        group.settle()
        assert group.node(OTHERS[old][0]).replica.serving, group.describe()


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("whose", ["leader", "follower"])
def test_a_flush_of_three_seconds_unseats_nobody(whose: str, flush: str) -> None:
    group = Group(3, flush=flush)
    leader = group.elect()
    client = group.connect(leader)
    client.create_topic(TOPIC)
    term = group.node(leader).replica.term
    slow = leader if whose == "leader" else OTHERS[leader][0]
    group.slow_disks.add(slow)
    for number in range(30):
        client.send(TOPIC, b"%d" % number)
        group.advance(0.1)
    assert {member.alive.replica.term for member in group.alive()} == {term}
    assert {member.alive.replica.leader for member in group.alive()} == {leader}
    group.slow_disks.clear()
    client.send(TOPIC, b"last")
    group.converge()
    assert group.node(leader).replica.term == term


@pytest.mark.parametrize("whose", ["leader", "follower"])
def test_a_pause_shorter_than_an_election_timeout_unseats_nobody(whose: str) -> None:
    for tenth in range(1, 8):
        group = Group(3)
        leader = group.elect()
        group.advance(1 + tenth / 37)
        term = group.node(leader).replica.term
        stopped = leader if whose == "leader" else OTHERS[leader][0]
        for _ in range(5):
            group.stop(stopped)
            group.advance(tenth / 10)
            group.go_on(stopped)
            group.advance(0.25)  # a heartbeat
        assert {member.alive.replica.term for member in group.alive()} == {term}
        assert {member.alive.replica.leader for member in group.alive()} == {leader}


def test_a_follower_that_stood_still_for_long_reads_before_it_doubts_its_leader() -> None:
    group = Group(3)
    leader = group.elect()
    group.advance(1)
    stopped = OTHERS[leader][1]
    changes = group.node(stopped).registration_version
    group.stop(stopped)
    group.advance(10)
    group.go_on(stopped)
    assert group.node(stopped).replica.leader == leader
    group.advance(1)
    assert group.node(stopped).registration_version == changes, "its role has not changed"


def test_those_who_wait_for_the_log_of_a_deposed_leader_are_told_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each may be an answer to a client: 20,000 took 134 ms in one call."""
    group = Group.elected(3)
    client = group.connect(group.leader)
    client.create_topic(TOPIC)
    group.converge()
    former = group.node(group.leader)
    group.partition(group.leader)
    client.start_send(TOPIC, b"nobody else has it")
    told = [0]
    for _ in range(2_000):
        former.replica.leadership.when_applied(CallbackWaiter(ignore, lambda: told.append(told.pop() + 1)))
    assert former.replica.leadership.owes_answers
    end_turn = RunningNode.end_turn

    def ended(running: RunningNode) -> int:
        if running.node is former:
            told.append(0)
        return end_turn(running)

    monkeypatch.setattr(RunningNode, "end_turn", ended)
    group.run_until(lambda: not former.replica.leadership.owes_answers, "all are told")
    assert not former.replica.serving
    assert sum(told) == 2_000
    assert max(told) == 500


def test_followers_that_acknowledge_thousands_at_once_have_their_senders_answered_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """20,000 took 60 ms in one call."""
    monkeypatch.setattr(Group, "limits", InnerLimits(told_a_turn=5))
    group = Group.elected(3)
    client = group.connect(group.leader)
    client.create_topic(TOPIC)
    group.converge()
    answered: list[int] = []
    original = Uncommitted.committed

    def committed(self: Uncommitted, upto: int) -> None:
        before = len(self._wait_for_commit)
        original(self, upto)
        answered.append(before - len(self._wait_for_commit))

    group.lose = lambda source, target, frame: True
    opaques = [client.start_send(TOPIC, b"x") for _ in range(300)]
    group.settle()
    monkeypatch.setattr(Uncommitted, "committed", committed)
    group.lose = lambda source, target, frame: False
    assert {client.wait(opaque).code for opaque in opaques} == {0}
    assert max(answered) <= 5 * ANSWERS_FOR_ONE

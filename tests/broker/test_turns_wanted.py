"""What wants no turn gets none, and nobody waits longer for it."""

from broker.deadline import NEVER, Deadlines
from broker.peer_protocol import Frame, RaftFrame
from broker.remoting.codes import ResponseCode
from raft.messages import AppendResponse
from tests.broker.harness import Group

TOPIC = "T"


def test_of_two_acknowledgements_only_the_first_wants_a_turn() -> None:
    group = Group()
    group.elect()
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


def test_deadlines_run_when_due_and_the_earliest_is_known() -> None:
    ran: list[str] = []
    deadlines = Deadlines()

    def act(name: str, again_ns: int) -> None:
        ran.append(name)
        known[name].due_ns = again_ns

    known = {
        "a": deadlines.add(lambda: act("a", NEVER), 30),
        "b": deadlines.add(lambda: act("b", 40), NEVER),
        "c": deadlines.add(lambda: act("c", NEVER), 20),
    }
    assert deadlines.earliest_ns == 20
    deadlines.run(19)
    assert ran == []
    known["b"].due_ns = 10
    assert deadlines.earliest_ns == 10
    deadlines.run(20)
    assert ran == ["b", "c"]
    assert deadlines.earliest_ns == 30
    known["a"].due_ns = 50  # put off: found out when its time would have come
    assert deadlines.earliest_ns <= 40
    deadlines.run(39)
    assert ran == ["b", "c"]
    assert deadlines.earliest_ns == 40
    deadlines.run(60)
    assert ran == ["b", "c", "a", "b"]
    assert deadlines.earliest_ns == 40, "in the past: due at once"


def test_a_deadline_that_another_s_act_sets_is_not_forgotten() -> None:
    deadlines = Deadlines()
    ran: list[str] = []

    def act() -> None:
        ran.append("first")
        first.due_ns = NEVER

    first = deadlines.add(act, NEVER)

    def second() -> None:
        ran.append("second")
        later.due_ns = NEVER
        first.due_ns = 5

    later = deadlines.add(second, 5)
    deadlines.run(5)
    assert ran == ["second"]
    assert deadlines.earliest_ns == 5
    deadlines.run(5)
    assert ran == ["second", "first"]
    assert deadlines.earliest_ns == NEVER

"""Each change of role, each lost leader and each leader that steps down says why, in a line and in a counter."""

from structlog.testing import capture_logs

from broker.replica.operator_requests import hand_over, transfer_leadership
from broker.statistics.events import TOLD_EVERY_NS, Event, Events
from tests.broker.harness import Group


def counted(group: Group, node: str, event: Event) -> dict[str, int]:
    counts = group.node(node).events.counts
    return {reason: count for (kind, reason), count in counts.items() if kind is event}


def test_a_follower_says_that_its_leader_was_silent_and_for_how_long() -> None:
    group = Group(3)
    old = group.elect()
    others = [node for node in ("n0", "n1", "n2") if node != old]
    with capture_logs() as lines:
        group.partition(old)
        group.run_until(lambda: any(group.node(node).replica.serving for node in others))
    lost = [line for line in lines if line["event"] == "leader lost" and line["reason"] != "higher term"]
    assert {line["leader"] for line in lost} == {old}
    told = {line["reason"] for line in lost}
    assert told <= {"no heartbeat", "connection lost"}
    assert all(line["after_ms"] >= 1000 for line in lost if line["reason"] == "no heartbeat")
    new = next(node for node in others if group.node(node).replica.serving)
    assert counted(group, new, Event.LEADER_LOST).keys() <= told
    assert counted(group, new, Event.ROLE_CHANGED)["elected"] == 1


def test_a_leader_without_a_majority_says_so_once() -> None:
    group = Group(3)
    old = group.elect()
    before = counted(group, old, Event.STEPPED_DOWN)
    assert before == {}
    with capture_logs() as lines:
        group.partition(old)
        group.run_until(lambda: group.node(old).replica.leader is None)
    assert counted(group, old, Event.STEPPED_DOWN) == {"majority lost": 1}
    (line,) = [line for line in lines if line["event"] == "stepped down"]
    assert line["after_ms"] >= 1000


def test_a_transfer_and_an_orderly_stop_are_told_apart() -> None:
    group = Group(3)
    first = group.elect()
    heir = group.follower
    transfer_leadership(group.node(first).replica, heir)
    group.run_until(lambda: group.node(heir).replica.serving)
    assert counted(group, first, Event.STEPPED_DOWN) == {"transfer": 1}
    hand_over(group.node(heir).replica)
    group.run_until(lambda: not group.node(heir).replica.serving)
    group.elect()
    assert counted(group, heir, Event.STEPPED_DOWN) == {"orderly stop": 1}


def test_trouble_is_told_once_a_while_and_always_counted() -> None:
    events = Events()
    with capture_logs() as lines:
        for moment in range(100):
            events.warn(Event.DAMAGED_FRAME, "peer", moment, address="a")
        events.warn(Event.DAMAGED_FRAME, "client", 100)
        events.warn(Event.DAMAGED_FRAME, "peer", TOLD_EVERY_NS + 1, address="b")
    assert events.counts == {(Event.DAMAGED_FRAME, "peer"): 101, (Event.DAMAGED_FRAME, "client"): 1}
    assert [(line["reason"], line.get("not_told")) for line in lines] == [
        ("peer", None),
        ("client", None),
        ("peer", 99),
    ]

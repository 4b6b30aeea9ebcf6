"""Each change of role, each lost leader and each leader that steps down says why, in a line and in a counter."""

from structlog.testing import capture_logs

from broker.peers.protocol import RaftFrame
from broker.replica.slowness import SLOW_FLUSH_NS, STALLED_NS
from broker.settings.live import differing
from broker.settings.tables import NodeSettings, RaftSettings, Settings
from broker.statistics.events import TOLD_EVERY_NS, EventKind, Events
from raft.messages import AppendRequest
from tests.broker.harness import Group


def counted(group: Group, node: str, event: EventKind) -> dict[str, int]:
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
    assert counted(group, new, EventKind.LEADER_LOST).keys() <= told
    assert counted(group, new, EventKind.ROLE_CHANGED)["elected"] == 1


def test_a_leader_without_a_majority_says_so_once() -> None:
    group = Group(3)
    old = group.elect()
    before = counted(group, old, EventKind.STEPPED_DOWN)
    assert before == {}
    with capture_logs() as lines:
        group.partition(old)
        group.run_until(lambda: group.node(old).replica.leader is None)
    assert counted(group, old, EventKind.STEPPED_DOWN) == {"majority lost": 1}
    (line,) = [line for line in lines if line["event"] == "stepped down"]
    assert line["after_ms"] >= 1000


def test_a_transfer_and_an_orderly_stop_are_told_apart() -> None:
    group = Group(3)
    first = group.elect()
    heir = group.follower
    group.node(first).replica.group_changes.transfer(heir)
    group.run_until(lambda: group.node(heir).replica.serving)
    assert counted(group, first, EventKind.STEPPED_DOWN) == {"transfer": 1}
    group.node(heir).replica.group_changes.hand_over()
    group.run_until(lambda: not group.node(heir).replica.serving)
    group.elect()
    assert counted(group, heir, EventKind.STEPPED_DOWN) == {"orderly stop": 1}


def test_trouble_is_told_once_a_while_and_always_counted() -> None:
    events = Events()
    with capture_logs() as lines:
        for moment in range(100):
            events.warn(EventKind.DAMAGED_FRAME, "peer", moment, address="a")
        events.warn(EventKind.DAMAGED_FRAME, "client", 100)
        events.warn(EventKind.DAMAGED_FRAME, "peer", TOLD_EVERY_NS + 1, address="b")
    assert events.counts == {(EventKind.DAMAGED_FRAME, "peer"): 101, (EventKind.DAMAGED_FRAME, "client"): 1}
    assert [(line["reason"], line.get("not_told")) for line in lines] == [
        ("peer", None),
        ("client", None),
        ("peer", 99),
    ]


def test_a_leader_that_stood_still_says_so_and_does_not_blame_its_peers() -> None:
    group = Group(3)
    old = group.elect()
    group.advance(1)
    others = [node for node in ("n0", "n1", "n2") if node != old]
    replica = group.node(old).replica
    now_ns = replica.time.now_ns
    # the others elect one of them while it is stopped; its loop wakes behind its deadline
    with capture_logs() as lines:
        group.node(old).begin(now_ns + 3_000_000_000, group.wall_ms)
    assert [line["event"] for line in lines if line["event"] == "stalled loop"] == ["stalled loop"]
    replica.tick(now_ns + 3_000_000_000, group.wall_ms)
    assert replica.leader == old, "what its peers sent meanwhile is not read yet"
    newer = AppendRequest(others[0], old, replica.term + 1, -1, 0, (), -1, 1)
    replica.from_peers.received(RaftFrame(newer), now_ns + 3_000_000_000, group.wall_ms)
    assert replica.leader == others[0]
    assert counted(group, old, EventKind.STEPPED_DOWN) == {"loop stalled": 1}


def test_slow_flushes_and_turns_are_told_and_a_wait_for_a_note_is_no_stalled_loop() -> None:
    group = Group.elected(1)
    node = group.node("n0")
    slow = node.replica.slow
    slow.flushed("log", SLOW_FLUSH_NS, 0)
    slow.turned(STALLED_NS, 0)
    assert counted(group, "n0", EventKind.SLOW_FLUSH) == counted(group, "n0", EventKind.STALLED_TURN) == {}
    slow.flushed("log", SLOW_FLUSH_NS + 1, 0)
    slow.turned(STALLED_NS + 1, 0)
    slow.noted(2 * STALLED_NS, 0)
    slow.woke(2 * STALLED_NS, 0)
    assert counted(group, "n0", EventKind.SLOW_FLUSH) == {"log": 1, "term and vote": 1}
    assert counted(group, "n0", EventKind.STALLED_TURN) == {"turn": 1}
    assert counted(group, "n0", EventKind.STALLED_LOOP) == {}


def test_a_peer_that_does_not_answer_is_told_once() -> None:
    group = Group(3)
    leader = group.elect()
    away = group.follower
    group.advance(1)
    assert counted(group, leader, EventKind.SLOW_PEER) == {}
    with capture_logs() as lines:
        group.kill(away)
        group.advance(10)
    assert counted(group, leader, EventKind.SLOW_PEER) == {"behind or silent": 1}
    (line,) = [line for line in lines if line["event"] == "slow peer"]
    assert line["source"] == away
    assert line["for_ms"] >= 1000


def test_a_start_says_what_it_is_and_what_it_found_and_no_secret() -> None:
    with capture_logs() as lines:
        Group(1)
    (line,) = [line for line in lines if line["event"] == "start"]
    assert line["release"]
    assert line["entries"] == "0..-1"
    assert line["stopped_in_order"] is False
    assert isinstance(line["settings"], dict)
    settings = Settings(
        raft=RaftSettings(peer_secret="p" * 20), node=NodeSettings(registration_secret="r" * 20)
    )
    found = differing(settings)
    assert found == {"raft.peer_secret": "(set)", "node.registration_secret": "(set)"}

"""Delays live by a time that the group agrees on, whatever single wall clocks do."""

from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from broker.peers.protocol import RaftFrame
from broker.replica.group_clock import DRIFT, LATE_NS, SLEW, GroupClock
from broker.statistics.events import EventKind, Events
from raft.effects import Role
from raft.messages import VoteRequest, VoteResponse
from tests.broker.harness import Group

S = 1_000_000_000
HOUR_MS = 3_600_000
DAWN_MS = 1_700_000_000_000


def clock_of(wall_ms: int = DAWN_MS) -> tuple[GroupClock, Events]:
    events = Events()
    return GroupClock(0, wall_ms, events), events


def test_a_leader_follows_its_wall_clock_by_a_hundredth_of_the_time() -> None:
    clock, events = clock_of()
    clock.lead(0)
    with capture_logs() as lines:
        assert clock.read(S, DAWN_MS + 1000 + 2 * HOUR_MS) == DAWN_MS + 1010
    assert events.counts == {(EventKind.CLOCK_JUMP, "ahead"): 1}
    assert lines[0]["by_ms"] == 2 * HOUR_MS
    assert clock.read(3601 * S, DAWN_MS + 3 * HOUR_MS + 1000) == DAWN_MS + HOUR_MS + 1000 + 36_010
    assert events.count(EventKind.CLOCK_JUMP) == 1, "it is told when it jumps, not for as long as it differs"
    # set back: the time does not go back
    times = [clock.read((3601 + second) * S, DAWN_MS) for second in range(10)]
    assert all(0 < 1000 - (after - before) <= 1000 // SLEW for before, after in pairwise(times))


def test_small_steps_are_no_jump_and_are_made_up_for() -> None:
    clock, events = clock_of()
    clock.lead(0)
    clock.read(S, DAWN_MS + 1000 + 500)
    assert clock.read(100 * S, DAWN_MS + 100_000 + 500) == DAWN_MS + 100_500
    assert events.counts == {}


def test_a_follower_goes_on_from_its_leader_s_words_and_not_from_its_wall_clock() -> None:
    clock, events = clock_of(DAWN_MS + 2 * HOUR_MS)
    clock.heard(DAWN_MS, S)
    assert clock.read(2 * S, DAWN_MS + 2 * HOUR_MS + 2000) == DAWN_MS + 1000
    clock.heard(DAWN_MS + 900, 2 * S)
    assert clock.read(3 * S, DAWN_MS + 2 * HOUR_MS + 3000) == DAWN_MS + 1900, "what waits must not be early"
    clock.heard(DAWN_MS + 5000, 3 * S)
    assert clock.read(3 * S, DAWN_MS + 2 * HOUR_MS + 3000) == DAWN_MS + 5000
    assert clock.lead(4 * S) == DAWN_MS + 6000
    assert events.counts == {}


def test_what_a_leader_says_may_be_late_and_sets_back_by_what_clocks_may_differ() -> None:
    """A node that stood still for a minute finds there what was sent meanwhile."""
    clock, events = clock_of()
    clock.heard(DAWN_MS, S)
    clock.heard(DAWN_MS + 200, 61 * S)
    assert clock.read(61 * S, DAWN_MS + 61_000) == DAWN_MS + 60_000 * (DRIFT - 1) // DRIFT
    clock.heard(DAWN_MS + 400, 61 * S)
    assert clock.read(61 * S, DAWN_MS + 61_000) == DAWN_MS + 60_000 * (DRIFT - 1) // DRIFT
    clock.heard(DAWN_MS + 60_000, 61 * S)
    assert clock.read(61 * S, DAWN_MS + 61_000) == DAWN_MS + 60_000
    assert events.counts == {}


def test_a_new_leader_s_time_is_the_group_s_and_is_told_where_it_differs() -> None:
    clock, events = clock_of()
    clock.heard(DAWN_MS, S)
    clock.follow(2 * S)
    clock.heard(DAWN_MS + 2000, 2 * S)
    assert events.counts == {}, "a second is no jump"
    clock.follow(3 * S)
    clock.heard(DAWN_MS + 3000 - HOUR_MS, 3 * S)
    assert clock.read(3 * S, DAWN_MS + 3000) == DAWN_MS + 3000 - HOUR_MS
    with capture_logs() as lines:
        clock.heard(DAWN_MS + 6000 - HOUR_MS, 6 * S)
        clock.follow(6 * S)
        clock.heard(DAWN_MS + 6000, 6 * S)
    assert [(line["reason"], line["by_ms"]) for line in lines] == [
        ("a new leader's time is back", HOUR_MS),
        ("a new leader's time is ahead", HOUR_MS),
    ]
    assert clock.read(6 * S, DAWN_MS + 6000) == DAWN_MS + 6000
    clock.follow(1000 * S)
    clock.heard(DAWN_MS + 1_000_000 + 9_000, 1000 * S)
    assert events.count(EventKind.CLOCK_JUMP) == 2, (
        "a leader's clock comes so near to its wall clock in that time"
    )


def test_a_new_leader_s_first_word_that_was_late_is_no_jump() -> None:
    """TCP sends what was lost again after seconds: a `clock jump` back was told, and none was there."""
    clock, events = clock_of()
    clock.heard(DAWN_MS, S)
    clock.follow(2 * S)
    clock.heard(DAWN_MS + 1500, 6 * S)  # on its way for 3.5 s
    clock.heard(DAWN_MS + 1600, 6 * S)
    clock.follow(6 * S)  # of the next term, as late
    clock.heard(DAWN_MS + 1700, 6 * S)
    clock.heard(DAWN_MS + 5000, 6 * S)
    clock.heard(DAWN_MS + 15_000, 16 * S)
    assert clock.read(16 * S, DAWN_MS + 16_000) == DAWN_MS + 15_000
    assert events.counts == {}


def test_a_new_leader_behind_late_words_of_the_last_one_is_no_jump() -> None:
    """A node that stood still for twelve seconds found there what its leader had sent, and was set back by an eighth of
    them. Then another node led: that its time is ahead was told, and no clock had jumped."""
    clock, events = clock_of()
    clock.heard(DAWN_MS, S)
    for number in range(1, 10):
        clock.heard(DAWN_MS + 200 * number, 13 * S)
    clock.follow(13 * S)
    clock.heard(DAWN_MS + 12_000, 13 * S)
    assert events.counts == {}
    # what late words have set back is made up for by now
    clock.heard(DAWN_MS + 13_000, 14 * S)
    clock.follow(14 * S)
    clock.heard(DAWN_MS + 13_000 + HOUR_MS, 14 * S)
    assert events.counts == {(EventKind.CLOCK_JUMP, "a new leader's time is ahead"): 1}


def test_a_new_leader_that_is_ahead_behind_late_words_is_told_by_how_much() -> None:
    clock, events = clock_of()
    clock.heard(DAWN_MS, S)
    clock.heard(DAWN_MS + 200, 13 * S)
    clock.follow(13 * S)
    with capture_logs() as lines:
        clock.heard(DAWN_MS + 12_000 + HOUR_MS, 13 * S)
    assert events.counts == {(EventKind.CLOCK_JUMP, "a new leader's time is ahead"): 1}
    assert lines[0]["by_ms"] == HOUR_MS


def test_who_leads_by_a_late_word_says_that_the_time_is_back() -> None:
    clock, events = clock_of()
    clock.heard(DAWN_MS, S)
    clock.follow(2 * S)
    clock.heard(DAWN_MS + 1500, 6 * S)
    clock.follow(7 * S)
    with capture_logs() as lines:
        assert clock.lead(7 * S) == DAWN_MS + 2500
    assert events.counts == {(EventKind.CLOCK_JUMP, "a new leader's time is back"): 1}
    assert lines[0]["by_ms"] == 3500


def test_a_leader_whose_monotonic_clock_stood_still_is_believed_after_a_while() -> None:
    """It says for good that it is earlier than the follower has counted: once that one leads, what the leader has
    stored would be early by so much."""
    clock, events = clock_of()
    clock.heard(DAWN_MS, S)
    suspended_ms, words = 60_000, [S + number * S // 10 for number in range(610, 700)]
    for now_ns in words:
        word_ms = DAWN_MS + (now_ns - S) // 1_000_000 - suspended_ms
        clock.heard(word_ms, now_ns)
        is_believed = clock.ahead_ms(word_ms) == 0
        assert is_believed == (now_ns - words[0] >= LATE_NS)
    assert events.counts == {(EventKind.CLOCK_JUMP, "the leader's time is back"): 1}


def test_words_from_before_a_pause_are_not_believed_however_long_others_were_late() -> None:
    clock, events = clock_of()
    clock.heard(DAWN_MS, S)
    late_ms = 0
    for number in range(1, 29):
        late_ms += 20
        clock.heard(DAWN_MS + number * 100 - late_ms, S + number * S // 10)
    clock.heard(DAWN_MS + 2900, 64 * S)
    assert clock.ahead_ms(DAWN_MS) > 50_000
    clock.heard(DAWN_MS + 63_000, 64 * S)
    assert clock.ahead_ms(DAWN_MS + 63_000) == 0
    assert events.counts == {}


def test_a_leader_that_is_deposed_takes_the_time_of_the_next_one() -> None:
    clock, _ = clock_of(DAWN_MS + HOUR_MS)
    clock.lead(0)
    clock.follow(S)
    clock.heard(DAWN_MS, 2 * S)
    assert clock.read(3 * S, DAWN_MS + HOUR_MS + 3000) == DAWN_MS + 1000


def test_a_node_that_starts_takes_the_time_of_a_peer_that_knows_it() -> None:
    clock, _ = clock_of(DAWN_MS + 2 * HOUR_MS)
    clock.told("n1", DAWN_MS + 7, S, is_agreed=False)
    clock.told("n2", DAWN_MS, S, is_agreed=True)
    assert clock.lead(2 * S) == DAWN_MS + 1000


def test_of_what_peers_say_before_a_leader_is_heard_the_latest_counts() -> None:
    """Each may be late: a node that stood still finds what was sent before. The first one counted."""
    clock, _ = clock_of(DAWN_MS + 2 * HOUR_MS)
    clock.told("n1", DAWN_MS, 10 * S, is_agreed=True)  # was sent eight seconds ago
    clock.told("n2", DAWN_MS + 9_000, 11 * S, is_agreed=True)
    clock.told("n1", DAWN_MS + 1_000, 11 * S, is_agreed=True)
    assert clock.read(12 * S, DAWN_MS + 2 * HOUR_MS) == DAWN_MS + 10_000
    clock.heard(DAWN_MS + 9_500, 12 * S)
    clock.told("n1", DAWN_MS + 20_000, 12 * S, is_agreed=True)
    assert clock.read(12 * S, DAWN_MS + 2 * HOUR_MS) == DAWN_MS + 9_500, "the group's time is its leader's"


def test_whoever_leads_by_what_peers_have_said_is_told_nothing_any_more() -> None:
    clock, _ = clock_of()
    clock.told("n1", DAWN_MS, S, is_agreed=True)
    assert clock.lead(2 * S) == DAWN_MS + 1000
    clock.told("n2", DAWN_MS + HOUR_MS, 2 * S, is_agreed=True)
    assert clock.read(2 * S, DAWN_MS) == DAWN_MS + 1000
    clock.follow(2 * S)
    clock.told("n2", DAWN_MS + HOUR_MS, 2 * S, is_agreed=True)
    assert clock.read(2 * S, DAWN_MS) == DAWN_MS + 1000


def test_a_voter_says_the_time_when_it_is_asked_for_its_vote() -> None:
    """A candidate knew what others had said when they dialled it, before a leader had told them the time."""
    group = Group(3)
    group.kill("n1")
    group.advance(0.01)
    knows_ms = group.wall_ms - HOUR_MS
    began_ns = group.now_ns
    for name in ("n0", "n2"):
        assert not group.node(name).replica.clock.is_agreed
    group.node("n2").replica.clock.heard(knows_ms, began_ns)
    leader = group.node(group.elect()).replica
    assert leader.raft.role is Role.LEADER
    assert abs(leader.clock.ahead_ms(knows_ms + (group.now_ns - began_ns) // 1_000_000)) < 100
    assert not leader.clock.was_made_here


def test_a_voter_that_has_just_been_told_the_time_says_that() -> None:
    """It said what its own clock had shown before in that turn, and called it the group's."""
    group = Group(3)
    group.advance(0.01)
    node = group.node("n0")
    clock = node.replica.clock
    assert not clock.is_agreed
    node.begin(group.now_ns, group.wall_ms)
    knows_ms = group.wall_ms - HOUR_MS
    clock.told("n2", knows_ms, group.now_ns, is_agreed=True)
    said: list[RaftFrame] = []
    group.lose = lambda source, target, frame: isinstance(frame, RaftFrame) and said.append(frame) is None  # type: ignore[func-returns-value]
    group.members["n0"].due_ns = group.now_ns
    assert node.peer_received("n1", RaftFrame(VoteRequest("n1", "n0", 1, -1, 0, pre_vote=True)))
    group.settle()
    assert [frame.time_ms for frame in said if isinstance(frame.message, VoteResponse)] == [knows_ms]


def test_the_first_leader_takes_the_middle_of_the_wall_clocks_and_says_that_they_differ() -> None:
    for own, others, expected in (
        (2 * HOUR_MS, [0, 3], 3),
        (0, [2 * HOUR_MS, 3], 3),
        (2 * HOUR_MS, [0], 0),
        (0, [2 * HOUR_MS], 0),
        (5, [], 5),
    ):
        clock, events = clock_of(DAWN_MS + own)
        for number, other in enumerate(others):
            clock.told(f"n{number}", DAWN_MS + other, 0, is_agreed=False)
        assert clock.lead(0) == DAWN_MS + expected
        assert events.count(EventKind.CLOCK_JUMP) == bool(others)


def test_a_follower_that_is_back_in_an_idle_group_goes_on_with_its_time() -> None:
    """It took the store time of what it had missed: the group's time fell by a minute when it was made the leader."""
    group = Group(3)
    old = group.elect()
    client = group.connect()
    client.create_topic("T")
    group.advance(2)
    back = next(node for node in ("n0", "n1", "n2") if node != old)
    group.kill(back)
    client.send("T", b"x", 0, {"DELAY": "9"})  # five minutes
    group.advance(60)
    group.restart(back)
    group.advance(1)
    group.transfer_leadership(back)
    replica = group.node(back).replica
    assert abs(replica.clock.ahead_ms(group.wall_ms)) <= 10
    assert group.node(back).events.count(EventKind.CLOCK_JUMP) == 0
    client = group.connect()
    group.advance(236)
    assert client.pull("T", "g", 0).bodies == []
    group.advance(5)
    assert client.pull("T", "g", 0).bodies == [b"x"]


def test_a_follower_hears_the_time_while_nothing_is_stored() -> None:
    """Its own monotonic clock was all that it had between entries, however long."""
    group = Group(3)
    leader = group.elect()
    group.converge()
    slow, fast = (group.node(name).replica.clock for name in ("n0", "n1", "n2") if name != leader)
    slow._time_ns -= 50_000_000
    fast._time_ns += 50_000_000
    group.advance(2)
    assert abs(slow.ahead_ms(group.wall_ms)) <= 10
    assert abs(fast.ahead_ms(group.wall_ms)) <= 10


def test_a_leader_of_the_first_release_says_nothing_and_entries_are_not_taken_for_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RaftFrame, "time_ms", -1)
    group = Group(3)
    leader = group.elect()
    client = group.connect()
    client.create_topic("T")
    group.converge()
    agreed = {name for name in ("n0", "n1", "n2") if group.node(name).replica.clock.is_agreed}
    assert agreed == {leader}


def test_a_leader_whose_clock_jumps_two_hours_ahead_delivers_an_hour_delay_after_an_hour(
    group: Group,
) -> None:
    """It was delivered after ten seconds, and nothing was said."""
    client = group.connect()
    client.create_topic("T")
    client.send("T", b"x", 0, {"DELAY": "9"})  # five minutes: an hour's heartbeats take long here, too
    leader = group.node(group.leader)
    group.wall_offset_ms = 2 * HOUR_MS
    group.advance(290)
    assert client.pull("T", "g", 0).bodies == []
    assert leader.events.counts[EventKind.CLOCK_JUMP, "ahead"] == 1
    group.advance(11)
    assert client.pull("T", "g", 0).bodies == [b"x"]


def test_a_new_leader_with_another_wall_clock_does_not_fire_early() -> None:
    group = Group(3)
    old = group.elect()
    client = group.connect()
    client.create_topic("T")
    client.send("T", b"x", 0, {"DELAY": "4"})
    others = [node for node in ("n0", "n1", "n2") if node != old]
    group.kill(others[0])
    group.wall_offset_ms = 2 * HOUR_MS
    group.restart(others[0])
    group.advance(5)
    group.kill(old)
    group.elect()
    client = group.connect()
    group.advance(20)
    assert client.pull("T", "g", 0).bodies == []
    group.advance(10)
    assert client.pull("T", "g", 0).bodies == [b"x"]


def test_what_stood_while_all_were_down_is_made_up_for(group: Group) -> None:
    client = group.connect()
    client.create_topic("T")
    client.send("T", b"x", 0, {"DELAY": "18"})  # two hours
    nodes = ["n0", "n1", "n2"]
    group.converge()
    for node in nodes:
        group.kill(node)
    group.wall_offset_ms = 2 * HOUR_MS
    for node in nodes:
        group.restart(node)
    group.elect()
    client = group.connect()
    group.advance(1)
    assert client.pull("T", "g", 0).bodies == [b"x"]

"""Delays live by a time that the group agrees on, whatever single wall clocks do."""

from itertools import pairwise

from structlog.testing import capture_logs

from broker.replica.group_clock import SLEW, GroupClock
from broker.statistics.events import Event, Events
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
    assert events.counts == {(Event.CLOCK_JUMP, "ahead"): 1}
    assert lines[0]["by_ms"] == 2 * HOUR_MS
    assert clock.read(3601 * S, DAWN_MS + 3 * HOUR_MS + 1000) == DAWN_MS + HOUR_MS + 1000 + 36_010
    assert events.count(Event.CLOCK_JUMP) == 1, "it is told when it jumps, not for as long as it differs"
    # set back: the time does not go back
    times = [clock.read((3601 + second) * S, DAWN_MS) for second in range(10)]
    assert all(0 < 1000 - (after - before) <= 1000 // SLEW for before, after in pairwise(times))


def test_small_steps_are_no_jump_and_are_made_up_for() -> None:
    clock, events = clock_of()
    clock.lead(0)
    clock.read(S, DAWN_MS + 1000 + 500)
    assert clock.read(100 * S, DAWN_MS + 100_000 + 500) == DAWN_MS + 100_500
    assert events.counts == {}


def test_a_follower_goes_on_from_the_entries_and_not_from_its_wall_clock() -> None:
    clock, _ = clock_of(DAWN_MS + 2 * HOUR_MS)
    clock.heard(DAWN_MS, S)
    assert clock.read(2 * S, DAWN_MS + 2 * HOUR_MS + 2000) == DAWN_MS + 1000
    clock.heard(DAWN_MS + 900, 2 * S)
    assert clock.read(3 * S, DAWN_MS) == DAWN_MS + 1900, "what that entry waits for must not be early here"
    clock.heard(DAWN_MS + 5000, 3 * S)
    assert clock.read(3 * S, DAWN_MS) == DAWN_MS + 5000
    assert clock.lead(4 * S) == DAWN_MS + 6000


def test_a_node_that_starts_takes_the_time_of_a_peer_that_knows_it() -> None:
    clock, _ = clock_of(DAWN_MS + 2 * HOUR_MS)
    clock.told("n1", DAWN_MS + 7, S, is_agreed=False)
    clock.told("n2", DAWN_MS, S, is_agreed=True)
    assert clock.lead(2 * S) == DAWN_MS + 1000


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
        assert events.count(Event.CLOCK_JUMP) == bool(others)


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
    assert leader.events.counts[Event.CLOCK_JUMP, "ahead"] == 1
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

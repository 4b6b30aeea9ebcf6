"""No turn without a reason: a node with nothing to do sleeps until something is due, whatever has failed around it.

Only deadlines wake the nodes here, as nobody sends anything. One that stays in the past would bring a turn at once,
and another, for as long as it stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from broker.replica.jobs import Job
from broker.requests.line import Line
from broker.statistics.events import EventKind
from log.formats.record import SYS_FLAG_PREPARED
from tests.broker.harness import Group, Member

TURNS_PER_SECOND_MAX = 60
"""Two heartbeats and their answers ten times a second are 40 turns at most. What spins has a turn in every step."""


@pytest.fixture(params=["sync", "async"])
def flush(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@contextmanager
def turns_counted(monkeypatch: pytest.MonkeyPatch, seconds: int) -> Iterator[Counter[str]]:
    """Counts turns by node; one that is wanted at once comes after the shortest sleep of the shell's timer."""
    counts: Counter[str] = Counter()
    turn = Group._turn

    def counted(group: Group, member: Member) -> None:
        counts[member.id] += 1
        turn(group, member)
        if member.due_ns <= group.now_ns and not member.process.node.replica.committed.is_behind:
            member.due_ns += 500_000

    with monkeypatch.context() as patched:
        patched.setattr(Group, "_turn", counted)
        yield counts
    assert counts, "time has passed"
    assert max(counts.values()) <= seconds * TURNS_PER_SECOND_MAX, counts


def fill(group: Group, *nodes: str) -> None:
    for node in nodes:
        disk = group.members[node].disk
        disk.free_pages, disk.free_bytes = 0, 0


def busy_group(flush: str, size: int = 3) -> Group:
    """A group with all that has a deadline of its own: delays, timers, open transactions, held pulls, consumers."""
    group = Group.elected(size, flush=flush)
    client = group.connect()
    client.create_topic("T")
    client.heartbeat("G", producer_group="PG")
    client.send("T", b"x")
    client.send("T", b"later", properties={"DELAY": "2"})
    client.send("T", b"timed", properties={"TIMER_DELAY_MS": "4000"})
    client.send("T", b"half", properties={"TRAN_MSG": "true", "PGROUP": "PG"}, sysFlag=SYS_FLAG_PREPARED)
    client.start_pull("T", "G", 1, suspend_ms=20_000, commit_offset=1)
    return group


@pytest.mark.parametrize("full", ["leader", "follower", "all", "none"])
def test_a_full_disk_brings_no_turns(monkeypatch: pytest.MonkeyPatch, flush: str, full: str) -> None:
    group = busy_group(flush)
    leader, follower = group.leader, group.follower
    fill(group, *{"leader": [leader], "follower": [follower], "all": list(group.members), "none": []}[full])
    client = group.connect(leader)
    for _ in range(40):
        client.start_send("T", bytes(100_000))
    with turns_counted(monkeypatch, 40):
        group.advance(40)
    for member in group.alive():
        assert member.alive.events.count(EventKind.STALLED_LOOP) == 0


@pytest.mark.parametrize("alive", [1, 2])
def test_peers_that_are_gone_bring_no_turns(monkeypatch: pytest.MonkeyPatch, flush: str, alive: int) -> None:
    group = busy_group(flush)
    for node in list(group.members)[alive:]:
        group.kill(node)
    with turns_counted(monkeypatch, 40):
        group.advance(40)


@pytest.mark.parametrize("refuses", [True, False])
def test_name_servers_that_are_gone_bring_no_turns(
    monkeypatch: pytest.MonkeyPatch, flush: str, refuses: bool
) -> None:
    def dial(member: Member, line: Line) -> None:
        if refuses:
            line.lost(line.connection, "connection refused")

    group = Group.elected(
        node={"name_servers": ("127.0.0.1:9", "127.0.0.1:19")}, flush=flush, dial_name_server=dial
    )
    with turns_counted(monkeypatch, 40):
        group.advance(40)


def test_a_stop_that_awaits_its_jobs_brings_no_turns(monkeypatch: pytest.MonkeyPatch, flush: str) -> None:
    """A disk that does not answer: what is due meanwhile is never handed out any more."""
    group = busy_group(flush, size=1)
    member = group.members["n0"]
    client = group.connect("n0")
    group.advance(1)

    class Kept(list[Job]):
        """Jobs whose threads do not come back."""

        def __bool__(self) -> bool:
            return False

    member.process._begin_job = member.process._begin_flush = Kept().append
    client.start_send("T", b"flushed")
    group.advance(5)
    client.start_send("T", b"not flushed any more")
    stopped: list[None] = []
    member.process.stop(lambda: stopped.append(None))
    with turns_counted(monkeypatch, 40):
        group.advance(40)
    assert not stopped


def test_a_message_after_idle_seconds_makes_nobody_late(flush: str) -> None:
    """A checkpoint had been due for seconds, of which there was nothing to note until then."""
    group = Group.elected(3, flush=flush)
    client = group.connect()
    client.create_topic("T")
    for _ in range(3):
        client.send("T", b"x")
        group.advance(8)
    assert [member.alive.events.count(EventKind.STALLED_LOOP) for member in group.alive()] == [0, 0, 0]


def test_a_deadline_of_the_past_makes_nobody_late() -> None:
    """Whatever sets one: the node could not have come earlier than the turn that found it."""
    group = Group.elected(1)
    member = group.members["n0"]
    node, replica = member.alive, member.alive.replica
    group.advance(1)
    replica.disk_space.dispatch_due_ns = 0
    replica.raft.deadline = lambda: 0  # type: ignore[method-assign]
    group.now_ns += 1_000_000
    member.process.turn(group.now_ns, group.wall_ms)
    assert member.process.end_turn() == group.now_ns
    node.begin(group.now_ns + 1_000_000, group.wall_ms)
    assert node.events.count(EventKind.STALLED_LOOP) == 0

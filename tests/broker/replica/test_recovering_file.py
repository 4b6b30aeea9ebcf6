"""Nodes that come back with less than they had acknowledged: what a start finds out, and how it ends."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from broker.peers.protocol import Frame, RaftFrame
from broker.replica.recovering_file import RecoveringFile, RunFacts
from broker.replica.replica import Replica
from broker.state.commands import DeleteTopic
from log.entries import cuts
from log.entries.entry_recovery import LogBegin, LogRecovery, RecoveryKind
from log.errors import DamagedLogError
from log.store import RecoveryReport
from raft import Role
from raft.effects import Send
from raft.messages import Message, RecoveryRequest, RecoveryResponse, VoteResponse
from raft.recovery_loss import Loss
from tests.broker.group_changes import add, change, done, promote
from tests.broker.harness import Group
from tests.log.memory_disk import MemoryDisk

SOUND = LogRecovery(RecoveryKind.CLEAN, LogBegin(), last_good_index=9, end_position=900, scanned_entries=10)
CRASHED = RecoveryReport(
    log=SOUND,
    clean_stop=False,
    committed_index=5,
    noted_committed_index=5,
    dispatched_index=5,
    queues_index=5,
    damage=(),
    needs_snapshot=False,
)
DAMAGED = replace(
    CRASHED,
    log=replace(
        SOUND, kind=RecoveryKind.DAMAGED, damaged_file="data/0", damaged_at=700, reason="a checksum differs"
    ),
    damage=("data/0 at byte 700: a checksum differs",),
)


def judge(
    disk: MemoryDisk,
    report: RecoveryReport,
    *,
    flush: str = "async",
    boot: str = "one",
    accept: bool = False,
    has_term: bool = True,
    only_voter: bool = False,
) -> Loss | None:
    """Returns the loss that a start over this disk finds."""
    file = RecoveringFile(disk, RunFacts(flush, boot, accept))
    return file.judge(report, has_term=has_term, only_voter=only_voter)[0]


@pytest.mark.parametrize(
    ("flush", "boot", "clean", "loss"),
    [
        ("async", "one", False, None),
        ("async", "two", False, Loss.ENTRIES),
        ("async", "two", True, None),
        ("async", "", False, None),
        ("sync", "two", False, None),
    ],
)
def test_only_another_boot_after_asynchronous_flushes_may_have_lost_the_page_cache(
    flush: str, boot: str, clean: bool, loss: Loss | None
) -> None:
    disk = MemoryDisk()
    assert judge(disk, CRASHED, flush=flush, boot="one") is None
    assert judge(disk, replace(CRASHED, clean_stop=clean), flush="sync", boot=boot) is loss


@pytest.mark.parametrize(
    ("acknowledged", "clean", "loss"), [(9, False, None), (10, False, Loss.ENTRIES), (10, True, None)]
)
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_log_that_ends_before_what_was_acknowledged_has_lost_pages(
    flush: str, acknowledged: int, clean: bool, loss: Loss | None
) -> None:
    """The process crashed after a failed flush, and pages that it had not written left the cache."""
    disk = MemoryDisk()
    before = RecoveringFile(disk, RunFacts("async", "one"))
    assert before.judge(CRASHED, has_term=True, only_voter=False)[0] is None
    before.acknowledged(acknowledged)
    assert judge(disk, replace(CRASHED, clean_stop=clean), flush=flush) is loss
    assert judge(disk, CRASHED) is loss, "it is remembered, and judged once"


def test_a_loss_is_remembered_until_it_is_over() -> None:
    disk = MemoryDisk()
    assert judge(disk, DAMAGED) is Loss.ENTRIES
    assert judge(disk, CRASHED) is Loss.ENTRIES, "the damage is cut by now"
    RecoveringFile(disk, RunFacts("async", "one")).keep(None)
    assert judge(disk, CRASHED) is None


def test_a_disk_without_a_term_has_lost_all() -> None:
    assert judge(MemoryDisk(), CRASHED, has_term=False) is Loss.ALL
    assert judge(MemoryDisk(), CRASHED, has_term=False, only_voter=True) is None


@pytest.mark.parametrize("report", [DAMAGED, replace(CRASHED, needs_snapshot=True)])
def test_a_group_of_one_starts_over_damage_only_if_the_loss_is_accepted(report: RecoveryReport) -> None:
    disk = MemoryDisk()
    with pytest.raises(DamagedLogError, match=r"storage\.accept_data_loss"):
        judge(disk, report, only_voter=True)
    assert judge(disk, report, only_voter=True, accept=True) is None


def damage_an_entry(disk: MemoryDisk, node: str, at: int) -> None:
    """Changes a byte in the middle of a log."""
    path = next(path for path in sorted(disk.files) if path.startswith(f"dledger-{node}/data/"))
    disk.files[path].seen[at] ^= 0xFF
    disk.files[path].durable[at] ^= 0xFF


def sent(group: Group, count: int) -> None:
    """Messages that are acknowledged."""
    client = group.connect()
    for number in range(count):
        client.send("T", b"%d" % number)


def test_a_damaged_log_comes_back_from_the_group_before_the_node_votes_again(group: Group) -> None:
    group.connect().create_topic("T", queues=1)
    sent(group, 20)
    group.converge()
    victim = group.follower
    last = group.node(victim).replica.store.log.last_index
    at = group.node(victim).replica.store.log.position_of(last - 8) + 60
    group.kill(victim)
    damage_an_entry(group.members[victim].disk, victim, at)
    group.start(victim)
    raft = group.node(victim).replica.raft
    assert raft.recovering is Loss.ENTRIES
    assert raft.log_terms.last_index < last
    group.run_until(lambda: raft.recovering is None, "the recovery")
    assert raft.log_terms.last_index >= last
    group.kill(victim)
    group.start(victim)
    assert group.node(victim).replica.raft.recovering is None, "it is over for good"
    group.converge()


@pytest.mark.parametrize("power", [False, True])
def test_damage_in_the_last_entries_is_no_unfinished_write(power: bool) -> None:
    """Synchronous flush: nothing whole follows, but the node's acknowledgement was counted."""
    group = Group.elected(3, flush="sync")
    group.connect().create_topic("T", queues=1)
    sent(group, 20)
    group.converge()
    victim = group.follower
    log = group.node(victim).replica.store.log
    last, at = log.last_index, log.position_of(log.last_index) + 60
    if power:
        group.run_until(lambda: not log.flushes.note_waits, "the note of the flush to be flushed")
    group.kill(victim)
    member = group.members[victim]
    member.disk = member.disk.crash(lambda path, page: not power)
    damage_an_entry(member.disk, victim, at)
    group.start(victim)
    raft = group.node(victim).replica.raft
    assert (raft.recovering, raft.log_terms.last_index) == (Loss.ENTRIES, last - 1)
    group.run_until(lambda: raft.recovering is None, "the recovery")
    group.converge()


def test_asynchronous_mode_flushes_the_note_with_the_next_interval_and_rests_then() -> None:
    group = Group.elected(3, flush="async")
    client = group.connect()
    client.create_topic("T", queues=1)
    client.send("T", b"one")
    group.advance(3)
    replicas = [member.alive.replica for member in group.alive()]
    assert not any(replica.store.log.flushes.note_waits for replica in replicas)
    flushes = [replica.timings.flush.count for replica in replicas]
    group.advance(10)
    assert [replica.timings.flush.count for replica in replicas] == flushes
    assert all(replica.durability.due_ns() > group.now_ns for replica in replicas), "nothing is due"


def test_the_note_of_the_last_flush_is_flushed_once_when_the_log_rests() -> None:
    group = Group.elected(3, flush="sync")
    client = group.connect()
    client.create_topic("T", queues=1)
    group.converge()
    group.advance(1)
    replicas = [member.alive.replica for member in group.alive()]
    assert not any(replica.store.log.flushes.note_waits for replica in replicas)
    flushes = [replica.timings.flush.count for replica in replicas]
    group.advance(20)
    assert [replica.timings.flush.count for replica in replicas] == flushes, "nothing to note, no flush"
    for _ in range(10):
        client.send("T", b"one behind the other")
        group.advance(0.02)
    busy = [replica.timings.flush.count for replica in replicas]
    group.advance(1)
    rested = [replica.timings.flush.count for replica in replicas]
    assert [rest - before for rest, before in zip(rested, busy, strict=True)] == [1, 1, 1]
    assert not any(replica.store.log.flushes.note_waits for replica in replicas)


def test_a_group_of_one_does_not_start_over_damage_in_its_last_entry() -> None:
    group = Group.elected(1, flush="sync")
    sent(group, 5)
    log = group.node("n0").replica.store.log
    at = log.position_of(log.last_index) + 60
    group.kill("n0")
    damage_an_entry(group.members["n0"].disk, "n0", at)
    with pytest.raises(DamagedLogError, match=r"storage\.accept_data_loss"):
        group.start("n0")


def test_an_empty_disk_takes_the_log_from_the_group(group: Group) -> None:
    group.connect().create_topic("T", queues=1)
    sent(group, 10)
    victim = group.follower
    other = next(m.id for m in group.alive() if m.id not in (victim, group.leader))
    leader = group.leader
    group.kill(victim)
    group.kill(leader)
    group.members[victim].disk = MemoryDisk()
    group.start(victim)
    group.advance(20)
    assert group.node(victim).replica.raft.recovering is Loss.ALL, "one other voter is not enough"
    assert not group.node(other).replica.serving
    group.start(leader)
    group.run_until(lambda: group.node(victim).replica.raft.recovering is None, "the recovery")
    group.elect()
    sent(group, 1)
    group.converge()


def start_accepting_data_loss(group: Group, node: str) -> None:
    """Starts the node as an operator does who accepts the loss, for this one start."""
    member = group.members[node]
    config = member.config
    storage = msgspec.structs.replace(config.storage, accept_data_loss=True)
    member.config = msgspec.structs.replace(config, storage=storage)
    group.start(node)
    member.config = config


@pytest.mark.parametrize("survivor", ["n0", "n1", "n2"])
def test_one_store_of_three_is_enough_when_one_empty_node_is_told_to_accept_the_loss(survivor: str) -> None:
    """docs/operations.md: only the one that was told votes, so nobody but the survivor can be elected."""
    group = Group.elected(3)
    group.connect().create_topic("T", queues=1)
    sent(group, 20)
    group.converge()
    gone = [node for node in group.members if node != survivor]
    for node in group.members:
        group.kill(node)
    for node in gone:
        group.replace_disk(node)
    group.start(gone[1])
    group.start(survivor)
    group.advance(30)
    assert not any(member.alive.replica.serving for member in group.alive()), (
        "two of three have lost their votes"
    )
    group.kill(gone[1])
    start_accepting_data_loss(group, gone[0])
    assert group.elect() == survivor
    sent(group, 5)
    group.start(gone[1])
    recovered = group.node(gone[1]).replica.raft
    assert recovered.recovering is Loss.ALL
    group.run_until(lambda: recovered.recovering is None, "the recovery")
    group.converge()
    pulled = group.connect(gone[1]).pull("T", "g", 0, count=32).bodies
    assert pulled == [b"%d" % number for number in (*range(20), *range(5))]
    group.kill(survivor)
    group.elect()
    sent(group, 1)


@pytest.mark.parametrize("empty", ["n0", "n1"])
def test_of_two_voters_the_empty_one_is_told_to_accept_the_loss(empty: str) -> None:
    """docs/operations.md: the other one leads, and no message is lost."""
    group = Group.elected(2)
    group.connect().create_topic("T", queues=1)
    sent(group, 20)
    group.converge()
    (whole,) = (node for node in group.members if node != empty)
    group.kill(empty)
    group.replace_disk(empty)
    group.start(empty)
    group.advance(60)
    assert group.node(empty).replica.raft.recovering is Loss.ALL
    assert not any(member.alive.replica.serving for member in group.alive())
    group.kill(empty)
    start_accepting_data_loss(group, empty)
    assert group.elect() == whole
    sent(group, 5)
    group.converge()
    group.kill(empty)
    group.start(empty)
    group.elect()
    pulled = group.connect(empty).pull("T", "g", 0, count=32).bodies
    assert pulled == [b"%d" % number for number in (*range(20), *range(5))]


def outage_before_an_empty_node_has_recovered() -> tuple[Group, str, list[str]]:
    """docs/operations.md: asynchronous flush, and the power fails on both that had all, who are there again.

    Returns (group, the empty node, which is down, the others).
    """
    group = Group.elected(3, flush="async")
    group.connect().create_topic("T", queues=1)
    sent(group, 20)
    group.converge()
    empty, *others = group.members
    for node in group.members:
        group.kill(node)
    group.replace_disk(empty)
    for node in others:
        RecoveringFile(group.members[node].disk, RunFacts("async", "one")).keep(Loss.ENTRIES)
        group.start(node)
    group.advance(60)
    assert not any(member.alive.replica.serving for member in group.alive())
    return group, empty, others


def test_an_outage_before_an_empty_node_has_recovered_ends_when_all_are_there() -> None:
    """All three agree on one that has what was not lost."""
    group, empty, others = outage_before_an_empty_node_has_recovered()
    group.start(empty)
    assert group.elect() in others
    group.run_until(lambda: group.node(empty).replica.raft.recovering is None, "the recovery")
    group.converge()
    assert group.connect(empty).pull("T", "g", 0, count=32).bodies == [b"%d" % number for number in range(20)]


def test_an_outage_before_an_empty_node_has_recovered_is_ended_by_accepting_the_loss() -> None:
    group, empty, others = outage_before_an_empty_node_has_recovered()
    for node in others:
        group.kill(node)
        start_accepting_data_loss(group, node)
    assert group.elect() in others
    sent(group, 5)
    group.start(empty)
    group.run_until(lambda: group.node(empty).replica.raft.recovering is None, "the recovery")
    group.converge()


def test_a_reset_half_done_is_repeated(group: Group) -> None:
    group.connect().create_topic("T", queues=1)
    sent(group, 10)
    victim = group.follower
    log = group.node(victim).replica.store.log

    class StopError(Exception):
        pass

    def fail() -> None:
        raise StopError

    with pytest.raises(StopError):
        cuts.reset(log, 5, log.position_of(5), log.term_of(4), fail)
    group.kill(victim)
    group.start(victim)
    replica = group.node(victim).replica
    assert replica.raft.recovering is Loss.ENTRIES
    group.run_until(lambda: replica.raft.recovering is None, "the recovery")
    group.converge()


def test_a_topic_deleted_between_the_notes_and_the_snapshot_stays_deleted() -> None:
    group = Group.elected(1)
    group.connect().create_topic("T", queues=1)
    sent(group, 5)
    group.advance(4)  # queues are noted
    replica = group.node("n0").replica
    assert replica.store.queues.get("T", 0) is not None
    applied: list[object] = []
    replica.leadership.propose_command(DeleteTopic("T", group.wall_ms), applied.append, lambda: None)
    group.members["n0"].due_ns = group.now_ns
    group.settle()
    assert applied
    assert replica.store.queues.get("T", 0) is None
    replica.applied.save()
    group.kill("n0")
    group.start("n0")
    group.elect()
    replica = group.node("n0").replica
    assert "T" not in replica.metadata.topics
    assert replica.store.queues.get("T", 0) is None


def test_a_snapshot_reflects_nothing_that_a_power_failure_of_all_may_take() -> None:
    """Asynchronous flush: the group goes on with other entries in the place of those that it lost."""
    group = Group.elected(3, flush="async")
    client = group.connect()
    client.create_topic("Kept", queues=1)
    group.converge()
    group.advance(1)  # flushed
    client.create_topic("Lost", queues=1)
    group.advance(0.03)
    node = group.follower
    replica = group.node(node).replica
    assert "Lost" in replica.metadata.topics
    replica.applied.save()
    assert replica.store.snapshot.applied_index <= replica.store.log.durable_index < replica.applied_index
    disks = {member.id: member.disk.crash(lambda path, page: False) for member in group.members.values()}
    for member in group.members.values():
        group.kill(member.id)
        member.disk = disks[member.id]
    for started in group.members:
        group.start(started)
    group.elect()
    group.connect().create_topic("New", queues=1)
    group.converge()
    states = [member.alive.replica.metadata.snapshot() for member in group.alive()]
    assert states[0] == states[1] == states[2]
    topics = group.node(node).replica.metadata.topics
    assert ("Kept" in topics, "Lost" in topics, "New" in topics) == (True, False, True)


def test_a_snapshot_is_written_when_the_flush_of_what_it_reflects_has_come_back() -> None:
    group = Group.elected(1, flush="async")
    sent(group, 3)
    replica = group.node("n0").replica
    replica.applied.save()
    index = replica.applied_index
    assert replica.store.snapshot.applied_index < index
    sent(group, 1)
    group.advance(1)
    assert replica.store.snapshot.applied_index == index
    group.connect().send("T", b"last")
    replica.close(group.now_ns)
    assert replica.store.snapshot.applied_index == replica.applied_index > index


def test_queue_ends_survive_in_the_snapshot_alone() -> None:
    group = Group.elected(1)
    group.connect().create_topic("T", queues=1)
    sent(group, 5)
    group.advance(1)  # flushed
    replica = group.node("n0").replica
    replica.applied.save()
    group.members["n0"].due_ns = group.now_ns
    group.advance(0.1)
    log = replica.store.log
    end = log.last_index
    # As retention leaves it when the files of the queue, of which no message is left, are gone with the notes.
    cuts.reset(log, end + 1, log.end_position, log.term_of(end))
    group.kill("n0")
    disk = group.members["n0"].disk
    for path in [path for path in disk.files if path.startswith(("consumequeue/", "recovery-notes"))]:
        disk.remove(path)
    group.start("n0")
    group.elect()
    assert group.node("n0").replica.leadership.queue_end("T", 0) == 5
    group.connect().send("T", b"next")
    assert group.node("n0").replica.leadership.queue_end("T", 0) == 6


def test_whoever_lost_the_entries_that_made_others_voters_does_not_lead_alone() -> None:
    """A group of one grows to three, and its first node's log is damaged: the others have what it committed since."""
    group = Group.elected(3)
    group.connect().create_topic("T", queues=1)
    first, *others = sorted(group.members, key=lambda node: node != group.leader)
    client = group.connect(first)
    for node in others:
        done(change(client, "remove", node))
    log = group.node(first).replica.store.log
    index = log.last_index + 1
    for node in others:
        add(client, node)
        promote(client, node)
    sent(group, 5)
    at = log.position_of(index) + 60
    group.kill(first)
    damage_an_entry(group.members[first].disk, first, at)
    group.partition(first)
    group.start(first)
    raft = group.node(first).replica.raft
    assert raft.configuration.voters == (first,)
    for _ in range(2):  # it knows that at its next start, too
        assert sorted(group.node(first).replica.raft.lost_voters) == sorted(group.members)
        group.advance(10)
        assert group.node(first).replica.raft.role is not Role.LEADER
        group.kill(first)
        group.start(first)
    group.heal()
    assert group.elect() in others
    group.run_until(lambda: group.node(first).replica.raft.recovering is None, "the recovery")
    group.converge()
    assert group.node(first).replica.raft.lost_voters == ()
    assert group.connect(first).pull("T", "g", 0, count=32).bodies == [b"%d" % number for number in range(5)]


def sent_in_versions(
    group: Group, replica: Replica, message: Message, versions: Sequence[int]
) -> list[Message]:
    """Returns what arrives of a message that is sent on a link of each version of the peer protocol."""
    arrived: list[Message] = []

    def keep(source: str, target: str, frame: Frame) -> bool:
        if (source, target) == (message.source, message.target) and isinstance(frame, RaftFrame):
            arrived.append(frame.message)
        return True

    group.lose = keep
    for version in versions:
        replica.link_versions[message.target] = version
        replica._to_peers.send(Send(message))
        group.hand_out(group.members[message.source])
        group.settle()
    return [each for each in arrived if isinstance(each, type(message))]


def test_a_peer_that_could_not_read_what_is_lost_is_not_told(group: Group) -> None:
    target, source = group.leader, group.follower
    request = RecoveryRequest(source, target, 1, 9, lost_votes=True)
    arrived = sent_in_versions(group, group.node(source).replica, request, (11, 10))
    assert arrived == [request, request._replace(lost_votes=False)]


def test_a_peer_that_could_not_read_the_voters_is_told_none(group: Group) -> None:
    target, source = group.follower, group.leader
    replica = group.node(source).replica
    answer = RecoveryResponse(source, target, 9, 9, True, voters=((-1, ("n0", "n1", "n2")),))
    assert sent_in_versions(group, replica, answer, (11, 10)) == [answer, answer._replace(voters=())]


def test_a_vote_that_needs_others_is_none_for_a_peer_that_could_not_read_that(group: Group) -> None:
    """A release before version 10 of the protocol would count it without asking them."""
    voter, candidate = group.follower, group.leader
    replica = group.node(voter).replica
    vote = VoteResponse(voter, candidate, 9, 9, True, recovering=True, lost_voters=("n7",))
    assert sent_in_versions(group, replica, vote, (10, 9)) == [
        vote,
        vote._replace(granted=False, lost_voters=()),
    ]

"""Damage on a running node's disk that its scrubber finds: it is put back from the group, or made anew."""

import pytest
from structlog.testing import capture_logs

from broker.remoting.codes import RequestCode
from broker.requests.deadline import NEVER
from broker.statistics.events import EventKind
from log.entries.entry_reads import index_at
from log.errors import DamagedStateError
from log.formats.layout import HEADER_BYTES
from log.queues.consume_queue import UNIT_BYTES as QUEUE_UNIT_BYTES
from tests.broker.harness import Group
from tests.broker.replica.damage import (
    FILE,
    MESSAGES,
    OPTIONS,
    SCRUBBED,
    Damage,
    entry_of,
    group_of,
    old_files_are_the_same,
    replica_of,
    same_files,
)


@pytest.mark.parametrize("role", ["leader", "follower"])
@pytest.mark.parametrize(
    ("at", "count"),
    [(HEADER_BYTES + 500, 1), (0, 1), (4, 1), (8, 8), (16, 1), (24, 2), (44, 4), (HEADER_BYTES + 900, 4096)],
    ids=["body", "magic", "size", "index", "term", "position", "length", "a page"],
)
def test_the_scrubber_finds_damaged_entries_and_has_them_put_back_durably(
    role: str, at: int, count: int
) -> None:
    group = group_of()
    node = group.leader if role == "leader" else group.follower
    damage = Damage(group, node)
    damage.entry(entry_of(damage.replica, 3), at, count)
    assert not old_files_are_the_same(group)()
    with capture_logs() as lines:
        group.run_until(old_files_are_the_same(group), "the bytes are those of the others")
    group.advance(1)
    repairs = damage.replica.repairs
    assert repairs.found == repairs.repaired >= 1
    assert repairs.left == 0
    told = [line for line in lines if line["event"] == "damage found"]
    assert told[0]["source"] == damage.path_of_data(0)
    assert told[0]["entry"] == entry_of(damage.replica, 3)
    assert group.node(node).events.count(EventKind.DAMAGE_REPAIRED) >= 1
    assert all(replica_of(group, other).repairs.found == 0 for other in group.members if other != node)


def test_the_last_file_is_scrubbed_too() -> None:
    group = group_of()
    damage = Damage(group, group.follower)
    last = damage.replica.store.log.last_index
    damage.entry(last, HEADER_BYTES + 20)
    group.run_until(lambda: damage.replica.repairs.repaired == 1, "it is repaired")
    group.converge()
    assert group.connect(group.leader).pull("T", "g", MESSAGES - 1).bodies


def test_an_end_marker_is_written_anew() -> None:
    group = group_of()
    damage = Damage(group, group.follower)
    log = damage.replica.store.log
    behind = index_at(log, FILE)
    end = log.end_of(behind - 1)
    damage.flip(damage.path_of_data(0), end + 3)
    group.run_until(old_files_are_the_same(group), "the marker is back")
    assert damage.replica.repairs.repaired == 1


@pytest.mark.parametrize("at", [0, 5, 15, 20, 30], ids=["magic", "position", "size", "index", "term"])
def test_units_of_the_logs_index_are_made_from_the_entries(at: int) -> None:
    group = group_of()
    damage = Damage(group, group.follower)
    damage.unit(7, at)
    group.run_until(lambda: damage.replica.repairs.repaired == 1, "it is repaired")
    log = damage.replica.store.log
    other = replica_of(group, group.leader).store.log
    assert [log.unit_unchecked(index) for index in range(20)] == [
        other.unit_unchecked(index) for index in range(20)
    ]


@pytest.mark.parametrize(
    ("at", "count"),
    [(3, 1), (11, 1), (19, 1), (0, 60), (0, 320)],
    ids=["offset", "size", "tag", "three", "all"],
)
def test_units_of_queues_are_made_from_the_entries(at: int, count: int) -> None:
    group = group_of()
    damage = Damage(group, group.leader)
    damage.queue_unit(0, at, count)
    group.run_until(lambda: same_files(group, "consumequeue/T"), "the units are those of the others")
    assert damage.replica.repairs.found >= 1


def test_a_unit_and_its_entry_that_are_both_damaged_come_back_in_the_later_life_of_a_queue() -> None:
    group = Group.elected(3, options=OPTIONS, storage=SCRUBBED)
    client = group.connect(group.leader)
    for life, count in enumerate((1, 35)):
        client.create_topic("T")
        for number in range(count):
            client.send("T", b"%d %02d" % (life, number) + bytes(300))
        if not life:
            client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    group.converge()
    group.advance(2.5)
    damage = Damage(group, group.leader)
    damage.entry(entry_of(damage.replica, 0), HEADER_BYTES + 200)
    damage.queue_unit(0, 0, QUEUE_UNIT_BYTES)
    group.run_until(lambda: same_files(group, "consumequeue/T"), "the units are those of the others")
    assert group.connect(group.leader).pull("T", "g", 0).bodies[0].startswith(b"1 00")


def test_units_of_an_earlier_life_of_a_queue_are_not_put_into_the_later_one() -> None:
    group = Group.elected(3, options=OPTIONS, storage=SCRUBBED)
    client = group.connect(group.leader)
    for life in range(2):
        client.create_topic("T")
        for number in range(20 + 15 * life):
            client.send("T", b"%d %02d" % (life, number) + bytes(300))
        if not life:
            client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    group.converge()
    group.advance(2.5)
    assert [member.alive.replica.repairs.found for member in group.alive()] == [0, 0, 0]
    damage = Damage(group, group.leader)
    damage.queue_unit(0, 0, 16 * QUEUE_UNIT_BYTES)
    group.run_until(lambda: same_files(group, "consumequeue/T"), "the units are those of the others")
    bodies = group.connect(group.leader).pull("T", "g", 0).bodies
    assert bodies[0].startswith(b"1 00")


@pytest.mark.parametrize("number", [0, 2, 5])
@pytest.mark.parametrize(
    ("at", "count"),
    [(5, 1), (44, 3), (40 + 4 * 7 + 20 * 3 + 1, 1), (40 + 4 * 7 + 20, 250)],
    ids=["header", "slot", "entry", "entries"],
)
def test_an_index_file_is_made_anew(number: int, at: int, count: int) -> None:
    group = group_of()
    damage = Damage(group, group.follower)
    names = sorted(path for path in group.members[group.follower].disk.files if path.startswith("index/"))
    assert len(names) >= 8
    before = bytes(group.members[group.follower].disk.files[names[number]].seen)
    damage.flip(names[number], at, count)
    file = group.members[group.follower].disk.files[names[number]]
    group.run_until(lambda: bytes(file.durable) == bytes(file.seen) == before, "it is what it was")
    assert damage.replica.repairs.found == 1


def test_an_index_file_whose_records_are_gone_in_part_is_told_of_once() -> None:
    group = group_of()
    damage = Damage(group, group.follower)
    store = damage.replica.store
    name = store.index.full_files()[0]
    file = store.index.named(name)
    assert file is not None
    file._checked_crc ^= 1  # that of entries which the log does not have any more
    group.advance(5)
    events = group.node(group.follower).events
    assert events.count(EventKind.DAMAGE_LEFT) == 1
    assert damage.replica.repairs.found == 1


def test_a_snapshot_is_written_anew() -> None:
    group = group_of()
    damage = Damage(group, group.follower)
    damage.replica.applied.save()
    group.advance(1)
    before = damage.replica.store.snapshot.read()
    assert before is not None
    damage.flip("snapshot", 30)
    with pytest.raises(DamagedStateError):
        damage.replica.store.snapshot.read()
    group.run_until(lambda: damage.replica.repairs.repaired == 1, "it is written anew")
    assert damage.replica.store.snapshot.read() == before


def test_a_snapshot_counts_as_repaired_when_it_is_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_of()
    damage = Damage(group, group.follower)
    replica = damage.replica
    replica.applied.save()
    group.advance(1)
    before = replica.store.snapshot.read()
    assert before is not None
    monkeypatch.setattr(type(replica.applied), "is_of_one_place", lambda self, index: False)
    damage.flip("snapshot", 30)
    group.run_until(lambda: replica.repairs.found == 1, "it is found")
    group.advance(5)
    assert (replica.repairs.found, replica.repairs.repaired) == (1, 0), "it could not be written yet"
    monkeypatch.undo()
    group.run_until(lambda: replica.repairs.repaired == 1, "it is written anew")
    assert replica.store.snapshot.read() == before
    assert group.node(group.follower).events.count(EventKind.DAMAGE_REPAIRED) == 1


def test_damaged_commands_are_not_applied_at_a_start() -> None:
    group = group_of(scrubbed=False)
    group.advance(4)  # a checkpoint: what it notes is not read through by the start
    node = group.follower
    damage = Damage(group, node)
    index = next(
        i for i in range(60) if b"TRIVET_SYS_RAFT_LOG" in bytes(damage.replica.store.log.run(i, i).body)
    )
    group.kill(node)
    log = replica_of(group, group.leader).store.log
    position = log.position_of(index)
    file = group.members[node].disk.files[damage.path_of_data(0)]
    file.seen[position + HEADER_BYTES + 95] ^= 1
    group.restart(node)
    group.converge()
    assert replica_of(group, node).repairs.repaired == 1
    assert same_files(group, "/data/" + "0" * 20)


def test_what_lies_before_the_damage_that_is_met_first_is_checked_before_it_is_applied() -> None:
    """Seed 700009: headers of a page were damaged, and the search for the end of a run met one behind other damage."""
    group = group_of(scrubbed=False)
    damage = Damage(group, group.follower)
    applied, entries = damage.replica.applied, damage.replica.store.log
    index = entry_of(damage.replica, 2)
    damage.entry(index, HEADER_BYTES + 27)  # its offset in the queue
    for behind in range(index + 1, entries.run(index, entries.last_index).last_index + 1):
        damage.entry(behind, 0)
    upto, applied.index = applied.index, index - 2
    assert applied._whole_index(upto, group.now_ns) == index - 1
    applied.index = index - 1
    assert applied._whole_index(upto, group.now_ns) == index - 1, "it waits until that is repaired"
    applied.index = upto
    group.advance(10)
    assert damage.replica.repairs.left == 0
    assert applied._whole_index(upto, group.now_ns) == upto


def test_without_damage_a_pass_says_nothing() -> None:
    group = group_of()
    group.advance(5)
    for member in group.alive():
        replica = member.alive.replica
        assert replica.scrubbing.passes >= 2
        assert replica.scrubbing.bytes > replica.store.log.end_position
        assert replica.repairs.found == 0


def test_a_pass_that_is_turned_off_ends_although_a_part_of_it_is_being_read() -> None:
    group = group_of(scrubbed=False)
    scrubbing, now_ns = replica_of(group, group.leader).scrubbing, group.now_ns
    scrubbing.pace(1 << 30, 1, now_ns)
    now_ns += 1_000_000_000
    job = scrubbing.job(now_ns)
    assert job is not None
    job.run()
    scrubbing.pace(0, 1, now_ns)
    scrubbing.done(job, now_ns, 0)
    assert scrubbing.due_ns == NEVER
    scrubbing.pace(1 << 30, 1, now_ns)
    assert scrubbing.due_ns == now_ns, "it goes on"


def test_a_pass_is_spread_over_half_of_the_time_between_passes() -> None:
    group = group_of(scrubbed=False)
    replica = replica_of(group, group.leader)
    group.advance(1)
    scrubbing, began_ns = replica.scrubbing, replica.time.now_ns
    scrubbing.pace(1 << 30, 10, began_ns)
    log_bytes = replica.store.log.end_position - replica.store.log.first_position
    read_at: dict[int, int] = {}
    while not scrubbing.passes:
        group.advance(0.25)
        read_at[replica.time.now_ns] = scrubbing.bytes
        assert len(read_at) < 100
    first = min(now_ns for now_ns, read in read_at.items() if read)
    assert 4.5e9 < max(read_at) - first < 6e9
    half = [read for now_ns, read in read_at.items() if now_ns <= first + 2_500_000_000][-1]
    assert 0.25 * log_bytes < half < 0.75 * log_bytes
    end_ns = max(read_at)
    group.advance((first + 10_000_000_000 - end_ns) / 1e9 - 0.5)
    assert scrubbing.bytes == read_at[end_ns], "then it rests"

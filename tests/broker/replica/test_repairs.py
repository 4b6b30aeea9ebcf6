"""Damage on a running node's disk: it is noticed, nobody is given the bytes, and they are put back from the group."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from struct import Struct

import pytest
from structlog.testing import capture_logs

from broker.peers.protocol import EntriesLent, EntriesWanted, Frame
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.replica.replica import Replica
from broker.state.topic_rules import HALF_TOPIC, SCHEDULE_TOPIC
from broker.statistics.events import Event
from log.consume_queue import UNIT_BYTES as QUEUE_UNIT_BYTES
from log.entry_reads import index_at
from log.errors import DamagedEntryError
from log.layout import HEADER_BYTES, UNIT_BYTES
from tests.broker.fields import pull_fields
from tests.broker.harness import SMALL_STORE, Group, Pulled

MESSAGES = 60
FILE = 16 * 1024
OPTIONS = replace(
    SMALL_STORE,
    data_file_bytes=FILE,
    hot_bytes=FILE,
    index_file_units=32,
    consume_queue_file_units=16,
    index_slots=7,
    index_entries=16,
)
SCRUBBED = {"scrub_bytes_per_second": 1 << 30, "scrub_interval_s": 1}


def group_of(size: int = 3, *, scrubbed: bool = True) -> Group:
    group = Group.elected(size, options=OPTIONS, storage=SCRUBBED if scrubbed else {})
    client = group.connect(group.leader)
    client.create_topic("T")
    client.heartbeat("g")
    for number in range(MESSAGES):
        keys = {"UNIQ_KEY": f"u{number}", "KEYS": f"k{number % 7} all"}
        client.send("T", b"%02d" % number + bytes(1000), properties=keys)
    group.converge()
    group.advance(3.5)  # and a checkpoint, which sums up index files
    group.advance(0.6)  # what is not on the disk is no scrubber's business
    return group


def replica_of(group: Group, node: str) -> Replica:
    return group.node(node).replica


class Damage:
    """Bytes of a node's files that are changed as a disk would, below everything that runs."""

    def __init__(self, group: Group, node: str) -> None:
        self.replica = replica_of(group, node)
        self._files = group.members[node].disk.files

    def flip(self, path: str, at: int, count: int = 1) -> None:
        for place in range(at, at + count):
            self._files[path].seen[place] ^= 0x40
            self._files[path].durable[place] ^= 0x40

    def entry(self, index: int, at: int, count: int = 1) -> None:
        """Damages an entry, `at` bytes behind its beginning."""
        position = self.replica.store.log.position_of(index)
        start = position - position % FILE
        self.flip(self.path_of_data(start), position - start + at, count)

    def path_of_data(self, start: int) -> str:
        return f"dledger-{self.replica.node_id}/data/{start:020d}"

    def unit(self, index: int, at: int) -> None:
        byte = index * UNIT_BYTES
        file_bytes = OPTIONS.index_file_units * UNIT_BYTES
        start = byte - byte % file_bytes
        self.flip(f"dledger-{self.replica.node_id}/index/{start:020d}", byte - start + at)

    def queue_unit(self, offset: int, at: int, count: int = 1) -> None:
        byte = offset * QUEUE_UNIT_BYTES
        file_bytes = OPTIONS.consume_queue_file_units * QUEUE_UNIT_BYTES
        start = byte - byte % file_bytes
        self.flip(f"consumequeue/T/0/{start:020d}", byte - start + at, count)


def entry_of(replica: Replica, offset: int) -> int:
    """The entry of message `offset` of T."""
    queue = replica.store.queues.get("T", 0)
    assert queue is not None
    unit = queue.unit(offset)
    assert unit is not None
    return index_at(replica.store.log, unit[0] - HEADER_BYTES)


def same_files(group: Group, what: str) -> bool:
    """True if all nodes hold the same below a directory, in the page cache and on the disk."""
    contents = []
    for member in group.alive():
        for kind in ("seen", "durable"):
            files = {
                path.replace(f"dledger-{member.id}", ""): bytes(getattr(file, kind))
                for path, file in member.disk.files.items()
                if what in path
            }
            contents.append(files)
    return all(content == contents[0] for content in contents)


def old_files_are_the_same(group: Group) -> Callable[[], bool]:
    """Of the data files all but the last one: what behind it is not flushed differs from node to node."""

    def same() -> bool:
        last = replica_of(group, group.leader).store.log.file_starts()[-1]
        return all(same_files(group, f"/data/{start:020d}") for start in range(0, last, FILE))

    return same


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
    assert group.node(node).events.count(Event.DAMAGE_REPAIRED) >= 1
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
    assert events.count(Event.DAMAGE_LEFT) == 1
    assert damage.replica.repairs.found == 1


def test_a_snapshot_is_written_anew() -> None:
    group = group_of()
    damage = Damage(group, group.follower)
    damage.replica.save_snapshot()
    group.advance(1)
    damage.flip("snapshot", 30)
    group.run_until(lambda: damage.replica.repairs.repaired == 1, "it is written anew")
    assert damage.replica.store.snapshot.read() is not None


def test_a_snapshot_counts_as_repaired_when_it_is_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_of()
    damage = Damage(group, group.follower)
    replica = damage.replica
    replica.save_snapshot()
    group.advance(1)
    monkeypatch.setattr(type(replica.applied), "is_of_one_place", lambda self, index: False)
    damage.flip("snapshot", 30)
    group.run_until(lambda: replica.repairs.found == 1, "it is found")
    group.advance(5)
    assert (replica.repairs.found, replica.repairs.repaired) == (1, 0), "it could not be written yet"
    monkeypatch.undo()
    group.run_until(lambda: replica.repairs.repaired == 1, "it is written anew")
    assert replica.store.snapshot.read() is not None
    assert group.node(group.follower).events.count(Event.DAMAGE_REPAIRED) == 1


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_reader_is_never_given_damaged_bytes_and_has_them_repaired(role: str) -> None:
    group = group_of(scrubbed=False)
    node = group.leader if role == "leader" else group.follower
    damage = Damage(group, node)
    damage.entry(entry_of(damage.replica, 5), HEADER_BYTES + 600)
    client = group.connect(node)
    refused, part = client.start_pull("T", "g", 5), client.start_pull("T", "g", 0, count=32)
    assert client.wait(refused).code == ResponseCode.SYSTEM_BUSY
    first = Pulled.of(client.wait(part))
    assert [body[:2] for body in first.bodies] == [b"%02d" % number for number in range(5)]
    assert first.next_offset == 5
    group.run_until(lambda: damage.replica.repairs.repaired == 1, "it is repaired")
    assert [body[:2] for body in client.pull("T", "g", 5, count=2).bodies] == [b"05", b"06"]


def test_a_reader_with_a_condition_is_given_what_comes_before_damage() -> None:
    group = group_of(scrubbed=False)
    damage = Damage(group, group.leader)
    damage.entry(entry_of(damage.replica, 5), HEADER_BYTES + 600)
    client = group.connect(group.leader)

    def ask(offset: int) -> RemotingCommand:
        fields = pull_fields(queueOffset=offset, sysFlag=4, expressionType="SQL92")
        return client.call(RequestCode.PULL_MESSAGE, fields | {"subscription": "KEYS is not null"})

    first = Pulled.of(ask(0))
    assert [body[:2] for body in first.bodies] == [b"%02d" % number for number in range(5)]
    assert first.next_offset == 5
    group.run_until(lambda: damage.replica.repairs.repaired == 1, "it is repaired")
    assert [body[:2] for body in Pulled.of(ask(5)).bodies][:2] == [b"05", b"06"]


def test_a_unit_that_leads_to_another_message_gives_nobody_that_one() -> None:
    group = group_of(scrubbed=False)
    damage = Damage(group, group.leader)
    queue = damage.replica.store.queues.get("T", 0)
    assert queue is not None
    unit = queue.unit(9)
    assert unit is not None
    queue.correct(2, unit)
    client = group.connect(group.leader)
    assert client.wait(client.start_pull("T", "g", 2)).code == ResponseCode.SYSTEM_BUSY
    group.run_until(lambda: damage.replica.repairs.repaired == 1, "a hurried pass has put it right")
    assert len(client.pull("T", "g", 0, count=8).bodies) == 8


@pytest.mark.parametrize("offset", [0, 2, 3])
def test_units_that_are_zero_have_a_reader_pass_no_message(offset: int) -> None:
    group = group_of(scrubbed=False)
    damage = Damage(group, group.leader)
    queue = damage.replica.store.queues.get("T", 0)
    assert queue is not None
    for zeroed in range(offset, 5):
        queue.correct(zeroed, (0, 0, 0))
    client = group.connect(group.leader)
    assert client.wait(client.start_pull("T", "g", 4)).code == ResponseCode.SYSTEM_BUSY
    group.run_until(
        lambda: damage.replica.repairs.repaired == 5 - offset, "a hurried pass has put them right"
    )
    assert [body[:2] for body in client.pull("T", "g", 4, count=2).bodies] == [b"04", b"05"]


@pytest.mark.parametrize("at", [HEADER_BYTES + 600, 0, 24], ids=["body", "magic", "position"])
@pytest.mark.parametrize("offset", [0, 3, 5])
def test_damaged_entries_are_not_sent_to_a_follower_that_lacks_them(at: int, offset: int) -> None:
    group = group_of(scrubbed=False)
    away = group.follower
    group.kill(away)
    group.replace_disk(away)
    damage = Damage(group, group.leader)
    damage.entry(entry_of(damage.replica, offset), at)
    refused = []

    def watch(source: str, target: str, frame: Frame) -> bool:
        refused.append(group.node(target).events.count(Event.DAMAGED_FRAME))
        return False

    group.lose = watch
    group.restart(away)
    group.converge()
    assert damage.replica.repairs.repaired == 1
    assert not any(refused), "no peer was sent anything that it had to refuse"


@pytest.mark.parametrize("many", [1, 3])
def test_entries_whose_headers_and_units_are_both_damaged_are_sent_when_they_are_repaired(many: int) -> None:
    group = group_of(scrubbed=False)
    away = group.follower
    group.kill(away)
    group.replace_disk(away)
    damage = Damage(group, group.leader)
    first = entry_of(damage.replica, 5)
    places = [damage.replica.store.log.position_of(index) for index in range(first, first + many)]
    for index, position in enumerate(places, first):
        damage.flip(damage.path_of_data(0), position + 8)
        damage.unit(index, 20)
    group.restart(away)
    group.converge()
    repairs = damage.replica.repairs
    assert (repairs.found, repairs.left) == (repairs.repaired, 0)
    assert repairs.found >= many
    group.run_until(old_files_are_the_same(group), "all have the same")


def test_old_entries_are_sent_while_all_their_units_are_made_a_few_for_each_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("log.unit_repair.PIECES_AT_ONCE", 1)
    monkeypatch.setattr("log.unit_repair._PIECE_UNITS", 4)
    group = group_of(scrubbed=False)
    away = group.follower
    group.kill(away)
    group.replace_disk(away)
    damage = Damage(group, group.leader)
    for index in range(OPTIONS.index_file_units):
        damage.unit(index, 20)
    group.restart(away)
    group.converge()
    assert damage.replica.repairs.left == 0
    group.run_until(lambda: same_files(group, f"/index/{0:020d}"), "the units are those of the others")


def test_a_damaged_message_by_its_id_is_refused_and_repaired() -> None:
    group = group_of(scrubbed=False)
    damage = Damage(group, group.leader)
    index = entry_of(damage.replica, 5)
    offset = damage.replica.store.log.position_of(index) + HEADER_BYTES
    client = group.connect(group.leader)
    for at in (HEADER_BYTES + 600, 0):
        damage.entry(index, at)
        answer = client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
        assert answer.code == ResponseCode.SYSTEM_BUSY
        group.run_until(lambda: damage.replica.repairs.left == 0, "it is repaired")
        assert (
            client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)}).code == ResponseCode.SUCCESS
        )


def test_what_nobody_holds_whole_is_said_once_and_all_else_is_served() -> None:
    group = group_of(scrubbed=False)
    for node in group.members:
        damage = Damage(group, node)
        damage.entry(entry_of(damage.replica, 5), HEADER_BYTES + 600)
    asked = 0

    def watch(source: str, target: str, frame: Frame) -> bool:
        nonlocal asked
        asked += isinstance(frame, EntriesWanted)
        return False

    group.lose = watch
    client = group.connect(group.leader)
    assert client.wait(client.start_pull("T", "g", 5)).code == ResponseCode.SYSTEM_BUSY
    group.advance(100)
    leader = group.node(group.leader)
    assert leader.replica.repairs.left == 1
    assert leader.events.count(Event.DAMAGE_LEFT) == 1
    assert asked <= 3 * 2 * 7, "it is asked for less and less often"
    assert len(client.pull("T", "g", 6, count=8).bodies) == 8


def test_deliveries_that_wait_for_a_damaged_message_say_so() -> None:
    group = group_of(scrubbed=False)
    client = group.connect(group.leader)
    for _ in range(2):
        client.send("T", b"late", properties={"DELAY": "2"})
    for _ in range(30):
        client.send("T", bytes(1000))
    group.converge()
    for node in group.members:
        damage = Damage(group, node)
        queue = damage.replica.store.queues.get(SCHEDULE_TOPIC, 1)
        assert queue is not None
        unit = queue.unit(0)
        assert unit is not None
        damage.entry(index_at(damage.replica.store.log, unit[0] - HEADER_BYTES), HEADER_BYTES + 90)
    with capture_logs() as lines:
        group.advance(8)
    (told,) = [line for line in lines if line["event"] == "deliveries wait"]
    assert (told["reason"], told["log_level"]) == ("level 2", "warning")
    assert group.node(group.leader).events.count(Event.DELIVERIES_WAIT) >= 1
    assert replica_of(group, group.leader).metadata.delays == {}, "nothing was passed"


def damage_unread(group: Group, topic: str, queue_id: int, nodes: Iterable[str]) -> None:
    """Damages the first message of one of the broker's queues in all that these nodes have of it."""
    for node in nodes:
        damage = Damage(group, node)
        queue = damage.replica.store.queues.get(topic, queue_id)
        assert queue is not None
        unit = queue.unit(0)
        assert unit is not None
        damage.entry(index_at(damage.replica.store.log, unit[0] - HEADER_BYTES), HEADER_BYTES + 90)


def test_damage_at_a_takeover_keeps_only_its_level_waiting() -> None:
    group = group_of(scrubbed=False)
    client = group.connect(group.leader)
    client.send("T", b"first", properties={"DELAY": "1"})
    client.send("T", b"other level", properties={"DELAY": "3"})
    group.advance(2)
    for _ in range(30):
        client.send("T", bytes(1000))
    client.send("T", b"second", properties={"DELAY": "1"})
    group.converge()
    gone = group.leader
    damage_unread(group, SCHEDULE_TOPIC, 0, [node for node in group.members if node != gone])
    group.kill(gone)
    group.advance(15)

    def delivered() -> list[bytes]:
        client = group.connect(group.leader)
        client.heartbeat("g")
        bodies = client.pull("T", "g", MESSAGES, count=100).bodies
        return [body for body in bodies if len(body) < 100]

    assert delivered() == [b"first", b"other level"]
    assert group.node(group.leader).events.count(Event.DELIVERIES_WAIT) >= 1
    group.restart(gone)
    group.converge()
    group.advance(5)
    assert delivered() == [b"first", b"other level", b"second"], "it is put back, and the level goes on"


def test_a_transaction_check_that_waits_for_damage_is_counted() -> None:
    group = Group.elected(3, options=OPTIONS, broker={"transaction_check_interval_ms": 10_000})
    client = group.connect(group.leader)
    client.create_topic("T")
    client.send("T", b"undecided", 0, {"TRAN_MSG": "true", "PGROUP": "P"}, sysFlag=4)
    for _ in range(40):
        client.send("T", bytes(1000))
    group.converge()
    group.advance(1)
    damage_unread(group, HALF_TOPIC, 0, group.members)
    with capture_logs() as lines:
        group.advance(25)
    told = [line for line in lines if line["event"] == "deliveries wait"]
    assert {line["reason"] for line in told} == {"transactions"}
    assert group.node(group.leader).events.count(Event.DELIVERIES_WAIT) >= 1


@pytest.mark.parametrize("position", [1 << 40, 0])
def test_a_damaged_unit_of_a_half_message_does_not_end_its_transaction(position: int) -> None:
    group = Group.elected(3, options=OPTIONS, broker={"transaction_check_interval_ms": 10_000})
    client = group.connect(group.leader)
    client.create_topic("T")
    client.send("T", b"undecided", 0, {"TRAN_MSG": "true", "PGROUP": "P"}, sysFlag=4)
    replica = replica_of(group, group.leader)
    queue = replica.store.queues.get(HALF_TOPIC, 0)
    assert queue is not None
    unit = queue.unit(0)
    assert unit is not None
    queue.correct(0, (position, *unit[1:]))
    group.advance(25)
    assert replica.repairs.repaired == 1
    assert replica.metadata.transactions.first_open(queue.max_offset) == 0


def test_a_group_of_one_says_that_nobody_has_it() -> None:
    group = group_of(1)
    damage = Damage(group, "n0")
    damage.entry(entry_of(damage.replica, 5), HEADER_BYTES + 600)
    group.run_until(lambda: damage.replica.repairs.left == 1, "it is found")
    group.advance(5)
    assert group.node("n0").events.count(Event.DAMAGE_LEFT) == 1


def test_a_peer_that_comes_back_is_asked_at_once() -> None:
    group = group_of(scrubbed=False)
    leader = group.leader
    others = [node for node in group.members if node != leader]
    group.kill(others[0])
    for node in (leader, others[1]):
        damage = Damage(group, node)
        damage.entry(entry_of(damage.replica, 5), HEADER_BYTES + 600)
    client = group.connect(leader)
    assert client.wait(client.start_pull("T", "g", 5)).code == ResponseCode.SYSTEM_BUSY
    group.advance(40)
    assert replica_of(group, leader).repairs.left == 1
    group.restart(others[0])
    group.converge()
    group.advance(1)
    assert [replica_of(group, node).repairs.left for node in group.members] == [0, 0, 0]
    assert client.pull("T", "g", 5, count=1).bodies[0][:2] == b"05"


LIED_HEADER = Struct(">iiqqqiiIi")


@pytest.mark.parametrize("lie", ["checksum", "index", "term", "position", "too much"])
def test_what_a_peer_lends_is_checked_before_a_byte_is_written(
    lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_of(scrubbed=False)
    damage = Damage(group, group.follower)
    index = entry_of(damage.replica, 5)
    damage.entry(index, HEADER_BYTES + 600)
    path = damage.path_of_data(0)
    before = bytes(group.members[group.follower].disk.files[path].seen)
    node = group.node(group.follower)

    def lying(source: str, target: str, frame: Frame) -> bool:
        if not isinstance(frame, EntriesLent) or target != node.replica.node_id:
            return False
        body, position = bytearray(frame.body), frame.position
        fields = list(LIED_HEADER.unpack_from(body, 0))
        match lie:
            case "checksum":
                body[HEADER_BYTES + 70] ^= 1
            case "index":
                fields[2] += 1
            case "term":
                fields[3] += 1
            case "position":
                fields[4] = position = position + 16
            case "too much":
                fields_of_next = list(fields)
                fields_of_next[2] += 1
                fields_of_next[4] += len(body)
                extra = bytearray(body)
                LIED_HEADER.pack_into(extra, 0, *fields_of_next)
                body += extra
        LIED_HEADER.pack_into(body, 0, *fields)
        node.replica.repairs.lent(source, EntriesLent(frame.first_index, position, bytes(body)), group.now_ns)
        return True

    group.lose = lying
    client = group.connect(group.follower)
    assert client.wait(client.start_pull("T", "g", 5)).code == ResponseCode.SYSTEM_BUSY
    group.advance(3)
    assert bytes(group.members[group.follower].disk.files[path].seen) == before
    assert node.events.count(Event.DAMAGED_FRAME) == 2, "one for each peer"
    group.lose = lambda source, target, frame: False
    group.advance(10)
    assert node.replica.repairs.left == 0


def test_a_peer_of_an_earlier_release_is_not_asked() -> None:
    group = group_of(scrubbed=False)
    leader = replica_of(group, group.leader)
    damage = Damage(group, group.leader)
    damage.entry(entry_of(leader, 5), HEADER_BYTES + 600)
    for peer in leader.link_versions:
        leader.link_versions[peer] = 8
    asked: list[Frame] = []

    def watch(source: str, target: str, frame: Frame) -> bool:
        if isinstance(frame, EntriesWanted):
            asked.append(frame)
        return False

    group.lose = watch
    client = group.connect(group.leader)
    assert client.wait(client.start_pull("T", "g", 5)).code == ResponseCode.SYSTEM_BUSY
    group.advance(10)
    assert not asked
    assert leader.repairs.left == 1


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


@pytest.mark.parametrize("at", [1, 3, 7, 8, 11], ids=["far", "beyond", "near", "size", "other size"])
def test_a_damaged_unit_of_an_older_file_gives_nobody_other_bytes(at: int) -> None:
    group = group_of(scrubbed=False)
    damage = Damage(group, group.leader)
    damage.queue_unit(3, at)
    client = group.connect(group.leader)
    first = Pulled.of(client.wait(client.start_pull("T", "g", 0)))
    assert [body[:2] for body in first.bodies] == [b"00", b"01", b"02"]
    assert first.next_offset == 3
    client.wait(client.start_pull("T", "g", 3))
    group.run_until(lambda: damage.replica.repairs.repaired == 1, "a hurried pass has put it right")
    assert [body[:2] for body in client.pull("T", "g", 3, count=2).bodies] == [b"03", b"04"]


def test_only_committed_entries_are_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_of(scrubbed=False)
    replica = replica_of(group, group.leader)
    group.partition(group.leader)
    client = group.connect(group.leader)
    for number in range(3):
        client.start_send("T", b"not committed %d" % number)
    group.advance(0.2)
    committed, last = replica.raft.commit_index, replica.store.log.last_index
    assert last > committed
    answers: list[EntriesLent] = []
    monkeypatch.setattr(replica.repairs, "_answer", lambda source, frame: answers.append(frame))
    for first in (committed + 1, committed):
        replica.repairs.lend(group.follower, EntriesWanted(first, last), group.now_ns)
    refused, lent = answers
    assert refused == EntriesLent(committed + 1, 0, b"")
    entries = replica.store.log.check_range(lent.body, committed, lent.position)
    assert entries.last_index == committed


def test_what_is_not_committed_is_not_repaired() -> None:
    group = group_of(scrubbed=False)
    replica = replica_of(group, group.leader)
    group.partition(group.leader)
    group.connect(group.leader).start_send("T", b"not committed")
    group.advance(0.2)
    last = replica.store.log.last_index
    error = DamagedEntryError("a file", 0, "it is damaged", 0)
    replica.repairs.damaged(last, last, error, group.now_ns)
    assert replica.repairs.left == replica.repairs.found == 0


def test_entries_that_are_found_damaged_twice_count_once() -> None:
    replica = replica_of(group_of(scrubbed=False), "n0")
    error = DamagedEntryError("a file", 0, "it is damaged", 0)
    for first, last in ((5, 5), (3, 8), (4, 10), (6, 7)):
        replica.repairs.damaged(first, last, error, replica.time.now_ns)
    assert replica.repairs.left == replica.repairs.found == 8


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

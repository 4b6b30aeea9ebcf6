"""Entries that peers lend for a repair: whom a node asks, what it believes, what it lends."""

from struct import Struct

import pytest

from broker.peers.protocol import EntriesLent, EntriesWanted, Frame
from broker.remoting.codes import ResponseCode
from broker.statistics.events import EventKind
from log.errors import DamagedEntryError
from log.formats.layout import HEADER_BYTES
from tests.broker.replica.damage import Damage, entry_of, group_of, replica_of


def test_a_group_of_one_says_that_nobody_has_it() -> None:
    group = group_of(1)
    damage = Damage(group, "n0")
    damage.entry(entry_of(damage.replica, 5), HEADER_BYTES + 600)
    group.run_until(lambda: damage.replica.repairs.left == 1, "it is found")
    group.advance(5)
    assert group.node("n0").events.count(EventKind.DAMAGE_LEFT) == 1


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
    assert node.events.count(EventKind.DAMAGED_FRAME) == 2, "one for each peer"
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


@pytest.mark.parametrize(("most", "answers"), [(1, 10), (4_000, 4)], ids=["an entry", "three entries"])
def test_a_long_run_is_lent_in_several_answers(
    most: int, answers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is bounded, unless a single entry is longer."""
    monkeypatch.setattr("broker.replica.repairs.LENT_BYTES_MAX", most)
    group = group_of(scrubbed=False)
    damage = Damage(group, group.follower)
    first = entry_of(damage.replica, 5)
    for index in range(first, first + 10):
        damage.entry(index, HEADER_BYTES + 600)
    lent: list[EntriesLent] = []

    def see(source: str, target: str, frame: Frame) -> bool:
        if isinstance(frame, EntriesLent):
            lent.append(frame)
        return False

    group.lose = see
    error = DamagedEntryError("a file", 0, "it is damaged", 0)
    damage.replica.repairs.damaged(first, first + 9, error, group.now_ns)
    group.advance(5)
    assert damage.replica.repairs.left == 0
    assert len(lent) == answers
    assert damage.replica.repairs.repaired == 10
    client = group.connect(group.follower)
    assert all(client.pull("T", "g", 5 + number, count=1).bodies for number in range(10))


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

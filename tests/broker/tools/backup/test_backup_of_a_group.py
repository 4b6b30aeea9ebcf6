"""Backups of a group in virtual time, and the groups that are made of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.administration import backup_processor
from broker.backups.copying import BackupCopy
from broker.backups.directory import Backup, BackupWriter
from broker.backups.errors import BackupError, DamagedBackupError
from broker.backups.manifest import BackupFile, read_manifest, write_manifest
from broker.backups.restoring import restore
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.headers import CheckTransactionStateHeader
from broker.replica.inner_limits import InnerLimits
from broker.settings.rules import ImpossibleSettingError
from broker.settings.tables import Settings
from broker.state.release import THIS_RELEASE
from log.formats.record import SYS_FLAG_PREPARED
from log.store import Store
from raft.recovery_loss import Loss
from tests.broker.harness import SECOND, SMALL_STORE, Client, Group
from tests.log.memory_disk import MemoryDisk

OPTIONS = replace(SMALL_STORE, data_file_bytes=16 * 1024)
"""Some dozen messages fill a file of the log."""

MESSAGE = bytes(range(256)) * 2
HOUR_S = 3600


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup takes many requests, between which anything may happen."""
    monkeypatch.setattr(backup_processor, "SLICE_BYTES", 3000)


def group_with_messages(count: int = 120, size: int = 3, **settings: Any) -> Group:
    group = Group.elected(size, options=OPTIONS, flush="sync", **settings)
    client = group.connect()
    client.create_topic("T", 2)
    client.heartbeat("g")
    for number in range(count):
        client.send("T", b"%d " % number + MESSAGE, number % 2, {"KEYS": f"k{number}"})
    group.converge()
    return group


def take(client: Client, directory: Path, between: Callable[[int], None] = lambda _: None) -> BackupCopy:
    """Reads a backup to its end; `between` is called behind each answer, with the number of answers."""
    leader = client.group.node(client.group.leader)
    try:
        with BackupWriter(directory) as writer:
            copy = BackupCopy(writer, leader.group, leader.replica.raft.commit_index)
            answers = 0
            while (request := copy.next_request()) is not None:
                copy.answered(client.ok(*request))
                answers += 1
                between(answers)
    finally:
        client.close()
    return copy


def settings_of(config: Settings, lineage: str) -> Settings:
    return msgspec.structs.replace(
        config,
        raft=msgspec.structs.replace(config.raft, lineage=lineage),
        storage=msgspec.structs.replace(config.storage, data_file_bytes=OPTIONS.data_file_bytes),
    )


def restored(directory: Path, size: int = 3, lineage: str = "again", **settings: Any) -> Group:
    """A group of stores that were made of the backup; none of its nodes runs."""
    group = Group(size, options=OPTIONS, flush="sync", start=False, **settings)
    for member in group.members.values():
        member.config = settings_of(member.config, lineage)
        restore_member(group, member.id, directory)
    return group


def restore_member(group: Group, node_id: str, directory: Path) -> None:
    member = group.members[node_id]
    member.disk = MemoryDisk()
    options = replace(OPTIONS, dledger_directory=f"dledger-{node_id}")
    restore(Backup(directory, THIS_RELEASE), member.disk, member.config, THIS_RELEASE, group.wall_ms, options)


def started(group: Group) -> Group:
    for node_id in group.members:
        group.start(node_id)
    group.elect()
    return group


Stored = list[tuple[int, int, bytes, bytes]]


def messages(client: Client, topic: str = "T", queue_id: int = 0) -> Stored:
    """All messages of a queue: offset, physical offset, body, properties."""
    found: Stored = []
    while True:
        pulled = client.pull(topic, "g", len(found), queue_id)
        if pulled.code != ResponseCode.SUCCESS:
            return found
        found += [
            (record.queue_offset, record.physical_offset, record.body, record.properties)
            for record in pulled.records
        ]


# ---------------------------------------------------------------------- whole backups


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_a_backup_under_load_holds_all_that_was_committed_before(tmp_path: Path, place: str) -> None:
    """The load goes on, the leader changes in the middle, and what comes later is simply not in it."""
    group = group_with_messages()
    before = [messages(group.connect(), queue_id=queue) for queue in (0, 1)]
    state_before = group.node(group.leader).replica.metadata
    commit_index = group.node(group.leader).replica.raft.commit_index
    source, leader = getattr(group, place), group.leader
    heir = next(node for node in group.members if node not in (source, leader))

    def load(answers: int) -> None:
        if answers == 5:
            group.transfer_leadership(heir)
        group.connect().send("T", b"later %d" % answers)

    copy = take(group.connect(source), tmp_path / "b", load)
    assert group.leader == heir
    manifest = copy.manifest
    assert manifest is not None
    assert manifest.node == source
    assert manifest.last_index >= commit_index
    assert len([file for file in manifest.files if file.name.startswith("log/")]) > 3
    Backup(tmp_path / "b", THIS_RELEASE).verify()

    again = started(restored(tmp_path / "b"))
    assert [messages(again.connect(), queue_id=queue) for queue in (0, 1)] == before
    assert again.node(again.leader).replica.metadata.topics.keys() == state_before.topics.keys()
    assert again.connect().send("T", b"first of the new group").queue_offset == len(before[0])
    again.converge()


def test_what_waits_and_where_consumers_are_comes_back(tmp_path: Path) -> None:
    quick = {"transaction_timeout_ms": 2_000, "transaction_check_interval_ms": 10_000}
    group = group_with_messages(20, broker=quick)
    client = group.connect()
    client.ok(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": "g", "topic": "T", "queueId": 1, "commitOffset": 7},
    )
    client.send("T", b"delayed", 1, {"DELAY": "4"})  # 30 s
    client.send("T", b"timed", 1, {"TIMER_DELAY_SEC": "60"})
    half = client.send("T", b"half", 1, {"TRAN_MSG": "true", "PGROUP": "P"}, sysFlag=SYS_FLAG_PREPARED)
    client.create_topic("Gone", 1)
    client.send("Gone", b"x")
    client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Gone"})
    client.create_topic("Gone", 1)
    client.send("Gone", b"y")
    group.advance(6)  # the offset that was committed goes into the log
    group.converge()
    seen = len(messages(client, queue_id=1))
    take(client, tmp_path / "b")
    state = group.node(group.leader).replica.metadata
    assert state.transactions.count_before(1) == 1

    again = restored(tmp_path / "b", broker=quick)
    again.now_ns = group.now_ns
    started(again)
    client = again.connect()
    replica = again.node(again.leader).replica
    assert replica.metadata.topics == state.topics
    assert replica.metadata.groups == state.groups
    assert replica.metadata.transactions == state.transactions
    assert client.offset_of(RequestCode.QUERY_CONSUMER_OFFSET, "T", 1, consumerGroup="g") == 7
    assert [body for *_, body, _ in messages(client, "Gone")] == [b"y"]
    assert len(messages(client, queue_id=1)) == seen
    producer = again.connect()
    producer.heartbeat(producer_group="P")
    again.advance(20)
    assert len(messages(client, queue_id=1)) == seen, "nothing is due yet"
    asked = [one for one in producer.notices if one.code == RequestCode.CHECK_TRANSACTION_STATE]
    assert asked, "the producer is asked about its half message"
    assert asked[0].decode_fields(CheckTransactionStateHeader).transaction_id == half.transaction_id
    again.advance(50)
    assert [body for *_, body, _ in messages(client, queue_id=1)[seen:]] == [b"delayed", b"timed"]


def test_a_log_without_its_head_is_restored_with_its_offsets(tmp_path: Path) -> None:
    group = group_with_messages(
        retention={"interval_ms": 1000, "reserved_hours": 1, "delete_hours": tuple(range(24))}
    )
    pass_retention(group)
    client = group.connect()
    client.send("T", b"newest")
    log = group.node(group.leader).replica.store.log
    assert log.first_index > 0
    first = client.offset_of(RequestCode.GET_MIN_OFFSET, "T")
    end = client.offset_of(RequestCode.GET_MAX_OFFSET, "T")
    assert first > 0
    take(client, tmp_path / "b")
    again = started(restored(tmp_path / "b"))
    client = again.connect()
    assert client.offset_of(RequestCode.GET_MIN_OFFSET, "T") == first
    assert client.offset_of(RequestCode.GET_MAX_OFFSET, "T") == end
    assert client.pull("T", "g", end - 1).bodies == [b"newest"]


# ---------------------------------------------------------------------- in the way


def pass_retention(group: Group) -> None:
    """All that is there expires, and what may go is deleted."""
    group.advance(4)
    group.now_ns += 2 * HOUR_S * SECOND
    group.elect()
    group.advance(10)


def test_retention_waits_for_a_backup_and_goes_on_behind_it(tmp_path: Path) -> None:
    group = group_with_messages(
        retention={"interval_ms": 1000, "reserved_hours": 1, "delete_hours": tuple(range(24))}
    )
    group.advance(4)
    source = group.follower
    log = group.node(source).replica.store.log
    group.now_ns += 2 * HOUR_S * SECOND  # all is expired
    begins: list[int] = []

    def wait(answers: int) -> None:
        group.advance(2)
        begins.append(log.first_index)

    copy = take(group.connect(source), tmp_path / "b", between=wait)
    assert begins[0] == 0, "nothing goes that is still to be read"
    assert begins == sorted(begins)
    assert begins[-1] > 0, "what was read may go"
    assert copy.manifest is not None
    assert copy.manifest.first_index == 0
    Backup(tmp_path / "b", THIS_RELEASE).verify()


@pytest.mark.parametrize("ends", ["lease", "connection"])
def test_a_backup_that_nobody_reads_on_holds_nothing(ends: str) -> None:
    group = group_with_messages(
        retention={"interval_ms": 1000, "reserved_hours": 1, "delete_hours": tuple(range(24))}
    )
    group.advance(4)
    client = group.connect(group.follower)
    log = client._member.alive.replica.store.log
    client.ok(RequestCode.TRIVET_BACKUP_BEGIN)
    lease_s = InnerLimits().backup_lease_ms // 1000
    group.now_ns += (2 * HOUR_S - lease_s) * SECOND
    client.ok(RequestCode.TRIVET_BACKUP_LOG, {"index": 0})
    group.advance(lease_s - 5)
    assert log.first_index == 0
    if ends == "connection":
        client.close()
        group.advance(4)
    else:
        group.advance(8)
        refused = client.call(RequestCode.TRIVET_BACKUP_LOG, {"index": 5})
        assert refused.code == ResponseCode.ILLEGAL_OPERATION
    group.advance(60)
    assert log.first_index > 0


def test_a_read_that_a_later_one_has_overtaken_is_refused_where_its_entry_is_deleted() -> None:
    """It waited for the disk meanwhile; the node ended for it."""
    group = Group.elected(
        1,
        options=replace(OPTIONS, hot_bytes=0),
        retention={"interval_ms": 1000, "reserved_hours": 1, "delete_hours": tuple(range(24))},
    )
    client = group.connect()
    client.create_topic("T")
    for _ in range(100):
        client.send("T", MESSAGE)
    replica = group.node("n0").replica
    log = replica.store.log
    replica.applied.save()
    group.advance(4)
    client.ok(RequestCode.TRIVET_BACKUP_BEGIN)
    group.slow_disks.add("n0")
    overtaken, last = (
        client.start_call(RequestCode.TRIVET_BACKUP_LOG, {"index": index})
        for index in (0, log.last_index - 2)
    )
    group.skip(2 * HOUR_S * 1000)
    group.advance(4)
    assert log.first_index > 0
    group.slow_disks.clear()
    group.members["n0"].due_ns = group.now_ns
    assert client.wait(overtaken).code == ResponseCode.INVALID_PARAMETER
    assert client.wait(last).code == ResponseCode.SUCCESS


def test_one_backup_of_a_node_at_a_time_and_none_before_it_has_what_is_wanted() -> None:
    group = group_with_messages(4)
    node = group.follower
    first, second = group.connect(node), group.connect(node)
    first.ok(RequestCode.TRIVET_BACKUP_BEGIN)
    first.ok(RequestCode.TRIVET_BACKUP_BEGIN)
    answer = second.call(RequestCode.TRIVET_BACKUP_BEGIN)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert answer.remark is not None
    assert "is under way" in answer.remark
    assert second.call(RequestCode.TRIVET_BACKUP_LOG, {"index": 0}).code == ResponseCode.ILLEGAL_OPERATION
    first.close()
    answer = second.call(RequestCode.TRIVET_BACKUP_BEGIN, {"commitIndex": 10_000})
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert answer.remark is not None
    assert "not 10000 yet" in answer.remark
    second.ok(RequestCode.TRIVET_BACKUP_BEGIN)
    for code, fields in (
        (RequestCode.TRIVET_BACKUP_LOG, {"index": 10_000}),
        (RequestCode.TRIVET_BACKUP_LOG, {"index": -1}),
        (RequestCode.TRIVET_BACKUP_SNAPSHOT, {"offset": 1 << 40}),
        (RequestCode.TRIVET_BACKUP_SNAPSHOT, {"offset": -1}),
    ):
        assert second.call(code, fields).code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("torn", [0, 1, 700])
def test_a_backup_whose_node_dies_goes_on_with_another(tmp_path: Path, torn: int) -> None:
    """What was copied is kept, but for an entry that was half written (`torn` bytes too few)."""
    group = group_with_messages()
    source = group.follower
    client = group.connect(source)

    def die(answers: int) -> None:
        if answers == 12:
            group.kill(source)

    with pytest.raises(AssertionError, match="the connection is closed"):
        take(client, tmp_path / "b", between=die)
    with pytest.raises(BackupError, match="never completed"):
        Backup(tmp_path / "b", THIS_RELEASE)
    last = sorted((tmp_path / "b" / "log").iterdir())[-1]
    with last.open("r+b") as file:
        file.truncate(max(0, last.stat().st_size - torn))
    copy = take(group.connect(), tmp_path / "b")
    manifest = copy.manifest
    assert manifest is not None
    log = group.node(group.leader).replica.store.log
    assert copy.read_bytes < log.end_position - 10 * 2000, "what was there is not read again"
    Backup(tmp_path / "b", THIS_RELEASE).verify()
    in_one_go = take(group.connect(), tmp_path / "c").manifest
    assert in_one_go is not None
    logs = [[file for file in one.files if file.name.startswith("log/")] for one in (manifest, in_one_go)]
    assert logs[0] == logs[1]


def test_a_backup_goes_on_with_a_node_that_has_what_was_copied(tmp_path: Path) -> None:
    """Another one is asked again: it was refused for good where it had not applied the last entry that is here."""
    group = group_with_messages(8)
    behind = next(node for node in group.members if node != group.leader)
    wanted = group.node(group.leader).replica.raft.commit_index
    group.partition(behind)
    group.connect(group.leader).send("T", b"newer")
    ahead, other = group.connect(group.leader), group.connect(behind)
    with BackupWriter(tmp_path / "b") as writer:
        copy = BackupCopy(writer, "broker-a", wanted)
        while (request := copy.next_request()) is not None:
            if request[0] == RequestCode.TRIVET_BACKUP_SNAPSHOT:
                break
            copy.answered(ahead.ok(*request))
        assert writer.last_index > wanted
        copy.restart()
        request = copy.next_request()
        assert request is not None
        answer = other.call(*request)
        assert answer.code == ResponseCode.SYSTEM_BUSY, answer.remark
        group.heal()
        group.converge()
        while (request := copy.next_request()) is not None:
            copy.answered(other.ok(*request))
    Backup(tmp_path / "b", THIS_RELEASE).verify()


def test_a_log_that_begins_anew_ends_the_backup(tmp_path: Path) -> None:
    group = group_with_messages(6)
    client = group.connect(group.follower)
    client.ok(RequestCode.TRIVET_BACKUP_BEGIN)
    client._member.alive.replica.store.log.epoch += 1
    refused = client.call(RequestCode.TRIVET_BACKUP_LOG, {"index": 0})
    assert refused.code == ResponseCode.ILLEGAL_OPERATION
    assert refused.remark is not None
    assert "began anew" in refused.remark


# ---------------------------------------------------------------------- only what is newer


def test_a_second_backup_reads_what_is_newer_and_the_first_stays_until_it_is_complete(tmp_path: Path) -> None:
    group = group_with_messages()
    first = take(group.connect(), tmp_path / "b")
    unchanged = take(group.connect(), tmp_path / "b")
    assert unchanged.manifest == first.manifest
    for number in range(60):
        group.connect().send("T", b"more %d " % number + MESSAGE)
    shutil.copytree(tmp_path / "b", tmp_path / "broken-off")

    class BreakOffError(Exception):
        pass

    def break_off(answers: int) -> None:
        if answers == 6:
            raise BreakOffError

    with pytest.raises(BreakOffError):
        take(group.connect(), tmp_path / "broken-off", between=break_off)
    as_before = Backup(tmp_path / "broken-off", THIS_RELEASE)
    as_before.verify()
    assert as_before.manifest == first.manifest

    second = take(group.connect(), tmp_path / "b")
    assert 0 < second.read_bytes < first.read_bytes
    take(group.connect(), tmp_path / "broken-off")
    for name in ("b", "broken-off"):
        backup = Backup(tmp_path / name, THIS_RELEASE)
        backup.verify()
        assert backup.manifest.last_index > as_before.manifest.last_index
        again = started(restored(tmp_path / name))
        assert messages(again.connect()) == messages(group.connect())


def test_a_backup_of_another_history_is_not_gone_on_with(tmp_path: Path) -> None:
    """A restored group and the old one give the same index and term to different entries."""
    group = group_with_messages(10)
    take(group.connect(), tmp_path / "b")
    again = started(restored(tmp_path / "b"))
    for one in (group, again):
        one.transfer_leadership(one.follower)
        for number in range(10):
            one.connect().send("T", b"%d" % (number + id(one)))
    take(group.connect(), tmp_path / "b")
    for _ in range(20):
        again.connect().send("T", b"x")
    with pytest.raises(BackupError, match="is another one in the group"):
        take(again.connect(), tmp_path / "b")
    Backup(tmp_path / "b", THIS_RELEASE).verify()

    other = Group.elected(1, options=OPTIONS, node={"group": "broker-b"})
    with pytest.raises(BackupError, match="'broker-b'"):
        take(other.connect(), tmp_path / "b")


def test_a_gap_between_backup_and_group_is_told(tmp_path: Path) -> None:
    group = group_with_messages(
        retention={"interval_ms": 1000, "reserved_hours": 1, "delete_hours": tuple(range(24))}
    )
    take(group.connect(), tmp_path / "b")
    for number in range(60):
        group.connect().send("T", b"%d" % number + MESSAGE)
    pass_retention(group)
    for _ in range(60):
        group.connect().send("T", MESSAGE)
    pass_retention(group)
    with pytest.raises(BackupError, match="take a new backup in another directory"):
        take(group.connect(), tmp_path / "b")


def test_a_group_that_was_made_anew_is_told(tmp_path: Path) -> None:
    take(group_with_messages(20).connect(), tmp_path / "b")
    with pytest.raises(BackupError, match="it was made anew since"):
        take(group_with_messages(2).connect(), tmp_path / "b")


def test_a_backup_that_had_no_room_for_its_first_file_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_with_messages(4)

    def full(descriptor: int) -> None:
        raise OSError(28, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space left"):
            take(group.connect(), tmp_path / "b")
    assert take(group.connect(), tmp_path / "b").manifest is not None
    Backup(tmp_path / "b", THIS_RELEASE).verify()


def test_two_backups_do_not_write_into_one_directory(tmp_path: Path) -> None:
    with BackupWriter(tmp_path / "b"), pytest.raises(BackupError, match="another process"):
        BackupWriter(tmp_path / "b")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "mine").write_text("")
    with pytest.raises(BackupError, match="neither empty nor a backup"):
        BackupWriter(tmp_path / "c")


# ---------------------------------------------------------------------- damage


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    group = group_with_messages(60)
    directory = tmp_path_factory.mktemp("sound") / "b"
    take(group.connect(), directory)
    return directory


def test_files_are_for_their_user_alone(sound: Path) -> None:
    files = [sound, *sound.rglob("*")]
    assert len(files) > 3
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)


def test_every_flipped_byte_is_found(sound: Path, tmp_path: Path) -> None:
    """In each file, at its ends and at many places between; of the manifest everywhere but in white space."""
    copy = tmp_path / "b"
    shutil.copytree(sound, copy)
    tried = 0
    for path in sorted(path for path in copy.rglob("*") if path.is_file()):
        whole = path.read_bytes()
        for at in sorted({0, 1, len(whole) - 1, *range(7, len(whole), max(1, len(whole) // 40))}):
            if path.name == "manifest.json" and whole[at : at + 1].isspace():
                continue
            for bit in (0x01, 0x80):
                path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
                with pytest.raises(DamagedBackupError) as found:
                    Backup(copy, THIS_RELEASE).verify()
                assert str(path.relative_to(copy)) in str(found.value)
                tried += 1
        path.write_bytes(whole)
    assert tried > 300
    Backup(copy, THIS_RELEASE).verify()


def test_a_file_that_is_short_or_gone_is_named(sound: Path, tmp_path: Path) -> None:
    for number, original in enumerate(sorted(path for path in sound.rglob("*") if path.is_file())):
        for how in ("gone", "short", "empty"):
            copy = tmp_path / f"{number}-{how}"
            shutil.copytree(sound, copy)
            path = copy / original.relative_to(sound)
            if how == "gone":
                path.unlink()
            else:
                path.write_bytes(path.read_bytes()[: -2 if how == "short" else 0])
            with pytest.raises(BackupError) as found:
                Backup(copy, THIS_RELEASE).verify()
            name = "no manifest" if path.name == "manifest.json" and how == "gone" else path.name
            assert name in str(found.value)


def test_damage_from_before_the_checksums_is_found_in_the_entries(sound: Path, tmp_path: Path) -> None:
    """A manifest vouches for the bytes that it was made of; entries and state are checked for themselves."""
    for name in ("log", "snapshot"):
        copy = tmp_path / name
        shutil.copytree(sound, copy)
        manifest = read_manifest(copy)
        assert manifest is not None
        file = next(file for file in manifest.files if file.name.startswith(name))
        data = bytearray((copy / file.name).read_bytes())
        data[len(data) // 2 if name == "log" else 0] ^= 0xFF
        (copy / file.name).write_bytes(data)
        with pytest.raises(DamagedBackupError):
            Backup(copy, THIS_RELEASE).verify()
        write_manifest(copy, with_checksum_of(manifest.files, copy, manifest))
        with pytest.raises(DamagedBackupError, match=name):
            Backup(copy, THIS_RELEASE).verify()


def with_checksum_of(files: tuple[BackupFile, ...], directory: Path, manifest: Any) -> Any:
    import hashlib

    hashed = tuple(
        BackupFile(file.name, file.bytes, hashlib.sha256((directory / file.name).read_bytes()).hexdigest())
        for file in files
    )
    return msgspec.structs.replace(manifest, files=hashed)


def test_a_manifest_of_fewer_files_is_found(sound: Path, tmp_path: Path) -> None:
    for number in range(3):
        copy = tmp_path / f"{number}"
        shutil.copytree(sound, copy)
        manifest = read_manifest(copy)
        assert manifest is not None
        files = [
            file for at, file in enumerate(manifest.files) if at != (0, 1, len(manifest.files) - 1)[number]
        ]
        write_manifest(copy, msgspec.structs.replace(manifest, files=tuple(files)))
        with pytest.raises(DamagedBackupError):
            Backup(copy, THIS_RELEASE).verify()


# ---------------------------------------------------------------------- restoring


def test_what_cannot_be_restored_is_refused_and_nothing_is_written(sound: Path, tmp_path: Path) -> None:
    config = settings_of(Group(3, start=False).members["n0"].config, "again")
    used = MemoryDisk()
    used.write_durably("membership", b"x")

    def refused(changed: Settings, disk: MemoryDisk, text: str, directory: Path = sound) -> None:
        before = disk.list(".")
        with pytest.raises(BackupError, match=text):
            restore(Backup(directory, THIS_RELEASE), disk, changed, THIS_RELEASE, 0, OPTIONS)
        assert disk.list(".") == before

    change = msgspec.structs.replace
    refused(config, used, "is not empty, it holds membership")
    refused(change(config, node=change(config.node, group="other")), MemoryDisk(), "node.group is 'other'")
    refused(change(config, raft=change(config.raft, lineage="")), MemoryDisk(), "raft.lineage is not set")
    refused(change(config, raft=change(config.raft, join=True)), MemoryDisk(), "raft.join is true")
    bigger = change(config.storage, data_file_bytes=1 << 20)
    refused(change(config, storage=bigger), MemoryDisk(), "storage.data_file_bytes is 1048576")

    newer = tmp_path / "newer"
    shutil.copytree(sound, newer)
    manifest = read_manifest(newer)
    assert manifest is not None
    write_manifest(newer, change(manifest, format=THIS_RELEASE.newest_format + 1, release="9.9.9"))
    refused(config, MemoryDisk(), "written by release 9.9.9", newer)
    refused(config, MemoryDisk(), "is no backup", tmp_path / "nothing")

    damaged = tmp_path / "damaged"
    shutil.copytree(sound, damaged)
    (damaged / manifest.files[1].name).unlink()
    refused(config, MemoryDisk(), "it is missing", damaged)


def test_a_store_that_is_not_whole_does_not_start(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore that breaks off anywhere leaves a store that is refused, or is empty."""

    class BreakOffError(Exception):
        pass

    group = Group(3, options=OPTIONS, start=False)
    config = group.members["n0"].config = settings_of(group.members["n0"].config, "again")
    options = replace(OPTIONS, dledger_directory="dledger-n0")
    for name in ("flush", "dispatch", "raise_format", "close"):

        def break_off(self: Store, *arguments: object, **named: object) -> None:
            raise BreakOffError

        disk = MemoryDisk()
        with monkeypatch.context() as patched:
            patched.setattr(Store, name, break_off)
            with pytest.raises(BreakOffError):
                restore(Backup(sound, THIS_RELEASE), disk, config, THIS_RELEASE, 0, options)
        group.members["n0"].disk = disk.kill()
        with pytest.raises((Exception,), match=r"currterm|raft.lineage"):
            group.start("n0")


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_majority_of_restored_nodes_begins_a_group(sound: Path, size: int) -> None:
    group = restored(sound, size)
    majority = [f"n{number}" for number in range(size // 2 + 1)]
    for node_id in majority:
        group.start(node_id)
        if size > 1 and node_id != majority[-1]:
            group.advance(5)
            assert group.node(node_id).replica.raft.recovering is Loss.ALL
    group.elect()
    group.connect().send("T", b"new")
    for node_id in group.members:
        if node_id not in majority:
            group.start(node_id)
    group.converge()
    group.advance(5)
    assert all(member.alive.replica.raft.recovering is None for member in group.alive())
    group.kill(group.leader)
    if size > 2:
        group.elect()
        assert messages(group.connect())[-1][2] == b"new"


def test_a_restart_before_the_first_election_changes_nothing(sound: Path) -> None:
    group = restored(sound)
    for _ in range(2):
        group.start("n0")
        group.advance(3)
        group.kill("n0")
    client, undisturbed = started(group).connect(), started(restored(sound)).connect()
    group.converge()
    stored = [messages(client, queue_id=queue) for queue in (0, 1)]
    assert any(stored)
    assert stored == [messages(undisturbed, queue_id=queue) for queue in (0, 1)]


def test_a_node_that_is_restored_again_follows_and_endangers_nothing(sound: Path) -> None:
    """Its group went on since: what the node had acknowledged is not in the backup, and its vote is forgotten."""
    group = started(restored(sound))
    client = group.connect()
    for number in range(30):
        client.send("T", b"since %d" % number)
    group.converge()
    victim = group.follower
    group.kill(victim)
    restore_member(group, victim, sound)
    away = next(node for node in group.members if node not in (victim, group.leader))
    group.kill(away)  # nobody but the restored node is left to vote for the leader
    group.kill(group.leader)
    group.start(victim)
    group.advance(20)
    assert group.node(victim).replica.raft.recovering is Loss.ALL
    group.start(away)
    group.advance(20)
    assert not any(member.alive.replica.serving for member in group.alive()), "no majority remembers"
    for node_id in group.members:
        if group.members[node_id].node is None:
            group.start(node_id)
    group.elect()
    group.converge()
    assert messages(group.connect())[-1][2] == b"since 29"
    group.advance(5)
    assert group.node(victim).replica.raft.recovering is None


def test_a_restored_node_and_the_old_group_are_strangers(sound: Path) -> None:
    group = group_with_messages(70)
    victim = group.follower
    group.kill(victim)
    member = group.members[victim]
    old_config, old_disk = member.config, member.disk

    # A restored store in the old group: with the old settings it is refused at its start, with its own by the others.
    member.config = settings_of(old_config, "again")
    restore_member(group, victim, sound)
    member.config = old_config
    with pytest.raises(ImpossibleSettingError, match="of lineage 'again'"):
        group.start(victim)
    member.config = settings_of(old_config, "again")
    member.disk = member.disk.kill()
    group.start(victim)
    group.connect().send("T", b"without it")
    group.advance(5)
    assert group.node(victim).replica.leader is None
    assert (
        not group.node(victim).replica.raft.commit_index > group.node(group.leader).replica.raft.commit_index
    )
    group.kill(victim)

    # A store of the old group with the restored group's settings, and an empty one.
    member.disk = old_disk
    with pytest.raises(ImpossibleSettingError, match="as it was before any restore"):
        group.start(victim)
    group.replace_disk(victim)
    with pytest.raises(ImpossibleSettingError, match="is empty: make it with trivet restore"):
        group.start(victim)
    member.config, member.disk = old_config, old_disk.kill()
    group.start(victim)
    group.converge()


def test_a_restored_group_takes_in_a_new_node(sound: Path) -> None:
    group = started(restored(sound))
    added = group.connect().call(
        RequestCode.TRIVET_CHANGE_GROUP, {"operation": "add", "node": "n3", "address": "127.0.0.1:20003"}
    )
    assert added.code == ResponseCode.SUCCESS
    group.join("n3")  # without the lineage it is a stranger
    group.advance(5)
    assert group.node("n3").replica.leader is None
    group.kill("n3")
    group.replace_disk("n3")
    group.members["n3"].config = settings_of(group.members["n3"].config, "again")
    group.start("n3")
    group.converge()
    group.advance(1)  # the leader hears with a heartbeat that it has recovered
    group.connect().ok(RequestCode.TRIVET_CHANGE_GROUP, {"operation": "promote", "node": "n3"})

"""Stores of RocketMQ become groups of Trivet, in virtual time."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.backups.directory import Backup, BackupWriter
from broker.backups.errors import BackupError
from broker.migration.errors import DamagedSourceError, MigrationError, SourceInUseError
from broker.migration.migrating import Following, Surveyed, copy_entries, survey_source
from broker.migration.report import Report
from broker.migration.source import Source
from broker.remoting.codes import RequestCode
from broker.remoting.headers import CheckTransactionStateHeader
from broker.state.release import THIS_RELEASE
from log.formats.layout import HEADER_BYTES
from tests.broker.migration.moved import position, read, started
from tests.broker.migration.rocketmq_store import FILE_BYTES, RocketMQStore
from tests.examples import examples

GROUP = "broker-a"


def survey(source: Source, **more: Any) -> Surveyed:
    return survey_source(source, group=GROUP, cluster="DefaultCluster", **more)


def migrate(root: Path, to: Path, *, may_run: bool = False, **more: Any) -> Report:
    with Source(root, may_run=may_run) as source:
        surveyed = survey(source, **more)
        with BackupWriter(to) as writer:
            copied = copy_entries(surveyed, writer, THIS_RELEASE)
        return surveyed.report(to, copied=copied, is_complete=not source.is_running)


def check(root: Path, **more: Any) -> Report:
    with Source(root) as source:
        return survey(source, **more).report(None, copied=0, is_complete=False)


def busy(root: Path) -> RocketMQStore:
    """Some of everything."""
    store = RocketMQStore(root)
    store.topics = {"orders": 2, "%RETRY%g": 1}
    store.groups = ["g"]
    for number in range(150):
        store.send(
            "orders", b"m%d " % number * 9, number % 2, {"TAGS": f"t{number % 3}", "KEYS": f"k{number}"}
        )
        if number == 70:
            store.term = 4
    store.send("%RETRY%g", b"again", 0, {"RETRY_TOPIC": "orders"})
    store.positions = {"orders@g": {0: 30, 1: 75}}
    return store


def test_messages_keep_bytes_places_and_offsets(tmp_path: Path) -> None:
    store = busy(tmp_path / "s")
    report = migrate(store.save(), tmp_path / "b")
    assert (report.first_index, report.last_index, report.last_term) == (0, 150, 4)
    assert (report.messages, report.units_compared, report.records_without_queue) == (151, 151, 0)
    assert report.not_taken == []
    assert [(topic.topic, topic.messages, topic.consumer_groups) for topic in report.topics] == [
        ("%RETRY%g", 1, 0),
        ("orders", 150, 1),
    ]
    backup = Backup(tmp_path / "b", THIS_RELEASE)
    backup.verify()
    bodies = []
    for entries in backup.entries():
        for index in range(entries.first_index, entries.last_index + 1):
            at = entries.position_of(index) - entries.position
            size = struct.unpack_from(">i", entries.data, at + 4)[0]
            bodies.append(bytes(entries.data[at + HEADER_BYTES : at + size]))
    assert bodies == store.records

    group = started(tmp_path / "b", size=3)
    for queue in (0, 1):
        found = read(group, "orders", queue)
        assert [(offset, place) for offset, place, _, _ in found] == [
            (offset, unit[0]) for offset, unit in sorted(store.units["orders", queue].items())
        ]
        assert found[3][2] == b"m%d " % (6 + queue) * 9
    client = group.connect()
    for queue, offset in ((0, 30), (1, 75)):
        assert position(client, "orders", queue) == offset
    client.send("orders", b"next", 0)
    group.converge()
    assert read(group, "orders", 0)[-1][0] == 75


def test_a_log_whose_head_is_deleted_and_a_queue_of_which_nothing_is_left(tmp_path: Path) -> None:
    store = RocketMQStore(tmp_path / "s", first_index=1000, first_file=7)
    store.topics = {"orders": 1, "old": 1}
    store.next_offset["orders", 0] = 60
    for number in range(40):
        store.send("orders", b"%d" % number)
    store.units["old", 0][17] = (123, 100, 0)
    store.positions = {"old@g": {0: 11}, "orders@g": {0: 500}}
    report = migrate(store.save(), tmp_path / "b")
    assert report.first_index == 1000
    assert report.not_taken == [
        "1 consumer offsets beyond the end of their queue, set to it: 500 of g in queue 0 of orders, which ends at 100"
    ]
    group = started(tmp_path / "b")
    found = read(group, "orders", 0, 60)
    assert [item[0] for item in found] == list(range(60, 100))
    client = group.connect()
    client.send("old", b"new", 0)
    assert [item[0] for item in read(group, "old", 0, 18)] == [18], "offsets are not given twice"
    assert position(client, "orders") == 100


def test_what_waits_goes_on_waiting(tmp_path: Path) -> None:
    store = RocketMQStore(tmp_path / "s")
    store.topics = {"orders": 1}
    for number in range(4):
        store.delay("orders", b"late %d" % number, 2)
    store.delays = {2: 2}
    decided, waiting = store.half("orders", b"decided"), store.half("orders", b"waiting")
    checked = store.half("orders", b"checked", TRANSACTION_CHECK_TIMES="3")
    store.decide(decided)
    asked_again = store.half("orders", b"waiting", TRANSACTION_CHECK_TIMES="1")
    store.positions = {"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS": {0: 1}}
    report = migrate(store.save(), tmp_path / "b")
    assert (report.delayed_waiting, report.half_open) == (2, 2)
    state = Backup(tmp_path / "b", THIS_RELEASE).state()[1].metadata.transactions
    assert state.times_checked == {checked: 3, asked_again: 1}
    assert not state.is_open(waiting)

    group = started(tmp_path / "b", broker={"transaction_check_interval_ms": 1000})
    producer = group.connect()
    producer.heartbeat(producer_group="producers")
    group.advance(10)
    assert [item[2] for item in read(group, "orders")] == [b"late 2", b"late 3"]
    asked = [one for one in producer.notices if one.code == RequestCode.CHECK_TRANSACTION_STATE]
    headers = [one.decode_fields(CheckTransactionStateHeader) for one in asked]
    assert {header.half_queue_offset for header in headers} == {checked, asked_again}
    chosen = next(header for header in headers if header.half_queue_offset == asked_again)
    producer.ok(
        RequestCode.END_TRANSACTION,
        {
            "producerGroup": "producers",
            "tranStateTableOffset": chosen.half_queue_offset,
            "commitLogOffset": chosen.commit_log_offset,
            "commitOrRollback": 8,
            "fromTransactionCheck": True,
            "msgId": "x",
        },
    )
    assert [item[2] for item in read(group, "orders")] == [b"late 2", b"late 3", b"waiting"]


def test_messages_of_a_topic_that_was_deleted_stay_in_no_queue(tmp_path: Path) -> None:
    store = RocketMQStore(tmp_path / "s")
    store.topics = {"orders": 1, "gone": 1}
    for number in range(20):
        store.send("orders", b"old %d" % number)
        store.send("gone", b"gone %d" % number)
    store.delete_topic("orders")
    store.delete_topic("gone")
    store.topics["orders"] = 1
    for number in range(5):
        store.send("orders", b"new %d" % number)
    report = migrate(store.save(), tmp_path / "b")
    assert report.messages == 5
    assert report.not_taken == [
        "40 messages of topics that were deleted or left out: in the log, in no queue"
    ]
    group = started(tmp_path / "b")
    assert [item[2] for item in read(group, "orders")] == [b"new %d" % number for number in range(5)]
    client = group.connect()
    client.create_topic("gone", 1)
    assert read(group, "gone") == []


def test_a_topic_may_be_left_out(tmp_path: Path) -> None:
    store = busy(tmp_path / "s")
    store.topics["torn"] = 1
    store.send("torn", b"a")
    store.send("torn", b"b", offset=7)
    store.send("orders", b"last", 0)
    root = store.save()
    with pytest.raises(
        MigrationError, match=r"queue 0 of torn goes on with offset 7 where 1 is next.*--leave-out torn"
    ):
        check(root)
    report = migrate(root, tmp_path / "b", left_out=frozenset({"torn"}))
    assert "topic torn: left out, as --leave-out says" in report.not_taken
    group = started(tmp_path / "b")
    assert read(group, "orders", 0)[-1][2] == b"last"


def test_a_repeated_offset_is_passed_over_as_rocketmq_does(tmp_path: Path) -> None:
    store = busy(tmp_path / "s")
    store.send("orders", b"twice", 0, offset=74)
    store.units["orders", 0][74] = (1, 1, 1)
    store.next_offset["orders", 0] = 75
    store.send("orders", b"last", 0)
    report = migrate(store.save(), tmp_path / "b")
    assert any("whose offset their queue had already" in sentence for sentence in report.not_taken)
    assert any("says (offset, size, code) 1, 1, 1" in sentence for sentence in report.not_taken)
    group = started(tmp_path / "b")
    assert len(read(group, "orders", 0)) == 76
    assert [item[2] for item in read(group, "orders", 0, 74)] == [b"m148 " * 9, b"last"]


@pytest.mark.parametrize(
    ("vote", "told"), [("n0", ""), ("n2", "n0 voted for n2 last"), ("", "n0 voted for nobody")]
)
def test_a_node_that_did_not_lead_last_is_told(tmp_path: Path, vote: str, told: str) -> None:
    root = busy(tmp_path / "s").save()
    (root / "dledger-n0" / "currterm").write_text(f"currTerm=4\nvoteLeader={vote}\n")
    (remark,) = check(root).not_taken or [""]
    assert remark.startswith(told)
    assert bool(remark) == bool(told)


# ---------------------------------------------------------------------- interrupted, in use


def test_a_copy_that_broke_off_goes_on(tmp_path: Path) -> None:
    root = busy(tmp_path / "s").save()
    with Source(root) as source:
        surveyed = survey(source)

        def stop(what: str, index: int) -> None:
            if index >= 60:
                raise KeyboardInterrupt

        with BackupWriter(tmp_path / "b") as writer, pytest.raises(KeyboardInterrupt):
            copy_entries(surveyed, writer, THIS_RELEASE, stop)
    with pytest.raises(BackupError, match="never completed"):
        Backup(tmp_path / "b", THIS_RELEASE)
    report = migrate(root, tmp_path / "b")
    assert 0 < report.entries_copied < 151
    Backup(tmp_path / "b", THIS_RELEASE).verify()
    again = migrate(root, tmp_path / "b")
    assert again.entries_copied == 0


def test_a_copy_of_another_store_is_refused(tmp_path: Path) -> None:
    migrate(busy(tmp_path / "s").save(), tmp_path / "b")
    store = busy(tmp_path / "t")
    store.send("orders", b"more", 0)
    migrate(store.save(), tmp_path / "b")  # more of the same is no other store
    damage(first_file(store.root), HEADER_BYTES + 48, b"\1")  # the host that the first message came from
    with pytest.raises(BackupError, match="is another one"):
        migrate(store.root, tmp_path / "b")


@contextmanager
def used(root: Path) -> Iterator[int]:
    """Another process has the lock of the store; yields its id."""
    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+b'); fcntl.lockf(file, fcntl.LOCK_EX, 1); print(); "
        "sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(root / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield holder.pid
    finally:
        holder.communicate(b"")


def test_a_store_in_use_is_refused_and_copied_up_to_what_is_committed_if_told_to(tmp_path: Path) -> None:
    store = busy(tmp_path / "s")
    store.committed_behind = 10
    root = store.save()
    with used(root) as process_id:
        with pytest.raises(SourceInUseError, match=f"process {process_id} runs on"):
            Source(root)
        report = migrate(root, tmp_path / "b", may_run=True)
        assert (report.last_index, report.is_complete) == (140, False)
    report = migrate(root, tmp_path / "b")
    assert (report.last_index, report.entries_copied, report.is_complete) == (150, 10, True)
    Backup(tmp_path / "b", THIS_RELEASE).verify()


def test_no_broker_can_be_started_on_a_store_that_is_read(tmp_path: Path) -> None:
    root = busy(tmp_path / "s").save()
    code = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1)"
    command = [sys.executable, "-c", code, str(root / "lock")]
    with Source(root):
        assert subprocess.run(command, capture_output=True, check=False).returncode
    assert not subprocess.run(command, check=False).returncode


def test_a_copy_keeps_up_with_a_store_in_use_and_is_complete_when_its_broker_stops(tmp_path: Path) -> None:
    store = busy(tmp_path / "s")
    store.clean = False
    root = store.save()
    with BackupWriter(tmp_path / "b") as writer:
        with used(root):
            source = Source(root, may_run=True)
            surveyed = survey(source)
            copy_entries(surveyed, writer, THIS_RELEASE)
            following = Following(surveyed, writer, THIS_RELEASE)
            assert following.step() == 0
            copied = 0
            for number in range(60):  # over several files
                store.send("orders", b"later %d " % number * 50, number % 2)
                store.half("orders", b"half %d" % number)
                if number % 20 == 19:
                    store.committed_behind = 7
                    store.save()
                    assert not source.has_stopped()
                    copied += following.step()
            assert copied == 120 - 7
        store.committed_behind = 0
        store.positions = {"orders@g": {0: 99}, "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS": {0: 58}}
        store.save()
        (root / "abort").unlink()
        assert source.has_stopped()
        assert following.finish() == 7
        report = surveyed.report(tmp_path / "b", copied=0, is_complete=True)
        source.close()
    assert (report.last_index, report.half_open, report.not_taken) == (270, 2, [])
    assert Backup(tmp_path / "b", THIS_RELEASE).state()[1].metadata.offsets["g", "orders"] == {0: 99}
    assert migrate(root, tmp_path / "b").entries_copied == 0, "a whole run finds nothing else"
    group = started(tmp_path / "b")
    assert read(group, "orders", 0, 75)[-1][2] == b"later 58 " * 50


def test_a_topic_that_is_deleted_under_a_copy_ends_it(tmp_path: Path) -> None:
    store = busy(tmp_path / "s")
    store.clean = False
    root = store.save()
    with used(root), BackupWriter(tmp_path / "b") as writer, Source(root, may_run=True) as source:
        surveyed = survey(source)
        copy_entries(surveyed, writer, THIS_RELEASE)
        following = Following(surveyed, writer, THIS_RELEASE)
        store.delete_topic("orders")
        store.topics["orders"] = 2
        store.send("orders", b"new", 0)
        store.save()
        with pytest.raises(MigrationError, match="a topic was deleted while its messages were copied"):
            following.step()


# ---------------------------------------------------------------------- hostile stores


def damage(path: Path, at: int, data: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[at : at + len(data)] = data
    path.write_bytes(raw)


def first_file(root: Path) -> Path:
    return root / "dledger-n0" / "data" / f"{0:020d}"


@pytest.mark.parametrize(
    ("at", "data", "message"),
    [
        (0, b"\xff", "does not begin with an entry"),
        (HEADER_BYTES + 8, b"\0\0\0\1", "entry 0: body checksum"),
        (HEADER_BYTES + 28 + 7, b"\x7f", "it says that it is at 127, and is at 48"),
        (HEADER_BYTES + 20, b"\xff", "entry 0: queue 0 and offset -"),
        (4, b"\0\0\x40\0", "at byte 0: behind entry -1: a size of 16384"),
    ],
)
def test_damage_is_named_with_file_and_place(tmp_path: Path, at: int, data: bytes, message: str) -> None:
    root = busy(tmp_path / "s").save()
    damage(first_file(root), at, data)
    with pytest.raises(DamagedSourceError, match=message) as raised:
        migrate(root, tmp_path / "b")
    assert raised.value.file == first_file(root)
    assert not (tmp_path / "b").exists() or not any((tmp_path / "b").iterdir()), "nothing is written"


def test_an_unfinished_write_at_the_end_is_left_out_and_told(tmp_path: Path) -> None:
    store = busy(tmp_path / "s")
    store.clean = False
    root = store.save()
    last = root / "dledger-n0" / "data" / f"{max(store.files):020d}"
    damage(last, store.position % FILE_BYTES, struct.pack(">iiqq", 1, 200, store.index, 1) + b"torn")
    report = migrate(root, tmp_path / "b")
    assert report.last_index == store.index - 1
    assert any(
        sentence.startswith("the end of the log, an unfinished write") for sentence in report.not_taken
    )
    (root / "abort").unlink()
    with pytest.raises(DamagedSourceError, match="behind entry 150"):
        check(root)


def test_a_log_that_ends_before_what_is_committed_is_refused(tmp_path: Path) -> None:
    store = busy(tmp_path / "s")
    store.committed_behind = -5
    with pytest.raises(DamagedSourceError, match="ends with entry 150, and its checkpoint says that 155"):
        check(store.save())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("topics.json", b"{", "topics.json at byte 0"),
        ("consumerOffset.json", b'{"offsetTable":{"nobody":{0:1}}}', "'nobody' is not topic@group"),
        ("consumerOffset.json", b'{"offsetTable":{"a@b":{0:1e99}}}', "consumerOffset.json at byte 0"),
        ("delayOffset.json", b"[1]", "delayOffset.json at byte 0"),
        ("timercheck", b"short", "it is cut off"),
    ],
)
def test_tables_that_are_none_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    root = busy(tmp_path / "s").save()
    (root / "config" / name).write_bytes(content)
    with pytest.raises(DamagedSourceError, match=message):
        check(root)


def test_an_empty_table_is_read_from_its_earlier_version(tmp_path: Path) -> None:
    root = busy(tmp_path / "s").save()
    path = root / "config" / "topics.json"
    shutil.copy(path, path.with_name("topics.json.bak"))
    path.write_bytes(b"")
    assert [topic.topic for topic in check(root).topics] == ["%RETRY%g", "orders"]


def test_a_store_of_trivet_or_of_no_dledger_node_is_refused(tmp_path: Path) -> None:
    store = busy(tmp_path / "s")
    store.send("TRIVET_SYS_RAFT_LOG", b"x")
    with pytest.raises(MigrationError, match="one of Trivet's own"):
        check(store.save())
    (tmp_path / "plain" / "commitlog").mkdir(parents=True)
    with pytest.raises(MigrationError, match="without DLedger"):
        check(tmp_path / "plain")


def saved_store(root: Path, *, clean: bool) -> None:
    store = RocketMQStore(root)
    store.topics = {"orders": 2}
    for number in range(30):
        store.send("orders", b"m" * number * 20, number % 2, {"TAGS": "t"})
    store.half("orders", b"half")
    store.delay("orders", b"late", 1)
    store.positions = {"orders@g": {0: 3}}
    store.delays = {1: 0}
    store.clean = clean
    store.save()


@pytest.mark.parametrize("clean", [True, False])
def test_the_store_that_is_damaged_below_is_taken_while_it_is_whole(tmp_path: Path, clean: bool) -> None:
    saved_store(tmp_path / "store", clean=clean)
    migrate(tmp_path / "store", tmp_path / "backup")
    Backup(tmp_path / "backup", THIS_RELEASE).verify()
    assert started(tmp_path / "backup")


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_no_bytes_of_a_source_end_in_anything_but_an_answer(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any few bytes of any file: the migration succeeds or refuses, and what it makes is sound."""
    root = tmp_path_factory.mktemp("s")
    saved_store(root, clean=data.draw(st.booleans()))
    files = sorted(path for path in root.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(files))
    for _ in range(data.draw(st.integers(1, 3))):
        size = path.stat().st_size
        damage(
            path, data.draw(st.integers(0, max(size - 1, 0))), data.draw(st.binary(min_size=1, max_size=9))
        )
    to = tmp_path_factory.mktemp("b")
    try:
        migrate(root, to)
    except (MigrationError, BackupError):
        return
    Backup(to, THIS_RELEASE).verify()
    started(to)

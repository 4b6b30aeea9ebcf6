"""Brokers that run become groups of Trivet: one in memory is asked over RocketMQ's protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio

from broker.backups.directory import Backup, BackupWriter
from broker.backups.errors import BackupError
from broker.client.admin import AdminClient
from broker.client.errors import ConnectionFailed
from broker.migration.errors import MigrationError
from broker.migration.report import Report
from broker.migration.running_broker import RunningBroker
from broker.migration.taking_over import STILL_S, TakingOver, Wanted, look_at, preview
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.state.release import THIS_RELEASE
from log.entries.entry_reads import record_at
from log.formats.layout import HEADER_BYTES
from log.formats.own_topics import DEFAULT_DELAY_LEVELS_MS
from log.formats.record import PHYSICAL_OFFSET_AT, decode_record
from tests.broker.client.cluster import NAME_SERVER, Broker, Cluster
from tests.broker.client.conftest import world
from tests.broker.client.links import ClientRuntime, Link, World, code, reset
from tests.broker.migration.moved import position, read, started
from tests.broker.migration.rocketmq_store import FILE_BYTES

__all__ = ["world"]

GROUP = "broker-a"
WANTED = Wanted(FILE_BYTES, DEFAULT_DELAY_LEVELS_MS)
READ_ONLY = b"brokerPermission=4\n"
PREPARED = 4


@pytest.fixture
def broker(world: World) -> Broker:
    (leader,) = Cluster(world).add_group(GROUP)
    leader.create_topic("orders", 2)
    return leader


@pytest.fixture
async def admin(broker: Broker, world: World) -> AsyncIterator[AdminClient]:
    async with AdminClient(NAME_SERVER, runtime=ClientRuntime(world)) as client:
        yield client


def permit(broker: Broker, setting: bytes) -> None:
    """Changes a setting of this node."""
    client = broker.group.connect(broker.node_id)
    client.ok(RequestCode.UPDATE_BROKER_CONFIG, {}, setting)
    client.close()
    broker.cluster.settle()


def fill(broker: Broker, begin: int, end: int) -> None:
    for number in range(begin, end):
        broker.append("orders", number % 2, b"m%d " % number * 9, b"TAGS\x01t%d\x02" % (number % 3))


async def take_over(admin: AdminClient, to: Path, wanted: Wanted = WANTED) -> Report:
    """Steps until it is complete, as the command does with --follow."""
    with BackupWriter(to) as directory:
        copy = TakingOver(RunningBroker(admin, GROUP), directory, wanted, THIS_RELEASE)
        await copy.begin()
        with trio.fail_after(10 * STILL_S):
            while not copy.is_complete:
                await copy.step(trio.current_time())
                await trio.sleep(1)
        return copy.report()


async def copy_once(admin: AdminClient, to: Path) -> int:
    """One step in a run of its own; returns how many messages were copied."""
    with BackupWriter(to) as directory:
        copy = TakingOver(RunningBroker(admin, GROUP), directory, WANTED, THIS_RELEASE)
        await copy.begin()
        await copy.step(trio.current_time())
        assert not copy.is_complete
        return copy.copied


def without_place(record: bytes) -> bytes:
    return record[:PHYSICAL_OFFSET_AT] + record[PHYSICAL_OFFSET_AT + 8 :]


async def test_messages_keep_offsets_and_bytes_but_for_their_places(
    broker: Broker, admin: AdminClient, tmp_path: Path
) -> None:
    fill(broker, 0, 150)
    broker.commit("g", "orders", 0, 30)
    seen = preview(RunningBroker(admin, GROUP), await look_at(RunningBroker(admin, GROUP), WANTED), WANTED)
    assert (seen.messages, seen.positions, seen.is_complete) == (150, 1, False)
    with BackupWriter(tmp_path / "b") as directory:
        copy = TakingOver(RunningBroker(admin, GROUP), directory, WANTED, THIS_RELEASE)
        await copy.begin()
        await copy.step(trio.current_time())
        assert (copy.copied, copy.is_complete) == (150, False)
        fill(broker, 150, 170)
        broker.commit("g", "orders", 1, 75)
        permit(broker, READ_ONLY)
        begun_s = trio.current_time()
        with trio.fail_after(4 * STILL_S):
            while not copy.is_complete:
                await copy.step(trio.current_time())
                await trio.sleep(0.5)
        assert trio.current_time() - begun_s >= STILL_S, (
            "a send that was let in before may still be on its way"
        )
        report = copy.report()
    assert (report.messages, report.positions, report.entries_copied) == (170, 2, 170)
    assert [sentence[:11] for sentence in report.not_taken] == ["message ids"]
    backup = Backup(tmp_path / "b", THIS_RELEASE)
    backup.verify()

    group = started(tmp_path / "b", size=3)
    store = group.node(group.leader).replica.store
    for queue_id in (0, 1):
        queue = store.queues.get("orders", queue_id)
        assert queue is not None
        units = list(queue.units(0, queue.max_offset))
        moved = [bytes(record_at(store.log, place, size)) for place, size, _ in units]
        theirs = broker.records("orders", queue_id)
        assert [without_place(record) for record in moved] == [without_place(record) for record in theirs]
        assert [decode_record(record).physical_offset for record in moved] == [place for place, _, _ in units]
    client = group.connect()
    assert (position(client, "orders", 0), position(client, "orders", 1)) == (30, 75)
    client.send("orders", b"next", 0)
    group.converge()
    assert read(group, "orders", 0)[-1][0] == 85


async def test_the_log_is_in_the_order_in_which_messages_were_stored(
    broker: Broker, admin: AdminClient, tmp_path: Path
) -> None:
    for number in range(100):
        broker.append("orders", 0 if number < 80 else 1, b"%d" % number)
        await trio.sleep(0.01)
    permit(broker, READ_ONLY)
    await take_over(admin, tmp_path / "b")
    bodies = []
    for entries in Backup(tmp_path / "b", THIS_RELEASE).entries():
        for index in range(entries.first_index, entries.last_index + 1):
            begin = entries.position_of(index) - entries.position + HEADER_BYTES
            bodies.append(decode_record(bytes(entries.data[begin:])).body)
    assert bodies == [b"%d" % number for number in range(100)]


async def test_a_queue_goes_on_where_it_was_though_its_head_or_all_of_it_is_deleted(
    broker: Broker, admin: AdminClient, tmp_path: Path
) -> None:
    broker.create_topic("old")
    fill(broker, 0, 40)
    broker.append("old", 0, b"gone")
    await broker.delete_stored()
    fill(broker, 40, 60)
    permit(broker, READ_ONLY)
    wanted = Wanted(1 << 20, DEFAULT_DELAY_LEVELS_MS, frozenset(("filler",)))
    report = await take_over(admin, tmp_path / "b", wanted)
    assert report.messages == 20
    state = Backup(tmp_path / "b", THIS_RELEASE).state()[1]
    assert (state.queue_ends["orders", 0], state.queue_ends["old", 0]) == (30, 1)
    assert "filler" not in state.metadata.topics


async def test_what_waits_goes_on_waiting(broker: Broker, admin: AdminClient, tmp_path: Path) -> None:
    half = {"TRAN_MSG": "true", "PGROUP": "producers", "UNIQ_KEY": "AB"}
    with broker.client() as client:
        client.send("orders", b"early", 0, {"DELAY": "1"})
        client.send("orders", b"late", 0, {"DELAY": "6"})
        client.send("orders", b"undecided", 0, half, sys_flag=PREPARED)
    await trio.sleep(3)
    permit(broker, READ_ONLY)
    report = await take_over(admin, tmp_path / "b")
    assert (report.delayed_waiting, report.half_open) == (1, 1)
    group = started(tmp_path / "b", broker={"transaction_check_interval_ms": 1000})
    producer = group.connect()
    producer.heartbeat(producer_group="producers")
    group.advance(150)
    assert [item[2] for item in read(group, "orders")] == [b"early", b"late"]
    assert RequestCode.CHECK_TRANSACTION_STATE in {notice.code for notice in producer.notices}


async def test_a_copy_that_broke_off_goes_on(broker: Broker, admin: AdminClient, tmp_path: Path) -> None:
    fill(broker, 0, 50)
    assert await copy_once(admin, tmp_path / "b") == 50
    fill(broker, 50, 60)
    assert await copy_once(admin, tmp_path / "b") == 10
    permit(broker, READ_ONLY)
    report = await take_over(admin, tmp_path / "b")
    assert (report.messages, report.entries_copied) == (60, 0)
    Backup(tmp_path / "b", THIS_RELEASE).verify()


async def test_a_broker_that_is_away_for_a_moment_is_asked_again(
    broker: Broker, admin: AdminClient, tmp_path: Path
) -> None:
    fill(broker, 0, 50)
    with BackupWriter(tmp_path / "b") as directory:
        copy = TakingOver(RunningBroker(admin, GROUP), directory, WANTED, THIS_RELEASE)
        await copy.begin()
        broker.script(RequestCode.PULL_MESSAGE, broker.instead(reset))
        with pytest.raises(ConnectionFailed):
            await copy.step(trio.current_time())
        await copy.step(trio.current_time())
        assert copy.report().messages == 50


async def test_a_group_of_which_one_node_takes_messages_is_not_complete(world: World, tmp_path: Path) -> None:
    leader, *followers = Cluster(world).add_group(GROUP, 3)
    leader.create_topic("orders", 2)
    fill(leader, 0, 10)
    for node in (leader, followers[0]):
        permit(node, READ_ONLY)
    async with AdminClient(NAME_SERVER, runtime=ClientRuntime(world)) as admin:
        with BackupWriter(tmp_path / "b") as directory:
            copy = TakingOver(RunningBroker(admin, GROUP), directory, WANTED, THIS_RELEASE)
            await copy.begin()
            for _ in range(2 * int(STILL_S)):
                await copy.step(trio.current_time())
                await trio.sleep(1)
            assert not copy.is_complete
            permit(followers[1], READ_ONLY)
            for _ in range(2 * int(STILL_S)):
                followers[1].script(RequestCode.GET_BROKER_CONFIG, code(ResponseCode.SYSTEM_ERROR))
                await copy.step(trio.current_time())
                await trio.sleep(1)
            assert not copy.is_complete, "one that does not say so may take messages"
            with trio.fail_after(4 * STILL_S):
                while not copy.is_complete:
                    await copy.step(trio.current_time())
                    await trio.sleep(1)


def delete_topic(broker: Broker) -> None:
    with broker.client() as client:
        client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})


def made_again(count: int) -> Callable[[Broker], None]:
    def change(broker: Broker) -> None:
        delete_topic(broker)
        broker.create_topic("orders", 2)
        for number in range(count):
            broker.append("orders", number % 2, b"another")

    return change


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (delete_topic, "of orders is gone, and 10 messages of it are copied: its topic was deleted"),
        (made_again(6), "of orders ends at 3, and is copied up to 10"),
        (made_again(30), "message 9 of queue 0 of orders is another one"),
    ],
    ids=["deleted", "shorter", "longer"],
)
async def test_a_topic_that_is_deleted_under_a_copy_ends_it(
    broker: Broker, admin: AdminClient, tmp_path: Path, change: Callable[[Broker], None], complaint: str
) -> None:
    fill(broker, 0, 20)
    with BackupWriter(tmp_path / "b") as directory:
        copy = TakingOver(RunningBroker(admin, GROUP), directory, WANTED, THIS_RELEASE)
        await copy.begin()
        await copy.step(trio.current_time())
    change(broker)
    with pytest.raises(MigrationError, match=complaint):
        await copy_once(admin, tmp_path / "b")


async def test_a_topic_that_was_made_again_between_two_looks_is_found_at_the_end(
    broker: Broker, admin: AdminClient, tmp_path: Path
) -> None:
    fill(broker, 0, 20)
    with BackupWriter(tmp_path / "b") as directory:
        copy = TakingOver(RunningBroker(admin, GROUP), directory, WANTED, THIS_RELEASE)
        await copy.begin()
        await copy.step(trio.current_time())
        made_again(20)(broker)
        permit(broker, READ_ONLY)
        await copy.step(trio.current_time())
        await trio.sleep(STILL_S)
        with pytest.raises(MigrationError, match="is another one"):
            await copy.step(trio.current_time())
        assert not copy.is_complete


async def test_messages_that_are_deleted_before_they_are_read_end_it(
    broker: Broker, admin: AdminClient, tmp_path: Path
) -> None:
    fill(broker, 0, 20)
    await copy_once(admin, tmp_path / "b")
    fill(broker, 20, 40)
    await broker.delete_stored()
    with pytest.raises(MigrationError, match="begins with 20 now, and is copied up to 10"):
        await copy_once(admin, tmp_path / "b")


def flipped(link: Link, command: RemotingCommand) -> RemotingCommand:
    body = bytearray(command.body)
    body[95] ^= 1
    command.body = bytes(body)
    return command


def shortened(link: Link, command: RemotingCommand) -> RemotingCommand:
    body = bytes(command.body)
    command.body = body[int.from_bytes(body[:4], "big") :]
    return command


@pytest.mark.parametrize(
    ("step", "complaint"),
    [
        (flipped, "message 0 of queue 0 of orders: body checksum"),
        (shortened, "asked for message 0 of queue 0 of orders, and sent message 1 .*--leave-out orders"),
    ],
    ids=["damaged", "a hole"],
)
async def test_a_message_that_is_not_the_one_that_was_asked_for_is_refused(
    broker: Broker,
    admin: AdminClient,
    tmp_path: Path,
    step: Callable[[Link, RemotingCommand], RemotingCommand],
    complaint: str,
) -> None:
    for _ in range(5):
        broker.append("orders", 0, b"m" * 20)
    broker.script(RequestCode.PULL_MESSAGE, broker.instead(step))
    with pytest.raises(MigrationError, match=complaint):
        await copy_once(admin, tmp_path / "b")
    with BackupWriter(tmp_path / "b") as directory:
        assert directory.is_empty


async def test_a_backup_of_something_else_is_refused(
    broker: Broker, admin: AdminClient, tmp_path: Path
) -> None:
    fill(broker, 0, 10)
    await copy_once(admin, tmp_path / "b")
    with BackupWriter(tmp_path / "b") as directory:
        other = TakingOver(
            RunningBroker(admin, GROUP), directory, Wanted(1 << 20, DEFAULT_DELAY_LEVELS_MS), THIS_RELEASE
        )
        with pytest.raises(BackupError, match="data files of 1048576 bytes"):
            await other.begin()


async def test_delay_levels_that_differ_are_told(broker: Broker, admin: AdminClient) -> None:
    broker.append("orders", 0, b"one")
    wanted = Wanted(FILE_BYTES, (1000, 2000))
    running = RunningBroker(admin, GROUP)
    told = preview(running, await look_at(running, wanted), wanted).not_taken
    assert any('set broker.delay_levels = "1s 5s' in sentence for sentence in told)

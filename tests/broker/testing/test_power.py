"""A loss of power in a test: what was flushed is there afterwards, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.client.message import Message
from broker.client.threaded import sync
from broker.testing.broker import broker
from broker.testing.power import Power, PoweredDisk
from log.files.mmap_disk import PAGE_BYTES
from tests.broker.testing.test_broker import LIMIT_S, TOPIC, stored


def test_pages_that_were_not_flushed_are_gone(tmp_path: Path) -> None:
    power = Power(tmp_path)
    disk = PoweredDisk(power)
    file = disk.open("queue/0", 4 * PAGE_BYTES, create=True)
    disk.sync_directory("queue")
    file.buffer[:] = b"a" * (4 * PAGE_BYTES)
    file.flush(PAGE_BYTES, PAGE_BYTES + 1)
    file.buffer[PAGE_BYTES] = ord("b")
    power.lose()
    assert PoweredDisk(power).read("queue/0") == bytes(PAGE_BYTES) + b"a" * PAGE_BYTES + bytes(2 * PAGE_BYTES)


def test_names_that_were_not_synced_are_as_they_were(tmp_path: Path) -> None:
    power = Power(tmp_path)
    disk = PoweredDisk(power)
    disk.write_durably("kept", b"old")
    disk.write_durably("tree/kept", b"a tree")
    for name in ("made", "tree/made"):
        made = disk.open(name, 10, create=True)
        made.buffer[:] = b"0123456789"
        made.flush(0, 10)
    disk.remove("kept")
    disk.discard("tree")
    disk.remove_discarded(100, 1 << 20)
    assert (disk.list("."), disk.list("tree")) == (["made", "trash"], [])
    power.lose()
    disk = PoweredDisk(power)
    assert (disk.list("."), disk.list("tree")) == (["kept", "trash", "tree"], ["kept"])
    assert (disk.read("kept"), disk.read("tree/kept")) == (b"old", b"a tree")

    disk.remove("kept")
    disk.discard("tree")
    disk.sync_directory(".")
    disk.remove_discarded(100, 1 << 20)
    power.lose()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_renamed_file_is_as_it_was_until_its_directory_is_synced(tmp_path: Path) -> None:
    power = Power(tmp_path)
    disk = PoweredDisk(power)
    disk.write_durably("state", b"old")
    disk.write_durably("beside/state", b"new")
    disk.rename("beside/state", "state")
    power.lose()
    disk = PoweredDisk(power)
    assert (disk.read("state"), disk.read("beside/state")) == (b"old", b"new")
    disk.rename("beside/state", "state")
    disk.sync_directory(".")
    power.lose()
    assert PoweredDisk(power).read("state") == b"new"


def test_what_was_there_before_counts_as_flushed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * (PAGE_BYTES + 3))
    power = Power(tmp_path)
    disk = PoweredDisk(power)
    file = disk.open("file", PAGE_BYTES + 3, create=False)
    file.buffer[0] = ord("y")
    power.lose()
    assert PoweredDisk(power).read("file") == b"x" * (PAGE_BYTES + 3)

    file = PoweredDisk(power).open("file", PAGE_BYTES + 3, create=False)
    file.erase(PAGE_BYTES)
    power.lose()
    assert PoweredDisk(power).read("file") == b"x" * PAGE_BYTES + bytes(3)


def test_with_sync_flush_all_may_lose_power() -> None:
    with broker(nodes=3, flush="sync") as name_server:
        with sync.Producer(name_server, group="p", send_timeout_s=LIMIT_S) as producer:
            name_server.create_topic(TOPIC)
            sent = {b"%d" % number for number in range(20)}
            for body in sent:
                producer.send(Message(TOPIC, body))
            name_server.lose_power()
            assert name_server.leader is None
            name_server.start()
            producer.send(Message(TOPIC, b"behind it"))
        assert stored(name_server, 21) == sent | {b"behind it"}


def test_with_async_flush_the_leader_may_lose_power() -> None:
    """Its machine is another one after that, so to speak: it helps to elect nobody until it has all of it again."""
    with broker(nodes=3) as name_server:
        with sync.Producer(name_server, group="p", send_timeout_s=LIMIT_S) as producer:
            for number in range(10):
                producer.send(Message(TOPIC, b"before %d" % number))
            dark = name_server.wait_leader()
            name_server.lose_power(dark)
            producer.send(Message(TOPIC, b"behind it"))
            assert name_server.leader != dark
            name_server.start(dark)
            producer.send(Message(TOPIC, b"all of them"))
        assert stored(name_server, 12) == {
            *(b"before %d" % number for number in range(10)),
            b"behind it",
            b"all of them",
        }


def test_with_async_flush_all_lose_what_was_not_flushed() -> None:
    """Only what came last may be gone, and the group goes on."""
    with broker(nodes=3) as name_server:
        name_server.create_topic(TOPIC, queues=1)
        with sync.Producer(name_server, group="p", send_timeout_s=LIMIT_S) as producer:
            for number in range(10):
                producer.send(Message(TOPIC, b"%d" % number))
            name_server.lose_power()
            name_server.start()
            name_server.wait_leader()
            left = producer.send(Message(TOPIC, b"behind it")).queue_offset
        assert left <= 10
        assert stored(name_server, left + 1) == {*(b"%d" % number for number in range(left)), b"behind it"}


def test_only_nodes_that_there_are() -> None:
    with broker() as name_server:
        with pytest.raises(ValueError, match="n7 is no node: n0"):
            name_server.lose_power("n7")
        assert name_server.leader == "n0"

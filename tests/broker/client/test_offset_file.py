"""Positions of broadcast consumers on their own machine: format, crashes, damage, consumers that go on from them."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import trio

from broker.client.consuming.consumer import Consumer
from broker.client.consuming.offset_file import OffsetFile
from broker.client.errors import DamagedOffsets, OffsetsNotStored, UsageError
from broker.client.message import MessageQueue
from tests.broker.client.cluster import NAME_SERVER, Broker, one_group
from tests.broker.client.links import ClientRuntime, World

FIRST, SECOND = MessageQueue("TopicTest", "broker-a", 0), MessageQueue("TopicTest", "broker-a", 1)

# What the Java clients of 4.9.8 and 5.3.1 write; both read what is written here as well.
JAVA_FILE = (
    '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":1,\n\t\t\t"topic":"TopicTest"\n\t\t}:0,'
    '{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":0,\n\t\t\t"topic":"TopicTest"\n\t\t}:12\n\t}\n}'
)


def stored(path: Path, *versions: dict[MessageQueue, int]) -> OffsetFile:
    """A file that was written in these versions, closed."""
    file = OffsetFile(path)
    file.load_now()
    for version in versions:
        file.store_now(version)
    file.close()
    return file


def test_a_java_consumers_file_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(JAVA_FILE)
    assert OffsetFile(path).load_now() == {FIRST: 12, SECOND: 0}


def test_the_format(tmp_path: Path) -> None:
    file = stored(tmp_path / "made" / "offsets.json", {FIRST: 12, SECOND: 7})
    assert file.path.read_text() == (
        '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"TopicTest"}:12,'
        '{"brokerName":"broker-a","queueId":1,"topic":"TopicTest"}:7},"crc32":812648110}\n'
    )
    assert file.load_now() == {FIRST: 12, SECOND: 7}


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "garbage", "negative", "gone"])
def test_the_backup_takes_a_damaged_files_place(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "offsets.json"
    file = stored(path, {FIRST: 1}, {FIRST: 2}, {FIRST: 3})
    data = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes(
            {
                "flipped": data.replace(b":3}", b":9}"),
                "cut": data[:40],
                "empty": b"",
                "garbage": os.urandom(100),
                "negative": b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:-1}}',
            }[damage]
        )
    with caplog.at_level(logging.WARNING):
        assert file.load_now() == {FIRST: 2}
    if damage != "gone":
        assert file.problem is not None
        assert str(path) in caplog.text
    file.store_now({FIRST: 4})
    file.close()
    path.write_bytes(b"damaged again")
    assert file.load_now() == {FIRST: 2}, "what was damaged did not become the backup"


def test_without_a_backup_that_is_whole_it_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    file = stored(path, {FIRST: 1})
    path.write_bytes(b"{")
    with pytest.raises(DamagedOffsets, match=r"offsets\.json is damaged"):
        file.load_now()
    stored(tmp_path / "other.json", {FIRST: 1}, {FIRST: 2})
    (tmp_path / "other.json").write_bytes(b"{")
    (tmp_path / "other.json.bak").write_bytes(b"}")
    with pytest.raises(DamagedOffsets, match=r"other\.json\.bak"):
        OffsetFile(tmp_path / "other.json").load_now()
    file.backup.write_text(JAVA_FILE)
    assert file.load_now() == {FIRST: 12, SECOND: 0}, "the lock was released"


class CrashError(Exception):
    pass


def test_a_crash_at_any_step_leaves_a_whole_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = ["open", "fsync", "unlink", "link", "replace", "replace", "fsync"]
    for crash_at in range(len(steps)):
        path = tmp_path / str(crash_at) / "offsets.json"
        file = stored(path, {FIRST: 1}, {FIRST: 2})
        file.load_now()
        count = 0

        def stepping(original: Any, crash_at: int = crash_at) -> Any:
            def step(*arguments: Any, **options: Any) -> Any:
                nonlocal count
                count += 1
                if count > crash_at:
                    raise CrashError
                return original(*arguments, **options)

            return step

        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", stepping(Path.open))
            patch.setattr(Path, "unlink", stepping(Path.unlink))
            patch.setattr(Path, "replace", stepping(Path.replace))
            patch.setattr(os, "fsync", stepping(os.fsync))
            patch.setattr(os, "link", stepping(os.link))
            with pytest.raises(CrashError):
                file.store_now({FIRST: 3})
        file.close()
        assert count == crash_at + 1
        again = OffsetFile(path)
        assert again.load_now() == ({FIRST: 3} if crash_at == len(steps) - 1 else {FIRST: 2})
        assert again.problem is None
        again.store_now({FIRST: 4})
        again.close()


def test_one_consumer_a_file(tmp_path: Path) -> None:
    first, second = OffsetFile(tmp_path / "offsets.json"), OffsetFile(tmp_path / "offsets.json")
    first.load_now()
    with pytest.raises(UsageError, match="another consumer"):
        second.load_now()
    first.close()
    assert second.load_now() == {}


# Consumers -----------------------------------------------------------------------------------------------------------


def broadcasting(runtime: ClientRuntime, path: Path) -> Consumer:
    return Consumer(
        NAME_SERVER,
        group="c",
        topics="t",
        start="first",
        broadcast=True,
        offsets=OffsetFile(path),
        runtime=runtime,
    )


async def read(consumer: Consumer, count: int) -> list[bytes]:
    with trio.fail_after(600):
        return [(await anext(consumer)).body for _ in range(count)]


async def test_a_broadcast_consumer_goes_on_where_it_was(
    world: World, broker: Broker, runtime: ClientRuntime, tmp_path: Path
) -> None:
    for number in range(10):
        broker.append("t", 0, b"%d" % number)
    paths = [tmp_path / "one" / "offsets.json", tmp_path / "two" / "offsets.json"]
    for seed, path in enumerate(paths):
        async with broadcasting(ClientRuntime(world, seed), path) as consumer:
            assert await read(consumer, 4) == [b"0", b"1", b"2", b"3"], "each has everything"
    assert not broker.metadata.offsets, "nothing of it is the brokers'"
    async with broadcasting(runtime, paths[0]) as consumer:
        assert await read(consumer, 2) == [b"3", b"4"], "the one in hand comes again"
        await consumer.commit()
        assert OffsetFile(paths[0]).path.read_text().count(":5}") == 1
        assert await read(consumer, 5) == [b"5", b"6", b"7", b"8", b"9"]


async def test_what_cannot_be_stored_is_said_and_tried_again(
    broker: Broker, runtime: ClientRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        broker.append("t", 0, b"%d" % number)
    path = tmp_path / "offsets.json"

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with broadcasting(runtime, path) as consumer:
        await read(consumer, 3)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(OffsetsNotStored, match="No space left"):
                await consumer.commit()
        await consumer.commit()
    assert OffsetFile(path).load_now() == {MessageQueue("t", "g", 0): 3}


async def test_damage_and_misuse_are_refused_at_the_start(
    world: World, runtime: ClientRuntime, tmp_path: Path
) -> None:
    one_group(world)
    path = tmp_path / "offsets.json"
    path.write_text("{")
    with pytest.raises(DamagedOffsets):
        async with broadcasting(runtime, path):
            pass
    with pytest.raises(UsageError, match="brokers keep"):
        Consumer(NAME_SERVER, group="c", topics="t", offsets=OffsetFile(path), runtime=runtime)


async def test_a_consumer_that_is_entered_again_does_not_keep_the_file(
    world: World, runtime: ClientRuntime, tmp_path: Path
) -> None:
    one_group(world)
    path = tmp_path / "offsets.json"
    async with broadcasting(runtime, path) as consumer:
        pass
    with pytest.raises(UsageError, match="entered once"):
        await consumer.__aenter__()
    async with broadcasting(runtime, path):
        pass

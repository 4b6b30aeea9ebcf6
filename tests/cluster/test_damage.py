"""Files that are truncated, bit-flipped, half-written or gone when a node starts.

One node is killed under load and its files are damaged. Started again it must say what it found, take what it misses
from the others, and in the end hold the same bytes as they do. Nothing that was acknowledged may be missing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio

from broker.client.admin import AdminClient
from broker.tools.cluster.compare import walk_entries
from broker.tools.cluster.layout import LocalNode
from log.formats.layout import ENTRY_MAGIC, HEADER, HEADER_BYTES
from tests.cluster.support import (
    SMALL_FILES,
    TOPIC,
    Load,
    check_identical,
    check_nothing_lost,
    ready_cluster,
    repeated,
)

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

MESSAGES = 1_500


def data_files(node: LocalNode) -> list[Path]:
    """The log's files that hold entries, oldest first."""
    last = [entry.position for entry in walk_entries(node.data_directory)][-1]
    return sorted(path for path in node.data_directory.iterdir() if int(path.name) <= last)


def end_of_log(node: LocalNode) -> tuple[Path, int]:
    """The file in which the log ends, and the byte at which it does."""
    file = data_files(node)[-1]
    end = 0
    for entry in walk_entries(node.data_directory):
        end = entry.position + len(entry.data)
    return file, end - int(file.name)


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Write into the middle of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def flip_bit(path: Path, offset: int) -> None:
    """Turn one bit around."""
    with path.open("rb") as file:
        file.seek(offset)
        byte = file.read(1)[0]
    overwrite(path, offset, bytes([byte ^ 0x10]))


def truncate_first_data_file(node: LocalNode) -> None:
    with data_files(node)[0].open("r+b") as file:
        file.truncate(100_000)


def truncate_last_data_file(node: LocalNode) -> None:
    """Within an entry: a log that ends with a whole one names no place where it is damaged."""
    path, end = end_of_log(node)
    half = int(path.name) + end // 2
    cut = next(
        entry for entry in walk_entries(node.data_directory) if entry.position + len(entry.data) > half
    )
    with path.open("r+b") as file:
        file.truncate(cut.position + HEADER_BYTES // 2 - int(path.name))


def flip_bit_in_an_old_entry(node: LocalNode) -> None:
    flip_bit(data_files(node)[0], 150_000)


def flip_bit_in_the_last_entry(node: LocalNode) -> None:
    path, end = end_of_log(node)
    flip_bit(path, end - 5)


def half_written_entry(node: LocalNode) -> None:
    """Writes the header of one more entry and half of its body, as a power loss leaves them."""
    path, end = end_of_log(node)
    index = max(entry.index for entry in walk_entries(node.data_directory)) + 1
    header = HEADER.pack(ENTRY_MAGIC, HEADER_BYTES + 200, index, 99, int(path.name) + end, 0, 0, 12345, 200)
    overwrite(path, end, header + b"\x01" * 100)


def garbage_behind_the_end(node: LocalNode) -> None:
    path, end = end_of_log(node)
    overwrite(path, end, bytes(range(1, 200)))


def remove_a_data_file(node: LocalNode) -> None:
    data_files(node)[1].unlink()


def remove_all_data_files(node: LocalNode) -> None:
    shutil.rmtree(node.data_directory)


def remove_the_entry_index(node: LocalNode) -> None:
    shutil.rmtree(node.data_directory.parent / "index")


def flip_bits_in_the_entry_index(node: LocalNode) -> None:
    for path in sorted((node.data_directory.parent / "index").iterdir()):
        flip_bit(path, 37)


def remove_the_queues(node: LocalNode) -> None:
    shutil.rmtree(Path(node.settings.storage.path) / "consumequeue")


def flip_bits_in_the_queues(node: LocalNode) -> None:
    for path in sorted((Path(node.settings.storage.path) / "consumequeue").rglob("0*")):
        if path.is_file():
            flip_bit(path, 45)


def remove_the_message_index(node: LocalNode) -> None:
    shutil.rmtree(Path(node.settings.storage.path) / "index")


def garble_the_checkpoint(node: LocalNode) -> None:
    (Path(node.settings.storage.path) / "checkpoint").write_bytes(b"\x00garbage\xff" * 20)


Damage = Callable[[LocalNode], None]

REPORTED: list[Damage] = [
    truncate_first_data_file,
    truncate_last_data_file,
    flip_bit_in_an_old_entry,
    flip_bit_in_the_last_entry,
    remove_a_data_file,
]
"""What a sound disk cannot have done to a node that was killed."""

MENDED: list[list[Damage]] = [
    [half_written_entry, remove_the_message_index],
    [garbage_behind_the_end, flip_bits_in_the_queues],
    [remove_the_entry_index, remove_the_queues],
    [flip_bits_in_the_entry_index, garble_the_checkpoint],
]
"""What any crash may leave, or what is built again from the log: two at a time, to files that are mended apart."""


async def damage_a_follower(
    tmp_path: Path, damages: list[list[Damage]], check_report: Callable[[str], None], *, cleanly: bool = False
) -> None:
    """Under load: stop a follower, damage its files, start it, compare all stores; for one group after the other.

    In the end the node leads, and answers from what it has repaired.
    """
    async with ready_cluster(tmp_path) as cluster:
        load = Load(cluster)
        async with load.running():
            await load.wait_for(MESSAGES)
        leader = await cluster.leader()
        victim = next(node for node in cluster.nodes.values() if node is not leader)
        for together in damages:
            try:
                async with load.running():
                    await load.wait_for(50)
                    await (cluster.stop(victim.id) if cleanly else cluster.kill(victim.id))
                    await load.wait_for(20)
                    for damage in together:
                        damage(victim)
                    logged = victim.log_path.stat().st_size
                    cluster.start(victim.id)
                    await cluster.wait_ready()
                    await load.wait_for(20)
                await check_identical(cluster)
                check_report(victim.log_path.read_text()[logged:])
            except BaseException as error:
                error.add_note(f"after {', '.join(damage.__name__ for damage in together)}")
                raise
        async with AdminClient(cluster.name_server_address) as admin:
            while (await cluster.leader()) is not victim:
                await repeated(partial(admin.transfer_leadership, victim.id))
        await cluster.wait_ready()
        await check_nothing_lost(cluster, load)
        await check_identical(cluster)


def names_the_damaged_file(report: str) -> None:
    """The node's log says what is damaged, and where: its start, or whoever reads the entry behind that, if the start
    had no need to look so far back."""
    lines = [line for line in report.splitlines() if "damage" in line]
    assert any("/data/" in line and (" at byte " in line or " offset=" in line) for line in lines), report


async def test_damage_is_reported_and_repaired_from_the_group(tmp_path: Path) -> None:
    await damage_a_follower(tmp_path, [[damage] for damage in REPORTED], names_the_damaged_file)


async def test_the_loss_of_a_whole_log_is_reported_and_repaired(tmp_path: Path) -> None:
    """A node without its log must not vote as if nothing had ever been in it."""
    await damage_a_follower(tmp_path, [[remove_all_data_files]], names_the_damaged_file, cleanly=True)


async def test_what_a_crash_leaves_is_mended(tmp_path: Path) -> None:
    await damage_a_follower(tmp_path, MENDED, lambda report: None)


async def test_a_damaged_vote_is_never_guessed(tmp_path: Path) -> None:
    """A node that does not know how it voted could vote twice: it refuses to start, and says why and where."""
    async with ready_cluster(tmp_path) as cluster:
        load = Load(cluster)
        async with load.running():
            await load.wait_for(20)
            leader = await cluster.leader()
            victim = next(node for node in cluster.nodes.values() if node is not leader)
            await cluster.kill(victim.id)
            (victim.data_directory.parent / "currterm").write_bytes(b"currTerm=\xff\x00")
            cluster.start(victim.id)
            assert victim.child is not None
            victim.child.expected_to_end = True
            await victim.child.exited.wait()
            assert victim.child.return_code == 1
            complaint = victim.child.last_log_lines(1)[0]
            assert complaint.startswith("trivet: ")
            assert "currterm" in complaint
            await load.wait_for(20)  # the other two do not need it


def flip_bits_in_an_old_queue_file(node: LocalNode) -> None:
    old = [
        path
        for queue in sorted((Path(node.settings.storage.path) / "consumequeue" / TOPIC).iterdir())
        for path in sorted(queue.iterdir())[:-1]
    ]
    flip_bit(old[0], 20 * 9 + 5)


async def test_damage_in_nodes_that_run_is_repaired_and_no_client_is_harmed(tmp_path: Path) -> None:
    """Of the leader, and of a follower: bits of old files flip while they serve."""
    storage = msgspec.structs.replace(SMALL_FILES, scrub_bytes_per_second=1 << 28, scrub_interval_s=1)
    async with ready_cluster(tmp_path, storage=storage) as cluster:
        load = Load(cluster)
        async with load.running():
            await load.wait_for(MESSAGES)
            leader = await cluster.leader()
            follower = next(node for node in cluster.nodes.values() if node is not leader)
            for node in (leader, follower):
                for damage in (flip_bit_in_an_old_entry, flip_bits_in_an_old_queue_file):
                    before = len(told_of_repairs(node))
                    damage(node)
                    while len(told_of_repairs(node)) == before:  # noqa: ASYNC110
                        await trio.sleep(0.05)  # nothing tells: it is another process
            await load.wait_for(50)
        await check_nothing_lost(cluster, load)
        await check_identical(cluster)
        for node in (leader, follower):
            names_the_damaged_data_file(node.log_path.read_text())


def told_of_repairs(node: LocalNode) -> list[str]:
    return [line for line in node.log_path.read_text().splitlines() if "damage repaired" in line]


def names_the_damaged_data_file(report: str) -> None:
    lines = [line for line in report.splitlines() if "damage found" in line]
    assert any("/data/" in line and "offset" in line for line in lines), report
    assert any("consumequeue/" in line and "offset" in line for line in lines), report

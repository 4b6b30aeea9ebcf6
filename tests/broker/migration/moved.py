"""Groups of stores that were made of a migration's backup, and what clients find there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from broker.backups.directory import Backup
from broker.backups.restoring import restore
from broker.remoting.codes import RequestCode, ResponseCode
from broker.state.release import THIS_RELEASE
from tests.broker.harness import SMALL_STORE, Client, Group
from tests.broker.migration.rocketmq_store import FILE_BYTES
from tests.log.memory_disk import MemoryDisk

OPTIONS = replace(SMALL_STORE, data_file_bytes=FILE_BYTES)


def started(backup: Path, size: int = 1, **settings: Any) -> Group:
    """A group of stores that were made of the backup, as `trivet restore` makes them."""
    group = Group(size, options=OPTIONS, flush="sync", start=False, **settings)
    for node_id, member in group.members.items():
        config = member.config
        member.config = msgspec.structs.replace(
            config,
            raft=msgspec.structs.replace(config.raft, lineage="moved" if size > 1 else ""),
            storage=msgspec.structs.replace(config.storage, data_file_bytes=FILE_BYTES),
        )
        member.disk = MemoryDisk()
        options = replace(OPTIONS, dledger_directory=f"dledger-{node_id}")
        restore(
            Backup(backup, THIS_RELEASE), member.disk, member.config, THIS_RELEASE, group.wall_ms, options
        )
    for node_id in group.members:
        group.start(node_id)
    group.elect()
    return group


def read(group: Group, topic: str, queue: int = 0, begin: int = 0) -> list[tuple[int, int, bytes, bytes]]:
    """Offset, physical offset, body and properties of all messages of a queue."""
    client = group.connect()
    found: list[tuple[int, int, bytes, bytes]] = []
    while (pulled := client.pull(topic, "reader", begin + len(found), queue)).code == ResponseCode.SUCCESS:
        found += [(r.queue_offset, r.physical_offset, r.body, r.properties) for r in pulled.records]
    return found


def position(client: Client, topic: str, queue: int = 0) -> int:
    return client.offset_of(RequestCode.QUERY_CONSUMER_OFFSET, topic, queue, consumerGroup="g")

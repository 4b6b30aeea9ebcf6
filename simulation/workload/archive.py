"""An archivist: has backups taken while faults go on, restores them, and holds what is in them to what was committed.

A backup is read from any node, a request at a time, and goes on with another node when one fails, as `trivet backup`
does; the next one goes on behind it in the same directory, or begins anew in another. What is complete must be, byte
for byte, what the group has committed up to its last entry, and must reach as far as the group had committed when it
was asked for. A store that is made of it must have every message of it in its queue.
"""

from bisect import bisect_left
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from broker.backups.copying import BackupCopy
from broker.backups.directory import Backup, BackupWriter
from broker.backups.errors import BackupError
from broker.backups.restoring import restore
from broker.client.admin import AdminClient
from broker.client.errors import ClientError
from broker.client.transport.core import broker_error
from broker.client.transport.runtime import Runtime
from broker.remoting.codes import ResponseCode
from broker.state.release import THIS_RELEASE
from broker.trace import TraceWriter
from log.store import Store
from simulation.journal import Violation
from simulation.machines.simulated_disk import SimulatedDisk
from simulation.randomness import Random, branch
from simulation.workload.context import Context

_PAUSE_S: Final = 3.0
_BETWEEN_REQUESTS_S: Final = 0.05
_NODES_ASKED: Final = 6
"""The number of times that a node is asked, another or the same again, before a backup is given up for now."""
_ASK_AGAIN_S: Final = 0.5
_KEPT_SHARE: Final = 0.6
"""The share of the backups behind which the next one goes on in the same directory."""


async def archive(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Takes one backup after the other."""
    async with AdminClient(context.name_servers, runtime=runtime) as admin:
        while True:
            with TemporaryDirectory() as folder:
                await _archive_into(context, runtime, admin, Path(folder))


async def _archive_into(context: Context, runtime: Runtime, admin: AdminClient, folder: Path) -> None:
    """Takes backups into one directory, until it is time for another."""
    random = runtime.random
    while True:
        await runtime.sleep(random.expovariate(1 / _PAUSE_S))
        try:
            with BackupWriter(folder) as directory:
                commit_index = await _read(runtime, admin, directory)
        except ClientError as error:
            context.journal.note("archivist", f"in vain: {error}")
            continue
        except BackupError:
            # The log of the node that was asked begins behind what is here: begin anew.
            context.journal.note("archivist", "the backup does not go on")
            return
        if commit_index is not None:
            _compare(context, random, Backup(folder, THIS_RELEASE), commit_index)
        if random.random() >= _KEPT_SHARE:
            return


async def _read(runtime: Runtime, admin: AdminClient, directory: BackupWriter) -> int | None:
    """Reads a backup. Returns the index up to which it must reach; None if no node could be read to the end."""
    random = runtime.random
    # What the leader says is committed now must be in the backup, whichever node it is read from.
    leader = await admin.members()
    copy = BackupCopy(directory, leader.group, leader.commit_index)
    addresses = await admin.addresses(leader.group)
    for _ in range(_NODES_ASKED):
        address = random.choice(sorted(addresses))
        # A snapshot is one node's: what has come of another's is dropped. Entries are the same on all, and stay.
        copy.restart()
        try:
            while (request := copy.next_request()) is not None:
                response = await admin.call(address, *request)
                if response.code != ResponseCode.SUCCESS:
                    raise broker_error(response, address)
                copy.answered(response)
                await runtime.sleep(random.random() * _BETWEEN_REQUESTS_S)
        except ClientError:
            await runtime.sleep(_ASK_AGAIN_S)
        else:
            return leader.commit_index
    return None


def _compare(context: Context, random: Random, backup: Backup, commit_index: int) -> None:
    """Holds a complete backup, and a store made of it, to what the group has committed. Raises Violation."""
    manifest, model = backup.manifest, context.model
    begin, end = manifest.first_position, manifest.end_position
    if not commit_index <= manifest.last_index <= model.last_index:
        raise _violation(
            f"it ends with {manifest.last_index}, {commit_index} was committed when it was asked for, and "
            f"{model.last_index} is now"
        )
    for entries in backup.entries():
        if entries.data != model.image[entries.position : entries.end_position]:
            raise _violation(f"its entries {entries.first_index}..{entries.last_index} are not the group's")
    context.journal.did("backup taken")

    # A store of its own, as of a new machine.
    host = context.members.machines[0]
    settings = msgspec.structs.replace(
        host.settings, raft=msgspec.structs.replace(host.settings.raft, lineage="restored", join=False)
    )
    options = replace(host.options, dledger_directory="dledger-restored")
    disk, wall_ms = SimulatedDisk(branch(random)), host.clock.wall_ms()
    try:
        restore(backup, disk, settings, THIS_RELEASE, wall_ms, options)
        store, _ = Store.open(disk, options, wall_ms, THIS_RELEASE.newest_format)
    except BackupError as error:
        raise _violation(f"it cannot be restored: {error}") from error
    for (topic, queue_id), committed in model.queues.items():
        if topic in model.deleted_topics:
            continue
        count = bisect_left(committed.positions, end)
        first = bisect_left(committed.positions, begin, 0, count)
        queue = store.queues.get(topic, queue_id)
        found = [] if queue is None else [queue.unit(offset) for offset in range(first, queue.max_offset)]
        if [None if unit is None else unit[0] for unit in found] != committed.positions[first:count]:
            raise _violation(
                f"restored, {topic}-{queue_id} has {len(found)} messages from {first} on, and ends with {count} there"
            )
    store.close(manifest.last_index)
    context.journal.did("backup restored")


def _violation(detail: str) -> Violation:
    return Violation("backup", "archivist", detail)

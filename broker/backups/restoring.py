"""A store made of a backup, for one node of a group that begins anew with what is in it.

The store is that of a node that has never been in a group, but for its log: it has no term of its own and no vote
(`StoredHardState.founding`), so that a majority of such nodes begins a group, and one of them among others follows
(raft/recovery.py). Its members are those of the node's settings, whatever the log says, and its lineage is one that no
node of the old group has. Term and vote are written last: a store that is not whole is refused at its start.
"""

from broker.assembly import store_options_of
from broker.backups.directory import Backup
from broker.backups.errors import BackupError
from broker.replica.internal_records import COMMAND, read_internal
from broker.replica.members_file import MembersFile
from broker.settings.tables import Settings
from broker.state.commands import decode_command, deleted_topics
from broker.state.release import Release
from broker.state.snapshot import with_addresses
from log.files.disk import Disk
from log.notes.hard_state import HardStateFile, StoredHardState
from log.notes.snapshot import Snapshot
from log.notes.store_format import FIRST_FORMAT
from log.options import StoreOptions
from log.store import Store

_FLUSH_BYTES = 64 << 20


def check_settings(backup: Backup, settings: Settings) -> None:
    """Checks that the backup can become the store of a node with these settings. Raises BackupError."""
    manifest = backup.manifest
    if settings.node.group != manifest.group:
        raise BackupError(
            f"the backup is of group {manifest.group!r}, and node.group is {settings.node.group!r}"
        )
    if settings.storage.data_file_bytes != manifest.data_file_bytes:
        raise BackupError(
            f"storage.data_file_bytes is {settings.storage.data_file_bytes}; in the group of the backup it was "
            f"{manifest.data_file_bytes}, and must be again"
        )
    if len(settings.raft.peers) > 1 and not settings.raft.lineage:
        raise BackupError(
            "raft.lineage is not set: a restored group needs a name of its own, the same in the settings of all its "
            "nodes and never used before (docs/backup.md), so that no node of the old group is taken for one of it"
        )
    if settings.raft.join:
        raise BackupError("raft.join is true: a node that joins gets everything from its group")


def restore(
    backup: Backup,
    disk: Disk,
    settings: Settings,
    release: Release,
    wall_ms: int,
    store_options: StoreOptions | None = None,
) -> None:
    """Makes the store in `disk`, which must be empty. `store_options` replaces what follows from `settings`.

    Checks the whole backup before it writes anything. Raises BackupError, `log.errors.LogFault`, OSError.
    """
    check_settings(backup, settings)
    found = disk.list(".")
    if found:
        raise BackupError(
            f"{settings.storage.path} is not empty, it holds {', '.join(found[:5])}: nothing was changed"
        )
    # A backup that is damaged is to be noticed before there is half a store.
    backup.verify()
    manifest, (data, state) = backup.manifest, backup.state()
    peers = settings.raft.peers or {settings.node.id: ""}
    options = store_options or store_options_of(settings)
    store, _ = Store.open(disk, options, wall_ms, release.newest_format)
    try:
        snapshot = Snapshot(manifest.last_index, with_addresses(data, peers))
        store.reset(
            manifest.first_index, manifest.first_position, manifest.base_term, state.queue_ends, snapshot
        )
        unflushed = 0
        for entries in backup.entries():
            store.log.append_range(entries)
            unflushed += len(entries.data)
            if unflushed >= _FLUSH_BYTES:
                store.flush()
                unflushed = 0
        store.flush()
        _build_queues(store, manifest.last_index, release, wall_ms)
        MembersFile(disk, peers, lineage=settings.raft.lineage).found()
        if manifest.format > FIRST_FORMAT:
            store.raise_format(manifest.format, release.name)
    except BaseException:
        store.abandon()
        raise
    # A node starts on no store without term and vote: so they come when all else is durable.
    store.close(manifest.last_index)
    term = StoredHardState(manifest.last_term, founding=True)
    HardStateFile(disk, f"{options.dledger_directory}/currterm").write(term)


def _build_queues(store: Store, last_index: int, release: Release, wall_ms: int) -> None:
    """Makes the queues of all entries, as a replica does that applies them (`AppliedState.apply`)."""
    while store.dispatched_index < last_index:
        for _, record in store.dispatch(last_index, wall_ms, stop_at_internal=True).internal:
            internal = read_internal(record)
            if internal is not None and internal[0] == COMMAND:
                for topic in deleted_topics(decode_command(internal[1], release.newest_format)):
                    store.remove_topic(topic)

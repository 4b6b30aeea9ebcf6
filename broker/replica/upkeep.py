"""A replica's work beside the path of a message, done by worker threads. Most of it makes its next start short.

- checkpoints: queues and index files flushed and noted every few seconds, so that a start has little to build again;
- the snapshot of a leader whose log begins behind the end of this one, with what else will replace this store's files;
- the space of files that were removed, freed in steps;
- snapshots of the applied state, behind which the log's head may be deleted. One is kept here until all entries that it
  reflects are durable: it must hold nothing that a power failure could still take. Suppose that it did, and that a
  majority lost those entries. The group would then put others in their place, and this node would take the commands in
  them for applied, although it has applied those of the lost ones.

If there is no space for them they wait for it: that is no reason to stop. A leader sends its snapshot again.
"""

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Final

import structlog

from broker.remoting.pieces import Pieces
from broker.replica.disk_space import LOOK_NS, UPKEEP_PAUSE_NS, DiskSpace
from broker.requests.deadline import NEVER
from broker.state.release import Release
from log.errors import DiskFullError
from log.files.removal import RemovalJob
from log.notes.checkpoint import CheckpointJob
from log.notes.incoming import Incoming
from log.notes.snapshot import SnapshotJob
from log.store import Store
from raft.core import Raft

log = structlog.get_logger("trivet.replica")

CHECKPOINT_INTERVAL_NS: Final = 3_000_000_000
"""The time from one checkpoint of queues and index files to the next."""

REMOVED_FILES: Final = 1_024
"""Files whose space one job frees: some ten milliseconds."""
REMOVED_BYTES: Final = 256 << 20
"""The bytes that one job frees at most, or one larger file: flushes may have to wait for the file system that long."""
REMOVAL_PAUSE_NS: Final = 20_000_000
"""The time from one such job to the next, which begins in a turn that others have wanted."""
REMOVAL_FAILED_NS: Final = 60_000_000_000
"""The time to the next such job behind one that has failed."""


@dataclass(slots=True, eq=False)
class Upkeep:
    """Checkpoints and snapshots of one replica."""

    _store: Store
    _raft: Raft
    _disk_space: DiskSpace
    now_ns: InitVar[int]
    _release: Release
    _checkpoint_due_ns: int = field(init=False)
    checkpointed_index: int = field(init=False)
    """The dispatched index that the last checkpoint noted; while it is the newest, no checkpoint is due."""
    waiting_snapshot: tuple[int, Pieces] | None = None
    """A snapshot that is written when all that it reflects, up to this entry, is durable here. It stays until it is
    written, and no other takes its place: the job that comes back is taken for that of the one which is here."""
    encoded_ns: int = 0
    """The time that it took to encode `waiting_snapshot`."""
    snapshot_is_out: bool = False
    """The job that writes `waiting_snapshot`, or a leader's, has not come back: one of them at a time, as both
    write the same file."""
    _incoming: Incoming | None = None
    """A leader's snapshot that waits to be written, or is being written."""
    _incoming_written: Callable[[], None] = lambda: None
    """To be called when it is."""
    _removal_due_ns: int = 0
    _no_space_until_ns: int = 0
    _incoming_space_due_ns: int = 0

    def __post_init__(self, now_ns: int) -> None:
        self._checkpoint_due_ns = now_ns + CHECKPOINT_INTERVAL_NS
        self.checkpointed_index = self._store.dispatched_index

    def due_ns(self) -> int:
        """Returns when `checkpoint_job` is to be asked again; NEVER if a flush or a dispatch must come first."""
        store = self._store
        # One was begun, and waits for the log's flush, or for room.
        if store.checkpoints.waits:
            return NEVER if store.checkpoints.awaits_flush else self._no_space_until_ns
        if store.dispatched_index == self.checkpointed_index:
            return NEVER
        return max(self._checkpoint_due_ns, self._no_space_until_ns)

    def checkpoint_job(self, now_ns: int) -> CheckpointJob | None:
        """Returns a checkpoint if it can be written, else None; to be asked from `due_ns` on.

        A worker thread runs it, and `checkpointed` takes it back.
        """
        assert now_ns >= self.due_ns(), "nothing is to be noted yet"
        store = self._store
        # One that waits for a flush, or for space, is the one that was begun then.
        is_new = not store.checkpoints.waits
        if is_new:
            self._checkpoint_due_ns = now_ns + CHECKPOINT_INTERVAL_NS
        try:
            job = store.checkpoints.job(self._raft.commit_index)
        except DiskFullError as error:
            # Nothing was noted: the next one is due although nothing may be dispatched until then.
            self.checkpointed_index = -1
            self._lacks_space("checkpoint", error, now_ns)
            return None
        # Unless none was drawn up, as the last one is still out: what was dispatched since is noted by the next one.
        if is_new and (job is not None or store.checkpoints.waits):
            self.checkpointed_index = store.dispatched_index
        return job

    def checkpointed(self, job: CheckpointJob, now_ns: int) -> None:
        """Takes back a checkpoint that has run without an error; one that found no space is written later."""
        self._store.checkpoints.done(job)
        if job.refused is not None:
            self._lacks_space("checkpoint", job.refused, now_ns)

    def keep_snapshot(self, applied_index: int, state: Pieces, took_ns: int) -> None:
        """Keeps a snapshot, which took so long to encode, until it can be written."""
        assert self.waiting_snapshot is None, f"one waits already, that of entry {self.waiting_snapshot[0]}"
        self.waiting_snapshot = applied_index, state
        self.encoded_ns = took_ns

    def snapshot_due_ns(self) -> int:
        """Returns when `snapshot_job` is to be asked again; NEVER if a flush must come first, or the job come back.

        A leader's goes first: where it is taken, this node's own is of no use any more.
        """
        if self.waiting_snapshot is None or self.snapshot_is_out or self._incoming is not None:
            return NEVER
        # It must hold nothing that a power failure could still take out of the log (the module says why).
        is_durable = self.waiting_snapshot[0] <= self._store.log.durable_index
        return self._no_space_until_ns if is_durable else NEVER

    def snapshot_job(self) -> SnapshotJob:
        """Returns the job that writes `waiting_snapshot`; to be asked from `snapshot_due_ns` on.

        A worker thread runs it, and `snapshot_saved` takes it back.
        """
        assert self.waiting_snapshot is not None, "there is one when it is due"
        applied_index, state = self.waiting_snapshot
        self._begin_snapshot()
        return self._store.snapshot.job(applied_index, state.all())

    def _begin_snapshot(self) -> None:
        assert not self.snapshot_is_out, "two jobs would write the snapshot's file"
        self.snapshot_is_out = True

    def snapshot_saved(self, job: SnapshotJob, now_ns: int) -> None:
        """Takes back the job of this node's snapshot, which has run without an error; without space it is written
        later."""
        self.snapshot_is_out = False
        self._store.snapshot.done(job)
        if job.refused is None:
            self.waiting_snapshot = None
        else:
            self._lacks_space("snapshot", job.refused, now_ns)

    def write_incoming(self, incoming: Incoming, written: Callable[[], None]) -> None:
        """Has a leader's snapshot written. `written` is called when it is, and not at all if there is no space for it.

        None of this node's own snapshots is on its way to the disk at that time: it would come behind the leader's.
        """
        assert self._incoming is None, "one is taken at a time"
        self._incoming = incoming
        self._incoming_written = written

    @property
    def writes_snapshot(self) -> bool:
        """True while a snapshot is on its way to the disk, or a leader's waits for that."""
        return self.snapshot_is_out or self.takes_snapshot

    @property
    def takes_snapshot(self) -> bool:
        """True while a leader's snapshot is on its way to the disk, or waits for that."""
        return self._incoming is not None

    def incoming_due_ns(self) -> int:
        """Returns when `incoming_job` is to be asked for; NEVER if none waits, or one of these jobs is out."""
        return NEVER if self._incoming is None or self.snapshot_is_out else self._incoming_space_due_ns

    def incoming_job(self) -> Incoming:
        """Returns the job that writes a leader's snapshot; to be asked from `incoming_due_ns` on.

        A worker thread runs it, and `incoming_saved` takes it back.
        """
        assert self._incoming is not None, "one waits when it is due"
        self._begin_snapshot()
        return self._incoming

    def incoming_saved(self, job: Incoming, now_ns: int) -> None:
        """Takes back the job of a leader's snapshot, which has run without an error: it is taken now, or given up for
        want of space."""
        self.snapshot_is_out = False
        # First: it may take the place of log and state within the call, when nothing is on its way to the snapshot's
        # file.
        self._incoming = None
        if job.refused is None:
            self._incoming_written()
        else:
            # No entry can be taken until then, so it is tried again as soon as for those.
            self._incoming_space_due_ns = now_ns + LOOK_NS
            self._disk_space.for_incoming(job.refused, now_ns)
        # Files that were written and not taken go: a leader sends its snapshot again.
        self._store.discard_incoming()

    def rare_due_ns(self) -> int:
        """Returns when the first of a snapshot's job, of a leader's, and of a removal is to be asked for, or NEVER.

        It is asked in each turn, and in most of them nothing of these is there.
        """
        if self.waiting_snapshot is None and self._incoming is None and not self._store.has_discarded:
            return NEVER
        return min(self.snapshot_due_ns(), self.incoming_due_ns(), self.removal_due_ns())

    def removal_due_ns(self) -> int:
        """Returns when `removal_job` is to be asked for; NEVER if nothing is to be removed, or the job is out."""
        return self._removal_due_ns if self._store.has_discarded else NEVER

    def removal_job(self) -> RemovalJob:
        """Returns a job that frees some of the space of what was removed; to be asked from `removal_due_ns` on.

        A worker thread runs it, and `removed` takes it back.
        """
        self._removal_due_ns = NEVER
        return self._store.removal_job(REMOVED_FILES, REMOVED_BYTES)

    def removed(self, job: RemovalJob, now_ns: int) -> None:
        """Takes back a removal that has run, and sets the time of the next one."""
        self._removal_due_ns = now_ns + REMOVAL_PAUSE_NS
        if job.failure is not None:
            self._removal_due_ns = now_ns + REMOVAL_FAILED_NS
            log.warning("removed files still take up space", error=str(job.failure))

    def write_waiting_snapshot(self, now_ns: int) -> None:
        """Writes `waiting_snapshot` in this call, for a stop, if all that it reflects is durable and there is space.

        Raises `log.errors.DiskError`.
        """
        if now_ns < self.snapshot_due_ns():
            return
        job = self.snapshot_job()
        job.run()
        self.snapshot_saved(job, now_ns)

    def note_format(self, number: int, now_ns: int) -> None:
        """Notes the group's format beside the store, for the next start, which may be that of an older release.

        Without space the next start notes it: by then an older release would stop at the first snapshot or command
        that it cannot read. Raises `log.errors.DiskError`.
        """
        if number > self._store.format:
            try:
                self._store.raise_format(number, self._release.name)
            except DiskFullError as error:
                self._lacks_space("format", error, now_ns)
            else:
                log.info("format raised", format=number)

    def stopping(self) -> None:
        """Prepares the stop: what waits for space is tried once more, and the last snapshot is to be a new one.

        A job that is still out has failed.
        """
        self.waiting_snapshot = self._incoming = None
        self.snapshot_is_out = False
        self._no_space_until_ns = 0

    def _lacks_space(self, what: str, error: DiskFullError, now_ns: int) -> None:
        self._no_space_until_ns = now_ns + UPKEEP_PAUSE_NS
        self._disk_space.for_upkeep(what, error, now_ns)

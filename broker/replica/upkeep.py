"""What a replica does beside the path of a message: it makes files ready, and its next start short.

Three things, none of which anybody waits for:

- preparation: files and pages ahead of the writer, made in a worker thread;
- checkpoints: queues and index files flushed and noted every few seconds, in a worker thread, so that a start has
  little to build again;
- snapshots of the applied state, behind which the log's head may be deleted. One is kept here until the log is durable
  as far as it reflects it: it must hold nothing that a power failure could still take. If a majority lost that, too,
  the group would go on with other entries in that place, and this node would hold the commands of those for applied.

If there is no space for the last two they wait for it: that is no reason to stop.
"""

from typing import Final

import structlog

from log.checkpoint import CheckpointJob
from log.errors import DiskFullError
from log.snapshot import Snapshot
from log.store import Store
from log.tail import PrepareJob
from raft.core import Raft

log = structlog.get_logger("trivet.replica")

CHECKPOINT_INTERVAL_NS: Final = 3_000_000_000
"""How often queues and index files are flushed and noted."""

NO_SPACE_PAUSE_NS: Final = 10_000_000_000
"""After which what found no space on the disk is tried again; retention looks as often."""


class Upkeep:
    """Preparation, checkpoints and snapshots of one replica."""

    __slots__ = (
        "_no_space_until_ns",
        "_preparing",
        "_raft",
        "_store",
        "checkpoint_due_ns",
        "checkpointed_index",
        "waiting_snapshot",
    )

    def __init__(self, store: Store, raft: Raft, now_ns: int) -> None:
        self._store = store
        self._raft = raft
        self._preparing = False
        self.checkpoint_due_ns = now_ns + CHECKPOINT_INTERVAL_NS
        self.checkpointed_index = store.dispatched_index
        """Up to where what is dispatched was noted; while it is all, no checkpoint is due."""
        self.waiting_snapshot: Snapshot | None = None
        """Written when all that it reflects is durable here."""
        self._no_space_until_ns = 0

    def prepare_job(self) -> PrepareJob | None:
        """Files and pages to make ready ahead of the writer; run it in a worker thread, report with `prepared`."""
        if self._preparing:
            return None
        job = self._store.log.prepare_job()
        self._preparing = job is not None
        return job

    def prepared(self, job: PrepareJob) -> None:
        """The job has run; a full disk shows again, as an error, when the writer gets there."""
        self._preparing = False
        self._store.log.prepared(job)

    def checkpoint_job(self, now_ns: int) -> CheckpointJob | None:
        """From time to time, what makes the next start short; run it in a worker thread, report `checkpointed`."""
        if now_ns < self._no_space_until_ns:
            return None
        store = self._store
        if not store.checkpoint_waits:
            if now_ns < self.checkpoint_due_ns or store.dispatched_index == self.checkpointed_index:
                return None
            self.checkpoint_due_ns = now_ns + CHECKPOINT_INTERVAL_NS
            self.checkpointed_index = store.dispatched_index
        try:
            return store.checkpoint_job(self._raft.commit_index)
        except DiskFullError as error:
            self.checkpointed_index = -1
            self._lacks_space(error, now_ns)
            return None

    def checkpointed(self, job: CheckpointJob, now_ns: int) -> None:
        """The job has run without an error."""
        self._store.checkpointed(job)
        if job.refused is not None:
            self._lacks_space(job.refused, now_ns)

    def write_snapshot(self, now_ns: int) -> None:
        """Writes `waiting_snapshot` durably, if all that it reflects is durable; to be asked after each flush."""
        snapshot = self.waiting_snapshot
        if (
            snapshot is not None
            and snapshot.applied_index <= self._store.log.durable_index
            and now_ns >= self._no_space_until_ns
        ):
            try:
                self._store.save_snapshot(snapshot.applied_index, snapshot.data)
            except DiskFullError as error:
                self._lacks_space(error, now_ns)
            else:
                self.waiting_snapshot = None

    def stopping(self) -> None:
        """What waits for space is tried once more, and the last snapshot is a new one."""
        self.waiting_snapshot = None
        self._no_space_until_ns = 0

    def _lacks_space(self, error: DiskFullError, now_ns: int) -> None:
        self._no_space_until_ns = now_ns + NO_SPACE_PAUSE_NS
        log.warning("no space on the disk, tried again later", error=str(error))

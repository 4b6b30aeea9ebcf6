"""When this node counts an entry as held: the contract of ``flush = "sync"`` and ``flush = "async"``.

sync    once a flush that began after the entry was written has come back: it survives a power failure
async   once it is in the mapping, that is in the page cache: it survives this process; flushed every so often

Raft hears of it as `persisted`, and acknowledges, or counts this node towards the majority, only then. After a flush
that failed the node must stop: what was lost is unknown.
"""

import structlog

from broker.replica.recovering import RecoveringFile
from log.entry_log import EntryLog, FlushJob
from raft.core import Raft
from raft.effects import RecoveryChanged

log = structlog.get_logger("trivet.replica")


class Durability:
    """The flushes of one replica's log, one at a time, and what they make raft sure of."""

    __slots__ = (
        "_generation",
        "_interval_ns",
        "_log",
        "_raft",
        "_recovering",
        "_written_index",
        "flush_due_ns",
        "flushed_position",
        "flushing",
        "sync",
    )

    def __init__(
        self,
        log: EntryLog,
        raft: Raft,
        recovering: RecoveringFile,
        *,
        sync: bool,
        interval_ns: int,
        now_ns: int,
    ) -> None:
        """`interval_ns` lies between the flushes of asynchronous mode."""
        self.sync = sync
        self._log = log
        self._raft = raft
        self._recovering = recovering
        self._interval_ns = interval_ns
        self.flush_due_ns = now_ns + interval_ns
        """When the next flush of asynchronous mode may begin, if there is anything to flush."""
        self.flushing = False
        self._generation = 0
        """Raft's, of the log as the flush that is out found it."""
        self.flushed_position = log.end_position
        """The log's end when the newest flush began."""
        self._written_index = -2
        """Up to where the log was acknowledged from the page cache."""

    def acknowledge_written(self, now_ns: int) -> None:
        """In asynchronous mode: what is in the log counts as held. Raft may have effects then."""
        last_index = self._log.last_index
        if last_index == self._written_index and last_index == self._raft.persisted_index:
            return
        self._written_index = last_index
        self._log.write_back()
        self._recovering.acknowledged(last_index)
        self._raft.persisted(last_index, self._raft.log_generation, now_ns)

    def flush_job(self, now_ns: int) -> FlushJob | None:
        """What is to be flushed now; run it in a worker thread and report with `Replica.flushed`. One at a time."""
        if self.flushing:
            return None
        if not self.sync and now_ns < self.flush_due_ns:
            return None
        self.flush_due_ns = now_ns + self._interval_ns
        self.flushed_position = self._log.end_position
        job = self._log.flush_job()
        if job is not None:
            self.flushing = True
            self._generation = self._raft.log_generation
        return job

    def flushed(self, job: FlushJob, now_ns: int) -> None:
        """The job has run without an error. In synchronous mode raft may have effects then."""
        self.flushing = False
        durable = self._log.flushed(job)
        if self.sync:
            self._raft.persisted(durable, self._generation, now_ns)

    def recovery_changed(self, effect: RecoveryChanged) -> None:
        """What this node lacks of what it ever counted as held is other than before. Raises `log.errors.DiskError`."""
        self._recovering.keep(effect.loss)
        if effect.loss is not None:
            log.info("recovering", lost=effect.loss.value)
        elif self._raft.term == 0:
            log.info("the group is new")
        else:
            log.info("recovered: this node holds what it ever acknowledged", term=self._raft.term)

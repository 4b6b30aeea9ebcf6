"""The contract of ``flush = "sync"`` and ``flush = "async"``: each says from which moment this node holds an entry.

sync    a flush that began after the entry was written has come back: the entry survives a power failure
async   the entry is in the mapping, that is in the page cache: it survives this process, and is flushed now and then

Raft hears of it as `persisted`, and acknowledges, or counts this node towards the majority, only then. After a flush
that failed the node must stop: nobody knows what was lost.
"""

from typing import Final

import structlog

from broker.replica.recovering_file import RecoveringFile
from broker.requests.deadline import NEVER
from log.entries.entry_log import EntryLog
from log.entries.flushes import FlushJob
from raft.core import Raft
from raft.effects import RecoveryChanged

_NOTE_NS: Final = 100_000_000
"""The time after a flush by which the note of it is flushed, too, if nothing else had to be written meanwhile."""

log = structlog.get_logger("trivet.replica")


class Durability:
    """The flushes of one replica's log, one at a time, and what they make raft sure of."""

    __slots__ = (
        "_generation",
        "_interval_ns",
        "_log",
        "_note_due_ns",
        "_raft",
        "_recovering",
        "flush_due_ns",
        "flushing",
        "sync",
        "written_index",
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
        self.flush_due_ns = 0 if sync else now_ns + interval_ns
        """The time from which on `flush_job` may give one: in asynchronous mode one interval behind the last."""
        self.flushing = False
        self._generation = 0
        """Raft's generation of the log when the flush that is out began; meaningful only while `flushing`."""
        self._note_due_ns = now_ns + _NOTE_NS
        """The time at which the log's note of how far it is durable is to be flushed; see
        `log.entries.durable_note`."""
        self.written_index = -2
        """Asynchronous mode only: raft knows that all up to this entry is held. `cut` makes it -2."""

    def acknowledge_written(self, now_ns: int) -> None:
        """Asynchronous mode only: tells raft that it holds all that is in the log. Raft may have effects then.

        Wanted when the log's last index is another than `written_index`. Raises `log.errors.DiskError`.
        """
        self.written_index = last_index = self._log.last_index
        # In this order: written back, then noted as acknowledged, and only then acknowledged.
        self._log.flushes.write_back()
        self._recovering.acknowledged(last_index)
        self._raft.persisted(last_index, self._raft.log_generation, now_ns)

    def cut(self) -> None:
        """Notes that entries were cut off the log's end: raft is told of what takes their place, also where that ends
        with the same index."""
        self.written_index = -2

    def due_ns(self) -> int:
        """Returns when `flush_job` is to be asked again; NEVER if something must be written first, or come back.

        In synchronous mode it is asked whenever bytes are sent: a later time is of use for the note alone.
        """
        if self.flushing:
            return NEVER
        if not self._log.flushes.log_waits:
            return max(self._note_due_ns, self.flush_due_ns)
        return NEVER if self.sync else self.flush_due_ns

    def flush_job(self, now_ns: int) -> FlushJob | None:
        """Returns the flush that is due now, None if none is; one at a time is out.

        A worker thread runs it, and `Replica.flushed` takes it back. Raises `log.errors.DiskError`.
        """
        if self.flushing or now_ns < self.flush_due_ns:
            return None
        if not self.sync:
            self.flush_due_ns = now_ns + self._interval_ns
        job = self._log.flushes.job()
        # The note of how far flushes went has a flush of its own when the log rests. Until then a power failure may
        # leave an older one, which says less and never too much (`log.entries.durable_note`).
        if job is None and now_ns >= self._note_due_ns:
            self._note_due_ns = NEVER
            job = self._log.flushes.note_job()
        if job is not None:
            self.flushing = True
            # What is cut and written anew while the job is out it does not cover (raft/durability.py).
            self._generation = self._raft.log_generation
        return job

    def flushed(self, job: FlushJob, now_ns: int) -> None:
        """Takes back a job that has run without an error. In synchronous mode raft hears how far the log is durable,
        and may have effects then."""
        assert self.flushing, "a flush comes back once"
        self.flushing = False
        durable = self._log.flushes.done(job)
        self._note_due_ns = now_ns + _NOTE_NS if self._log.flushes.note_waits else NEVER
        if self.sync:
            self._raft.persisted(durable, self._generation, now_ns)

    def recovery_changed(self, effect: RecoveryChanged) -> None:
        """Saves what this node may lack of all that it has promised, or that it lacks nothing any more.

        Raises `log.errors.DiskError`.
        """
        self._recovering.keep(effect.loss)
        if effect.loss is not None:
            log.info("recovering", lost=effect.loss.value)
        elif not self._raft.has_history:
            log.info("the group is new")
        else:
            log.info("recovered: this node holds what it ever acknowledged", term=self._raft.term)

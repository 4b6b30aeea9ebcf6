"""The work that a replica gives to threads: flushes, files made ready, checkpoints, snapshots (a leader's, too), cold
bytes brought into memory, old files read for damage, what was put back in its place made durable, and the space of
removed files freed.

Each of the eight is out at most once at a time. The code that runs a node takes jobs from `Jobs` and calls `Job.run` in
a thread (or pretends to, as the simulator does) while the node goes on. Then it calls `Jobs.done`, in the node's own
thread and behind `Node.begin`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from broker.replica.repairs import RepairFlush
from broker.replica.replica import Replica
from broker.replica.scrubbing import Scrub
from broker.requests.deadline import NEVER
from broker.statistics.histogram import Histogram
from broker.statistics.timings import Timings
from log.entries.cold_reads import LoadJob
from log.entries.flushes import FlushJob
from log.entries.tail import PrepareJob
from log.files.removal import RemovalJob
from log.notes.checkpoint import CheckpointJob
from log.notes.incoming import Incoming
from log.notes.snapshot import SnapshotJob

OUT_AT_ONCE: Final = 8
"""The most jobs that are out at a time."""


class Job(NamedTuple):
    """One piece of work for a thread."""

    what: str
    """In a word, for those who are told that it was slow."""
    run: Callable[[], None]
    """The work itself, in a thread. Raises `log.errors.DiskError` where the disk fails."""
    done: Callable[[], None]
    """Takes the result over, in the node's own thread; `Jobs.done` calls it."""
    failure_stops_node: bool
    """False for files made ready, which the writer makes itself then, with its own error, and for the removal of files.
    After the failure of any other nobody knows what the disk holds."""
    wants_turn: bool
    """True if somebody waits for what `done` makes possible. The other jobs give no reason for a turn: a preparation
    that fails is wanted again in every turn, and must not bring about the next one itself."""


class _Work(Protocol):
    def run(self) -> None: ...


Work = TypeVar("Work", bound=_Work)


@dataclass(frozen=True, slots=True)
class _Kind(Generic[Work]):
    """A kind of job, for whichever replica; its fields are those of `Job`."""

    what: str
    done: Callable[[Replica, Work], None]
    histogram: Callable[[Timings], Histogram] | None
    """Counts the time in the thread; None for work that keeps nothing and nobody waiting."""
    failure_stops_node: bool
    wants_turn: bool


_FLUSH: Final[_Kind[FlushJob]] = _Kind(
    "log",
    lambda replica, job: replica.flushed(job, replica.time.now_ns),
    lambda timings: timings.flush,
    failure_stops_node=True,
    wants_turn=True,
)
_PREPARATION: Final[_Kind[PrepareJob]] = _Kind(
    "files made ready",
    lambda replica, job: replica.store.log.prepared(job),
    lambda timings: timings.prepare,
    failure_stops_node=False,
    wants_turn=False,
)
_CHECKPOINT: Final[_Kind[CheckpointJob]] = _Kind(
    "checkpoint",
    lambda replica, job: replica.upkeep.checkpointed(job, replica.time.now_ns),
    lambda timings: timings.checkpoint,
    failure_stops_node=True,
    wants_turn=False,
)
_SNAPSHOT: Final[_Kind[SnapshotJob]] = _Kind(
    "snapshot",
    lambda replica, job: replica.upkeep.snapshot_saved(job, replica.time.now_ns),
    lambda timings: timings.snapshot,
    failure_stops_node=True,
    wants_turn=False,
)
_INCOMING: Final[_Kind[Incoming]] = _Kind(
    "snapshot of the leader",
    lambda replica, job: replica.upkeep.incoming_saved(job, replica.time.now_ns),
    lambda timings: timings.snapshot,
    failure_stops_node=True,
    wants_turn=True,
)
_REMOVAL: Final[_Kind[RemovalJob]] = _Kind(
    "removal",
    lambda replica, job: replica.upkeep.removed(job, replica.time.now_ns),
    None,
    failure_stops_node=False,
    wants_turn=False,
)
_LOAD: Final[_Kind[LoadJob]] = _Kind(
    "cold reads",
    lambda replica, job: replica.loads.loaded(job, replica.time.now_ns),
    lambda timings: timings.load,
    failure_stops_node=True,
    wants_turn=True,
)
_SCRUB: Final[_Kind[Scrub]] = _Kind(
    "scrubbing",
    lambda replica, job: replica.scrubbing.done(job, replica.time.now_ns, replica.time.group_ms),
    lambda timings: timings.scrub,
    failure_stops_node=True,
    wants_turn=True,
)
_REPAIR: Final[_Kind[RepairFlush]] = _Kind(
    "repair",
    lambda replica, job: replica.repairs.flushed(job),
    lambda timings: timings.repair,
    failure_stops_node=True,
    wants_turn=True,
)


class Jobs:
    """The jobs of one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.out = 0
        """The number of jobs that were taken and have not come back."""
        self.is_closed = False
        """True from the stop on: no job begins any more."""
        self.due_ns = NEVER
        """The time to ask for `others` at the latest, if nothing happens before; NEVER while none becomes due."""

    def flush(self) -> Job | None:
        """Returns the flush that is to begin now, None if none is.

        Acknowledgements wait for it: ask whenever bytes are sent. Raises `log.errors.DiskError`.
        """
        replica = self._replica
        if self.is_closed or (flush := replica.durability.flush_job(replica.time.now_ns)) is None:
            return None
        self.out += 1
        return self._job(_FLUSH, flush)

    def others(self) -> list[Job]:
        """Returns all other jobs that are to begin now, and sets `due_ns`; ask at the end of each turn."""
        replica = self._replica
        log, upkeep, now_ns = replica.store.log, replica.upkeep, replica.time.now_ns
        jobs: list[Job] = []
        self.due_ns = NEVER
        if self.is_closed:
            return jobs
        # Each of the parts gives a job only when something is due and its last job has come back: most turns begin
        # none, and asking costs little.
        if (preparation := log.prepare_job()) is not None:
            jobs.append(self._job(_PREPARATION, preparation))
        upkeep_due_ns = upkeep.due_ns()
        if now_ns >= upkeep_due_ns:
            checkpoint = upkeep.checkpoint_job(now_ns)
            upkeep_due_ns = upkeep.due_ns()
            if checkpoint is not None:
                jobs.append(self._job(_CHECKPOINT, checkpoint))
        rare_due_ns = upkeep.rare_due_ns()
        if now_ns >= rare_due_ns:
            jobs += self._rare(now_ns)
            rare_due_ns = upkeep.rare_due_ns()
        if replica.loads.wanted and (load := replica.loads.job()) is not None:
            jobs.append(self._job(_LOAD, load))
        scrubbing, repairs = replica.scrubbing, replica.repairs
        if now_ns >= scrubbing.due_ns and (scrub := scrubbing.job(now_ns)) is not None:
            jobs.append(self._job(_SCRUB, scrub))
        if repairs.wants_flush and (repair := repairs.job()) is not None:
            jobs.append(self._job(_REPAIR, repair))
        self.due_ns = min(replica.durability.due_ns(), upkeep_due_ns, rare_due_ns, scrubbing.wakes_ns)
        self.out += len(jobs)
        return jobs

    def _rare(self, now_ns: int) -> Iterator[Job]:
        """Yields the jobs of `Upkeep.rare_due_ns` that are due. A leader's snapshot keeps this node's own waiting."""
        upkeep = self._replica.upkeep
        if now_ns >= upkeep.incoming_due_ns():
            yield self._job(_INCOMING, upkeep.incoming_job())
        if now_ns >= upkeep.snapshot_due_ns():
            yield self._job(_SNAPSHOT, upkeep.snapshot_job(), upkeep.encoded_ns)
        if now_ns >= upkeep.removal_due_ns():
            yield self._job(_REMOVAL, upkeep.removal_job())

    def _job(self, kind: _Kind[Work], work: Work, before_ns: int = 0) -> Job:
        """Returns the job. Its time in the thread is counted when it comes back, with `before_ns` that came before."""
        replica, stopwatch, histogram = self._replica, self._replica.timings.stopwatch, kind.histogram
        took_ns = 0

        def run_timed() -> None:
            nonlocal took_ns
            began_ns = stopwatch()
            # One that fails has taken its time, too: it comes back where its failure stops no node.
            try:
                work.run()
            finally:
                took_ns = stopwatch() - began_ns

        def count_and_take_over() -> None:
            if histogram is not None:
                histogram(replica.timings).observe(before_ns + took_ns)
                replica.slow.flushed(kind.what, took_ns, replica.time.now_ns)
            kind.done(replica, work)

        return Job(kind.what, run_timed, count_and_take_over, kind.failure_stops_node, kind.wants_turn)

    def done(self, job: Job) -> None:
        """Takes back a job that has run, without an error or with one that stops no node."""
        assert self.out > 0, "only jobs that are out come back"
        self.out -= 1
        job.done()

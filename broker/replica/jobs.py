"""The work that a replica gives to threads: flushes, files made ready, checkpoints, snapshots (a leader's, too), cold
bytes brought into memory, old files read for damage, what was put back in its place made durable, and the space of
removed files freed.

Each of the eight is out at most once at a time. The code that runs a node takes jobs from `Jobs` and calls `Job.run` in
a thread (or pretends to, as the simulator does) while the node goes on. Then it calls `Jobs.done`, in the node's own
thread and behind `Node.begin`.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from broker.replica.repairs import RepairFlush
from broker.replica.replica import Replica
from broker.replica.scrubbing import Scrub
from broker.requests.deadline import NEVER
from broker.statistics.histogram import Histogram
from log.checkpoint import CheckpointJob
from log.cold_reads import LoadJob
from log.incoming import Incoming
from log.removal import RemovalJob
from log.snapshot import SnapshotJob
from log.tail import PrepareJob


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


class Jobs:
    """The jobs of one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._timings = replica.timings
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
        durability, now_ns = replica.durability, replica.time.now_ns
        if self.is_closed or durability.flushing or now_ns < durability.flush_due_ns:
            return None
        flush = durability.flush_job(now_ns)
        if flush is None:
            return None
        self.out += 1
        return self._timed(
            self._timings.flush,
            "log",
            flush.run,
            lambda: replica.flushed(flush, replica.time.now_ns),
            failure_stops_node=True,
            wants_turn=True,
        )

    def others(self) -> list[Job]:
        """Returns all other jobs that are to begin now, and sets `due_ns`; ask at the end of each turn."""
        replica = self._replica
        log, upkeep, now_ns = replica.store.log, replica.upkeep, replica.time.now_ns
        jobs: list[Job] = []
        self.due_ns = NEVER
        if self.is_closed:
            return jobs
        # Each of the parts gives a job only when something is due and its last job has come back. Most turns begin
        # none: what surrounds a job is made in a method of its own, so that asking costs little.
        if (preparation := log.prepare_job()) is not None:
            jobs.append(self._preparation(preparation))
        upkeep_due_ns = upkeep.due_ns()
        if now_ns >= upkeep_due_ns:
            checkpoint = upkeep.checkpoint_job(now_ns)
            upkeep_due_ns = upkeep.due_ns()
            if checkpoint is not None:
                jobs.append(self._checkpoint(checkpoint))
        rare_due_ns = upkeep.rare_due_ns()
        if now_ns >= rare_due_ns:
            jobs += self._rare(now_ns)
            rare_due_ns = upkeep.rare_due_ns()
        if replica.loads.wanted and (load := replica.loads.job()) is not None:
            jobs.append(self._load(load))
        scrubbing, repairs = replica.scrubbing, replica.repairs
        if now_ns >= scrubbing.due_ns and (scrub := scrubbing.job(now_ns)) is not None:
            jobs.append(self._scrub(scrub))
        if repairs.wants_flush and (repair := repairs.job()) is not None:
            jobs.append(self._repair(repair))
        self.due_ns = min(replica.durability.due_ns(), upkeep_due_ns, rare_due_ns, scrubbing.wakes_ns)
        self.out += len(jobs)
        return jobs

    def _rare(self, now_ns: int) -> Iterator[Job]:
        """Yields the jobs of `Upkeep.rare_due_ns` that are due. A leader's snapshot keeps this node's own waiting."""
        upkeep = self._replica.upkeep
        if now_ns >= upkeep.incoming_due_ns():
            yield self._incoming(upkeep.incoming_job())
        if now_ns >= upkeep.snapshot_due_ns():
            yield self._snapshot(upkeep.snapshot_job())
        if now_ns >= upkeep.removal_due_ns():
            yield self._removal(upkeep.removal_job())

    def _preparation(self, job: PrepareJob) -> Job:
        log = self._replica.store.log
        return self._timed(
            self._timings.prepare,
            "files made ready",
            job.run,
            lambda: log.prepared(job),
            failure_stops_node=False,
            wants_turn=False,
        )

    def _checkpoint(self, job: CheckpointJob) -> Job:
        replica = self._replica
        return self._timed(
            self._timings.checkpoint,
            "checkpoint",
            job.run,
            lambda: replica.upkeep.checkpointed(job, replica.time.now_ns),
            failure_stops_node=True,
            wants_turn=False,
        )

    def _snapshot(self, job: SnapshotJob) -> Job:
        replica = self._replica
        return self._timed(
            self._timings.snapshot,
            "snapshot",
            job.run,
            lambda: replica.upkeep.snapshot_saved(job, replica.time.now_ns),
            failure_stops_node=True,
            wants_turn=False,
            before_ns=replica.upkeep.encoded_ns,
        )

    def _incoming(self, job: Incoming) -> Job:
        replica = self._replica
        return self._timed(
            self._timings.snapshot,
            "snapshot of the leader",
            job.run,
            lambda: replica.upkeep.incoming_saved(job, replica.time.now_ns),
            failure_stops_node=True,
            wants_turn=True,
        )

    def _removal(self, job: RemovalJob) -> Job:
        replica = self._replica
        return Job(
            "removal",
            job.run,
            lambda: replica.upkeep.removed(job, replica.time.now_ns),
            failure_stops_node=False,
            wants_turn=False,
        )

    def _load(self, job: LoadJob) -> Job:
        replica = self._replica
        return self._timed(
            self._timings.load,
            "cold reads",
            job.run,
            lambda: replica.loads.loaded(job, replica.time.now_ns),
            failure_stops_node=True,
            wants_turn=True,
        )

    def _scrub(self, job: Scrub) -> Job:
        replica = self._replica
        return self._timed(
            self._timings.scrub,
            "scrubbing",
            job.run,
            lambda: replica.scrubbing.done(job, replica.time.now_ns, replica.time.wall_ms),
            failure_stops_node=True,
            wants_turn=True,
        )

    def _repair(self, job: RepairFlush) -> Job:
        replica = self._replica
        return self._timed(
            self._timings.repair,
            "repair",
            job.run,
            lambda: replica.repairs.flushed(job),
            failure_stops_node=True,
            wants_turn=True,
        )

    def _timed(
        self,
        histogram: Histogram,
        what: str,
        run: Callable[[], None],
        done: Callable[[], None],
        *,
        failure_stops_node: bool,
        wants_turn: bool,
        before_ns: int = 0,
    ) -> Job:
        """Returns a job whose time in its thread is counted when it comes back, with `before_ns` that came before."""
        stopwatch = self._timings.stopwatch
        took_ns = 0

        def run_timed() -> None:
            nonlocal took_ns
            began_ns = stopwatch()
            run()
            took_ns = stopwatch() - began_ns

        def count_and_take_over() -> None:
            histogram.observe(before_ns + took_ns)
            self._replica.slow.flushed(what, took_ns, self._replica.time.now_ns)
            done()

        return Job(
            what, run_timed, count_and_take_over, failure_stops_node=failure_stops_node, wants_turn=wants_turn
        )

    def done(self, job: Job) -> None:
        """The job has run, without an error or with one that stops no node."""
        assert self.out > 0, "only jobs that are out come back"
        self.out -= 1
        job.done()

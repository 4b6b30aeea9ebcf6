"""The work that a replica gives to threads: flushes, files made ready, checkpoints, cold bytes brought into memory.

Each of the four is out at most once at a time. Whoever runs a node takes jobs from `Jobs`, calls `Job.run` in a thread
(or pretends to, as the simulator does) while the node goes on, and then, in the node's own thread and behind
`Node.begin`, `Jobs.done`.
"""

from collections.abc import Callable
from typing import NamedTuple

from broker.replica.replica import Replica


class Job(NamedTuple):
    """One piece of work."""

    run: Callable[[], None]
    """Raises `log.errors.DiskError` where the disk fails."""
    done: Callable[[], None]
    """For `Jobs.done`."""
    failure_stops_node: bool
    """After a failed flush or checkpoint nobody knows what the disk holds. Files that were not made ready are missed
    by the writer, which makes them itself and raises its own error then."""
    wants_turn: bool
    """Somebody waits for what `done` makes possible. The other jobs give no reason for a turn: a preparation that
    fails is wanted again in every turn, and must not bring about the next one itself."""


class Jobs:
    """The jobs of one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.out = 0
        """Jobs that were taken and have not come back."""
        self.is_closed = False
        """No job is to begin any more."""

    def flush(self) -> Job | None:
        """The flush that is to begin now, if one is. Acknowledgements wait for it: ask whenever bytes are sent."""
        replica = self._replica
        if self.is_closed or (flush := replica.durability.flush_job(replica.now_ns)) is None:
            return None
        self.out += 1
        return Job(
            flush.run,
            lambda: replica.flushed(flush, replica.now_ns),
            failure_stops_node=True,
            wants_turn=True,
        )

    def others(self) -> list[Job]:
        """All other jobs that are to begin now: ask at the end of each turn."""
        replica = self._replica
        jobs: list[Job] = []
        if self.is_closed:
            return jobs
        if (preparation := replica.upkeep.prepare_job()) is not None:
            jobs.append(
                Job(
                    preparation.run,
                    lambda: replica.upkeep.prepared(preparation),
                    failure_stops_node=False,
                    wants_turn=False,
                )
            )
        if (checkpoint := replica.upkeep.checkpoint_job(replica.now_ns)) is not None:
            jobs.append(
                Job(
                    checkpoint.run,
                    lambda: replica.upkeep.checkpointed(checkpoint, replica.now_ns),
                    failure_stops_node=True,
                    wants_turn=False,
                )
            )
        if replica.loads.wanted and (load := replica.loads.job()) is not None:
            jobs.append(
                Job(
                    load.run,
                    lambda: replica.loads.loaded(load, replica.now_ns),
                    failure_stops_node=True,
                    wants_turn=True,
                )
            )
        self.out += len(jobs)
        return jobs

    def done(self, job: Job) -> None:
        """The job has run, without an error or with one that stops no node."""
        assert self.out > 0, "only jobs that are out come back"
        self.out -= 1
        job.done()

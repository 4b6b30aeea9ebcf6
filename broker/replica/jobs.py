"""The work that a replica gives to threads: flushes, files made ready, checkpoints, cold bytes brought into memory.

Each of the four is out at most once at a time. Whoever runs a node calls `run` in a thread (or pretends to, as the
simulator does) while the node goes on, and then, in the node's own thread and behind `Node.begin`, `done`.
"""

from collections.abc import Callable
from typing import NamedTuple

from broker.replica.replica import Replica


class Job(NamedTuple):
    """One piece of work."""

    name: str
    run: Callable[[], None]
    """Raises `log.errors.DiskError` where the disk fails."""
    done: Callable[[], None]
    """To be called once when `run` has returned, or has raised an error that stops no node."""
    failure_stops_node: bool
    """After a failed flush or checkpoint nobody knows what the disk holds. Files that were not made ready are missed
    by the writer, which makes them itself and raises its own error then."""
    wants_turn: bool
    """Somebody waits for what `done` makes possible. The others give no reason for a turn: a preparation that fails
    is wanted again in every turn, and must not bring about the next one itself."""


def flush_job(replica: Replica) -> Job | None:
    """The flush that is due, if one is: acknowledgements wait for it, so it is to begin before the turn is over."""
    flush = replica.durability.flush_job(replica.now_ns)
    if flush is None:
        return None
    return Job(
        "flush",
        flush.run,
        lambda: replica.flushed(flush, replica.now_ns),
        failure_stops_node=True,
        wants_turn=True,
    )


def other_jobs(replica: Replica) -> list[Job]:
    """All that is to begin now but the flush; to be asked at the end of each turn."""
    jobs: list[Job] = []
    if (preparation := replica.upkeep.prepare_job()) is not None:
        jobs.append(
            Job(
                "prepare",
                preparation.run,
                lambda: replica.upkeep.prepared(preparation),
                failure_stops_node=False,
                wants_turn=False,
            )
        )
    if (checkpoint := replica.upkeep.checkpoint_job(replica.now_ns)) is not None:
        jobs.append(
            Job(
                "checkpoint",
                checkpoint.run,
                lambda: replica.upkeep.checkpointed(checkpoint, replica.now_ns),
                failure_stops_node=True,
                wants_turn=False,
            )
        )
    if replica.loads.wanted and (load := replica.loads.job()) is not None:
        jobs.append(
            Job(
                "load",
                load.run,
                lambda: replica.loads.loaded(load, replica.now_ns),
                failure_stops_node=True,
                wants_turn=True,
            )
        )
    return jobs

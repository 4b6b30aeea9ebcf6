"""The simulator's judge over what the clients of a run have recorded: held against the log that all stores have.

The Spark checker finds what is not linearizable from the traces alone; this judge knows the log beside them, and so
what is there that should not be, or is there twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Final

from broker.tools.cluster.compare import walk_entries
from broker.trace import TRACE_SUFFIX, Damage, TraceEvent, TraceHeader, read_trace
from simulation.judges.group_model import GroupModel
from simulation.judges.recorded import RecordedClients, commit_times

_ENTRIES_MAX: Final = 500_000
"""The model of a log is in memory, about a kilobyte an entry: the traces of longer runs Spark judges alone."""


def judge_clients(
    trace_directory: Path,
    data_directories: Mapping[str, Path],
    last_index: int,
    *,
    voters: Sequence[str],
    at_most_once: Set[str],
) -> None:
    """Judges the traces of all clients; those named in `at_most_once` store no message twice. Raises Violation.

    The stores are the same up to `last_index`, and began with these voters. Nothing is judged if no log has its first
    entry any more, or the log is long.
    """
    if last_index >= _ENTRIES_MAX:
        return
    paths = sorted(trace_directory.glob(f"*{TRACE_SUFFIX}"))
    replicas = (event for path in paths for event in _events(path, "replica"))
    times = commit_times(replicas, last_index + 1)
    model = GroupModel()
    model.voters = tuple(voters)
    if not any(_learn(model, node, directory, times) for node, directory in data_directories.items()):
        return
    clients = RecordedClients(model)
    for path in paths:
        process = path.name.removesuffix(TRACE_SUFFIX)
        clients.judge(process, _events(path, "client"), at_most_once=process in at_most_once)
    clients.check_end()


def _learn(model: GroupModel, node: str, directory: Path, times: Sequence[int]) -> bool:
    """Tells the model of all entries of a node's log that have a time; False if the log has lost its first one."""
    entries = walk_entries(directory)
    try:
        for entry in entries:
            if entry.index == 0 or model.positions:
                model.learn(node, bytes(entry.data), times[entry.index])
            if not model.positions or entry.index + 1 == len(times):
                break
    finally:
        entries.close()  # it holds a mapping open
    return bool(model.positions)


def _events(path: Path, source: str) -> Iterator[TraceEvent]:
    """The events of a trace if it is from such a source. What is damaged is left out: the Spark checker tells of it."""

    def ignore(damage: Damage) -> None:
        pass

    with path.open("rb") as stream:
        for event in read_trace(stream, str(path), on_damage=ignore):
            if not isinstance(event, TraceHeader):
                yield event
            elif event.source != source:
                return

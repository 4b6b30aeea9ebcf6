"""The simulator's judge over what the clients of a run have recorded: held against the log that all stores have.

The Spark checker finds what is not linearizable from the traces alone; this judge knows the log beside them, and so
what is there that should not be, or is there twice.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from broker.tools.cluster.compare import walk_entries
from broker.trace import TRACE_SUFFIX, Damage, TraceEvent, TraceHeader, read_trace
from log.files.private_files import make_directories
from simulation.judges.group_model import GroupModel
from simulation.judges.recorded import RecordedClients, commit_times

_ENTRIES_MAX: Final = 500_000
"""Logs with this many entries are left to Spark alone: the model here keeps about a kilobyte of memory an entry."""


@dataclass(frozen=True, kw_only=True)
class JudgedGroup:
    """The stores of a group after a run, by node, identical up to ``last_index``; the group began with these
    ``voters``."""

    name: str
    voters: Sequence[str]
    stores: Mapping[str, Path]
    last_index: int


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The traces of a run: those of replicas by their group, and the others."""

    directory: Path
    others: Sequence[Path]
    replicas: Mapping[str, Sequence[Path]]

    @classmethod
    def below(cls, directory: Path) -> Self:
        """Sort the traces in a directory by what their headers say."""
        others: list[Path] = []
        replicas: dict[str, list[Path]] = {}
        for path in sorted(directory.glob(f"*{TRACE_SUFFIX}")):
            header = next(_items(path), None)
            if isinstance(header, TraceHeader) and header.source == "replica":
                replicas.setdefault(dict(header.attributes).get("group", ""), []).append(path)
            else:
                others.append(path)
        return cls(directory=directory, others=others, replicas=replicas)

    def histories(self) -> list[Path]:
        """Return a directory with one history for each group, as the checker wants them: terms are a group's own.

        That of a single group is the directory itself; of several each has links to the traces of its replicas and to
        all others. Raises OSError.
        """
        if len(self.replicas) <= 1:
            return [self.directory]
        made = []
        for group, replicas in sorted(self.replicas.items()):
            history = self.directory / group
            make_directories(history)
            for path in (*replicas, *self.others):
                (history / path.name).hardlink_to(path)
            made.append(history)
        return made


def judge_clients(trace_directory: Path, groups: Sequence[JudgedGroup], *, at_most_once: Set[str]) -> None:
    """Judges the traces of all clients; those named in `at_most_once` store no message twice. Raises Violation.

    Nothing is judged if no log of a group has its first entry any more, or if the logs are long.
    """
    # The model holds a whole log in memory. What is longer is left to the analysis by Spark.
    if sum(group.last_index for group in groups) >= _ENTRIES_MAX:
        return
    recorded = Recorded.below(trace_directory)
    models: dict[str, GroupModel] = {}
    for group in groups:
        replicas = (event for path in recorded.replicas[group.name] for event in _events(path, "replica"))
        times = commit_times(replicas, group.last_index + 1)
        model = models[group.name] = GroupModel()
        model.voters = tuple(group.voters)
        if not any(_learn(model, node, directory, times) for node, directory in group.stores.items()):
            return
    clients = RecordedClients(models)
    for path in recorded.others:
        process = path.name.removesuffix(TRACE_SUFFIX)
        clients.judge(process, _events(path, "client"), at_most_once=process in at_most_once)
    clients.check_end()


def _learn(model: GroupModel, node: str, directory: Path, times: Sequence[int]) -> bool:
    """Adds all entries of a node's log that have a time to the model; False if the log's first entry was deleted."""
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
    """The events of a trace if it is from such a source."""
    for event in _items(path):
        if not isinstance(event, TraceHeader):
            yield event
        elif event.source != source:
            return


def _items(path: Path) -> Iterator[TraceHeader | TraceEvent]:
    """Yields what a trace holds. What is damaged is left out: the Spark checker tells of it."""

    def ignore(damage: Damage) -> None:
        pass

    with path.open("rb") as stream:
        yield from read_trace(stream, str(path), on_damage=ignore)

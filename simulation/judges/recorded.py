"""Judges clients by their traces, when a run is over: for groups of real processes, whose commits nobody watches.

The rules are those of `client_judge`. What the group has committed is known from its files; when, at the latest, from
the traces of its replicas. A time that is too late makes the judge milder, never wrong: more answers were possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker.trace import CommitAdvanced, Fail, Info, Invoke, Ok, ReadResult, TraceEvent
from simulation.judges.client_judge import ClientJudge, OpenRequests
from simulation.judges.group_model import GroupModel
from simulation.judges.several_groups import GroupJudges
from simulation.judges.stored_offsets import NEVER


def commit_times(events: Iterable[TraceEvent], entries: int) -> list[int]:
    """Returns by when each of the first `entries` entries was committed; `NEVER` if no trace tells of it.

    `events` are those of all replicas. An entry is committed when one behind it is, so the times never fall.
    """
    times = [NEVER] * entries
    for event in events:
        if isinstance(event, CommitAdvanced) and event.index < entries:
            times[event.index] = min(times[event.index], event.time_ns)
    for index in range(entries - 2, -1, -1):
        times[index] = min(times[index], times[index + 1])
    return times


class RecordedClients:
    """Reads the traces of clients, one after the other."""

    def __init__(self, models: Mapping[str, GroupModel]) -> None:
        """`models` hold all that was committed, by the groups' names."""
        self._now_ns = 0
        self._judges = GroupJudges(
            {
                name: ClientJudge(model, lambda: self._now_ns, afterwards=True)
                for name, model in models.items()
            }
        )

    def judge(self, process: str, events: Iterable[TraceEvent], *, at_most_once: bool) -> None:
        """Judges one trace; `at_most_once`: its messages are stored once at most. Raises Violation."""
        requests = OpenRequests(self._judges.of, process, at_most_once=at_most_once)
        for event in events:
            match event:
                case Invoke():
                    self._now_ns = event.time_ns
                    requests.began(event.operation, event.function, event.key, event.argument, event.group)
                case Ok(result=ReadResult() as read):
                    result = (read.next_offset, read.offsets, read.values, read.end)
                    requests.answered(event.operation, result)
                case Ok():
                    requests.answered(event.operation, event.result)
                case Fail():
                    requests.failed(event.operation, "fail")
                case Info():
                    requests.failed(event.operation, "info")

    def check_end(self) -> None:
        """After all traces: what certainly failed is not there, what must be stored once is, and what may be stored in
        one group is in no other. Raises Violation."""
        self._judges.check_outcomes()

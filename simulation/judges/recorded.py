"""Judges clients by their traces, when a run is over: for groups of real processes, whose commits nobody watches.

The rules are those of `client_judge`. What the group has committed is known from its files; when, at the latest, from
the traces of its replicas. A time that is too late makes the judge milder, never wrong: more answers were possible.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.trace import CommitAdvanced, Fail, Info, Invoke, Ok, ReadResult, TraceEvent
from simulation.judges.client_judge import ClientJudge, Question
from simulation.judges.group_model import GroupModel
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

    def __init__(self, model: GroupModel) -> None:
        """`model` holds all that was committed."""
        self._now_ns = 0
        self._judge = ClientJudge(model, lambda: self._now_ns, afterwards=True)

    def judge(self, process: str, events: Iterable[TraceEvent], *, at_most_once: bool) -> None:
        """Judges one trace; `at_most_once`: its messages are stored once at most. Raises Violation."""
        judge = self._judge
        asked: dict[int, tuple[str, Question]] = {}
        for event in events:
            match event:
                case Invoke():
                    self._now_ns = event.time_ns
                    question = self._asked(process, event, at_most_once=at_most_once)
                    asked[event.operation] = event.function, question
                case Ok():
                    self._answered(*asked.pop(event.operation), event)
                case Fail():
                    judge.failed(asked.pop(event.operation)[1], "fail")
                case Info():
                    judge.failed(asked.pop(event.operation)[1], "info")

    def check_end(self) -> None:
        """After all traces: what certainly failed is not there, what must be stored once is. Raises Violation."""
        self._judge.check_outcomes()

    def _asked(self, process: str, event: Invoke, *, at_most_once: bool) -> Question:
        judge = self._judge
        argument = event.argument
        offset, values = 0, tuple[str, ...]()
        if event.function == "append" and isinstance(argument, tuple):
            values = tuple(str(value) for value in argument)
            if at_most_once:
                judge.at_most_once.update(dict.fromkeys(values))
        elif event.function == "read" and isinstance(argument, tuple):
            offset = int(argument[0])
        elif isinstance(argument, int):
            offset = argument
        question = judge.asked(process, event.key, event.group, values, offset)
        if event.function == "commit_offset":
            judge.asked_to_store(question)
        return question

    def _answered(self, function: str, question: Question, event: Ok) -> None:
        judge = self._judge
        match function, event.result:
            case "append", int(base_offset):
                judge.stored(question, base_offset)
            case "read", ReadResult(next_offset=next_offset, offsets=offsets, values=values):
                judge.was_read(question, next_offset, offsets, values)
            case "tail", int(offset):
                judge.ended_at(question, offset)
            case "commit_offset", None:
                judge.offset_stored(question)
            case "fetch_offset", None | int() as stored:
                judge.offset_was(question, stored)

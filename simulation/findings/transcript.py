"""The last events of a run, for people: the notes and the traces of all hosts on one axis of time.

Notes are few (faults, roles, what processes log), traces are many (each question of a client, each entry of a replica);
so the newest of both are taken, as many of each as a page holds, and told in the order in which they happened. All
traces of a simulation have the true time, so that the order is exact to the microsecond that is shown.

What repeats itself is folded: of lines, or of a few lines in turn, that say the same but for their numbers the first
and the last are shown, and between them how many there were. That happens before the newest are taken, so that a client
that asks the same over and over leaves room for what came before it.
"""

import re
from collections.abc import Iterator, Mapping
from io import BytesIO

from broker.trace import (
    CommitAdvanced,
    EntriesAppended,
    Fail,
    Info,
    Invoke,
    Ok,
    ReadResult,
    TraceEvent,
    TraceHeader,
    read_trace,
)
from simulation.scheduler import SECOND

_COLUMNS = 200
_VALUES = 2
_NOTES, _TRACE_EVENTS = 60, 40
_IN_TURN = 4
"""At most so many lines that come again in the same order are folded."""
_NUMBER = re.compile(r"\b[0-9][0-9A-F.]*\b")
"""A number, or an identifier of a message; the digits of a name (n0) are none."""


def last_events(notes: list[str], traces: Mapping[str, bytes]) -> list[str]:
    """Lines in the order of time, ending with the newest; `notes` are a transcript's, `traces` may be empty."""
    # Each host writes a trace of its own; only by their times do they become one story.
    recorded = sorted(
        (event for name, data in traces.items() for event in _lines(name, data)), key=lambda event: event[0]
    )
    told = folded([line for _, line in recorded])[-_TRACE_EVENTS:]
    lines = told + folded([_one_line(note) for note in notes])[-_NOTES:]
    lines.sort(key=_seconds)  # at the same time notes come last: the finding is one
    return [_one_line(line) for line in lines]


def folded(lines: list[str]) -> list[str]:
    """Folds up to `_IN_TURN` lines that come again and again: the first time, how often they came, the last time."""
    shown: list[str] = []
    texts = [_NUMBER.sub("0", line.split(None, 1)[1]) for line in lines]
    at = 0
    while at < len(lines):
        size, times = max(
            ((size, _times(texts, at, size)) for size in range(1, _IN_TURN + 1)),
            key=lambda repeated: _saved(*repeated),
        )
        if _saved(size, times) > 0:
            end = at + size * times
            last = lines[end - size : end]
            what = "" if size == 1 else f"these {size} lines "
            count = f"{_seconds(last[0]):11.6f}  ...      {what}{times} times; the last time:"
            shown += (*lines[at : at + size], count, *last)
            at = end
        else:
            shown.append(lines[at])
            at += 1
    return shown


def _times(texts: list[str], at: int, size: int) -> int:
    """Returns how often the lines at a place come there, one time behind the other."""
    block = texts[at : at + size]
    times = 1
    while texts[at + times * size : at + (times + 1) * size] == block:
        times += 1
    return times


def _saved(size: int, times: int) -> int:
    return size * (times - 2) - 1


def _seconds(line: str) -> float:
    return float(line.split(None, 1)[0])


def _one_line(text: str) -> str:
    """Cuts a note to one line: findings have text of many lines, which a report shows elsewhere."""
    line = text.split("\n", 1)[0]
    return line if len(line) <= _COLUMNS else f"{line[: _COLUMNS - 3]}..."


def _lines(name: str, data: bytes) -> Iterator[tuple[int, str]]:
    """(time, line) of each event that a reader wants to see: what clients asked and were told, what
    replicas appended and committed. Roles, truncations and faults are notes already."""
    if not data:
        return
    # A question is told with its answer, in one line at the time of the answer: a reader wants to see both at once.
    process = name
    asked: dict[int, Invoke] = {}
    for event in read_trace(BytesIO(data)):
        if isinstance(event, TraceHeader):
            process = event.process
        elif isinstance(event, Invoke):
            asked[event.operation] = event
        elif isinstance(event, Ok | Fail | Info) and event.operation in asked:
            yield _line(event.time_ns, process, _answer(asked.pop(event.operation), event))
        elif isinstance(event, EntriesAppended):
            entries = f"{event.first_index}..{event.last_index}"
            yield _line(event.time_ns, process, f"appends {entries} of term {event.term}")
        elif isinstance(event, CommitAdvanced):
            yield _line(event.time_ns, process, f"commits up to {event.index} in term {event.term}")
    for question in asked.values():
        yield _line(question.time_ns, process, f"{_question(question)}: no answer yet")


def _line(time_ns: int, process: str, text: str) -> tuple[int, str]:
    return time_ns, f"{time_ns / SECOND:11.6f}  {process:<8} {text}"


def _question(asked: Invoke) -> str:
    group = f" for {asked.group}" if asked.group else ""
    argument = asked.argument
    if argument is None:
        told = ""
    elif isinstance(argument, int):
        told = f" {argument}"
    elif asked.function == "read":
        told = f" at {argument[0]}"
    else:
        told = f" {_some([str(value) for value in argument])}"
    return f"{asked.function} {asked.key}{group}{told}"


def _answer(asked: Invoke, event: TraceEvent) -> str:
    match event:
        case Ok(result=ReadResult(next_offset=next_offset, values=values)):
            answer = f"{_some(list(values))}, next {next_offset}"
        case Ok(result=None):
            answer = "done"
        case Ok(result=result):
            answer = str(result)
        case Fail(reason=reason):
            answer = f"refused: {reason}"
        case Info(reason=reason):
            answer = f"outcome unknown: {reason}"
        case _:
            raise AssertionError(event)
    return f"{_question(asked)} -> {answer} (asked at {asked.time_ns / SECOND:.6f})"


def _some(values: list[str]) -> str:
    """Shows the first values, and how many more there are."""
    shown = " ".join(values[:_VALUES])
    return shown + (f" and {len(values) - _VALUES} more" if len(values) > _VALUES else "")

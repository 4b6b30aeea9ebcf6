"""Lines of a history in another system's format, and the completion of each invocation among them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from broker.trace.events import MAX_INTEGER

UNREADABLE: Final = 2
"""``records`` of a line that is not even in the format."""
KEEP_WHAT_IS_NO_UTF8: Final = "surrogateescape"
"""How files are decoded. With a sign in place of what is no UTF-8, two values that differ there would be one."""
NO_UTF8: Final = "not UTF-8"
CUT: Final = "the file was cut inside of this line: everything before it was read"
KINDS: Final = ("invoke", "ok", "fail", "info")
LARGEST: Final = MAX_INTEGER
"""The largest time, in nanoseconds, and the largest offset: 64 bits are left for sums."""


def is_utf8(text: str) -> bool:
    """True if text that was decoded by :data:`KEEP_WHAT_IS_NO_UTF8` was UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


LINE: Final = "line"
CUT_LINE: Final = "cut line"
UNREAD: Final = "unread"
"""The kind of damage behind which nothing of a trace was read."""
OVERLAPPING_LINE: Final = "overlapping line"
STRAY_LINE: Final = "stray line"
"""Kinds of damage to texts, whose position is the number of a line; ``bad`` and ``cut`` are at a byte."""


@dataclass(frozen=True, slots=True)
class Line:
    """One event of a history: ``kind`` is invoke, ok, fail or info.

    ``rebalanced``: the keys that the consumer was given or lost while the operation ran.
    """

    number: int
    time_ns: int
    process: str
    kind: str
    function: str
    key: str
    value: Any
    group: str | None = None
    rebalanced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that was left out, and why.

    ``records``: the number of records that it may have been; a line that nobody can read may be two that were joined.
    ``is_cut``: the file ends inside of it, so nothing of it was ever wrong. ``completes``: it is the completion of an
    operation whose invocation is good.
    """

    number: int
    reason: str
    records: int = 1
    is_cut: bool = False
    completes: bool = False


OVERLAPPING: Final = "invokes while an operation of its own is open"
STRAY: Final = "which it has not invoked"
"""The ends of the two complaints that together say that one name was several clients' (``damage_facts`` of
:mod:`spark_analysis.checking.proofs`)."""


def kind_of_damage(reason: str, *, is_cut: bool) -> str:
    """The kind of damage that a bad line is, by its ``reason``."""
    if is_cut:
        return CUT_LINE
    if reason.endswith(OVERLAPPING):
        return OVERLAPPING_LINE
    return STRAY_LINE if reason.endswith(STRAY) else LINE


@dataclass(frozen=True, slots=True)
class Open:
    """An invocation that the text does not complete; ``lost``: how many records behind it could not be read."""

    line: Line
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Orphan:
    """A completion without an invocation before it in the text; ``lost``: how many records before it could not be
    read."""

    line: Line
    lost: int = 0

    def bad_line(self) -> BadLine:
        """The complaint about it if the text is the whole history."""
        process, function = self.line.process, self.line.function
        return BadLine(self.line.number, f"process {process} completes {function}, {STRAY}")


def second_invocation(line: Line) -> BadLine:
    """The complaint about an invocation of a process that has one open; that one counts as never answered."""
    return BadLine(line.number, f"process {line.process} {OVERLAPPING}")


def early_completion(begun: Line, ended: Line) -> BadLine:
    """The complaint about a completion whose time is before that of its invocation, which counts as never answered."""
    what = f"process {ended.process} completes {ended.function} at time {ended.time_ns}"
    return BadLine(ended.number, f"{what}, before its invocation at {begun.time_ns}")


def doubtful_completion(ended: Line) -> BadLine:
    """The complaint about a completion that may be of a later operation: see :data:`LOST_BETWEEN`."""
    what = f"process {ended.process} completes {ended.function}"
    return BadLine(ended.number, f"{what}, perhaps another one than it invoked before the lines that are bad")


LOST_BETWEEN: Final = 2
"""The number of missing records from which on a completion is not believed to be that of the invocation before it: one
of them may be the completion of this invocation, and another the invocation of this completion. So the invocation
counts as never answered, and the completion is left out."""


def matched(
    lines: Iterable[Line | BadLine],
) -> Iterator[tuple[Line, Line | None] | BadLine | Open | Orphan]:
    """Pair each invocation with its completion, in the order of completions; then yield those that were left open.

    A process has one operation open at a time; a line that breaks this is a :class:`BadLine`, and bad lines pass
    through. An orphan stands before the first invocation of its process.
    """
    opened: dict[str, tuple[Line, int]] = {}
    invoked: set[str] = set()
    lost = 0
    for line in lines:
        if isinstance(line, BadLine):
            lost += line.records
            yield line
            continue
        begun, lost_before = opened.pop(line.process, (None, 0))
        if line.kind == "invoke":
            if begun is not None:
                yield second_invocation(line)
                yield begun, None
            opened[line.process] = line, lost
            invoked.add(line.process)
        # The completion fits. It is doubtful if its time is before the invocation's, or if lost records may
        # have been another completion and invocation between the two.
        elif begun is not None and begun.function == line.function:
            if line.time_ns < begun.time_ns:
                yield early_completion(begun, line)
                yield begun, None
            elif lost - lost_before >= LOST_BETWEEN:
                yield doubtful_completion(line)
                yield begun, None
            else:
                yield begun, line
        else:
            if begun is not None:
                opened[line.process] = begun, lost_before
            orphan = Orphan(line, lost)
            yield orphan if line.process not in invoked else orphan.bad_line()
    for begun, lost_before in sorted(opened.values(), key=lambda entry: entry[0].number):
        yield Open(begun, lost - lost_before)

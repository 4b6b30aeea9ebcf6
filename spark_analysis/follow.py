"""``trivet analyze --follow``: traces are judged while they are written, and the first violation is told at once.

What is judged on the way is what clients say about queues (:mod:`spark_analysis.checking.queues.following`), in this
process: it takes some fifty microseconds an operation and starts nothing. The end is an analysis like any other, of all
rules, up to the moment up to which every recorder has been read.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from spark_analysis.checking.queues.following import JUDGED, FollowedLog
from spark_analysis.checking.small import operation_of
from spark_analysis.checking.verdict import EXIT_CODES, EXPLANATIONS, VIOLATED
from spark_analysis.importing.tails import FollowedTraces
from spark_analysis.main import FAILED, SPARSE_LOG_MODEL, WRONG_USAGE, Asked, analyze, unreadable
from spark_analysis.telling.stories.words import visible

if TYPE_CHECKING:
    from spark_analysis.checking.queues.unknown_appends import Finding

_TOLD_MOST: Final = 20
_LOOK_S: Final = 0.5
_SECOND_NS: Final = 10**9


@dataclass(frozen=True, slots=True)
class Pace:
    """Times to wait, in seconds. ``settle_s``: recorders write down within this time what they hold. ``patience_s``: an
    operation that is open for longer is of unknown outcome. ``quiet_s``: when no file has grown for this time, the
    recording is over; None waits for a signal."""

    settle_s: float = 2.0
    patience_s: float = 60.0
    quiet_s: float | None = None


@dataclass
class Follower:
    """One history that grows; :meth:`look` is to be called again and again."""

    path: Path
    pace: Pace
    sparse: bool = False
    read_to_ns: int | None = None
    """Everything that happened up to then is judged, on the history's clock."""
    _log: FollowedLog = field(init=False)
    _traces: FollowedTraces = field(init=False)

    def __post_init__(self) -> None:
        self._log = FollowedLog(sparse=self.sparse)
        self._traces = FollowedTraces(str(self.path), int(self.pace.settle_s * _SECOND_NS))

    def look(self, now_ns: int) -> list[tuple[str, Finding]]:
        """Judge what has been written since the last look; returns what is wrong by now, each finding once."""
        for row in self._traces.read(now_ns):
            if row["record"] == "operation" and row["function"] in JUDGED:
                self._log.take(row["key"], operation_of(row))
            elif row["record"] == "damage":
                self._log.is_damaged = True
        cut_ns = self._traces.cut_ns(now_ns)
        if cut_ns is None:
            return []
        self.read_to_ns = cut_ns if self.read_to_ns is None else max(cut_ns, self.read_to_ns)
        for row in self._traces.give_up(cut_ns - int(self.pace.patience_s * _SECOND_NS)):
            if row["function"] in JUDGED:
                self._log.take(row["key"], operation_of(row), is_given_up=True)
        oldest_ns = self._traces.oldest_open_ns()
        return self._log.settle(cut_ns if oldest_ns is None else min(cut_ns, oldest_ns))

    @property
    def is_behind(self) -> bool:
        """True if so much was written that the last look did not read all of it."""
        return self._traces.is_behind

    def quiet_s(self, now_ns: int) -> float:
        """Seconds since a file last grew."""
        return self._traces.quiet_ns(now_ns) / _SECOND_NS

    def close(self) -> None:
        """Close the temporary file, which removes it."""
        self._log.close()


def follow(asked: Asked, pace: Pace) -> int:
    """Follow the traces at the one path until something is wrong, the recording is over, or a signal comes (interrupt,
    terminate); then judge all that has been read. Returns the exit code of :func:`analyze`."""
    (path,) = asked.paths
    if (complaint := unreadable(path)) is not None:
        print(f"trivet: {complaint}", file=sys.stderr)
        return WRONG_USAGE
    try:
        with (
            _signals() as stopped,
            closing(Follower(path, pace, asked.model == SPARSE_LOG_MODEL)) as follower,
        ):
            has_found, is_over = _until_the_end(follower, stopped)
    except OSError as error:
        print(f"trivet: cannot follow {path}: {error}; no verdict", file=sys.stderr)
        return FAILED
    until_ns = None if is_over else follower.read_to_ns
    code = analyze(replace(asked, until_ns=until_ns))
    # The whole recording may be undecided although findings in a part of it were certain.
    return EXIT_CODES[VIOLATED] if has_found and code in EXIT_CODES.values() else code


def _until_the_end(follower: Follower, stopped: list[int]) -> tuple[bool, bool]:
    """Look again and again; returns whether something is wrong, and whether the recording is over."""
    alarmed_ns: int | None = None
    while not stopped:
        now_ns = time.monotonic_ns()
        found = follower.look(now_ns)
        for key, one in found[:_TOLD_MOST]:
            print(
                f"trivet: violated: {visible(key)}: {one.kind} at {one.position}: {EXPLANATIONS[one.kind]}",
                file=sys.stderr,
                flush=True,
            )
        if found and alarmed_ns is None:
            alarmed_ns = now_ns
        # What proves it may be younger than what has been read of others.
        if alarmed_ns is not None and now_ns - alarmed_ns > 2 * follower.pace.settle_s * _SECOND_NS:
            return True, False
        if follower.pace.quiet_s is not None and follower.quiet_s(now_ns) > follower.pace.quiet_s:
            return alarmed_ns is not None, True
        if not follower.is_behind:
            time.sleep(_LOOK_S)
    return alarmed_ns is not None, False


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The signals to stop that have come."""
    come: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        come.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield come
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

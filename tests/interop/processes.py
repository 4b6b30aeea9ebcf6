"""Child processes that report in JSON lines, and waiting for what they report.

Every wait is for an event with an upper limit, never for a span of time. A child is ended by closing its standard
input (drivers stop cleanly then), by its own pid, and nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.evidence import COLUMNS, log_ends, telling_lines

Event = dict[str, Any]

STOP_LIMIT_S = 30.0


class ChildError(AssertionError):
    """A child process ended or stayed silent where the test needed something from it."""


class Child:
    """A process whose standard output is JSON lines (other lines are kept as text), read by a thread."""

    def __init__(
        self, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        self.log = log
        self.events: list[Event] = []
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._output_ended = False
        _children.append(weakref.ref(self))
        with log.open("ab") as log_file:
            self.process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_until(self, condition: Callable[[], object], limit_s: float, what: str) -> None:
        """Blocks until ``condition`` is true; it is looked at whenever the child has written a line."""
        deadline = time.monotonic() + limit_s
        with self._changed:
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ChildError(f"{what}: not within {limit_s:.0f} s\n{self.tail()}")
                if self._output_ended:
                    raise ChildError(f"{what}: the process has ended\n{self.tail()}")
                self._changed.wait(left)

    def wait_for(self, kind: str, limit_s: float, count: int = 1) -> list[Event]:
        """The first ``count`` events of ``kind``, once they are there."""
        self.wait_until(lambda: len(self.of(kind)) >= count, limit_s, f"{count} x {kind}")
        return self.of(kind)[:count]

    def of(self, kind: str) -> list[Event]:
        """Events of ``kind`` so far."""
        return [event for event in self.events if event["event"] == kind]

    def finish(self, limit_s: float) -> list[Event]:
        """Waits for the process to end by itself with status 0 and gives all of its events."""
        status = self.wait_for_end(limit_s)
        if status != 0:
            raise ChildError(f"exit status {status}\n{self.tail()}")
        return list(self.events)

    def wait_for_end(self, limit_s: float) -> int:
        """Waits for the process to end by itself and gives its status, whatever it is."""
        self.wait_until(lambda: self._output_ended, limit_s, "end of the process")
        return self.process.wait(STOP_LIMIT_S)

    def write_line(self, line: str) -> None:
        """Hands the child one line on its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL: no clean-up on the child's side. Returns once it is gone."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(STOP_LIMIT_S)

    def stop(self) -> None:
        """Asks the child to end (end of input, then SIGTERM) and makes sure of it."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass
        for attempt in (self._nothing, self.process.terminate, self.process.kill):
            if self.process.poll() is None:
                attempt()
            try:
                self.process.wait(STOP_LIMIT_S)
                break
            except subprocess.TimeoutExpired:
                continue
        self._reader.join(STOP_LIMIT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def interrupt(self) -> None:
        """SIGINT, as from Ctrl-C, then as ``stop``."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.stop()

    def tail(self) -> str:
        """The last lines of output and log, for a failure's message."""
        log = self.log.read_text(errors="replace").splitlines()[-20:] if self.log.exists() else []
        status = self.process.poll()
        return "\n".join([f"status {status}, last events {self.events[-3:]}", *self.lines[-5:], *log])

    def account(self) -> str:
        """Returns the process's state and its last reports, for the report of a failed test."""
        status = self.process.poll()
        state = "runs" if status is None else f"ended with status {status}"
        counts = Counter(event["event"] for event in self.events)
        told = [json.dumps(event)[:COLUMNS] for event in [*self.of("failed")[-4:], *self.events[-4:]]]
        return "\n".join([f"{state}; {dict(counts)}", *told, *telling_lines(self.lines, 8)])

    def _nothing(self) -> None:
        pass

    def _read(self) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            line = raw.decode(errors="replace").rstrip("\n")
            event = _event_in(line)
            with self._changed:
                if event is None:
                    self.lines.append(line)
                else:
                    self.events.append(event)
                self._changed.notify_all()
        with self._changed:
            self._output_ended = True
            self._changed.notify_all()


_children: list[weakref.ref[Child]] = []
"""Every child of this process, oldest first."""


def evidence() -> Iterator[tuple[str, str]]:
    """Titles and texts of all children that somebody still holds: their accounts, then the logs in their folders.

    A test that has just failed holds its own, and the session those that tests share.
    """
    _children[:] = [reference for reference in _children if reference() is not None]
    children = [child for reference in _children if (child := reference()) is not None]
    for child in children:
        yield f"process {child.log.parent.name}/{child.log.stem}", child.account()
    for folder in dict.fromkeys(child.log.parent for child in children):
        yield from log_ends(folder)


def _event_in(line: str) -> Event | None:
    if not line.startswith("{"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and "event" in value else None


def wait_until(condition: Callable[[], object], limit_s: float, what: str, interval_s: float = 0.05) -> None:
    """Polls a condition of the outside world, where nothing announces it. OSError counts as not yet."""
    deadline = time.monotonic() + limit_s
    last: BaseException | None = None
    while True:
        try:
            if condition():
                return
        except OSError as error:
            last = error
        if time.monotonic() > deadline:
            raise ChildError(f"{what}: not within {limit_s:.0f} s ({last!r})")
        time.sleep(interval_s)

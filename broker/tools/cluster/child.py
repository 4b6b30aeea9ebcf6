"""One server as a child process: started, watched, ended.

Its output goes to a file, because a pipe that nobody reads would stop it. Its death is an event and not a poll: on
Linux a pidfd becomes readable, elsewhere a thread waits.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import trio

from broker.tools.cluster.parent_death import PARENT_VARIABLE
from log.files.private_files import open_file

_FRAMES = " |+-\u2500\u2502\u256d\u256e\u256f\u2570"
"""Characters that draw the frames of tracebacks of exception groups."""
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Fault|Exit|Interrupt)\b")


class ChildDiedError(Exception):
    """A server ended that should run; the text has its last words."""


class Child:
    """A running or ended ``trivet`` server process. ``exited`` is set once it has ended and was reaped."""

    program: ClassVar[Sequence[str]] = ("-P", "-m", "trivet")
    """The program that Python runs, whatever lies in the working directory. A benchmark that looks into its brokers has
    them started another way."""

    def __init__(self, name: str, arguments: Sequence[str], log_path: Path) -> None:
        """Start ``trivet ARGUMENTS``; must be called from the main thread (see `broker.tools.cluster.parent_death`)."""
        self.name = name
        self.log_path = log_path
        self.expected_to_end = False
        """True once this side has asked for its end; any other death is reported."""
        self.exited = trio.Event()
        environment = {**os.environ, PARENT_VARIABLE: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        with open_file(log_path, "ab") as log_file:
            self._process = subprocess.Popen(
                [sys.executable, *self.program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                env=environment,
                # A Ctrl-C in the terminal goes to the whole foreground group; the supervisor alone decides when servers
                # stop, so that the last messages of a clean stop are not lost.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id, also after the end."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """True until it has been seen to end."""
        return not self.exited.is_set()

    @property
    def return_code(self) -> int | None:
        """The exit code, minus the signal's number if one ended it; None while it runs."""
        return self._process.returncode

    async def watch(self) -> None:
        """Wait for its end; one task must run this."""
        if self._process.poll() is None:
            if sys.platform == "linux":
                descriptor = os.pidfd_open(self.pid)
                try:
                    await trio.lowlevel.wait_readable(descriptor)
                finally:
                    os.close(descriptor)
                self._process.wait()
            else:
                await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
        self.exited.set()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; does nothing once it has ended."""
        self._process.send_signal(number)

    def kill_nowait(self) -> None:
        """SIGKILL; ``exited`` tells when it is gone."""
        self.expected_to_end = True
        self.send_signal(signal.SIGKILL)

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.kill_nowait()
        await self.exited.wait()

    async def stop(self, grace_s: float) -> bool:
        """Send SIGTERM, and SIGKILL after ``grace_s``; returns True if it stopped by itself with code 0."""
        self.expected_to_end = True
        self.send_signal(signal.SIGTERM)
        with trio.move_on_after(grace_s):
            await self.exited.wait()
            return self.return_code == 0
        await self.kill()
        return False

    def kill_now(self) -> None:
        """SIGKILL and reap without waiting for the watching task: the last resort of a cancelled supervisor."""
        if self._process.poll() is None:
            self.expected_to_end = True
            self._process.kill()
            self._process.wait()

    def how_it_ended(self) -> str:
        """A sentence for people: how it ended, and its last words if it ended by itself."""
        code = self.return_code
        if code is None:
            return f"{self.name} (pid {self.pid}) runs"
        if code < 0:
            return f"{self.name} (pid {self.pid}) was ended by {signal.Signals(-code).name}"
        last_words = last_words_of(self.last_log_lines(40))
        return f"{self.name} (pid {self.pid}) ended with exit code {code}" + (
            f": {last_words}" if last_words else ""
        )

    def last_log_lines(self, count: int) -> list[str]:
        """The last lines of its log, at most ``count``."""
        try:
            with self.log_path.open("rb") as log_file:
                size = log_file.seek(0, os.SEEK_END)
                log_file.seek(max(0, size - 4096))
                text = log_file.read().decode("utf-8", "replace")
        except OSError:
            return []
        return [line.strip() for line in text.splitlines() if line.strip()][-count:]


def last_words_of(lines: Sequence[str]) -> str:
    """The reason why a server ended, from the end of its log: its own complaint, else the last exception of a
    traceback."""
    said = [line.strip(_FRAMES) for line in lines]
    said = [line for line in said if line]
    complaints = [line for line in said if line.startswith("trivet: ")]
    errors = [line for line in said if _EXCEPTION.match(line)]
    # The first of a group is its cause; what follows it in the log are its companions.
    return (complaints[-1:] or errors[-1:] or ["; ".join(said[-3:])])[0]

"""The Java process of a session that is still starting: it must not outlive whoever was starting it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENDS_WITHIN_S: Final = 5.0


@contextmanager
def ended_with_its_start() -> Iterator[None]:
    """In the block, a Java that PySpark starts is ended if an exception, Ctrl-C above all, ends the start.

    PySpark keeps the process to itself until Java has told its port, and Java then ends with this process, as its input
    does. If PySpark leaves that wait it removes the directory for the port, and a Java that cannot tell it runs on for
    minutes, with nobody to end it. It is a process group: ``spark-submit`` is a script that starts processes of its
    own.
    """
    from pyspark import SparkContext, java_gateway

    launcher: Any = java_gateway  # its Popen is not told of as its own
    started: list[subprocess.Popen[Any]] = []

    class Remembered(subprocess.Popen[Any]):
        def __init__(self, *command: Any, **options: Any) -> None:
            started.append(self)  # before it runs: an interrupt may come in between
            super().__init__(*command, **options, start_new_session=True)

    usual, launcher.Popen = launcher.Popen, Remembered
    try:
        yield
    except BaseException:
        if SparkContext._gateway is None:  # noqa: SLF001 - nothing else tells whether Java has answered
            for process in started:
                _end(process)
        raise
    finally:
        launcher.Popen = usual


def _end(process: subprocess.Popen[Any]) -> None:
    """End a process and its group: in order, or by force where that takes too long."""
    if getattr(process, "pid", None) is None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDS_WITHIN_S)

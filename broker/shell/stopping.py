"""The end of a server: somebody asks for it, and its log tells why, how long it took, and how long it was there."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from log.errors import DamagedFileError, DiskError, MisplacedRangeError


class Stopping:
    """`begin` is called when somebody asks for the end, and sets `asked`; `told` writes the line when it has come."""

    def __init__(self, log: Any) -> None:
        """`log` is structlog's logger of the server."""
        self._log = log
        self.asked = trio.Event()
        self._reason = "cancelled"
        self._began_ns = 0

    def begin(self, reason: str) -> None:
        """The server was asked to end, for this reason."""
        self._reason = reason
        self._began_ns = time.monotonic_ns()
        self._log.info("stop begins", reason=reason)
        self.asked.set()

    @contextmanager
    def told(self, close: Callable[[], None]) -> Iterator[None]:
        """Runs the server in it, then `close`. What either raises is the reason that is told, and raised on."""
        started_ns = time.monotonic_ns()
        try:
            yield
        except BaseException as error:
            if (cause := _cause(error)) is not None:
                self._reason = _why_it_fails(cause)
            raise
        finally:
            # Where nobody has asked for the end it begins here.
            self._began_ns = self._began_ns or time.monotonic_ns()
            try:
                close()
            except BaseException as error:
                self._reason = _why_it_fails(error)
                raise
            finally:
                now_ns = time.monotonic_ns()
                self._log.info(
                    "stop",
                    reason=self._reason,
                    took_ms=(now_ns - self._began_ns) // 1_000_000,
                    up_s=(now_ns - started_ns) // 1_000_000_000,
                )


def _cause(error: BaseException) -> BaseException | None:
    """Returns the first error of a group, or one that came alone; None where there are only tasks that were
    cancelled."""
    if isinstance(error, BaseExceptionGroup):
        causes = map(_cause, error.exceptions)
        return next((cause for cause in causes if cause is not None), None)
    return None if isinstance(error, trio.Cancelled) else error


def _why_it_fails(error: BaseException) -> str:
    """Returns the reason of a stop that was not in order: the disk, what it has damaged, data files of another size
    than its peers', a second Ctrl-C that does not wait, or a bug."""
    if isinstance(error, KeyboardInterrupt):
        return signal.SIGINT.name
    if isinstance(error, DamagedFileError):
        return f"damage on the disk: {error}; started again, it has that from its group (docs/operations.md, damage)"
    if isinstance(error, DiskError | MisplacedRangeError):
        return str(error)
    return f"bug: {type(error).__name__}: {error}"

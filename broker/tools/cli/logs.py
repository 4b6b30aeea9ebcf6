"""Logs of a server: one line an event on stderr, key=value, coloured when a person reads them."""

import contextlib
import logging
import sys
from typing import TextIO, cast

# structlog loads rich's tracebacks and pygments where rich can be imported, to colour tracebacks: 50 ms and 4 MiB of
# every server. The parser of a command line may have loaded rich before.
_RICH = sys.modules.get("rich")
sys.modules["rich"] = None  # type: ignore[assignment]
import structlog  # noqa: E402

del sys.modules["rich"]
if _RICH is not None:
    sys.modules["rich"] = _RICH


class _Lossy:
    """A file whose lines get lost when they cannot be written: the disk is full, it is closed, nobody reads it.

    An exception would be worse: code logs in the middle of its work, with half of it done.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._file.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._file.flush()


def configure_logs(level: str, warnings: tuple[str, ...] = ()) -> None:
    """Set structlog up for this process, then log the warnings of the settings; ``level`` is debug, info, ..."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.processors.StackInfoRenderer(),
            structlog.dev.ConsoleRenderer(
                timestamp_key="time",
                colors=sys.stderr.isatty(),
                pad_event_to=0,
                pad_level=False,
                exception_formatter=structlog.dev.plain_traceback,
                sort_keys=False,
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(file=cast(TextIO, _Lossy(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    for warning in warnings:
        structlog.get_logger("trivet.settings").warning("setting without effect", detail=warning)

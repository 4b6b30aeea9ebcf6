"""Which exceptions are news for the user rather than bugs, and what to tell. Imported only when something failed."""

from __future__ import annotations

import errno
from typing import NamedTuple

import trio

from broker.access.accounts import AccountsError
from broker.cli.errors import FAILED, INTERRUPTED, USAGE, CommandError
from broker.client.errors import ClientError, UsageError
from broker.cluster.child import ChildDiedError
from broker.cluster.compare import StoresDifferError
from broker.cluster.ports import PortInUseError
from broker.config import ConfigError
from broker.demo.scenario import DemoFailed
from broker.settings import ImpossibleSettingError
from log.errors import LogFault


class Failure(NamedTuple):
    """One line for stderr and the exit code."""

    text: str
    exit_code: int


def describe(error: BaseException) -> Failure | None:
    """The failure to report, None for an exception that should show its traceback."""
    if isinstance(error, BaseExceptionGroup):
        return _describe_group(error)
    if isinstance(error, CommandError):
        return Failure(str(error), error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        return Failure("interrupted", INTERRUPTED)
    if isinstance(error, (AccountsError, ConfigError, ImpossibleSettingError, UsageError)):
        return Failure(str(error), USAGE)
    if isinstance(
        error,
        (
            ClientError,
            ChildDiedError,
            DemoFailed,
            StoresDifferError,
            PortInUseError,
            LogFault,
            trio.TooSlowError,
        ),
    ):
        return Failure(str(error) or "took too long", FAILED)
    if isinstance(error, OSError):
        return Failure(_os_error(error), FAILED)
    return None


def _describe_group(group: BaseExceptionGroup[BaseException]) -> Failure | None:
    """All leaves must be expected; the first that is not an interruption is told."""
    failures = [describe(error) for error in group.exceptions]
    expected = [failure for failure in failures if failure is not None]
    if len(expected) < len(failures):
        return None
    return next((failure for failure in expected if failure.exit_code != INTERRUPTED), expected[0])


def _os_error(error: OSError) -> str:
    """What the system said, and what to do where that is not plain."""
    reason = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        reason += " (another server listens there: stop it or choose another port)"
    return f"{error.filename}: {reason}" if error.filename else reason

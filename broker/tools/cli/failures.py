"""Which exceptions are news for the user rather than bugs, and what to tell.

They are named and not imported: a wrong word on the command line need not wait for the client and the cluster to load.
"""

from __future__ import annotations

import errno
import sys
from typing import NamedTuple

from broker.tools.cli.errors import FAILED, INTERRUPTED, USAGE, CommandError

_WRONG_USE = (
    "broker.access.accounts:AccountsError",
    "broker.client.errors:UsageError",
    "broker.settings.reading:ConfigError",
    "broker.settings.tables:ImpossibleSettingError",
)
_FAILURES = (
    "broker.client.errors:ClientError",
    "broker.tools.cluster.child:ChildDiedError",
    "broker.tools.cluster.compare:StoresDifferError",
    "broker.tools.cluster.ports:PortInUseError",
    "broker.tools.demo.scenario:DemoFailed",
    "log.errors:LogFault",
    "trio:TooSlowError",
)


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
    if isinstance(error, _loaded(_WRONG_USE)):
        return Failure(str(error), USAGE)
    if isinstance(error, _loaded(_FAILURES)):
        return Failure(str(error) or "took too long", FAILED)
    if isinstance(error, OSError):
        return Failure(_os_error(error), FAILED)
    return None


def _loaded(names: tuple[str, ...]) -> tuple[type[BaseException], ...]:
    """Those of the exceptions whose modules are there: from what was never imported nothing can have come."""
    places = [name.split(":") for name in names]
    return tuple(getattr(sys.modules[module], name) for module, name in places if module in sys.modules)


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

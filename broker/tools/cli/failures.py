"""Exceptions that a user can cause or mend, rather than bugs, and the words for them.

They are given by name and not imported, so that a mistyped command fails at once, without loading client and cluster.
"""

import errno
import sys
from typing import NamedTuple

from broker.tools.cli.errors import FAILED, INTERRUPTED, USAGE, CommandError

_WRONG_USE = (
    "broker.access.accounts:AccountsError",
    "broker.client.errors:UsageError",
    "broker.console.options:ImpossibleOptionError",
    "broker.settings.loading:SettingsError",
    "broker.settings.rules:ImpossibleSettingError",
)
_FAILURES = (
    "broker.client.errors:ClientError",
    "broker.backups.errors:BackupError",
    "broker.migration.errors:MigrationError",
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
    if isinstance(error, _loaded(("log.errors:DiskFullError",))):
        return Failure(f"{error} (free some space on its disk, and try again)", FAILED)
    if isinstance(error, _loaded(_FAILURES)):
        from broker.operations.errors import in_words

        return Failure(in_words(error) or "took too long", FAILED)
    if isinstance(error, OSError):
        return Failure(_os_error(error), FAILED)
    return None


def _loaded(names: tuple[str, ...]) -> tuple[type[BaseException], ...]:
    """The exceptions whose modules are loaded: none can have come from a module that was never imported."""
    places = [name.split(":") for name in names]
    return tuple(getattr(sys.modules[module], name) for module, name in places if module in sys.modules)


def _describe_group(group: BaseExceptionGroup[BaseException]) -> Failure | None:
    """The first failure if all are expected, else None. Errors that come with an interruption are its consequences."""
    failures = [describe(error) for error in group.exceptions]
    expected = [failure for failure in failures if failure is not None]
    if len(expected) < len(failures):
        return None
    return next((failure for failure in expected if failure.exit_code == INTERRUPTED), expected[0])


def _os_error(error: OSError) -> str:
    """The system's words, and an advice where they are not plain."""
    reason = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        reason += " (another server listens there: stop it or choose another port)"
    return f"{error.filename}: {reason}" if error.filename else reason

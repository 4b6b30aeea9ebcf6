"""The ``trivet`` command.

It must start fast: people type it, and scripts call it in loops. So this file and :mod:`broker.tools.cli.app` import
next to nothing. Each command lives in a module of its own that is imported when it is called, and imports heavy modules
(trio, the client, the stores) inside the functions that need them.
"""

import os
import sys
from typing import NoReturn

from broker.tools.cli.errors import FAILED, INTERRUPTED, USAGE, CommandError


def main() -> NoReturn:
    """Run the command line given to this process, and exit.

    Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 130 interrupted; ``analyze`` has its own. Whatever
    goes wrong is one line on stderr that says what and, where it is known, what to do.
    """
    try:
        from broker.tools.cluster.parent_death import die_with_parent

        die_with_parent()
        exit_code = run(sys.argv[1:])
    except KeyboardInterrupt:  # before a command has begun
        exit_code = INTERRUPTED
    sys.exit(exit_code)


def run(arguments: list[str]) -> int:
    """Run one command line; returns the exit code. For `main` and for tests. Raises only what a mistake of ours has
    caused."""
    try:
        _check_text(arguments)
        result = _call(arguments)
    except CommandError as error:
        return _complain(str(error), error.exit_code)
    except BaseException as error:
        if _consists_of(error, KeyboardInterrupt):
            return INTERRUPTED
        if _consists_of(error, BrokenPipeError):
            # The reader of our output has seen enough; say nothing, and do not fail again when stdout is closed.
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123
            return FAILED
        code = _expected_failure(error)
        if code is None:
            raise
        return code
    return result if isinstance(result, int) else 0


def _consists_of(error: BaseException, kind: type[BaseException]) -> bool:
    """True for such an exception, and for a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(kind)[1] is None
    return isinstance(error, kind)


def _call(arguments: list[str]) -> object:
    """Call the command that is meant, and return its result. Raises CommandError for arguments that none
    understands."""
    if len(arguments) == 3 and arguments[0] in ("broker", "namesrv") and arguments[1] == "--config":
        # How servers begin. The parser would stay with one for as long as it runs: 4 MiB, and a fifth of its start.
        from broker.tools.cli.serving import run_here

        return run_here(arguments[0], arguments[2])
    from cyclopts import CycloptsError, UnusedCliTokensError

    from broker.tools.cli.app import build_app

    app = build_app(called=arguments[0] if arguments else "")
    try:
        return app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except UnusedCliTokensError as error:
        raise CommandError(
            f"too many arguments: {' '.join(error.unused_tokens or ())} (see --help)", USAGE
        ) from None
    except CycloptsError as error:
        raise CommandError(" ".join(str(error).split()) + " (see --help)", USAGE) from None


def _check_text(arguments: list[str]) -> None:
    """Raise CommandError for bytes that are no text: names and properties are text wherever they go."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise CommandError(
                f"{argument!r} is not UTF-8; bodies of other bytes come by --file or standard input", USAGE
            ) from None


def _expected_failure(error: BaseException) -> int | None:
    """Tell of a failure that operation can cause, and return its exit code; None for one that only a bug explains."""
    from broker.tools.cli.failures import describe

    described = describe(error)
    return None if described is None else _complain(described.text, described.exit_code)


def _complain(text: str, exit_code: int) -> int:
    from broker.tools.cli.output import visible

    print(f"trivet: {visible(text, lines=True)}", file=sys.stderr)
    return exit_code

"""Orders that change a cluster: a person is asked first, a script says ``--yes``."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Annotated

from cyclopts import Parameter

from broker.tools.cli.errors import FAILED, USAGE, CommandError

Yes = Annotated[bool, Parameter(name=["--yes", "-y"], negative="", help="Do it without asking.")]


@contextlib.contextmanager
def naming(option: str) -> Iterator[None]:
    """Turn `InUse`, raised in the block, into a CommandError that names the option which carries the order out all the
    same."""
    from broker.operations.errors import InUse

    try:
        yield
    except InUse as error:
        raise CommandError(f"{error}; {option} does it all the same", FAILED) from None


def confirm(question: str, *, yes: bool) -> None:
    """Return if the order may go out. Raises CommandError if the person says no, and without a terminal to ask at."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(f"{question} There is no terminal to ask at: say so with --yes", USAGE)
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was changed", FAILED)

"""Options and arguments, checked where they are given: the error names the one that is wrong and what is allowed.

A value that is not checked there fails later, in a task of the client's own: without the option's name, and often with
everything else that the client has under way.
"""

import math
from numbers import Integral, Real
from typing import Any, get_args

from broker.client.errors import UsageError

WHOLE_MAX = 2**31 - 1
"""The largest number in most fields of requests, which Java reads as 32 bits with a sign."""
LONG_MAX = 2**63 - 1
"""The same of offsets and times."""
SECONDS_MAX = 1_000_000_000
"""About 31 years. Time limits are counted in nanoseconds, in 64 bits at some brokers."""


def check_whole(least: int = 0, most: int = WHOLE_MAX, /, **given: object) -> None:
    """Check whole numbers, each given by its name. Raises UsageError."""
    for name, value in given.items():
        if type(value) is bool or not isinstance(value, Integral) or not least <= int(value) <= most:
            raise _wrong(name, value, least, most, "a whole number")


def check_seconds(least: float = 0, most: float = SECONDS_MAX, /, **given: object) -> None:
    """Check durations in seconds, each given by its name. Raises UsageError."""
    for name, value in given.items():
        # Not a number is not between any two.
        if type(value) is bool or not isinstance(value, Real) or not least <= float(value) <= most:
            raise _wrong(name, value, least, most, "a number of seconds")


def check_kind(kind: Any, /, **given: object) -> None:
    """Check that values, each given by its name, are of a class, or of one of ``A | B``. Raises UsageError.

    The error says of which class a value is, and not the value: it may be a secret.
    """
    for name, value in given.items():
        if not isinstance(value, kind):
            names = " or ".join(one.__name__ for one in get_args(kind) or (kind,)).replace("NoneType", "None")
            raise UsageError(f"{name} is of class {type(value).__name__}, and must be of {names}")


def _wrong(name: str, value: object, least: float, most: float, what: str) -> UsageError:
    bounds = f"at least {least}" + ("" if most == math.inf else f" and at most {most}")
    return UsageError(f"{name} is {value!r}, and must be {bounds}: {what}")

"""Moments as people write them on a command line, and spans as they read them."""

import datetime
import re
import time

from broker.tools.cli.errors import USAGE, CommandError

_AGO = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

MOMENT_HELP = (
    "a time such as 2030-01-31T12:00:00 (local if without a zone), or how long ago: 90s, 15m, 2h, 1d"
)


def moment_ms(text: str | None, option: str) -> int | None:
    """Return a moment in milliseconds since 1970, None for None. Raises CommandError, which begins with ``option``."""
    if text is None:
        return None
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            moment = time.time() - float(ago[1]) * _SECONDS[ago[2]]
        else:
            moment = datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        moment = -1.0
    if moment < 0:
        raise CommandError(f"{option} {text}: {MOMENT_HELP}", USAGE)
    return round(moment * 1000)


def moment_text(milliseconds: int | None) -> str:
    """Return a moment for people, in local time to the millisecond; "-" for None."""
    if milliseconds is None:
        return "-"
    try:
        local = datetime.datetime.fromtimestamp(milliseconds / 1000, tz=datetime.UTC).astimezone()
    except (ValueError, OverflowError, OSError):  # clients put into messages what they like
        return f"{milliseconds} ms"
    return local.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")


def span_text(seconds: float) -> str:
    """Return a span for people, in two units at most: 0.4 s, 3 min 20 s, 2 d 5 h."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller, smaller_unit in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller} {smaller_unit}"
    return f"{whole // 60} min {whole % 60} s"

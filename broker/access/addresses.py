"""Patterns of client addresses, in RocketMQ's notation (its `RemoteAddressStrategyFactory`).

``*`` is everyone. An IPv4 pattern has four parts: a number, ``*``, a range ``1-9`` or a list ``{1,2,3}``. An IPv6
pattern is an address. Beyond that, networks such as ``10.0.0.0/8`` and ``fd00::/8`` are understood, and an
IPv4 part of each kind may stand anywhere. Several patterns are joined by commas outside of braces.
"""

import ipaddress
import re
from collections.abc import Callable, Sequence

Matcher = Callable[[str], bool]

_COMMA_OUTSIDE_BRACES = re.compile(r",(?![^{]*\})")


class AddressPatternError(ValueError):
    """A malformed pattern; the error's text says what is wrong."""


def parse(text: str) -> Matcher:
    """Returns a function that tells whether an address (without port) matches; with an empty text none does.

    Raises `AddressPatternError`.
    """
    matchers = [_parse_one(part.strip()) for part in _COMMA_OUTSIDE_BRACES.split(text) if part.strip()]
    return lambda address: any(matcher(address) for matcher in matchers)


def _parse_one(text: str) -> Matcher:
    if text in ("*", "*.*.*.*", "*:*:*:*:*:*:*:*"):
        return lambda address: True
    if "/" in text or ":" in text:
        try:
            network = ipaddress.ip_network(text, strict=False)
        except ValueError as error:
            raise AddressPatternError(f"{text!r}: {error}") from None
        return lambda address: _in_network(address, network)
    parts = text.split(".")
    if len(parts) != 4:
        raise AddressPatternError(f"{text!r} is neither an address nor four parts joined by dots")
    allowed = [_numbers(part.strip(), text) for part in parts]
    return lambda address: _matches(address, allowed)


def _numbers(part: str, text: str) -> frozenset[str]:
    """The values that one part stands for, as they are written in an address."""
    # Texts are compared, and no numbers: an address as the system writes it has no leading zeros.
    numbers: Sequence[int]
    if part == "*":
        numbers = range(256)
    elif match := re.fullmatch(r"(\d{1,3})-(\d{1,3})", part):
        numbers = range(int(match[1]), int(match[2]) + 1)
    elif match := re.fullmatch(r"\{(\d{1,3}(?:\s*,\s*\d{1,3})*)\}", part):
        numbers = [int(value) for value in match[1].split(",")]
    elif re.fullmatch(r"\d{1,3}", part):
        numbers = [int(part)]
    else:
        raise AddressPatternError(
            f"{text!r}: {part!r} is no number, *, range such as 1-9 or list such as {{1,2}}"
        )
    if max(numbers, default=256) > 255:
        raise AddressPatternError(f"{text!r}: {part!r} is not within 0 to 255, or no range")
    return frozenset(map(str, numbers))


def _matches(address: str, allowed: list[frozenset[str]]) -> bool:
    parts = address.split(".")
    return len(parts) == 4 and all(part in values for part, values in zip(parts, allowed, strict=True))


def _in_network(address: str, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    return ipaddress.ip_address(address) in network

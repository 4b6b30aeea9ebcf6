"""Addresses as settings, routes and messages write them: ``host:port``, an IPv6 host in brackets.

An IPv6 host without brackets is refused: in ``fe80::1:9876`` the last part may be a port or a part of the host.
Where something is shared out by addresses, `share_of` says what counts as one.
"""

from typing import Final

from log.errors import RecordError
from log.formats.record import pack_host, unpack_host

_MAPPED: Final = bytes(10) + b"\xff\xff"
"""The beginning of an IPv4 address that is written as one of IPv6."""
_NETWORK_BYTES: Final = 8
_HOST_IN_NETWORK: Final = bytes(8)
_NO_PORT: Final = bytes(4)


def split_address(address: str) -> tuple[str, int]:
    """The host, without brackets, and the port (0 to 65535). Raises ValueError that says what is wrong."""
    host, colon, port_text = address.rpartition(":")
    if not colon or not host:
        raise ValueError("needs the form host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not host:
            raise ValueError("needs the form host:port")
    elif "/" in address:
        raise ValueError("needs the form host:port")
    elif ":" in host:
        raise ValueError("an IPv6 host goes in brackets: [::1]:10911")
    if not port_text.isascii() or not port_text.isdigit() or int(port_text) > 65535:
        raise ValueError("the port is a number from 0 to 65535")
    return host, int(port_text)


def host_of(address: str) -> str:
    """The host, without brackets, of an address that has a port or has none."""
    try:
        return split_address(address)[0]
    except ValueError:
        return address.removeprefix("[").removesuffix("]")


def join_address(host: str, port: int) -> str:
    """The address that `split_address` takes apart into this host and port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def share_of(host: str) -> str:
    """Returns what a host, without port and brackets, counts as where something is shared out by addresses.

    Of IPv6 that is its network of 64 bits, as whoever has one address there has as many as he likes. An IPv4 address
    that is mapped into IPv6 counts as itself, and so does whatever else it is.
    """
    if ":" not in host:
        return host
    try:
        packed = pack_host(host.partition("%")[0], 0)
    except (RecordError, ValueError):  # a text with a NUL is the latter
        return host
    if packed.startswith(_MAPPED):
        return unpack_host(packed[len(_MAPPED) :]).address
    return f"{unpack_host(packed[:_NETWORK_BYTES] + _HOST_IN_NETWORK + _NO_PORT).address}/64"

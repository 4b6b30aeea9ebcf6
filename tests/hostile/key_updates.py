"""A TLS client that does nothing but renew its keys, which Python's own ssl cannot do: OpenSSL is asked for it."""

from __future__ import annotations

import ctypes
import ssl
from pathlib import Path
from typing import Any, Final

_SSL_POINTER_AT: Final = ctypes.sizeof(ctypes.c_void_p) * 3
"""In CPython's `_ssl._SSLSocket`: behind the object's head, and the socket."""


def _openssl() -> Any:
    lines = Path("/proc/self/maps").read_text().splitlines()
    library = ctypes.CDLL(next(line.split()[-1] for line in lines if "libssl" in line))
    library.SSL_key_update.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.SSL_do_handshake.argtypes = [ctypes.c_void_p]
    library.SSL_get_version.argtypes = [ctypes.c_void_p]
    library.SSL_get_version.restype = ctypes.c_char_p
    return library


class KeyUpdates:
    """Makes them for the connection of `client`, behind its handshake. Raises LookupError where that cannot be done."""

    def __init__(self, client: ssl.SSLObject, outgoing: ssl.MemoryBIO) -> None:
        try:
            self._library = _openssl()
        except (OSError, StopIteration, AttributeError) as error:
            raise LookupError("OpenSSL is not found in this process") from error
        place = id(client._sslobj) + _SSL_POINTER_AT  # type: ignore[attr-defined]
        self._connection = ctypes.c_void_p.from_address(place).value
        self._outgoing = outgoing

    def take(self, size: int, *, wants_answers: bool) -> bytes:
        """Returns updates of so many bytes, or a little more, each to be answered by one, or not."""
        data = b""
        while len(data) < size:
            assert self._library.SSL_key_update(self._connection, int(wants_answers)) == 1
            assert self._library.SSL_do_handshake(self._connection) == 1
            data += self._outgoing.read()
        return data

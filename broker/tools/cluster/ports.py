"""Loopback ports for a cluster's servers, kept for it while a server of it is down.

A port is reserved by a socket that is bound and never listens. With SO_REUSEADDR on both sides a server can still
listen there (Linux), connections to it are refused while it does not, and the kernel gives the port to nobody else:
neither to another test nor to an outgoing connection, which is how a restarted server otherwise finds its port taken
now and then.
"""

import errno
import socket
import sys


class PortInUseError(Exception):
    """A port on which somebody listens already."""

    def __init__(self, host: str, port: int, purpose: str) -> None:
        super().__init__(f"port {port} of {host} ({purpose}) is in use")
        self.port = port


class PortReservations:
    """Ports of one host, reserved until `release`."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._sockets: list[socket.socket] = []

    def reserve(self, port: int, purpose: str) -> int:
        """Reserve a port, 0 for a free one; returns its number. Raises PortInUseError, and OSError for a bad host."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        holder = socket.socket(family, socket.SOCK_STREAM)
        try:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((self.host, port))
        except OSError as error:
            holder.close()
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(self.host, port, purpose) from None
            raise
        number = int(holder.getsockname()[1])
        if sys.platform == "linux":
            self._sockets.append(holder)
        else:
            holder.close()  # elsewhere a bound socket would keep the server out
        return number

    def release(self) -> None:
        """Give all ports back."""
        for holder in self._sockets:
            holder.close()
        self._sockets.clear()

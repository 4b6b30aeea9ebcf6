"""The largest number of connections, which follows from how many files the system lets a server open.

A connection takes a descriptor, and so does every file of the store. Both come out of one limit (RLIMIT_NOFILE), which
is 1,024 on many systems. Clients that merely connect could take the last descriptor, and a node that cannot open a file
of its store must stop. So a server raises the limit as far as it needs and the system allows, and keeps a part of it
for files.
"""

import resource
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger("trivet")

FILES_OF_A_STORE: Final = 768
"""A mapped file takes two descriptors (log/options.py: 256 files of queues, 8 of the index, 16 of the log and 4 of its
index, and those that are prepared). The rest is for connections to peers and name servers, for small files, and for the
sets of sockets (socket_reading.py)."""
FILES_OF_A_NAME_SERVER: Final = 128

_DESCRIPTORS: Final = Path("/proc/self/fd")


def connections_allowed(wanted: int, files: int) -> int:
    """Returns how many connections a server may take that wants `wanted` of them, and keeps `files` files open.

    Raises the process's limit if need be. If the system does not allow enough, the log says so; a quarter of the limit
    is for connections in any case.
    """
    limit = _raise_limit(wanted + files)
    allowed = min(wanted, max(limit - files, limit // 4))
    if allowed < wanted:
        log.warning(
            "fewer connections than max_connections: the system allows too few open files",
            connections=allowed,
            max_connections=wanted,
            open_files=limit,
        )
    return allowed


def open_files() -> tuple[int | None, int | None]:
    """Returns how many files this process has open, and how many it may have; None where the system does not say."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    found: int | None
    try:
        # Linux 6.2 and later say the number as the directory's size: who asks must not pay for thousands of files.
        found = _DESCRIPTORS.stat().st_size
        if not found:
            found = sum(1 for _ in _DESCRIPTORS.iterdir()) - 1  # the listing itself takes one
    except OSError:
        found = None
    return found, None if limit == resource.RLIM_INFINITY else limit


def _raise_limit(wanted: int) -> int:
    """Raises the limit to `wanted`, or as far as the system allows. Returns the limit in force, `wanted` at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    new = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (new, hard))
    except (OSError, ValueError):
        return soft  # some systems name a hard limit that they do not grant
    return new

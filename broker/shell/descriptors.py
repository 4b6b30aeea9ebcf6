"""How many connections a server may take, by the number of files that its system lets it open.

A connection takes a descriptor, and so does every file of the store. Both come out of one limit (RLIMIT_NOFILE), which
is 1,024 on many systems: clients that merely connect could take the last one, and a node that cannot open a file of its
must stop. So the limit is raised as far as the system allows and a server needs, and a part of it is kept for files.
"""

import resource
from typing import Final

import structlog

log = structlog.get_logger("trivet")

FILES_OF_A_STORE: Final = 768
"""Mapped files take two each (log/options.py: 256 of queues, 8 of the index, 16 of the log and 4 of its index, and what
is prepared); besides there are links of peers and name servers, and what is read and written as a whole."""
FILES_OF_A_NAME_SERVER: Final = 32


def connections_allowed(wanted: int, files: int) -> int:
    """How many connections to take where ``wanted`` are, beside so many files; raises the process's limit if need be.

    Where the system does not allow both, the log says so. A quarter of the limit is for connections in any case.
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


def _raise_limit(wanted: int) -> int:
    """Raises the limit to what is wanted, or as far as that goes; returns what it is now, ``wanted`` at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    new = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (new, hard))
    except (OSError, ValueError):
        return soft  # some systems name a hard limit that they do not grant
    return new

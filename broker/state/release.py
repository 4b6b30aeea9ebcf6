"""A release of Trivet, as far as nodes of other releases have to do with it: what it reads and what it writes.

Two numbers say it. The *protocol* is that of one link between two nodes, who agree on it when the link begins
(broker/peers/handshake.py). The *format* is that of what all nodes of a group read: commands in the log, snapshots, the
files of the store. A group has one format, which is part of its replicated state: its leader raises it, by a command,
once every member runs a release that reads the next one (broker/node/format_gate.py). Until then nothing is written
that a member could not read, and each node may go back to the release that it comes from.

Whoever adds a command, or a field to one or to a snapshot, gives it the next format in `FORMAT_OF_COMMANDS`
(broker/state/commands.py) and writes it only where `Metadata.format` has reached that.
"""

from dataclasses import dataclass
from typing import Final

from log.notes.store_format import FIRST_FORMAT

__all__ = ["FIRST_FORMAT", "THIS_RELEASE", "Release"]


@dataclass(frozen=True, slots=True)
class Release:
    """The numbers of one release."""

    name: str
    """For people."""
    oldest_protocol: int
    newest_protocol: int
    newest_format: int
    """The newest format that it reads; it reads all before that, too."""


THIS_RELEASE: Final = Release("0.2.0", oldest_protocol=7, newest_protocol=11, newest_format=3)
"""Protocols:

11: a node that has lost its votes says so, and the leader appends an entry for it; who answers it names the voters of
the group. Under an older leader its mode does not end, and where members were removed that it was given it may wait for
more of them than are there.

10: who votes while it recovers names the voters of configurations that it has lost. On older links it gives no such
vote.

9: a node asks others for committed entries that its disk has damaged. Leaders say the time with their appends, and
voters with their votes, whatever version the link has: before, a number stood there that meant nothing. So do followers
say with their answers whether their disks have room.

8: both ends of a link say which formats they read, and prove it.

7: headers are MessagePack, and a hello says a range of versions.

Formats:

3: the group agrees on where its log's head is (`RaiseHead`).

2: the format itself is part of the state (`RaiseFormat`), and noted beside the store; writers and their portions are
part of the state.

1: the first one.
"""

"""Requests that are done later than they came: without what was true only then.

A pull may wait long for a message or for a leader, and be passed on to the next leader meanwhile. Two things that it
says are of the moment at which it came:

- The consumer group's offset, which it stores if COMMIT_OFFSET is set in its sysFlag. By then its consumer has gone on
  and stored newer offsets in other ways; the old one, stored late or again, would take them back. Nothing is lost
  without it: nobody was told that it is stored, and the consumer's next pull brings a newer one.
- How long it may be held. What it has waited already counts: held anew for all of it by each leader that comes, it
  would outlast its client's patience, which is only some seconds more.
"""

from typing import Final

import msgspec

from broker.remoting.codes import PullSysFlag, RequestCode
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import HeaderFieldError
from broker.remoting.headers import PullMessageHeader

SUSPEND_MS_MAX: Final = 60_000
"""The longest that a pull is held, whatever it asks for."""

PULLS: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})


def pull_header(command: RemotingCommand) -> PullMessageHeader | None:
    """Returns the header of a pull, None of any other request; for whoever keeps it while the request waits.

    The pull processor must have read the command before, so that its header is known to be readable.
    """
    return command.decode_fields(PullMessageHeader) if command.code in PULLS else None


def done_late(command: RemotingCommand, pull: PullMessageHeader | None, waited_ns: int) -> RemotingCommand:
    """The request as it may be done after it has waited for so long; `pull` is its header, None if it is no pull.

    That is a pull without the offset that it brought, which may be held for the rest of its time only; all else as it
    is. A signature does not hold for it any more: what the client may do was judged when the request came.
    """
    if pull is None:
        return command
    # Stored now, the offset could take a newer one back.
    flags = pull.sys_flag & ~int(PullSysFlag.COMMIT_OFFSET)
    rest_ms = pull.suspend_timeout_ms
    if rest_ms > 0 and waited_ns > 0:
        # For the rest of its time only: held anew by each leader that comes, it would outlast its client's patience.
        rest_ms = max(0, min(rest_ms, SUSPEND_MS_MAX) * 1_000_000 - waited_ns) // 1_000_000
    # Nothing of it is to change: its bytes may go on as they came.
    if (flags, rest_ms) == (pull.sys_flag, pull.suspend_timeout_ms):
        return command
    try:
        fields = {**command.fields, "sysFlag": str(flags), "suspendTimeoutMillis": str(rest_ms)}
    except HeaderFieldError:
        # It is of a field that nobody has read so far: what the request needs is in the header. It is read anew, as the
        # offset may have moved on in the one that was kept.
        header = command.decode_fields(PullMessageHeader)
        header.sys_flag, header.suspend_timeout_ms = flags, rest_ms
        return msgspec.structs.replace(command, header=header)
    return msgspec.structs.replace(command, header=fields)

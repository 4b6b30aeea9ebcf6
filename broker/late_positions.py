"""Requests that are done later than they came: without what was true only then.

A pull also stores the group's position, with bit 0 of its sysFlag (remoting.md 7.2). It may wait long for a message or
for a leader, and be passed on to the next leader meanwhile. By then its consumer has gone on and stored newer positions
in other ways; the old one, stored late or again, would take them back. Nothing is lost without it: nobody was told that
it is stored, and the consumer's next pull brings a newer one.
"""

from typing import Final

import msgspec

from broker.remoting.codes import PullSysFlag, RequestCode
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import HeaderFieldError
from broker.remoting.headers import PullMessageHeader

_PULLS: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})


def without_late_position(command: RemotingCommand) -> RemotingCommand:
    """The request as it may be done later: a pull without the position that it brought, all else as it is.

    A signature does not hold for it any more: what the client may do was judged when the request came.
    The pull processor must have read the command before, so that its header is known to be readable.
    """
    if command.code not in _PULLS:
        return command
    header = command.decode_fields(PullMessageHeader)
    if not header.sys_flag & PullSysFlag.COMMIT_OFFSET:
        return command
    header.sys_flag &= ~int(PullSysFlag.COMMIT_OFFSET)
    try:
        fields = {**command.fields, "sysFlag": str(header.sys_flag)}
    except (
        HeaderFieldError
    ):  # of a field that nobody has read so far: what the request needs is in the header
        return msgspec.structs.replace(command, header=header)
    return msgspec.structs.replace(command, header=fields)

"""The cost of handling requests, in short ones of some tens of microseconds: so much of them goes on in a turn."""

from typing import Final

from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand

_SHORT: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.END_TRANSACTION,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.QUERY_CONSUMER_OFFSET,
    }
)
"""The requests that clients make for each message, short but for the body."""

_WORK_OF_OTHERS: Final = 8
"""Such as a pull, which may read at once."""

_BYTES_OF_ONE: Final = 4 * 1024
"""A request costs as much as a short one more for each so many bytes of its body, which are copied and checked."""


def work_of(command: RemotingCommand) -> int:
    """Returns the cost of a request, or of a client's response."""
    own = 1 if command.is_response or command.code in _SHORT else _WORK_OF_OTHERS
    return own + len(command.body) // _BYTES_OF_ONE

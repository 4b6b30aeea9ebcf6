"""Responses: how a request is answered, and how it is refused for want of room."""

from dataclasses import dataclass
from typing import Any, Final

from broker.remoting.codes import FLAG_ONE_WAY, ResponseCode
from broker.remoting.command import RemotingCommand, encode_response_head
from broker.remoting.json_body import encode_body
from broker.remoting.pieces import Pieces
from broker.requests.connection import Buffer, Connection
from broker.requests.errors import OverloadedError
from broker.requests.processing import OUTCOME_UNKNOWN
from log.errors import DiskFullError

LARGE_BODY_BYTES: Final = 64 * 1024
"""A longer body is only given to a client that has read most of its earlier responses: messages are views of the log,
but such a body is memory."""

UNREAD: Final = (
    "[OVERLOAD]responses to earlier requests of this client are not read yet: read them, then ask again"
)
"""The remark of the refusal of whoever leaves too much unread."""


def reply(
    connection: Connection,
    command: RemotingCommand,
    code: int,
    remark: str | None = None,
    fields: dict[str, str] | None = None,
    body: Buffer | Pieces = b"",
) -> None:
    """Answers a request, in the serialization that it came in; a one-way request gets no response.

    A long body comes in pieces, which nobody puts together.

    A response that cannot be encoded (parts of it may be another client's words) becomes one that says so.
    """
    if command.flag & FLAG_ONE_WAY:
        return
    pieces = body.all() if isinstance(body, Pieces) else [body] if body else []
    size = sum(map(len, pieces))
    if size > LARGE_BODY_BYTES and connection.leaves_much_unread():
        code, remark, fields = ResponseCode.SYSTEM_BUSY, UNREAD, None
        pieces, size = [], 0
    # A remark or a field may make the head longer than a frame may be, or have no form in the binary header.
    try:
        head = encode_response_head(command, int(code), remark, fields, size)
    except ValueError as error:
        refusal = f"the response cannot be sent: {error}"
        pieces = []
        head = encode_response_head(command, int(ResponseCode.SYSTEM_ERROR), refusal)
    connection.send(head, *pieces)


def reply_json(connection: Connection, command: RemotingCommand, body: Any) -> None:
    """Answers a request with a body struct, list or dict as JSON."""
    reply(connection, command, ResponseCode.SUCCESS, body=encode_body(body))


def reply_unknown(connection: Connection, command: RemotingCommand) -> None:
    """Answers that a request may have taken effect, or may yet: the leader was lost first."""
    reply(connection, command, ResponseCode.SYSTEM_ERROR, OUTCOME_UNKNOWN)


@dataclass(slots=True, eq=False)
class ReplyWhenCommitted:
    """Answers a request when its entry is committed, or says that its outcome is unknown; a `Waiter` of the replica."""

    _connection: Connection
    _command: RemotingCommand

    def committed(self) -> None:
        reply(self._connection, self._command, ResponseCode.SUCCESS)

    def lost(self) -> None:
        reply_unknown(self._connection, self._command)


def refuse(connection: Connection, command: RemotingCommand, error: OverloadedError | DiskFullError) -> None:
    """Answers that there is no room for a request, and that nothing of it was stored."""
    if isinstance(error, DiskFullError):
        code, remark = ResponseCode.SERVICE_NOT_AVAILABLE, f"disk full: {error}"
    else:
        code = ResponseCode.SYSTEM_BUSY
        remark = f"[REJECTREQUEST]system busy, start flow control for a while: {error}"
    reply(connection, command, code, remark)

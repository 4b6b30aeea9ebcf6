"""The errors of the client; each says whose fault it is and whether trying again may help.

    ClientError
    ├── UsageError                 the caller's fault: the same call fails again
    │   ├── ClientClosed           used before ``async with`` or after it
    │   └── MessageRejected        the message itself is illegal: too large, bad topic name, forbidden topic
    ├── NoRoute                    no name server knows a usable queue of the topic; it may be created later
    │   └── NoGroup                what an administrator asks of a broker group: there is none such, or none answers
    ├── NameServerUnavailable      none of the name servers answered; try again once one is back
    ├── BrokerError                a broker answered with an error code; `retry_may_help` says whether to try again
    │   └── BrokerBusy             it took on more than it can do, or its group is electing a leader: try again later
    ├── NotDelivered               all attempts within the time limit failed, and none took effect: safe to send again
    ├── SendOutcomeUnknown         all attempts failed and one of them may have taken effect: `Producer.resume` finds
    │                              out; a new send of the message may store it twice
    ├── PortionUndecidable         a portion was begun so long ago that the log no longer tells what of it is stored:
    │                              nothing more of it can be, and somebody must decide
    ├── SendsFailed                messages of an outbox were not stored, or it is unknown; `failures` has each
    ├── OutboxFull                 an outbox has no room now: wait for it with `send`
    ├── TransactionUndecided       no broker confirmed a commit or rollback in time: it will ask the producer's `check`
    ├── ReplyTimeout               no reply came in time: whether the request was handled is unknown
    ├── DamagedMessage             a received message cannot be read, its body does not match its checksum or cannot be
    │                              unpacked; another replica of the broker may have it whole
    ├── DamagedOffsets             a consumer's own file of offsets is damaged, and so is its backup: somebody must
    │                              decide where to go on
    ├── OffsetsNotStored           that file could not be written; it still holds the offsets before
    └── ConnectionFailed           no use of a connection succeeded; `request_left` says whether the peer may have acted
        ├── ConnectFailed          it could not be opened: nothing was sent
        ├── ConnectionLost         it broke while the call waited
        └── CallTimeout            no response in time; the connection stays usable

Every error carries ``retry_may_help``. Errors of the connection come out of queries (routes, offsets, admin calls);
a send turns them into `NotDelivered` or `SendOutcomeUnknown` once its attempts are used up.
"""

# ruff: noqa: N818 - the names say what happened; a suffix on each would say nothing more

from collections.abc import Sequence
from typing import Any

from log.errors import RecordError


class ClientError(Exception):
    """Base of all errors that the client raises on purpose."""

    retry_may_help: bool = False
    """True if the same call may succeed later without anyone changing it."""


class UsageError(ClientError):
    """The call itself is wrong; it fails again however often it is made."""


class ClientClosed(UsageError):
    """The client, or an outbox, was used before its ``async with`` block or after it."""


class MessageRejected(UsageError):
    """The message cannot be stored as it is; nothing was stored.

    ``code`` is the broker's, None if the client refused.
    """

    def __init__(self, detail: str, code: int | None = None) -> None:
        super().__init__(detail)
        self.code = code


class NoRoute(ClientError):
    """The topic has no queue that can be used: it does not exist, or no broker that has it is registered."""

    retry_may_help = True

    def __init__(self, topic: str, detail: str) -> None:
        super().__init__(f"topic {topic!r}: {detail}")
        self.topic = topic


class NoGroup(NoRoute):
    """No such broker group is registered, or nobody of it can be asked; `group` is "" where there is none at all."""

    def __init__(self, group: str, detail: str) -> None:
        ClientError.__init__(self, f"group {group!r}: {detail}" if group else detail)
        self.topic = ""
        self.group = group


class NameServerUnavailable(ClientError):
    """No name server answered; ``failures`` has one line for each that was tried. A retry does not help where all of
    them have shown certificates that are not good."""

    def __init__(self, failures: list[str], *, retry_may_help: bool = True) -> None:
        super().__init__("no name server answered: " + "; ".join(failures))
        self.failures = failures
        self.retry_may_help = retry_may_help


class BrokerError(ClientError):
    """A broker or name server answered with an error code."""

    def __init__(self, code: int, remark: str | None, address: str, retry_may_help: bool = False) -> None:
        super().__init__(f"{address} answered code {code}: {remark or 'no remark'}")
        self.code = code
        self.remark = remark
        self.address = address
        self.retry_may_help = retry_may_help


class BrokerBusy(BrokerError):
    """The broker refuses the request for now; nothing was done."""

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        super().__init__(code, remark, address, retry_may_help=True)


class NotDelivered(ClientError):
    """No attempt took effect, so nothing is stored. ``last_error`` ended the last one."""

    retry_may_help = True

    def __init__(self, topic: str, attempts: int, last_error: Exception | None) -> None:
        super().__init__(f"topic {topic!r}: not stored after {attempts} attempts; last: {last_error!r}")
        self.attempts = attempts
        self.last_error = last_error


class SendOutcomeUnknown(ClientError):
    """At least one attempt may have taken effect, or still may; of a batch, perhaps for its first messages only.

    ``unique_keys`` name the messages. `Producer.resume` needs ``unfinished``.
    """

    retry_may_help = True

    def __init__(
        self, topic: str, unique_keys: list[str], attempts: int, last_error: Exception | None
    ) -> None:
        what = (
            "stored"
            if len(unique_keys) == 1
            else f"all, some or none of {len(unique_keys)} messages are stored"
        )
        super().__init__(
            f"topic {topic!r}: unknown whether {what}, {attempts} attempts; last: {last_error!r}"
        )
        self.unique_keys = unique_keys
        self.unfinished: object = None
        self.attempts = attempts
        self.last_error = last_error


class PortionUndecidable(ClientError):
    """Some of a writer's portion may be stored, and its broker group cannot tell any more what: its log was deleted so
    far, or began anew. To send the rest could store messages twice."""

    def __init__(self, writer: str, number: str, last_error: Exception) -> None:
        super().__init__(
            f"portion {number} of {writer!r} was begun before, and the log does not tell any more what of it is "
            f"stored: {last_error}"
        )
        self.last_error = last_error


class SendsFailed(ClientError):
    """Messages of a `send_many`, or of an outbox where nobody had waited for them, failed.

    ``failures`` has each `Message` with its error. ``results`` has, of a `send_many`, what it would have returned, as
    far as it came: a `SendResult` for each message that it took, None for those that failed.
    """

    def __init__(self, failures: Sequence[tuple[Any, ClientError]], results: Sequence[Any] = ()) -> None:
        first = failures[0][1]
        super().__init__(f"{len(failures)} messages failed, first: {first}")
        self.failures = failures
        self.results = results
        self.retry_may_help = all(error.retry_may_help for _, error in failures)


class OutboxFull(ClientError):
    """The outbox has no room for another message now."""

    retry_may_help = True

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} messages wait in the outbox")


class TransactionUndecided(ClientError):
    """A commit or rollback was not confirmed; it may have been done. It may be repeated, and the broker will ask.

    ``last_error`` ended the last attempt.
    """

    retry_may_help = True

    def __init__(self, message_id: str, last_error: Exception) -> None:
        super().__init__(f"transaction {message_id}: decision not confirmed; last: {last_error!r}")
        self.message_id = message_id
        self.last_error = last_error


class ReplyTimeout(ClientError):
    """No reply to a request came in time; a consumer may have handled it, or still may."""

    retry_may_help = True

    def __init__(self, correlation_id: str) -> None:
        super().__init__(f"no reply to request {correlation_id} in time")
        self.correlation_id = correlation_id


class DamagedMessage(ClientError, RecordError):
    """A received message cannot be read, or its body does not match its checksum or cannot be unpacked: it was damaged
    on the way or in a store.

    A ClientError for the application that reads the message, and a RecordError for whatever takes a response apart, as
    any other bytes there that are no record.
    """


class DamagedOffsets(ClientError):
    """The file of a broadcast consumer's offsets is not as it was written. ``path`` names it."""

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path} is damaged: {detail}")
        self.path = path


class OffsetsNotStored(ClientError):
    """The file of a broadcast consumer's offsets could not be written; this is tried again at the next storing."""

    retry_may_help = True


class ConnectionFailed(ClientError):
    """A connection failed a call. ``request_left`` is True if the peer may have got the request, and acted on it."""

    retry_may_help = True

    def __init__(self, address: str, detail: str, request_left: bool) -> None:
        super().__init__(f"{address}: {detail}")
        self.address = address
        self.request_left = request_left


class ConnectFailed(ConnectionFailed):
    """No connection could be opened; nothing was sent. ``is_distrusted``: the server has shown a certificate that is
    not good; another one of its group may have a good one."""

    def __init__(self, address: str, detail: str, *, is_distrusted: bool = False) -> None:
        super().__init__(address, f"cannot connect: {detail}", request_left=False)
        self.is_distrusted = is_distrusted


class ConnectionLost(ConnectionFailed):
    """The connection broke while calls waited on it."""


class CallTimeout(ConnectionFailed):
    """The response did not come in time."""

"""Errors of the remoting layer; whose fault each is, and what the shell does about it.

    RemotingError
    ├── FrameError          the peer sent bytes that are no frame: close that connection, nothing else suffers
    │   └── BrokenStreamError   (frame.py) of a stream: has the good commands before those bytes
    ├── HeaderFieldError    a good request lacks or garbles a field: respond with code 1 with the error's text
    └── BodyError           a body that cannot be read: respond with code 1 with the error's text

All three are the sender's fault and the same bytes fail again, so a retry never helps.
"""

import enum
from typing import Self


class RemotingError(Exception):
    """Base of everything this package raises about bytes that came from outside."""


class FrameErrorReason(enum.StrEnum):
    """The ways in which bytes are no frame."""

    OVERSIZED = "oversized"
    TOO_SHORT = "too short"
    HEADER_LONGER_THAN_FRAME = "header longer than frame"
    HEADER_TOO_LONG = "header too long"
    TOO_MANY_FIELDS = "too many fields"
    UNKNOWN_SERIALIZE_TYPE = "unknown serialize type"
    BAD_JSON_HEADER = "bad JSON header"
    BAD_BINARY_HEADER = "bad binary header"


class FrameError(RemotingError):
    """Bytes that are no frame; the connection cannot be resynchronised and must be closed."""

    def __init__(self, reason: FrameErrorReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class HeaderFieldError(RemotingError):
    """A header field is missing or has an impossible value; ``str(error)`` is the remark to respond with."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field

    @classmethod
    def missing(cls, field: str) -> Self:
        """RocketMQ's own words, which some clients show to their users."""
        return cls(field, f"the custom field <{field}> is null")


class BodyError(RemotingError):
    """A body that is not what its request code promises; ``str(error)`` is the remark to respond with."""

"""The refusal of a request, with a word for logs and counters beside the remark that its client reads."""

from enum import Enum
from typing import Final

from broker.remoting.codes import RequestCode, ResponseCode
from broker.requests.errors import RequestError

_REMARK_LENGTH_MAX: Final = 500


class Reason(Enum):
    """The kinds of refusals. The value is what logs and metrics say."""

    NO_ACCOUNT = "no account"
    """The request names none, or none that is known."""
    PLAIN_CONNECTION = "plain connection"
    """Accounts are taken over TLS alone."""
    BAD_SIGNATURE = "bad signature"
    REPEATED = "repeated"
    """The signature of the request was used already."""
    NO_PERMISSION = "no permission"
    """The account is not allowed to do that."""
    NO_BROKER = "no broker"
    """The request is for brokers, and its sender has not proved to be one."""


class RefusedError(RequestError):
    """A request that its client may not make: code 16."""

    def __init__(self, reason: Reason, remark: str) -> None:
        """`remark` may have a client's own words in it, which are cut."""
        super().__init__(ResponseCode.NO_PERMISSION, remark[:_REMARK_LENGTH_MAX])
        self.reason = reason


def request_words(code: int) -> str:
    """Returns a request's number and, if it has one, its name."""
    try:
        return f"request {code} ({RequestCode(code).name})"
    except ValueError:
        return f"request {code}"

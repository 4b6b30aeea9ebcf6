"""Answers in JSON, those for errors included: each error says what happened, and whether trying again may help."""

import json
from typing import Final

import msgspec
from starlette.responses import Response

from broker.client.errors import (
    BrokerBusy,
    BrokerError,
    ClientError,
    ConnectionFailed,
    NameServerUnavailable,
    NoRoute,
    NotDelivered,
    UsageError,
)
from broker.console.asking import InPart
from broker.console.audit import AuditError
from broker.console.parameters import ParametersError
from broker.console.seats import SignInRefusedError
from broker.console.sessions import TooManyError
from broker.operations.errors import InUse, NotThere, in_words
from broker.remoting.codes import ResponseCode

MISSING_HEADER: Final = "x-trivet-missing"


class RefusedError(Exception):
    """The console itself refuses a request; ``status`` is HTTP's."""

    def __init__(self, status: int, kind: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.kind = kind


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an answer that is an error."""

    error: str
    kind: str
    """The kind that the page goes by: ``token``, ``sign in``, ``read only``, ``no permission``, ``not found``, ``in
    use``, ``wrong``, ``unavailable`` or ``failed``."""
    retry_may_help: bool = False


def json_response(content: object, status: int = 200) -> Response:
    """Return an answer in JSON; broker groups that are missing from it are named in a header of their own."""
    headers = {}
    if isinstance(content, InPart):
        if content.missing:
            headers[MISSING_HEADER] = json.dumps(msgspec.to_builtins(content.missing))  # in ASCII
        content = content.content
    return Response(msgspec.json.encode(content), status, headers, "application/json")


EXPECTED: Final = (RefusedError, ParametersError, SignInRefusedError, TooManyError, AuditError, ClientError)
"""The errors that can occur in operation; any other is a mistake in this program."""


def failure_response(error: Exception) -> Response:
    """Return the answer for an error of `EXPECTED`."""
    status, kind = _describe(error)
    retry = isinstance(error, ClientError) and error.retry_may_help
    return json_response(Failure(error=_text(error), kind=kind, retry_may_help=retry), status)


def is_unknown(error: BaseException) -> bool:
    """Tell whether a change that ended with that error may have been made. (An order of several steps that was refused
    in the middle has made the first ones all the same.)"""
    match error:
        case RefusedError():
            return error.status == 504
        case ConnectionFailed():
            return error.request_left
        case BrokerError():
            return error.code == ResponseCode.SYSTEM_ERROR and not isinstance(error, BrokerBusy)
        case UsageError() | NotThere() | InUse() | NotDelivered() | NameServerUnavailable():
            return False
    return True


def _describe(error: Exception) -> tuple[int, str]:
    # From the most special kind to the general one: many of these derive from others below.
    match error:
        case RefusedError():
            return error.status, error.kind
        case ParametersError() | UsageError():
            return 400, "wrong"
        case SignInRefusedError():
            return 403, "sign in"
        case TooManyError():
            return 429, "unavailable"
        case AuditError():
            return 503, "unavailable"
        case BrokerError(code=ResponseCode.NO_PERMISSION):
            return 403, "no permission"
        case (
            BrokerError(code=ResponseCode.TOPIC_NOT_EXIST | ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
            | NoRoute()
        ):
            return 404, "not found"
        case NotThere():
            return 404, "not found"
        case InUse():
            return 409, "in use"
        case BrokerBusy() | ConnectionFailed() | NameServerUnavailable():
            return 503, "unavailable"
    assert isinstance(error, ClientError), "all others of `EXPECTED` are above"
    return 502, "failed"


def _text(error: Exception) -> str:
    if isinstance(error, AuditError):
        return f"nothing was changed, as the audit log cannot be written: {error}"
    return in_words(error)

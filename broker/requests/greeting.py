"""The greeting of a connection: the server's nonce, with which the client signs what follows (docs/security.md).

A nonce that only this connection has makes each signature good for this connection alone: no clocks are compared, and
nothing of other connections is remembered. Within the connection each signed request has a higher number (the opaque)
than the one before, so that none is good twice.

On an encrypted connection nobody can slip a request in between others. There one good signature is enough: requests
behind it need only name the same account.
"""

from collections.abc import Callable
from typing import Final

from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import HeaderFieldError
from broker.requests.connection import NONCE_BYTES, Connection, Greeting
from broker.requests.errors import RequestError

NONCE: Final = "nonce"
"""Field of the response: the nonce, in hexadecimal digits."""
SIGN: Final = "sign"
"""Field of the response: which requests are to be signed, `EACH` or `FIRST`."""
EACH: Final = "each"
FIRST: Final = "first"


PROBE_CODE: Final = RequestCode.GET_ROUTEINFO_BY_TOPIC
PROBE_FIELDS: Final = {"topic": "TBW102"}
"""A question behind the greeting that every server answers, with a route or with a refusal. RocketMQ's name servers
leave a greeting without any response; Trivet's servers answer in order. So whichever response comes first tells which
of them this is.
"""

PATIENCE_S: Final = 0.5
"""Clients that wait for a server's greeting ask `PROBE_CODE` only when it has not come for so long."""


class GreetingError(Exception):
    """The response to a greeting is neither a greeting nor the refusal of a server that knows none."""


def greet(connection: Connection, nonce: Callable[[int], bytes]) -> dict[str, str]:
    """Greets a client; returns the fields of the response. `nonce` returns the given number of random bytes.

    Raises `RequestError` for a second greeting: earlier requests of the connection could be signed anew for it.
    """
    if connection.greeting is not None:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "this connection was greeted already")
    greeting = connection.greeting = Greeting(nonce(NONCE_BYTES), once=connection.is_encrypted)
    return {NONCE: greeting.nonce.hex(), SIGN: FIRST if greeting.once else EACH}


def read_greeting(response: RemotingCommand) -> tuple[bytes, bool] | None:
    """Returns the nonce in the response to a greeting, and whether each request is to be signed.

    Returns None where the server knows no greetings: it is not Trivet's, or older than they are. Raises
    `GreetingError` for a response that says something else, such as that the server is busy, or cannot be read.
    """
    if response.code in _NO_GREETINGS:
        return None
    try:
        fields = response.fields if response.code == ResponseCode.SUCCESS else {}
    except HeaderFieldError as error:
        raise GreetingError(f"no greeting: {error}") from error
    try:
        nonce = bytes.fromhex(fields.get(NONCE, ""))
    except ValueError:
        # No digits: refused below, as a nonce of another length is.
        nonce = b""
    if len(nonce) != NONCE_BYTES or fields.get(SIGN) not in (EACH, FIRST):
        raise GreetingError(f"no greeting, but code {response.code}: {response.remark or 'no remark'}")
    return nonce, fields[SIGN] == EACH


_NO_GREETINGS: Final = (
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    ResponseCode.SYSTEM_ERROR,  # RocketMQ 4.x with ACL: it judges the account first, and a greeting names none
    ResponseCode.NO_PERMISSION,  # Trivet before greetings, and RocketMQ 5, likewise
)

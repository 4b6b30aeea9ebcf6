"""The account of a client, for servers that check who asks (docs/security.md)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from broker.access.frame_signature import sign_frame
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand, header_fields
from broker.remoting.rocketmq_signature import ACCESS_KEY, SIGNATURE, signature
from broker.requests.greeting import GreetingError, read_greeting


@dataclass(frozen=True, slots=True)
class Credentials:
    """An account: its name, and the secret with which requests are signed; the secret itself is never sent.

    Servers of Trivet are sent signatures over the whole frame, others those of RocketMQ 4.x. With `whole_frames` those
    others are sent nothing: whoever can change bytes on a connection in the clear can pose as one of them.
    """

    access_key: str
    secret_key: str = field(repr=False)
    whole_frames: bool = False

    def sign(
        self, fields: Mapping[str, str] | msgspec.Struct | None, body: bytes | bytearray | memoryview
    ) -> dict[str, str]:
        """Return the extFields of a request as RocketMQ 4.x signs them: with the account's name and the signature."""
        signed = header_fields(fields) if isinstance(fields, msgspec.Struct) else dict(fields or {})
        signed[ACCESS_KEY] = self.access_key
        signed[SIGNATURE] = signature(self.secret_key, signed, body)
        return signed


class Signer:
    """Signs the requests of one connection, as its server's greeting wants it."""

    __slots__ = ("_credentials", "_is_proven", "_nonce", "_signs_each")

    def __init__(self, credentials: Credentials, response: RemotingCommand | None) -> None:
        """`response` is what the server has answered to the greeting, None if it answers others only. Raises
        `GreetingError`.
        """
        self._credentials = credentials
        self._nonce: bytes | None = None
        self._signs_each = True
        self._is_proven = False
        """A signed request has left, and none has been refused since."""
        greeting = None if response is None else read_greeting(response)
        if greeting is not None:
            self._nonce, self._signs_each = greeting
        elif credentials.whole_frames:
            raise GreetingError(
                "the server knows no signatures over whole frames, and no others are to be sent"
            )

    def sign(self, command: RemotingCommand) -> None:
        """Adds the account, and a signature where one is needed, to a request that is complete."""
        credentials = self._credentials
        if self._nonce is None:
            command.header = credentials.sign(command.fields, command.body)
        elif self._signs_each or not self._is_proven:
            sign_frame(credentials.access_key, credentials.secret_key, self._nonce, command)
            self._is_proven = True
        else:
            command.header = {**command.fields, ACCESS_KEY: credentials.access_key}

    def answered(self, code: int) -> None:
        """Hears of a response: behind a refusal the next request is signed again, as the accounts may have changed."""
        if code == ResponseCode.NO_PERMISSION:
            self._is_proven = False

"""Finds out whose request it is, by its address or by a signature, and refuses a wrong signature.

Two kinds of signatures are known: Trivet's own over the whole frame (`frame_signature`), and RocketMQ 4.x's. The second
can be forbidden: who has seen a signature of that kind can put other names to its values, and send it again.
"""

import hmac
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from broker.access.accounts import Account, Accounts
from broker.access.frame_signature import FRAME_SIGNATURE, frame_signature
from broker.access.refusal import Reason, RefusedError
from broker.remoting.command import RemotingCommand
from broker.remoting.rocketmq_signature import ACCESS_KEY, SIGNATURE, signature
from broker.requests.connection import Greeting
from log.formats.record import unpack_host

_ADDRESSES_MAX: Final = 4096
"""The number of addresses with ports of which it is remembered whether they need sign."""


class Identification:
    """The accounts, and the signatures that count: with `whole_frames` RocketMQ's do not, with `encrypted_only` none on
    a connection in the clear.
    """

    def __init__(
        self, accounts: Accounts, *, whole_frames: bool = False, encrypted_only: bool = False
    ) -> None:
        self._by_access_key = accounts.by_access_key
        self._whole_frames = whole_frames
        self._encrypted_only = encrypted_only
        # A connection asks the same about its one address for every request.
        self._is_trusted: Callable[[bytes], bool] = lru_cache(_ADDRESSES_MAX)(
            lambda host: accounts.trusts(unpack_host(host)[0])
        )
        self._is_trusted_as: Callable[[str, bytes], bool] = lru_cache(_ADDRESSES_MAX)(
            lambda access_key, host: self._by_access_key[access_key].trusts(unpack_host(host)[0])
        )

    def trusts(self, host: bytes) -> bool:
        """Tells whether nobody at this address need say who he is."""
        return self._is_trusted(host)

    def account(
        self,
        host: bytes,
        command: RemotingCommand,
        greeting: Greeting | None,
        *,
        is_encrypted: bool,
    ) -> Account | None:
        """Returns the account that makes a request which has just come; None where the address is trusted.

        `host` is packed as in a record, `greeting` and `is_encrypted` are of the connection. Raises `RefusedError`.
        Whoever calls this twice for a request is told that its signature was used.
        """
        # Before the signature is looked at: whatever that is worth, it is the connection that has to be another.
        account = self.named(host, command)
        if account is not None:
            if self._encrypted_only and not is_encrypted:
                raise RefusedError(
                    Reason.PLAIN_CONNECTION,
                    "accounts are taken over TLS alone here, and this connection is plain: have the client use TLS "
                    "(or the server take it, allow_plaintext = true)",
                )
            self._check_signature(account, command, greeting)
        return account

    def named(self, host: bytes, command: RemotingCommand) -> Account | None:
        """Returns the account that a request names which was let in; None where the address is trusted.

        Raises `RefusedError`: the accounts may have changed since.
        """
        return None if self._is_trusted(host) else self.known(host, command.fields.get(ACCESS_KEY))

    def known(self, host: bytes, access_key: str | None) -> Account | None:
        """Returns the account under that key, of somebody who was let in; None where the address is trusted.

        Raises `RefusedError` without a key, and for one that no account has.
        """
        if self._is_trusted(host):
            return None
        if not access_key:
            raise RefusedError(
                Reason.NO_ACCOUNT,
                "the request names no AccessKey: give the client an access key and a secret key",
            )
        account = self._by_access_key.get(access_key)
        if account is None:
            raise RefusedError(Reason.NO_ACCOUNT, f"no account has the AccessKey {access_key!r}")
        return None if self._is_trusted_as(access_key, host) else account

    def _check_signature(self, account: Account, command: RemotingCommand, greeting: Greeting | None) -> None:
        fields = command.fields
        if FRAME_SIGNATURE in fields:
            check_frame(account.access_key, account.secret_key, command, greeting)
        elif SIGNATURE not in fields and _is_proven(account, greeting):
            pass
        elif self._whole_frames:
            raise RefusedError(
                Reason.BAD_SIGNATURE, "the request is not signed as a whole, which is asked for here"
            )
        else:
            expected = signature(account.secret_key, fields, command.body)
            if not hmac.compare_digest(expected.encode(), fields.get(SIGNATURE, "").encode()):
                raise _wrong(account.access_key)


def check_frame(
    access_key: str, secret_key: str, command: RemotingCommand, greeting: Greeting | None
) -> None:
    """Passes a request whose signature over the whole frame is good, and notes that, or raises `RefusedError`."""
    if greeting is None:
        raise RefusedError(
            Reason.BAD_SIGNATURE,
            "the signature covers a connection's greeting, but this connection was not greeted",
        )
    expected = frame_signature(secret_key, greeting.nonce, command)
    found = command.fields.get(FRAME_SIGNATURE, "")
    if not hmac.compare_digest(expected.encode(), found.encode()):
        raise _wrong(access_key)
    if command.opaque <= greeting.number:
        raise RefusedError(Reason.REPEATED, "the request came again: its signature was used already")
    greeting.number = command.opaque
    greeting.proven = access_key, secret_key


def _is_proven(account: Account, greeting: Greeting | None) -> bool:
    """Tells whether requests of an encrypted connection that is greeted are the account's without signatures."""
    return (
        greeting is not None and greeting.once and greeting.proven == (account.access_key, account.secret_key)
    )


def _wrong(access_key: str) -> RefusedError:
    return RefusedError(
        Reason.BAD_SIGNATURE,
        f"the signature is not that of AccessKey {access_key!r}: is the secret key the one the server knows?",
    )

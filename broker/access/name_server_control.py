"""Decides on each request to a name server, before it is looked at any further.

Two things can be asked for, each by a setting of its own. With `registration_secret` a broker proves that it is one, by
signing whole frames under the name `BROKERS` with it, and where certificates are asked of brokers, by having shown one
on its connection. With a file of accounts everybody else signs as for a broker, and
the table in `name_server_needs` says who may do what. Without either its requests are everyone's, as with RocketMQ's
name servers.
"""

from typing import Final

from broker.access.accounts import Account, Accounts
from broker.access.control import SEES_ALL, Sight
from broker.access.identification import Identification, check_frame
from broker.access.name_server_needs import NAME_SERVER_NEEDS, Need
from broker.access.refusal import Reason, RefusedError, request_words
from broker.remoting.command import RemotingCommand
from broker.remoting.rocketmq_signature import ACCESS_KEY
from broker.requests.connection import Connection

BROKERS: Final = "broker"
"""The access key of all brokers. It is shorter than an account's may be."""


class NameServerControl:
    """The rules of one name server. `accounts` may be replaced at any time."""

    def __init__(
        self,
        accounts: Accounts | None = None,
        registration_secret: str = "",
        *,
        by_certificate: bool = False,
        whole_frames: bool = False,
        encrypted_only: bool = False,
        open_routes: bool = True,
    ) -> None:
        """None and "" ask for nothing; with `by_certificate` a connection that is certified is a broker's: then the
        server asks for no other certificates.

        With `open_routes` clients may ask for routes without an account. The other two are those of `Identification`.
        """
        self._secret = registration_secret
        self._by_certificate = by_certificate
        self._whole_frames = whole_frames
        self._encrypted_only = encrypted_only
        self._open_routes = open_routes
        self._identification: Identification | None = None
        if accounts is not None:
            self.replace(accounts)

    @property
    def knows_brokers(self) -> bool:
        """Tells whether a broker must prove that it is one."""
        return bool(self._secret) or self._by_certificate

    def replace(self, accounts: Accounts) -> None:
        """Puts other accounts in force."""
        assert self.knows_brokers, "accounts alone would leave registrations to everyone"
        self._identification = Identification(
            accounts, whole_frames=self._whole_frames, encrypted_only=self._encrypted_only
        )

    def check(self, connection: Connection, command: RemotingCommand) -> Sight:
        """Returns what the client of a request that may be made sees, or raises `RefusedError`; notes that the
        connection has proved something.

        A request that no name server knows may be made: the response says so. Raises `HeaderFieldError` for malformed
        fields.
        """
        need = NAME_SERVER_NEEDS.get(command.code)
        if need is None or (need is Need.ROUTE and self._open_routes):
            return SEES_ALL
        if self._secret and command.fields.get(ACCESS_KEY) == BROKERS:
            check_frame(BROKERS, self._secret, command, connection.greeting)
            connection.is_proven = True
            if need is Need.ADMINISTRATOR:
                raise RefusedError(
                    Reason.NO_PERMISSION,
                    f"{request_words(command.code)} needs an administrator, and the sender is a broker",
                )
            return SEES_ALL
        if (
            self._by_certificate
            and connection.is_certified
            and need is not Need.ADMINISTRATOR
            and ACCESS_KEY not in command.fields
        ):
            connection.is_proven = True
            return SEES_ALL
        if self._identification is None:
            if need is Need.BROKER and self.knows_brokers:
                raise _no_broker(command)
            return SEES_ALL
        if need is Need.BROKER and ACCESS_KEY not in command.fields:
            # RocketMQ's brokers sign nothing: their addresses may be trusted.
            if self._identification.trusts(connection.host):
                connection.is_proven = True
                return SEES_ALL
            raise _no_broker(command)
        account = self._identification.account(
            connection.host, command, connection.greeting, is_encrypted=connection.is_encrypted
        )
        connection.is_proven = True
        if account is None:
            return SEES_ALL
        _check_need(need, account, command)
        return SEES_ALL if account.admin else Sight(account)


def _check_need(need: Need, account: Account, command: RemotingCommand) -> None:
    if account.admin or need is Need.ROUTE or need is Need.KNOWN:
        return
    if need is Need.BROKER:
        raise _no_broker(command)
    raise RefusedError(
        Reason.NO_PERMISSION,
        f"{request_words(command.code)} needs an administrator, and {account.access_key!r} is not one",
    )


def _no_broker(command: RemotingCommand) -> RefusedError:
    return RefusedError(
        Reason.NO_BROKER,
        f"request {command.code} is a broker's: give the broker the registration_secret of this name server, or a "
        "certificate of the authority that it asks for (tls_broker_ca)",
    )

"""Decides on each request of a client, before any processor sees it (RocketMQ's `PlainPermissionManager`).

In order: an address that the file trusts passes; so does one that the named account trusts; else the signature must be
the account's (`broker.access.identification`), and the account must have what the request needs. The response to a
refused request says what is missing.
Requests that another node of the group forwards were decided on there; peers are believed (broker/peers/handshake.py).
What only the leader can judge, because the topic stands in a message that a request merely points to, it judges itself
(`AccessControl.check_publish`): a forwarded request still names its account, whose signature was looked at by the node
that it came to, and bears the address that it came from. So it is with requests that ask for lists: who answers them
leaves out what the account may not see (`Sight`).
"""

from collections.abc import Iterable
from typing import Final

from broker.access.accounts import Account, Accounts
from broker.access.identification import Identification
from broker.access.needs import Need, Subject, consuming, needs, publishing, reading, using
from broker.access.refusal import Reason, RefusedError, request_words
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import HeaderFieldError
from broker.requests.connection import Greeting
from broker.state.topic_rules import WAITING_TOPICS


class AccessControl:
    """The rules of one file of accounts."""

    def __init__(
        self, accounts: Accounts, *, whole_frames: bool = False, encrypted_only: bool = False
    ) -> None:
        """With `whole_frames` RocketMQ's signatures do not count, with `encrypted_only` none on plain connections."""
        self.digest: Final = accounts.digest
        self._identification = Identification(
            accounts, whole_frames=whole_frames, encrypted_only=encrypted_only
        )

    def check(
        self,
        host: bytes,
        command: RemotingCommand,
        greeting: Greeting | None = None,
        *,
        is_encrypted: bool = False,
    ) -> None:
        """Passes a request of the client at `host` (packed as in a record) or raises RequestError with code 16.

        `greeting` and `is_encrypted` are of the client's connection. To be called once for each request.
        """
        account = self._identification.account(host, command, greeting, is_encrypted=is_encrypted)
        if account is not None:
            _check_needs(account, command, needs(command))

    def check_again(self, host: bytes, command: RemotingCommand) -> None:
        """Does as `check` for a request that was let in by earlier rules and has waited.

        Its signature was looked at then, and is good once.
        """
        account = self._named(host, command)
        if account is not None:
            _check_needs(account, command, needs(command))

    def check_publish(self, host: bytes, command: RemotingCommand, topic: str) -> None:
        """Does as `check_again` for a request that publishes to a topic which it does not name."""
        account = self._named(host, command)
        if account is not None:
            _check_needs(account, command, publishing(topic))

    def may_publish(self, host: bytes, access_key: str, topic: str) -> bool:
        """Tells whether a client that was let in under `access_key` may publish to the topic."""
        try:
            account = self._identification.known(host, access_key)
        except RefusedError:
            return False  # the accounts have changed since, or a node that knows none has told of it
        return account is None or _missing(account, publishing(topic)) is None

    def sight(self, host: bytes, command: RemotingCommand) -> "Sight":
        """Returns what the client of a request that was let in may see.

        Raises `RequestError` where that cannot be told: the account is not known here, or not any more.
        """
        account = self._named(host, command)
        return SEES_ALL if account is None else Sight(account)

    def _named(self, host: bytes, command: RemotingCommand) -> Account | None:
        """Does as `Identification.named`; what cannot be read names no account, either."""
        try:
            return self._identification.named(host, command)
        except HeaderFieldError as error:
            # Nobody has read its fields yet: its address was trusted when it came.
            raise RefusedError(Reason.NO_ACCOUNT, str(error)) from error


class Sight:
    """The part that an account may see of topics, messages and consumer groups."""

    __slots__ = ("_account",)

    def __init__(self, account: Account | None) -> None:
        """None stands for clients that no rules bind."""
        self._account = account

    @property
    def is_everything(self) -> bool:
        """True if this client may see all there is: nothing need be left out of a response."""
        return self._account is None

    def topic(self, name: str) -> bool:
        """Tells whether the topic may be known: the account has some permission on it."""
        return self._account is None or self._has(using(name))

    def group(self, name: str) -> bool:
        """Tells whether the consumer group may be known."""
        return self._account is None or self._has(consuming(name))

    def message(self, topics: Iterable[str]) -> bool:
        """Tells whether a message may be read: the right to read any of the topics that it belongs to is enough.

        Topics in which messages of all topics wait do not count.
        """
        return any(self._has(reading(topic)) for topic in topics if topic not in WAITING_TOPICS)

    def _has(self, wanted: list[Need]) -> bool:
        account = self._account
        return account is None or _missing(account, wanted) is None


SEES_ALL: Final = Sight(None)


def _check_needs(account: Account, command: RemotingCommand, wanted: list[Need]) -> None:
    need = _missing(account, wanted)
    if need is None:
        return
    if need.subject is Subject.BROKER:
        raise RefusedError(
            Reason.NO_PERMISSION,
            f"{request_words(command.code)} needs an administrator, and {account.access_key!r} is not one",
        )
    raise RefusedError(
        Reason.NO_PERMISSION,
        f"{account.access_key!r} needs {need.words} on {need.subject.value} {need.name!r}",
    )


def _missing(account: Account, wanted: list[Need]) -> Need | None:
    """Returns the first permission that the account lacks.

    As in RocketMQ, an administrator is bound only by what is written for a topic or consumer group.
    """
    for need in wanted:
        if not (account.admin and not _is_written(account, need)) and not _granted(account, need):
            return need
    return None


def _is_written(account: Account, need: Need) -> bool:
    return need.name in (account.groups if need.subject is Subject.GROUP else account.topics)


def _granted(account: Account, need: Need) -> bool:
    if need.subject is Subject.BROKER:
        return account.admin
    owned = account.group(need.name) if need.subject is Subject.GROUP else account.topic(need.name)
    return bool(owned & need.permission)

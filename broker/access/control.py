"""Decides on each request of a client, before any processor sees it (RocketMQ's `PlainPermissionManager`).

In order: an address that the file trusts passes; so does one that the named account trusts; else the signature must be
the account's, and the account must have what the request needs. The response to a refused request says what is missing.
Requests that another node of the group forwards were decided on there; peers are believed (broker/peers/handshake.py).
What only the leader can judge, because the topic stands in a message that a request merely points to, it judges itself
(`AccessControl.check_publish`): a forwarded request still bears its signature and the address that it came from.
"""

import hmac

from broker.access.accounts import Account, Accounts
from broker.access.needs import ADMIN_CODES, Need, needs, publishing
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.signature import ACCESS_KEY, SIGNATURE, signature
from broker.requests.errors import RequestError
from log.record import unpack_host


class AccessControl:
    """The rules of one file of accounts."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts

    def check(self, host: bytes, command: RemotingCommand) -> None:
        """Passes a request of the client at `host` (packed as in a record) or raises RequestError with code 16."""
        account = self._bound_account(host, command)
        if account is not None:
            self._check_permissions(account, command)

    def check_again(self, host: bytes, command: RemotingCommand) -> None:
        """Does as `check` for a request that was let in by earlier rules and has waited.

        Its signature was looked at then, and need not hold any more: what waits may have been changed by the broker.
        """
        account = self._bound_account(host, command, by_signature=False)
        if account is not None:
            self._check_permissions(account, command)

    def check_publish(self, host: bytes, command: RemotingCommand, topic: str) -> None:
        """Does as `check` for a request that publishes to a topic which it does not name."""
        account = self._bound_account(host, command)
        if account is not None:
            bound = publishing(topic)
            _check_needs(
                account, [need for need in bound if _is_written(account, need)] if account.admin else bound
            )

    def _bound_account(
        self, host: bytes, command: RemotingCommand, *, by_signature: bool = True
    ) -> Account | None:
        """The account that has signed a request; None where the address is trusted. Raises RequestError."""
        address, _ = unpack_host(host)
        if self._accounts.trusts(address):
            return None
        fields = command.fields
        access_key = fields.get(ACCESS_KEY)
        if not access_key:
            raise _refused("the request names no AccessKey: give the client an access key and a secret key")
        account = self._accounts.by_access_key.get(access_key)
        if account is None:
            raise _refused(f"no account has the AccessKey {access_key!r}")
        if account.trusts(address):
            return None
        if not by_signature:
            return account
        expected = signature(account.secret_key, fields, command.body)
        if not hmac.compare_digest(expected.encode(), fields.get(SIGNATURE, "").encode()):
            raise _refused(
                f"the signature is not that of AccessKey {access_key!r}: is the secret key the one the broker knows?"
            )
        return account

    def _check_permissions(self, account: Account, command: RemotingCommand) -> None:
        if account.admin:
            # As in RocketMQ, an administrator is bound only by what is written for a topic or group.
            bound = [need for need in needs(command) if _is_written(account, need)]
        elif command.code in ADMIN_CODES:
            raise _refused(
                f"request {command.code} needs an administrator, and {account.access_key!r} is none"
            )
        else:
            bound = needs(command)
        _check_needs(account, bound)


def _check_needs(account: Account, bound: list[Need]) -> None:
    for need in bound:
        if not _granted(account, need):
            what = f"{'group' if need.is_group else 'topic'} {need.name!r}"
            if need.name is None:
                what = "any topic"
            raise _refused(f"{account.access_key!r} needs {need.permission.name} on {what}")


def _is_written(account: Account, need: Need) -> bool:
    return need.name in (account.groups if need.is_group else account.topics)


def _granted(account: Account, need: Need) -> bool:
    if need.name is None:
        owned = account.default_topic
    else:
        owned = account.group(need.name) if need.is_group else account.topic(need.name)
    return bool(owned & need.permission)


def _refused(remark: str) -> RequestError:
    return RequestError(ResponseCode.NO_PERMISSION, remark)

"""Accounts, as the file has them that a broker or name server reads (docs/security.md).

Servers tell nobody what is in it, and read it anew when it changes; so it is asked and changed here, where it lies.
What servers do tell, to administrators, is a digest of the accounts that they go by: whether these are the file's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from broker.access.accounts import (
    ACCOUNTS_IN_FORCE,
    Account,
    AccountEntry,
    Accounts,
    Permission,
    load,
    parse_entries,
)
from broker.access.accounts_file import edit, with_account, without_account
from broker.client.admin import AdminClient
from broker.client.errors import ClientError, UsageError
from broker.operations.asking import body_at, each
from broker.operations.errors import NotThere
from broker.remoting.codes import RequestCode
from broker.remoting.node_status import decode_node_status

State = Literal["in force", "other accounts", "other secrets", "no accounts", "does not tell"]
_RIGHTS_DIGITS: Final = 16
"""The number of leading digits of an `Accounts.digest` that depend on everything but the secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRights:
    """An account without its secret. Permissions are DENY, PUB, SUB or PUB|SUB, by topic and by consumer group; those
    that are not named have the default."""

    access_key: str
    admin: bool
    default_topic: str
    default_group: str
    topics: dict[str, str]
    groups: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What an account may do with one topic or consumer group, and the rule that says so."""

    access_key: str
    kind: str
    name: str
    may_publish: bool
    may_subscribe: bool
    rule: str


def list_accounts(path: Path) -> list[AccountRights]:
    """Return the accounts of a file in its order. Raises AccountsError for a file that no server would take."""
    return [_rights(account) for account in load(path).by_access_key.values()]


def show_account(path: Path, access_key: str) -> AccountRights:
    """Return one account. Raises NotThere, AccountsError."""
    return _rights(_account(load(path), access_key, path))


def check_account(
    path: Path, access_key: str, *, topic: str | None = None, group: str | None = None
) -> Verdict:
    """Return what an account may do with a topic, or else with a consumer group. Raises NotThere, AccountsError."""
    account = _account(load(path), access_key, path)
    assert (topic is None) != (group is None), "a verdict is about a topic or about a consumer group"
    if topic is not None:
        kind, name, written, granted = "topic", topic, account.topics, account.topic(topic)
    else:
        assert group is not None
        kind, name, written, granted = "group", group, account.groups, account.group(group)
    if name in written:
        rule = f"{kind}_permissions names it"
    elif account.admin:
        # An administrator is bound only by what is written for a topic or consumer group (broker/access/control.py).
        granted, rule = Permission.ANY, "it is an administrator's"
    else:
        rule = f"default_{kind}_permission"
    return Verdict(
        access_key=access_key,
        kind=kind,
        name=name,
        may_publish=bool(granted & Permission.PUB),
        may_subscribe=bool(granted & Permission.SUB),
        rule=rule,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccounts:
    """Whether a server uses the accounts of a file. ``why``: the reason, where it does not tell."""

    address: str
    server: Literal["broker", "name server"]
    state: State
    why: str = ""


def add_account(path: Path, entry: AccountEntry) -> None:
    """Put a new account into a file, which need not exist. Raises UsageError for one that is there, AccountsError,
    OSError."""

    def change(text: str) -> str:
        if any(one.access_key == entry.access_key for one in parse_entries(text, str(path))):
            raise UsageError(f"{path}: there is an account {entry.access_key} already")
        return with_account(text, str(path), entry)

    edit(path, change)


def update_account(path: Path, access_key: str, change: Callable[[AccountEntry], AccountEntry]) -> None:
    """Change an account of a file. Raises NotThere, AccountsError, OSError."""
    edit(path, lambda text: with_account(text, str(path), change(_entry(text, access_key, path))))


def remove_account(path: Path, access_key: str) -> None:
    """Take an account out of a file. Raises NotThere, AccountsError, OSError."""

    def change(text: str) -> str:
        _entry(text, access_key, path)
        return without_account(text, str(path), access_key)

    edit(path, change)


async def accounts_in_force(admin: AdminClient, path: Path) -> list[ServerAccounts]:
    """Return for each name server and registered broker whether it goes by the accounts in a file.

    Whoever asks must be an administrator. Raises AccountsError, NameServerUnavailable, BrokerError.
    """
    wanted = load(path).digest
    info = await admin.cluster_info()
    name_servers = list(admin.core.name_servers.addresses)
    brokers = sorted(
        address for data in info.broker_table.values() for address in data.broker_addresses.values()
    )

    async def look(address: str) -> ServerAccounts:
        server: Literal["broker", "name server"] = "name server" if address in name_servers else "broker"
        try:
            told = await (_name_servers if server == "name server" else _brokers)(admin, address)
        except ClientError as error:
            return ServerAccounts(address=address, server=server, state="does not tell", why=str(error))
        return ServerAccounts(address=address, server=server, state=_compared(told, wanted))

    return await each(admin, [*name_servers, *brokers], look)


async def _name_servers(admin: AdminClient, address: str) -> str | None:
    told = await body_at(admin, address, RequestCode.GET_NAMESRV_CONFIG, bytes)
    lines = told.decode(errors="replace").splitlines()
    return dict(line.partition("=")[::2] for line in lines).get(ACCOUNTS_IN_FORCE)


async def _brokers(admin: AdminClient, address: str) -> str | None:
    status = await body_at(admin, address, RequestCode.TRIVET_NODE_STATUS, decode_node_status)
    return status.process.accounts


def _compared(told: str | None, wanted: str) -> State:
    if told is None:
        return "no accounts"
    if told == wanted:
        return "in force"
    return "other secrets" if told[:_RIGHTS_DIGITS] == wanted[:_RIGHTS_DIGITS] else "other accounts"


def _entry(text: str, access_key: str, path: Path) -> AccountEntry:
    for entry in parse_entries(text, str(path)):
        if entry.access_key == access_key:
            return entry
    raise _unknown(access_key, path)


def _unknown(access_key: str, path: Path) -> NotThere:
    return NotThere(f"{path}: no account has the access key {access_key!r}")


def _account(accounts: Accounts, access_key: str, path: Path) -> Account:
    account = accounts.by_access_key.get(access_key)
    if account is None:
        raise _unknown(access_key, path)
    return account


def _rights(account: Account) -> AccountRights:
    return AccountRights(
        access_key=account.access_key,
        admin=account.admin,
        default_topic=_text(account.default_topic),
        default_group=_text(account.default_group),
        topics={name: _text(granted) for name, granted in account.topics.items()},
        groups={name: _text(granted) for name, granted in account.groups.items()},
    )


def _text(granted: Permission) -> str:
    return "|".join(bit.name or "" for bit in (Permission.PUB, Permission.SUB) if granted & bit) or "DENY"

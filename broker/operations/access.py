"""Accounts, as the file has them that a broker or name server reads (docs/security.md). Servers tell nobody what is in
it, and read it anew when it changes; so it is asked here where it lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from broker.access.accounts import Account, Accounts, Permission, load
from broker.operations.errors import NotThere


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
    """What an account may do with a topic or consumer group, and the rule that says so."""

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
    assert (topic is None) != (group is None), "a verdict is about a topic or about a group"
    if topic is not None:
        kind, name, written, granted = "topic", topic, account.topics, account.topic(topic)
    else:
        assert group is not None
        kind, name, written, granted = "group", group, account.groups, account.group(group)
    if name in written:
        rule = f"{kind}_permissions names it"
    elif account.admin:
        # An administrator is bound only by what is written for a topic or group (broker/access/control.py).
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


def _account(accounts: Accounts, access_key: str, path: Path) -> Account:
    account = accounts.by_access_key.get(access_key)
    if account is None:
        raise NotThere(f"{path}: no account has the access key {access_key!r}")
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

"""The file of accounts.

It is TOML, with what RocketMQ keeps in its plain_acl.yml under the same names in this house's spelling:

    white_remote_addresses = ["10.0.0.*"]

    [[accounts]]
    access_key = "orders-service"
    secret_key = "a long random text"
    white_remote_address = ""
    admin = false
    default_topic_permission = "DENY"
    default_group_permission = "DENY"
    topic_permissions = { orders = "PUB|SUB" }
    group_permissions = { orders-group = "SUB" }

Whatever is wrong in it is refused as a whole, with file, account and key: half of a list of permissions would be
either a hole or an outage.
"""

import enum
import hashlib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from broker.access import addresses
from broker.state.topic_rules import FORBIDDEN_TO_SEND, REPLY_SUFFIX

PermissionText = Literal["DENY", "PUB", "SUB", "PUB|SUB", "SUB|PUB"]
KeyText = Annotated[str, msgspec.Meta(min_length=7)]
"""The reference wants keys of more than 6 characters, too."""


ACCOUNTS_IN_FORCE: Final = "aclAccountsInForce"
"""The name under which a name server tells its accounts' digest among its settings."""


class Permission(enum.IntFlag):
    """The permissions of an account for a topic or consumer group; none of both is DENY."""

    DENY = 0
    PUB = 1
    SUB = 2
    ANY = 3


def _granted(text: PermissionText) -> Permission:
    return Permission(sum(Permission[word] for word in text.split("|")))


class AccountsError(ValueError):
    """A file of accounts that cannot be used; the text names file, account and key."""


@dataclass(frozen=True, slots=True)
class Account:
    """One account, its permissions resolved. ``trusts`` tells of an address whether it need not sign."""

    access_key: str
    secret_key: str
    admin: bool
    trusts: addresses.Matcher
    default_topic: Permission
    default_group: Permission
    topics: dict[str, Permission]
    groups: dict[str, Permission]

    def topic(self, name: str) -> Permission:
        """Returns the permission that is written for the topic, else the default.

        The default lets nobody read what belongs to all: the broker's own topics, in which messages of all topics wait
        or lie given up, and the topics of replies.
        """
        written = self.topics.get(name)
        if written is not None:
            return written
        if name in FORBIDDEN_TO_SEND:
            return Permission.DENY
        return self.default_topic & Permission.PUB if name.endswith(REPLY_SUFFIX) else self.default_topic

    def group(self, name: str) -> Permission:
        return self.groups.get(name, self.default_group)


@dataclass(frozen=True, slots=True)
class Accounts:
    """The whole file: accounts by access key; ``trusts`` are addresses from which nobody need say who they are.

    ``digest`` identifies the rules, to compare a server's with a file's. It has 16 digits of a hash without the
    secrets, then 4 digits of one with them: these show that a secret has changed, and are too few to guess one by.
    """

    trusts: addresses.Matcher
    by_access_key: dict[str, Account]
    digest: str


class AccountEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An account as the file has it."""

    access_key: KeyText
    secret_key: KeyText
    white_remote_address: str = ""
    admin: bool = False
    default_topic_permission: PermissionText = "DENY"
    default_group_permission: PermissionText = "DENY"
    topic_permissions: dict[str, PermissionText] = {}
    group_permissions: dict[str, PermissionText] = {}


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    white_remote_addresses: tuple[str, ...] = ()
    accounts: tuple[AccountEntry, ...] = ()


def load(path: str | Path) -> Accounts:
    """Reads the file. Raises `AccountsError`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise AccountsError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise AccountsError(f"{path}: byte {error.start} is not UTF-8 text") from None
    return parse(text, str(path))


def parse(text: str, file: str) -> Accounts:
    """The accounts in a file's text. Raises `AccountsError`."""
    entries = _parse(text, file)
    # What a default or a name stands for is found out here, once: a request is judged by looking into a dict.
    by_access_key: dict[str, Account] = {}
    for entry in entries.accounts:
        if entry.access_key in by_access_key:
            raise AccountsError(f"{file}: two accounts have the access_key {entry.access_key!r}")
        by_access_key[entry.access_key] = Account(
            entry.access_key,
            entry.secret_key,
            entry.admin,
            _matcher((entry.white_remote_address,), file, f"{entry.access_key}: white_remote_address"),
            _granted(entry.default_topic_permission),
            _granted(entry.default_group_permission),
            {name: _granted(text) for name, text in entry.topic_permissions.items()},
            {name: _granted(text) for name, text in entry.group_permissions.items()},
        )
    trusts = _matcher(entries.white_remote_addresses, file, "white_remote_addresses")
    return Accounts(trusts, by_access_key, _digest(entries))


def parse_entries(text: str, file: str) -> tuple[AccountEntry, ...]:
    """Returns the accounts in a file's text, each with the values that stand there; `parse` makes of them what they
    grant. Raises `AccountsError`."""
    return _parse(text, file).accounts


def _parse(text: str, file: str) -> _File:
    try:
        found = tomllib.loads(text)
        return msgspec.convert(found, _File)
    except msgspec.ValidationError as error:
        raise AccountsError(f"{file}: {_in_words(error, found)}") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError; so is a number too long
        raise AccountsError(f"{file}: not TOML: {error}") from None


def _digest(file: _File) -> str:
    """Returns `Accounts.digest`; the order of the accounts in the file makes no difference."""
    ordered = sorted(file.accounts, key=lambda entry: entry.access_key)
    rights = [msgspec.structs.replace(entry, secret_key="") for entry in ordered]
    told = (
        hashlib.sha256(
            msgspec.json.encode((file.white_remote_addresses, accounts), order="sorted")
        ).hexdigest()
        for accounts in (rights, ordered)
    )
    return f"{next(told)[:16]}-{next(told)[:4]}"


def _matcher(patterns: Sequence[str], file: str, key: str) -> addresses.Matcher:
    try:
        return addresses.parse(",".join(patterns))
    except addresses.AddressPatternError as error:
        raise AccountsError(f"{file}: {key}: {error}") from None


def _in_words(error: msgspec.ValidationError, found: dict[str, object]) -> str:
    """Returns msgspec's message, which says `accounts[2]`, with the access key of that account in its place."""
    reason, _, path = str(error).partition(" - at `$")
    place = path.removesuffix("`").lstrip(".")
    if not place:
        return reason
    listed, _, rest = place.partition("]")
    if listed.startswith("accounts["):
        number = int(listed.removeprefix("accounts["))
        entries = found["accounts"]
        assert isinstance(entries, list)
        name = entries[number].get("access_key") if isinstance(entries[number], dict) else None
        place = f"account {name if isinstance(name, str) else number + 1}" + (
            f", {rest.lstrip('.')}" if rest else ""
        )
    return f"{place}: {reason}"

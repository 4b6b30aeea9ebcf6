"""``trivet acl add|update|remove``: changes of a file of accounts, and ``trivet acl status``: who goes by it.

A secret comes from a terminal without being shown, from a file, or from the environment: arguments are seen by every
user of the machine.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter

from broker.tools.cli.errors import FAILED, USAGE, CommandError
from broker.tools.cli.options import DEFAULT_SERVERS, AsJson, Servers
from broker.tools.cli.orders import Yes, confirm
from broker.tools.cli.output import print_json, print_table

if TYPE_CHECKING:
    from broker.access.accounts import AccountEntry

AccountsFile = Annotated[
    Path, Parameter(name="--file", help="The file of accounts, as a server's acl.file names it.")
]
AccessKey = Annotated[str, Parameter(help="The account's access key.")]
_PERMISSIONS: Final = ("PUB", "SUB", "PUB|SUB", "SUB|PUB", "DENY")
Granted = Literal["DENY", "PUB", "SUB", "PUB|SUB"]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Rights:
    """The rights that an account is given; those that are None stay as they are."""

    admin: Annotated[
        bool | None, Parameter(help="Whether it may change topics, consumer groups and members.")
    ] = None
    default_topic: Annotated[
        Granted | None, Parameter(help="What it may do with topics that are not named.")
    ] = None
    default_group: Annotated[Granted | None, Parameter(help="Likewise with consumer groups.")] = None
    topic: Annotated[
        list[str] | None,
        Parameter(negative="", help="TOPIC=PUB, SUB, PUB|SUB, DENY or default; repeatable."),
    ] = None
    group: Annotated[list[str] | None, Parameter(negative="", help="GROUP=SUB and so on; repeatable.")] = None
    white_remote_address: Annotated[
        str | None,
        Parameter(
            help="Addresses from which the access key alone is enough, such as 10.1.0.*; empty for none."
        ),
    ] = None

    def given_to(self, fields: dict[str, object]) -> dict[str, object]:
        """Return the fields of an account with these rights. Raises CommandError."""
        given = {
            "admin": self.admin,
            "default_topic_permission": self.default_topic,
            "default_group_permission": self.default_group,
            "white_remote_address": self.white_remote_address,
        }
        changed = fields | {name: value for name, value in given.items() if value is not None}
        for name, option, rights in (
            ("topic_permissions", "--topic", self.topic),
            ("group_permissions", "--group", self.group),
        ):
            written = fields.get(name)
            named = dict(written) if isinstance(written, dict) else {}
            for right in rights or ():
                of, separator, granted = right.rpartition("=")
                if not separator or not of or granted not in (*_PERMISSIONS, "default"):
                    raise CommandError(
                        f"{option} {right}: needs the form NAME=PUB, SUB, PUB|SUB, DENY or default", USAGE
                    )
                if granted == "default":
                    named.pop(of, None)
                else:
                    named[of] = granted
            changed[name] = named
        return changed


_NO_RIGHTS: Final = Rights()
SecretFile = Annotated[
    Path | None, Parameter(help="A file whose only line is the secret key, such as /dev/stdin.")
]

SECRET_VARIABLE: Final = "TRIVET_NEW_SECRET_KEY"


def add(
    access_key: AccessKey,
    /,
    *,
    file: AccountsFile,
    secret_file: SecretFile = None,
    rights: Rights = _NO_RIGHTS,
    yes: Yes = False,
) -> int:
    """Add an account to a file, which is made if there is none. It may do only what is given.

    Its secret key is asked for at the terminal, or taken from --secret-file or TRIVET_NEW_SECRET_KEY; it is never
    shown. The new file is checked before it replaces the old one in one step; comments in it stay. Servers that read it
    take the change within five seconds: `trivet acl status`.
    """
    from broker.operations.access import add_account

    entry = rights.given_to({"access_key": access_key})
    confirm(f"Add account {access_key} to {file}?", yes=yes)
    add_account(file, _with_secret(entry, _secret(access_key, secret_file)))
    print(f"account {access_key} is in {file}")
    return 0


def update(
    access_key: AccessKey,
    /,
    *,
    file: AccountsFile,
    new_secret: Annotated[
        bool, Parameter(negative="", help="Give it another secret key, asked for as by `acl add`.")
    ] = False,
    secret_file: SecretFile = None,
    rights: Rights = _NO_RIGHTS,
    yes: Yes = False,
) -> int:
    """Change what is given of an account in a file; the rest stays as it is.

    --topic NAME=default takes back what is written for a topic. The account is written anew: comments inside it are
    lost, all others stay.
    """
    from broker.operations.access import show_account, update_account

    if rights == _NO_RIGHTS and secret_file is None and not new_secret:
        raise CommandError("give what is to change", USAGE)
    show_account(file, access_key)  # one that is not there is nothing to ask about
    rights.given_to({"access_key": access_key})
    confirm(f"Change account {access_key} in {file}?", yes=yes)
    secret = _secret(access_key, secret_file) if new_secret or secret_file is not None else None

    def change(entry: AccountEntry) -> AccountEntry:
        import msgspec

        return _with_secret(
            rights.given_to(msgspec.to_builtins(entry)), entry.secret_key if secret is None else secret
        )

    update_account(file, access_key, change)
    print(f"account {access_key} is changed in {file}")
    return 0


def remove(access_key: AccessKey, /, *, file: AccountsFile, yes: Yes = False) -> int:
    """Take an account out of a file. Its requests are refused as soon as servers have seen that."""
    from broker.operations.access import remove_account, show_account

    show_account(file, access_key)
    confirm(f"Take account {access_key} out of {file}?", yes=yes)
    remove_account(file, access_key)
    print(f"account {access_key} is not in {file} any more")
    return 0


async def status(*, file: AccountsFile, servers: Servers = DEFAULT_SERVERS, json: AsJson = False) -> int:
    """Show which name servers and brokers go by the accounts in a file. The exit code is 1 unless all do.

    Needs an administrator's account. Servers tell a digest of their accounts, nothing else of them.
    """
    from broker.operations.access import accounts_in_force

    async with servers.admin() as admin:
        found = await accounts_in_force(admin, file)
    if json:
        print_json({"file": str(file), "servers": found})
    else:
        print_table(
            ["server", "address", "state", "why"],
            [[one.server, one.address, one.state, one.why] for one in found],
        )
    return 0 if all(one.state == "in force" for one in found) else FAILED


def _with_secret(fields: dict[str, object], secret: str) -> AccountEntry:
    """Return the account. Raises CommandError, whose text never has the secret, for one that no server takes."""
    import msgspec

    from broker.access.accounts import AccountEntry

    try:
        return msgspec.convert({**fields, "secret_key": secret}, AccountEntry)
    except msgspec.ValidationError as error:
        raise CommandError(f"account {fields['access_key']}: {error}", USAGE) from None


def _secret(access_key: str, file: Path | None) -> str:
    """The secret key: of the file, of the environment, or asked for. Raises CommandError, OSError."""
    if file is not None:
        return _one_line(file.read_text(encoding="utf-8"), f"--secret-file {file}")
    if SECRET_VARIABLE in os.environ:
        return _one_line(os.environ[SECRET_VARIABLE], SECRET_VARIABLE)
    if not sys.stdin.isatty():
        raise CommandError(
            f"there is no terminal to ask for the secret key at: give it in {SECRET_VARIABLE} or with --secret-file",
            USAGE,
        )
    from getpass import getpass

    secret = getpass(f"Secret key of {access_key}: ")
    if getpass("Again: ") != secret:
        raise CommandError("these are two different secret keys; nothing was changed", FAILED)
    return secret


def _one_line(text: str, source: str) -> str:
    line = text.removesuffix("\n").removesuffix("\r")
    if not line or len(line.splitlines()) != 1:
        raise CommandError(f"{source}: needs one line, the secret key", USAGE)
    return line

"""``trivet acl``: the accounts in a server's file (docs/security.md). Servers tell nobody what is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from broker.tools.cli.account_changes import AccessKey, AccountsFile, add, remove, status, update
from broker.tools.cli.errors import FAILED, USAGE, CommandError
from broker.tools.cli.options import AsJson
from broker.tools.cli.output import print_json, print_table

if TYPE_CHECKING:
    from broker.operations.access import AccountRights

app = App(name="acl", help="List, show, check and change accounts.", backend="trio")
for command in (add, update, remove, status):
    app.command(command)


@app.command(name="list")
def list_all(*, file: AccountsFile, json: AsJson = False) -> int:
    """List the accounts of a file, without their secrets."""
    from broker.operations.access import list_accounts

    accounts = list_accounts(file)
    if json:
        print_json({"accounts": accounts})
    else:
        columns = ["account", "administrator", "other topics", "other groups", "named"]
        print_table(columns, [_row(account) for account in accounts])
    return 0


@app.command
def show(access_key: AccessKey, /, *, file: AccountsFile, json: AsJson = False) -> int:
    """Show what one account may do."""
    from broker.operations.access import show_account

    account = show_account(file, access_key)
    if json:
        print_json(account)
        return 0
    rows = [["topic", name, granted] for name, granted in account.topics.items()]
    rows.append(["topic", "all others", "PUB|SUB" if account.admin else account.default_topic])
    rows += [["group", name, granted] for name, granted in account.groups.items()]
    rows.append(["group", "all others", "PUB|SUB" if account.admin else account.default_group])
    title = f"{account.access_key}, an administrator" if account.admin else account.access_key
    print_table(["of", "name", "may"], rows, title=title)
    return 0


@app.command
def check(
    access_key: Annotated[
        str | None, Parameter(help="The account's access key; without it only the file is checked.")
    ] = None,
    /,
    *,
    file: AccountsFile,
    publish: Annotated[str | None, Parameter(help="May it publish to this topic?")] = None,
    subscribe: Annotated[str | None, Parameter(help="May it subscribe to this topic?")] = None,
    group: Annotated[str | None, Parameter(help="May it consume as this consumer group?")] = None,
    json: AsJson = False,
) -> int:
    """Check that a server would take a file, and whether an account may do something. The exit code is 1 if not.

    A change of the file is in force after five seconds, or at once with SIGHUP.
    """
    from broker.operations.access import check_account, list_accounts

    chosen = [
        (name, value)
        for name, value in (("publish", publish), ("subscribe", subscribe), ("group", group))
        if value
    ]
    if access_key is None:
        if chosen:
            raise CommandError("an access key says which account is asked about", USAGE)
        accounts = list_accounts(file)
        if json:
            print_json({"file": str(file), "accounts": len(accounts)})
        else:
            print(f"{file}: {len(accounts)} accounts")
        return 0
    if len(chosen) != 1:
        raise CommandError("give one of --publish, --subscribe and --group", USAGE)
    what, name = chosen[0]
    if what == "group":
        verdict = check_account(file, access_key, group=name)
    else:
        verdict = check_account(file, access_key, topic=name)
    may = verdict.may_publish if what == "publish" else verdict.may_subscribe
    if json:
        print_json({"access_key": access_key, "asked": what, "name": name, "may": may, "rule": verdict.rule})
    else:
        deed = "consume as consumer group" if what == "group" else f"{what} to topic"
        print(f"{access_key} {'may' if may else 'may not'} {deed} {name}: {verdict.rule}")
    return 0 if may else FAILED


def _row(account: AccountRights) -> list[object]:
    named = [f"{name}: {granted}" for name, granted in (account.topics | account.groups).items()]
    defaults = ["PUB|SUB", "PUB|SUB"] if account.admin else [account.default_topic, account.default_group]
    return [account.access_key, account.admin, *defaults, ", ".join(named)]

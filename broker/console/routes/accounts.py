"""Accounts, as the file has them that the console was given, and which servers go by them.

Brokers tell nobody their accounts, and the console has no rights of its own. So it shows the file only to those whom a
server with accounts tells the digest of its own: to administrators.
"""

import msgspec

from broker.access.accounts import AccountsError
from broker.console.answers import RefusedError
from broker.console.asking import Question
from broker.console.parameters import Nothing
from broker.console.seats import Seat
from broker.operations.access import AccountRights, ServerAccounts, accounts_in_force
from broker.operations.access import list_accounts as accounts_of
from broker.operations.errors import NotThere


class AccountList(msgspec.Struct, frozen=True, kw_only=True):
    """All accounts without their secrets, and by which accounts each server goes."""

    file: str
    accounts: list[AccountRights]
    servers: list[ServerAccounts]


async def list_accounts(seat: Seat, parameters: Nothing) -> AccountList:
    """The accounts of the file. Raises NotThere without one, RefusedError for whoever is no administrator."""
    file = seat.options.accounts
    if file is None:
        raise NotThere("no file of accounts was given: start the console with --accounts")
    try:
        servers = await accounts_in_force(seat.admin, file)
        accounts = accounts_of(file)
    except AccountsError:
        raise RefusedError(
            503, "unavailable", "the file of accounts cannot be used: trivet acl check --file says why"
        ) from None
    if all(one.state in ("does not tell", "no accounts") for one in servers):
        raise RefusedError(403, "no permission", "accounts are shown to an administrator whom brokers know")
    return AccountList(file=str(file), accounts=accounts, servers=servers)


ROUTES = (Question("/api/accounts", Nothing, list_accounts),)

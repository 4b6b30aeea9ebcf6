"""Questions to broker groups: any member takes them, and several may be under way at once.

A member forwards what only its leader can do, so the next one is asked when one fails. A group that has no leader now
answers nothing. `Groups.ask` goes on without it, and `Groups.missing` names it when an operation is over.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import msgspec

from broker.client.admin import CALL_TIMEOUT_S, AdminClient
from broker.client.errors import BrokerError, ClientError, ConnectionFailed, NoGroup
from broker.client.transport.core import broker_error
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import RemotingError
from broker.remoting.json_body import decode_body
from broker.remoting.route import MASTER_ID, ClusterInfo

AT_ONCE = 16
"""Requests of one operation that are under way at once."""

Item = TypeVar("Item")
Result = TypeVar("Result")
Body = TypeVar("Body")
Decode = Callable[[bytes | memoryview], Body]


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A broker group that did not do what it was asked for, and why."""

    group: str
    why: str


class Groups:
    """The broker groups of a cluster for one operation, as the name server knew them when it began.

    ``names`` are the groups that have answered everything so far; what fails in one of them makes it `missing` for the
    rest of the operation.
    """

    def __init__(self, admin: AdminClient, info: ClusterInfo) -> None:
        self.admin = admin
        self.names: tuple[str, ...] = tuple(sorted(info.broker_table))
        self._info = info
        self._failures: dict[str, ClientError] = {}

    @classmethod
    async def registered(cls, admin: AdminClient) -> Self:
        """Ask a name server which groups there are. Raises NoGroup if there is none, NameServerUnavailable."""
        groups = cls(admin, await admin.cluster_info())
        if not groups.names:
            raise NoGroup("", "no broker is registered")
        return groups

    @property
    def missing(self) -> tuple[Missing, ...]:
        """The groups that could not be asked, or have not done it, sorted by name."""
        return tuple(Missing(group=name, why=str(self._failures[name])) for name in sorted(self._failures))

    def in_doubt(self) -> str:
        """Return what is to be said behind "there is no such thing": that the groups that are missing may have it."""
        return "".join(f"; {one.group} may have it, and has not answered: {one.why}" for one in self.missing)

    def in_cluster(self, cluster: str | None) -> list[str]:
        """Return the names of a cluster's groups, sorted; those of all clusters for None."""
        table = self._info.cluster_table
        return sorted({name for key, found in table.items() if cluster in (None, key) for name in found})

    async def ask(
        self, ask: Callable[[str], Awaitable[Result]], names: Iterable[str] | None = None
    ) -> dict[str, Result]:
        """Ask each of these groups, or all; returns what those say that answer, by name in their order.

        A group that fails, or is missing already, is left out. Where none answers this raises the error of the first:
        a refusal, if there is one, and those that refuse are not missing then.
        """
        asked = self.names if names is None else tuple(names)
        failed = {name: self._failures[name] for name in asked if name in self._failures}

        async def attempt(name: str) -> list[Result]:
            try:
                return [] if name in failed else [await ask(name)]
            except ClientError as error:
                failed[name] = error
                return []

        found = await each(self.admin, asked, attempt)
        answers = {name: answer for name, got in zip(asked, found, strict=True) for answer in got}
        refusals = {name: error for name, error in failed.items() if not error.retry_may_help}
        lost = failed if answers else {name: failed[name] for name in failed.keys() - refusals.keys()}
        self._failures |= lost
        self.names = tuple(name for name in self.names if name not in self._failures)
        if failed and not answers:
            raise next(error for name in asked if (error := (refusals or failed).get(name)))
        return answers

    def addresses(self, name: str) -> list[str]:
        """Return the addresses of a group's members, the leader's first. Raises NoGroup for an unknown group."""
        data = self._info.broker_table.get(name)
        if data is None:
            known = ", ".join(sorted(self._info.broker_table))
            raise NoGroup(name, f"no such group is registered; there are: {known}")
        return [address for _, address in sorted(data.broker_addresses.items())]

    async def read(
        self,
        name: str,
        code: int,
        fields: Mapping[str, str],
        *,
        accepted: Sequence[int] = (ResponseCode.SUCCESS,),
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> RemotingCommand:
        """Ask a group what may be asked twice: the leader, or the next member while that may help.

        Returns a response with an ``accepted`` code. Raises BrokerError, ConnectionFailed, NoRoute.
        """
        failure: ClientError = NoGroup(name, "it has no member that answers")
        for address in self.addresses(name):
            try:
                response = await self.admin.core.pool.call(address, code, dict(fields), b"", timeout_s)
            except ConnectionFailed as error:
                failure = error
                continue
            if response.code in accepted:
                return response
            failure = broker_error(response, address)
            if not failure.retry_may_help:
                break
        raise failure

    async def body(self, name: str, code: int, fields: Mapping[str, str], decode: Decode[Body]) -> Body:
        """Ask as `read` does; returns the response's body. Raises BrokerError for one that cannot be read, too."""
        return read_body(await self.read(name, code, fields), name, decode)

    async def body_if_there(
        self, name: str, code: int, fields: Mapping[str, str], decode: Decode[Body], absent: int
    ) -> Body | None:
        """The same; returns None for a response with the code ``absent``, which says that there is no such thing."""
        response = await self.read(name, code, fields, accepted=(ResponseCode.SUCCESS, absent))
        return None if response.code == absent else read_body(response, name, decode)

    async def ask_leader(
        self, name: str, code: int, fields: Mapping[str, str], timeout_s: float
    ) -> RemotingCommand:
        """Ask the first address of a group once; returns the response, whatever its code. Raises ConnectionFailed,
        NoRoute."""
        return await self.admin.core.pool.call(self.addresses(name)[0], code, dict(fields), b"", timeout_s)

    async def order(self, name: str, code: int, fields: Mapping[str, str]) -> None:
        """Have a group do something that may be ordered twice: it says where to end up, and not by how much to go on.

        After a BrokerError with code 1 or a ConnectionFailed the outcome is unknown. Raises them, and NoRoute.
        """
        await self.read(name, code, fields)


def leaderless(info: ClusterInfo) -> tuple[Missing, ...]:
    """Return the registered groups whose leader is not, sorted by name."""
    return tuple(
        Missing(group=name, why="no leader is registered")
        for name, data in sorted(info.broker_table.items())
        if MASTER_ID not in data.broker_addresses
    )


def as_json(kind: type[Body]) -> Decode[Body]:
    """Return the function that reads a body of this kind, which is JSON."""
    return lambda body: decode_body(body, kind)


async def body_at(admin: AdminClient, address: str, code: int, decode: Decode[Body]) -> Body:
    """Ask the server at one address; returns the response's body. Raises ConnectionFailed, BrokerError."""
    response = await admin.call(address, code)
    if response.code != ResponseCode.SUCCESS:
        raise broker_error(response, address)
    return read_body(response, address, decode)


def read_body(response: RemotingCommand, address: str, decode: Decode[Body]) -> Body:
    """Return the body of a response. Raises BrokerError for one that cannot be read."""
    try:
        return decode(response.body)
    except (RemotingError, msgspec.MsgspecError) as error:
        raise BrokerError(response.code, f"unreadable response: {error}", address) from error


async def each(
    admin: AdminClient, items: Iterable[Item], ask: Callable[[Item], Awaitable[Result]]
) -> list[Result]:
    """Ask about every item, `AT_ONCE` of them at a time; returns the results in the items' order.

    The first error cancels the others and is raised.
    """
    waiting = list(enumerate(items))
    waiting.reverse()
    found: dict[int, Result] = {}
    failures: list[ClientError] = []

    async def work() -> None:
        while waiting:
            place, item = waiting.pop()
            try:
                found[place] = await ask(item)
            except ClientError as error:
                failures.append(error)
                tasks.cancel()
                return

    count = len(waiting)
    async with admin.core.runtime.task_group() as tasks:
        for _ in range(min(AT_ONCE, count)):
            tasks.start_soon(work)
    if failures:
        raise failures[0]
    return [found[place] for place in range(count)]

"""Asking servers about themselves: one connection and one request for each question.

Nothing is kept open in between: these questions are asked of servers that are starting, stopping or dead, and a fresh
connection is the honest test of whether one is there.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from typing import TypedDict, Unpack

import msgspec
import trio

from broker.client.errors import BrokerError, ClientError, ConnectFailed
from broker.client.transport.connection import Connection
from broker.client.transport.credentials import Credentials
from broker.client.transport.trio_runtime import TrioRuntime
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import RemotingError
from broker.remoting.node_status import NodeStatus, decode_node_status
from broker.remoting.route import ClusterInfo

ASK_TIMEOUT_S = 3.0


async def ask(
    address: str,
    code: int,
    fields: Mapping[str, str] | None = None,
    *,
    timeout_s: float = ASK_TIMEOUT_S,
    tls: ssl.SSLContext | None = None,
    credentials: Credentials | None = None,
) -> RemotingCommand:
    """Send one request on a connection of its own; returns the response. Raises ConnectFailed, or BrokerError for a
    code other than 0."""
    runtime = TrioRuntime(tls=tls)
    reply: RemotingCommand | None = None
    started_s = trio.current_time()
    try:
        with trio.fail_after(timeout_s):
            stream = await runtime.connect(address)
    except trio.TooSlowError:
        raise ConnectFailed(address, f"no connection within {timeout_s:g} s") from None
    except OSError as error:
        raise ConnectFailed(address, error.strerror or str(error)) from error
    connection = Connection(runtime, address, stream, {})
    async with runtime.task_group() as group:
        group.start_soon(connection.run)
        try:
            if credentials is not None:
                await connection.introduce(credentials)
            # Connecting has used a part of the time.
            remaining_s = max(timeout_s - (trio.current_time() - started_s), 0.001)
            reply = await connection.call(code, fields, timeout_s=remaining_s)
        finally:
            connection.close()
            group.cancel()
    assert reply is not None, "the group is left early only by an exception"
    if reply.code != ResponseCode.SUCCESS:
        raise BrokerError(reply.code, reply.remark, address)
    return reply


class Identity(TypedDict, total=False):
    """How a client shows who it is: the options ``tls`` and ``credentials`` of all clients."""

    tls: ssl.SSLContext | None
    credentials: Credentials | None


class Asking(Identity, total=False):
    """The options of `ask`, which all questions have."""

    timeout_s: float


async def node_status(address: str, **options: Unpack[Asking]) -> NodeStatus:
    """One broker's status; raises ClientError."""
    reply = await ask(address, RequestCode.TRIVET_NODE_STATUS, **options)
    try:
        return decode_node_status(reply.body)
    except msgspec.MsgspecError as error:
        raise BrokerError(reply.code, f"its status is not understood: {error}", address) from error


async def cluster_info(name_server: str, **options: Unpack[Asking]) -> ClusterInfo:
    """Every registered broker; raises ClientError."""
    reply = await ask(name_server, RequestCode.GET_BROKER_CLUSTER_INFO, **options)
    try:
        return ClusterInfo.decode(reply.body)
    except RemotingError as error:
        raise BrokerError(
            reply.code, f"its cluster information is not understood: {error}", name_server
        ) from error


class AskedBroker(msgspec.Struct, frozen=True, kw_only=True):
    """One broker, and its own status or the reason why there is none. Its cluster and group are "" if neither it nor
    the name server told them."""

    cluster: str = ""
    group: str = ""
    broker_id: int | None = None
    """The registered id, 0 for the leader. None where no name server was asked."""
    address: str
    status: NodeStatus | None
    error: str | None


async def registered_brokers(name_server: str, **options: Unpack[Asking]) -> list[AskedBroker]:
    """Every broker that the name server knows, each asked for its status at the same time; sorted by group and address.

    Raises ClientError if the name server does not answer; a broker that does not is in the list with the reason.
    """
    info = await cluster_info(name_server, **options)
    registered = [
        (broker.cluster, name, broker_id, address)
        for name, broker in info.broker_table.items()
        for broker_id, address in broker.broker_addresses.items()
    ]
    asked = await brokers_at((address for *_, address in registered), **options)
    answers = {broker.address: broker for broker in asked}
    return sorted(
        (
            msgspec.structs.replace(answers[address], cluster=cluster, group=group, broker_id=broker_id)
            for cluster, group, broker_id, address in registered
        ),
        key=_place,
    )


async def brokers_at(addresses: Iterable[str], **options: Unpack[Asking]) -> list[AskedBroker]:
    """These brokers, each asked for its status at the same time; sorted as `registered_brokers`.

    Nobody else is asked, so that this works while a group has no leader and is registered nowhere.
    """
    found: list[AskedBroker] = []

    async def inquire(address: str) -> None:
        try:
            status = await node_status(address, **options)
        except ClientError as failure:
            found.append(AskedBroker(address=address, status=None, error=str(failure)))
        else:
            found.append(
                AskedBroker(
                    cluster=status.cluster, group=status.group, address=address, status=status, error=None
                )
            )

    async with trio.open_nursery() as nursery:
        for address in dict.fromkeys(addresses):
            nursery.start_soon(inquire, address)
    return sorted(found, key=_place)


def _place(broker: AskedBroker) -> tuple[str, str, str]:
    return broker.cluster, broker.group, broker.address

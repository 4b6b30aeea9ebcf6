"""Administration: topics, cluster and broker status, as the command line needs them."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from broker.client.errors import (
    BrokerBusy,
    BrokerError,
    ClientError,
    ConnectionFailed,
    NoRoute,
    UsageError,
)
from broker.client.message import MessageQueue
from broker.client.transport.core import ClientCore, broker_error
from broker.client.transport.credentials import Credentials
from broker.client.transport.options import ConnectionOptions
from broker.client.transport.patient_calls import PatientCalls
from broker.client.transport.routes import TopicRoute
from broker.client.transport.runtime import Buffer, Runtime
from broker.remoting.admin_bodies import TopicStats
from broker.remoting.bodies import KeyValueTable, TopicList
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import RemotingError
from broker.remoting.json_body import decode_body
from broker.remoting.node_status import NodeStatus, decode_node_status
from broker.remoting.route import MASTER_ID, ClusterInfo

CALL_TIMEOUT_S = 5.0
BodyType = TypeVar("BodyType")


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One queue's kept messages: ``min_offset`` up to but not including ``max_offset``. Time in ms, 0 for never."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_update_ms: int


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """One broker process. ``table`` is what it tells of itself, None when it is not to be had (``failure``: why)."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    table: dict[str, str] | None
    failure: str | None = None

    @property
    def role(self) -> str:
        """``leader`` or ``follower``, as registered with the name server."""
        return "leader" if self.broker_id == MASTER_ID else "follower"


class AdminClient:
    """``async with AdminClient("127.0.0.1:9876") as admin: await admin.create_topic("topic", queues=8)``.

    Calls raise BrokerError, ConnectionFailed, NoRoute, NameServerUnavailable.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        runtime: Runtime | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.core = ClientCore(ConnectionOptions(name_servers, runtime, tls, credentials))
        self._runtime = self.core.runtime
        self._calls = PatientCalls(self.core, CALL_TIMEOUT_S)

    async def __aenter__(self) -> AdminClient:
        await self.core.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self.core.__aexit__(kind, error, traceback)

    # Topics --------------------------------------------------------------------------------------------------------

    async def create_topic(
        self, topic: str, *, queues: int = 8, perm: int = 6, cluster: str | None = None, ordered: bool = False
    ) -> None:
        """Create the topic, or change it, on every broker group of the cluster (of all clusters without one).

        Returns once the name server routes it everywhere, so that a send right after succeeds.
        """
        info = await self.cluster_info()
        names = [
            name
            for key, found in sorted(info.cluster_table.items())
            if cluster in (None, key)
            for name in found
        ]
        if not names:
            raise NoRoute(topic, f"no broker is registered{f' for cluster {cluster!r}' if cluster else ''}")
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": str(perm),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "true" if ordered else "false",
        }
        for name in sorted(names):
            await self._call_group(info, name, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        await self._wait_routed(topic, sorted(names), queues)

    async def delete_topic(self, topic: str) -> None:
        """Delete the topic from all broker groups and name servers."""
        info = await self.cluster_info()
        for name in sorted(info.broker_table):
            await self._call_group(info, name, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        for address in self.core.name_servers.addresses:
            answer = await self.core.pool.call(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})
            _check(answer, address)

    async def topics(self) -> list[str]:
        """All topics that the name server knows, sorted."""
        self.core.check_open()
        answer = await self.core.name_servers.call(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        _check(answer, "name server")
        return sorted(_decode(answer, TopicList, "name server").topics)

    async def route(self, topic: str) -> TopicRoute:
        """Where the topic lives, asked for now."""
        self.core.check_open()
        return await self.core.routes.refresh(topic)

    async def describe_topic(self, topic: str) -> list[QueueStatus]:
        """The queues of the topic with their ranges, sorted."""
        route = await self.route(topic)
        found = []
        for name in sorted(route.brokers):
            code, queue = RequestCode.GET_TOPIC_STATS_INFO, MessageQueue(topic, name, 0)
            answer = await self._calls.ask(queue, code, {"topic": topic})
            try:
                offsets = TopicStats.decode(answer.body).offsets
            except RemotingError as error:
                raise BrokerError(answer.code, f"unreadable answer: {error}", name) from error
            for key, at in offsets.items():
                queue = MessageQueue(key.topic, key.broker_name, key.queue_id)
                found.append(QueueStatus(queue, at.min_offset, at.max_offset, at.last_update_timestamp))
        return sorted(found, key=lambda status: status.queue)

    # Cluster -------------------------------------------------------------------------------------------------------

    async def cluster_info(self) -> ClusterInfo:
        """Clusters, broker groups and addresses as the name server knows them."""
        self.core.check_open()
        answer = await self.core.name_servers.call(RequestCode.GET_BROKER_CLUSTER_INFO)
        _check(answer, "name server")
        try:
            return ClusterInfo.decode(answer.body)
        except RemotingError as error:
            raise BrokerError(answer.code, f"unreadable answer: {error}", "name server") from error

    async def status(self) -> list[BrokerStatus]:
        """Every registered broker process with what it tells of itself; one that is silent does not spoil the rest."""
        info = await self.cluster_info()
        found = []
        for name, data in sorted(info.broker_table.items()):
            for broker_id, address in sorted(data.broker_addresses.items()):
                table, failure = None, None
                try:
                    answer = await self.core.pool.call(address, RequestCode.GET_BROKER_RUNTIME_INFO)
                    _check(answer, address)
                    table = _decode(answer, KeyValueTable, address).table
                except (ConnectionFailed, BrokerError) as error:
                    failure = str(error)
                found.append(BrokerStatus(data.cluster, name, broker_id, address, table, failure))
        return found

    # Members -------------------------------------------------------------------------------------------------------

    async def members(self, group: str | None = None) -> NodeStatus:
        """The group as its leader sees it: voters, learners, their addresses and how far they are.

        Without a name, of the only group that is registered. Raises NoRoute if no leader is to be found.
        """
        info = await self.cluster_info()
        name = _group_name(info, group)
        failure = "no member answers"
        for address in _addresses(info, name):
            try:
                answer = await self.core.pool.call(address, RequestCode.TRIVET_NODE_STATUS)
                _check(answer, address)
                status = decode_node_status(answer.body)
            except (ConnectionFailed, BrokerError) as error:
                failure = str(error)
                continue
            if status.serving:
                return status
            failure = f"the leader is {status.leader or 'unknown'}"
        raise NoRoute(name, f"no leader of the group found: {failure}")

    async def add_member(self, node: str, peer_address: str, group: str | None = None) -> None:
        """Make a node a learner of the group: it receives the log, without a vote. Returns when that is committed.

        `peer_address` is where it listens for peers. Here and below: BrokerError when the group refuses, BrokerBusy
        when it may not refuse later; with code 1, or ConnectionFailed, the outcome is unknown.
        """
        await self._change_group(group, {"operation": "add", "node": node, "address": peer_address})

    async def promote_member(self, node: str, group: str | None = None, *, timeout_s: float = 60.0) -> None:
        """Give a learner its vote; waits up to `timeout_s` for it to catch up with the log, then raises BrokerBusy."""
        deadline_ns = self._runtime.now_ns() + int(timeout_s * 1e9)
        while True:
            try:
                await self._change_group(group, {"operation": "promote", "node": node})
            except BrokerBusy:
                if self._runtime.now_ns() > deadline_ns:
                    raise
                await self._runtime.sleep(0.2)
            else:
                return

    async def remove_member(self, node: str, group: str | None = None) -> None:
        """Take a voter or learner out of the group; the leader may be taken out, too."""
        await self._change_group(group, {"operation": "remove", "node": node})

    async def transfer_leadership(self, node: str, group: str | None = None) -> None:
        """Have this voter lead; returns when it does, raises BrokerBusy when it did not take over in time."""
        await self._ask_group(group, RequestCode.TRIVET_TRANSFER_LEADERSHIP, {"node": node})

    async def _change_group(self, group: str | None, fields: dict[str, str]) -> None:
        await self._ask_group(group, RequestCode.TRIVET_CHANGE_GROUP, fields)

    async def _ask_group(self, group: str | None, code: int, fields: dict[str, str]) -> None:
        """Ask members until one has passed the request on to the leader: once, as it must not be repeated."""
        info = await self.cluster_info()
        name = _group_name(info, group)
        failure: ClientError = NoRoute(name, "the group has no member that answers")
        for address in _addresses(info, name):
            try:
                answer = await self.core.pool.call(address, code, fields, b"", CALL_TIMEOUT_S)
                _check(answer, address)
            except ConnectionFailed as error:
                failure = error
                if error.request_left:
                    break
            except BrokerError as error:
                failure = error
                if error.code != ResponseCode.SERVICE_NOT_AVAILABLE:
                    break
            else:
                return
        raise failure

    async def call(
        self, address: str, code: int, fields: dict[str, str] | None = None, body: Buffer = b""
    ) -> RemotingCommand:
        """Any request to one address; returns its answer, whatever its code."""
        self.core.check_open()
        return await self.core.pool.call(address, code, fields, body, CALL_TIMEOUT_S)

    async def _call_group(
        self, info: ClusterInfo, name: str, code: int, fields: dict[str, str]
    ) -> RemotingCommand:
        """Ask the group's leader; another member when that fails, as a member forwards what only its leader can do."""
        failure: ClientError = NoRoute(fields["topic"], f"broker {name!r} has no address")
        for address in _addresses(info, name):
            try:
                answer = await self.core.pool.call(address, code, fields, b"", CALL_TIMEOUT_S)
                _check(answer, address)
            except (ConnectionFailed, BrokerError) as error:
                failure = error
                if not error.retry_may_help:
                    break
            else:
                return answer
        raise failure

    async def _wait_routed(self, topic: str, names: Sequence[str], queues: int) -> None:
        deadline_ns = self._runtime.now_ns() + int(CALL_TIMEOUT_S * 1e9)
        pause_s = 0.01
        while True:
            try:
                route = await self.core.routes.refresh(topic)
                found = [queue.broker_name for queue in route.readable]
                if all(found.count(name) == queues for name in names):
                    return
            except NoRoute:
                pass
            if self._runtime.now_ns() > deadline_ns:
                raise NoRoute(topic, f"created, but not routed everywhere after {CALL_TIMEOUT_S} s")
            await self._runtime.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.5)


def _group_name(info: ClusterInfo, group: str | None) -> str:
    names = sorted(info.broker_table)
    if group is not None:
        if group not in names:
            raise NoRoute(group, f"no such group is registered; there are: {', '.join(names) or 'none'}")
        return group
    if len(names) > 1:
        raise UsageError(f"several groups are registered, name one of them: {', '.join(names)}")
    if not names:
        raise NoRoute("", "no broker is registered")
    return names[0]


def _addresses(info: ClusterInfo, name: str) -> list[str]:
    """Of the group's members, the leader's first."""
    return [address for _, address in sorted(info.broker_table[name].broker_addresses.items())]


def _check(answer: RemotingCommand, address: str) -> None:
    if answer.code != ResponseCode.SUCCESS:
        raise broker_error(answer, address)


def _decode(answer: RemotingCommand, body_type: type[BodyType], address: str) -> BodyType:
    try:
        return decode_body(answer.body, body_type)
    except RemotingError as error:
        raise BrokerError(answer.code, f"unreadable answer: {error}", address) from error

"""Administration: topics, cluster and broker status, as the command line needs them."""

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from broker.client.checks import check_kind, check_seconds, check_whole
from broker.client.errors import (
    BrokerBusy,
    BrokerError,
    ClientError,
    ConnectionFailed,
    NoGroup,
    NoRoute,
    UsageError,
)
from broker.client.message import MessageQueue
from broker.client.transport.core import ClientCore, CoreBlock, broker_error
from broker.client.transport.credentials import Credentials
from broker.client.transport.options import ConnectionOptions
from broker.client.transport.patient_calls import PatientCalls
from broker.client.transport.pauses import Pauses
from broker.client.transport.routes import TopicRoute
from broker.client.transport.runtime import Buffer, Runtime
from broker.remoting.admin_bodies import TopicStats
from broker.remoting.bodies import KeyValueTable, TopicList
from broker.remoting.codes import Permission, RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import RemotingError
from broker.remoting.json_body import decode_body
from broker.remoting.node_status import NodeStatus, decode_node_status
from broker.remoting.route import MASTER_ID, ClusterInfo
from broker.state.topic_rules import DEFAULT_TOPIC

_READ_WRITE = int(Permission.READ | Permission.WRITE)
CALL_TIMEOUT_S = 5.0
"""Time limit of a call to a broker, in seconds."""
Body = TypeVar("Body")


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The messages that a queue keeps: from ``min_offset`` up to but not including ``max_offset``.

    ``last_update_ms`` is the time at which the last one was stored, in milliseconds since 1970; 0 if there is none.
    """

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_update_ms: int


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A broker process that is registered with the name server.

    ``table`` has the names and values that it tells of itself; None if it gave none, and ``failure`` says why.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    table: dict[str, str] | None
    failure: str | None = None

    @property
    def role(self) -> str:
        """The role as registered with the name server, ``leader`` or ``follower``."""
        return "leader" if self.broker_id == MASTER_ID else "follower"


class AdminClient(CoreBlock):
    """Creates and deletes topics, shows cluster and brokers, changes the members of a group.

        async with AdminClient("127.0.0.1:9876") as admin:
            await admin.create_topic("topic", queues=8)

    The options are those of `Producer`. All calls raise BrokerError, ConnectionFailed, NoRoute, NameServerUnavailable,
    and ClientClosed outside the block; UsageError for options and arguments that cannot be.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        runtime: Runtime | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.options = ConnectionOptions(name_servers, runtime, tls, credentials)
        self.core = ClientCore(self.options)
        self._runtime = self.core.runtime
        self._calls = PatientCalls(self.core, CALL_TIMEOUT_S)

    # Topics --------------------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        perm: int = 6,
        cluster: str | None = None,
        groups: Sequence[str] | None = None,
        ordered: bool = False,
    ) -> None:
        """Create or change a topic in these broker groups; without any, in every one of the cluster, or of all clusters
        when none is named. Groups that are not among them keep the topic as they have it.

        ``queues`` is the number of queues in each group. ``perm`` is 4 for reading, 2 for writing, 6 for both.
        ``ordered`` marks the topic as one whose queues stay the same. Returns once the name server has the topic's
        route in all groups, so that a send right after succeeds. Raises NoRoute when that takes longer than 5 s, and
        when no broker is registered.
        """
        check_kind(str, topic=topic)
        check_whole(1, queues=queues)
        check_whole(perm=perm)
        info = await self.cluster_info()
        names = [
            name
            for key, found in sorted(info.cluster_table.items())
            if cluster in (None, key)
            for name in found
        ]
        if not names:
            raise NoRoute(topic, f"no broker is registered{f' for cluster {cluster!r}' if cluster else ''}")
        if groups is not None:
            if isinstance(groups, str) or not groups:
                raise UsageError(f"groups is {groups!r}, and must be names, or None for every broker group")
            for group in groups:
                _check_group(info, group)
            names = list(groups)
        fields = {
            "topic": topic,
            "defaultTopic": DEFAULT_TOPIC,
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": str(perm),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "true" if ordered else "false",
        }
        for name in sorted(names):
            code = RequestCode.UPDATE_AND_CREATE_TOPIC
            await self._ask_members(info, name, code, fields, _cannot_be_repeated)
        # Brokers register a change at once, but name servers hear of it a moment after the administrator.
        await self._wait_routed(topic, sorted(names), queues, perm)

    async def delete_topic_in_group(self, topic: str, group: str) -> None:
        """Delete the topic in one broker group; its route stays as far as others have it.

        Raises NoRoute for a group that is not registered. Where the group does not have the topic nothing happens.
        """
        info = await self.cluster_info()
        _check_group(info, group)
        code = RequestCode.DELETE_TOPIC_IN_BROKER
        await self._ask_members(info, group, code, {"topic": topic}, _cannot_be_repeated)

    async def delete_topic(self, topic: str) -> None:
        """Delete the topic in all broker groups and name servers."""
        info = await self.cluster_info()
        for name in sorted(info.broker_table):
            code = RequestCode.DELETE_TOPIC_IN_BROKER
            await self._ask_members(info, name, code, {"topic": topic}, _cannot_be_repeated)
        await self.forget_topic(topic)

    async def forget_topic(self, topic: str) -> None:
        """Have all name servers forget the topic, until a broker registers it again."""
        for address in self.core.name_servers.addresses:
            response = await self.core.pool.call(
                address, RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic}
            )
            _check(response, address)

    async def topics(self) -> list[str]:
        """Return all topics that the name server knows, sorted."""
        self.core.check_open()
        response = await self.core.name_servers.call(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(_read(response, "name server", lambda body: decode_body(body, TopicList)).topics)

    async def route(self, topic: str) -> TopicRoute:
        """Ask for the topic's route now, and return it."""
        self.core.check_open()
        return await self.core.routes.refresh(topic)

    async def describe_topic(self, topic: str) -> list[QueueStatus]:
        """Return the queues of the topic with the offsets that they keep, sorted.

        Raises BrokerError, ConnectionFailed, NoRoute, NameServerUnavailable.
        """
        route = await self.route(topic)
        found = []
        for name in sorted(route.brokers):
            code, queue = RequestCode.GET_TOPIC_STATS_INFO, MessageQueue(topic, name, 0)
            response = await self._calls.ask(queue, code, {"topic": topic})
            for key, at in _read(response, name, TopicStats.decode).offsets.items():
                queue = MessageQueue(key.topic, key.broker_name, key.queue_id)
                found.append(QueueStatus(queue, at.min_offset, at.max_offset, at.last_update_timestamp))
        return sorted(found, key=lambda status: status.queue)

    # Cluster -------------------------------------------------------------------------------------------------------

    async def cluster_info(self) -> ClusterInfo:
        """Return clusters, broker groups and addresses as the name server knows them.

        Raises NameServerUnavailable, BrokerError.
        """
        self.core.check_open()
        response = await self.core.name_servers.call(RequestCode.GET_BROKER_CLUSTER_INFO)
        return _read(response, "name server", ClusterInfo.decode)

    async def status(self) -> list[BrokerStatus]:
        """Return every registered broker process with what it tells of itself.

        A broker that fails raises nothing: its `BrokerStatus.failure` says why.
        """
        info = await self.cluster_info()
        found = []
        for name, data in sorted(info.broker_table.items()):
            for broker_id, address in sorted(data.broker_addresses.items()):
                table, failure = None, None
                try:
                    response = await self.core.pool.call(address, RequestCode.GET_BROKER_RUNTIME_INFO)
                    table = _read(response, address, lambda body: decode_body(body, KeyValueTable)).table
                except (ConnectionFailed, BrokerError) as error:
                    failure = str(error)
                found.append(BrokerStatus(data.cluster, name, broker_id, address, table, failure))
        return found

    # Members -------------------------------------------------------------------------------------------------------

    async def members(self, group: str | None = None) -> NodeStatus:
        """Return the group as its leader sees it: voters, learners, their addresses and how far they are.

        Without ``group`` it is the only one that is registered. Raises NoRoute if no leader is to be found or there is
        no such group, UsageError without ``group`` if several are registered.
        """
        info = await self.cluster_info()
        name = _group_name(info, group)
        failure = "no member answers"
        for address in _addresses(info, name):
            try:
                response = await self.core.pool.call(address, RequestCode.TRIVET_NODE_STATUS)
                status = _read(response, address, decode_node_status)
            except (ConnectionFailed, BrokerError) as error:
                failure = str(error)
                continue
            if status.serving:
                return status
            failure = f"the leader is {status.leader or 'unknown'}"
        raise NoGroup(name, f"no leader found: {failure}")

    async def addresses(self, group: str | None = None) -> list[str]:
        """Return the addresses of the group's registered brokers, the leader's first. Raises as `members` does."""
        info = await self.cluster_info()
        return _addresses(info, _group_name(info, group))

    async def add_member(self, node: str, peer_address: str, group: str | None = None) -> None:
        """Make a node a learner of the group, which receives the log and has no vote. Returns when that is committed.

        The node listens for peers at ``peer_address``. This and the other changes raise BrokerError when the group
        refuses, BrokerBusy when it may accept later, NoRoute and UsageError as `members` does. After a BrokerError with
        code 1, or a ConnectionFailed, the outcome is unknown.
        """
        await self._change_group(group, {"operation": "add", "node": node, "address": peer_address})

    async def promote_member(self, node: str, group: str | None = None, *, timeout_s: float = 60.0) -> None:
        """Give a learner its vote, once it has caught up with the log.

        Raises BrokerBusy when that takes longer than ``timeout_s``, else what `add_member` raises.
        """
        check_seconds(timeout_s=timeout_s)
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
        """Take a voter or learner out of the group; it may be the leader. Raises what `add_member` raises."""
        await self._change_group(group, {"operation": "remove", "node": node})

    async def transfer_leadership(self, node: str, group: str | None = None) -> None:
        """Make this voter the leader; returns when it leads.

        Raises BrokerBusy when it does not take over in time, else what `add_member` raises.
        """
        await self._ask_group(group, RequestCode.TRIVET_TRANSFER_LEADERSHIP, {"node": node})

    async def _change_group(self, group: str | None, fields: dict[str, str]) -> None:
        await self._ask_group(group, RequestCode.TRIVET_CHANGE_GROUP, fields)

    async def _ask_group(self, group: str | None, code: int, fields: dict[str, str]) -> None:
        """Have the group's leader do what may not be done twice. Raises what `add_member` raises."""
        info = await self.cluster_info()
        await self._ask_members(info, _group_name(info, group), code, fields, _may_be_done)

    async def call(
        self, address: str, code: int, fields: dict[str, str] | None = None, body: Buffer = b""
    ) -> RemotingCommand:
        """Make any request to one address; returns the response, whatever its code. Raises ConnectionFailed."""
        self.core.check_open()
        check_kind(str, address=address)
        return await self.core.pool.call(address, code, fields, body, CALL_TIMEOUT_S)

    async def _ask_members(
        self,
        info: ClusterInfo,
        name: str,
        code: int,
        fields: dict[str, str],
        is_final: Callable[[BrokerError | ConnectionFailed], bool],
    ) -> None:
        """Ask the group's leader, or another member when that fails: members forward what only their leader can do.

        Raises the last error: one that ``is_final``, or NoRoute for a group without members.
        """
        failure: ClientError = NoGroup(name, "it has no member that answers")
        for address in _addresses(info, name):
            try:
                response = await self.core.pool.call(address, code, fields, b"", CALL_TIMEOUT_S)
                _check(response, address)
            except (ConnectionFailed, BrokerError) as error:
                failure = error
                if is_final(error):
                    break
            else:
                return
        raise failure

    async def _wait_routed(self, topic: str, names: Sequence[str], queues: int, perm: int) -> None:
        deadline_ns = self._runtime.now_ns() + int(CALL_TIMEOUT_S * 1e9)
        pauses = Pauses(self._runtime.random, 0.01, 0.5)
        while True:
            try:
                route = await self.core.routes.refresh(topic)
                # A broker's own settings may permit less than the topic does, and never more.
                if all(
                    route.counts.get(name) == queues and not route.permissions[name] & _READ_WRITE & ~perm
                    for name in names
                ):
                    return
            except NoRoute:
                pass
            if self._runtime.now_ns() > deadline_ns:
                raise NoRoute(topic, f"created, but not routed everywhere after {CALL_TIMEOUT_S} s")
            await self._runtime.sleep(pauses.grow())


def _check_group(info: ClusterInfo, group: str) -> None:
    """Check that a group is registered. Raises NoRoute."""
    if group not in info.broker_table:
        names = ", ".join(sorted(info.broker_table)) or "none"
        raise NoGroup(group, f"no such group is registered; there are: {names}")


def _group_name(info: ClusterInfo, group: str | None) -> str:
    names = sorted(info.broker_table)
    if group is not None:
        _check_group(info, group)
        return group
    if len(names) > 1:
        raise UsageError(f"several groups are registered, name one of them: {', '.join(names)}")
    if not names:
        raise NoGroup("", "no broker is registered")
    return names[0]


def _addresses(info: ClusterInfo, name: str) -> list[str]:
    """Return the addresses of the group's members, the leader's first."""
    return [address for _, address in sorted(info.broker_table[name].broker_addresses.items())]


def _may_be_done(error: BrokerError | ConnectionFailed) -> bool:
    """Tell whether a request that failed may have been done, or was refused by the leader."""
    if isinstance(error, ConnectionFailed):
        return error.request_left
    return error.code != ResponseCode.SERVICE_NOT_AVAILABLE


def _cannot_be_repeated(error: BrokerError | ConnectionFailed) -> bool:
    return not error.retry_may_help


def _check(response: RemotingCommand, address: str) -> None:
    """Check that a request was done. Raises BrokerError."""
    if response.code != ResponseCode.SUCCESS:
        raise broker_error(response, address)


def _read(response: RemotingCommand, address: str, decode: Callable[[bytes | memoryview], Body]) -> Body:
    """Return the body of a response with success. Raises BrokerError, also for a body that cannot be read."""
    _check(response, address)
    try:
        return decode(response.body)
    except (RemotingError, msgspec.DecodeError) as error:
        raise BrokerError(response.code, f"unreadable response: {error}", address) from error

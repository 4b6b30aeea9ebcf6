"""The answers that a name server must give: the rules of `broker/name_server`, written once more.

The model of one name server is told every request in the order in which they reach it, and says what its answer must
be. That leaves nothing unknown: a request whose answer was lost has been there or has not. It forgets everything with
the process, but the key-value configuration of one that has a file, of which it forgets nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from broker.name_server.key_values import ORDER_TOPIC_NAMESPACE
from broker.remoting.bodies import DataVersion, KeyValueTable, TopicList
from broker.remoting.codes import Permission, RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.json_body import decode_body
from broker.remoting.name_server_headers import RegisterBrokerHeader
from broker.remoting.register_body import RegisterBrokerBody
from broker.remoting.route import MASTER_ID, ClusterInfo, TopicRouteData
from simulation.scheduler import SECOND

Table = dict[str, dict[str, str]]
"""Key-value configuration: value by key by namespace, none of them empty."""
Answer = tuple[int, object]
"""A code, and what the header or body says, in a form that can be compared."""

SAVING: Final = (
    RequestCode.PUT_KV_CONFIG,
    RequestCode.DELETE_KV_CONFIG,
    RequestCode.UPDATE_NAMESRV_CONFIG,
)
_SETTINGS: Final = "TRIVET_NAMESRV_CONFIG"
_ORDERED: Final = "orderMessageEnable"
_EXPIRY_NS: Final = 120 * SECOND
_Queues = tuple[int, int, int]
"""Permission bits, queues to read, queues to write."""


@dataclass(slots=True)
class _Broker:
    """A broker that is registered: what keeps its address in the table."""

    cluster: str
    name: str
    broker_id: int
    connection: int
    version: DataVersion
    heard_ns: int


@dataclass(slots=True)
class NameServerModel:
    """The rules of one name server, and what it knows."""

    table: Table = field(default_factory=dict)
    _live: dict[str, _Broker] = field(default_factory=dict)
    """Brokers by address."""
    _topics: dict[str, dict[str, _Queues]] = field(default_factory=dict)
    """Queues by topic and broker name."""

    # ---- what happens to it ------------------------------------------------------------------------------

    def restarted(self, table: Table) -> None:
        """Notes that a new process has read this configuration."""
        self.table = table
        self._live.clear()
        self._topics.clear()

    def closed(self, connection: int) -> None:
        """Notes that a connection has ended, and with it the broker that was last heard on it."""
        for address in [address for address, broker in self._live.items() if broker.connection == connection]:
            self._remove(address)

    def expired(self, now_ns: int) -> None:
        """Drops the brokers that have been silent for too long."""
        for address in [a for a, broker in self._live.items() if broker.heard_ns + _EXPIRY_NS <= now_ns]:
            self._remove(address)

    def permission(self, topic: str) -> int | None:
        """Returns what clients may do with a topic, on whichever broker allows most; None without a route."""
        queues = self._topics.get(topic, {})
        return max((found[0] for found in queues.values()), default=None)

    def order(self, topic: str) -> str | None:
        """Returns the order configuration that the route of a topic carries; None without one."""
        if self.table.get(_SETTINGS, {}).get(_ORDERED) != "true":
            return None
        return self.table.get(ORDER_TOPIC_NAMESPACE, {}).get(topic)

    def changed(self, command: RemotingCommand) -> Table:
        """Returns the configuration after a request that changes it."""
        fields = command.fields
        if command.code == RequestCode.UPDATE_NAMESRV_CONFIG:
            key, _, value = bytes(command.body).decode().strip().partition("=")
            assert key == _ORDERED, "nothing else can be changed"
            fields = {"namespace": _SETTINGS, "key": key, "value": value}
        table = {namespace: dict(held) for namespace, held in self.table.items()}
        held = table.setdefault(fields["namespace"], {})
        if command.code == RequestCode.DELETE_KV_CONFIG:
            held.pop(fields["key"], None)
        else:
            held[fields["key"]] = fields["value"]
        if not held:
            del table[fields["namespace"]]
        return table

    # ---- requests ----------------------------------------------------------------------------------------

    def answer(
        self, connection: int, command: RemotingCommand, now_ns: int, *, failed: bool
    ) -> Answer | None:
        """Does what a request asks, and returns its answer; None for requests that are not looked at.

        `failed`: the disk has refused what it wanted to keep.
        """
        if command.code in SAVING:
            if failed:
                return ResponseCode.SYSTEM_ERROR, None
            self.table = self.changed(command)
            return ResponseCode.SUCCESS, None
        if command.code == RequestCode.REGISTER_BROKER:
            return self._register(connection, command, now_ns)
        handler = self._HANDLERS.get(command.code)
        return None if handler is None else handler(self, command.fields, command)

    def _get(self, fields: Mapping[str, str], _: RemotingCommand) -> Answer:
        value = self.table.get(fields["namespace"], {}).get(fields["key"])
        return ResponseCode.QUERY_NOT_FOUND if value is None else ResponseCode.SUCCESS, value

    def _list(self, fields: Mapping[str, str], _: RemotingCommand) -> Answer:
        held = self.table.get(fields["namespace"])
        return ResponseCode.QUERY_NOT_FOUND if held is None else ResponseCode.SUCCESS, held

    def _register(self, connection: int, command: RemotingCommand, now_ns: int) -> Answer:
        header = command.decode_fields(RegisterBrokerHeader)
        body = RegisterBrokerBody.decode(
            command.body, compressed=header.compressed, version=command.version
        ).topics
        name, address, broker_id = header.broker_name, header.broker_address, header.broker_id
        before = self._live.get(address)
        version = body.data_version
        holder = self._addresses(name).get(broker_id)
        order = self.table.get(ORDER_TOPIC_NAMESPACE)
        if holder not in (None, address):
            assert holder is not None
            if self._live[holder].version.state_version > version.state_version:
                self._remove(address)  # of an earlier term: its successor is here already
                return ResponseCode.SUCCESS, (None, order)
            del self._live[holder]
        self._live[address] = _Broker(header.cluster_name, name, broker_id, connection, version, now_ns)
        if broker_id == MASTER_ID:
            is_new = holder is None or before is None or before.version != version
            if is_new and header.all_topics:
                for topic in self._topics.keys() - body.topic_config_table.keys():
                    self._drop(topic, name)
            for topic, config in body.topic_config_table.items():
                held = self._topics.setdefault(topic, {})
                if is_new or name not in held:
                    held[name] = (config.perm, config.read_queue_nums, config.write_queue_nums)
        master = None if broker_id == MASTER_ID else self._addresses(name).get(MASTER_ID)
        return ResponseCode.SUCCESS, (master, order)

    def _unregister(self, fields: Mapping[str, str], _: RemotingCommand) -> Answer:
        self._remove(fields["brokerAddr"])
        return ResponseCode.SUCCESS, None

    def _route(self, fields: Mapping[str, str], _: RemotingCommand) -> Answer:
        topic = fields["topic"]
        queues = self._topics.get(topic)
        if not queues:
            return ResponseCode.TOPIC_NOT_EXIST, None
        addresses = {name: self._addresses(name) for name in queues}
        return ResponseCode.SUCCESS, (addresses, queues, self.order(topic))

    def _cluster(self, _: Mapping[str, str], __: RemotingCommand) -> Answer:
        names = dict.fromkeys(broker.name for broker in self._live.values())
        return ResponseCode.SUCCESS, {name: self._addresses(name) for name in names}

    def _all_topics(self, _: Mapping[str, str], __: RemotingCommand) -> Answer:
        return ResponseCode.SUCCESS, sorted(self._topics)

    def _wipe(self, fields: Mapping[str, str], _: RemotingCommand) -> Answer:
        return self._permit(fields["brokerName"], lambda permission: permission & ~Permission.WRITE)

    def _add(self, fields: Mapping[str, str], _: RemotingCommand) -> Answer:
        return self._permit(fields["brokerName"], lambda _: Permission.READ | Permission.WRITE)

    def _permit(self, name: str, change: Callable[[int], int]) -> Answer:
        held = [queues for queues in self._topics.values() if name in queues]
        for queues in held:
            permission, *counts = queues[name]
            queues[name] = (int(change(permission)), counts[0], counts[1])
        return ResponseCode.SUCCESS, len(held)

    def _delete_topic(self, fields: Mapping[str, str], _: RemotingCommand) -> Answer:
        assert "clusterName" not in fields, "nobody here asks so"
        self._topics.pop(fields["topic"], None)
        return ResponseCode.SUCCESS, None

    def _register_topic(self, fields: Mapping[str, str], command: RemotingCommand) -> Answer:
        for data in TopicRouteData.decode(command.body).queue_datas:
            if self._addresses(data.broker_name):
                self._topics.setdefault(fields["topic"], {})[data.broker_name] = (
                    data.perm,
                    data.read_queue_nums,
                    data.write_queue_nums,
                )
        return ResponseCode.SUCCESS, None

    # ---- inside ------------------------------------------------------------------------------------------

    def _addresses(self, name: str) -> dict[int, str]:
        return {broker.broker_id: address for address, broker in self._live.items() if broker.name == name}

    def _remove(self, address: str) -> None:
        broker = self._live.pop(address, None)
        if broker is None or self._addresses(broker.name):
            return
        for topic in list(self._topics):
            self._drop(topic, broker.name)

    def _drop(self, topic: str, broker_name: str) -> None:
        self._topics[topic].pop(broker_name, None)
        if not self._topics[topic]:
            del self._topics[topic]

    _HANDLERS: ClassVar[
        Mapping[int, Callable[[NameServerModel, Mapping[str, str], RemotingCommand], Answer]]
    ] = {
        RequestCode.GET_KV_CONFIG: _get,
        RequestCode.GET_KVLIST_BY_NAMESPACE: _list,
        RequestCode.UNREGISTER_BROKER: _unregister,
        RequestCode.GET_ROUTEINFO_BY_TOPIC: _route,
        RequestCode.GET_BROKER_CLUSTER_INFO: _cluster,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _all_topics,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER: _wipe,
        RequestCode.ADD_WRITE_PERM_OF_BROKER: _add,
        RequestCode.DELETE_TOPIC_IN_NAMESRV: _delete_topic,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV: _register_topic,
    }


def answer_of(code: int, answer: RemotingCommand) -> Answer:
    """Puts a real answer to a request of this code into the form of the model's. Raises RemotingError."""
    fields, body = answer.fields, answer.body
    said: object = None
    # Remarks, versions and the order of members are left out: RocketMQ's clients go by what is kept here.
    if code == RequestCode.REGISTER_BROKER:
        order = decode_body(body, KeyValueTable).table if len(body) else None
        said = (fields.get("masterAddr"), order)
    elif answer.code != ResponseCode.SUCCESS:
        said = None
    elif code == RequestCode.GET_KV_CONFIG:
        said = fields.get("value", "")
    elif code == RequestCode.GET_KVLIST_BY_NAMESPACE:
        said = decode_body(body, KeyValueTable).table
    elif code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
        route = TopicRouteData.decode(body)
        said = (
            {data.broker_name: data.broker_addresses for data in route.broker_datas},
            {
                data.broker_name: (data.perm, data.read_queue_nums, data.write_queue_nums)
                for data in route.queue_datas
            },
            route.order_topic_conf,
        )
    elif code == RequestCode.GET_BROKER_CLUSTER_INFO:
        table = ClusterInfo.decode(body).broker_table
        said = {name: data.broker_addresses for name, data in table.items()}
    elif code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
        said = sorted(decode_body(body, TopicList).topics)
    elif code == RequestCode.WIPE_WRITE_PERM_OF_BROKER:
        said = int(fields["wipeTopicCount"])
    elif code == RequestCode.ADD_WRITE_PERM_OF_BROKER:
        said = int(fields["addTopicCount"])
    return answer.code, said

"""NameServer: each request in a few lines between its header and the tables (`DefaultRequestProcessor`).

It has no clock, sockets or files: a shell hands it every command with the connection it came on and the
monotonic time, tells it of closed connections, and has it look for silent brokers now and then (`expire`).
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
import structlog

from broker.access.accounts import ACCOUNTS_IN_FORCE
from broker.access.control import SEES_ALL, Sight
from broker.access.name_server_needs import NAME_SERVER_NEEDS
from broker.name_server.key_values import (
    ORDER_TOPIC_NAMESPACE,
    KeyValues,
    KeyValueStorage,
    TooManyKeysError,
    TooManyWritesError,
)
from broker.name_server.route_table import TOPICS_AT_ONCE, ConnectionId, RouteTable
from broker.remoting.bodies import DataVersion, KeyValueTable, TopicList
from broker.remoting.codes import RequestCode, ResponseCode, TopicSysFlag
from broker.remoting.command import RemotingCommand, encode, response
from broker.remoting.errors import RemotingError
from broker.remoting.json_body import decode_request, encode_body
from broker.remoting.name_server_headers import (
    AddWritePermResponseHeader,
    BrokerHeartbeatHeader,
    BrokerIdentityHeader,
    BrokerMemberGroupHeader,
    BrokerNameHeader,
    DeleteTopicHeader,
    GetRouteHeader,
    KeyValueHeader,
    KeyValueResponseHeader,
    NamespaceHeader,
    PutKeyValueHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
    RegisterTopicHeader,
    TopicsByClusterHeader,
    WipeWritePermResponseHeader,
)
from broker.remoting.register_body import RegisterBrokerBody, body_crc
from broker.remoting.route import BrokerMemberGroup, TopicRouteData
from broker.remoting.steps import finished
from broker.settings.properties_file import PropertiesSyntaxError, parse_body
from broker.settings.tables import NameServerSettings

log = structlog.get_logger("trivet.name_server")

_CONFIG_NAMESPACE: Final = "TRIVET_NAMESRV_CONFIG"
"""Namespace of the key-value configuration that keeps what was changed at run time."""
_ORDERED_KEY: Final = "orderMessageEnable"

LONG_REGISTRATION_BYTES: Final = 4096
"""A longer one may be of thousands of topics."""


_CHANGES_ALL_TOPICS: Final = frozenset(
    {RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER}
)
_OF_ALL_TOPICS: Final = _CHANGES_ALL_TOPICS | {
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_TOPICS_BY_CLUSTER,
    RequestCode.GET_UNIT_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
}


@dataclass(frozen=True, slots=True)
class _Request:
    """A command and the circumstances of its arrival."""

    command: RemotingCommand
    connection_id: ConnectionId
    now_ns: int
    sight: Sight


_Steps = Generator[None, None, RemotingCommand]


class NameServer:
    """One name server; name servers know nothing of each other."""

    def __init__(
        self,
        settings: NameServerSettings,
        storage: KeyValueStorage | None = None,
        *,
        long_registration_bytes: int = LONG_REGISTRATION_BYTES,
    ) -> None:
        """``storage`` keeps the key-value configuration, None keeps it in memory; raises as `KeyValues` does."""
        self._settings = settings
        self.accounts: str | None = None
        """The digest of the accounts in force, which administrators are told; None without accounts."""
        self._long_registration_bytes = long_registration_bytes
        self.requests: Counter[int] = Counter()
        """The requests that were handled, by code; those of unknown codes under -1."""
        self.refused = 0
        """The requests that were answered with another code than success."""
        self._expiry_ns = settings.broker_expiry_seconds * 1_000_000_000
        self.routes = RouteTable()
        self._key_values = KeyValues(storage, settings.max_key_values)
        ordered = self._key_values.get(_CONFIG_NAMESPACE, _ORDERED_KEY)
        if ordered is not None:
            self._settings = msgspec.structs.replace(settings, ordered_messages=ordered == "true")
        self._handlers: dict[int, Callable[[_Request], RemotingCommand | _Steps]] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._get_route,
            RequestCode.REGISTER_BROKER: self._register_broker,
            RequestCode.UNREGISTER_BROKER: self._unregister_broker,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.BROKER_HEARTBEAT: self._broker_heartbeat,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._get_cluster_info,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._get_member_group,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._get_all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._get_topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._get_system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: partial(self._get_unit_topics, TopicSysFlag.UNIT, 0),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: partial(
                self._get_unit_topics, TopicSysFlag.UNIT_SUBSCRIPTION, 0
            ),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: partial(
                self._get_unit_topics, TopicSysFlag.UNIT_SUBSCRIPTION, TopicSysFlag.UNIT
            ),
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_permission,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_permission,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            RequestCode.PUT_KV_CONFIG: self._put_key_value,
            RequestCode.GET_KV_CONFIG: self._get_key_value,
            RequestCode.DELETE_KV_CONFIG: self._delete_key_value,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._get_key_values,
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
        }
        assert self._handlers.keys() == NAME_SERVER_NEEDS.keys(), "the table says who may make each request"

    @property
    def key_values(self) -> int:
        """Counts the keys of the key-value configuration."""
        return self._key_values.count

    def is_long(self, command: RemotingCommand) -> bool:
        """Tells whether a request may take more than some milliseconds: a registration with thousands of topics, what
        changes all topics of a broker, and a list of topics while those of a broker that is gone are forgotten.

        What is compressed may be: a hundred bytes unfold to thousands of topics that are all the same. So may one that
        lists all topics of a broker which had thousands: as many are removed.
        """
        if command.is_response:
            return False
        if command.code in _OF_ALL_TOPICS:
            return command.code in _CHANGES_ALL_TOPICS or self.routes.is_forgetting
        if command.code != RequestCode.REGISTER_BROKER:
            return False
        if len(command.body) > self._long_registration_bytes:
            return True
        try:
            header = command.decode_fields(RegisterBrokerHeader)
        except RemotingError:
            return False  # it is refused with that error
        if header.all_topics and self.routes.topic_count(header.broker_name) >= TOPICS_AT_ONCE:
            return True
        return header.compressed

    def answer(
        self, connection_id: ConnectionId, command: RemotingCommand, now_ns: int, sight: Sight = SEES_ALL
    ) -> bytes | None:
        """Carry out a request and return its response's frame; None for what wants none. Never raises.

        ``sight`` is what its client may see.

        What is too long for a frame (parts of it are others' words) becomes a response that says so.
        """
        return finished(self.answer_in_steps(connection_id, command, now_ns, sight))

    def answer_in_steps(
        self, connection_id: ConnectionId, command: RemotingCommand, now_ns: int, sight: Sight = SEES_ALL
    ) -> Generator[None, None, bytes | None]:
        """`answer` in steps of some milliseconds: others may be answered between two of them.

        Two registrations of one broker must not be carried out at a time, nor what comes behind one on its connection.
        """
        answer = yield from self._handle(_Request(command, connection_id, now_ns, sight))
        if answer is None:
            return None
        try:
            return encode(answer)
        except ValueError as error:
            refusal = f"the response cannot be sent: {error}"
            return encode(response(command, ResponseCode.SYSTEM_ERROR, refusal))

    def _handle(self, request: _Request) -> Generator[None, None, RemotingCommand | None]:
        command = request.command
        if command.is_response:
            return None
        handler = self._handlers.get(command.code)
        self.requests[-1 if handler is None else command.code] += 1
        if handler is None:
            answer = response(
                command,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {command.code} not supported",
            )
        else:
            try:
                outcome = handler(request)
                answer = outcome if isinstance(outcome, RemotingCommand) else (yield from outcome)
            except RemotingError as error:
                answer = response(command, ResponseCode.SYSTEM_ERROR, str(error))
            except Exception as error:
                # What a peer can send and a handler did not foresee hurts this request only: all else still knows
                # its brokers.
                log.exception("request failed", code=command.code, client=str(request.connection_id))
                answer = response(command, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        self.refused += answer.code != ResponseCode.SUCCESS
        return None if command.is_one_way else answer

    def _forgotten(self) -> Iterator[None]:
        """Forgets the topics of all brokers that are gone, in steps."""
        while self.routes.is_forgetting:
            self.routes.forget()
            yield

    def figures(self) -> tuple[int, int, int, int]:
        """Returns the numbers of brokers, of broker names, of topics, and of keys of the key-value configuration."""
        return (*self.routes.counts(), self._key_values.count)

    def _get_route(self, request: _Request) -> RemotingCommand:
        header = request.command.decode_fields(GetRouteHeader)
        route = self.routes.route(header.topic)
        if route is None:
            return response(
                request.command,
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {header.topic}",
            )
        if self._settings.ordered_messages:
            route.order_topic_conf = self._key_values.get(ORDER_TOPIC_NAMESPACE, header.topic)
        body = route.encode(request.command.version, bool(header.accept_standard_json_only))
        return response(request.command, ResponseCode.SUCCESS, body=body)

    def _register_broker(self, request: _Request) -> _Steps:
        command = request.command
        header = command.decode_fields(RegisterBrokerHeader)
        if header.body_crc and header.body_crc != body_crc(command.body):
            return response(command, ResponseCode.SYSTEM_ERROR, "crc32 not match")
        is_long = self.is_long(command)
        if is_long:
            yield
        body = yield from RegisterBrokerBody.decode_in_steps(
            command.body, compressed=header.compressed, version=command.version
        )
        if is_long:
            yield
        # Counted before anything is entered: a registration is taken whole or not at all.
        addresses, routes = yield from self.routes.counts_with(
            header.broker_address, header.broker_name, body.topics.topic_config_table
        )
        if addresses > self._settings.max_brokers:
            return _too_many(request, "brokers", addresses, self._settings.max_brokers)
        if routes > self._settings.max_routes:
            return _too_many(request, "routes", routes, self._settings.max_routes)
        expiry_ns = self._expiry_ns
        if header.heartbeat_timeout_ms is not None and header.heartbeat_timeout_ms > 0:
            expiry_ns = header.heartbeat_timeout_ms * 1_000_000
        if is_long:
            yield
        master = yield from self.routes.register_in_steps(
            header, body.topics, request.connection_id, expiry_ns, request.now_ns
        )
        fields = RegisterBrokerResponseHeader()
        if master is not None:
            fields = RegisterBrokerResponseHeader(master.ha_server_address, master.address)
        # Brokers are told which topics are ordered (`DefaultRequestProcessor.registerBroker`).
        order = self._key_values.namespace(ORDER_TOPIC_NAMESPACE)
        answer_body = b"" if order is None else encode_body(KeyValueTable(order))
        return response(command, ResponseCode.SUCCESS, None, fields, answer_body)

    def _unregister_broker(self, request: _Request) -> RemotingCommand:
        header = request.command.decode_fields(BrokerIdentityHeader)
        self.routes.unregister(header.cluster_name, header.broker_address)
        return response(request.command, ResponseCode.SUCCESS)

    def _query_data_version(self, request: _Request) -> RemotingCommand:
        command = request.command
        header = command.decode_fields(BrokerIdentityHeader)
        known = self.routes.data_version(header.cluster_name, header.broker_address)
        changed = known is None or known != decode_request(command.body, DataVersion)
        # A broker that has changed registers next, which puts off its end as well
        # (`DefaultRequestProcessor.queryBrokerTopicConfig`).
        if not changed:
            self.routes.heard(header.cluster_name, header.broker_address, request.now_ns)
        body = b"" if known is None else encode_body(known)
        return response(command, ResponseCode.SUCCESS, None, QueryDataVersionResponseHeader(changed), body)

    def _broker_heartbeat(self, request: _Request) -> RemotingCommand:
        header = request.command.decode_fields(BrokerHeartbeatHeader)
        self.routes.heard(header.cluster_name, header.broker_address, request.now_ns)
        return response(request.command, ResponseCode.SUCCESS)

    def _get_cluster_info(self, request: _Request) -> RemotingCommand:
        return response(request.command, ResponseCode.SUCCESS, body=self.routes.cluster_info().encode())

    def _get_member_group(self, request: _Request) -> RemotingCommand:
        header = request.command.decode_fields(BrokerMemberGroupHeader)
        data = self.routes.broker(header.broker_name)
        addresses = {} if data is None else data.broker_addresses
        group = BrokerMemberGroup(addresses, header.broker_name, header.cluster_name)
        return response(request.command, ResponseCode.SUCCESS, body=group.encode())

    def _get_all_topics(self, request: _Request) -> _Steps:
        yield from self._forgotten()
        return _topic_list(request, self.routes.topics())

    def _get_topics_by_cluster(self, request: _Request) -> _Steps:
        yield from self._forgotten()
        header = request.command.decode_fields(TopicsByClusterHeader)
        return _topic_list(request, self.routes.topics_of_cluster(header.cluster))

    def _get_system_topics(self, request: _Request) -> RemotingCommand:
        return _topic_list(request, *self.routes.system_topics())

    def _get_unit_topics(self, wanted: int, unwanted: int, request: _Request) -> _Steps:
        yield from self._forgotten()
        return _topic_list(request, self.routes.unit_topics(wanted, unwanted))

    def _wipe_write_permission(self, request: _Request) -> _Steps:
        header = request.command.decode_fields(BrokerNameHeader)
        count = yield from self.routes.set_writable(header.broker_name, False)
        return response(request.command, ResponseCode.SUCCESS, fields=WipeWritePermResponseHeader(count))

    def _add_write_permission(self, request: _Request) -> _Steps:
        header = request.command.decode_fields(BrokerNameHeader)
        count = yield from self.routes.set_writable(header.broker_name, True)
        return response(request.command, ResponseCode.SUCCESS, fields=AddWritePermResponseHeader(count))

    def _delete_topic(self, request: _Request) -> RemotingCommand:
        header = request.command.decode_fields(DeleteTopicHeader)
        self.routes.delete_topic(header.topic, header.cluster_name or None)
        return response(request.command, ResponseCode.SUCCESS)

    def _register_topic(self, request: _Request) -> RemotingCommand:
        header = request.command.decode_fields(RegisterTopicHeader)
        route = decode_request(request.command.body, TopicRouteData)
        queues = {queue.broker_name: queue for queue in route.queue_datas}
        routes = self.routes.routes_with(header.topic, queues)
        if routes > self._settings.max_routes:
            return _too_many(request, "routes", routes, self._settings.max_routes)
        self.routes.add_topic(header.topic, list(queues.values()))
        return response(request.command, ResponseCode.SUCCESS)

    def _put_key_value(self, request: _Request) -> RemotingCommand:
        header = request.command.decode_fields(PutKeyValueHeader)
        return _changed(
            request,
            lambda: self._key_values.put(header.namespace, header.key, header.value, request.now_ns),
        )

    def _delete_key_value(self, request: _Request) -> RemotingCommand:
        header = request.command.decode_fields(KeyValueHeader)
        return _changed(
            request, lambda: self._key_values.delete(header.namespace, header.key, request.now_ns)
        )

    def _get_key_value(self, request: _Request) -> RemotingCommand:
        header = request.command.decode_fields(KeyValueHeader)
        value = self._key_values.get(header.namespace, header.key)
        if value is None:
            return response(
                request.command,
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return response(request.command, ResponseCode.SUCCESS, fields=KeyValueResponseHeader(value))

    def _get_key_values(self, request: _Request) -> RemotingCommand:
        header = request.command.decode_fields(NamespaceHeader)
        table = self._key_values.namespace(header.namespace)
        if table is None:
            return response(
                request.command,
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace}",
            )
        return response(request.command, ResponseCode.SUCCESS, body=encode_body(KeyValueTable(table)))

    def _get_config(self, request: _Request) -> RemotingCommand:
        settings = self._settings
        lines = (
            f"listenPort={settings.listen.rpartition(':')[2]}",
            f"kvConfigPath={settings.kv_config_path}",
            f"orderMessageEnable={'true' if settings.ordered_messages else 'false'}",
            f"serverChannelMaxIdleTimeSeconds={settings.idle_seconds}",
            *(() if self.accounts is None else (f"{ACCOUNTS_IN_FORCE}={self.accounts}",)),
        )
        return response(request.command, ResponseCode.SUCCESS, body="\n".join(lines).encode() + b"\n")

    def _update_config(self, request: _Request) -> RemotingCommand:
        """Changes ``orderMessageEnable``, which is kept with the key-value configuration; no other key."""
        try:
            wanted = {entry.key: entry.value for entry in parse_body(request.command.body)}
        except PropertiesSyntaxError as error:
            return response(request.command, ResponseCode.SYSTEM_ERROR, str(error))
        # All are looked at before the one is put: an order is carried out as a whole, or not at all.
        for key, value in wanted.items():
            if key != _ORDERED_KEY:
                return response(
                    request.command,
                    ResponseCode.NO_PERMISSION,
                    f"{key} cannot change while the name server runs: change its file and start it again",
                )
            if value not in ("true", "false"):
                return response(
                    request.command, ResponseCode.SYSTEM_ERROR, f"{key} = {value}: must be true or false"
                )
        ordered = wanted.get(_ORDERED_KEY)
        if ordered is None:
            return response(request.command, ResponseCode.SUCCESS)

        def change() -> None:
            self._key_values.put(_CONFIG_NAMESPACE, _ORDERED_KEY, ordered, request.now_ns)
            self._settings = msgspec.structs.replace(self._settings, ordered_messages=ordered == "true")

        return _changed(request, change)


def _topic_list(request: _Request, topics: list[str], broker_address: str | None = None) -> RemotingCommand:
    if not request.sight.is_everything:
        topics = [topic for topic in topics if request.sight.topic(topic)]
    body = encode_body(TopicList(broker_address, topics))
    return response(request.command, ResponseCode.SUCCESS, body=body)


def _too_many(request: _Request, what: str, count: int, most: int) -> RemotingCommand:
    return response(
        request.command,
        ResponseCode.SYSTEM_ERROR,
        f"there would be {count} {what}, at most {most} are allowed (max_{what}); nothing was registered",
    )


def _changed(request: _Request, change: Callable[[], None]) -> RemotingCommand:
    """Makes a change of the key-value configuration, and returns the response: it was made, or why not."""
    code: ResponseCode
    try:
        change()
    except TooManyKeysError as error:
        code, remark = ResponseCode.SYSTEM_ERROR, str(error)
    except TooManyWritesError as error:
        code, remark = ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]{error}"
    except OSError as error:
        code = ResponseCode.SYSTEM_ERROR
        remark = f"the change was not made, its file could not be written: {error}"
    else:
        return response(request.command, ResponseCode.SUCCESS)
    return response(request.command, code, remark)

"""Name servers, and the routes that they give: which brokers have the queues of a topic.

Name servers do not talk to each other, and one is as good as another: the client stays with one, chosen at random, and
moves to the next when it fails or is silent. Routes are kept and renewed every 30 s; the reference client does nothing
more, so its users may see a failover only after 30 s. Here a failed call asks for a new route at once; askers for the
same topic share one request, which runs in a task of its own so that none of them takes it down by being cancelled.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from broker.client.checks import check_kind
from broker.client.errors import (
    BrokerError,
    ClientClosed,
    ClientError,
    ConnectFailed,
    ConnectionFailed,
    NameServerUnavailable,
    NoRoute,
    UsageError,
)
from broker.client.message import MessageQueue
from broker.client.transport.connection import Fields
from broker.client.transport.pool import ConnectionPool
from broker.client.transport.runtime import Buffer, Event, Runtime, TaskGroup
from broker.remoting.addresses import split_address
from broker.remoting.codes import Permission, RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import BodyError
from broker.remoting.route import MASTER_ID, TopicRouteData
from broker.state.topic_rules import DEFAULT_TOPIC

ROUTE_REFRESH_S = 30.0
"""Time between renewals of all known routes, in seconds."""
NAME_SERVER_TIMEOUT_S = 3.0
"""Time limit in seconds for the only name server, and for each of several in the second round."""
NAME_SERVER_PATIENCE_S = 0.75
"""Time limit in seconds for one of several in the first round, and for a new route where an old one is known: a name
server that hangs must not use up the time of a send."""
DEFAULT_TOPIC_QUEUES = 4
"""Queues that an automatically created topic gets at most."""


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """A topic's queues and the addresses of its broker groups.

    ``brokers`` maps broker name to broker id to address; id 0 is the leader as the name server knows it. Queues are
    sorted. ``writable`` has the queues of groups without a registered leader only when no group has one: any member of
    a Trivet group forwards to its leader, but a follower of another broker refuses sends. ``permitted`` always has
    them: among these a key is given its queue, as a key that changed its queue with an election would lose its order.
    """

    topic: str
    brokers: Mapping[str, Mapping[int, str]]
    readable: tuple[MessageQueue, ...]
    writable: tuple[MessageQueue, ...]
    permitted: tuple[MessageQueue, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    """The number of queues of the topic in each group, by broker name; groups whose number is not known are left
    out."""
    permissions: Mapping[str, int] = field(default_factory=dict)
    """The permissions that each group gives clients for the topic, by broker name: bits of `codes.Permission`."""

    def address(self, broker_name: str, broker_id: int = MASTER_ID, avoid: Sequence[str] = ()) -> str | None:
        """Return the address of that member of the group, or of another one if it is unknown or the last that failed.

        ``avoid`` has the addresses that failed, each once, the last one at the end (`failed_last`); those of other
        groups, to which attempts may go in between, do not count. The others take turns between the attempts at that
        member, so that whoever goes on asking comes to each. None means that the group is not registered.
        """
        addresses = self.brokers.get(broker_name)
        if not addresses:
            return None
        preferred = addresses.get(broker_id)
        failed = [address for address in avoid if address in addresses.values()]
        if preferred is not None and (not failed or preferred != failed[-1]):
            return preferred
        return min(
            (address for _, address in sorted(addresses.items())),
            key=lambda address: failed.index(address) if address in failed else -1,
        )

    def lacks(self, queue: MessageQueue) -> str | None:
        """Return the reason why there is no such queue, None where there is one or may be one."""
        if queue.broker_name not in self.brokers:
            return f"broker {queue.broker_name!r} is not registered"
        count = self.counts.get(queue.broker_name)
        if count is not None and not 0 <= queue.queue_id < count:
            return f"broker {queue.broker_name!r} has {count} queues of it, numbered from 0, and no {queue.queue_id}"
        return None

    def addresses(self) -> list[tuple[str, int, str]]:
        """Return (broker name, broker id, address) of every broker of the topic, sorted."""
        return [
            (name, broker_id, address)
            for name, members in sorted(self.brokers.items())
            for broker_id, address in sorted(members.items())
        ]


def failed_last(failed: Sequence[str], address: str) -> list[str]:
    """Return the addresses that failed, in that order and each once, now that this one has (`TopicRoute.address`)."""
    return [*(other for other in failed if other != address), address]


def parse_route(topic: str, body: bytes | memoryview) -> TopicRoute:
    """Return the route in a name server's response, whichever way its keys are quoted. Raises BodyError."""
    route = TopicRouteData.decode(body)
    brokers = {data.broker_name: dict(sorted(data.broker_addresses.items())) for data in route.broker_datas}
    readable: list[MessageQueue] = []
    writable: list[MessageQueue] = []
    counts: dict[str, int] = {}
    for data in route.queue_datas:
        if not brokers.get(data.broker_name):
            continue
        # A topic that gets fewer queues is read from more than it is written to, until those are empty.
        counts[data.broker_name] = max(data.read_queue_nums, data.write_queue_nums)
        if data.perm & Permission.READ:
            readable += [
                MessageQueue(topic, data.broker_name, number) for number in range(data.read_queue_nums)
            ]
        if data.perm & Permission.WRITE:
            writable += [
                MessageQueue(topic, data.broker_name, number) for number in range(data.write_queue_nums)
            ]
    # Instead of all queues, as in `MQClientInstance.topicRouteData2TopicPublishInfo`: a fixed number of them at each
    # broker, so that a key keeps its queue while brokers come and go.
    if route.order_topic_conf:
        writable = _ordered_queues(topic, route.order_topic_conf, brokers)
        for queue in writable:
            counts[queue.broker_name] = max(counts.get(queue.broker_name, 0), queue.queue_id + 1)
    permitted = tuple(sorted(writable))
    with_leader = tuple(queue for queue in permitted if MASTER_ID in brokers[queue.broker_name])
    readable.sort()
    permissions = {data.broker_name: data.perm for data in route.queue_datas if data.broker_name in counts}
    writable_now = with_leader or permitted
    return TopicRoute(topic, brokers, tuple(readable), writable_now, permitted, counts, permissions)


def _ordered_queues(topic: str, conf: str, brokers: Mapping[str, Mapping[int, str]]) -> list[MessageQueue]:
    """Return the queues of an ordered topic, whatever the groups themselves say."""
    return [
        MessageQueue(topic, name, number)
        for name, count in ordered_counts(conf)
        if brokers.get(name)
        for number in range(count)
    ]


def ordered_counts(conf: str) -> list[tuple[str, int]]:
    """Return the broker groups of an ordered topic, written ``broker:count;broker:count``, and the queues of each.

    What is written in another way is left out.
    """
    found = (item.rpartition(":") for item in conf.split(";"))
    # As few digits as numbers have that brokers permit: a longer one would take all memory.
    return [(name, int(count)) for name, _, count in found if name and re.fullmatch("[0-9]{1,5}", count)]


def parse_name_servers(addresses: str | Sequence[str]) -> list[str]:
    """Return the addresses of a list, or of one text with ``;`` or ``,`` between them.

    Raises UsageError when there is none, and for one that is not host:port.
    """
    check_kind(Sequence, name_servers=addresses)
    if isinstance(addresses, str):
        addresses = addresses.replace(",", ";").split(";")
    for address in addresses:
        check_kind(str, name_server=address)
    found = [address.strip() for address in addresses if address.strip()]
    if not found:
        raise UsageError("no name server address was given")
    for address in found:
        try:
            _, port = split_address(address)
        except ValueError as error:
            raise UsageError(f"name server address {address!r} is not host:port: {error}") from None
        if port == 0:
            raise UsageError(f"name server address {address!r}: nobody listens at port 0")
    return found


class NameServers:
    """Makes calls to one of several name servers, the next one when it fails."""

    def __init__(self, runtime: Runtime, pool: ConnectionPool, addresses: Sequence[str]) -> None:
        self.addresses = list(addresses)
        self._runtime = runtime
        self._pool = pool
        self._current = runtime.random.randrange(len(self.addresses))

    async def call(self, code: int, fields: Fields = None, body: Buffer = b"") -> RemotingCommand:
        """Ask one name server, the next if it fails or is silent; returns the first response, whatever its code.

        Of several, each gets 0.75 s; if one was silent all are asked once more, for 3 s each. Raises
        NameServerUnavailable when none answers.
        """
        failures: list[ConnectionFailed] = []
        several = len(self.addresses) > 1
        for limit_s in (
            (NAME_SERVER_PATIENCE_S, NAME_SERVER_TIMEOUT_S) if several else (NAME_SERVER_TIMEOUT_S,)
        ):
            failures.clear()
            began_ns = self._runtime.now_ns()
            for _ in range(len(self.addresses)):
                asked = self._current
                try:
                    return await self._pool.call(self.addresses[asked], code, fields, body, limit_s)
                except ConnectionFailed as error:
                    failures.append(error)
                    if self._current == asked:  # nobody else has moved on meanwhile
                        self._current = (asked + 1) % len(self.addresses)
            if self._runtime.now_ns() - began_ns < int(limit_s * 1e9):
                break  # none was silent
        is_final = all(isinstance(one, ConnectFailed) and one.is_distrusted for one in failures)
        raise NameServerUnavailable([str(one) for one in failures], retry_may_help=not is_final)


@dataclass(slots=True, eq=False)
class _Refresh:
    """A request for a route, which all that ask for it meanwhile share."""

    done: Event
    error: ClientError | None = field(default_factory=lambda: ClientClosed("the client was closed"))
    """None once there is a route. That of a client that was closed meanwhile stays as it is."""


class RouteCache:
    """Keeps the routes of the topics in use."""

    def __init__(self, runtime: Runtime, tasks: TaskGroup, name_servers: NameServers) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._name_servers = name_servers
        self._routes: dict[str, TopicRoute] = {}
        self._refreshes: dict[str, _Refresh] = {}
        self._closed = False

    def find(self, topic: str) -> TopicRoute | None:
        """Return the known route, None if there is none."""
        return self._routes.get(topic)

    def known(self) -> list[TopicRoute]:
        """Return all known routes."""
        return list(self._routes.values())

    async def get(self, topic: str, *, create_like_default: bool = False) -> TopicRoute:
        """Return the known route, or ask for one. Raises NoRoute, NameServerUnavailable, BrokerError, ClientClosed.

        With ``create_like_default`` a topic that does not exist gets the route of the template topic: a first send to
        it there creates the topic.
        """
        route = self._routes.get(topic)
        if route is not None:
            return route
        try:
            return await self.refresh(topic)
        except NoRoute:
            if not create_like_default:
                raise
        default = await self._fetch(DEFAULT_TOPIC)
        if default is None:
            raise NoRoute(topic, "it does not exist, and no broker creates topics by itself")
        writable, permitted = (
            tuple(queue._replace(topic=topic) for queue in queues if queue.queue_id < DEFAULT_TOPIC_QUEUES)
            for queues in (default.writable, default.permitted)
        )
        # Not kept: when the first send has created the topic, it has a route of its own.
        return TopicRoute(topic, default.brokers, permitted, writable, permitted)

    async def refresh(self, topic: str) -> TopicRoute:
        """Ask for the route now and return it; who asks meanwhile shares the request. Raises what `get` raises.

        A route that was known stays known when no name server answers, or when the topic has none now: its brokers may
        still serve, and the caller hears of the error anyhow.
        """
        if self._closed:
            raise ClientClosed("the client was closed")
        refresh = self._refreshes.get(topic)
        if refresh is None:
            refresh = self._refreshes[topic] = _Refresh(self._runtime.event())
            self._tasks.start_soon(self._refresh, topic, refresh)
        await refresh.done.wait()
        if refresh.error is not None:
            # All who asked meanwhile raise the same object: each would add its own way to the traceback.
            raise refresh.error.with_traceback(None)
        return self._routes[topic]

    async def refresh_quietly(self, topic: str, limit_s: float = math.inf) -> None:
        """Ask for a new route, for up to ``limit_s`` seconds, and 0.75 s where an old one is known.

        That one stays when none is to be had. Raises ClientClosed only.
        """
        if topic in self._routes:
            limit_s = min(limit_s, NAME_SERVER_PATIENCE_S)
        with self._runtime.move_on_after(limit_s):
            try:
                await self.refresh(topic)
            except (NoRoute, NameServerUnavailable, BrokerError):
                pass

    def close(self) -> None:
        """Ask for no more routes."""
        self._closed = True

    async def keep_fresh(self) -> None:
        """Renew all known routes every 30 s, until cancelled."""
        while True:
            await self._runtime.sleep(ROUTE_REFRESH_S)
            for topic in list(self._routes):
                try:
                    await self.refresh(topic)
                except ClientError:
                    pass  # the old route stays; whoever needs a working one hears of it

    async def _refresh(self, topic: str, refresh: _Refresh) -> None:
        try:
            route = await self._fetch(topic)
            if route is not None:
                self._routes[topic] = route
                refresh.error = None
            else:
                refresh.error = NoRoute(topic, "the name server knows no such topic")
        except ClientError as error:
            refresh.error = error
        finally:
            del self._refreshes[topic]
            refresh.done.set()

    async def _fetch(self, topic: str) -> TopicRoute | None:
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        response = await self._name_servers.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark, "name server")
        try:
            return parse_route(topic, response.body)
        except BodyError as error:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"unreadable route: {error}", "name server"
            ) from error

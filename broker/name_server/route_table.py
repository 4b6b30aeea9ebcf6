"""The name server's tables: the brokers of each topic, and the brokers that are alive (`RouteInfoManager`).

Everything is rebuilt from registrations, nothing is stored. Three tables answer the queries (topic to
queues of each broker name, broker name to addresses by id, cluster to broker names), the fourth holds what
keeps an address alive: a connection and a deadline. All removals go by address, never by id: a deposed
leader that leaves late must not take the entry of its successor, which has its old id.

One rule of the reference's 5.x line is left out: it refuses a first registration of exactly one topic, as
its own brokers then send a part of theirs. Here a later registration fills in whatever topic is missing,
whatever its version.

A topic that is deleted in one group of several leaves its route by that group's next registration. The reference
keeps it until an administrator deletes it at each name server, for all groups (or, in 5.x with
`deleteTopicWithBrokerRegistration`, takes every registration for complete, which those of its brokers need not be).
Here a registration says whether it is: Trivet's brokers' are.
"""

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from broker.remoting.bodies import DataVersion, TopicConfig, TopicConfigTable
from broker.remoting.codes import Permission
from broker.remoting.name_server_headers import RegisterBrokerHeader
from broker.remoting.route import MASTER_ID, BrokerData, ClusterInfo, QueueData, TopicRouteData

ConnectionId = Hashable

TOPICS_AT_ONCE: Final = 5_000
"""Topics that a registration enters in one step, or that are forgotten: some 3 ms."""


@dataclass(slots=True)
class LiveBroker:
    """The reasons that keep one address in the tables; times are monotonic nanoseconds."""

    cluster: str
    broker_name: str
    connection_id: ConnectionId
    data_version: DataVersion
    ha_server_address: str
    expiry_ns: int
    last_heard_ns: int

    @property
    def deadline_ns(self) -> int:
        """The time at which it counts as dead unless heard of before."""
        return self.last_heard_ns + self.expiry_ns


@dataclass(frozen=True, slots=True)
class Master:
    """The broker with id 0, as told to one that is not."""

    address: str
    ha_server_address: str


@dataclass(slots=True)
class RouteTable:
    """The tables and their rules; pure, the caller brings the clock."""

    _queues: dict[str, dict[str, QueueData]] = field(default_factory=dict)
    """topic -> broker name -> queues"""
    _brokers: dict[str, BrokerData] = field(default_factory=dict)
    """broker name -> cluster and addresses; its addresses are exactly those in ``_live``, and not none"""
    _clusters: dict[str, dict[str, None]] = field(default_factory=dict)
    """cluster -> its broker names, in order of registration; none is empty"""
    _live: dict[str, LiveBroker] = field(default_factory=dict)
    """address -> what keeps it; an address stands for one broker name of one cluster"""
    _topics_of: dict[str, dict[str, None]] = field(default_factory=dict)
    """broker name -> its topics; a name in ``_queues`` whose topic is not here is only left there to be forgotten"""
    _left: deque[tuple[str, dict[str, None]]] = field(default_factory=deque)
    """broker names that are gone, and topics in ``_queues`` that may name them still"""
    _route_count: int = 0
    """The queues of all topics together: topics of brokers"""

    def register_in_steps(
        self,
        header: RegisterBrokerHeader,
        topics: TopicConfigTable,
        connection_id: ConnectionId,
        expiry_ns: int,
        now_ns: int,
    ) -> Generator[None, None, Master | None]:
        """Enters a broker, in the order of RocketMQ, with the topics of a master in steps; returns the master's
        addresses for one that is not it.

        What is asked between two of them finds some. Topics are entered no longer than this registration counts: the
        broker may go, or register anew, meanwhile.
        """
        name, address, broker_id = header.broker_name, header.broker_address, header.broker_id
        before = self._live.get(address)
        if before is not None and (before.cluster, before.broker_name) != (header.cluster_name, name):
            self._remove(address)  # renamed: it is no longer what it was
            self.forget()
            before = None
        entered = self._enter_address(header, topics.data_version)
        if entered is None:
            return None
        data, is_first = entered
        live = self._live[address] = LiveBroker(
            header.cluster_name,
            name,
            connection_id,
            topics.data_version,
            header.ha_server_address,
            expiry_ns,
            now_ns,
        )
        is_master = broker_id == MASTER_ID
        # Without a master the slave with the lowest id brings the topics; brokers before 5.x do not say whether they
        # would act for it (`RouteInfoManager.registerBroker`).
        is_prime_slave = (
            header.enable_acting_master is not None
            and not is_master
            and broker_id == min(data.broker_addresses)
        )
        if is_master or is_prime_slave:
            yield from self._enter_topics(
                live,
                address,
                topics.topic_config_table,
                is_changed=is_first or before is None or before.data_version != topics.data_version,
                are_all=bool(header.all_topics),
                read_only=is_prime_slave and data.enable_acting_master,
            )
        return None if is_master else self._master_of(data)

    def _enter_address(
        self, header: RegisterBrokerHeader, version: DataVersion
    ) -> tuple[BrokerData, bool] | None:
        """Enters the address of a broker under its name and id, and its cluster; returns the name's entry, and True if
        nobody had that id. None for a broker that may not have it.
        """
        name, address, broker_id = header.broker_name, header.broker_address, header.broker_id
        data = self._brokers.get(name)
        if data is None:
            data = BrokerData({}, name, header.cluster_name)
        # A broker has one id: after an election its address comes with another (`RouteInfoManager.registerBroker`).
        addresses = {
            other_id: other
            for other_id, other in data.broker_addresses.items()
            if other != address or other_id == broker_id
        }
        holder = addresses.get(broker_id)
        if holder is not None and holder != address:
            held = self._live[holder]
            if held.data_version.state_version > version.state_version:
                # The registering broker is of an earlier master epoch: it may not keep an entry of any kind.
                self._remove(address)
                self.forget()
                return None
            del self._live[holder]  # displaced: it is told to register anew when it next asks (322)

        self._clusters.setdefault(header.cluster_name, {})[name] = None
        if data.cluster != header.cluster_name:
            self._leave_cluster(data.cluster, name)
        data.cluster = header.cluster_name
        data.enable_acting_master = bool(header.enable_acting_master)
        addresses[broker_id] = address
        data.broker_addresses = addresses
        self._brokers[name] = data
        return data, holder is None

    def _enter_topics(
        self,
        live: LiveBroker,
        address: str,
        topics: Mapping[str, TopicConfig],
        *,
        is_changed: bool,
        are_all: bool,
        read_only: bool,
    ) -> Generator[None, None, None]:
        """Enters the topics of a broker in steps, while `live` is the broker's current registration. With `are_all`
        topics that are not listed are removed.
        """
        name = live.broker_name
        own = self._topics_of.setdefault(name, {})
        if is_changed and are_all:
            others = [topic for topic in own if topic not in topics]
            for number, topic in enumerate(others, 1):
                if number % TOPICS_AT_ONCE == 0:
                    yield
                    if self._live.get(address) is not live:
                        return
                self._drop_queues(topic, name)
        for number, config in enumerate(topics.values(), 1):
            if number % TOPICS_AT_ONCE == 0:
                yield
                if self._live.get(address) is not live:
                    return
            topic = config.topic_name
            # What has not changed stays as it is here, also without a permission that was wiped (`RouteInfoManager`).
            if is_changed or topic not in own:
                queues = self._queues.get(topic)
                if queues is None:
                    queues = self._queues[topic] = {}
                self._route_count += name not in queues
                queues[name] = _queue_data(name, config, read_only)
                own[topic] = None

    def counts_with(
        self, address: str, name: str, topics: Mapping[str, TopicConfig]
    ) -> Generator[None, None, tuple[int, int]]:
        """Returns how many addresses and how many (topic, broker) routes there would be after a registration, counted
        in steps; 0 routes if it would add none. Routes that are yet to be forgotten count.
        """
        addresses = len(self._live) + (address not in self._live)
        added = 0
        for number, topic in enumerate(topics.values(), 1):
            if number % TOPICS_AT_ONCE == 0:
                yield
            added += topic.topic_name not in self._topics_of.get(name, ())
        # 0 is never too many: what adds nothing is taken, also where the limit was lowered below what is there.
        return addresses, added and added + self._route_count

    def routes_with(self, topic: str, names: Iterable[str]) -> int:
        """Returns how many (topic, broker) routes there would be after `add_topic`; 0 if it would add none."""
        present = self._queues.get(topic, {})
        added = sum(name in self._brokers and name not in present for name in names)
        return added and added + self._route_count

    def unregister(self, cluster: str, address: str) -> None:
        """Removes a broker that says it stops."""
        live = self._live.get(address)
        if live is not None and live.cluster == cluster:
            self._remove(address)
            self.forget()

    def connection_closed(self, connection_id: ConnectionId) -> None:
        """Removes every broker that was last heard on this connection."""
        for address in [a for a, live in self._live.items() if live.connection_id == connection_id]:
            self._remove(address)
        self.forget()

    def drop_silent(self, now_ns: int) -> list[ConnectionId]:
        """Removes the brokers whose deadline has passed; returns their connections, each once."""
        expired = [(address, live) for address, live in self._live.items() if live.deadline_ns <= now_ns]
        for address, _ in expired:
            self._remove(address)
        self.forget()
        return list(dict.fromkeys(live.connection_id for _, live in expired))

    @property
    def is_forgetting(self) -> bool:
        """More is to be forgotten of brokers that are gone; until then `topics` and its kin may name it."""
        return bool(self._left)

    def forget(self) -> None:
        """Takes a step in forgetting the topics of brokers that are gone: there may be a million of them."""
        left = TOPICS_AT_ONCE
        while left > 0 and self._left:
            name, topics = self._left[0]
            own = self._topics_of.get(name, {})
            while left > 0 and topics:
                left -= 1
                topic, _ = topics.popitem()
                # A broker of that name may have registered anew, with this topic, since.
                if topic not in own:
                    self._drop_queues(topic, name)
            if not topics:
                # Also a broker without topics costs something: thousands may go with one connection.
                self._left.popleft()
                left -= 1

    def heard(self, cluster: str, address: str, now_ns: int) -> None:
        """Puts off the deadline of a broker, if it is known."""
        live = self._live.get(address)
        if live is not None and live.cluster == cluster:
            live.last_heard_ns = now_ns

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """The version of a broker's last registration, None for an unknown broker."""
        live = self._live.get(address)
        return None if live is None or live.cluster != cluster else live.data_version

    def route(self, topic: str) -> TopicRouteData | None:
        """The queues of a topic and the brokers that have them; None if there are none."""
        queues = {
            name: self._writable_with_master(data)
            for name, data in self._queues.get(topic, {}).items()
            if topic in self._topics_of.get(name, ())
        }
        brokers = [self._brokers[name] for name in queues if name in self._brokers]
        return TopicRouteData(broker_datas=brokers, queue_datas=list(queues.values())) if brokers else None

    def _writable_with_master(self, data: QueueData) -> QueueData:
        """Returns what a route says of a topic: where a slave acts as the master that is gone, it cannot be written.

        Asked for each route, as the loss of a master would else change all topics at once.
        """
        broker = self._brokers.get(data.broker_name)
        if broker is None or not broker.enable_acting_master or MASTER_ID in broker.broker_addresses:
            return data
        return msgspec.structs.replace(data, perm=data.perm & ~Permission.WRITE)

    def cluster_info(self) -> ClusterInfo:
        """Every broker and every cluster."""
        return ClusterInfo(
            dict(self._brokers), {cluster: list(names) for cluster, names in self._clusters.items()}
        )

    def broker(self, broker_name: str) -> BrokerData | None:
        """The addresses of a broker name, None if it is unknown."""
        return self._brokers.get(broker_name)

    def topic_count(self, broker_name: str) -> int:
        """The number of topics of a broker name."""
        return len(self._topics_of.get(broker_name, ()))

    def counts(self) -> tuple[int, int, int]:
        """Returns the numbers of addresses, of broker names and of topics."""
        # A count that drifted would in time refuse every topic, or none (`max_routes`).
        assert (self._route_count > 0) == bool(self._queues), (
            f"{self._route_count} of {len(self._queues)} topics"
        )
        return len(self._live), len(self._brokers), len(self._queues)

    def topics(self) -> list[str]:
        """Every topic, in order of registration."""
        return list(self._queues)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Topics with queues on a broker of the cluster."""
        elsewhere = self._clusters.get(cluster, {}).keys().isdisjoint
        return [topic for topic, queues in self._queues.items() if not elsewhere(queues)]

    def unit_topics(self, wanted: int, unwanted: int) -> list[str]:
        """Topics whose first queue data has all ``wanted`` bits and none ``unwanted`` (codes 311 to 313)."""
        found = []
        wanted, unwanted = int(wanted), int(unwanted)  # of flags a look takes five times as long
        for topic, queues in self._queues.items():
            flag = next(iter(queues.values())).topic_sys_flag
            if flag & wanted == wanted and not flag & unwanted:
                found.append(topic)
        return found

    def system_topics(self) -> tuple[list[str], str | None]:
        """The topics every broker has (its cluster's and its own name), and the address of any broker."""
        topics: list[str] = []
        for cluster, names in self._clusters.items():
            topics += [cluster, *names]
        addresses = (address for data in self._brokers.values() for address in data.broker_addresses.values())
        return topics, next(addresses, None)

    def set_writable(self, broker_name: str, writable: bool) -> Generator[None, None, int]:
        """Gives or takes the write permission of all topics of a broker name, in steps; returns how many it has."""

        def changed(perm: int) -> int:
            return both if writable else perm & ~write

        # To give it makes topics readable, too (`RouteInfoManager.operateWritePermOfBroker`).
        both, write = int(Permission.READ | Permission.WRITE), int(Permission.WRITE)
        count, topics = 0, list(self._topics_of.get(broker_name, ()))
        for begin in range(0, len(topics), TOPICS_AT_ONCE):
            if begin:
                yield
            count += self._change_permissions(broker_name, topics[begin : begin + TOPICS_AT_ONCE], changed)
        return count

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forgets a topic, everywhere or on one cluster's brokers."""
        if cluster is None:
            queues = self._queues.pop(topic, {})
            self._route_count -= len(queues)
            for name in queues:
                self._topics_of.get(name, {}).pop(topic, None)
            return
        for name in self._clusters.get(cluster, {}):
            self._drop_queues(topic, name)

    def add_topic(self, topic: str, queues: list[QueueData]) -> None:
        """Enters a topic on brokers that are known (code 217); queues of unknown ones are left out."""
        for data in queues:
            if data.broker_name in self._brokers:
                present = self._queues.setdefault(topic, {})
                self._route_count += data.broker_name not in present
                present[data.broker_name] = data
                self._topics_of.setdefault(data.broker_name, {})[topic] = None

    def _master_of(self, data: BrokerData) -> Master | None:
        address = data.broker_addresses.get(MASTER_ID)
        return None if address is None else Master(address, self._live[address].ha_server_address)

    def _remove(self, address: str) -> None:
        """Takes an address out of every table."""
        live = self._live.pop(address, None)
        if live is None:
            return
        name = live.broker_name
        data = self._brokers[name]
        assert address in data.broker_addresses.values(), f"{address} keeps {name}, which has not got it"
        data.broker_addresses = {
            broker_id: other for broker_id, other in data.broker_addresses.items() if other != address
        }
        if not data.broker_addresses:
            del self._brokers[name]
            self._leave_cluster(data.cluster, name)
            # There may be a million: they are forgotten in steps, and not told meanwhile (`route` looks into
            # `_topics_of`).
            if topics := self._topics_of.pop(name, None):
                self._left.append((name, topics))

    def _leave_cluster(self, cluster: str, broker_name: str) -> None:
        names = self._clusters.get(cluster, {})
        names.pop(broker_name, None)
        if not names:
            self._clusters.pop(cluster, None)

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        self._topics_of.get(broker_name, {}).pop(topic, None)
        queues = self._queues.get(topic)
        if queues is not None:
            self._route_count -= queues.pop(broker_name, None) is not None
            if not queues:
                del self._queues[topic]

    def _change_permissions(
        self, broker_name: str, topics: Iterable[str], change: Callable[[int], int]
    ) -> int:
        count = 0
        own = self._topics_of.get(broker_name, {})
        for topic in topics:
            if topic in own:
                queues = self._queues[topic]
                data = queues[broker_name]
                queues[broker_name] = msgspec.structs.replace(data, perm=change(data.perm))
                count += 1
        return count


def _queue_data(broker_name: str, topic: TopicConfig, read_only: bool) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        perm=topic.perm & ~Permission.WRITE if read_only else topic.perm,
        read_queue_nums=topic.read_queue_nums,
        write_queue_nums=topic.write_queue_nums,
        topic_sys_flag=topic.topic_sys_flag,
    )

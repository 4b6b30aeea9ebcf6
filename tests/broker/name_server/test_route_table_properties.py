"""Any sequence of registrations and losses leaves the tables consistent."""

from __future__ import annotations

import pickle

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.name_server import RouteTable, route_table
from broker.name_server.route_table import TOPICS_AT_ONCE
from broker.remoting.bodies import DataVersion, TopicConfig, TopicConfigTable
from broker.remoting.name_server_headers import RegisterBrokerHeader
from broker.remoting.steps import finished

FAR_NS = 1 << 62
addresses = st.sampled_from(["h0", "h1", "h2"])
names = st.sampled_from(["b", "x"])
clusters = st.sampled_from(["c", "c2"])


class RouteTableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable()
        self.now_ns = 0
        self.topic_seen = False

    @rule(
        address=addresses,
        name=names,
        cluster=clusters,
        broker_id=st.integers(0, 2),
        version=st.builds(DataVersion, st.integers(0, 1), st.integers(0, 2)),
        acting=st.sampled_from([None, False, True]),
        expiry=st.integers(1, 5),
        connection=st.integers(0, 2),
        topic=st.sampled_from(["T", "U"]),
        all_topics=st.sampled_from([None, True]),
    )
    def register(
        self,
        address: str,
        name: str,
        cluster: str,
        broker_id: int,
        version: DataVersion,
        acting: bool | None,
        expiry: int,
        connection: int,
        topic: str,
        all_topics: bool | None,
    ) -> None:
        before = self.table.broker(name)
        holder = None if before is None else before.broker_addresses.get(broker_id)
        header = RegisterBrokerHeader(
            broker_name=name,
            broker_address=address,
            cluster_name=cluster,
            ha_server_address="ha",
            broker_id=broker_id,
            enable_acting_master=acting,
            all_topics=all_topics,
        )
        topics = TopicConfigTable(version, {topic: TopicConfig(topic_name=topic)})
        known = self.table.data_version(cluster, address) == version
        finished(self.table.register_in_steps(header, topics, connection, expiry, self.now_ns))
        other = "U" if topic == "T" else "T"
        assert before is not None or name not in self._names_of(other), "of an earlier life"
        after = self.table.broker(name)
        assert after is not None
        assert after.broker_addresses[broker_id] in (address, holder)
        if after.broker_addresses[broker_id] == address:
            assert self.table.data_version(cluster, address) == version
            if broker_id == 0:
                assert name in self._names_of(topic)
                if all_topics and not known:
                    assert name not in self._names_of(other), "it has this one no more"

    @rule(address=addresses, cluster=clusters)
    def unregister(self, address: str, cluster: str) -> None:
        self.table.unregister(cluster, address)
        assert self.table.data_version(cluster, address) is None

    @rule(connection=st.integers(0, 2))
    def connection_closed(self, connection: int) -> None:
        self.table.connection_closed(connection)

    @rule(step=st.integers(0, 4))
    def time_passes(self, step: int) -> None:
        self.now_ns += step
        self.table.drop_silent(self.now_ns)
        assert self.table.drop_silent(self.now_ns) == []

    @invariant()
    def tables_agree(self) -> None:
        info = self.table.cluster_info()
        listed = [name for members in info.cluster_table.values() for name in members]
        assert sorted(listed) == sorted(info.broker_table)  # each name in exactly one cluster
        assert all(info.cluster_table.values())
        seen: list[str] = []
        for name, data in info.broker_table.items():
            assert name in info.cluster_table[data.cluster]
            assert data.broker_addresses
            seen += data.broker_addresses.values()
        assert len(seen) == len(set(seen))  # an address stands for one broker and one id
        # Who is listed can expire.
        assert bool(pickle.loads(pickle.dumps(self.table)).drop_silent(FAR_NS)) == bool(seen)
        routes = 0
        for topic in ("T", "U"):
            route = self.table.route(topic)
            if route is not None:
                routes += len(route.queue_datas)
                assert [data.broker_name for data in route.queue_datas] == [
                    data.broker_name for data in route.broker_datas
                ]

        if not self.table.is_forgetting:
            assert self._routes_with("V") == routes + 1
            assert self.table.topics() == [topic for topic in self.table.topics() if self._names_of(topic)]

    def _routes_with(self, topic: str) -> int:
        return finished(self.table.counts_with("h3", "y", {topic: TopicConfig(topic_name=topic)}))[1]

    def _names_of(self, topic: str) -> list[str]:
        route = self.table.route(topic)
        return [] if route is None else [data.broker_name for data in route.queue_datas]


RouteTableTest = RouteTableMachine.TestCase


class ForgetfulMachine(RouteTableMachine):
    """Topics of brokers that are gone are forgotten one by one, while all else goes on."""

    def __init__(self) -> None:
        super().__init__()
        setattr(route_table, "TOPICS_AT_ONCE", 1)  # noqa: B010 - it is final

    @rule()
    def forget(self) -> None:
        self.table.forget()

    def teardown(self) -> None:
        setattr(route_table, "TOPICS_AT_ONCE", TOPICS_AT_ONCE)  # noqa: B010


ForgetfulTest = ForgetfulMachine.TestCase

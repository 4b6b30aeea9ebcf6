"""Clients by group and connection: heartbeats, leaving, expiry, who is told of it (`ConsumerManager`)."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.node.client_registry import ClientRegistry
from broker.node.consumer_group import FilterChange, RegisteredClient
from broker.remoting.bodies import (
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from broker.remoting.codes import LanguageCode
from broker.requests.connection import LOOPBACK_HOST, Connection, Outgoing, RelayedConnection

SECOND = 1_000_000_000


def client(connection: str, client_id: str = "") -> RegisteredClient[str]:
    return RegisteredClient(connection, client_id or f"id-{connection}", LanguageCode.JAVA, 409)


def consuming(
    group: str = "g",
    topics: dict[str, int] | None = None,
    model: MessageModel = MessageModel.CLUSTERING,
    *,
    without_sub: bool = False,
) -> HeartbeatData:
    """A heartbeat of one consumer group; ``topics`` gives the subscriptions' versions."""
    subscriptions = [
        SubscriptionData(topic=topic, sub_version=version, sub_string=f"v{version}")
        for topic, version in ({"T": 1} if topics is None else topics).items()
    ]
    data = ConsumerData(group_name=group, message_model=model, subscription_data_set=subscriptions)
    return HeartbeatData(client_id="c", consumer_data_set=[data], without_sub=without_sub)


def producing(*groups: str) -> HeartbeatData:
    return HeartbeatData(client_id="c", producer_data_set=[ProducerData(group) for group in groups])


@pytest.fixture
def registry() -> ClientRegistry[str]:
    return ClientRegistry()


def test_members_join_once_and_everyone_is_told(registry: ClientRegistry[str]) -> None:
    assert registry.heartbeat(client("a"), consuming(), 0) == ["g"]
    assert registry.heartbeat(client("a"), consuming(), 1) == []
    assert registry.heartbeat(client("b"), consuming(), 2) == ["g"]
    assert registry.members("g") == ["id-a", "id-b"]
    assert registry.connections_to_notify("g") == ["a", "b"]
    assert registry.members("nobody") == []


def test_client_connecting_anew_is_one_member_and_found_by_its_new_connection(
    registry: ClientRegistry[str],
) -> None:
    registry.heartbeat(client("old", "me"), consuming(), 0)
    assert registry.heartbeat(client("new", "me"), consuming(), 1) == []
    assert registry.members("g") == ["me"]
    assert registry.connections_to_notify("g") == ["new"]
    found = registry.find_consumer("g", "me")
    assert found is not None
    assert found.connection == "new"
    assert registry.find_consumer("g", "other") is None
    assert registry.connection_closed("old") == []
    assert registry.members("g") == ["me"]
    assert registry.connection_closed("new") == ["g"]
    assert registry.members("g") == []


def test_changed_client_id_is_a_change(registry: ClientRegistry[str]) -> None:
    registry.heartbeat(client("a", "one"), consuming(), 0)
    assert registry.heartbeat(client("a", "two"), consuming(), 1) == ["g"]
    assert registry.members("g") == ["two"]


def test_subscriptions_newer_replaces_older_does_not(registry: ClientRegistry[str]) -> None:
    def expression() -> str:
        found = registry.subscription("g", "T")
        assert found is not None
        return found.sub_string

    registry.heartbeat(client("a"), consuming(topics={"T": 5}), 0)
    assert registry.heartbeat(client("a"), consuming(topics={"T": 4}), 1) == []
    assert expression() == "v5"
    assert registry.heartbeat(client("a"), consuming(topics={"T": 6}), 2) == []  # same topics: no rebalance
    assert expression() == "v6"


def test_changed_filters_are_told_of_the_group_and_of_their_sender(registry: ClientRegistry[str]) -> None:
    told: list[FilterChange[str]] = []
    registry.on_filter_change(told.append)

    def changes(
        connection: str, topics: dict[str, int], *, without_sub: bool = False
    ) -> list[FilterChange[str]]:
        told.clear()
        registry.heartbeat(client(connection), consuming(topics=topics, without_sub=without_sub), 0)
        return list(told)

    assert changes("a", {"T": 5, "U": 5}) == changes("b", {"T": 5, "U": 5}) == []
    assert changes("b", {"T": 5, "U": 5}) == []
    assert changes("a", {"T": 6, "U": 5}) == [FilterChange("g", frozenset({"T"}), "a")]
    # Where the group is already, or a newer subscription stands, only the sender changes.
    assert (
        changes("b", {"T": 6, "U": 5})
        == changes("b", {"T": 4, "U": 5})
        == [FilterChange("g", frozenset(), "b")]
    )
    assert changes("a", {}, without_sub=True) == changes("a", {"T": 6, "U": 5}) == []
    # Who joins has changed nothing of its own; who comes again is new.
    assert changes("c", {"T": 7, "U": 5}) == [FilterChange("g", frozenset({"T"}), None)]
    registry.connection_closed("b")
    assert changes("b", {"T": 6, "U": 5}) == []


def test_added_and_absent_topics_change_the_group(registry: ClientRegistry[str]) -> None:
    registry.heartbeat(client("a"), consuming(topics={"T": 1}), 0)
    assert registry.heartbeat(client("a"), consuming(topics={"T": 1, "U": 1}), 1) == ["g"]
    assert registry.consumer_groups_of("U") == ["g"]
    assert registry.heartbeat(client("a"), consuming(topics={"U": 1}), 2) == ["g"]
    assert registry.subscription("g", "T") is None
    assert registry.consumer_groups_of("T") == []
    assert registry.heartbeat(client("a"), consuming(topics={}, without_sub=True), 3) == []
    assert registry.consumer_groups_of("U") == ["g"]


def test_broadcasting_groups_are_not_notified_and_the_last_heartbeat_wins(
    registry: ClientRegistry[str],
) -> None:
    registry.heartbeat(client("a"), consuming(model=MessageModel.BROADCASTING), 0)
    assert registry.connections_to_notify("g") == []
    registry.heartbeat(client("b"), consuming(), 1)
    assert registry.connections_to_notify("g") == ["a", "b"]
    group = registry.consumer_group("g")
    assert group is not None
    assert (group.message_model, group.consume_type) == (
        MessageModel.CLUSTERING,
        ConsumeType.CONSUME_PASSIVELY,
    )


def test_group_is_forgotten_with_its_last_client(registry: ClientRegistry[str]) -> None:
    registry.heartbeat(client("a"), consuming(), 0)
    registry.heartbeat(client("b"), consuming(), 0)
    assert registry.unregister("a", None, "g") == ["g"]
    assert registry.unregister("a", None, "g") == []
    assert registry.members("g") == ["id-b"]
    assert registry.connection_closed("b") == ["g"]
    assert registry.connection_closed("b") == []
    assert registry.consumer_group("g") is None
    assert registry.subscription("g", "T") is None
    assert registry.connections_to_notify("g") == []


def test_nobody_leaves_by_what_comes_on_another_connection(registry: ClientRegistry[str]) -> None:
    """A client id was enough to take another account's producer out of its group."""
    victim = RegisteredClient("v", "id-a", LanguageCode.CPP, 409)
    for found in (victim, client("a")):
        registry.heartbeat(found, consuming(), 0)
        registry.heartbeat(found, producing("p"), 0)
    assert registry.unregister("stranger", "p", "g") == []
    assert registry.unregister("a", "p", "g") == [], "the client is still a member, on its other connection"
    assert [found.connection for found in registry.producers("p")] == ["v"]
    assert registry.connections_to_notify("g") == ["v"]
    assert registry.unregister("v", "p", "g") == ["g"]


def test_producers_are_kept_apart_from_consumers(registry: ClientRegistry[str]) -> None:
    registry.heartbeat(client("a"), consuming("same"), 0)
    assert registry.heartbeat(client("a"), producing("same", "p"), 0) == []
    assert [found.connection for found in registry.producers("same")] == ["a"]
    assert registry.producer_groups() == ["same", "p"]
    assert registry.unregister("a", "same", None) == []
    assert registry.producers("same") == []
    assert registry.members("same") == ["id-a"]
    assert registry.connection_closed("a") == ["same"]
    assert registry.producer_groups() == []


def test_silence_expires_entries(registry: ClientRegistry[str]) -> None:
    assert registry.deadline_ns() is None
    registry.heartbeat(client("a"), consuming(), 0)
    registry.heartbeat(client("b"), consuming(), 5 * SECOND)
    registry.heartbeat(client("b"), producing("p"), 5 * SECOND)
    assert registry.deadline_ns() == 120 * SECOND
    registry.heartbeat(client("a"), consuming(), 10 * SECOND)
    assert registry.deadline_ns() == 125 * SECOND
    nothing = registry.drop_silent(125 * SECOND - 1)
    assert (nothing.connections, nothing.changed_groups) == ([], [])
    expired = registry.drop_silent(125 * SECOND)
    assert (expired.connections, expired.changed_groups) == (["b"], ["g"])
    assert registry.members("g") == ["id-a"]
    assert registry.producers("p") == []
    assert registry.connection_closed("b") == []
    assert registry.deadline_ns() == 130 * SECOND


def test_relayed_client_is_one_member_told_once_and_gone_with_its_last_connection() -> None:
    outgoing = Outgoing()
    own = Connection(outgoing, "own")
    relayed = [
        RelayedConnection(outgoing, f"n{number}", 0, LOOPBACK_HOST, lambda _: None, lambda: False)
        for number in (1, 2)
    ]
    registry: ClientRegistry[Connection] = ClientRegistry()

    def heartbeat(connection: Connection) -> list[str]:
        return registry.heartbeat(RegisteredClient(connection, "me", LanguageCode.CPP, 409), consuming(), 0)

    assert heartbeat(relayed[0]) == ["g"]
    assert registry.connections_to_notify("g") == [relayed[0]]
    assert heartbeat(own) == []
    assert heartbeat(relayed[1]) == []
    assert registry.members("g") == ["me"]
    assert registry.connections_to_notify("g") == [own]
    assert [found.connection for found, _ in registry.local_heartbeats()] == [own]
    assert registry.connection_closed(own) == []
    assert registry.connections_to_notify("g") == [relayed[1]]
    assert registry.connection_closed(relayed[1]) == []
    assert registry.connection_closed(relayed[0]) == ["g"]


def test_what_a_node_tells_a_new_leader_is_what_its_clients_said() -> None:
    said: ClientRegistry[str] = ClientRegistry()
    said.heartbeat(client("a"), consuming("g", {"T": 3, "U": 4}), 0)
    said.heartbeat(client("a"), consuming("h", model=MessageModel.BROADCASTING), 0)
    said.heartbeat(client("a"), producing("p"), 0)
    heard: ClientRegistry[str] = ClientRegistry()
    for told, heartbeat in said.local_heartbeats():
        heard.heartbeat(told, heartbeat, 0)
    for group in ("g", "h"):
        assert heard.consumer_group(group) == said.consumer_group(group)
    assert heard.producers("p") == said.producers("p")


class RegistryMachine(RuleBasedStateMachine):
    """Against a plain model: membership to the time of its last renewal."""

    expiry_ns = 5

    def __init__(self) -> None:
        super().__init__()
        self.registry: ClientRegistry[str] = ClientRegistry(self.expiry_ns)
        self.consumers: dict[tuple[str, str], int] = {}
        self.producers: dict[tuple[str, str], int] = {}
        self.now_ns = 0

    connections = st.sampled_from(["a", "b", "c"])
    groups = st.sampled_from(["g", "h"])

    @rule(connection=connections, group=groups)
    def consumer_heartbeat(self, connection: str, group: str) -> None:
        changed = self.registry.heartbeat(client(connection), consuming(group), self.now_ns)
        assert changed == ([] if (group, connection) in self.consumers else [group])
        self.consumers[(group, connection)] = self.now_ns

    @rule(connection=connections, group=groups)
    def producer_heartbeat(self, connection: str, group: str) -> None:
        assert self.registry.heartbeat(client(connection), producing(group), self.now_ns) == []
        self.producers[(group, connection)] = self.now_ns

    @rule(connection=connections, consumer=st.none() | groups, producer=st.none() | groups)
    def unregister(self, connection: str, consumer: str | None, producer: str | None) -> None:
        changed = self.registry.unregister(connection, producer, consumer)
        assert changed == ([consumer] if (consumer, connection) in self.consumers else [])
        self.consumers = {k: v for k, v in self.consumers.items() if k != (consumer, connection)}
        self.producers = {k: v for k, v in self.producers.items() if k != (producer, connection)}

    @rule(connection=connections)
    def close(self, connection: str) -> None:
        changed = self.registry.connection_closed(connection)
        assert sorted(changed) == sorted(group for group, of in self.consumers if of == connection)
        self.consumers = {k: v for k, v in self.consumers.items() if k[1] != connection}
        self.producers = {k: v for k, v in self.producers.items() if k[1] != connection}

    @rule(step=st.integers(0, 4))
    def time_passes(self, step: int) -> None:
        self.now_ns += step
        expired = self.registry.drop_silent(self.now_ns)
        old = self.now_ns - self.expiry_ns
        lost = [key for table in (self.consumers, self.producers) for key, at in table.items() if at <= old]
        assert sorted(expired.connections) == sorted({connection for _, connection in lost})
        assert sorted(expired.changed_groups) == sorted(
            {group for (group, _), at in self.consumers.items() if at <= old}
        )
        self.consumers = {k: v for k, v in self.consumers.items() if v > old}
        self.producers = {k: v for k, v in self.producers.items() if v > old}

    @invariant()
    def agrees_with_the_model(self) -> None:
        for group in ("g", "h"):
            members = sorted(f"id-{connection}" for of, connection in self.consumers if of == group)
            assert sorted(self.registry.members(group)) == members
            producers = sorted(connection for of, connection in self.producers if of == group)
            assert sorted(found.connection for found in self.registry.producers(group)) == producers
        times = [*self.consumers.values(), *self.producers.values()]
        expected = min(times) + self.expiry_ns if times else None
        assert self.registry.deadline_ns() == expected


RegistryTest = RegistryMachine.TestCase

"""Mistakes about name servers that are configured while they run, each put into the real code by a patch;
`planted_bugs` lists them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import msgspec
import pytest

import broker.client.transport.routes as routes_module
from broker.access.control import SEES_ALL
from broker.access.name_server_control import NameServerControl
from broker.client.admin import AdminClient
from broker.client.errors import NoRoute
from broker.client.producing.sender import Sender
from broker.client.transport.routes import TopicRoute
from broker.name_server import KeyValues, RouteTable
from broker.name_server.sessions import NameServerSessions
from broker.remoting.bodies import TopicConfigTable
from broker.remoting.codes import Permission, RequestCode
from broker.remoting.command import RemotingCommand
from broker.remoting.name_server_headers import RegisterBrokerHeader
from broker.remoting.route import QueueData, TopicRouteData
from tests.simulation.planting import planted


@planted("names: strangers are let in", "RocketMQ's name servers", actor="configurer")
def strangers_are_let_in(patch: pytest.MonkeyPatch) -> None:
    """Whoever registers is taken for a broker."""
    patch.setattr(NameServerControl, "check", lambda self, connection, command: SEES_ALL)


@planted("names: registrations at a time", "found here: it ended the process", actor="configurer")
def registrations_at_a_time(patch: pytest.MonkeyPatch) -> None:
    """A registration that is carried out in steps is begun while another one is under way."""
    patch.setattr(NameServerSessions, "_is_to_wait", lambda self, connection, command: False)


@planted("names: changed before it is saved", "what was refused is in force", actor="configurer")
def changed_before_it_is_saved(patch: pytest.MonkeyPatch) -> None:
    """A change is in force although its file could not be written."""
    original = KeyValues._change

    def change(self: KeyValues, table: dict[str, dict[str, str]]) -> None:
        self._table = table
        original(self, table)

    patch.setattr(KeyValues, "_change", change)


@planted("names: deleted in memory only", "a restart brings it back", actor="configurer")
def deleted_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    """A deleted key comes back with the next process."""
    original = KeyValues.delete

    def delete(self: KeyValues, namespace: str, key: str, now_ns: int) -> None:
        storage, self._storage = self._storage, None
        original(self, namespace, key, now_ns)
        self._storage = storage

    patch.setattr(KeyValues, "delete", delete)


@planted("names: only the changed namespace saved", "a restart forgets a part", actor="configurer")
def only_the_changed_namespace_saved(patch: pytest.MonkeyPatch) -> None:
    """A file for one namespace, which the next one to change takes the place of."""
    original = KeyValues._change

    def change(self: KeyValues, table: dict[str, dict[str, str]]) -> None:
        changed = {name: held for name, held in table.items() if held != self._table.get(name)}
        original(self, changed)
        self._table = table

    patch.setattr(KeyValues, "_change", change)


def _registering(
    patch: pytest.MonkeyPatch,
    then: Callable[[RouteTable, dict[str, dict[str, QueueData]], str, TopicConfigTable], None],
) -> None:
    """Something else is done to the queues at each registration of a leader; `then` gets those before it."""
    original = RouteTable.register_in_steps

    def register(
        self: RouteTable, header: RegisterBrokerHeader, topics: TopicConfigTable, *others: Any
    ) -> Generator[None, None, Any]:
        before = {topic: dict(queues) for topic, queues in self._queues.items()}
        answer = yield from original(self, header, topics, *others)
        if header.broker_id == 0:
            then(self, before, header.broker_name, topics)
        return answer

    patch.setattr(RouteTable, "register_in_steps", register)


@planted(
    "names: wiped until the next registration",
    "RouteInfoManager: until the next changed one",
    actor="configurer",
)
def wiped_until_the_next_registration(patch: pytest.MonkeyPatch) -> None:
    """A registration that says nothing new gives the permission back."""

    def then(table: RouteTable, _: object, name: str, topics: TopicConfigTable) -> None:
        for topic in topics.topic_config_table.values():
            queues = table._queues[topic.topic_name]
            queues[name] = msgspec.structs.replace(queues[name], perm=topic.perm)

    _registering(patch, then)


@planted("names: wiped for good", "RouteInfoManager: until the next changed one", actor="configurer")
def wiped_for_good(patch: pytest.MonkeyPatch) -> None:
    """A registration at a new version changes nothing of topics that are known."""

    def then(
        table: RouteTable, before: dict[str, dict[str, QueueData]], name: str, _: TopicConfigTable
    ) -> None:
        for topic, queues in before.items():
            if name in queues and topic in table._queues:
                table._queues[topic][name] = queues[name]

    _registering(patch, then)


@planted("names: deleted topics stay away", "4.9: until something changes", actor="configurer")
def topics_deleted_for_good(patch: pytest.MonkeyPatch) -> None:
    """4.9: a topic that was deleted here is not entered again before something changes; here all are."""

    def then(
        table: RouteTable, before: dict[str, dict[str, QueueData]], name: str, _: TopicConfigTable
    ) -> None:
        for topic in table.topics():
            if topic not in before and before:
                table.delete_topic(topic)

    _registering(patch, then)


@planted(
    "names: wiped only at registered topics",
    "RouteInfoManager: on all topics of the broker",
    actor="configurer",
)
def wiped_only_at_registered_topics(patch: pytest.MonkeyPatch) -> None:
    """A topic that was entered by hand may be written all along."""
    original = RouteTable.set_writable
    added = RouteTable.add_topic
    by_hand: dict[str, None] = {}

    def add_topic(self: RouteTable, topic: str, queues: list[QueueData]) -> None:
        by_hand[topic] = None
        added(self, topic, queues)

    def set_writable(self: RouteTable, broker_name: str, writable: bool) -> Generator[None, None, int]:
        own = self._topics_of.get(broker_name, {})
        kept = [topic for topic in by_hand if topic in own]
        for topic in kept:
            del own[topic]
        count = yield from original(self, broker_name, writable)
        own.update(dict.fromkeys(kept))
        return count + len(kept)

    patch.setattr(RouteTable, "add_topic", add_topic)
    patch.setattr(RouteTable, "set_writable", set_writable)


@planted("names: wiped queues are written", "QueueData: writable perm", actor="configurer")
def wiped_queues_are_written(patch: pytest.MonkeyPatch) -> None:
    """A client to which all queues of a route are alike."""
    _reading_routes(patch, lambda permission: permission | Permission.WRITE)


@planted("names: wiped queues are not read", "QueueData: readable perm", actor="configurer")
def wiped_queues_are_not_read(patch: pytest.MonkeyPatch) -> None:
    """A client to which a queue that may not be written is none."""
    _reading_routes(patch, lambda permission: permission if permission & Permission.WRITE else 0)


def _reading_routes(patch: pytest.MonkeyPatch, permission: Callable[[int], int]) -> None:
    original = routes_module.parse_route

    def parse_route(topic: str, body: bytes | memoryview) -> TopicRoute:
        route = TopicRouteData.decode(body)
        for data in route.queue_datas:
            data.perm = int(permission(data.perm))
        return original(topic, route.encode(0, True))

    patch.setattr(routes_module, "parse_route", parse_route)


@planted("names: wiped route is kept", "found here", actor="configurer")
def wiped_route_is_kept(patch: pytest.MonkeyPatch) -> None:
    """Found here: a producer that knows no queue to write to asks for one only with the next renewal."""

    async def route(self: Sender, topic: str) -> TopicRoute:
        found = await self.core.routes.get(topic, create_like_default=True)
        if not found.writable:
            raise NoRoute(topic, "none of its queues can be written")
        return found

    patch.setattr(Sender, "route", route)


@planted("names: waits until it may write", "a send that never ends", actor="configurer")
def waits_until_it_may_write(patch: pytest.MonkeyPatch) -> None:
    """A send without a queue to write to has no limit."""
    original = Sender.route_before

    async def route_before(self: Sender, deadline_ns: int, topic: str) -> TopicRoute:
        while True:
            try:
                return await original(self, self.core.runtime.now_ns() + 10**9, topic)
            except NoRoute:
                await self.core.runtime.sleep(0.1)

    patch.setattr(Sender, "route_before", route_before)


@planted("names: answers remembered", "a value that was once there", actor="configurer")
def remembered_answers(patch: pytest.MonkeyPatch) -> None:
    """A client that asks for each value once."""
    original = AdminClient.call

    async def call(
        self: AdminClient, address: str, code: int, fields: dict[str, str] | None = None, body: Any = b""
    ) -> RemotingCommand:
        if code != RequestCode.GET_KV_CONFIG or fields is None:
            return await original(self, address, code, fields, body)
        known: dict[object, RemotingCommand] = self.__dict__.setdefault("known", {})
        key = (address, *fields.items())
        if key not in known:
            known[key] = await original(self, address, code, fields, body)
        return known[key]

    patch.setattr(AdminClient, "call", call)

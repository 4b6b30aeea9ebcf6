"""Real brokers and name servers for the client's tests, without sockets and in virtual time.

    (broker,) = one_group(world)                # a node with a topic "t", registered with a name server
    broker.append("t", 0, b"body")
    broker.script(SEND, broker.instead(reset))  # the next send is stored, and its link breaks
    broker.script(PULL, code(14), silent)       # the next pulls do not reach the node
    broker.kill()                               # the process dies; its page cache survives

The nodes are those of `tests.broker.harness.Group`. Trio's mock clock is their clock: they do all that they can when
something comes in, and a task has them do what becomes due. Links give a client's frames to its node and the node's to
the client, unless a test scripts them: then only the link drops, delays or replaces a frame.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import trio

from broker.name_server import NameServer
from broker.remoting.admin_headers import ResetOffsetHeader
from broker.remoting.bodies import ConsumerListBody
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand, encode
from broker.remoting.frame import FrameDecoder
from broker.remoting.json_body import decode_body
from broker.requests.client_sessions import ClientSession
from broker.requests.line import Line
from broker.settings.tables import NameServerSettings
from broker.state.metadata import Metadata
from log.entries.entry_reads import record_at
from log.formats.properties import parse_properties
from log.formats.record import decode_record
from tests.broker.client.links import Link, Server, Step, World, now_ns
from tests.broker.harness import Client, Group, Member
from tests.broker.name_server_end import answered

NAME_SERVER = "ns:9876"
HOUR_MS = 3_600_000
NEVER_NS = 1 << 62
RETENTION = {"interval_ms": 1000, "reserved_hours": 1, "delete_hours": tuple(range(24))}


class Cluster:
    """Groups of nodes, and the name servers with which all of them register."""

    def __init__(self, world: World, *name_servers: str) -> None:
        self.world = world
        self.name_servers = {
            address: NameServerHost(self, address) for address in name_servers or (NAME_SERVER,)
        }
        self._groups: list[tuple[Group, int]] = []
        """Each with the time that its clock is ahead of Trio's, in nanoseconds."""
        self._under_way: deque[Callable[[], None]] = deque()
        """The arrivals of what name servers have sent."""
        self._sleep = trio.CancelScope()
        """The driver's sleep; its deadline is when the next thing is due at any node."""
        world.nursery.start_soon(self._drive)

    def add_group(self, name: str = "g", members: int = 1, **settings: Any) -> list[Broker]:
        """Starts a group with these broker settings.

        Returns its nodes, the leader first, when all of them are registered.
        """
        group = Group.elected(
            members,
            node={"group": name, "cluster": "c", "name_servers": tuple(self.name_servers)},
            broker=settings,
            retention=RETENTION,
            first_port=10_000 + 100 * len(self._groups),
            dial_name_server=self._dial,
        )
        group.converge()
        self._groups.append((group, group.now_ns - now_ns()))
        self.settle()
        nodes = sorted(group.members, key=lambda node: node != group.leader)
        return [Broker(self, group, node) for node in nodes]

    def later(self, arrival: Callable[[], None]) -> None:
        """Has something arrive at a node, outside of what the nodes do now."""
        self._under_way.append(arrival)

    def settle(self) -> None:
        """Has the nodes do everything that they can do now."""
        now = now_ns()
        for group, ahead_ns in self._groups:
            assert group.now_ns <= now + ahead_ns, "a node has waited for time that has not passed"
            group.now_ns = now + ahead_ns
        while True:
            for group, _ in self._groups:
                group.settle()
            if not self._under_way:
                break
            self._under_way.popleft()()
        due_ns = min((group.next_due_ns() - ahead_ns for group, ahead_ns in self._groups), default=NEVER_NS)
        self._sleep.deadline = due_ns / 1e9

    async def _drive(self) -> None:
        """Wakes the nodes when something is due at them."""
        while True:
            with trio.CancelScope() as self._sleep:
                self.settle()
                await trio.sleep_forever()

    def _dial(self, member: Member, line: Line) -> None:
        self.name_servers[line.address].registers(member, line)


class _Registration:
    """A name server's end of a node's connection (`tests.broker.harness.ClientEnd`)."""

    def __init__(self, host: NameServerHost, member: Member, line: Line) -> None:
        self._host = host
        self._member = member
        self._line = line
        self._connection = line.connection
        self._decoder = FrameDecoder()
        member.clients[self._connection] = self

    def receive(self, data: bytes) -> None:
        """Has the name server handle requests; its responses arrive when the node's turn is over."""
        for command in self._decoder.feed(data):
            frame = self._host.core.answer(self, command, now_ns())
            if frame is not None:
                self._host.cluster.later(partial(self._arrives, frame))

    def _arrives(self, frame: bytes) -> None:
        if self._connection in self._member.clients:
            self._line.received(frame)

    def close(self) -> None:
        """Closes both ends."""
        del self._member.clients[self._connection]
        self.lost()
        self._line.lost(self._connection, "it is closed")

    def lost(self) -> None:
        """Tells the name server, which forgets the node."""
        self._host.registrations.remove(self)
        self._host.core.routes.connection_closed(self)


class NameServerHost(Server):
    """A name server."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        super().__init__(cluster.world, address)
        self.cluster = cluster
        self.core = NameServer(NameServerSettings())
        self.registrations: list[_Registration] = []

    def registers(self, member: Member, line: Line) -> None:
        """Takes a node's connection, or refuses it."""
        if self.up:
            self.registrations.append(_Registration(self, member, line))
            line.opened(line.connection)
        else:
            line.lost(line.connection, "connection refused")

    def kill(self) -> None:
        """The process dies; it knows nothing of before when it starts again."""
        super().kill()
        for registration in list(self.registrations):
            registration.close()
        self.core = NameServer(NameServerSettings())
        self.cluster.settle()

    def restart(self) -> None:
        """The process starts again; nodes that are there register within a second."""
        self.up = True

    def handle(self, link: Link, command: RemotingCommand) -> RemotingCommand | None:
        return answered(self.core, link, command, now_ns())


class _ClientEnd:
    """Gives what a node sends to the client's link, or to a step instead (`tests.broker.harness.ClientEnd`)."""

    def __init__(self, broker: Broker, link: Link) -> None:
        self._broker = broker
        self.link = link
        self.steps: dict[int, Step] = {}
        """By the opaque of a request: what is given the node's response instead of the client."""

    def receive(self, data: bytes) -> None:
        for command in FrameDecoder().feed(data):
            step = self.steps.pop(command.opaque, None) if command.is_response else None
            given = command if step is None else step(self.link, command)
            if given is not None and (given.is_response or given.code not in self._broker.lost):
                with contextlib.suppress(OSError):
                    self.link.send(given)

    def close(self) -> None:
        self.link.to_client.end()
        self._broker.disconnected(self.link)

    def lost(self) -> None:
        self.link.reset()


class Broker(Server):
    """A node of a group, and the links of its clients."""

    def __init__(self, cluster: Cluster, group: Group, node_id: str) -> None:
        super().__init__(cluster.world, group.members[node_id].config.node.listen)
        self.cluster = cluster
        self.group = group
        self.node_id = node_id
        self.lost: set[int] = set()
        """Codes of the node's own requests that clients do not get."""
        self._ends: dict[Link, tuple[_ClientEnd, ClientSession]] = {}

    # ------------------------------------------------------------------ links

    def accept(self, link: Link) -> None:
        end = _ClientEnd(self, link)
        port = 40_000 + len(self._ends)
        self._ends[link] = end, self.group.accept(self.node_id, end, "10.0.0.7", port)
        super().accept(link)

    def disconnected(self, link: Link) -> None:
        if link in self._ends:
            _, session = self._ends.pop(link)
            self.group.hang_up(self.node_id, session)
            self.cluster.settle()

    def handle(self, link: Link, command: RemotingCommand) -> RemotingCommand | None:
        """Gives a request to the node, which sends its response itself."""
        if link in self._ends:
            _, session = self._ends[link]
            self.cluster.settle()
            session.received(encode(command))
            self.cluster.settle()
        return None

    def instead(self, step: Step) -> Step:
        """Returns a step that gives the request to the node, and the node's response to `step`, whenever it comes.

        What `step` returns goes to the client: with `reset` or `silent` the request takes effect and is not confirmed.
        """

        def give(link: Link, command: RemotingCommand) -> None:
            end, _ = self._ends[link]
            end.steps[command.opaque] = step
            self.handle(link, command)

        return give

    def ask(self, link: Link, command: RemotingCommand) -> RemotingCommand:
        """Gives a request to the node, and returns the node's response, which must come at once."""
        found: list[RemotingCommand] = []
        self.instead(lambda _, response: found.append(response))(link, command)
        return found[0]

    def kill(self) -> None:
        """The process dies."""
        self.group.kill(self.node_id)
        super().kill()
        self.cluster.settle()

    def restart(self) -> None:
        """The process starts again over what its disk holds."""
        self.group.restart(self.node_id)
        self.up = True
        self.cluster.settle()

    # ------------------------------------------------------------------ what is stored

    @property
    def broker_id(self) -> int:
        """The number under which it is registered while it follows."""
        return self.group.members[self.node_id].config.follower_broker_id

    @property
    def metadata(self) -> Metadata:
        """What the node has applied."""
        return self.group.node(self.node_id).replica.metadata

    def records(self, topic: str = "t", queue_id: int = 0) -> list[bytes]:
        """The records of a queue."""
        store = self.group.node(self.node_id).replica.store
        queue = store.queues.get(topic, queue_id)
        if queue is None:
            return []
        found: list[bytes] = []
        while (begin := queue.min_offset + len(found)) < queue.max_offset:
            units = queue.units(begin, queue.max_offset - begin)
            found += [bytes(record_at(store.log, position, size)) for position, size, _ in units]
        return found

    def stored(self, topic: str = "t", queue_id: int = 0) -> list[bytes]:
        """The bodies of a queue."""
        return [decode_record(record).body for record in self.records(topic, queue_id)]

    def offset(self, group: str, topic: str = "t", queue_id: int = 0) -> int | None:
        """The offset that is stored for a consumer group."""
        return self.metadata.offsets.get((group, topic), {}).get(queue_id)

    # ------------------------------------------------------------------ other clients

    @contextlib.contextmanager
    def client(self, name: str | None = None) -> Iterator[Client]:
        """Another client of the group's leader, whose requests are answered at once."""
        self.cluster.settle()
        client = self.group.connect(name=name)
        yield client
        client.close()
        self.cluster.settle()

    def append(self, topic: str, queue_id: int, body: bytes, properties: bytes = b"") -> int:
        """Stores a message for another producer; returns its queue offset."""
        with self.client() as client:
            return client.send(topic, body, queue_id, parse_properties(properties)).queue_offset

    def create_topic(self, topic: str, queues: int = 1, perm: int = 6) -> None:
        """Creates or changes a topic."""
        with self.client() as client:
            client.create_topic(topic, queues, perm)

    async def delete_stored(self) -> None:
        """Has retention take all that is stored: two hours later by the wall clock, when newer files have begun."""
        with self.client() as client:
            client.create_topic("filler")
            for _ in range(12):
                client.send("filler", bytes(100_000))
        self.group.skip(2 * HOUR_MS)
        await trio.sleep(90)  # that nothing is delivered late any more is noted after a minute

    def members_of(self, group: str) -> list[str]:
        """The ids of a consumer group's clients."""
        with self.client() as client:
            found = client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
        return decode_body(found.body, ConsumerListBody).consumer_id_list if found.code == 0 else []

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Stores an offset for a consumer group."""
        fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset}
        with self.client() as client:
            client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    def reset_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Sends a consumer group elsewhere, as an administrator does."""
        header = ResetOffsetHeader(topic, group, 0, True, queue_id=queue_id, offset=offset)
        with self.client() as client:
            client.ok(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)


def one_group(
    world: World, *, topic: str = "t", queues: int = 1, members: int = 1, **settings: Any
) -> list[Broker]:
    """Starts a name server and a group with a topic and these broker settings; the leader is first."""
    brokers = Cluster(world).add_group("g", members, **settings)
    brokers[0].create_topic(topic, queues)
    return brokers

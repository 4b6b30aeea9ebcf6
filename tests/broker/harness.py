"""A group of broker nodes without processes, sockets or clocks: what happens in a test is what the test says.

    group = Group.elected(3)              # three nodes over disks in memory; the one that serves is group.leader
    client = group.connect("n1")          # a client of any node
    client.create_topic("T", queues=4)
    receipt = client.send("T", b"body")   # waits for the answer, in virtual time
    group.kill("n0")                      # the process dies; its page cache survives
    group.restart("n0")

Time stands still while anything is under way and then jumps to whatever is due next, so nothing sleeps and no test is
slower for a long poll. Bytes between nodes and clients are the real ones: each end encodes and decodes. Every wait has
a limit in virtual time and fails with what the nodes were doing.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from broker.assembly import build_node
from broker.node.links import RECEIVE_BYTES, AcceptedLink
from broker.node.machine import Machine, Variant
from broker.node.node import Node
from broker.node.running import RunningNode
from broker.peers.protocol import Frame
from broker.replica.inner_limits import InnerLimits
from broker.replica.jobs import Job
from broker.requests.client_sessions import ClientSession
from broker.requests.connection import LOOPBACK_HOST, Connection, Outgoing
from broker.requests.line import Line
from broker.settings.tables import (
    BrokerSettings,
    LimitSettings,
    NodeSettings,
    ObserveSettings,
    RaftSettings,
    RetentionSettings,
    Settings,
    StorageSettings,
)
from broker.shell.machine import local_hour
from broker.shell.sockets import UNSENT_BYTES_HIGH
from broker.state.release import THIS_RELEASE, Release
from log.errors import DiskFullError
from log.formats.record import pack_host
from log.options import StoreOptions
from tests.broker.client_end import WAIT_LIMIT_S, Asking
from tests.broker.client_end import Pulled as Pulled
from tests.broker.client_end import split_records as split_records
from tests.broker.lines import let_in
from tests.log.memory_disk import MemoryDisk

SECOND = 1_000_000_000
START_WALL_MS = 1_700_000_000_000
SMALL_STORE = StoreOptions(
    data_file_bytes=1 << 20,
    index_file_units=4096,
    prepare_ahead_bytes=1 << 16,
    prepare_step_bytes=1 << 14,
    consume_queue_file_units=512,
    index_slots=1024,
    index_entries=4096,
)
FAR_NS = 1 << 62


class ClientEnd(Protocol):
    """The other end of a connection with a node that is none to a peer: a client's, or a name server's."""

    def receive(self, data: bytes) -> None:
        """Takes bytes from the node, in whole frames."""

    def close(self) -> None:
        """Closes the connection, as the node wishes."""

    def lost(self) -> None:
        """Hears that the node's process has died."""


@dataclass
class Member:
    """One node of the group; `node` and `running` are None while its process is dead."""

    id: str
    config: Settings
    disk: MemoryDisk
    outgoing: Outgoing = field(default_factory=Outgoing)
    node: Node | None = None
    running: RunningNode | None = None
    clients: dict[Connection, ClientEnd] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    """Begun, and to be run behind the turn."""
    due_ns: int = 0
    refuses_clients: bool = False
    """It stops, and lets nobody connect any more."""
    unread: set[Connection] = field(default_factory=set)
    """Those of whom something has come that is not received yet."""
    release: Release = THIS_RELEASE
    """The release that the next start runs."""

    @property
    def alive(self) -> Node:
        assert self.node is not None, f"{self.id} is dead"
        return self.node

    @property
    def process(self) -> RunningNode:
        assert self.running is not None, f"{self.id} is dead"
        return self.running


class Client(Asking):
    """A client of a node of a group.

    All that is written to it is read at once, so nothing is ever unsent; it is read from as the shell would.
    """

    def __init__(self, group: Group, member: Member, session: ClientSession, client_id: str) -> None:
        super().__init__(session.connection, client_id, group, self._send)
        self.group = group
        self._member = member
        self._session = session
        self._unread: deque[bytes] = deque()
        """What the node does not read yet: requests that came before are to be handled first."""

    def _send(self, data: bytes) -> None:
        assert self._member.running is not None, "its node is dead"
        self._unread.append(data)
        self._read_on()

    def _read_on(self) -> None:
        while self._unread and not self.closed and self.connection.may_be_read(UNSENT_BYTES_HIGH):
            self._session.received(self._unread.popleft())
        if not self._unread:
            self._member.unread.discard(self.connection)
        elif not self.closed:
            self._member.unread.add(self.connection)

    def receive(self, data: bytes) -> None:
        """Takes bytes from the node, or hears that it reads on."""
        if data:
            self.connection.was_written = True
            super().receive(data)
        if self._unread:
            self.group.arrivals.append(self._read_on)

    def close(self) -> None:
        """Closes the connection."""
        if not self.closed:
            self.closed = True
            self._member.unread.discard(self.connection)
            del self._member.clients[self.connection]
            self._session.lost()

    def lost(self) -> None:
        """The node has died."""
        self.closed = True


class _Surroundings:
    """The time and the ways of one node of a group."""

    def __init__(self, group: Group, member: Member) -> None:
        self._group = group
        self._member = member

    def begin(self) -> None:
        self._member.alive.begin(self._group.now_ns, self._group.wall_ms)

    def wake(self) -> None:
        self._member.due_ns = self._group.now_ns

    def dial_peer(self, line: Line) -> None:
        self._group.dial(self._member, line)

    def dial_name_server(self, line: Line) -> None:
        self._group.dial_name_server(self._member, line)

    def refuse_clients(self) -> None:
        self._member.refuses_clients = True

    def has_unread(self, connection: Connection) -> bool:
        return connection in self._member.unread

    def hand_out(self) -> None:
        self._group.hand_out(self._member)


@dataclass
class _Pipe:
    """One end's way to the other: what `source` sends on a connection is given to the end that `target` has."""

    source: str
    target: str
    end: AcceptedLink | Line
    """The target's."""
    lost: Callable[[], None]
    """Tells the target that the connection is closed."""
    far_end: Connection


class Group:
    """`size` nodes n0, n1, ... in one group. `node`, `broker`, `limits`, ...: settings other than the defaults.

    Clients find the nodes at 127.0.0.1 and the ports from `first_port` on. `dial_name_server` connects a line of a
    member with a name server, or reports that this failed.
    """

    limits = InnerLimits()
    """Those of nodes that start from now on; for tests of what the usual ones gate."""

    def __init__(
        self,
        size: int = 3,
        *,
        seed: int = 1,
        node: Mapping[str, Any] | None = None,
        broker: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
        retention: Mapping[str, Any] | None = None,
        storage: Mapping[str, Any] | None = None,
        observe: Mapping[str, Any] | None = None,
        raft: Mapping[str, Any] | None = None,
        peer_secret: str = "",
        flush: str = "async",
        max_message_bytes: int = 256 * 1024,
        options: StoreOptions = SMALL_STORE,
        start: bool = True,
        first_port: int = 10_000,
        dial_name_server: Callable[[Member, Line], None] | None = None,
    ) -> None:
        self.now_ns = 1000 * SECOND
        self.wall_offset_ms = 0
        """A test has moved the wall clock by so much."""
        self.random = random.Random(seed)
        self.options = options
        """Those of nodes that start from now on."""
        self._flush = flush
        self._max_message_bytes = max_message_bytes
        self._first_port = first_port
        self.dial_name_server = dial_name_server or _no_name_server
        self._node = dict(node or {})
        self._broker = dict(broker or {})
        self._limits = dict(limits or {})
        self._retention = dict(retention or {})
        self._storage = {"scrub_bytes_per_second": 0, **(storage or {})}
        self._observe = dict(observe or {})
        self._pipes: dict[Connection, _Pipe] = {}
        """Between nodes, by the connection that bytes are sent on."""
        self._lines: dict[Connection, Line] = {}
        """The dialled ends of `_pipes`."""
        self._in_flight: deque[tuple[str, str, Connection, bytes]] = deque()
        self.arrivals: deque[Callable[[], None]] = deque()
        """What comes to nodes from elsewhere, each when all is done that can be done before."""
        self._cut: dict[tuple[str, str], None] = {}
        self.lose: Callable[[str, str, Frame], bool] = lambda source, target, frame: False
        """Which frames between nodes get lost, by source and target."""
        self.slow_disks: set[str] = set()
        """Nodes whose jobs do not come back while they are here."""
        self._stopped: dict[str, list[tuple[str, str, Connection, bytes]]] = {}
        """Nodes that stand still, and what waits to be read there."""
        ids = [f"n{number}" for number in range(size)]
        peers = {node_id: peer_address(node_id) for node_id in ids} if size > 1 else {}
        self.members: dict[str, Member] = {}
        for node_id in ids:
            config = self._config(node_id, RaftSettings(peers=peers, peer_secret=peer_secret, **(raft or {})))
            self.members[node_id] = Member(node_id, config, MemoryDisk())
        if start:
            for node_id in ids:
                self.start(node_id)

    @classmethod
    def elected(cls, size: int = 3, **settings: Any) -> Group:
        """A group of which one node serves already."""
        group = cls(size, **settings)
        group.elect()
        return group

    @property
    def wall_ms(self) -> int:
        """The wall clock, which all nodes share."""
        return START_WALL_MS + self.wall_offset_ms + self.now_ns // 1_000_000

    def _config(self, node: str, raft: RaftSettings) -> Settings:
        return Settings(
            node=NodeSettings(id=node, listen=f"127.0.0.1:{self._first_port + int(node[1:])}", **self._node),
            raft=raft,
            storage=StorageSettings(
                path="store",
                flush=self._flush,  # type: ignore[arg-type]
                max_message_bytes=self._max_message_bytes,
                **self._storage,
            ),
            broker=BrokerSettings(**self._broker),
            limits=LimitSettings(**{"idle_seconds": 10**9, **self._limits}),
            retention=RetentionSettings(**self._retention),
            observe=ObserveSettings(**self._observe),
        )

    # ------------------------------------------------------------------ nodes

    def join(self, node_id: str, *knows: str) -> None:
        """Starts a node with an empty disk that joins the group, of which its file names those that it `knows`."""
        peers = {node: peer_address(node) for node in (*(knows or self.members), node_id)}
        config = self._config(node_id, RaftSettings(peers=peers, join=True))
        self.members[node_id] = Member(node_id, config, MemoryDisk())
        self.start(node_id)

    def start(self, node_id: str) -> None:
        """Starts a node over what its disk holds and connects it with the others."""
        member = self.members[node_id]
        assert member.node is None, f"{node_id} runs"
        member.outgoing = Outgoing()
        member.node = build_node(
            member.config,
            Machine(
                disk=member.disk,
                outgoing=member.outgoing,
                random=random.Random(self.random.random()),
                now_ns=self.now_ns,
                wall_ms=self.wall_ms,
                hour_of_day=local_hour,
                process_id=lambda: 4711,
            ),
            Variant(
                release=member.release,
                limits=self.limits,
                store_options=replace(
                    self.options,
                    dledger_directory=f"dledger-{node_id}",
                    delay_levels_ms=member.config.broker.delay_level_ms,
                ),
            ),
        )
        member.running = RunningNode(
            member.node,
            _Surroundings(self, member),
            address=member.config.node.listen,
            nonce=self.random.randbytes,
            begin_job=member.jobs.append,
            deliver=lambda source, frame: (
                not self.lose(source, node_id, frame) and member.alive.peer_received(source, frame)
            ),
        )
        member.running.start()

    def replace_disk(self, node_id: str) -> None:
        """A dead node gets an empty disk."""
        self.members[node_id].disk = MemoryDisk()

    def kill(self, node_id: str) -> None:
        """The process dies at once; the other nodes and the clients see their connections break."""
        member = self.members[node_id]
        member.node = member.running = None
        member.jobs = []
        member.disk = member.disk.kill()
        clients, member.clients = member.clients, {}
        for client in clients.values():
            client.lost()
        self._break_links(lambda source, target: node_id in {source, target})

    def lose_power(self, node_id: str) -> None:
        """The machine dies, and what was not flushed with it."""
        disk = self.members[node_id].disk
        self.kill(node_id)
        self.members[node_id].disk = disk.crash(lambda path, page: False)

    def restart(self, node_id: str) -> None:
        """Starts a killed node again."""
        self.start(node_id)

    def skip(self, milliseconds: int) -> None:
        """Lets so much of the day pass in which nothing happens: wall clocks and the group's time go on by it.

        Other times stand still: a day's heartbeats would take a test minutes.
        """
        self.wall_offset_ms += milliseconds
        for member in self.alive():
            clock = member.alive.replica.clock
            clock._time_ns += milliseconds * 1_000_000
            clock._wall_offset_ms += milliseconds

    def stop(self, node_id: str) -> None:
        """The process is stopped; nobody is told."""
        self._stopped[node_id] = []

    def go_on(self, node_id: str) -> None:
        """A stopped process goes on; what was sent to it waits behind all that it does of itself."""
        self._in_flight.extend(self._stopped.pop(node_id))
        self._turn(self.members[node_id])

    def partition(self, *node_ids: str) -> None:
        """Cuts these nodes off from the others; what is sent is lost, but no connection breaks."""
        for inside in node_ids:
            for outside in self.members:
                if outside not in node_ids:
                    self._cut[inside, outside] = self._cut[outside, inside] = None

    def heal(self) -> None:
        """Ends the partition; the links between the two sides, which lost bytes, are made anew at once."""
        cut = {*self._cut}
        self._cut.clear()
        lines = [
            self._lines[end]
            for end in self._lines
            if (self._pipes[end].source, self._pipes[end].target) in cut
        ]
        self._break_links(lambda source, target: (source, target) in cut)
        for line in lines:
            line.start()

    def dial(self, member: Member, line: Line) -> None:
        """A node wants to connect with another, which it does at once, or never."""
        target = next((one for one in self.members.values() if peer_address(one.id) == line.address), None)
        if target is not None and (member.id, target.id) in self._cut:
            return  # the line's own time limit ends this
        near = line.connection
        if target is None or target.running is None:
            line.lost(near, "connection refused")
            return
        far = Connection(target.outgoing, f"peer at {member.id}")
        link = target.running.links.accept(far, member.id)
        self._pipes[near] = _Pipe(member.id, target.id, link, link.lost, far)
        self._pipes[far] = _Pipe(
            target.id, member.id, line, lambda: line.lost(near, "it closed the connection"), near
        )
        self._lines[near] = line
        line.opened(near)

    def break_link(self, source: str, target: str) -> None:
        """Closes the link that a node has dialled to another; both hear of it, and it is dialled again in time."""
        self._break(self.node(source).replica.links[target])

    def _break_links(self, chosen: Callable[[str, str], bool]) -> None:
        for connection, pipe in list(self._pipes.items()):
            if chosen(pipe.source, pipe.target):
                self._break(connection)

    def _break(self, connection: Connection) -> None:
        """Closes both ends of a connection between nodes; what is under way is lost."""
        pipe = self._pipes.pop(connection, None)
        if pipe is None:
            return
        back = self._pipes.pop(pipe.far_end)
        self._lines.pop(connection, None)
        self._lines.pop(pipe.far_end, None)
        self._in_flight = deque(
            item for item in self._in_flight if item[2] is not connection and item[2] is not pipe.far_end
        )
        for end in (pipe, back):
            if self.members[end.target].node is not None:
                end.lost()

    @property
    def leader(self) -> str:
        """The node that serves; fails if there is none."""
        serving = [member.id for member in self.alive() if member.alive.replica.serving]
        assert serving, f"nobody serves: {self.describe()}"
        return max(serving, key=lambda node: self.members[node].alive.replica.term)

    @property
    def follower(self) -> str:
        """A living node that does not lead."""
        return next(member.id for member in self.alive() if member.id != self.leader)

    def alive(self) -> list[Member]:
        """The members whose process lives."""
        return [member for member in self.members.values() if member.node is not None]

    def node(self, node_id: str) -> Node:
        """The node of that id, which must be alive."""
        return self.members[node_id].alive

    def elect(self) -> str:
        """Runs until a node serves that a majority of the living follow and the broker's own topics exist; its id."""

        def elected() -> bool:
            serving = [member for member in self.alive() if member.alive.replica.serving]
            if not serving:
                return False
            leader = max(serving, key=lambda member: member.alive.replica.term).alive.replica
            following = [m for m in self.alive() if m.alive.replica.leader == leader.node_id]
            # Nothing more is appended of the group's own accord: tests may count entries.
            hold = self.members[leader.node_id].config.raft.hold_format
            format_wanted = min(leader.members.common_format() or 0, hold or THIS_RELEASE.newest_format)
            return (
                2 * len(following) > len(self.members)
                and "TBW102" in leader.metadata.topics
                and leader.metadata.format >= format_wanted
            )

        self.run_until(elected, "an election")
        return self.leader

    def transfer_leadership(self, target: str) -> None:
        """Has the leader hand over to `target`, and waits until that serves."""
        leader = self.node(self.leader)
        leader.begin(self.now_ns, self.wall_ms)
        leader.replica.raft.transfer_leadership(target, self.now_ns)
        self.members[self.leader].due_ns = self.now_ns
        self.run_until(lambda: self.node(target).replica.serving, f"{target} to lead")

    def converge(self) -> None:
        """Runs until all living nodes have applied the same entries."""

        def same() -> bool:
            applied = {member.alive.replica.applied_index for member in self.alive()}
            last = {member.alive.replica.store.log.last_index for member in self.alive()}
            return len(applied) == 1 and applied == last

        self.run_until(same, "the replicas to agree")

    # ------------------------------------------------------------------ time

    def settle(self) -> None:
        """Does everything that can happen without time passing."""
        for _ in range(100_000):
            if self._in_flight:
                self._deliver(self._in_flight.popleft())
                continue
            due = [
                member
                for member in self.alive()
                if member.due_ns <= self.now_ns and member.id not in self._stopped
            ]
            if not due:
                if not self.arrivals:
                    return
                self.arrivals.popleft()()
            for member in due:
                self._turn(member)
        raise AssertionError(f"the group does not come to rest: {self.describe()}")

    def step_at_random(self, random: random.Random) -> None:
        """Delivers the next bytes of some link and lets some node have its turn: links are not in step."""
        if self._in_flight:
            link = random.choice(list(dict.fromkeys(item[:2] for item in self._in_flight)))
            place = next(place for place, item in enumerate(self._in_flight) if item[:2] == link)
            item = self._in_flight[place]
            del self._in_flight[place]
            self._deliver(item)
        due = [member for member in self.alive() if member.due_ns <= self.now_ns]
        if due:
            self._turn(random.choice(due))

    def advance(self, seconds: float) -> None:
        """Lets time pass, doing everything when it is due."""
        end_ns = self.now_ns + round(seconds * SECOND)
        self.settle()
        while (due_ns := self.next_due_ns()) <= end_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self.settle()
        self.now_ns = end_ns

    def run_until(
        self, condition: Callable[[], bool], what: str = "a condition", limit_s: float = WAIT_LIMIT_S
    ) -> None:
        """Lets as much time pass as the condition needs; fails after `limit_s` virtual seconds."""
        end_ns = self.now_ns + round(limit_s * SECOND)
        self.settle()
        while not condition():
            due_ns = self.next_due_ns()
            assert due_ns <= end_ns, f"waited {limit_s} s for {what}: {self.describe()}"
            self.now_ns = max(self.now_ns, due_ns)
            self.settle()

    def describe(self) -> str:
        """Roles, terms and indices, for the text of a failure."""
        return ", ".join(
            f"{member.id} dead"
            if member.node is None
            else f"{member.id} {member.node.replica.raft.role.value} of term {member.node.replica.term}, "
            f"follows {member.node.replica.leader}, applied {member.node.replica.applied_index} of "
            f"{member.node.replica.store.log.last_index}"
            for member in self.members.values()
        )

    def next_due_ns(self) -> int:
        """The time at which a node has something to do when nothing comes before; now or earlier: at once."""
        return min(
            (member.due_ns for member in self.alive() if member.id not in self._stopped), default=FAR_NS
        )

    def _turn(self, member: Member) -> None:
        member.due_ns = FAR_NS
        member.process.turn(self.now_ns, self.wall_ms)
        due_ns = member.process.end_turn()  # in which the node may ask for another turn
        member.due_ns = min(member.due_ns, due_ns)
        while member.jobs and member.id not in self.slow_disks:
            job = member.jobs.pop(0)
            try:
                job.run()
            except DiskFullError:
                if job.failure_stops_node:
                    raise
            member.process.job_done(job)

    def hand_out(self, member: Member) -> None:
        """Sends what a node has queued."""
        for connection in member.outgoing.take():
            data = b"".join(connection.take())
            if connection.aborted:
                data = b""  # what was sent on it later; the rest is gone
            pipe = self._pipes.get(connection)
            if pipe is not None:
                if data and (pipe.source, pipe.target) not in self._cut:
                    self._in_flight.append((pipe.source, pipe.target, connection, data))
                if connection.close_requested:
                    self._break(connection)
                continue
            client = member.clients.get(connection)
            if client is not None:
                client.receive(data)
                if connection.close_requested:
                    client.close()

    def _deliver(self, item: tuple[str, str, Connection, bytes]) -> None:
        source, target, connection, data = item
        pipe = self._pipes.get(connection)
        if target in self._stopped:
            self._stopped[target].append(item)
        elif pipe is not None and (source, target) not in self._cut:
            for begin in range(0, len(data), RECEIVE_BYTES):
                pipe.end.received(data[begin : begin + RECEIVE_BYTES])

    # ------------------------------------------------------------------ clients

    def connect(
        self, node_id: str | None = None, *, name: str | None = None, host: str = "127.0.0.1"
    ) -> Client:
        """A client of a node, of the leader if none is named. `host` is the numeric address that it comes from."""
        member = self.members[node_id or self.leader]
        number = sum(len(other.clients) for other in self.members.values())
        port = 40_000 + number
        packed = LOOPBACK_HOST if host == "127.0.0.1" else pack_host(host, port)
        session = let_in(member.process.clients, f"{host}:{port}", packed)
        client = Client(self, member, session, name or f"127.0.0.1@{number}")
        member.clients[session.connection] = client
        return client

    def accept(self, node_id: str, end: ClientEnd, host: str, port: int) -> ClientSession:
        """Connects a client of a test's own with a node; returns the session that takes its bytes."""
        member = self.members[node_id]
        session = let_in(member.process.clients, f"{host}:{port}", pack_host(host, port))
        member.clients[session.connection] = end
        return session

    def hang_up(self, node_id: str, session: ClientSession) -> None:
        """The node hears that such a client's connection is closed."""
        if self.members[node_id].clients.pop(session.connection, None) is not None:
            session.lost()


def peer_address(node_id: str) -> str:
    """The address at which a node listens for its peers."""
    return f"127.0.0.1:{20_000 + int(node_id[1:])}"


def _no_name_server(member: Member, line: Line) -> None:
    raise AssertionError(f"{member.id} has no name servers")

"""Commands of the scenarios of a broker group, and what they cause.

The group has three nodes, a, b and c. At first a leads in term 1, topic T has two queues, the consumer group g exists.
After each command all happens that can happen without time passing, unless the command is preceded by `first`; so
`first` gives an order to what is under way at the same time. Only the node that the scenario names wins an election.

    group [NAME=VALUE ...]     three new nodes with these settings of the table [broker]
    registered [linger=S] [secret]
                               three new nodes that register with the name server n; `linger`: the setting `linger_s`,
                               `secret`: n takes registrations only from those that know its secret
    scrubbed                   three new nodes that read all that is on their disks once a second
    kept [flush=sync] [earlier=A]
                               three new nodes that keep messages for an hour, and look every second; `earlier`: node a
                               is of the release before this one
    client P at A              a client of node a
    P send X [queue=1] [key=K] [again] [floor] [portion] [delay=N] [timer=S]
                               P sends the message X; `delay`: to come at this level, `timer`: in so many seconds,
                               `key`: as a send that may be repeated, `again`: as its repetition,
                               `floor`: with the place of P's last message, behind which it cannot be stored yet,
                               `portion`: with the floor of the portion that P has begun
    P begin N, P finish N      P begins or ends portion N of a writer whom all clients write for
    P half X, P commit X, P rollback X, P leave X
                               a transaction's first half, and how it ends; `leave`: P does not know
    P produces, P consumes     P's heartbeat, for the producer group P or the consumer group g
    P pull N [queue=1] [hold=S] [commit=N]
                               P asks for messages from offset N; the broker may hold the request for S seconds
    P lock, P unlock           P asks for the order lock of T's first queue for g, or gives it back
    P report N, P ask          P stores the consumer offset of g in T's first queue, or asks for it
    P end, P first             P asks where that queue ends, or begins
    P add A, P promote A, P remove A
                               P asks for another member, a learner at first; for its vote; that it is none any more
    P reset N                  an administrator moves the consumer group to offset N
    P close                    P's connection is closed
    transfer A                 the leader is asked to hand over to a
    lead A                     time passes until a leads
    wait S                     S seconds pass
    await P                    time passes until all that P has asked for is answered
    kill A, restart A          a's process dies; begins again
    stop A                     a stops in order
    join D                     the new node d starts, which is to join the group
    fill                       so many messages come that what was there before may have been read from the disk again
    damage A X                 bytes of the message X change on a's disk
    down, up                   the name server's process dies; begins again
    power                      all machines lose power, and begin again
    upgrade A                  a's process dies; begins again as this release
    files N                    N files are filled with messages of T's first queue, five to a file, and flushed
    expire                     all that is stored is older than it is to be kept
    use A N                    N percent of a's disk are used
    slow A, quick A            what a's worker does is not done, until `quick`
    partition A, heal          silently separates a from the others, until `heal`
    hold KIND [A->B]           frames between nodes of this kind stay under way; either side may be `*`
    lose KIND [A->B]           they get lost
    release [KIND]             ends `hold` and `lose`, of this kind or all; what was held arrives
    show appends, hide appends
                               from now on shows the entries that the leader sends, and acknowledgements; or not
    route                      shows whom n knows
    damages                    shows what each node has found damaged, and repaired
    messages, offset           shows what T's queues hold at the leader; the consumer offset of g that each node has
    heads                      shows with which file each node's log begins, and before which one it tells of nothing
    quiet COMMAND ...          executes a command without showing what it causes

Kinds of frames: forward, relay, not-done, gone, wanted, lent, append, acknowledgement, raft (all of Raft), any.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from broker.node.orderly_stop import StopState
from broker.peers.protocol import Frame, RaftFrame
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand, request
from broker.remoting.route import MASTER_ID, ClusterInfo
from broker.state.release import FIRST_FORMAT, THIS_RELEASE, Release
from log.entries.entry_reads import record_at
from log.formats.layout import HEADER_BYTES
from log.formats.record import decode_record
from raft import Role
from raft.messages import VoteRequest
from tests.broker.harness import Group
from tests.broker.name_server_end import ADDRESS, NameServerEnd, answered
from tests.broker.replica.damage import OPTIONS, SCRUBBED, Damage, entry_of
from tests.broker.scenario_clients import Clients, options_of
from tests.broker.transcript import frame_line, kinds_of, registered_line, registration_line

NODES = {"a": "n0", "b": "n1", "c": "n2", "d": "n3"}
NAMES = {node: name for name, node in NODES.items()}
EARLIER = Release("0.1.0", oldest_protocol=7, newest_protocol=7, newest_format=FIRST_FORMAT)
HOUR_MS = 3_600_000
RETENTION = {"interval_ms": 1000, "reserved_hours": 1, "delete_hours": tuple(range(24))}
SECRET = "a secret that brokers and name server share"


@dataclass(frozen=True)
class Rule:
    """Keeps frames of a kind, on a link, from arriving."""

    kind: str
    source: str
    target: str
    keeps: bool
    """Whether they arrive later, or never."""

    def fits(self, source: str, target: str, kinds: set[str]) -> bool:
        return self.kind in kinds and self.source in ("*", source) and self.target in ("*", target)


class Scenario:
    """Executes commands on a group of three nodes and notes what they cause."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.do_group()

    def execute(self, command: str) -> list[str]:
        """Executes one command and returns what it caused, a line each."""
        name, *words = command.split()
        quiet, first = name == "quiet", name == "first"
        if quiet or first:
            name, *words = words
        self.lines = []
        if name in self.clients:
            self.clients.execute(name, *words)
        else:
            action: Callable[..., None] = getattr(self, f"do_{name}")
            action(*words)
        if not first:
            self.group.settle()
        self._look()
        return [] if quiet else self.lines

    # ------------------------------------------------------------------ what is seen

    def _sees(self, source: str, target: str, frame: Frame) -> bool:
        """Notes a frame that arrives; True keeps it from arriving."""
        self._look()
        source, target = NAMES[source], NAMES[target]
        if isinstance(frame, RaftFrame) and isinstance(frame.message, VoteRequest) and source != self.heir:
            return True
        kinds = kinds_of(frame)
        rule = next((rule for rule in self.rules if rule.fits(source, target, kinds)), None)
        if rule is not None and rule.keeps:
            self.held.append((source, target, frame))
        line = frame_line(frame, self.clients.asked, self.shows_appends)
        if line is not None:
            fate = "" if rule is None else " ... under way" if rule.keeps else " ... lost"
            self._say(f"{source}->{target} {line}{fate}")
        return rule is not None

    def _registers(self, node_id: str, command: RemotingCommand) -> None:
        """Notes what a node says to the name server, and the other way round."""
        self._look()
        name = NAMES[node_id]
        if not command.is_response:
            self.asked_of_n[node_id, command.opaque] = command.code
            self._say(f"{name}->n {registration_line(command)}")
        else:
            line = registered_line(self.asked_of_n.pop((node_id, command.opaque)), command)
            if line is not None:
                self._say(f"n->{name} {line}")

    def _say(self, line: str) -> None:
        """Notes a line, in which nodes and their addresses have the names of the scenario."""
        line = re.sub(r"127\.0\.0\.1:1000([0-3])\b", r"n\1", line)
        self.lines.append(re.sub(r"\bn[0-3]\b", lambda found: NAMES[found.group()], line))

    def _look(self) -> None:
        """Notes what clients have received, and nodes whose role has changed, since the last look."""
        for name, node_id in self._nodes():
            role = self._role(node_id)
            if role != self.roles.get(name):
                self.roles[name] = role
                self.lines.append(f"{name} {role}")
        self.clients.look(at_ends=bool(self.stops))

    def _nodes(self) -> list[tuple[str, str]]:
        """The names and ids of the nodes that there are."""
        return [(name, node_id) for name, node_id in NODES.items() if node_id in self.group.members]

    def _role(self, node_id: str) -> str:
        member = self.group.members[node_id]
        if member.node is None:
            return "is dead"
        replica = member.node.replica
        if member.node.is_outside:
            return "is outside of the group"
        if replica.serving:
            return f"leads in term {replica.term}"
        if replica.leader is None or replica.raft.role is Role.LEADER:
            return "knows no leader"
        return f"follows {NAMES[replica.leader]} in term {replica.term}"

    @contextmanager
    def _unseen(self) -> Iterator[None]:
        """Notes nothing of what happens meanwhile, and holds or loses no frame."""
        lines, rules = list(self.lines), list(self.rules)
        self.rules.clear()
        yield
        self._look()
        self.lines, self.rules[:] = lines, rules

    # ------------------------------------------------------------------ the group

    def do_group(self, *settings: str) -> None:
        pairs = (setting.split("=") for setting in settings)
        self._begin(
            broker={
                name: value == "true" if value in ("true", "false") else int(value) for name, value in pairs
            }
        )

    def do_registered(self, *options: str) -> None:
        words, values = options_of(options)
        secret = SECRET if "secret" in words else ""
        self.name_server = NameServerEnd(secret, self._registers)
        self._begin(
            node={
                "name_servers": (ADDRESS,),
                "linger_s": int(values.get("linger", 0)),
                "registration_secret": secret,
            },
            dial_name_server=self.name_server.dialled,
        )

    def do_scrubbed(self) -> None:
        self._begin(options=OPTIONS, storage=SCRUBBED)

    def do_kept(self, *options: str) -> None:
        _, values = options_of(options)
        earlier = tuple(NODES[name] for name in values.get("earlier", ""))
        self._begin(earlier, retention=RETENTION, flush=values.get("flush", "async"))

    def _begin(self, earlier: Collection[str] = (), **settings: Any) -> None:
        """Begins anew with another group."""
        self.heir = "a"
        """The node that may win an election."""
        self.rules: list[Rule] = []
        self.held: list[tuple[str, str, Frame]] = []
        self.shows_appends = False
        self.roles: dict[str, str] = {}
        self.asked_of_n: dict[tuple[str, int], int] = {}
        """The codes of requests to the name server, by node and opaque."""
        self.stops: set[str] = set()
        """The nodes that stop in order."""
        self.group = Group(3, start=False, **settings)
        self.clients = Clients(self.group, NODES, self._say, self._unseen)
        self.group.lose = self._sees
        if "dial_name_server" in settings:
            self.name_server.serves(self.group)
        with self._unseen():
            for node_id in self.group.members:
                if node_id in earlier:
                    self.group.members[node_id].release = EARLIER
                self.group.start(node_id)
            self.group.elect()
            client = self.group.connect()
            client.create_topic("T", 2)
            client.heartbeat("g")
            client.close()
            self.group.converge()
            self.group.advance(1)

    def do_client(self, name: str, at: str, node: str) -> None:
        self.clients.connect(name, node)

    def do_transfer(self, target: str) -> None:
        self.heir = target
        leader = self.group.leader
        node = self.group.node(leader)
        node.begin(self.group.now_ns, self.group.wall_ms)
        node.replica.group_changes.transfer(NODES[target])
        self.group.members[leader].due_ns = self.group.now_ns

    def do_lead(self, target: str) -> None:
        self.heir = target
        replica = self.group.node(NODES[target]).replica
        self.group.run_until(lambda: replica.serving, f"{target} to lead")

    def do_wait(self, seconds: str) -> None:
        self.group.advance(float(seconds))

    def do_await(self, name: str) -> None:
        def answered() -> bool:
            self._look()
            return self.clients.is_answered(name)

        self.group.run_until(answered, f"the responses to {name}")

    def do_kill(self, node: str) -> None:
        self.group.kill(NODES[node])

    def do_restart(self, node: str) -> None:
        self.group.restart(NODES[node])

    def do_stop(self, node: str) -> None:
        process = self.group.members[NODES[node]].process
        self.stops.add(node)
        process.stop(lambda: self.group.arrivals.append(partial(self._ends, node)))
        stop, transferee = process._stop, process.node.replica.raft.transferee
        assert stop is not None
        if transferee is not None:
            self.heir = NAMES[transferee]
        become = stop._become

        def seen(state: StopState) -> None:
            self._look()
            become(state)
            self.lines.append(f"{node} {state.value}")

        stop._become = seen  # type: ignore[method-assign]
        self.lines.append(f"{node} {stop.state.value}")

    def _ends(self, node: str) -> None:
        """The process of a node that has stopped ends."""
        self.group.node(NODES[node]).replica.close(self.group.now_ns)
        self.group.kill(NODES[node])

    def do_join(self, node: str) -> None:
        self.group.join(NODES[node])

    def do_fill(self) -> None:
        with self._unseen():
            client = self.group.connect(self.group.leader)
            for _ in range(40):
                client.send("T", bytes(1000), 1)
            client.close()
            self.group.converge()
            self.group.advance(4)

    def do_damage(self, node: str, body: str) -> None:
        damage = Damage(self.group, NODES[node])
        queue = damage.replica.store.queues.get("T", 0)
        assert queue is not None
        units = queue.units(0, queue.max_offset)
        bodies = [
            decode_record(record_at(damage.replica.store.log, position, size), 0).body
            for position, size, _ in units
        ]
        damage.entry(entry_of(damage.replica, bodies.index(body.encode())), HEADER_BYTES + 20)

    def do_down(self) -> None:
        self.name_server.die()

    def do_up(self) -> None:
        self.name_server.up = True

    def do_power(self) -> None:
        for node_id in self.group.members:
            self.group.lose_power(node_id)
        for node_id in self.group.members:
            self.group.start(node_id)

    def do_upgrade(self, node: str) -> None:
        self.group.kill(NODES[node])
        self.group.members[NODES[node]].release = THIS_RELEASE
        self.group.start(NODES[node])

    def do_files(self, files: str) -> None:
        with self._unseen():
            client = self.group.connect()
            for _ in range(5 * int(files)):
                client.send("T", bytes(200_000), 0)
            client.close()
            self.group.converge()
            self.group.advance(1)

    def do_expire(self) -> None:
        self.group.skip(2 * HOUR_MS)

    def do_use(self, node: str, percent: str) -> None:
        disk = self.group.members[NODES[node]].disk
        disk.free_bytes = disk.total_bytes * (100 - int(percent)) // 100

    def do_slow(self, node: str) -> None:
        self.group.slow_disks.add(NODES[node])

    def do_quick(self, node: str) -> None:
        self.group.slow_disks.remove(NODES[node])
        self.group.members[NODES[node]].due_ns = self.group.now_ns

    def do_heads(self) -> None:
        for node_id, member in self.group.members.items():
            if member.node is not None:
                store = member.node.replica.store
                begin, head = (
                    position // store.log.file_bytes
                    for position in (store.log.first_position, store.head_position)
                )
                self.lines.append(
                    f"{NAMES[node_id]}: the log begins with file {begin}, what it tells of with {max(begin, head)}"
                )

    def do_partition(self, node: str) -> None:
        self.group.partition(NODES[node])

    def do_heal(self) -> None:
        self.group.heal()

    def _rule(self, kind: str, link: str, *, keeps: bool) -> None:
        source, target = link.split("->")
        self.rules.append(Rule(kind, source, target, keeps))

    def do_hold(self, kind: str, link: str = "*->*") -> None:
        self._rule(kind, link, keeps=True)

    def do_lose(self, kind: str, link: str = "*->*") -> None:
        self._rule(kind, link, keeps=False)

    def do_release(self, kind: str = "any") -> None:
        self.rules[:] = [rule for rule in self.rules if kind not in (rule.kind, "any")]
        arriving = [frame for frame in self.held if kind in kinds_of(frame[2])]
        self.held = [frame for frame in self.held if kind not in kinds_of(frame[2])]
        for source, target, frame in arriving:
            if not self._sees(NODES[source], NODES[target], frame):
                node = self.group.node(NODES[target])
                node.begin(self.group.now_ns, self.group.wall_ms)
                node.peer_received(NODES[source], frame)
                self.group.members[NODES[target]].due_ns = self.group.now_ns

    def do_show(self, what: str) -> None:
        assert what == "appends"
        self.shows_appends = True

    def do_hide(self, what: str) -> None:
        assert what == "appends"
        self.shows_appends = False

    def do_route(self) -> None:
        brokers = answered(self.name_server.core, "a test", request(RequestCode.GET_BROKER_CLUSTER_INFO), 0)
        assert brokers is not None
        for broker in ClusterInfo.decode(brokers.body).broker_table.values():
            for number, address in sorted(broker.broker_addresses.items()):
                self._say(f"{'master' if number == MASTER_ID else f'number {number}'}: {address}")

    def do_damages(self) -> None:
        for name, node_id in self._nodes():
            repairs = self.group.node(node_id).replica.repairs
            self.lines.append(
                f"{name}: {repairs.found} found, {repairs.repaired} repaired, {repairs.left} left"
            )

    def do_messages(self) -> None:
        store = self.group.node(self.group.leader).replica.store
        for number in (0, 1):
            queue = store.queues.get("T", number)
            units = [] if queue is None else queue.units(0, queue.max_offset)
            bodies = [
                decode_record(record_at(store.log, position, size), 0).body for position, size, _ in units
            ]
            self.lines.append(f"queue {number}: {b' '.join(bodies).decode() or 'empty'}")

    def do_offset(self) -> None:
        for name, node_id in self._nodes():
            member = self.group.members[node_id]
            if member.node is not None:
                offset = member.node.replica.metadata.offsets.get(("g", "T"), {}).get(0)
                self.lines.append(f"{name}: {'none' if offset is None else offset}")

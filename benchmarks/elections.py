"""How long a group is without a leader after its leader's death: thousands of elections of the state machine itself.

    python -m benchmarks.elections [--elections 12500] [--seed 1] [--heartbeat-ms 200] [--json FILE]

Runs the nodes of raft/ in a world made of draws: what a message, a flush of term and vote and a piece of work take,
when the end of a connection is noticed, how fast a node's clock runs, and for how long it stands still. Again and again
the leader dies under load, sometimes with a follower; measured is the time from there to the first commit of the next
leader's term, when it may serve. tests/raft/invariants.py watches all of it, and an election must end within a minute.

The script uses nothing but `raft.Raft`, and so measures an earlier state of raft/ just as well.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from raft import HardState, RaftOptions, Role
from raft.effects import Committed, Effect, RoleChanged, SaveHardState
from raft.errors import RaftError
from raft.messages import Message
from raft.reasons import Reason
from tests.raft.cluster import MILLISECOND, Cluster, Entry, Host, Log, Packet
from tests.raft.invariants import Invariants

_SECOND: Final = 1000 * MILLISECOND
_LIMIT: Final = 60 * _SECOND
_KILLS_PER_GROUP: Final = 10
"""Logs are checked as a whole, so that a group does not live for ever."""
_STALLED: Final = 250 * MILLISECOND
"""A node that is called so late tells raft of it (broker/replica/slowness.py)."""
_PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9, 100.0)


@dataclass(frozen=True, slots=True)
class World:
    """What things take, as (median, the longest that is drawn), in milliseconds."""

    name: str
    latency: tuple[float, float]
    flush: tuple[float, float]
    work: tuple[float, float]
    notice: tuple[float, float]
    clock_skew: float = 0.0
    """A node's clock runs by up to this share too fast or too slow."""
    pauses_per_s: float = 0.0
    pause: tuple[float, float] = (0.0, 0.0)
    asymmetric: float = 0.0
    """The share of the directions between two nodes that are twenty times as slow as the others."""
    deaf: float = 0.0
    """The share of elections in which nothing gets from one survivor to another one for up to a second."""
    heir_dies: float = 0.0
    """In groups of five: the share of elections in which a follower dies with the leader."""
    silent: bool = False
    """Connections do not end with a node, as where its machine loses its power: nobody hears of its death."""


WORLDS: Final = (
    World("quiet", (0.1, 1), (1, 10), (0.2, 2), (0.3, 3)),
    World("silent", (0.1, 1), (1, 10), (0.2, 2), (0.3, 3), silent=True),
    World("loaded", (2, 60), (10, 250), (2, 60), (10, 200), pauses_per_s=0.3, pause=(30, 240)),
    World("far apart", (40, 120), (1, 10), (0.2, 2), (40, 120), clock_skew=0.001),
    World(
        "hostile",
        (2, 60),
        (20, 3000),
        (2, 60),
        (20, 400),
        clock_skew=0.2,
        pauses_per_s=0.5,
        pause=(200, 900),
        asymmetric=0.15,
        deaf=0.2,
        heir_dies=0.4,
    ),
)


class _Node(Host):
    """A host whose writes take time: what it sends after one leaves later."""

    world: _Group
    spent: int = 0
    """What the turn under way has taken so far."""

    def _apply(self, effect: Effect) -> None:
        if isinstance(effect, SaveHardState):
            self.spent += self.world.draw(self.world.kind.flush)
        super()._apply(effect)


class _Group(Cluster):
    """A group in one world. `now` is the clock of the node whose turn it is, `time` that of nobody."""

    def __init__(self, kind: World, size: int, random: Random, options: RaftOptions) -> None:
        self.kind = kind
        self.time = 0
        self._draws = random
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        nodes = [f"n{number}" for number in range(size)]
        self._rates = {node: 1 + random.uniform(-kind.clock_skew, kind.clock_skew) for node in nodes}
        self._slow = {
            (source, target): random.random() < kind.asymmetric for source in nodes for target in nodes
        }
        self._busy = dict.fromkeys(nodes, 0)
        self._inboxes: dict[str, deque[Callable[[Host], None]]] = {node: deque() for node in nodes}
        self._lives = dict.fromkeys(nodes, 0)
        self._arrivals: dict[tuple[str, str], int] = {}
        self._ticks: dict[str, int] = {}
        self._deaf: set[tuple[str, str]] = set()
        self.unseated = 0
        """Leaders that stepped down although they lived and nobody had killed one."""
        self.first_commit: int | None = None
        super().__init__(nodes, options=options, seed=random.randrange(1 << 30))
        self.observers.append(self._look)
        self.invariants = Invariants(self)
        for node in nodes:
            self._plan_tick(node)
            self._plan_pause(node)
        self._plan_load()

    def _host(self, node: str, log: Log, hard_state: HardState) -> Host:
        host = _Node.__new__(_Node)
        host.world = self
        host.__init__(self, node, log, hard_state)  # type: ignore[misc]
        return host

    # ------------------------------------------------------------------ draws and events

    def draw(self, span: tuple[float, float]) -> int:
        """A time in nanoseconds: mostly about the median, now and then far longer."""
        median, longest = span
        if not median:
            return 0
        return int(min(median * self._draws.lognormvariate(0, 0.8), longest) * MILLISECOND)

    def at(self, time: int, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, act))

    def run(self, until: Callable[[], bool], limit: int) -> bool:
        """Lets things happen until something holds; False if it does not come about by `limit`."""
        while not until():
            if not self._events or self._events[0][0] > limit:
                self.time = limit
                return False
            self.time, _, act = heapq.heappop(self._events)
            act()
        return True

    # ------------------------------------------------------------------ nodes

    def clock(self, node: str) -> int:
        return int(self.time * self._rates[node])

    def do(self, node: str, act: Callable[[Host], None]) -> None:
        """Has a node do something, behind all that it has to do already."""
        inbox = self._inboxes[node]
        inbox.append(act)
        if len(inbox) == 1:
            self._serve(node)

    def _serve(self, node: str) -> None:
        """Does what is first in a node's inbox, when the node has the time for it."""
        inbox = self._inboxes[node]
        if self.time < self._busy[node]:
            self.at(self._busy[node], lambda: self._serve(node) if inbox is self._inboxes[node] else None)
            return
        host = self.hosts[node]
        assert isinstance(host, _Node)
        self.now, host.spent = self.clock(node), self.draw(self.kind.work)
        late = self.now - self._ticks.get(node, self.now)
        if late > _STALLED:
            host.up.paused(Reason.LOOP_STALLED, late, self.now)
        inbox[0](host)
        self._busy[node] = self.time + host.spent
        self._plan_tick(node)
        inbox.popleft()
        if inbox:
            self._serve(node)

    def _plan_tick(self, node: str) -> None:
        raft = self.hosts[node].raft
        deadline = raft.deadline() if raft is not None else None
        if deadline is None:
            self._ticks.pop(node, None)
            return
        if self._ticks.get(node) == deadline:
            return
        self._ticks[node] = deadline

        def tick() -> None:
            if self._ticks.get(node) == deadline:
                self.do(node, lambda host: host.turn(lambda raft: raft.tick(self.now)))

        self.at(max(self.time, int(deadline / self._rates[node]) + 2), tick)  # its clock has passed it then

    def _plan_pause(self, node: str) -> None:
        if not self.kind.pauses_per_s:
            return

        def pause() -> None:
            self._busy[node] = max(self._busy[node], self.time) + self.draw(self.kind.pause)
            self._plan_pause(node)

        self.at(self.time + int(self._draws.expovariate(self.kind.pauses_per_s) * _SECOND), pause)

    def _plan_load(self) -> None:
        def propose() -> None:
            for host in self.leaders():
                self.do(host.node, self._propose)
            self._plan_load()

        self.at(self.time + int(self._draws.expovariate(20) * _SECOND), propose)

    @staticmethod
    def _propose(host: Host) -> None:
        try:
            host.propose(1)
        except RaftError:
            pass  # it leads no more

    # ------------------------------------------------------------------ network

    def send(self, message: Message, entries: tuple[Entry, ...]) -> None:
        source, target = message.source, message.target
        if (source, target) in self._deaf or self.hosts[target].raft is None:
            return
        host = self.hosts[source]
        assert isinstance(host, _Node)
        latency = self.draw(self.kind.latency) * (20 if self._slow[source, target] else 1)
        # In order, as on one connection.
        arrival = max(self.time + host.spent + latency, self._arrivals.get((source, target), 0))
        self._arrivals[source, target] = arrival
        packet, life = Packet(0, message, entries), self._lives[target]

        def arrive() -> None:
            if life == self._lives[target]:
                self.do(target, lambda host: host.receive(packet))

        self.at(arrival, arrive)

    # ------------------------------------------------------------------ faults

    def kill(self, nodes: Sequence[str]) -> None:
        """Processes end at once; their peers notice when they notice. `serves` is about the next leader."""
        self.first_commit = None
        for node in nodes:
            self.hosts[node].crash()
            self._lives[node] += 1
            self._inboxes[node] = deque()
            self._ticks.pop(node, None)
        if not self.kind.silent:
            for node in nodes:
                self._end_connections(node, lambda: self.draw(self.kind.notice))

    def _end_connections(self, node: str, notice: Callable[[], int]) -> None:
        """Has its peers hear, each after so long, that their connections with a node are gone."""
        for peer in self.hosts.values():
            if peer.raft is not None and peer.node != node:
                # The end of a connection comes behind all that was sent on it.
                sent = self._arrivals.get((node, peer.node), 0)
                self.at(max(self.time + notice(), sent), self._notice(peer.node, node, gone=True))

    def start(self, nodes: Sequence[str]) -> None:
        for node in nodes:
            if self.kind.silent:
                # Its machine is there again, and knows nothing of them.
                self._end_connections(node, lambda: 0)
            self.now = self.clock(node)
            self._busy[node] = self.time
            self.hosts[node].start()
            self._plan_tick(node)
            for peer in self.hosts.values():
                if peer.raft is not None and peer.node != node:
                    self.at(
                        self.time + self.draw(self.kind.notice), self._notice(peer.node, node, gone=False)
                    )

    def _notice(self, node: str, peer: str, *, gone: bool) -> Callable[[], None]:
        lives = self._lives[node], self._lives[peer]

        def look() -> None:
            if (self._lives[node], self._lives[peer]) == lives:
                act = self.disconnect_host if gone else self.connect_host
                self.do(node, lambda host: act(host, peer))

        return look

    def disconnect_host(self, host: Host, peer: str) -> None:
        host.turn(lambda raft: raft.peer_disconnected(peer, self.now))

    def connect_host(self, host: Host, peer: str) -> None:
        host.turn(lambda raft: raft.peer_connected(peer))

    def deafen(self) -> None:
        """For a while nothing gets from one node that lives to another one."""
        alive = [host.node for host in self.hosts.values() if host.raft is not None]
        source, target = self._draws.sample(alive, 2)
        link = (source, target)
        self._deaf.add(link)
        self.at(self.time + int(self._draws.uniform(0.05, 1) * _SECOND), lambda: self._deaf.discard(link))

    # ------------------------------------------------------------------ what is measured

    def _look(self, host: Host, effect: Effect) -> None:
        match effect:
            case RoleChanged(role, before=Role.LEADER) if role is not Role.LEADER:
                self.unseated += 1
            case Committed(index) if host.up.role is Role.LEADER and self.first_commit is None:
                if host.log[index].term == host.up.term:
                    self.first_commit = self.time
            case _:
                pass

    def serves(self) -> bool:
        return self.first_commit is not None

    def is_followed(self, leader: Host) -> bool:
        """True if a majority follows it, so that its death is one."""
        followers = [host for host in self.hosts.values() if host.raft and host.raft.leader == leader.node]
        return 2 * len(followers) > len(self.hosts)

    def has_leader(self) -> bool:
        return any(self.is_followed(host) for host in self.leaders())


def _elections(
    kind: World, size: int, random: Random, wanted: int, options: RaftOptions
) -> tuple[list[int], int, float]:
    """The times of so many elections in ns; how many leaders were unseated without need, and in how many seconds."""
    times: list[int] = []
    unseated, seconds = 0, 0.0
    while len(times) < wanted:
        group = _Group(kind, size, random, options)
        assert group.run(group.serves, group.time + _LIMIT), "no first leader"
        for _ in range(min(_KILLS_PER_GROUP, wanted - len(times))):
            began, before = group.time, group.unseated
            calm = group.time + int(random.uniform(0.5, 1.5) * _SECOND)
            group.run(lambda: False, calm)
            assert group.run(group.has_leader, calm + _LIMIT), "no leader without a fault"
            leader = next(host.node for host in group.leaders() if group.is_followed(host))
            unseated += group.unseated - before
            seconds += (group.time - began) / _SECOND
            victims = [leader]
            if size > 3 and random.random() < kind.heir_dies:
                victims.append(random.choice([node for node in group.hosts if node not in victims]))
            killed_at = group.time
            group.kill(victims)
            if random.random() < kind.deaf:
                group.deafen()
            assert group.run(group.serves, group.time + _LIMIT), (
                f"{kind.name}, {size}: no leader for a minute"
            )
            assert group.first_commit is not None
            times.append(group.first_commit - killed_at)
            group.start(victims)
            group.invariants.check()
    return times, unseated, seconds


def _percentile(values: list[int], share: float) -> float:
    ordered = sorted(values)
    return ordered[max(0, -(-int(len(ordered) * share * 10) // 1000) - 1)] / MILLISECOND


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--elections", type=int, default=12_500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--heartbeat-ms", type=int, default=200, help="as raft.heartbeat_ms of the settings")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    options = RaftOptions(heartbeat_interval_ns=arguments.heartbeat_ms * MILLISECOND)
    cases = [(world, size) for world in WORLDS for size in (3, 5)]
    rows = []
    print("| world | nodes | elections | median | p90 | p99 | p99.9 | longest | unseated per hour |")
    print("|---|---|---|---|---|---|---|---|---|")
    for world, size in cases:
        random = Random(f"{arguments.seed} {world.name} {size}")
        count = -(-arguments.elections // len(cases))
        times, unseated, seconds = _elections(world, size, random, count, options)
        figures = [round(_percentile(times, share), 1) for share in _PERCENTILES]
        per_hour = round(unseated * 3600 / seconds)
        print(
            f"| {world.name} | {size} | {len(times)} | {' | '.join(f'{ms:,.0f}' for ms in figures)} | {per_hour} |"
        )
        sys.stdout.flush()
        rows.append({"world": world.name, "nodes": size, "ms": figures, "unseated_per_hour": per_hour})
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Random walks where members come and go while disks are replaced: what hand-made schedules of recovery.py leave out.

    python -m tests.raft.walk 0-20000

Each seed is one group of one to five voters and some spare nodes, which goes through a few dozen steps. They are drawn
to bring promises into danger: hand-overs whose requests for votes arrive much later, changes of members that only a
part of the group hears of, power failures before a flush, lost ends of logs, new disks. What a node may lose is bounded
by the claim of raft/recovery.py and by nothing else. After each step the safety properties of invariants.py must hold.
In the end the faults do, some of those who are no members any more are gone for good, and the group elects a leader,
commits, and has no recovering member left.
"""

import random
import sys
from collections.abc import Callable, Iterable, Iterator

from raft import (
    AddLearner,
    Configuration,
    HardState,
    Loss,
    PromoteLearner,
    Raft,
    RaftOptions,
    RemoveMember,
    Role,
)
from raft.configuration import Change
from raft.errors import ImpossibleMessage, RaftError
from raft.messages import AppendRequest, Message, TimeoutNow, VoteRequest, VoteResponse
from tests.raft.cluster import MILLISECOND, Cluster, Host, Log, Packet
from tests.raft.invariants import Invariants

_OPTIONS = RaftOptions(max_inflight_appends=3, catch_up_lag_entries=3)
_STEPS = 40


class _Host(Host):
    """A host whose flushes may be left to the walk."""

    disk_is_slow = False

    def turn(self, action: Callable[[Raft], object] | None = None) -> None:
        self.cluster.auto_flush = not self.disk_is_slow
        super().turn(action)


class _Cluster(Cluster):
    def _host(self, node: str, log: Log, hard_state: HardState) -> Host:
        return _Host(self, node, log, hard_state)


class Walk:
    """One group and its way through the steps that a seed draws."""

    def __init__(self, seed: int) -> None:
        self.random = dice = random.Random(seed)
        nodes = "abcde"
        size = dice.choice((1, 2, 3, 3, 4, 5))
        self.cluster = _Cluster(
            nodes[:size],
            spare=nodes[size:],
            options=_OPTIONS,
            seed=seed,
            entries_per_append=dice.choice((1, 2, 1000)),
        )
        self.properties = Invariants(self.cluster)
        # Packets that stay under way for as long as it takes.
        self.slow: list[Packet] = []
        self.story: list[str] = []
        """The steps so far, for whoever has to understand a violation."""

    def run(self) -> None:
        """Takes all steps. Raises `Violation`, or the core's own AssertionError or `ImpossibleMessage`."""
        self._pass_time(2000)
        for _ in range(_STEPS):
            self.random.choice(_WEIGHTED)(self)
            self.properties.check()
        self._end()

    # What a step works on --------------------------------------------------------------------------------------

    def _hosts(self, wanted: Callable[[Host], bool] = lambda host: True) -> list[Host]:
        return [host for host in self.cluster.hosts.values() if wanted(host)]

    def _draw(self, wanted: Callable[[Host], bool] = lambda host: True) -> Host | None:
        found = self._hosts(wanted)
        return self.random.choice(found) if found else None

    def _leader(self) -> Host | None:
        """Any leader; also one that does not know that it leads no more."""
        return self._draw(lambda host: host.raft is not None and host.raft.role is Role.LEADER)

    def _configurations(self) -> tuple[list[tuple[int, Configuration]], list[tuple[int, Configuration]]]:
        """Returns the committed configurations, and those behind them that are in any log, each with its index."""
        committed = [(-1, self.cluster.configuration)]
        for index, (entry, _) in enumerate(self.properties.committed):
            if entry.configuration is not None:
                committed.append((index, entry.configuration))
        end = len(self.properties.committed)
        later = {
            (index, configuration)
            for host in self.cluster.hosts.values()
            for log in (host.log, host.durable_log)
            for index, configuration in log.configurations()
            if index >= end
        }
        return committed, sorted(later, key=lambda item: (item[0], item[1].members))

    def _may_lose(self, node: str) -> bool:
        """The claim: at most a minority of the voters lacks something, in each configuration that may count."""
        committed, later = self._configurations()
        return all(self._is_minority(configuration, node) for _, configuration in (committed[-1], *later))

    def _mute(self) -> list[tuple[str, Configuration]]:
        """Returns the nodes that do not know their term, with the configuration that each was given."""
        hosts = self._hosts(lambda host: host.loss is Loss.ALL)
        return [(host.node, host.durable_log.configurations()[-1][1]) for host in hosts]

    def _can_learn(self, node: str, given: Configuration, in_force: Configuration) -> bool:
        """True if a node with a new disk finds enough of those who know its term among those that it was given."""
        return self._is_minority(given, node) or set(in_force.voters) <= set(given.voters)

    def _is_minority(self, configuration: Configuration, *more: str) -> bool:
        lacking = [
            node
            for node in configuration.voters
            if node in more or self.cluster[node].loss is not None or self.cluster[node].hard_state.term == 0
        ]
        return 2 * len(lacking) < len(configuration.voters)

    # Steps -----------------------------------------------------------------------------------------------------

    def _pass_time(self, longest_ms: int = 1500) -> None:
        duration = self.random.randrange(1, longest_ms + 1)
        self.story.append(f"{duration} ms")
        self.cluster.run_for(duration * MILLISECOND)

    def _deliver_some(self) -> None:
        for _ in range(self.random.randrange(1, 9)):
            if packets := self.cluster.packets:
                self.cluster.deliver(
                    packets[0] if self.random.random() < 0.7 else self.random.choice(packets)
                )

    def _lose_some(self) -> None:
        self.cluster.packets = [p for p in self.cluster.packets if self.random.random() < 0.6]

    def _campaign(self) -> None:
        """One node's election timeout passes, and nothing but votes arrives."""
        host = self._draw(lambda host: host.raft is not None and host.raft.role is not Role.LEADER)
        if host is None or (deadline := host.up.deadline()) is None:
            return
        self.story.append(f"{host.node} campaigns")
        cluster = self.cluster
        cluster.now = max(cluster.now + _OPTIONS.election_timeout_min_ns, deadline)
        cluster.tick(host)
        self._deliver_only(VoteRequest, VoteResponse)

    def _deliver_only(self, *kinds: type[Message]) -> None:
        while found := [packet for packet in self.cluster.packets if isinstance(packet.message, kinds)]:
            self.cluster.deliver(found[0])

    def _partition(self) -> None:
        sides: list[list[str]] = [[], []]
        for node in self.cluster.hosts:
            self.random.choice(sides).append(node)
        self.story.append(f"cut {''.join(sides[0])} from {''.join(sides[1])}")
        self.cluster.partition(*sides)
        if self.random.random() < 0.5:
            self.story.append("which they notice")
            for node, peer in sorted(self.cluster.cut):
                if self.cluster[node].raft is not None:
                    self.cluster.disconnect(node, peer)

    def _heal(self) -> None:
        self.story.append("heal")
        self.cluster.heal()
        self.cluster.connect_all()

    def _calm(self) -> None:
        """All are there and hear each other, for as long as an election takes."""
        self._heal()
        for host in self._hosts(lambda host: host.raft is None):
            self.cluster.restart(host.node)
        self._pass_time(5000)

    def _isolate(self, alone: str) -> None:
        self.story.append(f"cut {alone} off")
        self.cluster.partition([alone], [node for node in self.cluster.hosts if node != alone])

    def _lose_a_promise(self) -> None:
        """An heir that has a vote is cut off, and whoever gave it gets a new disk. Then some may elect another one with
        it, before the heir asks the rest of them.
        """
        self._calm()
        heir = self.random.choice((self._slow_hand_over, self._slow_leaver))()
        if heir is None or heir.raft is None:
            return
        votes = self.properties.votes.items()
        voters = [node for (node, term), (_, to) in votes if (term, to) == (heir.up.term, heir.node)]
        if not voters:
            return
        voter = self.random.choice(voters)
        self._isolate(heir.node)
        self._replace_disk(voter)
        self._pass_time(2000)
        side, rest = [voter], [heir.node]
        for node in self.cluster.hosts:
            if node not in (voter, heir.node):
                self.random.choice((side, side, rest)).append(node)
        self.story.append(f"cut {''.join(side)} off, and all others")
        self.cluster.partition(side, *rest)
        self._pass_time(5000)
        self._propose()
        self._pass_time(100)
        self.story.append(f"{''.join(rest)} hear each other")
        self.cluster.partition(side, rest)
        while self.slow:
            self._slow_arrives()

    def _change_alone(self) -> None:
        """A leader that is cut off changes the members; the others go on, and one of them loses what they commit."""
        self._calm()
        leader = self._leader()
        if leader is None:
            return
        self._isolate(leader.node)
        self._change_members(leader)
        self._pass_time(5000)
        self._propose()
        self._pass_time()
        loser = self._draw(lambda host: host is not leader)
        assert loser is not None, "there are five nodes"
        if self.random.random() < 0.5:
            self._lose_entries(loser)
        else:
            self._replace_disk(loser.node)
        if loser.raft is None:
            self.cluster.restart(loser.node)
        pair = [leader.node, loser.node]
        self.story.append(f"cut {''.join(pair)} from the others")
        self.cluster.partition(pair, [node for node in self.cluster.hosts if node not in pair])
        self._pass_time(5000)

    def _slow_hand_over(self) -> Host | None:
        """A leader hands over; of its heir's requests for votes some arrive at once, others much later or never.

        Returns the heir.
        """
        leader = self._leader()
        if leader is None:
            return None
        heir = self.cluster[self.random.choice(leader.up.configuration.voters)]
        try:
            leader.up.transfer_leadership(heir.node, self.cluster.now)
        except RaftError:
            return None
        self.story.append(f"{leader.node} hands over to {heir.node}, slowly")
        leader.turn()
        self._deliver_only(TimeoutNow)
        self._ask_slowly()
        return heir

    def _slow_leaver(self) -> Host | None:
        """Who is being removed, which few others have heard, asks for votes once its leader is cut off.

        Returns it.
        """
        leader = self._leader()
        others = [] if leader is None else [v for v in leader.up.configuration.voters if v != leader.node]
        if leader is None or len(others) < 2:
            return None
        heir = self.cluster[self.random.choice(others)]
        if not self._is_minority(RemoveMember(heir.node).applied_to(leader.up.configuration)):
            return None
        try:
            leader.up.propose_configuration(RemoveMember(heir.node), self.cluster.now)
        except RaftError:
            return None
        self.story.append(f"{leader.node} removes {heir.node}, and is cut off")
        leader.turn()
        heard = {heir.node, *(node for node in others if self.random.random() < 0.3)}
        for packet in list(self.cluster.packets):
            if isinstance(packet.message, AppendRequest) and packet.message.target in heard:
                self.cluster.deliver(packet)
        self._isolate(leader.node)
        for node in self.cluster.hosts:
            if node != leader.node and self.cluster[node].raft is not None:
                self.cluster.disconnect(node, leader.node)
        self.cluster.packets.clear()
        if heir.raft is None or (deadline := heir.up.deadline()) is None:
            return None
        self.cluster.now = max(self.cluster.now + _OPTIONS.election_timeout_min_ns, deadline)
        self.cluster.tick(heir)
        while found := [packet for packet in self.cluster.packets if _is_prevote(packet.message)]:
            self.cluster.deliver(found[0])
        self._ask_slowly()
        return heir

    def _ask_slowly(self) -> None:
        """Of the requests for votes that are on their way some arrive now, others much later."""
        for packet in list(self.cluster.packets):
            if isinstance(packet.message, VoteRequest) and self.random.random() < 0.6:
                self.cluster.packets.remove(packet)
                self.slow.append(packet)
        self._deliver_only(VoteRequest, VoteResponse)

    def _slow_arrives(self) -> None:
        if self.slow:
            packet = self.slow.pop(self.random.randrange(len(self.slow)))
            self.story.append(f"late: {packet.message}")
            self.cluster.packets.insert(0, packet)
            self.cluster.deliver(packet)

    def _propose(self) -> None:
        if leader := self._leader():
            try:
                leader.propose(self.random.randrange(1, 4))
            except RaftError:
                return
            self.story.append(f"{leader.node} appends")

    def _change_members(self, leader: Host | None = None) -> None:
        """The next step towards another set of members, while too few lacked something for that to be dangerous."""
        leader = leader or self._leader()
        if leader is None:
            return
        change = self._drawn_change(leader.up.configuration)
        try:
            after = change.applied_to(leader.up.configuration)
            if not self._is_minority(after):
                return
            if not all(self._can_learn(node, given, after) for node, given in self._mute()):
                return
            leader.up.propose_configuration(change, self.cluster.now)
        except RaftError:
            return
        self.story.append(f"{leader.node}: {change}")
        leader.turn()

    def _drawn_change(self, configuration: Configuration) -> Change:
        node = self.random.choice(list(self.cluster.hosts))
        if node in configuration.learners and self.random.random() < 0.8:
            return PromoteLearner(node)
        return RemoveMember(node) if node in configuration.members else AddLearner(node)

    def _crash(self) -> None:
        if host := self._draw(lambda host: host.raft is not None):
            self.story.append(f"{host.node} ends")
            self._end_process(host)

    def _end_process(self, host: Host) -> None:
        """What is under way to a process does not reach the next one: connections end with it."""
        self.cluster.crash(host.node)
        self.slow = [p for p in self.slow if host.node not in (p.message.source, p.message.target)]

    def _restart(self) -> None:
        if host := self._draw(lambda host: host.raft is None):
            self.story.append(f"{host.node} starts")
            self.cluster.restart(host.node)

    def _lose_entries(self, host: Host | None = None) -> None:
        host = host or self._draw()
        if host is None or host.loss is not None or not host.hard_state.term or not self._may_lose(host.node):
            return
        self._end_process(host)
        log = host.durable_log
        kept = self.random.randrange(log.first_index, log.last_index + 2)
        self.story.append(f"{host.node} loses what is from {kept} on")
        host.lose_entries(kept)

    def _replace_disk(self, node: str | None = None) -> None:
        """A voter gets an empty disk, and the group's configuration, or the committed one before it."""
        committed, later = self._configurations()
        given = committed[-2:] if not later else committed[-1:]
        configuration = self.random.choice(given)[1]
        hosts = self.cluster.hosts
        host = hosts[node or self.random.choice(configuration.voters)]
        if host.node not in configuration.voters or not host.hard_state.term:
            return
        if host.loss is not None or not self._may_lose(host.node):
            return
        if not all(self._can_learn(host.node, configuration, each) for _, each in (committed[-1], *later)):
            return
        self._end_process(host)
        self.story.append(f"{host.node} gets a new disk and {configuration}")
        host.lose_disk(configuration)
        if self.random.random() < 0.7:
            self.cluster.restart(host.node)

    def _slow_disk(self) -> None:
        host = self._draw()
        assert isinstance(host, _Host)
        host.disk_is_slow = not host.disk_is_slow
        self.story.append(f"{host.node}'s disk is {'slow' if host.disk_is_slow else 'fast'}")

    def _flush(self) -> None:
        for host in self._hosts(lambda host: host.raft is not None):
            if self.random.random() < 0.6:
                host.begin_flush()
                host.end_flush()

    # The end ---------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Without faults the group elects, commits, and nobody recovers for ever."""
        self.story.append("the faults end")
        for host in self._hosts():
            assert isinstance(host, _Host)
            host.disk_is_slow = False
        committed, later = self._configurations()
        members = {node for _, it in (committed[-1], *later) for node in it.members}
        gone = [node for node in self.cluster.hosts if node not in members and self.random.random() < 0.5]
        self.story.append(f"gone: {gone}")
        if self._a_learner_is_ahead():
            return
        for node in gone:
            self.cluster.packets.clear()  # one of them may make it a member again
            self._end_process(self.cluster[node])
        leader = self.cluster.go_on_without_faults(60_000 * MILLISECOND, without=gone)
        for node in leader.up.configuration.members:
            assert self.cluster[node].up.recovering is None, f"{node} recovers for ever"
        self.properties.check()

    def _a_learner_is_ahead(self) -> bool:
        """True if a voter recovers, and who has the newest entries is no voter as far as it knows: nobody may lead."""
        hosts = self._hosts()
        ahead = max(_newest(host.durable_log) for host in hosts)
        leads = [host for host in hosts if _newest(host.durable_log) == ahead and _is_voter(host)]
        return not leads and any(host.loss is not None for host in hosts)


def _is_prevote(message: Message) -> bool:
    return isinstance(message, VoteRequest | VoteResponse) and message.pre_vote


def _newest(log: Log) -> tuple[int, int]:
    return log[log.last_index].term if log.entries else log.base_term, log.last_index


def _is_voter(host: Host) -> bool:
    return host.node in host.durable_log.configurations()[-1][1].voters


_WEIGHTS: dict[Callable[[Walk], object], int] = {
    Walk._pass_time: 6,
    Walk._deliver_some: 4,
    Walk._lose_some: 1,
    Walk._campaign: 3,
    Walk._partition: 4,
    Walk._heal: 3,
    Walk._slow_hand_over: 1,
    Walk._lose_a_promise: 2,
    Walk._change_alone: 2,
    Walk._slow_disk: 2,
    Walk._slow_arrives: 3,
    Walk._propose: 3,
    Walk._change_members: 8,
    Walk._crash: 2,
    Walk._restart: 4,
    Walk._lose_entries: 2,
    Walk._replace_disk: 4,
    Walk._flush: 2,
}
_WEIGHTED = [step for step, weight in _WEIGHTS.items() for _ in range(weight)]


def violations(seeds: Iterable[int]) -> Iterator[tuple[int, Exception, list[str]]]:
    """Yields each seed whose walk finds something, what that is, and the steps that led there."""
    for seed in seeds:
        walk = Walk(seed)
        try:
            walk.run()
        except (AssertionError, ImpossibleMessage) as error:
            yield seed, error, walk.story


def main(seeds: str) -> int:
    """Walks the seeds FIRST-LAST. Returns 1 if one of them found something."""
    first, last = (int(seed) for seed in seeds.split("-"))
    found = 0
    for seed, error, story in violations(range(first, last + 1)):
        found += 1
        print(f"seed {seed}: {error}", *story, sep="\n    ")
    print(f"{last + 1 - first} walks, {found} of them found something")
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""Arbitrary schedules: Hypothesis drives groups through loss, duplication, reordering, crashes and changes.

Every rule is one thing that can happen to a group; after each the safety properties of invariants.py must hold. The
last test of a run, `teardown`, lets the faults end and requires that the group then elects a leader and commits.
"""

import sys
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raft import AddLearner, PromoteLearner, RaftOptions, Reason, RemoveMember, Role
from raft.errors import RaftError
from raft.messages import VoteRequest, VoteResponse
from tests.examples import examples
from tests.raft.cluster import MILLISECOND, Cluster, Host
from tests.raft.invariants import Invariants

OPTIONS = RaftOptions(max_inflight_appends=3, catch_up_lag_entries=3)


class GroupMachine(RuleBasedStateMachine):
    """A group of `size` nodes, and one more that may join."""

    size = 3
    starts: ClassVar[dict[str, list[list[int]]]] = {
        "empty": [],
        "figure 7": [
            [1, 1, 1, 4, 4, 5, 5, 6, 6, 6],
            [1, 1, 1, 4, 4, 4, 4],
            [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],
        ],
        "figure 8": [[1, 2], [1], [1, 3]],
    }

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    @initialize(
        start=st.integers(0, 2),
        seed=st.integers(0, 2**16),
        entries_per_append=st.integers(1, 4),
        auto_flush=st.booleans(),
    )
    def begin(self, start: int, seed: int, entries_per_append: int, auto_flush: bool) -> None:
        members = [f"n{number}" for number in range(self.size)]
        logs = dict(zip(members, list(self.starts.values())[start % len(self.starts)], strict=False))
        # As if everybody had heard of the last term, so that it cannot be used again.
        term = max((term for log in logs.values() for term in log), default=0)
        self.cluster = Cluster(
            members,
            spare=["x"],
            options=OPTIONS,
            seed=seed,
            entries_per_append=entries_per_append,
            auto_flush=auto_flush,
            logs=logs,
            terms=dict.fromkeys((*members, "x"), term),
        )
        self.properties = Invariants(self.cluster)

    def host(self, number: int) -> Host:
        hosts = list(self.cluster.hosts.values())
        return hosts[number % len(hosts)]

    # Time ------------------------------------------------------------------------------------------------------

    @rule(number=st.integers(0, 5))
    def timeout(self, number: int) -> None:
        """One node's clock reaches its deadline; the others do not look at theirs."""
        host = self.host(number)
        if host.raft is not None and (deadline := host.raft.deadline()) is not None:
            self.cluster.now = max(self.cluster.now, deadline)
            self.cluster.tick(host)

    @rule(number=st.integers(0, 5))
    def campaign(self, number: int) -> None:
        """One node's election timeout passes, and nothing but votes arrives: often a second leader."""
        host = self.host(number)
        if host.raft is None or host.raft.role is Role.LEADER or (deadline := host.raft.deadline()) is None:
            return
        cluster = self.cluster
        cluster.now = max(cluster.now + OPTIONS.election_timeout_min_ns, deadline)
        cluster.tick(host)
        while votes := [p for p in cluster.packets if isinstance(p.message, VoteRequest | VoteResponse)]:
            for packet in votes:
                cluster.deliver(packet)

    @rule(duration=st.integers(1, 3000))
    def silence(self, duration: int) -> None:
        self.cluster.now += duration * MILLISECOND

    # Network ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.cluster.packets)
    @rule(count=st.integers(1, 10))
    def deliver_in_order(self, count: int) -> None:
        for _ in range(min(count, len(self.cluster.packets))):
            if self.cluster.packets:
                self.cluster.deliver(self.cluster.packets[0])

    @precondition(lambda self: self.cluster.packets)
    @rule(position=st.integers(0, 2**16))
    def deliver_any(self, position: int) -> None:
        self.cluster.deliver(self.cluster.packets[position % len(self.cluster.packets)])

    @precondition(lambda self: self.cluster.packets)
    @rule(number=st.integers(0, 5), peer=st.integers(0, 5), count=st.integers(1, 20))
    def exchange(self, number: int, peer: int, count: int) -> None:
        """Two nodes talk, and nobody else."""
        pair = {self.host(number).node, self.host(peer).node}
        for _ in range(count):
            for packet in self.cluster.packets:
                if {packet.message.source, packet.message.target} == pair:
                    self.cluster.deliver(packet)
                    break

    @precondition(lambda self: self.cluster.packets)
    @rule(number=st.integers(0, 5))
    def deliver_all_to(self, number: int) -> None:
        node = self.host(number).node
        for packet in [p for p in self.cluster.packets if p.message.target == node]:
            self.cluster.deliver(packet)

    @precondition(lambda self: self.cluster.packets)
    @rule(number=st.integers(0, 5))
    def lose_all_from(self, number: int) -> None:
        node = self.host(number).node
        self.cluster.packets = [p for p in self.cluster.packets if p.message.source != node]

    @precondition(lambda self: self.cluster.packets)
    @rule(position=st.integers(0, 2**16))
    def lose(self, position: int) -> None:
        del self.cluster.packets[position % len(self.cluster.packets)]

    @precondition(lambda self: 0 < len(self.cluster.packets) < 100)
    @rule(position=st.integers(0, 2**16))
    def duplicate(self, position: int) -> None:
        self.cluster.packets.append(self.cluster.packets[position % len(self.cluster.packets)])

    @rule(number=st.integers(0, 5))
    def isolate(self, number: int) -> None:
        nodes = list(self.cluster.hosts)
        alone = nodes[number % len(nodes)]
        self.cluster.partition([alone], [node for node in nodes if node != alone])

    @precondition(lambda self: self.cluster.cut)
    @rule()
    def heal(self) -> None:
        self.cluster.heal()

    @rule(number=st.integers(0, 5), peer=st.integers(0, 5))
    def reconnect(self, number: int, peer: int) -> None:
        host, other = self.host(number), self.host(peer)
        if host is not other and host.raft is not None:
            self.cluster.disconnect(host.node, other.node)
            self.cluster.connect(host.node, other.node)

    # Nodes -----------------------------------------------------------------------------------------------------

    @rule(number=st.integers(0, 5))
    def crash(self, number: int) -> None:
        host = self.host(number)
        if host.raft is not None:
            host.crash()  # what is under way to it may still arrive after a restart

    @rule(number=st.integers(0, 5))
    def restart(self, number: int) -> None:
        host = self.host(number)
        if host.raft is None:
            host.start()

    def may_lose(self, host: Host) -> bool:
        """The recovering mode's assumption: at most a minority of the voters, by anyone's view, lacks something."""
        hosts = self.cluster.hosts
        for other in hosts.values():
            views = [configuration for _, configuration in other.log.configurations()]
            for view in [*views, *(c for _, c in other.durable_log.configurations())]:
                lacking = [n for n in view.voters if hosts[n].loss is not None or n == host.node]
                if 2 * len(lacking) >= len(view.voters):
                    return False
        return True

    @rule(number=st.integers(0, 5), kept=st.integers(0, 8))
    def lose_entries(self, number: int, kept: int) -> None:
        """A crash that takes acknowledged entries with it."""
        host = self.host(number)
        if host.loss is None and host.hard_state.term and self.may_lose(host):
            host.crash()
            host.lose_entries(kept)

    @rule(number=st.integers(0, 5))
    def replace_disk(self, number: int) -> None:
        """Gives a node an empty disk, while the configuration that the group began with is the one that counts."""
        host = self.host(number)
        first = self.cluster.configuration
        logs = [log for other in self.cluster.hosts.values() for log in (other.log, other.durable_log)]
        unchanged = all(c == first for log in logs for _, c in log.configurations())
        if host.loss is None and host.node in first.voters and unchanged and self.may_lose(host):
            host.crash()
            host.lose_disk()

    @rule(number=st.integers(0, 5))
    def begin_flush(self, number: int) -> None:
        host = self.host(number)
        if host.raft is not None:
            host.begin_flush()

    @rule(number=st.integers(0, 5))
    def end_flush(self, number: int) -> None:
        host = self.host(number)
        if host.raft is not None:
            host.end_flush()

    @rule(number=st.integers(0, 5), kept=st.integers(0, 3))
    def compact(self, number: int, kept: int) -> None:
        host = self.host(number)
        if host.raft is not None:
            first_index = min(host.raft.commit_index, host.raft.persisted_index) + 1 - kept
            durable_end = host.durable_log.last_index + 1
            if host.log.first_index < first_index <= durable_end:
                host.compact(first_index)

    # Clients ---------------------------------------------------------------------------------------------------

    def try_on(self, number: int, action: Any) -> None:
        host = self.host(number)
        if host.raft is not None:
            try:
                action(host)
            except RaftError:
                assert not host.raft.take_effects(), "a refusal must leave the node as it was"

    @rule(count=st.integers(1, 5))
    def propose_to_leaders(self, count: int) -> None:
        for number, host in enumerate(self.cluster.hosts.values()):
            if host.raft is not None and host.raft.role is Role.LEADER:
                self.try_on(number, lambda host: host.propose(count))

    @rule()
    def read_from_leaders(self) -> None:
        """Also one that does not know that it leads no more."""
        self.reads += 1

        def ask(host: Host) -> None:
            token = (host.node, self.reads)
            self.properties.read_requested(token)
            host.up.read_index(token)
            host.turn()

        for number, host in enumerate(self.cluster.hosts.values()):
            if host.raft is not None and host.raft.role is Role.LEADER:
                self.try_on(number, ask)

    @rule(number=st.integers(0, 5), successor=st.integers(0, 5))
    def transfer(self, number: int, successor: int) -> None:
        def hand_over(host: Host) -> None:
            host.up.transfer_leadership(self.host(successor).node, self.cluster.now)
            host.turn()

        self.try_on(number, hand_over)

    @rule(number=st.integers(0, 5))
    def resign(self, number: int) -> None:
        def give_up(host: Host) -> None:
            host.up.resign(Reason.DISK_FULL, self.cluster.now)
            host.turn()

        self.try_on(number, give_up)

    @rule(member=st.integers(0, 5), kind=st.sampled_from([AddLearner, PromoteLearner, RemoveMember]))
    def change_members(self, member: int, kind: Any) -> None:
        node = self.host(member).node

        def change(host: Host) -> None:
            lacking = self.lacking_after(host, kind(node))
            if lacking and not self.knows_of(host, lacking, node):
                return  # an operator removes nobody right after another has lost its disk: nothing is claimed then
            before = host.up.configuration
            host.up.propose_configuration(kind(node), self.cluster.now)
            assert not lacking, f"{before} gave up {node} although {lacking} cannot vote"
            host.turn()

        for number, host in enumerate(self.cluster.hosts.values()):
            if host.raft is not None and host.raft.role is Role.LEADER:
                self.try_on(number, change)

    def lacking_after(self, host: Host, change: Any) -> list[str]:
        """The voters that a change would leave and that lack something, if they are no minority then."""
        try:
            voters = change.applied_to(host.up.configuration).voters
        except RaftError:
            return []
        lacking = [node for node in voters if self.cluster.hosts[node].loss is not None]
        return lacking if 2 * len(lacking) >= len(voters) else []

    def knows_of(self, leader: Host, lacking: list[str], leaving: str) -> bool:
        """Returns whether the leader knows what they lack, and hears the node that is to leave: then it must refuse."""
        peers = {peer.node: peer for peer in leader.up.status(self.cluster.now).peers}
        if any(node != leader.node and not peers[node].recovering for node in lacking):
            return False
        gone = peers.get(leaving)
        return gone is None or (not gone.recovering and gone.silence_ns <= OPTIONS.election_timeout_min_ns)

    @rule()
    def calm(self) -> None:
        """A while without faults, so that schedules get somewhere."""
        self.cluster.heal()
        for host in self.cluster.hosts.values():
            if host.raft is None:
                host.start()
        for _ in range(10):
            for packet in list(self.cluster.packets):
                self.cluster.deliver(packet)
            for host in self.cluster.hosts.values():
                host.begin_flush()
                host.end_flush()
        due = self.cluster.next_deadline()
        if due is not None and due > self.cluster.now:
            self.cluster.now = due
        for host in list(self.cluster.hosts.values()):
            self.cluster.tick(host)

    @invariant()
    def safe(self) -> None:
        if hasattr(self, "properties"):
            self.properties.check()

    def teardown(self) -> None:
        """Once the faults end, the group elects a leader, commits, and all members agree."""
        if not hasattr(self, "cluster") or sys.exception() is not None:
            return  # after a finding a node may stand halfway through its effects; its next error would hide that
        self.cluster.auto_flush = True
        self.cluster.go_on_without_faults(10_000 * MILLISECOND)
        self.properties.check()


class FiveMachine(GroupMachine):
    size = 5
    starts: ClassVar[dict[str, list[list[int]]]] = {
        "empty": [],
        "figure 7": [
            [1, 1, 1, 4, 4, 5, 5, 6, 6, 6],
            [1, 1, 1, 4, 4, 5, 5, 6, 6],
            [1, 1, 1, 4, 4, 4, 4],
            [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],
            [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7],
        ],
        "figure 8": [[1, 2], [1, 2], [1], [1], [1, 3]],
    }


DEFAULT = settings(
    max_examples=examples(60),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

TestThree = GroupMachine.TestCase
TestThree.settings = DEFAULT
TestFive = FiveMachine.TestCase
TestFive.settings = DEFAULT

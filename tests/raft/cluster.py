"""A group of `Raft` nodes in one process: their disks, their network and their clock are plain lists.

A `Host` carries out the effects of one node on an in-memory log whose tail is lost by a crash unless it was flushed,
and checks the contract between the state machine and its caller as it goes. A `Cluster` holds the packets between the
hosts, in the order of sending, and lets a test deliver, drop or duplicate any of them.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from raft import Configuration, HardState, LogTerms, Loss, Raft, RaftOptions, Role
from raft.effects import (
    AcceptEntries,
    AppendConfiguration,
    AppendNoop,
    Effect,
    RecoveryChanged,
    ResetLog,
    SaveHardState,
    Send,
    SnapshotNeeded,
    TruncateLog,
)
from raft.messages import AppendRequest, Message
from raft.state import InitialState

MILLISECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class Entry:
    """`payload` is unique to the proposal, so that equal entries are the same entry."""

    term: int
    payload: str
    configuration: Configuration | None = None


class Run(NamedTuple):
    """Entries as one append carries them."""

    last_index: int
    entries: tuple[Entry, ...] = ()


@dataclass(slots=True)
class Log:
    """Entries from `first_index` on, the term before them and the configuration in force there."""

    entries: list[Entry]
    base: tuple[int, Configuration]
    first_index: int = 0
    base_term: int = 0

    @property
    def last_index(self) -> int:
        return self.first_index + len(self.entries) - 1

    def __getitem__(self, index: int) -> Entry:
        assert index >= self.first_index, f"entry {index} lies before {self.first_index}"
        return self.entries[index - self.first_index]

    def slice(self, first_index: int, last_index: int) -> list[Entry]:
        return self.entries[first_index - self.first_index : last_index + 1 - self.first_index]

    def copy(self) -> "Log":
        return Log(list(self.entries), self.base, self.first_index, self.base_term)

    def terms(self) -> LogTerms:
        terms = LogTerms(self.first_index, self.first_index - 1, (), self.base_term)
        for entry in self.entries:
            terms.append(entry.term, 1)
        return terms

    def configurations(self) -> list[tuple[int, Configuration]]:
        found = [self.base]
        for index, entry in enumerate(self.entries, self.first_index):
            if entry.configuration is not None:
                found.append((index, entry.configuration))
        return found


@dataclass(frozen=True, slots=True)
class Packet:
    """A message and the entries that travel with it."""

    number: int
    message: Message
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Flush:
    """A flush under way: what the disk will hold when it is done."""

    log: Log
    last_index: int
    generation: int


class Host:
    """One node with its disk; `raft` is None while it is down."""

    def __init__(self, cluster: "Cluster", node: str, log: Log, hard_state: HardState) -> None:
        self.cluster = cluster
        self.node = node
        self.log = log
        self.durable_log = log.copy()
        self.hard_state = hard_state
        self.disk = object()
        """Another one when the disk was replaced."""
        self.loss: Loss | None = None
        """What its disk has lost; while it is down, what its next start will find out."""
        self.lost_voters: tuple[str, ...] = ()
        """The voters with whom it may have committed what went with it."""
        self._committed_index = -1
        self.flush: Flush | None = None
        self.raft: Raft | None = None
        self._incoming: Packet | None = None
        self.start()

    @property
    def up(self) -> Raft:
        assert self.raft is not None, f"{self.node} is down"
        return self.raft

    def start(self) -> None:
        assert self.raft is None
        self.log = self.durable_log.copy()
        self.flush = None
        cluster = self.cluster
        self.raft = Raft(
            cluster.options,
            self.node,
            InitialState(
                hard_state=self.hard_state,
                log=self.log.terms(),
                commit_index=self.log.first_index - 1,
                configurations=self.log.configurations(),
                loss=self.loss,
                lost_voters=self.lost_voters,
            ),
            cluster.random,
            cluster.now,
            self._clip,
        )

    def _clip(self, first_index: int, last_index: int) -> Run:
        last_index = min(last_index, first_index + self.cluster.entries_per_append - 1)
        return Run(last_index, tuple(self.log.slice(first_index, last_index)))

    def lose_entries(self, first_index: int) -> None:
        """While it is down: its log has no entries from `first_index` on any more."""
        assert self.raft is None
        log = self.durable_log
        known = log.configurations()
        since = max((index for index, _ in known if index <= self._committed_index), default=known[0][0])
        is_first = not self.lost_voters
        lost = [item for item in known if (item[0] >= since if is_first else item[0] >= first_index)]
        self.lost_voters += tuple(voter for _, configuration in lost for voter in configuration.voters)
        del log.entries[max(0, first_index - log.first_index) :]
        if self.loss is None:
            self.loss = Loss.ENTRIES

    def lose_disk(self, configuration: Configuration | None = None) -> None:
        """While it is down: it gets a new disk, empty, and that configuration, or the one that the group began with."""
        assert self.raft is None
        configuration = configuration or self.cluster.configuration
        self.durable_log = Log([], (-1, configuration))
        self.hard_state = HardState()
        self.disk = object()
        self.loss = Loss.ALL
        self.lost_voters = configuration.voters

    def crash(self) -> None:
        if self.raft is not None:
            self._committed_index = self.raft.commit_index
        self.raft = None
        self.flush = None

    def turn(self, action: Callable[[Raft], object] | None = None) -> None:
        """Runs one turn in the order that core.py states; `action` stands for what has arrived."""
        raft = self.up
        if action is not None:
            action(raft)
        self._carry_out()
        if self.cluster.auto_flush:
            self.begin_flush()
            self.end_flush(replicate=False)
        self._replicate()

    def _replicate(self) -> None:
        """Ends a turn; a node that says that it need not misses nothing by leaving it out."""
        raft, now = self.up, self.cluster.now
        wanted, due = raft.wants_replicate, raft.deadline()
        raft.replicate(now)
        if not wanted and (due is None or due > now):
            assert not raft.pending, "there was something to send"
            left = raft.deadline()
            assert due is None or left is None or left >= due, "a deadline was to be set"
            assert (due is None) <= (left is None), "a deadline was to be set"
        self._carry_out()

    def receive(self, packet: Packet) -> None:
        self._incoming = packet
        self.turn(lambda raft: raft.step(packet.message, self.cluster.now))
        self._incoming = None

    def propose(self, count: int) -> int:
        first_index = self.up.propose(count)
        assert first_index == self.log.last_index + 1, "a proposal must follow the log"
        for _ in range(count):
            self.log.entries.append(Entry(self.up.term, self.cluster.unique("v")))
        self.turn()
        return first_index

    def begin_flush(self) -> None:
        if self.flush is None:
            self.flush = Flush(self.log.copy(), self.log.last_index, self.up.log_generation)

    def end_flush(self, *, replicate: bool = True) -> None:
        flush, self.flush = self.flush, None
        if flush is None:
            return
        if flush.log.first_index == self.log.first_index:
            self.durable_log = flush.log
        self.up.persisted(flush.last_index, flush.generation, self.cluster.now)
        self._carry_out()
        if replicate:
            self.turn()

    def compact(self, first_index: int) -> None:
        """Retention: the log begins at `first_index` from now on, on the disk too."""
        self.up.drop_before(first_index)
        base = self.up.configurations[0]
        for log in (self.log, self.durable_log):
            assert first_index <= log.last_index + 1
            if first_index > log.first_index:
                log.base_term = log[first_index - 1].term
                del log.entries[: first_index - log.first_index]
                log.first_index = first_index
                log.base = base
        self.flush = None

    def _carry_out(self) -> None:
        effects = self.up.take_effects()
        for effect in effects:
            self._apply(effect)
            self.cluster.observe(self, effect)

    def _apply(self, effect: Effect) -> None:
        log = self.log
        match effect:
            case SaveHardState(term, vote):
                self.hard_state = HardState(term, vote)
            case TruncateLog(last_index):
                del log.entries[last_index + 1 - log.first_index :]
            case AcceptEntries(message, first_index, skip):
                assert self._incoming is not None
                assert message is self._incoming.message, "entries of another message"
                assert first_index == log.last_index + 1 == message.prev_index + 1 + skip
                log.entries.extend(self._incoming.entries[skip:])
            case AppendNoop(index, term):
                assert index == log.last_index + 1
                log.entries.append(Entry(term, self.cluster.unique("noop")))
            case AppendConfiguration(index, term, configuration):
                assert index == log.last_index + 1
                log.entries.append(Entry(term, self.cluster.unique("conf"), configuration))
            case ResetLog(first_index, base_term, configuration_index, configuration):
                self.log = Log([], (configuration_index, configuration), first_index, base_term)
                self.durable_log = self.log.copy()
                self.flush = None
            case Send(message, run):
                self.cluster.send(message, self._entries_of(message, run))
            case SnapshotNeeded(message):
                self.cluster.send(message, ())
                self.up.snapshot_sent(message.target, self.cluster.now)
            case RecoveryChanged(loss):
                self.loss = loss
                self.lost_voters = self.up.lost_voters
            case _:
                pass

    def _entries_of(self, message: Message, run: object) -> tuple[Entry, ...]:
        if not isinstance(message, AppendRequest) or not message.spans:
            assert run is None, "entries that no append has"
            return ()
        assert isinstance(run, Run)
        assert run.last_index == message.last_index, "another run than the message says"
        entries = run.entries
        terms = [term for term, count in message.spans for _ in range(count)]
        assert [entry.term for entry in entries] == terms, "the spans misstate the log"
        return entries


class Cluster:
    """Hosts by node id, the packets between them, and the time."""

    def __init__(
        self,
        voters: Sequence[str],
        learners: Sequence[str] = (),
        *,
        spare: Sequence[str] = (),
        options: RaftOptions | None = None,
        seed: int = 0,
        entries_per_append: int = 1000,
        auto_flush: bool = True,
        logs: Mapping[str, Sequence[int]] | None = None,
        terms: dict[str, int] | None = None,
    ) -> None:
        """`logs` gives nodes a log to begin with, as the terms of its entries; `spare` nodes are no members yet."""
        self.options = options or RaftOptions()
        self.random = random.Random(seed)
        self.now = 0
        self.entries_per_append = entries_per_append
        self.auto_flush = auto_flush
        self.packets: list[Packet] = []
        self.observers: list[Callable[[Host, Effect], None]] = []
        self.cut: set[tuple[str, str]] = set()
        self._numbers = 0
        self.hosts: dict[str, Host] = {}
        configuration = self.configuration = Configuration(tuple(voters), tuple(learners))
        for node in (*voters, *learners, *spare):
            entry_terms = list((logs or {}).get(node, ()))
            # The same term and index is the same entry, on whichever node (log matching).
            entries = [Entry(term, f"old{index}.{term}") for index, term in enumerate(entry_terms)]
            term = (terms or {}).get(node, max(entry_terms, default=0))
            self.hosts[node] = self._host(node, Log(entries, (-1, configuration)), HardState(term))

    def _host(self, node: str, log: Log, hard_state: HardState) -> Host:
        """Makes a host; a world of another kind has another one."""
        return Host(self, node, log, hard_state)

    def unique(self, prefix: str) -> str:
        self._numbers += 1
        return f"{prefix}{self._numbers}"

    def observe(self, host: Host, effect: Effect) -> None:
        for observer in self.observers:
            observer(host, effect)

    # Network -------------------------------------------------------------------------------------------------

    def send(self, message: Message, entries: tuple[Entry, ...]) -> None:
        assert message.source != message.target, "a node has no link to itself"
        self._numbers += 1
        if (message.source, message.target) not in self.cut:
            self.packets.append(Packet(self._numbers, message, entries))

    def partition(self, *sides: Sequence[str]) -> None:
        """Silently loses all packets between the sides, those under way included."""
        side_of = {node: number for number, side in enumerate(sides) for node in side}
        self.cut = {
            (source, target)
            for source in self.hosts
            for target in self.hosts
            if source != target and side_of.get(source, -1) != side_of.get(target, -1)
        }
        self.packets = [p for p in self.packets if (p.message.source, p.message.target) not in self.cut]

    def heal(self) -> None:
        self.cut = set()

    def deliver(self, packet: Packet) -> None:
        for position, candidate in enumerate(self.packets):
            if candidate is packet:  # a duplicate is equal
                del self.packets[position]
                break
        else:
            return  # lost meanwhile
        host = self.hosts[packet.message.target]
        if host.raft is not None:
            host.receive(packet)

    def settle(self, limit: int = 10_000) -> None:
        """Delivers everything, in order, until nothing is under way."""
        while self.packets:
            limit -= 1
            assert limit > 0, "the messages do not come to an end"
            self.deliver(self.packets[0])

    # Time ----------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        return min(
            (due for host in self.hosts.values() if host.raft and (due := host.raft.deadline()) is not None),
            default=None,
        )

    def tick(self, host: Host) -> None:
        host.turn(lambda raft: raft.tick(self.now))

    def run_until(self, end: int) -> None:
        """Lets time pass, ticks who is due and delivers everything at once, in the order of the deadlines."""
        while (due := self.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            for host in self.hosts.values():
                if host.raft is not None:
                    deadline = host.raft.deadline()
                    if deadline is not None and deadline <= self.now:
                        self.tick(host)
            self.settle()
        self.now = end

    def run_for(self, duration: int) -> None:
        self.run_until(self.now + duration)

    # Convenience ---------------------------------------------------------------------------------------------

    def __getitem__(self, node: str) -> Host:
        return self.hosts[node]

    def elect(self, node: str) -> Host:
        """Makes `node` the leader: its election timeout passes first, and all messages arrive."""
        host = self.hosts[node]
        for _ in range(5):
            if host.up.role is Role.LEADER:
                break
            deadline = host.up.deadline()
            assert deadline is not None
            self.now = max(self.now + self.options.election_timeout_min_ns, deadline)
            self.tick(host)
            self.settle()
        assert host.up.role is Role.LEADER, f"{node} was not elected"
        return host

    def connect_all(self) -> None:
        for host in self.hosts.values():
            for peer in self.hosts:
                if host.raft is not None and peer != host.node:
                    self.connect(host.node, peer)

    def go_on_without_faults(self, quiet_ns: int, without: Collection[str] = ()) -> Host:
        """Lets the faults end: after so long the group must have a leader, which commits, and whom all members follow.

        The nodes of `without` are down, and stay so.

        Returns the leader.
        """
        self.heal()
        for host in self.hosts.values():
            if host.node in without:
                continue
            if host.raft is None:
                host.start()
            host.turn()
        self.connect_all()
        self.settle()
        self.run_for(quiet_ns)
        leader = max(self.leaders(), key=lambda host: host.up.term, default=None)
        assert leader is not None, "no leader after a quiet time"
        index = leader.propose(1)
        self.settle()
        self.run_for(1000 * MILLISECOND)
        assert leader.up.commit_index >= index, "a quiet group does not commit"
        for node in leader.up.configuration.members:
            assert self.hosts[node].up.commit_index >= index, f"{node} does not follow"
        return leader

    def leaders(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.raft and host.raft.role is Role.LEADER]

    def crash(self, node: str, *, noticed: bool = False) -> None:
        """The process ends; `noticed`: its peers see their connections end."""
        self.hosts[node].crash()
        self.packets = [p for p in self.packets if p.message.target != node]
        if noticed:
            for peer in self.hosts.values():
                if peer.raft is not None:
                    self.disconnect(peer.node, node)

    def restart(self, node: str) -> None:
        self.hosts[node].start()
        for peer in self.hosts.values():
            if peer.raft is not None and peer.node != node:
                self.connect(peer.node, node)

    def disconnect(self, node: str, peer: str) -> None:
        self.hosts[node].turn(lambda raft: raft.peer_disconnected(peer, self.now))

    def connect(self, node: str, peer: str) -> None:
        self.hosts[node].turn(lambda raft: raft.peer_connected(peer))

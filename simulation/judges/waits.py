"""Whatever waits in a healthy part of a group moves within a bound, however the rest is doing.

The judge of cores (`availability.py`) asks what a majority owes as a whole, in the time of two elections. This one asks
of each node that nothing has happened to what it waits for: a hand-over, a flush, a commit, a read, a snapshot, a
request. What waits is a row of `WAITS`: it says what of the node's state has to change, within which time, and whose
help that needs:

- nobody's: the machine is undisturbed, its process runs;
- a majority's: it leads, and has links with enough undisturbed voters that have not lost their votes;
- the leader's: it has links with a node for which that holds;
- the leader's and all voters': it has links with each that it knows, and nothing is wrong with any.

The bound counts from the moment at which the help was there, or the state changed last. What waits for something else
(a disk that was full a moment ago) is said by no value: it does not wait then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any, Final

from broker.node.node import Node
from broker.offsets.resets import OffsetResets
from broker.reading.held_pulls import HeldPulls
from broker.remoting.codes import RequestCode
from broker.replica.disk_space import TRIED_WITHIN_NS, UPKEEP_PAUSE_NS
from broker.replica.replica import Replica
from broker.replica.upkeep import CHECKPOINT_INTERVAL_NS
from broker.requests.errors import NotServingError, OverloadedError
from broker.retention.retention import Retention
from broker.retention.waited_for import first_waiting_position
from log.errors import DiskFullError
from log.formats.record import peek
from raft.effects import Role
from raft.recovery_loss import Loss
from simulation.journal import Violation
from simulation.judges.beliefs import counts_for_commits
from simulation.machines.broker_host import BrokerHost, BrokerProcess, hour_of_day, is_undisturbed
from simulation.machines.data_files import first_entry
from simulation.machines.network import Network
from simulation.machines.unanswered import held_ns
from simulation.scheduler import MILLISECOND, SECOND

MOVES: Final = "what waits moves"

_LOOK_NS: Final = 200 * MILLISECOND
_RETENTION_NS: Final = 6 * SECOND
"""A snapshot that covers the file, and some looks a second apart."""
_ROOM_NS: Final = UPKEEP_PAUSE_NS + TRIED_WITHIN_NS + SECOND
"""Until what found no room is tried again, and for as long as it counts as lacking room behind that."""
_LONG: Final = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.TRIVET_CHANGE_GROUP,
    }
)
"""Requests that a leader may keep for as long as they ask it to."""


class Help(Enum):
    """The nodes without whose help something cannot go on."""

    NOBODY = "nobody"
    MAJORITY = "a majority"
    LEADER = "the leader"
    VOTERS = "the leader and all voters"


@dataclass(frozen=True, slots=True)
class Seen:
    """A node at the moment of a look, and the leader that it has links with: itself where it leads."""

    process: BrokerProcess
    leader: Replica | None

    @property
    def node(self) -> Node:
        return self.process.node

    @property
    def replica(self) -> Replica:
        return self.node.replica

    @property
    def lacks_room(self) -> bool:
        """Its disk is full, or was so lately that what found no room has not been tried again."""
        return self.replica.disk_space.is_full(self.node.time.now_ns)


@dataclass(frozen=True, slots=True)
class Wait:
    """A kind of thing that waits: its state, which has to change, and within which time."""

    what: str
    help: Help
    bound_ns: int
    state: Callable[[Seen], object]
    """None while nothing waits."""


_TELLS_OF_LOST_VOTES: Final = 11
"""The protocol from which on nodes say that they have lost their votes (broker/state/release.py)."""


# ---- what waits at any node -------------------------------------------------------------------------


def _hand_over(seen: Seen) -> object:
    raft = seen.replica.raft
    return None if raft.transferee is None else (raft.term, raft.transferee, raft.transfer_deadline)


def _flush(seen: Seen) -> object:
    entries = seen.replica.store.log
    if entries.durable_index >= entries.last_index or seen.lacks_room:
        return None
    return entries.durable_index


def _application(seen: Seen) -> object:
    replica = seen.replica
    behind = replica.applied_index < replica.committed.index
    if not behind or seen.lacks_room or replica.store.log.damaged or _is_next_damaged(replica):
        return None
    return replica.applied_index


def _is_next_damaged(replica: Replica) -> bool:
    """True if the entry to be dispatched next, or the one before, whose end it is found by, is known to be damaged:
    others have to lend it. Where they can, `_entries` says how soon."""
    return replica.repairs.is_any_damaged(replica.applied_index, replica.applied_index + 1)


def _room(seen: Seen) -> object:
    """Not None while the node says that its disk lacks room. It excuses much of what waits, so it must be true."""
    return "without room" if seen.lacks_room else None


def _own_snapshot(seen: Seen) -> object:
    waiting = seen.replica.upkeep.waiting_snapshot
    return None if waiting is None or seen.lacks_room else waiting[0]


def _snapshot_that_is_due(seen: Seen) -> object:
    replica = seen.replica
    covered = replica.store.snapshot.applied_index
    is_due = replica.applied_index - covered > replica.limits.snapshot_interval_entries
    return covered if is_due and not seen.lacks_room else None


def _checkpoint(seen: Seen) -> object:
    replica = seen.replica
    noted = replica.upkeep.checkpointed_index
    return None if noted == replica.store.dispatched_index or seen.lacks_room else noted


def _leaving_pull(seen: Seen) -> object:
    """A pull that was held by a leader that leads no more, and is next to be handed on."""
    waiting = next(iter(seen.node.part(HeldPulls).leaving.values()), None)
    return None if waiting is None else waiting[0]


def _lost_read(seen: Seen) -> object:
    """Returns the next to be told of the reads that a leader which leads no more could not confirm."""
    return next(iter(seen.replica.leadership.reads.lost_reads), None)


def _second_file(seen: Seen) -> tuple[int, bytes] | None:
    """Returns position and first record of the file behind the log's first one, None if that must stay for now: there
    is no other, a backup reads it, or the node has something else to do first."""
    entries, host = seen.replica.store.log, seen.process.host
    starts = [start for start in entries.file_starts() if start > entries.first_position]
    if seen.lacks_room or entries.damaged or host.was_damaged or not starts:
        return None
    first = first_entry(host.disk, host.options, starts[0])
    needed = seen.node.part(Retention).needed_from_index()
    if first is None or (needed is not None and needed < first[0]):
        return None
    return starts[0], first[1]


def _file_before_the_head(seen: Seen) -> object:
    """A file of which the group has nothing any more."""
    store, second = seen.replica.store, _second_file(seen)
    return store.log.first_position if second is not None and second[0] <= store.head_position else None


# ---- what waits at a leader -------------------------------------------------------------------------


def _commit(seen: Seen) -> object:
    raft = seen.replica.raft
    return None if raft.commit_index >= raft.log_terms.last_index else raft.commit_index


def _read(seen: Seen) -> object:
    reads = seen.replica.leadership.reads
    first = next(iter(reads.confirming), None)
    if first is not None:
        return "unconfirmed", first
    return ("confirmed", reads.confirmed_at[0][1]) if reads.confirmed_at else None


def _acceptance(seen: Seen) -> object:
    """A leader that takes nothing, for another reason than a hand-over."""
    replica = seen.replica
    if replica.raft.transferee is not None or seen.lacks_room:
        return None
    try:
        replica.leadership.check_may_append()
    except DiskFullError:
        return None
    except NotServingError:
        return None
    except OverloadedError as error:
        return type(error), replica.raft.commit_index, replica.store.log.last_index
    return None


def _held_pull(seen: Seen) -> object:
    """A pull that is held although its message is there, or an order sends its consumer group elsewhere."""
    pulls, resets = seen.node.part(HeldPulls), seen.node.part(OffsetResets)
    queues = seen.replica.store.queues
    for held in pulls.waiting():
        header = held.header
        queue = queues.get(header.topic, header.queue_id)
        end = 0 if queue is None else queue.max_offset
        order = resets.target(header.consumer_group, header.topic, header.queue_id)
        if header.queue_offset < end or order is not None:
            return held, header.queue_offset
    return None


def _stale_pull(seen: Seen) -> object:
    """A pull that is held for what its consumer group does not subscribe to any more."""
    pulls = seen.node.part(HeldPulls)
    return next((held for held in pulls.waiting() if pulls.is_outdated(held)), None)


def _expired_file(seen: Seen) -> object:
    """A file of old messages, which nobody waits for, in an hour in which such files go."""
    replica, second = seen.replica, _second_file(seen)
    if second is None or not replica.clock.is_agreed:
        return None
    settings, group_ms = seen.node.settings.current.retention, seen.node.time.group_ms
    store, (position, record) = replica.store, second
    age_ms = group_ms - peek(record).store_timestamp
    if age_ms <= settings.reserved_hours * replica.limits.hour_ms:
        return None
    if hour_of_day(group_ms) not in settings.delete_hours:
        return None
    waiting = first_waiting_position(store, replica.metadata)
    if waiting is not None and waiting < position:
        return None
    return max(store.head_position, store.log.first_position)


# ---- what waits at a node that has links with its leader --------------------------------------------


def _is_mute(seen: Seen) -> bool:
    """True while the node has to learn the term of its voters, of others than the leader, before it follows anybody."""
    recovery = seen.replica.raft.recovery
    return recovery is not None and recovery.is_mute


def _news_of_the_leader(seen: Seen) -> object:
    raft, leader = seen.replica.raft, seen.leader
    assert leader is not None, "its help is there"
    if _is_mute(seen):
        return None
    if (raft.term, raft.leader) == (leader.raft.term, leader.node_id):
        return None
    return raft.term, raft.leader


def _entries(seen: Seen) -> object:
    replica, leader = seen.replica, seen.leader
    assert leader is not None, "its help is there"
    if _is_mute(seen):
        return None
    if replica.applied_index >= leader.raft.commit_index or seen.lacks_room or replica.store.log.damaged:
        return None
    # That its log grows is no sign that it moves: the entry to be dispatched next may be damaged.
    return replica.applied_index


def _preferred_leader(seen: Seen) -> object:
    replica, leader = seen.replica, seen.leader
    assert leader is not None, "its help is there"
    preferred, raft = seen.node.settings.current.raft.preferred_leaders, leader.raft
    if replica.node_id not in preferred or leader.node_id in preferred:
        return None
    peer = raft.peers.get(replica.node_id)
    is_ready = (
        replica.node_id in raft.configuration.voters
        and raft.configuration_index <= raft.commit_index
        and peer is not None
        and peer.match_index >= raft.commit_index
        and not seen.replica.disk_space.refuses_sends
    )
    return raft.term if is_ready else None


def _recovery(seen: Seen) -> object:
    raft = seen.replica.raft
    if raft.recovering is None or seen.lacks_room:
        return None
    if raft.recovering is not Loss.ENTRIES and any(
        replica.release.newest_protocol < _TELLS_OF_LOST_VOTES
        for replica in (seen.replica, seen.leader or seen.replica)
    ):
        return None  # until both are upgraded: nothing bounds when that is
    return raft.recovering, raft.commit_index, raft.persisted_index


def _held_request(seen: Seen) -> object:
    """A request that waits for a leader where there is one, as far as the node can know of it."""
    return None if _is_mute(seen) else seen.node.first_held


def _forwarded_request(seen: Seen) -> object:
    now_ns = seen.node.time.now_ns
    for request in seen.node.asked:
        command = request.command
        if command.code not in _LONG and request.since_ns + held_ns(command) <= now_ns:
            return request
    return None


def _client(seen: Seen) -> object:
    """A request of a client that should have been answered, whoever does that."""
    return None if seen.lacks_room else next(seen.process.unanswered.overdue(), None)


WAITS: Final = (
    Wait("a hand-over", Help.NOBODY, 1_500 * MILLISECOND, _hand_over),
    Wait("entries for their flush", Help.NOBODY, 2 * SECOND, _flush),
    Wait("committed entries for their dispatch", Help.NOBODY, 2 * SECOND, _application),
    Wait("a node for the room that its disk has", Help.NOBODY, _ROOM_NS, _room),
    Wait("a snapshot for the disk", Help.NOBODY, UPKEEP_PAUSE_NS + 2 * SECOND, _own_snapshot),
    Wait("a snapshot that is due", Help.NOBODY, UPKEEP_PAUSE_NS + 3 * SECOND, _snapshot_that_is_due),
    Wait("a checkpoint", Help.NOBODY, UPKEEP_PAUSE_NS + CHECKPOINT_INTERVAL_NS + 2 * SECOND, _checkpoint),
    Wait("a pull for its next leader", Help.NOBODY, SECOND, _leaving_pull),
    Wait("a read for its next leader", Help.NOBODY, SECOND, _lost_read),
    Wait("a file before the head for its removal", Help.NOBODY, _RETENTION_NS, _file_before_the_head),
    Wait("entries for a majority", Help.MAJORITY, 2 * SECOND, _commit),
    Wait("a read for a majority", Help.MAJORITY, 2 * SECOND, _read),
    Wait("messages for a place", Help.MAJORITY, 2 * SECOND, _acceptance),
    Wait("a pull for a message or order that is there", Help.MAJORITY, SECOND, _held_pull),
    Wait("a pull for what its consumer group wants", Help.MAJORITY, SECOND, _stale_pull),
    Wait("an expired file for its end", Help.MAJORITY, _RETENTION_NS, _expired_file),
    Wait("a node for its leader", Help.LEADER, 1_500 * MILLISECOND, _news_of_the_leader),
    Wait("a node for what is committed", Help.LEADER, 4 * SECOND, _entries),
    Wait("a preferred leader for its leadership", Help.LEADER, 6 * SECOND, _preferred_leader),
    Wait("a node that recovers", Help.VOTERS, 4 * SECOND, _recovery),
    Wait("a request for a leader", Help.LEADER, 2 * SECOND, _held_request),
    Wait("a request for its response", Help.LEADER, 5 * SECOND, _forwarded_request),
    Wait("a client for its response", Help.LEADER, 5 * SECOND, _client),
)
"""All that waits. A bound is some times what it takes where nothing goes wrong, and one try in vain: an election
timeout (1 s) behind which a hand-over is given up and a snapshot sent again, a flush of the interval, heartbeats."""


@dataclass(slots=True)
class _Since:
    """The state that was seen last, and the time since which it is so."""

    state: object
    since_ns: int


class Waits:
    """Looks at the members of one group, five times a second."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._due_ns = 0
        self._undisturbed: dict[str, _Since] = {}
        """Machine -> its process and how often its disk was filled, and since when nothing is wrong with them: what
        found no room is tried again as late behind a filling that no look has seen."""
        self._linked: dict[tuple[str, str], _Since] = {}
        """Two machines, in order -> their connections, and since when nothing is wrong with these."""
        self._leads = _Since(None, 0)
        """The leader with a majority: its process and term."""
        self._waits: dict[tuple[str, str], _Since] = {}
        """(what waits, machine) -> its state."""
        self.looked_at: dict[str, int] = {}
        """The number of times that each thing which waits was seen."""

    def look(self, hosts: Mapping[str, BrokerHost], voters: Iterable[str], now_ns: int) -> None:
        """Looks at the members of the group that are in service; to be called often. Raises Violation."""
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + _LOOK_NS
        whole = {name: host for name, host in hosts.items() if is_undisturbed(host, now_ns)}
        states = {name: (host.process, host.disk.fillings) for name, host in whole.items()}
        _keep(self._undisturbed, states, now_ns)
        _keep(self._linked, dict(self._connected(whole)), now_ns)
        leader = self._leader(whole, [*voters])
        if leader is None:
            self._leads.state = None
        else:
            leads = leader.process, _replica(leader).raft.term
            if leads != self._leads.state:
                self._leads = _Since(leads, now_ns)
        seen = {}
        for host in whole.values():
            for wait, since_ns, at in self._what_may_move(host, leader):
                state = wait.state(at)
                if state is not None:
                    self.looked_at[wait.what] = self.looked_at.get(wait.what, 0) + 1
                    # What has moved waits anew, and nothing waits in vain before its help is there (`since_ns`).
                    known = self._waits.get((wait.what, host.name))
                    if known is None or known.state != state:
                        known = _Since(state, now_ns)
                    seen[wait.what, host.name] = known
                    waits_ns = now_ns - max(known.since_ns, since_ns)
                    if waits_ns > wait.bound_ns:
                        raise Violation(
                            MOVES,
                            host.name,
                            f"{wait.what} has waited for {waits_ns / SECOND:.1f} s, and is still {_told(state)}; "
                            f"nothing is wrong with the machine, and it takes the help of {wait.help.value}",
                        )
        self._waits = seen

    def _what_may_move(self, host: BrokerHost, leader: BrokerHost | None) -> Iterator[tuple[Wait, int, Seen]]:
        """Yields what has the help that it takes, and since when."""
        assert host.process is not None, "it is undisturbed"
        alone_ns = self._undisturbed[host.name].since_ns
        since_ns: dict[Help, int] = {Help.NOBODY: alone_ns}
        if leader is host:
            since_ns[Help.MAJORITY] = since_ns[Help.LEADER] = self._leads.since_ns
        elif leader is not None:
            pair = self._linked.get(_pair(host.name, leader.name))
            if pair is not None:
                since_ns[Help.LEADER] = max(alone_ns, pair.since_ns, self._leads.since_ns)
                known = _replica(host).raft.configuration.voters
                others = [self._linked.get(_pair(host.name, voter)) for voter in known if voter != host.name]
                linked = [pair.since_ns for pair in others if pair is not None]
                if len(linked) == len(others):
                    since_ns[Help.VOTERS] = max(since_ns[Help.LEADER], *linked)
        at = Seen(host.process, None if leader is None or Help.LEADER not in since_ns else _replica(leader))
        for wait in WAITS:
            since = since_ns.get(wait.help)
            if since is not None:
                yield wait, since, at

    def _connected(self, whole: Mapping[str, BrokerHost]) -> Iterator[tuple[tuple[str, str], object]]:
        """Yields each two machines between which nothing is wrong, with their connections."""
        names = sorted(whole)
        for number, name in enumerate(names):
            for other in islice(names, number + 1, None):
                if self._is_path_whole(name, other) and self._is_path_whole(other, name):
                    connections = (*_links(whole[name], other), *_links(whole[other], name))
                    if None not in connections:
                        yield (name, other), connections

    def _is_path_whole(self, source: str, target: str) -> bool:
        link = self._network.link(source, target)
        return not (link.cut or link.clogged or link.loss or link.slowed_by)

    def _leader(self, whole: Mapping[str, BrokerHost], voters: list[str]) -> BrokerHost | None:
        """Returns the leader of the newest term, if it serves and has links with enough undisturbed voters."""
        leaders = [host for host in whole.values() if _replica(host).raft.role is Role.LEADER]
        if not leaders:
            return None
        leader = max(leaders, key=lambda host: _replica(host).raft.term)
        raft = _replica(leader).raft
        # While members change, a majority by the one configuration need not be one by the other: nobody's help is
        # certain.
        if not _replica(leader).serving or set(raft.configuration.voters) != set(voters):
            return None
        linked = [
            whole[voter]
            for voter in voters
            if voter == leader.name or _pair(voter, leader.name) in self._linked
        ]
        helping = [host for host in linked if counts_for_commits(_replica(host).raft, len(voters))]
        return leader if 2 * len(helping) > len(voters) else None


def _keep(known: dict[Any, _Since], now: Mapping[Any, object], now_ns: int) -> None:
    """Brings `known` up to date with the states of things `now`. One whose state has not changed keeps its time."""
    for key in [key for key in known if key not in now]:
        del known[key]
    for key, state in now.items():
        before = known.get(key)
        if before is None or before.state != state:
            known[key] = _Since(state, now_ns)


def _told(state: object) -> str:
    """Describes what something waits in, for people: the same in each run."""
    if isinstance(state, tuple):
        return ", ".join(_told(part) for part in state)
    return str(state) if state is None or isinstance(state, int | str | Enum) else type(state).__name__


def _pair(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)


def _replica(host: BrokerHost) -> Replica:
    assert host.process is not None, "it runs"
    return host.process.replica


def _links(host: BrokerHost, other: str) -> tuple[object, object]:
    """Returns the link that a node has dialled to another one, and the one accepted from it; None without one."""
    assert host.process is not None, "it runs"
    return host.process.replica.links.get(other), host.process.running.links.accepted.get(other)

"""The invariants that are checked while the world runs, after every turn of every node.

A node is observed through the trace that it writes (roles, appends, truncations, commits) and through its public state.
Each check is named for what it protects; see docs/simulation-invariants.md for the list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.assembly import raft_options_of
from broker.node.node import Node
from broker.node.relayed_clients import RelayedClients
from broker.peers.protocol import RaftFrame
from broker.replica.inner_limits import InnerLimits
from broker.replica.replica import Replica
from broker.trace import TraceHeader, TraceWriter
from broker.trace.format import APPEND, COMMIT, RESET, ROLE, TRUNCATE
from log.dispatching.dispatch import Arrival
from log.entries.entry_log import EntryLog
from log.formats.layout import HEADER
from log.index.index_scrub import IndexScrubber
from log.notes.hard_state import HardStateFile, StoredHardState
from log.notes.snapshot import PATH as SNAPSHOT_PATH
from raft.core import Raft
from raft.effects import Role
from raft.messages import Message, VoteResponse
from raft.recovery_loss import Loss
from raft.terms import LogTerms
from simulation.journal import MARKED, TIME_MADE, Journal, Violation
from simulation.judges.as_written import NO_DAMAGE, Damage, Pages
from simulation.judges.beliefs import Beliefs
from simulation.judges.derived import Derived
from simulation.judges.former_leaders import FormerLeader
from simulation.judges.forwards import Forwards
from simulation.judges.group_model import GroupModel
from simulation.judges.group_time import GroupTime
from simulation.judges.in_hand import watch_what_is_in_hand
from simulation.judges.later_lives import LaterLives
from simulation.judges.marks import Marks
from simulation.judges.own_state import OwnState
from simulation.judges.power_losses import CAUSE, PowerLosses
from simulation.judges.reads import Reads
from simulation.judges.recoveries import Recoveries
from simulation.judges.replicated_state import ReplicatedState
from simulation.judges.room import watch_room
from simulation.judges.steps import Steps, watch_patience
from simulation.judges.subscribed import watch_subscribed_pulls
from simulation.machines.broker_host import BrokerHost
from simulation.machines.data_files import data_file
from simulation.randomness import Random

_FORCED_SHARE = 0.15
"""With less free space (`disk_force_percent`) the oldest messages go whatever their age."""
_KEYS_LOOKED_UP = 50
"""The number of keys of each queue that are looked up among the newest, and as many among all before."""


class _Watched:
    """A host that is watched, with what is known of all its processes."""

    __slots__ = (
        "arrived",
        "checked_index",
        "committed_floor",
        "first_index",
        "former_leader",
        "has_new_disk",
        "host",
        "log",
        "made_time",
        "seen_applied",
        "snapshot_ahead",
        "terms",
    )

    def __init__(self, host: BrokerHost) -> None:
        self.host = host
        self.log: EntryLog | None = None
        self.former_leader: FormerLeader | None = None
        self.checked_index = -1
        self.committed_floor = -1
        """The highest index that this host ever knew as committed, on the disk that it has now."""
        self.seen_applied = -1
        self.snapshot_ahead = -1
        """The last entry of a snapshot with which its log began anew, before these entries."""
        self.first_index = 0
        self.terms = LogTerms()
        """Of the entries that its log has had, as far as its trace tells."""
        self.arrived: dict[tuple[str, int], int] = {}
        self.made_time = False
        """Its process has made the group's time from wall clocks."""
        self.has_new_disk = False
        """Its disk was replaced, and does not yet hold all that it had promised with the former one."""


class ReplicaWriter(TraceWriter):
    """A replica's trace, judged as it is written: each event may raise Violation. Times are true ones: one axis for all
    hosts."""

    __slots__ = ("_host", "_monitor", "_now_ns")

    def __init__(
        self,
        write: Callable[[bytes], object],
        header: TraceHeader,
        monitor: Monitor,
        host: BrokerHost,
        now_ns: Callable[[], int],
    ) -> None:
        super().__init__(write, header)
        self._monitor = monitor
        self._host = host
        self._now_ns = now_ns

    def _add(self, record: tuple[Any, ...]) -> None:
        super()._add((record[0], self._now_ns(), *record[2:]))
        kind, _, *fields = record
        if kind == ROLE:
            role, term, leader, _, _ = fields
            self._monitor.role(self._host, role, term, leader)
        elif kind == APPEND:
            first_index, last_index, term, _ = fields
            self._monitor.appended(self._host, first_index, last_index, term)
        elif kind == TRUNCATE:
            self._monitor.truncated(self._host, *fields)
        elif kind == COMMIT:
            self._monitor.committed(self._host, *fields)
        elif kind == RESET:
            self._monitor.reset(self._host, *fields)


class Monitor:
    """Watches all hosts of a group."""

    def __init__(
        self,
        now_ns: Callable[[], int],
        journal: Journal,
        *,
        sync_flush: bool,
        random: Random,
    ) -> None:
        self.model = GroupModel()
        self.model.damage = self._damage
        self.model.heads.spares_what_waits = self._spares_what_waits
        self._random = random
        self._now_ns = now_ns
        self._journal = journal
        self._note = journal.note
        self._sync_flush = sync_flush
        self._marks = Marks(journal, self.model)
        self.power_losses = PowerLosses(self.model, sync_flush=sync_flush)
        self._beliefs = Beliefs(self.model, now_ns)
        self._steps = Steps(self._beliefs.rafts)
        self._recoveries = Recoveries(self._beliefs.rafts, lambda: self.model.last_index)
        self._own_state = OwnState(self._beliefs.rafts, sync_flush=sync_flush)
        self._reads = Reads()
        self._group_time = GroupTime()
        self._replicated_state = ReplicatedState(now_ns)
        self._later_lives = LaterLives(self.model, now_ns)
        self._derived = Derived(self.model)
        self._watched: dict[str, _Watched] = {}
        self.elections = 0
        self._votes: dict[tuple[str, int], str] = {}

    def _damage(self, name: str) -> Damage:
        host = self._watched[name].host
        if not host.was_damaged:
            return NO_DAMAGE

        def pages(directory: str) -> Pages:
            prefix = f"{host.options.dledger_directory}/{directory}/"
            return tuple(
                (int(page.path.removeprefix(prefix)) + page.begin, page.content)
                for page in host.damaged_pages
                if page.path.startswith(prefix) and host.disk.medium.is_harmed(page)
            )

        return Damage(pages("data"), pages("index"))

    # ---- the life of a node --------------------------------------------------------------------------

    def started(self, host: BrokerHost, node: Node) -> None:
        """A process has recovered; its log is what the disk gave it. Raises Violation."""
        watched = self._watched.setdefault(host.name, _Watched(host))
        replica = node.replica
        log = replica.store.log
        watched.log = log
        held_index = watched.terms.last_index
        # It may know of commits that others made durable, and have lost what it had not flushed itself.
        watched.committed_floor = min(watched.committed_floor, log.last_index)
        watched.first_index = log.first_index
        self.model.heads.begins_at(host.name, log.first_position, self._now_ns())
        watched.checked_index = log.first_index - 1
        watched.arrived = {}
        watched.seen_applied = replica.applied_index
        watched.made_time = False

        def look_at_clock() -> None:
            if replica.clock.was_made_here and not watched.made_time:
                watched.made_time = True
                host.surroundings.journal.did(TIME_MADE)

        node.part(RelayedClients).observer = Forwards(host.name)
        watch_room(node, self._journal)
        watch_what_is_in_hand(host.name, node)
        watch_subscribed_pulls(host.name, node, self.model)
        self._watch_words(host.name, replica)
        options = raft_options_of(host.settings, InnerLimits())
        watch_patience(host.name, replica.raft, options.election_timeout_min_ns)
        node.listeners.role_changes.append(look_at_clock)
        # Behind those who watch its parts, which it holds to what they are now.
        watched.former_leader = FormerLeader(host.name, node)
        if replica.raft.commit_index > self.model.last_index:
            raise Violation("recovery", host.name, f"starts with commit index {replica.raft.commit_index}")
        self.model.compare(host.name, log, log.first_index, replica.raft.commit_index, "recovery")
        # A process may have ended between writing an entry and telling of it.
        runs = log.term_starts()
        for number, (first_index, term) in enumerate(runs):
            last_index = runs[number + 1][0] - 1 if number + 1 < len(runs) else log.last_index
            self.model.appended(host.name, log, first_index, last_index, term)
        watched.terms = LogTerms(log.first_index, log.last_index, runs)
        self._check_snapshot(watched, log, replica.store.snapshot.applied_index)
        self._marks.started(host.name, replica.raft, replica.store.snapshot.applied_index)
        self.power_losses.started(host, log, replica.raft.recovering)
        self._own_state.started(host.name)
        self._replicated_state.started(host.name, replica.applied)
        self._later_lives.started(host.name)
        self._beliefs.started(host.name, replica.raft)
        self._recoveries.started(host.name, replica.raft)
        less = f" (LESS: it had up to {held_index})" if log.last_index < held_index else ""
        self._note(
            host.name,
            f"starts: log {log.first_index}..{log.last_index}{less}, term {replica.term}, "
            f"commit {replica.raft.commit_index}",
            mark=MARKED if less else " ",
        )
        node.listeners.arrivals.append(lambda arrivals: self._arrived(watched, arrivals))

    def _check_snapshot(self, watched: _Watched, log: EntryLog, snapshot_index: int) -> None:
        """Checks, when a process starts, that its snapshot reflects only entries that are still on its disk: in the
        place of a lost one another may be committed.

        A snapshot that came from a leader may reflect more: the log begins anew behind it. Raises Violation.
        """
        host = watched.host
        if log.last_index < log.first_index:
            watched.snapshot_ahead = max(watched.snapshot_ahead, snapshot_index)
        if snapshot_index > max(log.last_index, watched.snapshot_ahead) and not host.disk_faulty:
            raise Violation(
                "snapshots are of what is durable",
                host.name,
                f"its snapshot reflects entry {snapshot_index}, its log ends at {log.last_index}",
            )

    def stopped(self, host: BrokerHost) -> None:
        """The process of a host has ended."""
        watched = self._watched.get(host.name)
        if watched is not None:
            watched.log = None
        self._beliefs.stopped(host.name)
        self._group_time.stopped(host.name)
        self._replicated_state.stopped(host.name)

    def wiped(self, host: BrokerHost) -> None:
        """Notes that a host got an empty disk: what it knew need not be there, its votes neither.

        From then on it is held to what it does with this disk.
        """
        self.harmed(host)
        watched = self._watched.get(host.name)
        if watched is not None:
            watched.has_new_disk = True
        for vote in [vote for vote in self._votes if vote[0] == host.name]:
            del self._votes[vote]

    def harmed(self, host: BrokerHost) -> None:
        """Notes that a host's disk has changed what it held. Where it votes at all its votes are there."""
        watched = self._watched.get(host.name)
        if watched is not None:
            watched.committed_floor = -1
        self.power_losses.wiped(host.name)
        self._beliefs.wiped(host.name)

    # ---- what replicas record ------------------------------------------------------------------------

    def role(self, host: BrokerHost, role: str, term: int, leader: str | None) -> None:
        """Notes that role, term or leader changed. Raises Violation."""
        self._note(host.name, f"{role} of term {term}, leader {leader or 'unknown'}", mark=MARKED)
        watched = self._watched.get(host.name)
        is_up = watched is not None and watched.log is not None
        if role == "candidate":
            # No message tells of the vote that a candidate gives itself, so `_watch_words` does not see it.
            self.voted(host.name, term, host.name)
            if is_up:
                self._steps.stands(host.name, term)
                self._recoveries.stands(host.name, term)
        if host.process is not None:
            replica = host.process.replica
            self._marks.role(host.name, role, term, replica.raft, self._now_ns())
            self._group_time.role(host.name, replica, self._now_ns())
        if role == "leader" and watched is not None and watched.log is not None:
            self.elections += 1
            self.model.elected(host.name, term, watched.log, self._now_ns())
            self._beliefs.elected(host.name, term)
            self._recoveries.elected(host.name)
            self._reads.elected(host.name, term)
            self._own_state.elected(host.name, term)

    def appended(self, host: BrokerHost, first_index: int, last_index: int, term: int) -> None:
        """Checks entries that joined the log of a host. Raises Violation."""
        watched = self._watched[host.name]
        if watched.log is not None:
            self.model.appended(host.name, watched.log, first_index, last_index, term)
            self.power_losses.appended(host.name, first_index, self._now_ns())
            watched.terms.append(term, last_index - first_index + 1)
            # Only a leader that serves raises the group's head, and only on such a disk does it take what is not old.
            if _is_nearly_full(host) and host.process is not None and host.process.replica.serving:
                while first_index <= last_index:
                    run = watched.log.run(first_index, last_index)
                    self.model.heads.written(run.body, first_index, run.last_index, term)
                    first_index = run.last_index + 1

    def truncated(self, host: BrokerHost, last_index: int) -> None:
        """Checks that no committed entry is truncated. Raises Violation."""
        watched = self._watched[host.name]
        self._note(host.name, f"truncates its log after {last_index}", mark=MARKED)
        self.power_losses.truncated(host.name, last_index)
        self._marks.truncated(watched.terms.last_index - last_index)
        self._check_goes(watched, last_index + 1)
        watched.terms.truncate(min(last_index, watched.terms.last_index))

    def reset(self, host: BrokerHost, first_index: int) -> None:
        """Checks a log that begins anew after a snapshot: all before is committed. Raises Violation."""
        self._note(host.name, f"log begins anew at {first_index}", mark=MARKED)
        # Nothing of what was appended before is in the log any more.
        self.power_losses.truncated(host.name, -1)
        processes = [other.host.process for other in self._watched.values()]
        self._marks.reset(is_led=any(one is not None and one.replica.serving for one in processes))
        watched = self._watched[host.name]
        if first_index - 1 > self.model.last_index:
            raise Violation(
                "state machine safety", host.name, f"a snapshot of uncommitted entries, {first_index}"
            )
        self._check_goes(watched, first_index)
        watched.terms.reset(first_index, self.model.term_of(first_index - 1))
        watched.first_index = first_index
        if host.process is not None:
            watched.snapshot_ahead = host.process.replica.store.snapshot.applied_index
        if watched.log is not None:
            self.model.heads.begins_at(host.name, watched.log.first_position, self._now_ns())
        watched.checked_index = first_index - 1
        watched.seen_applied = first_index - 1
        watched.arrived = {}

    def _check_goes(self, watched: _Watched, index: int) -> None:
        """Checks that no committed entry goes with those that a log has from `index` on, whether its node knows of the
        commit or not. If the entry there is another one than the committed one, so are all behind it (log matching).

        Raises Violation.
        """
        terms, model = watched.terms, self.model
        is_committed = index <= model.last_index and terms.matches(index, model.term_of(index))
        if is_committed or index <= watched.committed_floor:
            raise Violation(
                "committed entries stay",
                watched.host.name,
                f"entry {index} goes, and what is behind it; {watched.committed_floor} it knew as committed, "
                f"the group {model.last_index}",
            )

    def committed(self, host: BrokerHost, index: int, term: int) -> None:
        """Checks the entries that a host has committed. Raises Violation."""
        watched = self._watched[host.name]
        log = watched.log
        if log is None:
            return
        first = watched.checked_index + 1
        if index < watched.checked_index:
            raise Violation("commit index rises", host.name, f"from {watched.checked_index} to {index}")
        process = host.process
        leads = process is not None and process.replica.raft.role is Role.LEADER
        # What others have committed a leader may find committed, too; what is new it commits by an entry of its own
        # term only (5.4.2).
        if leads and index > self.model.last_index and log.term_of(index) != term:
            raise Violation(
                "commit by current term",
                host.name,
                f"commits entry {index} of {log.term_of(index)} in term {term}",
            )
        members = (self.model.voters, self.model.learners)
        new_first = self.model.committed(host.name, log, first, index, term, self._now_ns())
        if members != (self.model.voters, self.model.learners):
            self._marks.members_changed(members[0], self._now_ns())
        if new_first <= index:
            self._marks.committed(is_of_term=log.term_of(new_first) == term)
        watched.checked_index = index
        watched.committed_floor = max(watched.committed_floor, index)
        if new_first <= index and leads:
            self._beliefs.committed(host.name, index)
        if new_first <= index and self._sync_flush and process is not None:
            self._is_durable(new_first, index, process.replica.raft)

    # ---- checks --------------------------------------------------------------------------------------

    def stood_still(self, host: BrokerHost, duration_ns: int) -> None:
        """A machine was suspended, and its monotonic clock with it."""
        self._group_time.stood_still(host.name, duration_ns)

    def turned(self, host: BrokerHost, node: Node) -> None:
        """Checks after a turn that all that is applied is committed, and in order. Raises Violation."""
        name = host.name
        watched = self._watched[name]
        replica = node.replica
        store, applied_index = replica.store, replica.applied.index
        if applied_index < watched.seen_applied:
            raise Violation(
                "dispatch in order",
                name,
                f"applied index fell from {watched.seen_applied} to {applied_index}",
            )
        watched.seen_applied = applied_index
        first_index = store.log.first_index
        if first_index > watched.first_index:
            is_old = not _is_nearly_full(host)
            if is_old:
                self._spares_what_waits(name, store.log.first_position)
                # The group's head may have been raised for want of room on another node's disk.
                is_old = not self.model.heads.was_forced
            self._marks.head_deleted(for_its_age=is_old)
            if not is_old:
                self._journal.fired("retention")
            watched.first_index = first_index
            watched.terms.drop_before(first_index)
            self.model.heads.begins_at(name, store.log.first_position, self._now_ns())
            self._note(name, f"deletes its log before {first_index}")
        self._marks.turned(name, store.snapshot.applied_index)
        if replica.repairs.found and not host.disk_faulty:
            raise Violation(CAUSE, name, f"finds {replica.repairs.found} damaged places")
        raft = replica.raft
        if raft.recovering is None:
            watched.has_new_disk = False
            self.power_losses.is_whole(name)
        self._beliefs.turned(name, raft, host.limits.catch_up_lag_entries)
        self._recoveries.turned(name, raft)
        self._reads.turned(name, raft, replica.leadership.reads.confirming)
        self._group_time.turned(name, replica, self._now_ns())
        self._own_state.turned(host, raft, store.log, store.snapshot.applied_index)
        self._replicated_state.turned(name)
        self._later_lives.turned(host, store)
        if replica.leadership.serving:
            begin, head = store.log.first_position, replica.metadata.head_position
            self.model.heads.serves(name, begin, applied_index, head)
        if watched.former_leader is not None:
            watched.former_leader.turned()
        if raft.role is Role.LEADER and raft.configuration_index > raft.commit_index:
            # A new leader may hold several that are committed without its knowing; its own must come one by one.
            under_way = [index for index, _ in raft.configurations if index > raft.commit_index]
            if len(under_way) > 1 and store.log.term_of(under_way[-1]) == raft.term:
                raise Violation(
                    "one member at a time",
                    name,
                    f"the changes of entries {under_way} are under way at once",
                )
        if applied_index > self.model.last_index:
            raise Violation("dispatch after commit", name, f"applied {applied_index}")

    def _spares_what_waits(self, name: str, begin: int) -> None:
        """Checks that before the position, from which a log begins for its age, is no message that nobody could get
        yet. Raises Violation.

        A message that some node had deleted before does not count: readers may have been sent past it since.
        """
        for listener in self.model.listeners:
            for message in listener.waiting():
                if self.model.kept_from <= message.record.physical_offset < begin:
                    raise Violation(
                        "age spares what waits", name, f"the log begins at {begin}, {message.record} waits"
                    )

    def _watch_words(self, name: str, replica: Replica) -> None:
        """Looks at what a node's new process says when it says it, votes before all: a vote may arrive when the disk
        is another one.
        """

        def says(message: Message) -> None:
            if isinstance(message, VoteResponse) and message.granted and not message.pre_vote:
                self.voted(name, message.request_term, message.target)
            self._recoveries.says(name, message)
            self._own_state.says(name, message)

        replica.watch_words(says)

    def voted(self, name: str, term: int, candidate: str) -> None:
        """Checks that a node votes once a term, and has saved its vote before it is sent (Raft 5.2).

        Raises Violation.
        """
        known = self._votes.setdefault((name, term), candidate)
        if known != candidate:
            raise Violation("one vote a term", name, f"voted for {known} and {candidate} in term {term}")
        host = self._watched[name].host
        with host.disk.reads_succeed():
            saved = (
                HardStateFile(host.disk, f"{host.options.dledger_directory}/currterm").read()
                or StoredHardState()
            )
        # A node that has lost its votes notes that it has none left in that term, and not whose it was.
        raft = host.process.replica.raft if host.process is not None else None
        noted = name if raft is not None and raft.recovering is Loss.VOTE else candidate
        if (saved.term, saved.vote) != (term, noted):
            raise Violation(
                "votes are durable", name, f"votes for {candidate} in term {term}, saved is {saved}"
            )

    def heard(self, message: Message) -> None:
        """Notes what a node is told now. Raises Violation."""
        self._beliefs.heard(message)
        self._reads.heard(message)
        self._marks.heard(message, self._beliefs.rafts.get(message.target))
        self._steps.hears(message)
        self._recoveries.heard(message)

    def taken(self, frame: RaftFrame) -> None:
        """Looks at what the node has made of it. Raises Violation."""
        self._steps.heard(frame.message)
        process = self._watched[frame.message.target].host.process
        if process is not None:
            self._group_time.taken(frame, process.replica, self._now_ns())

    def _arrived(self, watched: _Watched, arrivals: Any) -> None:
        """Checks that messages are dispatched exactly once, in order, and not before their commit. Raises Violation."""
        name = watched.host.name
        for arrival in arrivals:
            assert isinstance(arrival, Arrival)
            key = (arrival.topic, arrival.queue_id)
            queue = self.model.queues.get(key)
            end = len(queue.keys) if queue is not None else 0
            expected = watched.arrived.get(key)
            if arrival.topic in self.model.deleted_topics:
                continue  # its offsets begin anew with each life
            if expected is not None and arrival.first_offset != expected:
                raise Violation(
                    "dispatch in order",
                    name,
                    f"{arrival.topic}/{arrival.queue_id}: {arrival.first_offset} arrives after {expected - 1}",
                )
            if arrival.end_offset > end:
                raise Violation(
                    "dispatch after commit",
                    name,
                    f"{arrival.topic}/{arrival.queue_id} shows {arrival.end_offset} messages, {end} are committed",
                )
            watched.arrived[key] = arrival.end_offset

    def _is_durable(self, first_index: int, last_index: int, raft: Raft) -> None:
        """Checks the contract of sync flush: what has just been committed, the newest entries of the model, is on the
        disks of a majority. Raises Violation.

        Of the voters in force when the leader decided, who may have begun a membership change since, in the same turn:
        while its entry is not committed, a majority of those before it will do. What a voter has acknowledged was on
        the disk that it had then: its leader counts on it until it hears of the new one (raft/recovery.py).
        """
        under_way = raft.configuration_index > last_index
        in_force = raft.configurations[-2:] if under_way else raft.configurations[-1:]
        begin, end = self.model.positions[first_index], self.model.end_position
        for _, configuration in reversed(in_force):
            holders = 0
            for watched in [self._watched[voter] for voter in configuration.voters if voter in self._watched]:
                name = watched.host.name
                was_there = watched.has_new_disk and self._beliefs.counted_on.get(name) == last_index
                if was_there or self._on_disk(watched, begin, end, self._damage(name)):
                    holders += 1
                    if 2 * holders > len(configuration.voters):
                        assert self.model.last_index >= last_index
                        return
        raise Violation(
            "durability",
            "group",
            f"entries {first_index}..{last_index} are committed on {holders} of {len(configuration.voters)} disks",
        )

    def _on_disk(self, watched: _Watched, begin: int, end: int, damage: Damage = NO_DAMAGE) -> bool:
        """True if [begin, end) of the log is in the disk image that a power failure leaves, or was before `damage`."""
        host, image = watched.host, self.model.image
        file_bytes = host.options.data_file_bytes
        while begin < end:
            start = begin - begin % file_bytes
            piece_end = min(end, start + file_bytes)
            durable = host.disk.durable_bytes(data_file(host.options, start))
            wanted = image[begin:piece_end]
            held = bytes(damage.mended(begin, memoryview(durable)[begin - start : piece_end - start]))
            if held != wanted and not _only_padding_differs(held, wanted):
                return False
            begin = piece_end
        return True

    # ---- at the end ----------------------------------------------------------------------------------

    def check_repaired(self, host: BrokerHost, node: Node, others: list[Node]) -> None:
        """Checks that of damage which a machine had while it ran nothing is left, in memory and on the disk.

        Only what one of the `others` holds, too, could be repaired. Raises Violation.
        """
        name, replica = host.name, node.replica
        store, entries = replica.store, replica.store.log
        first_index = max(entries.first_index, min(one.replica.store.log.first_index for one in others))
        if first_index > entries.durable_index:
            return
        if replica.repairs.left:
            raise Violation("damage is repaired", name, f"{replica.repairs.left} entries are left")
        # The log is not asked where entries are: that would make its index units anew.
        last_index = min(entries.durable_index, self.model.last_index)
        begin, end = self.model.positions[first_index], self.model.end_of(last_index)
        if not self._on_disk(self._watched[name], begin, end):
            raise Violation("damage is repaired", name, "its disk does not hold what the group has committed")
        for index in range(first_index, last_index + 1):
            position = self.model.positions[index]
            _, size, _, term, *_ = HEADER.unpack_from(self.model.image, position)
            if entries.unit_unchecked(index) != (position, size, term):
                raise Violation("damage is repaired", name, f"the index unit of entry {index} leads nowhere")
        scrubber = IndexScrubber(store.index)
        scrubber.begin()
        while (job := scrubber.job()) is not None:
            job.run()
            if scrubber.done(job) is not None:
                raise Violation("damage is repaired", name, f"{job.mapped.path} is damaged")
        # The disk is asked, not the node, which may take a damaged snapshot for a whole one.
        for page in host.damaged_pages:
            if page.path == SNAPSHOT_PATH and host.disk.medium.is_harmed(page):
                raise Violation("damage is repaired", name, "the snapshot that was damaged is there still")

    def check_store(self, host: BrokerHost, node: Node) -> None:
        """Checks that queues, index and log of a node that has applied everything agree with the model.

        Raises Violation.
        """
        replica = node.replica
        store = replica.store
        self.model.compare(
            host.name, store.log, store.log.first_index, replica.applied_index, "state machine safety"
        )
        for (topic, queue_id), known in self.model.queues.items():
            queue = store.queues.get(topic, queue_id)
            # What retention has taken is in no queue; the model keeps everything.
            first = max(store.log.first_position, self.model.heads.agreed_position)
            kept = [offset for offset, position in enumerate(known.positions) if position >= first]
            if not kept:
                continue
            if queue is None or queue.max_offset != len(known.keys):
                ends = None if queue is None else queue.max_offset
                raise Violation(
                    "queue agrees with log",
                    host.name,
                    f"{topic}/{queue_id} ends at {ends}, not {len(known.keys)}",
                )
            for offset in kept:
                unit = queue.unit(offset)
                if unit is None or (unit[0], unit[1]) != (known.positions[offset], known.sizes[offset]):
                    raise Violation(
                        "queue agrees with log", host.name, f"{topic}/{queue_id} unit {offset} is {unit}"
                    )
            # The newest keys are in the index file under work; of those in full files a sample must do.
            older = kept[:-_KEYS_LOOKED_UP]
            sample = self._random.sample(older, min(_KEYS_LOOKED_UP, len(older)))
            for offset in (*kept[-_KEYS_LOOKED_UP:], *sample):
                found = store.index.query(topic, known.keys[offset], 64, 0, 1 << 62)
                if known.positions[offset] not in found:
                    raise Violation(
                        "index agrees with log", host.name, f"key {known.keys[offset]} of {topic}/{queue_id}"
                    )

    def check_derived(self, host: BrokerHost, node: Node) -> None:
        """Checks all numbers of what such a node has derived from the log. Raises Violation."""
        replica = node.replica
        first = max(replica.store.log.first_position, self.model.heads.agreed_position)
        self._derived.check(host.name, replica, host.options, first)


def _is_nearly_full(host: BrokerHost) -> bool:
    usage = host.disk.usage()
    return usage.free_bytes <= _FORCED_SHARE * usage.total_bytes


def _only_padding_differs(held: bytes | bytearray, wanted: bytes | bytearray) -> bool:
    """True if the pieces differ only behind the last entry of a data file: the end marker there is not in the model."""
    used = len(bytes(wanted).rstrip(b"\0"))
    return held[:used] == wanted[:used] and len(held) >= used

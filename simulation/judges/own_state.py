"""The beliefs of a node about its own log, snapshot, disk and members, held to what they are.

What a node tells others of itself rests on these, so they are looked at after each of its turns in which they changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from broker.state.topic_rules import INTERNAL_TOPIC
from log.entries.entry_log import EntryLog
from log.errors import DamagedStateError
from log.formats.layout import HEADER_BYTES
from log.formats.properties import TAGS, get_property
from log.formats.record import decode_record
from log.notes.hard_state import HardStateFile, StoredHardState
from log.notes.snapshot import PATH as SNAPSHOT_PATH
from log.notes.snapshot import decode_snapshot
from raft.configuration import Configuration
from raft.core import Raft
from raft.effects import Role
from raft.messages import AppendResponse, Message, SnapshotResponse
from raft.reasons import Reason
from raft.succession import Transfer
from raft.terms import LogTerms
from simulation.journal import Violation
from simulation.machines.broker_host import BrokerHost
from simulation.machines.data_files import data_file

AGREED: Final = "what a follower agrees to is its leader's log"
FLUSHED: Final = "what a node takes for flushed is on its disk"
SAVED: Final = "term and vote are on the disk"
SNAPSHOT: Final = "what a node takes for its snapshot is on its disk"
PREFERRED: Final = "who is asked to lead because it is preferred could lead at once"
MEMBERS: Final = "the members are those of the newest configuration in the log"
HELD: Final = "what is written counts as held"

_RUN_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _LeadersLog:
    """The terms of a leader's log when it was elected; entries from `begin` on are of its own `term`."""

    term: int
    begin: int
    terms: LogTerms

    def holds(self, index: int, term: int) -> bool:
        """True if its entry of that index may be of that term; it may have deleted the entry since."""
        if index >= self.begin:
            return term == self.term
        return index < self.terms.first_index - 1 or self.terms.term_at(index) == term


@dataclass(slots=True)
class _Seen:
    """The state in which a process was seen last."""

    state: tuple[object, ...] = ()
    agreed: tuple[int, int] = (0, -1)
    saved: tuple[int, str | None] = (-1, None)
    members: tuple[object, ...] = ()
    flushed_index: int = -1
    """All up to this entry was on its disk."""
    generation: int = 0
    snapshot_index: int = -1
    """Its snapshot reflected this entry, and was on its disk."""
    commit_index: int = -1
    """Entries up to there are the same in every generation of its log."""
    transfer: Transfer | None = None
    """The hand-over that was under way."""


class OwnState:
    """Watches what each node of a group believes of itself."""

    def __init__(self, rafts: Mapping[str, Raft], *, sync_flush: bool) -> None:
        """`rafts`: the Raft state of each process that runs, by its node."""
        self._rafts = rafts
        self._sync_flush = sync_flush
        self._leaders_logs: dict[int, _LeadersLog] = {}
        """The logs of the leaders when they were elected, by term."""
        self._configurations: dict[tuple[int, int], Configuration] = {}
        """(index, term of the entry) -> the configuration that it holds, by index."""
        self._seen: dict[str, _Seen] = {}

    def started(self, name: str) -> None:
        """A process has recovered."""
        self._seen[name] = _Seen()

    def elected(self, name: str, term: int) -> None:
        """A node leads: notes what its log holds. Leaders remove nothing from it (5.3)."""
        log = self._rafts[name].log_terms
        terms = LogTerms(log.first_index, log.last_index, log.runs, log.base_term)
        own = bool(terms.runs) and terms.last_term == term
        self._leaders_logs[term] = _LeadersLog(term, terms.runs[-1][0] if own else log.last_index + 1, terms)

    def turned(self, host: BrokerHost, raft: Raft, log: EntryLog, snapshot_index: int) -> None:
        """Looks at a node after its turn; it takes its snapshot for one that reflects that entry. Raises Violation."""
        seen = self._seen[host.name]
        if snapshot_index != seen.snapshot_index:
            self._check_snapshot(host, seen, snapshot_index)
        if raft.transferee is not None:
            _check_preferred(host.name, seen, raft)
        # Whatever else is looked at changes with one of these, at once or in one of the next turns.
        state = (raft.term, raft.vote, raft.agreed_index, raft.persisted_index, raft.log_generation)
        if state == seen.state:
            return
        seen.state = state
        if raft.role is Role.FOLLOWER and raft.leader is not None:
            self._check_agreed(host.name, seen, raft)
        if (raft.term, raft.vote) != seen.saved:
            self._check_saved(host, seen, raft)
        if raft.persisted_index != seen.flushed_index or raft.log_generation != seen.generation:
            self._check_flushed(host, seen, raft, log)
        if not self._sync_flush and raft.persisted_index < log.last_index:
            # Else it is acknowledged with the next entries, and a group that gets none waits for ever.
            raise Violation(
                HELD,
                host.name,
                f"has written entries up to {log.last_index}, and tells nobody of more than {raft.persisted_index}",
            )
        if self._configurations or raft.configuration_index >= 0:
            self._check_members(host, seen, raft, log)

    def _check_agreed(self, name: str, seen: _Seen, raft: Raft) -> None:
        """Checks that a follower's log is its leader's up to where it says so (5.3).

        It is if the entry there is of the same term: then all before are the same (log matching). Raises Violation.
        """
        agreed = (raft.term, raft.agreed_index)
        if agreed != seen.agreed:
            seen.agreed = agreed
            self._check_agrees(name, raft, raft.agreed_index)

    def says(self, name: str, message: Message) -> None:
        """Looks at what a follower says when it says it: what it believes behind its turn may be less.

        Raises Violation.
        """
        match message:
            case AppendResponse(success=True):
                index = message.log_index
            case SnapshotResponse():
                index = message.match_index
            case _:
                return
        raft = self._rafts.get(name)
        if raft is not None and raft.term == message.term:
            self._check_agrees(name, raft, index)

    def _check_agrees(self, name: str, raft: Raft, index: int) -> None:
        leaders, log = self._leaders_logs.get(raft.term), raft.log_terms
        if leaders is None or index < log.first_index - 1:
            return
        if index > log.last_index or not leaders.holds(index, log.term_at(index)):
            own = "none" if index > log.last_index else f"one of term {log.term_at(index)}"
            raise Violation(
                AGREED,
                name,
                f"agrees with {raft.leader} up to entry {index} in term {raft.term}, and has {own} there; its log is "
                f"{log.first_index}..{log.last_index} {log.runs}, the leader's was {leaders.terms.runs}",
            )

    def _check_saved(self, host: BrokerHost, seen: _Seen, raft: Raft) -> None:
        """Checks that term and vote rise only (5.1, 5.2), and would survive a power failure now (figure 2).

        Raises Violation.
        """
        term, vote = seen.saved
        if raft.term < term or (raft.term == term and vote not in (None, raft.vote)):
            detail = f"had voted for {vote} in term {term}, now for {raft.vote} in term {raft.term}"
            raise Violation("one vote a term", host.name, detail)
        path = f"{host.options.dledger_directory}/currterm"
        with host.disk.reads_succeed():
            saved = HardStateFile(host.disk, path).read() or StoredHardState()
        durable = host.disk.durable_bytes(path) == host.disk.cached_bytes(path)
        if not durable or (saved.term, saved.vote) != (raft.term, raft.vote or ""):
            detail = f"is in term {raft.term} and has voted for {raft.vote}; on its disk is {saved}"
            raise Violation(SAVED, host.name, f"{detail}{'' if durable else ', not flushed'}")
        seen.saved = (raft.term, raft.vote)

    def _check_flushed(self, host: BrokerHost, seen: _Seen, raft: Raft, log: EntryLog) -> None:
        """Checks that a power failure now would leave what the node takes for durable. Raises Violation."""
        if not self._sync_flush or host.was_damaged or host.was_harmed:
            return
        if raft.log_generation != seen.generation:
            seen.generation = raft.log_generation
            seen.flushed_index = min(seen.flushed_index, seen.commit_index)
        seen.commit_index = raft.commit_index
        index = max(seen.flushed_index + 1, log.first_index)
        while index <= raft.persisted_index:
            last_index, position, data = log.run(index, raft.persisted_index, _RUN_BYTES_MAX)
            start = position - position % host.options.data_file_bytes
            durable = host.disk.durable_bytes(data_file(host.options, start))
            if durable[position - start : position - start + len(data)] != bytes(data):
                raise Violation(
                    FLUSHED,
                    host.name,
                    f"takes entries up to {raft.persisted_index} for flushed; those of {index}..{last_index} are not",
                )
            index = last_index + 1
        seen.flushed_index = raft.persisted_index

    def _check_snapshot(self, host: BrokerHost, seen: _Seen, index: int) -> None:
        """Checks that a power failure now would leave a snapshot that reflects this entry: the log may begin there.

        Raises Violation.
        """
        if host.was_damaged:
            return
        raw = bytes(host.disk.durable_bytes(SNAPSHOT_PATH))
        try:
            durable_index = decode_snapshot(raw).applied_index if raw else -1
        except DamagedStateError as error:
            raise Violation(SNAPSHOT, host.name, f"takes entry {index} for reflected: {error}") from error
        # The job that writes a newer one may be back in the next turn only.
        if durable_index < index:
            raise Violation(
                SNAPSHOT,
                host.name,
                f"takes the snapshot of entry {index} for durable; the one on its disk reflects {durable_index}",
            )
        seen.snapshot_index = index

    def _check_members(self, host: BrokerHost, seen: _Seen, raft: Raft, entries: EntryLog) -> None:
        """Checks that the configuration in force is the newest one in the log (dissertation 4.1).

        Also behind a truncation and at a start. Of a configuration in the part of the log that is gone nothing is said.
        Raises Violation.
        """
        name, log, in_force = host.name, raft.log_terms, raft.configuration_index
        members = (in_force, log.last_index, log.last_term)
        if members == seen.members:
            return
        seen.members = members
        if in_force > log.last_index:
            raise Violation(
                MEMBERS, name, f"that of entry {in_force} is in force, its log ends at {log.last_index}"
            )
        if in_force >= log.first_index and (in_force, log.term_at(in_force)) not in self._configurations:
            if not host.was_damaged and not _is_configuration(entries, in_force):
                raise Violation(
                    MEMBERS, name, f"that of entry {in_force} is in force, and there is another entry now"
                )
            self._configurations[in_force, log.term_at(in_force)] = raft.configuration
            self._configurations = dict(sorted(self._configurations.items()))
        # Of all configurations that any node has had, the newest one whose entry is in this log must be in force.
        for (index, term), configuration in reversed(self._configurations.items()):
            if log.matches(index, term) and index >= log.first_index:
                if (in_force, raft.configuration) != (index, configuration):
                    raise Violation(
                        MEMBERS,
                        name,
                        f"that of entry {in_force} is in force, {raft.configuration}; the newest in its log is that of "
                        f"entry {index}, {configuration}",
                    )
                return


def _check_preferred(name: str, seen: _Seen, raft: Raft) -> None:
    """Checks that a leader hands over to a node that it prefers only if that has told it that it could lead: it has
    lost nothing, and has room on its disk. Else it hands over again and again. Raises Violation.
    """
    transfer = raft.transfer
    if transfer is seen.transfer or transfer is None:
        return
    seen.transfer = transfer
    peer = raft.peers[transfer.target]
    if transfer.reason is Reason.PREFERRED and (peer.recovering or peer.lacks_room):
        lacks = "may lack entries" if peer.recovering else "has no room"
        raise Violation(
            PREFERRED, name, f"hands over to {peer.node}, which {lacks} by what it has told {name}"
        )


def _is_configuration(log: EntryLog, index: int) -> bool:
    """True if the entry of that index holds the group's members."""
    record = decode_record(bytes(log.run(index, index, _RUN_BYTES_MAX)[2])[HEADER_BYTES:])
    return record.topic == INTERNAL_TOPIC and get_property(record.properties, TAGS) == b"configuration"

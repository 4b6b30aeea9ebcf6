"""The members of the group and their addresses, as this node must know them at a restart.

The membership is part of the log (a configuration takes effect when its entry is appended), but a node must know it
before it has read its log. So the configurations of the entries that the log holds are kept in a file of their own,
with the addresses of the members. Invariant: the file is durable before the entry that it tells of is written. After
a crash it may thus know of configurations beyond the log's end. They are in force no more. But if the node has lost
entries, their voters may have committed what it lacks (`lost_voters`, raft/recovery.py): so the file keeps these until
the node has recovered.

An address in the settings that the operator has changed since the last start has the last word: so a machine that has
moved is found again.

A node that has promised nothing, and asks the others whether the group is new (raft/recovery.py, An empty disk), takes
the members of its settings each time: its list may lack those who came while it waited.

A node that joins a running group starts from a configuration without itself: the nodes that its file names besides it.
It is no member until an operator adds it. Until the members know its address from the log, they answer it where its
hello says (`met`): so do they a member whose addition they have not seen yet, and one that was removed and has to hear
of it.

The file also has the group's lineage (`raft.lineage`): a group that was restored from a backup is another one than that
whose name it bears. What nodes of the two would take for the same log differs behind the backup.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import cbor2

from broker.settings.rules import ImpossibleSettingError
from log.errors import DiskFullError
from log.files.disk import Disk
from log.files.state_file import read_state, write_state
from log.formats.entry_range import EntryRange
from log.formats.layout import HEADER_BYTES
from log.formats.record import peek
from raft.configuration import Configuration

MEMBERSHIP_FILE: Final = "membership"

Configurations = Iterable[tuple[int, Configuration]]


class MembersFile:
    """The members' addresses (node id -> ``host:port``) and the file that keeps them with the configurations."""

    def __init__(
        self, disk: Disk, addresses: dict[str, str], *, newcomer: str | None = None, lineage: str = ""
    ) -> None:
        """`addresses` are those of the settings: the group's first members, but for the `newcomer`."""
        self._lineage = lineage
        self._newcomer = newcomer
        self.addresses = dict(addresses)
        """The addresses of all nodes that this one knows from its settings and the group; changed, never replaced."""
        self._guests: dict[str, str] = {}
        self._committed_index = -1
        """The newest configuration's index that is known to be committed: a hint, which may be missing."""
        self._configured = dict(addresses)
        self._changed: dict[str, str] = {}
        self._disk = disk
        self.lost_voters: tuple[str, ...] = ()
        """The voters with whom this node may have committed what its log lacks, if it lacks anything, as `load` found
        them."""
        self._written = b""
        """The content of the file, if this process wrote it; else empty."""
        self._first = Configuration(tuple(sorted(node for node in addresses if node != newcomer)))

    def load(
        self, last_index: int, committed_index: int, *, blank: str | None = None
    ) -> list[tuple[int, Configuration]]:
        """Returns the configurations of a log that ends at `last_index`, as `raft.core.Raft` takes them.

        What is known to be committed may reach beyond that end. `blank` is the id of this node if it has neither a term
        nor a log. Finds out the `lost_voters`, too.

        Raises `ImpossibleSettingError` for a store of another lineage, `log.errors.DamagedStateError`, DiskError.
        """
        data = read_state(self._disk, MEMBERSHIP_FILE)
        if data is None:
            self._check_may_begin_empty()
            self.lost_voters = self._first.voters
            return [(-1, self._first)]
        state = cbor2.loads(data)
        self._check_lineage(state.get("lineage", ""))
        before = state.get("configured", {})
        # What the settings say otherwise than when the file was written an operator has changed since.
        self._changed = {node: at for node, at in self._configured.items() if before.get(node) != at}
        # Only now: it leaves in force what the operator has changed.
        self.merge(state["addresses"])
        known = [
            (index, Configuration(tuple(voters), tuple(learners)))
            for index, voters, learners in state["configurations"]
        ]
        if self._newcomer is None and blank in known[-1][1].voters:
            self.lost_voters = self._first.voters
            return [(-1, self._first)]
        # What was committed earlier a majority of the last committed configuration has, or of a later one.
        # During a mode those beyond the log's end are enough: what was committed since it began has a majority without
        # this node, or voters that have lost nothing.
        kept = state.get("lostVoters")
        self._committed_index = state.get("committedIndex", -1)
        committed_index = max(committed_index, self._committed_index)
        since = max((index for index, _ in known if index <= committed_index), default=-1)
        lost = [item for item in known if (item[0] >= since if kept is None else item[0] > last_index)]
        voters = [voter for _, configuration in lost for voter in configuration.voters]
        self.lost_voters = tuple(dict.fromkeys((*(kept or ()), *voters)))
        # A log that was given up begins before all that is known; the newest members are those to turn to.
        return [item for item in known if item[0] <= last_index] or [(-1, known[-1][1])]

    def merge(self, addresses: dict[str, str]) -> None:
        """Takes over what the group knows, but for what the operator has changed."""
        self.addresses.update(addresses)
        self.addresses.update(self._changed)

    def save(self, configurations: Configurations, lost_voters: Sequence[str] = ()) -> None:
        """Writes the file, durably, if it does not say so already. Raises `log.errors.DiskError`, `DiskFullError`.

        A configuration was written when it came: its commit changes nothing, and stops no node whose disk is full.
        `lost_voters` are those that raft still reckons with: they must outlive a restart.
        """
        items = [(index, c.voters, c.learners) for index, c in configurations]
        state = {
            "addresses": self.addresses,
            "configured": self._configured,
            "configurations": items,
            "lineage": self._lineage,
            "committedIndex": self._committed_index,
        }
        if lost_voters:
            state["lostVoters"] = lost_voters
        data = cbor2.dumps(state)
        if data != self._written:
            write_state(self._disk, MEMBERSHIP_FILE, data)
            self._written = data

    def note_committed(self, index: int, configurations: Configurations, lost_voters: Sequence[str]) -> None:
        """Notes, if there is room, that the configuration at `index` is committed. After a loss, voters of earlier ones
        alone need not agree any more: they may be gone. Raises DiskError."""
        before, self._committed_index = self._committed_index, index
        try:
            self.save(configurations, lost_voters)
        except DiskFullError:
            self._committed_index = before

    def found(self) -> None:
        """Writes the file of a store that is made from a backup: the members are those of the settings, whatever its
        log says. Raises `log.errors.DiskError`."""
        self.save([(-1, self._first)])

    def _check_lineage(self, stored: str) -> None:
        """Raises `ImpossibleSettingError` unless the store is of the lineage that the settings name."""
        if stored != self._lineage:
            of_store = f"of lineage {stored!r}" if stored else "of the group as it was before any restore"
            raise ImpossibleSettingError(
                "raft.lineage",
                f"raft.lineage is {self._lineage!r}, but the store is {of_store} (docs/backup.md); nothing was changed",
            )

    def _check_may_begin_empty(self) -> None:
        """Raises `ImpossibleSettingError` for a member of a restored group whose store is empty. Such a group was never
        empty: as many empty nodes as are its majority would begin without its log."""
        if self._lineage and self._newcomer is None and len(self._first.members) > 1:
            raise ImpossibleSettingError(
                "raft.lineage",
                f"raft.lineage is {self._lineage!r}, and the store of this node is empty: make it with trivet restore, "
                "or let the node join with raft.join (docs/backup.md)",
            )

    def met(self, node: str, address: str) -> None:
        """Notes where `node`, which may be no member, has said that it is found."""
        if address:
            self._guests[node] = address

    def parted(self, node: str) -> None:
        """Forgets where `node` has said that it is found: the link that it had dialled is gone."""
        self._guests.pop(node, None)

    def peers(self, node: str, configurations: Iterable[Configuration]) -> dict[str, str]:
        """Returns the nodes to which `node` keeps a link, with their addresses: members of any of these configurations,
        and guests while they stay."""
        members = {
            member: self.addresses[member]
            for configuration in configurations
            for member in configuration.members
            if member in self.addresses
        }
        # What the group knows of a member goes before what it says itself.
        peers = self._guests | members
        peers.pop(node, None)
        return peers

    def encode(self, configuration: Configuration) -> bytes:
        """Returns the body of a configuration's record: voters, learners and their addresses."""
        addresses = {node: self.addresses[node] for node in configuration.members if node in self.addresses}
        return cbor2.dumps([configuration.voters, configuration.learners, addresses])

    def learn(self, entries: EntryRange, indices: Iterable[int]) -> None:
        """Takes the addresses out of the configuration records at `indices` of what a peer sent."""
        for index in indices:
            at = entries.position_of(index) - entries.position + HEADER_BYTES
            record = entries.data[at:]
            head = peek(record)
            fields: list[Any] = cbor2.loads(bytes(record[head.body_begin : head.body_end]))
            self.merge(fields[2])

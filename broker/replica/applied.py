"""The committed entries, as state: queues and index files, metadata, open transactions.

Each entry is applied once, in order. After a start dispatch may begin before what the last snapshot of the state
reflects: the queues are built again from there, and commands that the snapshot has are passed over. Until dispatch is
past it, queues and metadata reflect different entries, and no snapshot of them is taken.
"""

from collections.abc import Callable
from typing import Any, Final

from broker.remoting.pieces import Pieces
from broker.remoting.steps import finished
from broker.replica.basis import Basis
from broker.replica.digests import Digests
from broker.replica.internal_records import COMMAND, read_internal
from broker.replica.state_writing import StateWriting
from broker.replica.upkeep import Upkeep
from broker.state.commands import Command, decode_command, deleted_topics
from broker.state.metadata import Metadata
from broker.state.release import Release
from broker.state.snapshot import StateSnapshot, state_written
from broker.state.snapshot_reading import let_go
from broker.state.writing import Written
from log.dispatching.dispatch import Allowance, Arrival
from log.entries.entry_reads import check_run, index_of
from log.errors import DamagedEntryError, DamagedLogError, DiskFullError, QueueOrderError

COMMAND_BYTES_AT_ONCE: Final = 128 * 1024
"""Commands that are applied at once, as bytes in the log, or the one that is longer: some 7 ms of consumer offsets,
which are many to a command."""

CHECKED_BYTES: Final = 1 << 20
"""Entries that are checked at once before they are applied, where they come from the disk: a millisecond."""

DAMAGED_NS: Final = 100_000_000
"""After so long an entry that is damaged is looked at again."""


class AppliedState:
    """The state of one replica. `index` is the last entry that is dispatched; commands up to it are in `metadata`."""

    __slots__ = (
        "_addresses",
        "_disk_space",
        "_metadata_index",
        "_release",
        "_rows_at_once",
        "_saving",
        "_store",
        "_upkeep",
        "digests",
        "index",
        "metadata",
        "writing",
    )

    def __init__(
        self,
        basis: Basis,
        metadata: Metadata,
        metadata_index: int,
        addresses: dict[str, str],
        upkeep: Upkeep,
        release: Release,
        rows_at_once: int,
    ) -> None:
        """`metadata` reflects the commands up to `metadata_index`; `addresses` are the members', which come and go."""
        self._store = basis.store
        self._addresses = addresses
        self._upkeep = upkeep
        self._disk_space = basis.disk_space
        self._release = release
        self._rows_at_once = rows_at_once
        self.writing = StateWriting(basis.timings)
        self._saving: Callable[[], None] | None = None
        """While a snapshot for the disk is being written: gives it up."""
        self.index = basis.store.dispatched_index
        self.metadata = metadata
        self._metadata_index = metadata_index
        """The last entry whose command `metadata` reflects; dispatch may restart before it."""
        self.digests = Digests(self.writing, rows_at_once)

    def apply(
        self, upto: int, now_ns: int, group_ms: int, applied: Callable[[int, Command, Any], None]
    ) -> list[Arrival]:
        """Applies the entries up to `upto`, or fewer: where the disk has no room for what they make, commands among
        them are `COMMAND_BYTES_AT_ONCE`, or their queues had `StoreOptions.dispatch_files` files mapped, or they have
        `dispatch_keys` keys.

        Before entries that are damaged on the disk it ends, too. Of those that were taken to be in memory dispatch may
        meet one: then all is checked from now on.

        `applied` is told of each command: its entry, and what it returned. Returns which queues have new messages.
        Raises `log.errors.DiskError`.
        """
        arrivals: list[Arrival] = []
        command_bytes = 0
        options = self._store.options
        allowance = Allowance(options.dispatch_files, options.dispatch_keys)
        while self.index < upto and command_bytes < COMMAND_BYTES_AT_ONCE and not allowance.is_used_up:
            # A command is applied before the entries behind it get their units: it may delete their topic.
            digest_index = self.digests.next_index(self.index)
            whole_index = self._whole_index(min(upto, digest_index), now_ns)
            # The next entry is damaged: it waits for its repair.
            if whole_index == self.index:
                break
            try:
                dispatch = self._store.dispatch(
                    whole_index, group_ms, stop_at_internal=True, allowance=allowance
                )
            except DiskFullError as error:
                self._disk_space.for_dispatch(error, now_ns)
                break
            except (DamagedLogError, QueueOrderError):
                # An entry is none, or one was passed over as none: the check says which, and notes it for the repair.
                if not self._store.log.doubt():
                    raise
                continue
            arrivals += dispatch.arrivals
            for index, record in dispatch.internal:
                command_bytes += len(record)
                self._apply_internal(index, record, now_ns, applied)
            self.index = dispatch.last_index
            # A state that came by a snapshot may be ahead of dispatch: it is not that of this entry.
            if self.index == digest_index and self._metadata_index <= digest_index:
                self.digests.applied(digest_index, self.metadata, now_ns)
        return arrivals

    def _whole_index(self, upto: int, now_ns: int) -> int:
        """Returns the last of the entries up to `upto` that may be applied: what comes from the disk is checked first.

        `upto` itself for what was checked since the start, and so for all but the first entries of a run. Where the
        next entry is damaged it is the one before, and the rest waits until it is repaired.
        """
        entries = self._store.log
        first = self.index + 1
        while True:
            try:
                # What lies behind that is as it was written here, or was checked since the start.
                if entries.end_of(self.index) >= entries.checked_position:
                    return upto
                run = entries.run(first, upto, CHECKED_BYTES)
                check_run(entries, first, run)
            except DamagedLogError as error:
                damaged = index_of(entries, error.position) if isinstance(error, DamagedEntryError) else None
                if damaged is not None and first < damaged <= upto:
                    upto = damaged - 1  # nobody has checked those before it yet
                    continue
                self._disk_space.dispatch_due_ns = now_ns + DAMAGED_NS
                return self.index
            return run.last_index

    def _apply_internal(
        self, index: int, record: memoryview, now_ns: int, applied: Callable[[int, Command, Any], None]
    ) -> None:
        """Applies a record of the group's own, or one that decides a transaction, unless the snapshot reflects it."""
        is_new = index > self._metadata_index
        if is_new:
            self._metadata_index = index
        internal = read_internal(record)
        if internal is None:
            if is_new:
                self.metadata.transactions.apply_record(record)
            return
        tag, body = internal
        if tag != COMMAND:
            return
        # Read in any case, for the topics that it deletes (below).
        command = decode_command(body, self._release.newest_format)
        result = self.metadata.apply(command) if is_new else None
        if gone := self.metadata.gone:
            self.metadata.gone = []
            # Behind the command, in steps: to free a large table takes long.
            self.writing.begin(let_go(gone, self._rows_at_once), lambda *_: None)
        # Also for those that the snapshot reflects: dispatch began before them, and made the topic's queues again.
        for topic in deleted_topics(command):
            self._store.remove_topic(topic)
        self._store.raise_head(self.metadata.head_position)
        self._upkeep.note_format(self.metadata.format, now_ns)
        if is_new:
            applied(index, command, result)

    def reset(self, state: StateSnapshot, state_index: int, first_index: int, now_ns: int) -> None:
        """Puts a leader's `state`, which reflects the entries up to `state_index`, in the place of this one: the log
        begins anew at `first_index`."""
        self.metadata = state.metadata
        # What is being written is the state of a log that is gone.
        self._give_up_saving()
        self._store.raise_head(self.metadata.head_position)
        self._upkeep.note_format(self.metadata.format, now_ns)
        self._metadata_index = state_index
        self.index = first_index - 1

    # ------------------------------------------------------------------ snapshots

    def is_of_one_place(self, index: int) -> bool:
        """True if the state is that of one place in the log, at `index` or behind it, as that of a snapshot is."""
        return self.index >= max(index, self._metadata_index)

    def written(self) -> Written:
        """Writes the state as it is at this call, which reflects `index`, with the members' addresses.

        To be called where it is of one place (`is_of_one_place`).
        """
        assert self.is_of_one_place(self.index), (
            f"queues are those of entry {self.index}, metadata those of {self._metadata_index}"
        )
        return state_written(self.metadata, self._addresses, self._store.queues, self._rows_at_once)

    def save(self) -> None:
        """Begins to write the state: it is on the disk some turns later, once the log is durable so far. What comes
        before it may be deleted then.

        Does nothing while one is being written already, or while parts of the state are applied further than others.
        """
        index = self.index

        def written(state: Pieces, took_ns: int) -> None:
            self._saving = None
            self._upkeep.keep_snapshot(index, state, took_ns)

        if self._saving is None and self._upkeep.waiting_snapshot is None and self.is_of_one_place(index):
            self._saving = self.writing.begin(self.written(), written)

    def save_at_once(self, now_ns: int) -> None:
        """Writes the state in one call, for a stop. Raises `log.errors.DiskError`."""
        self._give_up_saving()
        if self.is_of_one_place(self.index):
            self._upkeep.keep_snapshot(self.index, finished(self.written()), 0)
        self._upkeep.write_waiting_snapshot(now_ns)

    def _give_up_saving(self) -> None:
        if self._saving is not None:
            self._saving()
            self._saving = None

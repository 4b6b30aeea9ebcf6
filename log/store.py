"""The store: all that one node keeps on disk, opened, recovered, checkpointed and closed together.

    <root>/dledger-<id>/   entry log (data/, index/, begin), term and vote (currterm), checkpoint
    <root>/consumequeue/   units per queue            } built from committed entries by `dispatch`,
    <root>/index/          key to offset              } and again whenever they are missing or damaged
    <root>/timer/          timed messages by time, made from their queue at each start
    <root>/snapshot        replicated metadata, covering the log up to its applied index
    <root>/incoming/       what a snapshot from the leader will put in the place of others, while it is written
    <root>/format          which releases can read all this (`log.notes.store_format`)
    <root>/recovery-notes-<epoch>, checkpoint, abort, lock    see `log.notes.checkpoint`

The order in which a node uses it: `open`; `hard_state.read`; append and truncate through `log`, whose `flushes` and
`prepare_job` run in workers; `dispatch` up to the commit index; jobs of `snapshot` and `checkpoints` now and then;
`close`. One thread owns the store; what a worker may run says so.

A start recovers the log. Then it brings the queues and index files to exactly what the last checkpoint noted: it cuts
what is beyond, and builds again from the log what is missing or does not match its checksum. Dispatch goes on from
there, as far as the group says is committed. Nothing beyond the noted commit index is dispatched before that.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from log.dispatching.dispatch import Allowance, Dispatch, Dispatcher, queue_ends_of_entries
from log.entries import cuts
from log.entries.entry_log import EntryLog
from log.entries.entry_reads import file_beginnings, index_at, record_at
from log.entries.entry_recovery import LogBegin, LogRecovery, RecoveryKind, read_begin
from log.entries.expired_files import DataFile, HeadLook, files_to_delete
from log.errors import (
    DamagedEntryError,
    DamagedLogError,
    DamagedStateError,
    DiskError,
    DiskFullError,
    OutOfRangeError,
    QueueOrderError,
    RecordError,
)
from log.files.disk import Disk, StoreLock
from log.files.removal import RemovalJob
from log.formats.layout import HEADER_BYTES
from log.formats.record import is_message_at, peek
from log.index.index_files import DIRECTORY as INDEX_DIRECTORY
from log.index.index_files import IndexFiles
from log.notes.checkpoint import (
    ABORT,
    Checkpoints,
    Notes,
    are_put_aside,
    put_aside,
    put_back,
    read_notes,
    remove_other_notes,
)
from log.notes.hard_state import HardStateFile
from log.notes.incoming import Incoming, discard_incoming
from log.notes.snapshot import Snapshot, SnapshotFile
from log.notes.store_format import FIRST_FORMAT, check_format, write_format
from log.options import StoreOptions
from log.queues.consume_queue import NO_RECORD_BYTES, UNIT_BYTES, ConsumeQueue
from log.queues.consume_queues import DIRECTORY as QUEUE_DIRECTORY
from log.queues.consume_queues import ConsumeQueues, EmptyQueues
from log.queues.timer_index import TimerIndex

QUEUES_AT_ONCE = 200
"""Queues that are asked in one turn where they begin: some 30 us each, as most of their files are not mapped."""

_ALL_FILES = 1 << 62

_ROOM_OF_START_BYTES = 64 << 20
"""A start that finds less frees the space of what was removed before it writes anything; else a worker does."""


def _free_discarded(disk: Disk) -> None:
    """Frees the space of what was removed, if a start has little; nothing else depends on it."""
    if disk.discarded and disk.usage().free_bytes < _ROOM_OF_START_BYTES:
        with suppress(DiskError):
            disk.remove_discarded(1 << 62, 1 << 62)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The findings of `Store.open`, and what it did about them.

    Entries up to `committed_index` are known to be committed from before the stop (the group may know more); those up
    to `noted_committed_index` are, too, and a log that has lost its end may not reach there. `damage`
    has one sentence for every file that was not as it had been left, repaired or not. With `needs_snapshot` this
    node's state was given up for a snapshot that did not arrive whole: it must not vote for itself, and calls
    `reset` with what the leader sends before anything else. Of queues without a message nothing newer is known than
    what they were at `queues_index`; -1 without notes. With `log.kind` DAMAGED it calls `cut_damage`
    before it appends, if the group can repair it.
    """

    log: LogRecovery
    clean_stop: bool
    committed_index: int
    noted_committed_index: int
    dispatched_index: int
    queues_index: int
    damage: tuple[str, ...]
    needs_snapshot: bool


class Store:
    """The store of one node. `dispatch` goes on behind `dispatched_index`.

    Always `dispatched_index` <= `Dispatcher.built_index` <= the log's last index. After a start `dispatched_index` is
    smaller where commands have to reach the state machine again.
    """

    __slots__ = (
        "_begins",
        "_disk",
        "_dispatcher",
        "_is_before_head",
        "_lock",
        "checkpoints",
        "dispatched_index",
        "format",
        "hard_state",
        "head_position",
        "head_steps",
        "index",
        "log",
        "options",
        "queues",
        "snapshot",
        "timers",
    )

    def __init__(self, disk: Disk, options: StoreOptions, lock: StoreLock, log: EntryLog) -> None:
        """For `Store.open` alone, which recovers first."""
        self._disk = disk
        self._lock = lock
        self.options = options
        self.log = log
        self.queues = ConsumeQueues(disk, options)
        self.index = IndexFiles(disk, options)
        self.timers = TimerIndex(disk, self.queues, options.timer_run_units)
        self.hard_state = HardStateFile(disk, f"{options.dledger_directory}/currterm")
        self.dispatched_index = log.first_index - 1
        self.head_position = 0
        """The position at which the group's log begins for clients (`raise_head`). This node may still have records
        before it, of which nobody is told, or may have deleted some behind it."""
        self._is_before_head = False
        """Entries before the head may be yet to be dispatched: they make units, which go when the head is reached."""
        self.head_steps: Iterator[None] | None = None
        """The rest of a pass over all queues that sets where each begins behind a new head; `step_at_head` does some of
        it. None while no such pass is under way."""
        self._begins: tuple[int, dict[ConsumeQueue, int]] | None = None
        """A position up to which the log is to be deleted, and the offset at which each queue begins then: found out
        while the records are still there."""
        self.snapshot = SnapshotFile(disk)
        self.format = FIRST_FORMAT
        """See `log.notes.store_format`."""
        self._dispatcher = Dispatcher(log, self.queues, self.index, options)
        self.checkpoints = Checkpoints(disk, options, log, self.queues, self.index, self._dispatcher)

    @classmethod
    def open(
        cls, disk: Disk, options: StoreOptions, now_ms: int, newest_format: int = FIRST_FORMAT
    ) -> tuple["Store", RecoveryReport]:
        """Opens or makes the store in `disk`, which may be of any format up to `newest_format`.

        Raises StoreLockedError, StoreTooNewError, DiskError, DamagedStateError (term and vote, snapshot, format or the
        log's beginning cannot be read: nothing may be guessed), DamagedLogError (RocketMQ wrote the log).
        """
        number = check_format(disk, newest_format)
        lock = disk.lock()
        try:
            _free_discarded(disk)
            store, report = cls._open(disk, options, now_ms, lock)
        except BaseException:
            lock.release()
            raise
        store.format = number
        return store, report

    @classmethod
    def _open(
        cls, disk: Disk, options: StoreOptions, now_ms: int, lock: StoreLock, *, scans_all: bool = False
    ) -> tuple["Store", RecoveryReport]:
        damage: list[str] = []
        # The notes of the last checkpoint come first: they say how much of the log has to be looked through. Their
        # loss costs time only, as all that they vouch for can be built from the log.
        begin = read_begin(disk, f"{options.dledger_directory}/begin") or LogBegin()
        try:
            notes = read_notes(disk, begin.epoch)
        except DamagedStateError as error:
            damage.append(f"{error}; queues and index files are built again from the log")
            notes = None
        clean_stop = notes is not None and not scans_all and not disk.exists(ABORT)
        try:
            log, recovery = EntryLog.open(
                disk,
                options.dledger_directory,
                replace(options, unclean_scan_files=_ALL_FILES) if scans_all else options,
                clean_stop=clean_stop,
                checkpoint_index=None if notes is None else notes.end_index,
            )
        except DamagedEntryError:
            if scans_all:
                raise
            # An old entry is damaged, and nothing else tells its term. As below: the log ends there.
            return cls._open(disk, options, now_ms, lock, scans_all=True)
        if recovery.kind is not RecoveryKind.CLEAN:
            damage.append(f"{recovery.damaged_file} at byte {recovery.damaged_at}: {recovery.reason}")
        store = cls(disk, options, lock, log)
        # Entries come with a term, which is durable before them. A term guessed too low would elect two leaders.
        if log.last_index >= 0 and store.hard_state.read() is None:
            path = f"{options.dledger_directory}/currterm"
            raise DamagedStateError(path, 0, "it is missing although the log has entries")
        store.snapshot.read()
        store.discard_incoming()  # the node stopped before it was taken
        if not disk.exists(ABORT):
            disk.write_durably(ABORT, b"open\n")
        try:
            store._recover_derived(notes, clean_stop, now_ms, damage)
        except (DamagedLogError, QueueOrderError):
            if scans_all:
                raise
            # What old entries say where they end, or of their queues, is damaged, where no scan has looked: nothing can
            # be built beyond them. One of all files ends the log there, and the group sends the rest again. Damage
            # elsewhere in an entry is mended in its place, once it is met.
            store.log.close()
            store.queues.close()
            store.index.close()
            return cls._open(disk, options, now_ms, lock, scans_all=True)
        return store, RecoveryReport(
            log=recovery,
            clean_stop=clean_stop,
            committed_index=log.first_index - 1
            if notes is None
            else max(log.first_index - 1, min(notes.committed_index, log.last_index)),
            noted_committed_index=-1 if notes is None else notes.committed_index,
            dispatched_index=store.dispatched_index,
            queues_index=-1 if notes is None else notes.dispatched_index,
            damage=tuple(damage),
            needs_snapshot=recovery.kind is RecoveryKind.RESET_PENDING
            or store.snapshot.applied_index < log.first_index - 1,
        )

    # ---- committed entries to queues -----------------------------------------------------------------

    def dispatch(
        self,
        to_index: int,
        now_ms: int,
        *,
        stop_at_internal: bool = False,
        allowance: Allowance | None = None,
    ) -> Dispatch:
        """Builds queue and index units of entries `dispatched_index` + 1 .. `to_index`, all committed.

        With `stop_at_internal` it ends behind the first internal record, so that the caller applies it before
        later records get their units (a topic that is deleted and made again needs this); call again until
        `dispatched_index` is where it should be. Internal records may come again after a restart (down to
        that of the snapshot or earlier): the caller skips those that it has applied. It ends as well where the
        allowance is used up.

        Raises DiskError, QueueOrderError: nothing is lost, the next call begins with the same entry. Raises
        DamagedLogError for an entry that does not say where it ends: check what comes from the disk before.
        """
        # Else a checkpoint would vouch for queues with messages that the log does not have.
        built_index, last_index = self._dispatcher.built_index, self.log.last_index
        assert self.dispatched_index <= built_index <= last_index, (
            f"dispatched up to {self.dispatched_index}, built up to {built_index}, of a log up to {last_index}"
        )
        assert to_index <= last_index, f"dispatch up to {to_index} of a log up to {last_index}"
        result = self._dispatcher.run(
            self.dispatched_index + 1,
            to_index,
            now_ms,
            stop_at_internal=stop_at_internal,
            allowance=allowance,
        )
        self.dispatched_index = max(self.dispatched_index, result.last_index)
        if self._is_before_head and not self._dispatches_before_head():
            self._is_before_head = False
            self._begin_queues_at_head()
        return result

    def queue_end(self, queue: tuple[str, int]) -> int:
        """Returns the offset behind the last dispatched message of (topic, queue id)."""
        found = self.queues.get(*queue)
        return 0 if found is None else found.max_offset

    def queue_ends_behind_dispatch(self) -> dict[tuple[str, int], int]:
        """Returns by (topic, queue id) the offset of the next message, where entries are not dispatched yet.

        A new leader assigns these offsets next, and in other queues those that `queue_end` tells.
        """
        return queue_ends_of_entries(self.log, self.dispatched_index + 1, self.log.last_index)

    def find_by_key(self, topic: str, key: str, limit: int) -> list[int]:
        """Returns the physical offsets of records that may have the key (UNIQ_KEY or one of KEYS), newest first.

        There are at most min(limit, MAX_QUERY_RESULTS). Hashes collide: the caller reads the record and compares.
        """
        found = self.index.query(topic, key, limit, 0, 1 << 62)
        return [offset for offset in found if offset > self.log.first_position]

    def remove_topic(self, topic: str) -> None:
        """Removes a topic's queues and their files, durably; to be called as soon as its deletion has been dispatched.

        Where that came again behind a start, and queues are built beyond it, the messages that they have are of a later
        life of the topic, and stay: a checkpoint has noted them, or is to. Raises DiskError, FlushError.
        """
        if self.dispatched_index < self._dispatcher.built_index:
            self.queues.discard_empty(topic)
        else:
            self.queues.remove(topic)
        self._dispatcher.forget_topics()

    def store_time_of(self, physical_offset: int, size: int | None = None) -> int:
        """Returns the store time (ms) of a record, for searches by time. Raises OutOfRangeError, RecordError,
        DamagedEntryError.
        """
        if size == NO_RECORD_BYTES:
            size = None
        return peek(record_at(self.log, physical_offset, size)).store_timestamp

    def is_unit_right(self, queue: ConsumeQueue, offset: int) -> bool:
        """Tells whether the unit of an offset leads to a record in the log that claims that offset."""
        unit = queue.unit(offset)
        assert unit is not None, "asked of what the queue holds"
        try:
            record = self.log.bytes_at(unit[0])
            is_of_offset = is_message_at(record, queue.topic, queue.queue_id, offset)
        except (OutOfRangeError, RecordError):
            return False
        return is_of_offset and unit[1] in (len(record), NO_RECORD_BYTES)

    def is_gone(self, queue: ConsumeQueue, unit: tuple[int, int, int]) -> bool:
        """Tells whether retention took the record of a unit that the queue still holds.

        It takes the first ones of a queue. So where the first unit leads into the log, one that leads before the log is
        damaged, and its record may be there; as is one that leads where no record ever was, such as one of zeros.
        """
        begin = self.log.first_position
        first = queue.unit(queue.min_offset)
        return HEADER_BYTES <= unit[0] <= begin and (first is None or first[0] <= begin)

    def record_of(self, queue: ConsumeQueue, offset: int, unit: tuple[int, int, int]) -> memoryview:
        """Returns the record of a message, to which its unit leads.

        Raises OutOfRangeError where retention took it, RecordError where it cannot be read, and DamagedLogError where
        it is damaged, or its unit: such a one is put right.
        """
        try:
            record = record_at(self.log, unit[0], unit[1])
            if is_message_at(record, queue.topic, queue.queue_id, offset):
                return record
        except (OutOfRangeError, RecordError):
            if self.is_gone(queue, unit) or self.is_unit_right(queue, offset):
                raise
        self.log.damage.doubt_units()
        raise DamagedLogError(queue.directory, offset * UNIT_BYTES, "the unit does not lead to its message")

    def free_bytes(self) -> int:
        """Returns the bytes of the disk that this store may still use."""
        return self._disk.usage().free_bytes

    # ---- rare events ---------------------------------------------------------------------------------

    def reset(
        self,
        first_index: int,
        position: int,
        base_term: int,
        queues: Mapping[tuple[str, int], int],
        snapshot: Snapshot,
    ) -> None:
        """Replaces all that is here by a snapshot, in one call: for a start. A node that runs takes `incoming`, and
        `swap`.

        The log goes on with `first_index` at `position`; queues are empty and begin where `queues` says, or at
        their first record.

        Raises DiskError, FlushError: stop the node. A start that finds a reset half done reports
        `needs_snapshot`: nothing can be appended until `reset` was repeated.
        """
        # The way of a node that runs, in one call: a start that finds it half done goes the same way again.
        empty = self.queues.empty()
        empty.add(queues.items())
        incoming = self.incoming(first_index, empty, snapshot)
        incoming.run()
        if incoming.refused is not None:
            raise incoming.refused
        self.swap(incoming, position, base_term)
        self.discard_incoming()

    def incoming(self, first_index: int, queues: EmptyQueues, snapshot: Snapshot) -> Incoming:
        """Returns what `swap` takes, once a worker has run it: a snapshot from the leader, behind which the log goes on
        with `first_index`.

        What was run and is not taken is given up (`discard_incoming`) before there is another one.
        """
        return Incoming(self._disk, self.options, first_index, queues, snapshot)

    def discard_incoming(self) -> None:
        """Gives up what was written for a swap, and was not taken. Raises DiskError."""
        discard_incoming(self._disk, self.options)

    def swap(self, incoming: Incoming, position: int, base_term: int) -> None:
        """Replaces all that is here as `reset` does, and raises as that does, by a few steps of the disk however much
        is replaced. No `SnapshotFile.job` may be out.
        """
        end_index = incoming.first_index - 1

        def install() -> None:
            # The log is empty and noted as pending: a crash before the end of this is repaired by another reset.
            self.queues.remove_all()
            self.index.remove_all()
            self.timers.clear()
            self._dispatcher.forget_topics()
            self.queues.replace(incoming.queues)
            self.dispatched_index = self._dispatcher.built_index = end_index
            self._is_before_head = position < self.head_position
            self.head_steps = self._begins = None
            incoming.put_in_place(self.log.epoch)
            self.snapshot.replaced(incoming.snapshot.applied_index)
            self.checkpoints.begin_anew(end_index)
            remove_other_notes(self._disk, self.log.epoch)

        cuts.reset(self.log, incoming.first_index, position, base_term, install)

    @property
    def has_discarded(self) -> bool:
        """True while something that was removed takes up space."""
        return self._disk.discarded

    def removal_job(self, files_max: int, bytes_max: int) -> RemovalJob:
        """Returns a job that frees the space of so many files, and bytes, of what was removed."""
        return RemovalJob(self._disk, files_max, bytes_max)

    def cut_damage(self) -> None:
        """Gives up the log behind a damaged place (see `LogRecovery`), for the group to send it again.

        Raises DiskError, FlushError.
        """
        if self.log.damaged:
            cuts.cut_damage(self.log)
            # The cut has begun an epoch, and without notes the next start would build all from the log.
            self.checkpoints.write(self.checkpoints.noted_index)
            remove_other_notes(self._disk, self.log.epoch)

    def raise_head(self, position: int) -> None:
        """Has queues begin with the first message at `position` of the log or behind it, where an entry begins: the
        group has none before it any more, whatever of its log is still here.

        Of very many queues some do so at once, and the others in further turns (`head_steps`). What is dispatched anew
        is held to the head, too. It never falls: the highest position counts.
        """
        if position <= self.head_position:
            return
        self.head_position = position
        if position > self.log.first_position:
            self._is_before_head = self._dispatches_before_head()
            self._begin_queues_at_head()

    def _dispatches_before_head(self) -> bool:
        """True if the next entry to be dispatched is before the head, or damage hides where it is."""
        try:
            return self.log.end_of(self.dispatched_index) < self.head_position
        except DamagedLogError:
            return True

    def _begin_queues_at_head(self) -> None:
        def begin(queue: ConsumeQueue) -> None:
            queue.begin_at(self._first_staying(queue, self.head_position))

        self._do_for_queues(begin)

    def _first_staying(self, queue: ConsumeQueue, position: int) -> int:
        return queue.first_staying(position, partial(self.is_unit_right, queue))

    def _do_for_queues(
        self, what: Callable[[ConsumeQueue], object], then: Callable[[], None] = lambda: None
    ) -> None:
        """Does something for each queue: for some at once, for the others in further turns, in place of what was still
        to be done for others until now."""

        def steps() -> Iterator[None]:
            left = list(self.queues)
            while left:
                for queue in left[-QUEUES_AT_ONCE:]:
                    what(queue)
                del left[-QUEUES_AT_ONCE:]
                if left:
                    yield
            then()

        self.head_steps = steps()
        self.step_at_head()

    def step_at_head(self) -> None:
        """Does some of what `head_steps` has, to be called in each turn while there is any. Raises DiskError."""
        assert self.head_steps is not None, "there is something to do"
        if next(self.head_steps, self) is self:  # nothing was left
            self.head_steps = None

    def head_wanted(self, look: HeadLook) -> int:
        """Returns the position at which the log should begin: where it would behind `delete_head`."""
        gone = self._files_to_delete(look)
        return gone[-1].next_position if gone else self.log.first_position

    def delete_head(self, look: HeadLook) -> int:
        """Deletes data files before `head_position`, and by age and disk usage; queue and index files below the new
        beginning go with them.

        No entry goes behind the snapshot or the durable index, nor from the dispatched one on. As long as the space of
        removed files is yet to be freed none goes because of the disk's usage. What is not yet before the head goes
        when all queues were asked where they begin without it: of very many some are at once, and the others in further
        turns (`head_steps`). Call it again then.

        Returns the number of data files deleted. Raises DiskError.
        """
        gone = self._files_to_delete(look)
        if not gone:
            return 0
        last, begins = gone[-1], dict[ConsumeQueue, int]()
        if self._is_before_head or last.next_position > self.head_position:
            # Which units are damaged the records alone can tell, so they are asked before they go.
            ends = {file.next_position: file for file in gone}
            if self._begins is None or self._begins[0] not in ends:
                self._ask_queues(last.next_position)
            if self._begins is None:
                return 0
            position, begins = self._begins
            last = ends[position]
        try:
            return cuts.delete_before(self.log, last.next_index)
        finally:
            # Even where it raised: if the log begins there, so do the queues.
            if self.log.first_position == last.next_position:
                self._begins = None
                for queue, offset in begins.items():
                    # It may have begun later, or anew, since it was asked.
                    queue.begin_at(max(queue.min_offset, min(offset, queue.max_offset)))
                self.index.delete_before(last.next_position)
                self._do_for_queues(self._remove_gone_files)

    def _ask_queues(self, position: int) -> None:
        """Finds out where queues begin once the log begins at a position; they do so when the files go, as others would
        learn from this node else what no other one knows."""
        begins: dict[ConsumeQueue, int] = {}

        def ask(queue: ConsumeQueue) -> None:
            begins[queue] = self._first_staying(queue, position)

        def asked() -> None:
            self._begins = position, begins

        self._begins = None
        self._do_for_queues(ask, asked)

    def _remove_gone_files(self, queue: ConsumeQueue) -> None:
        with suppress(DiskFullError):  # the next deletion removes what is left
            queue.remove_gone_files()

    def _files_to_delete(self, look: HeadLook) -> list[DataFile]:
        """Returns the files that `delete_head` deletes: none while their records are to tell where queues begin."""
        if len(self.log.file_starts()) < 2 or self.head_steps is not None:
            return []
        usage = self._disk.usage()
        used_ratio = 1 - usage.free_bytes / max(usage.total_bytes, 1)
        if self._disk.frees_space:
            used_ratio = 0.0  # how full it is shows when the space of what went before is free
        if self.head_position <= self.log.first_position and not look.may_delete(used_ratio):
            return []
        # The entry that the log will begin with must be committed, too. Until then it may be replaced by a shorter one,
        # which would stand at the end of the file that goes, and the log would begin behind it.
        covered = min(self.snapshot.applied_index, self.dispatched_index - 1, self.log.durable_index)
        if look.needed_from_index is not None:
            covered = min(covered, look.needed_from_index - 1)
        # The age of a file is the store time of the first record behind it: the last record's, or close to it. Where
        # that one is damaged, the file behind says how new it is at most.
        files: list[DataFile] = []
        newest_ms = look.now_ms
        for start, index in reversed(list(islice(file_beginnings(self.log), look.policy.files_per_pass))):
            try:
                newest_ms = self.store_time_of(start + HEADER_BYTES)
            except (RecordError, OutOfRangeError, DamagedLogError):
                pass
            files.append(DataFile(newest_ms, index, start))
        files.reverse()

        def count_expired(waiting_position: int | None) -> int:
            return files_to_delete(
                files,
                look,
                used_ratio=used_ratio,
                covered_index=covered,
                waiting_position=waiting_position,
                head_position=self.head_position,
            )

        count = count_expired(None)
        if count and files[count - 1].next_position > self.head_position:
            count = count_expired(look.find_waiting())
        return files[:count]

    def flush(self) -> None:
        """Makes durable what was appended, before a clean stop. No job may be running. Raises FlushError, DiskError.

        A job that is still out has failed; then nothing becomes durable.
        """
        job = self.log.flushes.job()
        if job is not None:
            job.run()
            self.log.flushes.done(job)

    def raise_format(self, number: int, written_by: str) -> None:
        """Notes a newer format, durably. Raises DiskFullError, FlushError, DiskError."""
        assert number > self.format, f"format {number} behind format {self.format}"
        write_format(self._disk, number, written_by)
        self.format = number

    def close(self, commit_index: int) -> None:
        """Stops cleanly: flushes and notes everything. No job may be running.

        Raises DiskError, FlushError; the next start then treats the stop as unclean. A flush job that is still out has
        failed, and the stop is no clean one: a flush of the same pages may succeed now without writing them, so nothing
        may vouch for them until a start has stored them again.
        """
        try:
            self.flush()
            if not self.log.damaged and not self.log.flushes.is_out:
                self.log.flushes.flush_note()
                self.checkpoints.write(commit_index)
                self._disk.remove(ABORT)  # last: it vouches for the notes
                self._disk.sync_directory(".")
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Closes without flushing or noting anything, as a crash of the process would."""
        self.log.close()
        self.queues.close()
        self.index.close()
        self._lock.release()

    # ---- inside --------------------------------------------------------------------------------------

    def _recover_derived(self, notes: Notes | None, clean_stop: bool, now_ms: int, damage: list[str]) -> None:
        """Makes queues and index files what they were at the checkpoint, and says in `damage` what had to be built
        again.
        """
        log = self.log
        noted = log.first_index - 1 if notes is None else notes.dispatched_index
        dispatched = max(log.first_index - 1, min(noted, log.last_index))
        bound = log.end_of(dispatched)
        queues = self.queues.recover(
            None if notes is None else notes.queues,
            log.first_position,
            bound,
            clean_stop=clean_stop and dispatched == noted,
            is_whole=dispatched == noted,
            files_count=not are_put_aside(self._disk, log.epoch),
            before_removal=partial(put_aside, self._disk, log.epoch),
        )
        index_from = self.index.recover(None if notes is None else notes.index_files, clean_stop=clean_stop)
        if self.index.end_offset >= bound:
            self.index.remove_all()
            index_from = 0
        if notes is None:
            queues = [] if log.last_index < log.first_index else queues
        damage += [f"{QUEUE_DIRECTORY}/{topic}/{queue_id} was built again" for topic, queue_id in queues]
        if index_from is not None and len(self.index) == 0 and dispatched < log.first_index:
            index_from = None  # there was nothing to index
        if index_from is not None and index_from >= bound + HEADER_BYTES:
            index_from = None  # the file that is missing held only records behind the log's end, which damage cut short
        if index_from is not None:
            damage.append(f"{INDEX_DIRECTORY} was built again from offset {index_from}")
        if dispatched >= log.first_index and (queues or index_from is not None):
            begin = log.first_index
            if not queues and index_from is not None and index_from > log.first_position:
                begin = index_at(log, index_from - HEADER_BYTES)
            _free_discarded(self._disk)  # among it may be what is now built again
            self._dispatcher.run(begin, dispatched, now_ms)
            known = set() if notes is None else {(note.topic, note.queue_id) for note in notes.queues}
            for queue in [queue for queue in self.queues if (queue.topic, queue.queue_id) not in known]:
                self.queues.discard(queue)  # of a topic deleted since
            self._dispatcher.forget_topics()
        if are_put_aside(self._disk, log.epoch):
            # The notes tell of these queues still: by now of units that are on the disk again.
            self.queues.flush(queues)
            put_back(self._disk, log.epoch)
        if notes is not None:
            self.checkpoints.noted_index = max(log.first_index - 1, min(notes.end_index, log.last_index))
        self._dispatcher.built_index = dispatched
        self.queues.are_built_before(bound)
        # Commands behind the snapshot must reach the state machine again.
        self.dispatched_index = max(log.first_index - 1, min(dispatched, self.snapshot.applied_index))
